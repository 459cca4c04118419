"""The price of a run whose rounds are long: a part of a few of them, scaled by the run's own numbers of steps, rounds,
clients, replays and search steps.

Attacks and guarantee tests are not run: they cost what they did on digits, attacks in steps of local training.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from privdd.auditing.pricing.beforehand import SEARCH, TESTS, replayed
from privdd.auditing.pricing.needs import needs
from privdd.auditing.pricing.part_rounds import Round, Rounds
from privdd.auditing.pricing.price import Price, loading
from privdd.auditing.pricing.probe import START
from privdd.auditing.pricing.two_clients import LONGEST
from privdd.auditing.shadow_federations import shared_rounds
from privdd.federated.experiment import Experiment
from privdd.federated.kept_rounds import KEPT

PROBED_TESTS = 10.0  # CPU seconds of guarantee tests in a probe
SLOW_RUNS = 40  # of guarantee tests, that TESTS was measured with


def extrapolated(whole: Experiment, rounds: Rounds, step: float, searches: Sequence[int]) -> Price:
    """step: CPU seconds of one step of local training; searches: the length of each attack's longest search."""
    plan, audit, least = whole.plan, whole.audit, needs(whole)
    took = [rounds.at(plan, t).of(len(plan.participants(t))) for t in range(plan.method.rounds)]
    worlds, federations, share = replayed(whole)
    shared = shared_rounds(plan.method, audit.federation_rounds)  # played once for all
    attacks = [SEARCH * step * length for length in searches]
    stages = {
        "start": START,
        **loading(whole.engine, whole.run.device),
        "train": rounds.opening + sum(took),
        "worlds": (1.0 if rounds.chained else share) * (worlds - 1) * _replay(whole, rounds),
        "federations": (federations * sum(took[shared:]) + sum(took[:shared])) if federations > 1 else 0.0,
        "attacks": sum(attacks),
        "guarantee tests": TESTS * audit.guarantee.slow_runs / SLOW_RUNS if plan.mechanisms else 0.0,
    }
    stages = {name: value for name, value in stages.items() if value}
    return Price(
        stages, max(attacks, default=0.0), whole.engine.size, least.memory, least.disk, said(rounds), rounds.least
    )


def probe_seconds(whole: Experiment, worlds: int, rounds: Rounds, step: float, searches: Iterable[int]) -> float:
    """CPU seconds of ``probe.price``, roughly: one round of each phase, the first thrice, replays in each, searches.

    worlds: the replays of its audit; rounds, step: of the whole run; searches: steps of the probe's.
    """
    plan, firsts = whole.plan, dict[str, Round]()
    for t, one in rounds.timed.items():
        firsts.setdefault(plan.method.phase(t), one)
    trained = [one.of(len(whole.shards)) for one in (*firsts.values(), *2 * [rounds.timed[min(rounds.timed)]])]
    replays = (worlds + 1) * replayed(whole)[2] * sum(one.victim for one in firsts.values())
    return sum(trained) + replays + SEARCH * step * sum(searches) + (PROBED_TESTS if plan.mechanisms else 0.0)


def _replay(whole: Experiment, rounds: Rounds) -> float:
    """CPU seconds of one replay of the audited client: in the rounds that are replayed, in all where it remembers."""
    plan, phases = whole.plan, dict[str, list[float]]()
    if rounds.chained:
        return sum(rounds.at(plan, t).victim for t in range(plan.method.rounds))
    for t in range(plan.method.rounds):
        phases.setdefault(plan.method.phase(t), []).append(rounds.at(plan, t).victim)
    return sum(sum(took) / len(took) * min(whole.audit.rounds, KEPT, len(took)) for took in phases.values())


def said(rounds: Rounds) -> str:
    """Where the price comes from, in plain words."""
    timed = f"{len(rounds.timed)} round{'s' * (len(rounds.timed) > 1)}"
    how = ["two clients"]
    if rounds.left:
        how.append("the first steps of each long loop")
    if rounds.share > 1:
        how.append(f"one in {rounds.share} of a client's records")
    said = f"extrapolated from a part of {timed} on this machine ({', '.join(how)}); attacks and guarantee tests were not run"
    if rounds.least:
        said += f"; a client's round did not end within {LONGEST:.0f} CPU s on few of its records: training takes more than this"
    return f"{said}: rough, the share of attacks may be off by a factor of five"
