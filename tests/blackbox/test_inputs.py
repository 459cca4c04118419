"""Tests of ``privdd.blackbox.inputs``."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from privdd.blackbox.inputs import (
    InputShapes,
    NeighbouringInputs,
    enlarge_neighbours,
    with_nonfinite_number,
)
from privdd.blackbox.neighbours import OUTWEIGHED, neighbouring_pairs
from privdd.blackbox.pair_screening import RankedPair, outcome_odds, rank_by_odds
from privdd.blackbox.transcripts import Transcripts

# Neighbours among more of the same others, and the order by odds.


@pytest.mark.parametrize("relation", ["add_remove", "replace", "zero_out"])
def test_rows_stay_neighbours(relation: str) -> None:
    for pair in neighbouring_pairs("records", relation, InputShapes(tables=((4, 3),)))[:20]:
        for more in enlarge_neighbours(pair, "records"):
            there, gone = ([row.tobytes() for row in side] for side in (more.present, more.absent))
            assert len(there) - len(gone) == (relation == "add_remove") and len(there) in (
                7,
                10,
                13,
                25,
            )
            left = list(gone)
            for row in there:
                if row in left:
                    left.remove(row)
            assert len(left) <= (relation != "add_remove")  # all but the record are on both sides


def test_clients_keep_their_weights() -> None:
    pair = next(
        p
        for p in neighbouring_pairs(
            "aggregate", "zero_out", InputShapes(structures=(((2,),),), crowds=(3,))
        )
        if "5000" in p.says
    )
    more = enlarge_neighbours(pair, "aggregate")[0]
    assert more.present[1] == more.absent[1] == [5000, 100, 100, 100, 100]
    assert not np.array_equal(more.present[0][0][0], more.absent[0][0][0])


def test_an_update_has_no_others() -> None:
    assert (
        enlarge_neighbours(neighbouring_pairs("update", "zero_out", InputShapes())[0], "update")
        == []
    )


def _outcomes(share: float, n: int) -> Transcripts:
    rows = np.zeros((n, 1, 1))
    rows[: round(share * n)] = 1.0
    return Transcripts(rows, ["f"] * n)


def test_a_rare_outcome_has_the_larger_odds_once_it_is_seen_often() -> None:
    rare = (0.05, 0.01)
    usual = (0.6, 0.25)
    few = [outcome_odds(*(_outcomes(p, 100) for p in pair), 2.0) for pair in (rare, usual)]
    many = [outcome_odds(*(_outcomes(p, 10_000) for p in pair), 2.0) for pair in (rare, usual)]
    assert few[0] < few[1] and many[0] > many[1] and many[0] < np.log(5) < many[0] + 0.3


def test_numbers_that_never_come_back_have_no_odds() -> None:
    rng = np.random.default_rng(0)
    assert (
        outcome_odds(
            *(Transcripts(rng.normal(size=(100, 1, 1)), ["f"] * 100) for _ in range(2)), 0.5
        )
        == 0.0
    )


def test_each_size_has_its_best_pair_in_front() -> None:
    def one(rows: int, value: float) -> RankedPair:
        return RankedPair(
            NeighbouringInputs(np.zeros((rows, 2)), np.zeros((rows - 1, 2)), "", np.ones(2)),
            0.0,
            value,
        )

    order = rank_by_odds([one(2, 3.0), one(2, 2.0), one(4, 1.0), one(4, 0.0)])
    assert [(len(r.pair.present), r.odds) for r in order] == [(2, 3.0), (4, 1.0), (2, 2.0)]


# Neighbouring inputs are neighbours under the relation that was asked for.


@pytest.mark.parametrize("relation", ["add_remove", "replace", "zero_out"])
def test_records_differ_in_one_row(relation: str) -> None:
    for pair in neighbouring_pairs("records", relation, InputShapes()):
        a = pair.present
        b = pair.absent
        assert len(a) - len(b) == (relation == "add_remove")
        if relation == "add_remove":
            left = [row for row in a.tolist()]
            for row in b.tolist():
                left.remove(row)
            assert len(left) == 1
        else:
            changed = (a != b).any(1)
            assert changed.sum() == 1 and (relation == "replace" or not b[changed].any())


@pytest.mark.parametrize("relation", ["add_remove", "replace", "zero_out"])
def test_crowds_differ_in_one_client(relation: str) -> None:
    seen = set()
    for pair in neighbouring_pairs("aggregate", relation, InputShapes()):
        (a, wa), (b, wb) = pair.present, pair.absent
        assert len(a) == len(wa) and len(b) == len(wb)
        seen |= {tuple(wa)}
        if relation == "add_remove":
            left = [([part.tolist() for part in update], weight) for update, weight in zip(a, wa)]
            for update, weight in zip(b, wb):
                left.remove(([part.tolist() for part in update], weight))
            assert len(left) == 1
        else:
            assert (
                wa == wb
                and sum(any((p != q).any() for p, q in zip(u, v)) for u, v in zip(a, b)) == 1
            )
    assert (5000, *(100,) * 9) in seen


def test_updates_become_zeros_or_opposites() -> None:
    assert all(
        not any(a.any() for a in pair.absent)
        for pair in neighbouring_pairs("update", "zero_out", InputShapes())
    )
    flat = [
        (
            np.concatenate([a.ravel() for a in p.present]),
            np.concatenate([a.ravel() for a in p.absent]),
        )
        for p in neighbouring_pairs("update", "replace", InputShapes())
    ]
    assert any(np.array_equal(a, -b) for a, b in flat) and all(
        not np.array_equal(a, b) for a, b in flat
    )


def test_a_zero_that_is_refused_is_nearly_zero_and_nan_stays_in_the_record() -> None:
    pair = neighbouring_pairs("update", "zero_out", InputShapes(nothing=1e-9))[0]
    assert 0 < max(np.abs(a).max() for a in pair.absent) < 1e-8
    for kind in ("update", "aggregate", "records"):
        now = with_nonfinite_number(
            neighbouring_pairs(kind, "zero_out", InputShapes())[0], kind, np.nan
        )
        flat = str(now.present)
        assert "nan" in flat and "nan" not in str(now.absent) and "nan" in now.says


def test_every_row_of_twenty_is_the_record_once_and_a_client_is_alone_once() -> None:
    """What a sampler with a fixed seed leaves out, and what is done for one client only."""
    tables = [
        pair
        for pair in neighbouring_pairs("records", "zero_out", InputShapes())
        if len(pair.present) == 20
    ]
    assert {int(np.flatnonzero((p.present != p.absent).any(1))[0]) for p in tables} == set(
        range(20)
    )
    for relation in ("zero_out", "replace", "add_remove"):
        sizes = {
            len(pair.present[0])
            for pair in neighbouring_pairs("aggregate", relation, InputShapes())
        }
        assert sizes == ({2, 10} if relation == "add_remove" else {1, 2, 10})


def test_one_half_of_a_crowd_opposes_the_other() -> None:
    """So that one client decides the median's sign."""
    halves = [
        pair
        for pair in neighbouring_pairs("aggregate", "zero_out", InputShapes())
        if "one half against the other" in pair.says
    ]
    for pair in halves:
        signs = [np.sign(update[0].sum()) for update in pair.absent[0]]
        assert {signs.count(1.0), signs.count(-1.0)} <= {4, 5, 0} and len(pair.present[0]) == 10
    assert halves


def test_norms_between_the_clip_and_a_thousand_are_tried_and_directions_that_are_given() -> None:
    norms = {
        float(np.sqrt(sum(np.square(a).sum() for a in pair.present)))
        for pair in neighbouring_pairs("update", "zero_out", InputShapes())
    }
    assert {2.0, 6.0, 40.0} <= {round(norm, 6) for norm in norms}
    u = np.array([0.6, 0.0, 0.8])
    given = neighbouring_pairs(
        "records", "add_remove", InputShapes(tables=((4, 3),), along=(u, np.ones(7)))
    )
    assert given and all(np.array_equal(pair.axis, u) for pair in given)


@pytest.mark.parametrize("kind", ["records", "aggregate"])
def test_a_record_outweighs_all_others_and_norms_of_a_million_are_tried_of_rows_and_clients(
    kind: str,
) -> None:
    """So that a clip of a sum turns round where the record goes, and half precision overflows."""

    def rows(data: Any) -> np.ndarray:
        return (
            data
            if kind == "records"
            else np.array([np.concatenate([a.ravel() for a in u]) for u in data[0]])
        )

    found = neighbouring_pairs(kind, "zero_out", InputShapes())
    turned = [pair for pair in found if OUTWEIGHED in pair.says and "norm 1000," in pair.says]
    assert turned and all(
        rows(p.present).sum(0) @ p.axis > 400 and rows(p.absent).sum(0) @ p.axis < -400
        for p in turned
    )
    assert all(kind == "records" or len(set(pair.present[1])) == 1 for pair in turned)
    assert max(
        float(np.linalg.norm(rows(pair.present), axis=1).max()) for pair in found
    ) == pytest.approx(1e6)
