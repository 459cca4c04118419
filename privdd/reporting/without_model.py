"""What a page says of a run whose training diverged: nothing was attacked, and its accuracy is that of no model."""

from __future__ import annotations

from privdd.reporting.schema import Findings
from privdd.reporting.words import number


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
