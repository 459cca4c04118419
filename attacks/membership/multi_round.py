"""Membership attacks on all replayed rounds of a run: the log-likelihood ratios of the rounds add
up.

Given a record's inclusion bit and what the server sent, a client without memory draws each round
afresh, so the joint ratio is the product of the rounds' ratios; for a client with a memory this is
an approximation. Several signals at once are read through one Gaussian for members and one for
non-members."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar, Literal

import torch
from torch import Tensor

from attacks.membership.attack import (
    MembershipAttack,
    check_shadow_signals,
    primary_signal,
    require_worlds,
    score_leave_one_out,
)
from attacks.membership.lira import lira
from attacks.membership.measures import FALSE_POSITIVE_RATES
from attacks.roc import roc, tpr_at_fpr
from attacks.tensors import accepts_numpy
from attacks.types import Evidence, Finding, Surface, View, Worlds

Covariance = Literal["shared", "per_side"]
MIN_OWN_SHARE = 0.25  # of a record's own gap that always remains: see _shrink_gaps
PRIOR_REPLAYS = 4  # replays that the pooled variance counts for in a record's own
MIN_RELATIVE_SPREAD = 1e-9  # a signal whose spread is this small a part of its size says nothing
MIN_VARIANCE = 1e-12  # in units in which the pooled variance is about 1
# whose released statistics are sums over records, or nearly
LINEAR_SURFACES = frozenset(
    {
        Surface.UPDATE,
        Surface.GRADIENT,
        Surface.CONTROL_VARIATE,
        Surface.PROTOTYPES,
        Surface.SYNTHETIC_IMAGES,
        Surface.SYNTHETIC_REPRESENTATIONS,
    }
)


@dataclass(frozen=True)
class SignalDistribution:
    """The Gaussian of one side, members or non-members."""

    centre: Tensor  # (n, q)
    std: Tensor  # (n, q)
    precision: Tensor  # inverse correlations of the signals (q, q)
    log_det: Tensor  # half the log-determinant of the correlations

    def log_density(self, target: Tensor) -> Tensor:
        """Up to the constant that both sides share, (n,)."""
        # -z^T R^-1 z / 2 - sum ln s - ln det R / 2,   z = (x - m) / s
        z = (target - self.centre) / self.std
        distance = torch.einsum("nq,qr,nr->n", z, self.precision, z)
        return -distance / 2 - self.std.log().sum(-1) - self.log_det


@accepts_numpy
def gaussian_likelihood_ratio(
    signals: Tensor, masks: Tensor, target: Tensor, *, covariance: Covariance = "shared"
) -> Tensor:
    """Log-likelihood ratio of membership per record, from several signals at once.

    Few shadow models say little about one record, so its estimates are shrunk towards those of all
    records: the gap between its two centres by empirical Bayes (Morris 1983), its variances as if
    PRIOR_REPLAYS more replays had the pooled one. Correlations are pooled over records and shrunk
    by q / (q + K). A signal that never varies is left out.

    Args:
        signals: (K, n, q) of the shadow models.
        masks: (K, n) inclusion bits.
        target: (n, q).
        covariance: "shared" gives both sides the same covariance (linear discriminant).

    Returns:
        (n,) float64, larger = member.

    Raises:
        ValueError: for bad shapes, NaN, or a side without a replay.
    """
    x, mask, t = check_shadow_signals(signals, masks, target, 3)
    if mask.all() or not mask.any():
        raise ValueError("the shadow models have members only or non-members only")
    if covariance not in ("shared", "per_side"):
        raise ValueError(f"covariance={covariance!r}: must be shared or per_side")
    size = x.abs().mean((0, 1)).clamp_min(1e-300)
    spread = (x - x.mean(0)).square().mean((0, 1)).sqrt()
    varies = spread > MIN_RELATIVE_SPREAD * size
    if not varies.any():
        return x.new_zeros(x.shape[1])
    scaled = x[..., varies] / spread[varies]
    member, non_member = fit_distributions(scaled, mask, covariance == "per_side")
    target = t[..., varies] / spread[varies]
    return member.log_density(target) - non_member.log_density(target)


@accepts_numpy
def fit_distributions(
    x: Tensor, mask: Tensor, per_side: bool
) -> tuple[SignalDistribution, SignalDistribution]:
    """The Gaussians of members and of non-members, from signals x (K, n, q) float64 of like size
    and masks (K, n); per_side: each has a covariance of its own."""
    mean_in = _mean_over_replays(x, mask)
    mean_out = _mean_over_replays(x, ~mask)
    residual = x - torch.where(mask.unsqueeze(-1), mean_in, mean_out)
    pooled = _spread_and_correlation(residual, torch.ones_like(mask))
    shape_in = pooled
    shape_out = pooled
    if per_side:
        shape_in = _spread_and_correlation(residual, mask)
        shape_out = _spread_and_correlation(residual, ~mask)
    std = pooled[0]
    counts = torch.stack([mask.sum(0), (~mask).sum(0)]).double()
    gap = _shrink_gaps((mean_in - mean_out) / std, counts) * std
    signs = torch.where(mask, 0.5, -0.5).unsqueeze(-1).to(x)
    centre = (x - signs * gap).mean(0)
    members = SignalDistribution(centre + 0.5 * gap, *shape_in)
    non_members = SignalDistribution(centre + -0.5 * gap, *shape_out)
    return members, non_members


def _spread_and_correlation(residual: Tensor, side: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Standard deviations (n, q), inverse correlations (q, q) and half their log-determinant, over
    the replays of one side (K, n)."""
    # s_i^2 = (sum of squares + PRIOR_REPLAYS v) / (degrees of freedom + PRIOR_REPLAYS), v pooled;
    # R = (1 - l) S + l I off the diagonal, l = q / (q + K), S the correlations of residual / s
    side_residual = residual * side.unsqueeze(-1)
    squares = side_residual.square().sum(0)
    count = side.sum(0).double().unsqueeze(-1)
    freedom = (count - 1).clamp_min(0)
    pooled = (squares.sum(0) / freedom.sum(0).clamp_min(1)).clamp_min(MIN_VARIANCE)
    std = ((squares + PRIOR_REPLAYS * pooled) / (freedom + PRIOR_REPLAYS)).sqrt()
    z = (side_residual / std)[side]
    second = z.T @ z / len(z)
    scale = second.diagonal().clamp_min(MIN_VARIANCE).sqrt()
    q = second.shape[0]
    share = q / (q + len(residual))  # K and not K n: a replay's records share its draw
    mixed = (1 - share) * second / scale / scale.unsqueeze(-1)
    correlation = mixed - torch.diag(mixed.diagonal()) + torch.eye(len(mixed), dtype=mixed.dtype)
    return std, torch.linalg.inv(correlation), torch.logdet(correlation) / 2


def _mean_over_replays(x: Tensor, mask: Tensor) -> Tensor:
    """(n, q) mean over the replays of one side; zero without any."""
    weights = mask.unsqueeze(-1).to(x)
    return (x * weights).sum(0) / weights.sum(0).clamp_min(1)


def _shrink_gaps(gap: Tensor, counts: Tensor) -> Tensor:
    """Each record's gap (n, q), in standard deviations, shrunk to the mean gap by its noise.

    counts (2, n): its IN and OUT replays; a record that lacks one takes the mean gap. Raises
    ValueError if all do. If all gaps were one number, its sign alone would decide all scores of a
    signal that says nothing, so something of a record's own gap always remains.
    """
    # g_i -> m + max(t / (t + v_i), MIN_OWN_SHARE) (g_i - m),   v_i = 1 / n_in + 1 / n_out,
    # t = (mean of (g - m)^2 - mean of v)_+, the variance of the true gaps (Morris 1983)
    has_both = (counts > 0).all(0)
    if not has_both.any():
        raise ValueError("no record has both a world that holds it and one that does not")
    noise = (1 / counts).sum(0).unsqueeze(-1)
    common = gap[has_both].mean(0)
    deviation = gap - common
    variance = (deviation[has_both].square().mean(0) - noise[has_both].mean(0)).clamp_min(0)
    share = (variance / (variance + noise)).clamp_min(MIN_OWN_SHARE)
    return common + torch.where(has_both.unsqueeze(-1), share, 0.0) * deviation


def signal_in_all_rounds(worlds: Worlds, name: str) -> Tensor:
    """A signal (K, n, R); R = 1 if the view has one round of it."""
    if name in worlds.rounds:
        return worlds.rounds[name]
    return worlds.signals[name].unsqueeze(-1)


@dataclass(frozen=True)
class MultiRoundAttack(MembershipAttack):
    """What the attacks on several rounds share. Their ``score`` gives (K, n, R): a score for each
    round."""

    def run(self, view: View, generator: torch.Generator) -> Evidence:
        evidence = super().run(view, generator)
        scores = evidence.scores
        if scores is None:
            raise ValueError(f"{self.name}: no scores")
        notes = {**evidence.notes, "rounds": scores.shape[-1]}
        extra = {"last_round": scores[..., -1]}
        return replace(evidence, scores=scores.sum(-1), extra=extra, notes=notes)

    def _add_details(self, finding: Finding, evidence: Evidence, replays: Worlds) -> Finding:
        """The number of rounds, and AUC and TPR of the last one alone."""
        member = replays.masks.flatten().numpy()
        last = evidence.extra["last_round"].flatten().numpy()
        measures = {"auc": roc(last, member).auc}
        for rate in FALSE_POSITIVE_RATES:
            measures[f"tpr_at_{rate}"] = tpr_at_fpr(last, member, rate)[0]
        return finding.with_measures(
            rounds=evidence.notes["rounds"], diagnostics={"last_round": measures}
        )


@dataclass(frozen=True)
class LiraRounds(MultiRoundAttack):
    """LiRA (Carlini et al. 2022) on the surface's primary signal in every round, each fitted on the
    other replays."""

    name: ClassVar[str] = "lira_rounds"

    def read_signals(self, view: View) -> list[Tensor]:
        worlds = require_worlds(view)
        name = primary_signal(view.surface, worlds, self._chosen_signal(view.surface))
        return [signal_in_all_rounds(worlds, name)]

    def score(self, view: View, name: str, seed: int) -> Tensor:
        worlds = require_worlds(view)
        rounds = signal_in_all_rounds(worlds, name).unbind(-1)
        scores = [score_leave_one_out(lira, signal, worlds.masks) for signal in rounds]
        return torch.stack(scores, -1)


def signals_to_fuse(worlds: Worlds) -> list[str]:
    """The signals without those that another one reads better.

    Loss and the norm of a record's own gradient are functions of its fit, which the confidence
    reads. An alignment, or an inner product, is a coefficient of one record, which a joint signal
    solves for together with those of the others.
    """
    names = sorted(worlds.signals)
    weaker = {"patch_distance"}  # reads a part of what the distance reads
    if "confidence" in names:
        weaker |= {"loss", "gradient_norm"}
    if {"matched_filter", "row"} & set(names):
        # of released features and class means: without their noise, or of few records alone
        weaker |= {"distance"}
    if any(name.startswith("joint") for name in names):
        weaker |= {name for name in names if "alignment" in name or name == "gradient_product"}
    return [name for name in names if name not in weaker]


@dataclass(frozen=True)
class Fusion(MultiRoundAttack):
    """All signals of a surface in all rounds: a Gaussian likelihood ratio a round, fitted on the
    other replays.

    signal: "auto" takes all that are no weaker reading of another; a name takes that one alone.
    None is chosen by how well it does.
    """

    covariance: Covariance = "shared"
    name: ClassVar[str] = "fusion"
    least_worlds: ClassVar[int] = 5

    def read_signals(self, view: View) -> list[Tensor]:
        worlds = require_worlds(view)
        choice = self._chosen_signal(view.surface)
        if choice == "auto":
            names = signals_to_fuse(worlds)
        else:
            names = [primary_signal(view.surface, worlds, choice)]
        return [signal_in_all_rounds(worlds, name) for name in names]

    def score(self, view: View, name: str, seed: int) -> Tensor:
        worlds = require_worlds(view)
        score = partial(gaussian_likelihood_ratio, covariance=self.covariance)
        rounds_by_signal = [signal.unbind(-1) for signal in self.read_signals(view)]
        scores = []
        for signals in zip(*rounds_by_signal, strict=True):  # of one round
            scores.append(score_leave_one_out(score, torch.stack(signals, -1), worlds.masks))
        return torch.stack(scores, -1)


@dataclass(frozen=True)
class Tracing(MultiRoundAttack):
    """Is the record part of a released mean? (Homer et al. 2008; Dwork et al. 2015.) No shadow
    models.

    The score is the record's coefficient in the released statistic, over the spread of all
    candidates' coefficients in that round.
    """

    name: ClassVar[str] = "tracing"
    surfaces: ClassVar[frozenset[Surface]] = LINEAR_SURFACES
    least_worlds: ClassVar[int] = 1

    def read_signals(self, view: View) -> list[Tensor]:
        worlds = require_worlds(view)
        choice = self._chosen_signal(view.surface)
        names = []
        if choice == "auto":
            names = [name for name in sorted(worlds.signals) if name.startswith("joint")]
        if not names:
            names = [primary_signal(view.surface, worlds, choice)]
        return [signal_in_all_rounds(worlds, name) for name in names]

    def score(self, view: View, name: str, seed: int) -> Tensor:
        total = torch.zeros(())
        for signal in self.read_signals(view):
            coefficients = signal.double()
            spread = coefficients.std(1, correction=0, keepdim=True)
            total = total + coefficients / spread.clamp_min(1e-300)
        return total
