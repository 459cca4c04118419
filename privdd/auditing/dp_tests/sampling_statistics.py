"""Sampling bits, which should be independent and be 1 with the stated probability.

Symbols: q is the stated sampling probability, n the number of records asked in a draw, m the number
taken. Under the stated law m is Binomial(n, q). Each function returns a p-value for one look;
``combine_outcomes`` corrects for several.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from scipy import stats
from torch import Tensor

from attacks.statistics import binomial_p_value, chance_of_at_least, chance_of_at_most
from privdd.auditing.dp_tests.outcomes import CheckOutcome, combine_outcomes, select_evenly

MAX_COMPARED_DRAWS = 512  # draws of one query that are compared with each other
MIN_BATCH_VARIANCE = 1.0  # of a batch's size, below which the gamma law is poor in its tails


def sampling_rate_p_value(
    taken: int, expected: Sequence[int], probability: float, what: str
) -> CheckOutcome:
    """Were as many records taken as this probability takes?

    Exact two-sided binomial test: M = sum of all m, N = sum of all n, and M ~ Binomial(N, q).
    Exact, since with small q a normal approximation is wrong in just the tails that refute.

    Args:
        taken: M, records taken in all draws.
        expected: n of each draw, the number of records asked.
        probability: q in (0, 1].
        what: whose draws these are, in words.
    """
    draws = int(sum(expected))
    if draws:
        p = binomial_p_value(taken, draws, probability)
    else:
        p = 1.0
    share = taken / max(draws, 1)
    says = f"{what}: {share:.3g} of the records are taken, {probability:.3g} is stated"
    return CheckOutcome(p, says)


def batch_size_p_value(
    sizes: Sequence[int],
    asked: Sequence[int],
    probability: float,
    what: str,
    of: str = "batch sizes",
) -> CheckOutcome:
    """Do the sizes of batches vary as independent draws make them vary?

    Index of dispersion (Fisher 1950) with the variances known: S = sum_i (m_i - n_i q)^2 / v_i,
    v_i = n_i q (1 - q). Each summand has mean 1 and variance 2 + (1 - 6 q (1 - q)) / v_i (the
    fourth central moment of a binomial). The law of S is taken as the gamma law of that mean and
    variance, two-sided: fixed-size batches vary too little, records that are drawn in groups too
    much. Chi-square would miss the excess kurtosis 1 / v_i, which is large for small batches.

    Args:
        sizes: m of each draw.
        asked: n of each draw; draws whose variance is below ``MIN_BATCH_VARIANCE`` are left out.
        probability: q in (0, 1].
        what: whose draws these are, in words.
        of: what the sizes are of, in words.
    """
    records = np.asarray(asked, float)
    batch_sizes = np.asarray(sizes, float)
    variance = records * probability * (1 - probability)
    keep = variance >= MIN_BATCH_VARIANCE
    if keep.sum() < 2:
        return CheckOutcome(1.0)
    score = np.square(batch_sizes - records * probability)[keep] / variance[keep]
    score_variance = 2 + (1 - 6 * probability * (1 - probability)) / variance[keep]
    mean = float(keep.sum())
    total_variance = float(score_variance.sum())
    law = stats.gamma(mean**2 / total_variance, scale=total_variance / mean)
    p = 2 * min(float(law.cdf(score.sum())), float(law.sf(score.sum())))
    ratio = (score.mean()) ** 0.5
    return CheckOutcome(
        min(1.0, p), f"{what}: {of} vary {ratio:.2g} times as much as coins make them"
    )


def record_count_p_value(counts: Tensor, draws: int, probability: float, what: str) -> CheckOutcome:
    """Is any record taken more or less often than its probability says?

    c_j ~ Binomial(T, q) for each of n records in T draws. The largest and the smallest count are
    tested by the union bound over records, p = n P(c >= max) and n P(c <= min): counts of one draw
    are independent under the stated law, but need not be under a fault, so no exact law of the
    maximum is used.

    Args:
        counts: (n,) how often each record is taken.
        draws: T.
        probability: q in (0, 1].
        what: whose draws these are, in words.
    """
    if not len(counts):
        return CheckOutcome(1.0)
    high = int(counts.max())
    low = int(counts.min())
    over = len(counts) * float(chance_of_at_least(high, draws, probability))
    under = len(counts) * float(chance_of_at_most(low, draws, probability))
    outcomes = [
        (min(1.0, over), f"{what}: one record is taken in {high} of {draws} draws"),
        (min(1.0, under), f"{what}: one record is taken in {low} of {draws} draws"),
    ]
    return combine_outcomes(outcomes)


def same_coins_p_value(draws: Mapping[str, Tensor], probability: float) -> CheckOutcome:
    """Do any two draws take the same records more often than independent draws do?

    Bits of two independent draws agree on a record with chance q^2 + (1 - q)^2, so the number of
    agreements on the n records that both ask is Binomial(n, q^2 + (1 - q)^2). One-sided, over all
    pairs by the union bound. Agreements rather than common members: for q near 1 both draws take
    nearly all records, and only those left out tell them apart.

    Args:
        draws: which draw -> (n,) bool, True for a record taken.
        probability: q in (0, 1].
    """
    names = select_evenly(list(draws), MAX_COMPARED_DRAWS)
    if len(names) < 2:
        return CheckOutcome(1.0)
    width = max(len(draws[name]) for name in names)
    padded = [
        torch.nn.functional.pad(draws[name].double(), (0, width - len(draws[name])))
        for name in names
    ]
    heads = torch.stack(padded)
    is_asked = torch.stack([(torch.arange(width) < len(draws[name])).double() for name in names])
    tails = is_asked - heads
    agreements = heads @ heads.T + tails @ tails.T
    common = is_asked @ is_asked.T
    agreement_chance = probability**2 + (1 - probability) ** 2
    p_values = chance_of_at_least(agreements.numpy(), common.numpy(), agreement_chance)
    np.fill_diagonal(p_values, 1.0)
    place = int(p_values.argmin())
    pairs = len(names) * (len(names) - 1) / 2
    first = names[place // len(names)]
    second = names[place % len(names)]
    p = min(1.0, float(p_values.min()) * pairs)
    return CheckOutcome(p, f"{first} and {second} take the same records")
