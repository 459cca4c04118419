"""Membership attacks as the audit runs them: signals of K replays in, one finding out.

The K replays of the victim are called worlds. Each world is the target once, and the others are its shadow models.

Each attack reads one signal of ``view.worlds``. Which one is settled before any score is seen: by
option, or by SURFACE_SIGNAL. Trying all signals and keeping the best would be selection.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from attacks.epsilon import Bound, one_run_from_scores
from attacks.membership.readable import nothing_in, nothing_in_any
from attacks.membership.worst_records import by_kind, worst_records
from attacks.ranges import check_counts
from attacks.roc import Clusters, auc_interval, roc, thin, tpr_at_fpr
from attacks.types import Adversary, Attack, Evidence, Family, Finding, Surface, Truth, View, Worlds

# The signals of each surface in order of preference; the first one present is the primary. Synthetic images have an
# "embedding_alignment" only where they were matched in a public map, which is then where they carry information.
SURFACE_SIGNAL: dict[Surface, tuple[str, ...]] = {
    Surface.UPDATE: ("confidence", "alignment"),
    Surface.GRADIENT: ("alignment", "confidence"),
    Surface.SYNTHETIC_IMAGES: ("embedding_alignment", "confidence", "distance"),
    Surface.SYNTHETIC_REPRESENTATIONS: ("confidence", "distance"),
    Surface.FEATURES: ("matched_filter", "distance"),
    Surface.LABELS: ("count", "alignment"),
    Surface.STATISTICS: ("density", "confidence", "alignment"),
    Surface.PROTOTYPES: ("count", "alignment", "row"),
    Surface.CONTROL_VARIATE: ("alignment", "distance"),
    Surface.COUNTS: ("count", "alignment"),
    Surface.GLOBAL_MODEL: ("confidence", "alignment"),
    Surface.GLOBAL_IMAGES: ("embedding_alignment", "confidence", "distance"),
    Surface.SHARED_FEATURES: ("matched_filter", "distance"),
}


def primary_signal(surface: Surface, worlds: Worlds, choice: str = "auto") -> str:
    """The name of the signal that an attack reads; a signal that is asked for and absent is a ValueError.

    "auto": the surface's first signal that is present, else the first present one by alphabet.
    """
    present = sorted(worlds.signals)
    if choice != "auto":
        if choice not in present:
            raise ValueError(f"signal={choice!r}: surface {surface.value} has {present}")
        return choice
    if not present:
        raise ValueError(f"surface {surface.value}: the worlds carry no signal")
    return next((name for name in SURFACE_SIGNAL[surface] if name in present), present[0])


@dataclass(frozen=True)
class MembershipAttack(Attack, hooks=("score", "reads")):
    """What all membership attacks share: the choice of signal, and the judgement.

    delta None: the run's own, knowledge.settings["delta"]. targets: how many worlds the
    epsilon bound is taken over (Bonferroni). least_worlds: the fewest worlds that the attack can run on.
    """

    signal: str = "auto"
    confidence: float = 0.95
    delta: float | None = None
    targets: int = 1

    name: ClassVar[str]
    family: ClassVar[Family] = Family.MEMBERSHIP
    surfaces: ClassVar[frozenset[Surface]] = frozenset(Surface)
    adversaries: ClassVar[frozenset[Adversary]] = frozenset(Adversary) - {Adversary.ANALYST}
    least_worlds: ClassVar[int] = 2  # one target, one shadow model

    def __post_init__(self) -> None:
        if not 0 < self.confidence < 1:
            raise ValueError(f"confidence={self.confidence}: a number in (0, 1) is needed")
        if self.delta is not None and not 0 <= self.delta < 1:
            raise ValueError(f"delta={self.delta}: a number in [0, 1), or null for the run's own")
        check_counts(self, "targets")

    def reads(self, view: View) -> list[Tensor]:
        """What the scores are made of: tensors (K, n, ...). A view in which all of them say nothing is not attacked."""
        worlds = _worlds(view)
        return [worlds.signals[primary_signal(view.surface, worlds, self.signal)]]

    def nothing_to_read(self, view: View) -> str:
        return nothing_in_any(self.reads(view))

    def run(self, view: View, generator: torch.Generator) -> Evidence:
        """Scores (K, n): each world is scored with the other worlds as its shadow models."""
        worlds = _worlds(view)
        if len(worlds.masks) < self.least_worlds:
            raise ValueError(f"worlds={len(worlds.masks)}: {self.name} needs at least {self.least_worlds}")
        name = primary_signal(view.surface, worlds, self.signal)
        seed = int(torch.randint(2**31 - 1, (1,), generator=generator))
        scores = self.score(view, name, seed)
        if not torch.isfinite(scores).all():
            raise ValueError(f"surface {view.surface.value}: {self.name} gives scores that are NaN or infinite")
        return Evidence(scores=scores, notes={"signal": name, "seed": seed})

    def score(self, view: View, name: str, seed: int) -> Tensor:
        raise NotImplementedError

    def judge(self, evidence: Evidence, view: View, truth: Truth) -> Finding:
        """Scores against the masks: AUC, TPR at low FPR, blind control, one-run epsilon; constant ones: status alone."""
        worlds, scores = _worlds(view), evidence.scores
        if scores is None:
            raise ValueError("evidence.scores: a membership attack brings back scores (K, n)")
        if why := nothing_in(scores):
            return nothing_read(self, view, f"its scores are {why}")
        delta = self.delta if self.delta is not None else view.knowledge.settings.get("delta")
        if delta is None:
            raise ValueError(f"{self.name}: delta=None takes the run's own, which knowledge.settings does not hold")
        generator = np.random.default_rng(int(evidence.notes["seed"]))
        targets = min(self.targets, len(scores))
        measures, figures = measure(
            scores, worlds, delta=delta, generator=generator, confidence=self.confidence, targets=targets
        )
        return Finding(view.surface, self.name, self.family, view.adversary, measures, figures)


def nothing_read(attack: Attack, view: View, why: str) -> Finding:
    """The finding of an attack that had nothing to read: no rate, so that nobody takes it for one that failed."""
    measures: dict[str, Any] = {"status": "nothing_to_read", "note": f"nothing to read: {why}"}
    if view.worlds is not None:
        measures |= {"n": view.worlds.masks.shape[1], "worlds": len(view.worlds.masks)}
    return Finding(view.surface, attack.name, attack.family, view.adversary, measures)


def log_odds(worlds: Worlds, name: str) -> Tensor:
    """The signal read as log p / (1 - p), (K, n) float64.

    Exact for "confidence". Any other signal is centred by each record's median over the worlds and
    scaled by the pooled spread first; neither looks at a mask.
    """
    signal = worlds.signals[name].double()
    if name == "confidence":
        return signal
    centred = signal - signal.median(0).values
    return centred / centred.square().mean().sqrt().clamp_min(1e-300)


def _worlds(view: View) -> Worlds:
    if view.worlds is None:
        raise ValueError(f"surface {view.surface.value}: the view carries no worlds")
    return view.worlds


RATES = (0.001, 0.01, 0.1)
GUESS_SHARES = (0.1, 0.5, 1.0)  # fixed before any score is seen; they share alpha


def leave_one_out(score: Callable[[Tensor, Tensor, Tensor], Tensor], signals: Tensor, masks: Tensor) -> Tensor:
    """Each world once as the target, the others as its shadow models: (K, n, ...) -> scores (K, n).

    ``score(signals, masks, target)`` never sees the target's own mask row. Masks must be independent
    coins: in a design with a fixed number of IN worlds per record the other rows reveal the target's
    mask, and scores that depend on it are biased even if nothing leaks. ValueError below 2 worlds.
    """
    if len(signals) < 2:
        raise ValueError(f"worlds={len(signals)}: at least 2 are needed, one as target and one as shadow")
    rows = torch.arange(len(signals))
    return torch.stack([score(signals[rows != k], masks[rows != k], signals[k]) for k in range(len(signals))])


def measure(
    scores: Tensor,
    worlds: Worlds,
    *,
    delta: float,
    generator: np.random.Generator,
    confidence: float = 0.95,
    targets: int = 1,
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The measures and figures of a membership finding from ``scores`` (K, n).

    ROC, AUC and TPR pool all K leave-one-world-out targets. Their intervals are clustered two ways,
    by record and by world, because each world also serves as a shadow of the others. Epsilon is
    Steinke's one-run bound on the run that happened (row 0) and, with ``targets`` > 1, on the next
    rows too, sharing alpha. The blind control's AUC is pooled in the same way. "worst_records" and "by_kind" are
    absent where there are too few non-members to see them, "by_kind" also where no record was made hard to fit.
    """
    member, flat = worlds.masks.flatten().numpy(), scores.double().flatten().numpy()
    count, records = worlds.masks.shape
    clusters: Clusters = (np.tile(np.arange(records), count), np.repeat(np.arange(count), records))
    if count == 1:
        clusters = ()  # one world: only its records can be compared
    curve = roc(flat, member)
    bound = audited_epsilon(scores, worlds.masks, delta, generator, confidence, targets)
    measures = {
        "auc": curve.auc,
        "auc_ci": list(auc_interval(flat, member, confidence, clusters=clusters)),
        "tpr_at_fpr": {str(rate): _tpr(flat, member, rate, confidence, clusters) for rate in RATES},
        "blind_auc": roc(worlds.blind.double().expand(count, records).flatten(), member).auc,
        "epsilon_measured": bound.value,
        "epsilon_method": bound.method,
        "epsilon_validity": bound.validity,
        "confidence": confidence,
        "n": records,
        "worlds": count,
    }
    if (worst := worst_records(scores, worlds.masks, confidence)) is not None:
        measures["worst_records"] = worst
    if (kinds := by_kind(scores, worlds.masks, worlds.kinds, confidence)) is not None:
        measures["by_kind"] = kinds
    fpr, tpr = thin(curve)
    return measures, {"roc_fpr": fpr, "roc_tpr": tpr}


def audited_epsilon(
    scores: Tensor,
    masks: Tensor,
    delta: float,
    generator: np.random.Generator,
    confidence: float = 0.95,
    targets: int = 1,
) -> Bound:
    """The largest one-run bound over the first ``targets`` rows at confidence 1 - alpha / targets each."""
    if not 1 <= targets <= len(masks):
        raise ValueError(f"targets={targets}: between 1 and the {len(masks)} worlds")
    guesses = guess_counts(masks.shape[1])
    each = 1 - (1 - confidence) / targets
    bounds = [
        one_run_from_scores(s, m, delta=delta, generator=generator, guesses=guesses, confidence=each)
        for s, m in zip(scores[:targets].double().numpy(), masks[:targets].numpy())
    ]
    best = max(bounds, key=lambda bound: bound.value)
    return Bound(best.value, best.method, best.validity, delta, confidence)


def guess_counts(records: int, shares: Sequence[float] = GUESS_SHARES) -> list[tuple[int, int]]:
    """Pairs (k_in, k_out) that guess the given shares of ``records``, half of them in."""
    sides = sorted({max(int(records * share / 2), 1) for share in shares})
    return [(side, side) for side in sides if 2 * side <= records]


def _tpr(flat: np.ndarray, member: np.ndarray, rate: float, confidence: float, clusters: Clusters) -> dict[str, Any]:
    tpr, interval, resolvable = tpr_at_fpr(flat, member, rate, confidence, clusters=clusters)
    return {"tpr": tpr, "ci": list(interval), "resolvable": resolvable}
