"""One DP-SGD step: per-record gradients and their clipped sum by torch.func, by Opacus's hooks, and a plain step.

    python -m benchmarks.dp_sgd [--batch 64] [--repeats 7]

CPU time of one thread, medians, taken in turn. Opacus clips and sums by its own optimiser's rule.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from opacus import GradSampleModule
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F

from privdd.core.rng import Keys
from privdd.models import ModelSpec, build, initial
from privdd.privacy.clipping import clipped_sum
from privdd.privacy.lattice import Lattice
from privdd.training.dp_sgd import cross_entropy_of, record_gradients

LATTICE = Lattice.under(1.0, 1.0)
SHAPE, CLASSES = (1, 28, 28), 10
SPECS = (ModelSpec("smallcnn", width=32), ModelSpec("convnet", width=32))


def variants(spec: ModelSpec, x: Tensor, y: Tensor) -> dict[str, Callable[[], object]]:
    state = initial(spec, SHAPE, CLASSES, Keys(0).torch())
    model = build(spec, SHAPE, CLASSES)
    hooked: nn.Module = build(spec, SHAPE, CLASSES)
    hooked.load_state_dict(state)
    sampled = GradSampleModule(hooked, loss_reduction="sum")
    leaves = {name: value.clone().requires_grad_(True) for name, value in state.items()}

    def plain() -> object:
        loss = F.cross_entropy(functional_call(model, leaves, (x,)), y)
        return torch.autograd.grad(loss, list(leaves.values()))

    def ours() -> object:
        return clipped_sum(record_gradients(cross_entropy_of(model), state, x, y), 1.0, LATTICE)

    def opacus() -> object:
        sampled.zero_grad()
        F.cross_entropy(sampled(x), y, reduction="sum").backward()
        return clipped_sum({name: p.grad_sample for name, p in sampled.named_parameters()}, 1.0, LATTICE)

    return {"plain": plain, "torch.func": ours, "Opacus hooks": opacus}


def seconds(work: Callable[[], object]) -> float:
    start = time.process_time()
    work()
    return time.process_time() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=7)
    options = parser.parse_args()
    torch.set_num_threads(1)
    g = Keys(0).fold("data").torch()
    x, y = torch.rand(options.batch, *SHAPE, generator=g), torch.randint(CLASSES, (options.batch,), generator=g)
    for spec in SPECS:
        work = variants(spec, x, y)
        times: dict[str, list[float]] = {name: [] for name in work}
        for _ in range(options.repeats + 1):
            for name, run in work.items():
                times[name].append(seconds(run))
        medians = {name: statistics.median(values[1:]) for name, values in times.items()}
        shown = ", ".join(f"{name} {1e3 * m:.0f} ms ({m / medians['plain']:.2f}x)" for name, m in medians.items())
        print(f"{spec.name} width {spec.width}: {shown}")


if __name__ == "__main__":
    main()
