"""What bounds on one pair of neighbours leave in the report of a check."""

from __future__ import annotations

import pytest

from privdd.blackbox.stages.pair_bounds import bound_pair
from tests.blackbox.test_examination import clipped_sum, run_of


def test_the_report_says_by_how_much_a_pair_shifts_normal_noise() -> None:
    """The noise is what the stated guarantee allows for a record of full norm: kappa, shift over
    noise over what is stated, is 1. Of n = 750 fresh calls a side its standard error is
    sqrt(2 / n) / mu = 0.1, at mu = 0.5 of the stated epsilon of 2; the test allows three."""
    run = run_of(clipped_sum, "records", calls=20_000)
    (ranked,) = run.pairs
    bound_pair(run, ranked.pair, 4000, run.stated_calls, "neighbours")
    assert run.report.law == "gaussian"
    assert run.report.worst == ranked.pair.says
    assert run.report.kappa == pytest.approx(1.0, abs=0.3)
    assert 0 < run.report.kappa_bound < 2.0  # a lower bound on epsilon


def test_calls_that_are_not_the_stated_ones_say_nothing_of_the_mechanism() -> None:
    run = run_of(clipped_sum, "records", calls=20_000)
    (ranked,) = run.pairs

    def embedded_calls(data):  # type: ignore[no-untyped-def]
        return run.stated_calls(data)

    bound_pair(run, ranked.pair, 4000, embedded_calls, "between others")
    assert run.report.kappa is None
    assert [look.name for look in run.report.looks][-1] == "between others, noise law"
