"""What a run's distillation did, in words: a line for the report and the terminal, and what limits
the verdict of a run in which nothing was distilled."""

from __future__ import annotations

from privdd.reporting.schema import DistillationRow, Findings
from privdd.reporting.wording import format_number

LEAST_FALL = 0.1  # of the matching loss, below which nothing counts as distilled
SCALED_COPIES = 0.9  # share of features at their bound, from which the release is scaled copies


def is_undistilled(row: DistillationRow) -> bool:
    """Whether nothing moved, or the matching loss fell by less than ``LEAST_FALL``."""
    if row.moved is None or row.loss_before is None or row.loss_after is None:
        return False
    return row.moved == 0 or row.loss_after > (1 - LEAST_FALL) * row.loss_before


def undistilled_marks(findings: Findings) -> list[str]:
    """The first line of an audit in which matching did nothing: what is sent instead."""
    return [
        f"{_sent_instead(row)}: {_matching_text(row)}. What this audit says is about that, not "
        "about distilled data."
        for row in findings.distillation or ()
        if is_undistilled(row)
    ]


def distillation_lines(findings: Findings) -> list[str]:
    """A line for each client whose distillation was measured."""
    return [_describe_row(row) for row in findings.distillation or ()]


def _sent_instead(row: DistillationRow) -> str:
    if not row.starts_real:
        return "sends its start nearly as it was"
    if row.projected:
        return "sends projected real records"
    return "sends real records"


def _describe_row(row: DistillationRow) -> str:
    parts = [] if row.moved is None else [_matching_text(row)]
    if row.at_bound is not None:
        if row.at_bound >= SCALED_COPIES:
            scaled = ", so that they are scaled copies of records"
        else:
            scaled = ""
        parts.append(
            f"{format_number(100 * row.at_bound)} % of its features lie at the bound rho{scaled}"
        )
    return f"Distillation of client {row.client}: {'; '.join(parts)}."


def _matching_text(row: DistillationRow) -> str:
    what = "representations" if row.projected else "images"
    moved = f"matching moved {what} by {format_number(100 * (row.moved or 0.0))} % of their norm"
    if row.rate is not None:
        moved += f" (rate {format_number(row.rate)} in units of their variance)"
    if row.loss_before is None or row.loss_after is None:
        return moved
    losses = f"{format_number(row.loss_before)} to {format_number(row.loss_after)}"
    return f"{moved}, and the matching loss in fresh networks went from {losses}"
