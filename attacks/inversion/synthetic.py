"""What a synthetic image gives away of single records: is it nearer to members than to equals held out?"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from scipy.stats import beta
from torch import Tensor

from attacks.images import negative_mse


@dataclass(frozen=True)
class CopyReport:
    """member, heldout (m,): squared distance per pixel to the nearest of each side, of equal sizes.

    nearest (m,): position of the nearest member. closer: share of synthetic images nearer to a
    member (a tie counts half); interval: Clopper-Pearson, of the images without a tie. Under "no
    copying" the share is 1/2. Synthetic images that stem from one optimisation are not
    independent, so the interval is a lower limit on the width.
    """

    member: Tensor
    heldout: Tensor
    nearest: Tensor
    closer: float
    interval: tuple[float, float]
    compared: int


def proportion_interval(hits: int, trials: int, confidence: float = 0.95) -> tuple[float, float]:
    """Clopper-Pearson, two-sided; (0, 1) without trials."""
    if trials == 0:
        return 0.0, 1.0
    tail = (1 - confidence) / 2
    low = float(beta.ppf(tail, hits, trials - hits + 1)) if hits else 0.0
    high = float(beta.ppf(1 - tail, hits + 1, trials - hits)) if hits < trials else 1.0
    return low, high


def copy_report(
    synthetic: Tensor, members: Tensor, heldout: Tensor, generator: torch.Generator, confidence: float = 0.95
) -> CopyReport:
    """Compare each of ``synthetic`` (m, c, h, w) with as many members as held-out records, drawn at random.

    members (n, c, h, w) and heldout (k, c, h, w) must stem from one distribution. Raises ValueError
    where one side is empty.
    """
    size = min(len(members), len(heldout))
    if size == 0 or len(synthetic) == 0:
        raise ValueError(f"{len(synthetic)} images, {len(members)} members, {len(heldout)} held out: none may be empty")
    inside, outside = (torch.randperm(len(x), generator=generator)[:size] for x in (members, heldout))
    near, at = (-negative_mse(synthetic, members[inside])).min(1)
    far = (-negative_mse(synthetic, heldout[outside])).amin(1)
    wins, ties = int((near < far).sum()), int((near == far).sum())
    closer = (wins + ties / 2) / len(synthetic)
    interval = proportion_interval(wins, len(synthetic) - ties, confidence)
    return CopyReport(near, far, inside[at], closer, interval, len(synthetic) - ties)
