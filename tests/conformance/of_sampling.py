"""Samplers, selections and statistics of tables: the faulty one, then its twin."""

from __future__ import annotations

import numpy as np

from tests.conformance.of_records import SAMPLED, Q
from tests.conformance.parts import RNG, C, rows_clipped, sigma

ONE, TWO, FOUR = (sigma(e) for e in (1.0, 2.0, 4.0))


def coins_of_a_fixed_seed(x):
    """The noise is new in every call, the sample is not."""
    chosen = np.random.default_rng(3).random(len(x)) < Q
    return rows_clipped(x[chosen]).sum(0) + RNG.normal(0.0, SAMPLED, x.shape[1])


def fresh_coins(x):
    return rows_clipped(x[RNG.random(len(x)) < Q]).sum(0) + RNG.normal(0.0, SAMPLED, x.shape[1])


def whole_batches_only(x):
    """What does not fill a batch of 8 is dropped."""
    kept = x[: len(x) // 8 * 8]
    return rows_clipped(kept).sum(0) + RNG.normal(0.0, FOUR * C, x.shape[1])


def the_last_batch_too(x):
    return rows_clipped(x).sum(0) + RNG.normal(0.0, FOUR * C, x.shape[1])


def of_fixed_size(x):
    """A batch of exactly a fifth, accounted as coins with a chance of a fifth."""
    chosen = RNG.choice(len(x), int(Q * len(x)), replace=False)
    return rows_clipped(x[chosen]).sum(0) + RNG.normal(0.0, SAMPLED, x.shape[1])


def with_replacement(x):
    """As many draws as coins would give, and a record may be drawn twice."""
    chosen = RNG.choice(len(x), max(1, int(Q * 20)), replace=True)
    return rows_clipped(x[chosen]).sum(0) + RNG.normal(0.0, SAMPLED, x.shape[1])


def winner_of_half_the_noise(x):
    """Report noisy max of votes of at most 1 each: Laplace noise of scale 1 / (2 epsilon) for 2 /
    epsilon."""
    votes = np.clip(np.nan_to_num(x), 0, 1).sum(0)
    return np.array([int(np.argmax(votes + RNG.laplace(0.0, 0.5, len(votes))))])


def winner(x):
    votes = np.clip(np.nan_to_num(x), 0, 1).sum(0)
    return np.array([int(np.argmax(votes + RNG.laplace(0.0, 2.0, len(votes))))])


def divided_by_the_count(x):
    return (rows_clipped(x).sum(0) + RNG.normal(0.0, FOUR * C, x.shape[1])) / len(x)


def divided_by_a_public_count(x):
    return (rows_clipped(x).sum(0) + RNG.normal(0.0, FOUR * C, x.shape[1])) / 20


def bins_with_something_in(x):
    """A histogram of which number of a row is largest; empty bins get no noise."""
    bins = np.bincount(np.argmax(np.nan_to_num(x), axis=1), minlength=x.shape[1]).astype(float)
    return np.where(bins > 0, bins + RNG.laplace(0.0, 0.5, len(bins)), 0.0)


def all_bins(x):
    bins = np.bincount(np.argmax(np.nan_to_num(x), axis=1), minlength=x.shape[1]).astype(float)
    return bins + RNG.laplace(0.0, 0.5, len(bins))


def standardised(x):
    """Centred and scaled by the data's own mean and deviation before the clip."""
    x = np.where(np.isfinite(x).all(1, keepdims=True), x, 0.0)
    rows = (x - x.mean(0)) / (x.std(0) + 1e-6)
    return rows_clipped(rows).sum(0) + RNG.normal(0.0, FOUR, x.shape[1])


def standardised_by_constants(x):
    return rows_clipped((x - 0.1) / 0.3).sum(0) + RNG.normal(0.0, FOUR, x.shape[1])


def copies_clipped_alone(x):
    """Four augmented copies of each record, each clipped, all summed."""
    copies = [rows_clipped(np.roll(x, shift, axis=1)) for shift in range(4)]
    return sum(c.sum(0) for c in copies) + RNG.normal(0.0, FOUR * C, x.shape[1])


def copies_clipped_together(x):
    mean = np.mean([np.roll(x, shift, axis=1) for shift in range(4)], axis=0)
    return rows_clipped(mean).sum(0) + RNG.normal(0.0, FOUR * C, x.shape[1])


def counted_as_they_are(x):
    """A noised count, never told below the true one's half."""
    count = len(x) + RNG.laplace(0.0, 1.0)
    return np.array([max(count, len(x) / 2)])


def counted_with_noise(x):
    return np.array([max(len(x) + RNG.laplace(0.0, 1.0), 0.0)])


def told_who_was_drawn(x):
    """The sum of a batch by coins, and beside it who was drawn."""
    drawn = RNG.random(len(x)) < Q
    return {
        "sum": rows_clipped(x[drawn]).sum(0) + RNG.normal(0.0, SAMPLED, x.shape[1]),
        "drawn": drawn,
    }


def within_the_range_of_the_data(x):
    """Noised means are cut off at the data's own smallest and largest values."""
    inside = np.clip(np.nan_to_num(x), -C, C) / np.sqrt(x.shape[1])
    noisy = inside.sum(0) + RNG.normal(0.0, FOUR, x.shape[1])
    return np.clip(noisy, inside.min(0) * len(x), inside.max(0) * len(x))


def within_a_public_range(x):
    inside = np.clip(np.nan_to_num(x), -C, C) / np.sqrt(x.shape[1])
    return np.clip(inside.sum(0) + RNG.normal(0.0, FOUR, x.shape[1]), -5.0, 5.0)


def largest_with_noise_of_a_mean(x):
    return np.clip(np.nan_to_num(x), 0.0, C).max(0) + RNG.laplace(
        0.0, C * x.shape[1] / (2.0 * len(x)), x.shape[1]
    )


def mean_with_noise_of_a_mean(x):
    return np.clip(np.nan_to_num(x), 0.0, C).mean(0) + RNG.laplace(
        0.0, C * x.shape[1] / (2.0 * len(x)), x.shape[1]
    )


def chosen_at_three_times_epsilon(x):
    """A count moves by 1 as a record comes or goes: e^(count / 2) has epsilon 1 at most, e^(3 count
    / 2) 1.5 and more."""
    return _chosen(x, 3.0)


def chosen(x):
    return _chosen(x, 1.0)


def _chosen(x, epsilon):
    counts = np.histogram(np.clip(np.nan_to_num(x[:, 0]), 0, 1), 4, (0, 1))[0]
    odds = np.exp(epsilon * (counts - counts.max()) / 2)
    return np.array([float(RNG.choice(4, p=odds / odds.sum()))])
