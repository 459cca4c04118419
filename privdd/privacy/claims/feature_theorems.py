"""FedFed's theorems on shared features (Yang et al. 2023), as printed and as their source has them.

Lemmas D.1, D.2 and Theorem D.3 fix epsilon only up to constants ("we ignore the scalars and constants here"): they
give no number, and nothing is judged against one. Theorem 3.4 prints an expression without any O(.), which is
evaluated as it stands.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from privdd.privacy.accounting import check_delta
from privdd.privacy.claims.claim import DELTA, Claim
from privdd.privacy.clipping import positive

NEIGHBOURS = 'a record: data sets that "differ in a single entry"'
PAPER_ROUNDS, PAPER_VARIANCE, PAPER_CLIENTS = 1000, 0.15, 10  # T_r (table 7), sigma_s**2 (section 4.1), K
UNPROTECTED = "generator and classifier that are trained on raw records are sent without noise"


@dataclass(frozen=True)
class FeatureRun:
    """A run as FedFed's theorems see it.

    variance: sigma_s**2 in pixels, of the noise that remains after averaging copies; rho: the share of a record's
    norm that is shared (None: no bound); rounds: R, rounds that read the shared features; clients: k; delta and
    delta_hat: of one client and of the composition, in (0, 1); noise_per_record: no noise image serves a batch;
    raw: whole images are shared in place of features.
    """

    variance: float
    rho: float | None
    rounds: int
    clients: int
    noise_per_record: bool = True
    raw: bool = False
    delta: float = DELTA
    delta_hat: float = DELTA

    def __post_init__(self) -> None:
        check_delta(self.delta)
        check_delta(self.delta_hat)
        positive(self.variance, "variance")
        if self.rho is not None:
            positive(self.rho, "rho")
        for name in ("rounds", "clients"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or not value >= 1:
                raise ValueError(f"{name}={value!r}: an integer >= 1 is needed")

    @property
    def share(self) -> float:
        """rho, and 1 where nothing bounds the features."""
        return self.rho or 1.0

    def lemma(self, rounds: int | None = None) -> float:
        """What Lemma D.2 prints inside its O(.), for this many rounds (default: the run's)."""
        return lemma_d_2(variance=self.variance, rho=self.share, delta=self.delta, rounds=rounds or self.rounds)

    @property
    def total_delta(self) -> float:
        """1 - (1 - delta_hat) (1 - delta)**k (Theorem 3.4)."""
        return -math.expm1(math.log1p(-self.delta_hat) + self.clients * math.log1p(-self.delta))

    @property
    def own_values(self) -> tuple[float, float]:
        """Theorem 3.4 for the paper's own R, k and sigma_s: as printed, and as its source has it."""
        eps = lemma_d_2(variance=PAPER_VARIANCE, rho=self.share, delta=self.delta, rounds=PAPER_ROUNDS)
        return printed_composition(eps, PAPER_CLIENTS, self.delta_hat), kairouz(eps, PAPER_CLIENTS, self.delta_hat)

    @property
    def chosen(self) -> tuple[str, ...]:
        rho = f"rho = {self.rho:g}, this run's" if self.rho is not None else "rho = 1: nothing bounds the features here"
        return (
            f"R = {self.rounds}, this run's rounds that read shared features (appendix D.1: communication rounds)",
            f"{rho}; the paper states no value",
            f"delta = {self.delta:g}; the paper states no value",
        )


def effective_std(stds: Sequence[float]) -> float:
    """Several noised copies of one record reveal as much as one copy with noise of this standard deviation."""
    return sum(std**-2 for std in stds) ** -0.5


def feature_run(mechanism: Any, problem: Any, *, rounds: int, raw: bool) -> FeatureRun:
    """The run of a ``FeatureNoise`` on images of the problem's shape."""
    numbers = math.prod(problem.shape)
    norm = mechanism.norm(numbers)
    return FeatureRun(
        variance=effective_std(mechanism.stds(norm)) ** 2,
        rho=None if norm is None else norm / math.sqrt(numbers),  # of the largest norm of pixels in [0, 1]
        rounds=rounds,
        clients=problem.clients,
        noise_per_record=mechanism.broadcast_batch is None,
        raw=raw,
    )


def lemma_d_2(*, variance: float, rho: float, delta: float, rounds: int) -> float:
    """rho sqrt(R log(1/delta)) / sigma_s: what Lemma D.2 prints inside its O(.), natural logarithm."""
    return rho * math.sqrt(rounds * math.log(1 / delta)) / math.sqrt(variance)


def fedfed_d_1(run: FeatureRun) -> Claim:
    """Yang et al. 2023 (FedFed), Lemma D.1: raw records shared, O(sqrt(R log(1/delta)) (rho / sigma_s + (1 - rho) / sigma_r))."""
    does = "as this run does" if run.raw else "which this run does not do"
    why = f"fixed only up to unstated constants, for sharing raw records, {does}"
    return Claim("Yang 2023, Lemma D.1", None, False, why, neighbours=NEIGHBOURS)


def fedfed_d_3(run: FeatureRun) -> Claim:
    """Yang et al. 2023 (FedFed), Theorem D.3 (Abadi et al. 2016): sigma = c2 q sqrt(T log(1/delta)) / epsilon."""
    why = "sigma = c2 q sqrt(T log(1/delta)) / epsilon for epsilon < c1 q^2 T: the constants c1 and c2 are not given"
    return Claim("Yang 2023, Theorem D.3", None, False, why, neighbours=NEIGHBOURS)


def fedfed_d_2(run: FeatureRun) -> Claim:
    """Yang et al. 2023 (FedFed), Lemma D.2: epsilon = O(rho sqrt(R log(1/delta)) / sigma_s). No number."""
    wrong = [
        "fixed only up to unstated constants: the record's norm and the factor 2 for replacing a record are missing",
        UNPROTECTED,
    ]
    if run.rho is None:
        wrong.append("features are not clipped, so the sensitivity is unbounded")
    if not run.noise_per_record:
        wrong.append("one noise image serves a whole batch: differences of features leave exactly")
    own = lemma_d_2(variance=PAPER_VARIANCE, rho=run.share, delta=run.delta, rounds=PAPER_ROUNDS)
    choices = (
        f"with the dropped constant set to 1: {run.lemma():.3g}; with R = 1, as in the proof's last line, {run.lemma(1):.3g}",
        f"for the paper's own R = {PAPER_ROUNDS} and sigma_s^2 = {PAPER_VARIANCE:g}: {own:.3g}",
        *run.chosen,
    )
    return Claim("Yang 2023, Lemma D.2", None, False, "; ".join(wrong), run.delta, choices, NEIGHBOURS)


def fedfed_3_3(run: FeatureRun) -> Claim:
    """Yang et al. 2023 (FedFed), Theorem 3.3: at equal (epsilon, delta) features need less noise than raw records.

    A comparison, without a number: equal guarantees of one Gaussian release mean equal noise over norm, so that
    the two noise scales stand to each other as rho to 1.
    """
    if run.rho is None:
        why = "nothing bounds the features, so no noise gives them any epsilon: there is nothing to compare"
    else:
        why = (
            f"true of the noise alone: with features clipped to rho ||x|| the standard deviation is {run.rho:g} of "
            f"that for raw records; {UNPROTECTED}, so it is not true of the system"
        )
    choices = ("sigma in proportion to ||x_s||, as in the proof; the statement says ||x_s||^2",)
    return Claim("Yang 2023, Theorem 3.3", None, False, why, None, choices, NEIGHBOURS)


def fedfed_3_4(run: FeatureRun) -> Claim:
    """Yang et al. 2023 (FedFed), Theorem 3.4 as printed in appendix D.7, over k clients, at its total delta."""
    value = printed_composition(run.lemma(), run.clients, run.delta_hat)
    note = "it misprints the theorem that it cites: sqrt(k eps^2 / delta_hat) for sqrt(k eps^2) / delta_hat"
    return _composed("Yang 2023, Theorem 3.4 as printed", run, value, run.own_values[0], note)


def fedfed_3_4_source(run: FeatureRun) -> Claim:
    """The same composition as its source has it (Kairouz, Oh and Viswanath 2015, Theorem 3.4)."""
    value = kairouz(run.lemma(), run.clients, run.delta_hat)
    return _composed("Yang 2023, Theorem 3.4 as its source has it", run, value, run.own_values[1], "")


def _composed(source: str, run: FeatureRun, value: float, own: float, note: str) -> Claim:
    why = [
        f"the {run.clients} clients hold different records, so the least protected client decides and nothing has to be composed",
        "it rests on Lemma D.2, whose constant the paper leaves out; 1 is used here",
        UNPROTECTED,
        *([note] if note else []),
    ]
    choices = (
        f"k = {run.clients}, this run's clients, of epsilon {run.lemma():.3g} each",
        *run.chosen,
        f"delta_hat = {run.delta_hat:g}; the paper states no value",
        f"for the paper's own R = {PAPER_ROUNDS}, k = {PAPER_CLIENTS} and sigma_s^2 = {PAPER_VARIANCE:g}: {own:.3g}",
        "appendix D.7's typesetting; the brackets of section 3.3 differ",
    )
    return Claim(source, value, False, "; ".join(why), run.total_delta, choices, NEIGHBOURS)


def kairouz(epsilon: float, k: int, delta_hat: float) -> float:
    """Kairouz, Oh and Viswanath 2015, Theorem 3.4: k-fold composition of (epsilon, delta) at slack delta_hat."""
    return _smallest(epsilon, k, delta_hat, math.sqrt(k) * epsilon / delta_hat)


def printed_composition(epsilon: float, k: int, delta_hat: float) -> float:
    """The same as FedFed prints it in Theorem D.7: log(e + sqrt(k epsilon**2 / delta_hat))."""
    return _smallest(epsilon, k, delta_hat, math.sqrt(k * epsilon**2 / delta_hat))


def _smallest(epsilon: float, k: int, delta_hat: float, inner: float) -> float:
    drift = math.tanh(epsilon / 2) * epsilon * k
    first = drift + epsilon * math.sqrt(2 * k * math.log(math.e + inner))
    second = drift + epsilon * math.sqrt(2 * k * math.log(1 / delta_hat))
    return min(k * epsilon, first, second)


FEATURE_THEOREMS = (fedfed_3_4, fedfed_3_4_source, fedfed_d_2, fedfed_3_3, fedfed_d_1, fedfed_d_3)
