"""What attackers did to an artifact, in words: only what beat guessing, or a limit, by the rule of ``strongest``."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from privdd.reporting import strongest, words
from privdd.reporting.schema import FindingRow, Findings
from privdd.reporting.strongest import Membership
from privdd.reporting.words import decibel, number, one_in, share

LARGE_EPSILON = 8.0  # above it a limit is no reassurance: odds about a record may change 3 000-fold


def leaks(rows: Sequence[FindingRow]) -> list[str]:
    """The most serious first; empty where nothing beat guessing."""
    found = (_limits, _members, _pictures, _names, _features, _labels)
    return [phrase for tell in found for phrase in tell(rows)]


def doubts(findings: Findings) -> list[str]:
    """Why a target's files allow no comparison of members with others; empty for a simulation."""
    return findings.target.doubts if findings.target else []


def believed(rows: Sequence[FindingRow], findings: Findings) -> Sequence[FindingRow]:
    """The rows that can be read as leaks: where there are doubts, none that compares members with others."""
    if not doubts(findings):
        return rows
    return [row for row in rows if row.family != "membership" and row.identified is None]


def certain(rows: Sequence[FindingRow]) -> bool:
    """Whether any of it has an interval above guessing, at 95 % for all rates of the run; the typical picture and features
    have none."""
    return any(tell(rows) for tell in (_limits, _members, _names, _labels)) or any(map(strongest.stands_out, rows))


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
            f"One {worst._looks.unit} moves it {number(worst.kappa)} times as far as the proof allows for ({number(worst.kappa_allowed)})"
        )
    return said + [row.note for row in rows if row.note and (row.diagnostics or {}).get("refuted")]


def weak_noise(rows: Iterable[FindingRow]) -> list[str]:
    """Of what has noise and still no limit: that a test of the noise itself showed a large epsilon."""
    best = strongest.measured(r for r in rows if r.family == "guarantee")
    if best is None or strongest.bound(best) <= LARGE_EPSILON:
        return []
    return [
        f"Its noise does not hide every {best._looks.unit}: for a crafted one, {words.attack(best.attack)} proves that the true ε is "
        f"at least {number(strongest.bound(best))}"
    ]


def _members(rows: Iterable[FindingRow]) -> list[str]:
    best = strongest.worst_membership(rows)
    if best is None or not best.beats_guessing:
        return []
    return [f"{who(best.row)} can {membership(best)}"]


def membership(best: Membership, brief: bool = False) -> str:
    """What the strongest attack does, after "can": one wording for decision, table, sentence and card.

    brief: without intervals and single records.
    """
    row, worst, rate = best.row, best.exposed, f"at {one_in(best.fpr)} false alarms"
    coin = f"tell training records from others more often than a coin would (AUC {share(row.auc)})"
    if not best.beats_guessing:
        return f"find no more members than guessing does {rate}"
    if best.kind == "ranking":
        return coin
    top = max(worst.records, key=lambda one: one.ci[0], default=None) if worst else None
    single = (
        f", one of them in {top.hits} of the {top.trials} replays that hold it"
        if top and top.hits and not brief
        else ""
    )
    if best.counts and best.at is not None:
        tail = f"; of the most exposed {share(worst.share)} of records, {share(worst.tpr)}{single}" if worst else ""
        return f"name {share(best.at.tpr)} of the training records {rate}{'' if brief else _between(best.at.ci)}{tail}"
    if worst is None:
        return coin
    average = f"; of all records no more than guessing would{f', yet it can {coin}' if strongest.ranks(row) else ''}"
    said = f"name {share(worst.tpr)} of the most exposed {share(worst.share)} of records {rate}"
    return said if brief else f"{said}{_between(worst.ci)}{single}{average}"


def _between(interval: tuple[float, float]) -> str:
    return f" (95 %: {share(interval[0])} to {share(interval[1])})"


def _pictures(rows: Iterable[FindingRow]) -> list[str]:
    best = strongest.best_pictures(rows)
    return [f"{who(best)} can {pictures(best)}"] if best is not None and strongest.rebuilds(best) else []


def pictures(row: FindingRow, brief: bool = False) -> str:
    """What a reconstruction does, after "can": one wording for decision, table, sentence and card. brief: for the table."""
    seen, base, closer = row.pictures, strongest.blind_psnr(row), strongest.rebuilds(row)
    if seen is None:  # of an earlier version: means alone
        guess = f" (the best guess without it {number(base)} dB)" if base is not None else ""
        of = f" on average of {row.n}" if row.n else " on average"
        rebuilt = "pictures at" if closer or base is None else "no picture closer than a blind guess does:"
        return f"rebuild {rebuilt} {number(row.psnr)} dB{of}{guess}"
    typical = f"{decibel(seen.median)}, the median of {seen.n} (the best guess without it {decibel(seen.guess)})"
    typical = f"a median of {decibel(seen.median)} (guess {decibel(seen.guess)})" if brief else typical
    if not seen.clear:
        return f"rebuild {'pictures' if closer else 'no picture clearly closer than a blind guess'}: {typical}"
    best = f"the best at {decibel(seen.best)} where the closest guess reaches {decibel(seen.best_guess)}"
    single = f"rebuild {seen.clear} of {seen.n} pictures clearly closer than every guess, {best}"
    if strongest.stands_out(row):
        return single if brief else f"{single}; all: {typical}"
    if closer:
        return (
            f"rebuild pictures: {typical}{'' if brief else f'; {seen.clear} of them clearly closer than every guess'}"
        )
    return f"{single}, too few to tell from chance{'' if brief else f'; all: {typical}'}"


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
