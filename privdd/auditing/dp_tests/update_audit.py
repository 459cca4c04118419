"""T1, T2 and T3 of what a whole client sends, where the unit is a client."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
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
from privdd.auditing.dp_tests.crafted_records import with_records
from privdd.auditing.dp_tests.likelihood_ratios import RatioTranscripts
from privdd.auditing.dp_tests.sensitivity_audit import SensitivityTally
from privdd.auditing.dp_tests.statement import GuaranteeSubject
from privdd.core.rng import Keys
from privdd.core.types import Artifact, Records, State, Tensors
from privdd.federated.channel import OutputLog
from privdd.federated.simulation import Snapshot
from privdd.privacy.mechanism import Mechanism, Output
from privdd.privacy.noise import ZERO_NOISE, SeededNoise

# Noise values for T2 and T3, at most (half a minute), but never fewer than slow_runs runs.
MAX_RATIO_NUMBERS = 10**9
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
    composed = dpa.SelfComposedDpEvent(event, calls)
    source = f"accounted for {calls} update(s)"
    statement = subject.statement(name, subject.proven_epsilon(composed), source, "client")
    crafted = _updates_of_rounds(subject, name, looks.chosen)
    first_update = next(iter(crafted.values()))
    is_gaussian = isinstance(event, dpa.GaussianDpEvent)
    if not is_gaussian or not value_before_noise(mechanism, first_update):
        why = (
            f"{type(mechanism).__name__} was not tested: that needs Gaussian noise and the "
            "value before it (exact)"
        )
        yield statement.untested_sensitivity(why)
        return
    tally = compare_updates(subject, subject.snapshots[looks.chosen[-1]], name, crafted)
    rounds = looks.describe_rounds(looks.chosen)
    if tally.leak:
        note = f"{rounds}{tally.describe_faults()}"
        yield statement.sensitivity_finding(HUGE_UPDATE, len(crafted), note, looks.chosen, 1.0)
        return
    kappa, worst = tally.worst_guest(relation)
    what = list(crafted)[worst]
    update = crafted[what]
    searched = (
        f"{rounds}, {len(crafted)} crafted updates; worst is {what!r}{tally.describe_faults()}"
    )
    yield statement.sensitivity_finding(kappa, len(crafted), searched, looks.chosen)
    if not bool(torch.isfinite(clean_numbers(mechanism, update)).all()):
        return  # an infinite value has no likelihood ratio, and kappa has already shown the fault
    size = sum(tensor.numel() for tensor in update.values())
    affordable = min(subject.budget.runs, MAX_RATIO_NUMBERS // (2 * calls * size))
    count = max(subject.budget.slow_runs, affordable)
    if relation == "replace":
        absence = "its opposite"
        absent = {key: -tensor for key, tensor in update.items()}
    else:
        absence = "zero"
        absent = {key: torch.zeros_like(tensor) for key, tensor in update.items()}
    keys = subject.keys.fold("runs", name)
    runs = runs_of_updates(mechanism, update, absent, calls, count, keys)
    note = f"{calls} noised update(s): {what!r} each time, or {absence}"
    yield from statement.likelihood_ratio_findings(runs, note, event=composed)


def _updates_of_rounds(
    subject: GuaranteeSubject, name: str, rounds: Sequence[int]
) -> dict[str, Tensors]:
    """Trained updates of all rounds, and crafted ones of the last, in words."""
    updates = {}
    for t in rounds[:-1]:
        for says, update in trained_updates(subject, subject.snapshots[t], name).items():
            updates[f"{says} in round {t}"] = update
    last = trained_updates(subject, subject.snapshots[rounds[-1]], name)
    return {**updates, **crafted_updates(last)}


def trained_updates(subject: GuaranteeSubject, snapshot: Snapshot, name: str) -> dict[str, Tensors]:
    """Name -> update: the client's own, and those of clients with other records."""
    own = subject.shard.train
    flipped = replace(own, y=(own.y + 1) % subject.shard.classes)
    repeated = own.take(torch.zeros(min(4, len(own)), dtype=torch.long))
    white = replace(repeated, x=torch.ones_like(repeated.x))
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
    upload, _ = subject.plan.method.local(
        snapshot.broadcast, dict(snapshot.memory), shard.client_data, ctx
    )
    return {n: t.detach() for n, t in upload[name].value.items()}


def compare_updates(
    subject: GuaranteeSubject, snapshot: Snapshot, name: str, crafted: Mapping[str, Tensors]
) -> SensitivityTally:
    """Each crafted update through the channel, against zero in its place: changes in units, and the
    drawn noise."""
    if _has_many_forms(crafted.values()):
        leak = f"the size of {name!r} depends on which records the client has"
        return SensitivityTally(leak=leak)
    outputs = [
        _send_update(subject, snapshot, name, number, update)
        for number, update in enumerate(crafted.values())
    ]
    first_update = next(iter(crafted.values()))
    nothing = {key: torch.zeros_like(tensor) for key, tensor in first_update.items()}
    mechanism = subject.plan.mechanisms[name]
    # A tensor that is left out gives its content away, and no noise covers that. All are released
    # under the same draws, so that the forms of what is sent can only follow the updates.
    released = [mechanism(update, ZERO_NOISE).value for update in (*crafted.values(), nothing)]
    if _has_many_forms(released):
        leak = f"which tensors of {name!r} are released depends on which records the client has"
        return SensitivityTally(leak=leak)
    absent = clean_numbers(mechanism, nothing)
    rows = []
    for update, output in zip(crafted.values(), outputs):
        rows.append((clean_numbers(mechanism, update) - absent) / sensitivity_unit(output))
    changes = torch.stack(rows).nan_to_num(nan=HUGE_UPDATE)
    tally = SensitivityTally()
    tally.changes = dict(enumerate(changes.norm(dim=1).tolist()))
    tally.pairs = float(torch.cdist(changes, changes).max())
    for output in outputs:
        noise = (flatten_tensors(output.value) - flatten_tensors(output.exact or {})).double()
        tally.add_noise(noise / output.noise_std)
    return tally


def _has_many_forms(messages: Iterable[Tensors]) -> bool:
    """Whether messages differ in the names or shapes of their tensors."""
    forms = set()
    for message in messages:
        shapes = [(key, tuple(tensor.shape)) for key, tensor in sorted(message.items())]
        forms.add(tuple(shapes))
    return len(forms) > 1


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
    mechanism: Mechanism, update: Tensors, absent: Tensors, calls: int, runs: int, keys: Keys
) -> RatioTranscripts:
    """R runs of ``calls`` noised updates of one client, and R runs of one that sends ``absent``
    each time."""
    noise = SeededNoise(keys.fold("noise").torch())
    present_numbers = clean_numbers(mechanism, update)
    absent_numbers = clean_numbers(mechanism, absent)
    ratios: Tensor = torch.zeros(2 * runs, dtype=torch.float64)
    for run in range(2 * runs):
        sent = update if run < runs else absent
        for _ in range(calls):
            output = mechanism(sent, noise)
            value = flatten_tensors(output.value).unsqueeze(0)
            ratio = gaussian_log_ratio(value, present_numbers, absent_numbers, output.noise_std)
            ratios[run] += ratio[0]
    return RatioTranscripts(ratios, torch.zeros(2 * runs, 0))
