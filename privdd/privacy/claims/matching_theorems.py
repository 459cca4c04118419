"""FedDM's and FedRD's theorems on noised matching gradients, as printed, each with its preconditions checked."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import dp_accounting as dpa
import torch

from privdd.core.types import Shard
from privdd.privacy.accounting import check_delta
from privdd.privacy.accounting import epsilon as accounted
from privdd.privacy.claims.claim import DELTA, Claim
from privdd.privacy.clipping import positive

Clipping = Literal["record", "aggregate", "none"]
QUERY = "synthetic_gradient"
FEDDM, FEDRD = (
    'a record: data sets that "differ on a single element"',
    'a record: data sets "differing by at most one record"',
)
NOTHING = "no clipping with noise takes place: the theorem states nothing"


@dataclass(frozen=True)
class MatchingRun:
    """The run as the matching theorems see it.

    noise_multiplier: sigma (None: no noise); steps: T per round; sampling_rate: q = |B| / n_c of the
    smallest class, in (0, 1]; noise_init: the synthetic set starts from noise; clipping: what is
    clipped; poisson: batches are Poisson samples; private_map: the embedding was trained on the
    client's own records without protection.
    """

    noise_multiplier: float | None
    steps: int
    sampling_rate: float
    delta: float
    noise_init: bool
    clipping: Clipping = "aggregate"
    poisson: bool = False
    private_map: bool = False

    def __post_init__(self) -> None:
        check_delta(self.delta)
        if self.noise_multiplier is not None:
            positive(self.noise_multiplier, "noise_multiplier")
        if isinstance(self.steps, bool) or not isinstance(self.steps, int) or not self.steps >= 1:
            raise ValueError(f"steps={self.steps!r}: an integer >= 1 is needed")
        if not 0 < self.sampling_rate <= 1:
            raise ValueError(f"sampling_rate={self.sampling_rate!r}: a number in (0, 1] is needed")
        if self.clipping not in ("record", "aggregate", "none"):
            raise ValueError(f"clipping={self.clipping!r}: allowed are record, aggregate, none")

    @property
    def spent(self) -> float:
        """T q**2."""
        return self.steps * self.sampling_rate**2


@dataclass(frozen=True)
class Forms:
    """Both forms of the theorem, solved for epsilon; second is infinite where T q**2 <= epsilon / 2 fails."""

    first: float
    second: float

    @staticmethod
    def of(run: MatchingRun, logarithm: float) -> Forms:
        """log(1/delta) = ``logarithm``: sigma = sqrt(log(delta) / (T q**2 - epsilon)), or sqrt(2 log(1/delta) / epsilon)."""
        noise = logarithm / float(run.noise_multiplier or math.nan) ** 2
        return Forms(noise + run.spent, 2 * noise if run.spent <= noise * (1 + 1e-12) else math.inf)

    def text(self, run: MatchingRun) -> str:
        said = f"first form {self.first:.3g}"
        if math.isinf(self.second):
            return f"{said}; the second does not apply (T q^2 = {run.spent:.3g} > epsilon / 2)"
        return f"{said}, second form {self.second:.3g} (T q^2 = {run.spent:.3g} <= epsilon / 2)"


def feddm_3_1(run: MatchingRun) -> Claim:
    """Xiong et al. 2023 (FedDM), Theorem 3.1 (Abadi et al. 2016): sigma >= c2 q sqrt(T log(1/delta)) / epsilon."""
    why = "sigma >= c2 q sqrt(T log(1/delta)) / epsilon for epsilon < c1 q^2 T: the constants c1 and c2 are not given"
    return Claim("Xiong 2023, Theorem 3.1", None, False, why, neighbours=FEDDM)


def feddm_3_2(run: MatchingRun) -> Claim:
    """Xiong et al. 2023 (FedDM), Theorem 3.2, per round.

    sigma >= sqrt(log(delta) / (T q**2 - epsilon)), or sigma >= sqrt(2 log(1/delta) / epsilon) if
    T q**2 <= epsilon / 2, solved for epsilon with the natural logarithm; the smaller is what is claimed.
    """
    return _printed("Xiong 2023, Theorem 3.2", run, FEDDM)


def fedrd_1(run: MatchingRun) -> Claim:
    """Zhang et al. (FedRD), Theorem 1, per round: FedDM's theorem, with the natural logarithm of its proof."""
    return _printed("FedRD, Theorem 1", run, FEDRD)


def fedrd_table_2(run: MatchingRun) -> Claim:
    """Zhang et al. (FedRD), Table II: the second form of Theorem 1, with the base-10 logarithm.

    Their epsilons 10, 1.11 and 0.4 for sigma 1, 3 and 5 are 2 log10(1/delta) / sigma**2; the natural logarithm
    gives 23.0, 2.56 and 0.92. Where the form's condition fails, the first form with the same logarithm.
    """
    source = "FedRD, Theorem 1 as in Table II"
    if run.noise_multiplier is None or run.clipping == "none":
        return Claim(source, math.inf, True, NOTHING)
    forms = Forms.of(run, math.log10(1 / run.delta))
    wrong = ["Table II takes log10 where the proof has ln"]
    if math.isinf(forms.second):
        table = 2 * math.log10(1 / run.delta) / run.noise_multiplier**2
        wrong.append(f"T q^2 <= epsilon/2 fails (T q^2 = {run.spent:.3g}), yet Table II states {table:.3g}")
    value = forms.first if math.isinf(forms.second) else forms.second
    choices = (f"base-10 logarithm: {forms.text(run)}", *_chosen(run))
    return _judged(source, run, value, wrong, choices, FEDRD)


def _printed(source: str, run: MatchingRun, neighbours: str) -> Claim:
    if run.noise_multiplier is None or run.clipping == "none":
        return Claim(source, math.inf, True, NOTHING)
    logarithm = math.log(1 / run.delta)
    forms = Forms.of(run, logarithm)
    own = ", ".join(f"{2 * math.log(1 / DELTA) / sigma**2:.3g}" for sigma in (1, 3, 5))
    choices = (
        f'the theorem says "or", so the smaller counts: {forms.text(run)}',
        "the logarithm is natural, as in the moments bound that the theorem comes from",
        *_chosen(run),
        f"for the paper's own sigma = 1, 3, 5 at delta = {DELTA:g} the second form gives {own}",
    )
    return _judged(source, run, min(forms.first, forms.second), [], choices, neighbours)


def _chosen(run: MatchingRun) -> tuple[str, ...]:
    return (
        f"delta = {run.delta:g}, the paper's own",
        f"q = {run.sampling_rate:.3g}: the batch over the smallest class that a client of this run holds",
        "the theorem is per round; rounds are not composed",
    )


def _judged(
    source: str, run: MatchingRun, value: float, wrong: list[str], choices: tuple[str, ...], neighbours: str
) -> Claim:
    """The claim, with every precondition that this run does not meet."""
    if not run.noise_init:
        wrong.append("the synthetic set starts from real images, the theorem needs noise")
    if run.clipping == "aggregate":
        wrong.append("the batch mean is clipped, not each record: one record may move it by up to 2|B| times C/|B|")
    if run.private_map:
        wrong.append("the embedding is trained on the same records without protection")
    if not run.poisson and run.sampling_rate < 1:
        wrong.append("batches are not Poisson samples")
    ideal = accounted(_ideal(run), run.delta)
    if ideal > value:
        wrong.append(f"even with records clipped and Poisson batches the accountant needs {ideal:.4g} > {value:.4g}")
    why = "per round; " + ("; ".join(wrong) or f"the accountant gives {ideal:.4g}")
    return Claim(source, value, not wrong, why, run.delta, choices, neighbours)


def _ideal(run: MatchingRun) -> dpa.DpEvent:
    """The mechanism that the proof assumes: DP-SGD with per-record clipping and Poisson batches."""
    gaussian = dpa.GaussianDpEvent(float(run.noise_multiplier or math.nan))
    return dpa.SelfComposedDpEvent(dpa.PoissonSampledDpEvent(run.sampling_rate, gaussian), run.steps)


def matching_claims(
    theorems: Sequence[Callable[[MatchingRun], Claim]],
    plan: Any,
    shards: Sequence[Shard],
    *,
    iterations: int,
    batch: int,
    noise_init: bool,
    private_map: bool = False,
) -> list[Claim]:
    """The paper's theorems for a run whose matching gradients are noised; nothing for any other run."""
    mechanism = plan.mechanisms.get(QUERY)
    if mechanism is None:
        return []
    by_record = mechanism.per_record
    counts = torch.cat([torch.bincount(shard.train.y, minlength=1) for shard in shards])
    smallest = int(counts[counts > 0].min()) if bool((counts > 0).any()) else 1
    rate = mechanism.sampling_probability if by_record else min(1.0, batch / smallest)
    run = MatchingRun(
        float(mechanism.noise_multiplier),
        max(iterations, 1),
        float(rate),
        DELTA,
        noise_init,
        clipping="record" if by_record else "aggregate",
        poisson=by_record,
        private_map=private_map,
    )
    return [theorem(run) for theorem in theorems]
