"""The ledger against compositions written out by hand."""

from __future__ import annotations

import json
import math
import random

import dp_accounting as dpa
import pytest
from dp_accounting.pld import PLDAccountant

from privdd.privacy.accounting import epsilon
from privdd.privacy.events import event_from_json
from privdd.privacy.ledger import Ledger
from privdd.privacy.mechanism import LedgerRow

DELTA = 1e-5
G = dpa.GaussianDpEvent


def row(event: dpa.DpEvent, **changes: object) -> LedgerRow:
    base = dict(
        round=0, client=0, name="q", surface="synthetic_images", visible_to=("server",), digest="d"
    )
    return LedgerRow(**{**base, "shape": {"x": (2, 3)}, "event": event, **changes})  # type: ignore[arg-type]


def poisson(q: float, z: float) -> dpa.DpEvent:
    return dpa.PoissonSampledDpEvent(q, G(z))


def test_total_is_the_worst_cell_of_the_worst_client() -> None:
    ledger = Ledger()
    ledger.append(
        [row(G(4.0)), row(G(2.0), partition="label:0"), row(G(3.0), partition="label:1", count=9)]
    )
    ledger.append([row(G(2.0), client=1)])
    worst = math.sqrt(1 / 16 + 9 / 9)
    assert ledger.epsilon(DELTA) == pytest.approx(
        dpa.get_epsilon_gaussian(1 / worst, DELTA), abs=1e-9
    )
    assert ledger.epsilon(DELTA, client=1) == pytest.approx(
        dpa.get_epsilon_gaussian(2.0, DELTA), abs=1e-9
    )


def test_thousands_of_rows_cost_one_composition() -> None:
    ledger = Ledger()
    for t in range(2000):
        ledger.append([row(poisson(0.01, 1.0), round=t, partition=f"label:{t % 2}")])
    alone = epsilon(dpa.SelfComposedDpEvent(poisson(0.01, 1.0), 1000), DELTA)
    assert ledger.epsilon(DELTA) == alone == pytest.approx(1.8282, abs=2e-4)


@pytest.mark.parametrize("worst", range(6))
def test_the_worst_client_is_found_among_those_that_cannot_be_compared(worst: int) -> None:
    """Releases of six kinds, none of which contains another; a seventh client's are contained in
    the worst one's."""
    ledger = Ledger()
    for client in range(6):
        ledger.append(
            [
                row(
                    dpa.LaplaceDpEvent(20.0 + client),
                    client=client,
                    count=9 if client == worst else 2,
                )
            ]
        )
    ledger.append([row(dpa.LaplaceDpEvent(20.0 + worst), client=6, count=8)])
    assert (
        ledger.epsilon(DELTA)
        == ledger.epsilon(DELTA, client=worst)
        > ledger.epsilon(DELTA, client=6)
    )


def test_post_processing_is_free_only_where_its_sources_are_protected() -> None:
    ledger = Ledger()
    ids = ledger.append([row(G(1.0), surface="counts"), row(dpa.NoOpDpEvent(), post_of=(0,))])
    assert ids == (0, 1)
    assert ledger.epsilon(DELTA, surfaces={"synthetic_images"}) == pytest.approx(
        4.3771781, abs=1e-6
    )
    derived = row(dpa.NoOpDpEvent(), surface="labels", post_of=(0,))
    ledger.append([row(dpa.NonPrivateDpEvent(), surface="update"), derived])
    assert ledger.epsilon(DELTA, surfaces={"labels"}) == math.inf
    assert ledger.epsilon(DELTA, surfaces={"synthetic_images"}) < math.inf
    assert ledger.epsilon(DELTA) == math.inf


def test_post_of_counts_from_the_first_row_of_each_append() -> None:
    ledger = Ledger()
    ledger.append([row(G(1.0)), row(dpa.NoOpDpEvent(), post_of=(0,))])
    ledger.append([row(G(1.0)), row(dpa.NoOpDpEvent(), post_of=(0,))])
    assert [r.post_of for r in ledger.releases] == [(), (0,), (), (2,)]
    ledger.append([row(dpa.NoOpDpEvent(), client=-1, post_of=(0, 2))], absolute=True)
    assert ledger.releases[-1].post_of == (0, 2)


def test_server_rows_give_the_worst_client_behind_them() -> None:
    ledger = Ledger()
    a = ledger.append([row(G(5.0), surface="update")])
    b = ledger.append([row(G(1.0), surface="update", client=1)])
    ledger.append(
        [row(dpa.NoOpDpEvent(), client=-1, surface="global_model", post_of=a + b)], absolute=True
    )
    assert ledger.epsilon(DELTA, surfaces={"global_model"}) == pytest.approx(4.3771781, abs=1e-6)
    assert ledger.epsilon(DELTA, surfaces={"global_model"}, client=0) == pytest.approx(
        0.7255218, abs=1e-6
    )


def test_server_noise_touches_every_client() -> None:
    ledger = Ledger()
    ledger.append([row(G(1.0)), row(G(1.0), client=-1)])
    assert ledger.epsilon(DELTA) == pytest.approx(dpa.get_epsilon_gaussian(1 / math.sqrt(2), DELTA))


def test_nothing_that_touches_data_costs_nothing() -> None:
    ledger = Ledger()
    assert ledger.epsilon(DELTA) == 0
    ledger.append([row(dpa.NoOpDpEvent())])
    assert ledger.epsilon(DELTA) == 0


def test_a_false_side_condition_makes_a_row_unprotected() -> None:
    ledger = Ledger()
    ledger.append([row(G(1.0), flags={"clipped": False})])
    assert ledger.epsilon(DELTA) == math.inf
    assert "clipped" in (ledger.releases[0].nonprivate_reason or "")


def mixed() -> Ledger:
    ledger = Ledger(relation="zero_out")
    ledger.append(
        [
            row(
                poisson(0.05, 1.5),
                partition="label:3",
                count=200,
                flags={"clipped": True},
                clip_norm=1.0,
            )
        ]
    )
    ledger.append([row(G(4.0), sensitivity=2.5, why="a sum"), row(dpa.NoOpDpEvent(), post_of=(0,))])
    ledger.append(
        [row(dpa.ComposedDpEvent([dpa.LaplaceDpEvent(3.0), dpa.SelfComposedDpEvent(G(9.0), 2)]))]
    )
    return ledger


def test_json_round_trip_is_exact() -> None:
    ledger = mixed()
    text = json.dumps(ledger.to_json(), allow_nan=False)
    again = Ledger.from_json(text)
    assert again.releases == ledger.releases
    assert again.to_json() == json.loads(text)
    assert again.epsilon(DELTA) == ledger.epsilon(DELTA)


def test_json_is_enough_for_dp_accounting_alone() -> None:
    releases = json.loads(json.dumps(mixed().to_json()))["releases"]
    accountant = PLDAccountant(neighboring_relation=dpa.NeighboringRelation.REPLACE_SPECIAL)
    for release in releases:
        accountant.compose(event_from_json(release["event"]), release["count"])
    assert mixed().epsilon(DELTA) == pytest.approx(accountant.get_epsilon(DELTA), abs=2e-3)


@pytest.mark.parametrize(
    "change",
    [
        {"schema": 3},
        {"schema": True},
        {"delta": math.nan},
        {"delta": "1e-5"},
        {"relation": "sideways"},
        {"unit": "household"},
        {"releases": {}},
        {"extra": 1},
    ],
)
def test_bad_files_are_refused_in_one_line(change: dict[str, object]) -> None:
    with pytest.raises(ValueError) as refusal:
        Ledger.from_json({**mixed().to_json(), **change})
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    "change",
    [
        {"id": 7},
        {"count": 0},
        {"count": 1.5},
        {"noise_std": math.nan},
        {"post_of": [5]},
        {"flags": {"clipped": 1}},
        {"event": {"type": "shuffle", "event": {"type": "gaussian", "noise_multiplier": 1.0}}},
        {"event": {"type": "gaussian", "noise_multiplier": math.nan}},
        {"sensitivity": {"value": 1.0}},
        {"visible_to": "server"},
    ],
)
def test_bad_releases_are_refused_in_one_line(change: dict[str, object]) -> None:
    data = mixed().to_json()
    data["releases"][0] |= change
    with pytest.raises(ValueError) as refusal:
        Ledger.from_json(data)
    assert "\n" not in str(refusal.value)


def test_units_and_relations_do_not_mix() -> None:
    with pytest.raises(ValueError, match="unit"):
        Ledger(unit="record").append([row(G(1.0), flags={"unit:client": True})])
    with pytest.raises(ValueError, match="unit"):
        Ledger(unit="client").append([row(G(1.0))])
    with pytest.raises(ValueError, match="zero_out"):
        Ledger(relation="add_remove").append([row(G(1.0), flags={"relation:zero_out": True})])
    with pytest.raises(ValueError, match="relation"):
        mixed().epsilon(DELTA, relation="replace")


def test_append_keeps_all_rows_or_none() -> None:
    ledger = Ledger()
    with pytest.raises(ValueError):
        ledger.append([row(G(1.0)), row(dpa.UnsupportedDpEvent())])
    assert len(ledger) == 0


def test_a_bound_that_is_not_known_is_infinite_and_says_so() -> None:
    ledger = Ledger(relation="replace")
    ledger.append([row(poisson(0.1, 2.0))])
    with pytest.warns(UserWarning, match="pld"):
        assert ledger.epsilon(DELTA, accountant="rdp") == math.inf
    assert ledger.epsilon(DELTA) < math.inf


def by_hand(ledger: Ledger, surface: str | None) -> float:
    """Every row that a surface's rows reach through their sources, once; the worst cell of the
    worst client."""

    def reached(at: int) -> set[int]:
        return {at}.union(*(reached(of) for of in ledger.releases[at].post_of))

    wanted = [r.id for r in ledger.releases if surface in (None, r.surface)]
    rows = [ledger.releases[at] for at in set().union(*(reached(at) for at in wanted))]
    worst = 0.0
    for client in {r.client for r in rows}:
        mine = [r for r in rows if r.client == client and r.is_protected]
        for cell in {r.partition for r in mine}:
            spent = [
                r.count / r.event.noise_multiplier**2 for r in mine if r.partition in (None, cell)
            ]
            worst = max(worst, sum(spent))
    return dpa.get_epsilon_gaussian(worst**-0.5, DELTA) if worst else 0.0


@pytest.mark.parametrize("seed", range(30))
def test_surfaces_compose_all_that_they_were_computed_from_once(seed: int) -> None:
    """Random ledgers: rows with events of their own and sources, diamonds, server rows between
    clients."""
    rng = random.Random(seed)
    ledger = Ledger()
    for at in range(rng.randint(2, 12)):
        sources = tuple(sorted(rng.sample(range(at), rng.randint(0, min(at, 3)))))
        client = rng.choice([-1, 0, 0, 1, 2])
        event = dpa.NoOpDpEvent() if client == -1 or rng.random() < 0.3 else G(rng.uniform(1, 6))
        more = {
            "count": rng.randint(1, 3),
            "partition": rng.choice([None, None, "label:0", "label:1"]),
        }
        item = row(event, surface=rng.choice("abc"), client=client, post_of=sources, **more)
        ledger.append([item], absolute=True)
    for surface in ("a", "b", "c", None):
        found = ledger.epsilon(DELTA, surfaces=None if surface is None else [surface])
        assert found == pytest.approx(by_hand(ledger, surface), abs=1e-9)


@pytest.mark.parametrize("schema", [0, 2, True, None, "1"])
def test_a_ledger_of_another_schema_is_refused(schema: object) -> None:
    with pytest.raises(ValueError, match=f"ledger.schema={schema!r}: this version reads schema 1"):
        Ledger.from_json({**mixed().to_json(), "schema": schema})


def test_a_row_with_an_unknown_or_a_missing_key_is_refused() -> None:
    data = mixed().to_json()
    more = [{**data["releases"][0], "records": 10}, *data["releases"][1:]]
    with pytest.raises(ValueError, match=r"release 0: .*unknown .*records"):
        Ledger.from_json({**data, "releases": more})
    del more[0]["records"], more[0]["lattice"]
    with pytest.raises(ValueError, match=r"release 0: missing .*lattice"):
        Ledger.from_json({**data, "releases": more})
