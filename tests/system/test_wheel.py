"""The wheel: every yaml inside, and it runs from any folder without the checkout."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.nightly

ROOT = Path(__file__).resolve().parents[2]


def call(*arguments: str, cwd: Path, **environment: str) -> str:
    given = {
        **{k: v for k, v in os.environ.items() if k != "PYTHONPATH"},
        "OMP_NUM_THREADS": "1",
        **environment,
    }
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=cwd,
        env=given,
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("wheel")
    call("-m", "hatchling", "build", "-t", "wheel", "-d", str(out), cwd=ROOT)
    (built,) = out.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory) -> Path:
    """A folder with the wheel and nothing else of ours."""
    target = tmp_path_factory.mktemp("site")
    call(
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-deps",
        "--no-index",
        "--no-compile",
        "--target",
        str(target),
        str(wheel),
        cwd=target,
    )
    return target


def test_an_index_would_take_it(wheel, tmp_path):
    call("-m", "hatchling", "build", "-t", "sdist", "-d", str(tmp_path), cwd=ROOT)
    call(
        "-m",
        "twine",
        "check",
        "--strict",
        str(wheel),
        *map(str, tmp_path.glob("*.tar.gz")),
        cwd=tmp_path,
    )


def test_contents(wheel):
    """The yaml of the checkout, every module, the templates; no tests, no caches."""
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        scripts = next(archive.read(n).decode() for n in names if n.endswith("entry_points.txt"))
        packed = {n: archive.read(n) for n in names if n.startswith("privdd/configs/")}
    files = {
        f"privdd/{p.relative_to(ROOT)}": p.read_bytes() for p in (ROOT / "configs").rglob("*.yaml")
    }
    assert packed == files and len(files) > 50
    modules = {
        str(p.relative_to(ROOT))
        for package in ("privdd", "attacks")
        for p in (ROOT / package).rglob("*")
        if p.suffix in (".py", ".jinja", ".css", ".js")
    }
    assert modules <= names
    assert not [
        n for n in names if n.split("/")[0] not in ("privdd", "attacks") and ".dist-info/" not in n
    ]
    assert not [n for n in names if "__pycache__" in n or n.startswith("tests/")]
    assert {line.split(" = ")[0] for line in scripts.splitlines() if " = " in line} == {
        "privdd",
        "privdd-account",
        "privdd-audit",
        "privdd-gate",
        "privdd-train",
        "privdd-report",
        "privdd-selftest",
        "privdd-verify",
        "privdd-check",
        "privdd-reproduce",
        "privdd-canary",
    }
    assert {n.rpartition("licenses/")[2] for n in names if ".dist-info/licenses/" in n} == {
        "LICENSE",
        "NOTICE",
    }


def test_the_source_archive_holds_its_licence_and_no_test_that_would_lack_its_files(tmp_path):
    call("-m", "hatchling", "build", "-t", "sdist", "-d", str(tmp_path), cwd=ROOT)
    (built,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(built) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {
        "LICENSE",
        "NOTICE",
        "README.md",
        "SECURITY.md",
        "pyproject.toml",
        "privdd/api.py",
        "configs/audit.yaml",
    } <= names
    assert not [name for name in names if name.startswith("tests/")]


def test_installed_it_trains_from_another_folder(installed, tmp_path):
    """And it is the installed one: a checkout on no path, packed configs."""
    where = call(
        "-P",
        "-c",
        "import privdd, attacks, privdd.cli.compose as c; print(privdd.__file__, "
        "attacks.__file__, c.config_dir())",
        cwd=tmp_path,
        PYTHONPATH=str(installed),
    )
    assert where.split() == [
        str(installed / part)
        for part in ("privdd/__init__.py", "attacks/__init__.py", "privdd/configs")
    ]
    out = call(
        "-m",
        "privdd.train",
        "algo=fedavg",
        "preset=smoke",
        "algo.rounds=1",
        "hydra.run.dir=done",
        cwd=tmp_path,
        PYTHONPATH=str(installed),
    )
    assert out.startswith("accuracy ") and (tmp_path / "done" / "training.json").is_file()


def test_cfg_job_prints_the_config(installed, tmp_path):
    out = call(
        "-m",
        "privdd.audit",
        "algo=fedfed_dp",
        "preset=paper",
        "--cfg",
        "job",
        cwd=tmp_path,
        PYTHONPATH=str(installed),
    )
    assert "_target_: privdd.methods.fedfed.FedFed" in out and list(tmp_path.iterdir()) == []
