"""The clipped sum of one DP-SGD step on a lattice, beside a plain step and Opacus's ghost clipping
and hooks.

    python -m benchmarks.dp_sgd [--batch 32 256] [--repeats 15] [--padding]

CPU time of one thread, medians, taken in turn. Opacus clips and sums in float32 by its own rule.
With --padding: small batches as they are computed, filled up to the least pass
(``privdd.privacy.batch_invariance``), beside batches of their own size."""

from __future__ import annotations

import argparse
import statistics
import time
import warnings
from collections.abc import Callable

import torch
from opacus import GradSampleModule
from opacus.grad_sample import GradSampleModuleFastGradientClipping
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F

from attacks.command_line import CommandParser
from privdd.core.rng import Keys
from privdd.models import ModelSpec, build, initial
from privdd.privacy.clipping import clipped_sum
from privdd.privacy.lattice import Lattice
from privdd.training.dp_sgd import LayerGradients, cross_entropy_of, record_gradients

LATTICE = Lattice.under(1.0, 1.0)
SHAPE = (1, 28, 28)
CLASSES = 10
SPECS = (
    ModelSpec("mlp", width=256),
    ModelSpec("smallcnn", width=32),
    ModelSpec("convnet", width=32, norm="instance"),
)
PADDED = (1, 2, 3, 4, 6, 8)


def variants(spec: ModelSpec, x: Tensor, y: Tensor) -> dict[str, Callable[[], object]]:
    state = initial(spec, SHAPE, CLASSES, Keys(0).torch())

    def network() -> nn.Module:
        model = build(spec, SHAPE, CLASSES)
        model.load_state_dict(state)
        return model

    model = network()
    loss = cross_entropy_of(build(spec, SHAPE, CLASSES))
    hooked = GradSampleModule(network(), loss_reduction="sum")
    fast = GradSampleModuleFastGradientClipping(
        network(), max_grad_norm=1.0, use_ghost_clipping=True, loss_reduction="sum"
    )
    leaves = {name: value.clone().requires_grad_(True) for name, value in state.items()}

    def plain() -> object:
        mean = F.cross_entropy(functional_call(model, leaves, (x,)), y)
        return torch.autograd.grad(mean, list(leaves.values()))

    def ours() -> object:
        return clipped_sum(record_gradients(loss, state, x, y), 1.0, LATTICE)

    def hooks() -> object:
        hooked.zero_grad()
        F.cross_entropy(hooked(x), y, reduction="sum").backward()
        grads = [p.grad_sample for p in hooked.parameters()]
        norms = torch.stack([g.flatten(1).norm(dim=1) for g in grads], 1).norm(dim=1)
        factors = (1 / (norms + 1e-6)).clamp(max=1)
        return [torch.einsum("i,i...", factors, g) for g in grads]

    def ghost() -> object:
        losses = F.cross_entropy(fast(x), y, reduction="none")
        losses.sum().backward(retain_graph=True)
        fast.zero_grad()
        fast.disable_hooks()
        (fast.get_clipping_coef() * losses).sum().backward()
        fast.enable_hooks()
        return [p.grad for p in fast.parameters()]

    return {"plain": plain, "privdd": ours, "Opacus ghost": ghost, "Opacus hooks": hooks}


def padding(spec: ModelSpec) -> dict[str, Callable[[], object]]:
    state = initial(spec, SHAPE, CLASSES, Keys(0).torch())
    made = LayerGradients(cross_entropy_of(build(spec, SHAPE, CLASSES)))
    x = torch.rand(max(PADDED), *SHAPE, generator=Keys(0).torch())
    y = torch.zeros(max(PADDED), dtype=torch.int64)

    def at(count: int, padded: bool) -> Callable[[], object]:
        part = x[:count], y[:count]
        return lambda: record_gradients(made.loss, state, *part) if padded else made(state, *part)

    return {
        f"{count}{' padded' if padded else ''}": at(count, padded)
        for count in PADDED
        for padded in (False, True)
    }


def measure(work: dict[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    """Median CPU seconds of each, taken in turn, backwards in every other turn; the first turn is
    left out."""
    times: dict[str, list[float]] = {name: [] for name in work}
    for turn in range(repeats + 1):
        for name in list(work)[:: -1 if turn % 2 else 1]:
            start = time.process_time()
            work[name]()
            times[name].append(time.process_time() - start)
    return {name: statistics.median(values[1:]) for name, values in times.items()}


def main() -> None:
    parser = CommandParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--batch", type=int, nargs="+", default=[32, 256])
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--padding", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", message="Full backward hook is firing")
    for spec in SPECS:
        if options.padding:
            found = measure(padding(spec), options.repeats)
            print(
                f"{spec.name} width {spec.width}: "
                + ", ".join(f"{n} {1e3 * m:.2f} ms" for n, m in found.items())
            )
            continue
        for batch in options.batch:
            g = Keys(0).fold("data").torch()
            x = torch.rand(batch, *SHAPE, generator=g)
            y = torch.randint(CLASSES, (batch,), generator=g)
            found = measure(variants(spec, x, y), options.repeats)
            shown = ", ".join(
                f"{name} {1e3 * m:.1f} ms ({m / found['plain']:.2f}x)" for name, m in found.items()
            )
            ratio = found["privdd"] / found["Opacus ghost"]
            print(
                f"{spec.name} width {spec.width}, batch {batch}: {shown}; {ratio:.2f} of ghost",
                flush=True,
            )


if __name__ == "__main__":
    main()
