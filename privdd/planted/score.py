"""The mutation score: outcomes counted, as a table of faults and profiles, and as a file that can be gone on with."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from privdd.core.errors import BadConfig
from privdd.planted.catalogue import FAULTS, GROUPS, grid_point
from privdd.planted.fault import Fault
from privdd.planted.small_runs import NEEDS, Profile
from privdd.planted.trial import AMBER, SMALL, Outcome
from privdd.runtime.files import read_json, write_json

SCHEMA = 2
MISSED, BROKEN, ABSENT, UNTRIED = "MISSED", "ERROR", "–", ""


def word(outcome: Outcome) -> str:
    """What a cell says: the tier that caught the fault, or that none did."""
    if outcome.caught:
        return outcome.tiers[0]
    if outcome.error:
        return BROKEN
    if outcome.verdict == SMALL:
        return f"{SMALL} ({outcome.touched})"
    return f"{MISSED} ({AMBER})" if outcome.verdict == AMBER else MISSED


def to_json(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    planted, healthy = counted(outcomes)
    score = {"planted": len(planted), "caught": sum(o.caught for o in planted)}
    controls = {"runs": len(healthy), "false_alarms": sum(not o.as_it_should_be for o in healthy)}
    return {"schema": SCHEMA, "score": score, "controls": controls, "trials": [asdict(o) for o in outcomes]}


def counted(outcomes: Iterable[Outcome]) -> tuple[list[Outcome], list[Outcome]]:
    """(runs with a fault that was in force, healthy ones)."""
    made = list(outcomes)
    return [o for o in made if o.fault and o.verdict != SMALL], [o for o in made if not o.fault]


def save(file: Path, outcomes: Sequence[Outcome]) -> None:
    write_json(file, to_json(outcomes))


def load(file: Path) -> list[Outcome]:
    """What an earlier self-test found. Raises BadConfig for a file that is none of its own."""
    data = read_json(file)
    try:
        names = {f.name for f in fields(Outcome)}
        if data["schema"] != SCHEMA or any(set(trial) != names for trial in data["trials"]):
            raise ValueError("other fields")
        return [Outcome(**{**trial, "tiers": tuple(trial["tiers"])}) for trial in data["trials"]]
    except (KeyError, TypeError, ValueError) as wrong:
        raise BadConfig(f"resume={file}: no results of a self-test ({wrong})") from None


def summary(outcomes: Sequence[Outcome]) -> str:
    """Two sentences: how many faults were caught, and how many healthy runs were contradicted."""
    planted, healthy = counted(outcomes)
    caught, wrong = sum(o.caught for o in planted), sum(not o.as_it_should_be for o in healthy)
    kinds = len({o.fault for o in planted})
    text = f"{caught} of {len(planted)} planted faults caught ({kinds} kinds)" if planted else "no fault was planted"
    return f"{text}; {wrong} of {len(healthy)} healthy runs with a false alarm."


def table(outcomes: Sequence[Outcome], faults: Sequence[Fault], profiles: Sequence[Profile]) -> Iterator[str]:
    """Lines of Markdown: one table for each group of faults, which also reads well as text."""
    cells = _cells(outcomes)
    for group, members in GROUPS.items():
        shown = [fault for fault in members if fault in faults]
        if not shown:
            continue
        yield from ("", f"### Faults of {group}" if group != "what travels" else "### Faults of what travels", "")
        rows = [["fault", "what is wrong", *(p.name for p in profiles)]]
        rows += [[fault.key, fault.says, *(_cell(cells, fault, p) for p in profiles)] for fault in shown]
        yield from aligned(rows)
    yield from _grid_table([o for o in outcomes if o.fault and o.fault not in FAULTS])


def _grid_table(outcomes: Sequence[Outcome]) -> Iterator[str]:
    """Points of the grid, each where it was tried."""
    if outcomes:
        yield from ("", "### Points of the grid", "", "Called what:kind/round/call/client/numbers.", "")
        found = [(o, grid_point(o.fault)) for o in outcomes]
        rows = [[o.fault, fault.says.partition(" (")[0] if fault else "", o.profile, word(o)] for o, fault in found]
        yield from aligned([["fault", "what is wrong", "profile", "outcome"], *rows])


def _cells(outcomes: Sequence[Outcome]) -> Mapping[tuple[str, str], list[Outcome]]:
    cells: dict[tuple[str, str], list[Outcome]] = {}
    for outcome in outcomes:
        cells.setdefault((outcome.fault, outcome.profile), []).append(outcome)
    return cells


def _cell(cells: Mapping[tuple[str, str], list[Outcome]], fault: Fault, profile: Profile) -> str:
    if fault.not_applicable(profile):
        return ABSENT
    made = cells.get((fault.key, profile.name), [])
    words = sorted({word(o) for o in made}, key=lambda w: not w.startswith((MISSED, BROKEN)))
    return ", ".join(words) or UNTRIED


def aligned(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """A Markdown table whose columns stand below each other."""
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
    for number, row in enumerate(rows):
        yield f"| {' | '.join(text.ljust(width) for text, width in zip(row, widths))} |"
        if not number:
            yield f"|{'|'.join('-' * (width + 2) for width in widths)}|"


def missed(outcomes: Sequence[Outcome]) -> Iterator[str]:
    """One line for each trial that did not end as it should."""
    for o in outcomes:
        if not o.as_it_should_be and o.verdict != SMALL:
            what = o.fault or "healthy run"
            why = o.error or o.says or f"verdict {o.verdict}"
            yield f"{what}, {o.profile}, seed {o.seed}: {word(o) if o.fault else 'FALSE ALARM'}: {why}"


def page(outcomes: Sequence[Outcome], faults: Sequence[Fault], profiles: Sequence[Profile], command: str) -> str:
    """The whole result as a page of Markdown."""
    healthy = counted(outcomes)[1]
    seeds = ", ".join(f"{p.name} {sum(o.profile == p.name for o in healthy)}" for p in profiles)
    lines = [
        "# Does the audit find planted faults?",
        "",
        f"Written by `{command}`; the numbers are of tiny runs, a few seconds each.",
        "",
        f"**{summary(outcomes)}** Healthy runs: {seeds}.",
        "",
        "A cell names the first test that said that something is wrong, cheap ones first: the digests of what travelled",
        "(wire), the run's own ledger, noise and sampling (T0), sensitivity and presence (T1), likelihood ratios and whole",
        "runs (T2), transcripts and the accountant's curve (T3), `privdd.api.check_method` (method check); refused: the",
        f"run stopped with an error that names the fault. {MISSED}: nothing did; {SMALL} (n): nor did anything, and the fault was",
        f"in force on so few numbers, records or messages only (it does not count). {ABSENT}: the fault has no place there:",
        f"the profile {'; '.join(dict.fromkeys(NEEDS.values()))}. An empty cell was not run.",
        *table(outcomes, faults, profiles),
    ]
    wrong = list(missed(outcomes))
    if wrong:
        lines += ["", "### What did not end as it should", "", *(f"- {line}" for line in wrong)]
    return "\n".join(lines) + "\n"
