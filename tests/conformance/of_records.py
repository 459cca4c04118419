"""Mechanisms on tables of records: the faulty one, then its twin."""

from __future__ import annotations

import numpy as np

from tests.conformance.parts import RNG, C, rows_clipped, sigma

Q = 0.2
BATCHES = 10
TWO = sigma(2.0)
FOUR = sigma(4.0)
# Accounting is done in test_corpus.py: it takes seconds, and every worker imports this file while
# it collects tests.
SAMPLED = 1.6304193631131225  # noise over C of epsilon 1 for one sum that is sampled at the rate Q
EPOCH_NOISE = 0.8
EPOCH = 4.543211418659225  # epsilon of as many sampled sums as there are batches


def whole_noise(x):
    return rows_clipped(x).sum(0) + RNG.normal(0.0, FOUR, x.shape[1]).astype(int)


def real_noise(x):
    return rows_clipped(x).sum(0) + RNG.normal(0.0, FOUR, x.shape[1])


def one_noise_for_all_rows(x):
    return rows_clipped(x) + RNG.normal(0.0, FOUR, x.shape[1])


def noise_for_each_row(x):
    return rows_clipped(x) + RNG.normal(0.0, FOUR, x.shape)


def shuffled_batches(x):
    """An epoch of shuffled batches, accounted as if every batch were drawn by coins."""
    order = RNG.permutation(len(x))
    sums = [rows_clipped(x[part]).sum(0) for part in np.array_split(order, BATCHES)]
    return np.stack(sums) + RNG.normal(0.0, EPOCH_NOISE, (BATCHES, x.shape[1]))


def batches_by_coins(x):
    sums = [rows_clipped(x[RNG.random(len(x)) < 1 / BATCHES]).sum(0) for _ in range(BATCHES)]
    return np.stack(sums) + RNG.normal(0.0, EPOCH_NOISE, (BATCHES, x.shape[1]))


def divided_by_the_batch(x):
    batch = rows_clipped(x[RNG.random(len(x)) < Q])
    return batch.sum(0) / max(len(batch), 1) + RNG.normal(
        0.0, SAMPLED * C / max(Q * len(x), 1.0), x.shape[1]
    )


def divided_by_a_constant(x):
    batch = rows_clipped(x[RNG.random(len(x)) < Q])
    return batch.sum(0) / 4.0 + RNG.normal(0.0, SAMPLED * C / 4.0, x.shape[1])


def large_records_first(x):
    """Drawn by importance: a record of norm 1 is always in."""
    chance = np.clip(np.linalg.norm(rows_clipped(x), axis=1), Q, 1.0)
    return rows_clipped(x[RNG.random(len(x)) < chance]).sum(0) + RNG.normal(
        0.0, SAMPLED, x.shape[1]
    )


def all_records_alike(x):
    return rows_clipped(x[RNG.random(len(x)) < Q]).sum(0) + RNG.normal(0.0, SAMPLED, x.shape[1])
