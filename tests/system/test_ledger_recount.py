"""A calibrated run's ledger.json, recounted with dp-accounting alone."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import dp_accounting as dpa
import pytest
from dp_accounting.pld import PLDAccountant

from privdd.api import train


def event_of(data: dict[str, Any]) -> dpa.DpEvent:
    """An event as the schema of ledger.json spells it."""
    kind = data["type"]
    if kind == "compose":
        return dpa.ComposedDpEvent([event_of(part) for part in data["events"]])
    if kind == "repeat":
        return dpa.SelfComposedDpEvent(event_of(data["event"]), data["count"])
    if kind == "poisson":
        return dpa.PoissonSampledDpEvent(data["probability"], event_of(data["event"]))
    simple = {"none": dpa.NoOpDpEvent, "non_private": dpa.NonPrivateDpEvent}
    return simple[kind]() if kind in simple else dpa.GaussianDpEvent(data["noise_multiplier"])


def recounted(file: Path) -> float:
    """The worst client's epsilon: per cell its own releases and those of no cell, then the worst
    cell."""
    data = json.loads(file.read_text())
    assert data["relation"] == "add_remove"
    cells: dict[int, dict[str | None, list[dpa.DpEvent]]] = defaultdict(lambda: defaultdict(list))
    for row in data["releases"]:
        cells[row["client"]][row["partition"]].append(
            dpa.SelfComposedDpEvent(event_of(row["event"]), row["count"])
        )
    totals = {}
    for by_cell in cells.values():
        for cell in by_cell:
            events = by_cell[cell] + (by_cell[None] if cell is not None else [])
            counts: dict[dpa.DpEvent, int] = defaultdict(int)
            for event in events:
                counts[event] += 1
            whole = dpa.ComposedDpEvent([dpa.SelfComposedDpEvent(e, n) for e, n in counts.items()])
            totals[repr(whole)] = whole
    return max(
        PLDAccountant().compose(whole).get_epsilon(data["delta"]) for whole in totals.values()
    )


@pytest.mark.nightly
@pytest.mark.parametrize(("algo", "low"), [("feddm_dp", 2.9)])
def test_a_calibrated_run_spends_what_was_asked_for(algo: str, low: float, tmp_path: Path) -> None:
    small = (
        "data=digits",
        "preset=smoke",
        "algo.matching.iterations=2",
        "algo.server.epochs=1",
        "partition.clients=3",
    )
    said = train(f"algo={algo}", "privacy.epsilon=3", *small, out=tmp_path)
    recount = recounted(tmp_path / "ledger.json")
    assert low < recount <= 3.0
    assert said["epsilon"]["pld"] == pytest.approx(recount, abs=0.02)
