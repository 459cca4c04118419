"""How near the certificate of a whole run comes to its accounted epsilon: certified / accounted, by profile.

    python -m benchmarks.certificate [profile ...] [preset=default] [seeds=0,1,2] [key=value ...]

Each run is trained without an audit; then only the certificate is taken. Prints a table: median over seeds.
"""

from __future__ import annotations

import statistics
import sys
import time

from privdd.auditing.guarantees.certificate import certificate_findings
from privdd.auditing.guarantees.statement import Subject
from privdd.cli.assemble import assemble
from privdd.cli.config import composed
from privdd.federated.experiment import Experiment
from privdd.federated.settings import Budget
from privdd.federated.simulation import Progress, start, step

PROFILES = {
    "feddm_dp": ["algo=feddm_dp"],
    "fedrd_dp": ["algo=fedrd_dp"],
    "fedlgd_dp": ["algo=fedlgd_dp"],
    "feddm_public_dp": ["algo=feddm_public_dp"],
    "dp_head": ["algo=dp_head"],
    "dp_means": ["algo=dp_means"],
    "dp_moments": ["algo=dp_moments"],
    "feddm_guided_dp": ["algo=feddm_guided_dp"],
    "fedavg client": ["algo=fedavg", "privacy=client"],
    "fedavg dpsgd": ["algo=fedavg", "privacy=dpsgd"],
    "fedfed_dp": ["algo=fedfed_dp"],
}


def trained(experiment: Experiment) -> Progress:
    progress = start(experiment.plan, experiment.ledger())
    for _ in range(experiment.plan.method.rounds):
        progress, _, _ = step(experiment.plan, progress, experiment.shards, experiment.engine)
    return progress


def measured(overrides: list[str]) -> dict[str, float]:
    """One run: accounted and certified epsilon, kappa, runs and seconds of processor time."""
    experiment = assemble(composed("audit", ["data=digits", *overrides]))
    plan, began = experiment.plan, time.perf_counter()
    progress = trained(experiment)
    training = time.perf_counter() - began
    audit, privacy = experiment.audit, experiment.privacy
    budget = audit.guarantee if audit else Budget()
    subject = Subject(
        plan, experiment.shards[plan.victim], progress.snapshots, progress.ledger, privacy.delta, 0.95, budget,
        plan.keys.fold("audit", "guarantee"),
    )  # fmt: skip
    began = time.process_time()
    (found,) = certificate_findings(subject)
    cost = time.process_time() - began
    if "epsilon_measured" not in found.measures:
        raise SystemExit(f"{overrides}: {found.measures['note']}")
    kappa = found.measures["diagnostics"]["certificate"]["kappa"]
    whole = progress.ledger.epsilon()
    return {
        "accounted": whole, "certified": found.measures["epsilon_measured"], "runs": found.measures["n"],
        "kappa_min": kappa["min"], "energy": kappa["energy"], "seconds": cost, "training": training,
    }  # fmt: skip


def main(arguments: list[str]) -> None:
    typed = dict(item.split("=", 1) for item in arguments if "=" in item)
    chosen = [item for item in arguments if "=" not in item] or list(PROFILES)
    seeds = [int(seed) for seed in typed.pop("seeds", "0,1,2").split(",")]
    more = [f"{key}={value}" for key, value in typed.items()]
    print(
        "| profile | accounted | certified | ratio | kappa min | sum kappa^2 / T | runs | CPU s |\n|---|---|---|---|---|---|---|---|"
    )
    for name in chosen:
        rows = [measured([*PROFILES[name], f"seed={seed}", *more]) for seed in seeds]
        one = {key: statistics.median(row[key] for row in rows) for key in rows[0]}
        ratio = statistics.median(row["certified"] / row["accounted"] for row in rows)
        print(
            f"| {name} | {one['accounted']:.3f} | {one['certified']:.3f} | {ratio:.3f} | {one['kappa_min']:.4f} "
            f"| {one['energy']:.4f} | {one['runs']:.0f} | {one['seconds']:.1f} |",
            flush=True,
        )


if __name__ == "__main__":
    main(sys.argv[1:])
