"""The documentation builds without a warning, its links lead somewhere, and every public name has a
place in it."""

from __future__ import annotations

import importlib
import os
import pkgutil
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
import yaml

import attacks
from privdd import api

# The documentation builds without a warning, its links lead somewhere, and every public name has a
# place in it.


ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("site")
    command = [
        sys.executable,
        "-m",
        "mkdocs",
        "build",
        "--strict",
        "--quiet",
        "--site-dir",
        str(out),
    ]
    done = subprocess.run(
        command,
        cwd=ROOT,
        capture_output=True,
        text=True,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
    )
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr, done.stderr
    return out


class Links(HTMLParser):
    """Where a page leads, what it loads, and its anchors."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.to: list[str] = []
        self.loads: list[str] = []
        self.ids: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        named = {key: value or "" for key, value in attrs}
        self.ids.add(named.get("id", ""))
        if tag == "a" and "href" in named:
            self.to.append(named["href"])
        if tag in ("script", "img") and "src" in named:
            self.loads.append(named["src"])
        if tag == "link" and named.get("rel") in ("stylesheet", "icon"):
            self.loads.append(named["href"])


@pytest.mark.nightly
def test_links_lead_somewhere_and_nothing_is_loaded_from_outside(site: Path) -> None:
    pages = {path: Links(path.read_text(encoding="utf-8")) for path in site.rglob("*.html")}
    assert len(pages) > 20
    for path, links in pages.items():
        if path.name == "404.html":  # made for the root of a server
            continue
        for url in links.loads:
            assert not urlsplit(url).scheme or url.startswith("data:"), f"{path.name} loads {url}"
        for url in (*links.to, *links.loads):
            parts = urlsplit(url)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            assert target.exists(), f"{path.relative_to(site)}: {url}"
            if parts.fragment and target in pages:
                assert unquote(parts.fragment) in pages[target].ids, (
                    f"{path.relative_to(site)}: {url}"
                )


@pytest.mark.nightly
def test_every_public_name_is_documented(site: Path) -> None:
    """The page lists each name of ``privdd.api``, where it is defined, and the built page holds its
    heading."""
    listed = re.findall(r"^::: (\S+)$", (ROOT / "docs/reference/api.md").read_text(), re.M)
    where = {name: f"{api.PUBLIC.get(name, 'privdd.api')}.{name}" for name in api.__all__}
    assert {*where.values()} == {*listed}
    built = Links((site / "reference" / "api.html").read_text(encoding="utf-8"))
    assert {path for path in listed if path not in built.ids} == set()


UNLISTED = {
    "attacks.command_line": "the parser of the commands: how a wrong option is answered",
    "attacks.machine": "what a command may take from its machine: a switch, no attack",
    "attacks.validation": "checks of an archive, of an attack's class and of settings",
}


def listed_attacks() -> list[str]:
    """The modules that the reference documents."""
    return re.findall(r"^::: (\S+)$", (ROOT / "docs/reference/attacks.md").read_text(), re.M)


def test_every_module_of_attacks_has_a_place() -> None:
    listed = listed_attacks()
    modules = {
        one.name for one in pkgutil.walk_packages(attacks.__path__, "attacks.") if not one.ispkg
    }
    assert sorted(modules - {*UNLISTED}) == sorted(listed) and {*UNLISTED} <= modules


def test_relative_links_of_the_docs_lead_to_files() -> None:
    """What ``mkdocs build --strict`` refuses first; the built site is read every night."""
    count = 0
    for page in sorted((ROOT / "docs").rglob("*.md")):
        for url in re.findall(r"\]\(([^)\s#]+)[^)]*\)", page.read_text(encoding="utf-8")):
            if urlsplit(url).scheme:
                continue
            assert (page.parent / unquote(url)).exists(), f"{page.relative_to(ROOT)}: {url}"
            count += 1
    assert count > 50


@pytest.mark.nightly
def test_every_public_name_of_attacks_has_a_heading(site: Path) -> None:
    """The built page holds one for each function and class."""
    built = Links((site / "reference" / "attacks.html").read_text(encoding="utf-8")).ids
    count = 0
    for name in listed_attacks():
        module = importlib.import_module(name)
        own = [
            k
            for k, v in vars(module).items()
            if not k.startswith("_") and getattr(v, "__module__", "") == name and v.__doc__
        ]
        assert [
            f"{name}.{one}"
            for one in own
            if callable(vars(module)[one]) and f"{name}.{one}" not in built
        ] == []
        count += len(own)
    assert count > 200


def test_every_attack_is_explained() -> None:
    """Each yaml's attack stands in the table."""
    text = (ROOT / "docs/explanation/attacks.md").read_text()
    names = [
        path.stem
        for path in (ROOT / "configs/attack").glob("*.yaml")
        if not path.stem.startswith("_")
    ]
    assert [name for name in names if f"`{name}`" not in text] == []


def test_readme_links_lead_somewhere() -> None:
    for page in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md"):
        for url in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
            parts = urlsplit(url)
            assert parts.scheme or (ROOT / parts.path).exists(), f"{page.name}: {url}"


def test_the_citation_names_this_version() -> None:
    from privdd import __version__

    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert cited["version"] == __version__ and cited["cff-version"] == "1.2.0" and cited["authors"]
    assert f"## {__version__}" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert pkgutil.resolve_name("privdd.api")


# Every cross-check that docs/explanation/by-hand.md names is there.


ROOT_CHECKED = Path(__file__).parents[2]
TEXT = (ROOT_CHECKED / "docs" / "explanation" / "by-hand.md").read_text(encoding="utf-8")


def test_named_tests_exist() -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", TEXT)
    assert len(named) >= 18
    for path, function in named:
        text = (ROOT_CHECKED / path).read_text(encoding="utf-8")
        assert not function or f"def {function}(" in text, f"{path}::{function}"


def test_everything_by_hand_has_a_reason_and_a_cross_check() -> None:
    table = TEXT[TEXT.index("## Written by hand") : TEXT.index("## Left to a library")]
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in table.splitlines()
        if line.startswith("|")
    ][2:]
    assert len(rows) >= 15
    assert [row[0] for row in rows if len(row) != 4 or not all(row) or "tests/" not in row[3]] == []
