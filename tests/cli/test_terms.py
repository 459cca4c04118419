"""What the rows of an experiment must share (every experiment itself: tests/configs/test_experiment.py)."""

from __future__ import annotations

from privdd.cli.config import composed
from privdd.cli.terms import differing, reason, row_terms


def test_unequal_rounds_and_networks_are_seen() -> None:
    """The faults that this is for: 50 rounds beside 1016, and another network."""
    plain = row_terms(composed("train", ["experiment=feddm_table2", "algo=fedavg", "preset=paper"]))
    longer = row_terms(composed("train", ["experiment=feddm_table2", "algo=fedprox", "preset=paper", "algo.rounds=50"]))
    other = row_terms(composed("train", ["experiment=feddm_table2", "algo=feddm", "preset=paper", "model.width=64"]))
    assert differing({"a": plain, "b": longer, "c": other}) == {"rounds": {"b"}, "model": {"c"}}
    assert differing({"a": plain, "c": {**other, "model": plain["model"]}}) == {}  # FedDM trains no classifier locally
    assert reason({"rounds": {"algo=fedfed": "why"}}, "rounds", "algo=fedfed algo/base=fedprox") == "why"
    assert reason({"rounds": {"algo=fedfed": "why"}}, "rounds", "algo=fedfed_raw") == ""
