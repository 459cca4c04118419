"""What leaves the repository: names of packages, metadata, the image's files."""

from __future__ import annotations

import re
import subprocess
import tomllib
from email import message_from_string
from fnmatch import fnmatch
from pathlib import Path

import pytest
from hatchling.builders.wheel import WheelBuilder

from privdd.gate import STARTING_WORKFLOW, main

ROOT = Path(__file__).resolve().parents[2]
TEXTS = (".py", ".md", ".toml", ".yml", ".yaml", ".sh", ".txt", ".jinja", ".cff", ".ipynb", "")
# privdd by name, where a name is looked up in an index: pip install privdd, 'privdd[ray]',
# "privdd==1", privdd>=1
BY_NAME = re.compile(
    r"(pip3? install|uv (pip install|add)|pipx \w+)( -\S+)* ['\"]?privdd\b(?![/.*])|\bprivdd\[\w"
)
PLANTED = (
    "pip install privdd",
    "pip install -q 'privdd[ray]'",
    "needs privdd[sign]",
    "pip install privdd==0.1",
    "uv add privdd",
)
FROM_A_PLACE = (
    "pip install ./privdd",
    "pip install -e .",
    "pip install privdd/dist/x.whl",
    "pip install git+https://host/privdd@abc",
)
RELATIVE_LINK = re.compile(r"\]\((?![a-z]+:)[^)]*\)|(src|href)=\"(?![a-z]+:)")


def shipped_files() -> list[Path]:
    listed = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.splitlines()
    return [
        ROOT / name for name in listed if Path(name).suffix in TEXTS and (ROOT / name).is_file()
    ]


def test_nothing_installs_privdd_by_a_name_that_is_not_registered() -> None:
    assert all(BY_NAME.search(line) for line in PLANTED) and not any(
        BY_NAME.search(line) for line in FROM_A_PLACE
    )
    found = []
    for path in shipped_files():
        if path != Path(__file__).resolve():
            lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
            found += [
                f"{path.relative_to(ROOT)}: {line.strip()}"
                for line in lines
                if BY_NAME.search(line)
            ]
    assert found == []


@pytest.mark.parametrize(
    "source",
    [
        "./privdd",
        "dist/privdd-0.1.0-py3-none-any.whl",
        "git+https://host/owner/privdd@0123abc",
        ".",
    ],
)
def test_the_workflow_installs_from_where_the_user_says(
    source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["init=true", f"install={source}"]) == 0
    text = (tmp_path / ".github/workflows/privacy.yml").read_text()
    assert f'PRIVDD: "{source}"' in text and 'pip install "${PRIVDD:?' in text


@pytest.mark.parametrize("source", ["privdd", "privdd[ray]", "privdd==0.1", "other"])
def test_a_name_of_a_package_is_refused(
    source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["init=true", f"install={source}"]) == 1
    assert capsys.readouterr().err.startswith(
        f"privdd: error: install={source}: a checkout (./privdd), a wheel"
    ) and not [*tmp_path.iterdir()]


def test_without_a_source_the_workflow_stops_and_says_what_to_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["init=true"]) == 0
    assert "set PRIVDD in it" in capsys.readouterr().out.splitlines()[-1]
    step = re.search(r"- run: python -m (pip install .*)", STARTING_WORKFLOW)
    assert step
    command = step[1].replace("pip", "echo", 1)
    empty = subprocess.run(
        ["sh", "-c", command], env={"PRIVDD": ""}, capture_output=True, text=True
    )
    assert empty.returncode != 0 and "set it in this file" in empty.stderr and not empty.stdout


def core_metadata() -> str:
    """As the wheel carries it; building takes twine's test of the nightly suite."""
    builder = WheelBuilder(str(ROOT))
    return str(builder.config.core_metadata_constructor(builder.metadata, extra_dependencies=()))


def test_the_metadata_are_those_that_indexes_read_and_promise_what_was_tested() -> None:
    told = message_from_string(core_metadata())
    assert told["Metadata-Version"] == "2.4" and told["Description-Content-Type"] == "text/markdown"
    pythons = [
        line
        for line in told.get_all("Classifier")
        if line.startswith("Programming Language :: Python :: ")
    ]
    tested = re.findall(
        r'python-version: "([\d.]+)"', (ROOT / ".github/workflows/checks.yml").read_text()
    )
    assert pythons == [
        f"Programming Language :: Python :: {version}" for version in sorted({*tested})
    ]
    assert told.get_all("Project-URL") is None and told["Home-page"] is None


def test_the_long_description_links_to_no_file_of_the_checkout() -> None:
    described = message_from_string(core_metadata()).get_payload()
    assert (
        RELATIVE_LINK.search("[a](docs/x.md)")
        and RELATIVE_LINK.search('<img src="docs/x.png"')
        and not RELATIVE_LINK.search("[a](https://b)")
    )
    assert "python -m privdd.audit" in described and not RELATIVE_LINK.search(described)


def is_sent(name: str) -> bool:
    """Whether ``.dockerignore`` lets a file into the image; its last matching line decides."""
    sent = True
    for line in (ROOT / ".dockerignore").read_text().splitlines():
        if line and not line.startswith("#"):
            pattern = line.removeprefix("!")
            parts = Path(name).parts
            starts = ["/".join(parts[: depth + 1]) for depth in range(len(parts))]
            anywhere = pattern.removeprefix("**/")
            if any(
                fnmatch(start, pattern)
                or (pattern != anywhere and fnmatch(Path(start).name, anywhere))
                for start in starts
            ):
                sent = line.startswith("!")
    return sent


def test_the_image_gets_what_it_is_built_from_and_no_history_results_or_secrets() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    needed = [
        "Makefile",
        "pyproject.toml",
        "constraints.txt",
        "tools/install.sh",
        "privdd/audit.py",
        "configs/audit.yaml",
        "attacks/roc.py",
    ]
    needed += [
        settings["readme"],
        *settings["license-files"],
        *(f"locks/{path.name}" for path in (ROOT / "locks").iterdir()),
    ]
    assert [name for name in needed if not is_sent(name)] == []
    private = [
        ".git/config",
        "outputs/run/state/secret.json",
        ".env",
        ".venv/bin/python",
        "privdd/.env",
        "tools/__pycache__/x.pyc",
        "data/mine.npz",
    ]
    assert [name for name in private if is_sent(name)] == []


def test_the_image_runs_as_a_user_of_its_own() -> None:
    steps = [
        line.split(maxsplit=1)
        for line in (ROOT / "Dockerfile").read_text().splitlines()
        if line[:1].isupper()
    ]
    names = [name for name, _ in steps]
    assert dict(steps)["USER"] == "privdd" and names.index("USER") < names.index("COPY")
