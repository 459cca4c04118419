"""The app of docs/tutorials/flower.md on a real SuperLink with two SuperNodes over loopback, and
its audit."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from privdd.cli import main as cli
from privdd.recording.recording import read_recordings
from privdd.reporting.schema import load_findings
from privdd.runtime.files import read_json
from tests.system.flower_loopback import deployed

pytestmark = pytest.mark.nightly

PAGE = (Path(__file__).parents[2] / "docs" / "tutorials" / "flower.md").read_text()


def records(seed: int, count: int) -> tuple[np.ndarray, np.ndarray]:
    draw = np.random.default_rng(seed)
    return draw.normal(size=(count, 1, 16, 16)).astype(np.float32), draw.integers(0, 3, count)


def finished(place: Path) -> bool:
    """The server has closed its recording."""
    return (place.parent / "run" / "tap.json").is_file() and read_json(
        place.parent / "run" / "tap.json"
    ).get("state") != "recording"


@pytest.mark.engine
def test_the_example_is_recorded_over_real_servers_and_audited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (code,) = re.findall(r"```python\n(# tapped_app\.py\n.*?)```", PAGE, re.S)
    (command,) = re.findall(r"```sh\npython -m privdd\.audit (run=\.\./run .*)\n```", PAGE)
    lines = [
        line
        for line in code.splitlines()
        if line.strip() and not line.startswith(("#", "import", "from"))
    ]
    assert len(lines) <= 20
    place = tmp_path / "app"  # beside the recording
    place.mkdir()
    for name, seed in (("site-0", 1), ("site-1", 2), ("others", 3)):
        x, y = records(seed, 120)
        np.savez(place / f"{name}.npz", x=x, y=y)
    (place / "tapped_app.py").write_text(code)
    deployed(place, 300, code, finished)
    server, *clients = read_recordings(tmp_path / "run")  # what both saw agrees, else this raises
    assert (
        len(server.client_nodes) == 2 == len(clients)
        and len(server.replies_of(server.client_nodes[0])) == 1
    )
    monkeypatch.chdir(place)
    monkeypatch.setattr(sys, "argv", ["privdd-audit", *shlex.split(command), "out=audit"])
    assert cli.main("audit", lambda *a: 77) == 0
    found = {(f.surface, f.attack): f.auc for f in load_findings(place / "audit").findings}
    assert found["update", "tracing"] > 0.8


@pytest.mark.engine
def test_the_page_is_followed_to_the_letter(tmp_path: Path) -> None:
    """Files as the page shows them, then its commands: make_data.py, flwr run, and the audit of the
    recording."""
    place = tmp_path / "app"
    place.mkdir()
    for name, text in re.findall(r"```\w+\n# ([\w.]+)\n(.*?)```", PAGE, re.S):
        (place / name).write_text(text)
    home = tmp_path / "home"
    home.mkdir()
    environment = {
        **{
            name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")
        },
        "HOME": str(home),
        "FLWR_TELEMETRY_ENABLED": "0",
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(Path(__file__).parents[2]),
    }
    (run_line,) = re.findall(r"^flwr run .*$", PAGE, re.M)
    (audit_line,) = re.findall(r"^python -m privdd\.audit run=\.\./run .*$", PAGE, re.M)
    try:
        for line in ("python make_data.py", run_line, f"{audit_line} hydra.run.dir=audit"):
            done = subprocess.run(
                shlex.split(line),
                cwd=place,
                env=environment,
                capture_output=True,
                text=True,
                timeout=300,
            )
            assert done.returncode == 0, done.stdout + done.stderr
            if line == run_line:
                wait_until_finished(place)
    finally:
        end_local_superlink(home)
    surfaces = {row.surface for row in load_findings(place / "audit").surfaces}
    assert surfaces == {"update", "global_model"}


def wait_until_finished(place: Path, seconds: float = 120.0) -> None:
    """The server writes on for a moment after the stream of its log has ended."""
    ends = time.monotonic() + seconds
    while not finished(place) and time.monotonic() < ends:
        time.sleep(0.5)


def end_local_superlink(home: Path) -> None:
    """The SuperLink that ``flwr run`` started by itself, known by the log that it holds in this
    home."""
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            command = (entry / "cmdline").read_bytes().decode(errors="replace")
            variables = (entry / "environ").read_bytes().decode(errors="replace")
        except OSError:
            continue
        if "superlink" in command and f"HOME={home}" in variables:
            os.kill(int(entry.name), signal.SIGTERM)
