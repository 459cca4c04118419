"""One line on what an audit will take, before it starts: rough, from one round and one step of one client.

``--dry-run`` measures every stage and takes longer. Attacks and guarantee tests cost here what they did on digits,
attacks in steps of local training: a factor of two or three is to be expected.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch.nn import functional

from privdd.auditing.noised_reads import in_closed_form
from privdd.auditing.pricing.needs import needs, spelt
from privdd.auditing.pricing.price import Price, loading
from privdd.auditing.pricing.probe import START, federation_rounds
from privdd.auditing.pricing.two_clients import LONGEST
from privdd.core.long_loops import ALLOWANCE, in_part
from privdd.core.placement import placed
from privdd.core.types import State, Values
from privdd.federated.experiment import Experiment
from privdd.federated.kept_rounds import KEPT
from privdd.federated.method import Images
from privdd.federated.simulation import Plan
from privdd.runtime.progress import spell
from privdd.runtime.time_limit import Overdue, at_most
from privdd.runtime.workers import threads

SAID_FROM = 60.0  # seconds
SEARCH = 8.0  # local steps that one step of an attack's search costs: measured
TESTS = 20.0  # CPU seconds of all guarantee tests: measured
TOGETHER = 0.3  # of a client's round, for each of several that share their work: measured


@dataclass(frozen=True)
class Unit:
    """CPU seconds of a client's round in the first phase, and of one step on a batch with the classifier (in the first
    phase too, where there is no classifier)."""

    round: float
    step: float

    def of(self, plan: Plan, phase: str, size: int) -> float:
        """Of one client's round in a phase: the first as it was timed, others by their steps."""
        if phase == plan.method.phase(0):
            return self.round
        return self.step * _steps(plan, size)


def _steps(plan: Plan, size: int) -> int:
    return max(int(plan.method.settings(size).get("local_steps") or 1), 1)


def said_before(experiment: Experiment, searches: Iterable[int]) -> str:
    """ "estimated ..." for a run above a minute, else "". searches: the length of each attack's longest search."""
    if experiment.engine.clients_remember:  # real clients: nothing of theirs is timed here
        return ""
    lengths = list(searches)
    price = estimate(experiment, timed(experiment), lengths)
    if (
        price.wall >= SAID_FROM
    ):  # a first round may also compute what is kept from then on, such as rows of a public map
        price = estimate(experiment, timed(experiment), lengths)
    if price.wall < SAID_FROM:
        return ""
    kind = {"serial": "one process", "processes": f"{price.workers} processes", "ray": f"{price.workers} Ray workers"}
    memory = spelt(price.memory)
    return f"estimated {spell(price.wall)} on {kind[experiment.engine.kind]}, {memory} at least; --dry-run for details"


def timed(experiment: Experiment) -> Unit:
    """The audited client's first round, whose result is thrown away, and a step of its classifier."""
    plan = experiment.plan
    broadcast = plan.method.broadcast(plan.method.init(plan.problem, plan.keys.fold("public", "init")))
    with threads(experiment.engine.threads), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the run itself warns
        took, memory = _round(experiment, broadcast)
        project = plan.method.maps(broadcast, memory, plan.problem).get("projection", lambda x: x)
        return Unit(took, _step(experiment, took, project))


def _round(experiment: Experiment, broadcast: Values) -> tuple[float, State]:
    """(CPU seconds, what is remembered): the first turns of each long loop, scaled. Code that never reaches a counted
    loop, such as a user's own training, is stopped after ``LONGEST``: it then takes longer than is said."""
    plan = experiment.plan
    with in_part(ALLOWANCE) as part:
        began = part.spent()
        try:
            with at_most(LONGEST, unless=lambda: part.turns > 0):
                shard, ctx = experiment.shards[plan.victim], plan.context(0, plan.victim)
                memory = plan.method.local(broadcast, {}, shard, ctx)[1]
        except Overdue:
            memory = {}
        return part.spent() - began, memory


def _step(experiment: Experiment, round: float, project: Images) -> float:
    """The second of two, so that all is warm. A network of the user's own may have layers that are frozen or not used.

    project: from records to what the classifier reads.
    """
    plan, records = experiment.plan, experiment.shards[experiment.plan.victim].train
    model = plan.method.classifier(plan.problem)
    if model is None or not len(records):
        return round / _steps(plan, len(records))
    model = placed(model, plan.problem.device).requires_grad_()
    batch = slice(int(plan.method.settings(len(records)).get("batch_size") or 16))
    x, y = placed((project(records.x[batch]), records.y[batch]), plan.problem.device)
    for _ in range(2):
        began = time.process_time()
        loss = functional.cross_entropy(model(x), y)
        grads = torch.autograd.grad(loss, list(model.parameters()), allow_unused=True)
        [grad.sum().item() for grad in grads[-1:] if grad is not None]  # a GPU has finished
    return time.process_time() - began


def replayed(experiment: Experiment) -> tuple[int, int, float]:
    """(replays of the audited client, of the whole federation, what one of several together costs of one alone)."""
    plan, audit = experiment.plan, experiment.audit
    closed = experiment.privacy.unit == "record" and in_closed_form(plan)  # if an attack reads it, as one of "all" does
    worlds = min(audit.worlds, audit.processed_worlds if closed else audit.worlds)
    federations = min(audit.federations, audit.processed_federations if closed else audit.federations)
    return worlds, federations, TOGETHER if plan.method.shares_work and not plan.mechanisms else 1.0


def estimate(experiment: Experiment, unit: Unit, searches: Iterable[int]) -> Price:
    """The price at these costs of a client's work."""
    plan, audit, size = experiment.plan, experiment.audit, len(experiment.shards[experiment.plan.victim].train)
    phases = [plan.method.phase(t) for t in range(plan.method.rounds)]
    cost = {phase: unit.of(plan, phase, size) for phase in phases}
    one = sum(cost[phase] * min(audit.rounds, KEPT, phases.count(phase)) for phase in cost)
    attacks = [SEARCH * unit.step * length for length in searches]
    worlds, federations, share = replayed(experiment)
    stages = {
        "start": START,
        **loading(experiment.engine, experiment.run.device),
        "train": sum(cost[phase] * len(plan.participants(t)) for t, phase in enumerate(phases)),
        "worlds": one * share * (worlds - 1),
        "federations": cost[phases[-1]] * federations * federation_rounds(experiment),
        "attacks": sum(attacks),
        "guarantee tests": TESTS if plan.mechanisms else 0.0,
    }
    least = needs(experiment)
    return Price(stages, max(attacks, default=0.0), experiment.engine.size, least.memory, least.disk)
