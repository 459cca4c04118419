"""From a run's findings and evidence to the figures that a page shows."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from matplotlib.figure import Figure

from privdd.reporting import epsilon_figures, figures, readings, strongest, summary, words
from privdd.reporting.curves import curve, psnr
from privdd.reporting.epsilon_figures import StripRow
from privdd.reporting.figures import RocLine
from privdd.reporting.folder import Evidence, RunRecord
from privdd.reporting.hover import Toggle, Zone, layer
from privdd.reporting.schema import FindingRow
from privdd.reporting.style import png_uri, save, themed, to_svg

PAIRS = 8  # pictures shown of one attack


@dataclass(frozen=True)
class Plot:
    """A figure on its way to the page and to ``figures/``; alt says what it shows without seeing it.

    zones: what can be read off it on the page; toggles: the curves that can be switched off there.
    """

    name: str
    title: str
    caption: str
    alt: str
    figure: Figure
    zones: tuple[Zone, ...] = ()
    toggles: tuple[Toggle, ...] = ()

    @cached_property
    def drawing(self) -> str:
        return to_svg(self.figure)

    @property
    def svg(self) -> Markup:
        """Safe as markup: matplotlib escapes the drawing's text, ``themed`` the label, ``layer`` its own."""
        axes = self.figure.axes
        return Markup(
            themed(self.drawing, self.name, self.alt, layer(self.drawing, axes[0], self.zones) if axes else "")
        )


@dataclass(frozen=True)
class Pair:
    """A real picture beside its reconstruction, both as data URIs."""

    real: str
    rebuilt: str
    quality: str


@dataclass(frozen=True)
class Album:
    """The pictures that one attack rebuilt, best first."""

    owner: str
    row: FindingRow
    pairs: tuple[Pair, ...]
    total: int
    real: np.ndarray
    rebuilt: np.ndarray

    @property
    def typical(self) -> str:
        """What the finding says of all its pictures: medians, or means in files of earlier versions and of features."""
        seen, base = self.row.pictures, strongest.blind_psnr(self.row)
        guess = seen.guess if seen else base
        said = f"median {words.decibel(seen.median)}" if seen else f"mean {words.decibel(self.row.psnr or 0.0)}"
        said += f" of {self.row.n}" if self.row.n is not None and self.row.n != self.total else ""
        return said if guess is None else f"{said}; the best guess without it reaches {words.decibel(guess)}"

    @property
    def when(self) -> str:
        """The round of a finding whose note begins with it: "train phase, round 4"; else ""."""
        first = (self.row.note or "").split(";")[0]
        return first if "round" in first and len(first) < 40 else ""

    def save(self, folder: Path, name: str) -> None:
        figure = figures.pictures(self.real, self.rebuilt, PAIRS)
        save(figure, to_svg(figure), folder, name)


def environment() -> Environment:
    """Templates with escaping always on; an undefined name is an error."""
    env = Environment(
        loader=PackageLoader("privdd.reporting"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    env.filters |= {
        "number": words.number,
        "share": words.share,
        "accuracy": words.accuracy,
        "attack": words.attack,
        "size": figures.size,
        "one_in": words.one_in,
        "decibel": words.decibel,
    }
    env.globals |= {"words": words, "inf": math.inf}
    return env


def slug(text: str) -> str:
    """Letters, digits and hyphens only: fit for an id and a file name."""
    kept = "".join(c if c.isascii() and c.isalnum() else "-" for c in text).strip("-")
    return kept[:60] or "x"


def roc_line(label: str, evidence: Evidence) -> RocLine | None:
    """The attack's curve with its blind control, or None where the evidence has no two-sided scores."""
    if not evidence.has_curve or evidence.scores is None or evidence.members is None:
        return None
    alike = evidence.clusters
    blind = curve(evidence.blind, evidence.members, clusters=alike) if evidence.blind is not None else None
    return RocLine(label, curve(evidence.scores, evidence.members, clusters=alike), blind)


def rocs(record: RunRecord) -> list[Plot]:
    """One panel for each surface with a membership attack: its strongest attack, band and control."""
    plots = []
    for row in strongest.on_each_surface(r for r in record.findings.findings if r.family == "membership"):
        line = roc_line(words.attack(row.attack), record.evidence(row))
        if line is not None:
            plots.append(_roc_plot(words.title(row), row, line))
    return plots


def _roc_plot(title: str, row: FindingRow, line: RocLine) -> Plot:
    points = line.curve
    caption = f"{line.label}: AUC {words.share(points.auc)}, {points.members} members, {points.outsiders} outsiders."
    alt = f"ROC curve on logarithmic axes for the {title.lower()}. {caption}"
    return Plot(f"roc-{slug(row.surface)}", title, caption, alt, figures.roc([line], 4.2), *readings.roc([line]))


def album(owner: str, record: RunRecord, row: FindingRow) -> Album | None:
    """The best pairs of one attack's pictures, or None where it left none."""
    evidence = record.evidence(row)
    if evidence.real is None or evidence.reconstructed is None or not len(evidence.real):
        return None
    real, rebuilt = evidence.real, evidence.reconstructed
    quality = psnr(real, rebuilt)
    order = figures.best_first(real, rebuilt)[:PAIRS]
    pairs = tuple(Pair(png_uri(real[i]), png_uri(rebuilt[i]), words.decibel(float(quality[i]))) for i in order)
    return Album(owner, row, pairs, len(real), real, rebuilt)


def albums(record: RunRecord) -> list[Album]:
    """Every attack's pictures, those furthest above a blind guess first."""
    rows = sorted(record.findings.findings, key=strongest.picture_strength, reverse=True)
    found = (album(record.findings.run.algo, record, row) for row in rows if row.family in strongest.PICTURE_FAMILIES)
    return [one for one in found if one is not None]


def strip_rows(record: RunRecord) -> list[StripRow]:
    """The whole run first, then each surface."""
    findings = record.findings
    claim = strongest.boldest(findings.privacy.claims)
    whole = StripRow(
        "whole run",
        claim.number if claim else None,
        findings.privacy.epsilon.best,
        strongest.measured_epsilon(findings.findings),
    )
    lines = summary.surface_lines(findings)
    return [whole, *(StripRow(s.title.lower(), _claimed(s), s.accounted, s.measured) for s in lines)]


def _claimed(line: summary.SurfaceLine) -> float | None:
    """A stated epsilon that only repeats the accountant's is not a separate claim."""
    return line.stated if line.stated is not None and line.stated != line.accounted else None


def strip(record: RunRecord) -> Plot:
    rows = strip_rows(record)
    said = "; ".join(
        f"{r.label}: claimed or stated {words.number(r.claim)}, at most {words.number(r.accounted)}, "
        f"at least {words.number(r.measured)}"
        for r in rows
    )
    caption = (
        "An arrow to the right of a stated or proven bound contradicts it. A paper's claim, shown for the "
        "whole run, may speak of only a part of what was sent."
    )
    figure, zones = epsilon_figures.strip(rows), readings.strip(rows)
    return Plot("epsilon", "Claimed, proven, shown", caption, f"Epsilon: {said}.", figure, zones)


def accuracy(runs: Iterable[tuple[str, RunRecord]]) -> Plot | None:
    """Accuracy by round, one line per run that recorded it."""
    used = ((label, run.findings.utility) for label, run in runs)
    known = [
        (label, u.diverged, u.accuracy_by_round[: u.diverged]) for label, u in used if u
    ]  # while there was a model
    series = {label if gone is None else f"{label} (diverged)": values for label, gone, values in known if values}
    if not series:
        return None
    alt = "Accuracy by round. " + "; ".join(f"{k}: ends at {words.share(v[-1])}" for k, v in series.items())
    caption = "On test records, after each round."
    return Plot("accuracy", "Accuracy by round", caption, alt, figures.accuracy(series), readings.accuracy(series))
