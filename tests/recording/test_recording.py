"""Tests of ``privdd.recording.recording``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch

from privdd.recording import recording as recorders
from privdd.recording.recording import (
    DIFFERENCE_KEY,
    MessageHeading,
    MessageRecorder,
    message_path,
    read_heading,
    read_message,
    read_recording,
    read_recordings,
    recording_ledger,
    write_message,
)
from privdd.runtime.files import DamagedRun
from privdd.runtime.run_folder import read_tensors_and_header

# A recording as an audit reads it: what a client was sent, what its reply stands for, and whether
# anything is missing.


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
    found = read_recording(
        recorded(
            tmp_path,
            (MessageHeading(1, -1, "train", "broadcast"), sent),
            (reply, {"w": np.array([0.5, -0.5])}),
        )
    )
    replied = found.replied_parameters(found.replies_of(7)[0])
    assert {name: value.tolist() for name, value in replied.items()} == {
        "w": [1.5, 1.5],
        "b": [5.0],
    }


def test_what_was_sent_to_one_client_alone_is_what_it_was_sent(tmp_path: Path) -> None:
    parts = [
        (MessageHeading(1, node, "train", "broadcast"), {"w": np.array([float(node)])})
        for node in (-1, 7)
    ]
    parts += [(MessageHeading(1, node, "train", "reply"), {"w": np.zeros(1)}) for node in (7, 9)]
    found = read_recording(recorded(tmp_path, *parts))
    assert [
        found.broadcast_before(found.replies_of(node)[0]).read_arrays()["w"].item()
        for node in (7, 9)
    ] == [7.0, -1.0]


def test_two_replies_of_one_round_are_both_kept(tmp_path: Path) -> None:
    twice = [
        (MessageHeading(1, 7, "train", "reply"), {"w": np.array([value])}) for value in (1.0, 2.0)
    ]
    found = read_recording(recorded(tmp_path, *twice))
    assert sorted(m.read_arrays()["w"].item() for m in found.replies_of(7)) == [1.0, 2.0]


def test_a_recording_without_a_reply_is_none(tmp_path: Path) -> None:
    recorded(tmp_path, (MessageHeading(1, -1, "train", "broadcast"), {"w": np.zeros(1)}))
    with pytest.raises(DamagedRun, match="no reply of a client was recorded"):
        read_recording(tmp_path)


def test_a_failure_that_could_not_be_marked_then_leaves_the_recording_incomplete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk was full for a moment: neither the message nor the mark is there, and the end can be
    written again."""

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
    parts = [
        (MessageHeading(at + 1, 7, "train", "reply", claims=(claim,)), {"w": np.zeros(1)})
        for at, claim in enumerate(claims)
    ]
    ledger = recording_ledger(read_recording(recorded(tmp_path, *parts)))
    assert (ledger.delta, ledger.unit, ledger.relation) == (1e-7, "client", "zero_out")


# A recorded message comes back as it was, and a file of a stranger's is refused in one line.


KINDS = ["float64", "float32", "float16", "int64", "int32", "uint8", "bool"]


def test_arrays_of_any_kind_come_back_bit_for_bit_in_their_order(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    arrays = {
        f"z{len(KINDS) - n}": (draw.normal(size=(3, 2)) * 5).astype(kind)
        for n, kind in enumerate(KINDS)
    }
    arrays |= {
        "none": np.zeros((0, 4)),
        "one": np.array(np.nan),
        "turned": np.asfortranarray(draw.normal(size=(4, 3))),
    }
    heading = MessageHeading(
        3, 7, "train", "reply", 5, 1, {"m/loss": 0.5, "m/list": [1, 2]}, ({"covers": "reply"},)
    )
    mark = write_message(tmp_path / "m.safetensors", heading, arrays)
    found = read_message(tmp_path / "m.safetensors")
    assert list(found) == list(arrays)
    for name, array in arrays.items():
        assert (
            found[name].numpy().tobytes() == np.ascontiguousarray(array).tobytes()
            and tuple(found[name].shape) == array.shape
        )
    assert read_heading(tmp_path / "m.safetensors") == (
        heading,
        mark,
        {name: a.shape for name, a in arrays.items()},
    )
    assert write_message(tmp_path / "n.safetensors", heading, arrays) == mark
    assert (tmp_path / "n.safetensors").read_bytes() == (tmp_path / "m.safetensors").read_bytes()


def test_arrays_that_were_put_into_a_message_are_seen(tmp_path: Path) -> None:
    heading = MessageHeading(1, 7, "train", "reply")
    path = tmp_path / message_path(heading)
    write_message(path, heading, {"w": np.ones(2)})
    tensors, told = read_tensors_and_header(path)
    safetensors.torch.save_file({**tensors, "more": torch.ones(1)}, path, told)
    with pytest.raises(DamagedRun, match="not those that were recorded"):
        read_message(path)


def test_a_kind_of_message_cannot_lead_out_of_the_folder() -> None:
    assert message_path(MessageHeading(1, 2, "../../train.x", "reply")).parts == (
        "round-001",
        "client-2",
        ".._.._train.x.safetensors",
    )


def written(path: Path, told: object, size: int | None = None) -> None:
    head = json.dumps(
        {"__metadata__": {"privdd": told if isinstance(told, str) else json.dumps(told)}}
    ).encode()
    path.write_bytes((len(head) if size is None else size).to_bytes(8, "little") + head)


GOOD = {
    "round": 1,
    "node": 1,
    "kind": "train",
    "part": "reply",
    "run": 0,
    "partition": None,
    "metrics": {},
    "claims": [],
    "order": [],
    "digest": "0",
}


@pytest.mark.parametrize(
    ("told", "size"),
    [
        ("not json", None),
        ([], None),
        ({**GOOD, "round": -1}, None),
        ({**GOOD, "round": True}, None),
        ({**GOOD, "node": "1"}, None),
        ({**GOOD, "part": "other"}, None),
        ({**GOOD, "claims": [1]}, None),
        ({**GOOD, "more": 1}, None),
        (GOOD, 2**40),
        (GOOD, 3),
        ({**GOOD, "partition": "x"}, None),
        ("[" * 100_000, None),
        ({**GOOD, "claims": [{"settings": [1]}]}, None),
    ],
)
def test_a_heading_that_is_none_is_refused(told: object, size: int | None, tmp_path: Path) -> None:
    written(tmp_path / "m.safetensors", told, size)
    with pytest.raises(DamagedRun, match=r"m\.safetensors: no recorded message") as caught:
        read_heading(tmp_path / "m.safetensors")
    assert "\n" not in str(caught.value)


def test_a_shape_without_end_is_refused(tmp_path: Path) -> None:
    written(tmp_path / "m.safetensors", GOOD)
    head = (
        (tmp_path / "m.safetensors")
        .read_bytes()[8:]
        .replace(b"{", b'{"w": {"shape": [Infinity]}, ', 1)
    )
    (tmp_path / "m.safetensors").write_bytes(len(head).to_bytes(8, "little") + head)
    with pytest.raises(DamagedRun, match="no recorded message"):
        read_heading(tmp_path / "m.safetensors")


def test_a_heading_without_its_arrays_is_refused(tmp_path: Path) -> None:
    written(tmp_path / "m.safetensors", {**GOOD, "order": ["gone"]})
    with pytest.raises(DamagedRun, match="not readable as safetensors"):
        read_message(tmp_path / "m.safetensors")


@pytest.mark.parametrize(
    "head", ["[]", '{"schema": 2, "by": "server"}', '{"schema": 1, "by": "me"}', "x"]
)
def test_a_head_that_is_none_is_refused(head: str, tmp_path: Path) -> None:
    (tmp_path / "tap.json").write_text(head)
    with pytest.raises(DamagedRun, match=r"tap\.json"):
        read_recording(tmp_path)


def test_a_link_in_a_recording_is_refused(tmp_path: Path) -> None:
    (tmp_path / "tap.json").write_text('{"schema": 1, "by": "client"}')
    (tmp_path / "round-001").symlink_to("/etc")
    with pytest.raises(DamagedRun, match="is a link"):
        read_recording(tmp_path)


def test_a_client_that_lies_elsewhere_is_refused(tmp_path: Path) -> None:
    """Where no server recorded anything, the clients' folders are all that is read."""
    heading = MessageHeading(1, 1, "train", "reply")
    for folder in (tmp_path / "elsewhere", tmp_path / "run" / "clients" / "1"):
        write_message(folder / message_path(heading), heading, {"w": np.ones(2)})
        (folder / "tap.json").write_text('{"schema": 1, "by": "client"}')
    assert len(read_recordings(tmp_path / "run")) == 1
    (tmp_path / "run" / "clients" / "2").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(DamagedRun, match="is a link"):
        read_recordings(tmp_path / "run")


def test_messages_of_two_runs_are_not_one_recording(tmp_path: Path) -> None:
    (tmp_path / "tap.json").write_text('{"schema": 1, "by": "client"}')
    for run in (1, 2):
        heading = MessageHeading(run, 1, "train", "reply", run)
        write_message(tmp_path / message_path(heading), heading, {"w": np.ones(2)})
    with pytest.raises(DamagedRun, match="messages of several runs"):
        read_recording(tmp_path)
    assert torch.equal(
        read_message(tmp_path / message_path(MessageHeading(1, 1, "train", "reply")))["w"],
        torch.ones(2, dtype=torch.float64),
    )
