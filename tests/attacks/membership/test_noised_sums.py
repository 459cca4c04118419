"""Membership from noised sums in closed form, against exact likelihood ratios, laws and planted
leaks."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from scipy.stats import kstest, norm

from attacks.membership.lira import Lira
from attacks.membership.noised_sums import RATIO_SIGNAL, NoisedSumAttack, NoisedSums
from attacks.roc import roc
from attacks.types import Adversary, Knowledge, Surface, Truth, View, Worlds

STD = 2.0


def drawn(masks: np.ndarray, effects: np.ndarray, seed: int = 0, std: float = STD) -> np.ndarray:
    return masks @ effects + std * np.random.default_rng(seed).standard_normal(
        (len(masks), effects.shape[1])
    )


def one_run(effects: np.ndarray, observed: np.ndarray, q: float = 1.0) -> NoisedSums:
    sums = NoisedSums(len(effects))
    sums.add_release("sum", np.arange(len(effects)), effects, observed, STD, q)
    return sums


def real(effects: np.ndarray, observed: np.ndarray, q: float = 1.0) -> np.ndarray:
    """The scores of the run that happened."""
    masks = np.zeros((2, len(effects)), dtype=bool)
    return one_run(effects, observed, q).log_likelihood_ratios(masks, np.random.default_rng(0))[0]


def exact(effects: np.ndarray, observed: np.ndarray) -> np.ndarray:
    """ln p(y | record in) / p(y | out), all other coins gone through."""
    coins = np.array(list(itertools.product([0.0, 1.0], repeat=len(effects))))
    like = -np.square(observed - coins @ effects).sum(1) / (2 * STD**2)
    sides = [
        [np.logaddexp.reduce(like[coins[:, i] == z]) for z in (1, 0)] for i in range(len(effects))
    ]
    return np.array([inside - outside for inside, outside in sides])


def test_one_record_alone_has_the_exact_ratio():
    effects = np.random.default_rng(1).normal(size=(1, 5))
    observed = drawn(np.ones((1, 1)), effects)[0]
    want = (observed @ effects[0] - effects[0] @ effects[0] / 2) / STD**2
    assert real(effects, observed) == pytest.approx([want])
    q = 0.3
    assert real(effects, observed, q) == pytest.approx([math.log(1 - q + q * math.exp(want))])


@pytest.mark.parametrize(("size", "near"), [(0.3, 0.02), (1.5, 0.35)])
def test_other_records_coins_are_marginalised(size, near):
    """Nearly exact where noise is large, as under a guarantee; the same order where it is not."""
    rng = np.random.default_rng(2)
    # they point the same way, in part
    effects = size * (rng.normal(size=(6, 8)) + rng.normal(size=8))
    observed = drawn(rng.random((40, 6)) < 0.5, effects)
    mine, want = (np.concatenate([f(effects, one) for one in observed]) for f in (real, exact))
    assert np.abs(mine - want).mean() < near * np.abs(want).mean()
    assert np.corrcoef(mine, want)[0, 1] > 0.97


def test_releases_add_up_and_a_class_s_sum_says_nothing_of_another_class():
    rng = np.random.default_rng(3)
    effects = rng.normal(size=(3, 4))
    observed = rng.normal(size=4)
    twice = NoisedSums(5)
    for part in (slice(0, 2), slice(2, 4)):
        twice.add_release("sum", np.array([0, 2, 4]), effects[:, part], observed[part], STD)
    found = twice.log_likelihood_ratios(np.zeros((2, 5), dtype=bool), np.random.default_rng(0))[0]
    assert found[[0, 2, 4]] == pytest.approx(real(effects, observed))
    assert not found[[1, 3]].any()


def test_other_transcripts_separate_records_as_the_law_says():
    """Records that add orthogonal vectors of norm mu std: an AUC of Phi(mu / sqrt 2)."""
    mu = 1.2
    effects = np.eye(4) * mu * STD
    masks = np.random.default_rng(4).random((5000, 4)) < 0.5
    sums = one_run(effects, drawn(masks[:1], effects)[0])
    scores = sums.log_likelihood_ratios(masks, np.random.default_rng(5))
    assert roc(scores[1:].ravel(), masks[1:].ravel()).auc == pytest.approx(
        norm.cdf(mu / 2**0.5), abs=0.01
    )


@pytest.mark.parametrize("q", [1.0, 0.4])
def test_other_transcripts_have_the_law_of_real_ones(q):
    """Scores of drawn transcripts against scores of sums that are really noised, records pointing
    in common ways."""
    rng = np.random.default_rng(6)
    effects = rng.normal(size=(3, 6)) + 1
    masks = np.broadcast_to(np.array([True, False, True]), (1500, 3))
    sums = one_run(effects, drawn(masks[:1].astype(float), effects)[0], q)
    there = sums.log_likelihood_ratios(masks, np.random.default_rng(7))[1:]
    sampled = masks & (rng.random(masks.shape) < q)
    here = np.stack([real(effects, one, q) for one in drawn(sampled, effects, seed=8)])
    for one in range(3):
        assert kstest(there[:, one], here[:, one]).pvalue > 1e-3


def test_the_noise_of_the_run_is_measured_where_no_record_reaches():
    rng = np.random.default_rng(9)
    effects = rng.normal(size=(3, 2000))
    for real_std, ratio in ((STD, 1.0), (STD / 2, 0.5), (2 * STD, 2.0)):
        sums = one_run(effects, drawn(np.ones((1, 3)), effects, std=real_std)[0])
        assert sums.usual_noise_ratio("sum") == pytest.approx(ratio, rel=0.05)
    few = one_run(effects[:, :20], drawn(np.ones((1, 3)), effects[:, :20], std=STD / 2)[0])
    assert few.usual_noise_ratio("sum") == 1.0  # too few numbers to tell


def test_bad_sums_are_refused():
    sums = NoisedSums(2)
    ones = np.ones((2, 3))
    for bad in (
        (np.arange(2), ones, np.ones(4), 1.0),
        (np.arange(1), ones, np.ones(3), 1.0),
        (np.arange(2), ones, np.ones(3), 0.0),
    ):
        with pytest.raises(ValueError, match="effects"):
            sums.add_release("sum", *bad)
    with pytest.raises(ValueError, match="coins"):
        sums.log_likelihood_ratios(np.zeros((2, 3), dtype=bool), np.random.default_rng(0))


def view(strength: float, *, coins: int, adversary: Adversary = Adversary.ANALYST) -> View:
    """Sums whose members were drawn by seed 10; the masks handed over by ``coins``: 10 = theirs,
    others = a null."""
    rng = np.random.default_rng(0)
    effects = strength * rng.normal(size=(40, 60)) / 60**0.5 * STD
    masks = np.random.default_rng(10).random((60, 40)) < 0.5
    scores = one_run(effects, drawn(masks[:1], effects)[0]).log_likelihood_ratios(masks, rng)
    said = masks if coins == 10 else np.random.default_rng(coins).random((60, 40)) < 0.5
    held = Worlds(
        {RATIO_SIGNAL: torch.tensor(scores)},
        torch.tensor(said),
        torch.zeros(40),
        torch.zeros(40, dtype=torch.long),
    )
    known = Knowledge(
        (1, 2, 2),
        2,
        torch.zeros(0, 1, 2, 2),
        torch.zeros(0, dtype=torch.long),
        settings={"delta": 1e-5},
    )
    return View(Surface.SYNTHETIC_IMAGES, adversary, (), known, held)


NOBODY = Truth(*(torch.zeros(0),) * 4, torch.zeros(2))


@pytest.mark.parametrize(("strength", "coins", "found"), [(2.0, 10, True), (2.0, 11, False)])
def test_a_planted_leak_is_found_and_a_null_is_not(strength, coins, found):
    leak = view(strength, coins=coins)
    attack = NoisedSumAttack()
    low = attack.judge(
        attack.run(leak, torch.Generator().manual_seed(0)), leak, NOBODY
    ).measures.auc_ci[0]
    assert (low > 0.5) == found


def test_shadow_attacks_leave_the_analyst_s_view_alone():
    assert NoisedSumAttack.adversaries == {Adversary.ANALYST}
    assert Adversary.ANALYST not in Lira.adversaries and Adversary.SERVER in Lira.adversaries


def test_noise_of_another_size_and_records_that_add_something_else_are_seen():
    rng = np.random.default_rng(12)
    effects = rng.normal(size=(3, 4000))
    for size, fits in ((1.0, True), (0.8, False), (1.2, False)):
        assert (
            one_run(effects, drawn(np.ones((1, 3)), effects, std=size * STD)[0]).has_stated_noise
            == fits
        )
    unknown = rng.normal(size=4000)  # of other records, added to what was released
    assert not one_run(effects, drawn(np.ones((1, 3)), effects)[0] + 2 * unknown).has_stated_noise
    few = effects[:, :20]
    assert one_run(
        few, drawn(np.ones((1, 3)), few, std=STD / 2)[0]
    ).has_stated_noise  # too few numbers to tell


@pytest.mark.parametrize("numbers", [60, 2000])
def test_one_release_with_less_noise_is_not_hidden_by_the_average_over_rounds(numbers):
    """Of twenty releases the last has next to no noise: its records are told apart as they are from
    it alone."""
    rng = np.random.default_rng(13)
    effects = 0.02 * rng.normal(size=(20, 4, numbers))
    mask = np.array([[1, 0, 1, 0]])
    stds = [STD] * 19 + [STD / 1000]
    observed = [
        drawn(mask, rows, seed=40 + at, std=std)[0]
        for at, (rows, std) in enumerate(zip(effects, stds))
    ]
    whole = NoisedSums(4)
    alone = NoisedSums(4)
    honest = NoisedSums(4)
    for at, (rows, seen) in enumerate(zip(effects, observed)):
        whole.add_release("sum", np.arange(4), rows, seen, STD)
        honest.add_release("sum", np.arange(4), rows, drawn(mask, rows, seed=40 + at)[0], STD)
    alone.add_release("sum", np.arange(4), effects[-1], observed[-1], stds[-1])
    assert whole.usual_noise_ratio("sum") > 0.9
    coins = np.zeros((2, 4), dtype=bool)
    told = np.abs(whole.log_likelihood_ratios(coins, np.random.default_rng(0))[0])
    assert (
        told > 0.5 * np.abs(alone.log_likelihood_ratios(coins, np.random.default_rng(0))[0])
    ).all() and told.min() > 100
    assert not whole.has_stated_noise and honest.has_stated_noise
    assert (
        honest._noise_per_release() == [honest.usual_noise_ratio("sum")] * 20
    )  # all are read with the usual noise
