"""Tests of ``privdd.cli.stored_config``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from privdd.cli.build import build_experiment
from privdd.cli.compose import compose_config, format_assignment
from privdd.cli.main import _run_command
from privdd.cli.run import prepare_run_folder
from privdd.cli.secret import SECRET_VARIABLE
from privdd.cli.stored_config import CHANGEABLE_SETTINGS, check_finished_run, check_same_config
from privdd.cli.sweeps import Sweep
from privdd.core.validation import BadConfig
from privdd.runtime.files import write_json
from privdd.runtime.seal import seal_folder
from tests.federations import TINY

# What may change when a run goes on: where it is computed, never a bit of what comes out.


def taken_up(
    command: str,
    word: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    stored: list[str],
    *typed: str,
) -> Any:
    """The config with which a run of ``stored`` settings is taken up again by ``word=``."""
    (tmp_path / "config.yaml").write_text(
        OmegaConf.to_yaml(compose_config(command, stored), resolve=True)
    )
    seen: list[Any] = []
    monkeypatch.setattr(sys, "argv", [f"privdd.{command}", f"{word}={tmp_path}", *typed])
    assert _run_command(command, lambda config, path, args: seen.append(config) or 0) == 0
    return seen[0]


def resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stored: list[str], *typed: str
) -> dict[str, Any]:
    """The engine with which a run of ``stored`` settings goes on."""
    found = taken_up("train", "resume", tmp_path, monkeypatch, stored, *typed)
    return OmegaConf.to_container(found.engine)  # type: ignore[return-value]


def test_another_engine_keeps_the_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stored = ["preset=paper", "engine=serial"]
    before = compose_config("train", stored).engine.threads
    assert (
        before != compose_config("train", ["preset=paper", "engine=processes"]).engine.threads
    )  # or this tests nothing
    found = resumed(tmp_path, monkeypatch, stored, "engine=processes", "engine.workers=2")
    assert found["kind"] == "processes" and found["workers"] == 2 and found["threads"] == before


def test_other_threads_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(
        BadConfig, match=r"engine.threads=3: this run was begun with 1, .*leave it at 1"
    ):
        resumed(tmp_path, monkeypatch, ["preset=smoke"], "engine.threads=3")
    assert resumed(tmp_path, monkeypatch, ["preset=smoke"], "engine.threads=1")["threads"] == 1


@pytest.mark.parametrize(
    "typed", ["algo.lr=0.5", "seed=3", "privacy.delta=1e-3", "data.limit=10", "participation=0.5"]
)
def test_what_decides_the_result_is_refused(
    typed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(BadConfig, match="together with resume= only engine can be changed"):
        resumed(tmp_path, monkeypatch, ["preset=smoke"], typed)


@pytest.mark.nightly(but=["audit.records=9"])
@pytest.mark.parametrize(
    "typed", ["privacy.delta=1e-3", "seed=3", "algo.lr=0.5", "audit.records=9", "audit.client=1"]
)
def test_a_stored_run_that_is_attacked_again_stays_that_run(
    typed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(
        BadConfig, match=r"together with run= only attack, engine, audit\.worlds, .* can be changed"
    ):
        taken_up("audit", "run", tmp_path, monkeypatch, ["preset=smoke"], typed)


@pytest.mark.parametrize(("command", "word"), [("audit", "run"), ("train", "resume")])
def test_a_secret_that_the_stored_run_does_not_use_is_refused(
    command: str, word: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(SECRET_VARIABLE, "")  # which the command sets
    with pytest.raises(BadConfig, match=r"used with privacy\.noise_source=secret only"):
        taken_up(
            command,
            word,
            tmp_path,
            monkeypatch,
            ["preset=smoke"],
            "privacy.secret=0123456789abcdef0",
        )


@pytest.mark.nightly(but=["/data/ren\\xe9 x.npz"])
@pytest.mark.parametrize("root", ["/data/plain.npz", "/data/rené x.npz", "/data/it's.npz"])
def test_the_place_of_the_data_is_typed_again_in_any_letters(
    root: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored = ["preset=smoke", "data=npz", format_assignment("data.root", root)]
    assert (
        taken_up("train", "resume", tmp_path, monkeypatch, stored, f"data.root={root}").data.root
        == root
    )
    with pytest.raises(BadConfig, match="together with resume= only engine"):
        resumed(tmp_path, monkeypatch, stored, f"data.root={root}.other")


@pytest.mark.nightly(but=["typed0-some"])
@pytest.mark.parametrize(
    ("typed", "required"),
    [
        (["attack=[rmia]"], "some"),
        (["attack=[rmia]", "audit.require=all"], "all"),
        (["audit.require=all", "attack=[rmia]"], "all"),
        (["attack=[rmia,all]"], "all"),  # as stored
        ([], "all"),
    ],
)
def test_only_certain_attacks_are_required_unless_all_are_asked_for(
    typed: list[str], required: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored = ["preset=smoke", "attack=[lira]"]
    assert taken_up("audit", "run", tmp_path, monkeypatch, stored, *typed).audit.require == required


def test_what_may_change_is_there() -> None:
    """A renamed key would make its entry allow nothing."""
    config = compose_config("audit", ["preset=smoke"])
    for key in {key for keys in CHANGEABLE_SETTINGS.values() for key in keys}:
        assert key == "attack" or OmegaConf.select(config, key, default="missing") != "missing", key


# A finished point of a sweep is shown as a result only of the settings that it was made with.


AUDIT = [*TINY, "algo=fedavg", "attack=[lira,rmia]"]


def finished(path: Path, *typed: str) -> None:
    """What an audit leaves, as far as a sweep looks at it; its config is stored after it was
    assembled."""
    config = compose_config("audit", [*AUDIT, *typed])
    build_experiment(config)
    prepare_run_folder(path, config)
    (path / "report.html").write_text("")
    write_json(path / "findings.json", {"verdict": "unprotected"})
    seal_folder(path)


def test_another_setting_is_refused_and_the_same_is_skipped(tmp_path: Path) -> None:
    finished(tmp_path / "a")
    sweep = Sweep("audit", tmp_path)
    for typed, named in (
        ((), ""),
        (("engine=processes",), ""),
        (("audit.waive.update=why",), ""),
        (("algo.rounds=9",), "algo"),
        (("seed=1",), "seed"),
        (("audit.worlds=9",), "audit.replays, audit.worlds"),
        (("audit.replays=48",), "audit.replays"),
        (("audit.confidence=0.9",), "audit.confidence"),
        (("attack=[lira]",), ""),
        (("attack=[lira,loss_threshold]",), "attack"),
    ):
        config = compose_config("audit", [*AUDIT, *typed])
        status = sweep.run_point(
            tmp_path / "a",
            lambda: 1 // 0,
            lambda config=config: check_finished_run(tmp_path / "a", config),
        )  # type: ignore[misc]
        assert status == (1 if named else 0), typed
        error = (tmp_path / "a" / "point.json").read_text()
        assert (f"holds a run of another config ({named} differ)" in error) == bool(named), typed


@pytest.mark.parametrize(
    "typed", ["audit.records=9", "audit.client=1", "audit.tail.mislabelled=3", "participation=0.5"]
)
def test_a_run_is_gone_on_with_only_as_its_clients_began_it(typed: str, tmp_path: Path) -> None:
    """Which records are audited, and which of them are made hard, decides what the audited client
    trains on."""
    prepare_run_folder(tmp_path, compose_config("audit", AUDIT))
    check_same_config(
        tmp_path, compose_config("audit", [*AUDIT, "audit.worlds=9", "attack=[lira]"])
    )
    with pytest.raises(BadConfig, match=f"{typed.partition('=')[0]} differ"):
        check_same_config(tmp_path, compose_config("audit", [*AUDIT, typed]))


def test_noise_that_was_chosen_for_an_epsilon_is_the_same_setting(tmp_path: Path) -> None:
    private = ("privacy=dpsgd", "algo.rounds=1", "algo.local_epochs=1")
    finished(tmp_path, *private, "privacy.epsilon=3")
    check_finished_run(tmp_path, compose_config("audit", [*AUDIT, *private, "privacy.epsilon=3"]))
    with pytest.raises(BadConfig, match=r"\(privacy differ\)"):
        check_finished_run(
            tmp_path, compose_config("audit", [*AUDIT, *private, "privacy.epsilon=4"])
        )
