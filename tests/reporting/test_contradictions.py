"""No page contradicts itself, nor the terminal, nor the files beside it; and contradictions that
are planted are found."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from privdd.reporting.albums import picture_albums
from privdd.reporting.card import encode_card
from privdd.reporting.page import render_report
from privdd.reporting.plots import draw_report
from privdd.reporting.run_record import read_run_record
from tests.conftest import SmallAudit
from tests.reporting.contradictions import page_contradictions

NIGHTLY = {
    "fedfed": ["algo=fedfed"],
    "feddm": ["algo=feddm"],
    "feddm_dp": ["algo=feddm_dp"],
    "client": ["algo=fedavg", "privacy=client"],
}


def with_page(run: Path, folder: Path) -> Path:
    """A copy of a run with its page and card as they are written today."""
    shutil.copytree(run, folder)
    record = read_run_record(folder)
    (folder / "report.html").write_text(
        render_report(record, draw_report(record), picture_albums(record))
    )
    (folder / "card.json").write_bytes(encode_card(record))
    return folder


# the first suite reads every statement of four runs, and opens a hostile page
@pytest.mark.nightly(but=["fedfed_dp", "fedavg_client"])
@pytest.mark.parametrize(
    "name", ["fedfed", "fedfed_dp", "fedavg", "fedavg_client", "feddm", "feddm_dp"]
)
def test_no_two_statements_exclude_each_other(
    name: str, audited: Callable[[str], SmallAudit], tmp_path: Path
) -> None:
    assert page_contradictions(with_page(audited(name).path, tmp_path / "run")) == []


@pytest.mark.nightly
@pytest.mark.parametrize("name", NIGHTLY)
def test_no_page_at_the_default_preset_contradicts_itself(name: str, tmp_path: Path) -> None:
    from privdd.cli.compose import compose_config, expand_arguments
    from privdd.cli.run import run_audit

    typed = expand_arguments([*NIGHTLY[name], "preset=default", "engine=serial"], "audit")
    run_audit(compose_config("audit", typed), tmp_path / "run", ["test"])
    assert page_contradictions(tmp_path / "run") == []


@pytest.fixture(scope="module")
def whole(audited: Callable[[str], SmallAudit], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return with_page(audited("feddm").path, tmp_path_factory.mktemp("planted") / "run")


PLANTED = {
    "a mean called a median": (
        "report.html",
        r"(median )[\d.]+( dB)",
        r"\g<1>19.7\2",
        "median 19.7 dB",
    ),
    "a mean in the card": (
        "report.html",
        r"[\d.]+( dB, the median of)",
        r"19.7\1",
        "median 19.7 dB",
    ),
    "guessing beside a decision": (
        "report.html",
        r'(data-label="Worst attack"><div><ul>)',
        r"\1<li>LiRA can identify 12 % of the training records at 1 % FPR</li>",
        "members in table",
    ),
    "a coin beaten in the decision alone": (
        "report.html",
        r'(<div class="why">)',
        r"\1<p>The server can distinguish training records from non-members.</p>",
        "members in decision",
    ),
    "another unit": (
        "report.html",
        r"(unit one record, neighbours: one )record",
        r"\1client",
        "neighbours differ in a client",
    ),
    "another verdict": (
        "report.html",
        r'(data-label="Verdict"><div><span class="badge \w+">)\w+',
        r"\1Consistent",
        "in the terminal",
    ),
    "another ε": (
        "report.html",
        r'(data-label="Proven ε, at most" class="n key"><div>).*?(</div>)',
        r"\g<1>7\2",
        "in the terminal",
    ),
    "what was sent": (
        "report.html",
        r"(<h1>)",
        r"\1What was sent is the same whoever is in. ",
        "said of what was sent",
    ),
    "a sampler": (
        "report.html",
        r"(<h1>)",
        r"\1Use a vetted sampler. ",
        "a sampler that is not used",
    ),
    "pictures and none": (
        "report.html",
        r'(data-label="Worst attack"><div><ul>)',
        r"\1<li>copy detection was not shown to find released images clearly closer to "
        r"training images</li>",
        "images in",
    ),
    "what was not shown is said not to be": (
        "report.html",
        r"(<h1>)",
        r"\1No attack beat guessing. ",
        "said not to be",
    ),
    "a best that is not the largest": (
        "report.html",
        r'(data-label="Worst attack"><div><ul>)',
        r"\1<li>copy detection finds 1 of 9 released images clearly closer to a training "
        r"image, best 0.1 dB</li>",
        "in its gallery",
    ),
    "another decision": (
        "card.json",
        r'"title": "[^"]*"',
        '"title": "Share"',
        "decide differently",
    ),
}


@pytest.mark.nightly(
    cases=[
        "a coin beaten in the decision alone",
        "what was sent",
        "guessing beside a decision",
        "a best that is not the largest",
        "another verdict",
        "another \\u03b5",
        "a mean in the card",
        "a mean called a median",
    ]
)
@pytest.mark.parametrize("name", PLANTED)
def test_planted_contradictions_are_found(name: str, whole: Path, tmp_path: Path) -> None:
    file, old, new, expected = PLANTED[name]
    shutil.copytree(whole, tmp_path / "run")
    text, count = re.subn(
        old, new, (tmp_path / "run" / file).read_text().replace("\u00a0", " "), flags=re.DOTALL
    )
    assert count, f"{name}: nothing to plant it in"
    (tmp_path / "run" / file).write_text(text)
    assert any(expected in one for one in page_contradictions(tmp_path / "run")), (
        page_contradictions(tmp_path / "run")
    )


def test_the_mean_of_the_pictures_in_the_file_is_no_median(whole: Path, tmp_path: Path) -> None:
    """The file itself, and a page that is drawn from it: medians are counted again from the
    pictures."""
    data = json.loads((whole / "findings.json").read_text())
    row = next(one for one in data["findings"] if one["attack"] == "copy_detection")
    row["pictures"]["median"] = row["psnr"] = row["psnr"] + 3
    shutil.copytree(whole, tmp_path / "changed")
    (tmp_path / "changed" / "findings.json").write_text(json.dumps(data))
    found = page_contradictions(with_page(tmp_path / "changed", tmp_path / "run"))
    assert any("median" in one for one in found), found
