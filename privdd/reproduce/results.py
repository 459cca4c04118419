"""What the trainings of an entry came to, compared with the paper, as one value that becomes
results.json.

Does the paper's order hold? Every row of a column is trained with the same seeds (the same
partition and test records), so differences are taken seed by seed. A statement about several pairs
at once ("FedDM is ahead of all others") holds at level p only if each pair does: its p is the
largest of theirs (the intersection-union test, Berger 1982), which needs no correction for their
number. That it does not hold takes one pair alone, so that pair must be reversed at level p over
the number of pairs (Bonferroni). Settings that are not the paper's are found by comparing each
row's config with the same row at preset=paper on the paper's own data; what differs at every scale
is listed in the folder ``papers``. Directions are judgements, not measurements. Rows of one column
that are on unequal terms are named with the reason that the experiment gives."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

from attacks.types import Surface
from privdd.cli.paper_block import paper_block
from privdd.cli.paper_rows import (
    build_row_experiment,
    find_differing_terms,
    flat_settings_of,
    stated_difference,
    terms_of_overrides,
)
from privdd.distillation.private_matching import GRADIENT_QUERY
from privdd.federated.experiment import Experiment
from privdd.models import projected_shape
from privdd.reporting.comparison import read_training_record
from privdd.reporting.plots import Plot
from privdd.reproduce.catalogue import (
    PaperEntry,
    ReproduceArguments,
    differences_at_scale,
    paper_details,
)
from privdd.reproduce.catalogue_table import describe_stand_in
from privdd.reproduce.train import (
    FINISHED_FILE,
    STEPS,
    PaperCell,
    describe_steps,
    full_scale_cell,
    read_commit,
    settings_digest,
)
from privdd.runtime.files import SCHEMA, DamagedRun, read_json
from privdd.runtime.run_folder import RunFolder

DIRECTIONS = (  # start of a key -> which way it is likely to push, most particular first
    ("data.name", "another task: numbers are not comparable, the order may be"),
    ("data.source", "another task: numbers are not comparable, the order may be"),
    ("data.size", "smaller images: lower for all"),
    ("data.limit", "fewer records: lower for all, least for methods that share data"),
    ("data.test_limit", "coarser accuracies"),
    ("data.corruptions", "fewer domains: easier for all"),
    ("algo.rounds", "fewer rounds: lower, most for methods that average models"),
    ("algo.base.rounds", "fewer rounds: lower, most for methods that average models"),
    ("algo.matching", "a coarser match: lower where distilled data are sent"),
    ("algo.virtual", "coarser virtual data: lower for all rows that train on them"),
    ("algo.server", "shorter training on the server: lower where it trains"),
    ("algo.generator", "a smaller generator: lower for FedFed"),
    ("algo.distill", "shorter distillation: lower for FedFed"),
    ("model", "a smaller network: lower for all"),
    ("algo.model", "a smaller network: lower for all"),
    ("partition", "other clients"),
)
UNKNOWN = "unknown"
UNSAID = "no reason is given: do not compare this row with the others"
LEVEL = 0.05
HOLDS = "holds"
HOLDS_IN_MEAN = "holds in the mean"
REVERSED = "reversed"
REVERSED_IN_MEAN = "reversed in the mean"
CANNOT_TELL = "cannot be told at this scale"
# of their norm: images that matching moves by less count as those that it started from
SAME_IMAGES = 0.02


@dataclass(frozen=True)
class ExtraTable:
    """A table beside an entry's accuracies."""

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str


@dataclass(frozen=True)
class RowResult:
    """One row of a column. curves: accuracy in [0, 1] after each round, by seed; uploaded,
    downloaded: (rounds,) bytes that one client sends and receives up to each round, mean over
        clients and seeds; failed: seed -> why, in a line;
    diverged: how many seeds ended without a model; commits: of the code that trained it; limit,
        moved: see ``limit_rows``."""

    cell: PaperCell
    best: bool
    curves: Mapping[int, tuple[float, ...]]
    uploaded: tuple[float, ...] = ()
    downloaded: tuple[float, ...] = ()
    failed: Mapping[int, str] | None = None
    diverged: int = 0
    commits: tuple[str, ...] = ()
    limit: str = ""
    moved: float | None = None

    @property
    def accuracies(self) -> tuple[float, ...]:
        """By seed: the last round's, or the best of all where the paper reports that."""
        return tuple(max(curve) if self.best else curve[-1] for curve in self.curves.values())

    @property
    def mean(self) -> float | None:
        if self.curves:
            return float(np.mean(self.accuracies))
        return None

    @property
    def spread(self) -> float | None:
        """Standard deviation over seeds (n - 1), None for fewer than two."""
        if len(self.curves) > 1:
            return float(np.std(self.accuracies, ddof=1))
        return None

    @property
    def curve(self) -> tuple[float, ...]:
        """Mean over seeds."""
        if self.curves:
            return tuple(float(v) for v in np.mean(list(self.curves.values()), axis=0))
        return ()

    def first_round(self, target: float) -> int | None:
        """The first round after which the mean accuracy is at least ``target``; None where it never
        is."""
        return next((index + 1 for index, value in enumerate(self.curve) if value >= target), None)

    def bytes_to(self, target: float) -> float | None:
        """Bytes that a client has uploaded by then."""
        first = self.first_round(target)
        return None if first is None else self.uploaded[first - 1]


def collect_results(
    cells: Sequence[PaperCell],
    seeds: Sequence[int],
    folder: Path,
    best: bool,
    failed: Mapping[Path, str],
) -> list[RowResult]:
    """The results of all cells, as their folders tell. Raises DamagedRun, one line, for a bad
    folder."""
    return [_collect_row(cell, seeds, folder, best, failed) for cell in cells]


def _collect_row(
    cell: PaperCell, seeds: Sequence[int], folder: Path, best: bool, failed: Mapping[Path, str]
) -> RowResult:
    paths = {seed: folder / cell.folder_name(seed) for seed in seeds}
    wrong = {seed: failed[path] for seed, path in paths.items() if path in failed}
    ended = {seed: path for seed, path in paths.items() if seed not in wrong}
    for path in ended.values():
        read_training_record(path)  # refuses what is no finished training
    finished = {seed: read_json(path / FINISHED_FILE) for seed, path in ended.items()}
    traffic = [_read_traffic(path) for path in ended.values()]
    if traffic:
        uploaded, downloaded = np.mean(traffic, axis=0).tolist()
    else:
        uploaded = ()
        downloaded = ()
    return RowResult(
        cell,
        best,
        curves={
            seed: tuple(map(float, record["accuracy_by_round"]))
            for seed, record in finished.items()
        },
        uploaded=tuple(uploaded),
        downloaded=tuple(downloaded),
        failed=wrong,
        diverged=sum(record["diverged"] is not None for record in finished.values()),
        commits=tuple(sorted({read_commit(path) for path in ended.values()})),
    )


def _read_traffic(path: Path) -> list[np.ndarray]:
    """Bytes that one client has sent, and received, up to each round, mean over all clients. Raises
    DamagedRun."""
    manifest = read_json(RunFolder(path).manifest_file)
    record = read_json(path / FINISHED_FILE)
    sums = []
    try:
        for name in ("uploaded", "downloaded"):
            total = np.cumsum(
                [sum(int(v) for v in counts.values()) for counts in manifest[f"{name}_bytes"]]
            )
            each = record[f"{name}_bytes_per_client"]
            sums.append(total * (each / total[-1] if total[-1] else 0.0))
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise DamagedRun(
            f"{RunFolder(path).manifest_file}: damaged ({' '.join(str(error).split())[:100]})"
        ) from None
    return sums


# What a scale is too small for: a verdict on such rows would be one on the scale, not on the paper.


@lru_cache(maxsize=8)
def _cell_experiment(overrides: tuple[str, ...]) -> Experiment:
    return build_row_experiment(overrides, 0)


def clipped_reach(experiment: Experiment) -> tuple[float, float] | None:
    """(clip norm x rate x steps / (1 - momentum), the furthest that the images of a class can move
    without their noise; the norm of their N(0, 1) start). None where no class's mean gradient is
    clipped."""
    plan = experiment.plan
    mechanism = experiment.plan.mechanisms.get(GRADIENT_QUERY)
    if mechanism is None or mechanism.per_record:
        return None
    method = plan.method
    shape = plan.problem.shape
    if (
        Surface.SYNTHETIC_REPRESENTATIONS in method.uploads.values()
    ):  # FedRD's images are of its projection's space
        shape = projected_shape(method.projection, shape)  # type: ignore[attr-defined]
    steps = method.matching  # type: ignore[attr-defined]
    reach = mechanism.clip_norm * steps.lr * steps.iterations / (1 - steps.momentum)  # type: ignore[attr-defined]
    return reach, math.sqrt(method.audit_hooks.images_per_class() * math.prod(shape))


def image_movement(experiment: Experiment) -> float:
    """How far matching moves the images of the client with most records in the first round, as a
    share of their norm."""
    plan = experiment.plan
    shard = max(experiment.shards, key=lambda one: len(one.train))
    method = plan.method
    sent = []
    still = replace(method, matching=replace(method.matching, iterations=0))  # type: ignore[attr-defined,type-var]
    for one in (still, method):
        broadcast = one.broadcast(one.init(plan.problem, plan.keys))
        ctx = plan.client_context(0, shard.client)
        upload = one.local(broadcast, {}, shard.client_data, ctx)[0]
        sent.append(
            next(upload[name] for name in ("images", "representations") if name in upload).value[
                "x"
            ]
        )
    return float((sent[1] - sent[0]).norm() / sent[0].norm())


def is_at_chance(accuracies: Sequence[float], classes: int, tests: int) -> bool:
    """Whether the 95 % interval of the mean accuracy includes one in ``classes``, or lies below it.
    Its standard error is the larger of that over seeds and that of ``tests`` records."""
    mean = float(np.mean(accuracies))
    if len(accuracies) > 1:
        spread = float(np.std(accuracies, ddof=1)) / math.sqrt(len(accuracies))
    else:
        spread = 0.0
    return mean - 1.96 * max(spread, math.sqrt(mean * (1 - mean) / tests)) <= 1 / classes


def row_limit(row: RowResult) -> str:
    """Why the numbers of this row say nothing; "" where they do."""
    if not row.curves:
        return ""
    experiment = _cell_experiment(row.cell.overrides)
    reach = clipped_reach(experiment)
    if reach is not None and reach[0] < reach[1]:
        return f"images can move by {reach[0]:.3g} and start at a norm of {reach[1]:.3g}"
    classes = experiment.dataset.classes
    tests = len(experiment.test_records)
    if is_at_chance(row.accuracies, classes, tests):
        return f"at chance: {100 * float(np.mean(row.accuracies)):.1f} % of {classes} classes"
    return ""


def limit_rows(rows: Sequence[RowResult]) -> list[RowResult]:
    """The rows with what limits them. Movement is measured beside a row of the same column in which
    nothing is matched."""
    steps = [flat_settings_of(row.cell.overrides).get(STEPS) for row in rows]
    still = {row.cell.column for row, count in zip(rows, steps, strict=True) if count == 0}
    return [
        replace(
            row,
            limit=row_limit(row),
            moved=_row_movement(row, count) if row.cell.column in still else None,
        )
        for row, count in zip(rows, steps, strict=True)
    ]


def _row_movement(row: RowResult, steps: int | None) -> float | None:
    if steps is None or not row.curves:
        return None
    if steps:
        return image_movement(_cell_experiment(row.cell.overrides))
    return 0.0


@dataclass(frozen=True)
class SettingDifference:
    """One setting. rows: those that it holds for, empty for all of them."""

    key: str
    ours: Any
    paper: Any
    rows: tuple[str, ...]

    @property
    def direction(self) -> str:
        return next((says for start, says in DIRECTIONS if self.key.startswith(start)), UNKNOWN)


def setting_differences(entry: PaperEntry, made: Sequence[PaperCell]) -> list[SettingDifference]:
    """The differing settings of all cells, grouped by key and values. A copy of the model within a
    method is not named again."""
    differences: dict[tuple[str, str, str], list[str]] = {}
    values: dict[tuple[str, str, str], tuple[Any, Any]] = {}
    for cell in made:
        ours = flat_settings_of(cell.overrides)
        theirs = flat_settings_of(full_scale_cell(entry, cell).overrides)
        for key in sorted({*ours, *theirs}):
            here = ours.get(key)
            their_value = theirs.get(key)
            if here != their_value and not _is_model_copy(key, ours, here):
                mark = (key, repr(here), repr(their_value))
                values[mark] = (here, their_value)
                differences.setdefault(mark, []).append(cell.row)
    everyone = {cell.row for cell in made}
    return [
        SettingDifference(
            mark[0], *values[mark], () if {*rows} == everyone else tuple(dict.fromkeys(rows))
        )
        for mark, rows in sorted(differences.items())
    ]


def _is_model_copy(key: str, settings: dict[str, Any], value: Any) -> bool:
    """algo.model.width, where it is model.width."""
    position = key.find(".model.")
    return position > 0 and settings.get(key[position + 1 :]) == value


def lasting_differences(entry: PaperEntry) -> list[dict[str, str]]:
    """What differs at every scale in this entry's experiment: what, paper, direction."""
    return [
        {part: deviation[part] for part in ("what", "paper", "direction")}
        for deviation in paper_details()[entry.paper]["deviations"]
        if entry.experiment in deviation.get("experiments", [entry.experiment])
    ]


@dataclass(frozen=True)
class UnevenRow:
    """One row that differs from most others of its column in one term."""

    column: str
    row: str
    term: str
    why: str


def find_uneven_rows(entry: PaperEntry, scale: str, made: Sequence[PaperCell]) -> list[UnevenRow]:
    """Every row whose rounds, participation, network, data, local training or privacy are not those
    of the others."""
    differences = paper_block(entry.experiment)["differs"]
    here = differences_at_scale(scale)
    uneven = []
    for column in dict.fromkeys(cell.column for cell in made):
        terms = {
            cell.row: terms_of_overrides(cell.overrides) for cell in made if cell.column == column
        }
        for term, rows in find_differing_terms(terms).items():
            for row in (name for name in terms if name in rows):
                why = (
                    stated_difference(differences, term, row)
                    or stated_difference(here, term, row)
                    or UNSAID
                )
                uneven.append(UnevenRow(column, row, term, why))
    return uneven


@dataclass(frozen=True)
class RowPair:
    """better, worse: rows as the paper orders them; gain: mean of better - worse here; p:
    one-sided, None for one seed;
    limit: why the comparison says nothing at this scale, "" where it does."""

    better: str
    worse: str
    gain: float
    p: float | None
    limit: str = ""

    def verdict_among(self, pairs: int) -> str:
        """The verdict where this is one of so many pairs, any of which would refute a statement."""
        if self.limit:
            return CANNOT_TELL
        if self.p is not None and self.p <= LEVEL:
            return HOLDS
        if self.p is not None and 1 - self.p <= LEVEL / pairs:
            return REVERSED
        return HOLDS_IN_MEAN if self.gain > 0 else REVERSED_IN_MEAN


@dataclass(frozen=True)
class OrderStatement:
    """A statement about several pairs. p: the largest of theirs, None where one has none."""

    pairs: tuple[RowPair, ...]

    @property
    def p(self) -> float | None:
        values = [pair.p for pair in self.pairs]
        if None in values or not values:
            return None
        return max(v for v in values if v is not None)

    @property
    def verdict(self) -> str:
        kinds = {pair.verdict_among(len(self.pairs)) for pair in self.pairs}
        ranked = (REVERSED, CANNOT_TELL, REVERSED_IN_MEAN, HOLDS_IN_MEAN, HOLDS)
        if kinds:
            return next(kind for kind in ranked if kind in kinds)
        return ""


def p_value(better: Sequence[float], worse: Sequence[float]) -> float | None:
    """One-sided paired t-test (Student 1908): the chance of such a gain if there were none; None
    with one seed."""
    gains = np.asarray(better, dtype=float) - np.asarray(worse, dtype=float)
    if len(gains) < 2:
        return None
    spread = gains.std(ddof=1)
    if spread < 1e-12:  # every seed agrees to the last digit
        if abs(gains.mean()) < 1e-12:
            return 0.5
        return float(gains.mean() < 0)
    return float(stats.t.sf(gains.mean() * math.sqrt(len(gains)) / spread, len(gains) - 1))


def pair_limit(a: RowResult, b: RowResult) -> str:
    """Why a comparison of the two says nothing; "" where it does."""
    if a.limit or b.limit:
        return a.limit or b.limit
    if a.accuracies == b.accuracies:
        return "both rows have the same numbers for every seed"
    moved = [row.moved for row in (a, b) if row.moved is not None]
    if len(moved) == 2 and max(moved) < SAME_IMAGES:
        return (
            f"both rows hold the same images: matching moves them by {100 * max(moved):.1f} % "
            "of their norm"
        )
    return ""


def compare_pair(better: RowResult, worse: RowResult) -> RowPair:
    """Both rows have the same seeds."""
    ours = better.accuracies
    theirs = worse.accuracies
    gain = float(np.mean(ours) - np.mean(theirs))
    return RowPair(
        better.cell.row, worse.cell.row, gain, p_value(ours, theirs), pair_limit(better, worse)
    )


def leader_statement(rows: Sequence[RowResult]) -> OrderStatement:
    """Is the row that leads in the paper ahead of every other one? rows: those with a printed
    number."""
    best = max(rows, key=_printed_accuracy)
    return OrderStatement(tuple(compare_pair(best, row) for row in rows if row is not best))


def order_statement(rows: Sequence[RowResult]) -> OrderStatement:
    """Is the whole order the paper's? Neighbours decide it; rows that the paper prints equal are
    not compared."""
    ranked = sorted(rows, key=_printed_accuracy, reverse=True)
    pairs = [
        compare_pair(a, b)
        for a, b in itertools.pairwise(ranked)
        if _printed_accuracy(a) > _printed_accuracy(b)
    ]
    return OrderStatement(tuple(pairs))


def _printed_accuracy(row: RowResult) -> float:
    return row.cell.printed or 0.0


def kendall_tau(rows: Sequence[RowResult]) -> tuple[float, int, int]:
    """(tau-b of the printed and our mean accuracies (Kendall 1945), pairs in the paper's order,
    pairs compared)."""
    a = np.array([_printed_accuracy(r) for r in rows])
    b = np.array([r.mean for r in rows])
    signs = [
        np.sign(a[i] - a[j]) * np.sign(b[i] - b[j])
        for i, j in itertools.combinations(range(len(rows)), 2)
        if a[i] != a[j]
    ]
    agree = sum(1 for s in signs if s > 0)
    tau = stats.kendalltau(a, b).statistic
    return (0.0 if math.isnan(tau) else float(tau)), agree, len(signs)


@dataclass(frozen=True)
class TableColumn:
    """One column of the table. leader, order: None where fewer than two rows have a printed number
    and a result;
    tau, agree, pairs: Kendall's tau-b, pairs in the paper's order, pairs compared; said: what the
        text claims;
    target: the mean accuracy of the first row, for rounds and bytes to target; steps: of
        distillation; settings: their digest."""

    name: str
    rows: tuple[RowResult, ...]
    leader: OrderStatement | None
    order: OrderStatement | None
    tau: tuple[float, int, int] | None
    said: tuple[tuple[str, RowPair], ...]
    target: float | None
    steps: str = ""
    settings: str = ""

    @property
    def commits(self) -> list[str]:
        """Of the code that trained its rows."""
        return sorted({commit for row in self.rows for commit in row.commits})

    def as_json(self) -> dict[str, Any]:
        return {
            "column": self.name,
            "rows": [_row_json(row, self.target) for row in self.rows],
            "leader": _statement_json(self.leader),
            "order": _statement_json(self.order),
            "kendall": self.tau and dict(zip(("tau", "agree", "pairs"), self.tau, strict=True)),
            "text": [
                {"says": says, **_pair_json(pair, len(self.said))} for says, pair in self.said
            ],
            "target": self.target,
            "commits": self.commits,
            "steps": self.steps,
            "settings": self.settings,
        }


@dataclass(frozen=True)
class EntryResult:
    """An entry at a scale."""

    entry: PaperEntry
    asked: ReproduceArguments
    source: str
    metric: str
    best: bool
    columns: tuple[TableColumn, ...]
    uneven: tuple[UnevenRow, ...]
    differences: tuple[SettingDifference, ...]
    lasting: tuple[Mapping[str, str], ...]
    stand_in: str
    tables: tuple[ExtraTable, ...] = ()
    plots: tuple[Plot, ...] = ()  # beside the curves; on the page alone

    def as_json(self) -> dict[str, Any]:
        return {
            "schema": SCHEMA,
            "entry": self.entry.name,
            "shows": self.entry.shows,
            "source": self.source,
            "scale": self.asked.scale,
            "seeds": list(self.asked.seeds),
            "command": self.asked.command,
            "device": self.asked.device,
            "metric": self.metric,
            "best_of_rounds": self.best,
            "stand_in": self.stand_in,
            "columns": [column.as_json() for column in self.columns],
            "uneven": [asdict(part) for part in self.uneven],
            "fidelity": [
                {**asdict(part), "direction": part.direction} for part in self.differences
            ],
            "at_every_scale": [dict(part) for part in self.lasting],
            "tables": [asdict(part) for part in self.tables],
        }


def _pair_json(pair: RowPair, pairs: int) -> dict[str, Any]:
    return {**asdict(pair), "verdict": pair.verdict_among(pairs)}


def _statement_json(statement: OrderStatement | None) -> dict[str, Any] | None:
    if statement is None:
        return None
    return {
        "verdict": statement.verdict,
        "p": statement.p,
        "pairs": [_pair_json(pair, len(statement.pairs)) for pair in statement.pairs],
    }


def _row_json(row: RowResult, target: float | None) -> dict[str, Any]:
    return {
        "row": row.cell.row,
        "paper": row.cell.printed,
        "mean": row.mean,
        "spread": row.spread,
        "by_seed": {
            str(seed): value for seed, value in zip(row.curves, row.accuracies, strict=True)
        },
        "curve": list(row.curve),
        "uploaded": list(row.uploaded),
        "downloaded": list(row.downloaded),
        "rounds_to_target": None if target is None else row.first_round(target),
        "bytes_to_target": None if target is None else row.bytes_to(target),
        "limit": row.limit,
        "moved": row.moved,
        "diverged": row.diverged,
        "failed": {str(k): v for k, v in (row.failed or {}).items()},
        "overrides": list(row.cell.overrides),
    }


def compare_entry(
    entry: PaperEntry,
    asked: ReproduceArguments,
    made: Sequence[PaperCell],
    rows: Sequence[RowResult],
    tables: Sequence[ExtraTable],
    plots: Sequence[Plot],
) -> EntryResult:
    """Compare. Rows without all seeds take no part in what is said about the order."""
    paper = paper_block(entry.experiment)
    names = dict.fromkeys(cell.column for cell in made)
    columns = tuple(
        _compare_column(entry, name, [r for r in rows if r.cell.column == name], len(asked.seeds))
        for name in names
    )
    return EntryResult(
        entry,
        asked,
        paper["source"],
        paper["metric"],
        paper["best"],
        columns,
        tuple(find_uneven_rows(entry, asked.scale, made)),
        tuple(setting_differences(entry, made)),
        tuple(lasting_differences(entry)),
        describe_stand_in(entry, asked.scale),
        tuple(tables),
        tuple(plots),
    )


def _compare_column(
    entry: PaperEntry, name: str, rows: Sequence[RowResult], seeds: int
) -> TableColumn:
    complete = {r.cell.row: r for r in rows if len(r.curves) == seeds}
    printed = [row for row in complete.values() if row.cell.printed is not None]
    statements = tuple(
        (order.says, compare_pair(complete[order.better], complete[order.worse]))
        for order in entry.ahead
        if order.better in complete and order.worse in complete
    )
    cells = [row.cell for row in rows]
    target = rows[0].mean
    compared = len({row.cell.printed for row in printed}) > 1
    return TableColumn(
        name,
        tuple(rows),
        leader_statement(printed) if compared else None,
        order_statement(printed) if compared else None,
        kendall_tau(printed) if compared else None,
        statements,
        target,
        describe_steps([cell.overrides for cell in cells]),
        settings_digest(cells),
    )
