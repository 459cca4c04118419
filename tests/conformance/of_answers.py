"""Choices and answers that libraries give: the faulty one, then its twin."""

from __future__ import annotations

import math

import numpy as np

from tests.conformance.of_counts import votes_of
from tests.conformance.parts import RNG, sigma

FOUR = sigma(4.0)
STEPS = 10


def _winner(votes, scale):
    return float(np.argmax(votes + RNG.laplace(0.0, scale, len(votes))))


def silent_unless_votes_are_clear(x):
    """A noisy winner, if the plain votes for it are enough."""
    votes = votes_of(x)
    return _winner(votes, 2.0) if votes.max() >= 2.5 else None


def silent_unless_noised_votes_are_clear(x):
    votes = votes_of(x)
    return _winner(votes, 4.0) if votes.max() + RNG.laplace(0.0, 2.0) >= 2.5 else None


def _flipped(x, order):
    """Permute and flip (McKenna and Sheldon 2020): the first whose coin says so."""
    votes = votes_of(x)
    for at in order(len(votes)):
        if RNG.random() <= math.exp((votes[at] - votes.max()) / 2):
            return float(at)
    return None


def flipped_in_their_order(x):
    """The permutation is left out: what comes after the winner never wins."""
    return _flipped(x, range)


def flipped_in_any_order(x):
    return _flipped(x, RNG.permutation)


def _quantile(x, by_length):
    """The exponential mechanism on the intervals between values (Smith 2011)."""
    ends = np.concatenate([[0.0], np.sort(np.clip(np.nan_to_num(x[:, 0]), 0, 1)), [1.0]])
    n = len(x)
    lengths = np.diff(ends)
    odds = np.exp(-0.5 * np.abs(np.arange(n + 1) - n / 2)) * (lengths if by_length else lengths > 0)
    at = RNG.choice(n + 1, p=odds / odds.sum())
    return np.array([ends[at] + lengths[at] * RNG.random()])


def intervals_alike(x):
    """A short interval between two records is as likely as a long one."""
    return _quantile(x, by_length=False)


def intervals_by_their_length(x):
    return _quantile(x, by_length=True)


def _first_three(x, scale):
    votes = votes_of(x)
    return np.argsort(-(votes + RNG.gumbel(0.0, scale, len(votes))))[:3].astype(float)


def three_for_the_price_of_one(x):
    """One noise for a choice of three: each costs as much as a choice of one."""
    return _first_three(x, 1.0)


def three_for_the_price_of_three(x):
    return _first_three(x, 3.0)


def _piecewise(x, half):
    """Each row's number t by the piecewise mechanism (Wang et al. 2019): near t with e^half odds,
    the density with e^(2 half)."""
    t = np.clip(np.nan_to_num(x[:, 0]), -1, 1)
    odds = math.exp(half)
    end = (odds + 1) / (odds - 1)
    left = (end + 1) / 2 * t - (end - 1) / 2
    near = left + RNG.random(len(t)) * (end - 1)
    far = RNG.random(len(t)) * (end + 1)
    far = np.where(far < left + end, far - end, far - 1)  # before the near part, and after it
    return np.where(RNG.random(len(t)) < odds / (odds + 1), near, far)


def near_with_all_of_epsilon(x):
    return _piecewise(x, 2.0)


def near_with_half_of_epsilon(x):
    return _piecewise(x, 1.0)


def _descended(x, stopped_by):
    """Towards the mean by noised gradients, until they are small; every one is released."""
    w = np.zeros(x.shape[1])
    sent = []
    for _ in range(STEPS):
        away = w - np.nan_to_num(x)
        gradient = (away / np.maximum(1.0, np.linalg.norm(away, axis=1, keepdims=True))).sum(0)
        sent.append(gradient + RNG.normal(0.0, FOUR * math.sqrt(STEPS), len(w)))
        w = w - 0.1 * sent[-1]
        if np.linalg.norm(stopped_by(gradient, sent[-1])) < 0.9:
            break
    return np.stack(sent)


def stopped_by_the_plain_gradient(x):
    return _descended(x, lambda plain, noised: plain)


def stopped_by_the_noised_gradient(x):
    return _descended(x, lambda plain, noised: noised)
