"""Rows of a paper's table: which terms they share, and whose reason a difference has."""

from __future__ import annotations

from privdd.cli.paper_rows import find_differing_terms, stated_difference

WHY = {"rounds": {"algo=fedfed": "its features are sent once"}}


def test_a_reason_is_that_of_the_row_it_was_given_for() -> None:
    assert (
        stated_difference(WHY, "rounds", "algo=fedfed")
        == stated_difference(WHY, "rounds", "algo=fedfed algo/base=scaffold")
        == "its features are sent once"
    )
    assert (
        stated_difference(WHY, "rounds", "algo=fedfed_raw")
        == stated_difference(WHY, "lr", "algo=fedfed")
        == ""
    )


def test_the_odd_row_is_the_one_that_differs_from_most() -> None:
    terms = {
        "a": {"lr": 1, "rounds": 5},
        "b": {"lr": 2, "rounds": 5},
        "c": {"lr": 2},
        "d": {"lr": 2, "rounds": 6},
    }
    assert find_differing_terms(terms) == {"lr": {"a"}, "rounds": {"d"}}
