"""Bounds of epsilon for batches that are no Poisson samples."""

from __future__ import annotations

import importlib.util
import math
from typing import Literal, get_args

import dp_accounting as dpa
import numpy as np
from dp_accounting.pld import privacy_loss_distribution as pld
from scipy.stats import norm

from privdd.privacy.accounting import COARSE, check_delta, epsilon

Batches = Literal["shuffled", "balls_in_bins", "poisson"]
ALLOCATION_LIBRARY = "PLD_accounting"
# Shifts of the batch with the record, and of the same batch without it, in clips.
SHIFTS = {
    "shuffled": (2.0, 1.0),
    "balls_in_bins": (1.0, 0.0),
}
COORDINATE_CELLS = 2000  # intervals that the largest coordinate is sorted into
SHIFT_REACH = 9.0  # standard deviations beyond the shift
MAX_BATCHES = 10**7
MAX_EPOCHS = 10**5


def bound_batch_epsilon(
    noise_multiplier: float,
    delta: float,
    *,
    batches: int,
    epochs: int = 1,
    sampling: Batches = "shuffled",
) -> tuple[float, float]:
    """A lower and an upper bound of epsilon of noised sums over batches.

    An epoch has T batches and each record is in one of them; a record adds at most 1 to the sum of
    its batch, which gets Gaussian noise of standard deviation z and is released; how many records
    there are, and the batches' sizes, are public.
    ``shuffled``: a permutation of all records is cut into batches, as most loaders do. Neighbours:
    the record becomes nothing (``zero_out``).
    ``balls_in_bins``: each record draws its batch by itself; adding a record is then covered too.

    Upper bound: given all batches, the releases of E epochs are Gaussian with a shift of 1 in one
    batch of each, so mu = sqrt(E) / z, and divergences are jointly convex. Lower bound: the pairs
    of Chua et al. (2024, "How Private are DP-SGD Implementations?", Theorem 4.2; 2025,
    "Balls-and-Bins Sampling for DP-SGD"), for shuffled batches with all other records opposite to
    this one, of which each epoch's largest coordinate is kept. If the library ``PLD_accounting``
    (Feldman and Shenfeld 2025; Shenfeld et al. 2026) is installed, balls-in-bins batches have its
    bounds, which are almost equal.

    Args:
        noise_multiplier: z, noise over the clip, above 0.
        delta: in (0, 1).
        batches: T of an epoch, 1 to 1e7.
        epochs: E, 1 to 1e5.
        sampling: how batches are made; for ``poisson`` ones at rate 1 / T both bounds are the
            accountant's.

    Returns:
        (a lower bound, an upper bound) of epsilon.

    Raises:
        ValueError: for numbers out of range.
    """
    check_delta(delta)
    _check_batches(noise_multiplier, batches, epochs, sampling)
    if sampling == "poisson":
        event = dpa.PoissonSampledDpEvent(1 / batches, dpa.GaussianDpEvent(noise_multiplier))
        proven = epsilon(dpa.SelfComposedDpEvent(event, batches * epochs), delta)
        return proven, proven
    upper = float(dpa.get_epsilon_gaussian(noise_multiplier / math.sqrt(epochs), delta))
    if batches == 1:
        return upper, upper
    if sampling == "balls_in_bins" and importlib.util.find_spec(ALLOCATION_LIBRARY) is not None:
        low, high = _allocation_bounds(noise_multiplier, delta, batches, epochs)
        return low, min(high, upper)
    shifts = SHIFTS[sampling]
    lower = max(
        _largest_coordinate_epsilon(noise_multiplier, delta, batches, epochs, order)
        for order in (shifts, shifts[::-1])
    )
    return min(lower, upper), upper


def _allocation_bounds(
    noise_multiplier: float, delta: float, batches: int, epochs: int
) -> tuple[float, float]:
    """A lower and an upper bound for balls-in-bins batches by ``ALLOCATION_LIBRARY``."""
    from PLD_accounting import gaussian_allocation_epsilon_range

    high, low = gaussian_allocation_epsilon_range(
        delta=delta, sigma=noise_multiplier, num_steps=batches, num_epochs=epochs
    )
    return max(0.0, float(low)), float(high)


def _check_batches(noise_multiplier: float, batches: int, epochs: int, sampling: str) -> None:
    """Raises ValueError for numbers out of range."""
    if not 0 < noise_multiplier < math.inf:
        raise ValueError(
            f"noise_multiplier={noise_multiplier!r}: a finite number above 0 is needed"
        )
    if sampling not in get_args(Batches):
        raise ValueError(f"sampling={sampling!r}: allowed are {', '.join(get_args(Batches))}")
    if not (1 <= batches <= MAX_BATCHES and 1 <= epochs <= MAX_EPOCHS):
        raise ValueError(f"batches={batches}, epochs={epochs}: 1 to 1e7 and 1 to 1e5 are allowed")


def _largest_coordinate_epsilon(
    z: float, delta: float, batches: int, epochs: int, order: tuple[float, float]
) -> float:
    """Epsilon of E epochs' largest coordinates with shift order[0] against those with order[1],
    rounded downwards.

    The largest of T normal numbers of deviation z, one of them shifted by s, is below c with chance
    Phi((c - s) / z) Phi(c / z)^(T - 1); which one it is tells nothing more, by symmetry. It is
    post-processing of the releases, so its epsilon is a lower bound of theirs.
    """
    edges = np.linspace(-SHIFT_REACH * z, max(order) + SHIFT_REACH * z, COORDINATE_CELLS - 1)
    masses = []
    for shift in order:
        log_below = norm.logcdf((edges - shift) / z) + (batches - 1) * norm.logcdf(edges / z)
        above = np.concatenate([[1.0], -np.expm1(log_below), [0.0]])  # accurate where it is small
        masses.append(np.maximum(above[:-1] - above[1:], 0.0))
    # A cell that is left out counts for neither law: the bound is lower for it.
    is_kept = (masses[0] > 0) & (masses[1] > 0)
    log_masses = [dict(enumerate(np.log(mass[is_kept]))) for mass in masses]
    loss = pld.from_two_probability_mass_functions(
        *log_masses, pessimistic_estimate=False, value_discretization_interval=COARSE
    )
    return max(0.0, float(loss.self_compose(epochs).get_epsilon_for_delta(delta)))
