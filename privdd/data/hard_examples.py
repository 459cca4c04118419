"""Audited records that are made hard to fit, so that the records which leak most are among those that are audited.

A model learns an ordinary record from its neighbours, and has to memorise one whose label they speak against. Aerni, Zhang
and Tramer (2024) judge privacy on such records: an audit of ordinary ones understates what the most exposed lose.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from privdd.core.group_settings import HardExamples
from privdd.core.rng import Keys
from privdd.core.types import Records, Shard
from privdd.core.validation import BadConfig

DUPLICATE_NOISE = (
    0.02  # standard deviation of a near-duplicate's pixels around its twin's, in [0, 1]: too little to be seen
)


def draw_audited_positions(size: int, records: int, keys: Keys) -> Tensor:
    """The audited positions of a client with ``size`` records, in the order drawn: at most three quarters of them."""
    count = min(records, max(1, 3 * size // 4))
    return torch.randperm(size, generator=keys.fold("audited").torch())[:count]


def positions_by_kind(tail: HardExamples, drawn: Tensor) -> dict[str, Tensor]:
    """kind -> its positions in the client's data, in the order drawn; kinds without a record are left out."""
    first = tail.mislabelled
    parts = {"mislabelled": drawn[:first], "near_duplicates": drawn[first : tail.size]}
    return {kind: at for kind, at in parts.items() if len(at)}


def add_hard_examples(shard: Shard, tail: HardExamples, records: int, keys: Keys) -> Shard:
    """The shard with that many of its audited records made hard to fit; ids stay.

    keys: those that the audited records are drawn with. Labels are drawn among the client's own other classes. Raises
    BadConfig where fewer records are audited than the tail holds, or there are too few others to be twins, or the
    client holds one class only.
    """
    drawn, train = draw_audited_positions(len(shard.train), records, keys), shard.train
    check_hard_examples(tail, len(drawn), len(train), int(train.y.unique().numel()))
    x, y, generator = train.x.clone(), train.y.clone(), keys.fold("tail").torch()
    kinds = positions_by_kind(tail, drawn)
    for at in kinds.get("mislabelled", drawn[:0]).tolist():
        y[at] = _draw_other_label(int(train.y[at]), train, generator)
    never = torch.ones(len(train), dtype=torch.bool)
    never[drawn] = False  # no coin is flipped for these: they are in every replay
    twins = never.nonzero()[:, 0]
    for at, twin in zip(kinds.get("near_duplicates", drawn[:0]).tolist(), twins.tolist()):
        noise = torch.randn(train.x[twin].shape, generator=generator).to(train.x)
        x[at] = (train.x[twin] + DUPLICATE_NOISE * noise).clamp(0, 1)
        y[at] = _draw_other_label(int(train.y[twin]), train, generator)
    return shard.with_train(Records(x, y, train.ids))


def check_hard_examples(tail: HardExamples, audited: int, size: int, classes: int) -> None:
    """Raises BadConfig, one line, where a client with ``size`` records of so many classes cannot have this tail."""
    if tail.size > audited:
        raise BadConfig(f"audit.tail: {tail.size} records, and {audited} of the audited client are audited")
    if tail.near_duplicates > size - audited:
        raise BadConfig(
            f"audit.tail.near_duplicates={tail.near_duplicates}: each needs a record that is never audited, and the audited "
            f"client has {size - audited}; audit fewer (audit.records)"
        )
    if tail.size and classes < 2:
        raise BadConfig(
            "audit.tail: the audited client holds one class, so there is no other label; take another audit.client"
        )


def _draw_other_label(label: int, train: Records, generator: torch.Generator) -> int:
    """A label of the client's other than ``label``, uniform over its classes."""
    others = [c for c in train.y.unique().tolist() if c != label]
    return int(others[int(torch.randint(len(others), (1,), generator=generator))])


def hard_example_counts(tail: HardExamples) -> Mapping[str, int]:
    """The kinds that there are, with their counts; empty without a tail."""
    return {kind: count for kind, count in vars(tail).items() if count}
