"""What the stack costs over a bare loop: two rounds of every method, Fashion-MNIST, ConvNet of
width 32.

    python -m benchmarks.overhead [--method all] [--records 300] [--clients 3] [--iterations 2]
    [--repeats 3]

The reference loops (tests/reference) do the same arithmetic with torch.optim and autograd and
nothing else; the stack adds streams, channel, digests, ledger and snapshots. They are timed in
turns, in process CPU time on one thread, and the ratio of the medians is printed. Goal: at most
1.15.

FLOPs: those of the stack's convolutions and matrix products over the bare loop's, forward and
    backward, counted on the short run; 1 says that neither skips work. All draws are shared, so
    both end with the same
numbers up to rounding. Two differences are printed: the largest after the timed runs in float32,
where Adam's first steps and max pooling blow rounding up, and the largest after a short run in
float64 on ``CHECKED`` records, where rounding cannot hide an error.

FedFed's rounds are two of feature split, the release, and two on both sets; matching takes
``iterations`` steps. Falls back to scikit-learn's digits where Fashion-MNIST cannot be found.
"""

from __future__ import annotations

import argparse
import logging
from dataclasses import replace

import torch

from attacks.command_line import CommandParser
from benchmarks.machine import hardware
from privdd.core.types import Records
from privdd.data.sources import load_dataset
from tests.reference.compare import KEYS, arithmetic, compare, exact_difference, split_among
from tests.reference.pairs import PAIRS, Size

GOAL = 1.15
CHECKED = 80


def records_of(name: str, count: int) -> Records:
    """``count`` training records, from digits where ``name`` cannot be had."""
    try:
        return load_dataset(name, limit=count, keys=KEYS).train
    except ValueError as error:
        print(f"{name}: {error}; using digits")
        return load_dataset("digits", limit=count, keys=KEYS).train


def arguments() -> argparse.Namespace:
    parser = CommandParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--method", choices=["all", *PAIRS], default="all")
    parser.add_argument("--data", default="fashion_mnist")
    sizes = {"records": 300, "clients": 3, "rounds": 2, "repeats": 3, "width": 32, "iterations": 2}
    for name, value in sizes.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    return parser.parse_args()


def main() -> None:
    args = arguments()
    torch.set_num_threads(1)
    # classes smaller than ten images are no news here
    logging.getLogger("privdd").setLevel(logging.ERROR)
    records = records_of(args.data, args.records)
    shards = split_among(records, args.clients)
    depth = 3 if min(records.x.shape[2:]) >= 16 else 2
    size = Size(width=args.width, depth=depth, rounds=args.rounds, iterations=args.iterations)
    brief = replace(size, iterations=1, epochs=1, anchors=10)
    few = split_among(records.take(range(CHECKED)), 2)
    print(hardware())
    print(
        f"{len(records)} records {shards[0].shape}, {args.clients} clients, {args.rounds} "
        f"rounds, width {args.width}"
    )
    print("\n| method | bare CPU s | stack CPU s | ratio | FLOPs | difference, float32 | float64 |")
    print("|---|---|---|---|---|---|---|")
    ratios = {}
    for name in PAIRS if args.method == "all" else [args.method]:
        found = compare(PAIRS[name], size, shards, args.repeats)
        ratios[name] = found.ratio
        exact = exact_difference(PAIRS[name], brief, few)
        work = arithmetic(PAIRS[name], brief, few)
        row = (
            f"{found.bare:.2f} | {found.stack:.2f} | {found.ratio:.3f} | {work:.3f} | "
            f"{found.difference:.1e} | {exact:.1e}"
        )
        print(f"| {name} | {row} |", flush=True)
    over = [name for name, ratio in ratios.items() if ratio > GOAL]
    print(f"\nabove {GOAL}: {', '.join(over) or 'none'}")


if __name__ == "__main__":
    main()
