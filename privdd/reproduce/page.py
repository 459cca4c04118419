"""Train an entry and write its page: results.json, HTML and figures; one page about all entries;
the catalogue as a table.

The page about all entries is made from the ``results.json`` of those that are finished in a folder,
so that it can be asked for at any time. It has a line for each sentence of a paper. Each names the
commit of its trainings, the steps of distillation and the scale; one of other settings, code or
words than today's is marked as stale.
"""

from __future__ import annotations

import itertools
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from privdd.cli.paper_block import paper_block
from privdd.cli.sweeps import short_digest
from privdd.core.validation import BadConfig
from privdd.reporting.figures.paper import PaperStyle
from privdd.reporting.figures.rendering import save_figure
from privdd.reporting.page import template_environment
from privdd.reproduce.catalogue import PaperEntry, ReproduceArguments, find_entry, load_catalogue
from privdd.reproduce.figures import plot_curves, row_label, run_analyses
from privdd.reproduce.results import (
    EntryResult,
    JudgedSentence,
    TableColumn,
    collect_results,
    compare_entry,
    limit_rows,
)
from privdd.reproduce.sentences import (
    CANNOT_TELL,
    HOLDS,
    HOLDS_IN_MEAN,
    REVERSED,
    REVERSED_IN_MEAN,
)
from privdd.reproduce.train import (
    PaperCell,
    pairs_digest,
    paper_cells,
    settings_digest,
    train_cells,
)
from privdd.reproduce.training_code import training_code
from privdd.runtime.files import read_json, write_bytes, write_json
from privdd.runtime.progress import show_progress

HOLDS_HERE = "holds"
FAILS_HERE = "does not hold"
NOT_DECIDED = "not decided"
NOTHING_TO_COMPARE = "nothing to compare"
NOT_RUN_YET = "not run yet"
NOT_RUN = "not run"
NOT_JUDGED = "trained before, not judged since"
# classes of their own, which confirm nothing
OTHER_TASK = "on a stand-in for the paper's data"
EARLIER = "of earlier settings, code or words"
SENTENCE_VERDICTS = {  # of a comparison -> of its sentence
    HOLDS: HOLDS_HERE,
    HOLDS_IN_MEAN: NOT_DECIDED,
    REVERSED_IN_MEAN: NOT_DECIDED,
    REVERSED: FAILS_HERE,
    CANNOT_TELL: CANNOT_TELL,
    "": NOTHING_TO_COMPARE,
}
VERDICT_TEXT = SENTENCE_VERDICTS | {
    HOLDS_IN_MEAN: f"{NOT_DECIDED}, ahead in the mean",
    REVERSED_IN_MEAN: f"{NOT_DECIDED}, behind in the mean",
}
TONES = {HOLDS_HERE: "consistent", FAILS_HERE: "contradiction", NOT_DECIDED: "unprotected"}
ENTRY_PAGE = "reproduction.html"
VERDICTS = (
    HOLDS_HERE,
    FAILS_HERE,
    NOT_DECIDED,
    CANNOT_TELL,
    OTHER_TASK,
    EARLIER,
    NOTHING_TO_COMPARE,
    NOT_JUDGED,
    NOT_RUN_YET,
    NOT_RUN,
)
# those that compare something
DECIDING = (HOLDS_HERE, FAILS_HERE, NOT_DECIDED, CANNOT_TELL)
STAND_IN = " (on a stand-in)"
NO_SENTENCE = "no sentence of the paper puts these rows in order"
OTHER_WORDS = "the sentence is another today"
OTHER_SETTINGS = "settings changed since, or were not recorded"
OTHER_CODE = "code changed since, or was not recorded"
ROW_WORDS = "{} over {}"
GAIN_WORDS = "gain of {} over that of {}"
OVERVIEW_PAGE = "index.html"
OVERVIEW_NOTE = (
    "A sentence holds if the differences over the seeds decide it (one-sided paired t-test, "
    "5 %, the largest p of all its pairs), and fails if a pair is reversed at 5 % with "
    "Holm's correction for their number; else it is not decided. It cannot be decided at this "
    "scale if images cannot leave their start, if matching moves them by less than 2 % of their "
    "norm, if a row is at chance, or if two rows have the same numbers. Neither is a "
    "failure of the paper. Below the paper's scale only the order is compared. If "
    "the paper's data are not available, the entry's page names the stand-in; results on a "
    "stand-in confirm nothing and are counted by themselves. So are results of other "
    "settings or code than today's. Sentences with the same pairs of the same trainings count "
    "once."
)


@dataclass(frozen=True)
class OverviewLine:
    """A sentence about a column of an entry, or an entry that has no result. page: relative to the
    folder, "" where there is none;
    made: steps, scale and commit of its trainings; settings, code: digests of what was compared
        and of the code that trained it; stale: why it says nothing of today's, or ""."""

    entry: str
    shows: str
    column: str
    statement: str
    verdict: str
    detail: str
    command: str
    page: str
    made: str = ""
    settings: str = ""
    code: str = ""
    stale: str = ""

    @property
    def kind(self) -> str:
        """What it counts as: its verdict, unless it is of earlier settings or on a stand-in."""
        if self.verdict not in DECIDING:
            return self.verdict
        if self.stale:
            return EARLIER
        if self.column.endswith(STAND_IN):
            return OTHER_TASK
        return self.verdict


def distinct_sentences(lines: Sequence[OverviewLine]) -> list[OverviewLine]:
    """One line for each sentence and its comparison: several entries may show the same."""
    return _distinct_lines(lines, lambda line: (line.statement, line.settings))


def distinct_comparisons(lines: Sequence[OverviewLine]) -> list[OverviewLine]:
    """One line for each comparison of trainings, whichever sentences and entries show it."""
    return _distinct_lines(lines, lambda line: ("", line.settings))


def _distinct_lines(
    lines: Sequence[OverviewLine], name_line: Callable[[OverviewLine], tuple[str, str]]
) -> list[OverviewLine]:
    """The first of each name; that on the paper's own data in its place, if there is one."""
    lines_by_key: dict[tuple[str, ...], OverviewLine] = {}
    for line in lines:
        key: tuple[str, ...] = (line.entry, line.column, line.statement)
        if line.settings:
            key = name_line(line)
        if key not in lines_by_key or lines_by_key[key].kind == OTHER_TASK:
            lines_by_key[key] = line
    return [*lines_by_key.values()]


def count_verdicts(lines: Sequence[OverviewLine]) -> str:
    """ "holds: 4, does not hold: 1, ...", of distinct comparisons."""
    return _verdict_counts(line.kind for line in distinct_comparisons(lines))


def _verdict_counts(verdicts: Iterable[str]) -> str:
    counts = Counter(verdicts)
    return ", ".join(f"{kind}: {counts[kind]}" for kind in VERDICTS if counts[kind])


def collect_lines(folder: Path) -> list[OverviewLine]:
    """The lines of every entry of the catalogue, in the papers' order. folder: OUT/SCALE.

    Shows its progress: composing the settings of all rows anew takes a minute.
    """
    lines: list[OverviewLine] = []
    with show_progress("overview", len(load_catalogue())) as bar:
        for entry in load_catalogue().values():
            lines += _lines_of_entry(entry, folder)
            bar.advance(entry.name)
    return lines


def write_overview(folder: Path) -> Path:
    """``index.html`` about all entries of a folder -> its path."""
    lines = collect_lines(folder)
    template = template_environment().get_template("reproductions.html.jinja")
    text = template.render(
        lines=lines,
        counted=count_verdicts(lines),
        meant=OVERVIEW_NOTE,
        tones=TONES,
        scale=folder.name,
    )
    write_bytes(folder / OVERVIEW_PAGE, text.encode(errors="replace"))
    return folder / OVERVIEW_PAGE


def _lines_of_entry(entry: PaperEntry, folder: Path) -> Iterator[OverviewLine]:
    file = folder / entry.name / "results.json"
    if not entry.is_trainable:
        yield OverviewLine(
            entry.name, entry.shows, "", "", NOT_RUN, f"{entry.kind}: {entry.why}", "", ""
        )
    elif not file.is_file():
        command = f"python -m privdd.reproduce {entry.name} scale={folder.name}"
        yield OverviewLine(entry.name, entry.shows, "", "", NOT_RUN_YET, "", command, "")
    else:
        result = read_json(file)
        today = current_digests(entry, folder.name, str(result.get("device")))
        for column in result["columns"]:
            yield from _column_lines(entry, folder.name, result, column, today)


@dataclass(frozen=True)
class LineDigests:
    """What a line is of: its pairs with their settings, and the code that trains them."""

    settings: str
    code: str


def current_digests(
    entry: PaperEntry, scale: str, device: str
) -> dict[tuple[str, str], LineDigests]:
    """(column, sentence) -> the digests that its line has if it is of today. A row that a sentence
    does not compare has no part in them."""
    cells = paper_cells(entry, scale, device)
    digests = {}
    for name in dict.fromkeys(cell.column for cell in cells):
        column = [cell for cell in cells if cell.column == name]
        rows = {cell.row: cell for cell in column}
        pairs_of = {sentence: sentence.pairs_among([*rows]) for sentence in entry.sentences}
        for sentence, pairs in pairs_of.items():
            if pairs:
                settings = pairs_digest(column, pairs, sentence.by, sentence.bases)
                code = join_training_codes(rows, sentence.compared_rows(pairs))
                digests[name, sentence.says] = LineDigests(settings, code)
        if not any(pairs_of.values()):
            digests[name, NO_SENTENCE] = LineDigests(
                settings_digest(column), join_training_codes(rows, rows)
            )
    return digests


def join_training_codes(cells: Mapping[str, PaperCell], rows: Iterable[str]) -> str:
    """One digest of today's code that trains these rows."""
    return short_digest({training_code(cells[row].overrides) for row in rows})


def find_staleness(line: OverviewLine, today: Mapping[tuple[str, str], LineDigests]) -> str:
    """Why a line says nothing of today's settings, code or words; "" if it does, or if nothing was
    run."""
    if line.verdict in (NOT_RUN_YET, NOT_JUDGED):
        return ""
    current = today.get((line.column.removesuffix(STAND_IN), line.statement))
    if current is None:
        return OTHER_WORDS
    if line.settings != current.settings:
        return OTHER_SETTINGS
    if line.code != current.code:
        return OTHER_CODE
    return ""


def _column_lines(
    entry: PaperEntry,
    scale: str,
    result: Mapping[str, Any],
    column: Mapping[str, Any],
    today: Mapping[tuple[str, str], LineDigests],
) -> Iterator[OverviewLine]:
    stands_in = bool(paper_block(entry.experiment)["stand_in"]) or any(
        difference["key"] in ("data.name", "data.source") for difference in result["fidelity"]
    )
    commits = [commit[:7] or "unknown" for commit in column.get("commits", [])] or ["unknown"]
    origin = [column.get("steps", ""), f"scale={scale}", f"commit {', '.join(commits)}"]
    silent = {"says": NO_SENTENCE, "verdict": "", "pairs": []}
    for sentence in column["sentences"] or [{**silent, **column}]:
        line = OverviewLine(
            entry=entry.name,
            shows=entry.shows,
            column=f"{column['column']}{STAND_IN if stands_in else ''}",
            statement=sentence["says"],
            verdict=_sentence_verdict(sentence),
            detail="; ".join(filter(None, [format_sentence(sentence), _format_failures(column)])),
            command=result["command"],
            page=f"{entry.name}/{ENTRY_PAGE}",
            made="; ".join(filter(None, origin)),
            settings=sentence.get("settings", ""),
            code=sentence.get("code", ""),
        )
        yield replace(line, stale=find_staleness(line, today))


def _sentence_verdict(sentence: Mapping[str, Any]) -> str:
    if sentence.get("missing"):
        return NOT_RUN_YET
    return SENTENCE_VERDICTS[sentence["verdict"]]


def format_sentence(sentence: Mapping[str, Any]) -> str:
    """Every pair with its gain and its p, as it is and corrected for their number."""
    if missing := sentence.get("missing"):
        return f"not all seeds of {', '.join(map(row_label, missing))}"
    wording = ROW_WORDS
    if sentence.get("over"):
        wording = GAIN_WORDS
    pairs = [_format_pair(pair, wording) for pair in sentence["pairs"]]
    limits = dict.fromkeys(pair["limit"] for pair in sentence["pairs"])
    return "; ".join(filter(None, [*pairs, *limits]))


def _format_pair(pair: Mapping[str, Any], wording: str) -> str:
    compared = wording.format(row_label(pair["better"]), row_label(pair["worse"]))
    text = f"{compared} {100 * pair['gain']:+.1f}"
    if pair["p"] is None:
        return text
    text = f"{text}, p {pair['p']:.2g}"
    if pair["holm"] == pair["p"]:
        return text
    return f"{text} ({pair['holm']:.2g})"


def _format_failures(column: Mapping[str, Any]) -> str:
    failed = sum(len(row["failed"]) for row in column["rows"])
    diverged = sum(row["diverged"] for row in column["rows"])
    parts = [(failed, "trainings failed"), (diverged, "diverged")]
    return ", ".join(f"{count} {what}" for count, what in parts if count)


def reproduce_entry(
    entry: PaperEntry, arguments: ReproduceArguments
) -> tuple[EntryResult, Path, int]:
    """Train what an entry needs, and compare it with the paper.

    Args:
        entry: An entry of the catalogue.
        arguments: Scale, seeds, folder and jobs; what was trained before is not trained again.

    Returns:
        What came out, its page, and how many trainings failed.

    Raises:
        BadConfig: The entry trains nothing; the message says why.
    """
    if not entry.is_trainable:
        raise BadConfig(f"{entry.name}: {entry.kind}: {entry.why}")
    arguments = replace(arguments, seeds=arguments.seeds or tuple(range(entry.seeds)))
    seeds = arguments.seeds
    folder = arguments.out / arguments.scale
    rows = folder / "rows" / entry.experiment
    cells = paper_cells(entry, arguments.scale, arguments.device)
    failed = train_cells(cells, seeds, rows, arguments.jobs, entry.name)
    best = bool(paper_block(entry.experiment)["best"])
    results = limit_rows(collect_results(cells, seeds, rows, best, failed))
    tables, plots = run_analyses(entry.also, cells, seeds, rows)
    compared = compare_entry(entry, arguments, cells, results, tables, plots)
    return compared, write_entry_page(compared, folder / entry.name), len(failed)


def sentence_headline(judged: JudgedSentence) -> str:
    """One sentence of the paper and its verdict."""
    says = judged.sentence.says
    if judged.order is None:
        return f"{says}: not all seeds of {', '.join(map(row_label, judged.missing))}"
    text = f"{says}: {VERDICT_TEXT[judged.order.verdict]}"
    if judged.order.p is None:
        return text
    return f"{text} (p {judged.order.p:.2g})"


def column_headlines(column: TableColumn) -> list[str]:
    """What is said first of a column: each sentence of the paper with its verdict."""
    return [sentence_headline(judged) for judged in column.sentences] or [NO_SENTENCE]


def write_entry_page(result: EntryResult, folder: Path) -> Path:
    """results.json, the page and the figures of an entry -> the page."""
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "results.json", result.as_json())
    curves = {column.name: plot_curves(column) for column in result.columns}
    template = template_environment().get_template("reproduction.html.jinja")
    words = {
        "label": row_label,
        "headlines": column_headlines,
        "says": VERDICT_TEXT,
        "tone": _page_tone(result),
    }
    text = template.render(r=result, drawn=curves, **words)
    write_bytes(folder / ENTRY_PAGE, text.encode(errors="replace"))
    for plots in (*curves.values(), result.plots):
        for plot in plots:
            # figures of a paper are asked for to stand in a paper
            save_figure(
                plot.figure, plot.drawing, folder / "figures", plot.name, paper=PaperStyle()
            )
    return folder / ENTRY_PAGE


def _page_tone(result: EntryResult) -> str:
    sentences = itertools.chain.from_iterable(column.sentences for column in result.columns)
    kinds = {judged.order.verdict for judged in sentences if judged.order}
    if REVERSED in kinds:
        return "contradiction"
    return "consistent" if kinds == {HOLDS} else "plain"


def print_result(result: EntryResult, page: Path, failed: int) -> None:
    for column in result.columns:
        for line in column_headlines(column):
            print(f"{result.entry.name}, {column.name}: {line}")
    if failed:
        print(
            f"privdd: error: {failed} trainings failed; the page says which and why",
            file=sys.stderr,
        )
    print(f"page: {page}", flush=True)


def run_entry(arguments: ReproduceArguments) -> int:
    """Status 1 where a training failed."""
    result, page, failed = reproduce_entry(find_entry(arguments.name), arguments)
    print_result(result, page, failed)
    return int(failed > 0)


def run_all(arguments: ReproduceArguments) -> int:
    """Every entry that runs here, one after the other; the page about all of them grows with
    each."""
    status = 0
    names = [name for name, entry in load_catalogue().items() if entry.is_trainable]
    for name in names:
        status |= run_entry(replace(arguments, name=name))
        write_overview(arguments.out / arguments.scale)
    print_overview(arguments)
    return status


def print_overview(arguments: ReproduceArguments) -> int:
    """The page about all entries, from what is finished."""
    print(f"overview: {write_overview(arguments.out / arguments.scale)}")
    return 0
