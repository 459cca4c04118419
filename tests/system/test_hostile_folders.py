"""Run folders made by an attacker: no code of theirs runs, nothing outside the folder is read or
written, one line each.

All are made from one honest run. ``sung`` is a file that hostile code would write; ``outside`` is a
folder that no command may open or change, watched by Python's own audit events.
"""

from __future__ import annotations

import io
import json
import os
import pickle
import shutil
import struct
import sys
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from hydra.core.global_hydra import GlobalHydra

from privdd import report, verify
from privdd.cli import main as command
from privdd.cli.errors import run_guarded
from privdd.cli.run import run_audit, run_training
from privdd.cli.sweeps import POINT_FILE, Sweep
from privdd.runtime.files import LARGEST_JSON
from tests.conftest import SmallAudit

LIRA = {"_target_": "attacks.membership.lira.Lira"}
OPENED: list[str] = []  # every path that Python opened, listed or linked since the last reset
WATCHED = (
    "open",
    "os.listdir",
    "os.scandir",
    "os.rename",
    "os.mkdir",
    "os.link",
    "os.symlink",
    "os.remove",
    "os.rmdir",
    "shutil.rmtree",
)


def _watch(event: str, arguments: tuple[Any, ...]) -> None:
    if event in WATCHED:
        OPENED.extend(
            os.fsdecode(one) for one in arguments[:2] if isinstance(one, str | bytes | os.PathLike)
        )


sys.addaudithook(_watch)


class Bomb:
    """Unpickling it writes the canary."""

    def __init__(self, sung: Path) -> None:
        self.sung = sung

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch '{self.sung}'",)


@dataclass(frozen=True)
class Scene:
    """A copy of the honest run, the canary, and a folder outside."""

    run: Path
    sung: Path
    outside: Path

    def config(self, change: Callable[[dict[str, Any]], object]) -> None:
        file = self.run / "config.yaml"
        config = yaml.safe_load(file.read_text())
        change(config)
        file.write_text(yaml.safe_dump(config))

    def json(self, name: str, change: Callable[[Any], object]) -> None:
        data = json.loads((self.run / name).read_text())
        change(data)
        (self.run / name).write_text(json.dumps(data))

    def link(self, name: str, target: Path) -> None:
        place = self.run / name
        shutil.rmtree(place) if place.is_dir() else place.unlink(missing_ok=True)
        place.symlink_to(target)


@pytest.fixture
def scene(audited: Callable[[str], SmallAudit], tmp_path: Path) -> Scene:
    made = Scene(tmp_path / "run", tmp_path / "sung", tmp_path / "outside")
    shutil.copytree(audited("fedavg").path, made.run)
    made.outside.mkdir()
    (made.outside / "secret.json").write_text("{}")
    shutil.copy(made.run / "config.yaml", made.outside / "config.yaml")
    np.savez(made.outside / "data.npz", x=np.zeros((40, 8, 8), np.uint8), y=np.arange(40) % 2)
    np.savez(made.outside / "scores.npz", scores=np.arange(9.0), member=np.arange(9) % 2)
    return made


def state(folder: Path) -> dict[str, bytes]:
    return {
        str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()
    }


@pytest.fixture(autouse=True)
def quiet_logging() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for module in ("hydra.core.utils", "hydra._internal.hydra"):
            patch.setattr(f"{module}.configure_log", lambda *_, **__: None)
        yield


def run_command(kind: str, scene: Scene, monkeypatch: pytest.MonkeyPatch) -> int:
    """One of the commands on the hostile folder, in this process -> exit status."""
    run = scene.run
    if kind == "report":
        return report.main([str(run)])
    if kind == "compare":
        return report.main([str(run), str(run), f"out={run.parent / 'out'}"])
    if kind == "verify":
        return verify.main([str(run)])
    if kind == "sweep":
        sweep = Sweep("audit", run.parent)
        (run / POINT_FILE).write_text(json.dumps({"sweep": sweep.token, "status": 0, "error": ""}))
        return run_guarded(sweep.finish_sweep)
    if kind == "train sweep":
        sweep = Sweep("train", run.parent)
        (run / POINT_FILE).write_text(json.dumps({"sweep": sweep.token, "status": 0, "error": ""}))
        return run_guarded(sweep.finish_sweep)
    word, _, more = kind.partition(" ")
    arguments = (
        [f"scores={run}/scores.npz", f"hydra.run.dir={run.parent}/new"]
        if word == "scores"
        else [f"{word}={run}", *more.split()]
    )
    train = word == "train"
    monkeypatch.setattr(sys, "argv", ["privdd", *([f"resume={run}"] if train else arguments)])
    GlobalHydra.instance().clear()
    return command.main("train" if train else "audit", run_training if train else run_audit)


def attack(**node: Any) -> Callable[[Scene], None]:
    """A config with this node as an attack; {sung}, {run} and {outside} in it are paths."""

    def make(scene: Scene) -> None:
        places = {"sung": str(scene.sung), "run": str(scene.run), "outside": str(scene.outside)}
        scene.config(lambda config: config.update(attack={"x": filled(node, places)}))

    return make


def filled(node: Any, places: dict[str, str]) -> Any:
    """The paths put into every text of a node."""
    if isinstance(node, dict):
        return {key: filled(inner, places) for key, inner in node.items()}
    if isinstance(node, list):
        return [filled(inner, places) for inner in node]
    return node.format(**places) if isinstance(node, str) else node


def placed(*path: str, **node: Any) -> Callable[[Scene], None]:
    """A config with this node at a dotted place."""

    def make(scene: Scene) -> None:
        def change(config: dict[str, Any]) -> None:
            inside = config
            for name in path[:-1]:
                inside = inside.setdefault(name, {})
            inside[path[-1]] = filled(node, {"sung": str(scene.sung)})

        scene.config(change)

    return make


def value(key: str, new: str) -> Callable[[Scene], None]:
    """A config with one value changed; {outside} in it is a path."""

    def make(scene: Scene) -> None:
        def change(config: dict[str, Any]) -> None:
            *path, last = key.split(".")
            for name in path:
                config = config[name]
            config[last] = new.format(outside=scene.outside, sung=scene.sung)

        scene.config(change)

    return make


def pickled(scene: Scene) -> None:
    data = pickle.dumps(Bomb(scene.sung))
    scene.config(
        lambda c: c.update(
            attack={"x": {"_target_": "privdd.runtime.task_messages.decode_value", "payload": data}}
        )
    )


def text(name: str, words: str) -> Callable[[Scene], None]:
    return lambda scene: _written(scene.run / name, words.format(sung=scene.sung).encode())


def _written(file: Path, data: bytes) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(data)


def aliases(scene: Scene) -> None:
    lines = ["a0: &a0 [x, x, x, x]"] + [
        f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 12)
    ]
    with (scene.run / "config.yaml").open("a") as file:
        file.write("\n".join(lines))


def linked(name: str, target: str) -> Callable[[Scene], None]:
    return lambda scene: scene.link(name, scene.outside / target)


def sparse(name: str, size: int, start: bytes = b"") -> Callable[[Scene], None]:
    """A file that claims to be that large and takes no space."""

    def make(scene: Scene) -> None:
        with (scene.run / name).open("wb") as file:
            file.write(start)
            file.truncate(size)

    return make


def header(scene: Scene) -> None:
    _written(scene.run / "evidence" / "update.lira.safetensors", struct.pack("<Q", 2**62) + b"{}")


def pipe(scene: Scene) -> None:
    (scene.run / "ledger.json").unlink()
    os.mkfifo(scene.run / "ledger.json")


def npz_bomb(scene: Scene) -> None:
    """A small zip whose array is 8 GiB of zeros when it is unpacked."""
    head = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        head, {"descr": "<f8", "fortran_order": False, "shape": (2**30,)}
    )
    with zipfile.ZipFile(scene.run / "scores.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("scores.npy", head.getvalue() + bytes(1000))


def npz_pickle(scene: Scene) -> None:
    array = np.empty(1, dtype=object)
    array[0] = Bomb(scene.sung)
    np.savez(scene.run / "scores.npz", scores=array, member=array)


def numbers(name: str, change: Callable[[Any], object]) -> Callable[[Scene], None]:
    return lambda scene: scene.json(name, change)


TOUCH = "touch {sung}"
SHELL = {"_target_": "os.system", "command": TOUCH}
# what it tries -> (how it is made, the command that opens it)
HOSTILE: dict[str, tuple[Callable[[Scene], None], str]] = {
    # the twelve of the first review
    "a shell as attack": (attack(**SHELL), "run"),
    "a shell as algo": (placed("algo", **SHELL), "run"),
    "a shell as algo of a run to go on with": (placed("algo", **SHELL), "resume"),
    "a shell as model": (placed("algo", "model", **SHELL), "train"),
    "a shell as mechanism": (placed("privacy", "mechanisms", "update", **SHELL), "run"),
    "the engine's own unpickler": (pickled, "run"),
    "sympy's eval": (
        attack(_target_="sympy.sympify", a="__import__('os').system('touch {sung}')"),
        "run",
    ),
    "a spawner of setuptools": (
        attack(_target_="setuptools._distutils.spawn.spawn", cmd=["touch", "{sung}"]),
        "run",
    ),
    "torch.load": (
        attack(_target_="torch.load", f="{run}/artifacts/x.pt", weights_only=False),
        "run",
    ),
    "joblib.load": (attack(_target_="joblib.load", filename="{outside}/secret.json"), "run"),
    "torch.save over a file": (
        attack(_target_="torch.save", obj=[1], f="{outside}/secret.json"),
        "run",
    ),
    "pip": (attack(_target_="pip._internal.cli.main.main", args=["--version"]), "run"),
    # more code
    "a module that sings when it is imported": (
        attack(_target_="tests.cli.canary_module.Own"),
        "run",
    ),
    "a function of such a module": (
        placed("algo", _target_="tests.cli.canary_module.sing"),
        "resume",
    ),
    "a shell deep inside an allowed attack": (attack(**LIRA, signal=[{"x": SHELL}]), "run"),
    "a function of privdd that writes": (
        attack(_target_="privdd.runtime.files.write_bytes", path="{outside}/x", data="x"),
        "run",
    ),
    "a method reached through an allowed class": (
        attack(_target_="attacks.membership.lira.Lira.run"),
        "run",
    ),
    "a module reached through an allowed one": (
        attack(_target_="attacks.membership.lira.torch.load", f="{outside}/secret.json"),
        "run",
    ),
    "hydra's own instantiate": (attack(_target_="hydra.utils.instantiate", config=SHELL), "run"),
    "an object of a yaml tag": (
        text("config.yaml", "algo: !!python/object/apply:os.system ['touch {sung}']\n"),
        "run",
    ),
    "an interpolation that reads the environment": (value("name", "${{oc.env:HOME}}"), "run"),
    "positional arguments": (attack(**LIRA, _args_=["x"]), "run"),
    "an own module without trust of its package": (
        attack(_target_="tests.cli.canary_module.Own"),
        "run trust_code=other_package",
    ),
    # ways out of the folder
    "an attack's name that climbs": (
        lambda s: s.config(lambda c: c.update(attack={"../../outside/x": LIRA})),
        "run",
    ),
    "a preset's name that climbs": (
        value("preset.name", "../../../outside/config"),
        "run attack=[lira]",
    ),
    "data from outside": (value("data.root", "{outside}/data.npz"), "run attack=[lira]"),
    "scores from outside": (value("scores", "{outside}/scores.npz"), "run"),
    "a cluster of the attacker": (
        lambda s: s.config(lambda c: c["engine"].update(kind="ray", address="ray://127.0.0.1:1")),
        "resume",
    ),
    "a checkpoint's name that climbs": (
        numbers("state/checkpoint.json", lambda d: d.update(state="../../outside")),
        "resume",
    ),
    "a config that is a link": (linked("config.yaml", "config.yaml"), "run"),
    "evidence that is a link": (linked("evidence", "."), "run attack=[lira]"),
    "figures that are a link": (linked("figures", "."), "report"),
    "shadow models that are a link": (linked("worlds", "."), "run attack=[lira]"),
    "a ledger that is a link": (linked("ledger.json", "secret.json"), "verify"),
    "a link in a run to compare": (linked("more", "."), "compare"),
    "a link in a point of a sweep": (linked("more", "."), "sweep"),
    "an evidence file that climbs": (
        numbers(
            "findings.json", lambda d: d["findings"][0].update(figure="../../outside/x.safetensors")
        ),
        "report",
    ),
    # too much, or no file at all
    "a pipe": (pipe, "report"),
    "a bomb of aliases": (aliases, "run"),
    "a config of 2 GiB": (sparse("config.yaml", 2**31), "run"),
    "a ledger above the limit": (sparse("ledger.json", LARGEST_JSON + 1, b"{"), "verify"),
    "findings above the limit": (sparse("findings.json", LARGEST_JSON + 1, b"{"), "compare"),
    "evidence of 300 MiB": (sparse("evidence/update.lira.safetensors", 300 * 2**20), "report"),
    "a header of 4 EiB": (header, "verify"),
    "scores that unpack to 8 GiB": (npz_bomb, "scores"),
    "pickled scores": (npz_pickle, "scores"),
    "a deep nest in the ledger": (text("ledger.json", "[" * 100_000), "report"),
    # numbers that lie
    "edited findings for a page": (
        numbers("findings.json", lambda d: d["privacy"].update(epsilon={"pld": 0.5, "rdp": 0.5})),
        "report",
    ),
    "edited findings in a comparison": (
        numbers("findings.json", lambda d: d["findings"][1].update(auc=0.5)),
        "compare",
    ),
    "edited findings in a sweep": (
        numbers("findings.json", lambda d: d.update(verdict="contradiction")),
        "sweep",
    ),
    "a ledger of garbage": (
        numbers("ledger.json", lambda d: d.update(releases=[1, None, {"id": "x"}])),
        "report",
    ),
    "a training in a sweep that is none": (
        text("training.json", '{{"epsilon": 3, "accuracy": 1}}'),
        "train sweep",
    ),
}


@pytest.mark.nightly(
    but=[
        "a shell as model",
        "evidence that is a link",
        "figures that are a link",
        "shadow models that are a link",
        "a ledger that is a link",
        "a link in a run to compare",
        "a link in a point of a sweep",
        "an evidence file that climbs",
        "a pipe",
        "a ledger above the limit",
        "findings above the limit",
        "a header of 4 EiB",
        "a deep nest in the ledger",
        "edited findings for a page",
        "edited findings in a comparison",
        "edited findings in a sweep",
        "a ledger of garbage",
        "a training in a sweep that is none",
    ]
)
@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_folder_ends_in_one_line(
    name: str, scene: Scene, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    make, kind = HOSTILE[name]
    make(scene)
    monkeypatch.setenv("PRIVDD_CANARY", str(scene.sung))
    monkeypatch.delitem(sys.modules, "tests.cli.canary_module", raising=False)
    before = state(scene.outside)
    beside = {p.name for p in scene.run.parent.iterdir()}
    OPENED.clear()
    status = run_command(kind, scene, monkeypatch)
    said = capfd.readouterr().err
    opened = [path for path in OPENED if "outside" in Path(os.path.realpath(path)).parts]
    assert status == 1, said
    assert not scene.sung.exists(), "code of the folder ran"
    assert opened == [], "a file outside was opened"
    assert state(scene.outside) == before
    assert {p.name for p in scene.run.parent.iterdir()} - beside <= {"out", "new"}
    lines = [line for line in said.splitlines() if line.startswith("privdd: error")]
    assert len(lines) == 1 and len(lines[0]) < 900, said
    assert "Traceback" not in said


def test_there_are_at_least_thirty() -> None:
    assert len(HOSTILE) >= 30


def test_the_watch_sees_what_is_opened_outside(scene: Scene) -> None:
    """The check above can fail: through a link too."""
    scene.link("more", scene.outside)
    OPENED.clear()
    (scene.run / "more" / "secret.json").read_text()
    assert any("outside" in Path(os.path.realpath(path)).parts for path in OPENED)


@pytest.mark.nightly
def test_data_of_ones_own_is_read_when_it_is_named_again(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """The way out of the refusal, as its line says; another place than the stored one stays
    refused."""
    value("data.root", "{outside}/data.npz")(scene)
    here = f"data.root={scene.outside / 'data.npz'}"
    assert (
        run_command("run attack=[lira]", scene, monkeypatch) == 1 and here in capfd.readouterr().err
    )
    assert (
        run_command(
            f"run attack=[lira] data.root={scene.outside / 'other.npz'}", scene, monkeypatch
        )
        == 1
    )
    assert "can be changed" in capfd.readouterr().err
    # name is still digits, so root is not needed
    status = run_command(f"run attack=[lira] {here}", scene, monkeypatch)
    assert "reads and reaches nothing" not in capfd.readouterr().err and status in (0, 1)
