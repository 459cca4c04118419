"""T1, T2 and T3 of the clipped batch mean, against the theorem that the papers print for it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace

from torch import Tensor

from attacks.types import Finding
from privdd.auditing.dp_tests.clean_values import (
    flatten_tensors,
)
from privdd.auditing.dp_tests.crafted_records import (
    common_label,
    copies_of_record,
    unusual_records,
    with_records,
)
from privdd.auditing.dp_tests.instrumentation import RecordedRelease, recording_context
from privdd.auditing.dp_tests.matching_step_ratios import (
    MatchingStepLaw,
    run_transcripts,
    search_guests,
)
from privdd.auditing.dp_tests.statement import GuaranteeSubject
from privdd.core.types import Shard
from privdd.federated.channel import TranscriptEnded
from privdd.federated.simulation import Plan, Snapshot
from privdd.privacy.claims import DELTA, Claim, smallest_claim
from privdd.privacy.mechanism import Mechanism

EXCHANGE_UNITS = 2.0  # a guest takes the place of a copy in the batch: two contributions change


def printed_theorem_findings(subject: GuaranteeSubject, name: str) -> Iterator[Finding]:
    """T1, T2 and T3 of the clipped batch mean set for the query ``name``, at the papers' own
    delta."""
    subject = replace(subject, delta=DELTA)
    snapshot = subject.snapshots[max(subject.snapshots)]
    plan = subject.plan
    label = common_label(subject.shard)
    mechanism = plan.mechanisms[name]
    ctx = plan.client_context(snapshot.round, plan.victim)
    steps = plan.method.audit_hooks.matching_steps(
        snapshot.broadcast, subject.shard.client_data, ctx
    )
    if steps.untestable:
        printed = subject.statement(name, math.inf, "the paper's theorem")
        yield printed.untested_sensitivity(
            f"the printed theorem was not tested: {steps.untestable}"
        )
        return
    own = subject.shard.train
    base = own.x[own.y == label][0]
    law = MatchingStepLaw(mechanism, steps.settings.batch, 1.0)  # type: ignore[arg-type]
    generator = subject.keys.fold("search").torch()
    ipc = plan.method.audit_hooks.images_per_class()
    odd = unusual_records(subject.shard, label, subject.keys)
    guests, found = search_guests(steps, law, base, odd, ipc, generator)
    taken = steps.settings.iterations
    count, claim = copies_within_theorem(
        plan, subject.shard, base, label, law, taken, subject.delta
    )
    statement = subject.statement(name, claim.epsilon or 0.0, claim.source)
    kappa = change_along_method(plan, snapshot, subject, base, guests.x[0], label, law.batch)
    where = f"round {snapshot.round}, clip {law.mechanism.clip_norm:g}, batches of {law.batch}"
    note = (
        f"{where}, copies of one record, {len(guests)} crafted records; worst is "
        f"{guests.names[0]!r}"
    )
    searched = f"{note} (searched: {float(found[0]):.3g})"
    yield statement.sensitivity_finding(
        kappa, len(guests), searched, [snapshot.round], EXCHANGE_UNITS
    )
    inside = MatchingStepLaw(law.mechanism, law.batch, min(1.0, law.batch / (count + 1)))
    few = min(ipc, subject.budget.images)
    keys = subject.keys.fold("runs").torch()
    budget = subject.budget
    runs = run_transcripts(steps, inside, base, guests.x[0], budget.runs, few, keys)
    times = taken * inside.probability**2
    given = f"{where}, {count} copies and {guests.names[0]!r} or not, T q^2 = {times:.2g}"
    yield from statement.likelihood_ratio_findings(runs, given, final=runs)


def copies_within_theorem(
    plan: Plan,
    shard: Shard,
    base: Tensor,
    label: int,
    law: MatchingStepLaw,
    steps: int,
    delta: float,
) -> tuple[int, Claim]:
    """How many copies meet the theorem's condition T q**2 <= epsilon / 2, and the claim for them.
    epsilon / 2 is ln(1/delta) / sigma**2, or the same with log10 as in a paper's table; the smaller
    claim is tested."""

    def claim_at_logarithm(logarithm: float) -> tuple[int, Claim]:
        rate = math.sqrt(logarithm / steps) / law.mechanism.noise_multiplier
        count = max(law.batch, math.ceil(law.batch / rate * (1 + 1e-9)))
        held = [with_records(shard, copies_of_record(base, label, count))]
        claim = smallest_claim(plan.method.audit_hooks.claims(plan, held))
        if claim is None:
            who = type(plan.method).__name__
            raise ValueError(f"method={who}: it runs aggregate_clip and claims no epsilon for it")
        return count, claim

    natural = claim_at_logarithm(math.log(1 / delta))
    decimal = claim_at_logarithm(math.log10(1 / delta))
    return min(natural, decimal, key=lambda found: found[1].epsilon or 0.0)


def change_along_method(
    plan: Plan,
    snapshot: Snapshot,
    subject: GuaranteeSubject,
    base: Tensor,
    guest: Tensor,
    label: int,
    batch: int,
) -> float:
    """Largest change of the mean before noise, in units of C / |B|, through the method's own local
    work."""
    copied = copies_of_record(base, label, batch)
    other = copied.x.clone()
    other[-1] = guest
    runs: list[list[Tensor]] = []
    forced = None
    units: list[float] = []
    for x in (copied.x, other):
        seen: list[Tensor] = []

        def keep_value(
            mechanism: Mechanism, heeded: RecordedRelease, into: list[Tensor] = seen
        ) -> None:
            into.append(flatten_tensors(heeded.released.exact or {}))
            if mechanism.sensitivity_kind == "batch_mean":
                units.append(heeded.released.noise_std / mechanism.noise_multiplier)  # type: ignore[attr-defined]

        ctx = recording_context(
            plan, snapshot.round, subject.keys.fold("t1"), keep_value, [label], forced=forced
        )
        held = with_records(subject.shard, replace(copied, x=x))
        with suppress(TranscriptEnded):
            plan.method.local(snapshot.broadcast, {}, held, ctx)
        forced = forced or ctx.outputs
        runs.append(seen)
    return max(float((a - b).norm()) / u for a, b, u in zip(*runs, units))
