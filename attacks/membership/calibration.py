"""Signals as scores whose false-positive rate is the same for every record (Jälkö, Pradhan, Räisä
and Honkela 2026, arXiv 2605.25819).

One threshold for all records gives each record a false-positive rate of its own: records that score
high whether they are in or out use up the false positives of all others. A guarantee is about one
record, so beside the pooled rate stands the mean over records of the true-positive rate at the same
false-positive rate for each record.

The scores must come from one replay each, as a signal does. Scores of shadow models do not: a
replay's inclusion bit decides on which side it enters the scores of all others, and the rates of
such scores are wrong even without a leak (at 10 %, 3 to 7 %)."""

from __future__ import annotations

import numpy as np
import torch
from scipy.stats import t
from torch import Tensor

from attacks.tensors import accepts_numpy

MIN_REPLAYS = 16  # with fewer, too few replays without a record show its law
MIN_OUTSIDE = 4  # replays without a record, below which it is left out
# -log of a p-value: exp(-700) is the smallest that float64 holds with full precision
MAX_SURPRISE = 700.0
# of scores without a record, relative to their size: below, they are equal up to rounding
SMALLEST_SPREAD = 1e-12


# For record i in replay k let the other replays without it, m of them, have scores of mean a and
# standard deviation s (with m - 1). If these are Gaussian and replay k is without i too, then
#     T = (signal - a) / (s sqrt(1 + 1 / m))
# follows Student's law with m - 1 degrees of freedom, so p = P(T_{m-1} > T) is uniform for every
# record, however high it scores. The calibrated score is -log p.
@accepts_numpy
def calibrate_by_record(signals: Tensor, masks: Tensor) -> Tensor:
    """-log p of each signal (K, n), p from the record's signals in the other replays without it:
    (K, n) float64, >= 0.

    masks (K, n) bool, True = in. NaN if fewer than three other replays are without the record.
    Gaussian signals get the same false-positive rate at any threshold, other laws nearly; the rate
    over all records is exact in any case, if its threshold is then set on these scores.
    """
    x = signals.double()
    outside = ~masks
    count = (outside.sum(0) - outside.long()).double()  # other replays without the record
    total = x.masked_fill(masks, 0).sum(0) - x.masked_fill(masks, 0)
    mean = total / count.clamp_min(1)
    centred = x - x.masked_fill(masks, 0).sum(0) / outside.sum(0).clamp_min(1)
    squares = centred.square().masked_fill(masks, 0)
    shift = centred.masked_fill(masks, 0)
    around = squares.sum(0) - squares
    offset = (shift.sum(0) - shift) / count.clamp_min(1)
    variance = (around - count * offset.square()).clamp_min(0) / (count - 1).clamp_min(1)
    least = (SMALLEST_SPREAD * x.abs().amax(0)).clamp_min(torch.finfo(torch.float64).tiny)
    spread = torch.maximum(variance.sqrt(), least)
    studentised = (x - mean) / (spread * (1 + 1 / count.clamp_min(1)).sqrt())
    surprise = -t.logsf(studentised.numpy(), (count - 1).clamp_min(1).numpy())
    scores = torch.from_numpy(np.minimum(surprise, MAX_SURPRISE))
    return scores.masked_fill(count < MIN_OUTSIDE - 1, torch.nan)
