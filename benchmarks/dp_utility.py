"""Accuracy at equal accounted epsilon on Fashion-MNIST: FedDM with noisy embeddings against DP-FedAvg.

    python benchmarks/dp_utility.py [key=value ...] [--epsilons 1 3 10] [--seeds 0 1 2] [--levers]
    python benchmarks/dp_utility.py            small: epsilon 3, one seed

Epsilon is the total over all rounds by PLD at delta 1e-5 (records, add/remove), calibrated before training
and read off the ledger after it. DP-FedAvg is algo=fedavg privacy=dpsgd: record-level DP-SGD on every
client. Its learning rate and rounds, and feddm_dp's rounds and reads, were chosen on seed 7, which is not
reported. The clip norm of feddm_dp is the median embedding norm of the public (test) images in a random
network, around the embeddings of noise images; the records are not read for it.

--levers: what each choice of feddm_dp does at epsilon 3, first seed.
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
from collections.abc import Sequence

import torch
from accuracy import Curve, run, shown
from machine import hardware

from privdd.assembly import assemble
from privdd.config import check_overrides
from privdd.core import Keys
from privdd.distill.networks import embedder
from privdd.models import initial
from privdd.models.build import skeleton

COMMON = (
    "data=fashion_mnist", "preset=smoke", "data.limit=6000", "data.test_limit=2000", "partition.clients=3",
    "partition.heldout=0", "model.width=16",
)
FEDDM = ("algo=feddm_dp", "algo.rounds=4", "algo.reads=2")
FEDAVG = (
    "algo=fedavg", "privacy=dpsgd", "algo.rounds=5", "algo.local_epochs=1", "algo.lr=2", "algo.momentum=0",
    "algo.weight_decay=0", "privacy.expected_batch=200",
)
LEVERS = {
    "as compared": (),
    "clip norm 1": ("privacy.clip_norm=1",),
    "1 round, 8 reads": ("algo.rounds=1", "algo.reads=8"),
    "2 rounds, 4 reads": ("algo.rounds=2", "algo.reads=4"),
    "4 rounds, 4 reads": ("algo.reads=4",),
    "features without logits": ("algo.logits=false",),
    "new noise each round": ("algo.carry_over=false",),
}


def public_norm(overrides: Sequence[str]) -> float:
    """Median distance of public images' embeddings from the mean embedding of noise images, one random network."""
    experiment = assemble(check_overrides("train", overrides))
    method, data = experiment.plan.method, experiment.dataset
    keys = Keys(0).fold("public norm")
    state = initial(method.model, data.shape, data.classes, keys.fold("net").torch())  # type: ignore[attr-defined]
    embed = embedder(skeleton(method.model, data.shape, data.classes), state, logits=method.logits)  # type: ignore[attr-defined]
    with torch.no_grad():
        centre = embed(torch.randn(64, *data.shape, generator=keys.fold("noise").torch())).mean(0)
        return float((embed(data.test.x[:500]) - centre).norm(dim=1).median())


def one(overrides: Sequence[str], epsilon: float, seed: int) -> tuple[Curve, float, float]:
    """(curve, epsilon of the ledger, noise multiplier)."""
    curve, experiment, progress = run((*overrides, f"privacy.epsilon={epsilon}", f"seed={seed}"), math.inf)
    return curve, progress.ledger.epsilon(), float(experiment.config.privacy.noise_multiplier)


def compare(epsilons: Sequence[float], seeds: Sequence[int], feddm: Sequence[str], fedavg: Sequence[str]) -> None:
    ahead, unclear = [], []
    print(f"{'epsilon':>8}  {'feddm_dp':>15}  {'DP-FedAvg':>15}   spent, noise multipliers, CPU s a run")
    for epsilon in epsilons:
        found = {name: [one(o, epsilon, s) for s in seeds] for name, o in (("dm", feddm), ("avg", fedavg))}
        finals = {name: [curve.accuracy[-1] for curve, _, _ in rows] for name, rows in found.items()}
        told = "; ".join(
            f"{name} {max(e for _, e, _ in rows):.3f}, {rows[0][2]:.2f}, {rows[0][0].seconds[-1]:.0f}" for name, rows in found.items()
        )
        print(f"{epsilon:8g}  {shown(finals['dm']):>15}  {shown(finals['avg']):>15}   {told}", flush=True)
        gaps = [x - y for x, y in zip(finals["dm"], finals["avg"])]  # by seed: the same partition and records
        error = statistics.stdev(gaps) / math.sqrt(len(gaps)) if len(gaps) > 1 else math.inf
        if statistics.fmean(gaps) > 2 * error:
            ahead.append(f"{epsilon:g}")
        elif abs(statistics.fmean(gaps)) <= 2 * error:
            unclear.append(f"{epsilon:g}")
    print(f"feddm_dp is ahead of DP-FedAvg by more than two standard errors at epsilon: {', '.join(ahead) or 'NOWHERE'}; "
          f"undecided at: {', '.join(unclear) or 'none'}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epsilons", type=float, nargs="+", default=[3])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--levers", action="store_true")
    parser.add_argument("overrides", nargs="*", help="key=value for every run")
    given = parser.parse_args()
    torch.set_num_threads(1)
    shared = (*COMMON, *given.overrides)
    norm = public_norm(("algo=feddm_dp", *shared))
    feddm, fedavg = (*FEDDM, *shared, f"privacy.clip_norm={norm:.1f}"), (*FEDAVG, *shared)
    print(f"{hardware()}; seeds {given.seeds}; {' '.join(shared)}; clip norm from public images {norm:.1f}", flush=True)
    if given.levers:
        began = time.process_time()
        for name, lever in LEVERS.items():
            curve, spent, z = one((*feddm, *lever), 3.0, given.seeds[0])
            print(f"{name:<26} {100 * curve.accuracy[-1]:6.2f}   epsilon {spent:.3f}, noise multiplier {z:.2f}", flush=True)
        print(f"{time.process_time() - began:.0f} CPU s")
    else:
        compare(given.epsilons, given.seeds, feddm, fedavg)


if __name__ == "__main__":
    main()
