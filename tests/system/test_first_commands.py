"""What newcomers type first: each succeeds, or ends in the one line that puts it right.

A command that would train for long is followed until the audit itself would start: everything that
can be refused, has been by then.
"""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hydra.core.global_hydra import GlobalHydra

from privdd import __version__
from privdd.cli import main as command
from privdd.cli.compose import expand_arguments
from privdd.cli.run import run_audit
from privdd.core.validation import BadConfig
from tests.conftest import SmallAudit

STARTS = "the audit starts"
SUCCEEDS = "it succeeds"
FIRST = {
    "the first command of all": ("algo=fedfed preset=smoke", STARTS),
    "three methods side by side": ("-m algo=fedavg,feddm,fedfed preset=smoke", STARTS),
    "two attacks alone": ("algo=fedavg attack=[lira,rmia]", STARTS),
    "a stored run attacked again": ("run=DIR attack=[lira,rmia]", SUCCEEDS),
    "another noise level of a private method": (
        "algo=feddm_dp privacy.noise_multiplier=4 preset=smoke",
        STARTS,
    ),
    "a folder of pictures": ("algo=fedavg preset=smoke data=folder data.root=pictures", STARTS),
    "help": ("--help", "usage: python -m privdd.audit"),
    "version": ("--version", f"privdd {__version__}"),
    "rounds of the method within": (
        "algo=fedfed algo.rounds=3",
        "algo.rounds: unknown key; did you mean algo.base.rounds?",
    ),
    "a number that is none": (
        "algo=fedfed algo.base.rounds=abc",
        "algo.base.rounds='abc': a number is needed",
    ),
    "a method misspelt": ("algo=fedfedd", "algo=fedfedd: unknown algo; did you mean fedfed?"),
    "an attack in capitals": (
        "algo=fedavg attack=LiRA",
        "attack=LiRA: unknown attack; did you mean lira?",
    ),
    "a preset that is none": (
        "preset=fast",
        "preset=fast: unknown preset. Allowed are default, paper, smoke",
    ),
    "settings with dashes": ("--preset smoke", "write preset=smoke"),
    "methods with dashes": ("--algo fedfed", "write algo=fedfed"),
    "a table in place of data": ("data=tab.csv", "write data=npz data.root=FILE"),
    "a table in place of arrays": (
        "algo=fedavg data=npz data.root=tab.csv",
        "data.root=tab.csv: not a .npz file of plain arrays",
    ),
    "pictures from nowhere": (
        "algo=fedavg data=folder",
        "data=folder: data.root=DIR is needed, a folder with one subfolder for each class",
    ),
    "pictures from a folder that is not there": (
        "algo=fedavg data=folder data.root=nowhere",
        "data.root=nowhere: no such folder",
    ),
    "records that are no pictures": (
        "algo=fedavg data=npz data.root=flat.npz",
        r"x \(n, h, w\[, c\]\) and y \(n,\) are needed, got \(90, 20\)",
    ),
    "a tracker that is not known": (
        "algo=fedavg tracking=aim",
        "tracking=aim: allowed are null, tensorboard",
    ),
}


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    from PIL import Image

    rng = np.random.default_rng(0)
    for label in "ab":
        (tmp_path / "pictures" / label).mkdir(parents=True)
        for index in range(60):
            Image.fromarray(rng.integers(0, 255, (8, 8), np.uint8)).save(
                tmp_path / "pictures" / label / f"{index}.png"
            )
    np.savez(tmp_path / "flat.npz", x=rng.random((90, 20)), y=np.arange(90) % 3)
    (tmp_path / "tab.csv").write_text("a,b\n1,2\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.nightly(
    cases=[
        "records that are no pictures",
        "two attacks alone",
        "a table in place of arrays",
        "a stored run attacked again",
        "a folder of pictures",
        "another noise level of a private method",
        "three methods side by side",
    ]
)
@pytest.mark.parametrize("kind", FIRST)
def test_a_first_command(
    kind: str,
    place: Path,
    audited: Callable[[str], SmallAudit],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    typed, ends = FIRST[kind]

    def started(*_: object, **__: object) -> None:
        raise BadConfig("nothing was refused")

    if ends is STARTS:
        monkeypatch.setattr("privdd.auditing.pipeline.audit_experiment", started)
    if "run=DIR" in typed:
        shutil.copytree(audited("fedavg").path, place / "DIR")
    # drawn elsewhere
    monkeypatch.setattr("privdd.reporting.page.write_report", lambda path, *_: path / "report.html")
    for module in (
        "hydra.core.utils",
        "hydra._internal.hydra",
    ):  # it would keep this test's captured stderr
        monkeypatch.setattr(f"{module}.configure_log", lambda *_, **__: None)
    argv = typed.split()
    if "-m" in argv:  # sweeps as such: tests/cli/test_sweeps.py
        command.check_command("audit", expand_arguments(argv, "audit"))
        argv = [one.split(",")[-1].replace("fedfed", "algo=fedfed") for one in argv if one != "-m"]
    monkeypatch.setattr(sys, "argv", ["privdd-audit", *argv])
    GlobalHydra.instance().clear()
    status = command.main("audit", run_audit)
    said = capsys.readouterr()
    assert "Traceback" not in said.err
    if ends is SUCCEEDS:
        assert status == 0 and {
            row["attack"] for row in json.loads(Path("DIR/findings.json").read_text())["findings"]
        } >= {"lira", "rmia"}
    elif ends is STARTS:
        refused = [line for line in said.err.splitlines() if line.startswith("privdd: error: ")]
        assert (
            status == 1
            and refused
            and all(
                "nothing was refused" in line or line.startswith("privdd: error: each")
                for line in refused
            )
        ), refused
    elif typed.startswith(("--help", "--version")):
        assert status == 0 and said.out.startswith(ends)
    else:
        (line,) = said.err.splitlines()
        assert (
            status == 1
            and line.startswith("privdd: error: ")
            and re.search(ends.replace("?", r"\?"), line)
        ), line
        assert not list(Path().rglob("config.yaml")) and not list(Path().rglob("findings.json"))
