"""A policy held against the check of a mechanism, as it is against an audit's findings."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from privdd.blackbox.verdict import Checked
from privdd.reporting.policy import LimitResult, Outcome, Policy
from privdd.runtime.files import DamagedRun, read_json

UNITS = {"update": "update", "aggregate": "client", "records": "record"}  # kind of mechanism -> whose data may change
NO_RECORDS = "a check calls a mechanism, and looks at no records and no surfaces"


def read_check(folder: Path) -> Checked | None:
    """What ``privdd.check ... out=FOLDER`` found; None for a folder of anything else. Raises DamagedRun, one line."""
    found = read_json(folder / "findings.json")
    if not isinstance(found, dict) or "mechanism" not in found:
        return None
    try:
        return Checked.from_json(found)
    except (KeyError, TypeError, ValueError) as error:
        raise DamagedRun(f"{folder / 'findings.json'}: not what a check writes: {error}") from None


def judge_check(policy: Policy, found: Checked) -> list[LimitResult]:
    """The outcome of every limit that the policy sets; where none of them applies to a check, none is decided."""
    results = [*_judge_epsilon(policy, found), *_judge_verdict(policy, found)]
    results += [LimitResult(name, "does not apply", NO_RECORDS) for name in _limits_of_records(policy)]
    if all(one.outcome == "does not apply" for one in results):
        return [replace(one, outcome="not decided") for one in results]
    return results


def _judge_epsilon(policy: Policy, found: Checked) -> Iterator[LimitResult]:
    stated = found.stated
    terms = f"delta {stated.delta:g}, one {UNITS[stated.kind]}, {stated.relation}"
    if (limit := policy.epsilon_proven) is not None:
        broken = stated.epsilon > limit or found.refuted
        text = "refuted" if found.refuted else "a check proves no upper bound"
        line = f"{stated.epsilon:g} is stated ({terms}), {text}; limit {limit:g}"
        yield LimitResult("epsilon_proven", "broken" if broken else "does not apply", line)
    if (limit := policy.epsilon_shown) is not None:
        outcome: Outcome = "broken" if found.certified > limit else "not decided" if found.is_unfinished else "holds"
        line = f"shown at least {found.certified:.4g} ({terms}) at confidence {found.confidence:g}; limit {limit:g}"
        yield LimitResult("epsilon_shown", outcome, line)


def _judge_verdict(policy: Policy, found: Checked) -> Iterator[LimitResult]:
    if policy.verdicts:
        verdict = "contradiction" if found.refuted else "untested" if found.is_unfinished else "consistent"
        missed: Outcome = "not decided" if verdict == "untested" else "broken"
        line = f"{found.mechanism} is {verdict} ({found.verdict}); allowed: {', '.join(policy.verdicts)}"
        yield LimitResult("verdicts", "holds" if verdict in policy.verdicts else missed, line)


def _limits_of_records(policy: Policy) -> Iterator[str]:
    yield from (f"tpr_at_fpr.{rate:g}" for rate in policy.tpr_at_fpr)
    yield from (name for name in ("auc", "identified_records", "psnr_gain") if getattr(policy, name) is not None)
    yield from (f"attacked.{surface}" for surface in policy.attacked)
