"""Epsilon of an event, by dp-accounting with its traps handled.

Relations: ``add_remove`` (one record more or less), ``zero_out`` (one record replaced by nothing,
the count being public; same numbers) and ``replace`` (one record exchanged, every sensitivity
doubles). dp-accounting 0.6 doubles under ``replace`` in its PLD accountant but not in its RDP
accountant: here both double.

Symbols: P and Q are the laws of all releases with and without one record, L = ln P/Q their privacy
loss. A mechanism is (epsilon, delta)-DP if and only if, for both orders of every pair,

    delta >= E_P[(1 - exp(epsilon - L))_+].

The loss of a composition is the sum of independent losses, so its law is a convolution.
"""

from __future__ import annotations

import logging
import math
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from typing import Literal, get_args

import dp_accounting as dpa
from dp_accounting.pld import privacy_loss_distribution as pld
from dp_accounting.pld.common import DifferentialPrivacyParameters
from dp_accounting.rdp import RdpAccountant

from privdd.core.units import Relation
from privdd.privacy.events import Tally, UnsupportedEvent, scale_tally, tally_events
from privdd.privacy.noise_laws import NOISE_LAWS

NEIGHBOURS = {
    "add_remove": dpa.NeighboringRelation.ADD_OR_REMOVE_ONE,
    "zero_out": dpa.NeighboringRelation.REPLACE_SPECIAL,
    "replace": dpa.NeighboringRelation.REPLACE_ONE,
}
# Discretisation of the privacy loss; 1e-3 overstates 0.476 as 0.499 at 10,000 sparse steps.
FINEST = 1e-4
COARSE = 1e-3  # for bracketing only
POINTS = 5e5  # about how many grid points a large loss is spread over
MOST_STEPS = 2**30  # of one sampled or Laplace event: a loss of more is composed for minutes
# Of all compositions of a ledger, and of one: about so many tenths of a second.
MOST_WORK = 1500
MOST_WORK_OF_ONE = 200

Accountant = Literal["pld", "rdp"]
ACCOUNTANTS: tuple[Accountant, ...] = get_args(Accountant)


def smallest_bound(epsilons: Mapping[str, float]) -> float:
    """The proven epsilon, of those that the accountants prove: each is an upper bound, so the
    smallest holds."""
    return min(epsilons.values())


def check_relation(relation: str) -> None:
    """Raises ValueError for a relation that is not known."""
    if relation not in NEIGHBOURS:
        raise ValueError(f"relation={relation!r}: allowed are {', '.join(NEIGHBOURS)}")


def check_delta(delta: float) -> None:
    """Raises ValueError for a delta outside (0, 1)."""
    if not 0 < delta < 1:
        raise ValueError(f"delta={delta!r}: a number in (0, 1) is needed")


def epsilon(
    event: dpa.DpEvent,
    delta: float,
    *,
    relation: Relation = "add_remove",
    accountant: Accountant = "pld",
) -> float:
    """The smallest proven epsilon of one event.

    Args:
        event: what is released; compositions and repetitions are events too.
        delta: in (0, 1).
        relation: which data sets are neighbours.
        accountant: ``pld`` (tight) or ``rdp`` (Renyi divergences).

    Returns:
        Epsilon >= 0; infinite if anything is unprotected.

    Raises:
        UnsupportedEvent: for an event, or an event under this relation, that this accountant cannot
            bound.
        ValueError: for a bad delta, relation or accountant.

    Example:
        >>> import dp_accounting as dpa
        >>> round(epsilon(dpa.GaussianDpEvent(1.0), 1e-5), 2)
        4.38
    """
    return epsilon_of(tally_events([(event, 1)]), delta, relation=relation, accountant=accountant)


def epsilon_of(total: Tally, delta: float, *, relation: Relation, accountant: Accountant) -> float:
    """``epsilon`` of a composition in normal form (cached by it)."""
    check_delta(delta)
    check_relation(relation)
    if accountant not in get_args(Accountant):
        raise ValueError(
            f"accountant={accountant!r}: allowed are {', '.join(get_args(Accountant))}"
        )
    if not total.private:
        return math.inf
    if total.is_empty:
        return 0.0
    if accountant == "pld":
        return pld_epsilon(total, delta, relation)
    return _rdp_epsilon(total, delta, relation)


@lru_cache(maxsize=4096)
def _rdp_epsilon(total: Tally, delta: float, relation: Relation) -> float:
    """Epsilon from Renyi divergences D_a (Mironov 2017), which add up over releases.

    epsilon = min_a D_a(P || Q) + ln(1 - 1/a) - (ln delta + ln a) / (a - 1)
    (Canonne, Kamath and Steinke 2020, Proposition 12), of the sampled Gaussian by Mironov, Talwar
    and Zhang 2019. The conversion is dp-accounting's own; Mironov's first one is up to 15 % larger.
    """
    if relation == "replace" and total.poisson:
        raise UnsupportedEvent(
            "RDP has no bound for Poisson sampling under relation=replace: use accountant=pld"
        )
    scale = 0.5 if relation == "replace" else 1.0  # an exchange moves a release twice as far
    accountant = RdpAccountant(neighboring_relation=NEIGHBOURS[relation])
    with _silence_warnings():
        accountant.compose(_compose_events(total, scale))
        return float(accountant.get_epsilon(delta))


def _compose_events(total: Tally, scale: float) -> dpa.DpEvent:
    """The composition with noise of ``scale`` times the multipliers, as dp-accounting knows it."""
    parts: list[dpa.DpEvent] = []
    if total.squared_mu:
        parts.append(dpa.GaussianDpEvent(scale / math.sqrt(total.squared_mu)))
    for (name, z), count in total.other_laws:
        release = NOISE_LAWS[name].event_with_divergence(scale * z)
        parts.append(dpa.SelfComposedDpEvent(release, count))
    for (q, z), count in total.poisson:
        sampled = dpa.PoissonSampledDpEvent(q, dpa.GaussianDpEvent(scale * z))
        parts.append(dpa.SelfComposedDpEvent(sampled, count))
    return dpa.ComposedDpEvent(parts)


@lru_cache(maxsize=4096)
def pld_epsilon(
    total: Tally, delta: float, relation: Relation, interval: float | None = None
) -> float:
    """Epsilon from the law of the privacy loss, on a grid and rounded upwards.

    Gaussians alone have mu^2 = sum 1 / z^2 and are exact (Balle and Wang 2018, Theorem 8):
    delta = Phi(mu/2 - epsilon/mu) - exp(epsilon) Phi(-mu/2 - epsilon/mu). Otherwise losses are
    convolved (Koskela, Jalko and Honkela 2020), with mass placed so that every delta(epsilon) is an
    upper bound (Doroshenko et al. 2022, "Connect the dots"). RDP's bound is the ceiling, as a grid
    of limited size may be coarse for very large losses.

    Args:
        total: private and not empty.
        delta: in (0, 1).
        relation: which data sets are neighbours.
        interval: of the grid; None: chosen by the ceiling.
    """
    if total.is_gaussian:
        mu = math.sqrt(total.squared_mu) * (2 if relation == "replace" else 1)
        return float(dpa.get_epsilon_gaussian(1 / mu, delta))
    ceiling = _epsilon_ceiling(total, delta, relation)
    step = interval or _grid_interval(ceiling)
    value = _loss_epsilon(total, delta, relation, step)
    if math.isinf(value):  # the grid overflows at very large losses; a coarser one is still a bound
        value = _loss_epsilon(total, delta, relation, 16 * step)
    return min(value, ceiling)


def check_work(totals: Iterable[Tally]) -> None:
    """Refuses compositions whose accounting would take many minutes: no run that was trained has
    any.

    One event of almost no noise takes as long as many others: its loss is spread over all of the
    grid.

    Raises:
        UnsupportedEvent: for those.
    """
    spent = 0.0
    for total in totals:
        if not total.private:
            continue
        counts = [count for _, count in (*total.poisson, *total.other_laws)]
        most = max([0, *counts])
        if most > MOST_STEPS:
            raise UnsupportedEvent(
                f"{most} releases of one event: at most {MOST_STEPS} are accounted"
            )
        grid_work = sum(1 + min(1e-4 / (z * z), 50) for (_, z), _ in total.poisson)
        work = grid_work + len(total.other_laws)
        spent += work
        if work > MOST_WORK_OF_ONE or spent > MOST_WORK:
            raise UnsupportedEvent(
                "more different events, or compositions of them, than are accounted in some minutes"
            )


def _epsilon_ceiling(total: Tally, delta: float, relation: Relation) -> float:
    """A bound that stays finite where the discretised loss overflows to infinity.

    Under add/remove it is RDP's. Under replace, Poisson sampling is ignored: given the sample, the
    two runs are the full-batch pair or identical, and divergences are jointly convex. A law of
    bounded noise has no finite divergence; nothing but its loss on the grid bounds it.
    """
    if any(NOISE_LAWS[name].rdp_event is None for (name, _), _ in total.other_laws):
        return math.inf
    if relation != "replace":
        return _rdp_epsilon(total, delta, relation)
    squared_mu = total.squared_mu + math.fsum(count / (z * z) for (_, z), count in total.poisson)
    full_batches = Tally(squared_mu=squared_mu, other_laws=total.other_laws)
    return _rdp_epsilon(full_batches, delta, relation)


def _grid_interval(ceiling: float) -> float:
    """The interval of a grid on which a loss of up to ``ceiling`` has about POINTS points."""
    return max(FINEST, ceiling / POINTS) if math.isfinite(ceiling) else FINEST


def _loss_epsilon(total: Tally, delta: float, relation: Relation, interval: float) -> float:
    with _silence_warnings():
        return float(composed_loss(total, relation, interval).get_epsilon_for_delta(delta))


@lru_cache(maxsize=8)
def composed_loss(total: Tally, relation: Relation, interval: float) -> pld.PrivacyLossDistribution:
    """The composed privacy loss, the convolution of all releases' losses, rounded upwards.

    Of a Poisson sampled Gaussian the dominating pair is P = (1 - q) N(0, z^2) + q N(1, z^2) and Q =
    N(0, z^2) in both orders under add/remove (Zhu, Dong and Wang 2022, Theorem 11). Other laws have
    their own; under replace their sensitivity is 2. Losses too large for the grid's arithmetic are
    rounded up to no protection at all: delta 1 at every epsilon.
    """
    sensitivity = 2.0 if relation == "replace" else 1.0
    try:
        with _silence_warnings():
            loss = pld.identity(value_discretization_interval=interval)
            if total.squared_mu:
                z = 1 / math.sqrt(total.squared_mu)
                loss = loss.compose(_gaussian_loss(z, 1.0, relation, interval))
            for (q, z), count in total.poisson:
                release = _gaussian_loss(z, q, relation, interval)
                loss = loss.compose(release.self_compose(count))
            for (name, z), count in total.other_laws:
                release = NOISE_LAWS[name].loss_on_grid(z, sensitivity, interval)
                loss = loss.compose(release.self_compose(count))
            return loss
    except OverflowError:
        nothing = DifferentialPrivacyParameters(0.0, 1.0)
        return pld.from_privacy_parameters(nothing, value_discretization_interval=interval)


def privacy_loss_of(total: Tally, delta: float, relation: Relation) -> pld.PrivacyLossDistribution:
    """The privacy loss of a composition, on the grid that ``epsilon_of`` takes at ``delta``.

    Raises:
        ValueError: for a composition of nothing, or of something unprotected.
    """
    if not total.private or total.is_empty:
        raise ValueError("a composition of protected releases is needed")
    interval = _grid_interval(_epsilon_ceiling(total, delta, relation))
    return composed_loss(total, relation, interval)


def _gaussian_loss(
    z: float, q: float, relation: Relation, interval: float
) -> pld.PrivacyLossDistribution:
    return pld.from_gaussian_mechanism(
        z,
        value_discretization_interval=interval,
        sampling_prob=q,
        neighboring_relation=NEIGHBOURS[relation],
    )


@contextmanager
def _silence_warnings() -> Iterator[None]:
    """Fractional orders that fail to converge are left out by dp-accounting, which says so each
    time."""
    log = logging.getLogger("absl")
    before = log.level
    log.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            # Far tails overflow, and are rounded upwards.
            warnings.simplefilter("ignore", RuntimeWarning)
            yield
    finally:
        log.setLevel(before)


def epsilon_at(event: dpa.DpEvent, delta: float, *, relation: Relation, scale: float) -> float:
    """Epsilon of an event for a record that counts ``scale`` times, rounded upwards.

    Args:
        event: at scale 1.
        delta: in (0, 1).
        relation: which data sets are neighbours.
        scale: of the sensitivity; 0 gives epsilon 0.
    """
    check_delta(delta)
    if scale:
        total = scale_tally(tally_events([(event, 1)]), scale)
    else:
        total = Tally()
    if total.is_gaussian or not total.private:
        return epsilon_of(total, delta, relation=relation, accountant="pld")
    return float(composed_loss(total, relation, COARSE).get_epsilon_for_delta(delta))
