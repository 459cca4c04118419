"""What a membership attack is measured by: rates at low FPR, the most exposed records, epsilon.

Beside the average over records stand the rates of the most exposed ones (Aerni, Zhang and Tramer
2024), which an average hides. Scores are (K, n): each of K replays was the target once, with the
others as its shadow models."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from attacks.epsilon import Bound
from attacks.measures import MembershipMeasures
from attacks.membership.calibration import MIN_REPLAYS, calibrate_by_record
from attacks.one_run import one_run_from_scores
from attacks.roc import Clusters, Roc, auc_interval, roc, thin_curve, tpr_at_fpr
from attacks.statistics import binomial_interval, shared_confidence
from attacks.tensors import accepts_numpy
from attacks.types import Worlds

FALSE_POSITIVE_RATES = (0.001, 0.01, 0.1)
GUESS_SHARES = (0.1, 0.5, 1.0)  # fixed before any score is seen; they share alpha
WORST_SHARE = 0.01  # of the records
WORST_RECORD_FPR = 0.001


@accepts_numpy
def measure_rates_per_record(
    signals: Tensor, masks: Tensor, confidence: float = 0.95
) -> dict[str, Any] | None:
    """{FPR: {"tpr", "ci", "resolvable"}} with that false-positive rate for each record by itself.

    The rate is the mean over records, of any score that rises with the record's signal
    (``attacks.membership.calibration``).

    Args:
        signals: (K, n), each computed from its own replay alone.
        masks: (K, n) inclusion bits.
        confidence: of the intervals, in (0, 1).

    Returns:
        None below 16 replays, and if no record has enough of them in and out.
    """
    if len(signals) < MIN_REPLAYS:
        return None
    calibrated = calibrate_by_record(signals, masks)
    has_score = calibrated.isfinite().all(0)
    judged = masks[:, has_score]
    if not judged.any() or judged.all():
        return None
    return _measure_rates(calibrated[:, has_score], judged, confidence)[0]


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
    for fpr in FALSE_POSITIVE_RATES:
        tpr, ends, resolvable = tpr_at_fpr(
            flat, member, fpr, confidence, clusters=clusters, curve=curve
        )
        rates[str(fpr)] = {"tpr": tpr, "ci": list(ends), "resolvable": resolvable}
    return rates, curve, list(auc_interval(flat, member, confidence, clusters=clusters))


@dataclass
class _RecordCounts:
    """Of one record: hits among the replays that it is in, false positives among the others."""

    hits: int = 0
    trials: int = 0
    wrong: int = 0
    out: int = 0

    def add_replays(self, is_flagged: Tensor, mask: Tensor) -> None:
        """Adds replays (k,): whether the record was flagged in each, and whether it was in."""
        self.hits += int((is_flagged & mask).sum())
        self.trials += int(mask.sum())
        self.wrong += int((is_flagged & ~mask).sum())
        self.out += int((~mask).sum())


@accepts_numpy
def measure_worst_records(
    scores: Tensor, masks: Tensor, confidence: float = 0.95
) -> dict[str, Any] | None:
    """How often the worst 1 % of records are identified when in, at a false-positive rate of 0.001.

    The worst records are chosen in one half of the replays and judged in the other, both ways:
    chosen and judged on the same replays, the luckiest would look exposed on a null as well. One
    threshold serves all records.

    Args:
        scores: (K, n), larger = member.
        masks: (K, n) inclusion bits.
        confidence: of the intervals, in (0, 1).

    Returns:
        {"share", "tpr", "ci", "records"}. ci: Clopper-Pearson over the replays that judge, which
        takes them as independent given the records. records: of each chosen one {"record", "hits",
        "trials", "tpr", "ci", "wrong", "out"}, by position: hits of trials that it is in, wrong of
        out that it is not in; its ci is not corrected for several. None with too few non-members to
        see the rate, or fewer than 4 replays.
    """
    is_flagged = _scores_above_threshold(scores, masks)
    if is_flagged is None or len(scores) < 4:
        return None
    chosen = max(1, math.ceil(WORST_SHARE * scores.shape[1]))
    even = torch.arange(len(scores)) % 2 == 0
    counts: dict[int, _RecordCounts] = {}
    for judging in (even, ~even):
        choosing = ~judging
        ranking = _rank_by_exposure(scores[choosing], is_flagged[choosing], masks[choosing])
        for record in ranking[:chosen].tolist():
            record_counts = counts.setdefault(record, _RecordCounts())
            record_counts.add_replays(is_flagged[judging][:, record], masks[judging][:, record])
    hits = sum(record_counts.hits for record_counts in counts.values())
    trials = sum(record_counts.trials for record_counts in counts.values())
    if not trials:
        return None
    return {
        "share": WORST_SHARE,
        "tpr": hits / trials,
        "ci": list(binomial_interval(hits, trials, confidence)),
        "records": [
            _describe_record(record, counts[record], confidence)
            for record in sorted(counts)
            if counts[record].trials
        ],
    }


def _describe_record(record: int, counts: _RecordCounts, confidence: float) -> dict[str, Any]:
    return {
        "record": record,
        "hits": counts.hits,
        "trials": counts.trials,
        "tpr": counts.hits / counts.trials,
        "ci": list(binomial_interval(counts.hits, counts.trials, confidence)),
        "wrong": counts.wrong,
        "out": counts.out,
    }


@accepts_numpy
def measure_by_kind(
    scores: Tensor, masks: Tensor, kinds: Mapping[str, Tensor], confidence: float = 0.95
) -> dict[str, dict[str, Any]] | None:
    """{kind: {"n", "auc", "tpr", "fpr", "ci"}} of records that are hard to fit by construction, and
    of the "ordinary" rest.

    tpr and fpr are those of each kind at the one threshold for all records whose false-positive
    rate is 0.001; fpr shows whether it is fair to the kind. ci is that of tpr, Clopper-Pearson over
    the members, taken as independent.

    Args:
        scores: (K, n), larger = member.
        masks: (K, n) inclusion bits.
        kinds: name -> positions (m,) of its records.
        confidence: of the intervals, in (0, 1).

    Returns:
        None without kinds, and if the rate cannot be seen.
    """
    if not kinds:
        return None
    is_flagged = _scores_above_threshold(scores, masks)
    if is_flagged is None:
        return None
    is_ordinary = torch.ones(scores.shape[1], dtype=torch.bool)
    for positions in kinds.values():
        is_ordinary[positions] = False
    measures = {}
    for kind, positions in {**kinds, "ordinary": is_ordinary.nonzero()[:, 0]}.items():
        mask = masks[:, positions]
        hit = is_flagged[:, positions]
        members = int(mask.sum())
        non_members = int((~mask).sum())
        if not members or not non_members:
            continue
        hits = int((hit & mask).sum())
        measures[kind] = {
            "n": len(positions),
            "auc": roc(scores[:, positions].flatten(), mask.flatten()).auc,
            "tpr": hits / members,
            "fpr": int((hit & ~mask).sum()) / non_members,
            "ci": list(binomial_interval(hits, members, confidence)),
        }
    return measures


def _scores_above_threshold(scores: Tensor, masks: Tensor) -> Tensor | None:
    """(K, n): which scores lie above the threshold of WORST_RECORD_FPR; None with too few
    non-members to see that rate."""
    ordered = scores[~masks].sort(descending=True).values  # of the non-members
    if len(ordered) * WORST_RECORD_FPR < 1:
        return None
    return scores > ordered[int(WORST_RECORD_FPR * len(ordered))]


def _rank_by_exposure(scores: Tensor, is_flagged: Tensor, masks: Tensor) -> Tensor:
    """Records by falling share of the replays with them that flag them; ties by their mean score
    when in."""
    members = masks.sum(0).clamp_min(1)
    rate = (is_flagged & masks).sum(0).double() / members
    mean = scores.double().masked_fill(~masks, 0).sum(0) / members
    order = mean.argsort(descending=True, stable=True)
    return order[rate[order].argsort(descending=True, stable=True)]


def membership_measures(
    scores: Tensor,
    worlds: Worlds,
    *,
    delta: float,
    generator: np.random.Generator,
    confidence: float = 0.95,
    targets: int = 1,
) -> tuple[MembershipMeasures, dict[str, Tensor]]:
    """The measures and figures of a membership finding from ``scores`` (K, n).

    ROC, AUC and TPR pool all K leave-one-replay-out targets. Their intervals are clustered two
    ways, by record and by replay, because each replay also serves as a shadow model of the others.
    Epsilon is Steinke's one-run bound on the run that happened (row 0) and, with ``targets`` > 1,
    on the next rows too, sharing alpha. ``worst_records`` and ``by_kind`` are None if they cannot
    be seen.
    """
    count, records = worlds.masks.shape
    rates, curve, area_ends = _measure_rates(scores, worlds.masks, confidence)
    bound = one_run_bound(scores, worlds.masks, delta, generator, confidence, targets)
    blind = worlds.blind.double().expand(count, records).flatten()
    measures = MembershipMeasures(
        auc=curve.auc,
        auc_ci=area_ends,
        tpr_at_fpr=rates,
        worst_records=measure_worst_records(scores, worlds.masks, confidence),
        by_kind=measure_by_kind(scores, worlds.masks, worlds.kinds, confidence),
        blind_auc=roc(blind, worlds.masks.flatten()).auc,
        epsilon_shown=bound.value,
        epsilon_method=bound.method,
        epsilon_validity=bound.validity,
        confidence=confidence,
        n=records,
        worlds=count,
    )
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
        raise ValueError(f"targets={targets}: must be between 1 and the {len(masks)} worlds")
    guesses = guess_counts(masks.shape[1])
    if not guesses:  # a single record: no pair of guesses, so nothing is shown
        return Bound(0.0, "one_run", "finite_sample", delta, confidence)
    each = shared_confidence(confidence, targets)
    rows = zip(scores[:targets].double().numpy(), masks[:targets].numpy())
    bounds = [
        one_run_from_scores(
            row, mask, delta=delta, generator=generator, guesses=guesses, confidence=each
        )
        for row, mask in rows
    ]
    return replace(max(bounds, key=lambda bound: bound.value), confidence=confidence)


def guess_counts(records: int) -> list[tuple[int, int]]:
    """Pairs (k_in, k_out) that guess GUESS_SHARES of ``records``, half of them in."""
    sides = sorted({max(int(records * share / 2), 1) for share in GUESS_SHARES})
    return [(side, side) for side in sides if 2 * side <= records]
