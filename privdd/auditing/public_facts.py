"""What is public about a run whatever the records are, so that no ledger row counts it; and whose the noise was.

All else that leaves a client has a row. A fact stands here only if the plan alone decides it, or the relation says so.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from privdd.federated.experiment import Experiment
from privdd.federated.simulation import Plan, round_half_up
from privdd.privacy.ledger import SERVER, Ledger, Release
from privdd.privacy.mechanism import Mechanism

RELATION = {
    "add_remove": "nothing of a client's records, not how many there are either",
    "zero_out": "how many records a client has, and the labels that are sent beside them",
    "replace": "how many records a client has",
}
GLOBAL = "of the published model, on test records that no client trains on: post-processing of what has a row"
PERSONAL = (
    "of each client's own model, on that client's own test records: measured by the simulator only. No row counts it "
    "and no ε covers it; in a real federation it would be one more disclosure"
)
AUDIT = "what attacks found is worked out from private records, by the evaluator only; no ε covers it"


def noise_of(experiment: Experiment) -> dict[str, Any] | None:
    """{"source", "paired", "for_release"}, None where no mechanism adds noise."""
    privacy = experiment.privacy
    if not experiment.plan.mechanisms:
        return None
    return {"source": privacy.noise_source, "paired": privacy.paired_noise, "for_release": privacy.for_release}


def public_facts(experiment: Experiment, ledger: Ledger) -> list[dict[str, str]]:
    """[{"what", "value"}] in words, for the report."""
    plan = experiment.plan
    found = [*_rounds(plan), *_mechanisms(plan, ledger), *_shapes(ledger), *_neighbours(experiment)]
    found += [("accuracy", PERSONAL if plan.method.accuracy_kind == "personal" else GLOBAL)]
    found += [("audit", AUDIT)] if experiment.auditing is not None else []
    return [{"what": what, "value": value[:1000]} for what, value in found]


def _rounds(plan: Plan) -> Iterator[tuple[str, str]]:
    clients, all_in = plan.problem.clients, [t for t in range(plan.method.rounds) if plan.method.everyone(t)]
    taken = max(1, round_half_up(plan.fraction * clients))
    yield "rounds", str(plan.method.rounds)
    who = f"all {clients} clients in every round" if taken == clients else f"{taken} of {clients} clients a round"
    who += f", all in round {', '.join(map(str, all_in))}" if all_in and taken < clients else ""
    yield "participation", who if taken == clients else f"{who}, drawn from the seed: who takes part is no secret"
    if plan.trust.summed:
        yield "what the server sees", _summed(plan)
    yield (
        "seed",
        "initial model, networks, augmentation and the order of batches are drawn from it; the noise's source is separate",
    )


def _summed(plan: Plan) -> str:
    trust, asked = plan.trust, len(plan.asked(0))
    said = f"the sum over the clients of a round, never of fewer than {trust.fewest(asked)}, and no single upload"
    if plan.mechanisms:
        said += f"; each client adds one of {trust.shares(asked)} shares of the noise"
    if plan.mechanisms and trust.colluding:
        said += f", so that what is stated holds if {trust.colluding} of them tell the server theirs"
    return f"{said}. Secure aggregation is taken on trust: its protocol is not run"


def _mechanisms(plan: Plan, ledger: Ledger) -> Iterator[tuple[str, str]]:
    by_class = {release.name for release in ledger.releases if release.partition is not None}
    for name, mechanism in plan.mechanisms.items():
        yield f"mechanism of {name}", _settings(mechanism)
        yield f"applications of {name}", _applied(plan, name) + (", to each class" if name in by_class else "")


def _settings(mechanism: Mechanism) -> str:
    """Its name and every setting: noise, clip norm, sampling rate, normaliser."""
    found = {
        n.replace("_", " "): v for n, v in vars(mechanism).items() if isinstance(v, int | float | str | list | tuple)
    }
    said = [f"{name} {value:g}" if isinstance(value, float) else f"{name} {value}" for name, value in found.items()]
    return ", ".join([type(mechanism).__name__, *said])


def _applied(plan: Plan, name: str) -> str:
    """How often one client applies it in a round: the number of local steps, where each step is a release."""
    spent = [plan.method.spends(t, plan.mechanisms) for t in range(plan.method.rounds)]
    if any(one is None for one in spent):
        return "not planned by the method: one row each in the ledger"
    counts = [(one or {}).get(name, 0) for one in spent]
    each = {count for count in counts if count}
    if not each:
        return "none"
    active = sum(map(bool, counts))
    some = "each round" if all(counts) else "one round" if active == 1 else f"each of {active} rounds"
    often = f"{min(each)}" if len(each) == 1 else f"{min(each)} to {max(each)}"
    return f"{often} by a client in {some}"


def _shapes(ledger: Ledger) -> Iterator[tuple[str, str]]:
    """Of what clients send under a finite ε or as public; what has no protection has an infinite one."""
    rows: dict[str, list[Release]] = {}
    for release in ledger.releases:
        if release.client != SERVER and release.nonprivate_reason is None and release.visible_to != ("analyst",):
            rows.setdefault(release.name, []).append(release)
    for name, releases in rows.items():
        sizes = sorted({sum(map(math.prod, r.shape.values())) for r in releases})
        said = f"{sizes[0]} numbers" if len(sizes) == 1 else f"{sizes[0]} to {sizes[-1]} numbers"
        count = max(len(r.shape) for r in releases)
        yield f"shape of {name}", f"{said} in {count} tensor{'s' if count > 1 else ''}"


def _neighbours(experiment: Experiment) -> Iterator[tuple[str, str]]:
    privacy = experiment.privacy
    if experiment.plan.mechanisms:
        unit = "that a client takes part in a round" if privacy.unit == "client" else RELATION[privacy.relation]
        yield "made public by the relation", unit
