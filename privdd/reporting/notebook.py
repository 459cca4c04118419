"""Findings in a notebook or a script: a table, a figure, and a short view."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from markupsafe import Markup
from matplotlib.figure import Figure

from privdd.reporting import figures, wording
from privdd.reporting.finding_selection import (
    boldest_claim,
    shown_epsilon,
    strongest_on_each_surface,
)
from privdd.reporting.findings_tables import knowledge_ladders
from privdd.reporting.page import plot_epsilons, roc_line_of
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
    made = [_finding_row(row) for row in findings.findings]
    kept = list(dict.fromkeys(key for row in made for key in row))
    return [{name: row.get(name) for name in kept} for row in made]


def _finding_row(row: FindingRow) -> dict[str, Any]:
    plain = {k: v for k, v in row.model_dump(exclude=set(LISTED)).items() if v is not None}
    plain |= {name: str(plain[name]) for name in ("surface", "family", "adversary")}
    if row.auc_ci is not None:
        plain |= {"auc_low": row.auc_ci[0], "auc_high": row.auc_ci[1]}
    for fpr, at in (row.tpr_at_fpr or {}).items():
        plain |= {f"tpr_at_{fpr}": at.tpr, f"tpr_at_{fpr}_resolvable": at.resolvable}
    return plain


def to_frame(findings: Findings) -> pandas.DataFrame:
    """A table with one row per finding. Raises ImportError where pandas is missing."""
    try:
        import pandas
    except ImportError:
        raise ImportError("to_frame needs pandas: pip install pandas") from None
    return pandas.DataFrame(finding_rows(findings))


def to_html(findings: Findings) -> str:
    """A short view for notebooks: verdict, epsilon, what its noise allows, a line for every
    finding. All text is escaped."""
    privacy = findings.privacy
    made = finding_rows(findings)
    columns = [name for name in SHOWN if any(row.get(name) is not None for row in made)]
    head = _join_elements("th", (name.replace("_", " ") for name in columns))
    lines = (_join_elements("td", (_cell_text(row.get(name)) for name in columns)) for row in made)
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
        return draw_figure(self, kind)

    def _repr_html_(self) -> str:
        return to_html(self)


def with_views(findings: Findings) -> AuditFindings:
    """The same findings, able to show themselves."""
    values = {name: getattr(findings, name) for name in Findings.model_fields if name != "schema_"}
    viewed = AuditFindings.model_construct(schema=findings.schema_, **values)
    viewed._context = findings._context
    return viewed


def _join_elements(tag: str, texts: Iterable[str]) -> Markup:
    return Markup("").join(Markup(f"<{tag}>{{}}</{tag}>").format(text) for text in texts)


def _cell_text(value: Any) -> str:
    if value is None:
        return ""
    return wording.format_number(value) if isinstance(value, float) else str(value)


def draw_figure(findings: Findings, kind: Kind = "roc") -> Figure:
    """One drawing of a run.

    kind: roc = each surface's strongest membership attack; epsilon = claimed, proven and shown;
        frontier = the run's accuracy at its epsilon (``privdd.api.frontier`` draws several runs);
        ladder = what attackers rebuild who know
    less and less. Raises ValueError where there is nothing to draw.
    """
    if kind not in get_args(Kind):
        raise ValueError(f"kind={kind!r}: allowed are {', '.join(get_args(Kind))}")
    if kind == "epsilon":
        return plot_epsilons(RunRecord(Path(), findings)).figure
    if kind == "frontier":
        return _draw_frontier(findings)
    if kind == "ladder":
        return _draw_ladder(findings)
    folder = findings._context.folder
    if folder is None:
        where = "open it with privdd.api.load_run(folder).findings"
        raise ValueError(f"kind='roc': scores lie in the run's folder; {where}")
    return _draw_roc(RunRecord(folder, findings))


def _draw_roc(record: RunRecord) -> Figure:
    best = strongest_on_each_surface(
        r for r in record.findings.findings if r.family == "membership"
    )
    named = (
        (f"{wording.surface_title(row)}, {wording.attack_title(row.attack)}", row) for row in best
    )
    lines = [
        line
        for label, row in named
        if (line := roc_line_of(label, record.evidence(row))) is not None
    ]
    if not lines:
        raise ValueError("kind='roc': no membership attack of this run left scores")
    return figures.draw_roc(lines)


def _draw_frontier(findings: Findings) -> Figure:
    if findings.utility is None or findings.utility.diverged is not None:
        raise ValueError("kind='frontier': this run has no accuracy")
    claim = boldest_claim(findings.privacy.claims)
    shown = shown_epsilon(findings.findings)
    stated = claim.number if claim else None
    accuracies = (findings.utility.accuracy,)
    point = figures.FrontierPoint(
        findings.run.algo, findings.privacy.epsilon.proven, accuracies, shown, stated
    )
    return figures.draw_frontier([point])


def _draw_ladder(findings: Findings) -> Figure:
    found = [
        ladder
        for ladder in knowledge_ladders(findings)
        if any(step.psnr is not None for step in ladder.steps)
    ]
    if not found:
        raise ValueError("kind='ladder': no inversion of this run has one")
    made = figures.Drawing(
        figsize=(6.4, 0.45 * sum(len(one.steps) + 1 for one in found) + 0.6), layout="constrained"
    )
    for axes, one in zip(made.subplots(len(found), squeeze=False)[:, 0], found):
        axes.barh([step.who for step in one.steps], [step.psnr or 0.0 for step in one.steps])
        axes.invert_yaxis()
        axes.set(title=one.title, xlabel="PSNR in dB (more leaks more)")
    return made
