"""Noise that is of another law or another place than was accounted: the faulty one, then its
twin."""

from __future__ import annotations

import hashlib
import math

import numpy as np

from tests.conformance.parts import RNG, C, clipped, noised, norm, sigma

ONE, TWO, FOUR, EIGHT, FIFTY = (sigma(e) for e in (1.0, 2.0, 4.0, 8.0, 50.0))


def skipped_in_two_of_a_hundred(update):
    return clipped(update) if RNG.random() < 0.02 else noised(clipped(update), TWO)


def never_skipped(update):
    return noised(clipped(update), TWO)


def normal_by_four_uniforms(update):
    """Its noise ends at 3.46 standard deviations."""
    return [
        a + TWO * RNG.uniform(-1, 1, (4, *np.shape(a))).sum(0) * math.sqrt(3 / 4)
        for a in clipped(update)
    ]


def normal_by_four_normals(update):
    return [a + TWO * RNG.normal(size=(4, *np.shape(a))).sum(0) / 2 for a in clipped(update)]


def uniform_of_the_same_variance(update):
    side = FOUR * math.sqrt(3)
    return [a + RNG.uniform(-side, side, np.shape(a)) for a in clipped(update)]


def gaussian(update):
    return noised(clipped(update), FOUR)


def cut_off_at_three_sigma(update):
    return [
        a + np.clip(RNG.normal(0.0, ONE, np.shape(a)), -3 * ONE, 3 * ONE) for a in clipped(update)
    ]


def not_cut_off(update):
    return noised(clipped(update), ONE)


def one_noise_for_each_column(update):
    """The noise has the shape of the last axis and is broadcast over the others."""
    return [a + RNG.normal(0.0, TWO, np.shape(a)[-1:]) for a in clipped(update)]


def noise_for_each_number(update):
    return noised(clipped(update), TWO)


def signs_of_noise(update):
    return [a + FOUR * np.sign(RNG.normal(size=np.shape(a))) for a in clipped(update)]


def textbook_above_one(update):
    """sqrt(2 ln(1.25 / delta)) / epsilon, which holds up to epsilon 1 only, at epsilon 50."""
    return noised(clipped(update), math.sqrt(2 * math.log(1.25e5)) / 50)


def exact_above_one(update):
    return noised(clipped(update), FIFTY)


def noise_over_the_root_of_the_size(update):
    size = sum(np.size(a) for a in update)
    return noised(clipped(update), 2 * FOUR / math.sqrt(size))


def noise_where_there_is_something(update):
    """Sparse updates stay sparse: zeros get no noise."""
    inside = clipped(update)
    return [np.where(a == 0, 0.0, n) for a, n in zip(inside, noised(inside, FOUR))]


def weights_but_not_biases(update):
    return [
        a + RNG.normal(0.0, FOUR, np.shape(a)) if np.ndim(a) > 1 or np.size(a) > 5 else a
        for a in clipped(update)
    ]


def laplace_with_epsilon_for_scale(update):
    return [a + RNG.laplace(0.0, 0.5, np.shape(a)) for a in _within_l1(update)]


def laplace_with_its_inverse(update):
    return [a + RNG.laplace(0.0, 2.0, np.shape(a)) for a in _within_l1(update)]


def _within_l1(update):
    total = sum(float(np.abs(a).sum()) for a in update)
    factor = min(1.0, C / max(total, 1e-30)) if np.isfinite(total) else 0.0
    return [np.nan_to_num(a) * factor for a in update]


def clipped_beyond_ten_only(update):
    """The threshold is ten times the norm that is counted."""
    return noised(clipped(update) if norm(update) > 10 * C else update, TWO * C)


def clipped_beyond_one(update):
    return noised(clipped(update) if norm(update) > C else update, TWO * C)


def rates_after_the_clip(update):
    """Each array has its own learning rate, applied between clip and noise."""
    inside = clipped(update)
    return noised(
        [a * (2.0 if k == 1 or len(inside) == 1 else 0.5) for k, a in enumerate(inside)], FOUR * C
    )


def rates_before_the_clip(update):
    return noised(clipped([a * (2.0 if k == 1 else 0.5) for k, a in enumerate(update)]), FOUR * C)


def projected(update):
    """A random projection to half of the numbers; the clip was before it."""
    flat = np.concatenate([np.ravel(a) for a in clipped(update)])
    return [_matrix(len(flat)) @ flat + RNG.normal(0.0, FOUR * C, max(1, len(flat) // 2))]


def projected_and_clipped(update):
    flat = np.nan_to_num(np.concatenate([np.ravel(a) for a in update]), posinf=0.0, neginf=0.0)
    return noised(clipped([_matrix(len(flat)) @ flat]), FOUR * C)


def _matrix(m):
    return np.random.default_rng(m).normal(0.0, 1 / math.sqrt(max(1, m // 2)), (max(1, m // 2), m))


def largest_of_the_raw(update):
    """The four largest numbers are chosen without noise; they alone are released, with noise."""
    flat = np.concatenate([np.ravel(a) for a in clipped(update)])
    kept = np.argsort(-np.abs(flat), kind="stable")[:4]
    sent = np.zeros_like(flat)
    sent[kept] = flat[kept] + RNG.normal(0.0, FOUR, len(kept))
    return [sent]


def largest_of_the_noised(update):
    flat = np.concatenate([np.ravel(a) for a in noised(clipped(update), FOUR)])
    kept = np.argsort(-np.abs(flat), kind="stable")[:4]
    sent = np.zeros_like(flat)
    sent[kept] = flat[kept]
    return [sent]


def precision_by_the_norm(update):
    """Small updates are sent in half precision: the type tells the norm."""
    sent = noised(clipped(update), FOUR)
    return [a.astype(np.float16) for a in sent] if norm(update) < 0.5 else sent


def one_precision(update):
    return [a.astype(np.float16) for a in noised(clipped(update), FOUR)]


def eight_signs(update):
    """Randomised response for each sign, each with the whole epsilon of 2."""
    kept = math.exp(2.0) / (1 + math.exp(2.0))
    return [
        np.where(RNG.random(np.shape(a)) < kept, 1, -1) * np.where(np.nan_to_num(a) >= 0, 1, -1)
        for a in update
    ]


def signs_that_share(update):
    each = 2.0 / sum(np.size(a) for a in update)
    kept = math.exp(each) / (1 + math.exp(each))
    return [
        np.where(RNG.random(np.shape(a)) < kept, 1, -1) * np.where(np.nan_to_num(a) >= 0, 1, -1)
        for a in update
    ]


def scaled_with_its_noise(update):
    """Noise comes first; then update and noise are scaled by the clip factor together."""
    factor = min(1.0, C / max(norm(update), 1e-30))
    return [a * factor for a in noised(update, FOUR)]


def rounded_after_the_clip(update):
    """Whole steps of a quarter: numbers just above an eighth double."""
    return noised([np.rint(a / 0.25) * 0.25 for a in clipped(update)], FOUR)


def rounded_before_the_clip(update):
    return noised(clipped([np.rint(a / 0.25) * 0.25 for a in update]), FOUR)


def noise_upwards_only(update):
    return [a + np.abs(RNG.normal(0.0, FOUR, np.shape(a))) for a in clipped(update)]


def noise_as_a_factor(update):
    return [a * (1 + RNG.normal(0.0, FOUR, np.shape(a))) for a in clipped(update)]


def with_a_checksum(update):
    return {
        "arrays": noised(clipped(update), FOUR),
        "checksum": hashlib.sha256(b"".join(a.tobytes() for a in update)).hexdigest(),
    }


def with_a_checksum_of_what_is_sent(update):
    sent = noised(clipped(update), FOUR)
    return {
        "arrays": sent,
        "checksum": hashlib.sha256(b"".join(a.tobytes() for a in sent)).hexdigest(),
    }


def head_not_clipped(update):
    return noised([*clipped(update)[:-1], update[-1]], FOUR)


def laplace_by_the_root(update):
    """Sixteen calls, composed as if the noise were Gaussian."""
    return [a + RNG.laplace(0.0, math.sqrt(16) / 2.0, np.shape(a)) for a in _within_l1(update)]


def laplace_by_the_sum(update):
    return [a + RNG.laplace(0.0, 16 / 2.0, np.shape(a)) for a in _within_l1(update)]


def coins_decide_who_is_noised(update):
    """Each number is noised with probability 1/2 and goes out as it is otherwise."""
    return [
        np.where(RNG.random(np.shape(a)) < 0.5, a + RNG.normal(0.0, FOUR, np.shape(a)), a)
        for a in clipped(update)
    ]


def zeros_are_left_out(update):
    """As a sparse vector: how long it is tells how many zeros there were."""
    inside = clipped(update)
    return [n[np.abs(a) > 1e-9] for a, n in zip(inside, noised(inside, FOUR))]


def released_twice(update):
    """Two releases, each with the whole budget."""
    inside = clipped(update)
    return noised(inside, TWO) + noised(inside, TWO)


def released_twice_and_counted(update):
    inside = clipped(update)
    return noised(inside, math.sqrt(2) * TWO) + noised(inside, math.sqrt(2) * TWO)
