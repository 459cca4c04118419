"""Certificates against a stated guarantee: likelihood ratios (T2), attacks on runs (T3), and the
tilted certificate.

"Not (epsilon, delta)-DP" from likelihood ratios has no ceiling by the number of runs. A search that
finds nothing proves nothing."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from scipy.special import gammaln, logsumexp
from sklearn.covariance import ledoit_wolf_shrinkage
from torch import Tensor

from attacks.epsilon import Bound, best_threshold, from_scores
from attacks.statistics import bisect_refuted, lower_limit
from attacks.tensors import accepts_numpy


@dataclass(frozen=True)
class LikelihoodRatioCertificate:
    """T2's result: not (epsilon, delta)-DP for every delta below ``delta_below``, at
    ``confidence``."""

    epsilon: float
    delta_below: float
    confidence: float


@accepts_numpy
def likelihood_ratio_certificate(
    ratios: Tensor, *, k: int = 5, confidence: float = 0.95
) -> LikelihoodRatioCertificate:
    """T2 from n independent draws of L = ln P(o)/Q(o), o drawn from P (natural logarithm).

    delta(eps) = E_P[(1 - e^(eps - L))_+] >= P_P(L >= eps + ln 2) / 2, and with k fixed beforehand
    the k-th largest draw L_(k) has P_P(L >= L_(k)) >= BetaInv(1 - confidence; k, n - k + 1) at the
    stated confidence (order statistics). So the mechanism is not (L_(k) - ln 2, delta)-DP for any
    delta below half of that. Run it on both orders of the pair at 1 - alpha/2 each.
    """
    values = torch.as_tensor(ratios).double()
    if values.ndim != 1 or not 1 <= k <= len(values) or values.isnan().any():
        raise ValueError(
            f"ratios {tuple(values.shape)}, k={k}: n >= k draws without NaN are needed"
        )
    if not 0 < confidence < 1:
        raise ValueError(f"confidence={confidence}: a number in (0, 1) is needed")
    share = lower_limit(k, len(values), 1 - confidence)
    largest = float(values.topk(k).values[-1])
    return LikelihoodRatioCertificate(max(largest - math.log(2), 0.0), share / 2, confidence)


@accepts_numpy
def gaussian_log_ratio(
    outputs: Tensor, mean_p: Tensor, mean_q: Tensor, std: float | Tensor
) -> Tensor:
    """ln N(o; mean_p, std^2) / N(o; mean_q, std^2), summed over coordinates: outputs (n, d) -> (n,)
    float64."""
    o = outputs.double()
    p = mean_p.double()
    q = mean_q.double()
    scale = torch.as_tensor(std, dtype=torch.float64)
    if not bool((scale > 0).all()):
        raise ValueError("std: positive numbers are needed")
    return (((o - q).square() - (o - p).square()) / (2 * scale.square())).sum(-1)


@accepts_numpy
def subsampled_log_ratio(ratios: Tensor, probability: float) -> Tensor:
    """ln of (1 - q) Q + q P over Q, from per-release ratios ln P/Q (n, steps) -> their sum (n,): of
    a record that joins each release by an independent coin of ``probability`` q in (0, 1]."""
    if not 0 < probability <= 1:
        raise ValueError(f"probability={probability}: a number in (0, 1] is needed")
    stay = math.log1p(-probability) if probability < 1 else -math.inf
    mixed = torch.logaddexp(
        ratios.double() + math.log(probability), torch.full_like(ratios.double(), stay)
    )
    return mixed.sum(-1)


@accepts_numpy
def bound_from_runs(
    inside: Tensor,
    outside: Tensor,
    *,
    delta: float,
    generator: np.random.Generator,
    confidence: float = 0.95,
) -> Bound:
    """T3: Clopper-Pearson from statistics (R, d) of independent runs with and without the record.

    Of each side 40 % fit a linear discriminant (covariance shrunk after Ledoit and Wolf 2004), 10 %
    choose the threshold, and the untouched half is judged, so the bound is finite-sample valid.
    """
    parts = [_split_runs(side, generator) for side in (inside, outside)]
    direction = _fisher_direction(parts[0][0], parts[1][0])
    choose, judge = (
        (
            np.concatenate([p[i] @ direction for p in parts]),
            np.arange(sum(len(p[i]) for p in parts)) < len(parts[0][i]),
        )
        for i in (1, 2)
    )
    at = best_threshold(*choose, delta)
    return from_scores(*judge, delta=delta, confidence=confidence, thresholds=[at])


def _split_runs(
    side: Tensor, generator: np.random.Generator
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rows = torch.as_tensor(side).double().numpy()
    if rows.ndim != 2 or len(rows) < 20 or not np.isfinite(rows).all():
        raise ValueError(
            f"statistics {rows.shape}: (R, d) with R >= 20 and finite entries are needed"
        )
    order = generator.permutation(len(rows))
    fit = int(0.4 * len(rows))
    choose = int(0.5 * len(rows))
    return rows[order[:fit]], rows[order[fit:choose]], rows[order[choose:]]


def _fisher_direction(inside: np.ndarray, outside: np.ndarray) -> np.ndarray:
    """Fisher's direction S^-1 (m1 - m0), solved in the span of the samples where d exceeds their
    number."""
    gap = inside.mean(0) - outside.mean(0)
    rows = np.concatenate([inside - inside.mean(0), outside - outside.mean(0)])
    share = float(ledoit_wolf_shrinkage(rows, assume_centered=True))
    ridge = share * max(float((rows**2).mean()), np.finfo(float).tiny) + np.finfo(float).tiny
    scale = (1 - share) / len(rows)
    if rows.shape[1] <= len(rows):
        return np.linalg.lstsq(
            scale * rows.T @ rows + ridge * np.eye(rows.shape[1]), gap, rcond=None
        )[0]
    inner = ridge * np.eye(len(rows)) + scale * rows @ rows.T  # Woodbury's identity
    return (gap - scale * rows.T @ np.linalg.lstsq(inner, rows @ gap, rcond=None)[0]) / ridge


# Tilted likelihood-ratio certificate: a lower bound on the epsilon of a whole transcript, from few
# runs of it.
#
# Seen along the direction in which one record moves it, in units of its noise, release i of a
# transcript is x = coin * mu + noise with coin ~ Bernoulli(q) and noise ~ N(0, 1) where the record
# is present, and noise alone where it is absent; its privacy loss is y = ln(1 - q + q exp(mu x -
# mu^2 / 2)). What the record's presence costs is delta(eps) = E_P[(1 - e^(eps - L))_+], L the sum
# of the losses. At delta 1e-5 almost no run counts.
#
# So coins and noise are drawn from another law G that is known before any code runs: P restricted
# to and weighted by where a *planned* transcript (its mu and q) has a large loss Y. First P tilted
# by its own loss, P_s ~ P e^(sY), whose cumulant K(s) = ln E_P[e^(sY)] is closed form for whole s
# (Mironov, Talwar and Zhang 2019, section 3.3); then rejection, which keeps a draw with probability
# e^(-sY) (1 - e^(eps0 - Y))_+ / M. What is left has density dP/dG = e^K M A / (1 - e^(eps0 - Y)), A
# the acceptance rate, of which a Clopper-Pearson lower bound is taken. The code under test is run
# on these coins and this noise; whatever its losses L turn out to be, the mean of dP/dG (1 - e^(eps
# - L))_+ is at most delta(eps), and almost constant where they are as planned.
#
# No mean of nonnegative draws can exceed delta without a bet on it winning (Waudby-Smith and Ramdas
# 2023, section 4; one-sided, so no upper end of the range is needed). The bound is the largest
# epsilon whose hypothesis "delta(epsilon) <= delta" the bet refutes; these hypotheses are nested,
# so no correction is needed.

PROPOSAL_COUNT = 20_000  # draws of the tilted law, of which the suitable ones are kept
MAX_NUMBERS_AT_ONCE = 4_000_000  # numbers in memory at a time
ACCEPTANCE_ERROR_SHARE = 0.05  # of the error probability, spent on the acceptance rate
TILT_ORDERS = np.unique(np.geomspace(1, 4096, 160).astype(int))  # whole s to choose from
# the log of how much more a bet is planned to win than it must: runs do not go quite as planned
LOG_MARGIN = 2.0
BET_SIZES = np.array(
    [*(2.0 ** -np.arange(1, 8)), 0.75, 0.9, 0.96, 1.0, 0.99]
)  # bets, in units of the largest allowed
BET_WEIGHTS = np.array(
    [*[0.5 / (len(BET_SIZES) - 1)] * (len(BET_SIZES) - 1), 0.5]
)  # half of the money is on the last


@dataclass(frozen=True)
class TiltedDraws:
    """What runs under test are given: coins, noise (R, T), one row a run; log_weights (R,): ln
    dP/dG from below; planned (R,): the loss that a run has if it is as planned; error: the chance
    that the weights are too large."""

    coins: np.ndarray
    noise: np.ndarray
    log_weights: np.ndarray
    planned: np.ndarray
    error: float

    def __len__(self) -> int:
        return len(self.planned)

    def first_runs(self, count: int) -> TiltedDraws:
        kept = slice(0, count)
        return TiltedDraws(
            self.coins[kept],
            self.noise[kept],
            self.log_weights[kept],
            self.planned[kept],
            self.error,
        )


def step_losses(x: np.ndarray, mus: np.ndarray, probabilities: np.ndarray) -> np.ndarray:
    """ln P/Q of releases at x, elementwise: Q = N(0, 1), P = (1 - q) Q + q N(mu, 1)."""
    with np.errstate(divide="ignore"):
        stay = np.log1p(-np.asarray(probabilities, float))
        join = np.log(probabilities)
    return np.logaddexp(stay, join + mus * x - np.square(mus) / 2)


def draw_tilted_runs(
    mus: np.ndarray,
    probabilities: np.ndarray,
    delta: float,
    runs: int,
    generator: np.random.Generator,
    *,
    confidence: float = 0.95,
) -> TiltedDraws:
    """Coins and noise of at most ``runs`` runs of a transcript with planned steps (mu_i, q_i), (T,)
    each.

    Any plan is valid, also a wrong one: it only costs tightness. Raises ValueError for no step, a
        mu that is not a finite number above 0, or a q outside (0, 1].
    """
    mus = np.asarray(mus, float)
    q = np.asarray(probabilities, float)
    if mus.ndim != 1 or mus.shape != q.shape or not len(mus):
        raise ValueError(
            f"steps {mus.shape}, {q.shape}: one mu and one probability for each of T >= 1 steps"
        )
    if not (np.isfinite(mus).all() and (mus > 0).all() and (q > 0).all() and (q <= 1).all()):
        raise ValueError("steps: finite mu above 0 and probabilities in (0, 1] are needed")
    if not 0 < delta < 1 or not 0 < confidence < 1 or runs < 1:
        raise ValueError(
            f"delta={delta}, confidence={confidence}, runs={runs}: in (0, 1), in (0, 1), at least 1"
        )
    plan = _PlannedTranscript.for_steps(mus, q, delta)
    error = ACCEPTANCE_ERROR_SHARE * (1 - confidence)
    eps0 = plan.smallest_epsilon(
        delta * _winning_ratio(runs, (1 - confidence) - error), error, generator
    )
    coins, noise, losses = plan.draw_accepted(eps0, generator)
    if not len(losses):
        return TiltedDraws(coins, noise, losses, losses, error)
    kept = slice(0, runs)
    acceptance = math.log(lower_limit(len(losses), PROPOSAL_COUNT, error))
    weights = plan.log_peak(eps0) + acceptance - np.log(-np.expm1(eps0 - losses[kept]))
    return TiltedDraws(coins[kept], noise[kept], weights, losses[kept], error)


def certified_epsilon(
    draws: TiltedDraws, losses: np.ndarray, delta: float, *, confidence: float = 0.95
) -> float:
    """The largest epsilon for which "(epsilon, delta)-DP" is refuted at ``confidence``; 0 if none,
    maybe infinite.

    losses: (R,) of each run under test, infinite where the record is certain to be in. Raises
        ValueError for NaN."""
    losses = np.asarray(losses, float)
    if losses.shape != draws.planned.shape or np.isnan(losses).any():
        raise ValueError(
            f"losses {losses.shape}: one number for each of {len(draws)} runs is needed"
        )
    error = (1 - confidence) - draws.error
    if error <= 0:
        raise ValueError(f"confidence={confidence}: the draws were made for a smaller one")

    def is_refuted(epsilon: float) -> bool:
        with np.errstate(over="ignore"):
            parts = np.where(losses > epsilon, -np.expm1(np.minimum(epsilon - losses, 0)), 0.0)
        return _is_bet_won(np.exp(draws.log_weights) * parts / delta, error)

    if not len(losses) or not is_refuted(0.0):
        return 0.0
    finite = losses[np.isfinite(losses)]
    high = float(finite.max(initial=0.0)) + 1.0
    return math.inf if is_refuted(high) else bisect_refuted(is_refuted, 0.0, high, steps=60)


def _winning_ratio(runs: int, error: float) -> float:
    """A ratio that wins, with some to spare, if each of so many runs has it."""
    wealth = math.exp((LOG_MARGIN - math.log(error * BET_WEIGHTS[-1])) / runs)
    return 1.02 * (1 + (wealth - 1) / float(BET_SIZES[-1]))


def _is_bet_won(ratios: np.ndarray, error: float) -> bool:
    """Whether bets on a mean above 1 multiply their stake by 1/error: a mixture of constant
    stakes."""
    with np.errstate(divide="ignore"):
        wealth = np.log1p(BET_SIZES[:, None] * (ratios - 1)).sum(1)
    return bool(logsumexp(wealth, b=BET_WEIGHTS) >= -math.log(error))


@dataclass(frozen=True)
class _PlannedTranscript:
    """A transcript's planned steps, and the s by which it is tilted."""

    mus: np.ndarray
    q: np.ndarray
    s: float
    cumulant: float

    @staticmethod
    def for_steps(mus: np.ndarray, q: np.ndarray, delta: float) -> _PlannedTranscript:
        """s from the best conversion of Renyi DP to (epsilon, delta) (Canonne, Kamath and Steinke
        2020, prop. 12)."""
        orders = TILT_ORDERS if (q < 1).any() else np.geomspace(1e-3, 4096, 400)
        steps, counts = np.unique(np.stack([mus.round(3), q]), axis=1, return_counts=True)
        best: tuple[float, float] = (math.inf, 1.0)
        for s in orders:
            total = sum(n * _loss_cumulant(m, p, s) for (m, p), n in zip(steps.T, counts))
            epsilon = (total - math.log(delta) + s * math.log(s / (s + 1)) - math.log(s + 1)) / s
            best = min(best, (epsilon, float(s)))
        s = best[1]
        # exact, unlike the choice of s
        return _PlannedTranscript(mus, q, s, sum(_loss_cumulant(m, p, s) for m, p in zip(mus, q)))

    def log_peak(self, eps0: float) -> float:
        """K plus ln M, M the largest value of e^(-sY) (1 - e^(eps0 - Y))."""
        return (
            self.cumulant
            - self.s * eps0
            + self.s * math.log(self.s / (self.s + 1))
            - math.log(self.s + 1)
        )

    def acceptance_probabilities(self, losses: np.ndarray, eps0: float) -> np.ndarray:
        """With which rejection keeps draws of these planned losses."""
        peak = self.log_peak(eps0) - self.cumulant
        with np.errstate(divide="ignore"):
            return np.exp(-self.s * losses + np.log(-np.expm1(np.minimum(eps0 - losses, 0))) - peak)

    def draw_tilted(
        self, count: int, generator: np.random.Generator
    ) -> tuple[np.ndarray, np.ndarray]:
        """(coins (n, T), noise (n, T)) of the presence of the record, tilted by the planned
        loss."""
        x = np.empty((count, len(self.mus)))
        for at, (mu, q) in enumerate(zip(self.mus, self.q)):
            orders, logs = _moment_terms(mu, q, self.s)
            shares = np.exp(logs - logsumexp(logs)).cumsum()
            drawn = np.searchsorted(shares / shares[-1], generator.random(count)).clip(
                0, len(orders) - 1
            )
            x[:, at] = orders[drawn] * mu + generator.standard_normal(count)
        joined = np.exp(
            np.log(self.q) + self.mus * x - self.mus**2 / 2 - step_losses(x, self.mus, self.q)
        )
        coins = generator.random(x.shape) < joined
        coins[:, self.q == 1] = True
        return coins, x - coins * self.mus

    def planned_losses(self, coins: np.ndarray, noise: np.ndarray) -> np.ndarray:
        return step_losses(noise + coins * self.mus, self.mus, self.q).sum(1)

    def smallest_epsilon(
        self, target: float, error: float, generator: np.random.Generator
    ) -> float:
        """About the epsilon at which the least weight of a run is ``target``; a guess, from draws
        of its own. error: of the bound on the acceptance rate that is part of each weight."""
        losses = np.concatenate(
            [
                self.planned_losses(*self.draw_tilted(n, generator))
                for n in self._chunk_sizes(PROPOSAL_COUNT // 4)
            ]
        )
        low = 0.0
        high = float(losses.max())
        for _ in range(50):
            middle = (low + high) / 2
            accepted = PROPOSAL_COUNT * float(self.acceptance_probabilities(losses, middle).mean())
            limit = lower_limit(accepted, PROPOSAL_COUNT, error) if accepted >= 1 else 0.0
            weight = self.log_peak(middle) + math.log(limit) if limit else -math.inf
            low, high = (middle, high) if weight > math.log(target) else (low, middle)
        return low

    def draw_accepted(
        self, eps0: float, generator: np.random.Generator
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(coins, noise, planned losses) of the proposals that rejection leaves."""
        kept = []
        for count in self._chunk_sizes(PROPOSAL_COUNT):
            coins, noise = self.draw_tilted(count, generator)
            losses = self.planned_losses(coins, noise)
            taken = generator.random(count) < self.acceptance_probabilities(losses, eps0)
            kept.append((coins[taken], noise[taken], losses[taken]))
        coins, noise, losses = (np.concatenate(part) for part in zip(*kept))
        return coins, noise, losses

    def _chunk_sizes(self, total: int) -> list[int]:
        size = max(1, MAX_NUMBERS_AT_ONCE // len(self.mus))
        return [min(size, total - at) for at in range(0, total, size)]


def _moment_terms(mu: float, q: float, s: float) -> tuple[np.ndarray, np.ndarray]:
    """E_Q[(dP/dQ)^(s+1)] as a sum: (j, ln of the j-th term); the tilted law is the mixture of N(j
    mu, 1) by them."""
    if q == 1:
        return np.array([s + 1]), np.array([s * (s + 1) * mu**2 / 2])
    k = round(s) + 1
    j = np.arange(k + 1)
    chosen = gammaln(k + 1) - gammaln(j + 1) - gammaln(k - j + 1)
    return j, chosen + (k - j) * math.log1p(-q) + j * math.log(q) + mu**2 * j * (j - 1) / 2


def _loss_cumulant(mu: float, q: float, s: float) -> float:
    """ln E_P[e^(s y)] of one step."""
    return float(logsumexp(_moment_terms(mu, q, s)[1]))
