"""The density attack that FedLGD ran: Gaussian kernel densities of members and of non-members.

Huang et al. (2024) estimate both densities on gradients of one model and call it LiRA; no shadow
model calibrates a record, so it is a global test: a record that is easy by nature counts as a
member."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from attacks.membership.attack import MembershipAttack, require_worlds
from attacks.membership.shadow_classifier import _cross_fit
from attacks.tensors import accepts_numpy
from attacks.types import View
from attacks.validation import check_counts


@accepts_numpy
def density_ratio(members: Tensor, non_members: Tensor, query: Tensor) -> Tensor:
    """log p_in(q) - log p_out(q): (m,) float64, larger = member.

    members (a, d), non_members (b, d): features of known ones; query (m, d). Each feature is scaled
    by its pooled standard deviation (constant ones are left out); the bandwidth is Scott's rule."""
    # p(q) = (1 / a) sum_i (2 pi h^2)^(-d/2) exp(-|q - x_i|^2 / (2 h^2)),   h = a^(-1 / (d + 4))
    if (
        len(members) < 2
        or len(non_members) < 2
        or not members.shape[1:] == non_members.shape[1:] == query.shape[1:]
    ):
        raise ValueError(
            f"members {tuple(members.shape)}, non-members {tuple(non_members.shape)}, query "
            f"{tuple(query.shape)}: two of each, and equal features, are needed"
        )
    spread = torch.cat([members, non_members]).double().std(0)
    varies = spread > 0
    if not varies.any():
        return torch.zeros(len(query), dtype=torch.float64)
    scaled = [x.double()[:, varies] / spread[varies] for x in (members, non_members, query)]
    scaled_members, scaled_non_members, points = scaled
    return _log_density(scaled_members, points) - _log_density(scaled_non_members, points)


def _log_density(points: Tensor, query: Tensor) -> Tensor:
    """Log of the Gaussian kernel density of ``points`` (a, d) at ``query`` (m, d), in blocks of
    queries."""
    count, width = points.shape
    h = count ** (-1 / (width + 4))  # Scott's rule
    level = math.log(count) + width * math.log(h * math.sqrt(2 * math.pi))
    squares = (torch.cdist(block, points).square() for block in query.split(4096))
    return torch.cat([(d / (-2 * h * h)).logsumexp(1) for d in squares]) - level


@dataclass(frozen=True)
class GradientDensity(MembershipAttack):
    """FedLGD's kernel-density attack on the signal (on the gradient signals, if the view has
    them)."""

    folds: int = 4
    limit: int = 1000
    name: ClassVar[str] = "gradient_density"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_counts(self, "folds", least=2)
        check_counts(self, "limit")

    def read_signals(self, view: View) -> list[Tensor]:
        signals = require_worlds(view).signals
        if self._chosen_signal(view.surface) == "auto":
            names = sorted(name for name in signals if name.startswith("gradient"))
            if names:
                return [signals[name] for name in names]
        return super().read_signals(view)

    def score(self, view: View, name: str, seed: int) -> Tensor:
        worlds = require_worlds(view)
        features = torch.stack([signal.double() for signal in self.read_signals(view)], -1)
        rng = np.random.default_rng(seed)

        def fit_density_ratio(shadows: Tensor, masks: Tensor, target: Tensor) -> Tensor:
            members = self._draw_rows(shadows[masks], rng)
            non_members = self._draw_rows(shadows[~masks], rng)
            ratios = density_ratio(members, non_members, target.flatten(0, 1))
            return ratios.reshape(target.shape[:2])

        return _cross_fit(fit_density_ratio, features, worlds.masks, self.folds)

    def _draw_rows(self, rows: Tensor, rng: np.random.Generator) -> Tensor:
        """At most ``limit`` of the rows, in random order."""
        return rows[torch.from_numpy(rng.permutation(len(rows))[: self.limit])]
