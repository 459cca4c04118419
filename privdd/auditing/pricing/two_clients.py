"""What one round's client work takes, from two clients: one of usual size and the audited one. What the usual one
sends is handed to the server in all others' names, so that the server has its own work."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from privdd.core.long_loops import LoopsInPart
from privdd.core.types import Records
from privdd.federated.simulation import Step, Task
from privdd.runtime.engine import Engine
from privdd.runtime.time_limit import Overdue, at_most
from privdd.runtime.workers import threads

LONGEST = 6.0  # CPU seconds after which a client's round is stopped that has not reached a loop of counted turns
COSTLY = 4.0  # CPU seconds of timing one client, from which the other is not timed
SHARES = (1, 16, 256)  # a client that was stopped is timed on one in so many of its records


class TooLong(Exception):
    """A client's round takes longer than ``LONGEST`` on so few records too."""


@dataclass(frozen=True)
class TwoClients(Engine):
    """An engine that runs two clients' tasks. took: client -> CPU seconds of its latest round; inside: of all that was
    run here; share: the records of a client, over those that it was timed on."""

    part: LoopsInPart = field(default_factory=lambda: LoopsInPart(0.0))
    victim: int = 0
    took: dict[int, float] = field(default_factory=dict)
    inside: list[float] = field(default_factory=list)
    share: list[int] = field(default_factory=lambda: [1])

    def map(self, fn: Callable[[Any], Any], items: Iterable[Any]) -> Iterator[Any]:
        """Raises TooLong."""
        work: list[Task] = list(items)
        began, clock = self.part.spent(), time.process_time()
        usual = usual_of(work)
        self.took.clear()
        told = {usual.client: self._told(fn, usual)}
        for task in work:
            if task.client == self.victim != usual.client and time.process_time() - clock < COSTLY:
                told[task.client] = self._told(fn, task)
        self.took.setdefault(self.victim, self.took[usual.client])
        self.inside.append(self.part.spent() - began)
        yield from (told.get(task.client) or renamed(told[usual.client], task.client) for task in work)

    def usual(self) -> float:
        """CPU seconds of the usual client's latest round."""
        return next(iter(self.took.values()))

    def _told(self, fn: Callable[[Task], Step], task: Task) -> Step:
        """What a client answers; on fewer of its records where it takes long. ``took`` is as on all of them."""
        for share in SHARES[SHARES.index(self.share[0]) :]:
            self.share[0] = share
            if one := self._timed(fn, task, share):
                grows = share > 1 and one.turns and one.turns > 2 * self._turns(fn, task)
                self.took[task.client] = one.unlooped * share + one.looped * (share if grows else 1)
                return one.answer
        raise TooLong

    def _turns(self, fn: Callable[[Task], Step], task: Task) -> int:
        """Turns of all loops on the fewest records: as many as on more of them where they are steps, not epochs."""
        fewest = self._timed(fn, task, SHARES[-1])
        return fewest.turns if fewest else 0

    def _timed(self, fn: Callable[[Task], Step], task: Task, share: int) -> Timed | None:
        """One in ``share`` of the records; None where it was stopped."""
        fewer = replace(task, shard=replace(task.shard, train=one_in(task.shard.train, share)))
        part = self.part
        began, looped, counted = part.spent(), part.looped, part.turns
        try:
            with threads(self.threads), at_most(LONGEST, unless=lambda: part.turns > counted):
                answer = fn(fewer)
        except Overdue:
            return None
        looped = part.looped - looped
        return Timed(answer, part.spent() - began - looped, looped, part.turns - counted)


@dataclass(frozen=True)
class Timed:
    """A client's answer, and CPU seconds outside and inside of loops whose turns are counted, and these turns."""

    answer: Step
    unlooped: float
    looped: float
    turns: int


def usual_of(work: list[Task]) -> Task:
    """Of the client whose number of records is next to the mean."""
    mean = sum(len(task.shard.train) for task in work) / len(work)
    return min(work, key=lambda task: (abs(len(task.shard.train) - mean), task.client))


def one_in(records: Records, share: int) -> Records:
    """One in so many of the records, at even distances."""
    return records if share == 1 else records.take(list(range(0, len(records), share)))


def renamed(answer: Step, client: int) -> Step:
    """What one client sent and keeps, as another's."""
    received, rows, memory = answer
    return replace(received, client=client), [replace(row, client=client) for row in rows], memory
