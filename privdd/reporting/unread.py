"""What has no rate to report: attacks that had nothing to read, and runs whose training diverged, of which none was attacked.

The report says of neither that an attack found something, nor that it failed.
"""

from __future__ import annotations

from collections.abc import Iterable

from privdd.reporting.schema import FindingRow, Findings
from privdd.reporting.words import number

SENTENCE = (
    "No membership attack of this audit found in what was sent what it reads, so none has a rate. That says nothing of "
    "what other attacks would find."
)
UNSCORED = "no membership attack of this audit could be scored on it"


def unread(findings: Findings) -> list[FindingRow]:
    """The attacks that found nothing of what they read in what was sent."""
    return [row for row in findings.findings if row.status == "nothing_to_read"]


def only_unread(rows: Iterable[FindingRow]) -> bool:
    """Whether membership attacks were tried, and none of them had anything to read."""
    tried = [row.status for row in rows if row.family == "membership" and row.status != "not_attacked"]
    return bool(tried) and set(tried) == {"nothing_to_read"}


def without_model(findings: Findings) -> tuple[str, tuple[str, ...]] | None:
    """(title, sentences) of a diverged run; None for every other one."""
    utility = findings.utility
    if utility is None or utility.diverged is None:
        return None
    epsilon = number(findings.privacy.epsilon.best)
    return f"Training diverged in round {utility.diverged}: there is no model to judge.", (
        "Its numbers are not finite, so it predicts nothing and no attack was run; a lower learning rate may help.",
        f"The ledger still covers all that was sent (ε = {epsilon}), but nothing here was put to the test.",
    )
