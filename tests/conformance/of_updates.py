"""Mechanisms on one update: the faulty one, then its twin."""

from __future__ import annotations

import math

import numpy as np

from tests.conformance.parts import RNG, C, clipped, noised, norm, sigma

ONE, TWO, FOUR, EIGHT = (sigma(e) for e in (1.0, 2.0, 4.0, 8.0))


def sensitivity_apart(update):
    return noised(clipped(update, C), FOUR * 0.1)


def sensitivity_is_the_clip(update):
    return noised(clipped(update, C), FOUR * C)


def square_root_of_the_noise(update):
    return noised(clipped(update), math.sqrt(TWO))  # sigma taken for a variance


def noise_as_it_is(update):
    return noised(clipped(update), TWO)


def calibrated_for_one_round(update):
    return noised(clipped(update), FOUR)  # stated for 20 rounds


def calibrated_for_twenty_rounds(update):
    return noised(clipped(update), FOUR * math.sqrt(20))


def with_a_metric(update):
    return {"arrays": noised(clipped(update), TWO), "update_norm": norm(update)}


def with_a_noised_metric(update):
    half = TWO * math.sqrt(2)
    size = min(norm(update), C) if np.isfinite(norm(update)) else 0.0
    return {"arrays": noised(clipped(update), half), "update_norm": size + RNG.normal(0, half * C)}


def only_the_first_array(update):
    first, *rest = clipped(update)
    return [*noised([first], ONE), *rest]


def every_array(update):
    return noised(clipped(update), ONE)


def each_array_clipped(update):
    return noised([clipped([a])[0] for a in update], EIGHT * C)


def each_array_clipped_to_its_share(update):
    return noised([clipped([a], C / math.sqrt(len(update)))[0] for a in update], EIGHT * C)


def each_number_clipped(update):
    return noised([np.clip(a, -C, C) for a in update], FOUR * C)


def each_number_clipped_and_counted(update):
    size = sum(np.size(a) for a in update)
    return noised([np.clip(np.nan_to_num(a), -C, C) for a in update], FOUR * C * math.sqrt(size))


def laplace_after_l2(update):
    return [a + RNG.laplace(0.0, C / 2.0, np.shape(a)) for a in clipped(update)]


def laplace_after_l1(update):
    total = sum(float(np.abs(a).sum()) for a in update)
    factor = min(1.0, C / max(total, 1e-30)) if np.isfinite(total) else 0.0
    return [np.nan_to_num(a) * factor + RNG.laplace(0.0, C / 2.0, np.shape(a)) for a in update]


def noise_by_the_norm(update):
    inside = clipped(update)
    return noised(inside, TWO * max(norm(inside), 1e-3))


def noise_by_the_clip(update):
    return noised(clipped(update), TWO * C)


def nan_slips_through(update):
    size = norm(update)
    factor = C / size if size > C else 1.0  # NaN > C is false
    return noised([a * factor for a in update], TWO)


def nan_is_zero(update):
    return noised(clipped(update), TWO)


def calibrated_for_zeroing(update):
    return noised(clipped(update), FOUR * C)  # stated for replacing: twice as far


def calibrated_for_replacing(update):
    return noised(clipped(update), FOUR * 2 * C)


def tails_cut_off(update):
    return [
        a + np.clip(RNG.normal(0.0, ONE, np.shape(a)), -2 * ONE, 2 * ONE) for a in clipped(update)
    ]


def tails_left(update):
    return noised(clipped(update), ONE)


def plain_floats(update):
    return noised(clipped(update), ONE)


def on_a_lattice(update):
    """Values and noise in whole steps of one power of two, added as whole numbers."""
    step = 2.0 ** (math.floor(math.log2(ONE)) - 16)
    whole = [np.trunc(a / step).astype(np.int64) for a in clipped(update)]
    return [
        (a + np.rint(RNG.normal(0.0, ONE, np.shape(a)) / step).astype(np.int64)) * step
        for a in whole
    ]


class FixedSeed:
    def __init__(self):
        self.rng = np.random.default_rng(42)

    def __call__(self, update):
        return [a + self.rng.normal(0.0, TWO, np.shape(a)) for a in clipped(update)]


class FreshSeed:
    def __init__(self):
        self.rng = np.random.default_rng()

    def __call__(self, update):
        return [a + self.rng.normal(0.0, TWO, np.shape(a)) for a in clipped(update)]


class NoiseDrawnOnce:
    """The same noise in every call of an instance."""

    def __init__(self):
        self.noise = None

    def __call__(self, update):
        if self.noise is None:
            self.noise = [RNG.normal(0.0, TWO, np.shape(a)) for a in update]
        return [a + n for a, n in zip(clipped(update), self.noise)]


class NoiseDrawnEachTime:
    def __call__(self, update):
        return noised(clipped(update), TWO)


class ErrorFeedback:
    """What was clipped off comes back, without limit, in the next round."""

    def __init__(self):
        self.rest = None

    def __call__(self, update):
        whole = update if self.rest is None else [a + r for a, r in zip(update, self.rest)]
        sent = clipped(whole)
        self.rest = [w - s for w, s in zip(whole, sent)]
        return noised(sent, EIGHT)


class ServerMomentum:
    """Averages what was released already: nothing more leaks."""

    def __init__(self):
        self.mean = None

    def __call__(self, update):
        sent = noised(clipped(update), EIGHT)
        self.mean = (
            sent if self.mean is None else [0.5 * m + 0.5 * s for m, s in zip(self.mean, sent)]
        )
        return self.mean
