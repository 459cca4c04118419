"""What a mechanism's author states: (epsilon, delta) for so many calls, and whose data may change."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

from scipy.optimize import brentq

from attacks.epsilon import gaussian_epsilon
from privdd.core.validation import BadConfig, check_choice, check_integer, setting_error

Kind = Literal["update", "aggregate", "records"]
Neighbours = Literal["add_remove", "replace", "zero_out"]
Law = Literal["gaussian", "laplace"]
Inputs = Literal["finite", "any"]
Sampling = Literal["shuffled", "balls_in_bins"]
ACCOUNTED = {"shuffled": ("zero_out",), "balls_in_bins": ("zero_out", "add_remove")}  # relations of their accountant
TINY = 1e-12  # takes the place of delta 0 where a noise law has no finite epsilon at 0


@dataclass(frozen=True)
class CheckedClaim:
    """A statement: ``calls`` calls on the same data are (epsilon, delta)-DP for neighbours under ``relation``.

    kind: what the callable takes: update(list of arrays), aggregate(list of updates, list of weights) or
    records(array (n, d)). The record is the update, one client's update, or one row. zero_out: it becomes zeros.
    noise, noise_std: declared law and scale of the noise of every number, tested where given. noise_multiplier: noise
    over sensitivity, declared; kappa is in its units, else in those of epsilon and delta. sampling, batches, epochs: how a
    training that was declared so forms its batches, and how many an epoch has; with noise_multiplier. inputs: ``finite`` numbers
    only, or ``any`` floats. low_bits: whether the statement is about the numbers as released, to the last bit.
    tolerance: a statement is called refuted only above (1 + tolerance) epsilon; where the shift is known exactly, above
    (1 + tolerance / 5) epsilon.
    """

    epsilon: float
    delta: float = 0.0
    kind: Kind = "update"
    relation: Neighbours = "zero_out"
    calls: int = 1
    noise: Law | None = None
    noise_std: float | None = None
    noise_multiplier: float | None = None
    sampling: Sampling | None = None
    batches: int = 1
    epochs: int = 1
    inputs: Inputs = "finite"
    low_bits: bool = False
    tolerance: float = 0.05

    def __post_init__(self) -> None:
        for name, least, most in (("epsilon", 0.0, math.inf), ("delta", 0.0, 1.0), ("tolerance", 0.0, 1.0)):
            value = getattr(self, name)
            if not least <= value < most:
                raise setting_error(f"stated.{name}", value, f"a number in [0, {most:g}) is needed")
        for name, limit in (("calls", 100_000), ("batches", 10**7), ("epochs", 10**5)):
            object.__setattr__(self, name, check_integer(name, getattr(self, name), 1, most=limit))  # 12.0 is 12
        for name, allowed in (("kind", Kind), ("relation", Neighbours), ("inputs", Inputs)):
            check_choice(name, getattr(self, name), get_args(allowed))
        for name, allowed in (("noise", Law), ("sampling", Sampling)):
            if getattr(self, name) is not None:
                check_choice(f"stated.{name}", getattr(self, name), get_args(allowed))
        if self.sampling is not None and self.noise_multiplier is None:
            raise BadConfig("stated.sampling= needs stated.noise_multiplier= (and stated.batches=, of an epoch)")
        if self.sampling is not None and self.relation not in ACCOUNTED[self.sampling]:
            accounted = f"stated.sampling={self.sampling} is accounted under relation=zero_out"
            raise BadConfig(f"{accounted}, not {self.relation}")
        for name in ("noise_std", "noise_multiplier"):
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise setting_error(f"stated.{name}", value, "a finite number above 0 is needed")

    @property
    def refutation_limit(self) -> float:
        """The epsilon above which the statement counts as refuted."""
        return self.epsilon * (1 + self.tolerance)

    def limit(self, *, exact: bool) -> float:
        """The same; exact: for a bound from an exact shift, which sees less than counting does (a statement is a rounded number)."""
        return self.epsilon * (1 + self.tolerance / 5) if exact else self.refutation_limit

    @property
    def gaussian_mu_per_call(self) -> float:
        """The mu of Gaussian DP that the statement allows to one call (all calls are alike and independent)."""
        if self.noise_multiplier is not None:
            return (2.0 if self.relation == "replace" else 1.0) / self.noise_multiplier
        return gaussian_mu(self.epsilon, self.delta) / math.sqrt(self.calls)


def gaussian_mu(epsilon: float, delta: float) -> float:
    """The mu whose Gaussian DP has this epsilon at ``delta`` (at 1e-12 where delta is 0)."""
    at = max(delta, TINY)
    low, high = 1e-9, 1.0
    while gaussian_epsilon(high, at) < epsilon:
        high *= 2
    if gaussian_epsilon(low, at) >= epsilon:
        return low
    return float(brentq(lambda mu: gaussian_epsilon(mu, at) - epsilon, low, high, xtol=1e-9))
