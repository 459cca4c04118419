"""A recording as an audit reads it: what a client was sent, what its reply stands for, and whether anything is missing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from privdd.recording import recording as recorders
from privdd.recording.recording import DIFFERENCE_KEY, MessageHeading, MessageRecorder, read_recording, recording_ledger
from privdd.runtime.files import DamagedRun

NOISED = {"component": "Mod", "covers": "reply", "noise_multiplier": 2.0}


def recorded(folder: Path, *messages: tuple[MessageHeading, dict[str, Any]]) -> Path:
    recorder = MessageRecorder(folder, "server", {})
    recorder.write_head()
    for heading, arrays in messages:
        recorder.record_message(heading, arrays)
    recorder.close_recording("complete")
    return folder


def test_a_change_is_added_to_what_was_sent_and_the_rest_stays(tmp_path: Path) -> None:
    sent = {"w": np.array([1.0, 2.0]), "b": np.array([5.0])}
    reply = MessageHeading(1, 7, "train", "reply", metrics={DIFFERENCE_KEY: 1})
    found = read_recording(recorded(tmp_path, (MessageHeading(1, -1, "train", "broadcast"), sent), (reply, {"w": np.array([0.5, -0.5])})))
    replied = found.replied_parameters(found.replies_of(7)[0])
    assert {name: value.tolist() for name, value in replied.items()} == {"w": [1.5, 1.5], "b": [5.0]}


def test_what_was_sent_to_one_client_alone_is_what_it_was_sent(tmp_path: Path) -> None:
    parts = [(MessageHeading(1, node, "train", "broadcast"), {"w": np.array([float(node)])}) for node in (-1, 7)]
    parts += [(MessageHeading(1, node, "train", "reply"), {"w": np.zeros(1)}) for node in (7, 9)]
    found = read_recording(recorded(tmp_path, *parts))
    assert [found.broadcast_before(found.replies_of(node)[0]).read_arrays()["w"].item() for node in (7, 9)] == [7.0, -1.0]


def test_two_replies_of_one_round_are_both_kept(tmp_path: Path) -> None:
    twice = [(MessageHeading(1, 7, "train", "reply"), {"w": np.array([value])}) for value in (1.0, 2.0)]
    found = read_recording(recorded(tmp_path, *twice))
    assert sorted(m.read_arrays()["w"].item() for m in found.replies_of(7)) == [1.0, 2.0]


def test_a_recording_without_a_reply_is_none(tmp_path: Path) -> None:
    recorded(tmp_path, (MessageHeading(1, -1, "train", "broadcast"), {"w": np.zeros(1)}))
    with pytest.raises(DamagedRun, match="no reply of a client was recorded"):
        read_recording(tmp_path)


def test_a_failure_that_could_not_be_marked_then_leaves_the_recording_incomplete(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk was full for a moment: neither the message nor the mark is there, and the end can be written again."""

    def full(*given: Any, **more: Any) -> None:
        raise OSError(28, "No space left on device")

    recorder = MessageRecorder(tmp_path, "server", {})
    recorder.write_head()
    recorder.record_message(MessageHeading(1, 7, "train", "reply"), {"w": np.ones(1)})
    with monkeypatch.context() as patched:
        patched.setattr(recorders, "write_json", full)
        recorder.run_safely("round 2", full)
    recorder.close_recording("complete")
    with pytest.raises(DamagedRun, match="incomplete recording"):
        read_recording(tmp_path)


def test_the_ledger_holds_at_the_smallest_delta_that_a_claim_is_made_for(tmp_path: Path) -> None:
    claims = [NOISED | {"settings": {"epsilon": 1.0, "delta": delta}} for delta in (1e-5, 1e-7)]
    parts = [(MessageHeading(at + 1, 7, "train", "reply", claims=(claim,)), {"w": np.zeros(1)}) for at, claim in enumerate(claims)]
    ledger = recording_ledger(read_recording(recorded(tmp_path, *parts)))
    assert (ledger.delta, ledger.unit, ledger.relation) == (1e-7, "client", "zero_out")
