"""All findings as tables, one for each question."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from privdd.reporting import finding_selection, wording
from privdd.reporting.schema import (
    FindingRow,
    TprAt,
    WorstRecords,
)
from privdd.reporting.wording import NONE, format_decibel, format_number, format_share


@dataclass(frozen=True)
class TableCell:
    """A value in words, and what stands below it in small print; numeric cells are set to the
    right."""

    text: str = NONE
    small: str = ""


@dataclass(frozen=True)
class Column:
    """title: the standard name; plain: the same in plain words, or ""."""

    title: str
    plain: str
    numeric: bool
    cell: Callable[[FindingRow], TableCell]


@dataclass(frozen=True)
class Question:
    """name: of its table, as an id of the page; families: whose findings answer it."""

    name: str
    text: str
    families: frozenset[str]
    columns: tuple[Column, ...]


@dataclass(frozen=True)
class FindingsTable:
    """One question: (row, its cells) in the order of the file; columns are those that any row
    fills."""

    name: str
    question: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[FindingRow, tuple[TableCell, ...]], ...]


def _tpr_cell(rates: Mapping[str, TprAt] | None, key: str) -> TableCell:
    rate = (rates or {}).get(key)
    if rate is None:
        return TableCell()
    if not rate.resolvable:
        return TableCell("too few")
    return TableCell(format_share(rate.tpr), interval_text(rate.ci))


def _tpr_per_record_cell(row: FindingRow) -> TableCell:
    return _tpr_cell(row.tpr_at_fpr_per_record, "0.01")


def _exposure_cell(row: FindingRow) -> TableCell:
    worst = row.worst_records
    if worst is None or not worst.records:
        return TableCell()
    return TableCell(
        trials_text(worst), f"replays of {chosen_text(row, worst)}; {interval_text(worst.ci)}"
    )


def trials_text(worst: WorstRecords) -> str:
    """In how many of the replays that hold them the chosen records are identified: "36 of 70"."""
    hits = sum(record.hits for record in worst.records)
    trials = sum(record.trials for record in worst.records)
    return f"{hits} of {trials}"


def chosen_text(row: FindingRow, worst: WorstRecords) -> str:
    """How many records were chosen as the most exposed: "2 of 117 records"."""
    return f"{len(worst.records)} of {row.n} records"


def _epsilon_cell(row: FindingRow) -> TableCell:
    if row.epsilon_shown is None:
        return TableCell()
    method = (row.epsilon_method or "").replace("_", " ")
    if row.epsilon_validity == "gaussian_only":
        method += ", if scores are Gaussian"
    return TableCell(format_number(row.epsilon_shown), method)


def _kappa_cell(row: FindingRow) -> TableCell:
    if row.kappa_allowed is None:
        limit = ""
    else:
        limit = f"limit {format_number(row.kappa_allowed)}"
    return TableCell(format_number(row.kappa), limit)


def _psnr_cell(row: FindingRow) -> TableCell:
    images = row.pictures
    if images is not None:
        guess = f"guess {format_decibel(images.guess)}; mean {format_number(row.psnr)}"
        return TableCell(format_decibel(images.median), guess)
    blind = finding_selection.blind_guess_psnr(row)
    if blind is None or row.psnr is None:
        guess = ""
    else:
        guess = f"mean; guess {format_number(blind)}"
    return TableCell(format_number(row.psnr), guess)


def _clear_pictures_cell(row: FindingRow) -> TableCell:
    images = row.pictures
    if images is None:
        return TableCell()
    extreme = (
        f"furthest above its guess: {format_decibel(images.best)}, guess "
        f"{format_decibel(images.best_guess)}"
    )
    return TableCell(f"{images.clear} of {images.n}", extreme)


def _identified_cell(row: FindingRow) -> TableCell:
    chance = row.identified_chance
    if chance is None:
        small = ""
    else:
        small = f"chance {format_share(chance)}"
    return TableCell(format_share(row.identified), small)


def _labels_cell(row: FindingRow) -> TableCell:
    chance = finding_selection.blind_label_rate(row)
    if chance is None or row.label_accuracy is None:
        blind = ""
    else:
        blind = f"blind {format_share(chance)}"
    return TableCell(format_share(row.label_accuracy), blind)


def _size_cell(row: FindingRow) -> TableCell:
    size = NONE if row.n is None else str(row.n)
    if row.worlds is None:
        return TableCell(size)
    if finding_selection.reads_transcripts(row):
        noun = "transcript"
    else:
        noun = "replay"
    plural = "" if row.worlds == 1 else "s"
    return TableCell(size, f"{row.worlds} {noun}{plural}")


def interval_text(interval: tuple[float, float] | None) -> str:
    if interval is None:
        return ""
    return f"{format_share(interval[0])} to {format_share(interval[1])}"


ATTACKER = Column("Attacker", "", False, lambda row: TableCell(wording.ADVERSARY[row.adversary][0]))
NOTE = Column("Note", "", False, lambda row: TableCell(row.note or NONE))
TRIALS = Column("n", "trials", True, _size_cell)
EPSILON = Column("ε", "at least", True, _epsilon_cell)
MEMBERSHIP = (
    ATTACKER,
    Column(
        "AUC",
        "50 % is chance level",
        True,
        lambda row: TableCell(format_share(row.auc), interval_text(row.auc_ci)),
    ),
    Column(
        "TPR at 0.1 % FPR",
        "members identified",
        True,
        lambda row: _tpr_cell(row.tpr_at_fpr, "0.001"),
    ),
    Column(
        "TPR at 1 % FPR", "members identified", True, lambda row: _tpr_cell(row.tpr_at_fpr, "0.01")
    ),
    Column(
        "TPR at 10 % FPR", "members identified", True, lambda row: _tpr_cell(row.tpr_at_fpr, "0.1")
    ),
    Column("TPR at 1 % FPR for each record", "mean over records", True, _tpr_per_record_cell),
    Column("Most exposed records", "identified at 0.1 % FPR", True, _exposure_cell),
    Column("Blind AUC", "control", True, lambda row: TableCell(format_share(row.blind_auc))),
    EPSILON,
    Column("n", "records", True, _size_cell),
    NOTE,
)
PICTURES = (
    ATTACKER,
    Column("PSNR ↑", "median", True, _psnr_cell),
    Column("Clear", "3 dB above every guess", True, _clear_pictures_cell),
    Column("SSIM ↑", "", True, lambda row: TableCell(format_number(row.ssim))),
    Column(
        "LPIPS ↓",
        "",
        True,
        lambda row: TableCell(format_number(row.lpips), (row.lpips_trunk or "").split(":")[0]),
    ),
    Column("Identified", "right record", True, _identified_cell),
    Column("Labels", "classes right", True, _labels_cell),
    TRIALS,
    NOTE,
)
GUARANTEE = (
    ATTACKER,
    EPSILON,
    Column("ε", "stated", True, lambda row: TableCell(format_number(row.epsilon_stated))),
    Column("κ", "largest move", True, _kappa_cell),
    TRIALS,
    NOTE,
)
QUESTIONS = (
    Question("t-membership", "Was this record used?", frozenset({"membership"}), MEMBERSHIP),
    Question(
        "t-pictures",
        "Can images and classes be reconstructed?",
        finding_selection.PICTURE_FAMILIES | {"label"},
        PICTURES,
    ),
    Question("t-guarantee", "Does the stated guarantee hold?", frozenset({"guarantee"}), GUARANTEE),
)


def findings_by_question(findings: Iterable[FindingRow]) -> list[FindingsTable]:
    """Sort findings into tables.

    Args:
        findings: All of a run, in the order of its file.

    Returns:
        Tables on membership, images with labels, and guarantees; a question without findings has
        none, and a column that no row fills is left out.
    """
    rows = list(findings)
    tables = []
    for question in QUESTIONS:
        answers = [row for row in rows if row.family in question.families]
        if answers:
            tables.append(_table_of(question, answers))
    return tables


def _table_of(question: Question, rows: Sequence[FindingRow]) -> FindingsTable:
    columns = tuple(column for column in question.columns if _is_filled(column, rows))
    body = [(row, _cells(columns, row)) for row in rows]
    return FindingsTable(question.name, question.text, columns, tuple(body))


def _is_filled(column: Column, rows: Sequence[FindingRow]) -> bool:
    return any(column.cell(row) != TableCell() for row in rows)


def _cells(columns: Sequence[Column], row: FindingRow) -> tuple[TableCell, ...]:
    return tuple(column.cell(row) for column in columns)
