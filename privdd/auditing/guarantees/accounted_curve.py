"""T3 against the accountant's whole trade-off curve, at the point of it that so many runs test best.

The adversary knows the likelihood ratio of a run's releases. Its threshold comes from the accounted curve and the
number of runs alone, so no run is spent on choosing it. Error rates below the curve refute the accountant, whatever
the mechanism's true law is; how far below is told by the event of the same kind, with less noise, whose curve they
would still refute.
"""

from __future__ import annotations

from functools import cache

import dp_accounting as dpa
from torch import Tensor

from attacks.curve import Curve, curve_test, most_testable
from attacks.types import Adversary, Finding
from privdd.auditing.guarantees.statement import Statement
from privdd.privacy.tradeoff import epsilon_at, trade_off


def curve_finding(statement: Statement, inside: Tensor, outside: Tensor, event: dpa.DpEvent, note: str) -> Finding:
    """The finding ``t3_curve`` from log likelihood ratios (R,) of runs with the record and (R',) of runs without it.

    inside, outside: ln P/Q of independent runs of the releases that ``event`` accounts for, P with the record. Its
    ``epsilon_measured`` is above the statement's epsilon exactly where the curve is refuted at the subject's
    confidence. Below it, it is the epsilon of the least noise that the runs refute: no bound for other mechanisms.
    """
    subject, relation = statement.subject, statement.subject.ledger.relation

    @cache
    def family(scale: float) -> Curve:
        return trade_off(event, relation=relation, scale=scale)

    runs = min(len(inside), len(outside))
    point = most_testable(family(1.0), runs, confidence=subject.confidence)
    ratios = inside.double().numpy(), outside.double().numpy()
    found = curve_test(*ratios, family, threshold=point.threshold, confidence=subject.confidence)
    implied = epsilon_at(event, subject.delta, relation=relation, scale=found.scale)
    above = statement.epsilon * (1 + 1e-9)  # both epsilons are rounded: the curve decides which one is the larger
    implied = max(implied, above) if found.refuted else min(implied, statement.epsilon)
    where = f"false alarms at most {found.fpr:.3g} and misses at most {found.fnr:.3g}"
    lies = "below" if found.refuted else "not below"
    return statement.finding(
        "t3_curve",
        Adversary.ANALYST,
        epsilon_measured=implied,
        epsilon_method="curve",
        epsilon_validity="curve",
        confidence=subject.confidence,
        n=found.runs,
        note=f"{note}; {where}, {lies} the accountant's curve; refuted is {_share(found.scale)}",
    )


def _share(scale: float) -> str:
    return f"noise of {1 / scale:.3g} times the stated scale or more" if scale else "no noise of any scale"
