"""The example of docs/tutorials/own-target.md runs as it is written, in at most twelve lines."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from privdd.external import runner
from privdd.external.run_folder import ExternalAudit

PAGE = Path(__file__).parents[2] / "docs" / "tutorials" / "own-target.md"


def test_the_example_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With 4 shadow models, and without the page, which other tests look at."""
    code = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.S)[0]
    assert len([line for line in code.splitlines() if line.strip()]) <= 12
    monkeypatch.chdir(tmp_path)
    made: list[tuple[ExternalAudit, Path]] = []
    monkeypatch.setattr(runner, "with_views", lambda findings, folder: findings)
    monkeypatch.setattr(
        runner, "write_audit_folder", lambda run, path, command: made.append((run, path))
    )
    names: dict[str, Any] = {}
    exec(
        compile(code.replace("shadows=16", "shadows=4").replace("(30,", "(10,"), "example", "exec"),
        names,
    )
    ((run, path),) = made
    found = {one.finding.attack: one.finding.measures.to_row() for one in run.judged}
    assert (
        path == Path("runs/forest")
        and found["rmia"]["auc"] > 0.7
        and found["loss_threshold"]["auc"] > 0.6
    )
