"""Tests of ``privdd.reporting.finding_selection``."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import beta, binomtest, norm

from privdd.reporting.finding_selection import (
    SENTENCE,
    UNSCORED,
    beats_chance,
    boldest_claim,
    epsilon_bound,
    exceeds_claim,
    exposes_records,
    findings_measuring_claim,
    findings_without_signal,
    has_no_signal,
    is_above_chance,
    ranks_members,
    rebuilds_records,
    shown_epsilon,
    simultaneous_lower_end,
    strongest_membership,
    strongest_on_each_surface,
)
from privdd.reporting.leaks import membership_phrase, picture_phrase
from privdd.reporting.page import write_report
from privdd.reporting.run_record import read_run_record
from privdd.reporting.schema import ClaimRow, FindingRow, Scope, TprAt
from privdd.reporting.summary import is_certain, leak_sentences
from privdd.reporting.terminal import print_summary
from tests.reporting.fixture import text_of, write_run
from tests.reporting.test_decision import run

# Which claim the page puts first, when a measure exceeds it, and which attacks measure it.

ALONE = Scope(looks=1)


def claim(epsilon: Any, **more: Any) -> ClaimRow:
    return ClaimRow(source="s", epsilon=epsilon, sound=False, why="w", **more)


def test_no_number_is_passed_over() -> None:
    assert claim("no number").number is None and claim("inf").number == float("inf")
    found = boldest_claim([claim("no number"), claim(2.0), claim(1.0)])
    assert found is not None and found.number == 1.0
    assert boldest_claim([claim("no number")]) is None
    with pytest.raises(ValueError):
        claim("some number")


def test_a_measure_exceeds_only_a_claim_of_the_same_delta_or_less() -> None:
    assert exceeds_claim(claim(1.0), 2.0, 1e-5) and exceeds_claim(claim(1.0, delta=1e-5), 2.0, 1e-5)
    assert exceeds_claim(claim(1.0, delta=1e-6), 2.0, 1e-5)
    assert not exceeds_claim(
        claim(1.0, delta=1e-3), 2.0, 1e-5
    )  # more may fail there: not the same statement
    assert not exceeds_claim(claim(3.0), 2.0, 1e-5) and not exceeds_claim(
        claim("no number"), 2.0, 1e-5
    )
    assert not exceeds_claim(None, 2.0, 1e-5) and not exceeds_claim(claim(1.0), None, 1e-5)


def test_only_attacks_that_measured_something_stand_by_a_claim() -> None:
    def row(attack: str, **more: Any) -> FindingRow:
        head = {"surface": "update", "family": "membership", "adversary": "server"}
        return FindingRow(attack=attack, **head, **more)

    rows = [row("lira", auc=0.7), row("lira", note="nothing to read"), row("rmia", auc=0.6)]
    assert (
        findings_measuring_claim(claim("no number", tested_by=["lira", "copy_detection"]), rows)
        == rows[:1]
    )


# The rule of significance against scipy's binomial interval.


@pytest.mark.nightly(
    cases=[
        "1-0.0-281",
        "1-0.1-281",
        "1-0.5-281",
        "1-0.99-281",
        "80-0.0-281",
        "80-0.1-281",
        "80-0.5-281",
        "80-0.99-281",
    ]
)
@pytest.mark.parametrize("n", [1, 2, 12, 40, 281])
@pytest.mark.parametrize("chance", [0.0, 0.1, 0.5, 0.99])
@pytest.mark.parametrize("looks", [1, 80])
def test_above_chance_is_the_exact_interval(n: int, chance: float, looks: int) -> None:
    """At a confidence that all looks share (Bonferroni)."""
    for hits in range(n + 1):
        low = binomtest(hits, n).proportion_ci(1 - 0.05 / looks, method="exact").low
        assert is_above_chance(hits / n, chance, n, looks) is bool(low > chance), (hits, n)


def test_a_bound_counts_at_the_confidence_that_all_tests_share() -> None:
    alone = row(0.1, (0.05, 0.2), epsilon_shown=3.0, epsilon_validity="finite_sample")
    shared = alone.model_copy(update={"diagnostics": {"epsilon_familywise": 0.5}})
    assert (epsilon_bound(alone), epsilon_bound(shared), shown_epsilon([shared])) == (
        3.0,
        0.5,
        0.5,
    )


def test_without_a_count_nothing_is_above_chance() -> None:
    assert not is_above_chance(1.0, 0.1, None) and not is_above_chance(1.0, 0.1, 0)


def test_guessing_reaches_the_false_positive_rate() -> None:
    # 1.6 % at 1 %: what an early page called "found"
    at = TprAt(tpr=0.016, ci=(0.0019, 0.057), resolvable=True)
    assert not beats_chance(at, 0.01, ALONE) and beats_chance(at, 0.001, ALONE)


@pytest.mark.parametrize("looks", [1, 20, 120])
def test_all_intervals_of_a_run_hold_together(looks: int) -> None:
    """Of runs whose attacks all guess, at most 5 % have any rate above guessing; uncorrected, most
    do."""
    rng = np.random.default_rng(3)
    n = 400
    fpr = 0.1
    hits = rng.binomial(n, fpr, (2000, looks))
    low = beta.ppf(0.025, hits, n - hits + 1)
    corrected = np.vectorize(simultaneous_lower_end)(hits / n, np.nan_to_num(low), looks)
    assert (corrected > fpr).any(axis=1).mean() <= 0.05
    assert looks == 1 or (low > fpr).any(axis=1).mean() > 0.3


def test_the_widened_end_is_that_of_a_normal_interval() -> None:
    """Near one half and with many tries, arcsine and plain normal intervals agree."""
    for looks in (1, 7, 60):
        z = norm.isf(0.025 / looks)
        assert simultaneous_lower_end(0.52, 0.52 - 1.96 * 0.004, looks) == pytest.approx(
            0.52 - z * 0.004, abs=5e-5
        )


def test_a_strong_attack_is_found_in_a_report_of_many_rates() -> None:
    """The same 10 % to 20 % interval counts alone, and not among 80 rates; a clear leak counts
    among 80."""
    weak = row(0.147, (0.105, 0.196))
    assert (
        strongest_membership([weak], ALONE).beats_chance
        and not strongest_membership(*several([weak])).beats_chance
    )
    assert strongest_membership(*several([row(0.6, (0.52, 0.68))])).beats_chance


def test_the_largest_auc_of_many_is_no_attack_by_itself() -> None:
    lucky = row(0.1, (0.05, 0.2), auc=0.55, auc_ci=(0.505, 0.595))
    _, scope = several([lucky])
    assert ranks_members(lucky, ALONE) and not ranks_members(lucky, scope)


def exposed(hits: int, trials: int, wrong: int | None, out: int | None) -> dict[str, object]:
    ci = (
        float(beta.ppf(0.025, hits, trials - hits + 1)) if hits else 0.0,
        float(beta.ppf(0.975, hits + 1, trials - hits)),
    )
    one = {
        "record": 3,
        "hits": hits,
        "trials": trials,
        "tpr": hits / trials,
        "ci": ci,
        "wrong": wrong,
        "out": out,
    }
    return {"share": 0.01, "tpr": hits / trials, "ci": ci, "records": [one]}


def test_one_record_that_is_nearly_always_found_is_the_strongest_where_the_average_guesses() -> (
    None
):
    """28 of 35 replays at 1 in 1 000: it comes before a rate of all records at 1 in 10, and before
    an AUC."""
    guess = {"0.001": TprAt(tpr=0.0011, ci=(0.0, 0.004), resolvable=True)}
    known = row(
        0.1,
        (0.05, 0.2),
        worst_records=exposed(28, 35, 0, 29),
        n=117,
        auc=0.55,
        auc_ci=(0.49, 0.61),
        tpr_at_fpr=guess,
        attack="base",
    )
    ranked = row(0.1, (0.05, 0.2), auc=0.9, auc_ci=(0.88, 0.92), attack="rmia")
    often = row(0.4, (0.35, 0.45), attack="lira")
    best = strongest_membership(*several([ranked, known, often]))
    assert best.row.attack == "base" and best.kind == "exposed" and best.exposed and not best.counts
    said = membership_phrase(best).replace("\u00a0", " ")
    assert said == (
        "can identify 1 of 117 records, in 28 of the 35 replays that hold it, at "
        "0.1 % FPR; "
        "of all records it was not shown to identify more than chance"
    )
    assert [one.attack for one in strongest_on_each_surface([ranked, known, often], ALONE)] == [
        "base"
    ]
    (can,) = leak_sentences(*several([ranked, known, often]))
    assert can.replace("\u00a0", " ") == f"The server {said}" and is_certain([known], ALONE)


@pytest.mark.parametrize(
    ("wrong", "out", "counts"), [(0, 35, True), (25, 35, False), (9, 35, True)]
)
def test_a_record_that_is_named_in_and_out_is_not_exposed(
    wrong: int | None, out: int | None, counts: bool
) -> None:
    """28 of 35 in: against how often it is named while it is out."""
    assert (
        exposes_records(row(0.1, (0.05, 0.2), worst_records=exposed(28, 35, wrong, out)), ALONE)
        is counts
    )


def test_of_runs_in_which_no_record_is_exposed_at_most_one_in_twenty_has_one() -> None:
    """A record that is named by chance in a third of all replays, in or out, in each of 20
    findings."""
    rng = np.random.default_rng(1)
    runs = 0
    for _ in range(100):
        named = zip(rng.binomial(35, 0.3, 20).tolist(), rng.binomial(30, 0.3, 20).tolist())
        rows = [
            row(0.1, (0.05, 0.2), worst_records=exposed(hits, 35, wrong, 30))
            for hits, wrong in named
        ]
        runs += any(exposes_records(one, Scope(looks=40)) for one in rows)
    assert runs <= 5


def pictured(
    clear: int, n: int, chance: float | None, best: float | None = None, median: float = 10.0
) -> FindingRow:
    seen = {
        "n": n,
        "median": median,
        "guess": 12.0,
        "clear": clear,
        "best": 21.6,
        "best_guess": 14.0,
    }
    more = {
        name: value
        for name, value in (("chance", chance), ("chance_best", best))
        if value is not None
    }
    known = {
        "surface": "update",
        "attack": "analytic_inversion",
        "family": "gradient_inversion",
        "adversary": "server",
    }
    return FindingRow.model_validate(known | {"psnr": 10.9, "n": n, "pictures": seen | more})


@pytest.mark.parametrize(
    ("row", "rebuilt", "said"),
    [
        (
            pictured(12, 100, 0.01),
            True,
            "12 of 100 images clearly closer than every guess, the one furthest above "
            "its guess at 21.6",
        ),
        (
            pictured(1, 4, 0.01, 1e-6),
            True,
            "1 of 4 images clearly closer than every guess, the one furthest above its "
            "guess at 21.6",
        ),
        (pictured(1, 4, 0.01, 0.01), True, "1 of 4"),
        (
            pictured(1, 4, 0.01, 0.03),
            False,
            "was not shown to reconstruct images clearly closer than a guess: 1 of 4 "
            "are, too few to distinguish from chance",
        ),
        (
            pictured(0, 4, 0.01, 0.5),
            False,
            "was not shown to reconstruct images clearly closer than a guess: 10.0",
        ),
        (pictured(0, 4, 0.01, 0.5, 12.5), True, "can reconstruct images: 12.5 dB, the median of 4"),
    ],
)
def test_single_pictures_decide_where_chance_does_not_explain_them(
    row: FindingRow, rebuilt: bool, said: str
) -> None:
    words = picture_phrase(row, ALONE).replace("\u00a0", " ")
    assert rebuilds_records(row, ALONE) is rebuilt and said in words and "average" not in words
    assert bool(leak_sentences([row], ALONE)) is rebuilt


def row(tpr: float, ci: tuple[float, float], **more: object) -> FindingRow:
    at = TprAt(tpr=tpr, ci=ci, resolvable=True)
    known = {
        "surface": "features",
        "attack": "lira",
        "family": "membership",
        "adversary": "server",
        "tpr_at_fpr": {"0.1": at},
    }
    return FindingRow.model_validate(known | more)


def several(rows: list[FindingRow]) -> tuple[list[FindingRow], Scope]:
    """The rows as findings of a run that looks at 80 rates and more."""
    all_rows = [*rows, *[row(0.1, (0.06, 0.15))] * (80 - len(rows))]
    findings = run([one.model_dump(exclude_none=True) for one in all_rows], "unprotected", "inf")
    return findings.findings[: len(rows)], findings.scope


# Attacks that had nothing to read are named as such: never a rate, never "no better than guessing".


KEPT = ("surface", "attack", "family", "adversary", "n", "worlds")


def run_with(folder: Path, silent: set[str]) -> Path:
    """A finished run whose membership attacks named in ``silent`` had nothing to read."""
    write_run(folder)
    data = json.loads((folder / "findings.json").read_text())
    rows = []
    for row in data["findings"]:
        if row["attack"] in silent:
            row = {key: row[key] for key in KEPT} | {
                "status": "nothing_to_read",
                "note": "nothing to read: the same",
            }
        rows.append(row)
    if "auc" in rows[0]:
        rows[0]["worst_records"] = exposed(47, 64, 0, 64)
    data["findings"] = rows
    (folder / "findings.json").write_text(json.dumps(data))
    return folder


def said(folder: Path) -> str:
    out = io.StringIO()
    print_summary(read_run_record(folder).findings, out, 400)
    return out.getvalue()


@pytest.fixture(scope="module")
def silent(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run_with(tmp_path_factory.mktemp("unread") / "all", {"lira", "threshold", "rmia"})


def test_a_run_in_which_no_attack_had_anything_to_read_says_so(silent: Path) -> None:
    findings = read_run_record(silent).findings
    assert [row.attack for row in findings_without_signal(findings)] == [
        "lira",
        "threshold",
        "rmia",
    ]
    assert SENTENCE in said(silent).replace("\n", " ")
    page = write_report(silent).read_text()
    for text in (said(silent), page):
        assert (
            "not shown to do better than chance" not in text and "not shown to identify" not in text
        )
        assert UNSCORED in text.replace("\n", " ")
    assert "Not applicable: LiRA on the" in page


def test_one_attack_that_read_something_speaks_for_the_surface(tmp_path: Path) -> None:
    folder = run_with(tmp_path / "one", {"threshold"})
    findings = read_run_record(folder).findings
    page = text_of(folder)
    assert not has_no_signal([row for row in findings.findings if row.surface == "features"])
    assert SENTENCE not in said(folder) and "Not applicable: threshold on the" in page
    assert (
        "47 of 64<small>replays of 1 of 250 records; 60.9\u00a0% to 83.7\u00a0%" in page
    )  # the most exposed records
    assert "; repeatedly 1 of 250 records" in page


def test_only_membership_attacks_that_ran_count(silent: Path) -> None:
    rows = read_run_record(silent).findings.findings
    assert has_no_signal(rows) and not has_no_signal(
        [row for row in rows if row.family != "membership"]
    )
    assert not has_no_signal([row.model_copy(update={"status": "not_attacked"}) for row in rows])
