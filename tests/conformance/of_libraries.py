"""Faults of the plumbing: keys, padding, masks, batches, sketches and precision. The faulty one,
then its twin."""

from __future__ import annotations

import math

import numpy as np
from scipy.special import ndtri

from tests.conformance.of_plans import RATE, Q
from tests.conformance.parts import RNG, C, clipped, noised, rows_clipped, sigma

TWO = sigma(2.0)
FOUR = sigma(4.0)
BATCHES = 4
# of a sketch
ROWS = 3
WIDTH = 8


def one_key_for_all_arrays(update):
    """A key of the generator that is used again instead of split."""
    key = int(RNG.integers(2**60))
    return [a + np.random.default_rng(key).normal(0.0, FOUR, a.shape) for a in clipped(update)]


def a_key_that_is_split(update):
    rng = np.random.default_rng(int(RNG.integers(2**60)))
    return [a + rng.normal(0.0, FOUR, a.shape) for a in clipped(update)]


class ScaledByPlainSquares:
    """An adaptive optimiser whose squares are those of the plain gradients; four calls."""

    by_plain = True

    def __init__(self):
        self.squares = None

    def __call__(self, update):
        plain = clipped(update)
        sent = noised(plain, FOUR * 2)
        before = self.squares or [0.0] * len(plain)
        self.squares = [
            0.9 * s + 0.1 * a * a for s, a in zip(before, plain if self.by_plain else sent)
        ]
        return [a / (np.sqrt(s) + 0.01) for a, s in zip(sent, self.squares)]


class ScaledByNoisedSquares(ScaledByPlainSquares):
    by_plain = False


def _sketched(update):
    """Each row adds all numbers up, with signs, in a few buckets: three times the squared norm, or
    more."""
    flat = np.concatenate([np.ravel(a) for a in update])
    rng = np.random.default_rng(5)
    out = np.zeros((ROWS, WIDTH))
    for row in out:
        np.add.at(
            row,
            rng.integers(WIDTH, size=64)[: len(flat)],
            rng.choice([-1.0, 1.0], 64)[: len(flat)] * flat,
        )
    return out


def sketched_after_the_clip(update):
    return noised([_sketched(clipped(update))], FOUR)


def sketched_before_the_clip(update):
    return noised(clipped([_sketched(update)]), FOUR)


class CountedForOneCall:
    """Correlated noise, that takes off half of the last: its size is for who takes part in one of
    eight calls."""

    std = math.sqrt(1 + 0.5**2) * FOUR

    def __init__(self):
        self.last = None

    def __call__(self, update):
        fresh = noised([np.zeros_like(a) for a in update], self.std)
        self.last = fresh if self.last is None else [a - 0.5 * b for a, b in zip(fresh, self.last)]
        return [a + b for a, b in zip(clipped(update), self.last)]


class CountedForEightCalls(CountedForOneCall):
    std = math.sqrt(1 + 7 * 1.5**2) * FOUR


def _sum(updates):
    return [sum(parts) for parts in zip(*updates)]


def padded_by_repetition(updates, weights):
    """Up to a multiple of four: the first clients come again."""
    sent = [clipped(u) for u in updates]
    return noised(_sum((sent * BATCHES)[: len(sent) + -len(sent) % BATCHES]), FOUR)


def padded_by_zeros(updates, weights):
    return noised(_sum([clipped(u) for u in updates]), FOUR)


def _masked(updates, std):
    masks = [noised([np.zeros_like(a) for a in u], 10 * FOUR) for u in updates]
    after = [*masks[1:], masks[0]] if len(masks) > 1 else [[0 * a for a in masks[0]]]
    return [
        [a + m - n for a, m, n in zip(noised(clipped(u), std), *pair)]
        for u, *pair in zip(updates, masks, after)
    ]


def masks_are_the_noise(updates, weights):
    """What each client sends, under masks that cancel in the sum."""
    return _masked(updates, 0.0)


def masks_and_noise(updates, weights):
    return _masked(updates, FOUR)


def nothing_below_five_clients(updates, weights):
    return noised(_sum([clipped(u) for u in updates]), TWO) if len(updates) >= 5 else None


def nothing_below_a_noised_five(updates, weights):
    """Half of the budget each: squares of shift over noise add up."""
    std = TWO * math.sqrt(2)
    return (
        noised(_sum([clipped(u) for u in updates]), std)
        if len(updates) + RNG.normal(0.0, std) >= 5
        else None
    )


def _sampled(x, coins, uniform):
    return rows_clipped(x)[coins < Q].sum(0) + RATE * ndtri(uniform)


def coins_are_the_noise(x):
    """The coins of the batch and its noise are made of the same numbers."""
    uniform = RNG.random(max(x.shape))
    return _sampled(x, uniform[: len(x)], uniform[: x.shape[1]])


def coins_beside_the_noise(x):
    return _sampled(x, RNG.random(len(x)), RNG.random(x.shape[1]))


def _batches(x, lot):
    rows = rows_clipped(x)
    return np.stack([rows[lot == at].sum(0) for at in range(BATCHES)]) + RNG.normal(
        0.0, FOUR, (BATCHES, x.shape[1])
    )


def batches_by_place(x):
    """A record that goes moves all after it on by one batch."""
    return _batches(x, np.arange(len(x)) % BATCHES)


def batches_by_lot(x):
    return _batches(x, RNG.integers(BATCHES, size=len(x)))


def clipped_by_four(x):
    """Four records are summed, and their sum is clipped: it may turn round, where a record alone
    goes to zero."""
    return _by_four(x, FOUR)


def clipped_by_four_and_counted(x):
    return _by_four(x, FOUR * 2)


def _by_four(x, std):
    sums = np.stack([np.nan_to_num(x[at : at + 4]).sum(0) for at in range(0, len(x), 4)])
    return rows_clipped(sums).sum(0) + RNG.normal(0.0, std * C, x.shape[1])


def half_precision(x):
    """What is beyond its range is infinite, and not a number once it is clipped."""
    with np.errstate(all="ignore"):
        rows = x.astype(np.float16)
        size = np.linalg.norm(rows, axis=1, keepdims=True)
        total = (rows * np.minimum(1.0, 1.0 / np.maximum(size, 1e-30))).sum(0)
    return total + RNG.normal(0.0, FOUR, x.shape[1])


def double_precision(x):
    return rows_clipped(x).sum(0) + RNG.normal(0.0, FOUR, x.shape[1])
