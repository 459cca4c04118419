"""What the trainings of an entry came to, compared with the paper, as one value that becomes
results.json.

Each sentence of a paper that puts rows in order has a verdict of its own (``sentences``). Every row
of a column is trained with the same seeds (the same partition and test records), so differences
are taken seed by seed. Settings that are not the paper's are found by comparing each
row's config with the same row at preset=paper on the paper's own data; what differs at every scale
is listed in the folder ``papers``. Directions are judgements, not measurements. Rows of one column
that are on unequal terms are named with the reason that the experiment gives."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
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
from privdd.cli.sweeps import short_digest
from privdd.distillation.diagnostics import DistillationDiagnostics, diagnose_first_round
from privdd.distillation.private_matching import GRADIENT_QUERY
from privdd.federated.experiment import Experiment
from privdd.models import projected_shape
from privdd.reporting.comparison import read_training_record
from privdd.reporting.plots import Plot
from privdd.reproduce.catalogue import (
    ACCURACY,
    SPEED,
    PaperEntry,
    ReproduceArguments,
    Sentence,
    differences_at_scale,
    paper_details,
)
from privdd.reproduce.catalogue_table import describe_stand_in
from privdd.reproduce.code_digest import line_staleness
from privdd.reproduce.sentences import OrderStatement, RowPair, p_value
from privdd.reproduce.train import (
    FINISHED_FILE,
    PaperCell,
    describe_steps,
    full_scale_cell,
    pairs_digest,
    read_code,
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
    ("algo.server", "shorter training on the server: lower if it trains"),
    ("algo.generator", "a smaller generator: lower for FedFed"),
    ("algo.distill", "shorter distillation: lower for FedFed"),
    ("model", "a smaller network: lower for all"),
    ("algo.model", "a smaller network: lower for all"),
    ("partition", "other clients"),
)
UNKNOWN = "unknown"
UNSAID = "no reason is given: do not compare this row with the others"
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
    diverged: how many seeds ended without a model; commits, codes: of the code that trained it
        (``training_code``); limit, distillation: see ``limit_rows``; base: see ``gain_over``."""

    cell: PaperCell
    best: bool
    curves: Mapping[int, tuple[float, ...]]
    uploaded: tuple[float, ...] = ()
    downloaded: tuple[float, ...] = ()
    failed: Mapping[int, str] | None = None
    diverged: int = 0
    commits: tuple[str, ...] = ()
    codes: tuple[str, ...] = ()
    limit: str = ""
    distillation: DistillationDiagnostics | None = None
    base: RowResult | None = None

    @property
    def accuracies(self) -> tuple[float, ...]:
        """By seed: the last round's, or the best of all where the paper reports that."""
        return tuple(max(curve) if self.best else curve[-1] for curve in self.curves.values())

    @property
    def speeds(self) -> tuple[float, ...]:
        """By seed: mean accuracy over all rounds."""
        return tuple(float(np.mean(curve)) for curve in self.curves.values())

    def values_by(self, measure: str) -> tuple[float, ...]:
        """``ACCURACY`` or ``SPEED`` by seed; of a gain, what is above the base's."""
        values = self.accuracies
        if measure == SPEED:
            values = self.speeds
        if self.base is None:
            return values
        bases = self.base.values_by(measure)
        return tuple(ours - theirs for ours, theirs in zip(values, bases, strict=True))

    def gain_over(self, base: RowResult) -> RowResult:
        """This row, compared by how far it is above ``base``, seed by seed."""
        return replace(self, base=base, limit=self.limit or base.limit)

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
        codes=tuple(sorted({read_code(path) for path in ended.values()})),
    )


def _sum_counts(counts: Mapping[str, Any]) -> int:
    """Bytes of all surfaces of a round."""
    return sum(int(count) for count in counts.values())


def _read_traffic(path: Path) -> list[np.ndarray]:
    """Bytes that one client has sent, and received, up to each round, mean over all clients. Raises
    DamagedRun."""
    manifest = read_json(RunFolder(path).manifest_file)
    record = read_json(path / FINISHED_FILE)
    sums = []
    try:
        for name in ("uploaded", "downloaded"):
            by_round = [_sum_counts(counts) for counts in manifest[f"{name}_bytes"]]
            total = np.cumsum(by_round)
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


def is_at_chance(accuracies: Sequence[float], classes: int, tests: int) -> bool:
    """Whether the 95 % interval of the mean accuracy includes one in ``classes``, or lies below it.
    Its standard error is the larger of that over seeds and that of ``tests`` records."""
    mean = float(np.mean(accuracies))
    if len(accuracies) > 1:
        spread = float(np.std(accuracies, ddof=1)) / math.sqrt(len(accuracies))
    else:
        spread = 0.0
    return mean - 1.96 * max(spread, math.sqrt(mean * (1 - mean) / tests)) <= 1 / classes


def row_limit(row: RowResult, distillation: DistillationDiagnostics | None = None) -> str:
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
    if distillation is not None and distillation.moved is not None:
        return describe_small_movement(distillation.moved)
    return ""


def describe_small_movement(moved: float) -> str:
    """Why a row whose matching moves images by a share of their norm does not distil; "" if it
    does, or if nothing is matched on purpose."""
    if not 0 < moved < SAME_IMAGES:
        return ""
    return f"images are as they started: matching moves them by {100 * moved:.2g} % of their norm"


def limit_rows(rows: Sequence[RowResult]) -> list[RowResult]:
    """The rows with what their distillation does, and with what limits them. A row that matches
    nothing on purpose (T = 0) is not limited by that."""
    return [_limit_row(row) for row in rows]


def _limit_row(row: RowResult) -> RowResult:
    if not row.curves:
        return row
    experiment = _cell_experiment(row.cell.overrides)
    largest = max(experiment.shards, key=lambda shard: len(shard.train))
    distillation = diagnose_first_round(experiment.plan, largest)
    return replace(row, limit=row_limit(row, distillation), distillation=distillation)


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


def setting_differences(entry: PaperEntry, cells: Sequence[PaperCell]) -> list[SettingDifference]:
    """The differing settings of all cells, grouped by key and values. A copy of the model within a
    method is not named again."""
    differences: dict[tuple[str, str, str], list[str]] = {}
    values: dict[tuple[str, str, str], tuple[Any, Any]] = {}
    for cell in cells:
        ours = flat_settings_of(cell.overrides)
        theirs = flat_settings_of(full_scale_cell(entry, cell).overrides)
        for key in sorted({*ours, *theirs}):
            here = ours.get(key)
            their_value = theirs.get(key)
            if here != their_value and not _is_model_copy(key, ours, here):
                mark = (key, repr(here), repr(their_value))
                values[mark] = (here, their_value)
                differences.setdefault(mark, []).append(cell.row)
    everyone = {cell.row for cell in cells}
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
    """What differs at every scale in this entry's experiment: what, paper, direction, and why the
    line may be out of date ("" if it is not)."""
    differences = []
    for deviation in paper_details()[entry.paper]["deviations"]:
        if entry.experiment in deviation.get("experiments", [entry.experiment]):
            parts = {part: deviation[part] for part in ("what", "paper", "direction")}
            differences.append(parts | {"stale": line_staleness(deviation)})
    return differences


@dataclass(frozen=True)
class UnevenRow:
    """One row that differs from most others of its column in one term."""

    column: str
    row: str
    term: str
    why: str


def find_uneven_rows(entry: PaperEntry, scale: str, cells: Sequence[PaperCell]) -> list[UnevenRow]:
    """Every row whose rounds, participation, network, data, local training or privacy are not those
    of the others."""
    differences = paper_block(entry.experiment)["differs"]
    here = differences_at_scale(scale)
    uneven = []
    for column in dict.fromkeys(cell.column for cell in cells):
        terms = {
            cell.row: terms_of_overrides(cell.overrides) for cell in cells if cell.column == column
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


def compare_pair(better: RowResult, worse: RowResult, by: str = ACCURACY) -> RowPair:
    """Both rows have the same seeds."""
    ours = better.values_by(by)
    theirs = worse.values_by(by)
    gain = float(np.mean(ours) - np.mean(theirs))
    limit = better.limit or worse.limit
    if not limit and ours == theirs:
        limit = "both rows have the same numbers for every seed"
    return RowPair(better.cell.row, worse.cell.row, gain, p_value(ours, theirs), limit)


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
    agree = 0
    compared = 0
    for i, j in itertools.combinations(range(len(rows)), 2):
        if a[i] != a[j]:
            compared += 1
            agree += np.sign(a[i] - a[j]) == np.sign(b[i] - b[j])
    tau = float(stats.kendalltau(a, b).statistic)
    if math.isnan(tau):
        tau = 0.0
    return tau, int(agree), compared


@dataclass(frozen=True)
class JudgedSentence:
    """A sentence with its pairs in one column.

    order: None if a row that it compares has not all its seeds; missing: those rows; settings:
    digest of its pairs with all their settings; code: of the code that trained them, "" if not
    known."""

    sentence: Sentence
    order: OrderStatement | None
    settings: str
    code: str
    missing: tuple[str, ...] = ()

    def as_json(self) -> dict[str, Any]:
        order = _statement_json(self.order) or {"verdict": "", "p": None, "pairs": []}
        return {
            "says": self.sentence.says,
            "by": self.sentence.by,
            "over": dict(self.sentence.bases),
            "settings": self.settings,
            "code": self.code,
            "missing": list(self.missing),
            **order,
        }


@dataclass(frozen=True)
class TableColumn:
    """One column of the table. sentences: of the paper, about this column; order: None where fewer
    than two rows have a printed number and a result;
    tau, agree, pairs: Kendall's tau-b, pairs in the paper's order, pairs compared;
    target: the mean accuracy of the first row, for rounds and bytes to target; steps: of
        distillation; settings: their digest."""

    name: str
    rows: tuple[RowResult, ...]
    sentences: tuple[JudgedSentence, ...]
    order: OrderStatement | None
    tau: tuple[float, int, int] | None
    target: float | None
    steps: str = ""
    settings: str = ""

    @property
    def commits(self) -> list[str]:
        """Of the code that trained its rows."""
        return sorted({commit for row in self.rows for commit in row.commits})

    @property
    def code(self) -> str:
        return join_codes(self.rows)

    def as_json(self) -> dict[str, Any]:
        return {
            "column": self.name,
            "rows": [_row_json(row, self.target) for row in self.rows],
            "sentences": [sentence.as_json() for sentence in self.sentences],
            "order": _statement_json(self.order),
            "kendall": self.tau and dict(zip(("tau", "agree", "pairs"), self.tau, strict=True)),
            "target": self.target,
            "commits": self.commits,
            "steps": self.steps,
            "settings": self.settings,
            "code": self.code,
        }


def join_codes(rows: Iterable[RowResult]) -> str:
    """One digest of the code that trained several rows, "" if that of one is not known."""
    codes: set[str] = set()
    for row in rows:
        codes |= {*(row.codes or ("",))}
    if "" in codes:
        return ""
    return short_digest(codes)


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


def _statement_json(statement: OrderStatement | None) -> dict[str, Any] | None:
    if statement is None:
        return None
    pairs = [
        {**asdict(pair), "holm": adjusted, "verdict": verdict}
        for pair, adjusted, verdict in zip(
            statement.pairs, statement.adjusted, statement.pair_verdicts, strict=True
        )
    ]
    return {"verdict": statement.verdict, "p": statement.p, "pairs": pairs}


def _values_by_seed(row: RowResult, by: str) -> dict[str, float]:
    values = zip(row.curves, row.values_by(by), strict=True)
    return {str(seed): value for seed, value in values}


def _row_json(row: RowResult, target: float | None) -> dict[str, Any]:
    return {
        "row": row.cell.row,
        "paper": row.cell.printed,
        "mean": row.mean,
        "spread": row.spread,
        "by_seed": _values_by_seed(row, ACCURACY),
        "speed_by_seed": _values_by_seed(row, SPEED),
        "codes": list(row.codes),
        "curve": list(row.curve),
        "uploaded": list(row.uploaded),
        "downloaded": list(row.downloaded),
        "rounds_to_target": None if target is None else row.first_round(target),
        "bytes_to_target": None if target is None else row.bytes_to(target),
        "limit": row.limit,
        "distillation": row.distillation and asdict(row.distillation),
        "diverged": row.diverged,
        "failed": {str(k): v for k, v in (row.failed or {}).items()},
        "overrides": list(row.cell.overrides),
    }


def compare_entry(
    entry: PaperEntry,
    arguments: ReproduceArguments,
    cells: Sequence[PaperCell],
    rows: Sequence[RowResult],
    tables: Sequence[ExtraTable],
    plots: Sequence[Plot],
) -> EntryResult:
    """Compare. Rows without all seeds take no part in what is said about the order."""
    paper = paper_block(entry.experiment)
    columns = []
    for name in dict.fromkeys(cell.column for cell in cells):
        rows_of_column = [row for row in rows if row.cell.column == name]
        columns.append(_compare_column(entry, name, rows_of_column, len(arguments.seeds)))
    return EntryResult(
        entry,
        arguments,
        paper["source"],
        paper["metric"],
        paper["best"],
        tuple(columns),
        tuple(find_uneven_rows(entry, arguments.scale, cells)),
        tuple(setting_differences(entry, cells)),
        tuple(lasting_differences(entry)),
        describe_stand_in(entry, arguments.scale),
        tuple(tables),
        tuple(plots),
    )


def _compare_column(
    entry: PaperEntry, name: str, rows: Sequence[RowResult], seeds: int
) -> TableColumn:
    complete = {r.cell.row: r for r in rows if len(r.curves) == seeds}
    printed = [row for row in complete.values() if row.cell.printed is not None]
    cells = [row.cell for row in rows]
    judgements = (_judge_sentence(text, cells, complete) for text in entry.sentences)
    order = None
    tau = None
    if len({row.cell.printed for row in printed}) > 1:
        order = order_statement(printed)
        tau = kendall_tau(printed)
    return TableColumn(
        name,
        tuple(rows),
        tuple(judgement for judgement in judgements if judgement is not None),
        order,
        tau,
        rows[0].mean,
        describe_steps([cell.overrides for cell in cells]),
        settings_digest(cells),
    )


def _judge_sentence(
    sentence: Sentence, cells: Sequence[PaperCell], complete: Mapping[str, RowResult]
) -> JudgedSentence | None:
    """None if the sentence is not about this column."""
    pairs = sentence.pairs_among([cell.row for cell in cells])
    if not pairs:
        return None
    named = sentence.compared_rows(pairs)
    missing = tuple(row for row in named if row not in complete)
    settings = pairs_digest(cells, pairs, sentence.by, sentence.bases)
    if missing:
        return JudgedSentence(sentence, None, settings, "", missing)
    gains = {row: complete[row].gain_over(complete[base]) for row, base in sentence.bases.items()}
    rows = {**complete, **gains}
    compared = [compare_pair(rows[better], rows[worse], sentence.by) for better, worse in pairs]
    order = OrderStatement(tuple(compared))
    return JudgedSentence(sentence, order, settings, join_codes(complete[row] for row in named))
