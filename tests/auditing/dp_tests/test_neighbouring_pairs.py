"""Tests of ``privdd.auditing.dp_tests.neighbouring_pairs``."""

from __future__ import annotations

import torch

from privdd.auditing.dp_tests.neighbouring_pairs import (
    NEAR_COPY_SHARE,
    near_copy,
    pair_without_record,
    with_twin_second,
)
from tests.auditing.dp_tests.subjects import client, fedavg, subject


def test_a_pair_differs_in_the_one_record() -> None:
    shard = client(0)
    absent, present = pair_without_record(subject(fedavg(), {}).plan, shard, 1)
    assert len(present.train) == len(absent.train) + 1
    assert set(present.train.ids.tolist()) - set(absent.train.ids.tolist()) == {
        int(shard.train.ids[1])
    }


def test_a_twin_stands_right_behind_the_first_record() -> None:
    shard = client(0)
    twin = near_copy(shard)
    both = with_twin_second(shard, twin)
    assert torch.equal(both.train.x[1:2], twin.x)
    assert float((both.train.x[0] - both.train.x[1]).abs().max()) <= NEAR_COPY_SHARE
