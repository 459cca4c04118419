"""Hostile replies: each ends in one line that names the node, and the federation's state is as if
it had not come."""

from __future__ import annotations

import logging
import math
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, Message, MetricRecord

from privdd.core.validation import BadConfig
from privdd.federated import checkpoint
from privdd.federated.simulation import DROPPED_REPLY
from privdd.integrations.flower import find_clients, run_on_grid
from privdd.integrations.reply_check import FederationFailed, ReplyRules
from privdd.runtime.run_folder import RunFolder, read_tensors
from tests.federations import tiny
from tests.integrations.hand_grid import Alter, AlteringGrid, arrays, rows, words

DROP = ReplyRules("drop")


def tensor(name: str, change: Callable[[torch.Tensor], torch.Tensor]) -> Alter:
    return lambda reply: arrays(reply, lambda held: held | {name: change(held[name])})


def poke(value: float) -> Callable[[torch.Tensor], torch.Tensor]:
    """One number of a tensor becomes ``value``."""

    def changed(old: torch.Tensor) -> torch.Tensor:
        old.view(-1)[0] = value
        return old

    return changed


def row(at: int, **changed: Any) -> Alter:
    return lambda reply: rows(reply, lambda held: held[at].update(changed))


def stored(name: str, make: Callable[[Array], Array]) -> Alter:
    def alter(reply: Message) -> None:
        held = dict(reply.content.array_records["tensors"])
        held[name] = make(held[name])
        reply.content["tensors"] = ArrayRecord(held)

    return alter


def npy(head: str, body: bytes = b"", version: bytes = b"\x01\x00") -> bytes:
    text = head.encode().ljust(118 - 1) + b"\n"
    return b"\x93NUMPY" + version + len(text).to_bytes(2, "little") + text + body


def raw(data: bytes) -> Callable[[Array], Array]:
    return lambda old: Array(dtype=old.dtype, shape=old.shape, stype=old.stype, data=data)


def objects() -> bytes:
    from io import BytesIO

    out = BytesIO()
    np.save(out, np.array([{"a": 1}], dtype=object), allow_pickle=True)
    return out.getvalue()


def without(name: str) -> Callable[[Message], None]:
    def alter(reply: Message) -> None:
        del reply.content[name]

    return alter


def extra(reply: Message) -> None:
    reply.content["metrics"] = MetricRecord({"mean": 0.5})


def other_rows(text: str) -> Alter:
    return lambda reply: words(reply, rows=text)


def both(*alters: Alter) -> Alter:
    def alter(reply: Message) -> None:
        for one in alters:
            one(reply)

    return alter


def twice(reply: Message) -> list[Message]:
    return [reply, reply]


W = "update/head.weight"
GAUSS = {"type": "gaussian", "noise_multiplier": 50.0}
# DP-SGD on a small network: what client 1 answers to round 1 -> what the line says
HOSTILE: dict[str, tuple[Alter, str]] = {
    # numbers
    "NaN": (tensor(W, poke(math.nan)), "head.weight holds NaN or infinity"),
    "infinity": (tensor(W, poke(math.inf)), "head.weight holds NaN or infinity"),
    "minus infinity in a bias": (
        tensor("update/head.bias", poke(-math.inf)),
        "head.bias holds NaN or infinity",
    ),
    "3e38": (tensor(W, poke(3e38)), r"head.weight holds 3e\+38; at most 1e\+09 is allowed"),
    "-1e12": (tensor(W, poke(-1e12)), r"head.weight holds 1e\+12; at most"),
    # shapes and types
    "one number in the place of many": (
        tensor("update/head.bias", lambda t: t[:1]),
        r"head.bias has shape \(1,\); \(10\) is needed",
    ),
    "a scalar": (tensor("update/head.bias", lambda t: t[0]), r"head.bias has shape \(\)"),
    "one axis more": (tensor(W, lambda t: t[None]), "head.weight has shape"),
    "transposed": (tensor(W, lambda t: t.T.contiguous()), "head.weight has shape"),
    "flattened": (tensor(W, lambda t: t.flatten()), "head.weight has shape"),
    "empty": (tensor(W, lambda t: t[:0]), "head.weight has shape"),
    "longer": (tensor(W, lambda t: torch.cat([t, t])), "head.weight has shape"),
    "float64": (tensor(W, torch.Tensor.double), "head.weight holds float64; float32 is needed"),
    "int64": (tensor(W, torch.Tensor.long), "head.weight holds int64; float32 is needed"),
    "float16": (tensor(W, torch.Tensor.half), "head.weight holds float16; float32 is needed"),
    "bool": (tensor(W, lambda t: t > 0), "head.weight holds bool; float32 is needed"),
    "complex": (
        tensor(W, lambda t: t.to(torch.complex64)),
        "head.weight holds complex64; float32 is needed",
    ),
    # names
    "an undeclared upload": (
        lambda r: arrays(r, lambda h: h | {"secret/records": torch.ones(3)}),
        "sends .'secret/records'.*plan does not have",
    ),
    "an undeclared tensor of a declared upload": (
        lambda r: arrays(r, lambda h: h | {"update/more": torch.ones(3)}),
        "sends .'update/more'",
    ),
    "a declared upload that the plan withholds": (
        lambda r: arrays(r, lambda h: h | {"count/n": torch.ones(1)}),
        "sends .'count/n'",
    ),
    "no path": (lambda r: arrays(r, lambda h: h | {"zzz": torch.ones(1)}), "sends .'zzz'"),
    "a path upwards": (
        lambda r: arrays(r, lambda h: h | {"../../x": torch.ones(1)}),
        "sends .'../../x'",
    ),
    "a name of control characters": (
        lambda r: arrays(r, lambda h: h | {"\x1b[2J\u202e": torch.ones(1)}),
        "which the plan does not have",
    ),
    "a tensor less": (
        lambda r: arrays(r, lambda h: {k: v for k, v in h.items() if k != W}),
        "lacks .'update/head.weight'",
    ),
    "no tensors": (
        lambda r: arrays(r, lambda h: {"update/head.bias": h["update/head.bias"]}),
        "lacks",
    ),
    "an order of other names": (lambda r: words(r, order='["a"]'), "order names"),
    "an order that repeats": (
        lambda r: words(r, order='["update/head.weight", "update/head.weight"]'),
        "order names",
    ),
    "an order that is no list": (
        lambda r: words(r, order='{"a": 1}'),
        "order: a list of names is needed",
    ),
    "an order of numbers": (lambda r: words(r, order="[1, 2]"), "order: a list of names is needed"),
    "an order that is no JSON": (lambda r: words(r, order="]"), "cannot be read .JSONDecodeError"),
    # bytes
    "a pickle": (stored(W, raw(objects())), "head.weight holds object; float32 is needed"),
    "no array at all": (stored(W, raw(b"abc")), "cannot be read .ValueError"),
    "a head that promises 8 TiB": (
        stored(W, raw(npy("{'descr': '<f4', 'fortran_order': False, 'shape': (2199023255552,)}"))),
        "bytes are not an array of shape",
    ),
    "a head with code": (
        stored(
            W,
            raw(npy("{'descr': __import__('os').getpid(), 'fortran_order': False, 'shape': (1,)}")),
        ),
        "cannot be read",
    ),
    "a cut array": (stored(W, lambda a: raw(a.data[:-3])(a)), "bytes are not an array of shape"),
    "a tail after the array": (
        stored(W, lambda a: raw(a.data + b"secret")(a)),
        "bytes are not an array of shape",
    ),
    "another way of storing": (
        stored(W, lambda a: Array(dtype=a.dtype, shape=a.shape, stype="pickle", data=a.data)),
        "stored as pickle",
    ),
    "a version that is not known": (
        stored(W, raw(npy("{}", version=b"\x09\x00"))),
        "cannot be read|unknown version",
    ),
    "no record of tensors": (without("tensors"), "holds the records"),
    "no record of words": (without("words"), "has no words"),
    "a record more": (extra, "holds the records .*metrics"),
    # words
    "another client's number": (lambda r: words(r, client=0), "answers as client 0"),
    "a client that does not exist": (lambda r: words(r, client=-1), "answers as client -1"),
    "an older round": (lambda r: words(r, round=0), "answers round 0"),
    "a round to come": (lambda r: words(r, round=10**12), "answers round 1000000000000"),
    "a round as text": (lambda r: words(r, round="x"), "round='x': a int is needed"),
    "no round": (lambda r: words(r, round=None), "lack .'round'"),
    "a word more": (lambda r: words(r, mean=0.25), "unknown .'mean'"),
    "another broadcast": (lambda r: words(r, asked="0" * 32), "answers another broadcast"),
    "a memory that counts": (lambda r: words(r, remembers=17), "remembers=17"),
    # rows
    "no rows": (
        lambda r: rows(r, lambda h: h.clear()),
        "states 0 ledger rows, but the plan has 2",
    ),
    "a row less": (lambda r: rows(r, lambda h: h[:1]), "states 1 ledger rows"),
    "rows twice": (
        lambda r: rows(r, lambda h: h.append(h[-1] | {"id": 2})),
        "states 3 ledger rows",
    ),
    "rows that are no JSON": (other_rows("{"), "cannot be read .JSONDecodeError"),
    "rows that are a list": (other_rows("[]"), "cannot be read .ValueError: ledger: an object"),
    "rows nested 100000 deep": (other_rows("[" * 100_000), "cannot be read .RecursionError"),
    "relabelled as another client's": (
        lambda r: rows(r, lambda h: [x | {"client": 2} for x in h]),
        "states client 2",
    ),
    "another round in a row": (row(0, round=0), "states round 0"),
    "a mechanism that was not there": (
        row(0, event={"type": "none"}),
        r"row 0 \(dpsgd\) states event \{'type': 'none'\}",
    ),
    "a better mechanism": (row(0, event=GAUSS), "states event"),
    "a worse mechanism": (
        row(0, event={"type": "non_private"}),
        "states event .'type': 'non_private'",
    ),
    "an event of no known type": (
        row(0, event={"type": "magic"}),
        "cannot be read .UnsupportedEvent",
    ),
    "an infinite multiplier": (
        row(0, event={"type": "gaussian", "noise_multiplier": 1e999}),
        "cannot be read",
    ),
    "fewer steps": (row(0, count=1), "states count 1"),
    "no step": (row(0, count=0), "cannot be read .ValueError: release 0: count=0"),
    "another name": (row(0, name="embedding"), "states name embedding"),
    "another surface": (row(1, surface="labels"), "states surface labels"),
    "seen by nobody": (row(1, visible_to=[]), r"states visible_to \(\)"),
    "a cell of its own": (row(0, partition="label:3"), "states partition label:3"),
    "another norm": (row(0, clip_norm=0.001), "states clip_norm 0.001"),
    "another sensitivity": (
        row(0, sensitivity={"value": 9.0, "why": ""}),
        "states sensitivity 9.0",
    ),
    "less noise": (row(0, noise_std=1e-9), "states noise_std 1e-09"),
    "a flag of its own": (row(0, flags={"trust_me": True}), "states flags"),
    "computed from nothing": (row(1, post_of=[]), r"states post_of \(\)"),
    "a digest of something else": (row(1, digest="0" * 32), "states digest"),
    "a digest that is a message": (
        row(0, digest="the record is a 7"),
        "states digest 'the record is a 7'",
    ),
    "another shape": (row(1, shape={"head.bias": [1]}), "states shape"),
    # messages
    "two answers": (twice, "answered 2 times"),
}
# one case of each part of a reply
GOES_ON = {"infinity", "a tensor less", "an older round", "rows twice", "two answers"}


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any, RunFolder]:
    """(the state before round 1, the state at the end, the folder) of an undisturbed federation."""
    experiment = run()
    folder = RunFolder(tmp_path_factory.mktemp("honest"))
    return experiment, run_on_grid(experiment, AlteringGrid(experiment), folder), folder  # type: ignore[arg-type]


def run() -> Any:
    return tiny("fedavg", "privacy=dpsgd", "privacy.delta=1e-3", "model=mlp")


def test_enough_hostile_replies() -> None:
    assert len(HOSTILE) >= 60


@pytest.fixture(scope="module")
def stopped(honest: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a federation that a reply to round 1 ended: round 0 is done."""
    folder = RunFolder(tmp_path_factory.mktemp("stopped"))
    with pytest.raises(FederationFailed):
        run_on_grid(honest[0], AlteringGrid(honest[0], HOSTILE["NaN"][0]), folder)  # type: ignore[arg-type]
    return folder.path


def bytes_of(folder: Path) -> dict[str, bytes]:
    return {
        str(file.relative_to(folder)): file.read_bytes()
        for file in folder.rglob("*")
        if file.is_file()
    }


@pytest.mark.nightly(cases=["NaN", "transposed", "a pickle", "another surface", "seen by nobody"])
@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_reply_ends_in_one_line_and_the_state_is_intact(
    name: str, honest: Any, stopped: Path, tmp_path: Path
) -> None:
    alter, says = HOSTILE[name]
    experiment, whole, undisturbed = honest
    folder = RunFolder(shutil.copytree(stopped, tmp_path / "run"))
    grid = AlteringGrid(experiment, alter)
    with pytest.raises(FederationFailed) as failure:
        run_on_grid(experiment, grid, folder)  # type: ignore[arg-type]
    line = str(failure.value)
    assert line.startswith("client 1 (node 101), round 1: ") and re.search(says, line), line
    assert line.isprintable() and len(line) < 300
    assert bytes_of(folder.path) == bytes_of(stopped)
    if name not in GOES_ON:
        return  # from the same bytes
    kept = checkpoint.load_checkpoint(folder, experiment.plan)
    assert (
        kept is not None and kept.round == 1 and all(row.round == 0 for row in kept.ledger.releases)
    )
    grid.alter = lambda reply: None  # its honest answer is still what it answers
    found = run_on_grid(experiment, grid, folder)  # type: ignore[arg-type]
    assert found.ledger.to_json() == whole.ledger.to_json() and found.accuracy == whole.accuracy
    assert folder.ledger_file.read_bytes() == undisturbed.ledger_file.read_bytes()


COVERED = {
    "NaN": True,
    "relabelled as another client's": True,
    "no rows": True,
    "a mechanism that was not there": True,
    "a better mechanism": False,
    "a worse mechanism": False,
    "an undeclared upload": False,
    "rows twice": False,
    "two answers": False,
    "a record more": False,
    "rows that are no JSON": True,
}


@pytest.mark.nightly(cases=["NaN", "rows that are no JSON"])
@pytest.mark.parametrize("name", COVERED)
def test_a_dropped_client_is_left_out_and_pays(
    name: str, honest: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    experiment, whole, _ = honest
    with caplog.at_level(logging.WARNING, "privdd"):
        found = run_on_grid(
            experiment, AlteringGrid(experiment, HOSTILE[name][0]), RunFolder(tmp_path), rules=DROP
        )  # type: ignore[arg-type]
    assert [
        r.getMessage().startswith("client 1 (node 101), round 1: ") for r in caplog.records
    ] == [True]
    (note,) = [r for r in found.ledger.releases if r.name == DROPPED_REPLY]
    assert (note.client, note.round) == (1, 1) and "(node 101), round 1: " in note.why
    assert sorted(found.uploaded[1]) == [0, 2] and sorted(found.uploaded[0]) == [0, 1, 2]

    # the others' releases are the undisturbed run's; the dropped one's planned spending is counted
    # in full
    def of(progress, k):
        return [
            (r.name, r.event, r.count)
            for r in progress.ledger.releases
            if (r.round, r.client) == (1, k)
        ]

    assert of(found, 0) == of(whole, 0) and of(found, 2) == of(whole, 2)
    assert of(found, 1)[:-1] == of(whole, 1)
    if COVERED[name]:
        assert found.ledger.epsilon(client=1) == whole.ledger.epsilon(client=1) < math.inf
    else:
        assert found.ledger.epsilon(client=1) == math.inf
    assert found.ledger.epsilon(client=0) == whole.ledger.epsilon(client=0)
    # nothing that the server sends afterwards depends on what it did not use
    later = {of for r in found.ledger.releases if r.client == -1 for of in r.post_of}
    assert later and not later & {
        r.id for r in found.ledger.releases if (r.client, r.round) == (1, 1)
    }


def test_a_round_without_the_dropped_client_is_the_average_of_the_others(tmp_path: Path) -> None:
    """FedAvg of two: the model is the mean of what clients 0 and 2 sent in the last round."""
    experiment = tiny("fedavg", "model=mlp", "algo.weighting=uniform")
    folder = RunFolder(tmp_path)
    found = run_on_grid(
        experiment, AlteringGrid(experiment, tensor(W, poke(math.nan))), folder, rules=DROP
    )  # type: ignore[arg-type]
    sent = [read_tensors(folder.artifact_file(1, k)) for k in (0, 2)]
    assert not folder.artifact_file(1, 1).exists()
    mean = (sent[0][W].double() + sent[1][W].double()) / 2
    torch.testing.assert_close(found.server["model/head.weight"].double(), mean, atol=1e-6, rtol=0)


def test_a_round_of_which_no_reply_can_be_used_ends_the_federation(tmp_path: Path) -> None:
    experiment = run()
    grid = AlteringGrid(experiment, lambda reply: words(reply, round=7))
    grid.bad = type(
        "Everyone",
        (),
        {"__eq__": lambda self, other: other[0] == "train" and other[2] == "1", "__hash__": None},
    )()  # type: ignore[assignment]
    with pytest.raises(
        FederationFailed, match=r"round 1: no client's reply can be used; client 2 \(node 102\)"
    ):
        run_on_grid(experiment, grid, RunFolder(tmp_path), rules=DROP)  # type: ignore[arg-type]


SETS: dict[str, tuple[str, Alter, str]] = {
    "a label outside": (
        "feddm",
        tensor("labels/y", poke(10**9)),
        "labels/y holds a label outside 0 to 9",
    ),
    "a negative label": (
        "feddm",
        tensor("labels/y", poke(-1)),
        "labels/y holds a label outside 0 to 9",
    ),
    "fewer labels": (
        "feddm",
        tensor("labels/y", lambda t: t[1:]),
        "images/x and labels/y have .* do not match",
    ),
    "fewer images": (
        "feddm",
        tensor("images/x", lambda t: t[1:]),
        "images/x and labels/y have .* do not match",
    ),
    "images of another size": (
        "feddm",
        tensor("images/x", lambda t: t[..., 1:]),
        "any length, 1, 8, 8. is needed",
    ),
    "a negative count": ("fedavg", tensor("count/n", poke(-1.0)), "count/n holds a negative count"),
    "a count of NaN": ("fedavg", tensor("count/n", poke(math.nan)), "count/n holds NaN"),
    "a huge count": ("fedavg", tensor("count/n", poke(1e30)), "at most 1e.09"),
}


@pytest.mark.nightly(but=["a negative count", "a count of NaN", "a huge count"])
@pytest.mark.parametrize("name", SETS)
def test_synthetic_sets_and_counts_are_checked_too(name: str, tmp_path: Path) -> None:
    algo, alter, says = SETS[name]
    experiment = tiny(algo)
    with pytest.raises(FederationFailed, match=f"^client 1 .node 101., round 1: .*{says}"):
        run_on_grid(experiment, AlteringGrid(experiment, alter), RunFolder(tmp_path))  # type: ignore[arg-type]


def test_a_client_may_say_that_a_side_condition_failed(tmp_path: Path) -> None:
    """Only for the worse: its release then has no epsilon, and is used."""
    experiment = tiny("fedavg", "privacy=client", "privacy.unit=client")

    def says(reply):
        return rows(
            reply,
            lambda held: [
                x
                | {
                    "flags": {"unit:client": False},
                    "event": {"type": "non_private"},
                    "nonprivate_reason": "side conditions fail: unit:client",
                }
                for x in held
            ],
        )

    found = run_on_grid(experiment, AlteringGrid(experiment, says), RunFolder(tmp_path))  # type: ignore[arg-type]
    assert found.ledger.epsilon(client=1) == math.inf and found.ledger.epsilon(client=0) < math.inf
    assert len(found.uploaded[1]) == 3


ACCURACY: dict[str, tuple[Alter, str]] = {
    "above 1": (lambda r: words(r, accuracy=17.0), "accuracy=17.0: a number from 0 to 1"),
    "NaN": (lambda r: words(r, accuracy=math.nan), "accuracy=nan"),
    "text": (lambda r: words(r, accuracy="high"), "accuracy='high': a float is needed"),
    "another's": (lambda r: words(r, client=2), "answers as client 2"),
    "no words": (without("words"), "has no words"),
    "a word more": (lambda r: words(r, note="a 7"), "unknown .'note'"),
    "two answers": (twice, "answered more than once"),
}


@pytest.mark.nightly(but=["text"])
@pytest.mark.parametrize("name", ACCURACY)
def test_an_accuracy_that_is_none_is_refused(name: str, tmp_path: Path) -> None:
    alter, says = ACCURACY[name]
    experiment = tiny("fedproto")
    grid = AlteringGrid(experiment, alter, ("evaluate", 1, "1"))
    with pytest.raises(FederationFailed, match=f"^client 1 .node 101., accuracy: .*{says}"):
        run_on_grid(experiment, grid, RunFolder(tmp_path / "stop"))  # type: ignore[arg-type]
    grid = AlteringGrid(experiment, alter, ("evaluate", 1, "1"))
    found = run_on_grid(experiment, grid, RunFolder(tmp_path / "drop"), rules=DROP)  # type: ignore[arg-type]
    assert len(found.accuracy) == 2 and all(0 <= a <= 1 for a in found.accuracy)


JOINING: dict[str, tuple[Alter, str]] = {
    "another client's number": (
        lambda r: words(r, client=0),
        "nodes 100 and 101 both say that they are client 0",
    ),
    "a number too large": (
        lambda r: words(r, client=3),
        "node 101 says that it is client 3; there are clients 0 to 2",
    ),
    "a negative number": (lambda r: words(r, client=-1), "node 101 says that it is client -1"),
    "text": (lambda r: words(r, client="one"), "node 101: client='one'"),
    "no words": (without("words"), "node 101: has no words"),
}


@pytest.mark.parametrize("name", JOINING)
def test_a_node_that_joins_as_someone_else_is_named(name: str) -> None:
    alter, says = JOINING[name]
    grid = AlteringGrid(run(), alter, ("query", 1, ""))
    with pytest.raises(FederationFailed, match=f"^{says}"):
        find_clients(grid, 3)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"bad_reply": "ignore"}, "bad_reply=ignore: allowed are stop, drop"),
        ({"largest": 0}, "largest=0: a number above 0 is needed"),
        ({"largest": math.nan}, "largest=nan: a finite number"),
        ({"largest": "1"}, "largest='1': a number is needed"),
    ],
)
def test_rules_are_checked(settings: dict[str, Any], says: str) -> None:
    with pytest.raises(BadConfig, match=says):
        ReplyRules(**settings)


def test_a_node_that_nobody_asked_is_not_listened_to(tmp_path: Path, honest: Any) -> None:
    experiment, whole, _ = honest

    def also(reply: Message) -> list[Message]:
        stranger = Message(reply.content, reply_to=_asked(reply))
        stranger.metadata._src_node_id = 999
        return [reply, stranger]

    found = run_on_grid(experiment, AlteringGrid(experiment, also), RunFolder(tmp_path))  # type: ignore[arg-type]
    assert found.ledger.to_json() == whole.ledger.to_json()


def _asked(reply: Message) -> Message:
    return Message(reply.content, 101, "train", group_id="1")
