"""What a seal covers, against sha256 by hand: all files of a run at its end; a page drawn anew seals itself and nothing else."""

from __future__ import annotations

import json
from hashlib import sha256
from pathlib import Path
from typing import Any

from privdd.runtime.manifest import SEAL_KEY, compute_seal, seal_folder, seal_page, signed_bytes

FILES = ("findings.json", "ledger.json", "evidence/a.safetensors", "state/x/y.json")
PAGE = ("report.html", "card.json", "figures/roc.svg")
APART = ("point.json", "report.pdf", ".lock", "signature.json", "state/secret.json", "evidence/.a.safetensors.ab12cd34")


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
    assert (found["files"], found["page"], found["seed"]) == (by_hand(tmp_path, FILES), by_hand(tmp_path, PAGE), 3)
    assert found[SEAL_KEY] == compute_seal(found) != compute_seal(found | {"seed": 4})


def test_a_page_that_is_drawn_anew_does_not_seal_a_file_that_was_edited(tmp_path: Path) -> None:
    seal_folder(run(tmp_path))
    before = told(tmp_path)
    for name in ("ledger.json", *PAGE):
        (tmp_path / name).write_text("another")
    seal_page(tmp_path)
    found = told(tmp_path)
    assert found["files"] == before["files"] and found["page"] == by_hand(tmp_path, PAGE) and found[SEAL_KEY] == compute_seal(found)
    assert signed_bytes(found) == signed_bytes(before)  # so a signature still holds
    assert signed_bytes(found) != signed_bytes(found | {"files": {}})


def test_a_folder_that_was_never_sealed_stays_so(tmp_path: Path) -> None:
    seal_page(run(tmp_path))
    assert told(tmp_path) == {"seed": 3}
