"""Stacking: the best weights of Gaussian scores, a planted record, and no score that depends on its
own inclusion bit."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from attacks.membership.attack import require_worlds
from attacks.membership.stacking import STACKED, Stacking, select_replays, stack_scores
from attacks.types import Adversary, Knowledge, Surface, Truth, View, Worlds

RECORDS = 20
REPLAYS = 10
CHEAP = ("base", "loss_threshold")
PICTURE = torch.zeros(1, 1, 2, 2)
NOBODY = Truth(*[PICTURE, torch.zeros(1, dtype=torch.long)] * 2, torch.zeros(2))
PULL = 4.0  # standard deviations by which a member's signal is moved


def view_of(masks: Tensor, seed: int, pull: float = PULL) -> View:
    """Two signals of members and non-members, records of levels that differ by far more."""
    g = torch.Generator().manual_seed(seed)
    signals = {}
    for name in ("alignment", "confidence"):
        level = 3 * torch.randn(RECORDS, generator=g)
        signals[name] = level + torch.randn(masks.shape, generator=g) + pull * masks
    worlds = Worlds(signals, masks, torch.zeros(RECORDS), torch.zeros(RECORDS, dtype=torch.long))
    knowledge = Knowledge((1, 2, 2), 2, PICTURE, torch.zeros(1), settings={"delta": 1e-5})
    return View(Surface.UPDATE, Adversary.SERVER, (), knowledge, worlds)


def coins(seed: int) -> Tensor:
    return torch.rand(REPLAYS, RECORDS, generator=torch.Generator().manual_seed(100 + seed)) < 0.5


def scores_of(view: View, attack: Stacking) -> Tensor:
    evidence = attack.run(view, torch.Generator().manual_seed(0))
    assert evidence.scores is not None
    return evidence.scores


def test_scores_of_gaussians_get_the_weights_of_their_likelihood_ratio() -> None:
    """Scores N(+-a / 2, 1) and N(+-b / 2, 1) have the log-odds a s + b t; noise has no part."""
    g = torch.Generator().manual_seed(0)
    masks = torch.rand(40, 200, generator=g) < 0.5
    gaps = torch.tensor([1.5, 0.5, 0.0], dtype=torch.float64)
    sides = (masks.double() - 0.5).unsqueeze(-1)
    scores = torch.randn(40, 200, 3, generator=g, dtype=torch.float64) + sides * gaps
    parts = stack_scores(scores, masks, scores[:5])
    slopes = []
    for part, score in zip(parts.unbind(-1), scores[:5].unbind(-1)):
        slopes.append(torch.cov(torch.stack([part, score]).flatten(1))[0, 1] / score.var())
    # the standard error of a weight is 1 / sqrt(8000 E[p (1 - p)]), about 0.025
    torch.testing.assert_close(torch.stack(slopes), gaps, rtol=0, atol=0.1)


def test_one_huge_score_does_not_set_the_weights() -> None:
    g = torch.Generator().manual_seed(0)
    masks = torch.rand(20, 50, generator=g) < 0.5
    scores = torch.randn(20, 50, 2, generator=g) + 2 * masks.unsqueeze(-1)
    usual = stack_scores(scores, masks, scores).sum(-1)
    scores[0, 0, 0] = -1e6
    masks[0, 0] = True
    hurt = stack_scores(scores, masks, scores).sum(-1)
    kept = torch.ones_like(masks)
    kept[0, 0] = False
    assert torch.corrcoef(torch.stack([hurt[kept], usual[kept]]))[0, 1] > 0.99


def planted_hits(attack: Stacking) -> int:
    """In how many of ten seeds the one record that is in stands above all others."""
    hits = 0
    for seed in range(10):
        masks = coins(seed)
        masks[0] = False
        masks[0, seed] = True
        hits += int(scores_of(view_of(masks, seed), attack)[0].argmax()) == seed
    return hits


def test_a_planted_record_is_found_in_nine_of_ten_seeds() -> None:
    assert planted_hits(Stacking(attacks=CHEAP, folds=6)) >= 9


@pytest.mark.nightly
def test_all_attacks_together_find_it_too_and_nobody_where_the_members_are_of_other_coins() -> None:
    attack = Stacking()
    assert planted_hits(attack) >= 9
    false_alarms = 0
    for seed in range(10):
        view = view_of(coins(50 + seed), seed)
        null = replace(view, worlds=replace(require_worlds(view), masks=coins(seed)))
        finding = attack.judge(attack.run(null, torch.Generator().manual_seed(0)), null, NOBODY)
        false_alarms += finding.measures.auc_ci[0] > 0.5  # type: ignore[index]
        shares = finding.measures.diagnostics["stacked"]
        assert shares.keys() == STACKED.keys() and sum(shares.values()) == pytest.approx(1)
    assert false_alarms == 0


def test_no_score_depends_on_its_own_inclusion_bit() -> None:
    masks = coins(0)
    attack = Stacking(attacks=CHEAP, folds=6)
    view = view_of(masks, 0)
    worlds = require_worlds(view)
    before = scores_of(view, attack)
    for k in (0, REPLAYS - 1):
        turned = masks.clone()
        turned[k] = ~turned[k]
        after = scores_of(replace(view, worlds=replace(worlds, masks=turned)), attack)
        torch.testing.assert_close(after[k], before[k])
        assert not torch.equal(after, before)


def test_replays_are_selected_with_all_that_belongs_to_them() -> None:
    masks = coins(0)
    logits = torch.rand(REPLAYS, RECORDS, 3)
    signal = {"confidence": torch.rand(REPLAYS, RECORDS)}
    several = {"confidence": torch.rand(REPLAYS, RECORDS, 2)}
    worlds = Worlds(
        signal,
        masks,
        torch.zeros(RECORDS),
        torch.zeros(RECORDS),
        logits=logits,
        public_logits=logits[:, :4],
        rounds=several,
        queries=several,
    )
    chosen = torch.arange(REPLAYS) % 2 == 0
    half = require_worlds(select_replays(replace(view_of(masks, 0), worlds=worlds), chosen))
    torch.testing.assert_close(half.masks, masks[::2])
    torch.testing.assert_close(half.logits, logits[::2])
    torch.testing.assert_close(half.public_logits, logits[::2, :4])
    for part in (half.rounds, half.queries):
        torch.testing.assert_close(part["confidence"], several["confidence"][::2])
    torch.testing.assert_close(half.signals["confidence"], signal["confidence"][::2])


@pytest.mark.parametrize(
    ("settings", "named"), [({"attacks": ["lyra"]}, "lyra"), ({"attacks": []}, "one or several")]
)
def test_unknown_attacks_are_refused(settings: dict[str, Any], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        Stacking(**settings)


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_members_or_non_members_alone_teach_nothing(share: float) -> None:
    masks = torch.full((3, 4), bool(share))
    with pytest.raises(ValueError, match="only"):
        stack_scores(torch.zeros(3, 4, 2), masks, torch.zeros(1, 4, 2))
