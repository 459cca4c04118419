"""Guarantees for whole clients: updates that each client clips and noises, compared with an update of zero.

T1 clips crafted updates and those of crafted clients, trained by the method's own local work; what is left
must have norm at most C, across all tensors. T2 and T3 look at the noised updates of all of a client's
rounds, against those of a client whose updates are zero, or the opposite where clients are replaced.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

import dp_accounting as dpa
import torch
from torch import Tensor

from attacks.guarantee import gaussian_log_ratio
from attacks.types import Adversary, Finding
from privdd.auditing.guarantees.accounted_curve import curve_finding
from privdd.auditing.guarantees.matching_transcripts import Transcripts
from privdd.auditing.guarantees.recording_context import exact, flat, unit
from privdd.auditing.guarantees.sensitivity import QueryTally
from privdd.auditing.guarantees.statement import Statement, Subject
from privdd.core.keys import Keys
from privdd.core.types import Artifact, Records, State, Tensors
from privdd.federated.simulation import Snapshot
from privdd.privacy.accounting import epsilon
from privdd.privacy.mechanism import Mechanism, Output
from privdd.privacy.noise import SeededNoise

NUMBERS = 10**9  # at most so many noise values for T2 and T3 (half a minute), but never fewer than slow_runs runs
HUGE = 1e6  # times the client's own update: beyond any clip norm


def client_findings(subject: Subject, name: str) -> Iterator[Finding]:
    """T1, T2 and T3 of the mechanism set for the upload ``name``, whatever its class; the unit is a client.

    A mechanism that shows no value before its noise, or adds other noise than Gaussian, gets a row that says so.
    """
    looks = subject.rounds(name)
    rows = [r for r in subject.ledger.releases if r.name == name and r.client == subject.plan.victim]
    if not looks.chosen or not subject.spends(name):
        return
    mechanism, relation = subject.plan.mechanisms[name], subject.plan.relation
    calls = sum(row.count for row in rows)
    event = rows[0].event
    stated = epsilon(dpa.SelfComposedDpEvent(event, calls), subject.delta, relation=relation)  # type: ignore[arg-type]
    statement = Statement(subject, subject.surface(name), stated, f"accounted for {calls} update(s)", name, "client")
    at = {t: trained_updates(subject, subject.snapshots[t], name) for t in looks.chosen}
    crafted = crafted_updates(at[looks.chosen[-1]])
    earlier = [(f"{says} in round {t}", update) for t in looks.chosen[:-1] for says, update in at[t].items()]
    crafted = {**dict(earlier), **crafted}
    if not isinstance(event, dpa.GaussianDpEvent) or not exact(mechanism, next(iter(crafted.values()))):
        why = f"{type(mechanism).__name__} was not tested: that needs Gaussian noise and the value before it (exact)"
        yield statement.finding("t1_sensitivity", Adversary.ANALYST, n=0, note=why)
        return
    tally = compared(subject, subject.snapshots[looks.chosen[-1]], name, crafted)
    if tally.leak:
        note = f"{looks.words(looks.chosen)}{tally.faults()}"
        yield statement.sensitivity(HUGE, 1.0, len(crafted), note, looks.chosen)
        return
    kappa, worst = tally.worst(relation)
    what = list(crafted)[worst]
    searched = f"{looks.words(looks.chosen)}, {len(crafted)} crafted updates; worst is {what!r}{tally.faults()}"
    yield statement.sensitivity(kappa, 2.0 if relation == "replace" else 1.0, len(crafted), searched, looks.chosen)
    if not bool(torch.isfinite(flat(exact(mechanism, crafted[what]))).all()):
        return  # an infinite value has no likelihood ratio, and kappa has already shown the fault
    size = sum(t.numel() for t in crafted[what].values())
    count = max(subject.budget.slow_runs, min(subject.budget.runs, NUMBERS // (2 * calls * size)))
    opposite = relation == "replace"
    pair = crafted[what], {n: -t if opposite else torch.zeros_like(t) for n, t in crafted[what].items()}
    runs = of_updates(mechanism, *pair, calls, count, subject.keys.fold("runs", name))
    note = f"{calls} noised update(s): {what!r} each time, or {'its opposite' if opposite else 'zero'}"
    yield from statement.statistical(runs, note, final=None)
    whole = dpa.SelfComposedDpEvent(event, calls)
    yield curve_finding(statement, runs.ratios[: runs.runs], runs.ratios[runs.runs :], whole, note)


def trained_updates(subject: Subject, snapshot: Snapshot, name: str) -> dict[str, Tensors]:
    """Name -> update: the client's own, and those of clients with other records."""
    own = subject.shard.train
    flipped = replace(own, y=(own.y + 1) % subject.shard.classes)
    few = torch.zeros(min(4, len(own)), dtype=torch.long)
    return {
        "the client": _trained(subject, snapshot, name, own),
        "all labels wrong": _trained(subject, snapshot, name, flipped),
        "copies of a white record": _trained(
            subject, snapshot, name, replace(own.take(few), x=torch.ones_like(own.x[few]))
        ),
    }


def crafted_updates(trained: Mapping[str, Tensors]) -> dict[str, Tensors]:
    """The trained updates, and some that no training yields."""
    base = trained["the client"]
    first = next(iter(base))
    spike: State = {n: torch.zeros_like(t) for n, t in base.items()}
    spike[first].view(-1)[0] = HUGE
    return {
        **trained,
        "the client's, a million times": {n: t * HUGE for n, t in base.items()},
        "and its opposite": {n: t * -HUGE for n, t in base.items()},
        "one huge number": spike,
        "every number alike": {n: torch.full_like(t, HUGE) for n, t in base.items()},
        "infinite": {n: torch.full_like(t, torch.inf) for n, t in base.items()},
        "not a number": {n: torch.where(spike[n] > 0, torch.nan, t * HUGE) for n, t in base.items()},
    }


def _trained(subject: Subject, snapshot: Snapshot, name: str, records: Records) -> Tensors:
    """The update that the method's own local work hands to the channel."""
    shard = replace(subject.shard, train=records, nulls=None)
    ctx = subject.plan.context(snapshot.round, subject.plan.victim)
    upload, _ = subject.plan.method.local(snapshot.broadcast, dict(snapshot.memory), shard, ctx)
    return {n: t.detach() for n, t in upload[name].value.items()}


def compared(subject: Subject, snapshot: Snapshot, name: str, crafted: Mapping[str, Tensors]) -> QueryTally:
    """Each crafted update through the channel, against zero in its place: changes in units, and the drawn noise."""
    outputs = [_sent(subject, snapshot, name, number, update) for number, update in enumerate(crafted.values())]
    if len({str({n: tuple(t.shape) for n, t in sorted(update.items())}) for update in crafted.values()}) > 1:
        return QueryTally(leak=f"the size of {name!r} depends on which records the client has")
    nothing = {n: torch.zeros_like(t) for n, t in next(iter(crafted.values())).items()}
    zero = flat(exact(subject.plan.mechanisms[name], nothing))
    mechanism, given = subject.plan.mechanisms[name], crafted.values()
    clean = [flat(exact(mechanism, update)) for update in given]
    changes = torch.stack([(one - zero) / unit(o) for one, o in zip(clean, outputs)]).nan_to_num(nan=HUGE)
    tally = QueryTally()
    tally.changes = dict(enumerate(changes.norm(dim=1).tolist()))
    tally.pairs = float(torch.cdist(changes, changes).max())
    for output in outputs:
        gap = (flat(output.value) - flat(output.exact or {})).double() / output.noise_std
        tally.residual += float(gap.square().sum())
        tally.numbers += gap.numel()
    return tally


def _sent(subject: Subject, snapshot: Snapshot, name: str, number: int, update: Tensors) -> Output:
    plan = replace(subject.plan, keys=subject.keys.fold("t1", name, number))
    ctx = plan.context(snapshot.round, plan.victim, exact=[])
    ctx.noise = SeededNoise(plan.keys.fold("noise").torch())
    plan.channel.send({name: Artifact(update)}, ctx)
    return (ctx.exact or [])[0][1]


def of_updates(mechanism: Mechanism, update: Tensors, other: Tensors, calls: int, runs: int, keys: Keys) -> Transcripts:
    """R runs of ``calls`` noised updates of one client, and R runs of one that sends ``other`` each time."""
    noise = SeededNoise(keys.fold("noise").torch())
    inside, outside = flat(exact(mechanism, update)), flat(exact(mechanism, other))
    ratios: Tensor = torch.zeros(2 * runs, dtype=torch.float64)
    for run in range(2 * runs):
        for _ in range(calls):
            output = mechanism(update if run < runs else other, noise)
            ratios[run] += gaussian_log_ratio(flat(output.value).unsqueeze(0), inside, outside, output.noise_std)[0]
    return Transcripts(ratios, torch.zeros(2 * runs, 0))
