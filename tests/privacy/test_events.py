"""Events in the ledger's JSON, and their normal form."""

from __future__ import annotations

import functools
import json
import math

import dp_accounting as dpa
import pytest

from privdd.privacy.events import UnsupportedEvent, event_from_json, event_to_json, tally_events

G = dpa.GaussianDpEvent
EVENTS = [
    G(1.5),
    dpa.LaplaceDpEvent(2.0),
    dpa.PoissonSampledDpEvent(0.1, G(3.0)),
    dpa.SelfComposedDpEvent(dpa.PoissonSampledDpEvent(0.1, G(3.0)), 50),
    dpa.ComposedDpEvent(
        [G(4.0), dpa.SelfComposedDpEvent(dpa.SelfComposedDpEvent(G(2.0), 3), 5), dpa.NoOpDpEvent()]
    ),
    dpa.NoOpDpEvent(),
    dpa.NonPrivateDpEvent(),
]


@pytest.mark.parametrize("event", EVENTS, ids=lambda e: type(e).__name__)
def test_json_round_trip(event: dpa.DpEvent) -> None:
    assert event_from_json(json.loads(json.dumps(event_to_json(event)))) == event


@pytest.mark.parametrize(
    "event",
    [
        dpa.UnsupportedDpEvent(),
        dpa.SampledWithoutReplacementDpEvent(512, 256, G(1.0)),
        dpa.TruncatedSubsampledGaussianDpEvent(512, 0.25, 160, 2.0),
        dpa.PoissonSampledDpEvent(0.1, dpa.SampledWithoutReplacementDpEvent(512, 256, G(1.0))),
        G(0.0),
        G(math.nan),
        G(math.inf),
        dpa.PoissonSampledDpEvent(1.5, G(1.0)),
        dpa.SelfComposedDpEvent(G(1.0), -1),
    ],
    ids=repr,
)
def test_events_without_a_proof_are_refused(event: dpa.DpEvent) -> None:
    with pytest.raises(UnsupportedEvent) as refusal:
        event_to_json(event)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    "form",
    [
        None,
        [],
        {"type": "shuffle", "event": {"type": "gaussian", "noise_multiplier": 1.0}},
        {"type": "gaussian"},
        {"type": "gaussian", "noise_multiplier": 1.0, "batch": 3},
        {"type": "gaussian", "noise_multiplier": "1"},
        {"type": "gaussian", "noise_multiplier": True},
        {"type": "repeat", "count": 2.0, "event": {"type": "none"}},
        {"type": "compose", "events": {"type": "none"}},
    ],
    ids=repr,
)
def test_malformed_forms_are_refused(form: object) -> None:
    with pytest.raises(UnsupportedEvent):
        event_from_json(form)


def test_normal_form_merges_gaussians_and_equal_samples() -> None:
    total = tally_events([(EVENTS[4], 2), (EVENTS[2], 4), (EVENTS[3], 1)])
    assert total.squared_mu == pytest.approx(2 * (1 / 16 + 15 / 4))
    assert total.poisson == (((0.1, 3.0), 54),)


def test_two_gaussians_on_one_sample_are_one() -> None:
    pair = dpa.PoissonSampledDpEvent(0.2, dpa.ComposedDpEvent([G(3.0), G(4.0)]))
    ((q, z), count), *rest = tally_events([(pair, 7)]).poisson
    assert (q, count, rest) == (0.2, 7, []) and z == pytest.approx(1 / math.hypot(1 / 3, 1 / 4))
    twice = dpa.PoissonSampledDpEvent(0.2, dpa.SelfComposedDpEvent(G(3.0), 2))
    ((_, z), _), *_ = tally_events([(twice, 1)]).poisson
    assert z == pytest.approx(3.0 / math.sqrt(2))


def test_sampling_everybody_is_not_sampling() -> None:
    assert tally_events([(dpa.PoissonSampledDpEvent(1.0, G(2.0)), 3)]) == tally_events(
        [(G(2.0), 3)]
    )


def test_sampled_laplace_is_refused_and_sampled_leaks_stay_leaks() -> None:
    with pytest.raises(UnsupportedEvent):
        tally_events([(dpa.PoissonSampledDpEvent(0.1, dpa.LaplaceDpEvent(1.0)), 1)])
    assert not tally_events([(dpa.PoissonSampledDpEvent(0.1, dpa.NonPrivateDpEvent()), 1)]).private


def test_a_total_covers_what_it_contains_and_nothing_else() -> None:
    few = tally_events([(EVENTS[2], 4), (G(2.0), 1)])
    many = tally_events([(EVENTS[3], 1), (G(2.0), 3)])
    other = tally_events([(dpa.PoissonSampledDpEvent(0.1, G(2.0)), 1)])
    leak = tally_events([(dpa.NonPrivateDpEvent(), 1)])
    assert many.covers(few) and not few.covers(many)
    assert not many.covers(other) and not other.covers(few)
    assert leak.covers(many) and not many.covers(leak)


@pytest.mark.parametrize(
    "form",
    [
        {
            "type": "repeat",
            "count": 10**400,
            "event": {"type": "gaussian", "noise_multiplier": 1.0},
        },
        {"type": "repeat", "count": 2**53 + 1, "event": {"type": "none"}},
        functools.reduce(
            lambda inner, _: {"type": "repeat", "count": 10**9, "event": inner},
            range(45),
            {"type": "gaussian", "noise_multiplier": 1.0},
        ),
        functools.reduce(
            lambda inner, _: {"type": "compose", "events": [inner]}, range(900), {"type": "none"}
        ),
    ],
    ids=["long", "above", "nested repeats", "deep"],
)
def test_numbers_that_nothing_can_count_are_refused_in_one_line(form: object) -> None:
    with pytest.raises(UnsupportedEvent) as refusal:
        tally_events([(event_from_json(form), 1)])
    assert len(str(refusal.value)) < 200 and "\n" not in str(refusal.value)


def test_the_most_that_can_be_counted_is_counted() -> None:
    assert tally_events([(dpa.SelfComposedDpEvent(G(2.0), 2**53), 1)]).squared_mu == 2**51
