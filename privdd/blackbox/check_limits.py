"""Limits of a policy that the result of a check has to keep."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from privdd.blackbox.check_verdict import Checked
from privdd.reporting.policy import LimitResult, Outcome, Policy
from privdd.runtime.files import DamagedRun, read_json

# kind of mechanism -> whose data may change
UNITS = {"update": "update", "aggregate": "client", "records": "record"}
LONGEST = 200  # characters of a message
NO_RECORDS = "a check calls a mechanism, and reads no records and no surfaces"


def read_check(folder: Path) -> Checked | None:
    """What ``privdd.check ... out=FOLDER`` wrote.

    Args:
        folder: of any kind.

    Returns:
        None for a folder of anything else.

    Raises:
        DamagedRun: one line.
    """
    path = folder / "findings.json"
    values = read_json(path)
    if not isinstance(values, dict) or "mechanism" not in values:
        return None
    try:
        return Checked.from_json(values)
    except ValueError as error:
        message = " ".join(str(error).split())[:LONGEST]
        raise DamagedRun(f"{path}: not the findings of a check: {message}") from None


def judge_check(policy: Policy, result: Checked) -> list[LimitResult]:
    """The outcome of every limit that the policy sets.

    Args:
        policy: the limits.
        result: of a check.

    Returns:
        One for each limit; if none of them applies to a check, none is decided.
    """
    claim = result.stated
    terms = f"delta {claim.delta:g}, one {UNITS[claim.kind]}, {claim.relation}"
    results = []
    if policy.epsilon_proven is not None:
        results.append(_judge_proven(policy.epsilon_proven, result, terms))
    if policy.epsilon_shown is not None:
        results.append(_judge_shown(policy.epsilon_shown, result, terms))
    if policy.verdicts:
        results.append(_judge_verdict(policy, result))
    results += [
        LimitResult(name, "does not apply", NO_RECORDS) for name in _limits_of_records(policy)
    ]
    if all(item.outcome == "does not apply" for item in results):
        return [replace(item, outcome="not decided") for item in results]
    return results


def _judge_proven(limit: float, result: Checked, terms: str) -> LimitResult:
    stated = result.stated.epsilon
    is_broken = stated > limit or result.refuted
    if result.refuted:
        text = "refuted"
    else:
        text = "a check proves no upper bound"
    line = f"{stated:g} is stated ({terms}), {text}; limit {limit:g}"
    return LimitResult("epsilon_proven", "broken" if is_broken else "does not apply", line)


def _judge_shown(limit: float, result: Checked, terms: str) -> LimitResult:
    outcome: Outcome = "holds"
    if result.certified > limit:
        outcome = "broken"
    elif result.is_undecided:
        outcome = "not decided"
    line = (
        f"shown at least {result.certified:.4g} ({terms}) at confidence "
        f"{result.confidence:g}; limit {limit:g}"
    )
    return LimitResult("epsilon_shown", outcome, line)


def _judge_verdict(policy: Policy, result: Checked) -> LimitResult:
    verdict = "consistent"
    if result.refuted:
        verdict = "contradiction"
    elif result.is_undecided:
        verdict = "untested"
    outcome: Outcome
    if verdict == "untested":
        outcome = "not decided"
    else:
        outcome = "broken"
    if verdict in policy.verdicts:
        outcome = "holds"
    allowed = ", ".join(policy.verdicts)
    line = f"{result.mechanism} is {verdict} ({result.verdict}); allowed: {allowed}"
    return LimitResult("verdicts", outcome, line)


def _limits_of_records(policy: Policy) -> list[str]:
    """Names of limits that are about records and surfaces."""
    names = [f"tpr_at_fpr.{rate:g}" for rate in policy.tpr_at_fpr]
    for name in ("auc", "identified_records", "psnr_gain"):
        if getattr(policy, name) is not None:
            names.append(name)
    return names + [f"attacked.{surface}" for surface in policy.attacked]
