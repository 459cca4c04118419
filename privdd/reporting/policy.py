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
    Scope,
    Unit,
    Verdict,
    first_error_line,
)
from privdd.reporting.summary import believable_findings
from privdd.reporting.wording import format_number
from privdd.runtime.files import DamagedRun, write_bytes
from privdd.runtime.own_yaml import compose_own_yaml
from privdd.runtime.yaml_files import parse_yaml, read_yaml

Outcome = Literal["holds", "broken", "not decided", "does not apply"]
ORDER: tuple[Outcome, ...] = ("broken", "not decided", "holds", "does not apply")
EXIT_BROKEN = 3
# What ``Verification.deciding`` names -> the limits that it enters.
TRUSTED = {
    "epsilon shown": ("epsilon_shown", "verdicts"),
    "kappa": ("verdicts",),
    "pictures": ("psnr_gain",),
}

COLOURS: Mapping[Outcome, str] = {
    "broken": "#b3261e",
    "not decided": "#8a6100",
    "holds": "#1a7f37",
    "does not apply": "#555555",
}
BADGE = """<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="20" role="img"\
 aria-label="privacy: {word}">
<rect width="58" height="20" fill="#444"/><rect x="58" width="{rest}" height="20" fill="{colour}"/>
<g fill="#fff" font-family="Verdana,sans-serif" font-size="11" text-anchor="middle">
<text x="29" y="14">privacy</text><text x="{middle}" y="14">{word}</text></g></svg>
"""


class PolicyError(ValueError):
    """A policy that cannot be used; the message is one line."""


def _check_rates(limits: dict[float, float]) -> dict[float, float]:
    for rate in limits:
        if not 0 < rate < 1:
            raise ValueError(f"{rate:g}: a false-positive rate between 0 and 1 is needed")
    return limits


class Policy(Part):
    """The limits of ``policy.yaml``; a limit that is left out is not looked at.

    Attributes:
        epsilon_proven: Largest upper bound by accounting.
        epsilon_shown: Largest lower bound by attacks and tests.
        tpr_at_fpr: False-positive rate -> largest true-positive rate.
        auc: Of membership attacks.
        identified_records: How many single records may be exposed.
        psnr_gain: dB above the best blind guess, of the typical reconstruction, or of the best if
            single ones stand out.
        verdicts: Those that a surface may have.
        attacked: Surfaces that must have been attacked.
        not_decided: Whether a limit that could not be decided fails a build.
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
    """Read a policy.

    Args:
        file: A yaml file of limits, or None.
        limits: Limits of the command line, which stand in place of the file's own; None is no
            limit.

    Returns:
        The policy.

    Raises:
        PolicyError: The file cannot be read, a limit is unknown, a value is wrong, or there is no
            limit at all (one line).
    """
    settings: Any = {}
    lines: dict[str, int] = {}
    if file is not None:
        try:
            lines = _key_lines(file)
            settings = read_yaml(file.resolve()) or {}  # a link of the user's own may be followed
        except (ValueError, OSError, DamagedRun) as error:
            raise PolicyError(" ".join(str(error).split())) from None
    settings |= {name: limit for name, limit in (limits or {}).items() if limit is not None}
    if not settings.keys() - {"not_decided"}:
        hint = "privdd gate init=true writes one"
        raise PolicyError(f"policy: no limit is set, so nothing could be broken; {hint}")
    try:
        return Policy.model_validate(settings)
    except ValidationError as error:
        name = str(error.errors()[0]["loc"][0])
        place = f"{file}:{lines.get(name, 1)}: "
        if file is None or name in (limits or {}):
            place = "fail_on."
        raise PolicyError(f"{place}{_explain_limit(error, name)}") from None


def _key_lines(file: Path) -> dict[str, int]:
    """Key -> line of a policy's file. Raises BadConfig, FILE:LINE and one sentence, for what is no
    YAML of keys and values."""
    node = compose_own_yaml(file)
    if node is None:
        return {}
    return {str(key.value): key.start_mark.line + 1 for key, _ in node.value}


def _explain_limit(error: ValidationError, name: str) -> str:
    allowed = [*Policy.model_fields]
    if name in allowed:
        return first_error_line(error)
    matches = difflib.get_close_matches(name, allowed, 1)
    hint = f"did you mean {matches[0]}? " if matches else ""
    return f"{name}: unknown limit; {hint}limits are {', '.join(allowed)}"


def policy_of_settings(settings: Mapping[str, Any]) -> Policy | None:
    """The policy of the settings ``policy`` (a file) and ``fail_on`` (limits by name); None where
    they set no limit."""
    file = settings.get("policy")
    limits = settings.get("fail_on") or {}
    if file is None and all(limit is None for limit in limits.values()):
        return None
    return load_policy(Path(file) if file else None, limits)


def policy_of_arguments(arguments: Mapping[str, str]) -> Policy | None:
    """The same of arguments by key: policy=FILE, fail_on.LIMIT=VALUE."""
    items = [
        f"{key.removeprefix('fail_on.')}={text}"
        for key, text in arguments.items()
        if key.startswith("fail_on.")
    ]
    return policy_of_settings({"policy": arguments.get("policy"), "fail_on": parse_limits(items)})


def parse_limits(items: Iterable[str]) -> dict[str, Any]:
    """LIMIT=VALUE, or tpr_at_fpr.RATE=VALUE -> limits by name. Raises PolicyError, one line."""
    limits: dict[str, Any] = {}
    for item in items:
        name, is_set, value = item.partition("=")
        head, _, rate = name.partition(".")
        try:
            number = parse_yaml(value)
        except ValueError:
            is_set = ""
        if not is_set or (rate and not isinstance(limits.get(head, {}), dict)):
            raise PolicyError(
                f"fail_on {item}: LIMIT=VALUE is needed, as in auc=0.6 or tpr_at_fpr.0.01=0.05"
            )
        if rate:
            limits[head] = {**limits.get(head, {}), rate: number}
        else:
            limits[head] = number
    return limits


def judge_findings(policy: Policy, findings: Findings) -> list[LimitResult]:
    """Hold every limit of a policy against a run.

    Args:
        policy: The limits.
        findings: The run's findings.json; what cannot be read as a leak
            (``believable_findings``) decides none.

    Returns:
        The outcome of each limit that the policy sets.
    """
    rows = believable_findings(findings.findings, findings)
    return [
        *_judge_epsilon(policy, findings),
        *_judge_membership(policy, rows, findings.scope),
        *_judge_reconstruction(policy, rows, findings.scope),
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
                "nothing is proven: the clients' messages are unprotected, epsilon is infinite "
                f"({terms})"
            )
        yield _judge_value("epsilon_proven", limit, proven, text)
    if (limit := policy.epsilon_shown) is not None:
        bounds = (finding_selection.shown_epsilon(findings.findings), privacy.epsilon.shown)
        shown = max((bound for bound in bounds if bound is not None), default=None)
        text = f"shown at least {format_number(shown)} ({terms})"
        if shown is None:
            text = "no sound test bounded epsilon from below"
        yield _judge_value("epsilon_shown", limit, shown, text)


def _judge_value(name: str, limit: float, value: float | None, text: str) -> LimitResult:
    """A limit on a number, None if there is none."""
    outcome: Outcome = "holds"
    if value is None:
        outcome = "not decided"
    elif value > limit:
        outcome = "broken"
    return LimitResult(name, outcome, f"{text}; limit {limit:g}")


def _judge_membership(
    policy: Policy, believable: Sequence[FindingRow], scope: Scope
) -> Iterator[LimitResult]:
    rows = [row for row in believable if row.family == "membership"]
    for fpr, limit in policy.tpr_at_fpr.items():
        rates = [
            _Rate(result.at.tpr, result.at.ci, result.row)
            for result in finding_selection.ranked_memberships(rows, scope)
            if result.at and result.fpr == fpr
        ]
        what = f"true-positive rate at a false-positive rate of {fpr:g}"
        yield _judge_rates(f"tpr_at_fpr.{fpr:g}", limit, what, rates, scope)
    if policy.auc is not None:
        rates = [
            _Rate(row.auc, row.auc_ci, row)
            for row in rows
            if row.auc is not None and row.auc_ci is not None
        ]
        yield _judge_rates("auc", policy.auc, "AUC of membership", rates, scope)
    if policy.identified_records is not None:
        count: int | None = None
        text = "no attack reads single records"
        judged = [row for row in rows if row.worst_records is not None]
        if judged:
            count = max(len(finding_selection.exposed_records(row, scope)) for row in judged)
            text = f"{count} records are identified more often than by chance"
        yield _judge_value("identified_records", policy.identified_records, count, text)


@dataclass(frozen=True)
class _Rate:
    """A rate in [0, 1] with its 95 % interval, and the finding that it is of."""

    rate: float
    interval: tuple[float, float]
    row: FindingRow

    def lower_end(self, scope: Scope) -> float:
        return finding_selection.simultaneous_lower_end(self.rate, self.interval[0], scope.looks)

    def upper_end(self, scope: Scope) -> float:
        # the lower end of the share of misses
        return 1 - finding_selection.simultaneous_lower_end(
            1 - self.rate, 1 - self.interval[1], scope.looks
        )


def _judge_rates(
    name: str, limit: float, what: str, rates: Sequence[_Rate], scope: Scope
) -> LimitResult:
    """Broken if the lower end of an interval is above the limit, held if all upper ends are below
    it; else the sample is too small to tell. The intervals hold at 95 % for all rates of the run
    together."""
    if not rates:
        text = f"{what}: not measured, or the sample is too small for it"
        return _judge_value(name, limit, None, text)
    highest = max(rates, key=lambda rate: (rate.lower_end(scope), rate.rate))
    low = highest.lower_end(scope)
    high = max(rate.upper_end(scope) for rate in rates)
    outcome: Outcome = "not decided"
    if low > limit:
        outcome = "broken"
    elif high <= limit:
        outcome = "holds"
    source = f"{highest.row.attack} on {highest.row.surface}"
    line = f"{what}: between {low:.3g} and {high:.3g} ({source}); limit {limit:g}"
    return LimitResult(name, outcome, line)


def _judge_reconstruction(
    policy: Policy, believable: Sequence[FindingRow], scope: Scope
) -> Iterator[LimitResult]:
    limit = policy.psnr_gain
    if limit is None:
        return
    rows = [row for row in believable if finding_selection.rebuilds_pictures(row) and row.baselines]
    gains = [(finding_selection.psnr_gain(row), row) for row in rows]
    for row in rows:
        images = row.pictures
        if images is not None and finding_selection.has_clear_pictures(row, scope):
            gains.append((images.best - images.best_guess, row))
    if not gains:
        yield _judge_value("psnr_gain", limit, None, "no attack reconstructed images")
        return
    gain, row = max(gains, key=lambda pair: pair[0])
    text = f"{gain:.1f} dB above the best blind guess ({row.attack} on {row.surface})"
    yield _judge_value("psnr_gain", limit, gain, text)


def _judge_surfaces(policy: Policy, findings: Findings) -> Iterator[LimitResult]:
    if policy.verdicts:
        yield _judge_verdicts(policy.verdicts, findings)
    for surface in policy.attacked:
        yield _judge_attacked(surface, findings)


def _judge_verdicts(allowed: Sequence[Verdict], findings: Findings) -> LimitResult:
    refused = [row for row in findings.surfaces if row.verdict not in allowed]
    verdicts = [f"{row.surface} is {row.verdict}" for row in refused]
    if not verdicts and findings.verdict not in allowed:  # a contradiction that is of no surface
        verdicts = [f"the run is {findings.verdict}"]
    outcome: Outcome = "holds"
    text = "all"
    if verdicts:
        is_untested = all(line.endswith("untested") for line in verdicts)
        outcome = "not decided" if is_untested else "broken"
        text = "; ".join(verdicts)
    elif not findings.surfaces:
        outcome = "not decided"
        text = "nothing was sent"
    return LimitResult("verdicts", outcome, f"{text}; allowed: {', '.join(allowed)}")


def _judge_attacked(surface: str, findings: Findings) -> LimitResult:
    name = f"attacked.{surface}"
    for row in findings.surfaces:
        if row.surface == surface and row.audited is True:
            return LimitResult(name, "holds", f"{surface}: attacked")
        if row.surface == surface:
            return LimitResult(name, "broken", f"{surface}: {row.audited}")
    sent = sorted({row.surface for row in findings.surfaces})
    line = f"{surface} was not sent: {', '.join(sent)}"
    return LimitResult(name, "not decided", line)


def fails_build(policy: Policy, results: Iterable[LimitResult]) -> bool:
    """Whether a build has to stop: a limit is broken, or was not decided and the policy does not
    let that pass."""
    return any(result.outcome in _failing_outcomes(policy) for result in results)


def _failing_outcomes(policy: Policy) -> tuple[Outcome, ...]:
    if policy.not_decided == "pass":
        return ("broken",)
    return ("broken", "not decided")


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
    counts = Counter(result.outcome for result in results)
    outcomes = [f"{counts[outcome]} {outcome}" for outcome in ORDER if counts[outcome]]
    answer = "FAILS" if fails_build(policy, results) else "passes"
    return f"policy: {answer}: {', '.join(outcomes)}"


def doubt_trusted_numbers(
    results: Iterable[LimitResult], deciding: Iterable[str]
) -> list[LimitResult]:
    """Leave undecided what rests on numbers that nobody can compute again.

    Args:
        results: Outcomes of limits.
        deciding: Those numbers in words, as "epsilon shown by t2_likelihood_ratio".

    Returns:
        The same outcomes, but that a limit which holds on such a number is not decided.
    """
    doubts: dict[str, str] = {}  # limit -> the number
    for words in deciding:
        for start, limits in TRUSTED.items():
            if words.startswith(start):
                doubts |= dict.fromkeys(limits, words)
    return [_doubt_result(result, doubts) for result in results]


def _doubt_result(result: LimitResult, doubts: Mapping[str, str]) -> LimitResult:
    if result.outcome != "holds" or result.name not in doubts:
        return result
    line = f"{result.line}; {doubts[result.name]} is taken on trust"
    return replace(result, outcome="not decided", line=line)


def format_results(results: Sequence[LimitResult]) -> str:
    """One line a limit, the broken ones first."""
    ranked = sorted(results, key=lambda result: ORDER.index(result.outcome))
    return "\n".join(f"policy: {result.outcome}: {result.name}: {result.line}" for result in ranked)


def write_junit(file: Path, runs: Mapping[str, Sequence[LimitResult]], policy: Policy) -> None:
    """JUnit XML: a test suite a run, a test case a limit. What fails the build is a failure; a
    limit that was not decided, where the policy lets that pass, is skipped."""
    failing = _failing_outcomes(policy)
    root = ElementTree.Element("testsuites", name="privdd policy")
    for run, results in runs.items():
        failed = len([result for result in results if result.outcome in failing])
        skipped = len([result for result in results if result.outcome != "holds"]) - failed
        sizes = {"tests": str(len(results)), "failures": str(failed), "skipped": str(skipped)}
        suite = ElementTree.SubElement(root, "testsuite", {"name": run, **sizes})
        for result in results:
            case = ElementTree.SubElement(suite, "testcase", classname=run, name=result.name)
            if result.outcome != "holds":
                kind = "failure" if result.outcome in failing else "skipped"
                ElementTree.SubElement(case, kind, message=f"{result.outcome}: {result.line}")
    write_bytes(file, ElementTree.tostring(root, encoding="utf-8", xml_declaration=True))


def format_markdown(runs: Mapping[str, Sequence[LimitResult]]) -> str:
    """A table for the summary of a build."""
    lines = ["| run | limit | outcome | measured |", "|---|---|---|---|"]
    for run, results in runs.items():
        for result in results:
            cells = (_cell(run), result.name, result.outcome, _cell(result.line))
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;").replace("\n", " ")


def draw_badge(results: Iterable[LimitResult]) -> str:
    """An SVG badge that says the gravest outcome of all limits."""
    outcomes = {result.outcome for result in results}
    word = next(outcome for outcome in ORDER if outcome in outcomes)
    rest = 8 * len(word) + 12
    return BADGE.format(
        width=58 + rest, rest=rest, middle=58 + rest // 2, word=word, colour=COLOURS[word]
    )
