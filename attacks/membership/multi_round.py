"""Membership attacks on all replayed rounds of a run: the log-likelihood ratios of the rounds add
up.

Given a record's coin and what the server sent, a client that forgets draws each round afresh, so
the joint ratio is the product of the rounds' ratios; for a client that remembers this is an
approximation. Several signals at once are read through one Gaussian for members and one for
non-members."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar, Literal

import torch
from torch import Tensor

from attacks.membership.attack import (
    FALSE_POSITIVE_RATES,
    MembershipAttack,
    check_shadow_signals,
    primary_signal,
    require_worlds,
    score_leave_one_out,
)
from attacks.membership.lira import lira
from attacks.roc import roc, tpr_at_fpr
from attacks.tensors import accepts_numpy
from attacks.types import Evidence, Finding, Surface, View, Worlds

Covariance = Literal["shared", "per_side"]
MIN_OWN_SHARE = (
    0.25  # share of a record's own gap that is kept whatever the spread says: see _shrunk
)
PRIOR_REPLAYS = 4  # worlds that the pooled variance counts for in a record's own
MIN_RELATIVE_SPREAD = 1e-9  # a signal whose spread is this small a part of its size says nothing
MIN_VARIANCE = 1e-12  # of a variance, in units where the pooled one is about 1


@dataclass(frozen=True)
class SignalDistribution:
    """One side: centre and standard deviation per record (n, q), the inverse correlations of the
    signals (q, q)."""

    centre: Tensor
    std: Tensor
    precision: Tensor
    log_det: Tensor

    def log_density(self, target: Tensor) -> Tensor:
        """Up to the constant that both sides share, (n,)."""
        off = (target - self.centre) / self.std
        return (
            -torch.einsum("nq,qr,nr->n", off, self.precision, off) / 2
            - self.std.log().sum(-1)
            - self.log_det
        )


@accepts_numpy
def gaussian_likelihood_ratio(
    signals: Tensor, masks: Tensor, target: Tensor, *, covariance: Covariance = "shared"
) -> Tensor:
    """Log-likelihood ratio of membership per record (n,), float64, larger = member.

    signals (K, n, q) of the shadow models, masks (K, n) bool, target (n, q). What few shadow models
    say about one record is mostly noise, so it is moved towards what all records say: the gap
    between its two centres by as much as the spread of all gaps asks for (empirical Bayes, Morris
    1983), its variances as if PRIOR_REPLAYS more had the pooled one. Correlations are pooled over
    records and shrunk by q / (q + K). "shared": both sides have the same covariance (linear
    discriminant). A signal that never varies is left out. Raises ValueError for bad shapes, NaN, or
    a side without a world."""
    x, mask, t = check_shadow_signals(signals, masks, target, 3)
    if mask.all() or not mask.any():
        raise ValueError("the shadow models have members only or non-members only")
    if covariance not in ("shared", "per_side"):
        raise ValueError(f"covariance={covariance!r}: shared or per_side")
    size = x.abs().mean((0, 1)).clamp_min(1e-300)
    spread = (x - x.mean(0)).square().mean((0, 1)).sqrt()
    kept = spread > MIN_RELATIVE_SPREAD * size
    if not kept.any():
        return x.new_zeros(x.shape[1])
    member, other = fit_distributions(x[..., kept] / spread[kept], mask, covariance == "per_side")
    target = t[..., kept] / spread[kept]
    return member.log_density(target) - other.log_density(target)


@accepts_numpy
def fit_distributions(
    x: Tensor, mask: Tensor, two: bool
) -> tuple[SignalDistribution, SignalDistribution]:
    """Members' side and non-members'. x (K, n, q) float64 of like size, mask (K, n); two: a
    covariance for each side."""
    inside = _mean_over_replays(x, mask)
    outside = _mean_over_replays(x, ~mask)
    residual = x - torch.where(mask.unsqueeze(-1), inside, outside)
    both = torch.ones_like(mask)
    shapes = [
        _spread_and_correlation(residual, side) for side in ((mask, ~mask) if two else (both, both))
    ]
    std = _spread_and_correlation(residual, both)[0]
    counts = torch.stack([mask.sum(0), (~mask).sum(0)]).double()
    gap = _shrink_gaps((inside - outside) / std, counts) * std
    signs = torch.where(mask, 0.5, -0.5).unsqueeze(-1).to(x)
    centre = (x - signs * gap).mean(0)
    return tuple(
        SignalDistribution(centre + sign * gap, *shape) for sign, shape in zip((0.5, -0.5), shapes)
    )  # type: ignore[return-value]


def _spread_and_correlation(residual: Tensor, side: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Standard deviations (n, q), inverse correlations (q, q) and half their log-determinant, of
    one side's worlds."""
    kept = residual * side.unsqueeze(-1)
    squares = kept.square().sum(0)
    count = side.sum(0).double().unsqueeze(-1)
    freedom = (count - 1).clamp_min(0)
    pooled = (squares.sum(0) / freedom.sum(0).clamp_min(1)).clamp_min(MIN_VARIANCE)
    std = ((squares + PRIOR_REPLAYS * pooled) / (freedom + PRIOR_REPLAYS)).sqrt()
    z = (kept / std)[side]
    second = z.T @ z / len(z)
    scale = second.diagonal().clamp_min(MIN_VARIANCE).sqrt()
    share = second.shape[0] / (
        second.shape[0] + len(residual)
    )  # K and not K n: one world's records share its draw
    mixed = (1 - share) * second / scale / scale.unsqueeze(-1)
    correlation = mixed - torch.diag(mixed.diagonal()) + torch.eye(len(mixed), dtype=mixed.dtype)
    return std, torch.linalg.inv(correlation), torch.logdet(correlation) / 2


def _mean_over_replays(x: Tensor, mask: Tensor) -> Tensor:
    """(n, q) mean over the worlds of one side; zero where there is none."""
    kept = mask.unsqueeze(-1).to(x)
    return (x * kept).sum(0) / kept.sum(0).clamp_min(1)


def _shrink_gaps(gap: Tensor, counts: Tensor) -> Tensor:
    """Each record's gap (n, q), in standard deviations, moved to the mean gap as far as its noise
    asks for.

    counts (2, n): its IN and OUT worlds; a record that lacks one takes the mean gap. Raises
        ValueError where all do. Were all gaps one number, its sign alone would decide all scores of
        a signal that says nothing: something of a record's
    own gap always stays.
    """
    known = (counts > 0).all(0)
    if not known.any():
        raise ValueError("no record has both a world that holds it and one that does not")
    noise = (1 / counts).sum(0).unsqueeze(-1)
    common = gap[known].mean(0)
    off = gap - common
    real = (off[known].square().mean(0) - noise[known].mean(0)).clamp_min(
        0
    )  # variance of the true gaps
    return (
        common
        + torch.where(known.unsqueeze(-1), (real / (real + noise)).clamp_min(MIN_OWN_SHARE), 0.0)
        * off
    )


def signal_in_all_rounds(worlds: Worlds, name: str) -> Tensor:
    """A signal (K, n, R); R = 1 where the view has one round of it."""
    return worlds.rounds[name] if name in worlds.rounds else worlds.signals[name].unsqueeze(-1)


@dataclass(frozen=True)
class MultiRoundAttack(MembershipAttack):
    """What the attacks on several rounds share. Their ``score`` gives (K, n, R): a score for each
    round."""

    def run(self, view: View, generator: torch.Generator) -> Evidence:
        found = super().run(view, generator)
        if found.scores is None:
            raise ValueError(f"{self.name}: no scores")
        notes = {**found.notes, "rounds": found.scores.shape[-1]}
        return replace(
            found,
            scores=found.scores.sum(-1),
            extra={"last_round": found.scores[..., -1]},
            notes=notes,
        )

    def _add_details(self, finding: Finding, evidence: Evidence, worlds: Worlds) -> Finding:
        """The number of rounds, and AUC and TPR of the last one alone."""
        member = worlds.masks.flatten().numpy()
        last = evidence.extra["last_round"].flatten().numpy()
        alone = {
            "auc": roc(last, member).auc,
            **{
                f"tpr_at_{rate}": tpr_at_fpr(last, member, rate)[0] for rate in FALSE_POSITIVE_RATES
            },
        }
        return finding.with_measures(
            rounds=evidence.notes["rounds"], diagnostics={"last_round": alone}
        )


@dataclass(frozen=True)
class LiraRounds(MultiRoundAttack):
    """LiRA (Carlini et al. 2022) on the surface's primary signal in every round, each fitted on the
    other worlds."""

    name: ClassVar[str] = "lira_rounds"

    def read_signals(self, view: View) -> list[Tensor]:
        worlds = require_worlds(view)
        return [
            signal_in_all_rounds(
                worlds, primary_signal(view.surface, worlds, self._chosen_signal(view.surface))
            )
        ]

    def score(self, view: View, name: str, seed: int) -> Tensor:
        worlds = require_worlds(view)
        each = signal_in_all_rounds(worlds, name).unbind(-1)
        return torch.stack([score_leave_one_out(lira, one, worlds.masks) for one in each], -1)


def signals_to_fuse(worlds: Worlds) -> list[str]:
    """The signals of which none reads what another reads better.

    Loss and the norm of a record's own gradient are functions of its fit, which the confidence
    reads; an alignment, or an inner product, is a part that was not solved for together with the
    others'."""
    names = sorted(worlds.signals)
    weaker = {"loss", "gradient_norm"} if "confidence" in names else set()
    weaker |= {"patch_distance"}  # of a part of what the distance reads whole
    if {"matched_filter", "row"} & set(names):
        weaker |= {
            "distance"
        }  # of released features and class means: without their noise, or of few records alone
    if any(name.startswith("joint") for name in names):
        weaker |= {name for name in names if "alignment" in name or name == "gradient_product"}
    return [name for name in names if name not in weaker]


@dataclass(frozen=True)
class Fusion(MultiRoundAttack):
    """All signals of a surface in all rounds: a Gaussian likelihood ratio a round, fitted on the
    other worlds.

    signal: "auto" = all that are no weaker reading of another; else that one alone. None is chosen
        by how well it does."""

    covariance: Covariance = "shared"
    name: ClassVar[str] = "fusion"
    least_worlds: ClassVar[int] = 5

    def read_signals(self, view: View) -> list[Tensor]:
        worlds = require_worlds(view)
        one = (
            []
            if self._chosen_signal(view.surface) == "auto"
            else [primary_signal(view.surface, worlds, self._chosen_signal(view.surface))]
        )
        names = one or signals_to_fuse(worlds)
        return [signal_in_all_rounds(worlds, name) for name in names]

    def score(self, view: View, name: str, seed: int) -> Tensor:
        worlds = require_worlds(view)
        vectors = [
            torch.stack(of, -1)
            for of in zip(*(one.unbind(-1) for one in self.read_signals(view)), strict=True)
        ]
        score = partial(gaussian_likelihood_ratio, covariance=self.covariance)
        return torch.stack([score_leave_one_out(score, one, worlds.masks) for one in vectors], -1)


# Released statistics that are sums over records, or nearly, and the signals that read them so.
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
class Tracing(MultiRoundAttack):
    """Is the record part of a released mean? (Homer et al. 2008; Dwork et al. 2015.) No shadow
    models.

    The record's coefficient in the released statistic, relative to the spread of all candidates' in
    that round."""

    name: ClassVar[str] = "tracing"
    surfaces: ClassVar[frozenset[Surface]] = LINEAR_SURFACES
    least_worlds: ClassVar[int] = 1

    def read_signals(self, view: View) -> list[Tensor]:
        worlds = require_worlds(view)
        parts = (
            [n for n in sorted(worlds.signals) if n.startswith("joint")]
            if self._chosen_signal(view.surface) == "auto"
            else []
        )
        return [
            signal_in_all_rounds(worlds, n)
            for n in parts
            or [primary_signal(view.surface, worlds, self._chosen_signal(view.surface))]
        ]

    def score(self, view: View, name: str, seed: int) -> Tensor:
        signals = [one.double() for one in self.read_signals(view)]
        return sum(
            (s / s.std(1, correction=0, keepdim=True).clamp_min(1e-300) for s in signals),
            torch.zeros(()),
        )
