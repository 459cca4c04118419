"""Membership attacks on all replayed rounds of a run: the log-likelihood ratios of the rounds add up.

Given a record's coin and what the server sent, a client that forgets draws each round afresh, so the joint ratio is the
product of the rounds' ratios; for a client that remembers this is an approximation. The figure of the last round alone
stays beside it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from attacks.membership.attack import RATES, MembershipAttack, _worlds, leave_one_out, primary_signal
from attacks.membership.gaussian import Covariance, gaussian_ratio
from attacks.membership.lira import lira
from attacks.roc import roc, tpr_at_fpr
from attacks.types import Evidence, Finding, Surface, Truth, View, Worlds


def in_all_rounds(worlds: Worlds, name: str) -> Tensor:
    """A signal (K, n, R); R = 1 where the view has one round of it."""
    return worlds.rounds[name] if name in worlds.rounds else worlds.signals[name].unsqueeze(-1)


@dataclass(frozen=True)
class RoundsAttack(MembershipAttack):
    """What the attacks on several rounds share. Their ``score`` gives (K, n, R): a score for each round."""

    def run(self, view: View, generator: torch.Generator) -> Evidence:
        found = super().run(view, generator)
        if found.scores is None:
            raise ValueError(f"{self.name}: no scores")
        notes = {**found.notes, "rounds": found.scores.shape[-1]}
        return replace(found, scores=found.scores.sum(-1), extra={"last_round": found.scores[..., -1]}, notes=notes)

    def judge(self, evidence: Evidence, view: View, truth: Truth) -> Finding:
        """As for one round, with the number of rounds, and AUC and TPR of the last one alone."""
        finding = super().judge(evidence, view, truth)
        if finding.measures.get("status") == "nothing_to_read":
            return finding
        member, last = _worlds(view).masks.flatten().numpy(), evidence.extra["last_round"].flatten().numpy()
        alone = {
            "auc": roc(last, member).auc,
            **{f"tpr_at_{rate}": tpr_at_fpr(last, member, rate)[0] for rate in RATES},
        }
        return finding.with_measures(rounds=evidence.notes["rounds"], diagnostics={"last_round": alone})


@dataclass(frozen=True)
class LiraRounds(RoundsAttack):
    """LiRA (Carlini et al. 2022) on the surface's primary signal in every round, each fitted on the other worlds."""

    name: ClassVar[str] = "lira_rounds"

    def reads(self, view: View) -> list[Tensor]:
        worlds = _worlds(view)
        return [in_all_rounds(worlds, primary_signal(view.surface, worlds, self.signal))]

    def score(self, view: View, name: str, seed: int) -> Tensor:
        worlds = _worlds(view)
        each = in_all_rounds(worlds, name).unbind(-1)
        return torch.stack([leave_one_out(lira, one, worlds.masks) for one in each], -1)


def fused_signals(worlds: Worlds) -> list[str]:
    """The signals of which none reads what another reads better.

    Loss and the norm of a record's own gradient are functions of its fit, which the confidence reads; an alignment, or an
    inner product, is a part that was not solved for together with the others'.
    """
    names = sorted(worlds.signals)
    weaker = {"loss", "gradient_norm"} if "confidence" in names else set()
    if any(name.startswith("joint") for name in names):
        weaker |= {name for name in names if "alignment" in name or name == "gradient_product"}
    return [name for name in names if name not in weaker]


@dataclass(frozen=True)
class Fusion(RoundsAttack):
    """All signals of a surface in all rounds: a Gaussian likelihood ratio a round, fitted on the other worlds.

    signal: "auto" = all of them that are no weaker reading of another; else that one alone. None is chosen by how well it
    does in the run.
    """

    covariance: Covariance = "shared"
    name: ClassVar[str] = "fusion"
    least_worlds: ClassVar[int] = 5

    def reads(self, view: View) -> list[Tensor]:
        worlds = _worlds(view)
        names = fused_signals(worlds) if self.signal == "auto" else [primary_signal(view.surface, worlds, self.signal)]
        return [in_all_rounds(worlds, name) for name in names]

    def score(self, view: View, name: str, seed: int) -> Tensor:
        worlds = _worlds(view)
        vectors = [torch.stack(of, -1) for of in zip(*(one.unbind(-1) for one in self.reads(view)), strict=True)]
        return torch.stack([leave_one_out(self._ratio, one, worlds.masks) for one in vectors], -1)

    def _ratio(self, signals: Tensor, masks: Tensor, target: Tensor) -> Tensor:
        return gaussian_ratio(signals, masks, target, covariance=self.covariance)


# Released statistics that are sums over records, or nearly, and the signals that read them so.
LINEAR = frozenset(
    {Surface.UPDATE, Surface.GRADIENT, Surface.CONTROL_VARIATE, Surface.PROTOTYPES, Surface.SYNTHETIC_IMAGES,
     Surface.SYNTHETIC_REPRESENTATIONS}
)  # fmt: skip


@dataclass(frozen=True)
class Tracing(RoundsAttack):
    """Is the record part of a released mean? (Homer et al. 2008; Dwork et al. 2015.) No shadow models.

    The record's coefficient in the released statistic, relative to the spread of all candidates' in that round.
    """

    name: ClassVar[str] = "tracing"
    surfaces: ClassVar[frozenset[Surface]] = LINEAR
    least_worlds: ClassVar[int] = 1

    def reads(self, view: View) -> list[Tensor]:
        worlds = _worlds(view)
        parts = [n for n in sorted(worlds.signals) if n.startswith("joint")] if self.signal == "auto" else []
        return [in_all_rounds(worlds, n) for n in parts or [primary_signal(view.surface, worlds, self.signal)]]

    def score(self, view: View, name: str, seed: int) -> Tensor:
        signals = [one.double() for one in self.reads(view)]
        return sum((s / s.std(1, correction=0, keepdim=True).clamp_min(1e-300) for s in signals), torch.zeros(()))
