"""The hash locks hold the same versions as constraints.txt, and each line a SHA-256."""

import re
from importlib.metadata import PackageNotFoundError, metadata
from pathlib import Path

import pytest
from packaging.specifiers import SpecifierSet

ROOT = Path(__file__).resolve().parents[2]
LOCKS = sorted((ROOT / "locks").glob("*.txt"))
LINE = re.compile(r"([A-Za-z0-9_.-]+)==(\S+) --hash=sha256:[0-9a-f]{64}")


def plain(name: str) -> str:
    """A package's name as installers compare them (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def pinned() -> dict[str, str]:
    lines = [
        line.split("#")[0].strip() for line in (ROOT / "constraints.txt").read_text().splitlines()
    ]
    return {
        plain(name): version
        for name, _, version in (line.partition("==") for line in lines if line)
    }


@pytest.mark.parametrize("lock", LOCKS, ids=lambda path: path.stem)
def test_every_line_has_a_hash(lock):
    assert [line for line in lock.read_text().splitlines() if not LINE.fullmatch(line)] == []


@pytest.mark.parametrize(
    "lock", [path for path in LOCKS if "weights" not in path.name], ids=lambda path: path.stem
)
def test_versions_are_those_of_the_constraints(lock):
    locked = {plain(m[1]): m[2] for m in map(LINE.fullmatch, lock.read_text().splitlines()) if m}
    assert {n: v for n, v in locked.items() if pinned().get(n) != v} == {}


def test_the_lock_for_tests_holds_all_of_the_constraints():
    (dev,) = [path for path in LOCKS if path.name.startswith("linux-x86_64-glibc-py311-dev")]
    locked = {plain(line.split("==")[0]) for line in dev.read_text().splitlines()}
    launcher_of_slurm = {"hydra-submitit-launcher", "submitit"}  # not installed for tests
    assert set(pinned()) - locked - launcher_of_slurm == {
        "torch",
        "torchvision",
    }  # builds differ under one version


def test_what_is_pinned_installs_on_the_oldest_python_that_is_promised():
    """Python 3.11.2 is the one of Debian 12: a package for 3.11.5 and newer ends `make test` there
    at once."""
    (promised,) = re.findall(
        r'^requires-python = ">=(.+)"$', (ROOT / "pyproject.toml").read_text(), re.M
    )
    asked = {}
    for name in pinned():
        try:
            asked[name] = metadata(name).get("Requires-Python", "")
        except PackageNotFoundError:  # an extra that this environment lacks
            continue
    assert len(asked) > 150
    assert {
        name: said for name, said in asked.items() if f"{promised}.0" not in SpecifierSet(said)
    } == {}
