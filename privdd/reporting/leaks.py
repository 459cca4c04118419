"""What attackers did to an artifact, in words: only what beat guessing, or a limit, by the rule of ``strongest``."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from privdd.reporting import strongest, words
from privdd.reporting.schema import FindingRow
from privdd.reporting.words import number, one_in, share

LARGE_EPSILON = 8.0  # above it a limit is no reassurance: odds about a record may change 3 000-fold


def leaks(rows: Sequence[FindingRow]) -> list[str]:
    """The most serious first; empty where nothing beat guessing."""
    found = (_limits, _members, _pictures, _names, _features, _labels)
    return [phrase for tell in found for phrase in tell(rows)]


def certain(rows: Sequence[FindingRow]) -> bool:
    """Whether any of it has an interval above guessing, at 95 % for all rates of the run; pictures and features have none."""
    return any(tell(rows) for tell in (_limits, _members, _names, _labels))


def who(row: FindingRow) -> str:
    """The party that an attack plays, as a sentence begins: "The server"."""
    name = words.ADVERSARY[row.adversary][0]
    return name[0].upper() + name[1:]


def _limits(rows: Iterable[FindingRow]) -> list[str]:
    rows = list(rows)
    said = []
    over = [
        r
        for r in rows
        if r.epsilon_stated is not None
        and r.epsilon_validity != "gaussian_only"
        and strongest.bound(r) > r.epsilon_stated
    ]
    if over:
        worst = max(over, key=lambda r: (r.epsilon_validity != "curve", strongest.bound(r)))
        by = words.attack(worst.attack)
        proves = (
            "refutes the stated curve: the true ε is above"
            if worst.epsilon_validity == "curve"
            else "proves that the true ε is at least"
        )
        said.append(
            f"{by[0].upper()}{by[1:]} {proves} {number(strongest.bound(worst))} "
            f"({share(worst.confidence or 0.95)} confidence); {number(worst.epsilon_stated)} is stated"
        )
    moved = [r for r in rows if r.kappa is not None and r.kappa > (r.kappa_allowed or math.inf) * 1.0001]
    if moved:
        worst = max(moved, key=lambda r: r.kappa or 0.0)
        said.append(
            f"One record moves it {number(worst.kappa)} times as far as the proof allows for ({number(worst.kappa_allowed)})"
        )
    return said + [row.note for row in rows if row.note and (row.diagnostics or {}).get("refuted")]


def weak_noise(rows: Iterable[FindingRow]) -> list[str]:
    """Of what has noise and still no limit: that a test of the noise itself showed a large epsilon."""
    best = strongest.measured(r for r in rows if r.family == "guarantee")
    if best is None or strongest.bound(best) <= LARGE_EPSILON:
        return []
    return [
        f"Its noise does not hide every record: for a crafted one, {words.attack(best.attack)} proves that the true ε is "
        f"at least {number(strongest.bound(best))}"
    ]


def _members(rows: Iterable[FindingRow]) -> list[str]:
    rows = list(rows)
    best = strongest.finds_members(rows)
    if best is not None:
        low, high = best.at.ci
        worst = best.row.worst_records
        tail = (
            f"; of the most exposed {share(worst.share)} of records, {share(worst.tpr)}"
            if worst and strongest.lower_end(worst.tpr, worst.ci[0], best.row._looks.count) > 0.001
            else ""
        )
        return [
            f"{who(best.row)} can name {share(best.at.tpr)} of the training records at {one_in(best.fpr)} false alarms "
            f"(95 %: {share(low)} to {share(high)}){tail}"
        ]
    ranked = strongest.ranks_members(rows)
    if ranked is None:
        return []
    return [f"{who(ranked)} tells training records from others more often than a coin would (AUC {share(ranked.auc)})"]


def _pictures(rows: Iterable[FindingRow]) -> list[str]:
    best = strongest.best_pictures(rows)
    if best is None or not strongest.rebuilds(best):
        return []
    tries = f", median of {best.n}" if best.n else ""
    return [
        f"{who(best)} can rebuild records as pictures at {number(best.psnr)} dB{tries}; "
        f"the best guess without it reaches {number(strongest.blind_psnr(best))} dB"
    ]


def _names(rows: Iterable[FindingRow]) -> list[str]:
    known = [(r, r.identified, r.identified_chance) for r in rows]
    over = [
        (r, hit, chance)
        for r, hit, chance in known
        if hit is not None and chance is not None and strongest.above_chance(hit, chance, r.n, r._looks.count)
    ]
    if not over:
        return []
    row, hit, chance = max(over, key=lambda one: one[1] - one[2])
    return [f"{who(row)} can match {share(hit)} of what it holds to the right record (chance {share(chance)})"]


def _features(rows: Iterable[FindingRow]) -> list[str]:
    return [
        f"{who(r)}, knowing one record, can take the noise off others' features: {number(r.psnr)} dB instead of {number(seen)} dB"
        for r in rows
        if r.attack in strongest.FEATURE_ATTACKS
        and (r.psnr or 0.0) > (seen := (r.baselines or {}).get("psnr_as_released", 0.0)) + 1
    ]


def _labels(rows: Iterable[FindingRow]) -> list[str]:
    over = [one for one in label_rates(rows) if strongest.above_chance(one[1], one[2], one[0].n, one[0]._looks.count)]
    if not over:
        return []
    row, rate, chance = max(over, key=lambda one: one[1])
    tail = f" (guessing {share(chance)})" if chance else ""
    return [f"{who(row)} can read which classes a client holds: {share(rate)} right{tail}"]


def label_rates(rows: Iterable[FindingRow]) -> list[tuple[FindingRow, float, float]]:
    """(finding, share of labels read, share that guessing reads or 0 where that is not known), of attacks on labels."""
    return [
        (r, r.label_accuracy, strongest.label_chance(r) or 0.0)
        for r in rows
        if r.family == "label" and r.label_accuracy is not None
    ]
