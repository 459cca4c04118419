"""One update of eight records, inverted by ``update_inversion``'s method and by breaching, a public
tool.

    pip download breaching==0.1.2 --no-deps && unzip -d FOLDER breaching-*.whl
    PYTHONPATH=.:FOLDER python -m benchmarks.public_tool --first 0 --iterations 600

Both get the same gradient of the same untrained network (one local step: the update over the
learning rate), pixels in [0, 1] and one thread. breaching is *given* the labels, and its settings
are run as it ships them and with a weight of total variation that suits these images; ours recovers
the labels, and starts from the class means of public records as the attack does. PSNR after the
best assignment. breaching's total variation fails on grey pictures: it is run with one channel
instead of three, which changes nothing else. It is not a dependency of this project, and none of
its code is here."""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from attacks.command_line import CommandParser
from attacks.inversion.evaluation import class_mean_images
from attacks.inversion.gradient import InvertingGradients
from attacks.inversion.labels import guess_labels
from attacks.inversion.victim import SINGLE_STEP, PixelScale, Victim
from benchmarks.inversion import load, matched
from privdd.core.user_modules import import_torchvision
from privdd.models import ModelSpec, build, initial

TV = "regularization.total_variation.scale"
FEATURES = [
    "+regularization.features.scale=0.1",
    "optim.signed=soft",
    "optim.step_size_decay=cosine-decay",
]
SETTINGS = {
    "invertinggradients, as shipped": ("invertinggradients", []),
    "the same, total variation 1e-3": ("invertinggradients", [f"{TV}=1e-3"]),
    "the same, and the recovered features (its newer preset without what needs colour)": (
        "invertinggradients",
        [f"{TV}=1e-3", *FEATURES],
    ),
    "the same, step 0.03": (
        "invertinggradients",
        [f"{TV}=1e-3", *FEATURES, "optim.step_size=0.03"],
    ),
}


def network(width: int, seed: int) -> nn.Module:
    """An untrained ConvNet without norm, as clients begin with."""
    spec = ModelSpec("convnet", width=width, depth=3, norm="none")
    shape = (1, 28, 28)
    model = build(spec, shape, 10)
    model.load_state_dict(initial(spec, shape, 10, torch.Generator().manual_seed(seed)))
    return model


def ours(
    model: nn.Module,
    observed: list[Tensor],
    public: tuple[Tensor, Tensor],
    count: int,
    iterations: int,
) -> Tensor:
    """As ``configs/attack/update_inversion.yaml`` sets it, labels recovered."""
    shape = (count, 1, 28, 28)
    rng = torch.Generator().manual_seed(1)
    labels = guess_labels(model, observed, shape, PixelScale(), SINGLE_STEP, rng)
    means = class_mean_images(*public, 10)[labels]
    attack = InvertingGradients(iterations, tv=1e-3, lr=0.03, schedule="cosine", soften=100.0)
    each = [g[None] for g in observed]
    return attack.reconstruct_each(
        model, each, shape, labels=labels[None], generator=rng, start=means, spread=0.1
    )[0].images


def breached(
    breaching: Any,
    model: nn.Module,
    observed: list[Tensor],
    labels: Tensor,
    preset: str,
    more: list[str],
    seed: int,
) -> Tensor:
    """The tool's own loop, with its own configuration of ``preset``."""
    setup = {"device": torch.device("cpu"), "dtype": torch.float}
    config = breaching.get_attack_config(preset, overrides=more)
    attacker = breaching.attacks.prepare_attack(model, nn.CrossEntropyLoss(), config, setup)
    for regularizer in attacker.regularizers:
        if hasattr(
            regularizer, "groups"
        ):  # its total variation takes three channels for granted, and fails on grey pictures
            regularizer.groups = 1
            regularizer.weight = regularizer.weight[:2]
    about = SimpleNamespace(shape=(1, 28, 28), modality="vision", classes=10)
    payload = [{"parameters": list(model.parameters()), "buffers": None, "metadata": about}]
    told = {"num_data_points": len(labels), "labels": labels, "local_hyperparams": None}
    sent = [{"gradients": [g.clone() for g in observed], "buffers": None, "metadata": told}]
    torch.manual_seed(seed)  # the tool draws from torch's own generator
    found: Tensor = attacker.reconstruct(payload, sent, {})[0]["data"].detach()
    return found.clamp(0, 1)


def main() -> None:
    parser = CommandParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--first", type=int, default=0, help="first of the batch's test images")
    parser.add_argument("--iterations", type=int, default=600, help="of either tool")
    parser.add_argument(
        "--only",
        type=int,
        nargs="*",
        default=list(range(len(SETTINGS))),
        help="which of breaching's settings",
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--data", type=Path, default=Path("/usr/share/datasets/fashion-mnist"))
    options = parser.parse_args()
    try:
        import_torchvision()
        import breaching
    except ImportError as error:
        raise SystemExit(
            f"benchmarks.public_tool: breaching is needed on PYTHONPATH, see --help ({error})"
        ) from None
    torch.set_num_threads(1)
    (x, y), model = load(options.data), network(options.width, options.seed)
    rows = slice(options.first, options.first + options.batch)
    real = x[rows]
    labels = y[rows]
    observed = [g.detach() for g in Victim(model).simulated_gradients(real, labels)]

    def report(name: str, work: Any) -> None:
        began = time.process_time()
        images = work()
        taken = (time.process_time() - began) / len(real)
        print(f"{name}: {matched(images, real):.2f} dB, {taken:.2f} CPU s a record", flush=True)

    report(
        "ours, labels recovered",
        lambda: ours(model, observed, (x[-500:], y[-500:]), len(real), options.iterations),
    )
    for at in options.only:
        name, (preset, more) = list(SETTINGS.items())[at]
        wanted = [*more, f"optim.max_iterations={options.iterations}"]
        report(
            f"breaching, {name}",
            lambda p=preset, w=wanted: breached(
                breaching, model, observed, labels, p, w, options.seed
            ),
        )  # type: ignore[misc]


if __name__ == "__main__":
    main()
