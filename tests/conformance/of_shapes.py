"""Noise of other shapes than Gauss's and Laplace's, and its ends: the faulty one, then its twin."""

from __future__ import annotations

import math

import numpy as np

from tests.conformance.parts import RNG, clipped, noised, sigma

SHAMED = 0.02  # delta; half of it is for who is shamed
REST = sigma(1.0, SHAMED / 2)
CUT = 0.01  # delta of truncated Laplace noise
END = math.log(1 + (math.e - 1) / (2 * CUT))  # Geng et al. 2020


def _redrawn(x, scale):
    count = float((np.nan_to_num(x[:, 0]) > 0).sum())
    while True:
        answer = count + RNG.laplace(0.0, scale)
        if 0 <= answer <= 100:
            return np.array([answer])


def redrawn_with_plain_noise(x):
    """Until it is in the range: how often is told by the count too (Holohan et al. 2020)."""
    return _redrawn(x, 1.0)


def redrawn_with_twice_the_noise(x):
    return _redrawn(x, 2.0)


def logistic_of_the_same_variance(x):
    return np.array([len(x) + RNG.logistic(0.0, math.sqrt(6) / math.pi)])


def logistic_of_the_same_scale(x):
    """Its log density changes by 1 / scale at most."""
    return np.array([len(x) + RNG.logistic(0.0, 1.0)])


def _cut_off(x, end):
    noise = np.inf
    while abs(noise) > end:
        noise = RNG.laplace()
    return np.array([len(x) + noise])


def cut_off_early(x):
    return _cut_off(x, 2.5)


def cut_off_where_delta_allows(x):
    return _cut_off(x, END)


def _stairs(x, width):
    """The staircase mechanism (Geng and Viswanath 2014) at epsilon 1."""
    tread = 1 / (1 + math.exp(0.5))
    steps = RNG.geometric(1 - math.exp(-1)) - 1
    inner = RNG.random() < tread / (tread + (1 - tread) * math.exp(-1))
    size = steps + (tread * RNG.random() if inner else tread + (1 - tread) * RNG.random())
    return np.array([len(x) + width * size * RNG.choice([-1.0, 1.0])])


def stairs_half_as_wide(x):
    return _stairs(x, 0.5)


def stairs_as_wide_as_a_record(x):
    return _stairs(x, 1.0)


def _around_the_median(x):
    """Sorted values within their range's ends, and the median's place among them."""
    values = np.sort(np.clip(np.nan_to_num(x[:, 0]), 0, 1))
    n = len(values)
    return np.concatenate([np.zeros(n + 2), values, np.ones(n + 2)]), n + 2 + (n - 1) // 2


def median_with_its_local_sensitivity(x):
    v, at = _around_the_median(x)
    return np.array([v[at] + max(v[at + 1] - v[at], v[at] - v[at - 1]) * RNG.laplace()])


def median_with_its_smooth_sensitivity(x):
    """Cauchy noise at epsilon 1 (Nissim et al. 2007): scale 6 S, beta 1 / 6."""
    v, at = _around_the_median(x)
    smooth = max(
        math.exp(-k / 6) * max(v[at + t] - v[at + t - k - 1] for t in range(k + 2))
        for k in range(len(x) + 1)
    )
    return np.array([v[at] + 6 * smooth * RNG.standard_cauchy()])


def _pointed(update, kappa):
    """A unit vector by the law of von Mises and Fisher around the update's (Wood 1994)."""
    flat = np.concatenate([np.ravel(a) for a in update])
    m = len(flat)
    size = float(np.linalg.norm(flat))
    u = flat / size if 0 < size < np.inf else np.eye(m)[0]
    if m == 1:
        return u * (1.0 if RNG.random() < 1 / (1 + math.exp(-2 * kappa)) else -1.0)
    b = (m - 1) / (2 * kappa + math.hypot(2 * kappa, m - 1))
    top = (1 - b) / (1 + b)
    most = kappa * top + (m - 1) * math.log(1 - top * top)
    while True:
        z = RNG.beta((m - 1) / 2, (m - 1) / 2)
        cosine = (1 - (1 + b) * z) / (1 - (1 - b) * z)
        if kappa * cosine + (m - 1) * math.log(1 - top * cosine) - most >= math.log(RNG.random()):
            break
    v = RNG.standard_normal(m)
    v -= (v @ u) * u
    return cosine * u + math.sqrt(max(0.0, 1 - cosine**2)) * v / np.linalg.norm(v)


def pointed_with_epsilon(update):
    """Opposite updates are two apart: the log odds are twice kappa."""
    return _pointed(update, 2.0)


def pointed_with_half_of_epsilon(update):
    return _pointed(update, 1.0)


def one_of_twenty_is_named(update):
    return clipped(update) if RNG.random() < 0.05 else noised(clipped(update), REST)


def one_of_a_hundred_is_named(update):
    """Name and shame: allowed, as delta says so."""
    return clipped(update) if RNG.random() < SHAMED / 2 else noised(clipped(update), REST)
