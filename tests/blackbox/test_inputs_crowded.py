"""Neighbours among more of the same others, and the order by odds."""

from __future__ import annotations

import numpy as np
import pytest

from privdd.blackbox.inputs import InputShapes, NeighbouringInputs, enlarge_neighbours, neighbouring_pairs
from privdd.blackbox.screening import RankedPair, outcome_odds, rank_by_odds
from privdd.blackbox.transcripts import Transcripts


@pytest.mark.parametrize("relation", ["add_remove", "replace", "zero_out"])
def test_rows_stay_neighbours(relation: str) -> None:
    for pair in neighbouring_pairs("records", relation, InputShapes(tables=((4, 3),)))[:20]:
        for more in enlarge_neighbours(pair, "records"):
            there, gone = ([row.tobytes() for row in side] for side in (more.present, more.absent))
            assert len(there) - len(gone) == (relation == "add_remove") and len(there) in (7, 10, 13, 25)
            left = list(gone)
            for row in there:
                if row in left:
                    left.remove(row)
            assert len(left) <= (relation != "add_remove")  # all but the record are on both sides


def test_clients_keep_their_weights() -> None:
    pair = next(p for p in neighbouring_pairs("aggregate", "zero_out", InputShapes(structures=(((2,),),), crowds=(3,))) if "5000" in p.says)
    more = enlarge_neighbours(pair, "aggregate")[0]
    assert more.present[1] == more.absent[1] == [5000, 100, 100, 100, 100]
    assert not np.array_equal(more.present[0][0][0], more.absent[0][0][0])


def test_an_update_has_no_others() -> None:
    assert enlarge_neighbours(neighbouring_pairs("update", "zero_out", InputShapes())[0], "update") == []


def _outcomes(share: float, n: int) -> Transcripts:
    rows = np.zeros((n, 1, 1))
    rows[: round(share * n)] = 1.0
    return Transcripts(rows, ["f"] * n)


def test_a_rare_outcome_has_the_larger_odds_once_it_is_seen_often() -> None:
    rare, usual = (0.05, 0.01), (0.6, 0.25)
    few = [outcome_odds(*(_outcomes(p, 100) for p in pair), 2.0) for pair in (rare, usual)]
    many = [outcome_odds(*(_outcomes(p, 10_000) for p in pair), 2.0) for pair in (rare, usual)]
    assert few[0] < few[1] and many[0] > many[1] and many[0] < np.log(5) < many[0] + 0.3


def test_numbers_that_never_come_back_have_no_odds() -> None:
    rng = np.random.default_rng(0)
    assert outcome_odds(*(Transcripts(rng.normal(size=(100, 1, 1)), ["f"] * 100) for _ in range(2)), 0.5) == 0.0


def test_each_size_has_its_best_pair_in_front() -> None:
    def one(rows: int, value: float) -> RankedPair:
        return RankedPair(NeighbouringInputs(np.zeros((rows, 2)), np.zeros((rows - 1, 2)), "", np.ones(2)), 0.0, value)

    order = rank_by_odds([one(2, 3.0), one(2, 2.0), one(4, 1.0), one(4, 0.0)])
    assert [(len(r.pair.present), r.odds) for r in order] == [(2, 3.0), (4, 1.0), (2, 2.0)]
