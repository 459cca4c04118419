"""T1: what leaves beside the mechanisms' releases must be the same for other records (non-interference).

The audited client's rounds run on its records and on others, which differ in everything that a method may decide by:
how many there are, an odd or an even number, which classes, how bright, and whether a model finds them easy or hard. Where
every mechanism answers the same, whatever differs between two of these sets differs between two neighbours on the way.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call

from attacks.types import Adversary, Family, Finding
from privdd.auditing.guarantees.crafted_records import spare_label, zeroed_out
from privdd.auditing.guarantees.statement import Subject
from privdd.auditing.looked_at import covered, left_out
from privdd.auditing.non_interference import Told, interference
from privdd.core.types import Records, Shard

TOLD = "t1_told"
POOL = 32  # own images of which the easiest and the hardest are looked for, beside their negatives


def told_findings(subject: Subject) -> Iterator[Finding]:
    """One finding: what is told, or where it was looked for and nothing was found; none where nothing is noised."""
    names = [name for name in subject.plan.mechanisms if subject.spends(name)]
    if not names:
        return
    looks, sets, broken = subject.rounds(), other_records(subject), list[Told]()
    # the first of them in every round that was kept, the others in a few
    others = {says: (shard, looks.chosen if at else looks.kept) for at, (says, shard) in enumerate(sets.items())}
    diagnostics: dict[str, Any] = {"unit": subject.ledger.unit}
    note = f"{looks.words(looks.kept)}: what leaves beside the releases is the same for {', '.join(sets)}"
    for told in interference(subject.few_images(), subject.snapshots, subject.shard, others):
        if told.broken:
            broken.append(told)
            continue
        note = f"round {told.round}: {told.says} (it is not the same for {told.with_other})"
        diagnostics |= {"refuted": True}
        break
    note += "".join(f"; for {one.with_other} the method stops: {one.says}" for one in broken)
    ran = len(broken) < len(sets)
    diagnostics |= covered(TOLD, looks.kept) if ran else left_out(TOLD, note if sets else "the client holds one record")
    measures = {"signal": ", ".join(names), "n": len(sets) - len(broken), "note": note, "diagnostics": diagnostics}
    yield Finding(subject.surface(names[-1]), TOLD, Family.GUARANTEE, Adversary.ANALYST, measures)


def other_records(subject: Subject) -> dict[str, Shard]:
    """Other data that the client might hold, in words: as far from its own as the neighbouring relation can lead.

    The relation fixes what is public: under replace how many records there are; under zero_out that, and their labels, so
    records that are not there are zeroed out. Of whole clients nothing is public.
    """
    shard, own = subject.shard, subject.shard.train
    if len(own) < 2:
        return {}
    relation = "add_remove" if subject.ledger.unit == "client" else subject.plan.relation
    third = len(own) // 3
    few = own.take(range(len(own) - third - ((len(own) - third) % 2 == 0), len(own)))  # odd where the number is even
    easy, hard = extreme_records(subject, relation == "zero_out")
    negative = replace(own, x=1 - own.x)
    if relation == "replace":
        turned = replace(negative, y=(own.y + 1) % shard.classes)
        copies = {
            says: replace(own, x=one.x.expand_as(own.x), y=one.y.expand_as(own.y))
            for says, one in (("easy", easy), ("hard", hard))
        }
        made = {
            "other records": turned,
            "copies of an easy record": copies["easy"],
            "copies of a hard record": copies["hard"],
        }
        return {says: shard.with_train(records) for says, records in made.items()}
    if relation == "zero_out":
        made = {
            "a third of its records": few,
            "their negatives": negative.take(range(1, len(own))),
            "one easy record": easy,
            "one hard record": hard,
        }
        return {says: zeroed_out(shard, records) for says, records in made.items()}
    more = Records(negative.x, torch.full_like(own.y, spare_label(shard)), own.ids + int(own.ids.max()) + 1)
    made = {
        "a third of its records": few,
        "twice as many": Records.concat([own, more]),
        "one easy record": easy,
        "one hard record": hard,
    }
    return {says: replace(shard, train=records, nulls=None) for says, records in made.items()}


def extreme_records(subject: Subject, labelled: bool) -> tuple[Records, Records]:
    """The records (one each) that the last model known finds easiest and hardest; the darkest and the brightest where there
    is none. labelled: with the label of one of the client's own."""
    shard = subject.shard
    own = shard.train.take(range(min(POOL, len(shard.train))))
    pool = Records.concat(
        [
            own,
            replace(own, x=1 - own.x),
            replace(own, x=torch.zeros_like(own.x)),
            replace(own, x=torch.ones_like(own.x)),
        ]
    )
    losses = _losses(subject, pool)
    if labelled:
        allowed = torch.nn.functional.one_hot(pool.y, losses.shape[1]).bool()
        low, high = losses.masked_fill(~allowed, torch.inf), losses.masked_fill(~allowed, -torch.inf)
    else:
        low = high = losses
    return tuple(
        replace(pool.take([int(at) // losses.shape[1]]), y=torch.tensor([int(at) % losses.shape[1]]))
        for at in (low.argmin(), high.argmax())
    )  # type: ignore[return-value]


def _losses(subject: Subject, pool: Records) -> Tensor:
    """(records, classes): the loss of each image with each label."""
    plan, last = subject.plan, subject.snapshots[max(subject.snapshots)]
    model, state = plan.method.classifier(plan.problem), plan.method.sent_state(last.broadcast)
    if model is None or state is None:
        return pool.x.flatten(1).mean(1, keepdim=True).double().expand(len(pool), subject.shard.classes)
    with torch.no_grad():
        logits = functional_call(model.eval(), dict(state), (pool.x,))
    return -logits.double().log_softmax(1).nan_to_num()
