"""What the trainings of an entry came to, compared with the paper, as one value that becomes results.json.

Does the paper's order hold? Every row of a column is trained with the same seeds (the same partition and test records), so
differences are taken seed by seed. A statement about several pairs at once ("FedDM is ahead of all others") holds at level p
only if each pair does: its p is the largest of theirs (the intersection-union test, Berger 1982), which needs no correction
for their number. Settings that are not the paper's are found by comparing each row's config with the same row at preset=paper
on the paper's own data; what differs at every scale is listed in the folder ``papers``. Directions are judgements, not
measurements. Rows of one column that are on unequal terms are named with the reason that the experiment gives.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy import stats
from torch import Tensor

from attacks.images import psnr
from privdd.cli.paper_rows import (
    build_row_experiment,
    find_differing_terms,
    flat_settings_of,
    paper_block,
    stated_difference,
    terms_of_overrides,
)
from privdd.core.types import Records, State
from privdd.federated.experiment import Experiment
from privdd.federated.simulation import run_round, start_training
from privdd.models import build, initial
from privdd.reporting.comparison import read_training_record
from privdd.reporting.page import Plot
from privdd.reproduce.catalogue import PaperEntry, ReproduceArguments, differences_at_scale, paper_details
from privdd.reproduce.train import PaperCell, describe_steps, full_scale_cell, read_commit, settings_digest
from privdd.runtime.files import DamagedRun, read_json, write_json
from privdd.runtime.run_folder import RunFolder
from privdd.training.server import ServerTraining, train_on_records
from privdd.training.sgd import evaluate_model

# FedFed's figure 17 and table 12: what x, x_s and x_r = q(x) are good for, and how alike they are.
#
# Phase A is run as in the method; then one classifier is trained on each kind of input and tested on all three. How long
# the paper trains them is not stated: here, ``EPOCHS`` epochs.


FEATURE_KINDS = ("x", "x_s", "x_r")
PRINTED_PSNR = {"x_r": 31.47, "x_s": 18.87}  # table 12
EPOCHS = 15
CHUNK = 512


@dataclass(frozen=True)
class ExtraTable:
    """A table beside an entry's accuracies."""

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str


AnalysisOutput = tuple[list[ExtraTable], list[Plot]]  # what an analysis adds to the page of an entry


def feature_tables(cells: Sequence[PaperCell], seeds: Sequence[int], folder: Path) -> list[ExtraTable]:
    """The tables of the first cell over seeds; earlier measurements are read from ``folder``."""
    found = []
    for seed in seeds:
        file = folder / f"feature-kinds-{cells[0].folder_name(seed)}.json"
        if not file.is_file():
            write_json(file, measure_feature_kinds(build_row_experiment(cells[0].overrides, seed)))
        found.append(read_json(file))
    return [_accuracy_table(found), _psnr_table(found)]


def measure_feature_kinds(experiment: Experiment) -> dict[str, dict[str, float]]:
    """ "psnr": kind -> dB to x; "trained on KIND": kind tested on -> accuracy in [0, 1]."""
    split = train_feature_map(experiment)
    train = join_records([shard.train for shard in experiment.shards])
    kinds, tests = split_records(train, split), split_records(experiment.test_records, split)
    likeness = {kind: float(psnr(tests[kind].x, tests["x"].x).mean()) for kind in FEATURE_KINDS[1:]}
    return {"psnr": likeness} | {
        f"trained on {kind}": _train_and_test(experiment, kinds[kind], tests) for kind in FEATURE_KINDS
    }


def train_feature_map(experiment: Experiment) -> Callable[[Tensor], Tensor]:
    """x -> x_s of the generator that phase A ends with."""
    plan, progress = experiment.plan, start_training(experiment.plan, experiment.new_ledger())
    for _ in range(plan.method.distill_rounds):  # type: ignore[attr-defined]
        progress, _, _ = run_round(plan, progress, experiment.shards, experiment.engine)
    return plan.method.audit_hooks.maps(plan.method.broadcast(progress.server), {}, plan.problem)["feature"]


def join_records(parts: Sequence[Records]) -> Records:
    return Records(torch.cat([p.x for p in parts]), torch.cat([p.y for p in parts]), torch.cat([p.ids for p in parts]))


def split_records(records: Records, split: Callable[[Tensor], Tensor]) -> Mapping[str, Records]:
    """The same records as x, x_s and x - x_s."""
    with torch.no_grad():
        sensitive = torch.cat([split(part) for part in records.x.split(CHUNK)])
    inputs = {"x": records.x, "x_s": sensitive, "x_r": records.x - sensitive}
    return {kind: Records(x, records.y, records.ids) for kind, x in inputs.items()}


def _train_and_test(experiment: Experiment, records: Records, tests: Mapping[str, Records]) -> dict[str, float]:
    data, keys = experiment.dataset, experiment.plan.keys.fold("feature kinds")
    spec = experiment.plan.method.base.model  # type: ignore[attr-defined]
    model = build(spec, data.shape, data.classes)
    state: State = initial(spec, data.shape, data.classes, keys.fold("init").torch())
    training = ServerTraining(epochs=EPOCHS, batch_size=64, lr=0.02, momentum=0.9)
    state = train_on_records(model, state, records, training, keys.fold("order").torch())
    return {kind: evaluate_model(model, state, tests[kind])[0] for kind in FEATURE_KINDS}


def format_spread(values: Sequence[float], factor: float = 1.0, digits: int = 1) -> str:
    """ "12.3 ± 0.4", the mean and the standard deviation (n - 1) of values times factor; of one value no deviation, and
    "–" where none is known (NaN)."""
    values = [value for value in values if not math.isnan(value)]
    if not values:
        return "–"
    more = f" ± {factor * float(np.std(values, ddof=1)):.{digits}f}" if len(values) > 1 else ""
    return f"{factor * float(np.mean(values)):.{digits}f}{more}"


def _accuracy_table(found: Sequence[Mapping[str, Mapping[str, float]]]) -> ExtraTable:
    rows = tuple(
        (kind, *(format_spread([one[f"trained on {kind}"][test] for one in found], 100) for test in FEATURE_KINDS))
        for kind in FEATURE_KINDS
    )
    return ExtraTable(
        "Figure 17: trained on the row, tested on the column (accuracy in percent)",
        ("trained on", *FEATURE_KINDS),
        rows,
        "The paper shows bars and no numbers: a classifier of x is comparable on x_s, and x_r lacks what is needed.",
    )


def _psnr_table(found: Sequence[Mapping[str, Mapping[str, float]]]) -> ExtraTable:
    rows = tuple(
        (kind, f"{PRINTED_PSNR[kind]:g}", format_spread([one["psnr"][kind] for one in found]))
        for kind in ("x_r", "x_s")
    )
    note = "PSNR to x in dB, higher is more alike; pixels are clipped to [0, 1], as those of x_s below 0 are."
    return ExtraTable("Table 12: how alike x and its parts are", ("part", "paper", "here"), rows, note)


@dataclass(frozen=True)
class RowResult:
    """One row of a column. curves: accuracy in [0, 1] after each round, by seed; uploaded, downloaded: (rounds,) bytes
    that one client sends and receives up to each round, mean over clients and seeds; failed: seed -> why, in a line;
    diverged: how many seeds ended without a model; commits: of the code that trained it; limit, moved: see ``limit_rows``."""

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
        return float(np.mean(self.accuracies)) if self.curves else None

    @property
    def spread(self) -> float | None:
        """Standard deviation over seeds (n - 1), None for fewer than two."""
        return float(np.std(self.accuracies, ddof=1)) if len(self.curves) > 1 else None

    @property
    def curve(self) -> tuple[float, ...]:
        """Mean over seeds."""
        return tuple(float(v) for v in np.mean(list(self.curves.values()), axis=0)) if self.curves else ()

    def first_round(self, target: float) -> int | None:
        """The first round after which the mean accuracy is at least ``target``; None where it never is."""
        return next((at + 1 for at, value in enumerate(self.curve) if value >= target), None)

    def bytes_to(self, target: float) -> float | None:
        """Bytes that a client has uploaded by then."""
        first = self.first_round(target)
        return None if first is None else self.uploaded[first - 1]


def collect_results(
    cells: Sequence[PaperCell], seeds: Sequence[int], folder: Path, best: bool, failed: Mapping[Path, str]
) -> list[RowResult]:
    """The results of all cells, as their folders tell. Raises DamagedRun or FindingsError, one line, for a bad folder."""
    return [_collect_row(cell, seeds, folder, best, failed) for cell in cells]


def _collect_row(
    cell: PaperCell, seeds: Sequence[int], folder: Path, best: bool, failed: Mapping[Path, str]
) -> RowResult:
    curves, up, down, gone = {}, [], [], 0
    commits: set[str] = set()
    paths = {seed: folder / cell.folder_name(seed) for seed in seeds}
    wrong = {seed: failed[path] for seed, path in paths.items() if path in failed}
    for seed, path in paths.items():
        if seed in wrong:
            continue
        read_training_record(path)  # refuses what is no finished training
        stored = read_json(path / "training.json")
        curves[seed] = tuple(float(value) for value in stored["accuracy_by_round"])
        gone += stored["diverged"] is not None
        commits |= {read_commit(path)}
        sent, got = _read_traffic(path)
        up.append(sent)
        down.append(got)
    if not curves:
        return RowResult(cell, best, {}, failed=wrong)
    mean = [tuple(float(v) for v in np.mean(part, axis=0)) for part in (up, down)]
    return RowResult(cell, best, curves, mean[0], mean[1], wrong, gone, tuple(sorted(commits)))


def _read_traffic(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Bytes that one client has sent and received up to each round, mean over all clients. Raises DamagedRun."""
    manifest, whole = read_json(RunFolder(path).manifest_file), read_json(path / "training.json")
    sums = []
    try:
        for name in ("uploaded", "downloaded"):
            total = np.cumsum([sum(int(v) for v in counts.values()) for counts in manifest[f"{name}_bytes"]])
            each = whole[f"{name}_bytes_per_client"]
            sums.append(total * (each / total[-1] if total[-1] else 0.0))
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise DamagedRun(f"{RunFolder(path).manifest_file}: damaged ({' '.join(str(error).split())[:100]})") from None
    return sums[0], sums[1]


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
    """The differing settings of all cells, grouped by key and values. A copy of the model within a method is not named again."""
    found: dict[tuple[str, str, str], list[str]] = {}
    values: dict[tuple[str, str, str], tuple[Any, Any]] = {}
    for cell in made:
        ours, theirs = flat_settings_of(cell.overrides), flat_settings_of(full_scale_cell(entry, cell).overrides)
        for key in sorted({*ours, *theirs}):
            here, there = ours.get(key), theirs.get(key)
            if here != there and not _is_model_copy(key, ours, here):
                mark = (key, repr(here), repr(there))
                values[mark] = (here, there)
                found.setdefault(mark, []).append(cell.row)
    everyone = {cell.row for cell in made}
    return [
        SettingDifference(mark[0], *values[mark], () if {*rows} == everyone else tuple(dict.fromkeys(rows)))
        for mark, rows in sorted(found.items())
    ]


def _is_model_copy(key: str, settings: dict[str, Any], value: Any) -> bool:
    """algo.model.width, where it is model.width."""
    at = key.find(".model.")
    return at > 0 and settings.get(key[at + 1 :]) == value


def lasting_differences(entry: PaperEntry) -> list[dict[str, str]]:
    """What differs at every scale in this entry's experiment: what, paper, direction."""
    return [
        {part: one[part] for part in ("what", "paper", "direction")}
        for one in paper_details()[entry.paper]["deviations"]
        if entry.experiment in one.get("experiments", [entry.experiment])
    ]


def describe_stand_in(entry: PaperEntry, scale: str) -> str:
    """The note on stand-in data; "" where the data are the paper's."""
    paper = paper_block(entry.experiment)
    parts = [paper["stand_in"], "" if scale == "paper" else paper["offline"]["note"]]
    return "; ".join(part for part in parts if part)


@dataclass(frozen=True)
class UnevenRow:
    """One row that differs from most others of its column in one term."""

    column: str
    row: str
    term: str
    why: str


def find_uneven_rows(entry: PaperEntry, scale: str, made: Sequence[PaperCell]) -> list[UnevenRow]:
    """Every row whose rounds, participation, network, data, local training or privacy are not those of the others."""
    said = paper_block(entry.experiment)["differs"]
    here = differences_at_scale(scale)
    found = []
    for column in dict.fromkeys(cell.column for cell in made):
        terms = {cell.row: terms_of_overrides(cell.overrides) for cell in made if cell.column == column}
        for term, rows in find_differing_terms(terms).items():
            found += [
                UnevenRow(
                    column,
                    row,
                    term,
                    stated_difference(said, term, row) or stated_difference(here, term, row) or UNSAID,
                )
                for row in terms
                if row in rows
            ]
    return found


LEVEL = 0.05
HOLDS, HOLDS_IN_MEAN, REVERSED, REVERSED_IN_MEAN = "holds", "holds in the mean", "reversed", "reversed in the mean"
CANNOT_TELL = "cannot be told at this scale"
SAME_IMAGES = 0.02  # of their norm: images that matching moves by less count as those that it started from


@dataclass(frozen=True)
class RowPair:
    """better, worse: rows as the paper orders them; gain: mean of better - worse here; p: one-sided, None for one seed;
    limit: why the comparison says nothing at this scale, "" where it does."""

    better: str
    worse: str
    gain: float
    p: float | None
    limit: str = ""

    @property
    def verdict(self) -> str:
        if self.limit:
            return CANNOT_TELL
        if self.p is not None and self.p <= LEVEL:
            return HOLDS
        if self.p is not None and 1 - self.p <= LEVEL:
            return REVERSED
        return HOLDS_IN_MEAN if self.gain > 0 else REVERSED_IN_MEAN


@dataclass(frozen=True)
class OrderStatement:
    """A statement about several pairs. p: the largest of theirs, None where one has none."""

    pairs: tuple[RowPair, ...]

    @property
    def p(self) -> float | None:
        values = [pair.p for pair in self.pairs]
        return None if None in values or not values else max(v for v in values if v is not None)

    @property
    def verdict(self) -> str:
        kinds = {pair.verdict for pair in self.pairs}
        ranked = (REVERSED, CANNOT_TELL, REVERSED_IN_MEAN, HOLDS_IN_MEAN, HOLDS)
        return next(kind for kind in ranked if kind in kinds) if kinds else ""


def p_value(better: Sequence[float], worse: Sequence[float]) -> float | None:
    """One-sided paired t-test (Student 1908): the chance of such a gain if there were none; None with one seed."""
    gains = np.asarray(better, dtype=float) - np.asarray(worse, dtype=float)
    if len(gains) < 2:
        return None
    spread = gains.std(ddof=1)
    if spread < 1e-12:  # every seed agrees to the last digit
        return 0.5 if abs(gains.mean()) < 1e-12 else float(gains.mean() < 0)
    return float(stats.t.sf(gains.mean() * math.sqrt(len(gains)) / spread, len(gains) - 1))


def pair_limit(a: RowResult, b: RowResult) -> str:
    """Why a comparison of the two says nothing; "" where it does."""
    if a.limit or b.limit:
        return a.limit or b.limit
    if a.accuracies == b.accuracies:
        return "both rows have the same numbers for every seed"
    moved = [one.moved for one in (a, b) if one.moved is not None]
    if len(moved) == 2 and max(moved) < SAME_IMAGES:
        return f"both rows hold the same images: matching moves them by {100 * max(moved):.1f} % of their norm"
    return ""


def compare_pair(better: RowResult, worse: RowResult) -> RowPair:
    """Both rows have the same seeds."""
    ours, theirs = better.accuracies, worse.accuracies
    gain = float(np.mean(ours) - np.mean(theirs))
    return RowPair(better.cell.row, worse.cell.row, gain, p_value(ours, theirs), pair_limit(better, worse))


def leader_statement(rows: Sequence[RowResult]) -> OrderStatement:
    """Is the row that leads in the paper ahead of every other one? rows: those with a printed number."""
    best = max(rows, key=_printed_accuracy)
    return OrderStatement(tuple(compare_pair(best, row) for row in rows if row is not best))


def order_statement(rows: Sequence[RowResult]) -> OrderStatement:
    """Is the whole order the paper's? Neighbours decide it; rows that the paper prints equal are not compared."""
    ranked = sorted(rows, key=_printed_accuracy, reverse=True)
    pairs = [compare_pair(a, b) for a, b in itertools.pairwise(ranked) if _printed_accuracy(a) > _printed_accuracy(b)]
    return OrderStatement(tuple(pairs))


def _printed_accuracy(row: RowResult) -> float:
    return row.cell.printed or 0.0


def kendall_tau(rows: Sequence[RowResult]) -> tuple[float, int, int]:
    """(tau-b of the printed and our mean accuracies (Kendall 1945), pairs in the paper's order, pairs compared)."""
    a, b = np.array([_printed_accuracy(r) for r in rows]), np.array([r.mean for r in rows])
    signs = [
        np.sign(a[i] - a[j]) * np.sign(b[i] - b[j])
        for i, j in itertools.combinations(range(len(rows)), 2)
        if a[i] != a[j]
    ]
    agree, tau = sum(1 for s in signs if s > 0), stats.kendalltau(a, b).statistic
    return (0.0 if math.isnan(tau) else float(tau)), agree, len(signs)


SCHEMA = 2


@dataclass(frozen=True)
class TableColumn:
    """One column of the table. leader, order: None where fewer than two rows have a printed number and a result;
    tau, agree, pairs: Kendall's tau-b, pairs in the paper's order, pairs compared; said: what the text claims;
    target: the mean accuracy of the first row, for rounds and bytes to target; steps: of distillation; settings: their digest."""

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
        whole = {
            name: None
            if one is None
            else {"verdict": one.verdict, "p": one.p, "pairs": [_pair_json(p) for p in one.pairs]}
            for name, one in (("leader", self.leader), ("order", self.order))
        }
        tau = None if self.tau is None else dict(zip(("tau", "agree", "pairs"), self.tau, strict=True))
        said = [{"says": says, **_pair_json(found)} for says, found in self.said]
        rows = [_row_json(row, self.target) for row in self.rows]
        made = {"commits": self.commits, "steps": self.steps, "settings": self.settings}
        return {"column": self.name, "rows": rows, **whole, "kendall": tau, "text": said, "target": self.target} | made


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
            "schema": SCHEMA, "entry": self.entry.name, "shows": self.entry.shows, "source": self.source,
            "scale": self.asked.scale, "seeds": list(self.asked.seeds), "command": self.asked.command,
            "device": self.asked.device, "metric": self.metric, "best_of_rounds": self.best, "stand_in": self.stand_in,
            "columns": [column.as_json() for column in self.columns],
            "uneven": [asdict(one) for one in self.uneven],
            "fidelity": [{**asdict(one), "direction": one.direction} for one in self.differences],
            "at_every_scale": [dict(one) for one in self.lasting],
            "tables": [asdict(one) for one in self.tables],
        }  # fmt: skip


def _pair_json(found: RowPair) -> dict[str, Any]:
    return {**asdict(found), "verdict": found.verdict}


def _row_json(row: RowResult, target: float | None) -> dict[str, Any]:
    return {
        "row": row.cell.row, "paper": row.cell.printed, "mean": row.mean, "spread": row.spread,
        "by_seed": {str(seed): value for seed, value in zip(row.curves, row.accuracies, strict=True)},
        "curve": list(row.curve), "uploaded": list(row.uploaded), "downloaded": list(row.downloaded),
        "rounds_to_target": None if target is None else row.first_round(target),
        "bytes_to_target": None if target is None else row.bytes_to(target),
        "limit": row.limit, "moved": row.moved, "diverged": row.diverged, "failed": {str(k): v for k, v in (row.failed or {}).items()},
        "overrides": list(row.cell.overrides),
    }  # fmt: skip


def compare_entry(
    entry: PaperEntry,
    asked: ReproduceArguments,
    made: Sequence[PaperCell],
    rows: Sequence[RowResult],
    tables: Sequence[ExtraTable] = (),
    plots: Sequence[Plot] = (),
) -> EntryResult:
    """Compare. Rows without all seeds take no part in what is said about the order."""
    paper = paper_block(entry.experiment)
    names = dict.fromkeys(cell.column for cell in made)
    columns = tuple(
        _compare_column(entry, name, [r for r in rows if r.cell.column == name], len(asked.seeds)) for name in names
    )
    return EntryResult(
        entry, asked, paper["source"], paper["metric"], paper["best"], columns, tuple(find_uneven_rows(entry, asked.scale, made)),
        tuple(setting_differences(entry, made)), tuple(lasting_differences(entry)), describe_stand_in(entry, asked.scale), tuple(tables), tuple(plots),
    )  # fmt: skip


def _compare_column(entry: PaperEntry, name: str, rows: Sequence[RowResult], seeds: int) -> TableColumn:
    whole = {r.cell.row: r for r in rows if len(r.curves) == seeds}
    printed = [row for row in whole.values() if row.cell.printed is not None]
    said = tuple(
        (one.says, compare_pair(whole[one.better], whole[one.worse]))
        for one in entry.ahead
        if one.better in whole and one.worse in whole
    )
    cells, target = [row.cell for row in rows], rows[0].mean
    compared = len({row.cell.printed for row in printed}) > 1
    return TableColumn(
        name,
        tuple(rows),
        leader_statement(printed) if compared else None,
        order_statement(printed) if compared else None,
        kendall_tau(printed) if compared else None,
        said,
        target,
        describe_steps([cell.overrides for cell in cells]),
        settings_digest(cells),
    )
