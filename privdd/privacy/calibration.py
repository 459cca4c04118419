"""The noise multiplier at which releases cost a given epsilon."""

from __future__ import annotations

import math
from collections.abc import Callable

import dp_accounting as dpa
from scipy.optimize import brentq

from privdd.core.units import Relation
from privdd.privacy.accounting import (
    COARSE,
    POINTS,
    Accountant,
    check_delta,
    epsilon_of,
    pld_epsilon,
)
from privdd.privacy.events import tally_events

NOISE_RANGE = (2.0**-7, 2.0**20)
# Shares of epsilon that the noise may cost, and that is aimed at. The margin keeps a recomputation
# by other software, with its own rounding, at or below epsilon.
LEAST_SHARE = 0.985
MOST_SHARE = 0.999
AIMED_SHARE = 0.992
MAX_SECANT_STEPS = 12


def calibrate(
    make_event: Callable[[float], dpa.DpEvent],
    epsilon: float,
    delta: float,
    *,
    relation: Relation = "add_remove",
    accountant: Accountant = "pld",
) -> float:
    """The noise multiplier z at which ``make_event(z)`` costs just under ``epsilon``.

    A root of ln epsilon(z) in ln z, by Brent's method on a coarse grid and then by secant steps on
    the fine one: log epsilon is close to linear in log z, with a slope from -2 (little noise) to
    -1.

    Args:
        make_event: the releases, by the noise multiplier.
        epsilon: above 0; between 0.985 and 0.999 of it are spent.
        delta: in (0, 1).
        relation: which data sets are neighbours.
        accountant: ``pld`` or ``rdp``.

    Raises:
        ValueError: if no z in [2**-7, 2**20] reaches it.
    """
    if not 0 < epsilon < math.inf:
        raise ValueError(f"epsilon={epsilon!r}: a finite number above 0 is needed")
    check_delta(delta)

    def epsilon_cost(z: float, interval: float | None = None) -> float:
        total = tally_events([(make_event(z), 1)])
        if interval and accountant == "pld" and total.private and not total.is_empty:
            return pld_epsilon(total, delta, relation, interval)
        return epsilon_of(total, delta, relation=relation, accountant=accountant)

    interval = max(COARSE, epsilon / POINTS)
    z = _find_multiplier(lambda z: epsilon_cost(z, interval), AIMED_SHARE * epsilon)
    slope = -1.0  # of log epsilon in log z, refined by the last two points
    previous: tuple[float, float] | None = None
    for _ in range(MAX_SECANT_STEPS):
        cost = epsilon_cost(z)
        if LEAST_SHARE * epsilon <= cost <= MOST_SHARE * epsilon:
            return z
        if not 0 < cost < math.inf:
            raise ValueError(
                f"no noise multiplier costs just that: {z:.4g} costs {cost:g}; choose it by hand"
            )
        if previous and previous[0] != z:
            slope = min(-0.3, math.log(cost / previous[1]) / math.log(z / previous[0]))
        previous = (z, cost)
        z *= math.exp(math.log(AIMED_SHARE * epsilon / cost) / slope)
    raise ValueError(f"the noise multiplier does not settle near {z:.4g}; choose it by hand")


def _find_multiplier(cost: Callable[[float], float], target: float) -> float:
    """The z at which a falling cost meets ``target``, to 0.05 %."""
    low = 1.0
    high = 1.0
    while cost(high) > target:
        low = high
        high = high * 2
        if high > NOISE_RANGE[1]:
            raise ValueError(
                "no noise meets it: another release is unprotected, or costs more by itself"
            )
    while cost(low) <= target:
        high = low
        low = low / 2
        if low < NOISE_RANGE[0]:
            raise ValueError("it is above what these releases cost with almost no noise")

    def log_ratio(log_z: float) -> float:
        bounded = min(max(cost(math.exp(log_z)), 1e-300), 1e12)
        return math.log(bounded / target)

    return math.exp(brentq(log_ratio, math.log(low), math.log(high), xtol=5e-4))
