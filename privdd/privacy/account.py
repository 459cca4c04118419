"""Epsilon of a training that is described by its numbers: noise, steps, sampling, delta.

A described training is a list of ``NoisedSteps``: each step sums clipped contributions (of records
or of clients), adds Gaussian noise of standard deviation ``noise_multiplier`` times the clipping
norm, and releases the sum. No code is run and no data are read, so the answer holds only if the
training does what the numbers say; ``privdd.check`` and an audit test that.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import dp_accounting as dpa
import numpy as np
from dp_accounting.pld import privacy_loss_distribution as pld
from dp_accounting.pld.common import DifferentialPrivacyParameters
from dp_accounting.rdp import RdpAccountant
from scipy.optimize import brentq

from privdd.core.units import Relation
from privdd.core.validation import BadConfig, setting_error
from privdd.privacy.accounting import (
    FINEST,
    NEIGHBOURS,
    POINTS,
    check_delta,
    check_relation,
    check_work,
    composed_loss,
    epsilon_of,
    smallest_bound,
)
from privdd.privacy.batch_bounds import bound_batch_epsilon
from privdd.privacy.calibration import calibrate
from privdd.privacy.events import Tally, UnsupportedEvent, tally_events
from privdd.privacy.reconstruction import naming_bound_of_claim, naming_bounds, power_at_levels

Sampling = Literal["full", "poisson", "shuffled", "balls_in_bins", "fixed_size"]
Unit = Literal["record", "client"]
CANDIDATES = (2, 10, 100)  # among which a record is identified
FALSE_POSITIVE_RATES = (0.001, 0.01, 0.1)
MOST_STEPS = 2**30
ATTAINED_ERROR = 0.01  # share of a proven epsilon that the bound below it may lose by rounding
FINEST_CELL = 2e-5  # of the discretised loss, for the bound below
COARSEST_CELL = 1e-3
LARGEST_MU = 1e6  # beyond, epsilon of a Gaussian is not finite in floats
EXACT = "exact for Gaussian noise on full batches (Balle and Wang 2018, Theorem 8)"
POISSON = "privacy loss distribution of Poisson-sampled Gaussian noise"
BY_EPOCH = (
    "no amplification is proven for {sampling} batches: a record is in one batch of each epoch, so "
    "each epoch costs one full batch (joint convexity)"
)
NO_AMPLIFICATION = (
    "no amplification is counted for batches of a fixed size: each step costs a full "
    "batch whose sum "
    "changes by {change} (coupled batches, joint convexity)"
)
ALLOCATION = (
    "privacy loss distribution of random allocation (Feldman and Shenfeld 2025), by PLD_accounting"
)
STATED = "optimal composition of (epsilon, delta) (Kairouz, Oh and Viswanath 2015, Theorem 3.3)"
WITHOUT_REPLACEMENT = "RDP of sampling without replacement (Wang, Balle and Kasiviswanathan 2019)"


@dataclass(frozen=True)
class NoisedSteps:
    """One line of a described training.

    Attributes:
        noise_multiplier: noise standard deviation over the clipping norm, above 0; None if it is
            to be found, or if ``release_epsilon`` is given.
        steps: steps of one round, from 1; None if ``epochs`` gives them.
        epochs: passes over the records in one round; needs ``batch`` and ``records``, or
            ``sampling_probability``.
        rounds: how often the line is repeated, from 1.
        records: records (or clients) that take part; batch: how many of them a step takes on
            average.
        sampling_probability: chance of one record to be in one step, in (0, 1].
        sampling: how batches are formed; None: ``poisson`` if a probability below 1 is given, else
            ``full``.
        disjoint: each record takes part in one round only, chosen without looking at the data.
        release_epsilon, release_delta: a release that is stated as (epsilon, delta), whatever its
            noise.
    """

    noise_multiplier: float | None = None
    steps: int | None = None
    epochs: int | None = None
    rounds: int = 1
    records: int | None = None
    batch: int | None = None
    sampling_probability: float | None = None
    sampling: Sampling | None = None
    disjoint: bool = False
    release_epsilon: float | None = None
    release_delta: float = 0.0

    def __post_init__(self) -> None:
        self._check_positive("noise_multiplier", "release_epsilon")
        for name in ("steps", "epochs", "rounds", "records", "batch"):
            value = getattr(self, name)
            if value is not None and not 1 <= value <= MOST_STEPS:
                raise setting_error(name, value, f"must be a whole number from 1 to {MOST_STEPS}")
        q = self.sampling_probability
        if q is not None and not 0 < q <= 1:
            raise setting_error("sampling_probability", q, "must be a number in (0, 1]")
        if not 0 <= self.release_delta < 1:
            raise setting_error("release_delta", self.release_delta, "must be a number in [0, 1)")
        if self.sampling is not None and self.sampling not in get_args(Sampling):
            allowed = ", ".join(get_args(Sampling))
            raise BadConfig(f"sampling={self.sampling}: allowed are {allowed}")
        self._check_combination()

    def _check_positive(self, *names: str) -> None:
        for name in names:
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise setting_error(name, value, "must be a finite number above 0")

    def _check_combination(self) -> None:
        if self.release_epsilon is not None and self.noise_multiplier is not None:
            raise BadConfig("release_epsilon and noise_multiplier exclude each other in one line")
        if (self.batch is None) != (self.records is None) and self.sampling_probability is None:
            raise BadConfig("batch and records must be given together (or sampling_probability)")
        if self.batch is not None and self.records is not None and self.batch > self.records:
            raise setting_error("batch", self.batch, f"must be at most records={self.records}")
        if self.batch is not None and self.sampling_probability is not None:
            raise BadConfig(
                "batch and sampling_probability exclude each other: one gives the other"
            )
        if self.steps is not None and self.epochs is not None:
            raise BadConfig("steps and epochs exclude each other: one gives the other")
        if self.epochs is not None and self.batch is None and self.sampling_probability is None:
            raise BadConfig("epochs must come with batch and records, or with sampling_probability")
        if self.sampling == "full" and self.probability < 1:
            raise BadConfig("sampling=full: batches of a part of the records are given as well")
        if self.kind != "full" and self.probability == 1 and self.sampling != "poisson":
            raise BadConfig(
                f"sampling={self.sampling}: batch and records (or sampling_probability) "
                "must be given"
            )

    @property
    def probability(self) -> float:
        """Chance of one record to be in one step."""
        if self.sampling_probability is not None:
            return self.sampling_probability
        if self.batch is None or self.records is None:
            return 1.0
        return self.batch / self.records

    @property
    def kind(self) -> Sampling:
        """How batches are formed, with the default filled in."""
        if self.sampling is not None:
            return self.sampling
        return "full" if self.probability == 1 else "poisson"

    @property
    def batches(self) -> int:
        """Batches of one epoch."""
        if self.batch is not None and self.records is not None:
            return math.ceil(self.records / self.batch)
        return max(1, round(1 / self.probability))

    @property
    def steps_of_round(self) -> int:
        """Steps of one round."""
        if self.steps is not None:
            return self.steps
        return (self.epochs or 1) * (self.batches if self.epochs else 1)

    @property
    def epochs_of_round(self) -> int:
        """Passes over the records in one round, rounded up."""
        return self.epochs or math.ceil(self.steps_of_round / self.batches)

    @property
    def counted_rounds(self) -> int:
        """Rounds in which one record can take part."""
        return 1 if self.disjoint else self.rounds


@dataclass(frozen=True)
class Account:
    """What a described training costs.

    Attributes:
        training: its lines, the noise filled in.
        delta, relation, unit: beside which every epsilon stands.
        epsilon: the smallest proven epsilon; infinite if no proof is known here.
        epsilon_pld, epsilon_rdp: by privacy loss distributions, by Renyi divergences; None if that
            accountant has no bound.
        epsilon_attained: some pair of neighbours has at least this epsilon; 0 if none is known.
        proof: the bound's name, or why there is none.
        mu: of the Gaussian mechanism that has this epsilon at delta; exact if all noise is Gaussian
            on full batches (Dong, Roth and Su 2022).
        identified: (k, largest chance to identify the record among k candidates).
        detected: (FPR, largest TPR of any membership attack).
        notes: what the numbers take for granted, one sentence each.
    """

    training: tuple[NoisedSteps, ...]
    delta: float
    relation: Relation
    unit: Unit
    epsilon: float
    epsilon_pld: float | None
    epsilon_rdp: float | None
    epsilon_attained: float
    proof: str
    mu: float
    identified: tuple[tuple[int, float], ...]
    detected: tuple[tuple[float, float], ...]
    notes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Fields of JSON types; infinity as null."""

        def finite(value: float | None) -> float | None:
            if value is not None and math.isfinite(value):
                return value
            return None

        return {
            "epsilon": finite(self.epsilon),
            "epsilon_pld": finite(self.epsilon_pld),
            "epsilon_rdp": finite(self.epsilon_rdp),
            "epsilon_attained": finite(self.epsilon_attained),
            "delta": self.delta,
            "relation": self.relation,
            "unit": self.unit,
            "proof": self.proof,
            "mu": finite(self.mu),
            "identified": [{"candidates": k, "at_most": bound} for k, bound in self.identified],
            "detected": [{"fpr": fpr, "tpr_at_most": bound} for fpr, bound in self.detected],
            "noise_multiplier": [line.noise_multiplier for line in self.training],
            "notes": list(self.notes),
        }


def account(
    *training: NoisedSteps,
    delta: float,
    relation: Relation = "add_remove",
    unit: Unit = "record",
    epsilon: float | None = None,
) -> Account:
    """The cost of a described training, or the noise for a cost.

    Args:
        training: one or more lines, all on the same data.
        delta: in (0, 1).
        relation: how neighbouring data sets differ: add_remove, zero_out or replace.
        unit: whose contribution is clipped, and so protected: a record's or a client's.
        epsilon: if given, the noise multiplier of the one line without it is found so that the
            whole training costs just below ``epsilon``.

    Returns:
        The account; its first field has the noise filled in.

    Raises:
        BadConfig: one line, for numbers that describe no training.

    >>> answer = account(NoisedSteps(noise_multiplier=1.6, steps=20), delta=1e-5)
    >>> round(answer.epsilon, 1)
    15.2
    """
    _check_request(training, delta, relation, unit)
    if epsilon is None:
        lines = training
    else:
        lines = _find_noise(training, epsilon, delta, relation)
    for line in lines:
        if line.noise_multiplier is None and line.release_epsilon is None:
            raise BadConfig("noise_multiplier must be given (or epsilon, for which it is found)")
    return _count_cost(lines, delta, relation, unit)


def _check_request(
    training: Sequence[NoisedSteps], delta: float, relation: Relation, unit: Unit
) -> None:
    if not training:
        raise BadConfig("at least one line of steps must be given")
    try:
        check_delta(delta)
        check_relation(relation)
    except ValueError as error:
        raise BadConfig(str(error)) from None
    if unit not in get_args(Unit):
        raise BadConfig(f"unit={unit}: allowed are {', '.join(get_args(Unit))}")


def _find_noise(
    training: Sequence[NoisedSteps], epsilon: float, delta: float, relation: Relation
) -> tuple[NoisedSteps, ...]:
    """The lines, with the noise multiplier of the one that lacks it."""
    open_lines = [i for i, line in enumerate(training) if line.noise_multiplier is None]
    if any(line.release_epsilon is not None for line in training):
        raise BadConfig("epsilon: noise is found only for lines of noised steps")
    if len(open_lines) != 1:
        raise BadConfig("epsilon: exactly one line must lack noise_multiplier")
    index = open_lines[0]

    def lines_with(noise_multiplier: float) -> tuple[NoisedSteps, ...]:
        filled = list(training)
        filled[index] = replace(training[index], noise_multiplier=noise_multiplier)
        return tuple(filled)

    def event_with(noise_multiplier: float) -> dpa.DpEvent:
        events = [dominating_event(line, relation) for line in lines_with(noise_multiplier)]
        return dpa.ComposedDpEvent(events)

    try:
        return lines_with(calibrate(event_with, epsilon, delta, relation=relation))
    except ValueError as error:
        raise BadConfig(f"epsilon={epsilon}: {error}") from None


def dominating_event(line: NoisedSteps, relation: Relation) -> dpa.DpEvent:
    """An event that costs at least as much as the line, for noised steps.

    Full batches and Poisson batches are their own events. A record is in one batch of each epoch of
    shuffled or balls-in-bins batches: given all batches, its releases are Gaussian with a shift of
    1 in one step of each epoch, and divergences are jointly convex. A batch of fixed size that
    gains a record loses another, so that its sum changes by 2 (under zero_out by 1).

    Raises:
        BadConfig: for shuffled batches under add_remove, where a record more moves all others.
    """
    if line.noise_multiplier is None:
        raise BadConfig("a line of noised steps needs noise_multiplier")
    noise = dpa.GaussianDpEvent(line.noise_multiplier)
    steps = line.steps_of_round * line.counted_rounds
    if line.kind == "full":
        return dpa.SelfComposedDpEvent(noise, steps)
    if line.kind == "poisson":
        sampled = dpa.PoissonSampledDpEvent(line.probability, noise)
        return dpa.SelfComposedDpEvent(sampled, steps)
    if line.kind == "fixed_size":
        # Under replace the accounting doubles by itself, and a changed record changes the sum by 2.
        change = 2.0 if relation == "add_remove" else 1.0
        return dpa.SelfComposedDpEvent(dpa.GaussianDpEvent(line.noise_multiplier / change), steps)
    if line.kind == "shuffled" and relation == "add_remove":
        raise UnsupportedEvent(
            "no proven epsilon for shuffled batches under add_remove: one record more "
            "moves the others "
            "to other batches; relation=zero_out has a bound"
        )
    return dpa.SelfComposedDpEvent(noise, line.epochs_of_round * line.counted_rounds)


def _count_cost(
    lines: tuple[NoisedSteps, ...], delta: float, relation: Relation, unit: Unit
) -> Account:
    notes = tuple(_describe_conditions(lines, delta, relation, unit))
    try:
        sums = [line for line in lines if line.release_epsilon is None]
        total = tally_events([(dominating_event(line, relation), 1) for line in sums])
        check_work([total])
    except UnsupportedEvent as error:
        return _unproven_account(lines, delta, relation, unit, str(error), notes)
    stated = [line for line in lines if line.release_epsilon is not None]
    if stated:
        loss = _stated_loss(total, stated, relation)
        epsilon_pld = float(loss.get_epsilon_for_delta(delta))
        epsilon_rdp = None
        attained = 0.0
        bounds = power_at_levels(loss, _levels())
    else:
        epsilon_pld = epsilon_of(total, delta, relation=relation, accountant="pld")
        epsilon_rdp = _rdp_epsilon(total, lines, delta, relation)
        attained = _attained_epsilon(total, lines, delta, relation, epsilon_pld)
        bounds = naming_bounds(total, _levels(), relation=relation, delta=delta)
    proof = "; ".join(dict.fromkeys(_name_proof(line, relation) for line in lines))
    by_allocation = _tighter_batch_bound(lines, delta, relation)
    if by_allocation < epsilon_pld:
        epsilon_pld = by_allocation
        proof = ALLOCATION
    best = smallest_bound(
        {"pld": epsilon_pld, "rdp": math.inf if epsilon_rdp is None else epsilon_rdp}
    )
    capped = [
        min(bound, naming_bound_of_claim(best, delta, level))
        for level, bound in zip(_levels(), bounds)
    ]
    return Account(
        training=lines,
        delta=delta,
        relation=relation,
        unit=unit,
        epsilon=best,
        epsilon_pld=epsilon_pld,
        epsilon_rdp=epsilon_rdp,
        epsilon_attained=min(attained, best),
        proof=proof,
        mu=equivalent_mu(best, delta),
        identified=tuple(zip(CANDIDATES, capped[: len(CANDIDATES)])),
        detected=tuple(zip(FALSE_POSITIVE_RATES, capped[len(CANDIDATES) :])),
        notes=notes,
    )


def _levels() -> list[float]:
    """Levels of a test: 1/k for a guess among k candidates, then false-positive rates."""
    return [*(1 / k for k in CANDIDATES), *FALSE_POSITIVE_RATES]


def _unproven_account(
    lines: tuple[NoisedSteps, ...],
    delta: float,
    relation: Relation,
    unit: Unit,
    reason: str,
    notes: tuple[str, ...],
) -> Account:
    return Account(
        training=lines,
        delta=delta,
        relation=relation,
        unit=unit,
        epsilon=math.inf,
        epsilon_pld=None,
        epsilon_rdp=None,
        epsilon_attained=0.0,
        proof=reason,
        mu=math.inf,
        identified=tuple((k, 1.0) for k in CANDIDATES),
        detected=tuple((fpr, 1.0) for fpr in FALSE_POSITIVE_RATES),
        notes=notes,
    )


def _stated_loss(
    total: Tally, stated: Sequence[NoisedSteps], relation: Relation
) -> pld.PrivacyLossDistribution:
    """The loss of noised sums and of releases that are stated as (epsilon, delta).

    The worst mechanism of (epsilon, delta) has loss infinity with chance delta, else epsilon or
    -epsilon with odds exp(epsilon): it dominates all others, so that its convolution is the optimal
    composition (Kairouz, Oh and Viswanath 2015, Theorem 3.3). Their Theorem 3.4 is a looser closed
    form.
    """
    largest = max(line.release_epsilon or 0.0 for line in stated)
    interval = max(FINEST, largest * sum(map(_count_releases, stated)) / POINTS)
    loss = composed_loss(total, relation, interval)
    for line in stated:
        parameters = DifferentialPrivacyParameters(line.release_epsilon or 0.0, line.release_delta)
        release = pld.from_privacy_parameters(parameters, value_discretization_interval=interval)
        loss = loss.compose(release.self_compose(_count_releases(line)))
    return loss


def _count_releases(line: NoisedSteps) -> int:
    return line.steps_of_round * line.counted_rounds


def _rdp_epsilon(
    total: Tally, lines: Sequence[NoisedSteps], delta: float, relation: Relation
) -> float | None:
    """By Renyi divergences; batches of fixed size under replace have a bound of their own there:
    sampling without replacement (Wang, Balle and Kasiviswanathan 2019, Theorem 9)."""
    if relation == "replace" and all(line.kind == "fixed_size" for line in lines):
        accountant = RdpAccountant(neighboring_relation=NEIGHBOURS["replace"])
        for line in lines:
            if line.records is None or line.batch is None:
                return epsilon_of(total, delta, relation=relation, accountant="rdp")
            noise = dpa.GaussianDpEvent(0.5 * (line.noise_multiplier or 0.0))
            step = dpa.SampledWithoutReplacementDpEvent(line.records, line.batch, noise)
            accountant.compose(step, _count_releases(line))
        return float(accountant.get_epsilon(delta))
    try:
        return epsilon_of(total, delta, relation=relation, accountant="rdp")
    except UnsupportedEvent:
        return None


def _tighter_batch_bound(lines: Sequence[NoisedSteps], delta: float, relation: Relation) -> float:
    """Of one line of balls-in-bins or shuffled batches, if a library has a tighter bound; else
    infinity."""
    line = lines[0]
    if len(lines) != 1 or line.kind not in ("shuffled", "balls_in_bins") or relation == "replace":
        return math.inf
    return _batch_bounds(line, delta)[1]


def _batch_bounds(line: NoisedSteps, delta: float) -> tuple[float, float]:
    return bound_batch_epsilon(
        line.noise_multiplier or 0.0,
        delta,
        batches=line.batches,
        epochs=line.epochs_of_round * line.counted_rounds,
        sampling=line.kind,  # type: ignore[arg-type]
    )


def _attained_epsilon(
    total: Tally, lines: Sequence[NoisedSteps], delta: float, relation: Relation, proven: float
) -> float:
    """An epsilon that some pair of neighbours reaches, rounded downwards; 0 if none is known.

    Full and Poisson batches: the pair "the record adds the clipping norm, all others add nothing"
    has this very privacy loss, here discretised optimistically.
    """
    kinds = {line.kind for line in lines}
    if kinds == {"full"}:
        return proven
    if kinds <= {"full", "poisson"} and relation != "replace":
        return _optimistic_epsilon(total, delta, relation, proven)
    if len(lines) == 1 and kinds <= {"shuffled", "balls_in_bins"} and relation != "replace":
        return _batch_bounds(lines[0], delta)[0]
    return 0.0


def _optimistic_epsilon(total: Tally, delta: float, relation: Relation, proven: float) -> float:
    """Epsilon of the same convolved losses as ``accounting.composed_loss``, rounded downwards."""
    # Rounding each of n losses down by up to one cell lowers epsilon by up to n cells.
    steps = sum(n for _, n in total.poisson) + 1
    interval = min(max(ATTAINED_ERROR * proven / steps, FINEST_CELL), COARSEST_CELL)
    parts: list[tuple[float, float, int]] = [(q, z, n) for (q, z), n in total.poisson]
    if total.squared_mu:
        parts.append((1.0, 1 / math.sqrt(total.squared_mu), 1))
    losses = []
    for q, z, n in parts:
        step = pld.from_gaussian_mechanism(
            z,
            pessimistic_estimate=False,
            sampling_prob=q,
            neighboring_relation=NEIGHBOURS[relation],
            value_discretization_interval=interval,
            use_connect_dots=False,
        )
        losses.append(step.self_compose(n))
    loss = losses[0]
    for other_loss in losses[1:]:
        loss = loss.compose(other_loss)
    return max(0.0, float(loss.get_epsilon_for_delta(delta)))


def equivalent_mu(epsilon: float, delta: float) -> float:
    """mu of the Gaussian mechanism whose epsilon at ``delta`` is ``epsilon``; infinite for
    infinity.

    The root mu of delta = Phi(mu/2 - epsilon/mu) - exp(epsilon) Phi(-mu/2 - epsilon/mu) (Balle and
    Wang 2018, Theorem 8; Dong, Roth and Su 2022, Corollary 2.13).
    """
    if math.isinf(epsilon):
        return math.inf
    if epsilon <= 0:
        return 0.0

    def excess(log_mu: float) -> float:
        with np.errstate(
            divide="ignore"
        ):  # the library takes a logarithm of zero for a tiny epsilon
            return float(dpa.get_epsilon_gaussian(math.exp(-log_mu), delta)) - epsilon

    smallest = math.log(1e-8)
    if excess(smallest) >= 0:
        return 0.0
    return math.exp(brentq(excess, smallest, math.log(LARGEST_MU), xtol=1e-9))


def _name_proof(line: NoisedSteps, relation: Relation) -> str:
    if line.release_epsilon is not None:
        return STATED
    if line.kind == "full":
        return EXACT
    if line.kind == "poisson":
        return POISSON
    if line.kind == "fixed_size":
        if relation == "replace" and line.records is not None and line.batch is not None:
            return WITHOUT_REPLACEMENT
        return NO_AMPLIFICATION.format(change="1" if relation == "zero_out" else "2")
    return BY_EPOCH.format(sampling=line.kind.replace("_", "-"))


def _describe_conditions(
    lines: Sequence[NoisedSteps], delta: float, relation: Relation, unit: Unit
) -> list[str]:
    """What the numbers take for granted, and what is often counted wrongly."""
    notes = []
    if any(line.sampling is None and line.kind == "poisson" for line in lines):
        notes.append(
            "Poisson sampling is assumed: each record is drawn by itself in each step. "
            "A loader that shuffles is sampling=shuffled."
        )
    for line in lines:
        if line.release_epsilon is None and line.noise_multiplier is not None:
            notes += _describe_counting(line, delta, relation)
    if any(line.disjoint for line in lines):
        notes.append(
            "disjoint=true: a record's data are read in one round only, and the round does not "
            "depend on any data (parallel composition)."
        )
    sizes = [line.records for line in lines if line.records is not None]
    if sizes and delta >= 1 / max(sizes):
        notes.append(
            f"delta is not below 1/{max(sizes)}: a mechanism that publishes one random "
            f"{unit} whole would be allowed."
        )
    return notes


def _describe_counting(line: NoisedSteps, delta: float, relation: Relation) -> list[str]:
    """Epsilon of one round, and of one step an epoch: numbers that are often printed as the
    total."""
    notes = []
    if line.rounds > 1 and not line.disjoint:
        once = _describe_epsilons(replace(line, rounds=1), delta, relation)
        notes.append(
            f"One round alone costs {once}; {line.rounds} rounds on the same data compose "
            "to the total."
        )
    if line.epochs is not None and line.batches > 1 and line.kind in ("full", "poisson"):
        miscounted = _describe_epsilons(
            replace(line, epochs=None, steps=line.epochs), delta, relation
        )
        steps = line.steps_of_round * line.counted_rounds
        notes.append(
            f"{steps:,} steps are counted ({line.counted_rounds} rounds, {line.epochs} epochs, "
            f"{line.batches} batches). One step an epoch would give {miscounted}, which "
            "is too small."
        )
    if line.disjoint and line.rounds > 1:
        joint = _describe_epsilons(replace(line, disjoint=False), delta, relation)
        notes.append(f"On the same data, {line.rounds} rounds would cost {joint}.")
    return notes


def _describe_epsilons(line: NoisedSteps, delta: float, relation: Relation) -> str:
    total = tally_events([(dominating_event(line, relation), 1)])
    by_pld = epsilon_of(total, delta, relation=relation, accountant="pld")
    try:
        by_rdp = epsilon_of(total, delta, relation=relation, accountant="rdp")
    except UnsupportedEvent:
        return f"{by_pld:.4g}"
    return f"{by_pld:.4g} (RDP {by_rdp:.4g})"
