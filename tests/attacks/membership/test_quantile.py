"""Quantile regression against the law that made the scores, and on a null."""

import pytest
import torch
from scipy.stats import norm, spearmanr

from attacks.membership.quantile import QuantileRegression, regression_features, standardise_scores
from attacks.roc import roc
from attacks.types import Adversary, Knowledge, Surface, View, Worlds

CLASSES = 3
PUBLIC = 400
N = 150


def law(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean and standard deviation of a non-member's score, by its record."""
    return 3 * x[:, 0] - x[:, 1], (0.5 * x[:, 2]).exp()


def draw(count: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(count, 4, generator=g)
    mean, std = law(x)
    return x, mean + std * torch.randn(count, generator=g)


def test_it_recovers_the_law_that_made_the_scores() -> None:
    x, s = draw(2000, 0)
    asked, values = draw(500, 1)
    mean, std = law(asked)
    torch.testing.assert_close(
        standardise_scores(s, x, asked, values),
        ((values - mean) / std).double(),
        atol=0.5,
        rtol=0.15,
    )


def test_each_quantile_is_exceeded_as_often_as_it_says() -> None:
    """What the paper asks for: at false-positive rate q the threshold of a record is its own 1 - q
    quantile."""
    x, s = draw(500, 2)
    z = standardise_scores(s, x, *draw(20_000, 3))
    for rate in (0.5, 0.1, 0.01):
        assert float((z > norm.isf(rate)).double().mean()) == pytest.approx(rate, rel=0.25)


def test_a_member_stands_out_although_others_score_higher() -> None:
    x, s = draw(500, 4)
    asked, values = draw(2000, 5)
    member = torch.arange(2000) % 2 == 0
    lifted = values + 2 * law(asked)[1] * member
    assert roc(lifted, member.numpy()).auc < 0.75  # one threshold for all hardly sees it
    assert (
        roc(standardise_scores(s, x, asked, lifted), member.numpy()).auc > 0.9
    )  # 0.92 is the best: two normals 2 apart


def test_what_a_record_is_decides_its_rank_only_through_its_score() -> None:
    x, s = draw(500, 6)
    asked, values = draw(1000, 7)
    assert abs(spearmanr(standardise_scores(s, x, asked, values), law(asked)[0]).statistic) < 0.1


@pytest.mark.parametrize(
    "bad",
    [
        {"ridge": 0.0},
        {"scores": torch.zeros(3)},
        {"public_scores": torch.zeros(1), "public_features": torch.zeros(1, 4)},
    ],
)
def test_bad_values_are_refused(bad) -> None:
    x, s = draw(20, 8)
    given = {"public_scores": s, "public_features": x, "features": x, "scores": s, **bad}
    with pytest.raises(ValueError, match="are needed"):
        standardise_scores(**given)


def view(seed: int, gap: float) -> View:
    """Three replays of a model whose confidence falls with a picture's brightness; members gain
    ``gap``."""
    g = torch.Generator().manual_seed(seed)
    public = torch.rand(PUBLIC, 1, 3, 3, generator=g)
    own = torch.rand(N, 1, 3, 3, generator=g)
    public_y = torch.arange(PUBLIC) % CLASSES
    y = torch.arange(N) % CLASSES
    masks = torch.rand(3, N, generator=g) < 0.5

    def logits(x: torch.Tensor, labels: torch.Tensor, lift: torch.Tensor) -> torch.Tensor:
        score = -9 * x.mean((1, 2, 3)) + torch.randn(len(x), generator=g) / 2 + lift
        return torch.nn.functional.one_hot(labels, CLASSES) * score[:, None]

    outside = torch.stack([logits(public, public_y, torch.zeros(PUBLIC)) for _ in masks])
    inside = torch.stack([logits(own, y, gap * mask) for mask in masks])
    signal = {"confidence": inside.sum(-1)}
    worlds = Worlds(signal, masks, torch.zeros(N), y, inside, outside, records=own)
    knowledge = Knowledge((1, 3, 3), CLASSES, public, public_y, settings={"delta": 1e-5})
    return View(Surface.UPDATE, Adversary.SERVER, (), knowledge, worlds)


def auc(seen: View) -> float:
    scores = QuantileRegression(components=9).run(seen, torch.Generator().manual_seed(1)).scores
    return roc(scores.flatten(), seen.worlds.masks.flatten().numpy()).auc


def test_the_attack_beats_one_threshold_and_guesses_on_a_null() -> None:
    raw = [
        roc(v.worlds.signals["confidence"].flatten(), v.worlds.masks.flatten().numpy()).auc
        for v in (view(s, 1.0) for s in range(4))
    ]
    assert sum(auc(view(s, 1.0)) for s in range(4)) / 4 > max(raw) + 0.03
    assert abs(sum(auc(view(s, 0.0)) for s in range(20)) / 20 - 0.5) < 0.015


def test_without_outputs_for_public_records_it_has_nothing_to_read() -> None:
    seen = view(0, 1.0)
    bare = Worlds(
        seen.worlds.signals,
        seen.worlds.masks,
        seen.worlds.blind,
        seen.worlds.labels,
        records=seen.worlds.records,
    )
    assert "public" in QuantileRegression().nothing_to_read(
        View(seen.surface, seen.adversary, (), seen.knowledge, bare)
    )
    assert QuantileRegression().nothing_to_read(seen) == ""
    assert regression_features(
        torch.rand(2, 1, 3, 3), torch.tensor([0, 2]), torch.eye(9)[:, :4], 3
    ).shape == (2, 7)
