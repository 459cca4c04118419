"""The coins are fair and independent, and every record is in at most one place."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.stats import binomtest

from privdd.core.rng import Keys
from privdd.core.validation import BadConfig
from privdd.external.membership_game import MAX_REFERENCE, audited_count, draw_coin_game
from privdd.external.records import LabelledRecords

TRAIN = LabelledRecords(torch.arange(200.0)[:, None], torch.zeros(200, dtype=torch.long))
HELDOUT = LabelledRecords(torch.arange(1000.0, 1300.0)[:, None], torch.zeros(300, dtype=torch.long))


def test_every_record_has_one_place() -> None:
    game = draw_coin_game(TRAIN, HELDOUT, 10_000, 5, Keys(1))
    x = game.records.x[:, 0]
    assert torch.equal(x < 1000, game.member_mask)
    assert torch.equal(torch.where(game.member_mask, x, x - 1000).long(), game.row)
    used = torch.cat([x, game.rest.x[:, 0], game.reference.x[:, 0]])
    assert len(used.unique()) == len(used) and set(TRAIN.x[:, 0].tolist()) <= set(used.tolist())
    assert len(game.reference) == 100 and len(draw_coin_game(TRAIN, HELDOUT, 20, 0, Keys(1)).member_mask) == 20


def test_coins_are_fair_and_independent_of_one_another() -> None:
    masks = torch.cat([draw_coin_game(TRAIN, HELDOUT, 10_000, 3, Keys(seed)).masks for seed in range(60)])
    heads, tosses = int(masks.sum()), masks.numel()
    assert binomtest(heads, tosses, 0.5).pvalue > 1e-4
    pairs = masks[:, 0::2][:, : masks.shape[1] // 2] == masks[:, 1::2]
    assert binomtest(int(pairs.sum()), pairs.numel(), 0.5).pvalue > 1e-4
    assert binomtest(int((masks[0::4] == masks[1::4]).sum()), masks[0::4].numel(), 0.5).pvalue > 1e-4


@pytest.mark.parametrize("least", [20, 100, 5000])
def test_so_many_records_almost_never_use_up_a_set(least: int) -> None:
    """By the binomial law, and one record more in 25 would be too many."""
    from scipy.stats import binom

    count = audited_count(least, least + 7, 10**6)
    assert 2 * binom.sf(least, count, 0.5) < 1e-6 < 2 * binom.sf(least, int(count * 1.25) + 3, 0.5)
    assert audited_count(least, least, 11) == 11


def test_other_names_give_other_coins() -> None:
    one, other = draw_coin_game(TRAIN, HELDOUT, 100, 0, Keys(1)), draw_coin_game(TRAIN, HELDOUT, 100, 0, Keys(2))
    assert not np.array_equal(one.masks, other.masks) and MAX_REFERENCE >= 100


def test_too_few_records_are_refused() -> None:
    few = LabelledRecords(TRAIN.x[:9], TRAIN.y[:9])
    with pytest.raises(BadConfig, match=r"9 and 300 records leave . to audit; at least 8"):
        draw_coin_game(few, HELDOUT, 1000, 0, Keys(0))
