"""Does a synthetic set copy records? Exactly, or nearer than records of the same kind lie to each other."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from attacks.inversion.synthetic import proportion_interval
from privdd.auditing.targets.nearest import nearest, same_as_any


@dataclass(frozen=True)
class Copies:
    """exact, near: synthetic records that equal a training record, or lie nearer to one than any held-out record does
    to a training record; exact_heldout, near_heldout: the same with both sides exchanged, which nothing but chance explains.

    closer: share of synthetic records that are nearer to a training record than to any of as many held-out ones, ties
    apart; interval: Clopper-Pearson 95 %; compared: how many. 1/2 where nothing is copied. Records that stem from one
    optimisation are not independent: the true interval is wider. distance (m,) and place (m,): of the nearest training record.
    """

    exact: int
    exact_heldout: int
    near: int
    near_heldout: int
    closer: float
    interval: tuple[float, float]
    compared: int
    distance: Tensor
    place: Tensor


def copies(synthetic: Tensor, train: Tensor, heldout: Tensor, generator: torch.Generator) -> Copies:
    """Of synthetic (m, d), with as many training as held-out records (n, d), drawn at random. Raises ValueError for an
    empty set."""
    size = min(len(train), len(heldout))
    if not size or not len(synthetic):
        raise ValueError(
            f"{len(synthetic)} synthetic, {len(train)} training, {len(heldout)} held-out records: none may be empty"
        )
    rows = torch.randperm(len(train), generator=generator)[:size]
    inside, outside = train[rows], heldout[torch.randperm(len(heldout), generator=generator)[:size]]
    near, at = (value[:, 0] for value in nearest(synthetic, inside))
    far = nearest(synthetic, outside)[0][:, 0]
    usual = nearest(outside, inside)[0].min(), nearest(inside, outside)[0].min()
    wins, compared = int((near < far).sum()), int((near != far).sum())
    share = wins / compared if compared else 0.5
    return Copies(
        int(same_as_any(synthetic, inside).sum()), int(same_as_any(synthetic, outside).sum()),
        int((near < usual[0]).sum()), int((far < usual[1]).sum()),
        share, proportion_interval(wins, compared), compared, near, rows[at],
    )  # fmt: skip
