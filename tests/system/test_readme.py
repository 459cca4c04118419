"""What README and tutorials show runs: commands are accepted, and examples work, in at most fifteen
lines."""

from __future__ import annotations

import importlib.util
import re
import shlex
import sys
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from privdd import account, gate, report, selftest, verify
from privdd.api import audit
from privdd.blackbox.check_command import CHECK
from privdd.canary.commands import parse_canary_arguments as read_canary
from privdd.cli.audit_commands import with_target_prefix
from privdd.cli.compose import expand_arguments
from privdd.cli.main import check_command
from privdd.external.arguments import TARGET_PREFIX, parse_target_arguments
from privdd.reproduce.catalogue import COMMANDS, find_entry
from privdd.reproduce.catalogue import parse_arguments as read_reproduce

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "docs" / "index.md", *sorted((ROOT / "docs").glob("*/*.md"))]
SHOWN = "\n".join(path.read_text(encoding="utf-8") for path in PAGES)
BLOCKS = [
    (kind, dedent(text))
    for kind, text in re.findall(r"^ *```(\w*)\n(.*?)^ *```", SHOWN, re.M | re.S)
]
# How a block of text begins -> the test that compares its first line with what is printed, in the
# fast suite; a drawing has none.
QUOTED = {
    "noise.py:release: epsilon 2": (
        "tests/blackbox/test_tutorial.py:test_the_quoted_line_has_todays_form"
    ),
    "stated ε = 3 is too small": (
        "tests/blackbox/test_tutorial.py:test_the_numbers_under_review_are_printed_as_the_page_shows"
    ),
    "           fair coins": "",
}
FILES = {m[1]: text for _, text in BLOCKS if (m := re.match(r"# (mine/\S+)\n", text))}
TINY = (
    "preset=smoke",
    "partition.clients=2",
    "algo.rounds=1",
    "algo.local_epochs=1",
    "audit.worlds=3",
    "audit.records=12",
    "audit.waive.global_model=small",
)


def commands() -> list[str]:
    inline = re.findall(r"`(python -m privdd\.[^`]+)`", SHOWN)
    blocks = [line for kind, text in BLOCKS if kind == "sh" for line in text.splitlines()]
    found = [
        line.split("python -m ", 1)[1] for line in (*inline, *blocks) if "python -m privdd" in line
    ]
    lines = dict.fromkeys(line.split("   #")[0].strip() for line in found)
    return [
        line
        for line in lines
        if "=" in line or "DIR" in line or " -" in line or line.endswith("selftest")
    ]


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (net,) = [text for _, text in BLOCKS if text.startswith("# net.py\n")]
    for name, text in {**FILES, "mine/net.py": net}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    for path in (tmp_path / "mine").glob("*.py"):  # as PYTHONPATH=mine has it, for this test alone
        spec = importlib.util.spec_from_file_location(path.stem, path)
        assert spec and spec.loader
        module = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, path.stem, module)
        spec.loader.exec_module(module)
    return tmp_path / "mine"


def test_there_are_examples_of_all_three() -> None:
    assert {Path(name).parent.name for name in FILES} == {"mine", "algo", "privacy", "attack"}
    assert {name.split(".")[1] for name in FILES} == {"py", "yaml"}


def test_every_quoted_output_is_compared_in_the_fast_suite() -> None:
    """A block of another kind would be neither parsed as commands nor compared."""
    assert {kind for kind, _ in BLOCKS} <= {"sh", "python", "yaml", "toml", "text"}
    blocks = [text for kind, text in BLOCKS if kind == "text"]
    assert [text for text in blocks if not text.startswith(tuple(QUOTED))] == []
    assert [start for start in QUOTED if not any(text.startswith(start) for text in blocks)] == []
    for place in filter(None, QUOTED.values()):
        path, _, name = place.partition(":")
        source = (ROOT / path).read_text(encoding="utf-8")
        before, found, _ = source.partition(f"def {name}(")
        assert found and not before.rstrip().endswith("nightly"), place


def test_every_shown_setting_is_a_setting(mine: Path) -> None:
    """Of commands that the next test composes at night alone: their groups and keys."""
    for line in commands():
        module, *argv = shlex.split(line)
        if module not in ("privdd.audit", "privdd.train") or "scores=mine.npz" in argv:
            continue
        for item in argv:
            key = item.partition("=")[0]
            if key in ("algo", "privacy", "data", "attack", "engine", "model"):
                values = item.partition("=")[2].strip("[]").split(",")
                folders = [ROOT / "configs" / key, mine / key]
                known = {path.stem for folder in folders for path in folder.glob("*.yaml")}
                assert {*values} <= known | {"NAME"}, line


@pytest.mark.nightly(
    cases=[
        "privdd.audit algo=fedfed",
        "privdd.audit -m algo=fedfed_dp privacy.noise_multiplier=0.5,1,2,4 seed=0,1,2",
        "privdd.audit -m algo=fedavg,feddm,fedrd,fedfed,fedlgd",
        "privdd.audit algo=fedavg engine=processes",
        "privdd.audit algo=fedavg engine=ray engine.address=head:6379",
        "privdd.audit algo=fedfed preset=smoke",
        "privdd.audit algo=feddm data=fashion_mnist",
        "privdd.audit algo=fedavg privacy=dpsgd privacy.epsilon=3",
        "privdd.audit algo=fedavg attack=[lira,gradient_inversion]",
        "privdd.audit data=npz data.root=mine.npz algo=fedavg",
        "privdd.audit data=folder data.root=images algo=feddm",
        "privdd.audit algo=fedavg model=own model.target=net:Net model.args={width:32}",
        "privdd.audit algo=own_training algo.training=net:train",
        "privdd.audit algo=own_training algo.training=net:train "
        "model=own model.target=net:Net privacy=client",
        "privdd.audit scores=mine.npz scores_surface=synthetic_images privacy.epsilon=3",
    ]
)
@pytest.mark.parametrize("line", commands())
def test_the_commands_are_accepted(line: str, mine: Path) -> None:
    for name in ("DIR", "runs/first"):  # runs that the lines name
        (mine.parent / name).mkdir(parents=True)
        (mine.parent / name / "config.yaml").write_text("{}\n")
    (mine.parent / "policy.yaml").write_text("auc: 0.6\n")
    for name in ("mine.npz", "patients.csv", "bangkok"):
        (mine.parent / name).write_bytes(b"")
    (mine.parent / "images").mkdir()
    module, *argv = shlex.split(line)
    if "--help" in argv:
        return  # tested by itself
    if module == "privdd.report":
        assert report.REPORT.parse(argv)["runs"]
        return
    if module == "privdd.verify":
        assert verify.VERIFY.parse(argv)["runs"]
        return
    if module == "privdd.gate":
        assert gate.GATE.parse(argv)
        return
    if module in ("privdd.attack", "privdd.resume", "privdd.scores"):
        assert "=" not in argv[0]
        return
    if module == "privdd.target":
        assert parse_target_arguments(with_target_prefix(argv)).given
        return
    if module == "privdd.selftest":
        assert selftest.parse_selftest_arguments(argv).profile
        return
    if module == "privdd.account":
        training, _ = account.parse_arguments(argv)
        assert training
        return
    if module == "privdd.check":
        assert CHECK.parse(argv)
        return
    if module == "privdd.canary":
        assert read_canary(argv[0], argv[1:])["sealed"]
        return
    if module == "privdd.reproduce":
        asked = read_reproduce(argv)
        assert asked.name in COMMANDS or find_entry(asked.name)
        return
    if "--dry-run" in argv:
        argv.remove("--dry-run")
    if any(item.startswith(TARGET_PREFIX) for item in argv):
        # of a recording
        argv = [a for a in argv if not a.startswith(("recording=", "target.client="))]
        assert parse_target_arguments(argv).given
        return
    command = module.removeprefix("privdd.")
    if "--cfg" in argv:
        argv = argv[argv.index("--cfg") + 2 :]
    assert check_command(command, expand_arguments(argv, command)).algo


def test_the_contract_check_runs(mine: Path) -> None:
    (code,) = [text for _, text in BLOCKS if text.startswith("# test_signs.py\n")]
    names: dict[str, Any] = {}
    exec(compile(code, "test_signs.py", "exec"), names)
    names["test_signs"]()


@pytest.mark.nightly
def test_the_examples_run_together(mine: Path, tmp_path: Path) -> None:
    found = audit(
        *TINY,
        "algo=signs",
        "privacy=layerwise",
        "attack=[rank]",
        config_dir=mine,
        out=tmp_path / "run",
    )
    assert found.run.algo == "signs" and found.privacy.unit == "client"
    update = next(row for row in found.surfaces if row.surface == "update")
    assert update.mechanism == "Layerwise" and 0 < update.epsilon.pld < float("inf")
    assert {row.attack for row in found.findings if row.family == "membership"} == {"rank"}
    tested = {row.attack: row for row in found.findings if row.family == "guarantee"}
    guarantee = {
        "t0_noise",
        "t0_ledger",
        "t1_sensitivity",
        "t1_told",
        "t2_whole_run",
        "t3_transcript",
        "t3_curve",
    }
    assert set(tested) == guarantee
    assert 0.99 < tested["t1_sensitivity"].kappa <= 1.001 and update.verdict == "consistent"


@pytest.mark.nightly
@pytest.mark.parametrize(
    "code", [text for kind, text in BLOCKS if kind == "python" and "import audit" in text]
)
def test_python_examples_run(code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As written, at a tiny size."""
    tiny = [item for item in TINY if not item.startswith(("preset", "algo", "audit.waive"))]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("privdd.api.audit", lambda **given: audit(*tiny, "attack=[lira]", **given))
    names: dict[str, Any] = {}
    exec(compile(code, "example", "exec"), names)
    assert (
        names["found"].verdict == "unprotected"
        and (tmp_path / "runs" / "first" / "report.html").is_file()
    )
