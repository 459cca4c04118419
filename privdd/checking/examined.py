"""What an examination has found so far."""

from __future__ import annotations

from dataclasses import dataclass, field

from privdd.checking.looks import Looked


@dataclass
class Examined:
    """looks, and what was found out about the mechanism on the way."""

    looks: list[Looked] = field(default_factory=list)
    kappa: float | None = None
    about: float | None = None  # best guess of epsilon, under the noise's law
    law: str = ""
    worst: str = ""
    notes: list[str] = field(default_factory=list)
    first: list[float] = field(default_factory=list)

    @property
    def refuted(self) -> bool:
        return any(look.outcome == "refuted" for look in self.looks)
