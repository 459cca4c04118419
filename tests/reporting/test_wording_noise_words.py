"""A page says at its top that its noise is not for release, and of several runs that they share it."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from privdd.reporting import wording
from privdd.reporting.comparison import write_comparison
from privdd.reporting.schema import NoiseRow
from tests.reporting.checker import problems
from tests.reporting.fixture import text_of, write_run


def run(path: Path, source: str | None, paired: bool = False, **more: object) -> Path:
    folder = write_run(path, kind="consistent", **more)  # type: ignore[arg-type]
    data = json.loads((folder / "findings.json").read_text())
    if source is not None:
        data["privacy"]["noise"] = {"source": source, "paired": paired, "for_release": source != "seed" and not paired}
    data["privacy"]["public"] = [{"what": "participation", "value": "all <5> clients in every round"}]
    (folder / "findings.json").write_text(json.dumps(data))
    return folder


def shown(folder: Path) -> str:
    text = text_of(folder)
    assert problems(text) == []
    return text


@pytest.mark.parametrize(("source", "paired", "said"), [
    ("seed", False, [wording.SEED]),
    ("seed", True, [wording.SEED, wording.PAIRED]),
    ("secret", True, [wording.PAIRED]),
    ("secret", False, []),
    ("os", False, []),
    (None, False, []),
])  # fmt: skip
def test_a_page_says_whether_its_noise_may_be_released(
    source: str | None, paired: bool, said: list[str], tmp_path: Path
) -> None:
    text = shown(run(tmp_path, source, paired))
    assert [mark for mark in (wording.SEED, wording.PAIRED) if mark in text] == said
    top = text.index('<div class="cards">')
    assert all(text.index(mark) < top for mark in said)  # before any number
    assert [key for key, words in wording.SOURCE.items() if words in text] == ([source] if source else [])
    assert "all &lt;5&gt; clients in every round" in text


def test_a_comparison_of_runs_with_paired_noise_says_so(tmp_path: Path) -> None:
    folders = [run(tmp_path / str(n), "seed", paired, noise=z) for n, (z, paired) in enumerate([(1, True), (2, True), (3, False)])]
    page = write_comparison(folders, tmp_path / "out").read_text(encoding="utf-8")
    assert wording.SEVERAL in page
    rows = list(csv.DictReader((tmp_path / "out" / "frontier.csv").open(encoding="utf-8")))
    assert sorted((row["noise_source"], row["paired_noise"]) for row in rows) == [("seed", "false"), ("seed", "true"), ("seed", "true")]
    alone = write_comparison(folders[1:], tmp_path / "alone").read_text(encoding="utf-8")
    assert wording.SEVERAL not in alone


def test_for_release_is_what_the_settings_say() -> None:
    assert wording.noise_source_text(NoiseRow(source="seed", paired=True, for_release=False)).endswith("with this seed")
