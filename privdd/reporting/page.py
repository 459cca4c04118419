"""One run as one self-contained page, and the page on paper."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

from privdd.reporting import assessment, finding_selection, plots, summary, wording
from privdd.reporting.assessment import audit_signature, encode_card
from privdd.reporting.decision import decide_surfaces, sample_banner
from privdd.reporting.finding_selection import findings_without_signal
from privdd.reporting.findings_tables import (
    findings_by_question,
    group_releases,
    hard_records_note,
    knowledge_ladders,
    most_exposed_records,
    rates_by_kind,
)
from privdd.reporting.plots import PictureAlbum, Plot
from privdd.reporting.run_record import RunRecord, read_run_record, reproduction_recipe
from privdd.reporting.style import save_figure
from privdd.runtime.files import write_bytes
from privdd.runtime.manifest import CARD


def render_report(record: RunRecord, figures: list[Plot], albums: list[PictureAlbum]) -> str:
    """The page's text. ``figures``: those of ``draw_report``, in any order."""
    findings = record.findings
    picture = finding_selection.strongest_reconstruction(findings.findings)
    claim = finding_selection.boldest_claim(findings.privacy.claims)
    named = {plot.name: plot for plot in figures}
    made = decide_surfaces(findings, record.ledger)
    return (
        plots.template_environment()
        .get_template("report.html.jinja")
        .render(
            f=findings,
            headline=summary.verdict_headline(findings),
            weak=summary.is_weak_limit,
            decisions=made,
            seen={(one.line.row.surface, one.line.row.sender): one.seen_by for one in made},
            small=sample_banner(findings),
            signature=audit_signature(record),
            tables=findings_by_question(findings.findings),
            claim=claim,
            limit_word=finding_selection.limit_word(claim, findings.findings),
            exceeded=finding_selection.exceeds_claim(
                claim, finding_selection.measured_epsilon(findings.findings), findings.privacy.delta
            ),
            measures_of=finding_selection.findings_measuring_claim,
            measured=finding_selection.largest_bound_finding(findings.findings),
            measured_bound=finding_selection.measured_epsilon(findings.findings),
            member=finding_selection.strongest_membership(findings.findings),
            membership=summary.membership_phrase,
            pictures=summary.picture_phrase,
            picture=picture,
            rebuilds=picture is not None and finding_selection.rebuilds_records(picture),
            lines=summary.surface_lines(findings),
            unread=findings_without_signal(findings),
            strip=named["epsilon"],
            rocs=[plot for plot in figures if plot.name.startswith("roc-")],
            accuracy=named.get("accuracy"),
            utility_note=summary.utility_note(record.config),
            albums=albums,
            ladders=knowledge_ladders(findings),
            ledger=group_releases(record.ledger),
            recipe=reproduction_recipe(record),
            marks=[
                *wording.earlier_rules_note(findings),
                *wording.noise_warnings(findings.privacy),
                *filter(None, [hard_records_note(findings.run)]),
                *summary.target_marks(findings),
            ],
            exposed=most_exposed_records(record),
            kinds=rates_by_kind(record),
            noise=wording.noise_source_text(findings.privacy.noise) if findings.privacy.noise else "",
            risks=assessment.answer_risks(findings),
            attack_kinds=assessment.attack_kinds_tried(findings),
            controls=assessment.security_controls(findings),
            guarantee=assessment.guarantee_facts(findings, record.ledger),
        )
    )


def draw_report(record: RunRecord) -> list[Plot]:
    """Every figure that the run's evidence allows."""
    accuracy = plots.plot_accuracy([(record.findings.run.algo, record)])
    drawn = [plots.plot_epsilons(record), *plots.plot_rocs(record), *([accuracy] if accuracy else [])]
    return plots.add_terms(drawn, [record.findings])


def write_report(run_dir: Path | str, read: Callable[[Path | str], RunRecord] = read_run_record) -> Path:
    """``report.html``, ``card.json`` and ``figures/*.svg|png|pdf`` inside a run folder; returns the page's path.

    read: how the folder is opened. Raises FindingsError or DamagedRun (one line) on a folder that is no finished, undamaged run.
    """
    record = read(run_dir)
    figures, albums = draw_report(record), plots.picture_albums(record)
    page = record.path / "report.html"
    write_bytes(page, render_report(record, figures, albums).encode(errors="replace"))
    write_bytes(record.path / CARD, encode_card(record))
    folder = record.path / "figures"
    for plot in figures:
        save_figure(plot.figure, plot.drawing, folder, plot.name)
    for album in albums:
        album.save(folder, plots.make_slug(f"pictures-{album.row.evidence_name.removesuffix('.safetensors')}"))
    return page


BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome", "microsoft-edge")
# Nothing is asked of any network: the page loads nothing, and the browser's own errands are off.
FLAGS = (
    "--headless", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--disable-extensions",
)  # fmt: skip
PATIENCE = 300  # seconds


class NoBrowser(OSError):
    """There is no browser that prints, or it printed nothing; one line."""


def find_browser() -> str:
    """The command of the first Chromium relative on the PATH, or what ``PRIVDD_BROWSER`` names. Raises NoBrowser."""
    named = os.environ.get("PRIVDD_BROWSER")
    found = next((path for name in ((named,) if named else BROWSERS) if (path := shutil.which(name))), None)
    if found is None:
        what = f"PRIVDD_BROWSER={named}: no such command" if named else f"none of {', '.join(BROWSERS)} is on the PATH"
        raise NoBrowser(f"a PDF needs a browser, and {what}; or open the page in any browser and print it")
    return found


def browser_command(profile: Path | str) -> list[str]:
    """A browser without a window and with a new, empty profile folder. Raises NoBrowser."""
    root = hasattr(os, "geteuid") and os.geteuid() == 0  # as root, which containers run as, it has no sandbox
    return [find_browser(), *FLAGS, *(["--no-sandbox"] if root else []), f"--user-data-dir={profile}"]


def print_pdf(page: Path) -> Path:
    """The page as PDF beside it, under its own name; returns its path. Raises NoBrowser."""
    made = page.with_suffix(".pdf")
    with tempfile.TemporaryDirectory() as folder:
        paper = Path(folder) / "page.pdf"
        call = [*browser_command(Path(folder) / "profile"), "--no-pdf-header-footer", f"--print-to-pdf={paper}"]
        try:
            done = subprocess.run(
                [*call, page.resolve().as_uri()], capture_output=True, text=True, errors="replace", timeout=PATIENCE
            )
        except subprocess.TimeoutExpired:
            raise NoBrowser(f"{call[0]} did not print {page} within {PATIENCE} seconds") from None
        if not paper.is_file():
            said = (done.stderr.strip().splitlines() or ["no word"])[-1][:200]
            raise NoBrowser(f"{call[0]} did not print {page} (exit status {done.returncode}): {said}")
        write_bytes(made, paper.read_bytes())
    return made
