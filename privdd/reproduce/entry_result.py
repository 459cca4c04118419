"""All that the page of an entry says, as one value that becomes results.json."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from privdd.cli.paper_rows import paper_of
from privdd.reporting.plots import Plot
from privdd.reproduce.entries import PaperEntry
from privdd.reproduce.feature_kinds import ExtraTable
from privdd.reproduce.fidelity_sheet import Difference, Uneven, differences, lasting, stand_in, uneven
from privdd.reproduce.paper_order import RowPair, Whole, kendall, leads, ordered, pair
from privdd.reproduce.plan_rows import PaperCell, settings_mark
from privdd.reproduce.row_results import RowResult
from privdd.reproduce.typed import Wish

SCHEMA = 1


@dataclass(frozen=True)
class TableColumn:
    """One column of the table. leader, order: None where fewer than two rows have a printed number and a result;
    tau, agree, pairs: Kendall's tau-b, pairs in the paper's order, pairs compared; said: what the text claims;
    target: the mean accuracy of the first row, for rounds and bytes to target."""

    name: str
    rows: tuple[RowResult, ...]
    leader: Whole | None
    order: Whole | None
    tau: tuple[float, int, int] | None
    said: tuple[tuple[str, RowPair], ...]
    target: float | None

    def as_json(self) -> dict[str, Any]:
        whole = {
            name: None if one is None else {"verdict": one.verdict, "p": one.p, "pairs": [_pair(p) for p in one.pairs]}
            for name, one in (("leader", self.leader), ("order", self.order))
        }
        tau = None if self.tau is None else dict(zip(("tau", "agree", "pairs"), self.tau, strict=True))
        said = [{"says": says, **_pair(found)} for says, found in self.said]
        rows = [_row(row, self.target) for row in self.rows]
        return {"column": self.name, "rows": rows, **whole, "kendall": tau, "text": said, "target": self.target}


@dataclass(frozen=True)
class Result:
    """An entry at a scale."""

    entry: PaperEntry
    asked: Wish
    source: str
    metric: str
    best: bool
    columns: tuple[TableColumn, ...]
    uneven: tuple[Uneven, ...]
    differences: tuple[Difference, ...]
    lasting: tuple[Mapping[str, str], ...]
    stand_in: str
    tables: tuple[ExtraTable, ...] = ()
    plots: tuple[Plot, ...] = ()  # beside the curves; on the page alone

    def as_json(self) -> dict[str, Any]:
        return {
            "schema": SCHEMA, "entry": self.entry.name, "shows": self.entry.shows, "source": self.source,
            "scale": self.asked.scale, "seeds": list(self.asked.seeds), "command": self.asked.command,
            "device": self.asked.device, "settings": settings_mark(self.entry.name, self.asked.scale, self.asked.device),
            "metric": self.metric, "best_of_rounds": self.best, "stand_in": self.stand_in,
            "columns": [column.as_json() for column in self.columns],
            "uneven": [asdict(one) for one in self.uneven],
            "fidelity": [{**asdict(one), "direction": one.direction} for one in self.differences],
            "at_every_scale": [dict(one) for one in self.lasting],
            "tables": [asdict(one) for one in self.tables],
        }  # fmt: skip


def _pair(found: RowPair) -> dict[str, Any]:
    return {**asdict(found), "verdict": found.verdict}


def _row(row: RowResult, target: float | None) -> dict[str, Any]:
    return {
        "row": row.cell.row, "paper": row.cell.printed, "mean": row.mean, "spread": row.spread,
        "by_seed": {str(seed): value for seed, value in zip(row.curves, row.accuracies, strict=True)},
        "curve": list(row.curve), "uploaded": list(row.uploaded), "downloaded": list(row.downloaded),
        "rounds_to_target": None if target is None else row.first_round(target),
        "bytes_to_target": None if target is None else row.bytes_to(target),
        "diverged": row.diverged, "failed": {str(k): v for k, v in (row.failed or {}).items()},
        "overrides": list(row.cell.overrides),
    }  # fmt: skip


def result(
    entry: PaperEntry,
    asked: Wish,
    made: Sequence[PaperCell],
    rows: Sequence[RowResult],
    tables: Sequence[ExtraTable] = (),
    plots: Sequence[Plot] = (),
) -> Result:
    """Compare. Rows without all seeds take no part in what is said about the order."""
    paper = paper_of(entry.experiment)
    names = dict.fromkeys(cell.column for cell in made)
    columns = tuple(
        _column(entry, name, [r for r in rows if r.cell.column == name], len(asked.seeds)) for name in names
    )
    return Result(
        entry, asked, paper["source"], paper["metric"], paper["best"], columns, tuple(uneven(entry, asked.scale, made)),
        tuple(differences(entry, made)), tuple(lasting(entry)), stand_in(entry, asked.scale), tuple(tables), tuple(plots),
    )  # fmt: skip


def _column(entry: PaperEntry, name: str, rows: Sequence[RowResult], seeds: int) -> TableColumn:
    whole = {r.cell.row: r for r in rows if len(r.curves) == seeds}
    ours = {row: r.accuracies for row, r in whole.items()}
    printed = {row: r.cell.printed for row, r in whole.items() if r.cell.printed is not None}
    said = tuple(
        (one.says, pair(one.better, one.worse, ours)) for one in entry.ahead if one.better in ours and one.worse in ours
    )
    target = rows[0].mean
    if len({*printed.values()}) < 2:
        return TableColumn(name, tuple(rows), None, None, None, said, target)
    return TableColumn(
        name, tuple(rows), leads(printed, ours), ordered(printed, ours), kendall(printed, ours), said, target
    )
