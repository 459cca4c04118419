"""Peak memory of membership signals from one update of a large model: ResNet-18 on 3x32x32, random
records.

    python -m benchmarks.large_models [--records 400] [--width 64] [--norm instance]

Prints resident memory before and after (its peak, by getrusage) and the CPU time of the first
replay, which also takes the lengths of all gradients, and of one more. The records' gradients as
one matrix would take what is printed first."""

from __future__ import annotations

import argparse
import resource
import sys
import time

import torch

from attacks.command_line import CommandParser
from attacks.types import Surface
from privdd.auditing.adversary_view import AdversaryView
from privdd.auditing.signal_extraction import extract_signals
from privdd.core.rng import Keys
from privdd.core.types import Problem, Records
from privdd.federated.simulation import Snapshot
from privdd.methods.fedavg import FedAvg
from privdd.models import ModelSpec
from privdd.runtime.startup import keep_freed_memory

SHAPE = (3, 32, 32)
CLASSES = 10


def posed(spec: ModelSpec, records: int) -> AdversaryView:
    """What an attacker sees: a model that was sent, and one that came back, near it."""
    method = FedAvg(model=spec, rounds=1)
    problem = Problem(SHAPE, CLASSES, clients=1)
    g = torch.Generator().manual_seed(0)
    broadcast = method.broadcast(method.init(problem, Keys(0)))
    start = method.sent_state(broadcast) or {}
    end = {name: t + 1e-3 * torch.randn(t.shape, generator=g) for name, t in start.items()}
    name = next(name for name, surface in method.uploads.items() if surface == Surface.UPDATE)
    own = Records(
        torch.rand(records, *SHAPE, generator=g),
        torch.arange(records) % CLASSES,
        torch.arange(records),
    )
    return AdversaryView(
        method, problem, Snapshot(0, broadcast, {}, {name: end}), own, own, {}, frozenset(), {}
    )


def peak() -> float:
    """GiB of this process so far."""
    return (
        resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        * (1 if sys.platform == "darwin" else 1024)
        / 2**30
    )


def main() -> None:
    parser = CommandParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--records", type=int, default=400)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--norm", default="instance")
    given = parser.parse_args()
    torch.set_num_threads(1)
    keep_freed_memory()
    lens = posed(ModelSpec("resnet18", width=given.width, norm=given.norm), given.records)
    assert lens.record_gradients is not None
    print(
        f"{lens.record_gradients.parameter_count:,} parameters; gradients of "
        f"{given.records} records: {lens.record_gradients.numel * 4 / 2**30:.1f} GiB"
    )
    print(f"before: {peak():.2f} GiB")
    for words in ("first replay", "one more"):
        began = time.process_time()
        extract_signals(lens, lens.snapshot.sent)
        print(
            f"{words}: {time.process_time() - began:.1f} CPU s, peak {peak():.2f} GiB", flush=True
        )


if __name__ == "__main__":
    main()
