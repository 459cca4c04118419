"""Many tests, one confidence: every test takes its share of the error probability, and there are only so many shares."""

from __future__ import annotations

from dataclasses import dataclass

from privdd.checking.sampled import OutOfTime

SHARES = 100


class OutOfShares(OutOfTime):
    """Every share is taken: a further bound would not hold at the confidence that is said."""


@dataclass
class ErrorShares:
    """confidence: of all tests together, by the union bound; taken: tests so far, at most ``SHARES``."""

    confidence: float
    taken: int = 0

    def one(self, tests: int = 1) -> float:
        """The confidence of the next test, or of each of several. Raises OutOfShares where fewer are left."""
        if self.taken + tests > SHARES:
            raise OutOfShares
        self.taken += tests
        return 1 - (1 - self.confidence) / SHARES
