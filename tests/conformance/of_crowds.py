"""Mechanisms on the updates of clients: the faulty one, then its twin."""

from __future__ import annotations

import numpy as np

from tests.conformance.parts import C, clipped, mean_of, noised, sigma

TWO = sigma(2.0)
FOUR = sigma(4.0)


def weighted_mean(updates, weights):
    return noised(mean_of([clipped(u) for u in updates], weights), FOUR * C / len(updates))


def equal_mean(updates, weights):
    return noised(mean_of([clipped(u) for u in updates]), FOUR * C / len(updates))


def mean_is_clipped(updates, weights):
    return noised(clipped(mean_of(updates)), TWO * C / len(updates))


def clients_are_clipped(updates, weights):
    return noised(mean_of([clipped(u) for u in updates]), TWO * C / len(updates))


def noise_divided_twice(updates, weights):
    """Every client adds the noise that the mean needs: the mean has less."""
    sent = [noised(clipped(u), FOUR * C / len(updates)) for u in updates]
    return mean_of(sent)


def noise_on_the_mean(updates, weights):
    return noised(mean_of([clipped(u) for u in updates]), FOUR * C / len(updates))


def sum_over_who_came(updates, weights):
    """Divided by the number of clients that came, with noise for the expected ten."""
    total = [sum(parts) for parts in zip(*(clipped(u) for u in updates))]
    return noised([a / len(updates) for a in total], TWO * C / 10)


def sum_over_who_was_expected(updates, weights):
    total = [sum(parts) for parts in zip(*(clipped(u) for u in updates))]
    return noised([a / 10 for a in total], TWO * C / 10)


def clip_at_the_median(updates, weights):
    """The clip norm is the median of the clients' norms, told by nobody's noise."""
    norms = [np.sqrt(sum(float(np.sum(np.square(a))) for a in u)) for u in updates]
    norms = [n if np.isfinite(n) else 0.0 for n in norms]
    bound = max(float(np.median(norms)), 1e-6)
    return noised(
        [sum(parts) for parts in zip(*(clipped(u, bound) for u in updates))], FOUR * bound
    )


def clip_at_a_constant(updates, weights):
    return noised([sum(parts) for parts in zip(*(clipped(u) for u in updates))], FOUR * C)
