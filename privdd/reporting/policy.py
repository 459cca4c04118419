"""A policy: limits that a run has to keep, judged on its findings, for a build that must fail where
one is broken.

Limits are held against what a run shows with confidence: an upper bound on epsilon that was proven,
and lower bounds of what attacks did (95 % over all tests of the run together). A limit *holds*, is
*broken*, or is *not decided* (nothing was measured that could have broken it, or the sample is too
small), which fails a build as well unless the policy says
``not_decided: pass``. It does *not apply* only to the check of a mechanism, which looks at no
    records."""

from __future__ import annotations

import difflib
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal, TextIO
from xml.etree import ElementTree

from pydantic import AfterValidator, Field, ValidationError

from privdd.reporting import finding_selection
from privdd.reporting.schema import (
    FindingRow,
    Findings,
    Part,
    Positive,
    Unit,
    Verdict,
    first_error_line,
)
from privdd.reporting.summary import believable_findings
from privdd.reporting.wording import format_number
from privdd.runtime.files import DamagedRun, write_bytes
from privdd.runtime.own_yaml import compose_own_yaml
from privdd.runtime.yaml_files import parse_yaml, read_yaml

EXIT_BROKEN = 3


class PolicyError(ValueError):
    """A policy that cannot be used; the message is one line."""


Outcome = Literal["holds", "broken", "not decided", "does not apply"]
ORDER: tuple[Outcome, ...] = ("broken", "not decided", "holds", "does not apply")


def _check_rates(limits: dict[float, float]) -> dict[float, float]:
    if bad := [rate for rate in limits if not 0 < rate < 1]:
        raise ValueError(f"{bad[0]:g}: a false-positive rate between 0 and 1 is needed")
    return limits


class Policy(Part):
    """The limits of ``policy.yaml``; a limit that is left out is not looked at.

    epsilon_proven, epsilon_shown: largest upper bound by accounting, and largest lower bound by
        attacks and tests; tpr_at_fpr: false-positive rate -> largest true-positive rate; auc: of
        membership attacks; identified_records: how many single records may be
    exposed; psnr_gain: dB above the best blind guess, of the typical rebuilt picture, or of the
    best where single ones stand out; verdicts: those that a surface may have;
    attacked: surfaces that must have been attacked.
    """

    epsilon_proven: Positive | None = None
    epsilon_shown: Positive | None = None
    tpr_at_fpr: Annotated[dict[float, Unit], AfterValidator(_check_rates)] = Field(
        default_factory=dict
    )
    auc: Unit | None = None
    identified_records: Annotated[int, Field(ge=0)] | None = None
    psnr_gain: Positive | None = None
    verdicts: list[Verdict] = Field(default_factory=list)
    attacked: list[str] = Field(default_factory=list)
    not_decided: Literal["fail", "pass"] = "fail"


@dataclass(frozen=True)
class LimitResult:
    """One limit and its outcome; line: a sentence with the limit, what was measured, and where."""

    name: str
    outcome: Outcome
    line: str


def load_policy(file: Path | None, limits: Mapping[str, Any] | None = None) -> Policy:
    """The policy in a file; ``limits`` (of the command line; None is no limit) stand in place of
    its own.

    Raises PolicyError with one line for a file that cannot be read, an unknown limit, a wrong
    value, or no limit at all."""
    found: Any = {}
    lines: dict[str, int] = {}
    if file is not None:
        try:
            lines = _key_lines(file)
            found = read_yaml(file.resolve()) or {}  # a link of the user's own may be followed
        except (ValueError, OSError, DamagedRun) as error:
            raise PolicyError(" ".join(str(error).split())) from None
    found |= {name: limit for name, limit in (limits or {}).items() if limit is not None}
    if not found.keys() - {"not_decided"}:
        hint = "privdd gate init=true writes one"
        raise PolicyError(f"policy: no limit is set, so nothing could be broken; {hint}")
    try:
        return Policy.model_validate(found)
    except ValidationError as error:
        name = str(error.errors()[0]["loc"][0])
        typed = name in (limits or {})
        where = "fail_on." if typed or file is None else f"{file}:{lines.get(name, 1)}: "
        raise PolicyError(f"{where}{_explain_limit(error, name)}") from None


def _key_lines(file: Path) -> dict[str, int]:
    """Key -> line of a policy's file. Raises BadConfig, FILE:LINE and one sentence, for what is no
    YAML of keys and values."""
    node = compose_own_yaml(file)
    return (
        {} if node is None else {str(key.value): key.start_mark.line + 1 for key, _ in node.value}
    )


def _explain_limit(error: ValidationError, name: str) -> str:
    allowed = [*Policy.model_fields]
    if name in allowed:
        return first_error_line(error)
    close = difflib.get_close_matches(name, allowed, 1)
    return (
        f"{name}: unknown limit; {f'did you mean {close[0]}? ' if close else ''}limits are "
        f"{', '.join(allowed)}"
    )


def policy_of_settings(settings: Mapping[str, Any]) -> Policy | None:
    """The policy of the settings ``policy`` (a file) and ``fail_on`` (limits by name); None where
    they set no limit."""
    file = settings.get("policy")
    limits = settings.get("fail_on") or {}
    is_set = file is not None or any(limit is not None for limit in limits.values())
    return load_policy(Path(file) if file else None, limits) if is_set else None


def policy_of_arguments(given: Mapping[str, str]) -> Policy | None:
    """The same of arguments by key: policy=FILE, fail_on.LIMIT=VALUE."""
    items = [
        f"{key.removeprefix('fail_on.')}={text}"
        for key, text in given.items()
        if key.startswith("fail_on.")
    ]
    return policy_of_settings({"policy": given.get("policy"), "fail_on": parse_limits(items)})


def parse_limits(items: Iterable[str]) -> dict[str, Any]:
    """LIMIT=VALUE, or tpr_at_fpr.RATE=VALUE -> limits by name. Raises PolicyError, one line."""
    found: dict[str, Any] = {}
    for item in items:
        name, is_set, value = item.partition("=")
        head, _, rate = name.partition(".")
        try:
            number = parse_yaml(value)
        except ValueError:
            is_set = ""
        if not is_set or (rate and not isinstance(found.get(head, {}), dict)):
            raise PolicyError(
                f"fail_on {item}: LIMIT=VALUE is needed, as in auc=0.6 or tpr_at_fpr.0.01=0.05"
            )
        found[head] = {**found.get(head, {}), rate: number} if rate else number
    return found


def judge_findings(policy: Policy, findings: Findings) -> list[LimitResult]:
    """The outcome of every limit that the policy sets. What cannot be read as a leak
    (``believable_findings``) decides none."""
    rows = believable_findings(findings.findings, findings)
    return [
        *_judge_epsilon(policy, findings),
        *_judge_membership(policy, rows),
        *_judge_reconstruction(policy, rows),
        *_judge_surfaces(policy, findings),
    ]


def _judge_epsilon(policy: Policy, findings: Findings) -> Iterator[LimitResult]:
    privacy = findings.privacy
    terms = f"delta {privacy.delta:g}, unit {privacy.unit}, {privacy.relation}"
    if (limit := policy.epsilon_proven) is not None:
        proven = privacy.epsilon.proven
        text = f"proven at most {format_number(proven)} ({terms})"
        if math.isinf(proven):
            text = (
                "nothing is proven: what leaves a client is unprotected, epsilon is infinite "
                f"({terms})"
            )
        yield _judge_value("epsilon_proven", limit, proven, text)
    if (limit := policy.epsilon_shown) is not None:
        bounds = (finding_selection.shown_epsilon(findings.findings), privacy.epsilon.shown)
        shown = max((bound for bound in bounds if bound is not None), default=None)
        text = f"shown at least {format_number(shown)} ({terms})"
        text = "no sound test bounded epsilon from below" if shown is None else text
        yield _judge_value("epsilon_shown", limit, shown, text)


def _judge_value(name: str, limit: float, found: float | None, text: str) -> LimitResult:
    """A limit on a number, None where there is none."""
    outcome: Outcome = "not decided" if found is None else "broken" if found > limit else "holds"
    return LimitResult(name, outcome, f"{text}; limit {limit:g}")


def _judge_membership(policy: Policy, believable: Sequence[FindingRow]) -> Iterator[LimitResult]:
    rows = [row for row in believable if row.family == "membership"]
    for fpr, limit in policy.tpr_at_fpr.items():
        seen = [
            (m.at.tpr, m.at.ci, m.row)
            for m in finding_selection.ranked_memberships(rows)
            if m.at and m.fpr == fpr
        ]
        what = f"true-positive rate at a false-positive rate of {fpr:g}"
        yield _judge_rates(f"tpr_at_fpr.{fpr:g}", limit, what, seen)
    if policy.auc is not None:
        seen = [
            (row.auc, row.auc_ci, row)
            for row in rows
            if row.auc is not None and row.auc_ci is not None
        ]
        yield _judge_rates("auc", policy.auc, "AUC of membership", seen)
    if (most := policy.identified_records) is not None:
        measured = [row for row in rows if row.worst_records is not None]
        counts = [len(finding_selection.exposed_records(row)) for row in measured]
        count = max(counts, default=0)
        text = (
            f"{count} records are identified more often than by chance"
            if measured
            else "no attack looked at single records"
        )
        yield _judge_value("identified_records", most, count if measured else None, text)


def _judge_rates(
    name: str,
    limit: float,
    what: str,
    rates: Sequence[tuple[float, tuple[float, float], FindingRow]],
) -> LimitResult:
    """Broken where the lower end of an interval is above the limit, held where all upper ends are
    below it; else the sample is too small to tell. The intervals hold at 95 % for all rates of the
    run together."""
    if not rates:
        return _judge_value(
            name, limit, None, f"{what}: not measured, or the sample is too small for it"
        )
    floors = [
        (finding_selection.simultaneous_lower_end(rate, ci[0], row._context.looks), rate, row)
        for rate, ci, row in rates
    ]
    low, _, row = max(floors, key=lambda one: one[:2])
    high = max(
        1 - finding_selection.simultaneous_lower_end(1 - rate, 1 - ci[1], one._context.looks)
        for rate, ci, one in rates
    )
    outcome: Outcome = "broken" if low > limit else "holds" if high <= limit else "not decided"
    line = (
        f"{what}: between {low:.3g} and {high:.3g} ({row.attack} on {row.surface}); limit {limit:g}"
    )
    return LimitResult(name, outcome, line)


def _judge_reconstruction(
    policy: Policy, believable: Sequence[FindingRow]
) -> Iterator[LimitResult]:
    if (limit := policy.psnr_gain) is None:
        return
    rows = [row for row in believable if finding_selection.rebuilds_pictures(row) and row.baselines]
    gains = [(finding_selection.psnr_gain(row), row) for row in rows]
    gains += [
        (r.pictures.best - r.pictures.best_guess, r)
        for r in rows
        if r.pictures and finding_selection.has_clear_pictures(r)
    ]
    if not gains:
        yield _judge_value("psnr_gain", limit, None, "no attack rebuilt pictures")
        return
    gain, row = max(gains, key=lambda one: one[0])
    text = f"{gain:.1f} dB above the best blind guess ({row.attack} on {row.surface})"
    yield _judge_value("psnr_gain", limit, gain, text)


def _judge_surfaces(policy: Policy, findings: Findings) -> Iterator[LimitResult]:
    outcome: Outcome
    sent = {row.surface for row in findings.surfaces}
    if policy.verdicts:
        bad = [
            f"{row.surface} is {row.verdict}"
            for row in findings.surfaces
            if row.verdict not in policy.verdicts
        ]
        if (
            not bad and findings.verdict not in policy.verdicts
        ):  # a contradiction that is of no surface
            bad = [f"the run is {findings.verdict}"]
        undecided = all(line.endswith("untested") for line in bad) if bad else not findings.surfaces
        outcome = "not decided" if undecided else "broken" if bad else "holds"
        text = "; ".join(bad) or ("all" if findings.surfaces else "nothing was sent")
        yield LimitResult("verdicts", outcome, f"{text}; allowed: {', '.join(policy.verdicts)}")
    for surface in policy.attacked:
        row = next((row for row in findings.surfaces if row.surface == surface), None)
        outcome = "not decided"
        line = f"{surface} is not among what was sent: {', '.join(sorted(sent))}"
        if row is not None:
            outcome = "holds" if row.audited is True else "broken"
            line = f"{surface}: {'attacked' if row.audited is True else row.audited}"
        yield LimitResult(f"attacked.{surface}", outcome, line)


def fails_build(policy: Policy, results: Iterable[LimitResult]) -> bool:
    """Whether a build has to stop: a limit is broken, or was not decided and the policy does not
    let that pass."""
    return any(result.outcome in _failing_outcomes(policy) for result in results)


def _failing_outcomes(policy: Policy) -> tuple[Outcome, ...]:
    return ("broken",) if policy.not_decided == "pass" else ("broken", "not decided")


def breaks_policy(policy: Policy, findings: Findings, out: TextIO) -> bool:
    """Print the outcome of every limit -> ``fails_build``."""
    print(file=out)
    return report_limits(policy, judge_findings(policy, findings), out)


def report_limits(policy: Policy, results: Sequence[LimitResult], out: TextIO) -> bool:
    """Print whether the build passes, and the outcome of every limit -> ``fails_build``."""
    print(f"{summarise_results(policy, results)}\n{format_results(results)}", file=out)
    return fails_build(policy, results)


def summarise_results(policy: Policy, results: Sequence[LimitResult]) -> str:
    """Does the build pass? In one line."""
    counts = Counter(one.outcome for one in results)
    found = ", ".join(f"{counts[outcome]} {outcome}" for outcome in ORDER if counts[outcome])
    return f"policy: {'FAILS' if fails_build(policy, results) else 'passes'}: {found}"


# What ``Verification.deciding`` names -> the limits that it enters.
TRUSTED = {
    "epsilon shown": ("epsilon_shown", "verdicts"),
    "kappa": ("verdicts",),
    "pictures": ("psnr_gain",),
}


def doubt_trusted_numbers(
    results: Iterable[LimitResult], deciding: Iterable[str]
) -> list[LimitResult]:
    """The same, where a limit that holds is not decided if it rests on numbers that nobody can
    compute again.

    deciding: those numbers in words, as "epsilon shown by t2_likelihood_ratio".
    """
    started = (
        (words, names)
        for words in deciding
        for start, names in TRUSTED.items()
        if words.startswith(start)
    )
    doubted = {name: words for words, names in started for name in names}
    made = []
    for one in results:
        if one.outcome == "holds" and one.name in doubted:
            one = replace(
                one,
                outcome="not decided",
                line=f"{one.line}; {doubted[one.name]} is taken on trust",
            )
        made.append(one)
    return made


def format_results(results: Sequence[LimitResult]) -> str:
    """One line a limit, the broken ones first."""
    ranked = sorted(results, key=lambda one: ORDER.index(one.outcome))
    return "\n".join(f"policy: {one.outcome}: {one.name}: {one.line}" for one in ranked)


def write_junit(file: Path, runs: Mapping[str, Sequence[LimitResult]], policy: Policy) -> None:
    """JUnit XML: a test suite a run, a test case a limit. What fails the build is a failure; a
    limit that was not decided, where the policy lets that pass, is skipped."""
    failing = _failing_outcomes(policy)
    root = ElementTree.Element("testsuites", name="privdd policy")
    for run, results in runs.items():
        failed = sum(one.outcome in failing for one in results)
        skipped = sum(one.outcome != "holds" for one in results) - failed
        sizes = {"tests": str(len(results)), "failures": str(failed), "skipped": str(skipped)}
        suite = ElementTree.SubElement(root, "testsuite", {"name": run, **sizes})
        for one in results:
            case = ElementTree.SubElement(suite, "testcase", classname=run, name=one.name)
            if one.outcome != "holds":
                kind = "failure" if one.outcome in failing else "skipped"
                ElementTree.SubElement(case, kind, message=f"{one.outcome}: {one.line}")
    write_bytes(file, ElementTree.tostring(root, encoding="utf-8", xml_declaration=True))


def format_markdown(runs: Mapping[str, Sequence[LimitResult]]) -> str:
    """A table for the summary of a build."""
    lines = ["| run | limit | outcome | measured |", "|---|---|---|---|"]
    for run, results in runs.items():
        lines += [
            f"| {_cell(run)} | {one.name} | {one.outcome} | {_cell(one.line)} |" for one in results
        ]
    return "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;").replace("\n", " ")


BADGE = """<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="20" role="img" aria-label="privacy: {word}">
<rect width="58" height="20" fill="#444"/><rect x="58" width="{rest}" height="20" fill="{colour}"/>
<g fill="#fff" font-family="Verdana,sans-serif" font-size="11" text-anchor="middle">
<text x="29" y="14">privacy</text><text x="{middle}" y="14">{word}</text></g></svg>
"""


def draw_badge(results: Iterable[LimitResult]) -> str:
    """An SVG badge that says the gravest outcome of all limits."""
    found = {one.outcome for one in results}
    word, colour = next(
        (outcome, colour)
        for outcome, colour in zip(ORDER, ("#b3261e", "#8a6100", "#1a7f37", "#555555"))
        if outcome in found
    )
    rest = 8 * len(word) + 12
    return BADGE.format(width=58 + rest, rest=rest, middle=58 + rest // 2, word=word, colour=colour)
