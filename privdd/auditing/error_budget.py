"""One error budget for every finite-sample bound that can decide a verdict.

``1 - audit.confidence`` is the chance that any of a run's bounds contradicts a true statement. It is shared in equal
parts (Bonferroni) by the bounds of membership attacks and of guarantee tests, which are counted before any is made.
"""

from __future__ import annotations

from dataclasses import dataclass

PER_MECHANISM = 6  # T0: noise, sampling; T2; T3: transcript, curve, what is finally sent. At most so many are made
WHOLE_RUN = 1  # T2 on all that the audited client sends, where there are mechanisms
CANARIES = 2  # of a game of canaries: a point, and the curve


@dataclass(frozen=True)
class ErrorBudget:
    """alpha: chance of any false contradiction, in (0, 1); tests: how many bounds share it, at least one; replaced: how
    many of these were made by earlier commands, and others stand in their place."""

    alpha: float
    tests: int = 1
    replaced: int = 0

    def __post_init__(self) -> None:
        if not 0 < self.alpha < 1:
            raise ValueError(f"alpha={self.alpha}: a number in (0, 1) is needed")
        if self.tests < 1:
            raise ValueError(f"tests={self.tests}: at least 1 is needed")

    @property
    def share(self) -> float:
        """The chance of a false contradiction that each bound may use."""
        return self.alpha / self.tests

    @property
    def confidence(self) -> float:
        """Of each bound, so that all of them hold together at 1 - alpha."""
        return 1 - self.share

    def to_json(self) -> dict[str, float]:
        """``privacy.multiplicity`` of findings.json."""
        return {"alpha": self.alpha, "tests": self.tests, **({"replaced": self.replaced} if self.replaced else {})}


def error_budget(
    confidence: float, membership: int, mechanisms: int, *, canaries: bool = False, replaced: int = 0
) -> ErrorBudget:
    """The budget of a run: confidence, of all bounds together; membership tests; mechanisms with guarantee tests; whether
    the run has a game of canaries; bounds of earlier commands that others replaced."""
    alpha = round(1 - confidence, 12)  # 0.05 for 0.95, not 0.050000000000000044
    tests = membership + PER_MECHANISM * mechanisms + WHOLE_RUN * (mechanisms > 0) + CANARIES * canaries
    return ErrorBudget(alpha, max(1, tests + replaced), replaced)
