"""The papers' matching step as printed, against the epsilon that the papers state for it.

T1 looks for the crafted record (the guest) whose presence moves the clipped mean most, along runs on copies of one
record, where matching drives the mean to zero; the best one is then run through the method's own code. T2 and T3
give the client as many copies as the theorem's own condition T q**2 <= epsilon / 2 asks for.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from torch import Tensor

from attacks.types import Adversary, Finding
from privdd.auditing.guarantees.crafted_records import common_label, copies, holding, oddities
from privdd.auditing.guarantees.matching_transcripts import Law, search, transcripts
from privdd.auditing.guarantees.recording_context import Heeded, flat, witness
from privdd.auditing.guarantees.statement import Statement, Subject
from privdd.core.types import Shard
from privdd.federated.simulation import Plan, Snapshot
from privdd.privacy.claims import DELTA, Claim, boldest
from privdd.privacy.mechanism import Mechanism
from privdd.privacy.mechanisms import AggregateClip

EXCHANGE = 2.0  # a guest takes the place of a copy in the batch: two contributions change


def printed_findings(subject: Subject, name: str) -> Iterator[Finding]:
    """T1, T2 and T3 of ``AggregateClip`` set for the query ``name``, at the papers' own delta."""
    subject = replace(subject, delta=DELTA)
    snapshot = subject.snapshots[max(subject.snapshots)]
    plan, label = subject.plan, common_label(subject.shard)
    mechanism = plan.mechanisms[name]
    steps = plan.method.steps(snapshot.broadcast, subject.shard, plan.context(snapshot.round, plan.victim))
    if steps.untestable:
        why = f"the printed theorem was not tested: {steps.untestable}"
        printed = Statement(subject, subject.surface(name), math.inf, "the paper's theorem", name)
        yield printed.finding("t1_sensitivity", Adversary.ANALYST, n=0, note=why)
        return
    own = subject.shard.train
    base = own.x[own.y == label][0]
    law = Law(mechanism, steps.settings.batch, 1.0)  # type: ignore[arg-type]
    generator = subject.keys.fold("search").torch()
    ipc = plan.method.images_per_class()
    guests, found = search(steps, law, base, oddities(subject.shard, label, subject.keys), ipc, generator)
    count, claim = within_theorem(plan, subject.shard, base, label, law, steps.settings.iterations, subject.delta)
    statement = Statement(subject, subject.surface(name), claim.epsilon or 0.0, claim.source, name)
    kappa = along_the_method(plan, snapshot, subject, base, guests.x[0], label, law.batch)
    where = f"round {snapshot.round}, clip {law.mechanism.clip_norm:g}, batches of {law.batch}"
    note = f"{where}, copies of one record, {len(guests)} crafted records; worst is {guests.names[0]!r}"
    yield statement.sensitivity(
        kappa, EXCHANGE, len(guests), f"{note} (searched: {float(found[0]):.3g})", [snapshot.round]
    )
    inside = Law(law.mechanism, law.batch, min(1.0, law.batch / (count + 1)))
    runs = transcripts(
        steps,
        inside,
        base,
        guests.x[0],
        subject.budget.runs,
        min(ipc, subject.budget.images),
        subject.keys.fold("runs").torch(),
    )
    given = f"{where}, {count} copies and {guests.names[0]!r} or not, T q^2 = {_load(steps.settings.iterations, inside):.2g}"
    yield from statement.statistical(runs, given, final=runs)


def _load(steps: int, law: Law) -> float:
    return steps * law.probability**2


def within_theorem(
    plan: Plan, shard: Shard, base: Tensor, label: int, law: Law, steps: int, delta: float
) -> tuple[int, Claim]:
    """How many copies meet the theorem's condition T q**2 <= epsilon / 2, and the claim for them.

    epsilon / 2 is ln(1/delta) / sigma**2, or the same with log10 as in a paper's table; the smaller claim is tested.
    """

    def at(logarithm: float) -> tuple[int, Claim]:
        rate = math.sqrt(logarithm / steps) / law.mechanism.noise_multiplier
        count = max(law.batch, math.ceil(law.batch / rate * (1 + 1e-9)))
        claim = boldest(plan.method.claims(plan, [holding(shard, copies(base, label, count))]))
        if claim is None:
            raise ValueError(
                f"method={type(plan.method).__name__}: it runs aggregate_clip and claims no epsilon for it"
            )
        return count, claim

    natural, decimal = at(math.log(1 / delta)), at(math.log10(1 / delta))
    return min(natural, decimal, key=lambda found: found[1].epsilon or 0.0)


def along_the_method(
    plan: Plan, snapshot: Snapshot, subject: Subject, base: Tensor, guest: Tensor, label: int, batch: int
) -> float:
    """Largest change of the mean before noise, in units of C / |B|, through the method's own local work."""
    copied = copies(base, label, batch)
    other = copied.x.clone()
    other[-1] = guest
    runs: list[list[Tensor]] = []
    forced = None
    units: list[float] = []
    for x in (copied.x, other):
        seen: list[Tensor] = []

        def keep(mechanism: Mechanism, heeded: Heeded, into: list[Tensor] = seen) -> None:
            into.append(flat(heeded.released.exact or {}))
            if isinstance(mechanism, AggregateClip):
                units.append(heeded.released.noise_std / mechanism.noise_multiplier)

        ctx = witness(plan, snapshot.round, subject.keys.fold("t1"), [label], observe=keep, forced=forced)
        plan.method.local(snapshot.broadcast, {}, holding(subject.shard, type(copied)(x, copied.y, copied.ids)), ctx)
        forced = forced or ctx.outputs
        runs.append(seen)
    return max(float((a - b).norm()) / u for a, b, u in zip(*runs, units))
