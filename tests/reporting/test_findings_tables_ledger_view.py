"""The ledger in a few lines: no release is left out of the count, and no part of an event out of its words."""

from __future__ import annotations

from privdd.reporting.findings_tables import describe_event, group_releases

NOISE = {"type": "gaussian", "noise_multiplier": 1.5}
STEP = {"type": "poisson", "probability": 0.25, "event": NOISE}


def test_releases_of_one_kind_are_counted_with_their_repetitions() -> None:
    rows = [{"id": at, "name": "sum", "surface": "update", "event": NOISE, "client": at % 2, "round": 0, "count": 3} for at in range(4)]
    (one,) = group_releases({"releases": [*rows, 7]})
    assert (one.releases, len(one.clients), len(one.rounds)) == (12, 2, 1)
    assert one.mechanism == "Gaussian noise, multiplier 1.5"


def test_an_event_is_told_whole() -> None:
    said = "Gaussian noise, multiplier 1.5, records drawn with probability 0.25"
    assert describe_event(STEP) == said and describe_event({"type": "repeat", "count": 9, "event": STEP}) == f"{said}, 9 times"
    several = describe_event({"type": "compose", "events": [NOISE] * 6})
    assert several == " + ".join(["Gaussian noise, multiplier 1.5"] * 4) + " and 2 more"
    assert describe_event({"type": "new"}) == "unknown (new)" and describe_event(3) == "unknown"
