"""An epsilon that someone states of a target, as it reads for one record exchanged for another.

The coins of ``coin_game`` show what exchanging a record does. A statement for records added or removed, or for whole
clients, covers an exchange in two steps (Dwork and Roth 2014, theorem 2.2, for a group of two):
(epsilon, delta) becomes (2 epsilon, (1 + exp(epsilon)) delta).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from privdd.core.checks import check_choice, check_number, refused
from privdd.core.errors import BadConfig

RELATIONS = ("add_remove", "replace", "zero_out")
UNITS = ("record", "client")
BY = "stated by whoever brought the target"


@dataclass(frozen=True)
class StatedLimit:
    """epsilon > 0 at delta in (0, 1) for a unit and a relation; None where nothing is stated."""

    epsilon: float | None = None
    delta: float = 1e-5
    relation: str = "replace"
    unit: str = "record"

    def __post_init__(self) -> None:
        check_number("stated.epsilon", self.epsilon, optional=True)
        check_number("stated.delta", self.delta)
        if self.epsilon is not None and not self.epsilon > 0:
            raise refused("stated.epsilon", self.epsilon, "a number above 0 is needed")
        if not 0 < self.delta < 1:
            raise refused("stated.delta", self.delta, "a number in (0, 1) is needed")
        check_choice("stated.relation", self.relation, RELATIONS)
        check_choice("stated.unit", self.unit, UNITS)
        if self.epsilon is not None and self.exchanged()[1] >= 1:
            raise BadConfig(
                f"stated.epsilon={self.epsilon:g} stated.delta={self.delta:g} {self.relation}: allows anything to be "
                "learned of a record that is exchanged for another, so nothing can contradict it"
            )

    def exchanged(self) -> tuple[float, float]:
        """(epsilon, delta) for one record exchanged for another; epsilon infinite where nothing is stated."""
        epsilon = math.inf if self.epsilon is None else float(self.epsilon)
        if self.relation == "replace" or self.epsilon is None:
            return epsilon, self.delta
        return 2 * epsilon, (1 + math.exp(min(epsilon, 700.0))) * self.delta  # exp of more than 709 overflows

    def claims(self) -> list[dict[str, Any]]:
        """``privacy.claims`` of findings.json."""
        if self.epsilon is None:
            return []
        epsilon, delta = self.exchanged()
        why = "nothing here shows how it was derived; only attacks were run"
        if self.relation != "replace":
            why = (
                f"stated is epsilon = {self.epsilon:g} at delta = {self.delta:g} for one {self.unit} "
                f"({self.relation}); one record exchanged for another is two such steps; {why}"
            )
        return [{"source": BY, "epsilon": epsilon, "delta": delta, "sound": False, "why": why}]


def stated_limit(given: Mapping[str, Any]) -> StatedLimit:
    """From ``stated.*`` settings without their prefix. Raises BadConfig; without an epsilon nothing else may be given."""
    if given and given.get("epsilon") is None:
        raise BadConfig(f"stated.{next(iter(given))}: stated.epsilon is needed beside it")
    known = ("epsilon", "delta", "relation", "unit")
    if unknown := [name for name in given if name not in known]:
        raise BadConfig(f"stated.{unknown[0]}: unknown; known are {', '.join(f'stated.{name}' for name in known)}")
    return StatedLimit(**given)
