"""A claim: what a paper states about privacy, for the run at hand."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from privdd.privacy.accounting import check_delta

DELTA = 1e-5  # at which FedDM and FedRD evaluate their theorems; FedFed names none
NO_NUMBER = "no number"


@dataclass(frozen=True)
class Claim:
    """What a paper states. Claims never enter the accounting.

    source: paper and theorem; epsilon: >= 0 or infinite, None where the paper gives no number (an order of
    magnitude, a sentence); sound: a proof covers this run; why: one line; delta: at which epsilon is stated;
    choices: what the paper leaves open and what was chosen, and the claim for the paper's own values;
    neighbours: unit and neighbouring data sets in the paper's words; tested_by: the attacks that measure it.
    """

    source: str
    epsilon: float | None
    sound: bool
    why: str
    delta: float | None = None
    choices: tuple[str, ...] = ()
    neighbours: str = ""
    tested_by: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.epsilon is not None and not self.epsilon >= 0:
            raise ValueError(f"epsilon={self.epsilon!r}: a number of at least 0, infinity or None is needed")
        if self.delta is not None:
            check_delta(self.delta)

    def to_json(self) -> dict[str, Any]:
        """The entry of findings.json; what does not apply is left out."""
        value: float | str = NO_NUMBER if self.epsilon is None else self.epsilon
        if self.epsilon is not None and math.isinf(self.epsilon):
            value = "inf"
        more = {
            "delta": self.delta,
            "choices": list(self.choices),
            "neighbours": self.neighbours,
            "tested_by": list(self.tested_by),
        }
        head = {"source": self.source, "epsilon": value, "sound": self.sound, "why": self.why}
        return head | {name: part for name, part in more.items() if part}


def boldest(claims: Iterable[Claim]) -> Claim | None:
    """The claim of the smallest epsilon; None where no claim gives a number."""
    return min((c for c in claims if c.epsilon is not None), key=lambda c: c.epsilon or 0.0, default=None)
