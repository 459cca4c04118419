"""Crafted records (guests), and a client's data with them."""

from __future__ import annotations

from dataclasses import replace

import torch

from attacks.canaries import Canaries, join_canaries, mislabel_records, out_of_distribution_canaries
from privdd.core.rng import Keys
from privdd.core.types import Records, Shard

BASE_RECORDS = 12  # of the client's own records that stand beside the guests
MISLABELLED_RECORDS = 3  # own records that become guests with another label


def draw_own_records(shard: Shard, keys: Keys, spare: int) -> Records:
    """A few of the client's records, none with the label ``spare``."""
    candidates = (shard.train.y != spare).nonzero()[:, 0]
    order = torch.randperm(len(candidates), generator=keys.fold("base").torch())
    return shard.train.take(candidates[order[:BASE_RECORDS]])


def common_label(shard: Shard) -> int:
    """The class that the client holds most of."""
    return int(torch.bincount(shard.train.y, minlength=shard.classes).argmax())


def spare_label(shard: Shard) -> int:
    """The class that the client holds least of; a guest with this label is alone in its class."""
    return int(torch.bincount(shard.train.y, minlength=shard.classes).argmin())


def unusual_records(shard: Shard, label: int, keys: Keys) -> Canaries:
    """Out-of-distribution canaries (white, black, stripes, noise) with ``label``, and mislabelled
    own records."""
    generator = keys.fold("oddities").torch()
    odd = out_of_distribution_canaries(shard.shape, label, generator)
    order = torch.randperm(len(shard.train), generator=generator)
    records = shard.train.take(order[:MISLABELLED_RECORDS])
    wrong = mislabel_records(records.x, records.y, shard.classes, generator)
    return join_canaries(odd, wrong)


def lone_class_record(shard: Shard, keys: Keys) -> Canaries:
    """One white record in the class that has no other."""
    odd = out_of_distribution_canaries(shard.shape, spare_label(shard), keys.fold("alone").torch())
    return Canaries(odd.x[:1], odd.y[:1], ("alone in its class",))


def with_guests(base: Records, guests: Canaries) -> Records:
    """``base`` and then the guests, with ids above all others."""
    start = int(base.ids.max()) + 1 if len(base) else 0
    ids = torch.arange(start, start + len(guests))
    return Records.concat([base, Records(guests.x.to(base.x), guests.y, ids)])


def with_records(shard: Shard, records: Records) -> Shard:
    """The same client with other records and nothing zeroed out."""
    return replace(shard, train=records, nulls=None)


def copies_of_record(x: torch.Tensor, label: int, count: int) -> Records:
    """``count`` copies of one image (c, h, w)."""
    return Records(x.expand(count, *x.shape), torch.full((count,), label), torch.arange(count))


def zero_out_others(shard: Shard, records: Records) -> Shard:
    """The client with these of its records (by id); its others are zeroed out, under their ids and
    labels."""
    gone = shard.train.take(~torch.isin(shard.train.ids, records.ids))
    nulls = replace(gone, x=torch.zeros_like(gone.x))
    return replace(
        shard,
        train=records,
        nulls=nulls if shard.nulls is None else Records.concat([nulls, shard.nulls]),
    )
