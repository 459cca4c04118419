"""The commit against git itself, in every state that a checkout's files can be in."""

from __future__ import annotations

import shutil
import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from privdd.runtime.manifest import run_provenance, source_commit


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A fresh repository with one commit; returns the folder of its package."""
    if shutil.which("git") is None:
        pytest.skip("no git on this machine")
    (tmp_path / "privdd").mkdir()
    git(tmp_path, "init", "-q", "-b", "main")
    git(tmp_path, "-c", "user.name=n", "-c", "user.email=e", "commit", "-q", "--allow-empty", "-m", "one")
    return tmp_path / "privdd"


def git(folder: Path, *words: str) -> str:
    return subprocess.run(["git", *words], cwd=folder, check=True, capture_output=True, text=True).stdout.strip()


def test_the_commit_is_gits_own_on_a_branch_packed_or_detached(checkout: Path) -> None:
    head = git(checkout, "rev-parse", "HEAD")
    assert source_commit(checkout) == head
    git(checkout, "pack-refs", "--all")
    assert source_commit(checkout) == head
    git(checkout, "checkout", "-q", "--detach")
    assert source_commit(checkout) == head


def test_another_branch_whose_name_begins_alike_is_not_this_one(checkout: Path) -> None:
    git(checkout, "checkout", "-q", "-b", "main-2")
    git(checkout, "-c", "user.name=n", "-c", "user.email=e", "commit", "-q", "--allow-empty", "-m", "two")
    git(checkout, "checkout", "-q", "main")
    git(checkout, "branch", "-q", "-m", "main-2", "a/refs/heads/main-2")  # packed before, and holds the name
    git(checkout, "pack-refs", "--all")
    assert source_commit(checkout) == git(checkout, "rev-parse", "main")


def test_what_is_no_checkout_has_no_commit(checkout: Path, tmp_path: Path) -> None:
    assert source_commit(tmp_path / "elsewhere" / "privdd") is None
    (checkout.parent / ".git" / "HEAD").write_text("junk")
    assert source_commit(checkout) is None
    (checkout.parent / ".git" / "HEAD").write_bytes(b"ref: refs/heads/\xff")
    assert source_commit(checkout) is None


def test_the_date_is_now_in_utc() -> None:
    date = datetime.fromisoformat(str(run_provenance()["date"]))
    assert abs(datetime.now(UTC) - date) < timedelta(minutes=5)
