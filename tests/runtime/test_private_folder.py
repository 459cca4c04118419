"""What must not travel lies where no packer takes it: tried with Flower's own."""

from __future__ import annotations

import io
import os
import zipfile
from pathlib import Path

import numpy as np
import pytest
from flwr.cli.build import build_fab_from_disk
from flwr.serverapp.strategy import FedAvg

from privdd.canary.__main__ import main
from privdd.core.validation import BadConfig
from privdd.integrations.flower_recorder import privdd_tap, tapped
from privdd.runtime.files import check_private, make_private

APP = """
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"
[project]
name = "small"
version = "1.0.0"
description = ""
license = "Apache-2.0"
dependencies = []
[tool.flwr.app]
publisher = "somebody"
[tool.flwr.app.components]
serverapp = "small.parts:app"
clientapp = "small.parts:app"
[tool.flwr.app.config]
"""


@pytest.fixture
def app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of a Flower app, which is the current one."""
    folder = tmp_path / "work" / "app"
    (folder / "small").mkdir(parents=True)
    (folder / "small" / "parts.py").write_text("app = None\n")
    (folder / "pyproject.toml").write_text(APP)
    monkeypatch.chdir(folder)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return folder


def packed(app: Path) -> list[str]:
    """The names in the bundle that flwr makes of an app."""
    with zipfile.ZipFile(io.BytesIO(build_fab_from_disk(app))) as bundle:
        return bundle.namelist()


ISSUE = [
    "issue",
    "sealed=sealed",
    "sites=a",
    "count=20",
    "shape=1,4,4",
    "classes=2",
    "signal=scores",
]


def test_canaries_that_are_issued_beside_an_app_leave_their_secret_out_of_its_bundle(
    app: Path, tmp_path: Path
) -> None:
    before = os.umask(0o000)
    try:
        assert main(ISSUE) == 0
    finally:
        os.umask(before)
    held = packed(app)
    assert "small/parts.py" in held and "sealed/public.json" in held  # it does take json files
    assert not any("secret" in name or "site-" in name for name in held)
    (secret,) = (tmp_path / "state" / "privdd" / "canaries").iterdir()
    assert sorted(path.name for path in secret.iterdir()) == [
        ".gitignore",
        "secret.json",
        "site-a.npz",
    ]
    assert (secret / ".gitignore").read_text() == "*\n" and secret.stat().st_mode & 0o777 == 0o700
    assert {(secret / name).stat().st_mode & 0o777 for name in ("secret.json", "site-a.npz")} == {
        0o600
    }
    np.savez(tmp_path / "s.npz", id=np.arange(20), score=np.arange(20.0))
    assert (
        main(["open", "sealed=sealed", f"scores={tmp_path / 's.npz'}"]) == 0
    )  # the secret is found again


@pytest.mark.parametrize("place", ["sealed", ".", "../app/deep/er", ".."])
def test_a_secret_in_beside_or_around_an_app_is_refused(
    place: str, app: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*ISSUE, f"secrets={place}"]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert "would lie with the Flower app in" in line and not (app / "sealed").exists()
    if place == "sealed":
        assert main([*ISSUE, f"secrets={place}", "beside_app=true"]) == 0
        assert "sealed/secret.json" in packed(app)  # or nothing here were needed


def test_a_recording_is_kept_out_of_the_bundle_too(app: Path, tmp_path: Path) -> None:
    for make in (
        lambda run, **more: privdd_tap(run, **more),
        lambda run, **more: tapped(FedAvg(), run, **more),
    ):
        with pytest.raises(
            BadConfig,
            match="a recording, as private as the models themselves, would lie with the Flower app",
        ):
            make("run")
        make(tmp_path / "recorded")
    assert not any("tap.json" in name for name in packed(app))
    assert (tmp_path / "recorded" / ".gitignore").read_text() == "*\n"
    tapped(FedAvg(), "run", beside_app=True)
    assert "run/tap.json" in packed(app)


@pytest.mark.parametrize(
    ("text", "app"),
    [
        ("[tool.flwr]\n", True),
        ("[tool.flwr.app]\npublisher = 'x'\n", True),
        ("[tool.flwr\nbroken", True),
        ("[tool.ruff]\n", False),
        ("tool = 3\n", False),
        ("", False),
    ],
)
def test_which_projects_are_apps(text: str, app: bool, tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text(text)
    make_private(tmp_path / "kept")
    if app:
        with pytest.raises(BadConfig, match="Flower app"):
            check_private(tmp_path / "kept", "this")
    else:
        check_private(tmp_path / "kept", "this")
