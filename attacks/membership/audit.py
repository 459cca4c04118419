"""Membership attacks as the audit runs them: worlds in, one finding out.

Each attack reads one signal of ``view.worlds``. Which one is settled before any score is seen: by
option, or by SURFACE_SIGNAL. Trying all signals and keeping the best would be selection.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from attacks.membership.base import base
from attacks.membership.density import density_ratio
from attacks.membership.evaluate import leave_one_out, measure
from attacks.membership.lira import lira
from attacks.membership.rmia import rmia
from attacks.membership.shadow_classifier import Kind, shadow_classifier, top_k
from attacks.membership.signals import logit_scaled
from attacks.membership.threshold import loss_threshold
from attacks.types import Adversary, Evidence, Family, Finding, Surface, Truth, View, Worlds

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
    Surface.PROTOTYPES: ("alignment", "distance"),
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
class _Membership:
    """What all membership attacks share: the choice of signal, and the judgement.

    delta None: the run's own (knowledge.settings["delta"], else 1e-5). targets: how many worlds the
    epsilon bound is taken over (Bonferroni). least_worlds: fewer, and the attack cannot run.
    """

    signal: str = "auto"
    confidence: float = 0.95
    delta: float | None = None
    targets: int = 1

    name: ClassVar[str]
    family: ClassVar[Family] = Family.MEMBERSHIP
    surfaces: ClassVar[frozenset[Surface]] = frozenset(Surface)
    adversaries: ClassVar[frozenset[Adversary]] = frozenset(Adversary)
    least_worlds: ClassVar[int] = 2  # one as target, one as shadow

    def __post_init__(self) -> None:
        if not 0 < self.confidence < 1:
            raise ValueError(f"confidence={self.confidence}: a number in (0, 1) is needed")
        if self.delta is not None and not 0 <= self.delta < 1:
            raise ValueError(f"delta={self.delta}: a number in [0, 1), or null for the run's own")
        if not self.targets >= 1:
            raise ValueError(f"targets={self.targets}: at least 1 world is needed")

    def run(self, view: View, generator: torch.Generator) -> Evidence:
        """Scores (K, n), each world's from the other worlds only."""
        if view.worlds is None:
            raise ValueError(f"surface {view.surface.value}: the view carries no worlds")
        if len(view.worlds.masks) < self.least_worlds:
            raise ValueError(f"worlds={len(view.worlds.masks)}: {self.name} needs at least {self.least_worlds}")
        name = primary_signal(view.surface, view.worlds, self.signal)
        seed = int(torch.randint(2**31 - 1, (1,), generator=generator))
        scores = self.score(view, name, seed)
        return Evidence(scores=scores, notes={"signal": name, "seed": seed})

    def score(self, view: View, name: str, seed: int) -> Tensor:
        raise NotImplementedError

    def judge(self, evidence: Evidence, view: View, truth: Truth) -> Finding:
        """Scores against the masks: AUC, TPR at low FPR, blind control, one-run epsilon."""
        worlds, scores = _worlds(view), evidence.scores
        if scores is None:
            raise ValueError("evidence.scores: a membership attack brings back scores (K, n)")
        delta = self.delta if self.delta is not None else float(view.knowledge.settings.get("delta", 1e-5))
        generator = np.random.default_rng(int(evidence.notes["seed"]))
        targets = min(self.targets, len(scores))
        measures, figures = measure(
            scores, worlds, delta=delta, generator=generator, confidence=self.confidence, targets=targets
        )
        return Finding(view.surface, self.name, self.family, view.adversary, measures, figures)


@dataclass(frozen=True)
class Lira(_Membership):
    """Carlini et al. (2022); see ``attacks.membership.lira``."""

    online: bool = True
    variance: Literal["per_record", "pooled", "auto"] = "auto"
    centre: Literal["mean", "median"] = "mean"
    name: ClassVar[str] = "lira"

    def score(self, view: View, name: str, seed: int) -> Tensor:
        options: dict[str, Any] = {"online": self.online, "variance": self.variance, "centre": self.centre}
        worlds = _worlds(view)
        return leave_one_out(lambda s, m, t: lira(s, m, t, **options), worlds.signals[name], worlds.masks)


@dataclass(frozen=True)
class Rmia(_Membership):
    """Zarifzadeh et al. (2024) on the probabilities that the signal stands for; z where public logits exist."""

    gamma: float = 1.0
    a: float = 0.3
    online: bool = True
    name: ClassVar[str] = "rmia"

    def score(self, view: View, name: str, seed: int) -> Tensor:
        worlds, public = _worlds(view), _public_probs(view, name)
        probs = log_odds(worlds, name).sigmoid()
        rows, scores = torch.arange(len(probs)), []
        for k in range(len(probs)):
            z, z_target = (None, None) if public is None else (public[rows != k], public[k])
            options: dict[str, Any] = {"gamma": self.gamma, "a": self.a, "online": self.online}
            shadows, masks = probs[rows != k], worlds.masks[rows != k]
            scores.append(rmia(shadows, masks, probs[k], z_probs=z, z_target=z_target, **options))
        return torch.stack(scores)


@dataclass(frozen=True)
class Base(_Membership):
    """Lassila et al. (2025): cheap, and the best choice below 16 worlds."""

    temperature: float = 2.0
    online: bool = True
    name: ClassVar[str] = "base"

    def score(self, view: View, name: str, seed: int) -> Tensor:
        worlds = _worlds(view)
        options: dict[str, Any] = {"temperature": self.temperature, "online": self.online}
        logp = torch.nn.functional.logsigmoid(log_odds(worlds, name))
        return leave_one_out(lambda s, m, t: base(s, m, t, **options), logp, worlds.masks)


@dataclass(frozen=True)
class LossThreshold(_Membership):
    """Yeom et al. (2018): the raw signal, one threshold for all records."""

    name: ClassVar[str] = "loss_threshold"
    least_worlds: ClassVar[int] = 1

    def score(self, view: View, name: str, seed: int) -> Tensor:
        worlds = _worlds(view)
        return torch.stack([loss_threshold(row) for row in worlds.signals[name]])


@dataclass(frozen=True)
class ShadowClassifier(_Membership):
    """Shokri et al. (2017), FedFed's attack: top-k outputs where worlds carry logits, else the signal alone."""

    k: int = 3
    kind: Kind = "mlp"
    folds: int = 4
    name: ClassVar[str] = "shadow_classifier"

    def score(self, view: View, name: str, seed: int) -> Tensor:
        worlds = _worlds(view)
        features = worlds.signals[name].double().unsqueeze(-1)
        if worlds.logits is not None:
            features = top_k(worlds.logits, worlds.labels, self.k)
        return _cross_fit(
            lambda f, m, t: shadow_classifier(f, m, t, worlds.labels, kind=self.kind, seed=seed),
            features, worlds.masks, self.folds,
        )  # fmt: skip


@dataclass(frozen=True)
class GradientDensity(_Membership):
    """FedLGD's kernel-density attack on the signal (its gradient signals, where the worlds carry them)."""

    folds: int = 4
    limit: int = 1000
    name: ClassVar[str] = "gradient_density"

    def score(self, view: View, name: str, seed: int) -> Tensor:
        worlds = _worlds(view)
        names = sorted(s for s in worlds.signals if s.startswith("gradient")) if self.signal == "auto" else []
        features = torch.stack([worlds.signals[s].double() for s in names or [name]], -1)
        rng = np.random.default_rng(seed)

        def fit(shadows: Tensor, masks: Tensor, target: Tensor) -> Tensor:
            inside, outside = (_sample(shadows[side], self.limit, rng) for side in (masks, ~masks))
            return density_ratio(inside, outside, target.flatten(0, 1)).reshape(target.shape[:2])

        return _cross_fit(fit, features, worlds.masks, self.folds)


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


def _public_probs(view: View, name: str) -> Tensor | None:
    """True-label probabilities (K, m) of population records, where the worlds carry them."""
    logits, labels = _worlds(view).public_logits, view.knowledge.public_y
    if name != "confidence" or logits is None or logits.shape[-2] != len(labels):
        return None
    return logit_scaled(logits.double(), labels).sigmoid()


def _cross_fit(fit: Any, features: Tensor, masks: Tensor, folds: int) -> Tensor:
    """Scores (K, n): each fold of worlds is scored by what the other folds taught."""
    count = len(features)
    if count < 2 or not folds >= 2:
        raise ValueError(f"worlds={count}, folds={folds}: at least 2 of each are needed")
    fold = torch.arange(count) % min(folds, count)
    scores = torch.empty(masks.shape, dtype=torch.float64)
    for f in range(min(folds, count)):
        scores[fold == f] = fit(features[fold != f], masks[fold != f], features[fold == f])
    return scores


def _sample(rows: Tensor, limit: int, rng: np.random.Generator) -> Tensor:
    return rows[torch.from_numpy(rng.permutation(len(rows))[:limit])]


def _worlds(view: View) -> Worlds:
    if view.worlds is None:
        raise ValueError(f"surface {view.surface.value}: the view carries no worlds")
    return view.worlds
