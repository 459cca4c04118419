"""Stacking: a classifier of members and non-members on the scores of several attacks.

Of federations, arXiv 2604.12737 (2026) trains a classifier on the outputs of seven estimators. Its
equations could not be read; this is plain stacking (Wolpert 1992): logistic regression with
positive weights on the scores of other attacks, fitted out of fold.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import torch
from scipy.optimize import minimize
from torch import Tensor
from torch.nn.functional import softplus

from attacks.membership.attack import MembershipAttack, require_worlds
from attacks.membership.base_attack import Base
from attacks.membership.lira import Lira
from attacks.membership.multi_round import Fusion
from attacks.membership.rmia import Rmia
from attacks.membership.threshold import LossThreshold
from attacks.tensors import accepts_numpy
from attacks.types import Evidence, Finding, View, Worlds
from attacks.validation import check_counts

STACKED: Mapping[str, type[MembershipAttack]] = {
    attack.name: attack for attack in (Base, Fusion, Lira, LossThreshold, Rmia)
}
# of replays: the others are then five at least, as many as fusion is fitted on
LEAST_FOLDS = 6
# a score of so many times the median deviation counts as it is, a larger one as at most twice that
LINEAR_SIZES = 4.0
MIN_SPREAD = 1e-12
# of a score in standard deviations: if no score says anything, fitted weights have random signs,
# and would turn the other attacks' order round
MIN_WEIGHT = 0.05


@accepts_numpy
def stack_scores(scores: Tensor, masks: Tensor, target: Tensor) -> Tensor:
    """Log-odds of membership from the scores of several attacks, by parts that add up.

    The constant of the log-odds is left out: it says how many records the shadow models hold, and
    would only differ from fold to fold.

    Args:
        scores: (K, n, S) of S attacks on the shadow models, larger = member.
        masks: (K, n) inclusion bits of the shadow models.
        target: (t, n, S) scores of the models under attack.

    Returns:
        (t, n, S) float64, the part of each attack; their sum is larger for members.

    Raises:
        ValueError: for bad shapes, NaN, or shadow models with members only or non-members only.
    """
    # ln P(member) / P(non-member) = sum_s w_s z_s + constant,
    # z = (t(r) - mean) / std over the shadow models,   r = (score - median) / median deviation
    if (
        scores.ndim != 3
        or masks.dtype != torch.bool
        or masks.shape != scores.shape[:2]
        or target.shape[1:] != scores.shape[1:]
    ):
        raise ValueError(
            f"scores {tuple(scores.shape)}, masks {tuple(masks.shape)} {masks.dtype}, target "
            f"{tuple(target.shape)}: (K, n, S), (K, n) bool and (t, n, S) are needed"
        )
    if not (torch.isfinite(scores).all() and torch.isfinite(target).all()):
        raise ValueError("scores or target hold NaN or infinity")
    if masks.all() or not masks.any():
        raise ValueError("the shadow models have members only or non-members only")
    shadows = scores.double().flatten(0, 1)
    centre = shadows.median(0).values
    deviation = (shadows - centre).abs()
    size = deviation.median(0).values
    size = torch.where(size > 0, size, deviation.mean(0)).clamp_min(MIN_SPREAD)
    rows = _tame_outliers((shadows - centre) / size)
    mean = rows.mean(0)
    spread = rows.std(0, correction=0).clamp_min(MIN_SPREAD)
    weights = _fit_weights((rows - mean) / spread, masks.flatten())
    target_rows = _tame_outliers((target.double() - centre) / size)
    return (target_rows - mean) / spread * weights


def _fit_weights(rows: Tensor, is_member: Tensor) -> Tensor:
    """Weights (S,) of the columns, each of mean 0 and standard deviation 1."""
    # argmin over w >= MIN_WEIGHT and c of
    #     sum_i ln(1 + exp(-y_i (w x_i + c))) + |w|^2 / 2,   y = +-1
    sign = 2 * is_member.double() - 1
    columns = torch.cat([rows, torch.ones(len(rows), 1, dtype=rows.dtype)], 1) * sign.unsqueeze(1)

    def loss(point: np.ndarray) -> tuple[float, np.ndarray]:
        weights = torch.from_numpy(point)
        shrunk = weights * (torch.arange(len(weights)) < rows.shape[1])
        margin = columns @ weights
        gradient = shrunk - columns.T @ torch.sigmoid(-margin)
        return float(softplus(-margin).sum() + shrunk @ shrunk / 2), gradient.numpy()

    bounds = [(MIN_WEIGHT, None)] * rows.shape[1] + [(None, None)]
    start = np.full(rows.shape[1] + 1, MIN_WEIGHT)
    optimum = minimize(loss, start, jac=True, method="L-BFGS-B", bounds=bounds)
    return torch.from_numpy(optimum.x[:-1])


def _tame_outliers(ratio: Tensor) -> Tensor:
    """The same order of scores, without a few so large that they alone would set the weights."""
    # t(r) = r up to c = LINEAR_SIZES, sign(r) c (2 - c / |r|) above: increasing, smooth, below 2 c
    size = ratio.abs()
    above = LINEAR_SIZES * (2 - LINEAR_SIZES / size.clamp_min(LINEAR_SIZES))
    return torch.where(size <= LINEAR_SIZES, ratio, ratio.sign() * above)


@dataclass(frozen=True)
class Stacking(MembershipAttack):
    """The scores of other attacks, weighted by how well they do on the other replays.

    The scores of a replay are those of the attacks as they are, with all other replays as shadow
    models. The weights of a fold are fitted on the scores of the same attacks on the other folds
    alone, so that no score depends on its own inclusion bit.

    Attributes:
        attacks: names of STACKED, each with its default settings.
        folds: of replays, at least LEAST_FOLDS; of at most so many replays, each is a fold.
    """

    attacks: Sequence[str] = tuple(STACKED)
    folds: int = 8
    name: ClassVar[str] = "stacking"
    least_worlds: ClassVar[int] = LEAST_FOLDS

    def __post_init__(self) -> None:
        super().__post_init__()
        check_counts(self, "folds", least=LEAST_FOLDS)
        if not self.attacks or set(self.attacks) - set(STACKED):
            raise ValueError(
                f"attacks={list(self.attacks)}: one or several of {', '.join(STACKED)} are needed"
            )

    def _stacked(self) -> list[MembershipAttack]:
        return [STACKED[name](signal=self.signal) for name in self.attacks]

    def read_signals(self, view: View) -> list[Tensor]:
        signals = []
        for attack in self._stacked():
            signals.extend(attack.read_signals(view))
        return signals

    def run(self, view: View, generator: torch.Generator) -> Evidence:
        evidence = super().run(view, generator)
        if evidence.scores is None:
            raise ValueError(f"{self.name}: no scores")
        return replace(evidence, scores=evidence.scores.sum(-1), extra={"parts": evidence.scores})

    def score(self, view: View, name: str, seed: int) -> Tensor:
        """The part of each attack, (K, n, S)."""
        masks = require_worlds(view).masks
        scores = self._run_stacked(view, seed)
        count = len(masks)
        fold_of = torch.arange(count) % min(self.folds, count)
        parts = torch.empty(scores.shape, dtype=torch.float64)
        for fold in range(min(self.folds, count)):
            held_out = fold_of == fold
            of_others = self._run_stacked(select_replays(view, ~held_out), seed)
            parts[held_out] = stack_scores(of_others, masks[~held_out], scores[held_out])
        return parts

    def _run_stacked(self, view: View, seed: int) -> Tensor:
        """Scores (K, n, S) of the attacks."""
        scores = []
        for attack in self._stacked():
            evidence = attack.run(view, torch.Generator().manual_seed(seed))
            if evidence.scores is None:
                raise ValueError(f"{attack.name}: no scores")
            scores.append(evidence.scores)
        return torch.stack(scores, -1)

    def _add_details(self, finding: Finding, evidence: Evidence, replays: Worlds) -> Finding:
        """diagnostics "stacked": by how much the part of each attack varies, of all together."""
        spreads = evidence.extra["parts"].flatten(0, 1).std(0, correction=0)
        shares = (spreads / spreads.sum().clamp_min(MIN_SPREAD)).tolist()
        stacked = dict(zip(self.attacks, shares, strict=True))
        return finding.with_measures(diagnostics={"stacked": stacked})


def select_replays(view: View, chosen: Tensor) -> View:
    """The view with the replays of a (K,) bool tensor alone."""
    replays = require_worlds(view)
    changes: dict[str, Any] = {"masks": replays.masks[chosen]}
    for name in ("signals", "rounds", "queries"):
        by_signal = getattr(replays, name)
        changes[name] = {signal: rows[chosen] for signal, rows in by_signal.items()}
    for name in ("logits", "public_logits"):
        if getattr(replays, name) is not None:
            changes[name] = getattr(replays, name)[chosen]
    return replace(view, worlds=replace(replays, **changes))
