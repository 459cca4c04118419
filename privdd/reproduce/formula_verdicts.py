"""Sentences that arithmetic decides: the papers' formulas against an accountant, and the direction of a metric."""

from __future__ import annotations

import math

import dp_accounting as dpa
import numpy as np
import torch

from attacks.images import lpips
from attacks.lpips_weights import LpipsUnavailable
from privdd.core.keys import Keys
from privdd.data.digits import digits
from privdd.privacy.accounting import epsilon as accounted
from privdd.privacy.claims.claim import DELTA
from privdd.privacy.claims.feature_theorems import kairouz, printed_composition
from privdd.reproduce.decided import HERE, NOT, OPEN, Decided, Grounds

SIGMAS, PRINTED = (1.0, 3.0, 5.0), (10.0, 1.11, 0.4)
# T; |B|; records of a class of CIFAR-10, all at one client: the smallest q there is.
STEPS, BATCH, CLASS = 1000, 256, 5000
SHARE = 0.3  # rho


def gaussian_epsilon(sigma: float, sensitivity: float, delta: float = DELTA) -> float:
    """Of one Gaussian release, by the accountant."""
    return accounted(dpa.GaussianDpEvent(sigma / sensitivity), delta)


def feddm_theorem(evidence: Grounds) -> Decided:
    """The kindest case: T steps at the smallest q, Poisson batches, and each record clipped (the method clips their mean)."""
    q = BATCH / CLASS
    lines, holds = [], True
    for sigma in SIGMAS:
        stated = 2 * math.log(1 / DELTA) / sigma**2
        event = dpa.SelfComposedDpEvent(dpa.PoissonSampledDpEvent(q, dpa.GaussianDpEvent(sigma)), STEPS)
        real, meets = accounted(event, DELTA), STEPS * q**2 <= stated / 2
        holds = holds and meets and real <= stated
        lines.append(
            f"sigma {sigma:g}: T q² = {STEPS * q**2:.3g}, ε/2 = {stated / 2:.3g}, so the condition {'holds' if meets else 'fails'}; "
            f"the formula gives {stated:.3g}, the accountant {real:.3g} a round"
        )
    lines.append(
        "this is the kindest case: a client that holds all 5,000 records of a class, each record clipped by itself"
    )
    return Decided(HERE if holds else NOT, tuple(lines))


def fedrd_table_two(evidence: Grounds) -> Decided:
    natural = [2 * math.log(1 / DELTA) / sigma**2 for sigma in SIGMAS]
    common = [2 * math.log10(1 / DELTA) / sigma**2 for sigma in SIGMAS]
    same = [abs(a - b) < 0.01 for a, b in zip(natural, PRINTED, strict=True)]
    lines = (
        f"natural logarithm: {', '.join(f'{v:.3g}' for v in natural)}",
        f"base 10: {', '.join(f'{v:.3g}' for v in common)}",
        f"printed: {', '.join(f'{v:g}' for v in PRINTED)}",
    )
    return Decided(HERE if all(same) else NOT, lines)


def fedfed_less_noise(evidence: Grounds) -> Decided:
    """One Gaussian release of a vector of norm at most rho, against one of norm at most 1."""
    raw = 1.0
    target = gaussian_epsilon(raw, 1.0)
    low, high = 1e-3, raw
    for _ in range(40):  # bisection: epsilon falls with sigma
        middle = math.sqrt(low * high)
        low, high = (middle, high) if gaussian_epsilon(middle, SHARE) > target else (low, middle)
    lines = (
        f"at the epsilon {target:.3g} that noise 1 gives raw records of norm 1, features of norm {SHARE:g} need noise {high:.3g}",
        f"noise over norm is the same for both ({high / SHARE:.3g} and {raw:.3g}): less noise, on a signal as much weaker",
        "the generator is trained on raw records and sent without noise, so this says nothing of the whole method",
    )
    return Decided(HERE if high < raw else NOT, lines)


def fedfed_square(evidence: Grounds) -> Decided:
    once, twice, four = (gaussian_epsilon(s, norm) for s, norm in ((1.0, 1.0), (2.0, 2.0), (4.0, 2.0)))
    lines = (
        f"norm 1, noise 1: epsilon {once:.3g}; norm 2, noise 2: {twice:.3g}; norm 2, noise 4: {four:.3g}",
        "twice the norm needs twice the noise, as in the paper's own proof (appendix D.1)",
    )
    return Decided(
        NOT if math.isclose(once, twice, rel_tol=1e-6) and not math.isclose(once, four, rel_tol=0.05) else HERE, lines
    )


def fedfed_composition(evidence: Grounds) -> Decided:
    lines, below = [], False
    for clients in (10, 100):
        epsilon = 0.876
        printed, source = printed_composition(epsilon, clients, DELTA), kairouz(epsilon, clients, DELTA)
        below = below or printed < source * (1 - 1e-9)
        lines.append(f"{clients} clients of epsilon {epsilon:g}: printed {printed:.4g}, its source {source:.4g}")
    lines.append("clients hold different records, so no composition over clients is needed: the worst client counts")
    return Decided(NOT if below else HERE, tuple(lines))


def fedlgd_lpips(evidence: Grounds) -> Decided:
    """LPIPS between pictures and the same with more and more noise."""
    pictures = digits("digits", None, Keys(0)).test.x[:32]
    noise = torch.randn(pictures.shape, generator=Keys(0).fold("lpips").torch())
    steps = (0.05, 0.1, 0.2, 0.4)
    try:
        found = [float(lpips((pictures + s * noise).clamp(0, 1), pictures).mean()) for s in steps]
    except LpipsUnavailable:
        return Decided(OPEN, ("no pretrained weights of LPIPS on this machine",))
    lines = (
        "LPIPS between 32 pictures and themselves under noise of "
        + ", ".join(f"{s:g}: {v:.3f}" for s, v in zip(steps, found, strict=True)),
        "a smaller LPIPS means more alike, so the paper's numbers as printed say that the attack got better",
    )
    return Decided(NOT if bool(np.all(np.diff(found) > 0)) else HERE, lines)
