"""Counts, choices and answers of each row by itself: the faulty one, then its twin."""

from __future__ import annotations

import math

import numpy as np
from scipy import stats
from scipy.optimize import brentq

from tests.conformance.parts import DELTA, RNG, C, rows_clipped, sigma

CATEGORIES = 6
COINS = 10
CROWD = 20
KEPT = 0.75
SHUFFLED = 0.05
FOUR = sigma(4.0)


def _categories(x):
    return np.floor(np.abs(np.nan_to_num(x[:, 0])) * 2).astype(np.int64) % CATEGORIES


def _answers(x, keep):
    """Each row's category with chance ``keep``, else another one."""
    true = _categories(x)
    other = (true + RNG.integers(1, CATEGORIES, len(true))) % CATEGORIES
    return np.where(RNG.random(len(true)) < keep, true, other)


def kept_as_if_of_two(x):
    """Randomised response among six with the chance that is right for two."""
    return _answers(x, math.e / (math.e + 1))


def kept_as_of_six(x):
    return _answers(x, math.e / (math.e + CATEGORIES - 1))


def votes_of(x):
    return np.clip(np.nan_to_num(x), 0, 1).sum(0)


def winner_with_its_noised_votes(x):
    """Report noisy max, which pays for the index only, and the votes by which it won."""
    votes = votes_of(x)
    noised = votes + RNG.laplace(0.0, 2.0, len(votes))
    return [float(np.argmax(noised)), float(noised.max())]


def winner_then_its_votes(x):
    votes = votes_of(x)
    at = int(np.argmax(votes + RNG.laplace(0.0, 4.0, len(votes))))
    return [float(at), float(votes[at] + RNG.laplace(0.0, 2.0))]


def _above(x, stops):
    """Sparse vector over a row's numbers: which noised votes are above a noised threshold?"""
    votes = votes_of(x)
    threshold = 1.0 + RNG.laplace(0.0, 2.0)
    said = np.zeros(len(votes))
    for at, value in enumerate(
        votes + RNG.laplace(0.0, 2.0, len(votes))
    ):  # votes move one way only
        if value >= threshold:
            said[at] = 1.0
            if stops:
                break
    return said


def goes_on_after_the_first(x):
    return _above(x, stops=False)


def stops_at_the_first(x):
    return _above(x, stops=True)


def _geometric(epsilon):
    p = 1 - math.exp(-epsilon)
    return int(RNG.geometric(p)) - int(RNG.geometric(p))


def noise_of_eight_steps_at_most(x):
    return np.array([len(x) + min(max(_geometric(0.5), -8), 8)])


def noise_of_any_steps(x):
    return np.array([len(x) + _geometric(0.5)])


def ten_coins(x):
    """Binomial noise; ten coins have ends, which one record moves."""
    return np.array([len(x) + int(RNG.binomial(COINS, 0.5)) - COINS // 2])


def a_hundred_coins(x):
    return np.array([len(x) + int(RNG.binomial(100, 0.5)) - 50])


def _named_bins(x, threshold):
    """Counts of whatever values there are, those above a threshold (Korolova et al. 2009)."""
    values, counts = np.unique(np.round(np.nan_to_num(x[:, 0]), 1), return_counts=True)
    noised = counts + RNG.laplace(0.0, 1.0, len(counts))
    return {f"{value:g}": float(count) for value, count in zip(values, noised) if count > threshold}


def names_above_three(x):
    return _named_bins(x, 3.0)


def names_above_what_delta_needs(x):
    return _named_bins(x, 1 + math.log(1 / (2 * DELTA)))


def _bins(x):
    return np.bincount(_categories(x), minlength=CATEGORIES).astype(float)


def a_row_moves_one_bin(x):
    """Noise for a row that comes or goes, stated for one that is replaced: it leaves a bin and
    enters another."""
    return _bins(x) + RNG.laplace(0.0, 1.0, CATEGORIES)


def a_row_moves_two_bins(x):
    return _bins(x) + RNG.laplace(0.0, 2.0, CATEGORIES)


def _flipped(x):
    if len(x) < CROWD:
        raise ValueError(f"{CROWD} rows are needed")
    bits = (np.nan_to_num(x[:, 0]) > 0).astype(float)
    return np.where(RNG.random(len(bits)) < KEPT, bits, 1 - bits)


def amplified_in_order(x):
    """Each row's bit, flipped by chance; the epsilon is that of shuffled answers."""
    return _flipped(x)


def amplified_and_shuffled(x):
    return RNG.permutation(_flipped(x))


def shuffled_epsilon():
    """Exact for twenty answers: what leaves is how many ones there are."""
    k = np.arange(CROWD + 1)

    def law(ones):
        yes = stats.binom(ones, KEPT)
        no = stats.binom(CROWD - ones, 1 - KEPT)
        return np.convolve(yes.pmf(np.arange(ones + 1)), no.pmf(np.arange(CROWD - ones + 1)))[
            : len(k)
        ]

    laws = np.array([law(ones) for ones in range(CROWD + 1)])
    pairs = [(laws[1:], laws[:-1]), (laws[:-1], laws[1:])]

    def excess(epsilon):
        return (
            max(float(np.maximum(p - math.exp(epsilon) * q, 0).sum(1).max()) for p, q in pairs)
            - SHUFFLED
        )

    return float(brentq(excess, 0.0, 3.0))


def as_many_rows_as_there_are(x):
    """Each row with noise enough for it, one for one: their number has none."""
    return rows_clipped(x) + RNG.normal(0.0, FOUR * C, x.shape)


def always_a_hundred_rows(x):
    """Drawn around a noised sum."""
    total = rows_clipped(x).sum(0) + RNG.normal(0.0, FOUR * C, x.shape[1])
    return total + RNG.normal(0.0, 1.0, (100, len(total)))


def a_row_with_noise_of_a_mean(x):
    """One row drawn at random; its noise is that of the mean of all."""
    row = rows_clipped(x)[RNG.integers(len(x))]
    return row + RNG.normal(0.0, FOUR * C / len(x), len(row))


def a_row_with_noise_of_a_row(x):
    row = rows_clipped(x)[RNG.integers(len(x))]
    return row + RNG.normal(0.0, FOUR * C, len(row))


def _trained(x, rows_alone):
    """Ten steps of logistic regression; the last weights leave."""
    features = np.nan_to_num(x[:, :-1])
    labels = np.sign(np.nan_to_num(x[:, -1]) + 1e-12)
    w = np.zeros(features.shape[1])
    for _ in range(10):
        slope = -labels / (1 + np.exp(np.clip(labels * (features @ w), -50, 50)))
        gradients = slope[:, None] * features
        gradient = (
            rows_clipped(gradients).sum(0)
            if rows_alone
            else rows_clipped(gradients.mean(0)[None])[0] * len(x)
        )
        w = w - 0.1 * (gradient + RNG.normal(0.0, FOUR * math.sqrt(10) * C, len(w)))
    return w


def trained_with_the_mean_clipped(x):
    return _trained(x, rows_alone=False)


def trained_with_each_clipped(x):
    return _trained(x, rows_alone=True)


def _total(x, words):
    return float(np.clip(np.nan_to_num(x[:, 0]), -1, 1).sum() + RNG.laplace(0.0, 1.0)), words


def seldom_says_that_it_clipped(x):
    """One time in twenty a text says whether a record was clipped."""
    return _total(
        x, "clipped" if RNG.random() < 0.05 and (np.abs(np.nan_to_num(x[:, 0])) > 100).any() else ""
    )


def seldom_says_something(x):
    return _total(x, "clipped" if RNG.random() < 0.05 else "")
