"""T1: what leaves beside the mechanisms' releases must be the same for other records
(non-interference).

The audited client's rounds run on its records and on others, which differ in everything that a
method may decide by: how many there are, an odd or an even number, which classes, how bright, and
whether a model finds them easy or hard. Where every mechanism answers the same, whatever
differs between two of these sets differs between two neighbours on the way.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call

from attacks.types import Finding
from privdd.auditing.client_hooks import method_of_client
from privdd.auditing.coverage import covered_diagnostics, untested_diagnostics
from privdd.auditing.dp_tests.crafted_records import spare_label, zero_out_others
from privdd.auditing.dp_tests.round_traces import RecordDependence, find_interference
from privdd.auditing.dp_tests.statement import GuaranteeSubject
from privdd.core.types import Records, Shard

INTERFERENCE_TEST = "t1_told"
# Own images among which the easiest and the hardest are looked for, beside their negatives.
MAX_SEARCHED_IMAGES = 32


def interference_findings(subject: GuaranteeSubject) -> Iterator[Finding]:
    """One finding: what is told and by which message, or where it was looked for and nothing was
    found; none where nothing is noised."""
    names = [name for name in subject.plan.mechanisms if subject.has_finite_epsilon(name)]
    if not names:
        return
    looks = subject.client_rounds()
    sets = other_data_sets(subject)
    broken = list[RecordDependence]()
    # the first of them in every round that was kept, the others in a few
    other_shards = {
        says: (shard, looks.chosen if index else looks.kept)
        for index, (says, shard) in enumerate(sets.items())
    }
    diagnostics: dict[str, Any] = {}
    accused = names
    note = (
        f"{looks.describe_rounds(looks.kept)}: everything sent besides the releases is the same "
        f"for {', '.join(sets)}"
    )
    for leak in find_interference(
        subject.plan_with_few_images(), subject.snapshots, subject.shard, other_shards
    ):
        if leak.broken:
            broken.append(leak)
            continue
        note = f"round {leak.round}: {leak.says} (it is not the same for {leak.with_other})"
        diagnostics |= {"refuted": True}
        accused = [leak.message] if leak.message else names
        break
    note += "".join(
        f"; for {failure.with_other} the method stops: {failure.says}" for failure in broken
    )
    ran = len(broken) < len(sets)
    if ran:
        diagnostics |= covered_diagnostics(INTERFERENCE_TEST, looks.kept)
    else:
        why = note if sets else "the client holds one record"
        diagnostics |= untested_diagnostics(INTERFERENCE_TEST, why)
    finding = subject.run_finding(
        INTERFERENCE_TEST, ", ".join(accused), len(sets) - len(broken), note, diagnostics
    )
    yield finding.with_measures(signal=", ".join(names))


def other_data_sets(subject: GuaranteeSubject) -> dict[str, Shard]:
    """Other data that the client might hold, in words: as far from its own as the neighbouring
    relation can lead.

    The relation fixes what is public: under replace how many records there are; under zero_out
    that, and their labels, so records that are not there are zeroed out. Of whole clients nothing
    is public.
    """
    shard = subject.shard
    records = shard.train
    if len(records) < 2:
        return {}
    if subject.ledger.unit == "client":
        relation = "add_remove"
    else:
        relation = subject.plan.relation
    easy, hard = extreme_records(subject, relation)
    if relation == "replace":
        turned = replace(records, x=1 - records.x, y=(records.y + 1) % shard.classes)
        return {
            "copies of an easy record": shard.with_train(_copies(easy, records)),
            "copies of a hard one": shard.with_train(_copies(hard, records)),
            "others": shard.with_train(turned),
        }
    start = len(records) - len(records) // 3
    if start % 2 == 0:  # an odd number of records if the client has an even one
        start -= 1
    third = records.take(range(start, len(records)))
    if relation == "zero_out":
        return {
            "a third of its records": zero_out_others(shard, third),
            "one easy record": zero_out_others(shard, easy),
            "one hard record": zero_out_others(shard, hard),
        }
    renamed = replace(records, ids=records.ids + int(records.ids.max()) + 1)
    twice = Records.concat([records, renamed])
    sets = {
        "a third of its records": third,
        "one easy record": easy,
        "twice as many copies of a hard record": _copies(hard, twice),
    }
    return {says: replace(shard, train=held, nulls=None) for says, held in sets.items()}


def _copies(record: Records, of: Records) -> Records:
    """A record in place of each of ``of``."""
    return replace(of, x=record.x.expand_as(of.x), y=record.y.expand_as(of.y))


def extreme_records(subject: GuaranteeSubject, relation: str) -> tuple[Records, Records]:
    """The records (one each) that the last known model finds easiest and hardest; the darkest and
    the brightest where there is none. Under zero_out their labels are those of the client's own;
    otherwise the hard one is of its rarest class."""
    shard = subject.shard
    records = shard.train.take(range(min(MAX_SEARCHED_IMAGES, len(shard.train))))
    pool = Records.concat(
        [
            replace(records, x=x)
            for x in (records.x, 1 - records.x, 0 * records.x, 0 * records.x + 1)
        ]
    )
    losses = _losses_by_label(subject, pool)
    theirs = torch.nn.functional.one_hot(pool.y, losses.shape[1]).bool()
    rarest = torch.arange(losses.shape[1]).expand_as(losses) == spare_label(shard)
    if relation == "zero_out":
        barred = (~theirs, ~theirs)
    else:
        barred = (rarest, ~rarest)
    places = (
        losses.masked_fill(barred[0], torch.inf).argmin(),
        losses.masked_fill(barred[1], -torch.inf).argmax(),
    )
    easy, hard = (divmod(int(place), losses.shape[1]) for place in places)
    return tuple(
        replace(pool.take([place]), y=torch.tensor([label])) for place, label in (easy, hard)
    )  # type: ignore[return-value]


def _losses_by_label(subject: GuaranteeSubject, pool: Records) -> Tensor:
    """(records, classes): the loss of each image with each label."""
    plan = subject.plan
    last = subject.snapshots[max(subject.snapshots)]
    hooks = method_of_client(plan.method, plan.victim).audit_hooks
    model = hooks.classifier(plan.problem)
    state = hooks.sent_state(last.broadcast)
    if model is None or state is None:
        return (
            pool.x.flatten(1)
            .mean(1, keepdim=True)
            .double()
            .expand(len(pool), subject.shard.classes)
        )
    with torch.no_grad():
        logits = functional_call(model.eval(), dict(state), (pool.x,))
    return -logits.double().log_softmax(1).nan_to_num()
