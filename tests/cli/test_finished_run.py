"""``resume=`` of a finished run tells its result at once: nothing is trained, attacked or written
again."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from privdd.cli import main as cli
from privdd.cli.compose import compose_config
from privdd.cli.finished_run import report_finished_run
from privdd.runtime.files import DamagedRun
from tests.conftest import SmallAudit


def files_of(folder: Path) -> dict[Path, tuple[int, int]]:
    return {
        path: (path.stat().st_mtime_ns, path.stat().st_size)
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_a_finished_audit_is_told_and_nothing_runs(
    audited: Callable[[str], SmallAudit],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    run = audited("fedfed")
    before = files_of(run.path)
    monkeypatch.setattr(sys, "argv", ["audit", f"resume={run.path}"])
    assert cli.main("audit", lambda *_: pytest.fail("it ran again")) == run.status == 0
    said = capsys.readouterr()
    assert (
        f"{run.path}: this audit is finished; privdd attack {run.path} attack=[NAME] adds attacks"
        in said.err
    )
    assert f"result: {run.path / 'findings.json'}" in said.out and files_of(run.path) == before


def test_its_limits_are_judged_and_what_asks_for_more_goes_on(
    audited: Callable[[str], SmallAudit],
) -> None:
    typed = [f"resume={audited('fedfed').path}"]
    broken = compose_config("audit", ["attack=[lira]", *typed, "fail_on.epsilon_proven=1"])
    assert report_finished_run("audit", broken, typed) == 3
    assert report_finished_run("audit", broken, [*typed, "attack=[rmia]"]) is None
    assert (
        report_finished_run("train", compose_config("train", typed), typed) is None
    )  # no training of its own ended here


def test_a_run_that_was_cut_off_goes_on(
    audited: Callable[[str], SmallAudit], tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(audited("fedfed").path, tmp_path / "run"))
    (folder / "manifest.json").unlink()
    config = compose_config("audit", ["attack=[lira]", f"resume={folder}"])
    assert report_finished_run("audit", config, [f"resume={folder}"]) is None


def test_data_that_changed_since_are_told(
    audited: Callable[[str], SmallAudit], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = audited("fedfed").path
    config = compose_config("audit", ["attack=[lira]", f"resume={path}"])
    monkeypatch.setattr("privdd.cli.stored_data.digest_data", lambda config: "0" * 32)
    with pytest.raises(DamagedRun, match="its data have changed since it began: manifest"):
        report_finished_run("audit", config, [f"resume={path}"])
