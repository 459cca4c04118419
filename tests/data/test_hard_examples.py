"""Which records are made hard to fit, and how; what cannot be made is refused in one line."""

from __future__ import annotations

import pytest
import torch

from privdd.core.hard_examples import HardExamples
from privdd.core.rng import Keys
from privdd.core.types import Records, Shard
from privdd.core.validation import BadConfig
from privdd.data.partition import (
    DUPLICATE_NOISE,
    add_hard_examples,
    draw_audited_positions,
    hard_example_counts,
    positions_by_kind,
)

SIZE = 60
AUDITED = 40


def shard(classes: int = 4, size: int = SIZE) -> Shard:
    generator = torch.Generator().manual_seed(1)
    x = torch.rand(size, 1, 8, 8, generator=generator)
    records = Records(x, torch.arange(size) % classes, torch.arange(size) + 100)
    return Shard(0, records, records.take([]), records.take([]), 10)


@pytest.mark.parametrize("seed", range(3))
def test_mislabelled_records_keep_their_picture_and_get_another_of_the_clients_labels(
    seed: int,
) -> None:
    whole = shard()
    keys = Keys(seed)
    after = add_hard_examples(whole, HardExamples(mislabelled=12), AUDITED, keys).train
    at = positions_by_kind(HardExamples(12), draw_audited_positions(SIZE, AUDITED, keys))[
        "mislabelled"
    ]
    assert (
        len(at.unique()) == 12
        and torch.equal(after.x, whole.train.x)
        and torch.equal(after.ids, whole.train.ids)
    )
    assert (after.y[at] != whole.train.y[at]).all() and set(after.y.tolist()) <= {0, 1, 2, 3}
    rest = torch.ones(SIZE, dtype=torch.bool).index_fill(0, at, False)
    assert torch.equal(after.y[rest], whole.train.y[rest])


@pytest.mark.parametrize("seed", range(3))
def test_near_duplicates_lie_by_a_record_that_is_never_audited_and_contradict_it(seed: int) -> None:
    whole = shard()
    keys = Keys(seed)
    tail = HardExamples(mislabelled=3, near_duplicates=10)
    after = add_hard_examples(whole, tail, AUDITED, keys).train
    drawn = draw_audited_positions(SIZE, AUDITED, keys)
    never = torch.ones(SIZE, dtype=torch.bool).index_fill(0, drawn, False).nonzero()[:, 0]
    twins = []
    for at in positions_by_kind(tail, drawn)["near_duplicates"].tolist():
        gaps = (after.x[at] - whole.train.x[never]).flatten(1).square().mean(1).sqrt()
        twins.append(int(never[gaps.argmin()]))
        assert 0 < gaps.min() < 1.5 * DUPLICATE_NOISE < gaps.sort().values[1]
        assert after.y[at] != whole.train.y[twins[-1]]
    assert len(set(twins)) == 10 and ((after.x >= 0) & (after.x <= 1)).all()
    assert torch.equal(after.x[never], whole.train.x[never]) and torch.equal(
        after.y[never], whole.train.y[never]
    )


@pytest.mark.parametrize(
    ("tail", "classes", "said"),
    [
        (HardExamples(30, 11), 4, "41 records, and 40 of the audited client are audited"),
        (HardExamples(0, 21), 4, "near_duplicates=21: .* has 20"),
        (HardExamples(1), 1, "two classes"),
    ],
)
def test_what_cannot_be_made_is_refused_in_one_line(
    tail: HardExamples, classes: int, said: str
) -> None:
    with pytest.raises(BadConfig, match=said) as refused:
        add_hard_examples(shard(classes), tail, AUDITED, Keys(0))
    assert "\n" not in str(refused.value)


def test_all_that_fits_is_made() -> None:
    after = add_hard_examples(shard(), HardExamples(20, 20), AUDITED, Keys(0)).train
    assert int((after.y != shard().train.y).sum()) >= 20


def test_kinds_without_a_record_are_not_named() -> None:
    assert (
        hard_example_counts(HardExamples()) == {}
        and hard_example_counts(HardExamples(2)) == {"mislabelled": 2}
        and set(positions_by_kind(HardExamples(0, 3), torch.arange(9))) == {"near_duplicates"}
    )
