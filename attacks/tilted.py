"""Tilted likelihood-ratio certificate: a lower bound on the epsilon of a whole transcript, from few runs of it.

A transcript is a sequence of noised releases. Seen along the direction in which one record moves it, in units of its
noise, release i is x = coin * mu + noise with coin ~ Bernoulli(q) and noise ~ N(0, 1) where the record is present,
and noise alone where it is absent; its privacy loss is y = ln(1 - q + q exp(mu x - mu^2 / 2)). What the record's
presence costs is delta(eps) = E_P[(1 - e^(eps - L))_+], L the sum of the losses. At delta 1e-5 almost no run counts.

So coins and noise are drawn from another law G that is known before any code runs: P restricted to and weighted by
where a *planned* transcript (its mu and q) has a large loss Y. First P tilted by its own loss, P_s ~ P e^(sY), whose
cumulant K(s) = ln E_P[e^(sY)] is closed form for whole s (Mironov, Talwar and Zhang 2019, section 3.3); then
rejection, which keeps a draw with probability e^(-sY) (1 - e^(eps0 - Y))_+ / M. What is left has density
dP/dG = e^K M A / (1 - e^(eps0 - Y)), A the acceptance rate, of which a Clopper-Pearson lower bound is taken. The
code under test is run on these coins and this noise; whatever its losses L turn out to be, the mean of
dP/dG (1 - e^(eps - L))_+ is at most delta(eps). Where they are as planned it is almost constant, so that some
dozens of runs come within a few per cent.

No mean of nonnegative draws can exceed delta without a bet on it winning (Waudby-Smith and Ramdas 2023, section 4;
one-sided, so no upper end of the range is needed). The bound is the largest epsilon whose hypothesis
"delta(epsilon) <= delta" the bet refutes; these hypotheses are nested, so no correction is needed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.special import betaincinv, gammaln, logsumexp

PROPOSALS = 20_000  # draws of the tilted law, of which the suitable ones are kept
CHUNK = 4_000_000  # numbers in memory at a time
SHARE = 0.05  # of the error probability, spent on the acceptance rate
ORDERS = np.unique(np.geomspace(1, 4096, 160).astype(int))  # whole s to choose from
MARGIN = 2.0  # the log of how much more a bet is planned to win than it must: runs do not go quite as planned
STAKES = np.array([*(2.0 ** -np.arange(1, 8)), 0.75, 0.9, 0.96, 1.0, 0.99])  # bets, in units of the largest allowed
SPLIT = np.array([*[0.5 / (len(STAKES) - 1)] * (len(STAKES) - 1), 0.5])  # half of the money is on the last


@dataclass(frozen=True)
class Draws:
    """What runs under test are given. coins, noise: (R, T), one row a run; log_weights (R,): ln dP/dG from below.

    planned: (R,) the loss that a run has if it is as planned; error: the chance that the weights are too large.
    """

    coins: np.ndarray
    noise: np.ndarray
    log_weights: np.ndarray
    planned: np.ndarray
    error: float

    def __len__(self) -> int:
        return len(self.planned)

    def first(self, count: int) -> Draws:
        """The first ``count`` runs alone."""
        kept = slice(0, count)
        return Draws(self.coins[kept], self.noise[kept], self.log_weights[kept], self.planned[kept], self.error)


def step_losses(x: np.ndarray, mus: np.ndarray, probabilities: np.ndarray) -> np.ndarray:
    """ln P/Q of releases at x, elementwise: Q = N(0, 1), P = (1 - q) Q + q N(mu, 1)."""
    with np.errstate(divide="ignore"):
        stay, join = np.log1p(-np.asarray(probabilities, float)), np.log(probabilities)
    return np.logaddexp(stay, join + mus * x - np.square(mus) / 2)


def propose(
    mus: np.ndarray,
    probabilities: np.ndarray,
    delta: float,
    runs: int,
    generator: np.random.Generator,
    *,
    confidence: float = 0.95,
) -> Draws:
    """Coins and noise of at most ``runs`` runs of a transcript with planned steps (mu_i, q_i), (T,) each.

    Fewer where fewer of ``PROPOSALS`` are suitable. Any plan is valid, also a wrong one: it only costs tightness.
    Raises ValueError for no step, a mu that is not a finite number above 0, or a q outside (0, 1].
    """
    mus, q = np.asarray(mus, float), np.asarray(probabilities, float)
    if mus.ndim != 1 or mus.shape != q.shape or not len(mus):
        raise ValueError(f"steps {mus.shape}, {q.shape}: one mu and one probability for each of T >= 1 steps")
    if not (np.isfinite(mus).all() and (mus > 0).all() and (q > 0).all() and (q <= 1).all()):
        raise ValueError("steps: finite mu above 0 and probabilities in (0, 1] are needed")
    if not 0 < delta < 1 or not 0 < confidence < 1 or runs < 1:
        raise ValueError(f"delta={delta}, confidence={confidence}, runs={runs}: in (0, 1), in (0, 1), at least 1")
    plan = _Plan.of(mus, q, delta)
    error = SHARE * (1 - confidence)
    eps0 = plan.smallest(delta * _winning(runs, (1 - confidence) - error), error, generator)
    coins, noise, losses = plan.accepted(eps0, generator)
    if not len(losses):
        return Draws(coins, noise, losses, losses, error)
    kept = slice(0, runs)
    weights = plan.log_peak(eps0) + math.log(_rate(len(losses), error)) - np.log(-np.expm1(eps0 - losses[kept]))
    return Draws(coins[kept], noise[kept], weights, losses[kept], error)


def certified_epsilon(draws: Draws, losses: np.ndarray, delta: float, *, confidence: float = 0.95) -> float:
    """The largest epsilon for which "(epsilon, delta)-DP" is refuted at ``confidence``; 0 if none, maybe infinite.

    losses: (R,) the privacy loss of each run under test, infinite where the record is certain to be in. Raises
    ValueError for a loss that is not a number.
    """
    losses = np.asarray(losses, float)
    if losses.shape != draws.planned.shape or np.isnan(losses).any():
        raise ValueError(f"losses {losses.shape}: one number for each of {len(draws)} runs is needed")
    error = (1 - confidence) - draws.error
    if error <= 0:
        raise ValueError(f"confidence={confidence}: the draws were made for a smaller one")

    def refuted(epsilon: float) -> bool:
        with np.errstate(over="ignore"):
            parts = np.where(losses > epsilon, -np.expm1(np.minimum(epsilon - losses, 0)), 0.0)
        return _wins(np.exp(draws.log_weights) * parts / delta, error)

    if not len(losses) or not refuted(0.0):
        return 0.0
    finite = losses[np.isfinite(losses)]
    low, high = 0.0, float(finite.max(initial=0.0)) + 1.0
    if refuted(high):
        return math.inf
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if refuted(middle) else (low, middle)
    return low


def _rate(accepted: float, error: float) -> float:
    """Of so many accepted proposals, the Clopper-Pearson lower bound of the acceptance rate."""
    return float(betaincinv(accepted, PROPOSALS - accepted + 1, error))


def _winning(runs: int, error: float) -> float:
    """A ratio that wins, with some to spare, if each of so many runs has it."""
    wealth = math.exp((MARGIN - math.log(error * SPLIT[-1])) / runs)
    return 1.02 * (1 + (wealth - 1) / float(STAKES[-1]))


def _wins(ratios: np.ndarray, error: float) -> bool:
    """Whether bets on a mean above 1 multiply their stake by 1/error: a mixture of constant stakes."""
    with np.errstate(divide="ignore"):
        wealth = np.log1p(STAKES[:, None] * (ratios - 1)).sum(1)
    return bool(logsumexp(wealth, b=SPLIT) >= -math.log(error))


@dataclass(frozen=True)
class _Plan:
    """A transcript's planned steps, and the s by which it is tilted."""

    mus: np.ndarray
    q: np.ndarray
    s: float
    cumulant: float

    @staticmethod
    def of(mus: np.ndarray, q: np.ndarray, delta: float) -> _Plan:
        """s from the best conversion of Renyi DP to (epsilon, delta) (Canonne, Kamath and Steinke 2020, prop. 12)."""
        orders = ORDERS if (q < 1).any() else np.geomspace(1e-3, 4096, 400)
        steps, counts = np.unique(np.stack([mus.round(3), q]), axis=1, return_counts=True)
        best: tuple[float, float] = (math.inf, 1.0)
        for s in orders:
            total = sum(n * _cumulant(m, p, s) for (m, p), n in zip(steps.T, counts))
            epsilon = (total - math.log(delta) + s * math.log(s / (s + 1)) - math.log(s + 1)) / s
            best = min(best, (epsilon, float(s)))
        s = best[1]
        return _Plan(mus, q, s, sum(_cumulant(m, p, s) for m, p in zip(mus, q)))  # exact, unlike the choice of s

    def log_peak(self, eps0: float) -> float:
        """K plus ln M, M the largest value of e^(-sY) (1 - e^(eps0 - Y))."""
        return self.cumulant - self.s * eps0 + self.s * math.log(self.s / (self.s + 1)) - math.log(self.s + 1)

    def chances(self, losses: np.ndarray, eps0: float) -> np.ndarray:
        """With which rejection keeps draws of these planned losses."""
        peak = self.log_peak(eps0) - self.cumulant
        with np.errstate(divide="ignore"):
            return np.exp(-self.s * losses + np.log(-np.expm1(np.minimum(eps0 - losses, 0))) - peak)

    def tilted(self, count: int, generator: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """(coins (n, T), noise (n, T)) of the presence of the record, tilted by the planned loss."""
        x = np.empty((count, len(self.mus)))
        for at, (mu, q) in enumerate(zip(self.mus, self.q)):
            orders, logs = _terms(mu, q, self.s)
            shares = np.exp(logs - logsumexp(logs)).cumsum()
            drawn = np.searchsorted(shares / shares[-1], generator.random(count)).clip(0, len(orders) - 1)
            x[:, at] = orders[drawn] * mu + generator.standard_normal(count)
        joined = np.exp(np.log(self.q) + self.mus * x - self.mus**2 / 2 - step_losses(x, self.mus, self.q))
        coins = generator.random(x.shape) < joined
        coins[:, self.q == 1] = True
        return coins, x - coins * self.mus

    def losses(self, coins: np.ndarray, noise: np.ndarray) -> np.ndarray:
        return step_losses(noise + coins * self.mus, self.mus, self.q).sum(1)

    def smallest(self, target: float, error: float, generator: np.random.Generator) -> float:
        """About the epsilon at which the least weight of a run is ``target``; a guess, from draws of its own.

        error: of the bound on the acceptance rate that is part of each weight.
        """
        losses = np.concatenate([self.losses(*self.tilted(n, generator)) for n in self._parts(PROPOSALS // 4)])
        low, high = 0.0, float(losses.max())
        for _ in range(50):
            middle = (low + high) / 2
            accepted = PROPOSALS * float(self.chances(losses, middle).mean())
            weight = self.log_peak(middle) + math.log(_rate(accepted, error)) if accepted >= 1 else -math.inf
            low, high = (middle, high) if weight > math.log(target) else (low, middle)
        return low

    def accepted(self, eps0: float, generator: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(coins, noise, planned losses) of the proposals that rejection leaves."""
        kept = []
        for count in self._parts(PROPOSALS):
            coins, noise = self.tilted(count, generator)
            losses = self.losses(coins, noise)
            taken = generator.random(count) < self.chances(losses, eps0)
            kept.append((coins[taken], noise[taken], losses[taken]))
        coins, noise, losses = (np.concatenate(part) for part in zip(*kept))
        return coins, noise, losses

    def _parts(self, total: int) -> list[int]:
        size = max(1, CHUNK // len(self.mus))
        return [min(size, total - at) for at in range(0, total, size)]


def _terms(mu: float, q: float, s: float) -> tuple[np.ndarray, np.ndarray]:
    """E_Q[(dP/dQ)^(s+1)] as a sum: (j, ln of the j-th term); the tilted law is the mixture of N(j mu, 1) by them."""
    if q == 1:
        return np.array([s + 1]), np.array([s * (s + 1) * mu**2 / 2])
    k = round(s) + 1
    j = np.arange(k + 1)
    chosen = gammaln(k + 1) - gammaln(j + 1) - gammaln(k - j + 1)
    return j, chosen + (k - j) * math.log1p(-q) + j * math.log(q) + mu**2 * j * (j - 1) / 2


def _cumulant(mu: float, q: float, s: float) -> float:
    """ln E_P[e^(s y)] of one step."""
    return float(logsumexp(_terms(mu, q, s)[1]))
