"""What rounds cost. The probe's one round of a phase is its first and its last at once, so it costs more than most do.

A last round may publish what takes longer than all rounds before it, and a first one computes what is kept from then on.
So the first phase's round is timed again, as a round with others after it, and as one without; by now all is warm.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from privdd.federated.experiment import Experiment
from privdd.federated.measured import accuracy
from privdd.federated.noise_record import NoiseRecord
from privdd.federated.simulation import Plan, start, step


@dataclass(frozen=True)
class RoundCost:
    """CPU seconds. once: of the probe's training; first, later: of one more client round, in the first phase and in
    the others; closing: what a last round takes beyond what others do."""

    once: float
    first: float
    later: float
    closing: float

    def training(self, whole: Plan, small: Plan) -> float:
        """Of all rounds of ``whole``, of which ``small`` has trained one in each phase."""
        more = {phase: whole_count - client_rounds(small, phase) for phase, whole_count in _by_phase(whole).items()}
        return self.once + sum(max(count, 0) * self._each(whole, phase) for phase, count in more.items())

    def federation(self, whole: Plan, last: int) -> float:
        """Of one replay of the whole federation: its last rounds, so many (0: all)."""
        rounds = range(whole.method.rounds)[-last:] if last else range(whole.method.rounds)
        return self.closing + sum(self._each(whole, whole.method.phase(t)) * len(whole.participants(t)) for t in rounds)

    def _each(self, plan: Plan, phase: str) -> float:
        return self.first if phase == plan.method.phase(0) else self.later


def round_cost(
    whole: Experiment, small: Experiment, once: float, again: Callable[[Plan], float] | None = None
) -> RoundCost:
    """once: CPU seconds of training ``small``; again: those of the first round of a plan (default: it is run)."""
    again = again or (lambda plan: _first_round(plan, small))
    clients = client_rounds(small.plan, small.plan.method.phase(0))
    others = client_rounds(small.plan) - clients
    usual = again(replace(small.plan, method=whole.plan.method))
    if others:  # the last round is of another phase, and has not been timed by itself
        return RoundCost(once, usual / clients, max(once - usual, 0.0) / others, 0.0)
    closing = again(small.plan) - usual if whole.plan.method.rounds > 1 else 0.0
    return RoundCost(once, usual / clients, 0.0, max(closing, 0.0))


def _first_round(plan: Plan, small: Experiment) -> float:
    began = time.process_time()
    progress = start(plan, small.ledger())
    progress = step(plan, progress, small.shards, small.engine, record=NoiseRecord(plan.victim))[0]
    accuracy(plan, progress, small.test, small.shards)
    return time.process_time() - began


def client_rounds(plan: Plan, phase: str | None = None) -> int:
    """Rounds of single clients in the whole of training, or in one of its phases."""
    found = _by_phase(plan)
    return sum(found.values()) if phase is None else found.get(phase, 0)


def _by_phase(plan: Plan) -> dict[str, int]:
    found: dict[str, int] = {}
    for t in range(plan.method.rounds):
        phase = plan.method.phase(t)
        found[phase] = found.get(phase, 0) + len(plan.participants(t))
    return found
