"""A real federation on this machine: a SuperLink and two SuperNodes over loopback, beside its simulation.

    python benchmarks/flower_loopback.py [--rounds 2] [--timeout 400] [override ...]

Every process is started and ended here, by its id. Prints seconds and whether ledger, model and artifacts
are equal to those of the simulated run, and leaves nothing behind. Needs ``privdd[flower]``.
"""

from __future__ import annotations

import argparse
import os
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from privdd.adapters.flower import own_data
from privdd.assembly import assemble
from privdd.config import composed
from privdd.runs import prepare
from privdd.store import RunFolder, read_json, read_tensors, same_tensors
from privdd.training import Trainer

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
BIN = Path(sys.executable).parent


def ports(count: int) -> list[int]:
    """Free ports of loopback."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    found = [s.getsockname()[1] for s in sockets]
    for one in sockets:
        one.close()
    return found


def write_app(place: Path, port: int) -> Path:
    """The app's folder and Flower's home, whose connection "here" is this SuperLink."""
    app, home = place / "app", place / "home"
    app.mkdir()
    home.mkdir(exist_ok=True)
    (app / "pyproject.toml").write_text(APP.format(config=place / "config", folder=place / "deployed"))
    (app / "privdd_app.py").write_text("from privdd.adapters.flower_app import client, server\n\n__all__ = ['client', 'server']\n")
    text = f'[superlink]\ndefault = "here"\n[superlink.here]\naddress = "127.0.0.1:{port}"\ninsecure = true\n'
    (home / "config.toml").write_text(text)
    return app


def started(place: Path, environment: dict[str, str]) -> tuple[list[subprocess.Popen[bytes]], int]:
    """SuperLink and two SuperNodes -> (processes, the SuperLink's port)."""
    port, *nodes = ports(3)
    link = [BIN / "flower-superlink", "--insecure", "--disable-runtime-dependency-installation", "--port", port]
    commands = [link] + [
        [BIN / "flower-supernode", "--insecure", "--superlink", f"127.0.0.1:{port}", "--port", nodes[k],
         "--node-config", f"partition-id={k}"] for k in (0, 1)
    ]
    running = []
    for number, command in enumerate(commands):
        log = (place / f"log_{number}").open("wb")
        running.append(subprocess.Popen([str(c) for c in command], env=environment, stdout=log, stderr=log, start_new_session=True))
        time.sleep(3.0 if number == 0 else 0.0)
    return running, port


def end(process: subprocess.Popen[bytes]) -> None:
    """A process and what it started, by its own group."""
    os.killpg(process.pid, 15)
    try:
        process.wait(20)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, 9)


def deployed(place: Path, timeout: float) -> float:
    """Seconds from the submission to the finished run folder. Raises RuntimeError after ``timeout``."""
    environment = {**os.environ, "FLWR_HOME": str(place / "home"), "FLWR_TELEMETRY_ENABLED": "0", "OMP_NUM_THREADS": "1",
                   "PYTHONPATH": os.pathsep.join(p for p in sys.path if p), "PATH": f"{BIN}:{os.environ['PATH']}"}
    running, port = started(place, environment)
    try:
        app = write_app(place, port)
        began = time.monotonic()
        ran = subprocess.run([str(BIN / "flwr"), "run", str(app), "here"], env=environment, capture_output=True, text=True)
        while not (place / "deployed" / "ledger.json").is_file():
            if time.monotonic() - began > timeout or ran.returncode:
                logs = "\n".join((place / f"log_{k}").read_text(errors="replace")[-1500:] for k in range(3))
                raise RuntimeError(f"no result:\n{ran.stdout[-1500:]}{ran.stderr[-1500:]}\n{logs}")
            time.sleep(0.5)
        return time.monotonic() - began
    finally:
        for process in running:
            end(process)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--timeout", type=float, default=400.0)
    parser.add_argument("overrides", nargs="*")
    given = parser.parse_args()
    config = composed("audit", [
        "preset=smoke", "attack=[lira]", "partition.clients=2", "data.limit=200", "model=mlp", "algo.local_epochs=1",
        f"algo.rounds={given.rounds}", *given.overrides,
    ])
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        experiment = assemble(config)
        prepare(place / "config", experiment.config)
        shards = [own_data(experiment, k) for k in range(2)]
        simulated = place / "simulated"
        Trainer(experiment.plan, shards, experiment.test, experiment.engine, RunFolder(simulated), experiment.ledger()).run()
        seconds = deployed(place, given.timeout)
        files = sorted(p.relative_to(simulated) for p in simulated.rglob("*.safetensors"))
        same = all(same_tensors(read_tensors(simulated / f), read_tensors(place / "deployed" / f)) for f in files)
        equal = read_json(simulated / "ledger.json") == read_json(place / "deployed" / "ledger.json")
        print(f"{given.rounds} rounds on a SuperLink and two SuperNodes: {seconds:.0f} s")
        print(f"ledger equal to the simulated run: {equal}; {len(files)} files of model, memory and artifacts equal: {same}")
        sys.exit(0 if same and equal else 1)


if __name__ == "__main__":
    main()
