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

PROPOSAL_COUNT = 20_000  # draws of the tilted law, of which the suitable ones are kept
MAX_NUMBERS_AT_ONCE = 4_000_000  # numbers in memory at a time
ACCEPTANCE_ERROR_SHARE = 0.05  # of the error probability, spent on the acceptance rate
TILT_ORDERS = np.unique(np.geomspace(1, 4096, 160).astype(int))  # whole s to choose from
FRACTIONAL_TILT_ORDERS = np.geomspace(1e-3, 4096, 400)  # s, if every step has q = 1
# the log of how much more a bet is planned to win than it must: runs do not go quite as planned
LOG_MARGIN = 2.0
# bets, in units of the largest allowed
BET_SIZES = np.array([*(2.0 ** -np.arange(1, 8)), 0.75, 0.9, 0.96, 1.0, 0.99])
# half of the money is on the last
BET_WEIGHTS = np.array([*[0.5 / (len(BET_SIZES) - 1)] * (len(BET_SIZES) - 1), 0.5])
FIT_SHARE = 0.4  # of the runs of a side, which fit the direction that T3 looks along
CHOICE_SHARE = 0.1  # of the runs of a side, which choose its threshold


@dataclass(frozen=True)
class LikelihoodRatioCertificate:
    """T2's result: not (epsilon, delta)-DP for any delta below ``delta_below``.

    Attributes:
        epsilon: natural logarithm, at least 0.
        delta_below: in (0, 0.5].
        confidence: at which the statement holds.
    """

    epsilon: float
    delta_below: float
    confidence: float


@accepts_numpy
def likelihood_ratio_certificate(
    ratios: Tensor, *, k: int = 5, confidence: float = 0.95
) -> LikelihoodRatioCertificate:
    """T2: refutes (epsilon, delta)-DP by the k-th largest of n likelihood ratios.

    Run it on both orders of a pair of neighbours, at 1 - alpha/2 each.

    Args:
        ratios: (n,) independent draws of L = ln P(o)/Q(o), natural logarithm, o drawn from P.
        k: rank of the ratio that decides, fixed beforehand, from 1 to n.
        confidence: in (0, 1).

    Returns:
        The epsilon, and the delta below which it is refuted.

    Raises:
        ValueError: for NaN, another shape, or a k that is larger than n.
    """
    # delta(eps) = E_P[(1 - e^(eps - L))_+] >= P_P(L >= eps + ln 2) / 2, and the k-th largest draw
    # L_(k) has, by order statistics at the stated confidence,
    #     P_P(L >= L_(k)) >= BetaInv(1 - confidence; k, n - k + 1).
    # So the mechanism is not (L_(k) - ln 2, delta)-DP for any delta below half of that.
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
    # ln P(o)/Q(o) = (|o - q|^2 - |o - p|^2) / (2 std^2)
    o = outputs.double()
    p = mean_p.double()
    q = mean_q.double()
    scale = torch.as_tensor(std, dtype=torch.float64)
    if not bool((scale > 0).all()):
        raise ValueError("std: positive numbers are needed")
    return (((o - q).square() - (o - p).square()) / (2 * scale.square())).sum(-1)


@accepts_numpy
def subsampled_log_ratio(ratios: Tensor, probability: float) -> Tensor:
    """ln ((1 - q) Q + q P) / Q of a record that Poisson sampling includes in each release with
    ``probability`` q in (0, 1], from the releases' ln P/Q (n, steps) -> their sum (n,)."""
    if not 0 < probability <= 1:
        raise ValueError(f"probability={probability}: a number in (0, 1] is needed")
    if probability < 1:
        log_absent = math.log1p(-probability)
    else:
        log_absent = -math.inf
    present = ratios.double() + math.log(probability)
    return torch.logaddexp(present, torch.full_like(present, log_absent)).sum(-1)


@accepts_numpy
def bound_from_runs(
    present: Tensor,
    absent: Tensor,
    *,
    delta: float,
    generator: np.random.Generator,
    confidence: float = 0.95,
) -> Bound:
    """T3: Clopper-Pearson from statistics (R, d) of independent runs with and without the record.

    Of each side 40 % fit a linear discriminant, 10 % choose the threshold, and the untouched half
    evaluates it, so the bound is finite-sample valid.
    """
    present_fit, present_choice, present_test = _split_runs(present, generator)
    absent_fit, absent_choice, absent_test = _split_runs(absent, generator)
    direction = _fisher_direction(present_fit, absent_fit)
    threshold = best_threshold(*_project_runs(present_choice, absent_choice, direction), delta)
    scores, is_present = _project_runs(present_test, absent_test, direction)
    return from_scores(
        scores, is_present, delta=delta, confidence=confidence, thresholds=[threshold]
    )


def _project_runs(
    present: np.ndarray, absent: np.ndarray, direction: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The runs of both sides along the direction (n,), and which of them had the record (n,)."""
    scores = np.concatenate([present @ direction, absent @ direction])
    return scores, np.arange(len(scores)) < len(present)


def _split_runs(
    side: Tensor, generator: np.random.Generator
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Statistics (R, d) in random order, in three parts: to fit, to choose, to test."""
    rows = torch.as_tensor(side).double().numpy()
    if rows.ndim != 2 or len(rows) < 20 or not np.isfinite(rows).all():
        raise ValueError(
            f"statistics {rows.shape}: (R, d) with R >= 20 and finite entries are needed"
        )
    order = generator.permutation(len(rows))
    fit = int(FIT_SHARE * len(rows))
    choice = int((FIT_SHARE + CHOICE_SHARE) * len(rows))
    return rows[order[:fit]], rows[order[fit:choice]], rows[order[choice:]]


# Fisher's discriminant S^-1 (m1 - m0), with the pooled covariance shrunk by a share s (Ledoit and
# Wolf 2004):   S = (1 - s) X^T X / n + s v I,   v the mean square of the centred entries X (n, d).
# If d exceeds n, by Woodbury's identity with c = (1 - s) / n and r = s v:
#     S^-1 g = (g - c X^T (r I + c X X^T)^-1 X g) / r.
def _fisher_direction(present: np.ndarray, absent: np.ndarray) -> np.ndarray:
    gap = present.mean(0) - absent.mean(0)
    rows = np.concatenate([present - present.mean(0), absent - absent.mean(0)])
    share = float(ledoit_wolf_shrinkage(rows, assume_centered=True))
    ridge = share * max(float((rows**2).mean()), np.finfo(float).tiny) + np.finfo(float).tiny
    scale = (1 - share) / len(rows)
    if rows.shape[1] <= len(rows):
        covariance = scale * rows.T @ rows + ridge * np.eye(rows.shape[1])
        return np.linalg.lstsq(covariance, gap, rcond=None)[0]
    inner = ridge * np.eye(len(rows)) + scale * rows @ rows.T
    return (gap - scale * rows.T @ np.linalg.lstsq(inner, rows @ gap, rcond=None)[0]) / ridge


# Tilted likelihood-ratio certificate: a lower bound on the epsilon of a whole transcript, from few
# runs of it.
#
# Along the direction in which one record moves it, in units of its noise, release i of a transcript
# is x = coin mu + noise, coin ~ Bernoulli(q), noise ~ N(0, 1), if the record is present, and noise
# alone if it is absent. Its privacy loss is
#     y = ln(1 - q + q exp(mu x - mu^2 / 2)),
# and with L the sum of the losses, the record's presence costs
#     delta(eps) = E_P[(1 - e^(eps - L))_+].
# At delta 1e-5 hardly any run contributes to this mean.
#
# So coins and noise are drawn from another law G, known before any code runs: P restricted to, and
# weighted by, the outcomes in which a *planned* transcript (its mu and q) has a large loss Y. First
# P is tilted by its own loss,
#     P_s ~ P e^(sY),   K(s) = ln E_P[e^(sY)],
# whose cumulant K has a closed form for whole s (Mironov, Talwar and Zhang 2019, section 3.3). Then
# rejection keeps a draw with probability e^(-sY) (1 - e^(eps0 - Y))_+ / M. The rest has
#     dP/dG = e^K M A / (1 - e^(eps0 - Y)),
# A the acceptance rate, which is replaced by its Clopper-Pearson lower limit. The code under test
# runs on these coins and this noise. Whatever its losses L are, the mean of dP/dG (1 - e^(eps -
# L))_+ is at most delta(eps), and the terms are almost constant if the losses are as planned.
#
# No mean of nonnegative draws can exceed delta without a bet on it winning (Waudby-Smith and Ramdas
# 2023, section 4; one-sided, so no upper end of the range is needed): for draws r_i / delta,
#     wealth_n = sum_j w_j prod_(i <= n) (1 + b_j (r_i / delta - 1)),   P[wealth_n >= 1/error] <=
#     error   if E[r] <= delta.
# The bound is the largest epsilon whose hypothesis "delta(epsilon) <= delta" the bet refutes; these
# hypotheses are nested, so no correction is needed.


@dataclass(frozen=True)
class TiltedDraws:
    """The coins and the noise that the runs under test use."""

    coins: np.ndarray  # (R, T) bool, a row a run: whether the record takes part in a step
    noise: np.ndarray  # (R, T)
    log_weights: np.ndarray  # (R,): ln dP/dG, from below
    planned: np.ndarray  # (R,): the loss of a run that goes as planned
    error: float  # the chance that the weights are too large

    def __len__(self) -> int:
        return len(self.planned)

    def first_runs(self, count: int) -> TiltedDraws:
        return TiltedDraws(
            self.coins[:count],
            self.noise[:count],
            self.log_weights[:count],
            self.planned[:count],
            self.error,
        )


def step_losses(x: np.ndarray, mus: np.ndarray, probabilities: np.ndarray) -> np.ndarray:
    """ln P/Q of releases at x, elementwise: Q = N(0, 1), P = (1 - q) Q + q N(mu, 1)."""
    with np.errstate(divide="ignore"):
        log_absent = np.log1p(-np.asarray(probabilities, float))
        log_present = np.log(probabilities)
    return np.logaddexp(log_absent, log_present + mus * x - np.square(mus) / 2)


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

    Any plan is valid; a wrong one only costs tightness. Raises ValueError for no step, a mu that is
    not a finite number above 0, or a q outside (0, 1].
    """
    mus = np.asarray(mus, float)
    q = np.asarray(probabilities, float)
    if mus.ndim != 1 or mus.shape != q.shape or not len(mus):
        raise ValueError(
            f"steps {mus.shape}, {q.shape}: must be one mu and one probability for each "
            "of T >= 1 steps"
        )
    if not (np.isfinite(mus).all() and (mus > 0).all() and (q > 0).all() and (q <= 1).all()):
        raise ValueError("steps: finite mu above 0 and probabilities in (0, 1] are needed")
    if not 0 < delta < 1 or not 0 < confidence < 1 or runs < 1:
        raise ValueError(
            f"delta={delta}, confidence={confidence}, runs={runs}: must be in (0, 1), "
            "in (0, 1) and at least 1"
        )
    plan = _PlannedTranscript.for_steps(mus, q, delta)
    error = ACCEPTANCE_ERROR_SHARE * (1 - confidence)
    target = delta * _winning_ratio(runs, (1 - confidence) - error)
    eps0 = plan.smallest_epsilon(target, error, generator)
    coins, noise, losses = plan.draw_accepted(eps0, generator)
    if not len(losses):
        return TiltedDraws(coins, noise, losses, losses, error)
    planned = losses[:runs]
    acceptance = math.log(lower_limit(len(losses), PROPOSAL_COUNT, error))
    weights = plan.log_peak(eps0) + acceptance - np.log(-np.expm1(eps0 - planned))
    return TiltedDraws(coins[:runs], noise[:runs], weights, planned, error)


def certified_epsilon(
    draws: TiltedDraws, losses: np.ndarray, delta: float, *, confidence: float = 0.95
) -> float:
    """The largest epsilon for which (epsilon, delta)-DP is refuted at ``confidence``; 0 for none,
    maybe infinite.

    losses: (R,), one a run under test, infinite if the run proves that the record is in. Raises
    ValueError for NaN.
    """
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
    if is_refuted(high):
        return math.inf
    return bisect_refuted(is_refuted, 0.0, high, steps=60)


def _winning_ratio(runs: int, error: float) -> float:
    """A ratio r / delta that wins the bet, with some to spare, if each of so many runs has it."""
    wealth = math.exp((LOG_MARGIN - math.log(error * BET_WEIGHTS[-1])) / runs)
    return 1.02 * (1 + (wealth - 1) / float(BET_SIZES[-1]))


def _is_bet_won(ratios: np.ndarray, error: float) -> bool:
    """Whether a mixture of constant bets on a mean above 1 multiplies its stake by 1 / error."""
    with np.errstate(divide="ignore"):
        wealth = np.log1p(BET_SIZES[:, None] * (ratios - 1)).sum(1)
    return bool(logsumexp(wealth, b=BET_WEIGHTS) >= -math.log(error))


@dataclass(frozen=True)
class _PlannedTranscript:
    """A transcript's planned steps, and the s by which it is tilted."""

    mus: np.ndarray  # (T,)
    q: np.ndarray  # (T,)
    s: float
    cumulant: float  # K(s)

    @staticmethod
    def for_steps(mus: np.ndarray, q: np.ndarray, delta: float) -> _PlannedTranscript:
        """The steps with the s of the best conversion of Renyi DP to (epsilon, delta)."""
        # Canonne, Kamath and Steinke (2020), proposition 12, at order s + 1:
        #     epsilon = (K(s) - ln delta + s ln(s / (s + 1)) - ln(s + 1)) / s
        if (q < 1).any():
            orders = TILT_ORDERS
        else:
            orders = FRACTIONAL_TILT_ORDERS
        # equal steps are counted once: rounding moves the choice of s, and no bound
        steps, counts = np.unique(np.stack([mus.round(3), q]), axis=1, return_counts=True)
        best: tuple[float, float] = (math.inf, 1.0)
        for s in orders:
            total = sum(n * _loss_cumulant(m, p, s) for (m, p), n in zip(steps.T, counts))
            epsilon = (total - math.log(delta) + s * math.log(s / (s + 1)) - math.log(s + 1)) / s
            best = min(best, (epsilon, float(s)))
        s = best[1]
        cumulant = sum(_loss_cumulant(mu, p, s) for mu, p in zip(mus, q))
        return _PlannedTranscript(mus, q, s, cumulant)

    def log_peak(self, eps0: float) -> float:
        """K plus ln M, M the largest value of e^(-sY) (1 - e^(eps0 - Y)), at Y = eps0 + ln((s + 1)
        / s)."""
        s = self.s
        return self.cumulant - s * eps0 + s * math.log(s / (s + 1)) - math.log(s + 1)

    def acceptance_probabilities(self, losses: np.ndarray, eps0: float) -> np.ndarray:
        """The probability with which rejection keeps a draw of each planned loss."""
        peak = self.log_peak(eps0) - self.cumulant
        with np.errstate(divide="ignore"):
            return np.exp(-self.s * losses + np.log(-np.expm1(np.minimum(eps0 - losses, 0))) - peak)

    def draw_tilted(
        self, count: int, generator: np.random.Generator
    ) -> tuple[np.ndarray, np.ndarray]:
        """(coins (n, T), noise (n, T)) of the presence of the record, tilted by the planned
        loss."""
        x = np.empty((count, len(self.mus)))
        for step, (mu, q) in enumerate(zip(self.mus, self.q)):
            orders, logs = _moment_terms(mu, q, self.s)
            shares = np.exp(logs - logsumexp(logs)).cumsum()
            terms = np.searchsorted(shares / shares[-1], generator.random(count))
            centres = orders[terms.clip(0, len(orders) - 1)] * mu
            x[:, step] = centres + generator.standard_normal(count)
        # P[coin = 1 | x] = q N(x; mu, 1) / ((1 - q) N(x; 0, 1) + q N(x; mu, 1))
        log_posterior = (
            np.log(self.q) + self.mus * x - self.mus**2 / 2 - step_losses(x, self.mus, self.q)
        )
        coins = generator.random(x.shape) < np.exp(log_posterior)
        coins[:, self.q == 1] = True
        return coins, x - coins * self.mus

    def planned_losses(self, coins: np.ndarray, noise: np.ndarray) -> np.ndarray:
        return step_losses(noise + coins * self.mus, self.mus, self.q).sum(1)

    def smallest_epsilon(
        self, target: float, error: float, generator: np.random.Generator
    ) -> float:
        """An estimate of the epsilon at which the least weight of a run is ``target``, from draws
        of its own; error: of the bound on the acceptance rate that is part of each weight."""
        chunks = []
        for count in self._chunk_sizes(PROPOSAL_COUNT // 4):
            chunks.append(self.planned_losses(*self.draw_tilted(count, generator)))
        losses = np.concatenate(chunks)
        low = 0.0
        high = float(losses.max())
        for _ in range(50):
            middle = (low + high) / 2
            accepted = PROPOSAL_COUNT * float(self.acceptance_probabilities(losses, middle).mean())
            limit = 0.0
            if accepted >= 1:
                limit = lower_limit(accepted, PROPOSAL_COUNT, error)
            if limit and self.log_peak(middle) + math.log(limit) > math.log(target):
                low = middle
            else:
                high = middle
        return low

    def draw_accepted(
        self, eps0: float, generator: np.random.Generator
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(coins, noise, planned losses) of the proposals that rejection leaves."""
        chunks = []
        for count in self._chunk_sizes(PROPOSAL_COUNT):
            coins, noise = self.draw_tilted(count, generator)
            losses = self.planned_losses(coins, noise)
            accepted = generator.random(count) < self.acceptance_probabilities(losses, eps0)
            chunks.append((coins[accepted], noise[accepted], losses[accepted]))
        coins, noise, losses = (np.concatenate(arrays) for arrays in zip(*chunks))
        return coins, noise, losses

    def _chunk_sizes(self, total: int) -> list[int]:
        """Numbers of draws that fit into memory, which sum up to ``total``."""
        size = max(1, MAX_NUMBERS_AT_ONCE // len(self.mus))
        return [min(size, total - start) for start in range(0, total, size)]


def _moment_terms(mu: float, q: float, s: float) -> tuple[np.ndarray, np.ndarray]:
    """E_Q[(dP/dQ)^(s+1)] as a sum: (j, ln of the j-th term); the tilted law is the mixture of N(j
    mu, 1) by these terms."""
    # k = s + 1:  sum_(j <= k) C(k, j) (1 - q)^(k-j) q^j exp(mu^2 j (j - 1) / 2)
    if q == 1:
        return np.array([s + 1]), np.array([s * (s + 1) * mu**2 / 2])
    k = round(s) + 1
    j = np.arange(k + 1)
    log_binomial = gammaln(k + 1) - gammaln(j + 1) - gammaln(k - j + 1)
    log_terms = log_binomial + (k - j) * math.log1p(-q) + j * math.log(q) + mu**2 * j * (j - 1) / 2
    return j, log_terms


def _loss_cumulant(mu: float, q: float, s: float) -> float:
    """ln E_P[e^(s y)] of one step."""
    return float(logsumexp(_moment_terms(mu, q, s)[1]))
