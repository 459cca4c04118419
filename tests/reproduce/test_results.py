"""Tests of ``privdd.reproduce.results``."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from privdd.reproduce import results
from privdd.reproduce.catalogue import SPEED, PaperEntry, Sentence, find_entry, load_catalogue
from privdd.reproduce.results import (
    UNSAID,
    RowResult,
    TableColumn,
    _compare_column,
    collect_results,
    compare_pair,
    find_uneven_rows,
    kendall_tau,
    order_statement,
    setting_differences,
)
from privdd.reproduce.sentences import (
    CANNOT_TELL,
    HOLDS,
    HOLDS_IN_MEAN,
    REVERSED,
    REVERSED_IN_MEAN,
    OrderStatement,
    RowPair,
    adjust_holm,
    p_value,
)
from privdd.reproduce.train import PaperCell, merge_overrides, pairs_digest, paper_cells
from tests.reporting.test_comparison import training

# What a page says of an entry: rows without all their seeds take no part, and what went wrong is
# written down.


CELLS = paper_cells(find_entry("feddm.table4"), "small")
ENTRY = PaperEntry(
    "feddm.table4",
    "x",
    "feddm_table4",
    sentences=(
        Sentence("b beats c", 1, (("b", "c"),)),
        Sentence("a beats c", 1, (("a", "c"),)),
        Sentence("a is best", best=("a",)),
    ),
)


def row(name: str, printed: float, *ends: float, diverged: int = 0, **more: Any) -> RowResult:
    return RowResult(
        PaperCell("c", name, printed, CELLS[0].overrides),
        False,
        {seed: (end,) for seed, end in enumerate(ends)},
        (8.0,),
        (4.0,),
        diverged=diverged,
        **more,
    )


def pair_verdict(better: RowResult, worse: RowResult) -> str:
    return OrderStatement((compare_pair(better, worse),)).verdict


def column(*rows: RowResult, seeds: int = 2) -> TableColumn:
    return _compare_column(ENTRY, "c", rows, seeds)


def test_a_sentence_needs_all_seeds_of_all_rows_that_it_names() -> None:
    made = column(row("a", 90.0, 0.9, 0.8), row("b", 80.0, 0.7, 0.6), row("c", 70.0, 0.95))
    assert [one.missing for one in made.sentences] == [("c",)] * 3
    assert [one.order for one in made.sentences] == [None] * 3
    assert made.tau is not None and made.tau[2] == 1
    whole = column(row("a", 90.0, 0.9, 0.8), row("b", 80.0, 0.7, 0.6), row("c", 70.0, 0.95, 0.9))
    assert [one.sentence.says for one in whole.sentences] == ["b beats c", "a beats c", "a is best"]
    compared = [[(p.better, p.worse) for p in one.order.pairs] for one in whole.sentences]
    assert compared == [[("b", "c")], [("a", "c")], [("a", "b"), ("a", "c")]]
    two = column(row("a", 90.0, 0.9, 0.8), row("b", 80.0, 0.7, 0.6))
    assert [one.sentence.says for one in two.sentences] == ["a is best"]


def test_a_sentence_about_speed_compares_all_rounds() -> None:
    slow, fast = row("a", 90.0), row("b", 80.0)
    slow = replace(slow, curves={0: (0.1, 0.9), 1: (0.2, 0.9)})
    fast = replace(fast, curves={0: (0.8, 0.8), 1: (0.85, 0.8)})
    assert compare_pair(slow, fast).gain == pytest.approx(0.1)
    assert compare_pair(slow, fast, SPEED).gain == pytest.approx(-0.2875)


def test_gains_are_compared_seed_by_seed() -> None:
    """By scipy's paired t-test on differences of differences; every row's limit counts, and the
    bases are part of what is compared."""
    low = (row("a", 90.0, 0.9, 0.8, 0.85), row("b", 80.0, 0.5, 0.6, 0.45))
    high = (row("c", 95.0, 0.95, 0.9, 0.9), row("d", 94.0, 0.9, 0.8, 0.85))
    pair = compare_pair(low[0].gain_over(low[1]), high[0].gain_over(high[1]))
    first, second = ([0.4, 0.2, 0.4], [0.05, 0.1, 0.05])
    expected = stats.ttest_rel(first, second, alternative="greater")
    assert (pair.better, pair.worse) == ("a", "c")
    assert pair.gain == pytest.approx(np.mean(first) - np.mean(second))
    assert pair.p == pytest.approx(expected.pvalue) and pair.limit == ""
    assert high[0].gain_over(replace(high[1], limit="x")).limit == "x"
    says = Sentence("a gains more", 1, (("a", "c"),), over=(("a", "b"), ("c", "d")))
    entry = replace(ENTRY, sentences=(says,))
    made = _compare_column(entry, "c", [*low, *high], 3)
    (judged,) = made.sentences
    assert judged.order is not None and judged.order.pairs == (pair,)
    assert judged.as_json()["over"] == {"a": "b", "c": "d"}
    (missing,) = _compare_column(entry, "c", [*low, high[0], row("d", 94.0, 0.9)], 3).sentences
    assert missing.missing == ("d",)
    cells = [
        replace(one.cell, overrides=merge_overrides(one.cell.overrides, [f"algo.rounds={at + 2}"]))
        for at, one in enumerate((*low, *high))
    ]
    plain = pairs_digest(cells, says.ahead)
    assert len({plain, pairs_digest(cells, says.ahead, over=says.bases)}) == 2
    assert says.pairs_among(["a", "b", "c"]) == [] and says.pairs_among([*"abcd"]) == [("a", "c")]


def test_each_seed_has_its_accuracy_its_speed_and_its_code() -> None:
    curves = {3: (0.1, 0.9), 5: (0.2, 0.6)}
    made = replace(row("a", 90.0), curves=curves, uploaded=(8.0, 16.0), codes=("x",))
    told = column(made).as_json()["rows"][0]
    assert told["by_seed"] == {"3": 0.9, "5": 0.6} and told["codes"] == ["x"]
    assert told["speed_by_seed"] == pytest.approx({"3": 0.5, "5": 0.4})


def test_seeds_without_a_model_are_written_down() -> None:
    (first, second) = column(
        row("a", 90.0, 0.9, 0.1, diverged=1), row("b", 80.0, 0.7, 0.6)
    ).as_json()["rows"]
    assert (first["diverged"], second["diverged"]) == (1, 0) and first["by_seed"] == {
        "0": 0.9,
        "1": 0.1,
    }


def test_a_comparison_that_the_scale_cannot_show_has_no_other_verdict() -> None:
    """A row that is limited, or the same numbers; a pair that decides against the paper stays what
    it is."""
    good = row("a", 90.0, 0.9, 0.8)
    bad = row("b", 80.0, 0.7, 0.6)
    assert pair_verdict(good, bad) == HOLDS and compare_pair(good, bad).limit == ""
    for other in (replace(bad, limit="at chance"), replace(good, cell=bad.cell)):
        pair = compare_pair(good, other)
        assert pair.limit and pair_verdict(good, other) == pair_verdict(other, good) == CANNOT_TELL
    mixed = OrderStatement((compare_pair(good, replace(bad, limit="x")), compare_pair(bad, good)))
    assert mixed.verdict == REVERSED and OrderStatement(mixed.pairs[:1]).verdict == CANNOT_TELL
    told = column(good, replace(bad, limit="x")).as_json()
    (sentence,) = told["sentences"]
    assert (
        sentence["verdict"] == CANNOT_TELL
        and sentence["pairs"][0]["limit"] == "x" == told["rows"][1]["limit"]
    )


def test_a_column_names_commits_steps_and_settings() -> None:
    told = column(
        row("a", 90.0, 0.9, 0.8, commits=("b" * 40,)),
        row("b", 80.0, 0.7, 0.6, commits=("a" * 40, "b" * 40)),
    ).as_json()
    assert (
        told["commits"] == ["a" * 40, "b" * 40]
        and told["steps"] == "T = 200"
        and len(told["settings"]) == 8
    )


def test_a_sentence_names_the_code_of_its_rows_or_none() -> None:
    made = [row("a", 90.0, 0.9, 0.8), row("b", 80.0, 0.7, 0.6), row("c", 70.0, 0.5, 0.4)]
    known = [replace(one, codes=(code,)) for one, code in zip(made, ("x", "x", "y"), strict=True)]
    first, second, third = column(*known).sentences
    assert first.code == second.code == third.code and len(first.code) == 8
    assert column(*known[:2], made[2]).sentences[0].code == ""


# The order statistics against other implementations and brute force.


RNG = np.random.default_rng(0)
ROWS = {
    name: RNG.normal(mean, 0.02, 4).tolist()
    for name, mean in zip("abcd", (0.8, 0.7, 0.72, 0.5), strict=True)
}
PRINTED = {"a": 90.0, "b": 85.0, "c": 80.0, "d": 80.0}


def rows_of(printed: dict[str, float], ours: dict[str, list[float]]) -> list[RowResult]:
    return [row(name, value, *ours[name]) for name, value in printed.items()]


MADE_ROWS = rows_of(PRINTED, ROWS)


def test_p_is_scipys_paired_t_test() -> None:
    for x, y in itertools.permutations(ROWS.values(), 2):
        assert p_value(x, y) == pytest.approx(stats.ttest_rel(x, y, alternative="greater").pvalue)


def test_p_where_a_test_has_nothing_to_go_on() -> None:
    assert p_value([0.5], [0.4]) is None
    assert p_value([0.5, 0.6], [0.4, 0.5]) == pytest.approx(
        0, abs=1e-6
    )  # the same gain in every seed
    assert p_value([0.5, 0.6], [0.5, 0.6]) == 0.5
    assert p_value([0.4, 0.5], [0.5, 0.6]) == pytest.approx(1, abs=1e-6)


def test_p_is_uniform_where_there_is_no_gain() -> None:
    rng = np.random.default_rng(1)
    ps = [p_value(rng.normal(size=3), rng.normal(size=3)) for _ in range(400)]
    assert stats.kstest(ps, "uniform").pvalue > 0.001


def test_a_pair_is_judged_by_sign_and_p() -> None:
    kinds = {
        (0.1, 0.01): HOLDS,
        (0.1, 0.2): HOLDS_IN_MEAN,
        (-0.1, 0.7): REVERSED_IN_MEAN,
        (-0.1, 0.99): REVERSED,
        (0.1, None): HOLDS_IN_MEAN,
    }
    for (gain, p), verdict in kinds.items():
        assert OrderStatement((RowPair("a", "b", gain, p),)).pair_verdicts == [verdict]
    assert compare_pair(MADE_ROWS[0], MADE_ROWS[3]).gain == pytest.approx(
        np.mean(ROWS["a"]) - np.mean(ROWS["d"])
    )


def test_a_statement_about_pairs_is_as_weak_as_its_weakest() -> None:
    def whole(*ps: float) -> OrderStatement:
        return OrderStatement(tuple(RowPair("a", "b", 0.5 - p, p) for p in ps))

    assert whole(0.01, 0.2).p == 0.2 and whole(0.01, 0.2).verdict == HOLDS_IN_MEAN
    assert (
        whole(0.01, 0.02).verdict == HOLDS
        and whole(0.01, 0.6).verdict == REVERSED_IN_MEAN
        and whole(0.01, 0.99).verdict == REVERSED
    )
    assert (
        OrderStatement((RowPair("a", "b", 0.1, None),)).p is None
        and OrderStatement(()).verdict == ""
    )


def test_pairs_by_themselves_are_corrected_for_their_number() -> None:
    """Holm's step-down rule, by its definition: the smallest p against the level over m, and so on
    until one fails."""
    rng = np.random.default_rng(4)
    for _ in range(200):
        ps = (rng.random(rng.integers(1, 7)) ** 2).tolist()
        for level in (0.05, 0.2):
            rejected = set()
            for rank, at in enumerate(np.argsort(ps)):
                if ps[at] > level / (len(ps) - rank):
                    break
                rejected.add(int(at))
            adjusted = adjust_holm(ps)
            assert {at for at, p in enumerate(adjusted) if p <= level} == rejected
    assert adjust_holm([0.01, None, 0.04]) == pytest.approx([0.03, None, 0.08])
    pairs = tuple(RowPair("a", "b", 0.1, p) for p in (0.03, 0.04))
    assert OrderStatement(pairs).verdict == HOLDS
    assert OrderStatement(pairs).pair_verdicts == [HOLDS_IN_MEAN] * 2


@pytest.mark.nightly
def test_the_intersection_union_test_errs_as_seldom_as_it_says() -> None:
    """Two rows equal, the third far behind: "a leads all" is false, and is found in at most 5 % of
    draws."""
    rng = np.random.default_rng(2)
    found = 0
    for _ in range(600):
        rows = {
            name: rng.normal(mean, 1, 3).tolist() for name, mean in (("a", 0), ("b", 0), ("c", -50))
        }
        leader = column(*rows_of({"a": 3.0, "b": 2.0, "c": 1.0}, rows), seeds=3).sentences[-1]
        found += leader.order.verdict == HOLDS
    assert stats.binomtest(found, 600, 0.05, alternative="greater").pvalue > 0.001
    assert found > 5  # and it does find such gains by chance: the test has its level


def test_a_statement_about_many_pairs_is_refuted_as_seldom_as_it_says() -> None:
    """Eight rows that do not differ, three seeds: "the first leads" is found reversed in at most 5
    % of draws; one pair at 5 % by itself would be found reversed far more often."""
    rng = np.random.default_rng(3)
    drawn = [rng.normal(0.7, 0.02, (8, 3)) for _ in range(400)]
    made = [
        OrderStatement(
            tuple(
                RowPair("a", "b", float(np.mean(d[0] - other)), p_value(d[0], other))
                for other in d[1:]
            )
        )
        for d in drawn
    ]
    found, alone = (
        sum(REVERSED in kinds for kinds in several)
        for several in (
            [[one.verdict] for one in made],
            [[OrderStatement((pair,)).verdict for pair in one.pairs] for one in made],
        )
    )
    assert stats.binomtest(found, 400, 0.05, alternative="greater").pvalue > 0.001
    assert stats.binomtest(alone, 400, 0.05, alternative="greater").pvalue < 1e-6


def test_the_order_is_compared_by_neighbours() -> None:
    assert [(p.better, p.worse) for p in order_statement(MADE_ROWS).pairs] == [
        ("a", "b"),
        ("b", "c"),
    ]  # c and d are printed equal


def test_kendall_by_brute_force() -> None:
    """Over all orders of our means: tau and the number of pairs that agree, counted pair by
    pair."""
    printed = {"a": 4.0, "b": 3.0, "c": 2.0, "d": 1.0}
    for values in itertools.permutations((0.1, 0.2, 0.3, 0.4)):
        ours = {row: [value] for row, value in zip(printed, values, strict=True)}
        agree = sum(ours[x] > ours[y] for x, y in itertools.combinations("abcd", 2))
        assert kendall_tau(rows_of(printed, ours)) == (
            pytest.approx((agree - (6 - agree)) / 6),
            agree,
            6,
        )
    assert (
        kendall_tau(MADE_ROWS)[2] == 5
        and kendall_tau(rows_of({"a": 2.0, "b": 1.0}, {"a": [0.5], "b": [0.5]}))[0] == 0.0
    )


# What trainings came to, from files written by hand: the round that counts, the bytes until then,
# who diverged.


CELL = PaperCell("c", "algo=fedavg", 50.0, ())
CURVES = {0: (0.25, 0.75, 0.5), 1: (0.25, 0.5, 0.5)}


@pytest.mark.parametrize(("best", "expected"), [(True, (0.75, 0.5)), (False, (0.5, 0.5))])
def test_the_last_round_counts_or_the_best_where_the_paper_reports_that(
    best: bool, expected: tuple[float, ...]
) -> None:
    assert RowResult(CELL, best, CURVES).accuracies == expected


def test_the_target_is_reached_by_the_mean_of_the_seeds() -> None:
    row = RowResult(CELL, False, CURVES, uploaded=(10.0, 20.0, 30.0))
    assert [row.first_round(target) for target in (0.25, 0.5, 0.625, 0.7)] == [1, 2, 2, None]
    assert [row.bytes_to(target) for target in (0.25, 0.625, 0.7)] == [10.0, 20.0, None]


def finished(path: Path, seed: int, curve: list[float], diverged: int | None) -> None:
    training(path, seed, curve[-1])
    told = json.loads((path / "training.json").read_text())
    (path / "training.json").write_text(
        json.dumps(told | {"accuracy_by_round": curve, "diverged": diverged})
    )
    sent: dict[str, Any] = {
        f"{way}_bytes": [{"0": 100, "1": 300}] * len(curve) for way in ("uploaded", "downloaded")
    }
    (path / "manifest.json").write_text(json.dumps(sent))


def test_a_seed_that_ended_without_a_model_is_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PaperCell, "folder_name", lambda self, seed: str(seed))
    for seed, diverged in enumerate((None, 1)):
        finished(tmp_path / str(seed), seed, [0.25, 0.5], diverged)
    (row,) = collect_results([CELL], [0, 1, 2], tmp_path, False, {tmp_path / "2": "no memory"})
    assert (row.diverged, row.failed, [*row.curves]) == (1, {2: "no memory"}, [0, 1])
    assert row.uploaded == (400.0, 800.0) and row.downloaded == (
        200.0,
        400.0,
    )  # half of what training.json has for both rounds


# Rows on unequal terms are named with their reason at the scale that is run, and one without a
# reason is told apart.


ENTRY_TERMS = find_entry("feddm.table2")
MADE = [cell for cell in paper_cells(ENTRY_TERMS, "small") if cell.column == "MNIST, alpha 0.1"]


def test_settings_are_compared_with_a_papers_whose_images_are_not_here() -> None:
    """The paper's retina images are in a folder that nobody named: a page of the stand-in still
    says what differs."""
    entry = find_entry("fedlgd.table3")
    compared = setting_differences(entry, paper_cells(entry, "small")[:1])
    told = {one.key: (one.ours, one.paper) for one in compared}
    assert told["data.name"] == ("digit_domains", "domain_folder")
    assert told["data.limit"] == (300, None)


@pytest.mark.nightly
@pytest.mark.parametrize(
    "name", [name for name, entry in load_catalogue().items() if entry.is_trainable]
)
def test_every_entry_says_what_its_small_scale_changes(name: str) -> None:
    entry = find_entry(name)
    first = {cell.column: cell for cell in reversed(paper_cells(entry, "small"))}
    compared = setting_differences(entry, [*first.values()])
    assert compared and all(one.ours != one.paper for one in compared)


def test_what_a_scale_makes_unequal_is_said() -> None:
    """SCAFFOLD's rate at preset=smoke, and its momentum at every scale."""
    assert {(one.row, one.term) for one in find_uneven_rows(ENTRY_TERMS, "small", MADE)} == {
        ("algo=scaffold", "lr"),
        ("algo=scaffold", "momentum"),
    }
    assert all(one.why != UNSAID for one in find_uneven_rows(ENTRY_TERMS, "small", MADE))


def test_a_row_that_nobody_gave_a_reason_for_is_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    longer = replace(MADE[0], overrides=merge_overrides(MADE[0].overrides, ["algo.rounds=50"]))
    found = {
        (one.row, one.term): one.why
        for one in find_uneven_rows(ENTRY_TERMS, "small", [longer, *MADE[1:]])
    }
    assert found[("algo=fedavg", "rounds")] == UNSAID
    monkeypatch.setattr(results, "differences_at_scale", lambda scale: {})
    assert {
        one.term for one in find_uneven_rows(ENTRY_TERMS, "small", MADE) if one.why == UNSAID
    } == {"lr"}
