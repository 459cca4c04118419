"""What a mechanism's author states: (epsilon, delta) for so many calls, and whose data may
change."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import get_args

from scipy.optimize import brentq, minimize_scalar

from attacks.tradeoff import gaussian_epsilon
from privdd.blackbox.claim_words import Inputs, Kind, Law, Neighbours, Sampling
from privdd.core.validation import BadConfig, check_choice, check_integer, setting_error

# relations of the accountant of a sampling
ACCOUNTED = {"shuffled": ("zero_out",), "balls_in_bins": ("zero_out", "add_remove")}
TINY = 1e-12  # takes the place of delta 0 if a noise law has no finite epsilon at 0
HIGHEST_ORDER = 1e6  # of the Renyi divergences that zCDP is read by
LEAST_MU = 1e-9


@dataclass(frozen=True)
class CheckedClaim:
    """A statement: ``calls`` calls on the same data are (epsilon, delta)-DP for neighbours under
    ``relation``.

    Attributes:
        epsilon: at least 0, finite.
        delta: in [0, 1).
        kind: what the callable takes: update(list of arrays), aggregate(list of updates, list of
            weights) or records(array (n, d)). The record is the update, one client's update, or one
            row.
        relation: add_remove, replace or zero_out (the record becomes zeros).
        rho: stated instead of an epsilon, rho-zCDP; epsilon is then what follows from it at
            ``delta`` (``zcdp_epsilon``).
        mu: the same for mu-Gaussian DP (``attacks.tradeoff.gaussian_epsilon``).
        kind_is_guessed: nobody said ``kind``, so nothing is refuted by it.
        calls: that the statement is about.
        noise: declared law of the noise of every number, tested if given.
        noise_std: its declared scale.
        noise_multiplier: noise over sensitivity, declared; kappa is in its units, else in those of
            epsilon and delta.
        sampling: how a training that was declared so forms its batches; with noise_multiplier.
        batches: of an epoch.
        epochs: of the training.
        inputs: ``finite`` numbers only, or ``any`` floats.
        low_bits: whether the statement is about the numbers as released, to the last bit.
        tolerance: a statement is called refuted only above (1 + tolerance) epsilon; if the shift is
            known exactly, above (1 + tolerance / 5) epsilon.

    Raises:
        BadConfig: a field is out of range.
    """

    epsilon: float
    delta: float = 0.0
    kind: Kind = "update"
    relation: Neighbours = "zero_out"
    rho: float | None = None
    mu: float | None = None
    kind_is_guessed: bool = False
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
        for name, most in (("epsilon", math.inf), ("delta", 1.0), ("tolerance", 1.0)):
            value = getattr(self, name)
            if not 0.0 <= value < most:
                raise setting_error(f"stated.{name}", value, f"a number in [0, {most:g}) is needed")
        for name, limit in (("calls", 100_000), ("batches", 10**7), ("epochs", 10**5)):
            integer = check_integer(name, getattr(self, name), 1, most=limit)  # 12.0 is 12
            object.__setattr__(self, name, integer)
        for name, allowed in (("kind", Kind), ("relation", Neighbours), ("inputs", Inputs)):
            check_choice(name, getattr(self, name), get_args(allowed))
        for name, allowed in (("noise", Law), ("sampling", Sampling)):
            if getattr(self, name) is not None:
                check_choice(f"stated.{name}", getattr(self, name), get_args(allowed))
        if self.sampling is not None:
            self._check_sampling(self.sampling)
        for name in ("noise_std", "noise_multiplier", "rho", "mu"):
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise setting_error(f"stated.{name}", value, "a finite number above 0 is needed")

    def _check_sampling(self, sampling: Sampling) -> None:
        if self.noise_multiplier is None:
            raise BadConfig(
                "stated.sampling= needs stated.noise_multiplier= (and stated.batches=, of an epoch)"
            )
        if self.relation not in ACCOUNTED[sampling]:
            accounted = f"stated.sampling={sampling} is accounted under relation=zero_out"
            raise BadConfig(f"{accounted}, not {self.relation}")

    @property
    def law_mu(self) -> float:
        """The largest mu of Gaussian noise, over all calls, that the statement allows.

        mu-Gaussian DP: mu. rho-zCDP: the Renyi divergence of order a of N(0, 1) and N(mu, 1) is a
        mu^2 / 2 (Bun and Steinke 2016, lemma 2.4), so rho = mu^2 / 2. (epsilon, delta): Balle and
        Wang 2018, theorem 8, inverted."""
        if self.mu is not None:
            return self.mu
        if self.rho is not None:
            return math.sqrt(2 * self.rho)
        return gaussian_mu(self.epsilon, self.delta)

    def epsilon_by_law(self, law: str) -> float:
        """The epsilon at ``delta`` of the most that the statement allows to noise of this law: of
        rho-zCDP, a Gaussian mechanism may spend less than what follows from rho for any
        mechanism."""
        if self.rho is not None and law.endswith("gaussian"):
            return min(self.epsilon, gaussian_epsilon(self.law_mu, max(self.delta, TINY)))
        return self.epsilon

    @property
    def refutation_limit(self) -> float:
        """The epsilon above which the statement counts as refuted."""
        return self.epsilon * (1 + self.tolerance)

    def limit(self, *, exact: bool, law: str = "") -> float:
        """``refutation_limit`` of a bound that trusts noise of a law.

        Args:
            exact: whether the bound follows from an exact shift, which sees less than counting does
                (a statement is a rounded number).
            law: of the noise.
        """
        tolerance = self.tolerance / 5 if exact else self.tolerance
        return self.epsilon_by_law(law) * (1 + tolerance)

    @property
    def gaussian_mu_per_call(self) -> float:
        """The mu of Gaussian DP that the statement allows to one call (all calls are alike and
        independent): mu / sqrt(calls)."""
        if self.noise_multiplier is not None:
            return (2.0 if self.relation == "replace" else 1.0) / self.noise_multiplier
        return self.law_mu / math.sqrt(self.calls)

    @property
    def says(self) -> str:
        """The statement as it was typed, with what was made of it and how the mechanism is
        called."""
        over = f" over {self.calls} calls" if self.calls > 1 else ""
        guessed = ", guessed" if self.kind_is_guessed else ""
        terms = f"kind={self.kind}{guessed}, {self.relation}"
        limit_text = f"epsilon {self.epsilon:.4g} at delta {plain_number(self.delta)}"
        if self.rho is not None:
            return f"rho {self.rho:g} of zCDP{over} ({limit_text}; {terms})"
        if self.mu is not None:
            return f"mu {self.mu:g} of Gaussian DP{over} ({limit_text}; {terms})"
        return f"epsilon {self.epsilon:g} at delta {plain_number(self.delta)}{over} ({terms})"


def plain_number(value: float) -> str:
    """1e-05 -> 1e-5."""
    return re.sub(r"e([+-])0+(?=\d)", r"e\1", f"{value:g}")


def zcdp_epsilon(rho: float, delta: float) -> float:
    """The epsilon that follows from rho-zCDP.

    delta(epsilon) = inf over a > 1 of exp((a - 1)(a rho - epsilon)) / (a - 1) (1 - 1/a)^a (Canonne,
    Kamath and Steinke 2020, proposition 12), solved for epsilon: a rho + (ln(1/delta) + (a - 1)
    ln(1 - 1/a) - ln a) / (a - 1), the least over a. Tighter than rho + 2 sqrt(rho ln(1/delta)) of
    Bun and Steinke.

    Args:
        rho: above 0.
        delta: in (0, 1).
    """

    def epsilon_at(log_of_order_less_one: float) -> float:
        less = math.exp(log_of_order_less_one)
        order = 1 + less
        conversion = -math.log(delta) + less * math.log(less / order) - math.log(order)
        return order * rho + conversion / less

    least = minimize_scalar(
        epsilon_at,
        bounds=(-20.0, math.log(HIGHEST_ORDER)),
        method="bounded",
        options={"xatol": 1e-9},
    )
    return max(0.0, float(least.fun))


def gaussian_mu(epsilon: float, delta: float) -> float:
    """The mu whose Gaussian DP has this epsilon at ``delta`` (at 1e-12 if delta is 0): the root of
    delta = Phi(-epsilon / mu + mu / 2) - e^epsilon Phi(-epsilon / mu - mu / 2) (Balle and Wang
    2018, theorem 8), by bisection."""
    level = max(delta, TINY)
    high = 1.0
    while gaussian_epsilon(high, level) < epsilon:
        high *= 2
    if gaussian_epsilon(LEAST_MU, level) >= epsilon:
        return LEAST_MU
    root = brentq(lambda mu: gaussian_epsilon(mu, level) - epsilon, LEAST_MU, high, xtol=1e-9)
    return float(root)
