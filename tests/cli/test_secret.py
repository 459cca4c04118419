"""A secret comes by the environment or the command line, is needed again to go on, and is in no
file."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hydra.core.global_hydra import GlobalHydra

from privdd.api import train
from privdd.cli import main as command
from privdd.cli.build import build_experiment
from privdd.cli.compose import compose_config
from privdd.cli.run import prepare_run_folder, run_audit, run_training
from privdd.cli.secret import SECRET_VARIABLE
from privdd.cli.stored_config import load_stored_config
from privdd.core.validation import BadConfig
from privdd.federated import simulation, trainer

# the first reads as a number, too
SECRET = "12e45678901234567890"
WRONG = "another-secret-of-someone"
TINY = [
    "algo=fedavg",
    "privacy=client",
    "preset=smoke",
    "data=digits",
    "data.limit=150",
    "data.test_limit=60",
    "partition=iid",
    "partition.clients=3",
    "model=mlp",
    "algo.rounds=2",
    "algo.local_epochs=1",
    "privacy.noise_source=secret",
]
AUDIT = [
    "audit.records=10",
    "audit.worlds=3",
    "audit.victims=1",
    "audit.guarantee.runs=20",
    "audit.guarantee.slow_runs=20",
]

Run = Callable[..., int]


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Hydra would bind the root logger to this test's captured stderr; no secret from outside, and
    none left behind."""
    for module in ("hydra.core.utils", "hydra._internal.hydra"):
        monkeypatch.setattr(f"{module}.configure_log", lambda *_, **__: None)
    monkeypatch.setenv(SECRET_VARIABLE, "")
    yield


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Run:
    """A command in this process -> exit status."""

    def go(*arguments: str, name: str = "train", secret: str | None = None) -> int:
        monkeypatch.setattr(sys, "argv", [f"privdd-{name}", *arguments])
        monkeypatch.setenv(SECRET_VARIABLE, secret or "")
        GlobalHydra.instance().clear()
        return command.main(name, run_audit if name == "audit" else run_training)

    return go


def bytes_below(folder: Path) -> bytes:
    """Names and contents of every file."""
    files = sorted(p for p in folder.rglob("*") if p.is_file())
    return b"\n".join(str(p.relative_to(folder)).encode() + b"\n" + p.read_bytes() for p in files)


def artifacts(folder: Path) -> dict[str, bytes]:
    found = (folder / "artifacts").rglob("*.safetensors")
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(found)}


@pytest.mark.parametrize("given", ["typed", "quoted", "environment"])
def test_it_is_in_no_byte_of_a_run_folder(given: str, run: Run, tmp_path: Path) -> None:
    out = tmp_path / "out"
    typed = {
        "typed": [f"privacy.secret={SECRET}"],
        "quoted": [f"privacy.secret='{SECRET}'"],
        "environment": [],
    }[given]
    secret = SECRET if given == "environment" else None
    assert run(*TINY, *typed, f"hydra.run.dir={out}", secret=secret) == 0
    text = bytes_below(out)
    assert SECRET.encode() not in text and load_stored_config(out).privacy.secret is None
    assert (
        b"noise_source" in text and len(artifacts(out)) == 6
    )  # the files are there and hold the settings


def test_it_is_in_no_byte_of_an_audit(run: Run, tmp_path: Path) -> None:
    audited = tmp_path / "audited"
    attacks = "attack=[lira,loss_threshold,gradient_inversion]"
    status = run(
        *TINY, *AUDIT, attacks, f"privacy.secret={SECRET}", f"hydra.run.dir={audited}", name="audit"
    )
    assert status == 0 and (audited / "report.html").is_file()
    assert SECRET.encode() not in bytes_below(audited)


@pytest.mark.nightly
def test_it_is_in_no_byte_of_a_sweep(run: Run, tmp_path: Path) -> None:
    swept = tmp_path / "swept"
    points = ["-m", "algo.rounds=1", "privacy.noise_multiplier=1.0,2.0", f"hydra.sweep.dir={swept}"]
    assert run(*TINY[:-2], TINY[-1], f"privacy.secret={SECRET}", *points) == 0
    assert len([*swept.rglob("training.json")]) == 2
    assert SECRET.encode() not in bytes_below(swept)


def test_it_is_not_stored_with_a_config_from_python(tmp_path: Path) -> None:
    config = compose_config("train", [*TINY, f"privacy.secret='{SECRET}'"])
    assert build_experiment(config).plan.keys.secret == SECRET.encode()
    prepare_run_folder(tmp_path, config)
    assert SECRET.encode() not in bytes_below(tmp_path) and config.privacy.secret == SECRET


def test_a_function_of_the_api_does_not_write_it_down(tmp_path: Path) -> None:
    train(*TINY, f"privacy.secret='{SECRET}'", out=tmp_path / "out")
    text = bytes_below(tmp_path / "out")
    assert (
        SECRET.encode() not in text
        and b"privdd.train" in text
        and os.environ[SECRET_VARIABLE] == ""
    )


def test_however_it_is_given_it_draws_the_same_noise(run: Run, tmp_path: Path) -> None:
    a, b, c = (tmp_path / name for name in "abc")
    assert run(*TINY, f"privacy.secret={SECRET}", f"hydra.run.dir={a}") == 0
    assert run(*TINY, f"hydra.run.dir={b}", secret=SECRET) == 0
    assert run(*TINY, f"hydra.run.dir={c}", secret=WRONG) == 0
    assert artifacts(a) == artifacts(b) and artifacts(a).keys() == artifacts(c).keys()
    assert all(artifacts(a)[name] != other for name, other in artifacts(c).items())


def stopped(run: Run, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that is killed in its second round."""

    def fails(plan: simulation.Plan, progress: simulation.Progress, *more: object) -> object:
        if progress.round == 1:
            raise KeyboardInterrupt
        return simulation.run_round(plan, progress, *more)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(trainer, "run_round", fails)
        patch.setattr(trainer, "CHECKPOINT_EVERY", 0.0)
        assert run(*TINY, f"hydra.run.dir={path}", secret=SECRET) == 130
    assert json.loads((path / "state" / "checkpoint.json").read_text())["round"] == 1


def test_a_resumed_run_needs_the_same_secret_again(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "stopped"
    whole = tmp_path / "whole"
    stopped(run, path, monkeypatch)
    before = bytes_below(path)
    capsys.readouterr()
    for secret, said in (
        (WRONG, "began with another secret"),
        (None, "no secret is given (environment variable"),
    ):
        assert run(f"resume={path}", secret=secret) == 1
        error = capsys.readouterr().err
        assert (
            said in error
            and len(error.strip().splitlines()) == 1
            and SECRET not in error
            and WRONG not in error
        )
        assert bytes_below(path) == before
    assert run(f"resume={path}", secret=SECRET) == 0
    assert run(*TINY, f"hydra.run.dir={whole}", secret=SECRET) == 0
    assert artifacts(path) == artifacts(whole)


def test_a_secret_file_of_a_stranger_is_one_line(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "stopped"
    stopped(run, path, monkeypatch)
    capsys.readouterr()
    for text in ("[]", "{}", '{"salt": 3}', '{"salt": "zz", "scrypt": ""}', "", "null"):
        (path / "state" / "secret.json").write_text(text)
        assert run(f"resume={path}", secret=SECRET) == 1
        assert (
            "secret.json" in (error := capsys.readouterr().err)
            and len(error.strip().splitlines()) == 1
        )


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        (
            ["privacy.noise_source=seed", f"privacy.secret='{SECRET}'"],
            "used with privacy.noise_source=secret only",
        ),
        (["privacy.secret=12345"], "at least 16 characters"),
        (
            [f"privacy.secret={SECRET}"],
            "a text or a whole number",
        ),  # unquoted, it is read as infinity
        (["privacy.secret=true"], "a text or a whole number is needed"),
        (["privacy.secret=[1]"], "a text or a whole number is needed"),
    ],
)
def test_a_secret_that_would_not_protect_is_refused(typed: list[str], said: str) -> None:
    with pytest.raises(BadConfig, match=said) as failure:
        build_experiment(compose_config("train", [*TINY, *typed]))
    assert SECRET not in str(failure.value) and "12345" not in str(failure.value)


def test_a_secret_that_would_not_be_used_is_refused_on_the_command_line(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    typed = [*TINY[:-1], f"privacy.secret={SECRET}", f"hydra.run.dir={tmp_path / 'out'}"]
    assert run(*typed) == 1
    assert "used with privacy.noise_source=secret only" in capsys.readouterr().err
