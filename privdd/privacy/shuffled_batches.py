"""Epsilon of noised sums over batches that are no Poisson samples, between a lower and an upper bound.

An epoch has T batches and each record is in one of them; a record adds at most 1 to the sum of its batch, which gets
Gaussian noise of standard deviation z and is released; how many records there are, and the batches' sizes, are public.

``shuffled``: a permutation of all records is cut into batches, as most loaders do. Neighbours: the record becomes nothing
(``zero_out``). ``balls_in_bins``: each record draws its batch by itself; adding a record is then covered too.

Upper bounds: given all batches, the releases are Gaussian with a shift of 1 in one batch of each epoch, and divergences are
jointly convex. Lower bounds: the pairs of Chua et al. (2024, *How Private are DP-SGD Implementations?*, Theorem 4.2; 2025,
*Balls-and-Bins Sampling for DP-SGD*), for shuffled batches with all other records opposite to this one, of which each epoch's
largest coordinate is kept. Where the library ``PLD_accounting`` (Feldman and Shenfeld 2025; Shenfeld et al. 2026) is installed,
balls-in-bins batches have its bounds, which are almost equal.
"""

from __future__ import annotations

import importlib.util
import math
from typing import Literal, get_args

import dp_accounting as dpa
import numpy as np
from dp_accounting.pld import privacy_loss_distribution as pld
from scipy.stats import norm

from privdd.privacy.accounting import check_delta, epsilon

Batches = Literal["shuffled", "balls_in_bins", "poisson"]
LIBRARY = "PLD_accounting"
SHIFTS = {"shuffled": (2.0, 1.0), "balls_in_bins": (1.0, 0.0)}  # of the batch with the record, and without it
POINTS = 2000  # intervals that the largest coordinate is sorted into
REACH = 9.0  # standard deviations beyond the shift
INTERVAL = 1e-3  # discretisation of the loss


def bound_batch_epsilon(
    noise_multiplier: float, delta: float, *, batches: int, epochs: int = 1, sampling: Batches = "shuffled"
) -> tuple[float, float]:
    """(a lower, an upper bound) of epsilon at ``delta``; for ``poisson`` batches at rate 1 / batches both are the accountant's.

    noise_multiplier: noise over the clip, above 0; batches: of an epoch, from 1. Raises ValueError.
    """
    check_delta(delta)
    if not 0 < noise_multiplier < math.inf:
        raise ValueError(f"noise_multiplier={noise_multiplier!r}: a finite number above 0 is needed")
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
    if sampling == "balls_in_bins" and importlib.util.find_spec(LIBRARY) is not None:
        from PLD_accounting import gaussian_allocation_epsilon_range

        high, low = gaussian_allocation_epsilon_range(
            delta=delta, sigma=noise_multiplier, num_steps=batches, num_epochs=epochs
        )
        return max(0.0, float(low)), min(float(high), whole)
    shifts = SHIFTS[sampling]
    orders = (shifts, shifts[::-1])
    low = max(_largest_coordinate_epsilon(noise_multiplier, delta, batches, epochs, order) for order in orders)
    return min(low, whole), whole


def _largest_coordinate_epsilon(z: float, delta: float, batches: int, epochs: int, order: tuple[float, float]) -> float:
    """Epsilon of ``epochs`` largest coordinates with shift order[0] against those with order[1], rounded downwards.

    The largest of T normal numbers of deviation z, one of them shifted by s, is below c with chance
    Phi((c - s) / z) Phi(c / z)^(T - 1); which one it is tells nothing more, by symmetry.
    """
    edges = np.linspace(-REACH * z, max(order) + REACH * z, POINTS - 1)
    masses = []
    for shift in order:
        log_below = norm.logcdf((edges - shift) / z) + (batches - 1) * norm.logcdf(edges / z)
        above = np.concatenate([[1.0], -np.expm1(log_below), [0.0]])  # accurate where it is small
        masses.append(np.maximum(above[:-1] - above[1:], 0.0))
    kept = (masses[0] > 0) & (masses[1] > 0)  # what is left out counts for neither: the bound is lower for it
    upper, lower = (dict(enumerate(np.log(mass[kept]))) for mass in masses)
    loss = pld.from_two_probability_mass_functions(
        lower, upper, pessimistic_estimate=False, value_discretization_interval=INTERVAL
    )
    return max(0.0, float(loss.self_compose(epochs).get_epsilon_for_delta(delta)))
