"""What the papers state: one function per printed theorem, each with its preconditions checked.

A claim is the epsilon that the printed formula gives; ``sound`` says whether a proof stands behind it
for the run at hand, ``why`` gives the reason. Claims never enter the accounting.
"""

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
from privdd.privacy.clipping import positive

Clipping = Literal["record", "aggregate", "none"]


@dataclass(frozen=True)
class Claim:
    """source: paper and theorem; epsilon >= 0 or infinite; sound: a proof covers this run; why: one line."""

    source: str
    epsilon: float
    sound: bool
    why: str

    def __post_init__(self) -> None:
        if not self.epsilon >= 0:
            raise ValueError(f"epsilon={self.epsilon!r}: a number of at least 0, or infinity, is needed")

    def to_json(self) -> dict[str, Any]:
        """The entry of findings.json."""
        value = "inf" if math.isinf(self.epsilon) else self.epsilon
        return {"source": self.source, "epsilon": value, "sound": self.sound, "why": self.why}


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


def feddm_3_2(run: MatchingRun) -> Claim:
    """Xiong et al. 2023 (FedDM), Theorem 3.2, per round.

    sigma >= sqrt(log(delta) / (T q**2 - epsilon)), or sigma >= sqrt(2 log(1/delta) / epsilon) if
    T q**2 <= epsilon / 2, solved for epsilon with the natural logarithm.
    """
    return _matching("Xiong 2023, Theorem 3.2", run, math.log(1 / run.delta), "")


def fedrd_1(run: MatchingRun) -> Claim:
    """Zhang et al. (FedRD), Theorem 1, per round: FedDM's formula, evaluated as in their Table II.

    Their epsilons 10, 1.11 and 0.4 for sigma 1, 3 and 5 are 2 log10(1/delta) / sigma**2: the proof's
    logarithm is natural, which gives 23.0, 2.56 and 0.92.
    """
    note = "the paper's figures take log10 where the proof has ln"
    return _matching("FedRD, Theorem 1", run, math.log10(1 / run.delta), note)


def _matching(source: str, run: MatchingRun, logarithm: float, note: str) -> Claim:
    if run.noise_multiplier is None or run.clipping == "none":
        return Claim(source, math.inf, True, "no clipping with noise takes place: the theorem states nothing")
    spent, noise = run.steps * run.sampling_rate**2, logarithm / run.noise_multiplier**2
    value = noise + max(noise, spent)  # the second form where its condition T q**2 <= epsilon / 2 holds
    wrong = [note] if note else []
    if spent > noise:
        wrong.append(f"T q^2 <= epsilon/2 fails (T q^2 = {spent:.3g}), yet the paper states {2 * noise:.3g}")
    if not run.noise_init:
        wrong.append("the synthetic set starts from real images, the theorem needs noise")
    if run.clipping == "aggregate":
        wrong.append("the batch mean is clipped, not each record: one record may move it by up to 2|B| times C/|B|")
    if run.private_map:
        wrong.append("the embedding is trained on the same records without protection")
    if not run.poisson and run.sampling_rate < 1:
        wrong.append("batches are not Poisson samples")
    ideal = accounted(_ideal(run, run.noise_multiplier), run.delta)
    if ideal > value:
        wrong.append(f"even with records clipped and Poisson batches the accountant needs {ideal:.4g} > {value:.4g}")
    return Claim(source, value, not wrong, "per round; " + ("; ".join(wrong) or f"the accountant gives {ideal:.4g}"))


def _ideal(run: MatchingRun, z: float) -> dpa.DpEvent:
    """The mechanism that the proof assumes: DP-SGD with per-record clipping and Poisson batches."""
    return dpa.SelfComposedDpEvent(dpa.PoissonSampledDpEvent(run.sampling_rate, dpa.GaussianDpEvent(z)), run.steps)


def effective_std(stds: Sequence[float]) -> float:
    """Several noised copies of one record reveal as much as one copy with noise of this standard deviation."""
    return sum(std**-2 for std in stds) ** -0.5


def fedfed_3_3(
    *, variance: float, rho: float, delta: float, rounds: int = 1, clipped: bool, noise_per_record: bool
) -> Claim:
    """Yang et al. 2023 (FedFed), Theorem 3.3 by its Lemma D.2: rho sqrt(R log(1/delta)) / sigma_s.

    variance: sigma_s**2 in pixels; rho: the share of the record's norm that is shared; rounds: R.
    """
    check_delta(delta)
    value = positive(rho, "rho") * math.sqrt(rounds * math.log(1 / delta)) / math.sqrt(positive(variance, "variance"))
    wrong = [
        "the lemma is an order of magnitude: constants, the record's norm and the factor 2 of an exchange are dropped",
        "generator and classifier that are trained on raw records are sent without noise",
    ]
    if not clipped:
        wrong.append("features are not clipped, so the sensitivity is unbounded")
    if not noise_per_record:
        wrong.append("one noise image serves a whole batch: differences of features leave exactly")
    return Claim("Yang 2023, Theorem 3.3 (Lemma D.2)", value, False, "; ".join(wrong))


def fedfed_3_4(*, client: Claim, clients: int, delta_hat: float) -> Claim:
    """Yang et al. 2023 (FedFed), Theorem 3.4: k-fold composition (Kairouz et al. 2015) over k clients.

    client: what is claimed for one client; delta_hat: the slack of the composition, in (0, 1).
    """
    check_delta(delta_hat)
    if isinstance(clients, bool) or not isinstance(clients, int) or not clients >= 1:
        raise ValueError(f"clients={clients!r}: an integer >= 1 is needed")
    eps = client.epsilon
    value = kairouz(eps, clients, delta_hat) if math.isfinite(eps) else math.inf
    why = f"records of {clients} clients are disjoint, so the worst client counts and composition is needless"
    return Claim("Yang 2023, Theorem 3.4", value, False, f"{why}; its premise: {client.why}")


def kairouz(epsilon: float, k: int, delta_hat: float) -> float:
    """Kairouz, Oh and Viswanath 2015, Theorem 3.4: k-fold composition of (epsilon, 0) at slack delta_hat."""
    drift = math.tanh(epsilon / 2) * epsilon * k
    first = drift + epsilon * math.sqrt(2 * k * math.log(math.e + math.sqrt(k) * epsilon / delta_hat))
    second = drift + epsilon * math.sqrt(2 * k * math.log(1 / delta_hat))
    return min(k * epsilon, first, second)


DELTA = 1e-5  # at which the papers evaluate their theorems
QUERY = "synthetic_gradient"


def matching_claims(
    theorem: Callable[[MatchingRun], Claim],
    plan: Any,
    shards: Sequence[Shard],
    iterations: int,
    batch: int,
    noise_init: bool,
) -> list[Claim]:
    """The paper's theorem for a run whose matching gradients are noised; nothing for any other run."""
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
    )
    return [theorem(run)]
