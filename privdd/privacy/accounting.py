"""Privacy events, their normal form, epsilon of an event and noise for an epsilon: dp-accounting,
with its traps handled.

Relations: ``add_remove`` (one record more or less), ``zero_out`` (one record replaced by nothing,
    the count being public; same numbers) and ``replace`` (one record exchanged, every sensitivity
    doubles).
dp-accounting 0.6 doubles under ``replace`` in its PLD accountant but not in its RDP accountant:
here both double. Events are dp-accounting's; only those with a proof behind them have a form in the
ledger's JSON: Poisson sampling has one, shuffling and fixed-size batches have none and are never
written down as Poisson. A noise multiplier is noise scale over the change that adding or removing
one record can cause (L2 for Gaussian, L1 for Laplace). Compositions of Gaussians are exact (Balle
and Wang 2018, Theorem 8). Beside epsilon: the whole trade-off curve, and bounds for batches that
are no Poisson samples (``bound_batch_epsilon``)."""

from __future__ import annotations

import importlib.util
import logging
import math
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal, get_args

import dp_accounting as dpa
import numpy as np
from dp_accounting.pld import privacy_loss_distribution as pld
from dp_accounting.pld.common import DifferentialPrivacyParameters
from dp_accounting.rdp import RdpAccountant
from scipy.optimize import brentq
from scipy.special import ndtr, ndtri
from scipy.stats import norm

from privdd.core.group_settings import Relation


class UnsupportedEvent(ValueError):
    """An event, or an event under a relation, for which no sound accounting is known here."""


@dataclass(frozen=True)
class Tally:
    """A composition reduced to what accounting needs; order is gone, equal events are merged.

    private: False where anything is released without noise; squared_mu: sum of 1/z**2 over all
    Gaussian releases (a composition of Gaussians is one Gaussian, Dong et al. 2019, Corollary 3.3);
    poisson: ((q, z), count) sorted; laplace: (b, count) sorted.
    """

    private: bool = True
    squared_mu: float = 0.0
    poisson: tuple[tuple[tuple[float, float], int], ...] = ()
    laplace: tuple[tuple[float, int], ...] = ()

    @property
    def is_empty(self) -> bool:
        """Nothing that touches data was released."""
        return self.private and self.squared_mu == 0 and not self.poisson and not self.laplace

    @property
    def is_gaussian(self) -> bool:
        """Whether all noise is full-batch Gaussian noise."""
        return not self.poisson and not self.laplace

    def covers(self, other: Tally) -> bool:
        """Whether this holds every release of ``other``, so that its epsilon is at least as
        large."""
        if not self.private:
            return True
        sampled = dict(self.poisson)
        laplace = dict(self.laplace)
        return (
            other.private
            and self.squared_mu >= other.squared_mu
            and all(sampled.get(key, 0) >= n for key, n in other.poisson)
            and all(laplace.get(scale, 0) >= n for scale, n in other.laplace)
        )


def _check_number(value: Any, what: str, low: float, high: float) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not low < value <= high:
        raise UnsupportedEvent(f"{what}={value!r}: a number in ({low}, {high}] is needed")
    return float(value)


MOST_TIMES = 2**53  # of one event, all repetitions multiplied: more cannot be counted in floats
DEEPEST = 50  # events inside each other


def _check_count(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MOST_TIMES:
        shown = (
            str(value)
            if not isinstance(value, int) or abs(value) <= MOST_TIMES
            else "a number of more digits"
        )
        raise UnsupportedEvent(f"count={shown}: an integer from 0 to {MOST_TIMES} is needed")
    return value


MAX_MULTIPLIER = 1.7e308  # the largest finite multiplier
# beyond these, squares overflow: below is no noise, above is taken as this
LEAST_NOISE = 1e-100
MOST_NOISE = 1e100


def add_tallies(first: Tally, second: Tally) -> Tally:
    """The composition of both."""
    poisson = Counter(dict(first.poisson))
    poisson.update(dict(second.poisson))
    laplace = Counter(dict(first.laplace))
    laplace.update(dict(second.laplace))
    return Tally(
        private=first.private and second.private,
        squared_mu=first.squared_mu + second.squared_mu,
        poisson=tuple(sorted(poisson.items())),
        laplace=tuple(sorted(laplace.items())),
    )


def event_to_json(event: dpa.DpEvent) -> dict[str, Any]:
    """The JSON form of an event, as in ledger.json.

    Raises UnsupportedEvent for any other kind of event and for numbers without meaning.
    """
    match event:
        case dpa.NoOpDpEvent():
            return {"type": "none"}
        case dpa.NonPrivateDpEvent():
            return {"type": "non_private"}
        case dpa.GaussianDpEvent() | dpa.LaplaceDpEvent():
            kind = "gaussian" if isinstance(event, dpa.GaussianDpEvent) else "laplace"
            return {
                "type": kind,
                "noise_multiplier": _check_number(
                    event.noise_multiplier, "noise_multiplier", 0, MAX_MULTIPLIER
                ),
            }
        case dpa.PoissonSampledDpEvent():
            q = _check_number(event.sampling_probability, "sampling_probability", 0, 1)
            return {"type": "poisson", "probability": q, "event": event_to_json(event.event)}
        case dpa.ComposedDpEvent():
            return {"type": "compose", "events": [event_to_json(e) for e in event.events]}
        case dpa.SelfComposedDpEvent():
            return {
                "type": "repeat",
                "count": _check_count(event.count),
                "event": event_to_json(event.event),
            }
    raise UnsupportedEvent(
        f"{type(event).__name__} has no accounting here: use Gaussian, Laplace or Poisson events"
    )


EVENT_FIELDS = {
    "none": set(),
    "non_private": set(),
    "gaussian": {"noise_multiplier"},
    "laplace": {"noise_multiplier"},
    "poisson": {"probability", "event"},
    "compose": {"events"},
    "repeat": {"count", "event"},
}


def event_from_json(form: Any, depth: int = 0) -> dpa.DpEvent:
    """The event behind a JSON form. Raises UnsupportedEvent for unknown types, fields or numbers,
    and for deep nesting."""
    if depth > DEEPEST:
        raise UnsupportedEvent(f"event: more than {DEEPEST} inside each other")
    kind = form.get("type") if isinstance(form, Mapping) else None
    if (
        not isinstance(kind, str)
        or kind not in EVENT_FIELDS
        or set(form) != EVENT_FIELDS[kind] | {"type"}
    ):
        raise UnsupportedEvent(
            f"event {form!r}: allowed are "
            + ", ".join(sorted(EVENT_FIELDS))
            + " with their own fields"
        )
    if kind in ("gaussian", "laplace"):
        z = _check_number(form["noise_multiplier"], "noise_multiplier", 0, MAX_MULTIPLIER)
        return dpa.GaussianDpEvent(z) if kind == "gaussian" else dpa.LaplaceDpEvent(z)
    if kind == "poisson":
        return dpa.PoissonSampledDpEvent(
            _check_number(form["probability"], "probability", 0, 1),
            event_from_json(form["event"], depth + 1),
        )
    if kind == "repeat":
        return dpa.SelfComposedDpEvent(
            event_from_json(form["event"], depth + 1), _check_count(form["count"])
        )
    if kind == "compose":
        if not isinstance(form["events"], list):
            raise UnsupportedEvent(f"compose.events={form['events']!r}: a list is needed")
        return dpa.ComposedDpEvent([event_from_json(e, depth + 1) for e in form["events"]])
    return dpa.NoOpDpEvent() if kind == "none" else dpa.NonPrivateDpEvent()


def tally_events(events: Iterable[tuple[dpa.DpEvent, int]]) -> Tally:
    """The normal form of a composition of (event, how often).

    Raises UnsupportedEvent as ``event_to_json`` does, and for Poisson sampling of anything but
    Gaussians."""
    leaves: Counter[tuple[Any, ...]] = Counter()
    for event, times in events:
        _collect_leaves(event_to_json(event), _check_count(times), leaves)
    leaves = _bound_noise(leaves)
    gaussian = math.fsum(
        n / (leaf[1] * leaf[1]) for leaf, n in sorted(leaves.items()) if leaf[0] == "gaussian"
    )
    return Tally(
        private=("non_private",) not in leaves,
        squared_mu=gaussian,
        poisson=tuple(sorted(((k[1], k[2]), n) for k, n in leaves.items() if k[0] == "poisson")),
        laplace=tuple(sorted((k[1], n) for k, n in leaves.items() if k[0] == "laplace")),
    )


def _bound_noise(leaves: Counter[tuple[Any, ...]]) -> Counter[tuple[Any, ...]]:
    """The leaves with noise that arithmetic can square; a changed leaf costs more than before,
    never less."""
    bounded: Counter[tuple[Any, ...]] = Counter()
    for leaf, n in leaves.items():
        if leaf[0] == "non_private" or leaf[-1] < LEAST_NOISE:
            bounded[("non_private",)] += n
        else:
            bounded[(*leaf[:-1], min(leaf[-1], MOST_NOISE))] += n
    return bounded


def _collect_leaves(form: Mapping[str, Any], times: int, leaves: Counter[tuple[Any, ...]]) -> None:
    kind = form["type"]
    if times == 0 or kind == "none":
        return
    if kind == "non_private":
        leaves[("non_private",)] += times
    elif kind == "compose":
        for part in form["events"]:
            _collect_leaves(part, times, leaves)
    elif kind == "repeat":
        _collect_leaves(form["event"], _check_count(times * form["count"]), leaves)
    elif kind == "poisson":
        _collect_sampled(form["probability"], form["event"], times, leaves)
    else:
        leaves[(kind, form["noise_multiplier"])] += times


def _collect_sampled(
    q: float, form: Mapping[str, Any], times: int, leaves: Counter[tuple[Any, ...]]
) -> None:
    """Gaussians on one sample are one Gaussian on it; PLD accountants refuse them unmerged."""
    found: Counter[tuple[Any, ...]] = Counter()
    _collect_leaves(form, 1, found)
    inner = _bound_noise(found)
    if ("non_private",) in inner:
        leaves[("non_private",)] += times
    elif any(leaf[0] != "gaussian" for leaf in inner):
        raise UnsupportedEvent("poisson: only Gaussian releases of one sample can be accounted")
    elif q == 1:
        for leaf, n in inner.items():
            leaves[leaf] += times * n
    elif len(inner) == 1 and sum(inner.values()) == 1:
        leaves[("poisson", q, next(iter(inner))[1])] += times
    elif inner:
        mu = math.sqrt(math.fsum(n / (leaf[1] * leaf[1]) for leaf, n in sorted(inner.items())))
        leaves[("poisson", q, 1 / mu)] += times


Accountant = Literal["pld", "rdp"]
NEIGHBOURS = {
    "add_remove": dpa.NeighboringRelation.ADD_OR_REMOVE_ONE,
    "zero_out": dpa.NeighboringRelation.REPLACE_SPECIAL,
    "replace": dpa.NeighboringRelation.REPLACE_ONE,
}
# discretisation of the privacy loss; 1e-3 overstates 0.476 as 0.499 at 10,000 sparse steps
FINEST = 1e-4
COARSE = 1e-3  # for bracketing only
POINTS = 5e5  # about how many grid points a large loss is spread over
NOISE_RANGE = (2.0**-7, 2.0**20)


def check_relation(relation: str) -> None:
    if relation not in NEIGHBOURS:
        raise ValueError(f"relation={relation!r}: allowed are {', '.join(NEIGHBOURS)}")


def check_delta(delta: float) -> None:
    if not 0 < delta < 1:
        raise ValueError(f"delta={delta!r}: a number in (0, 1) is needed")


def epsilon(
    event: dpa.DpEvent,
    delta: float,
    *,
    relation: Relation = "add_remove",
    accountant: Accountant = "pld",
) -> float:
    """The smallest proven epsilon at ``delta`` of one event; infinite where anything is
    unprotected.

    Raises UnsupportedEvent for an event, or an event under this relation, that this accountant
    cannot bound, and ValueError for a bad delta, relation or accountant.
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
    return (_pld_epsilon if accountant == "pld" else _rdp_epsilon)(total, delta, relation)


@lru_cache(maxsize=4096)
def _rdp_epsilon(total: Tally, delta: float, relation: Relation) -> float:
    if relation == "replace" and total.poisson:
        raise UnsupportedEvent(
            "RDP has no bound for Poisson sampling under relation=replace: use accountant=pld"
        )
    half = 0.5 if relation == "replace" else 1.0
    accountant = RdpAccountant(neighboring_relation=NEIGHBOURS[relation])
    with _silence_warnings():
        accountant.compose(_compose_events(total, half))
        return float(accountant.get_epsilon(delta))


def _compose_events(total: Tally, scale: float) -> dpa.DpEvent:
    parts: list[dpa.DpEvent] = []
    if total.squared_mu:
        parts.append(dpa.GaussianDpEvent(scale / math.sqrt(total.squared_mu)))
    parts += [dpa.SelfComposedDpEvent(dpa.LaplaceDpEvent(scale * b), n) for b, n in total.laplace]
    for (q, z), n in total.poisson:
        parts.append(
            dpa.SelfComposedDpEvent(dpa.PoissonSampledDpEvent(q, dpa.GaussianDpEvent(scale * z)), n)
        )
    return dpa.ComposedDpEvent(parts)


@lru_cache(maxsize=4096)
def _pld_epsilon(
    total: Tally, delta: float, relation: Relation, interval: float | None = None
) -> float:
    if total.is_gaussian:
        mu = math.sqrt(total.squared_mu) * (2 if relation == "replace" else 1)
        return float(dpa.get_epsilon_gaussian(1 / mu, delta))
    ceiling = _epsilon_ceiling(total, delta, relation)
    step = interval or max(FINEST, ceiling / POINTS)
    value = _loss_epsilon(total, delta, relation, step)
    if math.isinf(value):  # the grid overflows at very large losses; a coarser one is still a bound
        value = _loss_epsilon(total, delta, relation, 16 * step)
    return min(value, ceiling)


MOST_STEPS = 2**30  # of one sampled or Laplace event: a loss of more is composed for minutes
# of all compositions of a ledger, and of one: about so many tenths of a second
MOST_WORK = 1500
MOST_WORK_OF_ONE = 200


def check_work(totals: Iterable[Tally]) -> None:
    """Raises UnsupportedEvent for compositions whose accounting would take many minutes: no run
    that was trained has any.

    One event of almost no noise takes as long as many others: its loss is spread over all of the
    grid."""
    spent = 0.0
    for total in totals:
        if not total.private:
            continue
        if (most := max([0, *(n for _, n in (*total.poisson, *total.laplace))])) > MOST_STEPS:
            raise UnsupportedEvent(
                f"{most} releases of one event: at most {MOST_STEPS} are accounted"
            )
        work = sum(1 + min(1e-4 / (z * z), 50) for (_, z), _ in total.poisson) + len(total.laplace)
        spent += work
        if work > MOST_WORK_OF_ONE or spent > MOST_WORK:
            raise UnsupportedEvent(
                "more different events, or compositions of them, than are accounted in some minutes"
            )


def _epsilon_ceiling(total: Tally, delta: float, relation: Relation) -> float:
    """A bound that stays finite where the discretised loss overflows to infinity.

    Under add/remove it is RDP's. Under replace, Poisson sampling is ignored: given the sample, the
    two runs are the full-batch pair or identical, and divergences are jointly convex.
    """
    if relation != "replace":
        return _rdp_epsilon(total, delta, relation)
    mu = total.squared_mu + math.fsum(n / (z * z) for (_, z), n in total.poisson)
    return _rdp_epsilon(Tally(squared_mu=mu, laplace=total.laplace), delta, relation)


def _loss_epsilon(total: Tally, delta: float, relation: Relation, interval: float) -> float:
    with _silence_warnings():
        return float(composed_loss(total, relation, interval).get_epsilon_for_delta(delta))


@lru_cache(maxsize=8)
def composed_loss(total: Tally, relation: Relation, interval: float) -> pld.PrivacyLossDistribution:
    """The composed privacy loss, rounded upwards; a Laplace release under replace has sensitivity
    2.

    Losses too large for the grid's arithmetic are rounded up to no protection at all: delta 1 at
    every epsilon."""
    width = 2.0 if relation == "replace" else 1.0
    try:
        with _silence_warnings():
            loss = pld.identity(value_discretization_interval=interval)
            if total.squared_mu:
                loss = loss.compose(
                    _gaussian_loss(1 / math.sqrt(total.squared_mu), 1.0, relation, interval)
                )
            for (q, z), n in total.poisson:
                loss = loss.compose(_gaussian_loss(z, q, relation, interval).self_compose(n))
            for b, n in total.laplace:
                one = pld.from_laplace_mechanism(
                    b, sensitivity=width, value_discretization_interval=interval
                )
                loss = loss.compose(one.self_compose(n))
            return loss
    except OverflowError:
        nothing = DifferentialPrivacyParameters(0.0, 1.0)
        return pld.from_privacy_parameters(nothing, value_discretization_interval=interval)


def privacy_loss_of(total: Tally, delta: float, relation: Relation) -> pld.PrivacyLossDistribution:
    """The privacy loss of a composition on the grid that ``epsilon_of`` takes at ``delta``: upper
    bounds only.

    Raises ValueError for a composition of nothing, or of something unprotected.
    """
    if not total.private or total.is_empty:
        raise ValueError("a composition of protected releases is needed")
    return composed_loss(
        total, relation, max(FINEST, _epsilon_ceiling(total, delta, relation) / POINTS)
    )


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
            warnings.simplefilter(
                "ignore", RuntimeWarning
            )  # overflow in far tails, rounded upwards
            yield
    finally:
        log.setLevel(before)


def calibrate(
    make_event: Callable[[float], dpa.DpEvent],
    epsilon: float,
    delta: float,
    *,
    relation: Relation = "add_remove",
    accountant: Accountant = "pld",
) -> float:
    """The noise multiplier z at which ``make_event(z)`` costs between 0.985 and 0.999 of
    ``epsilon``.

    The margin keeps a recomputation by other software, with its own rounding, at or below epsilon.
    Raises ValueError where no z in [2**-7, 2**20] reaches it.
    """
    if not 0 < epsilon < math.inf:
        raise ValueError(f"epsilon={epsilon!r}: a finite number above 0 is needed")
    check_delta(delta)

    def epsilon_cost(z: float, interval: float | None = None) -> float:
        total = tally_events([(make_event(z), 1)])
        if interval and accountant == "pld" and total.private and not total.is_empty:
            return _pld_epsilon(total, delta, relation, interval)
        return epsilon_of(total, delta, relation=relation, accountant=accountant)

    z = _find_multiplier(lambda z: epsilon_cost(z, max(COARSE, epsilon / POINTS)), 0.992 * epsilon)
    slope = -1.0  # of log epsilon in log z, refined by the last two points
    past: tuple[float, float] | None = None
    for _ in range(12):
        paid = epsilon_cost(z)
        if 0.985 * epsilon <= paid <= 0.999 * epsilon:
            return z
        if not 0 < paid < math.inf:
            raise ValueError(
                f"no noise multiplier costs just that: {z:.4g} costs {paid:g}; choose it by hand"
            )
        if past and past[0] != z:
            slope = min(-0.3, math.log(paid / past[1]) / math.log(z / past[0]))
        past = (z, paid)
        z *= math.exp(math.log(0.992 * epsilon / paid) / slope)
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
        low, high = low / 2, low
        if low < NOISE_RANGE[0]:
            raise ValueError("it is above what these releases cost with almost no noise")
    gap = lambda log_z: math.log(min(max(cost(math.exp(log_z)), 1e-300), 1e12) / target)  # noqa: E731
    return math.exp(brentq(gap, math.log(low), math.log(high), xtol=5e-4))


TradeOff = Callable[[Any], Any]  # type I errors in [0, 1], floats or arrays -> type II errors
CURVE_LINES = 600  # lines that make up a curve; half of them for each order of the errors
SMALLEST = 1e-9  # delta of the largest of their epsilons
ROUGH = 0.02  # discretisation of the loss that finds that epsilon
MOST = 500.0  # and where it overflows
GRID = 2e4  # at most about so many steps of the discretised loss


def trade_off(
    event: dpa.DpEvent, *, relation: Relation = "add_remove", scale: float = 1.0
) -> TradeOff:
    """The trade-off curve of one event under ``relation``: type I error -> the least type II error
    of any test for one record.

    What the accountant proves is a profile delta(epsilon) that bounds both orders of every pair of
    neighbours; the curve that goes with it is the supremum of the curves of all its (epsilon,
    delta(epsilon)) (Dong, Roth and Su 2022, Proposition 2.12). Privacy losses are rounded upwards
    and only some epsilons are used, so the curve errs towards less privacy: a mechanism that meets
    its accounting is on it or above. It is its own inverse. A composition of Gaussians has its
    closed form instead.

    scale: of the sensitivity, so 2 is the curve of the same releases with half the noise. Raises
        UnsupportedEvent for what this accountant cannot bound and ValueError for a bad relation or
        scale.
    """
    check_relation(relation)
    if not 0 < scale < math.inf:
        raise ValueError(f"scale={scale!r}: a finite number above 0 is needed")
    total = scale_tally(tally_events([(event, 1)]), scale)
    if not total.private:
        return lambda alpha: np.zeros_like(np.asarray(alpha, dtype=np.float64))
    if total.is_gaussian:
        mu = math.sqrt(total.squared_mu) * (2 if relation == "replace" else 1)
        return lambda alpha: ndtr(ndtri(1 - np.asarray(alpha, dtype=np.float64)) - mu)
    return _curve_from_losses(total, relation)


def scale_tally(total: Tally, scale: float) -> Tally:
    """The releases for a record that counts ``scale`` times."""
    return Tally(
        private=total.private,
        squared_mu=total.squared_mu * scale * scale,
        poisson=tuple(((q, z / scale), n) for (q, z), n in total.poisson),
        laplace=tuple((b / scale, n) for b, n in total.laplace),
    )


def epsilon_at(event: dpa.DpEvent, delta: float, *, relation: Relation, scale: float) -> float:
    """The epsilon at ``delta`` of the member ``scale`` of the event's family, rounded upwards; 0 at
    scale 0."""
    check_delta(delta)
    total = scale_tally(tally_events([(event, 1)]), scale) if scale else Tally()
    if total.is_gaussian or not total.private:
        return epsilon_of(total, delta, relation=relation, accountant="pld")
    return float(composed_loss(total, relation, COARSE).get_epsilon_for_delta(delta))


def _curve_from_losses(total: Tally, relation: Relation) -> TradeOff:
    rough = composed_loss(total, relation, ROUGH).get_epsilon_for_delta(SMALLEST)
    largest = float(rough) if math.isfinite(rough) else MOST
    loss = composed_loss(total, relation, max(COARSE, largest / GRID))
    epsilons = np.linspace(0.0, largest, CURVE_LINES // 2)
    deltas = np.asarray(loss.get_delta_for_epsilon(list(epsilons)), dtype=np.float64)
    with np.errstate(over="ignore"):
        up = np.exp(epsilons)
        down = np.exp(-epsilons)
    # beta >= 1 - delta - e^epsilon alpha, and the same with the errors exchanged
    heights = np.concatenate([[0.0], 1 - deltas, down * (1 - deltas)])
    slopes = np.concatenate([[0.0], np.minimum(up, 1e300), down])

    def evaluate_curve(alpha: Any) -> Any:
        at = np.asarray(alpha, dtype=np.float64)
        return np.max(heights - slopes * at[..., None], axis=-1)

    return evaluate_curve


Batches = Literal["shuffled", "balls_in_bins", "poisson"]
ALLOCATION_LIBRARY = "PLD_accounting"
SHIFTS = {
    "shuffled": (2.0, 1.0),
    "balls_in_bins": (1.0, 0.0),
}  # of the batch with the record, and without it
COORDINATE_CELLS = 2000  # intervals that the largest coordinate is sorted into
SHIFT_REACH = 9.0  # standard deviations beyond the shift


def bound_batch_epsilon(
    noise_multiplier: float,
    delta: float,
    *,
    batches: int,
    epochs: int = 1,
    sampling: Batches = "shuffled",
) -> tuple[float, float]:
    """(a lower, an upper bound) of epsilon at ``delta`` of noised sums over batches; for
    ``poisson`` batches at rate 1 / batches both are the accountant's.

    An epoch has T batches and each record is in one of them; a record adds at most 1 to the sum of
    its batch, which gets Gaussian noise of standard deviation z and is released; how many records
    there are, and the batches' sizes, are public.
    ``shuffled``: a permutation of all records is cut into batches, as most loaders do. Neighbours:
        the record becomes nothing (``zero_out``). ``balls_in_bins``: each record draws its batch by
        itself; adding a record is then covered too.

    Upper bounds: given all batches, the releases are Gaussian with a shift of 1 in one batch of
        each epoch, and divergences
    are jointly convex. Lower bounds: the pairs of Chua et al. (2024, *How Private are DP-SGD
        Implementations?*, Theorem 4.2; 2025, *Balls-and-Bins Sampling for DP-SGD*), for shuffled
        batches with all other records opposite to this one, of which
    each epoch's largest coordinate is kept. Where the library ``PLD_accounting`` (Feldman and
    Shenfeld 2025; Shenfeld et al.
    2026) is installed, balls-in-bins batches have its bounds, which are almost equal.

    noise_multiplier: noise over the clip, above 0; batches: of an epoch, from 1. Raises ValueError.
    """
    check_delta(delta)
    if not 0 < noise_multiplier < math.inf:
        raise ValueError(
            f"noise_multiplier={noise_multiplier!r}: a finite number above 0 is needed"
        )
    if sampling not in get_args(Batches):
        raise ValueError(f"sampling={sampling!r}: allowed are {', '.join(get_args(Batches))}")
    if not (1 <= batches <= 10**7 and 1 <= epochs <= 10**5):
        raise ValueError(f"batches={batches}, epochs={epochs}: 1 to 1e7 and 1 to 1e5 are allowed")
    if sampling == "poisson":
        event = dpa.PoissonSampledDpEvent(1 / batches, dpa.GaussianDpEvent(noise_multiplier))
        both = epsilon(dpa.SelfComposedDpEvent(event, batches * epochs), delta)
        return both, both
    whole = float(dpa.get_epsilon_gaussian(noise_multiplier / math.sqrt(epochs), delta))
    if batches == 1:
        return whole, whole
    if sampling == "balls_in_bins" and importlib.util.find_spec(ALLOCATION_LIBRARY) is not None:
        from PLD_accounting import gaussian_allocation_epsilon_range

        high, low = gaussian_allocation_epsilon_range(
            delta=delta, sigma=noise_multiplier, num_steps=batches, num_epochs=epochs
        )
        return max(0.0, float(low)), min(float(high), whole)
    shifts = SHIFTS[sampling]
    orders = (shifts, shifts[::-1])
    low = max(
        _largest_coordinate_epsilon(noise_multiplier, delta, batches, epochs, order)
        for order in orders
    )
    return min(low, whole), whole


def _largest_coordinate_epsilon(
    z: float, delta: float, batches: int, epochs: int, order: tuple[float, float]
) -> float:
    """Epsilon of ``epochs`` largest coordinates with shift order[0] against those with order[1],
    rounded downwards.

    The largest of T normal numbers of deviation z, one of them shifted by s, is below c with chance
    Phi((c - s) / z) Phi(c / z)^(T - 1); which one it is tells nothing more, by symmetry.
    """
    edges = np.linspace(-SHIFT_REACH * z, max(order) + SHIFT_REACH * z, COORDINATE_CELLS - 1)
    masses = []
    for shift in order:
        log_below = norm.logcdf((edges - shift) / z) + (batches - 1) * norm.logcdf(edges / z)
        above = np.concatenate([[1.0], -np.expm1(log_below), [0.0]])  # accurate where it is small
        masses.append(np.maximum(above[:-1] - above[1:], 0.0))
    kept = (masses[0] > 0) & (
        masses[1] > 0
    )  # what is left out counts for neither: the bound is lower for it
    upper, lower = (dict(enumerate(np.log(mass[kept]))) for mass in masses)
    loss = pld.from_two_probability_mass_functions(
        lower, upper, pessimistic_estimate=False, value_discretization_interval=COARSE
    )
    return max(0.0, float(loss.self_compose(epochs).get_epsilon_for_delta(delta)))
