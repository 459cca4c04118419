"""Tests of ``privdd.runtime.run_folder``."""

from __future__ import annotations

import json
import shutil
import subprocess
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from privdd.runtime.run_folder import run_provenance, source_commit
from privdd.runtime.seal import SEAL_KEY, compute_seal, seal_folder, seal_page, signed_bytes

# The commit against git itself, in every state that a checkout's files can be in.


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A fresh repository with one commit; returns the folder of its package."""
    if shutil.which("git") is None:
        pytest.skip("no git on this machine")
    (tmp_path / "privdd").mkdir()
    git(tmp_path, "init", "-q", "-b", "main")
    git(
        tmp_path,
        "-c",
        "user.name=n",
        "-c",
        "user.email=e",
        "commit",
        "-q",
        "--allow-empty",
        "-m",
        "one",
    )
    return tmp_path / "privdd"


def git(folder: Path, *words: str) -> str:
    return subprocess.run(
        ["git", *words], cwd=folder, check=True, capture_output=True, text=True
    ).stdout.strip()


def test_the_commit_is_gits_own_on_a_branch_packed_or_detached(checkout: Path) -> None:
    head = git(checkout, "rev-parse", "HEAD")
    assert source_commit(checkout) == head
    git(checkout, "pack-refs", "--all")
    assert source_commit(checkout) == head
    git(checkout, "checkout", "-q", "--detach")
    assert source_commit(checkout) == head


def test_another_branch_whose_name_begins_alike_is_not_this_one(checkout: Path) -> None:
    git(checkout, "checkout", "-q", "-b", "main-2")
    git(
        checkout,
        "-c",
        "user.name=n",
        "-c",
        "user.email=e",
        "commit",
        "-q",
        "--allow-empty",
        "-m",
        "two",
    )
    git(checkout, "checkout", "-q", "main")
    # packed before, and holds the name
    git(checkout, "branch", "-q", "-m", "main-2", "a/refs/heads/main-2")
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


# What a seal covers, against sha256 by hand: all files of a run at its end; a page drawn anew seals
# itself and nothing else.


FILES = ("findings.json", "ledger.json", "evidence/a.safetensors", "state/x/y.json")
PAGE = ("report.html", "card.json", "figures/roc.svg")
APART = (
    "point.json",
    "report.pdf",
    ".lock",
    "signature.json",
    "state/secret.json",
    "evidence/.a.safetensors.ab12cd34",
)


def run(folder: Path) -> Path:
    for name in (*FILES, *PAGE, *APART):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name)
    (folder / "manifest.json").write_text('{"seed": 3}')
    return folder


def told(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "manifest.json").read_text())  # type: ignore[no-any-return]


def by_hand(folder: Path, names: tuple[str, ...]) -> dict[str, str]:
    return {name: sha256((folder / name).read_bytes()).hexdigest() for name in sorted(names)}


def test_every_file_is_sealed_and_what_the_manifest_held_stays(tmp_path: Path) -> None:
    seal_folder(run(tmp_path))
    found = told(tmp_path)
    assert (found["files"], found["page"], found["seed"]) == (
        by_hand(tmp_path, FILES),
        by_hand(tmp_path, PAGE),
        3,
    )
    assert found[SEAL_KEY] == compute_seal(found) != compute_seal(found | {"seed": 4})


def test_a_page_that_is_drawn_anew_does_not_seal_a_file_that_was_edited(tmp_path: Path) -> None:
    seal_folder(run(tmp_path))
    before = told(tmp_path)
    for name in ("ledger.json", *PAGE):
        (tmp_path / name).write_text("another")
    seal_page(tmp_path)
    found = told(tmp_path)
    assert (
        found["files"] == before["files"]
        and found["page"] == by_hand(tmp_path, PAGE)
        and found[SEAL_KEY] == compute_seal(found)
    )
    assert signed_bytes(found) == signed_bytes(before)  # so a signature still holds
    assert signed_bytes(found) != signed_bytes(found | {"files": {}})


def test_a_folder_that_was_never_sealed_stays_so(tmp_path: Path) -> None:
    seal_page(run(tmp_path))
    assert told(tmp_path) == {"seed": 3}
