"""The app of docs/tutorials/flower.md on a real SuperLink with two SuperNodes over loopback, and its audit."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path

import numpy as np
import pytest

from privdd.cli import main as cli
from privdd.recording.recording import read_recordings
from privdd.reporting.schema import load_findings
from privdd.runtime.files import read_json
from tests.system.flower_loopback import deployed

PAGE = (Path(__file__).parents[2] / "docs" / "tutorials" / "flower.md").read_text()


def records(seed: int, count: int) -> tuple[np.ndarray, np.ndarray]:
    draw = np.random.default_rng(seed)
    return draw.normal(size=(count, 1, 16, 16)).astype(np.float32), draw.integers(0, 3, count)


def finished(place: Path) -> bool:
    """The server has closed its recording."""
    return (place.parent / "run" / "tap.json").is_file() and read_json(place.parent / "run" / "tap.json").get("state") != "recording"


@pytest.mark.engine
def test_the_example_is_recorded_over_real_servers_and_audited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (code,) = re.findall(r"```python\n(# tapped_app\.py\n.*?)```", PAGE, re.S)
    (command,) = re.findall(r"```sh\npython -m privdd\.audit (run=\.\./run .*)\n```", PAGE)
    lines = [line for line in code.splitlines() if line.strip() and not line.startswith(("#", "import", "from"))]
    assert len(lines) <= 20
    place = tmp_path / "app"  # beside the recording
    place.mkdir()
    for name, seed in (("site-0", 1), ("site-1", 2), ("others", 3)):
        x, y = records(seed, 120)
        np.savez(place / f"{name}.npz", x=x, y=y)
    (place / "tapped_app.py").write_text(code)
    deployed(place, 300, code, finished)
    server, *clients = read_recordings(tmp_path / "run")  # what both saw agrees, else this raises
    assert len(server.client_nodes) == 2 == len(clients) and len(server.replies_of(server.client_nodes[0])) == 1
    monkeypatch.chdir(place)
    monkeypatch.setattr(sys, "argv", ["privdd-audit", *shlex.split(command), "out=audit"])
    assert cli.main("audit", lambda *a: 77) == 0
    found = {(f.surface, f.attack): f.auc for f in load_findings(place / "audit").findings}
    assert found["update", "tracing"] > 0.8
