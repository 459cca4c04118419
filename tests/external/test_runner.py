"""``privdd.audit target.*``: from files to a page, and one line for each mistake."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from torch import nn

from privdd.cli import main as cli
from privdd.core.validation import BadConfig
from privdd.external.arguments import TARGET, parse_target_arguments
from privdd.external.predictor import load_target_model, load_weights, read_weights
from privdd.external.runner import run_target_audit
from privdd.reporting.policy import PolicyError
from privdd.reporting.schema import load_findings
from privdd.runtime.files import read_json
from privdd.verification.run_folder import verify_run
from tests.external.memory import records

NET = """
from torch import nn
class Net(nn.Module):
    def __init__(self, width=8):
        super().__init__()
        self.out = nn.Sequential(nn.Linear(6, width), nn.ReLU(), nn.Linear(width, 3))
    def forward(self, x):
        return self.out(x)
def train(x, y, seed):
    from tests.external.memory import remembering
    return remembering(x, y, seed)
def predict(x):
    import numpy as np
    return np.full((len(x), 3), 1 / 3) + x[:, :1] * [[1e-3, -1e-3, 0]]
bad = 3
"""


class Net(nn.Module):
    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.out = nn.Sequential(nn.Linear(6, width), nn.ReLU(), nn.Linear(width, 3))


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net.py").write_text(NET)
    for name, seed in (("train", 1), ("out", 2)):
        x, y = records(120, seed)
        np.savez(tmp_path / f"{name}.npz", x=x, y=y)
    safetensors.torch.save_file(Net().state_dict(), tmp_path / "model.safetensors")
    torch.save(Net().state_dict(), tmp_path / "model.pt")
    torch.save({"epoch": 3, "state_dict": Net().state_dict()}, tmp_path / "checkpoint.pt")
    torch.save(Net(), tmp_path / "whole.pt")
    return tmp_path


SETS = ("target.train=train.npz", "target.heldout=out.npz")


def test_a_module_with_its_weights_becomes_a_page(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Through the command itself: name, digests and command are kept, and the folder verifies."""
    typed = [
        "target.model=net.py:Net",
        "target.weights=model.safetensors",
        *SETS,
        "target.args.width=8",
        "out=run",
        "name=mine",
    ]
    monkeypatch.setattr(sys, "argv", ["privdd.audit", *typed])
    assert cli.main("audit", lambda *_: 9) == 0
    assert "report: run/report.html" in capsys.readouterr().out
    found = load_findings(here / "run")
    manifest = read_json(here / "run" / "manifest.json")
    assert (
        found.run.algo == "mine"
        and found.run.data == "train.npz"
        and found.verdict == "unprotected"
    )
    assert manifest["command"][3:] == typed and set(manifest["target"]["files"]) == {
        "weights",
        "train",
        "heldout",
    }
    assert verify_run(here / "run").disagreements == ()
    with pytest.raises(
        BadConfig, match=r"run: holds a run already \(findings.json\); use another folder"
    ):
        run_target_audit(typed)
    assert "not attacked: needs a training function" in (here / "run" / "report.html").read_text()


def test_a_contradicted_statement_is_status_2(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # drawn in the test above
    monkeypatch.setattr("privdd.external.run_folder.write_report", lambda path: path)
    (here / "net2.py").write_text(
        NET + "from tests.external.memory import remembering\nimport numpy as np\n"
        "held = np.load('train.npz')\npredict = "
        "remembering(held['x'], held['y'], 0)\n"
    )
    typed = [
        "target.model=net2.py:predict",
        *SETS,
        "target.training=net2.py:train",
        "target.shadows=4",
        "out=run",
    ]
    assert run_target_audit([*typed, "stated.epsilon=0.2", "fail_on.epsilon_shown=0.1"]) == 2
    assert load_findings(here / "run").verdict == "contradiction"


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ("fail_on.auk=1", "fail_on.auk: unknown limit; did you mean auc"),
        ("policy=none.yaml", "none.yaml: no such file"),
    ],
)
def test_a_wrong_policy_is_refused_before_anything_is_read(
    here: Path, more: str, said: str
) -> None:
    with pytest.raises(PolicyError, match=said):
        run_target_audit(["target.model=nowhere:Net", *SETS, more])


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        (
            ["target.model=net.py:Net", *SETS],
            "target.weights=FILE is needed; a new network has seen no record",
        ),
        (["target.model=net.py:None_", *SETS], "target.model=net.py:None_: net.py has no None_"),
        (["target.model=nowhere:Net", *SETS], "target.model=nowhere:Net: ModuleNotFoundError"),
        (["target.model=net.py:bad", *SETS], "target.model=net.py:bad: it cannot be called"),
        (
            ["target.model=model.pkl", *SETS],
            "a pickle can run any program and is not read; load it in your own program",
        ),
        (
            ["target.model=net.py:Net", "target.args.depth=3", "target.weights=model.pt", *SETS],
            r"net.py:Net\(depth=3\): TypeError",
        ),
        (
            ["target.model=net.py:predict", "target.weights=model.pt", *SETS],
            "predict is not a torch module",
        ),
        (
            ["target.model=net.py:Net", "target.weights=none.pt", *SETS],
            "target.weights=none.pt: no such file",
        ),
        (
            ["target.model=net.py:Net", "target.weights=whole.pt", *SETS],
            "holds more than tensors.*save model.state_dict",
        ),
        (["target.model=net.py:Net", "target.weights=net.py", *SETS], "never a pickle"),
        (
            ["target.model=net.py:Net", "target.args.width=9", "target.weights=model.pt", *SETS],
            r"do not fit Net: out.0.bias is \(8,\), the model's is \(9,\)",
        ),
        (["target.model=net.py:predict", "target.train=train.npz"], "target.heldout=... is needed"),
        (
            ["target.model=net.py:predict", "target.train=no.npz", "target.heldout=out.npz"],
            "target.train=no.npz: no such file",
        ),
        (
            ["target.model=net.py:predict", "target.trein=a"],
            "target.trein: unknown .* did you mean target.train?",
        ),
        (
            ["target.model=net.py:predict", *SETS, "algo=fedavg"],
            "algo: unknown for a target from outside",
        ),
        (
            ["target.model=net.py:predict", *SETS, "target.training=sgd"],
            "target.training=sgd: target.model has to be a class",
        ),
        (
            ["target.model=net.py:Net", "target.weights=model.pt", *SETS, "target.training=sgd"],
            "=sgd: needs target.lr and target.steps",
        ),
        (
            ["target.model=net.py:Net", "target.weights=model.pt", *SETS, "target.lr=1"],
            "target.lr: read with target.training=sgd",
        ),
        (
            ["target.model=net.py:predict", *SETS, "target.shadows=1"],
            "target.shadows=1: at least 2 shadow models",
        ),
        (["target.model=net.py:predict", *SETS, "seed=-1"], "seed=-1: a whole number"),
        (["target.model=a", "target.model=b"], "target.model: given twice"),
        (
            ["target.train=a"],
            "one of target.model=, target.synthetic=, target.updates= and target.message= "
            "is needed",
        ),
        (
            ["target.model=net.py:predict", *SETS, "confidence=much"],
            "confidence='much': a number is needed",
        ),
        (
            ["target.model=net.py:predict", *SETS, "target.generator=net.py:train"],
            "target.generator: not read of target.model",
        ),
        (
            ["target.synthetic=out.npz", *SETS, "target.args.width=3"],
            "read of target.model and of the generators distribution_matching",
        ),
        (
            ["target.updates=.", *SETS, "target.generator=net.py:train"],
            "target.generator: not read of target.updates",
        ),
    ],
)
def test_a_mistake_is_one_line(here: Path, typed: list[str], said: str) -> None:
    with pytest.raises(BadConfig, match=said) as caught:
        run_target_audit([*typed, "out=run"])
    assert "\n" not in str(caught.value) and not (here / "run").exists()


def test_weights_of_every_format_are_read(here: Path) -> None:
    for name in ("model.safetensors", "model.pt", "checkpoint.pt"):
        net, _ = load_target_model("net.py:Net", {}, here / name)
        assert set(read_weights(here / name)) == set(net.state_dict())
    state = {**Net().state_dict(), "extra": torch.zeros(1)}
    del state["out.0.weight"]
    safetensors.torch.save_file(state, here / "other.safetensors")
    with pytest.raises(BadConfig, match=r"missing out.0.weight; unknown extra"):
        load_weights(Net(), here / "other.safetensors")
    nan = {name: torch.full_like(value, torch.nan) for name, value in Net().state_dict().items()}
    safetensors.torch.save_file(nan, here / "nan.safetensors")
    with pytest.raises(BadConfig, match="NaN or infinity in"):
        load_weights(Net(), here / "nan.safetensors")


@pytest.mark.parametrize(
    ("name", "wrap", "said"),
    [
        (
            "a.pt",
            lambda state: {f"module.{key}": value for key, value in state.items()},
            "begin with module., which was taken off",
        ),
        (
            "a.ckpt",
            lambda state: {
                "state_dict": {f"model._orig_mod.{k}": v for k, v in state.items()},
                "epoch": 3,
            },
            "model._orig_mod., which",
        ),
        ("a.pth", lambda state: {"checkpoint": 1, "model": {"state_dict": state}}, ""),
        ("a.pt", lambda state: {"net": state, "acc": 0.9}, ""),
        ("a.pt", lambda state: list(state.values()), "have no names; they were taken in the order"),
        ("a.pt", lambda state: {"weights": list(state.values())}, "have no names"),
        ("a.npz", lambda state: [value.numpy() for value in state.values()], "have no names"),
        ("a.npz", lambda state: {name: value.numpy() for name, value in state.items()}, ""),
    ],
)
def test_wrapped_and_unnamed_weights_are_read_with_a_note(
    here: Path, name: str, wrap: Any, said: str
) -> None:
    torch.manual_seed(3)
    state = Net().state_dict()
    held = wrap(state)
    if name.endswith("npz"):
        np.savez(here / name, *held) if isinstance(held, list) else np.savez(here / name, **held)
    else:
        torch.save(held, here / name)
    net = Net()
    notes = load_weights(net, here / name)
    assert all(torch.equal(value, state[key]) for key, value in net.state_dict().items())
    assert [said in note for note in notes] == [True] * bool(said)


def test_unnamed_weights_of_another_network_are_refused(here: Path) -> None:
    torch.save(list(Net().state_dict().values())[:-1], here / "few.pt")
    with pytest.raises(BadConfig, match=r"\d+ arrays without names; Net has \d+"):
        load_weights(Net(), here / "few.pt")


def test_only_targets_are_taken_over() -> None:
    assert parse_target_arguments(
        ["target.model=a:b", "hydra.run.dir=x", "target.args.n=[1,2]"]
    ).args == {"n": [1, 2]}


def test_help_names_every_setting(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["privdd.audit", "target.model=", "--help"])
    assert cli.main("audit", lambda *_: 9) == 0
    shown = capsys.readouterr().out
    assert [key.name for key in TARGET.keys if key.name.rstrip("*") not in shown] == []
