"""A message of any surface from a stranger's loop: read by what its client would have sent of other
records."""

from __future__ import annotations

import importlib.util
import json
import re
import sys
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from attacks.membership.signals import predicted_inclusion
from privdd import target
from privdd.api import ClientMessages, audit_message
from privdd.core.validation import BadConfig
from privdd.external.client_message import FAR, check_message, message_unlikeness, read_message

PAGE = Path(__file__).parents[2] / "docs" / "tutorials" / "own-target.md"
LOOPS = {"fedmd_loop": "logits", "fedproto_loop": "prototypes"}
Arrays = tuple[np.ndarray, np.ndarray]


def loop_of_page(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The tutorial's code of this name, as a module in ``folder``."""
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.S)
    (code,) = (block for block in blocks if block.startswith(f"# {name}.py"))
    assert len(code.splitlines()) <= 55
    path = folder / f"{name}.py"
    path.write_text(code)
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setitem(sys.modules, name, module)
    return module


@pytest.mark.nightly(cases=["fedproto_loop"])
@pytest.mark.parametrize("name", LOOPS)
def test_the_loops_of_the_tutorial_are_audited_as_it_says(
    name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Without a line of privdd that knows them; the first screen says what the server reads."""
    loop: Any = loop_of_page(name, tmp_path, monkeypatch)
    monkeypatch.chdir(tmp_path)
    loop.federate(loop.clients).save("client.safetensors")
    x, y = loop.clients[0]
    np.savez("train.npz", x=x, y=y)
    np.savez("heldout.npz", x=loop.x[220:620], y=loop.y[220:620])
    surface = LOOPS[name]
    files = ["message=client.safetensors", "train=train.npz", "heldout=heldout.npz"]
    asked = [f"surface={surface}", f"map={name}:first_client", "shadows=24", "out=out"]
    assert target.main([*files, *asked]) == 0
    screen = capsys.readouterr().out
    assert "Unprotected: No proven guarantee protects a record under first_client." in screen
    assert f"│ {surface}" in screen
    found = json.loads((tmp_path / "out" / "findings.json").read_text())
    assert found["target"]["kind"] == "message" and found["verdict"] == "unprotected"
    measured = {row["attack"]: row for row in found["findings"]}
    assert set(measured) == {"tracing", "lira", "rmia", "label_counts"}
    assert measured["label_counts"]["label_accuracy"] > 0.75
    assert max(measured[attack]["auc"] for attack in ("tracing", "lira", "rmia")) > 0.65


def linear_client(x: Any, y: Any, seed: int) -> dict[str, Tensor]:
    """Class sums of the records and one number that is the same for all."""
    member = F.one_hot(torch.as_tensor(y), 2).double()
    return {"sum": member.T @ torch.as_tensor(x).double(), "same": torch.ones(1)}


def arrays(count: int, seed: int) -> Arrays:
    rng = np.random.default_rng(seed)
    return rng.normal(size=(count, 60)).astype(np.float32), rng.integers(0, 2, count)


@pytest.mark.nightly(cases=["2", "0"])
@pytest.mark.parametrize("seed", range(3))
def test_members_of_a_sum_are_identified_and_of_another_sum_are_not(
    seed: int, tmp_path: Path
) -> None:
    """Closed case: the sum of far fewer records than numbers names all of them."""
    train, heldout, others = (arrays(count, 3 * seed + k) for k, count in enumerate((24, 80, 24)))
    settings: dict[str, Any] = {
        "surface": "statistics",
        "map": linear_client,
        "train": train,
        "heldout": heldout,
        "shadows": 160,
    }
    for whose, leaks in ((train, True), (others, False)):
        sent = linear_client(*whose, 0)
        found = audit_message(sent, out=tmp_path / str(leaks), **settings)
        (row,) = (one for one in found.findings if one.attack == "tracing")
        assert row.auc is not None
        assert row.auc > 0.95 if leaks else row.auc < 0.75


def random_client(x: Any, y: Any, seed: int, network: int) -> dict[str, Tensor]:
    """Class means of the records in a random linear map, which all clients of a network share."""
    matrix = torch.randn(60, 8, generator=torch.Generator().manual_seed(network))
    member = F.one_hot(torch.as_tensor(y), 2).float()
    return {"mean": member.T @ torch.as_tensor(x) @ matrix / len(y) + 5 * matrix[:2]}


def flat_messages(seed: int, *, network: int, shadows: int = 24) -> Tensor:
    """A message of one network, then those of network 0 on other records."""
    sent = [random_client(*arrays(40, 1000 * seed), seed, network)]
    sent += [random_client(*arrays(40, 1000 * seed + k), seed, 0) for k in range(1, shadows + 1)]
    return torch.stack([one["mean"].flatten() for one in sent])


@pytest.mark.parametrize("shadows", [8, 24])
def test_a_message_of_another_network_is_unlike_those_of_the_map(shadows: int) -> None:
    """In nine of ten seeds or more; messages of the map's own network never in 40."""
    wrong = [
        message_unlikeness(flat_messages(seed, network=1 + seed, shadows=shadows))
        for seed in range(10)
    ]
    right = [
        message_unlikeness(flat_messages(seed, network=0, shadows=shadows)) for seed in range(40)
    ]
    assert sum(far > FAR for far in wrong) >= 9
    assert not any(far > FAR for far in right)


def test_a_number_that_one_message_alone_has_decides_nothing() -> None:
    """As a pixel of the border has: neither in the message, nor in one of the map's."""
    rows = torch.randn(65, 50, generator=torch.Generator().manual_seed(0))
    for where in (0, 7):
        sparse = rows.clone()
        sparse[:, 0] = 0.0
        sparse[where, 0] = 3.0
        assert message_unlikeness(sparse) < FAR
        sparse[0, 1:] += 100.0
        assert message_unlikeness(sparse) > FAR
    assert message_unlikeness(torch.ones(10, 3)) == 0.0


def test_sparse_messages_of_the_right_map_are_not_doubted() -> None:
    """200 numbers, each non-zero in one message of 2,000."""
    for seed in range(20):
        stream = torch.Generator().manual_seed(seed)
        rows = (torch.rand(65, 200, generator=stream) < 0.0005).double()
        dense = torch.randn(65, 20, generator=stream, dtype=torch.float64)
        assert message_unlikeness(torch.cat([rows, dense], 1)) < FAR


@pytest.mark.parametrize(("network", "doubted"), [(0, False), (5, True)])
def test_a_wrong_map_is_doubted_on_the_first_screen(
    network: int, doubted: bool, tmp_path: Path
) -> None:
    train = arrays(400, 0)
    found = audit_message(
        random_client(*train, 0, network),
        surface="statistics",
        map=partial(random_client, network=0),
        train=train,
        heldout=arrays(400, 1),
        shadows=24,
        out=tmp_path / "out",
    )
    assert found.target is not None
    said = [doubt for doubt in found.target.doubts if "the message is unlike the 24" in doubt]
    assert bool(said) == doubted


def test_labels_are_read_though_the_files_lack_a_class(tmp_path: Path) -> None:
    """A network of five outputs, of which the files hold records of two classes."""
    train = arrays(24, 0)
    logits = torch.full((20, 5), -6.0)
    logits[:, 0] = 0

    def constant_client(x: Any, y: Any, seed: int) -> dict[str, Tensor]:
        return {"logits": logits + 1e-3 * float(np.asarray(x).mean())}

    found = audit_message(
        constant_client(*train, 0),
        surface="logits",
        map=constant_client,
        train=train,
        heldout=arrays(80, 1),
        shadows=8,
        out=tmp_path / "out",
    )
    (row,) = (one for one in found.findings if one.attack == "label_counts")
    assert row.label_accuracy is not None and 0 <= row.label_accuracy <= 1


def test_a_replay_is_predicted_by_the_others_alone() -> None:
    """Against ridge regression refitted without it, by numpy; its own bits do not matter."""
    generator = torch.Generator().manual_seed(0)
    messages = torch.randn(12, 5, generator=generator, dtype=torch.float64)
    masks = torch.rand(12, 3, generator=generator) < 0.5
    found = predicted_inclusion(messages, masks, 0.1)
    shadows = messages[1:]
    x = ((messages - shadows.mean(0)) / shadows.std(0)).numpy()
    bits = masks.double().numpy() - 0.5
    penalty = 0.1 * (x[1:] ** 2).sum(1).mean()
    for k in range(12):
        rest = [j for j in range(1, 12) if j != k]
        gram = x[rest].T @ x[rest] + penalty * np.eye(5)
        weight = np.linalg.solve(gram, x[rest].T @ bits[rest])
        np.testing.assert_allclose(found[k], x[k] @ weight)


def test_messages_of_several_rounds_keep_their_names(tmp_path: Path) -> None:
    messages = ClientMessages()
    values = [torch.rand(2, requires_grad=True) for _ in range(2)]
    for value in values:
        messages.add(logits=value)
    messages.save(tmp_path / "sent.safetensors")
    read = read_message(tmp_path / "sent.safetensors")
    assert list(read) == ["0/logits", "1/logits"] and messages.rounds == 2
    assert all(torch.equal(read[f"{k}/logits"], values[k].detach()) for k in range(2))


@pytest.mark.parametrize(
    ("message", "said"),
    [
        ({"a": torch.tensor([float("nan")])}, "NaN or infinity in a"),
        ({}, "tensors by name"),
        ([1.0], "gives list"),
        ({"a": torch.zeros(0)}, "holds no number"),
    ],
)
def test_what_is_no_message_is_one_line(message: Any, said: str) -> None:
    with pytest.raises(BadConfig, match=said):
        check_message(message, "message")


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"map": lambda x, y, seed: {"sum": torch.zeros(2, 60)}}, "target.map: gives no same"),
        (
            {"map": lambda x, y, seed: {"sum": torch.zeros(3), "same": torch.ones(1)}},
            r"sum is \(3,\), in target.message it is \(2, 60\)",
        ),
        ({"surface": "smoke"}, "target.surface"),
        ({"shadows": 2}, "at least 8"),
    ],
)
def test_what_does_not_fit_is_one_line(changed: dict[str, Any], said: str, tmp_path: Path) -> None:
    usual = {"surface": "statistics", "map": linear_client, "shadows": 8, "out": tmp_path / "out"}
    train, heldout = arrays(24, 0), arrays(80, 1)
    with pytest.raises(ValueError, match=said):
        audit_message(
            linear_client(*train, 0), train=train, heldout=heldout, **{**usual, **changed}
        )


@pytest.mark.parametrize("missing", ["surface", "map"])
def test_a_missing_key_is_named(
    missing: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    messages = ClientMessages()
    messages.add(logits=torch.rand(3, 2))
    messages.save(tmp_path / "sent.safetensors")
    for name, seed in (("train", 0), ("heldout", 1)):
        x, y = arrays(40, seed)
        np.savez(tmp_path / f"{name}.npz", x=x, y=y)
    keys = {"surface": "logits", "map": "nowhere:f"}
    given = [f"{key}={value}" for key, value in keys.items() if key != missing]
    files = [f"{name}={tmp_path / name}.npz" for name in ("train", "heldout")]
    assert target.main([f"message={tmp_path / 'sent.safetensors'}", *files, *given]) == 1
    assert f"target.{missing}=... must be given with target.message" in capsys.readouterr().err
