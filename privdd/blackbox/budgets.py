"""What a check may spend: calls, time, and the probability of an error."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace

from attacks.statistics import shared_confidence
from privdd.blackbox.mechanism import BlackBox

WAITS = 12  # times the seconds of processor time, on the wall, that a mechanism may wait
SHARES = 100  # tests that share the error probability, at most


class OutOfTime(Exception):
    """The time is spent: what is known so far is the answer."""


class OutOfCalls(OutOfTime):
    """The calls are spent."""


class OutOfShares(OutOfTime):
    """Every share is taken: a further bound would not hold at the confidence that is said."""


@dataclass
class CallBudget:
    """Calls, in which every look is planned, so that a busy machine makes the same looks as an idle
    one; and the time that ends the check, whatever is left to look at.

    Attributes:
        seconds: of processor time. A mechanism that waits is stopped at ``WAITS`` times that on the
            wall.
        calls: of the mechanism.
        began: processor time at the start, in seconds.
        wall: time on the wall at the start, in seconds.
    """

    seconds: float
    calls: int
    began: float = field(default_factory=time.process_time)
    wall: float = field(default_factory=time.monotonic)

    def seconds_left(self) -> float:
        """Of processor time; below 0 if the time is spent."""
        worked = time.process_time() - self.began
        waited = time.monotonic() - self.wall
        return self.seconds - max(worked, waited / WAITS)

    def calls_left(self, mechanism: BlackBox) -> int:
        """At least 0."""
        return max(0, self.calls - mechanism.calls)

    def check_time(self) -> None:
        """Raises OutOfTime."""
        if self.seconds_left() <= 0:
            raise OutOfTime

    def check_budget(self, mechanism: BlackBox) -> None:
        """Raises OutOfTime, or OutOfCalls."""
        self.check_time()
        if self.is_spent(mechanism):
            raise OutOfCalls

    def is_spent(self, mechanism: BlackBox) -> bool:
        """Whether no calls are left."""
        return mechanism.calls >= self.calls

    def split_share(self, mechanism: BlackBox, share: float) -> CallBudget:
        """A budget of a share of the calls that are left, which ends at the same time."""
        calls = mechanism.calls + int(share * self.calls_left(mechanism))
        return replace(self, calls=calls)


@dataclass(frozen=True)
class BoundLevel:
    """delta, and the confidence, of a lower bound on epsilon."""

    delta: float
    confidence: float

    @property
    def error(self) -> float:
        """The probability that the bound may be wrong."""
        return 1 - self.confidence


@dataclass
class ErrorShares:
    """confidence: of all tests together, by the union bound; taken: tests so far, at most
    ``SHARES``."""

    confidence: float
    taken: int = 0

    def next_confidence(self, tests: int = 1) -> float:
        """The confidence of the next test, or of each of several: 1 - (1 - confidence) / SHARES.

        By Bonferroni over a fixed number of tests, as later tests are chosen by what earlier ones
        saw. Raises OutOfShares if fewer shares are left.
        """
        if self.taken + tests > SHARES:
            raise OutOfShares
        self.taken += tests
        return shared_confidence(self.confidence, SHARES)
