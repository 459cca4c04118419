"""Are there enough clients for client-level privacy? Known before training, from public numbers alone.

The averaged update of one round is at most the clip norm C long, and its noise is about s sqrt(d) long, for d parameters
and noise of std s on each number of the average. Over R rounds what is learned adds up R times, noise sqrt(R) times. On
digits (100 clients, a small MLP, epsilon 8) noise of 0.6 times C sqrt(R) cost 5 points of accuracy, and of 6 times left chance.
"""

from __future__ import annotations

import math

from privdd.federated.simulation import Plan
from privdd.privacy.mechanisms import ClientLevel

MOST = 2.0  # noise over signal, after all rounds, from which nothing is learned


def drowned(plan: Plan) -> tuple[float, int] | None:
    """(noise over signal after all rounds, clients of a round at which it would be ``MOST``); None without such noise."""
    mechanism = plan.mechanisms.get("update")
    network = plan.method.classifier(plan.problem)
    if not isinstance(mechanism, ClientLevel) or network is None:
        return None
    numbers, clients = sum(p.numel() for p in network.parameters()), len(plan.asked(0))
    each = mechanism.noise_std / mechanism.clip_norm  # one client's; under secagg this falls as clients become more
    ratio = each * math.sqrt(numbers / clients / plan.method.rounds)
    needed = clients * (ratio / MOST if plan.trust.summed else (ratio / MOST) ** 2)
    return ratio, math.ceil(needed)


def too_few(plan: Plan) -> str:
    """A warning in one line, "" where the clients are enough."""
    found = drowned(plan)
    if found is None or found[0] <= MOST:
        return ""
    ratio, needed = found
    more = "" if plan.trust.summed else ", or trust=secagg"
    return (
        f"privacy.unit=client: {len(plan.asked(0))} clients a round are too few: over all rounds the noise of the averaged update "
        f"is {ratio:.3g} times as long as what can be learned; about {needed} clients are needed, or a smaller model{more}"
    )
