"""What the papers state: one function per printed theorem or sentence, each with its preconditions
checked.

FedFed's theorems on shared features (Yang et al. 2023), as printed and as their source has them:
Lemmas D.1, D.2 and Theorem D.3 fix epsilon only up to constants ("we ignore the scalars and
constants here"), so they give no number, and nothing is judged against one; Theorem 3.4 prints an
expression without any O(.), which is evaluated as it stands, but of what the lemma
leaves open: the paper's formula, not applicable to any run. One number its authors give elsewhere.
FedDM's and FedRD's theorems on noised matching gradients, as printed. And what the papers say
about privacy in words: claims without a number,
each with the attacks that measure it. Claims never enter the accounting.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import dp_accounting as dpa
import torch

from attacks.validation import check_counts, check_positive, check_probability
from privdd.core.types import Problem, Shard
from privdd.privacy.accounting import check_delta
from privdd.privacy.accounting import epsilon as accounted

DELTA = 1e-5  # at which FedDM and FedRD evaluate their theorems; FedFed names none
NO_NUMBER = "no number"
FEDFED_NEIGHBOURS = 'a record: data sets that "differ in a single entry"'
# T_r (table 7), sigma_s**2 (section 4.1), K
PAPER_ROUNDS = 1000
PAPER_VARIANCE = 0.15
PAPER_CLIENTS = 10
UNPROTECTED = "generator and classifier that are trained on raw records are sent without noise"
PUBLISHED_DELTA = 1e-3
PUBLISHED_SENSITIVITY = 1.0
MATCHING_QUERY = "synthetic_gradient"
FEDDM_NEIGHBOURS = 'a record: data sets that "differ on a single element"'
FEDRD_NEIGHBOURS = 'a record: data sets "differing by at most one record"'
NO_NOISE = "no clipping with noise takes place: the theorem states nothing"
MEMBERSHIP_ATTACKS = ("lira", "rmia", "loss_threshold")


class ClaimedRun(Protocol):
    """The facts of a run for which a claim is evaluated; ``privdd.federated.simulation.Plan`` is
    one."""

    @property
    def mechanisms(self) -> Mapping[str, Any]: ...
    @property
    def problem(self) -> Problem: ...


@dataclass(frozen=True)
class Claim:
    """A paper's privacy claim. Claims never enter the accounting.

    source: paper and theorem; epsilon: >= 0 or infinite, None where the paper gives no number (an
        order of magnitude, a sentence); sound: a proof covers this run; why: one line; delta: at
        which epsilon is stated;
    choices: what the paper leaves open and what was chosen, and the claim for the paper's own
        values;
    neighbours: unit and neighbouring data sets in the paper's words; tested_by: the attacks that
        measure it.
    not_applicable: which condition of the number this run does not meet; then it is the paper's
        formula and no claim of this run, which nothing is judged against. surface: where a bound on
        epsilon contradicts it ("": no surface has it alone).
    """

    source: str
    epsilon: float | None
    sound: bool
    why: str
    delta: float | None = None
    choices: tuple[str, ...] = ()
    neighbours: str = ""
    tested_by: tuple[str, ...] = ()
    not_applicable: str = ""
    surface: str = ""

    def __post_init__(self) -> None:
        if self.epsilon is not None and not self.epsilon >= 0:
            raise ValueError(
                f"epsilon={self.epsilon!r}: a number of at least 0, infinity or None is needed"
            )
        if self.delta is not None:
            check_delta(self.delta)

    @property
    def number(self) -> float | None:
        """The epsilon that this run can be held to; None where the paper gives none for it."""
        return None if self.not_applicable else self.epsilon

    def to_json(self) -> dict[str, Any]:
        """The entry of findings.json; what does not apply is left out."""
        value: float | str
        if self.number is None:
            value = NO_NUMBER
        else:
            value = self.number
        if self.number is not None and math.isinf(self.number):
            value = "inf"
        why = self.why
        choices = list(self.choices)
        if self.not_applicable and self.epsilon is not None:
            why = (
                "the paper's formula, not applicable here: "
                f"{'; '.join(filter(None, (self.not_applicable, why)))}"
            )
            choices.insert(0, f"the formula gives {self.epsilon:.3g}")
        optional = {
            "delta": self.delta,
            "choices": choices,
            "neighbours": self.neighbours,
            "tested_by": list(self.tested_by),
        }
        head = {"source": self.source, "epsilon": value, "sound": self.sound, "why": why}
        return head | {name: part for name, part in optional.items() if part}


def _claim_in_words(
    source: str, why: str, *tested_by: str, neighbours: str = "", sound: bool = False
) -> Claim:
    return Claim(source, None, sound, why, neighbours=neighbours, tested_by=tested_by)


def smallest_claim(claims: Iterable[Claim]) -> Claim | None:
    """The claim of the smallest epsilon; None where no claim gives a number for its run."""
    return min(
        (c for c in claims if c.number is not None), key=lambda c: c.number or 0.0, default=None
    )


@dataclass(frozen=True)
class FeatureRun:
    """A run as FedFed's theorems see it.

    variance: sigma_s**2 in pixels, of the noise that remains after averaging copies; rho: the share
        of a record's norm that is shared (None: no bound); norm: the most that a record's features
        can have; rounds: R, rounds that read the shared features; clients: k; delta and
    delta_hat: of one client and of the composition, in (0, 1); noise_per_record: no noise image
        serves a batch;
    raw: whole images are shared in place of features; gaussian: the law of the noise.
    """

    variance: float
    rho: float | None
    rounds: int
    clients: int
    noise_per_record: bool = True
    raw: bool = False
    delta: float = DELTA
    delta_hat: float = DELTA
    norm: float | None = None
    gaussian: bool = True

    def __post_init__(self) -> None:
        check_delta(self.delta)
        check_delta(self.delta_hat)
        check_positive(self, "variance", *(["rho"] if self.rho is not None else []))
        check_counts(self, "rounds", "clients")

    @property
    def shared_fraction(self) -> float:
        """rho, and 1 where nothing bounds the features."""
        return self.rho or 1.0

    def lemma_value(self, rounds: int | None = None) -> float:
        """The value inside the O(.) of Lemma D.2, for this many rounds (default: the run's)."""
        return lemma_d_2(self.variance, self.shared_fraction, self.delta, rounds or self.rounds)

    @property
    def paper_value(self) -> float:
        """The same for the paper's own R and sigma_s."""
        return lemma_d_2(PAPER_VARIANCE, self.shared_fraction, self.delta, PAPER_ROUNDS)

    @property
    def total_delta(self) -> float:
        """1 - (1 - delta_hat) (1 - delta)**k (Theorem 3.4)."""
        return -math.expm1(math.log1p(-self.delta_hat) + self.clients * math.log1p(-self.delta))

    @property
    def describe_choices(self) -> tuple[str, ...]:
        if self.rho is not None:
            rho = f"rho = {self.rho:g}, this run's"
        else:
            rho = "rho = 1: nothing bounds the features here"
        return (
            f"R = {self.rounds}, this run's rounds that read shared features (appendix "
            "D.1: communication rounds)",
            f"{rho}; the paper states no value",
            f"delta = {self.delta:g}; the paper states no value",
        )


def effective_std(stds: Sequence[float]) -> float:
    """Several noised copies of one record reveal as much as one copy with noise of this standard
    deviation, (sum 1 / sigma_i^2)^(-1/2): their weighted mean is sufficient."""
    return sum(std**-2 for std in stds) ** -0.5


def feature_run(mechanism: Any, problem: Problem, *, rounds: int, raw: bool) -> FeatureRun:
    """The run of a ``FeatureNoise`` on images of the problem's shape."""
    numbers = math.prod(problem.shape)
    norm = mechanism.norm_for_size(numbers)
    return FeatureRun(
        variance=effective_std(mechanism.copy_stds(norm)) ** 2,
        rho=None
        if norm is None
        else norm / math.sqrt(numbers),  # of the largest norm of pixels in [0, 1]
        rounds=rounds,
        clients=problem.clients,
        noise_per_record=mechanism.broadcast_batch is None,
        raw=raw,
        norm=norm,
        gaussian=mechanism.distribution == "gaussian",
    )


def lemma_d_2(variance: float, rho: float, delta: float, rounds: int) -> float:
    """rho sqrt(R log(1/delta)) / sigma_s: what Lemma D.2 prints inside its O(.), natural
    logarithm."""
    return rho * math.sqrt(rounds * math.log(1 / delta)) / math.sqrt(variance)


def fedfed_d_1(run: FeatureRun) -> Claim:
    """Yang et al. 2023 (FedFed), Lemma D.1: raw records shared, O(sqrt(R log(1/delta)) (rho /
    sigma_s + (1 - rho) / sigma_r))."""
    if run.raw:
        does = "as this run does"
    else:
        does = "which this run does not do"
    why = f"fixed only up to unstated constants, for sharing raw records, {does}"
    return _claim_in_words("Yang 2023, Lemma D.1", why, neighbours=FEDFED_NEIGHBOURS)


def fedfed_d_3(run: FeatureRun) -> Claim:
    """Yang et al. 2023 (FedFed), Theorem D.3 (Abadi et al. 2016): sigma = c2 q sqrt(T log(1/delta))
    / epsilon."""
    why = (
        "sigma = c2 q sqrt(T log(1/delta)) / epsilon for epsilon < c1 q^2 T: the constants "
        "c1 and c2 are not given"
    )
    return _claim_in_words("Yang 2023, Theorem D.3", why, neighbours=FEDFED_NEIGHBOURS)


def fedfed_d_2(run: FeatureRun) -> Claim:
    """Yang et al. 2023 (FedFed), Lemma D.2: epsilon = O(rho sqrt(R log(1/delta)) / sigma_s). No
    number."""
    wrong = [
        "fixed only up to unstated constants: the record's norm and the factor 2 for "
        "replacing a record are missing",
        UNPROTECTED,
    ]
    if run.rho is None:
        wrong.append("features are not clipped, so the sensitivity is unbounded")
    if not run.noise_per_record:
        wrong.append("one noise image serves a whole batch: differences of features leave exactly")
    choices = (
        f"with the dropped constant set to 1: {run.lemma_value():.3g}; with R = 1, as in "
        f"the proof's last line, {run.lemma_value(1):.3g}",
        f"for the paper's own R = {PAPER_ROUNDS} and sigma_s^2 = {PAPER_VARIANCE:g}: "
        f"{run.paper_value:.3g}",
        *run.describe_choices,
    )
    return Claim(
        "Yang 2023, Lemma D.2", None, False, "; ".join(wrong), run.delta, choices, FEDFED_NEIGHBOURS
    )


def fedfed_3_3(run: FeatureRun) -> Claim:
    """Yang et al. 2023 (FedFed), Theorem 3.3: at equal (epsilon, delta) features need less noise
    than raw records.

    A comparison, without a number: equal guarantees of one Gaussian release mean equal noise over
    norm, so that the two noise scales stand to each other as rho to 1.
    """
    if run.rho is None:
        why = (
            "nothing bounds the features, so no noise gives them any epsilon: there is "
            "nothing to compare"
        )
    else:
        why = (
            "true of the noise alone: with features clipped to rho ||x|| the standard "
            f"deviation is {run.rho:g} of "
            f"that for raw records; {UNPROTECTED}, so it is not true of the system"
        )
    choices = ("sigma in proportion to ||x_s||, as in the proof; the statement says ||x_s||^2",)
    return Claim("Yang 2023, Theorem 3.3", None, False, why, None, choices, FEDFED_NEIGHBOURS)


def fedfed_3_4(run: FeatureRun) -> Claim:
    """Yang et al. 2023 (FedFed), Theorem 3.4 as printed in appendix D.7, over k clients, at its
    total delta."""
    note = (
        "it misprints the theorem that it cites: sqrt(k eps^2 / delta_hat) for sqrt(k eps^2) "
        "/ delta_hat"
    )
    return _composition_claim("Yang 2023, Theorem 3.4 as printed", run, printed_composition, note)


def fedfed_3_4_source(run: FeatureRun) -> Claim:
    """The composition as in the theorem's source (Kairouz, Oh and Viswanath 2015, Theorem 3.4)."""
    return _composition_claim(
        "Yang 2023, Theorem 3.4 as its source has it", run, kairouz_composition
    )


def _composition_claim(
    source: str, run: FeatureRun, compose: Callable[[float, int, float], float], *notes: str
) -> Claim:
    each = run.lemma_value()
    composed = compose(run.paper_value, PAPER_CLIENTS, run.delta_hat)
    why = (
        f"the {run.clients} clients hold different records, so the least protected client "
        "decides and nothing has to be composed",
        UNPROTECTED,
        *notes,
    )
    choices = (
        f"k = {run.clients}, this run's clients, of epsilon {each:.3g} each",
        *run.describe_choices,
        f"delta_hat = {run.delta_hat:g}; the paper states no value",
        f"for the paper's own R = {PAPER_ROUNDS}, k = {PAPER_CLIENTS} and sigma_s^2 = "
        f"{PAPER_VARIANCE:g}: {composed:.3g}",
        "appendix D.7's typesetting; the brackets of section 3.3 differ",
    )
    return Claim(
        source,
        compose(each, run.clients, run.delta_hat),
        False,
        "; ".join(why),
        run.total_delta,
        choices,
        FEDFED_NEIGHBOURS,
        not_applicable="it rests on Lemma D.2, whose constant the paper leaves out; 1 is used here",
    )


def fedfed_published(run: FeatureRun) -> Claim:
    """The number that FedFed's authors give in an issue of their repository: Delta f
    sqrt(ln(1/delta) / sigma_s), which is 4.22 at sigma_s**2 = 0.15, delta = 1e-3 and Delta f = 1.
    The Gaussian mechanism has 10.66 there."""
    value = PUBLISHED_SENSITIVITY * math.sqrt(
        math.log(1 / PUBLISHED_DELTA) / math.sqrt(PAPER_VARIANCE)
    )
    bound = "nothing bounds the features"
    if run.norm is not None:
        bound = f"features of this run may have a norm of {run.norm:.3g}"
    needed = {
        "it is for Gaussian noise": run.gaussian,
        f"it is for a variance of {PAPER_VARIANCE:g}, this run's is {run.variance:.3g}": math.isclose(
            run.variance, PAPER_VARIANCE
        ),
        "one noise image serves a whole batch": run.noise_per_record,
        f"it is for a sensitivity of 1, and {bound}": run.norm is not None
        and run.norm <= PUBLISHED_SENSITIVITY,
    }
    unmet = [condition for condition, holds in needed.items() if not holds]
    why = f"the Gaussian mechanism of that sensitivity needs more; {UNPROTECTED}"
    choices = (
        f"Delta f sqrt(ln(1/delta) / sigma_s), of one release, at delta = {PUBLISHED_DELTA:g}",
    )
    return Claim(
        "Yang 2023, the authors in an issue of their repository",
        value,
        False,
        why,
        PUBLISHED_DELTA,
        choices,
        FEDFED_NEIGHBOURS,
        not_applicable="; ".join(unmet),
        surface="features",
    )


def kairouz_composition(epsilon: float, k: int, delta_hat: float) -> float:
    """Kairouz, Oh and Viswanath 2015, Theorem 3.4: k-fold composition of (epsilon, delta) at slack
    delta_hat, with log(e + sqrt(k) epsilon / delta_hat)."""
    return _smallest_epsilon(epsilon, k, delta_hat, math.sqrt(k) * epsilon / delta_hat)


def printed_composition(epsilon: float, k: int, delta_hat: float) -> float:
    """The composition as FedFed prints it in Theorem D.7: log(e + sqrt(k epsilon**2 /
    delta_hat))."""
    return _smallest_epsilon(epsilon, k, delta_hat, math.sqrt(k * epsilon**2 / delta_hat))


def _smallest_epsilon(epsilon: float, k: int, delta_hat: float, inner: float) -> float:
    """The smallest of k epsilon, D + epsilon sqrt(2 k log(e + inner)) and
    D + epsilon sqrt(2 k log(1 / delta_hat)), D = k epsilon tanh(epsilon / 2), which is the theorem's
    k epsilon (exp(epsilon) - 1) / (exp(epsilon) + 1)."""
    drift = math.tanh(epsilon / 2) * epsilon * k
    first = drift + epsilon * math.sqrt(2 * k * math.log(math.e + inner))
    second = drift + epsilon * math.sqrt(2 * k * math.log(1 / delta_hat))
    return min(k * epsilon, first, second)


FEATURE_THEOREMS = (
    fedfed_published,
    fedfed_3_4,
    fedfed_3_4_source,
    fedfed_d_2,
    fedfed_3_3,
    fedfed_d_1,
    fedfed_d_3,
)


Clipping = Literal["record", "aggregate", "none"]


@dataclass(frozen=True)
class MatchingRun:
    """The run as the matching theorems see it.

    noise_multiplier: sigma (None: no noise); steps: T per round; sampling_rate: q = |B| / n_c of
        the smallest class, in (0, 1]; noise_init: the synthetic set starts from noise; clipping:
        what is
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
            check_positive(self, "noise_multiplier")
        check_counts(self, "steps")
        check_probability(self, "sampling_rate")
        if self.clipping not in ("record", "aggregate", "none"):
            raise ValueError(f"clipping={self.clipping!r}: allowed are record, aggregate, none")

    @property
    def steps_times_q_squared(self) -> float:
        """T q**2."""
        return self.steps * self.sampling_rate**2


def _solve_forms(run: MatchingRun, logarithm: float) -> tuple[float, float]:
    """Both forms of the theorem, solved for epsilon; the second is infinite where T q**2 <= epsilon
    / 2 fails.

    log(1/delta) = ``logarithm``: sigma = sqrt(log(delta) / (T q**2 - epsilon)), or sqrt(2
    log(1/delta) / epsilon)."""
    noise = logarithm / float(run.noise_multiplier or math.nan) ** 2
    applies = run.steps_times_q_squared <= noise * (1 + 1e-12)
    return noise + run.steps_times_q_squared, 2 * noise if applies else math.inf


def _describe_forms(run: MatchingRun, first: float, second: float) -> str:
    if math.isinf(second):
        return (
            f"first form {first:.3g}; the second does not apply (T q^2 = "
            f"{run.steps_times_q_squared:.3g} > epsilon / 2)"
        )
    return (
        f"first form {first:.3g}, second form {second:.3g} (T q^2 = "
        f"{run.steps_times_q_squared:.3g} <= epsilon / 2)"
    )


def feddm_3_1(run: MatchingRun) -> Claim:
    """Xiong et al. 2023 (FedDM), Theorem 3.1 (Abadi et al. 2016): sigma >= c2 q sqrt(T
    log(1/delta)) / epsilon."""
    why = (
        "sigma >= c2 q sqrt(T log(1/delta)) / epsilon for epsilon < c1 q^2 T: the constants "
        "c1 and c2 are not given"
    )
    return _claim_in_words("Xiong 2023, Theorem 3.1", why, neighbours=FEDDM_NEIGHBOURS)


def feddm_3_2(run: MatchingRun) -> Claim:
    """Xiong et al. 2023 (FedDM), Theorem 3.2, per round.

    sigma >= sqrt(log(delta) / (T q**2 - epsilon)), or sigma >= sqrt(2 log(1/delta) / epsilon) if
    T q**2 <= epsilon / 2, solved for epsilon with the natural logarithm; the smaller is what is
    claimed."""
    return _theorem_claim("Xiong 2023, Theorem 3.2", run, FEDDM_NEIGHBOURS)


def fedrd_1(run: MatchingRun) -> Claim:
    """Zhang et al. (FedRD), Theorem 1, per round: FedDM's theorem, with the natural logarithm of
    its proof."""
    return _theorem_claim("FedRD, Theorem 1", run, FEDRD_NEIGHBOURS)


def fedrd_table_2(run: MatchingRun) -> Claim:
    """Zhang et al. (FedRD), Table II: the second form of Theorem 1, with the base-10 logarithm.

    Their epsilons 10, 1.11 and 0.4 for sigma 1, 3 and 5 are 2 log10(1/delta) / sigma**2; the
    natural logarithm gives 23.0, 2.56 and 0.92. Where the form's condition fails, the first form
    with the same logarithm."""
    source = "FedRD, Theorem 1 as in Table II"
    if run.noise_multiplier is None or run.clipping == "none":
        return Claim(source, math.inf, True, NO_NOISE)
    first, second = _solve_forms(run, math.log10(1 / run.delta))
    wrong = ["Table II takes log10, the proof ln"]
    if math.isinf(second):
        table = 2 * math.log10(1 / run.delta) / run.noise_multiplier**2
        wrong.append(
            f"T q^2 <= epsilon/2 fails (T q^2 = {run.steps_times_q_squared:.3g}), yet "
            f"Table II states {table:.3g}"
        )
    value = first if math.isinf(second) else second
    choices = (f"base-10 logarithm: {_describe_forms(run, first, second)}", *_describe_choices(run))
    return _claim_with_preconditions(source, run, value, wrong, choices, FEDRD_NEIGHBOURS)


def _theorem_claim(source: str, run: MatchingRun, neighbours: str) -> Claim:
    if run.noise_multiplier is None or run.clipping == "none":
        return Claim(source, math.inf, True, NO_NOISE)
    first, second = _solve_forms(run, math.log(1 / run.delta))
    epsilons = ", ".join(f"{2 * math.log(1 / DELTA) / sigma**2:.3g}" for sigma in (1, 3, 5))
    choices = (
        f'the theorem says "or", so the smaller counts: {_describe_forms(run, first, second)}',
        "the logarithm is natural, as in the moments bound that the theorem comes from",
        *_describe_choices(run),
        f"for the paper's own sigma = 1, 3, 5 at delta = {DELTA:g} the second form gives {epsilons}",
    )
    return _claim_with_preconditions(source, run, min(first, second), [], choices, neighbours)


def _describe_choices(run: MatchingRun) -> tuple[str, ...]:
    return (
        f"delta = {run.delta:g}, the paper's own",
        f"q = {run.sampling_rate:.3g}: the batch over the smallest class that a client of "
        "this run holds",
        "the theorem is per round; rounds are not composed",
    )


def _claim_with_preconditions(
    source: str,
    run: MatchingRun,
    value: float,
    wrong: list[str],
    choices: tuple[str, ...],
    neighbours: str,
) -> Claim:
    """The claim, with every precondition that this run does not meet."""
    if not run.noise_init:
        wrong.append("the synthetic set starts from real images, the theorem needs noise")
    if run.clipping == "aggregate":
        wrong.append(
            "the batch mean is clipped, not each record: one record may move it by up to "
            "2|B| times C/|B|"
        )
    if run.private_map:
        wrong.append("the embedding is trained on the same records without protection")
    if not run.poisson and run.sampling_rate < 1:
        wrong.append("batches are not Poisson samples")
    gaussian = dpa.GaussianDpEvent(float(run.noise_multiplier or math.nan))
    # with records clipped, as the proof assumes
    sampled = dpa.PoissonSampledDpEvent(run.sampling_rate, gaussian)
    ideal = accounted(dpa.SelfComposedDpEvent(sampled, run.steps), run.delta)
    if ideal > value:
        wrong.append(
            "even with records clipped and Poisson batches the accountant needs "
            f"{ideal:.4g} > {value:.4g}"
        )
    why = "per round; " + ("; ".join(wrong) or f"the accountant gives {ideal:.4g}")
    return Claim(source, value, not wrong, why, run.delta, choices, neighbours)


def matching_claims(
    theorems: Sequence[Callable[[MatchingRun], Claim]],
    plan: ClaimedRun,
    shards: Sequence[Shard],
    matching: Any,
    *,
    noise_init: bool,
    private_map: bool = False,
) -> list[Claim]:
    """The paper's theorems for a run whose matching gradients are noised (matching: its
    ``MatchingSettings``); none for others."""
    mechanism = plan.mechanisms.get(MATCHING_QUERY)
    if mechanism is None:
        return []
    by_record = mechanism.per_record
    counts = torch.cat([torch.bincount(shard.train.y, minlength=1) for shard in shards])
    if bool((counts > 0).any()):
        smallest = int(counts[counts > 0].min())
    else:
        smallest = 1
    if by_record:
        rate = mechanism.sampling_probability
    else:
        rate = min(1.0, matching.batch / smallest)
    run = MatchingRun(
        float(mechanism.noise_multiplier),
        max(matching.iterations, 1),
        float(rate),
        DELTA,
        noise_init,
        clipping="record" if by_record else "aggregate",
        poisson=by_record,
        private_map=private_map,
    )
    return [theorem(run) for theorem in theorems]


def feddm_membership() -> Claim:
    """Xiong et al. 2023 (FedDM), section 2: Dong et al. on membership inference, as "a
    complementary perspective"."""
    why = (
        "points to Dong et al. 2022, where distillation itself hampers membership inference; "
        "no attack is run"
    )
    return _claim_in_words("Xiong 2023, section 2", why, *MEMBERSHIP_ATTACKS)


def fedrd_not_real(*, real_start: bool) -> Claim:
    """Zhang et al. (FedRD), section IV-B: "the synthetic representations are not real instances of
    the local dataset"."""
    why = (
        '"the synthetic representations are not real instances of the local dataset": no '
        "theorem, no attack is run"
    )
    if real_start:
        here = "; here they start from representations of real records (start=real)"
    else:
        here = ""
    return _claim_in_words("FedRD, section IV-B", why + here, "copy_detection", "feature_inversion")


def fedrd_secret_projection(*, frozen: bool) -> Claim:
    """Zhang et al. (FedRD), section IV-B: attackers "cannot infer" records "as the local projection
    model is kept local"."""
    why = (
        'attackers "cannot infer from the representations" the records, as the projection is '
        "kept local: no theorem"
    )
    if frozen:
        here = "; in this run the projection is public"
    else:
        here = ""
    return _claim_in_words("FedRD, section IV-B (projection)", why + here, "feature_inversion")


def fedlgd_no_extra_leakage(*, statistics: bool) -> Claim:
    """Huang et al. (FedLGD), "Privacy": global virtual data come from shared gradients, "no extra
    privacy leakage"."""
    why = (
        '"uses pre-existing information, i.e., shared averaged gradients and global model '
        '[...] no extra privacy leakage"'
    )
    here = (
        ": the server's computations on updates reveal no more than the updates, and those "
        "have no bound"
    )
    if statistics:
        here = (
            ": false here, the server's images start from statistics of the clients' "
            "classes, which are sent too"
        )
    attacks = ("gradient_density", *MEMBERSHIP_ATTACKS)
    return _claim_in_words("FedLGD, section on privacy", why + here, *attacks, sound=not statistics)


def fedlgd_attacks() -> Claim:
    """Huang et al. (FedLGD): virtual data "potentially defend" against membership inference and
    gradient inversion."""
    why = (
        '"can potentially defend both attacks" (membership inference, gradient inversion): '
        "shown by examples, no theorem"
    )
    attacks = ("gradient_inversion", "gradient_density", *MEMBERSHIP_ATTACKS)
    return _claim_in_words("FedLGD, section on privacy (attacks)", why, *attacks)
