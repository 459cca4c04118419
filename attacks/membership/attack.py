"""Membership attacks as the audit runs them: signals of K replays in, one finding out.

Each replay is the target once, and the others are its shadow models. Each attack reads one signal
of ``view.worlds``, settled before any score is seen, by option or by SURFACE_SIGNAL: trying all and
keeping the best would be selection. Beside the average over records stand the rates of the most
exposed ones (Aerni, Zhang and Tramer 2024), which an average hides."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from scipy.stats import mannwhitneyu
from torch import Tensor
from torch.nn import functional as F

from attacks.epsilon import Bound, one_run_from_scores
from attacks.membership.calibration import MIN_REPLAYS, calibrate_by_record
from attacks.roc import Clusters, Roc, auc_interval, roc, thin_curve, tpr_at_fpr
from attacks.statistics import binomial_interval, shared_confidence
from attacks.tensors import accepts_numpy
from attacks.types import Adversary, Attack, Evidence, Family, Finding, Surface, Truth, View, Worlds
from attacks.validation import check_counts

SAME_FOR_ALL_RECORDS = "one number for all records of a replay, which names none of them"
SAME_IN_ALL_REPLAYS = "the same in every replay, whoever is in"


def why_uninformative(values: Tensor) -> str:
    """Why ``values`` (K, n, ...) of K replays and n records say nothing about a record; "" if they
    may.

    One record alone is compared over replays only.
    """
    if values.shape[1] > 1 and bool((values == values[:, :1]).all()):
        return SAME_FOR_ALL_RECORDS
    if len(values) > 1 and bool((values == values[:1]).all()):
        return SAME_IN_ALL_REPLAYS
    return ""


def why_all_uninformative(several: Iterable[Tensor]) -> str:
    """The first reason of ``why_uninformative`` if it holds of each of ``several``; "" if one of
    them may say something."""
    reasons = [why_uninformative(values) for values in several]
    return reasons[0] if reasons and all(reasons) else ""


@accepts_numpy
def measure_rates_per_record(
    signals: Tensor, masks: Tensor, confidence: float = 0.95
) -> dict[str, Any] | None:
    """{false-positive rate: {"tpr", "ci", "resolvable"}} with that false-positive rate for each
    record by itself.

    signals (K, n), each computed from its own replay alone, and masks (K, n) bool. tpr: the mean
    over records, of any score that rises with the record's signal. See
    ``attacks.membership.calibration``. None below 16 replays, and if no record has enough of them
    in and out."""
    if len(signals) < MIN_REPLAYS:
        return None
    calibrated = calibrate_by_record(signals, masks)
    kept = calibrated.isfinite().all(0)
    if not masks[:, kept].any() or masks[:, kept].all():
        return None
    return _measure_rates(calibrated[:, kept], masks[:, kept], confidence)[0]


def _measure_rates(
    scores: Tensor, masks: Tensor, confidence: float
) -> tuple[dict[str, Any], Roc, list[float]]:
    """Rates at each of FALSE_POSITIVE_RATES, the ROC curve, and the interval of its area, of scores
    (K, n)."""
    member = masks.flatten().numpy()
    flat = scores.double().flatten().numpy()
    count, records = masks.shape
    clusters: Clusters = ()  # in one replay only its records can be compared
    if count > 1:
        clusters = (np.tile(np.arange(records), count), np.repeat(np.arange(count), records))
    curve = roc(flat, member)
    rates = {}
    for rate in FALSE_POSITIVE_RATES:
        tpr, ends, seen = tpr_at_fpr(flat, member, rate, confidence, clusters=clusters, curve=curve)
        rates[str(rate)] = {"tpr": tpr, "ci": list(ends), "resolvable": seen}
    return rates, curve, list(auc_interval(flat, member, confidence, clusters=clusters))


# the worst 1 % of records, at 1 false alarm in 1 000
WORST_SHARE = 0.01
WORST_RECORD_FPR = 0.001


@accepts_numpy
def measure_worst_records(
    scores: Tensor, masks: Tensor, confidence: float = 0.95
) -> dict[str, Any] | None:
    """{"share", "tpr", "ci", "records"}: how often the worst 1 % of records is found when in, at a
    false-positive rate of 0.001.

    scores (K, n) and masks (K, n) bool, one threshold for all. The worst records are chosen in one
    half of the replays and judged in the other, both ways: chosen and judged on the same, the
    luckiest would look exposed in a
    null as well. ci: Clopper-Pearson over the replays that judge; it takes them as independent
        given the records.
    records: each chosen one by itself, {"record", "hits", "trials", "tpr", "ci", "wrong", "out"},
        by position: hits of trials that it is in, wrong of out that it is not in; ci without
            correction for several.
    None where there are too few non-members to see the rate, or fewer than 4 replays.
    """
    named = _scores_above_threshold(scores, masks)
    if named is None or len(scores) < 4:
        return None
    count = max(1, math.ceil(WORST_SHARE * scores.shape[1]))
    even = torch.arange(len(scores)) % 2 == 0
    seen: dict[int, tuple[int, ...]] = {}
    for judged in (even, ~even):
        for record in _rank_by_exposure(scores[~judged], named[~judged], masks[~judged])[
            :count
        ].tolist():
            inside = masks[judged][:, record]
            hit = named[judged][:, record]
            counts = (hit & inside, inside, hit & ~inside, ~inside)
            before = seen.get(record, (0, 0, 0, 0))
            seen[record] = tuple(n + int(one.sum()) for n, one in zip(before, counts))
    hits, trials, _, _ = (sum(column) for column in zip(*seen.values()))
    if not trials:
        return None
    whole = {
        "share": WORST_SHARE,
        "tpr": hits / trials,
        "ci": list(binomial_interval(hits, trials, confidence)),
    }
    records = []
    for at, (hits, trials, wrong, out) in sorted(seen.items()):
        if trials:
            rates: dict[str, Any] = {
                "record": at,
                "hits": hits,
                "trials": trials,
                "tpr": hits / trials,
            }
            rates["ci"] = list(binomial_interval(hits, trials, confidence))
            records.append(rates | {"wrong": wrong, "out": out})
    return whole | {"records": records}


@accepts_numpy
def measure_by_kind(
    scores: Tensor, masks: Tensor, kinds: Mapping[str, Tensor], confidence: float = 0.95
) -> dict[str, dict[str, Any]] | None:
    """{kind: {"n", "auc", "tpr", "fpr", "ci"}} of records that were made hard to fit, and of the
    "ordinary" rest.

    scores, masks: (K, n); kinds: name -> positions (m,) of its records. tpr, fpr: of each kind, at
        the one threshold for all records whose false-positive rate is 0.001; fpr tells whether it
        is fair to the kind. ci: of tpr, Clopper-Pearson over the
    members, taken as independent. None where no kind was made, or the rate cannot be seen.
    """
    if not kinds or (named := _scores_above_threshold(scores, masks)) is None:
        return None
    rest = torch.ones(scores.shape[1], dtype=torch.bool)
    for at in kinds.values():
        rest[at] = False
    found = {}
    for kind, at in {**kinds, "ordinary": rest.nonzero()[:, 0]}.items():
        inside = masks[:, at]
        hit = named[:, at]
        members = int(inside.sum())
        outsiders = int((~inside).sum())
        if members and outsiders:
            hits = int((hit & inside).sum())
            false = int((hit & ~inside).sum())
            rates = {
                "auc": roc(scores[:, at].flatten(), inside.flatten()).auc,
                "tpr": hits / members,
                "fpr": false / outsiders,
            }
            found[kind] = {
                "n": len(at),
                **rates,
                "ci": list(binomial_interval(hits, members, confidence)),
            }
    return found


def _scores_above_threshold(scores: Tensor, masks: Tensor) -> Tensor | None:
    """(K, n): which scores lie above the threshold of the rate; None where there are too few
    non-members to see it."""
    outside = scores[~masks].sort(descending=True).values
    return (
        scores > outside[int(WORST_RECORD_FPR * len(outside))]
        if len(outside) * WORST_RECORD_FPR >= 1
        else None
    )


def _rank_by_exposure(scores: Tensor, named: Tensor, masks: Tensor) -> Tensor:
    """Records by falling share of replays that name them while they are in; ties by their mean
    score when in."""
    inside = masks.sum(0).clamp_min(1)
    rate = (named & masks).sum(0).double() / inside
    mean = scores.double().masked_fill(~masks, 0).sum(0) / inside
    order = mean.argsort(descending=True, stable=True)
    return order[rate[order].argsort(descending=True, stable=True)]


# The signals of each surface in order of preference; the first one present is the primary.
# Synthetic images have an "embedding_alignment" only where they were matched in a public map, which
# is then where they carry information.
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
    """The name of the signal that an attack reads; a signal that is asked for and absent is a
    ValueError.

    "auto": the surface's first signal that is present, else the first present one by alphabet.
    """
    present = sorted(worlds.signals)
    if choice != "auto":
        if choice not in worlds.signals:
            raise ValueError(f"signal={choice!r}: surface {surface.value} has {present}")
        return choice
    if not present:
        raise ValueError(f"surface {surface.value}: the worlds carry no signal")
    return next((name for name in SURFACE_SIGNAL[surface] if name in present), present[0])


@dataclass(frozen=True)
class MembershipAttack(Attack, hooks=("score", "read_signals")):
    """What all membership attacks share: the choice of signal, and the judgement. delta None: the
    run's own, knowledge.settings["delta"]. targets: how many worlds the epsilon bound is taken over
    (Bonferroni). signal: "auto", one name for all surfaces, or a name for each (surfaces that are
    not named: "auto"). Where a surface lacks the signal that is asked for, there is nothing to
        read."""

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
            raise ValueError(f"delta={self.delta}: a number in [0, 1), or null for the run's own")
        check_counts(self, "targets")
        named = self.signal if isinstance(self.signal, Mapping) else {}
        if unknown := sorted(set(named) - {str(surface) for surface in Surface}):
            raise ValueError(
                f"signal: {unknown[0]!r} is no surface; allowed are {', '.join(Surface)}"
            )

    def _chosen_signal(self, surface: Surface) -> str:
        """The name of the signal that is asked for on a surface; "auto" where none is."""
        return (
            self.signal if isinstance(self.signal, str) else self.signal.get(str(surface), "auto")
        )

    def _missing_signal(self, view: View) -> str:
        """Why the signal that is asked for cannot be read; "" if it can, or none is asked for."""
        name = self._chosen_signal(view.surface)
        present = sorted(require_worlds(view).signals)
        if name == "auto" or name in present:
            return ""
        return f"no signal {name} on {view.surface}, which has {', '.join(present) or 'none'}"

    def read_signals(self, view: View) -> list[Tensor]:
        """What the scores are made of: tensors (K, n, ...). Where all of them say nothing the view
        is not attacked."""
        worlds = require_worlds(view)
        return [
            worlds.signals[primary_signal(view.surface, worlds, self._chosen_signal(view.surface))]
        ]

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
            raise ValueError("evidence.scores: a membership attack brings back scores (K, n)")
        if why := why_uninformative(scores):
            return unreadable_finding(self, view, f"its scores are {why}")
        delta = self.delta if self.delta is not None else view.knowledge.settings.get("delta")
        if delta is None:
            raise ValueError(
                f"{self.name}: delta=None takes the run's own, which knowledge.settings "
                "does not hold"
            )
        generator = np.random.default_rng(int(evidence.notes["seed"]))
        targets = min(self.targets, len(scores))
        measures, figures = membership_measures(
            scores,
            worlds,
            delta=delta,
            generator=generator,
            confidence=self.confidence,
            targets=targets,
        )
        return self._add_details(
            Finding(view.surface, self.name, self.family, view.adversary, measures, figures),
            evidence,
            worlds,
        )

    def _add_details(self, finding: Finding, evidence: Evidence, worlds: Worlds) -> Finding:
        """The finding with what this attack alone measures."""
        return finding


def unreadable_finding(attack: Attack, view: View, why: str) -> Finding:
    """The finding of an attack that had nothing to read: no rate, so that nobody takes it for one
    that failed."""
    measures: dict[str, Any] = {"status": "nothing_to_read", "note": f"nothing to read: {why}"}
    if view.worlds is not None:
        measures |= {"n": view.worlds.masks.shape[1], "worlds": len(view.worlds.masks)}
    return Finding(view.surface, attack.name, attack.family, view.adversary, measures)


# Copies of a record that are asked about, itself among them: Carlini et al. 2022, section VI-D;
# RMIA's authors ask as many.
PUBLISHED_QUERY_COUNT = 18
Queries = int | Literal["auto"]


def check_queries(queries: Queries) -> None:
    """Raises ValueError for anything but "auto" and a whole number of at least 1."""
    if queries != "auto" and (
        isinstance(queries, bool) or not isinstance(queries, int) or queries < 1
    ):
        raise ValueError(f"queries={queries!r}: auto, or a whole number of at least 1, is needed")


def select_queries(worlds: Worlds, name: str, queries: Queries) -> Tensor:
    """(K, n, q): a signal of q copies of each record, the record itself first (Carlini et al. 2022,
    section VI-D).

    "auto": as many as the worlds hold, 1 if nothing transforms records; a number: at most so many.
    """
    held = worlds.queries.get(name)
    if held is None:
        held = worlds.signals[name].unsqueeze(-1)
    return held if queries == "auto" else held[..., :queries]


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


FALSE_POSITIVE_RATES = (0.001, 0.01, 0.1)
GUESS_SHARES = (0.1, 0.5, 1.0)  # fixed before any score is seen; they share alpha


def check_shadow_signals(
    signals: Tensor, masks: Tensor, target: Tensor, *dimensions: int, finite: bool = True
) -> tuple[Tensor, Tensor, Tensor]:
    """Signals of shadow models (K, n) or, of q a record, (K, n, q), their masks (K, n) and the
    target's signals, in float64.

    Raises ValueError for NaN, for infinity where they have to be ``finite``, and for shapes of
    other ``dimensions``."""
    x = torch.as_tensor(signals).double()
    mask = torch.as_tensor(masks)
    t = torch.as_tensor(target).double()
    if (
        x.ndim not in dimensions
        or mask.dtype != torch.bool
        or mask.shape != x.shape[:2]
        or t.shape != x.shape[1:]
    ):
        wanted = " or ".join("(K, n)" if n == 2 else "(K, n, q)" for n in dimensions)
        raise ValueError(
            f"signals {tuple(x.shape)}, masks {tuple(mask.shape)} {mask.dtype}, target "
            f"{tuple(t.shape)}: signals {wanted}, "
            "masks (K, n) bool and a target like one of the signals are needed"
        )
    if any(torch.isnan(one).any() or (finite and torch.isinf(one).any()) for one in (x, t)):
        raise ValueError("signals or target hold NaN or infinity")
    return x, mask, t


def score_leave_one_out(
    score: Callable[[Tensor, Tensor, Tensor], Tensor], signals: Tensor, masks: Tensor
) -> Tensor:
    """Each world once as the target, the others as its shadow models: (K, n, ...) -> scores (K, n).

    ``score(signals, masks, target)`` never sees the target's own mask row. Masks must be
    independent coins: with a fixed number of IN worlds per record the other rows reveal the
        target's mask, and scores are biased even if nothing leaks."""
    if len(signals) < 2:
        raise ValueError(
            f"worlds={len(signals)}: at least 2 are needed, one as target and one as shadow"
        )
    rows = torch.arange(len(signals))
    return torch.stack(
        [score(signals[rows != k], masks[rows != k], signals[k]) for k in range(len(signals))]
    )


def membership_measures(
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
    rows too, sharing alpha. "worst_records" and "by_kind" are absent where they cannot be seen.
    """
    count, records = worlds.masks.shape
    rates, curve, area_ends = _measure_rates(scores, worlds.masks, confidence)
    bound = one_run_bound(scores, worlds.masks, delta, generator, confidence, targets)
    blind = worlds.blind.double().expand(count, records).flatten()
    measures = {
        "auc": curve.auc,
        "auc_ci": area_ends,
        "tpr_at_fpr": rates,
        "blind_auc": roc(blind, worlds.masks.flatten()).auc,
        "epsilon_shown": bound.value,
        "epsilon_method": bound.method,
        "epsilon_validity": bound.validity,
        "confidence": confidence,
        "n": records,
        "worlds": count,
    }
    if (worst := measure_worst_records(scores, worlds.masks, confidence)) is not None:
        measures["worst_records"] = worst
    if (kinds := measure_by_kind(scores, worlds.masks, worlds.kinds, confidence)) is not None:
        measures["by_kind"] = kinds
    fpr, tpr = thin_curve(curve)
    return measures, {"roc_fpr": fpr, "roc_tpr": tpr}


def one_run_bound(
    scores: Tensor,
    masks: Tensor,
    delta: float,
    generator: np.random.Generator,
    confidence: float = 0.95,
    targets: int = 1,
) -> Bound:
    """The largest one-run bound over the first ``targets`` rows at confidence 1 - alpha / targets
    each."""
    if not 1 <= targets <= len(masks):
        raise ValueError(f"targets={targets}: between 1 and the {len(masks)} worlds")
    guesses = guess_counts(masks.shape[1])
    if not guesses:  # a single record: no pair of guesses, so nothing is shown
        return Bound(0.0, "one_run", "finite_sample", delta, confidence)
    each = shared_confidence(confidence, targets)
    bounds = [
        one_run_from_scores(
            s, m, delta=delta, generator=generator, guesses=guesses, confidence=each
        )
        for s, m in zip(scores[:targets].double().numpy(), masks[:targets].numpy())
    ]
    return replace(max(bounds, key=lambda bound: bound.value), confidence=confidence)


def guess_counts(records: int) -> list[tuple[int, int]]:
    """Pairs (k_in, k_out) that guess GUESS_SHARES of ``records``, half of them in."""
    sides = sorted({max(int(records * share / 2), 1) for share in GUESS_SHARES})
    return [(side, side) for side in sides if 2 * side <= records]


# The blind baseline: can members be told from others without the target? Where the two were not
# drawn from one distribution, a classifier that never sees the model separates them, and no
# attack's numbers speak of the model alone (Das, Zhang and Tramer, "Blind baselines beat membership
# inference attacks for foundation models", 2024).
BLIND_FOLDS = 5
BLIND_COMPONENTS = 24  # principal components of the records; their squares are used as well
# p-value below which the control counts: cross-fitted scores vary up to 1.5 times as much as the
# test assumes (measured), so that this is below 1 in 1 000 of records without any difference
UNFAIR_P_VALUE = 1e-6


@accepts_numpy
def blind_record_scores(
    x: Tensor, labels: Tensor, member: Tensor, generator: torch.Generator
) -> Tensor:
    """Scores (n,) float64 of a ridge classifier on records x (n, ...) and labels (n,), each by one
    fitted without it.

    member (n,) bool. Features: principal components, their squares, and the class. No intercept,
    and each fold is
    centred: else a fold with fewer members would be foretold by the others having more (Stone
        1974)."""
    flat = x.flatten(1).double()
    flat = (flat - flat.mean(0)) / flat.std(0).clamp_min(1e-12)
    if flat.shape[1] > BLIND_COMPONENTS:
        flat = flat @ _principal_axes(flat)
    features = torch.cat([flat, flat.square(), F.one_hot(labels.long()).double()], 1)
    features = (features - features.mean(0)) / features.std(0).clamp_min(1e-12)
    fold = torch.randperm(len(x), generator=generator) % BLIND_FOLDS
    target = member.double() - 0.5
    scores = torch.zeros(len(x), dtype=torch.float64)
    for at in range(BLIND_FOLDS):
        inside = fold != at
        asked = fold == at
        known = features[inside]
        gram = known.T @ known + len(known) * 0.1 * torch.eye(known.shape[1], dtype=torch.float64)
        found = features[asked] @ torch.linalg.solve(
            gram, known.T @ (target[inside] - target[inside].mean())
        )
        scores[asked] = found - found.mean() if len(found) else found
    return scores


@accepts_numpy
def is_separable(blind: Tensor, member: Tensor) -> bool:
    """Whether scores (n,) that saw no target rank members (n,) bool above others (Mann and Whitney
    1947, one-sided)."""
    inside = blind[member].double().numpy()
    outside = blind[~member].double().numpy()
    if not len(inside) or not len(outside):
        return False
    return bool(mannwhitneyu(inside, outside, alternative="greater").pvalue < UNFAIR_P_VALUE)


def _principal_axes(flat: Tensor) -> Tensor:
    """(d, COMPONENTS) of the largest variance, by the smaller of the two Gram matrices."""
    if flat.shape[1] <= len(flat):
        return torch.linalg.eigh(flat.T @ flat).eigenvectors[:, -BLIND_COMPONENTS:]
    vectors = torch.linalg.eigh(flat @ flat.T).eigenvectors[:, -BLIND_COMPONENTS:]
    return F.normalize(flat.T @ vectors, dim=0)
