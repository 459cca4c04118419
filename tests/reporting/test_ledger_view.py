"""The ledger in a few lines: no release is left out of the count, and no part of an event out of its words."""

from __future__ import annotations

from privdd.reporting.ledger_view import event_words, groups

NOISE = {"type": "gaussian", "noise_multiplier": 1.5}
STEP = {"type": "poisson", "probability": 0.25, "event": NOISE}


def test_releases_of_one_kind_are_counted_with_their_repetitions() -> None:
    rows = [{"id": at, "name": "sum", "surface": "update", "event": NOISE, "client": at % 2, "round": 0, "count": 3} for at in range(4)]
    (one,) = groups({"releases": [*rows, 7]})
    assert (one.releases, len(one.clients), len(one.rounds)) == (12, 2, 1)
    assert one.mechanism == "Gaussian noise, multiplier 1.5"


def test_an_event_is_told_whole() -> None:
    said = "Gaussian noise, multiplier 1.5, records drawn with probability 0.25"
    assert event_words(STEP) == said and event_words({"type": "repeat", "count": 9, "event": STEP}) == f"{said}, 9 times"
    several = event_words({"type": "compose", "events": [NOISE] * 6})
    assert several == " + ".join(["Gaussian noise, multiplier 1.5"] * 4) + " and 2 more"
    assert event_words({"type": "new"}) == "unknown (new)" and event_words(3) == "unknown"
