"""A real federation on this machine: a SuperLink and two SuperNodes over loopback, beside its
simulation.

    python -m tests.system.flower_loopback [--rounds 2] [--timeout 400] [override ...]

Every process is started and ended here, by its id. Prints seconds and whether ledger, model,
artifacts and findings of the audit are equal to those of the simulated run, and leaves nothing
behind. The deployed folder is audited as a user would, by ``python -m privdd.audit run=DIR``. Needs
the package flwr."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from privdd.cli.run import prepare_run_folder
from privdd.cli.stored_config import load_stored_config
from privdd.runtime.files import read_json
from privdd.runtime.run_folder import read_tensors, same_tensors

APP = """
[project]
name = "privdd-app"
version = "0.1.0"
dependencies = ["flwr"]
[tool.flwr.app]
publisher = "privdd"
[tool.flwr.app.components]
serverapp = "privdd_app:server"
clientapp = "privdd_app:client"
[tool.flwr.app.config]
config = "{config}"
folder = "{folder}"
"""
CODE = (
    "from privdd.integrations.flower_app import client, server\n\n__all__ = ['client', 'server']\n"
)
BIN = Path(sys.executable).parent


def ports(count: int) -> list[int]:
    """Free ports of loopback."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    found = [s.getsockname()[1] for s in sockets]
    for one in sockets:
        one.close()
    return found


def write_app(place: Path, port: int, code: str = CODE) -> Path:
    """The app's folder and Flower's home, whose connection "here" is this SuperLink."""
    app = place / "app"
    home = place / "home"
    app.mkdir()
    home.mkdir(exist_ok=True)
    (app / "pyproject.toml").write_text(
        APP.format(config=place / "config", folder=place / "deployed")
    )
    (app / "privdd_app.py").write_text(code)
    text = (
        '[superlink]\ndefault = "here"\n[superlink.here]\naddress = '
        f'"127.0.0.1:{port}"\ninsecure = true\n'
    )
    (home / "config.toml").write_text(text)
    return app


def started(place: Path, environment: dict[str, str]) -> tuple[list[subprocess.Popen[bytes]], int]:
    """SuperLink and two SuperNodes, working in ``place`` -> (processes, the SuperLink's port)."""
    port, *nodes = ports(3)
    link = [
        BIN / "flower-superlink",
        "--insecure",
        "--disable-runtime-dependency-installation",
        "--port",
        port,
    ]
    commands = [link] + [
        [
            BIN / "flower-supernode",
            "--insecure",
            "--superlink",
            f"127.0.0.1:{port}",
            "--port",
            nodes[k],
            "--node-config",
            f"partition-id={k}",
        ]
        for k in (0, 1)
    ]
    running = []
    for number, command in enumerate(commands):
        log = (place / f"log_{number}").open("wb")
        running.append(
            subprocess.Popen(
                [str(c) for c in command],
                env=environment,
                cwd=place,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        )
        if number == 0:
            wait_for(port, running[0])
    return running, port


def wait_for(port: int, process: subprocess.Popen[bytes], seconds: float = 120.0) -> None:
    """Return once a port of loopback is listened to, or the process has ended, or after
    ``seconds``."""
    ends = time.monotonic() + seconds
    while time.monotonic() < ends and process.poll() is None:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1.0):
            return
        time.sleep(0.2)


def has_ledger(place: Path) -> bool:
    """Whether a federation of privdd's own has finished."""
    return (place / "deployed" / "ledger.json").is_file()


def end(process: subprocess.Popen[bytes]) -> None:
    """A process and what it started, by its own group."""
    os.killpg(process.pid, 15)
    try:
        process.wait(20)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, 9)


def deployed(
    place: Path, timeout: float, code: str = CODE, finished: Callable[[Path], bool] = has_ledger
) -> float:
    """Seconds from the submission of an app until ``finished(place)``. Raises RuntimeError after
    ``timeout``."""
    environment = {
        **os.environ,
        "FLWR_HOME": str(place / "home"),
        "FLWR_TELEMETRY_ENABLED": "0",
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join(p for p in sys.path if p),
        "PATH": f"{BIN}:{os.environ['PATH']}",
    }
    running, port = started(place, environment)
    try:
        app = write_app(place, port, code)
        began = time.monotonic()
        ran = subprocess.run(
            [str(BIN / "flwr"), "run", str(app), "here"],
            env=environment,
            capture_output=True,
            text=True,
        )
        while not finished(place):
            if time.monotonic() - began > timeout or ran.returncode:
                logs = "\n".join(
                    (place / f"log_{k}").read_text(errors="replace")[-1500:] for k in range(3)
                )
                raise RuntimeError(f"no result:\n{ran.stdout[-1500:]}{ran.stderr[-1500:]}\n{logs}")
            time.sleep(0.5)
        return time.monotonic() - began
    finally:
        for process in running:
            end(process)


def audited(folder: Path, *arguments: str) -> None:
    """An audit of, or into, a folder by its command. Raises RuntimeError where it fails."""
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join(p for p in sys.path if p),
    }
    command = [sys.executable, "-m", "privdd.audit", *arguments]
    ran = subprocess.run(
        command, env=environment, cwd=folder.parent, capture_output=True, text=True
    )
    if ran.returncode not in (0, 2):
        raise RuntimeError(f"the audit failed:\n{ran.stderr[-1500:]}")


def found(folder: Path) -> Any:
    """findings.json without what a clock wrote."""

    def timeless(value: Any) -> Any:
        if isinstance(value, dict):
            return {k: timeless(v) for k, v in value.items() if k != "seconds"}
        return [timeless(v) for v in value] if isinstance(value, list) else value

    return timeless(read_json(folder / "findings.json"))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--timeout", type=float, default=400.0)
    parser.add_argument("overrides", nargs="*")
    given = parser.parse_args()
    overrides = [
        "preset=smoke",
        "partition.clients=2",
        "data.limit=200",
        "model=mlp",
        f"algo.rounds={given.rounds}",
        *given.overrides,
    ]
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        simulated = place / "simulated"
        deployment = place / "deployed"
        audited(simulated, *overrides, f"hydra.run.dir={simulated}")
        prepare_run_folder(place / "config", load_stored_config(simulated))
        seconds = deployed(place, given.timeout)
        files = sorted(
            p.relative_to(simulated)
            for part in ("artifacts", "state")
            for p in (simulated / part).rglob("*.safetensors")
        )
        # stay at the clients
        files = [
            file for file in files if "memories" not in file.name and "victim" not in file.name
        ]
        same = all(
            same_tensors(read_tensors(simulated / f), read_tensors(deployment / f)) for f in files
        )
        equal = read_json(simulated / "ledger.json") == read_json(deployment / "ledger.json")
        audited(deployment, f"run={deployment}")
        findings = found(deployment)
        alike = json.dumps(findings, sort_keys=True) == json.dumps(found(simulated), sort_keys=True)
        print(f"{given.rounds} rounds on a SuperLink and two SuperNodes: {seconds:.0f} s")
        print(
            f"ledger equal to the simulated run: {equal}; {len(files)} files of model and "
            f"artifacts equal: {same}"
        )
        print(
            f"{len(findings['findings'])} findings of the audit equal to the simulated "
            f"run's: {alike} ({findings['verdict']})"
        )
        sys.exit(0 if same and equal and alike else 1)


if __name__ == "__main__":
    main()
