"""The pages: whole, closed, escaped, labelled, the same bytes each time, and clean in a browser."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from privdd.report import main
from privdd.reporting.browser import find_browser
from privdd.reporting.comparison import write_comparison
from privdd.reporting.findings_tables import TableCell, findings_by_question
from privdd.reporting.page import write_report
from privdd.reporting.schema import load_findings
from privdd.runtime.files import DamagedRun
from tests.conftest import SmallAudit
from tests.reporting.checker import problems
from tests.reporting.fixture import text_of, write_run

HOSTILE = (
    "</title><script>document.title='owned'</script>\"' onload=x() "
    "<img src=http://evil.test/a> $\\frac{ {{7*7}} 模型 \u202e"
)
KINDS = ("unprotected", "consistent", "contradiction")


@pytest.fixture(scope="module")
def page_of(
    runs: dict[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], Path]:
    """A kind of run, or "comparison" -> its page, written on first use."""

    @cache
    def written(name: str) -> Path:
        if name == "comparison":
            return write_comparison(list(runs.values()), tmp_path_factory.mktemp("out"))
        return write_report(runs[name])

    return written


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run in which every text that a user or a method could set attacks the page."""
    folder = write_run(
        tmp_path_factory.mktemp("hostile") / "<b>'run\"",
        algo=HOSTILE,
        data=HOSTILE,
        preset=HOSTILE,
        version=HOSTILE,
    )
    data = json.loads((folder / "findings.json").read_text())
    for row in data["surfaces"]:
        row |= {"mechanism": HOSTILE, "names": [HOSTILE]}
    data["surfaces"][-1]["audited"] = "waived: " + HOSTILE
    for row in data["findings"]:
        row |= {
            "figure": f"{row['surface']}.{row['attack']}.safetensors",
            "attack": HOSTILE,
            "note": HOSTILE,
            "signal": HOSTILE,
        }
        row |= {"baselines": {HOSTILE: 1.0}} if "baselines" in row else {}
    words = {
        "source": HOSTILE,
        "why": HOSTILE,
        "choices": [HOSTILE],
        "neighbours": HOSTILE,
        "tested_by": [HOSTILE],
    }
    data["privacy"]["claims"] = [
        {"epsilon": e, "sound": False, **words} for e in (1.0, "no number")
    ]
    (folder / "findings.json").write_text(json.dumps(data))
    ledger = json.loads((folder / "ledger.json").read_text())
    for release in ledger["releases"]:
        release |= {
            "name": HOSTILE,
            "visible_to": [HOSTILE],
            "nonprivate_reason": HOSTILE,
            "event": {"type": HOSTILE},
        }
    (folder / "ledger.json").write_text(json.dumps(ledger))
    (folder / "manifest.json").write_text(
        json.dumps(
            {"command": HOSTILE, "machine": {HOSTILE: HOSTILE}, "digests": {HOSTILE: "\ud800"}}
        )
    )
    return folder


@pytest.mark.drawn
@pytest.mark.nightly(cases=["unprotected", "consistent"])
@pytest.mark.parametrize("name", [*KINDS, "comparison"])
def test_a_page_is_whole_small_and_loads_nothing(page_of: Callable[[str], Path], name: str) -> None:
    text = page_of(name).read_text(encoding="utf-8")
    assert problems(text) == []
    assert len(text) < 1_000_000 and "default-src 'none'" in text
    assert "var(--s0)" in text and "prefers-color-scheme: dark" in text and "@media print" in text


def test_the_checker_sees_what_it_must() -> None:
    bad = (
        '<html lang=en><body><p><b>x</p><img src="http://a/b.png" onload="x()"><svg></svg>'
        '<script>1</script><a href="#no">y</a></body></html>'
    )
    text = " ".join(problems(bad))
    for word in (
        "</p> while",
        "leaves the page",
        "onload",
        "without alt",
        "without a label",
        "<script>",
        "#no is nowhere",
    ):
        assert word in text


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (
            "unprotected",
            ["No proven guarantee", "Unprotected", "∞", "no protection", "The claim of ε = 0.9"],
        ),
        (
            "consistent",
            [
                "No test contradicts the stated guarantee",
                "Surviving attacks is not proof",
                "Consistent",
                "4.85",
            ],
        ),
        (
            "contradiction",
            [
                "s claim is contradicted",
                "ε ≤ 0.9 is stated",
                "no proof shows that it covers this run",
            ],
        ),
    ],
)
def test_the_verdict_comes_first_in_words(
    page_of: Callable[[str], Path], kind: str, words: list[str]
) -> None:
    text = page_of(kind).read_text(encoding="utf-8")
    assert all(word in text for word in words)
    assert text.index("<h1>") < text.index("<h2") < text.index("<table")


def test_claims_are_told_with_delta_choices_and_measures_and_naming_beside_chance(
    tmp_path: Path,
) -> None:
    folder = write_run(tmp_path / "run")
    data = json.loads((folder / "findings.json").read_text())
    row = next(r for r in data["findings"] if r.get("auc") is not None)
    row |= {"attack": "copy_detection", "auc": 0.625, "identified": 0.75, "identified_chance": 0.5}
    data["privacy"]["claims"] = [
        {
            "source": "Theorem 7",
            "epsilon": 2.5,
            "sound": False,
            "why": "w",
            "delta": 2e-4,
            "choices": ["R = 3"],
            "neighbours": "a record",
        },
        {
            "source": "Section 9",
            "epsilon": "no number",
            "sound": False,
            "why": "w",
            "tested_by": ["copy_detection"],
        },
    ]
    data["privacy"]["reconstruction"] = [
        {"k": 2, "prior": 0.5, "bound": 0.875, "attained": 0.825, "claimed": 0.985},
        {"k": 100, "prior": 0.01, "bound": 0.425},
    ]
    (folder / "findings.json").write_text(json.dumps(data))
    text = text_of(folder)
    assert problems(text) == []
    for said in (
        "Theorem 7, at δ = 2e-4",
        "R = 3",
        "Protects a record.",
        "<strong>No number</strong>, Section 9",
    ):
        assert said in text, said
    assert "AUC 62.5" in text and "identified 75" in text and "(chance 50" in text
    table = text[text.index('id="naming"') : text.index('id="membership"')]
    for rate in ("87.5", "82.5", "98.5", "42.5"):
        assert f"{rate}\u00a0%" in table


def test_the_page_shows_the_numbers_of_the_findings(
    page_of: Callable[[str], Path], runs: dict[str, Path]
) -> None:
    data = json.loads((runs["unprotected"] / "findings.json").read_text())
    text = page_of("unprotected").read_text(encoding="utf-8")
    worst = max(
        r["tpr_at_fpr"]["0.001"]["tpr"] for r in data["findings"] if r["family"] == "membership"
    )
    assert f'<div class="big">{100 * worst:.2g}\u00a0%</div>' in text
    assert f"{max(r.get('psnr', 0) for r in data['findings']):.1f}\u00a0dB" in text
    # two attacks, eight pairs each; the best one on the first screen
    assert text.count("<img ") == 2 * 8 * 2 + 2
    assert "python -m privdd.audit algo=fedfed seed=0" in text


def test_every_finding_stands_in_the_table_of_its_question(runs: dict[str, Path]) -> None:
    rows = load_findings(runs["unprotected"]).findings
    made = {one.name: one for one in findings_by_question(rows)}
    assert made.keys() == {
        "t-membership",
        "t-pictures",
    }  # no test of a guarantee, so no table of it
    assert sorted(id(row) for one in made.values() for row, _ in one.rows) == sorted(
        id(row) for row in rows
    )
    for one in made.values():
        assert all(len(cells) == len(one.columns) for _, cells in one.rows)
        filled = [
            any(cells[i] != TableCell() for _, cells in one.rows) for i in range(len(one.columns))
        ]
        assert all(filled)
    titles = [column.title for column in made["t-pictures"].columns]
    assert "PSNR ↑" in titles and "Labels" in titles and "AUC" not in titles


def test_a_run_without_outsiders_enough_carries_a_banner_and_no_rate_as_a_finding(
    tmp_path: Path,
) -> None:
    folder = write_run(tmp_path / "run", preset="smoke")
    data = json.loads((folder / "findings.json").read_text())
    for row in data["findings"]:
        for key, at in row.get("tpr_at_fpr", {}).items():
            at |= {"tpr": 0.016, "ci": [0.0, 0.3], "resolvable": key == "0.01"}
    (folder / "findings.json").write_text(json.dumps(data))
    text = text_of(folder)
    assert problems(text) == []
    assert (
        "Smoke run (250 audited records, 16 replays): too small to decide" in text.split("<h1>")[0]
    )
    assert '<div class="big small">ε at least' in text and '<div class="big">1.6' not in text
    assert "not shown to identify" not in text  # whose bound is above 0


@pytest.mark.parametrize(("noise", "green"), [(1.0, True), (0.5, False)])  # epsilon 4.85 and 9.7
def test_a_large_limit_is_not_green(tmp_path: Path, noise: float, green: bool) -> None:
    text = text_of(write_run(tmp_path / "run", kind="consistent", noise=noise))
    assert ('<div class="hero consistent">' in text) is green
    assert ('<div class="hero consistent weak">' in text) is not green


@pytest.mark.nightly
def test_hostile_texts_are_shown_and_do_nothing(hostile: Path, tmp_path: Path) -> None:
    one = write_report(hostile).read_text(encoding="utf-8")
    several = write_comparison([hostile], tmp_path / "out").read_text(encoding="utf-8")
    for text in (one, several):
        assert problems(text) == []
        assert "<script" not in text and "&lt;script&gt;" in text
        assert "{{7*7}}" in text.replace(" ", "") and "模型" in text
    drawings = list((hostile / "figures").glob("*.svg")) + list(
        (tmp_path / "out" / "figures").glob("*.svg")
    )
    assert len(drawings) >= 8 and not any(
        "<script" in path.read_text(encoding="utf-8") for path in drawings
    )


@pytest.mark.nightly
def test_the_same_run_gives_the_same_bytes(tmp_path: Path) -> None:
    def files(name: str) -> dict[str, bytes]:
        page = write_report(write_run(tmp_path / name))
        return {
            path.name: path.read_bytes()
            for path in [page, *(tmp_path / name / "figures").iterdir()]
        }

    first = files("a")
    second = files("b")
    assert (
        first == second
        and {"epsilon.svg", "epsilon.png", "roc-features.svg", "accuracy.png"} <= first.keys()
    )


def test_what_was_not_recorded_is_left_out(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run")
    for name in ("ledger.json", "config.yaml", "manifest.json", "evidence"):
        path = folder / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    text = write_report(folder).read_text(encoding="utf-8")
    assert (
        problems(text) == []
        and "This folder holds no ledger" in text
        and "did not record its command" in text
    )


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("ledger.json", b"{"),
        ("manifest.json", b"[]"),
        ("config.yaml", b"a: [\x00"),
        ("evidence/update.lira.safetensors", b"junk"),
    ],
)
def test_damage_is_one_line_and_status_1(
    tmp_path: Path,
    name: str,
    content: bytes,
    audited: Callable[[str], SmallAudit],
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = Path(shutil.copytree(audited("fedavg").path, tmp_path / "run"))
    capsys.readouterr()
    (folder / name).write_bytes(content)
    assert main([str(folder)]) == 1
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and Path(name).name in said


def test_evidence_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run")
    path = folder / "evidence" / "features.lira.safetensors"
    for bad in (
        {"scores": torch.zeros(4), "members": torch.ones(3)},
        {"scores": torch.tensor([float("nan")])},
        {"real": torch.zeros(2, 1, 4, 4), "reconstructed": torch.zeros(2, 1, 4, 5)},
    ):
        save_file(bad, path)
        with pytest.raises(DamagedRun, match="lira"):
            write_report(folder)


def test_one_run_is_reported_in_its_folder_and_compared_where_a_place_for_that_is_named(
    tmp_path: Path,
    audited: Callable[[str], SmallAudit],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = Path(shutil.copytree(audited("fedavg").path, tmp_path / "run"))
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    page = folder / "report.html"
    page.unlink(missing_ok=True)
    assert main([str(folder)]) == 0
    assert page.is_file() and str(page) in capsys.readouterr().out
    assert not [*elsewhere.iterdir()]
    before = page.read_bytes()
    assert main([str(folder), f"out={tmp_path / 'side'}"]) == 0
    assert (tmp_path / "side" / "leaks.csv").is_file() and page.read_bytes() == before


def test_folders_that_are_no_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path / "nowhere")]) == 1 and main([str(tmp_path)]) == 1
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 2 and "no such folder" in lines[0] and "no findings.json" in lines[1]


def luminance(colour: str) -> float:
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(a: str, b: str) -> float:
    high, low = sorted((luminance(a), luminance(b)), reverse=True)
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_texts_and_curves_can_be_seen(page_of: Callable[[str], Path], scheme: str) -> None:
    """WCAG 2.1 AA: 4.5 to 1 for text, 3 to 1 for what a figure is read by."""
    text = page_of("unprotected").read_text(encoding="utf-8")
    blocks = re.findall(r":root \{(.*?)\}", text, re.DOTALL)
    colours = dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", blocks[0 if scheme == "light" else 1]))
    grounds = [colours[g] for g in ("paper", "page", "soft")]
    for ink in ("ink", "muted", "s0", "s4", "s1"):
        floor = 4.5 if ink in ("ink", "muted") else 3.0
        assert all(contrast(colours[ink], ground) >= floor for ground in grounds), ink
    for tone in ("bad", "warn", "good"):
        assert contrast(colours[tone], colours[f"{tone}-bg"]) >= 4.5
    assert all(contrast(colours[f"s{i}"], colours["paper"]) >= 3 for i in range(8))


FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--enable-logging=stderr",
    "--dump-dom",
)


def browse(page: Path, profile: Path, *flags: str) -> tuple[str, list[str]]:
    """The document as the browser holds it, and its console lines."""
    command = [
        find_browser(),
        *FLAGS,
        *flags,
        f"--user-data-dir={profile}",
        page.resolve().as_uri(),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=True)
    return done.stdout, [line for line in done.stderr.splitlines() if "CONSOLE" in line]


# the first suite reads every statement of four runs, and opens a hostile page
@pytest.mark.nightly
@pytest.mark.extra("browser")
@pytest.mark.parametrize("name", ["unprotected", "comparison"])
def test_a_browser_opens_it_without_a_word(
    page_of: Callable[[str], Path], name: str, tmp_path: Path
) -> None:
    document, console = browse(page_of(name), tmp_path)
    assert console == [] and "What each number means" in document


@pytest.mark.extra("browser")
def test_a_browser_runs_nothing_of_a_hostile_run(hostile: Path, tmp_path: Path) -> None:
    document, console = browse(write_report(hostile), tmp_path)
    assert console == [] and "<title>owned" not in document and "<title>Unprotected" in document


@pytest.mark.extra("browser")
def test_the_browser_check_can_fail(page_of: Callable[[str], Path], tmp_path: Path) -> None:
    """A script smuggled in is refused by the page's own policy, and the console says so."""
    text = page_of("unprotected").read_text(encoding="utf-8")
    (tmp_path / "bad.html").write_text(
        text.replace("</main>", "<script>document.title='owned'</script></main>")
    )
    document, console = browse(tmp_path / "bad.html", tmp_path / "profile")
    assert console and "<title>owned" not in document


def test_a_real_start_says_that_its_accuracy_is_that_of_raw_images(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run")
    for start, told in (("real", True), ("noise", False)):
        (folder / "config.yaml").write_text(f"algo: {{start: {start}}}\n")
        assert ("that of raw images sent" in text_of(folder)) is told
