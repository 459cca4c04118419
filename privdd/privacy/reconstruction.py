"""The largest chance to name a record among k candidates, from a ledger alone (ReRo).

The attacker knows everything but one record, which is one of k known candidates, each as likely as
the others. For the guess ``z`` let E_z be the outputs at which it is made: under the neighbour
without the record the chances of the E_z add up to 1, so on average the attacker is right with no
more than the power of the best test of "without" against "with" at level 1/k (Hayes, Mahloujifar
and Balle 2023, Theorem 2, with the blow-up function of their Definition 4). A trade-off curve is
concave in the level, which carries the bound over the average. What unit a "record" is, and which
neighbour stands for "without", are the ledger's own."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution
from scipy.integrate import quad
from scipy.special import log_ndtr, ndtr, ndtri

from privdd.core.units import Relation
from privdd.privacy.accounting import privacy_loss_of
from privdd.privacy.events import Tally, UnsupportedEvent
from privdd.privacy.ledger import Ledger

CANDIDATES = (2, 10, 100, 1000)


@dataclass(frozen=True)
class Naming:
    """k candidates; prior = 1/k; bound: no attacker names the record more often (in [prior, 1]).

    attained: the rate of an attacker who compares likelihoods, on k crafted records that lie as far
        apart as clipping lets them; None where the ledger is not all full-batch Gaussian noise.
    """

    k: int
    prior: float
    bound: float
    attained: float | None = None

    def to_json(self) -> dict[str, Any]:
        """One entry of ``privacy.reconstruction`` in findings.json."""
        return {name: value for name, value in asdict(self).items() if value is not None}


def reconstruction(
    ledger: Ledger,
    candidates: Iterable[int] = CANDIDATES,
    *,
    client: int | None = None,
    surfaces: Iterable[str] | None = None,
) -> list[Naming]:
    """The bound for each number of candidates, for one client's data or the worst client's.

    surfaces: only what these let out, and what that was computed from. Raises ValueError for fewer
        than 2 candidates.
    """
    chosen = list(candidates)
    for k in chosen:
        if isinstance(k, bool) or not isinstance(k, int) or k < 2:
            raise ValueError(f"candidates={k!r}: an integer >= 2 is needed")
    priors = [1 / k for k in chosen]
    totals = ledger.totals(client=client, surfaces=None if surfaces is None else tuple(surfaces))
    bounds = [
        naming_bounds(total, priors, relation=ledger.relation, delta=ledger.delta)
        for total in totals
    ]
    worst = [max(column) for column in zip(priors, *bounds, strict=True)]
    return [
        Naming(k, 1 / k, bound, _attained_rate(totals, k, ledger.relation))
        for k, bound in zip(chosen, worst)
    ]


def _attained_rate(totals: Collection[Tally], k: int, relation: Relation) -> float | None:
    if not all(total.private and total.is_gaussian for total in totals):
        return None
    return max(
        (attained_naming_rate(_gaussian_mu(total, relation), k) for total in totals), default=1 / k
    )


def naming_bounds(
    total: Tally, priors: Sequence[float], *, relation: Relation, delta: float = 1e-5
) -> list[float]:
    """For each prior chance in (0, 1): the largest chance to identify the record.

    1 - f(prior), with f the trade-off curve of "without" against "with" (Hayes, Mahloujifar and
    Balle 2023, Theorem 2). Gaussian noise: Phi(mu + Phi^-1(prior)), with mu^2 = sum 1 / z^2
    composed. Otherwise the curve of the composed privacy loss, rounded upwards, in both orders of
    the pair. A bound by epsilon and delta alone (``naming_bound_of_claim``) would be looser: it
    knows one point of the curve.

    Args:
        total: the releases.
        priors: in (0, 1).
        relation: which data sets are neighbours.
        delta: only chooses the grid of the privacy loss.

    Returns:
        One bound a prior; 1 if anything is unprotected or no bound is known.
    """
    for prior in priors:
        if not 0 < prior < 1:
            raise ValueError(f"prior={prior!r}: a number in (0, 1) is needed")
    if not total.private:
        return [1.0 for _ in priors]
    if total.is_empty:
        return list(priors)
    if total.other_laws:
        full_batch = [1.0 for _ in priors]
    else:  # without knowing who was sampled an attacker does no better than with full batches
        full_batch = [float(ndtr(_gaussian_mu(total, relation) + ndtri(prior))) for prior in priors]
    if total.is_gaussian:
        return full_batch
    try:
        curve = power_at_levels(privacy_loss_of(total, delta, relation), priors)
    except UnsupportedEvent:
        return full_batch
    return [min(pair) for pair in zip(full_batch, curve, strict=True)]


def _gaussian_mu(total: Tally, relation: Relation) -> float:
    """The mu of the Gaussian releases, with every batch taken as a full one."""
    squared = total.squared_mu + math.fsum(n / (z * z) for (_, z), n in total.poisson)
    return math.sqrt(squared) * (2 if relation == "replace" else 1)


def power_at_levels(loss: PrivacyLossDistribution, levels: Sequence[float]) -> list[float]:
    """The largest power of a test at each level, in the worse order of the pair.

    The most powerful test of Q against P rejects the largest losses l = ln P/Q first (Neyman and
    Pearson): at level a = sum p(l) exp(-l) its power is sum p(l), over the losses above a
    threshold. The loss is rounded upwards, so that no test of the mechanism itself has more power.

    Args:
        loss: of the composition, rounded upwards.
        levels: in (0, 1).
    """
    orders = [loss._pmf_remove]  # there is no public way in
    if not loss._symmetric:
        orders.append(loss._pmf_add)
    powers = []
    for order in orders:
        pmf: Any = order.to_dense_pmf()
        losses = (pmf._lower_loss + np.arange(pmf.size)) * pmf._discretization
        chances = np.maximum(pmf._probs, 0.0)  # convolution leaves some at -1e-17
        # An atom of chance 0 has none under the other law either.
        with np.errstate(divide="ignore"):
            other_chances = np.exp(np.minimum(np.log(chances) - losses, 0.0))
        level_points = np.append(0.0, np.cumsum(other_chances[::-1]))
        power = pmf._infinity_mass + np.cumsum(chances[::-1])
        power_points = np.append(pmf._infinity_mass, power)
        powers.append(np.interp(levels, level_points, power_points, right=1.0))
    return [float(power) for power in np.clip(np.max(powers, axis=0), levels, 1)]


def naming_bound_of_claim(epsilon: float, delta: float, prior: float) -> float:
    """The chance of identifying a record that a claimed (epsilon, delta) would allow for any
    mechanism.

    min(exp(epsilon) prior + delta, 1 - exp(-epsilon) (1 - delta - prior)), the power at level prior
    by the trade-off curve of an (epsilon, delta) guarantee (Wasserman and Zhou 2010; Kairouz, Oh
    and Viswanath 2015).
    """
    if math.isinf(epsilon):
        return 1.0
    linear = prior * math.exp(min(epsilon, -math.log(prior))) + delta
    return min(1.0, linear, 1 - math.exp(-epsilon) * (1 - delta - prior))


def attained_naming_rate(mu: float, k: int) -> float:
    """How often the likeliest of k candidates is the right one, under Gaussian noise of deviation
    1.

    The candidates move the output by ``mu`` each, to the corners of a regular simplex (k - 1 or
    more dimensions). The right one wins with chance

        int phi(x - s) Phi(x)^(k - 1) dx,  s = mu sqrt(k / (k - 1)),

    as for k orthogonal signals (Proakis 2001, eq. 5.2-21), to which a simplex is shifted. With k =
    2 these are two opposite records, whose rate Phi(mu) is the bound itself.
    """
    shift = mu * math.sqrt(k / (k - 1))

    def weighted_density(x: float) -> float:
        return math.exp(-0.5 * (x - shift) ** 2 + (k - 1) * float(log_ndtr(x))) / math.sqrt(
            2 * math.pi
        )

    return float(
        min(1.0, quad(weighted_density, shift - 12, shift + 12, limit=400, points=[shift])[0])
    )
