"""One run as one self-contained page, and the page on paper."""

from __future__ import annotations

import math
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from matplotlib.figure import Figure

from attacks.machine import BARE_VARIABLE, is_bare
from privdd.reporting import (
    decision,
    figures,
    finding_selection,
    findings_tables,
    leaks,
    summary,
    wording,
)
from privdd.reporting.decision import audit_signature, decide_surfaces, encode_card, sample_banner
from privdd.reporting.export import privacy_terms
from privdd.reporting.finding_selection import findings_without_signal
from privdd.reporting.run_record import (
    RunRecord,
    StoredEvidence,
    read_run_record,
    reproduction_recipe,
)
from privdd.reporting.schema import FindingRow, Findings
from privdd.reporting.wording import format_decibel, format_number, format_share
from privdd.runtime.files import write_bytes
from privdd.runtime.run_files import CARD

DIVERGED = " (diverged)"  # behind a run's label
PAIRS = 8  # pictures shown of one attack


@dataclass(frozen=True)
class Plot:
    """A figure on its way to the page and to ``figures/``; alt says what it shows without seeing
    it."""

    name: str
    title: str
    caption: str
    alt: str
    figure: Figure

    @cached_property
    def drawing(self) -> str:
        return figures.to_svg(self.figure)

    @property
    def svg(self) -> Markup:
        """Safe as markup: matplotlib escapes the drawing's text, ``themed_svg`` the label."""
        return Markup(figures.themed_svg(self.drawing, self.name, self.alt))


def add_terms(drawn: Sequence[Plot], runs: Iterable[Findings]) -> list[Plot]:
    """The same figures with the data and the terms of every epsilon above them, for whoever sees a
    figure alone."""
    terms: dict[str, None] = {}
    for found in runs:
        delta, unit, relation = privacy_terms(found.privacy)
        terms[f"{found.run.data}; δ = {format_number(delta)}, one {unit}, {relation}"] = None
    text = "\n".join([*terms][:3]) + (f"\nand {len(terms) - 3} more" if len(terms) > 3 else "")
    for plot in drawn:
        plot.figure.suptitle(text, fontsize=7.5, color=figures.MUTED, x=0.01, ha="left")
    return list(drawn)


@dataclass(frozen=True)
class PicturePair:
    """A real picture beside its reconstruction, both as data URIs."""

    real: str
    rebuilt: str
    quality: str


@dataclass(frozen=True)
class PictureAlbum:
    """The pictures that one attack rebuilt, best first."""

    owner: str
    row: FindingRow
    pairs: tuple[PicturePair, ...]
    total: int
    real: np.ndarray
    rebuilt: np.ndarray

    @property
    def typical(self) -> str:
        """The finding's summary of all its pictures: medians, or means for features."""
        seen = self.row.pictures
        base = finding_selection.blind_guess_psnr(self.row)
        guess = seen.guess if seen else base
        mean = f"mean {format_decibel(self.row.psnr or 0.0)}"
        said = f"median {format_decibel(seen.median)}" if seen else mean
        said += f" of {self.row.n}" if self.row.n is not None and self.row.n != self.total else ""
        return (
            said
            if guess is None
            else f"{said}; the best guess without it reaches {format_decibel(guess)}"
        )

    @property
    def when(self) -> str:
        """The round of a finding whose note begins with it: "train phase, round 4"; else ""."""
        first = (self.row.note or "").split(";")[0]
        return first if "round" in first and len(first) < 40 else ""

    def save(self, folder: Path, name: str, pdf: bool = False) -> None:
        figure = figures.draw_pictures(self.real, self.rebuilt, PAIRS)
        figures.save_figure(figure, figures.to_svg(figure), folder, name, pdf)


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
        "one_in": wording.one_in,
        "decibel": wording.format_decibel,
    }
    env.globals |= {"words": wording, "inf": math.inf}
    return env


def make_slug(text: str) -> str:
    """Letters, digits and hyphens only: fit for an id and a file name."""
    kept = "".join(c if c.isascii() and c.isalnum() else "-" for c in text).strip("-")
    return kept[:60] or "x"


def roc_line_of(label: str, evidence: StoredEvidence) -> figures.RocLine | None:
    """The attack's curve with its blind control, or None where the evidence has no two-sided
    scores."""
    if not evidence.has_curve or evidence.scores is None or evidence.members is None:
        return None
    alike = evidence.cluster_labels
    blind = (
        figures.step_curve(evidence.blind, evidence.members, clusters=alike)
        if evidence.blind is not None
        else None
    )
    return figures.RocLine(
        label, figures.step_curve(evidence.scores, evidence.members, clusters=alike), blind
    )


def plot_rocs(record: RunRecord) -> list[Plot]:
    """One panel for each surface with a membership attack: its strongest attack, band and
    control."""
    rows = (row for row in record.findings.findings if row.family == "membership")
    plots = []
    for row in finding_selection.strongest_on_each_surface(rows):
        if (
            line := roc_line_of(wording.attack_title(row.attack), record.evidence(row))
        ) is not None:
            points = line.curve
            title = wording.surface_title(row)
            counts = f"{points.members} members, {points.outsiders} outsiders"
            caption = f"{line.label}: AUC {format_share(points.auc)}, {counts}."
            alt = f"ROC curve on logarithmic axes for the {title.lower()}. {caption}"
            plots.append(
                Plot(
                    f"roc-{make_slug(row.surface)}",
                    title,
                    caption,
                    alt,
                    figures.draw_roc([line], 4.2),
                )
            )
    return plots


def picture_album(owner: str, record: RunRecord, row: FindingRow) -> PictureAlbum | None:
    """The best pairs of one attack's pictures, or None where it left none."""
    evidence = record.evidence(row)
    if evidence.real is None or evidence.reconstructed is None or not len(evidence.real):
        return None
    real = evidence.real
    rebuilt = evidence.reconstructed
    quality = figures.psnr_of_arrays(real, rebuilt)
    order = figures.order_by_psnr(real, rebuilt)[:PAIRS]
    pairs = (
        PicturePair(
            figures.png_uri(real[i]), figures.png_uri(rebuilt[i]), format_decibel(float(quality[i]))
        )
        for i in order
    )
    return PictureAlbum(owner, row, tuple(pairs), len(real), real, rebuilt)


def picture_albums(record: RunRecord) -> list[PictureAlbum]:
    """Every attack's pictures, those furthest above a blind guess first."""
    rows = (
        row for row in record.findings.findings if row.family in finding_selection.PICTURE_FAMILIES
    )
    ranked = sorted(rows, key=finding_selection.picture_strength, reverse=True)
    found = (picture_album(record.findings.run.algo, record, row) for row in ranked)
    return [one for one in found if one is not None]


def epsilon_rows(record: RunRecord) -> list[figures.StripRow]:
    """The whole run first, then each surface."""
    findings = record.findings
    claim = finding_selection.boldest_claim(findings.privacy.claims)
    shown = finding_selection.shown_epsilon(findings.findings)
    rows = [
        figures.StripRow(
            "whole run", claim.number if claim else None, findings.privacy.epsilon.proven, shown
        )
    ]
    for line in summary.surface_lines(findings):
        stated = (
            line.stated if line.stated != line.proven else None
        )  # a separate claim repeats no accountant
        rows.append(figures.StripRow(line.title.lower(), stated, line.proven, line.shown))
    return rows


def plot_epsilons(record: RunRecord) -> Plot:
    rows = epsilon_rows(record)
    said = "; ".join(
        f"{r.label}: claimed or stated {format_number(r.claim)}, at most "
        f"{format_number(r.proven)}, "
        f"at least {format_number(r.shown)}"
        for r in rows
    )
    caption = (
        "An arrow to the right of a stated or proven bound contradicts it. A paper's "
        "claim, shown for the "
        "whole run, may speak of only a part of what was sent."
    )
    return Plot(
        "epsilon",
        "Claimed, proven, shown",
        caption,
        f"Epsilon: {said}.",
        figures.draw_epsilon_strip(rows),
    )


def plot_accuracy(
    runs: Iterable[tuple[str, RunRecord]], styles: Mapping[str, figures.SeriesStyle] | None = None
) -> Plot | None:
    """Accuracy by round, one line per run that recorded it. styles: by label."""
    used = ((label, run.findings.utility) for label, run in runs)
    known = [
        (label, u.diverged, u.accuracy_by_round[: u.diverged]) for label, u in used if u
    ]  # while there was a model
    series = {
        label if gone is None else f"{label}{DIVERGED}": values
        for label, gone, values in known
        if values
    }
    if not series:
        return None
    alt = "Accuracy by round. " + "; ".join(
        f"{k}: ends at {format_share(v[-1])}" for k, v in series.items()
    )
    caption = "On test records, after each round."
    looks = {
        name: style
        for name in series
        if (style := (styles or {}).get(name.removesuffix(DIVERGED))) is not None
    }
    return Plot(
        "accuracy", "Accuracy by round", caption, alt, figures.draw_accuracy(series, styles=looks)
    )


def render_report(record: RunRecord, drawn: list[Plot], albums: list[PictureAlbum]) -> str:
    """The page's text. drawn: the figures of ``draw_report``, in any order."""
    findings = record.findings
    picture = finding_selection.strongest_reconstruction(findings.findings)
    claim = finding_selection.boldest_claim(findings.privacy.claims)
    shown = finding_selection.shown_epsilon(findings.findings)
    named = {plot.name: plot for plot in drawn}
    made = decide_surfaces(findings, record.ledger)
    return (
        template_environment()
        .get_template("report.html.jinja")
        .render(
            f=findings,
            headline=summary.verdict_headline(findings),
            weak=summary.is_weak_limit,
            decisions=made,
            seen={(one.line.row.surface, one.line.row.sender): one.seen_by for one in made},
            small=sample_banner(findings),
            signature=audit_signature(record),
            tables=findings_tables.findings_by_question(findings.findings),
            claim=claim,
            limit_word=finding_selection.limit_word(claim, findings.findings),
            exceeded=finding_selection.exceeds_claim(claim, shown, findings.privacy.delta),
            measures_of=finding_selection.findings_measuring_claim,
            measured=finding_selection.largest_bound_finding(findings.findings),
            measured_bound=shown,
            member=finding_selection.strongest_membership(findings.findings),
            bound_of=finding_selection.epsilon_bound,
            membership=leaks.membership_phrase,
            pictures=leaks.picture_phrase,
            picture=picture,
            rebuilds=picture is not None and finding_selection.rebuilds_records(picture),
            lines=summary.surface_lines(findings),
            unread=findings_without_signal(findings),
            strip=named["epsilon"],
            rocs=[plot for plot in drawn if plot.name.startswith("roc-")],
            accuracy=named.get("accuracy"),
            utility_note=summary.utility_note(record.config),
            albums=albums,
            ladders=findings_tables.knowledge_ladders(findings),
            ledger=findings_tables.group_releases(record.ledger),
            recipe=reproduction_recipe(record),
            marks=[
                *wording.noise_warnings(findings.privacy),
                *findings_tables.hard_records_note(findings.run),
                *summary.target_marks(findings),
            ],
            exposed=findings_tables.most_exposed_records(record),
            kinds=findings_tables.rates_by_kind(record),
            noise=wording.noise_source_text(findings.privacy.noise)
            if findings.privacy.noise
            else "",
            risks=decision.answer_risks(findings),
            attack_kinds=decision.attack_kinds_tried(findings),
            controls=decision.security_controls(findings),
            guarantee=decision.guarantee_facts(findings, record.ledger),
        )
    )


def draw_report(record: RunRecord) -> list[Plot]:
    """Every figure that the run's evidence allows."""
    accuracy = plot_accuracy([(record.findings.run.algo, record)])
    drawn = [plot_epsilons(record), *plot_rocs(record), *([accuracy] if accuracy else [])]
    return add_terms(drawn, [record.findings])


def write_report(
    run_dir: Path | str,
    read: Callable[[Path | str], RunRecord] = read_run_record,
    pdf: bool = False,
) -> Path:
    """Write ``report.html``, ``card.json`` and ``figures/`` inside a run folder.

    Args:
        run_dir: The run folder.
        read: How the folder is opened.
        pdf: Whether figures are written as PDF too, beside SVG and PNG.

    Returns:
        The page's path.

    Raises:
        DamagedRun: The folder is no finished, undamaged run (one line).
    """
    record = read(run_dir)
    drawn = draw_report(record)
    albums = picture_albums(record)
    page = record.path / "report.html"
    write_bytes(page, render_report(record, drawn, albums).encode(errors="replace"))
    write_bytes(record.path / CARD, encode_card(record))
    folder = record.path / "figures"
    for plot in drawn:
        figures.save_figure(plot.figure, plot.drawing, folder, plot.name, pdf)
    for album in albums:
        evidence = album.row.evidence_name.removesuffix(".safetensors")
        album.save(folder, make_slug(f"pictures-{evidence}"), pdf)
    return page


BROWSERS = (
    "chromium",
    "chromium-browser",
    "google-chrome",
    "google-chrome-stable",
    "chrome",
    "microsoft-edge",
)
# Nothing is asked of any network: the page loads nothing, and the browser's own errands are off.
FLAGS = (
    "--headless",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-extensions",
)
PATIENCE = 300  # seconds


class NoBrowser(OSError):
    """There is no browser that prints, or it printed nothing; one line."""


def find_browser() -> str:
    """The command of the first Chromium relative on the PATH, or what ``PRIVDD_BROWSER`` names.
    Raises NoBrowser."""
    named = os.environ.get("PRIVDD_BROWSER")
    if named:
        searched: tuple[str, ...] = (named,)
        missing = f"PRIVDD_BROWSER={named}: no such command"
    elif is_bare():
        searched = ()
        missing = f"{BARE_VARIABLE}=1 hides those on the PATH: set PRIVDD_BROWSER"
    else:
        searched = BROWSERS
        missing = f"none of {', '.join(BROWSERS)} is on the PATH"
    for name in searched:
        if path := shutil.which(name):
            return path
    raise NoBrowser(
        f"a PDF needs a browser, and {missing}; or open the page in any browser and print it"
    )


def browser_command(profile: Path | str) -> list[str]:
    """A browser without a window and with a new, empty profile folder. Raises NoBrowser."""
    root = (
        hasattr(os, "geteuid") and os.geteuid() == 0
    )  # as root, which containers run as, it has no sandbox
    return [
        find_browser(),
        *FLAGS,
        *(["--no-sandbox"] if root else []),
        f"--user-data-dir={profile}",
    ]


def print_pdf(page: Path) -> Path:
    """The page as PDF beside it, under its own name; returns its path. Raises NoBrowser."""
    made = page.with_suffix(".pdf")
    with tempfile.TemporaryDirectory() as folder:
        paper = Path(folder) / "page.pdf"
        call = [
            *browser_command(Path(folder) / "profile"),
            "--no-pdf-header-footer",
            f"--print-to-pdf={paper}",
        ]
        call.append(page.resolve().as_uri())
        try:
            done = subprocess.run(
                call, capture_output=True, text=True, errors="replace", timeout=PATIENCE
            )
        except subprocess.TimeoutExpired:
            raise NoBrowser(f"{call[0]} did not print {page} within {PATIENCE} seconds") from None
        if not paper.is_file():
            said = (done.stderr.strip().splitlines() or ["no word"])[-1][:200]
            raise NoBrowser(
                f"{call[0]} did not print {page} (exit status {done.returncode}): {said}"
            )
        write_bytes(made, paper.read_bytes())
    return made
