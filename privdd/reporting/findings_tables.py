"""All findings as three tables, one for each question: a table has only the columns that its question fills."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from privdd.reporting import words
from privdd.reporting.schema import FindingRow
from privdd.reporting.strongest import PICTURE_FAMILIES, blind_psnr, label_chance, of_transcripts
from privdd.reporting.words import NONE, decibel, number, share


@dataclass(frozen=True)
class TableCell:
    """A value in words, and what stands below it in small print; numeric cells are set to the right."""

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
class FindingsTable:
    """One question: (row, its cells) in the order of the file; columns are those that any row fills."""

    name: str
    question: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[FindingRow, tuple[TableCell, ...]], ...]


def tables(findings: Iterable[FindingRow]) -> list[FindingsTable]:
    """Membership, pictures and labels, guarantee; a question without findings has no table."""
    rows = list(findings)
    asked = (
        ("t-membership", "Was this record used?", {"membership"}, MEMBERSHIP),
        ("t-pictures", "Can pictures and classes be rebuilt?", {*PICTURE_FAMILIES, "label"}, PICTURES),
        ("t-guarantee", "Does the stated limit hold?", {"guarantee"}, GUARANTEE),
    )
    made = (
        _table(name, question, columns, [r for r in rows if r.family in families])
        for name, question, families, columns in asked
    )
    return [one for one in made if one.rows]


def _table(name: str, question: str, columns: Sequence[Column], rows: Sequence[FindingRow]) -> FindingsTable:
    cells = [[column.cell(row) for column in columns] for row in rows]
    kept = [i for i in range(len(columns)) if any(line[i] != TableCell() for line in cells)]
    body = tuple((row, tuple(line[i] for i in kept)) for row, line in zip(rows, cells, strict=True))
    return FindingsTable(name, question, tuple(columns[i] for i in kept), body)


def _tpr(key: str) -> Callable[[FindingRow], TableCell]:
    def cell(row: FindingRow) -> TableCell:
        at = (row.tpr_at_fpr or {}).get(key)
        if at is None:
            return TableCell()
        return TableCell(share(at.tpr), _between(at.ci)) if at.resolvable else TableCell("too few")

    return cell


def _worst(row: FindingRow) -> TableCell:
    worst = row.worst_records
    if worst is None:
        return TableCell()
    return TableCell(share(worst.tpr), f"worst {share(worst.share)}; {_between(worst.ci)}")


def _epsilon(row: FindingRow) -> TableCell:
    if row.epsilon_measured is None:
        return TableCell()
    gaussian = ", if scores are Gaussian" if row.epsilon_validity == "gaussian_only" else ""
    return TableCell(number(row.epsilon_measured), (row.epsilon_method or "").replace("_", " ") + gaussian)


def _kappa(row: FindingRow) -> TableCell:
    return TableCell(number(row.kappa), "" if row.kappa_allowed is None else f"limit {number(row.kappa_allowed)}")


def _psnr(row: FindingRow) -> TableCell:
    blind = blind_psnr(row)
    if row.pictures is not None:
        return TableCell(decibel(row.pictures.median), f"guess {decibel(row.pictures.guess)}; mean {number(row.psnr)}")
    return TableCell(number(row.psnr), "" if blind is None or row.psnr is None else f"mean; guess {number(blind)}")


def _clear(row: FindingRow) -> TableCell:
    seen = row.pictures
    if seen is None:
        return TableCell()
    best = f"best {decibel(seen.best)}, closest guess {decibel(seen.best_guess)}"
    return TableCell(f"{seen.clear} of {seen.n}", best)


def _identified(row: FindingRow) -> TableCell:
    chance = "" if row.identified_chance is None else f"chance {share(row.identified_chance)}"
    return TableCell(share(row.identified), chance)


def _labels(row: FindingRow) -> TableCell:
    chance = label_chance(row)
    blind = "" if chance is None or row.label_accuracy is None else f"blind {share(chance)}"
    return TableCell(share(row.label_accuracy), blind)


def _size(row: FindingRow) -> TableCell:
    what = "transcript" if of_transcripts(row) else "replay"
    worlds = "" if row.worlds is None else f"{row.worlds} {what}{'s' if row.worlds != 1 else ''}"
    return TableCell(NONE if row.n is None else str(row.n), worlds)


def _between(interval: tuple[float, float] | None) -> str:
    return "" if interval is None else f"{share(interval[0])} to {share(interval[1])}"


ATTACKER = Column("Attacker", "", False, lambda row: TableCell(words.ADVERSARY[row.adversary][0]))
NOTE = Column("Note", "", False, lambda row: TableCell(row.note or NONE))
TRIALS = Column("n", "trials", True, _size)
EPSILON = Column("ε", "at least", True, _epsilon)
MEMBERSHIP = (
    ATTACKER,
    Column("AUC", "50 % is guessing", True, lambda row: TableCell(share(row.auc), _between(row.auc_ci))),
    Column("TPR at 0.1 % FPR", "members found", True, _tpr("0.001")),
    Column("TPR at 1 % FPR", "members found", True, _tpr("0.01")),
    Column("TPR at 10 % FPR", "members found", True, _tpr("0.1")),
    Column("Worst records", "at 0.1 % FPR", True, _worst),
    Column("Blind AUC", "control", True, lambda row: TableCell(share(row.blind_auc))),
    EPSILON,
    Column("n", "records", True, _size),
    NOTE,
)
PICTURES = (
    ATTACKER,
    Column("PSNR ↑", "median", True, _psnr),
    Column("Clear", "3 dB above every guess", True, _clear),
    Column("SSIM ↑", "", True, lambda row: TableCell(number(row.ssim))),
    Column("LPIPS ↓", "", True, lambda row: TableCell(number(row.lpips), (row.lpips_trunk or "").split(":")[0])),
    Column("Identified", "right record", True, _identified),
    Column("Labels", "classes right", True, _labels),
    TRIALS,
    NOTE,
)
GUARANTEE = (
    ATTACKER,
    EPSILON,
    Column("ε", "stated", True, lambda row: TableCell(number(row.epsilon_stated))),
    Column("κ", "largest move", True, _kappa),
    TRIALS,
    NOTE,
)
