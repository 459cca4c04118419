"""Findings in a notebook or a script: a table, a figure, and a short view."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from markupsafe import Markup
from matplotlib.figure import Figure
from pydantic import PrivateAttr

from privdd.reporting import wording
from privdd.reporting.figures.canvas import Drawing
from privdd.reporting.figures.frontier_marks import FrontierPoint, draw_frontier
from privdd.reporting.figures.roc_curves import draw_roc
from privdd.reporting.finding_selection import (
    boldest_claim,
    shown_epsilon,
    strongest_on_each_surface,
)
from privdd.reporting.knowledge_ladders import KnowledgeLadder, knowledge_ladders
from privdd.reporting.plots import plot_epsilons, roc_line_of
from privdd.reporting.run_record import RunRecord
from privdd.reporting.schema import FindingRow, Findings

if TYPE_CHECKING:
    import pandas

Kind = Literal["roc", "epsilon", "frontier", "ladder"]
# Not one value each.
LISTED = ("auc_ci", "tpr_at_fpr", "worst_records", "by_kind", "baselines", "diagnostics", "figure")
SHOWN = ("surface", "attack", "adversary", "auc", "epsilon_shown", "psnr", "n")


def finding_rows(findings: Findings) -> list[dict[str, Any]]:
    """One mapping per finding, its columns of plain values; what does not apply to any finding has
    no column."""
    rows = [_finding_row(row) for row in findings.findings]
    columns: dict[str, Any] = {}
    for row in rows:
        columns |= dict.fromkeys(row)
    return [columns | row for row in rows]


def _finding_row(row: FindingRow) -> dict[str, Any]:
    fields = row.model_dump(exclude=set(LISTED))
    values = {name: value for name, value in fields.items() if value is not None}
    values |= {name: str(values[name]) for name in ("surface", "family", "adversary")}
    if row.auc_ci is not None:
        values |= {"auc_low": row.auc_ci[0], "auc_high": row.auc_ci[1]}
    for fpr, rate in (row.tpr_at_fpr or {}).items():
        values |= {f"tpr_at_{fpr}": rate.tpr, f"tpr_at_{fpr}_resolvable": rate.resolvable}
    return values


def to_frame(findings: Findings) -> pandas.DataFrame:
    """Make a table of a run's findings.

    Args:
        findings: The run's findings.json.

    Returns:
        One row per finding; a column that applies to none is left out.

    Raises:
        ImportError: pandas is missing.
    """
    try:
        import pandas
    except ImportError:
        raise ImportError("to_frame needs pandas: pip install pandas") from None
    return pandas.DataFrame(finding_rows(findings))


def to_html(findings: Findings) -> str:
    """A short view for notebooks: verdict, epsilon, what its noise allows, a line for every
    finding. All text is escaped."""
    privacy = findings.privacy
    rows = finding_rows(findings)
    columns = [name for name in SHOWN if any(row.get(name) is not None for row in rows)]
    head = _join_elements("th", [name.replace("_", " ") for name in columns])
    lines = []
    for row in rows:
        lines.append(_join_elements("td", [_cell_text(row.get(name)) for name in columns]))
    text = Markup(
        "<p><b>{}</b> on {}: {}; epsilon at most {} at delta {} ({}, "
        "{})</p>{}<table><tr>{}</tr>{}</table>"
    ).format(
        findings.run.algo,
        findings.run.data,
        findings.verdict,
        wording.format_number(privacy.epsilon.proven),
        wording.format_number(privacy.delta),
        f"unit {privacy.unit}",
        privacy.relation,
        _join_elements("p", wording.noise_warnings(privacy)),
        head,
        _join_elements("tr", lines),
    )
    return str(text)


class AuditFindings(Findings):
    """Findings that can be shown in a script or a notebook."""

    _folder: Path | None = PrivateAttr(default=None)  # where scores lie

    def to_frame(self) -> pandas.DataFrame:
        """A table with one row per finding. Raises ImportError where pandas is missing."""
        return to_frame(self)

    def plot(self, kind: Kind = "roc") -> Figure:
        """One drawing of the run.

        Args:
            kind: As of ``draw_figure``.

        Raises:
            ValueError: There is nothing to draw.
        """
        if self._folder is None:
            return draw_figure(self, kind)
        return draw_figure(RunRecord(self._folder, self), kind)

    def _repr_html_(self) -> str:
        return to_html(self)


def with_views(findings: Findings, folder: Path | None = None) -> AuditFindings:
    """The same findings, able to show themselves and the scores in their folder."""
    values = {name: getattr(findings, name) for name in Findings.model_fields if name != "schema_"}
    viewed = AuditFindings.model_construct(schema=findings.schema_, **values)
    viewed._folder = folder
    return viewed


def _join_elements(tag: str, texts: Iterable[str]) -> Markup:
    return Markup("").join(Markup(f"<{tag}>{{}}</{tag}>").format(text) for text in texts)


def _cell_text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return wording.format_number(value)
    return str(value)


def draw_figure(run: Findings | RunRecord, kind: Kind = "roc") -> Figure:
    """One drawing of a run.

    Args:
        run: What ``privdd.api.audit`` returns; for "roc" what ``privdd.api.load_run`` returns, as
            scores lie in the run's folder.
        kind: roc = each surface's strongest membership attack; epsilon = claimed, proven and
            shown; frontier = the run's accuracy at its epsilon (``privdd.api.frontier`` draws
            several runs); ladder = what attackers reconstruct who know less and less.

    Returns:
        A figure that a notebook shows as an image.

    Raises:
        ValueError: The kind is unknown, or the run has nothing to draw of it.
    """
    findings = run.findings if isinstance(run, RunRecord) else run
    if kind not in get_args(Kind):
        raise ValueError(f"kind={kind!r}: allowed are {', '.join(get_args(Kind))}")
    if kind == "epsilon":
        return plot_epsilons(RunRecord(Path(), findings)).figure
    if kind == "frontier":
        return _draw_frontier(findings)
    if kind == "ladder":
        return _draw_ladder(findings)
    if not isinstance(run, RunRecord):
        raise ValueError(
            "kind='roc': scores lie in the run's folder; plot what privdd.api.load_run(folder) "
            "returns"
        )
    return _draw_roc(run)


def _draw_roc(record: RunRecord) -> Figure:
    scope = record.findings.scope
    memberships = [row for row in record.findings.findings if row.family == "membership"]
    lines = []
    for row in strongest_on_each_surface(memberships, scope):
        label = f"{wording.surface_title(row, scope)}, {wording.attack_title(row.attack)}"
        line = roc_line_of(label, record.evidence(row))
        if line is not None:
            lines.append(line)
    if not lines:
        raise ValueError("kind='roc': no membership attack of this run left scores")
    return draw_roc(lines)


def _draw_frontier(findings: Findings) -> Figure:
    if findings.utility is None or findings.utility.diverged is not None:
        raise ValueError("kind='frontier': this run has no accuracy")
    claim = boldest_claim(findings.privacy.claims)
    shown = shown_epsilon(findings.findings)
    stated = claim.number if claim else None
    accuracies = (findings.utility.accuracy,)
    point = FrontierPoint(
        findings.run.algo, findings.privacy.epsilon.proven, accuracies, shown, stated
    )
    return draw_frontier([point])


def _has_psnr(ladder: KnowledgeLadder) -> bool:
    return any(step.psnr is not None for step in ladder.steps)


def _draw_ladder(findings: Findings) -> Figure:
    ladders = [ladder for ladder in knowledge_ladders(findings) if _has_psnr(ladder)]
    if not ladders:
        raise ValueError("kind='ladder': no inversion of this run has one")
    lines = sum(len(ladder.steps) + 1 for ladder in ladders)
    figure = Drawing(figsize=(6.4, 0.45 * lines + 0.6), layout="constrained")
    panels = figure.subplots(len(ladders), squeeze=False)[:, 0]
    for axes, ladder in zip(panels, ladders):
        names = [step.who for step in ladder.steps]
        axes.barh(names, [step.psnr or 0.0 for step in ladder.steps])
        axes.invert_yaxis()
        axes.set(title=ladder.title, xlabel="PSNR in dB (more leaks more)")
    return figure
