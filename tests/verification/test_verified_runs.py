"""Runs are checked once: a note counts for the very bytes, code and libraries, and for nothing
else."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from privdd.runtime.run_folder import read_tensors, write_tensors
from privdd.runtime.seal import seal_folder
from privdd.verification import run_folder
from privdd.verification.file_checks import Unverified
from privdd.verification.run_folder import find_note, load_run, load_runs
from tests.conftest import SmallAudit


@pytest.fixture
def runs(
    audited: Callable[[str], SmallAudit], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> list[Path]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    names = ("fedavg", "fedavg_seed1")
    return [Path(shutil.copytree(audited(name).path, tmp_path / name)) for name in names]


def checked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The folders whose numbers are computed again from now on."""
    seen: list[str] = []
    real = run_folder._check_numbers
    monkeypatch.setattr(
        run_folder,
        "_check_numbers",
        lambda record, ledger: seen.append(record.path.name) or real(record, ledger),
    )
    return seen


def test_a_run_is_checked_once_and_read_the_same(
    runs: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = checked(monkeypatch)
    first = load_runs(runs, load_run)
    again = load_runs(runs, load_run)
    assert seen == ["fedavg", "fedavg_seed1"] and first == again
    shutil.rmtree(run_folder._notes_folder())
    assert load_runs(runs, load_run) == first and len(seen) == 4


@pytest.mark.parametrize("sealed", [False, True])
def test_an_edited_run_has_no_note(
    sealed: bool, runs: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where it was sealed again, so that only its numbers tell."""
    load_runs(runs, load_run)
    before = find_note(runs[0])
    file = runs[0] / "evidence" / "update.lira.safetensors"
    parts = read_tensors(file)
    write_tensors(file, {**parts, "scores": parts["scores"].flip(0)})
    if sealed:
        seal_folder(runs[0])
    assert find_note(runs[0]) != before
    with pytest.raises(Unverified, match="fedavg"):
        load_runs(runs, load_run)


def test_an_unlisted_file_of_evidence_has_its_part_in_the_note(runs: list[Path]) -> None:
    before = find_note(runs[0])
    write_tensors(runs[0] / "evidence" / "other.safetensors", {"scores": torch.zeros(1)})
    assert find_note(runs[0]) not in (None, before)


def test_other_code_has_other_notes_and_an_unsealed_run_none(
    runs: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = find_note(runs[0])
    monkeypatch.setattr(run_folder, "_code_digest", lambda: "other")
    assert find_note(runs[0]) not in (None, before)
    (runs[0] / "manifest.json").unlink()
    assert find_note(runs[0]) is None and find_note(runs[0] / "nowhere") is None


@pytest.mark.nightly
def test_many_runs_go_to_workers_with_the_same_result(
    runs: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    here = load_runs(runs, load_run)
    shutil.rmtree(run_folder._notes_folder())
    monkeypatch.setattr(run_folder, "MANY_RUNS", 2)
    monkeypatch.setattr(run_folder, "usable_cores", lambda: 2)
    seen = checked(monkeypatch)
    assert load_runs(runs, load_run) == here and seen == []  # in this process
