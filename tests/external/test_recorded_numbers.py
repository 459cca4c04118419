"""Numbers beside recorded arrays: which count records, what they say of labels, small groups and
changes."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from privdd.external.recorded_numbers import counts_something, judge_reported_counts
from privdd.recording.recording import MessageHeading, MessageRecorder, read_recordings

LABELS = torch.tensor([0] * 30 + [1] * 12 + [2])


def replies(*metrics: dict[str, Any]) -> Any:
    headings = [
        MessageHeading(t, 5, "train", "reply", metrics=one) for t, one in enumerate(metrics, 1)
    ]
    return [SimpleNamespace(heading=heading) for heading in headings]


@pytest.mark.parametrize(
    ("name", "counts"),
    [
        ("m/num-examples", True),
        ("label_counts", True),
        ("n_samples", True),
        ("train/records", True),
        ("loss", False),
        ("batch_count", False),
        ("epochs", False),
        ("account", False),
    ],
)
def test_the_name_says_whether_a_number_counts_records(name: str, counts: bool) -> None:
    assert counts_something(name) is counts


@pytest.mark.parametrize(
    "metrics",
    [
        {"m/label_counts": [30, 12, 1], "m/loss": 0.1},
        {"m/count_0": 30, "m/count_1": 12.0, "m/count_2": 1, "m/lr": 1},
    ],
)
def test_a_histogram_is_read_exactly_and_its_small_group_is_named(metrics: dict[str, Any]) -> None:
    (judged,) = judge_reported_counts(replies(metrics), LABELS, 3)
    found = judged.finding.measures.to_row()
    assert found["label_accuracy"] == 1 and found["baselines"]["label_accuracy_chance"] < 0.8
    assert any(
        "class 2: one record, which is open (round 1)" in one
        for one in found["diagnostics"]["small_groups"]
    )
    assert found["diagnostics"]["changes"] == []


def test_a_number_of_examples_that_changes_shows_who_came_or_left() -> None:
    (judged,) = judge_reported_counts(
        replies({"num-examples": 43}, {"num-examples": 43}, {"num-examples": 42}), LABELS, 3
    )
    found = judged.finding.measures.to_row()
    assert "label_accuracy" not in found
    assert found["diagnostics"]["changes"] == ["num-examples: -1 between rounds 2 and 3"]
    assert found["diagnostics"]["sent"] == {"num-examples": {"1": 43, "2": 43, "3": 42}}
    assert "records that came or left" in found["note"]


@pytest.mark.parametrize(
    "metrics",
    [
        {},
        {"loss": 3},
        {"num-examples": 4.5},
        {"counts": [1, -2, 3]},
        {"num-examples": "nan"},
        {"counts": [1, 2]},
    ],
)
def test_what_counts_nothing_is_no_finding(metrics: dict[str, Any]) -> None:
    assert judge_reported_counts(replies(metrics), LABELS, 3) == []


def test_metrics_of_a_recording_are_read(tmp_path: Path) -> None:
    recorder = MessageRecorder(tmp_path / "run", "server", {})
    recorder.write_head()
    for t, count in ((1, 43), (2, 42)):
        heading = MessageHeading(t, 5, "train", "reply", metrics={"m/num-examples": count})
        recorder.record_message(heading, {"w": np.ones(2)})
    recorder.close_recording("complete")
    (recording,) = read_recordings(tmp_path / "run")
    (judged,) = judge_reported_counts(recording.replies_of(5), LABELS, 3)
    assert judged.finding.diagnostics["changes"] == ["m/num-examples: -1 between rounds 1 and 2"]
