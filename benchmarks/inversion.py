"""Gradient inversion: iterations per second against a plain autograd loop, restarts batched and one
by one, and the PSNR of Inverting Gradients on four Fashion-MNIST test images, and on updates of
eight test images after one local step, as published and as shipped here.

    python -m benchmarks.inversion [--iterations 1000] [--width 64] [--data
    /usr/share/datasets/fashion-mnist] python -m benchmarks.inversion --only batch [--norm none]
    [--first 0] [--batch-iterations 600] python -m benchmarks.inversion --only each [--first 0]
    [--batch-iterations 600]

--only batch: the gradient of ``--batch`` test images from ``--first`` on, pixels in [0, 1], labels
recovered from it, one start; PSNR after the best assignment of reconstructions to images. "class
mean": a start that costs public records (the last 500 of the test set), as ``update_inversion`` has
them. --only each: the same images, but each record's own gradient is sent, and all are inverted as
one batch of problems, with the objective that ``gradient_inversion`` ships.

A single problem gains little over the plain loop (1.1 to 1.2 times at widths 16 and 64):
convolution and pooling kernels take most of either loop, and reverse-over-reverse already is the
cheapest order. Problems
solved as one batch gain: 1.4 to 2 times the plain loop's rate.

Times are CPU seconds of one thread, best of the rounds, taken in turns so that a busy machine hits
all alike. Without the data set, enlarged digits stand in for it.
"""

from __future__ import annotations

import argparse
import gzip
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attacks.command_line import CommandParser
from attacks.images import match, psnr
from attacks.inversion.evaluation import class_mean_images
from attacks.inversion.gradient import InvertingGradients
from attacks.inversion.gradient_matching import mean_total_variation
from attacks.inversion.labels import guess_labels
from attacks.inversion.victim import SINGLE_STEP, PixelScale, Victim
from privdd.models import ModelSpec, build, initial

MEAN = 0.286
STD = 0.353
PICTURES = (0, 1, 4, 6)
METHODS = {
    "published": InvertingGradients(lr=0.1),
    "absolute": InvertingGradients(lr=0.03, schedule="cosine", objective="absolute"),
    "softened": InvertingGradients(lr=0.03, schedule="cosine", soften=100.0),
}


def load(folder: Path) -> tuple[Tensor, Tensor]:
    """(m, 1, 28, 28) in [0, 1], (m,)."""
    if folder.is_dir():
        raw = [
            gzip.decompress((folder / f"t10k-{n}-ubyte.gz").read_bytes())
            for n in ("images-idx3", "labels-idx1")
        ]
        x, y = (np.frombuffer(data, np.uint8, offset=offset) for data, offset in zip(raw, (16, 8)))
        return torch.tensor(x).view(-1, 1, 28, 28) / 255, torch.tensor(y).long()
    from sklearn.datasets import load_digits

    data = load_digits()
    images = torch.tensor(data.images, dtype=torch.float32)[:, None] / 16
    return F.interpolate(images, (28, 28), mode="bilinear"), torch.tensor(data.target).long()


def convnet(width: int, seed: int) -> nn.Module:
    """Depth 3, no norm, PyTorch's own initialisation law."""
    rng = torch.Generator().manual_seed(seed)
    layers = []
    for given in (1, width, width):
        layers += [nn.Conv2d(given, width, 3, padding=1), nn.ReLU(), nn.AvgPool2d(2)]
    model = nn.Sequential(*layers, nn.Flatten(), nn.Linear(9 * width, 10))
    with torch.no_grad():
        for module in model:
            if isinstance(module, nn.Linear | nn.Conv2d):
                bound = module.weight[0].numel() ** -0.5
                for p in module.parameters():
                    p.copy_((torch.rand(p.shape, generator=rng) * 2 - 1) * bound)
    return model


def plain(
    model: nn.Module, observed: list[Tensor], y: Tensor, steps: int, tv: float, start: Tensor
) -> Tensor:
    """The same objective and update as an everyday loop: autograd through loss, objective and
    prior, torch's Adam."""
    x = start.clone().requires_grad_()
    optimiser = torch.optim.Adam([x], lr=0.1)
    for _ in range(steps):
        optimiser.zero_grad()
        found = torch.autograd.grad(
            F.cross_entropy(model(x), y), list(model.parameters()), create_graph=True
        )
        dot = sum((a * b).sum() for a, b in zip(found, observed))
        norms = (
            sum(a.square().sum() for a in found).sqrt()
            * sum(b.square().sum() for b in observed).sqrt()
        )
        (1 - dot / norms + tv * mean_total_variation(x)).backward()
        x.grad.sign_()
        optimiser.step()
        with torch.no_grad():
            x.clamp_(-MEAN / STD, (1 - MEAN) / STD)
    return x.detach()


def seconds(work: Callable[[], object]) -> float:
    began = time.process_time()
    work()
    return time.process_time() - began


def main() -> None:
    parser = CommandParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--iterations", type=int, default=1000)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--steps", type=int, default=100, help="iterations of each timed run")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--restarts", type=int, default=8)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--only", choices=("speed", "single", "batch", "each"), help="one part instead of all"
    )
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--first", type=int, default=0, help="first of the batch's test images")
    parser.add_argument("--batch-iterations", type=int, default=600)
    parser.add_argument("--norm", choices=("none", "instance"), default="none")
    parser.add_argument("--data", type=Path, default=Path("/usr/share/datasets/fashion-mnist"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    x, y = load(options.data)
    model = convnet(options.width, options.seed)
    rng = torch.Generator().manual_seed(options.seed)
    parts = {"speed": speed, "single": quality, "batch": batches, "each": each}
    for name, part in parts.items():
        if options.only in (None, name):
            part(options, model, x, y, rng)


def speed(
    options: argparse.Namespace, model: nn.Module, x: Tensor, y: Tensor, rng: torch.Generator
) -> None:
    steps = options.steps
    shape = (1, *x.shape[1:])
    observed = [g.detach() for g in Victim(model).simulated_gradients((x[:1] - MEAN) / STD, y[:1])]
    start = torch.randn(shape, generator=rng)

    def ours(restarts: int) -> object:
        attack = InvertingGradients(iterations=steps, restarts=restarts)
        return attack.reconstruct(
            model, observed, shape, labels=y[:1], mean=MEAN, std=STD, generator=rng
        )

    many = options.restarts
    runs = {
        "plain loop": (steps, lambda: plain(model, observed, y[:1], steps, 1e-3, start)),
        "ours": (steps, lambda: ours(1)),
        f"{many} restarts, one by one": (steps * many, lambda: [ours(1) for _ in range(many)]),
        f"{many} restarts, one batch": (steps * many, lambda: ours(many)),
    }
    taken: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(options.rounds):
        for name, (_, work) in runs.items():
            taken[name].append(seconds(work))
    rates = {name: count / min(taken[name]) for name, (count, _) in runs.items()}
    for name, rate in rates.items():
        print(f"{name:28s} {rate:8.1f} iterations per CPU second")
    single, alone, batch = list(rates.values())[1:]
    print(
        f"ours / plain loop: {single / rates['plain loop']:.2f}    batched / one by one: "
        f"{batch / alone:.2f}"
    )


def batches(
    options: argparse.Namespace, model: nn.Module, x: Tensor, y: Tensor, rng: torch.Generator
) -> None:
    """Eight records after one local step: the update over the learning rate is their mean
    gradient."""
    model = untrained(options)
    rows = slice(options.first, options.first + options.batch)
    real = x[rows]
    labels = y[rows]
    observed = [g.detach()[None] for g in Victim(model).simulated_gradients(real, labels)]
    shape = (len(real), 1, 28, 28)
    found = guess_labels(model, [g[0] for g in observed], shape, PixelScale(), SINGLE_STEP, rng)
    overlap = (
        torch.bincount(found, minlength=10).minimum(torch.bincount(labels, minlength=10))
    ).sum() / len(labels)
    means = class_mean_images(x[-500:], y[-500:], 10)[found]
    free = matched(means, real)
    print(
        f"{options.norm} norm, {len(real)} records: {float(overlap):.0%} of labels, class "
        f"mean {free:.2f} dB"
    )
    for start in ("noise", "class mean"):
        for name, method in METHODS.items():
            attack = replace(method, iterations=options.batch_iterations)
            given = None if start == "noise" else means
            began = time.process_time()
            result = attack.reconstruct_each(
                model,
                observed,
                shape,
                labels=found[None],
                generator=torch.Generator().manual_seed(1),
                start=given,
                spread=1.0 if given is None else 0.1,
            )[0]
            taken = (time.process_time() - began) / len(real)
            print(
                f"{name:10s} from {start:10s}: {matched(result.images, real):.2f} dB, "
                f"{taken:.2f} CPU s a record",
                flush=True,
            )


def untrained(options: argparse.Namespace) -> nn.Module:
    """The network that clients of a federation begin with."""
    spec = ModelSpec("convnet", width=options.width, depth=3, norm=options.norm)
    model = build(spec, (1, 28, 28), 10)
    model.load_state_dict(
        initial(spec, (1, 28, 28), 10, torch.Generator().manual_seed(options.seed))
    )
    return model


def each(
    options: argparse.Namespace, model: nn.Module, x: Tensor, y: Tensor, rng: torch.Generator
) -> None:
    """Gradients of single records, inverted as one batch of problems; labels recovered."""
    model = untrained(options)
    rows = range(options.first, options.first + options.batch)
    sent = [
        [g.detach() for g in Victim(model).simulated_gradients(x[i : i + 1], y[i : i + 1])]
        for i in rows
    ]
    attack = replace(METHODS["absolute"], iterations=options.batch_iterations)
    began = time.process_time()
    found = attack.reconstruct_each(
        model, [list(part) for part in zip(*sent)], (1, 1, 28, 28), generator=rng
    )
    taken = (time.process_time() - began) / len(found)
    scores = [float(psnr(one.images, x[i : i + 1])) for one, i in zip(found, rows)]
    print(
        f"{len(rows)} gradients of single records: {' '.join(f'{s:.1f}' for s in scores)} dB, "
        f"mean {sum(scores) / len(scores):.2f}, {taken:.2f} CPU s an image"
    )


def matched(images: Tensor, real: Tensor) -> float:
    """Mean PSNR after the best assignment."""
    return float(psnr(images[match(images, real)], real).mean())


def quality(
    options: argparse.Namespace, model: nn.Module, x: Tensor, y: Tensor, rng: torch.Generator
) -> None:
    scores = []
    attack = InvertingGradients(iterations=options.iterations, tv=1e-3)
    for i in PICTURES:
        observed = [
            g.detach()
            for g in Victim(model).simulated_gradients((x[i : i + 1] - MEAN) / STD, y[i : i + 1])
        ]
        began = time.process_time()
        found = attack.reconstruct(
            model, observed, (1, *x.shape[1:]), mean=MEAN, std=STD, generator=rng
        )
        taken = time.process_time() - began
        scores.append(float(psnr(found.images, x[i : i + 1])))
        print(
            f"test image {i}: {scores[-1]:.2f} dB, objective {found.objective:.1e}, "
            f"{taken:.1f} CPU s"
        )
    print(f"mean {sum(scores) / len(scores):.2f} dB")


if __name__ == "__main__":
    main()
