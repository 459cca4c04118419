"""One run as one self-contained page: every figure inline, nothing loaded, no script; and its twin for programs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from privdd.reporting import assessment, leaks, noise_words, plots, strongest, summary
from privdd.reporting.card import card_bytes, signature
from privdd.reporting.decision import decisions, too_small
from privdd.reporting.exposed import exposed, kinds, tail_words
from privdd.reporting.findings_tables import tables
from privdd.reporting.folder import RunRecord, read_run
from privdd.reporting.ladder import ladders
from privdd.reporting.ledger_view import groups
from privdd.reporting.plots import Album, Plot
from privdd.reporting.reproduce import recipe
from privdd.reporting.style import save
from privdd.reporting.unread import unread
from privdd.runtime.files import write_bytes
from privdd.runtime.seal import CARD


def render(record: RunRecord, figures: list[Plot], albums: list[Album]) -> str:
    """The page's text. ``figures``: those of ``draw``, in any order."""
    findings = record.findings
    picture = strongest.best_pictures(findings.findings)
    claim = strongest.boldest(findings.privacy.claims)
    named = {plot.name: plot for plot in figures}
    made = decisions(findings, record.ledger)
    return (
        plots.environment()
        .get_template("report.html.jinja")
        .render(
            f=findings,
            headline=summary.verdict(findings),
            weak=summary.weak,
            decisions=made,
            seen={(one.line.row.surface, one.line.row.sender): one.seen_by for one in made},
            small=too_small(findings),
            signature=signature(record),
            tables=tables(findings.findings),
            claim=claim,
            limit_word=strongest.limit_word(claim, findings.findings),
            exceeded=strongest.exceeded(claim, strongest.measured_epsilon(findings.findings), findings.privacy.delta),
            measures_of=strongest.measures_of,
            measured=strongest.measured(findings.findings),
            measured_bound=strongest.measured_epsilon(findings.findings),
            member=strongest.worst_membership(findings.findings),
            membership=leaks.membership,
            pictures=leaks.pictures,
            picture=picture,
            rebuilds=picture is not None and strongest.rebuilds(picture),
            lines=summary.surface_lines(findings),
            unread=unread(findings),
            strip=named["epsilon"],
            rocs=[plot for plot in figures if plot.name.startswith("roc-")],
            accuracy=named.get("accuracy"),
            utility_note=summary.utility_note(record.config),
            albums=albums,
            ladders=ladders(findings),
            ledger=groups(record.ledger),
            recipe=recipe(record),
            marks=[
                *noise_words.marks(findings.privacy),
                *filter(None, [tail_words(findings.run)]),
                *summary.target_marks(findings),
            ],
            exposed=exposed(record),
            kinds=kinds(record),
            noise=noise_words.source(findings.privacy.noise) if findings.privacy.noise else "",
            risks=assessment.risks(findings),
            attack_kinds=assessment.kinds(findings),
            guarantee=assessment.guarantee(findings, record.ledger),
        )
    )


def draw(record: RunRecord) -> list[Plot]:
    """Every figure that the run's evidence allows."""
    accuracy = plots.accuracy([(record.findings.run.algo, record)])
    return [plots.strip(record), *plots.rocs(record), *([accuracy] if accuracy else [])]


def write_report(run_dir: Path | str, read: Callable[[Path | str], RunRecord] = read_run) -> Path:
    """``report.html``, ``card.json`` and ``figures/*.svg|png`` inside a run folder; returns the page's path.

    read: how the folder is opened. Raises FindingsError or DamagedRun (one line) on a folder that is no finished, undamaged run.
    """
    record = read(run_dir)
    figures, albums = draw(record), plots.albums(record)
    page = record.path / "report.html"
    write_bytes(page, render(record, figures, albums).encode(errors="replace"))
    write_bytes(record.path / CARD, card_bytes(record))
    folder = record.path / "figures"
    for plot in figures:
        save(plot.figure, plot.drawing, folder, plot.name)
    for album in albums:
        album.save(folder, plots.slug(f"pictures-{album.row.evidence_name.removesuffix('.safetensors')}"))
    return page
