"""What is declared of a mechanism beside its epsilon: the law and scale of its noise, and how its
batches are formed."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from scipy import stats

from privdd.blackbox.budgets import CallBudget
from privdd.blackbox.check_report import SingleTestResult
from privdd.blackbox.claims import TINY, CheckedClaim
from privdd.blackbox.inputs import InputShapes, scaled_data
from privdd.blackbox.law_recognition import noise_law
from privdd.blackbox.mechanism import BlackBox, InputRefused
from privdd.blackbox.transcripts import draw_transcripts
from privdd.privacy.batch_bounds import bound_batch_epsilon

DECLARED_CALLS = 1500
ROUNDING = 0.98  # of the declared scale: what a printed number may be off by
FOURTH_MOMENTS = {"gaussian": 3.0, "laplace": 6.0}  # E z^4 at deviation 1


def check_declared_noise(
    mechanism: BlackBox,
    claim: CheckedClaim,
    inputs: InputShapes,
    budget: CallBudget,
    next_confidence: Callable[[], float],
) -> list[SingleTestResult]:
    """Rows for the declared law and scale of each number's noise.

    Args:
        mechanism: what is called.
        claim: the statement, with what is declared.
        inputs: sizes of inputs.
        budget: that may be spent.
        next_confidence: -> that of the next test.

    Returns:
        One row for each declaration; none if nothing is declared or the inputs are refused.

    Raises:
        OutOfTime: the budget or the shares of the error probability are spent.
    """
    if claim.noise is None and claim.noise_std is None:
        return []
    data = scaled_data(mechanism.kind, inputs, 1.0)
    try:
        block = draw_transcripts(mechanism, [data], DECLARED_CALLS, budget)
    except InputRefused:
        return []
    values = block.rows[:, 0]
    residuals = values - values.mean(0)
    law = noise_law(residuals)
    results = []
    if claim.noise is not None:
        next_confidence()  # the law's test takes its share too
        outcome = "not refuted" if law == claim.noise else "refuted"
        says = f"noise of the {claim.noise} law is declared, and its law is {law}"
        results.append(
            SingleTestResult("law of the noise", outcome, says, strength="finite_sample")
        )
    if claim.noise_std is not None:
        results.append(
            _check_scale(residuals, claim.noise or law, claim.noise_std, next_confidence())
        )
    return results


def _check_scale(
    residuals: np.ndarray, law: str, declared: float, confidence: float
) -> SingleTestResult:
    """Whether the number with the least noise has as much as is declared.

    Upper limit of its variance, s^2 (1 + z_{1 - alpha / k} sqrt(E z^4 - 1) / sqrt(n)) over k
    numbers: s^2 is asymptotically normal with variance sigma^4 (E z^4 - 1) / n under any law with a
    fourth moment, where the chi-squared limit holds for normal noise alone.
    """
    std = residuals.std(0, ddof=1)
    least = int(np.argmin(std))
    width = math.sqrt(_fourth_moment(law, residuals) - 1.0)
    tail = stats.norm.isf((1 - confidence) / len(std))
    highest = float(std[least]) ** 2 * (1 + tail * width / math.sqrt(DECLARED_CALLS))
    if highest < (ROUNDING * declared) ** 2:
        outcome = "refuted"
    else:
        outcome = "not refuted"
    says = (
        f"the noise of number {least} has standard deviation {std[least]:.4g}; "
        f"{declared:g} is declared"
    )
    return SingleTestResult("scale of the noise", outcome, says, strength="finite_sample")


def _fourth_moment(law: str, residuals: np.ndarray) -> float:
    """E z^4 of noise of a law, at deviation 1; of another law twice that of all residuals (n, m),
    which saw little of a heavy tail."""
    if law in FOURTH_MOMENTS:
        return FOURTH_MOMENTS[law]
    std = residuals.std(0)
    if not std.any():
        return FOURTH_MOMENTS["gaussian"]
    standardised = residuals[:, std > 0] / std[std > 0]
    return 2 * float(np.mean(standardised**4))


def check_declared_batches(claim: CheckedClaim) -> list[SingleTestResult]:
    """A row for batches that are no Poisson samples, as they are declared; none if nothing is. The
    mechanism is not called."""
    if claim.sampling is None or claim.noise_multiplier is None:
        return []
    low, high = bound_batch_epsilon(
        claim.noise_multiplier,
        max(claim.delta, TINY),
        sampling=claim.sampling,
        batches=claim.batches,
        epochs=claim.epochs,
    )
    says = (
        f"of {claim.sampling.replace('_', ' ')} batches, {claim.batches} in each of "
        f"{claim.epochs} epochs, epsilon is {low:.4g} to {high:.4g}"
    )
    if low > claim.refutation_limit:
        outcome = "refuted"
    else:
        outcome = "not refuted"
    return [SingleTestResult("declared batches", outcome, says, low, "declared")]
