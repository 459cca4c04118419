"""Membership attacks as the audit runs them: signals of K replays in, one finding out.

Each replay is the target once, and the others are its shadow models. Each attack reads one signal
of ``view.worlds``, chosen before any score is seen, by option or by SURFACE_SIGNAL: to try all and
report the best would be selection. What the scores are worth is computed in
``attacks.membership.measures``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from attacks.membership.measures import membership_measures
from attacks.types import Adversary, Attack, Evidence, Family, Finding, Surface, Truth, View, Worlds
from attacks.validation import check_counts

Queries = int | Literal["auto"]

# Copies of a record that are queried, itself among them: Carlini et al. 2022, section VI-D; RMIA's
# authors query as many.
PUBLISHED_QUERY_COUNT = 18
SAME_FOR_ALL_RECORDS = "one value for all records of a replay"
SAME_IN_ALL_REPLAYS = "the same in every replay, whoever is in"
# The signals of each surface in order of preference; the first one present is the primary.
# Synthetic images have an "embedding_alignment" only if they were matched in a public map, and then
# they carry their information there.
SURFACE_SIGNAL: dict[Surface, tuple[str, ...]] = {
    Surface.UPDATE: ("confidence", "alignment"),
    Surface.GRADIENT: ("alignment", "confidence"),
    Surface.SYNTHETIC_IMAGES: ("embedding_alignment", "confidence", "distance"),
    Surface.SYNTHETIC_REPRESENTATIONS: ("confidence", "distance"),
    Surface.FEATURES: ("matched_filter", "distance"),
    Surface.LABELS: ("count", "alignment"),
    Surface.STATISTICS: ("density", "confidence", "alignment"),
    Surface.PROTOTYPES: ("joint_moments", "count", "joint_opening", "alignment", "row"),
    Surface.CONTROL_VARIATE: ("alignment", "distance"),
    Surface.COUNTS: ("count", "alignment"),
    Surface.LOGITS: ("confidence", "alignment"),
    Surface.GLOBAL_MODEL: ("confidence", "alignment"),
    Surface.GLOBAL_IMAGES: ("embedding_alignment", "confidence", "distance"),
    Surface.SHARED_FEATURES: ("matched_filter", "distance"),
    Surface.GENERATOR: ("generated_share", "distance"),
}


# Signals that compare no record with what was sent. They take no other's place: what they do not
# show would pass for tested.
WITHOUT_MAP = frozenset({"row"})


def why_uninformative(values: Tensor) -> str:
    """Why ``values`` (K, n, ...) of K replays and n records tell nothing about a record; "" if they
    may. A single record is compared over replays only."""
    if values.shape[1] > 1 and bool((values == values[:, :1]).all()):
        return SAME_FOR_ALL_RECORDS
    if len(values) > 1 and bool((values == values[:1]).all()):
        return SAME_IN_ALL_REPLAYS
    return ""


def why_all_uninformative(several: Iterable[Tensor]) -> str:
    """The first reason of ``why_uninformative`` if each of ``several`` has one, else ""."""
    reasons = [why_uninformative(values) for values in several]
    if reasons and all(reasons):
        return reasons[0]
    return ""


def primary_signal(surface: Surface, worlds: Worlds, choice: str = "auto") -> str:
    """The name of the signal that an attack reads; a signal that is asked for and absent is a
    ValueError.

    "auto": the first present one of the surface's signals that may tell something, else the first
    present one of them, else the first by alphabet.
    """
    present = sorted(worlds.signals)
    if choice != "auto":
        if choice not in worlds.signals:
            raise ValueError(f"signal={choice!r}: surface {surface.value} has {present}")
        return choice
    if not present:
        raise ValueError(f"surface {surface.value}: the worlds carry no signal")
    listed = [name for name in SURFACE_SIGNAL[surface] if name in present]
    comparing = [
        name
        for name in listed
        if name not in WITHOUT_MAP and not why_uninformative(worlds.signals[name])
    ]
    return [*comparing, *listed, *present][0]


@dataclass(frozen=True)
class MembershipAttack(Attack, hooks=("score", "read_signals")):
    """What all membership attacks share: the choice of signal, and the judgement of the scores.

    Attributes:
        signal: "auto", one name for all surfaces, or a name for each surface ("auto" for those that
            are missing). A surface without the named signal has nothing to read.
        confidence: of all intervals and bounds, in (0, 1).
        delta: at which epsilon is bounded; None: the run's own, ``knowledge.settings["delta"]``.
        targets: how many replays the epsilon bound is taken over (Bonferroni).
    """

    signal: str | Mapping[str, str] = "auto"
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
            raise ValueError(
                f"delta={self.delta}: must be a number in [0, 1), or null for the run's own"
            )
        check_counts(self, "targets")
        if isinstance(self.signal, Mapping):
            unknown = sorted(set(self.signal) - {str(surface) for surface in Surface})
            if unknown:
                raise ValueError(
                    f"signal: {unknown[0]!r} is not a surface; allowed are {', '.join(Surface)}"
                )

    def _chosen_signal(self, surface: Surface) -> str:
        """The signal's name that the settings have for a surface, or "auto"."""
        if isinstance(self.signal, str):
            return self.signal
        return self.signal.get(str(surface), "auto")

    def _missing_signal(self, view: View) -> str:
        """Why the signal of the settings cannot be read; "" if it can, and for "auto"."""
        name = self._chosen_signal(view.surface)
        present = sorted(require_worlds(view).signals)
        if name == "auto" or name in present:
            return ""
        return f"no signal {name} on {view.surface}, which has {', '.join(present) or 'none'}"

    def read_signals(self, view: View) -> list[Tensor]:
        """Signals (K, n, ...) that scores are computed from; if none depends on a record, the view
        is skipped."""
        worlds = require_worlds(view)
        name = primary_signal(view.surface, worlds, self._chosen_signal(view.surface))
        return [worlds.signals[name]]

    def nothing_to_read(self, view: View) -> str:
        return self._missing_signal(view) or why_all_uninformative(self.read_signals(view))

    def run(self, view: View, generator: torch.Generator) -> Evidence:
        """Scores (K, n): each world is scored with the other worlds as its shadow models."""
        worlds = require_worlds(view)
        if len(worlds.masks) < self.least_worlds:
            raise ValueError(
                f"worlds={len(worlds.masks)}: {self.name} needs at least {self.least_worlds}"
            )
        name = primary_signal(view.surface, worlds, self._chosen_signal(view.surface))
        seed = int(torch.randint(2**31 - 1, (1,), generator=generator))
        scores = self.score(view, name, seed)
        if not torch.isfinite(scores).all():
            raise ValueError(
                f"surface {view.surface.value}: {self.name} gives scores that are NaN or infinite"
            )
        return Evidence(scores=scores, notes={"signal": name, "seed": seed})

    def score(self, view: View, name: str, seed: int) -> Tensor:
        raise NotImplementedError

    def judge(self, evidence: Evidence, view: View, truth: Truth) -> Finding:
        """Scores against the masks: AUC, TPR at low FPR, blind control, one-run epsilon; constant
        ones: status alone."""
        worlds = require_worlds(view)
        scores = evidence.scores
        if scores is None:
            raise ValueError("evidence.scores: a membership attack must return scores (K, n)")
        if why := why_uninformative(scores):
            return unreadable_finding(self, view, f"its scores are {why}")
        delta = self.delta
        if delta is None:
            delta = view.knowledge.settings.get("delta")
        if delta is None:
            raise ValueError(
                f"{self.name}: delta=None takes the run's own, which knowledge.settings "
                "does not hold"
            )
        generator = np.random.default_rng(int(evidence.notes["seed"]))
        measures, figures = membership_measures(
            scores,
            worlds,
            delta=delta,
            generator=generator,
            confidence=self.confidence,
            targets=min(self.targets, len(scores)),
        )
        finding = Finding(view.surface, self.name, self.family, view.adversary, measures, figures)
        return self._add_details(finding, evidence, worlds)

    def _add_details(self, finding: Finding, evidence: Evidence, replays: Worlds) -> Finding:
        """The finding with what this attack alone measures."""
        return finding


def unreadable_finding(attack: Attack, view: View, why: str) -> Finding:
    """The finding of an attack that had nothing to read. It holds no rate, so that nobody takes it
    for an attack that failed."""
    measures = attack.family.measures(status="nothing_to_read", note=f"nothing to read: {why}")
    if view.worlds is not None:
        replays, records = view.worlds.masks.shape
        measures = replace(measures, n=records, worlds=replays)
    return Finding(view.surface, attack.name, attack.family, view.adversary, measures)


@dataclass(frozen=True)
class QueryAttack(MembershipAttack):
    """A membership attack that asks a model for several transformed copies of each record.

    Attributes:
        queries: at most so many copies, the record itself among them; "auto" takes all that
            there are.
    """

    queries: Queries = "auto"

    def __post_init__(self) -> None:
        super().__post_init__()
        queries = self.queries
        is_count = isinstance(queries, int) and not isinstance(queries, bool) and queries >= 1
        if queries != "auto" and not is_count:
            raise ValueError(
                f"queries={queries!r}: auto, or a whole number of at least 1, is needed"
            )


def select_queries(worlds: Worlds, name: str, queries: Queries) -> Tensor:
    """(K, n, q): a signal of q copies of each record, the record itself first (Carlini et al. 2022,
    section VI-D).

    "auto": as many as the worlds hold, 1 if nothing transforms records; a number: at most so many.
    """
    signal = worlds.queries.get(name)
    if signal is None:
        signal = worlds.signals[name].unsqueeze(-1)
    if queries == "auto":
        return signal
    return signal[..., :queries]


def signal_log_odds(worlds: Worlds, name: str) -> Tensor:
    """The signal read as log p / (1 - p), (K, n) float64: ``queried_log_odds`` of the record as it
    is."""
    return queried_log_odds(worlds, name, 1).squeeze(-1)


def queried_log_odds(worlds: Worlds, name: str, queries: Queries) -> Tensor:
    """The signal of each query read as log p / (1 - p), (K, n, q) float64: exact for "confidence",
    else centred by each record's median over the worlds and scaled by the pooled spread first;
    neither looks at a mask."""
    signal = select_queries(worlds, name, queries).double()
    if name == "confidence":
        return signal
    centred = signal - signal.median(0).values
    return centred / centred.square().mean((0, 1)).sqrt().clamp_min(1e-300)


def require_worlds(view: View) -> Worlds:
    if view.worlds is None:
        raise ValueError(f"surface {view.surface.value}: the view carries no worlds")
    return view.worlds


def check_shadow_signals(
    signals: Tensor, masks: Tensor, target: Tensor, *dimensions: int, finite: bool = True
) -> tuple[Tensor, Tensor, Tensor]:
    """Signals of shadow models (K, n) or, of q a record, (K, n, q), their masks (K, n) and the
    target's signals, in float64.

    Raises ValueError for NaN, for infinity if they have to be ``finite``, and for other
    ``dimensions``."""
    x = torch.as_tensor(signals).double()
    mask = torch.as_tensor(masks)
    t = torch.as_tensor(target).double()
    if (
        x.ndim not in dimensions
        or mask.dtype != torch.bool
        or mask.shape != x.shape[:2]
        or t.shape != x.shape[1:]
    ):
        shapes = {2: "(K, n)", 3: "(K, n, q)"}
        wanted = " or ".join(shapes[count] for count in dimensions)
        raise ValueError(
            f"signals {tuple(x.shape)}, masks {tuple(mask.shape)} {mask.dtype}, target "
            f"{tuple(t.shape)}: signals {wanted}, "
            "masks (K, n) bool and a target like one of the signals are needed"
        )
    for values in (x, t):
        if torch.isnan(values).any() or (finite and torch.isinf(values).any()):
            raise ValueError("signals or target hold NaN or infinity")
    return x, mask, t


def score_leave_one_out(
    score: Callable[[Tensor, Tensor, Tensor], Tensor], signals: Tensor, masks: Tensor
) -> Tensor:
    """Each replay once as the target, the others as its shadow models: (K, n, ...) -> scores (K,
    n).

    ``score(signals, masks, target)`` never sees the target's own mask row. Inclusion bits must be
    independent: with a fixed number of replays per record, the other rows reveal the target's mask,
    and scores are biased even if nothing leaks.
    """
    if len(signals) < 2:
        raise ValueError(
            f"worlds={len(signals)}: at least 2 are needed, one as target and one as shadow"
        )
    rows = torch.arange(len(signals))
    scores = []
    for k in range(len(signals)):
        shadows = rows != k
        scores.append(score(signals[shadows], masks[shadows], signals[k]))
    return torch.stack(scores)
