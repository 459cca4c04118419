"""One run as one self-contained page."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from privdd.reporting import (
    assessment,
    exposed_records,
    finding_selection,
    findings_tables,
    hard_records,
    knowledge_ladders,
    ledger_table,
    result_tiles,
    summary,
    wording,
)
from privdd.reporting.albums import PictureAlbum, picture_albums
from privdd.reporting.artifact_rows import artifact_rows
from privdd.reporting.card import audit_signature, encode_card
from privdd.reporting.decision import Decision, decide_surfaces, sample_banner
from privdd.reporting.distillation_lines import distillation_lines, undistilled_marks
from privdd.reporting.figures.paper import PaperStyle
from privdd.reporting.figures.rendering import save_figure
from privdd.reporting.finding_selection import findings_without_signal
from privdd.reporting.plots import Plot, draw_report, make_slug
from privdd.reporting.run_record import (
    RunRecord,
    read_run_record,
    reproduction_recipe,
)
from privdd.runtime.files import write_bytes
from privdd.runtime.run_files import CARD


def template_environment() -> Environment:
    """Templates with escaping always on; an undefined name is an error."""
    env = Environment(
        loader=PackageLoader("privdd.reporting"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    env.filters |= {
        "number": wording.format_number,
        "share": wording.format_share,
        "accuracy": wording.format_accuracy,
        "attack": wording.attack_title,
        "size": wording.format_bytes,
        "decibel": wording.format_decibel,
    }
    env.globals |= {"words": wording, "inf": math.inf}
    return env


def render_report(record: RunRecord, plots: list[Plot], albums: list[PictureAlbum]) -> str:
    """Fill the template of a run's page.

    Args:
        record: The run.
        plots: The figures of ``draw_report``, in any order.
        albums: The images of ``picture_albums``.

    Returns:
        The page as HTML.
    """
    template = template_environment().get_template("report.html.jinja")
    return template.render(
        **_first_screen(record),
        **_figures(plots),
        **_images(record, albums),
        **_tables(record),
        **_assessment(record),
    )


def _first_screen(record: RunRecord) -> dict[str, Any]:
    """Verdict, decisions, cards and the table of surfaces."""
    findings = record.findings
    scope = findings.scope
    decisions = decide_surfaces(findings, record.ledger)
    claim = finding_selection.boldest_claim(findings.privacy.claims)
    shown = finding_selection.shown_epsilon(findings.findings)
    return {
        "f": findings,
        "scope": scope,
        "headline": summary.verdict_headline(findings),
        "weak": summary.is_weak_limit,
        "artifacts": artifact_rows(decisions, findings),
        "seen": {_surface_key(decision): decision.seen_by for decision in decisions},
        "small": sample_banner(findings),
        "signature": audit_signature(record),
        "distillation": distillation_lines(findings),
        "marks": [
            *wording.noise_warnings(findings.privacy),
            *hard_records.hard_records_note(findings.run),
            *summary.target_marks(findings),
            *undistilled_marks(findings),
        ],
        "claim": claim,
        "limit_word": finding_selection.limit_word(claim, findings.findings),
        "bound_word": finding_selection.bound_word(findings.verdict),
        "exceeded": finding_selection.exceeds_claim(claim, shown, findings.privacy.delta),
        "measures_of": finding_selection.findings_measuring_claim,
        "measured": finding_selection.largest_bound_finding(findings.findings),
        "measured_bound": shown,
        "membership": result_tiles.membership_tile(findings),
        "utility_note": summary.utility_note(record.config),
        "lines": summary.surface_lines(findings),
        "unread": findings_without_signal(findings),
    }


def _surface_key(decision: Decision) -> tuple[str, str]:
    row = decision.line.row
    return row.surface, row.sender


def _figures(plots: list[Plot]) -> dict[str, Any]:
    by_name = {plot.name: plot for plot in plots}
    return {
        "strip": by_name["epsilon"],
        "scale": by_name.get("scale"),
        "overview": by_name.get("overview"),
        "detected": by_name.get("records"),
        "rocs": [plot for plot in plots if plot.name.startswith("roc-")],
        "accuracy": by_name.get("accuracy"),
    }


def _images(record: RunRecord, albums: Sequence[PictureAlbum]) -> dict[str, Any]:
    """All reconstructions, and those of the strongest attack, of which the first screen shows
    one."""
    findings = record.findings
    best = finding_selection.strongest_reconstruction(findings.findings, findings.scope)
    matches = [album for album in albums if album.row is best]
    tabular = any(album.columns for album in albums)
    return {
        "albums": albums,
        "rows": tabular,
        "reconstruction": result_tiles.reconstruction_tile(findings, tabular),
        "best_album": matches[0] if matches else None,
        "shows_images": record.shows_images,
    }


def _tables(record: RunRecord) -> dict[str, Any]:
    findings = record.findings
    noise = findings.privacy.noise
    return {
        "tables": findings_tables.findings_by_question(findings.findings),
        "ladders": knowledge_ladders.knowledge_ladders(findings),
        "ledger": ledger_table.group_releases(record.ledger),
        "noise": wording.noise_source_text(noise) if noise else "",
        "recipe": reproduction_recipe(record),
        "exposed": exposed_records.most_exposed_records(record),
        "kinds": hard_records.rates_by_kind(record),
    }


def _assessment(record: RunRecord) -> dict[str, Any]:
    findings = record.findings
    return {
        "risks": assessment.answer_risks(findings),
        "attack_kinds": assessment.attack_kinds_tried(findings),
        "controls": assessment.security_controls(findings),
        "guarantee": assessment.guarantee_facts(findings, record.ledger),
    }


def write_report(
    run_dir: Path | str,
    read: Callable[[Path | str], RunRecord] = read_run_record,
    paper: PaperStyle | None = None,
) -> Path:
    """Write ``report.html``, ``card.json`` and ``figures/`` inside a run folder.

    Args:
        run_dir: The run folder.
        read: How the folder is opened.
        paper: The form of figures as PDF; None writes SVG and PNG alone.

    Returns:
        The page's path.

    Raises:
        DamagedRun: The folder is no finished, undamaged run (one line).
    """
    record = read(run_dir)
    plots = draw_report(record)
    albums = picture_albums(record)
    page = record.path / "report.html"
    write_bytes(page, render_report(record, plots, albums).encode(errors="replace"))
    write_bytes(record.path / CARD, encode_card(record))
    folder = record.path / "figures"
    for plot in plots:
        save_figure(plot.figure, plot.drawing, folder, plot.name, paper)
    for album in albums:
        evidence = album.row.evidence_name.removesuffix(".safetensors")
        album.save(folder, make_slug(f"pictures-{evidence}"), paper)
    return page
