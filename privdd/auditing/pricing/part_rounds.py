"""What rounds take, from a part of a few: two clients, and the first turns of each long loop, theirs and the server's.

Rounds that do the same work are of one kind: of each its first is timed, where there is time its second too, which no
longer computes what is kept, and the run's last, which may publish what takes longer than all before.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from privdd.auditing.pricing.two_clients import LONGEST, TooLong, TwoClients
from privdd.core.long_loops import ALLOWANCE, LoopsInPart, in_part
from privdd.federated.experiment import Experiment
from privdd.federated.measured import accuracy
from privdd.federated.simulation import Plan, Progress, start, step
from privdd.runtime.workers import threads

OPTIONAL = 20.0  # CPU seconds that are taken before rounds which only make the price better are left out
IMAGES = 250  # test images that accuracy is timed on


@dataclass(frozen=True)
class Round:
    """CPU seconds of a round: of a usual client's work, of the audited client's, of the server's."""

    usual: float
    victim: float
    server: float

    def of(self, clients: int) -> float:
        return self.usual * clients + self.server


@dataclass(frozen=True)
class Rounds:
    """What was timed, by round. opening: CPU seconds before the first; left: loops that were left early; share: over
    the records of a client, those that it was timed on; least: a client's round did not end, its work takes more;
    chained: what the audited client sends depends on what it kept, so that a replay runs its earlier rounds too."""

    timed: dict[int, Round]
    opening: float = 0.0
    left: int = 0
    share: int = 1
    least: bool = False
    chained: bool = False

    def at(self, plan: Plan, t: int) -> Round:
        """A round's cost: its own, or that of the latest of its kind that was timed, else of the latest at all."""
        known = [s for s in self.timed if s <= t] or [min(self.timed)]
        alike = [s for s in known if plan.method.workload(s) == plan.method.workload(t)]
        return self.timed[max(alike or known)] if t not in self.timed else self.timed[t]


def to_time(plan: Plan) -> dict[int, bool]:
    """Round -> whether a price needs it: the first of each kind, and, where there is time, the second and the last.

    Rounds from which everybody drops out have no work to time.
    """
    found: dict[str, list[int]] = {}
    taken = [t for t in range(plan.method.rounds) if plan.participants(t)]
    for t in taken:
        found.setdefault(plan.method.workload(t), []).append(t)
    more = {t: False for of in found.values() for t in of[1:2]} | {taken[-1]: False}
    return dict(sorted((more | {of[0]: True for of in found.values()}).items()))


def rounds_in_part(experiment: Experiment, say: Callable[[str], None]) -> Rounds:
    """Times them. say: is told of each one."""
    plan, began = experiment.plan, time.process_time()
    timed: dict[int, Round] = {}
    with in_part(ALLOWANCE) as part, threads(1), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the run itself warns
        engine = TwoClients(threads=1, part=part, victim=plan.victim)
        progress = start(plan, experiment.ledger())
        opening = part.spent() - began
        for t, needed in to_time(plan).items():
            if not needed and time.process_time() - began > OPTIONAL:
                continue
            try:
                progress, timed[t] = _timed(experiment, at_round(progress, t), engine, part)
            except TooLong:
                timed[t] = Round(LONGEST, LONGEST, 0.0)
                return Rounds(timed, opening, part.left, engine.share[0], least=True)
            say(f"round {t + 1} of {plan.method.rounds}, {plan.method.phase(t)}")
    chained = any(plan.method.remembers(t, progress.memories.get(plan.victim, {})) for t in timed)
    return Rounds(timed, opening, part.left, engine.share[0], chained=chained)


def at_round(progress: Progress, t: int) -> Progress:
    """``progress`` as before round ``t``, for a server that counts its rounds too ("round" in its state)."""
    counters = {n: torch.full_like(v, t) for n, v in progress.server.items() if n.rpartition("/")[2] == "round"}
    return replace(progress, round=t, server={**progress.server, **counters})


def _timed(experiment: Experiment, progress: Progress, engine: TwoClients, part: LoopsInPart) -> tuple[Progress, Round]:
    plan, began = experiment.plan, part.spent()
    engine.inside.clear()
    moved = step(plan, progress, experiment.shards, engine)[0]
    server = part.spent() - began - sum(engine.inside)
    return moved, Round(engine.usual(), engine.took[plan.victim], max(server, 0.0) + _accuracy(experiment, moved))


def _accuracy(experiment: Experiment, progress: Progress) -> float:
    """CPU seconds of accuracy after a round, from some of the test images."""
    test, shards = experiment.test, experiment.shards
    few = [replace(shard, test=shard.test.take(list(range(min(IMAGES, len(shard.test)))))) for shard in shards[:1]]
    began = time.process_time()
    accuracy(experiment.plan, progress, test.take(list(range(min(IMAGES, len(test))))), few)
    took = time.process_time() - began
    if experiment.plan.method.accuracy_kind == "global":
        return took * max(1.0, len(test) / IMAGES)
    return took * sum(len(shard.test) for shard in shards) / max(len(few[0].test), 1)
