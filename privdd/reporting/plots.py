"""The figures of a run with their captions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from markupsafe import Markup
from matplotlib.figure import Figure

from privdd.reporting import (
    exposed_records,
    finding_selection,
    summary,
    wording,
)
from privdd.reporting.export import privacy_terms
from privdd.reporting.figures.accuracy_curves import draw_accuracy
from privdd.reporting.figures.detection_bars import draw_detection_rates
from privdd.reporting.figures.epsilon_strip import StripRow, draw_epsilon_scale, draw_epsilon_strip
from privdd.reporting.figures.rendering import themed_svg, to_svg
from privdd.reporting.figures.roc_curves import RocLine, draw_roc, step_curve
from privdd.reporting.figures.style import MUTED, SeriesStyle
from privdd.reporting.run_record import (
    RunRecord,
    StoredEvidence,
)
from privdd.reporting.schema import FindingRow, Findings
from privdd.reporting.wording import format_number, format_share

DIVERGED = " (diverged)"  # behind a run's label
LISTED_TERMS = 3  # above a figure
OVERVIEW_CURVES = 3  # of the first screen


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
        return to_svg(self.figure)

    @property
    def svg(self) -> Markup:
        """Safe as markup: matplotlib escapes the drawing's text, ``themed_svg`` the label."""
        return Markup(themed_svg(self.drawing, self.name, self.alt))


def add_terms(plots: Sequence[Plot], runs: Iterable[Findings]) -> list[Plot]:
    """The same figures with the data and the terms of every epsilon above them, for whoever sees a
    figure alone."""
    terms: dict[str, None] = {}
    for findings in runs:
        delta, unit, relation = privacy_terms(findings.privacy)
        neighbours = wording.relation_name(relation)
        terms[f"{findings.run.data}; δ = {format_number(delta)}, one {unit}, {neighbours}"] = None
    text = "\n".join([*terms][:LISTED_TERMS])
    if len(terms) > LISTED_TERMS:
        text += f"\nand {len(terms) - LISTED_TERMS} more"
    for plot in plots:
        plot.figure.suptitle(text, fontsize=7.5, color=MUTED, x=0.01, ha="left")
    return list(plots)


def make_slug(text: str) -> str:
    """Letters, digits and hyphens only: fit for an id and a file name."""
    letters = [letter if letter.isascii() and letter.isalnum() else "-" for letter in text]
    return "".join(letters).strip("-")[:60] or "x"


def roc_line_of(label: str, evidence: StoredEvidence) -> RocLine | None:
    """The attack's curve with its blind control, or None if the evidence has no two-sided
    scores."""
    if not evidence.has_curve or evidence.scores is None or evidence.members is None:
        return None
    clusters = evidence.cluster_labels
    blind = None
    if evidence.blind is not None:
        blind = step_curve(evidence.blind, evidence.members, clusters=clusters)
    curve = step_curve(evidence.scores, evidence.members, clusters=clusters)
    return RocLine(label, curve, blind)


def strongest_roc_lines(record: RunRecord) -> list[tuple[FindingRow, RocLine]]:
    """The curve of the strongest membership attack on each surface, if its evidence has one, with
    its finding; the most exposed surface first."""
    rows = [row for row in record.findings.findings if row.family == "membership"]
    lines = []
    for row in finding_selection.strongest_on_each_surface(rows, record.findings.scope):
        line = roc_line_of(wording.attack_title(row.attack), record.evidence(row))
        if line is not None:
            lines.append((row, line))
    return lines


def plot_rocs(record: RunRecord, lines: Iterable[tuple[FindingRow, RocLine]]) -> list[Plot]:
    """One panel for each surface with a membership attack: its strongest attack, band and
    control. lines: of ``strongest_roc_lines``."""
    scope = record.findings.scope
    plots = []
    for row, line in lines:
        curve = line.curve
        title = wording.surface_title(row, scope)
        counts = f"{curve.members} members, {curve.non_members} non-members"
        caption = f"{line.label}: AUC {format_share(curve.auc)}, {counts}."
        alt = f"ROC curve on logarithmic axes for the {title.lower()}. {caption}"
        figure = draw_roc([line])
        plots.append(Plot(f"roc-{make_slug(row.surface)}", title, caption, alt, figure))
    return plots


def plot_overview(
    record: RunRecord, strongest: Iterable[tuple[FindingRow, RocLine]]
) -> Plot | None:
    """The strongest attack on each of the most exposed surfaces, on common axes. strongest: of
    ``strongest_roc_lines``."""
    scope = record.findings.scope
    lines = [
        replace(line, label=wording.surface_title(row, scope))
        for row, line in strongest
        if row.surface not in finding_selection.POOLS
    ][:OVERVIEW_CURVES]
    if not lines:
        return None
    aucs = [f"{line.label}: AUC {format_share(line.curve.auc)}" for line in lines]
    caption = "Strongest attack on each artifact."
    alt = f"ROC curves on logarithmic axes. {'; '.join(aucs)}."
    return Plot("overview", "Members identified", caption, alt, draw_roc(lines, bands=False))


def plot_scale(record: RunRecord) -> Plot:
    """Claimed, proven and shown epsilon of the whole run on one line."""
    row = epsilon_rows(record)[0]
    claim = finding_selection.boldest_claim(record.findings.privacy.claims)
    word = finding_selection.limit_word(claim, record.findings.findings)
    bound_word = finding_selection.bound_word(record.findings.verdict)
    figure = draw_epsilon_scale(row, word, bound_word)
    alt = (
        f"Epsilon on a logarithmic scale: {word} {format_number(row.claim)}, {bound_word} at most "
        f"{format_number(row.proven)}, shown at least {format_number(row.shown)}."
    )
    return Plot("scale", "Epsilon", "", alt, figure)


def plot_detection_rates(record: RunRecord) -> Plot | None:
    """How often each audited record is identified by the strongest membership attack."""
    detected = exposed_records.detection_rates(record)
    if detected is None:
        return None
    scope = record.findings.scope
    top = f"{detected.hits[0]} of {detected.trials[0]}"
    name = wording.attack_title(detected.row.attack)
    if finding_selection.reads_transcripts(detected.row):
        trials = "transcripts"
    else:
        trials = "replays"
    caption = (
        f"{name[0].upper()}{name[1:]} on the {wording.surface_title(detected.row, scope).lower()}, "
        f"{format_share(detected.fpr)} FPR (dashed). The first bar: {top} {trials}."
    )
    alt = f"Bars for {len(detected.hits)} audited records, falling. {caption}"
    figure = draw_detection_rates(detected.rates, detected.fpr, trials)
    return Plot("records", "Detection rate of each record", caption, alt, figure)


def epsilon_rows(record: RunRecord) -> list[StripRow]:
    """The whole run first, then each surface."""
    findings = record.findings
    claim = finding_selection.boldest_claim(findings.privacy.claims)
    claimed = claim.number if claim else None
    shown = finding_selection.shown_epsilon(findings.findings)
    rows = [StripRow("whole run", claimed, findings.privacy.epsilon.proven, shown)]
    for line in summary.surface_lines(findings):
        # what a run states for itself is what the accountant computed: drawn once
        stated = None if line.stated == line.proven else line.stated
        rows.append(StripRow(line.title.lower(), stated, line.proven, line.shown))
    return rows


def plot_epsilons(record: RunRecord) -> Plot:
    rows = epsilon_rows(record)
    numbers = [
        f"{row.label}: claimed or stated {format_number(row.claim)}, at most "
        f"{format_number(row.proven)}, at least {format_number(row.shown)}"
        for row in rows
    ]
    caption = (
        "An arrow to the right of a stated or proven bound contradicts it. A paper's claim, shown "
        "for the whole run, may cover only a part of the messages."
    )
    figure = draw_epsilon_strip(rows)
    alt = f"Epsilon: {'; '.join(numbers)}."
    return Plot("epsilon", "Claimed, proven, shown", caption, alt, figure)


def plot_accuracy(
    runs: Iterable[tuple[str, RunRecord]], styles: Mapping[str, SeriesStyle] | None = None
) -> Plot | None:
    """Draw accuracy by round, while there was a model.

    Args:
        runs: (label, run); one line for each that recorded it.
        styles: The look of each label; by its place if None.

    Returns:
        The figure, or None if no run recorded accuracies.
    """
    series: dict[str, list[float]] = {}
    looks: dict[str, SeriesStyle] = {}
    for label, run in runs:
        utility = run.findings.utility
        if utility is None:
            continue
        accuracies = utility.accuracy_by_round[: utility.diverged]
        if not accuracies:
            continue
        if utility.diverged is None:
            name = label
        else:
            name = f"{label}{DIVERGED}"
        series[name] = accuracies
        if styles and label in styles:
            looks[name] = styles[label]
    if not series:
        return None
    ends = [f"{name}: ends at {format_share(values[-1])}" for name, values in series.items()]
    alt = f"Accuracy by round. {'; '.join(ends)}"
    figure = draw_accuracy(series, styles=looks)
    return Plot("accuracy", "Accuracy by round", "On test records, after each round.", alt, figure)


def draw_report(record: RunRecord) -> list[Plot]:
    """Every figure that the run's evidence allows."""
    accuracy = plot_accuracy([(record.findings.run.algo, record)])
    lines = strongest_roc_lines(record)
    plots = [plot_epsilons(record), *plot_rocs(record, lines)]
    if accuracy is not None:
        plots.append(accuracy)
    # of the first screen, which states the terms of the epsilons itself
    first = [plot_scale(record), plot_overview(record, lines), plot_detection_rates(record)]
    overview = [plot for plot in first if plot is not None]
    return [*overview, *add_terms(plots, [record.findings])]
