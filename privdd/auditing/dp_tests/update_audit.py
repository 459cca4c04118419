"""T1, T2 and T3 of what a whole client sends, where the unit is a client."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

import dp_accounting as dpa
import torch
from torch import Tensor

from attacks.certificates import gaussian_log_ratio
from attacks.types import Finding
from privdd.auditing.dp_tests.clean_values import (
    clean_numbers,
    flatten_tensors,
    sensitivity_unit,
    value_before_noise,
)
from privdd.auditing.dp_tests.crafted_records import (
    with_records,
)
from privdd.auditing.dp_tests.likelihood_ratios import (
    RatioTranscripts,
)
from privdd.auditing.dp_tests.sensitivity_audit import (
    SensitivityTally,
)
from privdd.auditing.dp_tests.statement import GuaranteeSubject
from privdd.core.rng import Keys
from privdd.core.types import Artifact, Records, State, Tensors
from privdd.federated.channel import OutputLog
from privdd.federated.simulation import Snapshot
from privdd.privacy.mechanism import Mechanism, Output
from privdd.privacy.noise import SeededNoise

MAX_RATIO_NUMBERS = (
    10**9
)  # noise values for T2 and T3, at most (half a minute), but never fewer than slow_runs runs
HUGE_UPDATE = 1e6  # times the client's own update: beyond any clip norm


def client_update_findings(subject: GuaranteeSubject, name: str) -> Iterator[Finding]:
    """T1, T2 and T3 of the mechanism set for the upload ``name``, whatever its class; the unit is a
    client. A mechanism that shows no value before its noise, or adds other noise than Gaussian,
    gets a row that says so."""
    looks = subject.client_rounds(name)
    rows = subject.own_releases(name)
    if not looks.chosen or not subject.has_finite_epsilon(name):
        return
    mechanism = subject.plan.mechanisms[name]
    relation = subject.plan.relation
    calls = sum(row.count for row in rows)
    event = rows[0].event
    whole = dpa.SelfComposedDpEvent(event, calls)
    source = f"accounted for {calls} update(s)"
    statement = subject.statement(name, subject.accounted_epsilon(whole), source, "client")
    at = {t: trained_updates(subject, subject.snapshots[t], name) for t in looks.chosen}
    earlier = {
        f"{says} in round {t}": update for t in looks.chosen[:-1] for says, update in at[t].items()
    }
    crafted = {**earlier, **crafted_updates(at[looks.chosen[-1]])}
    if not isinstance(event, dpa.GaussianDpEvent) or not value_before_noise(
        mechanism, next(iter(crafted.values()))
    ):
        why = (
            f"{type(mechanism).__name__} was not tested: that needs Gaussian noise and the "
            "value before it (exact)"
        )
        yield statement.untested_sensitivity(why)
        return
    tally = compare_updates(subject, subject.snapshots[looks.chosen[-1]], name, crafted)
    if tally.leak:
        note = f"{looks.describe_rounds(looks.chosen)}{tally.describe_faults()}"
        yield statement.sensitivity_finding(HUGE_UPDATE, len(crafted), note, looks.chosen, 1.0)
        return
    kappa, worst = tally.worst_guest(relation)
    what = list(crafted)[worst]
    worst_is = f"worst is {what!r}{tally.describe_faults()}"
    searched = f"{looks.describe_rounds(looks.chosen)}, {len(crafted)} crafted updates; {worst_is}"
    yield statement.sensitivity_finding(kappa, len(crafted), searched, looks.chosen)
    if not bool(torch.isfinite(clean_numbers(mechanism, crafted[what])).all()):
        return  # an infinite value has no likelihood ratio, and kappa has already shown the fault
    size = sum(t.numel() for t in crafted[what].values())
    count = max(
        subject.budget.slow_runs, min(subject.budget.runs, MAX_RATIO_NUMBERS // (2 * calls * size))
    )
    opposite = relation == "replace"
    pair = (
        crafted[what],
        {n: -t if opposite else torch.zeros_like(t) for n, t in crafted[what].items()},
    )
    runs = runs_of_updates(mechanism, *pair, calls, count, subject.keys.fold("runs", name))
    note = (
        f"{calls} noised update(s): {what!r} each time, or {'its opposite' if opposite else 'zero'}"
    )
    yield from statement.likelihood_ratio_findings(runs, note, event=whole)


def trained_updates(subject: GuaranteeSubject, snapshot: Snapshot, name: str) -> dict[str, Tensors]:
    """Name -> update: the client's own, and those of clients with other records."""
    own = subject.shard.train
    flipped = replace(own, y=(own.y + 1) % subject.shard.classes)
    few = own.take(torch.zeros(min(4, len(own)), dtype=torch.long))
    white = replace(few, x=torch.ones_like(few.x))
    held = {"the client": own, "all labels wrong": flipped, "copies of a white record": white}
    return {says: _train_update(subject, snapshot, name, records) for says, records in held.items()}


def crafted_updates(trained: Mapping[str, Tensors]) -> dict[str, Tensors]:
    """The trained updates, and some that no training yields."""
    base = trained["the client"]
    first = next(iter(base))
    spike: State = {n: torch.zeros_like(t) for n, t in base.items()}
    spike[first].view(-1)[0] = HUGE_UPDATE
    return {
        **trained,
        "the client's, a million times": {n: t * HUGE_UPDATE for n, t in base.items()},
        "and its opposite": {n: t * -HUGE_UPDATE for n, t in base.items()},
        "one huge number": spike,
        "every number alike": {n: torch.full_like(t, HUGE_UPDATE) for n, t in base.items()},
        "infinite": {n: torch.full_like(t, torch.inf) for n, t in base.items()},
        "not a number": {
            n: torch.where(spike[n] > 0, torch.nan, t * HUGE_UPDATE) for n, t in base.items()
        },
    }


def _train_update(
    subject: GuaranteeSubject, snapshot: Snapshot, name: str, records: Records
) -> Tensors:
    """The update that the method's own local work hands to the channel."""
    shard = with_records(subject.shard, records)
    ctx = subject.plan.client_context(snapshot.round, subject.plan.victim)
    upload, _ = subject.plan.method.local(snapshot.broadcast, dict(snapshot.memory), shard, ctx)
    return {n: t.detach() for n, t in upload[name].value.items()}


def compare_updates(
    subject: GuaranteeSubject, snapshot: Snapshot, name: str, crafted: Mapping[str, Tensors]
) -> SensitivityTally:
    """Each crafted update through the channel, against zero in its place: changes in units, and the
    drawn noise."""
    outputs = [
        _send_update(subject, snapshot, name, number, update)
        for number, update in enumerate(crafted.values())
    ]
    if (
        len(
            {
                str({n: tuple(t.shape) for n, t in sorted(update.items())})
                for update in crafted.values()
            }
        )
        > 1
    ):
        return SensitivityTally(
            leak=f"the size of {name!r} depends on which records the client has"
        )
    nothing = {n: torch.zeros_like(t) for n, t in next(iter(crafted.values())).items()}
    mechanism = subject.plan.mechanisms[name]
    zero = clean_numbers(mechanism, nothing)
    clean = [clean_numbers(mechanism, update) for update in crafted.values()]
    moved = torch.stack([(one - zero) / sensitivity_unit(o) for one, o in zip(clean, outputs)])
    changes = moved.nan_to_num(nan=HUGE_UPDATE)
    tally = SensitivityTally()
    tally.changes = dict(enumerate(changes.norm(dim=1).tolist()))
    tally.pairs = float(torch.cdist(changes, changes).max())
    for output in outputs:
        gap = (flatten_tensors(output.value) - flatten_tensors(output.exact or {})).double()
        tally.add_noise(gap / output.noise_std)
    return tally


def _send_update(
    subject: GuaranteeSubject, snapshot: Snapshot, name: str, number: int, update: Tensors
) -> Output:
    plan = replace(subject.plan, keys=subject.keys.fold("t1", name, number))
    log = OutputLog()
    ctx = plan.client_context(snapshot.round, plan.victim, observer=log)
    ctx.noise = SeededNoise(plan.keys.fold("noise").torch())
    plan.channel.send({name: Artifact(update)}, ctx)
    return log.outputs[0][1]


def runs_of_updates(
    mechanism: Mechanism, update: Tensors, other: Tensors, calls: int, runs: int, keys: Keys
) -> RatioTranscripts:
    """R runs of ``calls`` noised updates of one client, and R runs of one that sends ``other`` each
    time."""
    noise = SeededNoise(keys.fold("noise").torch())
    inside = clean_numbers(mechanism, update)
    outside = clean_numbers(mechanism, other)
    found: Tensor = torch.zeros(2 * runs, dtype=torch.float64)
    for run in range(2 * runs):
        for _ in range(calls):
            output = mechanism(update if run < runs else other, noise)
            value = flatten_tensors(output.value).unsqueeze(0)
            found[run] += gaussian_log_ratio(value, inside, outside, output.noise_std)[0]
    return RatioTranscripts(found, torch.zeros(2 * runs, 0))
