"""All findings as tables, the ledger in a few lines, the knowledge ladder of inversion attacks, and
the most exposed records."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from privdd.reporting import finding_selection, wording
from privdd.reporting.figures import png_uri
from privdd.reporting.run_record import RunRecord
from privdd.reporting.schema import FindingRow, Findings, KindRates, Run, TprAt, WorstRecords
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
class FindingsTable:
    """One question: (row, its cells) in the order of the file; columns are those that any row
    fills."""

    name: str
    question: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[FindingRow, tuple[TableCell, ...]], ...]


def findings_by_question(findings: Iterable[FindingRow]) -> list[FindingsTable]:
    """Membership, pictures and labels, guarantee; a question without findings has no table."""
    rows = list(findings)
    asked: tuple[tuple[str, str, Iterable[str], Sequence[Column]], ...] = (
        ("t-membership", "Was this record used?", {"membership"}, MEMBERSHIP),
        (
            "t-pictures",
            "Can pictures and classes be rebuilt?",
            {*finding_selection.PICTURE_FAMILIES, "label"},
            PICTURES,
        ),
        ("t-guarantee", "Does the stated limit hold?", {"guarantee"}, GUARANTEE),
    )
    made = []
    for name, question, families, columns in asked:
        mine = [row for row in rows if row.family in families]
        kept = tuple(
            column for column in columns if any(column.cell(row) != TableCell() for row in mine)
        )
        body = tuple((row, tuple(column.cell(row) for column in kept)) for row in mine)
        made += [FindingsTable(name, question, kept, body)] if mine else []
    return made


def _tpr_cell(rates: Mapping[str, TprAt] | None, key: str) -> TableCell:
    at = (rates or {}).get(key)
    if at is None:
        return TableCell()
    return (
        TableCell(format_share(at.tpr), _interval_text(at.ci))
        if at.resolvable
        else TableCell("too few")
    )


def _tpr_per_record_cell(row: FindingRow) -> TableCell:
    return _tpr_cell(row.tpr_at_fpr_per_record, "0.01")


def _exposure_cell(row: FindingRow) -> TableCell:
    worst = row.worst_records
    if worst is None or not worst.records:
        return TableCell()
    return TableCell(
        _trials_text(worst), f"replays of {_chosen_text(row, worst)}; {_interval_text(worst.ci)}"
    )


def _trials_text(worst: WorstRecords) -> str:
    """In how many of the replays that hold them the chosen records are identified: "36 of 70"."""
    hits = sum(one.hits for one in worst.records)
    return f"{hits} of {sum(one.trials for one in worst.records)}"


def _chosen_text(row: FindingRow, worst: WorstRecords) -> str:
    """How many records were chosen as the most exposed: "2 of 117 records"."""
    return f"{len(worst.records)} of {row.n} records"


def _epsilon_cell(row: FindingRow) -> TableCell:
    if row.epsilon_shown is None:
        return TableCell()
    gaussian = ", if scores are Gaussian" if row.epsilon_validity == "gaussian_only" else ""
    return TableCell(
        format_number(row.epsilon_shown), (row.epsilon_method or "").replace("_", " ") + gaussian
    )


def _kappa_cell(row: FindingRow) -> TableCell:
    limit = "" if row.kappa_allowed is None else f"limit {format_number(row.kappa_allowed)}"
    return TableCell(format_number(row.kappa), limit)


def _psnr_cell(row: FindingRow) -> TableCell:
    blind = finding_selection.blind_guess_psnr(row)
    seen = row.pictures
    if seen is not None:
        guess = f"guess {format_decibel(seen.guess)}; mean {format_number(row.psnr)}"
        return TableCell(format_decibel(seen.median), guess)
    guess = "" if blind is None or row.psnr is None else f"mean; guess {format_number(blind)}"
    return TableCell(format_number(row.psnr), guess)


def _clear_pictures_cell(row: FindingRow) -> TableCell:
    seen = row.pictures
    if seen is None:
        return TableCell()
    extreme = (
        f"furthest above its guess: {format_decibel(seen.best)}, guess "
        f"{format_decibel(seen.best_guess)}"
    )
    return TableCell(f"{seen.clear} of {seen.n}", extreme)


def _identified_cell(row: FindingRow) -> TableCell:
    chance = (
        "" if row.identified_chance is None else f"chance {format_share(row.identified_chance)}"
    )
    return TableCell(format_share(row.identified), chance)


def _labels_cell(row: FindingRow) -> TableCell:
    chance = finding_selection.blind_label_rate(row)
    blind = "" if chance is None or row.label_accuracy is None else f"blind {format_share(chance)}"
    return TableCell(format_share(row.label_accuracy), blind)


def _size_cell(row: FindingRow) -> TableCell:
    what = "transcript" if finding_selection.reads_transcripts(row) else "replay"
    worlds = "" if row.worlds is None else f"{row.worlds} {what}{'s' if row.worlds != 1 else ''}"
    return TableCell(NONE if row.n is None else str(row.n), worlds)


def _interval_text(interval: tuple[float, float] | None) -> str:
    return "" if interval is None else f"{format_share(interval[0])} to {format_share(interval[1])}"


ATTACKER = Column("Attacker", "", False, lambda row: TableCell(wording.ADVERSARY[row.adversary][0]))
NOTE = Column("Note", "", False, lambda row: TableCell(row.note or NONE))
TRIALS = Column("n", "trials", True, _size_cell)
EPSILON = Column("ε", "at least", True, _epsilon_cell)
MEMBERSHIP = (
    ATTACKER,
    Column(
        "AUC",
        "50 % is guessing",
        True,
        lambda row: TableCell(format_share(row.auc), _interval_text(row.auc_ci)),
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


PLAIN = {"none": "computed from protected values only", "non_private": "no protection"}
EXPOSED = "computed from what was sent without protection"
PUBLIC = "reads no record"
VISIBLE = {
    "server": "the server",
    "peer": "the other clients",
    "public": "anyone",
    "analyst": "the analyst",
}


@dataclass
class ReleaseGroup:
    """Releases that share a name, a surface and a mechanism."""

    name: str
    surface: str
    mechanism: str
    sensitivity: str
    visible_to: str
    clients: set[Any] = field(default_factory=set)
    rounds: set[Any] = field(default_factory=set)
    releases: int = 0
    reasons: set[str] = field(default_factory=set)


def describe_event(event: Any, depth: int = 0) -> str:
    """A ledger event as a phrase; an event of an unknown type is named as such."""
    if not isinstance(event, Mapping) or depth > 8:
        return "unknown"
    kind = event.get("type")
    if kind in ("gaussian", "laplace"):
        return f"{kind.title()} noise, multiplier {_number_text(event.get('noise_multiplier'))}"
    if kind == "poisson":
        chance = _number_text(event.get("probability"))
        return (
            f"{describe_event(event.get('event'), depth + 1)}, records drawn with probability "
            f"{chance}"
        )
    if kind == "repeat":
        return f"{describe_event(event.get('event'), depth + 1)}, {event.get('count')} times"
    if kind == "compose":
        parts = event.get("events")
        parts = parts if isinstance(parts, list) else []
        more = f" and {len(parts) - 4} more" if len(parts) > 4 else ""
        return " + ".join(describe_event(part, depth + 1) for part in parts[:4]) + more
    return PLAIN.get(str(kind), f"unknown ({kind})")


def _number_text(value: Any) -> str:
    return format_number(float(value)) if isinstance(value, int | float) else str(value)


def ledger_rows(ledger: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The releases in ledger.json; what is no release is passed over."""
    releases = ledger.get("releases")
    return (
        [row for row in releases if isinstance(row, Mapping)] if isinstance(releases, list) else []
    )


def group_releases(ledger: Mapping[str, Any]) -> list[ReleaseGroup]:
    """Releases by name, surface and mechanism, in the ledger's order."""
    found: dict[tuple[str, ...], ReleaseGroup] = {}
    exposed: set[Any] = set()  # ids of releases that unprotected values went into
    for release in ledger_rows(ledger):
        _add_release(found, release, exposed)
    return list(found.values())


def _mechanism_text(release: Mapping[str, Any], exposed: set[Any]) -> str:
    """The event in words; a computed value is as protected as what it was computed from."""
    event = release.get("event")
    origin = release.get("post_of")
    kind = event.get("type") if isinstance(event, Mapping) else None
    parents = origin if isinstance(origin, list) else []
    if kind == "non_private" or any(isinstance(p, int) and p in exposed for p in parents):
        exposed.add(release.get("id"))
    if kind != "none":
        return describe_event(event)
    if not parents:
        return PUBLIC
    return EXPOSED if release.get("id") in exposed else describe_event(event)


def _add_release(
    found: dict[tuple[str, ...], ReleaseGroup], release: Mapping[str, Any], exposed: set[Any]
) -> None:
    sensitivity = release.get("sensitivity")
    seen = release.get("visible_to")
    key = (
        str(release.get("name", "?")),
        str(release.get("surface", "?")),
        _mechanism_text(release, exposed),
        _sensitivity_text(sensitivity),
        ", ".join(VISIBLE.get(str(who), str(who)) for who in seen)
        if isinstance(seen, list)
        else "",
    )
    group = found.setdefault(key, ReleaseGroup(*key))
    group.clients.add(str(release.get("client")))
    group.rounds.add(str(release.get("round")))
    count = release.get("count", 1)
    group.releases += count if isinstance(count, int) else 1
    if release.get("nonprivate_reason"):
        group.reasons.add(str(release["nonprivate_reason"]))


def _sensitivity_text(value: Any) -> str:
    if not isinstance(value, Mapping) or value.get("value") is None:
        return ""
    why = f" ({value['why']})" if value.get("why") else ""
    return f"{_number_text(value['value'])}{why}"


RUNGS = {
    "knows_map": "holds the map and optimises through it",
    "can_query": "can query the map with images of its own",
    "shadow_map": "knows the architecture and has public data",
    "nothing": "knows nothing and looks at the release",
}
METRICS = ("psnr", "ssim", "lpips", "identified")


@dataclass(frozen=True)
class LadderStep:
    """One rung, or the guess without the release; metrics that were not computed are None."""

    who: str
    psnr: float | None
    ssim: float | None
    lpips: float | None
    identified: float | None


@dataclass(frozen=True)
class KnowledgeLadder:
    """All rungs of one finding, from most knowledge to least, then the class-mean guess; means over
    its pictures."""

    title: str
    steps: tuple[LadderStep, ...]


def knowledge_ladders(findings: Findings) -> list[KnowledgeLadder]:
    """One for every finding that carries rungs."""
    return [found for row in findings.findings if (found := _ladder_of(row)) is not None]


def _ladder_of(row: FindingRow) -> KnowledgeLadder | None:
    rungs = (row.diagnostics or {}).get("ladder")
    if not isinstance(rungs, dict) or not rungs:
        return None
    own = []
    for name, values in rungs.items():
        if isinstance(values, dict):
            numbers = (values.get(metric) for metric in METRICS)
            own.append(
                LadderStep(
                    RUNGS.get(name, str(name)),
                    *(n if isinstance(n, int | float) else None for n in numbers),
                )
            )
    # the best result of an attacker and of all who know less: whoever knows more can ignore it
    best = [
        max(own[at:], key=lambda step: (step.identified or 0.0, step.psnr or 0.0))
        for at in range(len(own))
    ]
    steps = [replace(result, who=step.who) for result, step in zip(best, own, strict=True)]
    free = ((row.baselines or {}).get(f"{metric}_class_mean") for metric in METRICS)
    steps.append(LadderStep("never looks: the mean public image of the class", *free))
    return KnowledgeLadder(
        f"{wording.surface_title(row)}, {wording.attack_title(row.attack)}", tuple(steps)
    )


KIND = {
    "mislabelled": "mislabelled",
    "near_duplicates": "near-duplicates with another label",
    "ordinary": "left as they were",
}


@dataclass(frozen=True)
class ExposedRecord:
    """One record: its picture as a data URI or "", its label or "", and how often it is found, in
    words."""

    picture: str
    name: str
    found: str
    between: str


@dataclass(frozen=True)
class ExposedSurface:
    """The most exposed records of one surface under its strongest attack, most exposed first."""

    row: FindingRow
    records: tuple[ExposedRecord, ...]
    pictures: bool
    together: str


def most_exposed_records(record: RunRecord) -> list[ExposedSurface]:
    """One for each surface whose strongest membership attack names its most exposed records, by its
    lower end."""
    rows = [
        row for row in record.findings.findings if row.worst_records and row.worst_records.records
    ]
    best = ((row, row.worst_records) for row in finding_selection.strongest_on_each_surface(rows))
    found = [_exposed_on_surface(record, row, worst) for row, worst in best if worst]
    return [one for one in found if one.records]


def _exposed_on_surface(record: RunRecord, row: FindingRow, worst: WorstRecords) -> ExposedSurface:
    held = record.evidence(row)
    count = len(worst.records)
    drawn = held.exposed is not None and len(held.exposed) == count
    pictures = (
        [png_uri(image) for image in held.exposed]
        if drawn and held.exposed is not None
        else [""] * count
    )
    labels = [""] * count
    if drawn and held.exposed_label is not None:
        labels = [f", class {int(label)}" for label in held.exposed_label]
    made = sorted(
        zip(worst.records, pictures, labels), key=lambda one: (-one[0].ci[0], one[0].record)
    )
    shown = tuple(
        ExposedRecord(
            picture,
            f"record {one.record}{label}",
            f"{one.hits} of {one.trials}",
            _interval_text(one.ci),
        )
        for one, picture, label in made
        if one.hits
    )
    together = (
        f"{_chosen_text(row, worst)} were chosen; they are identified in "
        f"{_trials_text(worst)} replays that hold them"
    )
    return ExposedSurface(row, shown, drawn, f"{together} (95 %: {_interval_text(worst.ci)})")


def changed_records_text(run: Run) -> str:
    """How many audited records were made hard to fit, by kind."""
    return wording.join_names(
        [f"{count} {KIND.get(kind, kind)}" for kind, count in (run.tail or {}).items()]
    )


def hard_records_note(run: Run) -> list[str]:
    """The note that some audited records were made hard to fit; none if none was."""
    if not run.tail:
        return []
    return [
        "Of the audited client's own records, this audit changed some to be hard to fit: "
        f"{changed_records_text(run)}. Rates over "
        "all records mix these with ordinary records; rates for each kind are below. The "
        "accuracy, too, is of a run with these records."
    ]


def rates_by_kind(record: RunRecord) -> list[tuple[FindingRow, list[tuple[str, KindRates]]]]:
    """For the strongest attack on each surface: (kind in words, its rates), what was made hard to
    fit first."""
    best = finding_selection.strongest_on_each_surface(
        row for row in record.findings.findings if row.by_kind
    )
    return [(row, [(KIND.get(k, k), v) for k, v in (row.by_kind or {}).items()]) for row in best]
