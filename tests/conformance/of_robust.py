"""Aggregates of clients that do more than sum: the faulty one, then its twin."""

from __future__ import annotations

import math

import numpy as np

from tests.conformance.parts import RNG, C, clipped, mean_of, noised, norm, sigma

TWO = sigma(2.0)
FOUR = sigma(4.0)


def plain_for_a_client_alone(updates, weights):
    mean = mean_of([clipped(u) for u in updates])
    return mean if len(updates) == 1 else noised(mean, TWO * C / len(updates))


def noised_for_a_client_alone(updates, weights):
    return noised(mean_of([clipped(u) for u in updates]), TWO * C / len(updates))


def median_with_noise_for_the_mean(updates, weights):
    inside = [clipped(u) for u in updates]
    return noised(
        [np.median(np.stack(parts), axis=0) for parts in zip(*inside)], FOUR * C / len(updates)
    )


def median_with_noise_for_the_median(updates, weights):
    """Numbers within C / sqrt(m) of 0: one client moves each median by twice that at most."""
    size = sum(np.size(a) for a in updates[0])
    bound = C / math.sqrt(size)
    inside = [[np.clip(np.nan_to_num(a), -bound, bound) for a in u] for u in updates]
    return noised([np.median(np.stack(parts), axis=0) for parts in zip(*inside)], FOUR * 2 * C)


def mean_of_those_that_sent(updates, weights):
    """Clients whose update is zero are not counted."""
    sent = [clipped(u) for u in updates if norm(u) > 0] or [clipped(updates[0])]
    return noised(mean_of(sent), FOUR * C / len(updates))


def mean_of_all(updates, weights):
    return noised(mean_of([clipped(u) for u in updates]), FOUR * C / len(updates))


def shares_of_ten(updates, weights):
    """Each client adds its share of the noise of ten, however many there are."""
    sent = [noised(clipped(u), FOUR * C / math.sqrt(10)) for u in updates]
    return [sum(parts) for parts in zip(*sent)]


def shares_of_those_who_came(updates, weights):
    sent = [noised(clipped(u), FOUR * C / math.sqrt(len(updates))) for u in updates]
    return [sum(parts) for parts in zip(*sent)]


def scaled_by_the_largest(updates, weights):
    """All are divided by the largest norm among them, then counted as clipped to 1."""
    largest = max(max((n for n in map(norm, updates) if np.isfinite(n)), default=1.0), 1e-12)
    return noised(
        [sum(parts) for parts in zip(*(clipped([a / largest for a in u]) for u in updates))], FOUR
    )


def scaled_by_a_constant(updates, weights):
    return noised(
        [sum(parts) for parts in zip(*(clipped([a / 10 for a in u]) for u in updates))], FOUR
    )


def nearest_to_all(updates, weights):
    """Krum: one client's update is released, with noise for a mean."""
    inside = [clipped(u) for u in updates]
    flat = np.stack([np.concatenate([np.ravel(a) for a in u]) for u in inside])
    apart = np.square(flat[:, None] - flat[None]).sum(2).sum(1)
    return noised(inside[int(np.argmin(apart))], FOUR * C / len(updates))


def weights_as_metric(updates, weights):
    """The share of the clients that were clipped is told beside the mean."""
    told = np.mean([norm(u) > C for u in updates])
    return {
        "mean": noised(mean_of([clipped(u) for u in updates]), FOUR * C / len(updates)),
        "clipped": told,
    }


def noised_metric(updates, weights):
    half = FOUR * math.sqrt(2)
    told = np.mean([norm(u) > C for u in updates]) + RNG.normal(0.0, half / len(updates))
    return {
        "mean": noised(mean_of([clipped(u) for u in updates]), half * C / len(updates)),
        "clipped": told,
    }
