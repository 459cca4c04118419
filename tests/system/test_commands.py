"""The commands in this process: bad input is one line and status 1; run= and resume= go on from a
folder."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from hydra.core.global_hydra import GlobalHydra

from privdd.cli import main as command
from privdd.cli.run import run_audit, run_training

TINY = [
    "algo=fedavg",
    "preset=smoke",
    "data.limit=120",
    "data.test_limit=40",
    "partition=iid",
    "partition.clients=3",
    "algo.rounds=1",
    "algo.local_epochs=1",
]
AUDIT = [
    *TINY,
    "audit.records=12",
    "audit.worlds=3",
    "audit.victims=1",
    "attack=[lira,loss_threshold]",
]


@pytest.fixture(scope="module", autouse=True)
def quiet_logging():
    """Hydra would bind the root logger to this test's captured stderr, and keep it when it is
    closed."""
    with pytest.MonkeyPatch.context() as patch:
        for module in ("hydra.core.utils", "hydra._internal.hydra"):
            patch.setattr(f"{module}.configure_log", lambda *_, **__: None)
        # drawn elsewhere, and slow
        patch.setattr("privdd.reporting.page.write_report", lambda path: path / "report.html")
        yield


@pytest.fixture
def run(monkeypatch, capsys, tmp_path):
    """run("audit", overrides...) -> (status, stdout, stderr), from an empty folder."""
    (tmp_path / "here").mkdir(exist_ok=True)
    monkeypatch.chdir(tmp_path / "here")

    def call(name: str, *arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", [f"privdd-{name}", *arguments])
        GlobalHydra.instance().clear()
        status = command.main(name, {"audit": run_audit, "train": run_training}[name])
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return call


def no_network(*_: object, **__: object):
    raise OSError("network is unreachable")


BAD = {
    "unknown algo": (
        ["algo=fedfeed"],
        r"algo=fedfeed: unknown algo; did you mean fedfed\? Allowed are .*fedadam, fedavg, ",
    ),
    "shared yaml": (["algo=_local"], r"algo=_local: files whose names start with _"),
    "shared yaml of attacks": (
        ["attack=[lira,_membership]"],
        r"_membership\]: files whose names start with _",
    ),
    "unknown key": (
        ["algo.local_epoch=3"],
        r"algo.local_epoch: unknown key; did you mean algo.local_epochs\?",
    ),
    "unknown group": (["algorithm=fedavg"], r"algorithm: unknown key; did you mean algo\?"),
    "added key": (["+algo.colour=red"], r"adding or deleting keys is not supported"),
    "wrong type": (["algo.rounds=many"], r"algo.rounds='many'"),
    "negative rate": (["algo.lr=-1"], r"lr=-1"),
    "negative noise": (["privacy=dpsgd", "privacy.noise_multiplier=-1"], r"noise_multiplier=-1"),
    "NaN noise": (
        ["privacy=dpsgd", "privacy.noise_multiplier=nan"],
        r"privacy.noise_multiplier=nan",
    ),
    "noise for a method without it": (["algo=moon", "privacy=dpsgd"], r"has no place in Moon"),
    "nothing to calibrate": (["privacy.epsilon=3"], r"privacy=none has no mechanism"),
    "more clients than records": (["partition.clients=5000"], r"clients"),
    "client to audit": (["audit.client=77"], r"audit.client=77"),
    "too few runs for a guarantee": (
        ["audit.guarantee.slow_runs=2"],
        r"audit.guarantee.slow_runs=2: a whole number from 20",
    ),
    "attack": (["attack=[lirra]"], r"lirra"),
    "uncovered": (["attack=[gradient_inversion]", "audit.require=all"], r"no attack for counts"),
    "nothing to attack": (
        ["attack=[copy_detection]"],
        r"none of them reads anything that fedavg releases",
    ),
    "missing data": (["data=fashion_mnist", "data.root=nowhere"], r"fashion_mnist.*nowhere"),
    "run: not a folder": (["run=nowhere"], r"nowhere: not a run folder"),
}


@pytest.mark.nightly(
    but=[
        "unknown algo",
        "shared yaml",
        "shared yaml of attacks",
        "unknown key",
        "unknown group",
        "added key",
        "attack",
    ]
)
@pytest.mark.parametrize("kind", BAD)
def test_bad_input_is_one_line_and_status_1(run, monkeypatch, tmp_path, kind):
    """Before anything is trained or written: no run folder appears."""
    monkeypatch.setattr(socket, "getaddrinfo", no_network)
    monkeypatch.setattr(socket.socket, "connect", no_network)
    monkeypatch.setattr("privdd.data.readers.SYSTEM_FOLDER", tmp_path / "no-system-folder")
    overrides, expected = BAD[kind]
    status, out, err = run("audit", "preset=smoke", *overrides)
    lines = [line for line in err.splitlines() if line.strip()]
    assert (status, out) == (1, "")
    assert len(lines) == 1 and lines[0].startswith("privdd: error: ") and len(lines[0]) < 600, err
    import re

    assert re.search(expected, lines[0]), lines[0]
    assert not list(Path().rglob("findings.json")) and not list(Path().rglob("checkpoint.json"))


def one_line(status: int, err: str) -> str:
    errors = [line for line in err.splitlines() if line.startswith("privdd: error: ")]
    assert status == 1 and len(errors) == 1 and "Traceback" not in err, err
    return errors[0]


def test_unwritable_output_folder(run):
    Path("file").write_text("in the way")
    status, _, err = run("train", *TINY, "hydra.run.dir=file/below")
    assert (
        one_line(status, err) == "privdd: error: file/below: Not a directory"
        and len(err.splitlines()) == 1
    )
    status, _, err = run("train", "-m", *TINY, "seed=0,1", "hydra.sweep.dir=file/below")
    assert one_line(status, err) == "privdd: error: file/below: Not a directory"


@pytest.mark.parametrize("order", ["first", "last", "between"])
def test_options_and_overrides_in_any_order(run, order):
    """``--cfg job`` before, after and between overrides; audit adds its attacks by itself."""
    options = ["--cfg", "job"]
    given = {
        "first": [*options, *TINY],
        "last": [*TINY, *options],
        "between": [TINY[0], *options, *TINY[1:]],
    }[order]
    status, out, err = run("audit", *given)
    assert (status, err) == (0, "") and "lira:" in out and "limit: 120" in out


@pytest.fixture(scope="module")
def stored(tmp_path_factory, quiet_logging) -> Path:
    """One audited folder, made by the command itself; tests work on copies."""
    path = tmp_path_factory.mktemp("stored") / "run"
    before = sys.argv
    cwd = Path.cwd()
    os.chdir(path.parent)
    try:
        sys.argv = ["privdd-audit", *AUDIT, f"hydra.run.dir={path}"]
        GlobalHydra.instance().clear()
        assert command.main("audit", run_audit) == 0
    finally:
        sys.argv = before
        os.chdir(cwd)
    return path


@pytest.fixture
def folder(stored, tmp_path) -> Path:
    return Path(shutil.copytree(stored, tmp_path / "copy"))


def timeless(path: Path) -> object:
    from tests.auditing.test_findings import timeless as strip

    return strip(json.loads((path / "findings.json").read_text()))


def test_run_attacks_a_stored_run_again_without_training(run, folder, stored, monkeypatch):
    """run=DIR attack=[...]: the same utility and ledger, and findings of the attacks asked for
    beside those of before."""
    monkeypatch.setattr("privdd.federated.trainer.run_round", no_network)  # any round would fail
    status, out, _ = run("audit", f"run={folder}", "attack=[rmia]")
    assert status == 0 and "found by earlier commands, and kept: lira, loss_threshold" in out
    old = timeless(stored)
    new = timeless(folder)
    assert {f["attack"] for f in new["findings"]} == {"loss_threshold", "lira", "rmia"}
    assert new["utility"] == old["utility"]
    assert (
        new["privacy"].pop("multiplicity")["tests"] > old["privacy"].pop("multiplicity")["tests"]
        and new["privacy"] == old["privacy"]
    )
    assert (folder / "ledger.json").read_bytes() == (stored / "ledger.json").read_bytes()
    mine = [f for f in new["findings"] if f["attack"] == "lira" and f["surface"] == "update"]
    theirs = [f for f in old["findings"] if f["attack"] == "lira" and f["surface"] == "update"]
    assert [f["auc"] for f in mine] == [f["auc"] for f in theirs]


def test_resume_of_a_finished_run_gives_the_same(run, folder, stored):
    (folder / "findings.json").unlink()
    status, _, _ = run("audit", f"resume={folder}")
    assert status == 0 and timeless(folder) == timeless(stored)


def test_resume_after_half_of_the_training(run, tmp_path, monkeypatch):
    """Stopped between two rounds, gone on with: the bits of a run that was never stopped."""
    from privdd.federated import trainer as training

    whole = tmp_path / "whole"
    half = tmp_path / "half"
    two = [o.replace("algo.rounds=1", "algo.rounds=2") for o in TINY]
    assert run("train", *two, f"hydra.run.dir={whole}")[0] == 0
    real = training.run_round
    rounds = []

    def once(*given):
        rounds.append(1)
        if len(rounds) == 2:
            raise KeyboardInterrupt
        return real(*given)

    monkeypatch.setattr(training, "CHECKPOINT_EVERY", -1.0)
    monkeypatch.setattr(training, "run_round", once)
    status, _, err = run("train", *two, f"hydra.run.dir={half}")
    assert status == 130 and f"resume={half}" in err
    monkeypatch.setattr(training, "run_round", real)
    assert run("train", f"resume={half}")[0] == 0
    for name in ("training.json", "ledger.json"):
        assert (whole / name).read_bytes() == (half / name).read_bytes()
    assert (whole / "state/round_0002/server.safetensors").read_bytes() == (
        half / "state/round_0002/server.safetensors"
    ).read_bytes()


def test_what_was_sent_cannot_be_changed_afterwards(run, folder):
    for word in ("run", "resume"):
        status, _, err = run("audit", f"{word}={folder}", "algo.lr=0.5")
        assert "algo.lr=0.5: together with" in one_line(status, err)


DAMAGE = {
    "checkpoint cut": ("state/checkpoint.json", lambda b: b[: len(b) // 2]),
    "checkpoint of another schema": (
        "state/checkpoint.json",
        lambda b: b.replace(b'"schema": 1', b'"schema": 7'),
    ),
    "config emptied": ("config.yaml", lambda b: b""),
    "config of another program": ("config.yaml", lambda b: b"services: {web: {image: nginx}}\n"),
    "state cut": ("state/round_0001/server.safetensors", lambda b: b[:-9]),
    "ledger of another schema": (
        "state/round_0001/ledger.json",
        lambda b: b.replace(b'"schema": 1', b'"schema": 3'),
    ),
    "ledger not JSON": ("state/round_0001/ledger.json", lambda b: b"[" + b),
}


@pytest.mark.nightly(but=["config emptied", "config of another program"])
@pytest.mark.parametrize("kind", DAMAGE)
def test_damaged_folders(run, folder, kind):
    name, damage = DAMAGE[kind]
    before = (folder / name).read_bytes()
    assert damage(before) != before
    (folder / name).write_bytes(damage(before))
    status, _, err = run("audit", f"run={folder}", "attack=[loss_threshold]")
    assert str(folder) in one_line(status, err)


def test_a_process_of_its_own(tmp_path):
    """Exit status and the one line as a shell sees them."""
    environment = {
        **os.environ,
        "PYTHONPATH": str(Path(__file__).parents[2]),
        "OMP_NUM_THREADS": "1",
    }
    arguments = [sys.executable, "-m", "privdd.audit", "algo=fedfed", "privacy.noise_multiplyer=3"]
    done = subprocess.run(
        arguments, cwd=tmp_path, capture_output=True, text=True, env=environment, timeout=600
    )
    assert done.returncode == 1 and done.stdout == ""
    assert (
        len(done.stderr.splitlines()) == 1
        and "privacy.noise_multiplyer: unknown key; did you mean privacy.noise_multiplier?"
        in done.stderr
    )
    assert list(tmp_path.iterdir()) == []
