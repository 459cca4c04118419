"""Where a planted fault is in force: rounds, releases and clients, and places of a draw."""

from __future__ import annotations

import pytest

from privdd.selftest_faults.fault import FaultMoment, FaultScope


@pytest.mark.parametrize("count", [0, 1, 2, 1000])
def test_affected_places_are_those_that_the_scope_names(count: int) -> None:
    places = {}
    for numbers in ("all", "first", "half", "hundredth"):
        moment = FaultMoment(FaultScope(numbers=numbers))
        places[numbers] = moment.affected_places(count).tolist()
    every = list(range(count))
    assert places["all"] == every
    assert places["first"] == every[:1]
    assert len(places["half"]) == len(set(places["half"])) == count // 2
    assert {*places["half"], *places["hundredth"]} <= {*every}
    # binomial (1000, 0.01): mean 10, standard deviation 3.1
    assert len(places["hundredth"]) <= 22 and (count < 1000 or len(places["hundredth"]) > 1)


def test_half_of_a_draw_is_the_same_half_each_time_and_a_hundredth_is_drawn_anew() -> None:
    half = FaultMoment(FaultScope(numbers="half"))
    assert half.affected_places(50).tolist() == half.affected_places(50).tolist()
    hundredth = FaultMoment(FaultScope(numbers="hundredth"))
    draws = {tuple(hundredth.affected_places(1000).tolist()) for _ in range(3)}
    assert len(draws) == 3


def test_a_fault_counts_only_where_it_is_in_force() -> None:
    moment = FaultMoment(FaultScope(round="last", call="later", client="other"))
    active = []
    for place in ((0, 2, 1), (2, 0, 1), (2, 2, 0), (2, 2, 1)):
        moment.round, moment.client, moment.call = place
        active.append(moment.is_active(10))
    assert active == [False, False, False, True]
    assert moment.touched == 10
