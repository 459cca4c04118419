"""One shard for each client: what it trains on, its own test records, and what the audit holds out."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from privdd.core.keys import Keys
from privdd.core.types import Records, Shard
from privdd.data.dataset import Dataset
from privdd.data.partition import Partition, check_heldout, check_test_fraction

ENOUGH = 50  # personal test records worth having


def make_shards(
    data: Dataset,
    partition: Partition,
    keys: Keys,
    *,
    heldout: float | int | None = None,
    test_fraction: float | None = None,
) -> list[Shard]:
    """Deal ``data`` by ``partition`` and cut each client's records at random into train, test, heldout.

    Held-out records thus follow the client's own distribution and are never trained on: the audit's
    non-members. heldout and test_fraction override the partition's. Raises ValueError where the
    partition cannot be met or a client would be left without a training record.
    """
    heldout = partition.heldout if heldout is None else heldout
    fraction = partition.test_fraction if test_fraction is None else test_fraction
    check_heldout(heldout)
    check_test_fraction(fraction)
    dealt = partition.deal(data, keys)
    return [_shard(client, data, torch.from_numpy(at), keys, heldout, fraction) for client, at in enumerate(dealt)]


def _shard(client: int, data: Dataset, at: Tensor, keys: Keys, heldout: float | int, fraction: float) -> Shard:
    order = at[torch.randperm(len(at), generator=keys.fold("shard", client).torch())]
    out = _heldout_count(len(at), heldout)
    own = math.ceil(fraction * len(at))
    if out + own >= len(at):
        raise ValueError(
            f"partition.heldout={heldout}: client {client} has {len(at)} records, {out} held out and {own} for test "
            f"leave none to train on"
        )
    pieces = [
        data.train.take(piece.sort().values) for piece in (order[:out], order[out : out + own], order[out + own :])
    ]
    test = pieces[1] if own else _matched_test(data, at, keys.fold("test", client))
    return Shard(client, pieces[2], test, pieces[0], data.classes)


def _heldout_count(count: int, heldout: float | int) -> int:
    wanted = round(heldout * count) if isinstance(heldout, float) else heldout
    return min(wanted, count // 2)


def _matched_test(data: Dataset, at: Tensor, keys: Keys) -> Records:
    """Common test records in the client's class proportions, and of its domain where there are domains.

    As many as the scarcest class allows; where that is under ENOUGH, scarce classes fall short instead.
    """
    here = torch.arange(len(data.test))
    if data.domain is not None and data.test_domain is not None:
        here = here[data.test_domain == data.domain[at[0]]]
    counts = torch.bincount(data.train.y[at], minlength=data.classes).double()
    at_hand = torch.bincount(data.test.y[here], minlength=data.classes).double()
    held = (counts > 0) & (at_hand > 0)
    shares = torch.where(held, counts, 0.0)
    if not held.any():
        return data.test.take(here[:0])
    scale = max(float((at_hand[held] / shares[held]).min()), ENOUGH / float(shares.sum()))
    wanted = torch.minimum((shares * scale).round(), at_hand).long()
    shuffled = here[torch.randperm(len(here), generator=keys.torch())]
    labels = data.test.y[shuffled]
    picked = [shuffled[labels == c][: int(wanted[c])] for c in range(data.classes)]
    return data.test.take(torch.cat(picked).sort().values)
