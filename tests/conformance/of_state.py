"""Mechanisms that keep something between calls: the faulty one, then its twin."""

from __future__ import annotations

import time

import numpy as np

from tests.conformance.of_records import EPOCH_NOISE
from tests.conformance.parts import RNG, clipped, noised, norm, rows_clipped, sigma

TWO = sigma(2.0)
FOUR = sigma(4.0)
POOL = 10
Q = 0.1


class PoolOfNoise:
    """Ten noises are drawn in advance, and used in turn."""

    def __init__(self):
        self.pool = None
        self.at = 0

    def __call__(self, update):
        if self.pool is None:
            self.pool = [noised([np.zeros_like(a) for a in update], TWO) for _ in range(POOL)]
        self.at += 1
        return [a + n for a, n in zip(clipped(update), self.pool[self.at % POOL])]


class NewNoise:
    def __call__(self, update):
        return noised(clipped(update), TWO)


class EveryTenthCallPlain:
    """A log interval: in every tenth call the update goes out as it is."""

    def __init__(self):
        self.at = 0

    def __call__(self, update):
        self.at += 1
        return clipped(update) if self.at % POOL == 0 else noised(clipped(update), TWO)


class SecondNoiseIsTheFirstNegated:
    """Antithetic noise: the sum of two calls has none."""

    def __init__(self):
        self.last = None

    def __call__(self, update):
        fresh = noised([np.zeros_like(a) for a in update], TWO)
        noise, self.last = (fresh, fresh) if self.last is None else ([-n for n in self.last], None)
        return [a + n for a, n in zip(clipped(update), noise)]


class NoiseFades:
    """A tenth less noise in each of twenty calls, accounted as if it were all of one size."""

    def __init__(self):
        self.std = FOUR * np.sqrt(20)

    def __call__(self, update):
        self.std *= 0.9
        return noised(clipped(update), self.std)


class NoiseStays:
    def __call__(self, update):
        return noised(clipped(update), FOUR * np.sqrt(20))


class OneSampleForAllRounds:
    """The batch is drawn by coins once; accounted as a new draw in each of ten rounds."""

    def __init__(self):
        self.chosen = None

    def __call__(self, x):
        if self.chosen is None:
            self.chosen = RNG.random(1000) < Q
        batch = rows_clipped(x[self.chosen[: len(x)]])
        return batch.sum(0) + RNG.normal(0.0, EPOCH_NOISE, x.shape[1])


class NewSampleInEachRound:
    def __call__(self, x):
        return rows_clipped(x[RNG.random(len(x)) < Q]).sum(0) + RNG.normal(
            0.0, EPOCH_NOISE, x.shape[1]
        )


def seeded_by_the_second(update):
    rng = np.random.default_rng(int(time.time()))
    return [a + rng.normal(0.0, TWO, np.shape(a)) for a in clipped(update)]


def seeded_by_the_system(update):
    rng = np.random.default_rng()
    return [a + rng.normal(0.0, TWO, np.shape(a)) for a in clipped(update)]


def seeded_by_the_data(update):
    rng = np.random.default_rng(abs(hash(b"".join(a.tobytes() for a in update))))
    return [a + rng.normal(0.0, TWO, np.shape(a)) for a in clipped(update)]


class ClippedBeforeMomentum:
    """Each gradient is clipped, their momentum is released with noise for one gradient; ten
    calls."""

    def __init__(self):
        self.momentum = None

    def __call__(self, update):
        sent = clipped(update)
        self.momentum = (
            sent if self.momentum is None else [0.9 * m + s for m, s in zip(self.momentum, sent)]
        )
        return noised(self.momentum, FOUR * np.sqrt(10))


class NoisedBeforeMomentum:
    def __init__(self):
        self.momentum = None

    def __call__(self, update):
        sent = noised(clipped(update), FOUR * np.sqrt(10))
        self.momentum = (
            sent if self.momentum is None else [0.9 * m + s for m, s in zip(self.momentum, sent)]
        )
        return self.momentum


class ClippedByTheLastNorm:
    """The factor is that of the call before."""

    def __init__(self):
        self.last = None

    def __call__(self, update):
        now = norm(update)
        self.last, before = now, now if self.last is None else self.last
        return noised([a * min(1.0, 1 / max(before, 1e-30)) for a in update], TWO)


class NoiseForFiftyCalls:
    """The plan of noise was made for fifty calls; what comes later goes out as it is."""

    def __init__(self):
        self.at = 0

    def __call__(self, update):
        self.at += 1
        return noised(clipped(update), TWO) if self.at <= 50 else clipped(update)


def best_of_eight(update):
    """Eight releases are made, and the one nearest to the update is sent."""
    plain = clipped(update)
    return min(
        (noised(plain, FOUR) for _ in range(8)),
        key=lambda sent: norm([a - b for a, b in zip(sent, plain)]),
    )


def one_alone(update):
    return noised(clipped(update), FOUR)


def skipped_once_in_a_thousand(update):
    return clipped(update) if RNG.random() < 1e-3 else noised(clipped(update), TWO)


def seeds_of_fourteen_bits(update):
    rng = np.random.default_rng(int(RNG.integers(2**14)))
    return [a + rng.normal(0.0, TWO, a.shape) for a in clipped(update)]


def redrawn_until_it_points_the_same_way(update):
    plain = clipped(update)
    for _ in range(50):
        sent = noised(plain, TWO)
        if sum(float(np.sum(a * b)) for a, b in zip(sent, plain)) >= 0:
            break
    return sent


def noise_along_the_update_only(update):
    """A subspace of gradients, learned from the update itself."""
    plain = clipped(update)
    size = norm(plain)
    amount = RNG.normal(0.0, FOUR)
    return [a + amount * a / size if size else a + RNG.normal(0.0, FOUR, a.shape) for a in plain]


def norm_without_the_last_array(update):
    kept = update[:-1] if len(update) > 1 else [update[0].ravel()[:-1]]
    return noised([a * min(1.0, 1.0 / max(norm(kept), 1e-30)) for a in update], FOUR)
