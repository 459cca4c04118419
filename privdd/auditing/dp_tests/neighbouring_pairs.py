"""Pairs of data sets that differ in one record."""

from __future__ import annotations

from dataclasses import replace

import torch

from privdd.auditing.dp_tests.crafted_records import with_records
from privdd.core.types import (
    Records,
    Shard,
)
from privdd.federated.simulation import Plan

NEAR_COPY_SHARE = 1e-2  # how far a near copy is drawn to grey
CROWD_SIZE = 12  # near copies of one record, of which an outlier is three standard deviations away


def _pair_of_shards(
    plan: Plan, shard: Shard, without: Records, records: Records, record: Records
) -> tuple[Shard, Shard]:
    """(``record`` absent, present); under zero_out an absent one is zeroed out and keeps its
    label."""
    nulls = None
    if plan.relation == "zero_out":
        nulls = replace(record, x=torch.zeros_like(record.x))
    return replace(shard, train=without, nulls=nulls), with_records(shard, records)


def pair_without_record(plan: Plan, shard: Shard, place: int) -> tuple[Shard, Shard]:
    """(one of the client's own records absent, present)."""
    records = shard.train
    rest = records.take([row for row in range(len(records)) if row != place])
    return _pair_of_shards(plan, shard, rest, records, records.take([place]))


def near_copy(shard: Shard) -> Records:
    """A record that looks nearly like the client's first, of another class."""
    first = shard.train.take([0])
    return replace(
        first,
        x=(first.x * (1 - NEAR_COPY_SHARE) + NEAR_COPY_SHARE / 2),
        y=(first.y + 1) % shard.classes,
    )


def with_twin_second(shard: Shard, twin: Records) -> Shard:
    """The client with ``twin`` right behind its first record.

    If near copies of earlier records are left out, the twin takes the place of the first record
    once that one leaves. Farther behind, a third record near to both could keep it out.
    """
    fresh_id = int(shard.train.ids.max()) + 1
    renamed = replace(twin, ids=torch.full_like(twin.ids, fresh_id))
    first = shard.train.take([0])
    rest = shard.train.take(range(1, len(shard.train)))
    return with_records(shard, Records.concat([first, renamed, rest]))


def crowd_around(shard: Shard, outlier: Records) -> Records:
    """Near copies of a record of the client's, of the class of one that looks otherwise."""
    same_class = (shard.train.y == outlier.y).nonzero()[:, 0]
    first = shard.train.take(same_class[:1] if len(same_class) else [0])
    share = NEAR_COPY_SHARE * torch.arange(1, CROWD_SIZE + 1).to(first.x).reshape(
        -1, *[1] * (first.x.ndim - 1)
    )
    label = outlier.y.to(first.y).expand(CROWD_SIZE)
    return Records(first.x * (1 - share) + share / 2, label, torch.arange(CROWD_SIZE).to(first.ids))


def pair_with_guest(
    plan: Plan, shard: Shard, records: Records, guest: Records
) -> tuple[Shard, Shard]:
    """(guest absent, guest present), after ``records``."""
    first = int(records.ids.max()) + 1 if len(records) else 0
    ids = torch.arange(first, first + len(guest)).to(records.ids)
    named = Records(guest.x.to(records.x), guest.y.to(records.y), ids)
    return _pair_of_shards(plan, shard, records, Records.concat([records, named]), named)
