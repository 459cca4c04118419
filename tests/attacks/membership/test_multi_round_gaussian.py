"""The multi-signal likelihood ratio against closed forms on Gaussian signals."""

import math
from functools import partial

import pytest
import torch
from scipy.stats import norm
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis

from attacks.membership.attack import score_leave_one_out
from attacks.membership.multi_round import MIN_OWN_SHARE, _shrink_gaps, gaussian_likelihood_ratio
from attacks.roc import roc

COVARIANCE = torch.tensor([[1.0, 0.8], [0.8, 1.0]], dtype=torch.float64)
GAP = torch.tensor([0.7, 0.0], dtype=torch.float64)  # the second signal says nothing but what noise the first has


def drawn(worlds: int, records: int, gap=GAP, covariance=COVARIANCE, seed: int = 0):
    g = torch.Generator().manual_seed(seed)
    masks = torch.rand(worlds, records, generator=g) < 0.5
    noise = torch.randn(worlds, records, len(gap), generator=g, dtype=torch.float64) @ torch.linalg.cholesky(covariance).T
    hard = 3 * torch.randn(records, len(gap), generator=g, dtype=torch.float64)
    return hard + masks.unsqueeze(-1) * gap + noise, masks, hard


def auc(scores, masks) -> float:
    return roc(scores.flatten().numpy(), masks.flatten().numpy()).auc


def test_with_many_worlds_it_is_the_ratio_of_the_true_densities() -> None:
    signals, masks, hard = drawn(3000, 6)
    target = hard + drawn(1, 6, seed=9)[0][0] - drawn(1, 6, seed=9)[2]
    precision = torch.linalg.inv(COVARIANCE)
    exact = torch.einsum("nq,qr,r->n", target - hard - GAP / 2, precision, GAP)
    found = gaussian_likelihood_ratio(signals, masks, target)
    assert torch.allclose(found, exact, rtol=0.1, atol=0.35)
    per_side = gaussian_likelihood_ratio(signals, masks, target, covariance="per_side")
    assert torch.allclose(per_side, exact, rtol=0.15, atol=0.5)


def test_one_record_with_many_worlds_agrees_with_scikit_learn() -> None:
    signals, masks, _ = drawn(4000, 1)
    target = drawn(40, 1, seed=3)[0]
    model = LinearDiscriminantAnalysis().fit(signals[:, 0].numpy(), masks[:, 0].numpy())
    theirs = model.decision_function(target[:, 0].numpy()) - math.log(masks.double().mean() / (1 - masks.double().mean()))
    ours = torch.cat([gaussian_likelihood_ratio(signals, masks, t) for t in target])
    assert torch.allclose(ours, torch.from_numpy(theirs), atol=0.05)


def test_different_spreads_of_the_sides_are_seen_by_the_one_that_fits_both() -> None:
    g = torch.Generator().manual_seed(1)
    masks = torch.rand(200, 40, generator=g) < 0.5
    signals = (torch.randn(200, 40, 1, generator=g) * torch.where(masks, 3.0, 1.0).unsqueeze(-1)).double()
    two = score_leave_one_out(partial(gaussian_likelihood_ratio, covariance="per_side"), signals, masks)
    one = score_leave_one_out(gaussian_likelihood_ratio, signals, masks)
    exact = signals[..., 0].square()  # monotone in log N(0, 9) - log N(0, 1)
    assert abs(auc(two, masks) - auc(exact, masks)) < 0.03
    assert abs(auc(one, masks) - 0.5) < 0.05


def test_a_second_signal_that_only_shares_the_noise_helps_as_much_as_theory_says() -> None:
    signals, masks, _ = drawn(64, 200)
    both, first = (score_leave_one_out(gaussian_likelihood_ratio, s, masks) for s in (signals, signals[..., :1]))
    mahalanobis = float(GAP @ torch.linalg.inv(COVARIANCE) @ GAP) ** 0.5
    assert auc(both, masks) == pytest.approx(norm.cdf(mahalanobis / 2**0.5), abs=0.025)
    assert auc(first, masks) == pytest.approx(norm.cdf(float(GAP[0]) / 2**0.5), abs=0.025)


def test_fresh_coins_find_nothing() -> None:
    signals, _, _ = drawn(24, 60)
    for seed in range(20):
        fresh = torch.rand(24, 60, generator=torch.Generator().manual_seed(100 + seed)) < 0.5
        assert auc(score_leave_one_out(gaussian_likelihood_ratio, signals, fresh), fresh) == pytest.approx(0.5, abs=0.06)  # 4 sd of independent scores


def test_the_ratio_never_sees_which_unit_a_signal_has_nor_one_that_never_varies() -> None:
    signals, masks, _ = drawn(20, 10)
    target, bare = signals[0], gaussian_likelihood_ratio(signals[1:], masks[1:], signals[0])
    scaled = torch.tensor([1e3, 1e-3], dtype=torch.float64)
    assert torch.allclose(gaussian_likelihood_ratio(signals[1:] * scaled, masks[1:], target * scaled), bare)
    dull = torch.full((20, 10, 1), 7.0, dtype=torch.float64)
    wider = torch.cat([signals, dull], -1)
    assert torch.allclose(gaussian_likelihood_ratio(wider[1:], masks[1:], wider[0]), bare)
    assert torch.equal(gaussian_likelihood_ratio(dull[1:], masks[1:], dull[0]), torch.zeros(10, dtype=torch.float64))


def test_a_record_that_was_never_in_takes_the_gap_of_the_others() -> None:
    signals, masks, _ = drawn(400, 30)
    masks[:, 0] = False
    signals[:, 0] -= signals[:, 0].mean(0)  # as a non-member throughout
    near = gaussian_likelihood_ratio(signals, masks, torch.zeros(30, 2, dtype=torch.float64))[0]
    far = gaussian_likelihood_ratio(signals, masks, torch.stack([GAP] * 30))[0]
    assert near < 0 < far


@pytest.mark.parametrize(
    ("change", "said"),
    [({"signals": torch.zeros(4, 3)}, "signals"), ({"target": torch.full((3, 2), torch.nan)}, "NaN"),
     ({"masks": torch.ones(4, 3, dtype=torch.bool)}, "members only"), ({"covariance": "two"}, "covariance")],
)  # fmt: skip
def test_bad_arguments_are_refused(change, said) -> None:
    signals, masks, _ = drawn(4, 3)
    good = {"signals": signals, "masks": masks, "target": signals[0]}
    with pytest.raises(ValueError, match=said):
        gaussian_likelihood_ratio(**{**good, **change})


def test_gaps_are_shrunk_by_the_share_of_their_spread_that_is_noise() -> None:
    """Four worlds on each side: each gap has noise of variance 1/4 + 1/4. A spread of 1 is half noise, one of 1/2 all."""
    counts = torch.full((2, 4), 4.0, dtype=torch.float64)
    gaps = torch.tensor([[3.0], [1.0], [3.0], [1.0]], dtype=torch.float64)
    assert torch.allclose(_shrink_gaps(gaps, counts), 2 + 0.5 * (gaps - 2))
    noise = (gaps - 2) * 0.5**0.5
    assert torch.allclose(_shrink_gaps(2 + noise, counts), 2 + MIN_OWN_SHARE * noise)
