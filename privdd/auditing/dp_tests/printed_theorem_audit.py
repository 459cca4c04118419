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
    hooks = plan.method.audit_hooks
    label = common_label(subject.shard)
    mechanism = plan.mechanisms[name]
    ctx = plan.client_context(snapshot.round, plan.victim)
    steps = hooks.matching_steps(snapshot.broadcast, subject.shard.client_data, ctx)
    if steps.untestable:
        printed = subject.statement(name, math.inf, "the paper's theorem")
        why = f"the printed theorem was not tested: {steps.untestable}"
        yield printed.untested_sensitivity(why)
        return
    records = subject.shard.train
    base = records.x[records.y == label][0]
    law = MatchingStepLaw(mechanism, steps.settings.batch, 1.0)  # type: ignore[arg-type]
    generator = subject.keys.fold("search").torch()
    ipc = hooks.images_per_class()
    unusual = unusual_records(subject.shard, label, subject.keys)
    guests, kappas = search_guests(steps, law, base, unusual, ipc, generator)
    guest = guests.x[0]
    iterations = steps.settings.iterations
    count, claim = copies_within_theorem(
        plan, subject.shard, base, label, law, iterations, subject.delta
    )
    statement = subject.statement(name, claim.epsilon or 0.0, claim.source)
    kappa = change_along_method(plan, snapshot, subject, base, guest, label, law.batch)
    where = f"round {snapshot.round}, clip {law.mechanism.clip_norm:g}, batches of {law.batch}"
    searched = (
        f"{where}, copies of one record, {len(guests)} crafted records; worst is "
        f"{guests.names[0]!r} (searched: {float(kappas[0]):.3g})"
    )
    yield statement.sensitivity_finding(
        kappa, len(guests), searched, [snapshot.round], EXCHANGE_UNITS
    )
    probability = min(1.0, law.batch / (count + 1))
    sampled_law = MatchingStepLaw(law.mechanism, law.batch, probability)
    images = min(ipc, subject.budget.images)
    keys = subject.keys.fold("runs").torch()
    runs = run_transcripts(steps, sampled_law, base, guest, subject.budget.runs, images, keys)
    steps_times_q_squared = iterations * probability**2
    note = (
        f"{where}, {count} copies and {guests.names[0]!r} or not, T q^2 = "
        f"{steps_times_q_squared:.2g}"
    )
    yield from statement.likelihood_ratio_findings(runs, note, final=runs)


def copies_within_theorem(
    plan: Plan,
    shard: Shard,
    base: Tensor,
    label: int,
    law: MatchingStepLaw,
    steps: int,
    delta: float,
) -> tuple[int, Claim]:
    """How many copies meet the theorem's condition, and the claim for them.

    The condition is T q^2 <= epsilon / 2 with q = |B| / n and epsilon / 2 = ln(1 / delta) /
    sigma^2, so that n >= |B| sigma sqrt(T / ln(1 / delta)); or the same with log10, as in a paper's
    table. The smaller claim is tested.
    """

    def claim_at_logarithm(logarithm: float) -> tuple[int, Claim]:
        rate = math.sqrt(logarithm / steps) / law.mechanism.noise_multiplier
        count = max(law.batch, math.ceil(law.batch / rate * (1 + 1e-9)))
        shards = [with_records(shard, copies_of_record(base, label, count))]
        claim = smallest_claim(plan.method.audit_hooks.claims(plan, shards))
        if claim is None:
            method = type(plan.method).__name__
            raise ValueError(f"method={method}: runs aggregate_clip and claims no epsilon for it")
        return count, claim

    natural = claim_at_logarithm(math.log(1 / delta))
    decimal = claim_at_logarithm(math.log10(1 / delta))
    return min(natural, decimal, key=lambda counted: counted[1].epsilon or 0.0)


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
    copies = copies_of_record(base, label, batch)
    exchanged = copies.x.clone()
    exchanged[-1] = guest
    runs: list[list[Tensor]] = []
    forced = None
    units: list[float] = []
    for images in (copies.x, exchanged):
        values: list[Tensor] = []

        def keep_value(
            mechanism: Mechanism, release: RecordedRelease, into: list[Tensor] = values
        ) -> None:
            into.append(flatten_tensors(release.released.exact or {}))
            if mechanism.sensitivity_kind == "batch_mean":
                multiplier = mechanism.noise_multiplier  # type: ignore[attr-defined]
                units.append(release.released.noise_std / multiplier)

        keys = subject.keys.fold("t1")
        ctx = recording_context(plan, snapshot.round, keys, keep_value, [label], forced=forced)
        client = with_records(subject.shard, replace(copies, x=images))
        with suppress(TranscriptEnded):
            plan.method.local(snapshot.broadcast, {}, client.client_data, ctx)
        forced = forced or ctx.outputs
        runs.append(values)
    return max(float((a - b).norm()) / unit for a, b, unit in zip(*runs, units))
