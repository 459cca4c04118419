"""A stated epsilon that no round may exceed: each round's cost is planned before it runs."""

from __future__ import annotations

from collections.abc import Collection

import dp_accounting as dpa

from privdd.core.validation import BadConfig
from privdd.federated.simulation import Plan
from privdd.privacy.accounting import epsilon_of
from privdd.privacy.events import Tally, add_tallies, tally_events
from privdd.privacy.ledger import Ledger


class BudgetExceeded(BadConfig):
    """A round is refused, because epsilon would be above the budget after it."""


def check_round_budget(budget: float, plan: Plan, ledger: Ledger, round: int) -> None:
    """Refuse ``round`` if, after it, some participant's epsilon would be above ``budget``.

    Args:
        budget: the largest epsilon allowed, at the ledger's delta, unit and relation.
        plan: of the federation; its method says how often a client applies each mechanism.
        ledger: of the rounds that ran.
        round: the next one, from 0.

    Raises:
        BudgetExceeded: one line with the round, its projected epsilon and the rounds that fit.
        BadConfig: if the method cannot plan its releases.
    """
    projected = projected_epsilon(plan, ledger, round)
    if projected > budget:
        raise BudgetExceeded(
            f"privacy.budget={budget:g}: round {round + 1} of {plan.method.rounds} is "
            "refused: after it, "
            f"epsilon would be {projected:.4g} at delta {ledger.delta:g} (unit {ledger.unit}, "
            f"{ledger.relation}); {round} rounds ran"
        )


def projected_epsilon(plan: Plan, ledger: Ledger, round: int) -> float:
    """Epsilon of the worst participant after ``round``: its ledger rows and what the round is
    planned to spend."""
    counts = plan.method.releases_per_round(round, plan.mechanisms)
    if counts is None:
        method = type(plan.method).__name__
        raise BadConfig(f"privacy.budget: {method} cannot plan its releases")
    events = []
    for name, count in counts.items():
        if name in plan.mechanisms:
            events.append(dpa.SelfComposedDpEvent(plan.mechanisms[name].event, count))
    planned = tally_events([(dpa.ComposedDpEvent(events), 1)])
    worst = 0.0
    for client in plan.participants(round):
        spent: Collection[Tally] = ledger.totals(client=client) or {Tally()}
        for total in spent:
            after = add_tallies(total, planned)
            worst = max(
                worst, epsilon_of(after, ledger.delta, relation=ledger.relation, accountant="pld")
            )
    return worst
