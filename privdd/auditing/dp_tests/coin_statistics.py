"""Sampling coins, which should be independent and show 1 with the stated probability."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from scipy import stats
from torch import Tensor

from attacks.statistics import binomial_p_value, chance_of_at_least, chance_of_at_most
from privdd.auditing.dp_tests.outcomes import CheckOutcome, combine_outcomes, select_evenly

MAX_COMPARED_DRAWS = 512


def sampling_rate_p_value(
    taken: int, expected: Sequence[int], probability: float, what: str
) -> CheckOutcome:
    """Were as many taken as coins of this probability take? expected: the numbers of records
    asked."""
    asked = int(sum(expected))
    p = binomial_p_value(taken, asked, probability) if asked else 1.0
    share = taken / max(asked, 1)
    return CheckOutcome(
        p, f"{what}: {share:.3g} of the records are taken, {probability:.3g} is stated"
    )


def batch_size_p_value(
    sizes: Sequence[int],
    asked: Sequence[int],
    probability: float,
    what: str,
    of: str = "batch sizes",
) -> CheckOutcome:
    """Do the sizes of batches vary as independent coins make them vary? of: what the sizes are of,
    if not of batches. The sum of squared standard scores, by a gamma law with its exact mean and
    variance: good in the tails where the expected batch is not tiny, so draws with a variance below
        1 are left out."""
    n = np.asarray(asked, float)
    m = np.asarray(sizes, float)
    variance = n * probability * (1 - probability)
    keep = variance >= 1
    if keep.sum() < 2:
        return CheckOutcome(1.0)
    score = np.square(m - n * probability)[keep] / variance[keep]
    more = (
        2 + (1 - 6 * probability * (1 - probability)) / variance[keep]
    )  # exact variance of a squared score
    mean = float(keep.sum())
    var = float(more.sum())
    law = stats.gamma(mean**2 / var, scale=var / mean)
    p = 2 * min(float(law.cdf(score.sum())), float(law.sf(score.sum())))
    return CheckOutcome(
        min(1.0, p),
        f"{what}: {of} vary {(score.mean()) ** 0.5:.2g} times as much as coins make them",
    )


def record_count_p_value(counts: Tensor, draws: int, probability: float, what: str) -> CheckOutcome:
    """Is any record taken more or less often than its coins say? counts (n,): of ``draws``
    draws."""
    if not len(counts):
        return CheckOutcome(1.0)
    high = int(counts.max())
    low = int(counts.min())
    over = len(counts) * float(chance_of_at_least(high, draws, probability))
    under = len(counts) * float(chance_of_at_most(low, draws, probability))
    says = f"{what}: one record is taken in {{}} of {draws} draws"
    return combine_outcomes(
        (min(1.0, p), says.format(count)) for p, count in ((over, high), (under, low))
    )


def same_coins_p_value(draws: Mapping[str, Tensor], probability: float) -> CheckOutcome:
    """Do any two draws take the same records more often than independent coins do? draws: which ->
    (n,) bool."""
    names = select_evenly(list(draws), MAX_COMPARED_DRAWS)
    if len(names) < 2:
        return CheckOutcome(1.0)
    width = max(len(draws[name]) for name in names)
    heads = torch.stack(
        [torch.nn.functional.pad(draws[n].double(), (0, width - len(draws[n]))) for n in names]
    )
    held = torch.stack([(torch.arange(width) < len(draws[n])).double() for n in names])
    agree = heads @ heads.T + (held - heads) @ (held - heads).T
    both = held @ held.T
    equal = probability**2 + (1 - probability) ** 2
    ps = chance_of_at_least(agree.numpy(), both.numpy(), equal)
    np.fill_diagonal(ps, 1.0)
    at = int(ps.argmin())
    pairs = len(names) * (len(names) - 1) / 2
    one = names[at // len(names)]
    other = names[at % len(names)]
    return CheckOutcome(
        min(1.0, float(ps.min()) * pairs), f"{one} and {other} take the same records"
    )
