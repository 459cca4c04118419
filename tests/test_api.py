"""The functions behind the commands, and the numbers that a tracker gets."""

from __future__ import annotations

import math
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import privdd
from privdd.api import _output_folder, audit, compare, config_of, load_run, train

TINY = (
    "preset=smoke",
    "partition.clients=2",
    "algo.rounds=2",
    "algo.local_epochs=1",
    "audit.worlds=3",
    "audit.records=12",
    "attack=[lira]",
    "audit.waive.global_model=small",
)


def scalars(folder: Path) -> dict[str, list[float]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    log = EventAccumulator(str(folder / "tensorboard")).Reload()
    return {tag: [event.value for event in log.Scalars(tag)] for tag in log.Tags()["scalars"]}


def test_audit_returns_what_it_wrote(tmp_path: Path) -> None:
    found = audit(*TINY, algo="fedprox", tracking="tensorboard", out=tmp_path / "run")
    record = load_run(tmp_path / "run")
    assert record.findings == found and found.run.algo == "fedprox" and found.run.rounds == 2
    assert record.manifest["command"][:3] == ["python", "-m", "privdd.audit"]
    for name in ("accuracy", "epsilon"):
        assert {
            (tmp_path / "run" / "figures" / f"{name}.{kind}").is_file() for kind in ("png", "svg")
        } == {True}
    page = compare([tmp_path / "run"], tmp_path / "all")
    assert page.is_file() and {p.name for p in page.parent.glob("*.*")} >= {
        "frontier.csv",
        "leaks.csv",
        "leaks.tex",
    }
    assert (page.parent / "figures" / "roc.png").is_file() and (
        page.parent / "figures" / "roc.svg"
    ).is_file()

    logged = scalars(tmp_path / "run")
    assert found.utility is not None
    assert logged["accuracy"] == pytest.approx(found.utility.accuracy_by_round)
    row = next(row for row in found.findings if row.surface == "update")
    assert logged["update/lira/server/auc"] == pytest.approx([row.auc])
    assert math.isinf(found.privacy.epsilon.pld) and "epsilon/pld" not in logged


def test_train_returns_accuracy_and_epsilon(tmp_path: Path) -> None:
    tiny = [a for a in TINY if not a.startswith(("audit", "attack"))]
    told = train(
        *tiny,
        "privacy=dpsgd",
        "privacy.sampling_probability=0.2",
        "tracking=tensorboard",
        out=tmp_path,
    )
    assert (
        len(told["accuracy_by_round"]) == 2 and 0 < told["epsilon"]["pld"] <= told["epsilon"]["rdp"]
    )
    assert scalars(tmp_path)["epsilon/pld"] == pytest.approx([told["epsilon"]["pld"]])


@pytest.mark.nightly
def test_config_is_the_commands(tmp_path: Path) -> None:
    config = config_of("audit", "algo=fedfed_dp", "preset=paper", "seed=4")
    assert (config.name, config.seed, config.algo.base.rounds) == ("fedfed_dp", 4, 1000)
    assert config_of("audit", "name=mine").name == "mine"


@pytest.mark.parametrize("typed", ["algo=fedfedd", "seeed=1", "tracking=aim", "attack=[]"])
def test_mistakes_are_one_line_and_leave_no_folder(tmp_path: Path, typed: str) -> None:
    with pytest.raises(ValueError) as caught:
        audit(*TINY, typed, out=tmp_path / "run")
    assert "\n" not in str(caught.value) and not (tmp_path / "run").exists()


@pytest.mark.parametrize("name", ["attacks.py", "attacks/__init__.py"])
def test_another_package_named_attacks_is_named(name: str, tmp_path: Path) -> None:
    """It comes first on the path, as where Python is started in its folder."""
    place = tmp_path / name
    place.parent.mkdir(exist_ok=True)
    place.write_text('MARKER = "privdd-attacks"\n')
    path = os.pathsep.join([str(tmp_path), str(Path(privdd.__file__).parents[1])])
    command = [sys.executable, "-c", "import privdd"]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
        cwd="/",
        timeout=300,
    )
    assert (
        done.returncode == 1
        and f"another package named 'attacks' shadows privdd's: {place}" in done.stderr
    )


def test_without_a_folder_each_run_has_one_of_its_own() -> None:
    first = _output_folder(None)
    second = _output_folder(None)
    assert (
        re.fullmatch(r"outputs/\d{4}-\d\d-\d\d/\d\d-\d\d-\d\d-[0-9a-f]{6}", first.as_posix())
        and first != second
    )
    assert _output_folder("mine") == Path("mine")
