"""The certificate of a whole run: close to what is accounted where the code is right, above it
where it is not."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import dp_accounting as dpa
import numpy as np
import pytest
import torch

from attacks.certificates import TiltedDraws
from attacks.types import Finding
from privdd.auditing.dp_tests.prescribed_noise import (
    EmptyRelease,
    NoiseNotPrescribed,
    PrescribedNoise,
    PrescribedRelease,
    release_prescribed,
)
from privdd.auditing.dp_tests.run_certificate import certificate_findings, strongest_guest
from privdd.auditing.dp_tests.run_replay import ClientRunReplay, WholeRunReplay
from privdd.auditing.dp_tests.run_script import stated_mu
from privdd.auditing.dp_tests.statement import GuaranteeSubject
from privdd.core.types import Tensors
from privdd.privacy.ledger import Ledger
from privdd.privacy.mechanism import Mechanism, Output
from privdd.privacy.mechanisms import ClientLevel, ClippedSum, FeatureNoise
from tests.auditing.dp_tests.subjects import Loose, Quiet, fedavg, feddm, subject
from tests.auditing.dp_tests.test_mechanism_audits import of_client

SMALL = 0.02  # a clip norm below what any record contributes


def certificate(of: GuaranteeSubject) -> Finding:
    (found,) = certificate_findings(of)
    return found


def ratio(of: GuaranteeSubject) -> float:
    """Certified over accounted."""
    measures = certificate(of).measures.to_row()
    assert measures["epsilon_stated"] == pytest.approx(of.ledger.epsilon(), rel=1e-6)
    return float(measures["epsilon_shown"]) / float(measures["epsilon_stated"])


def reads(kind: type[ClippedSum] = ClippedSum, z: float = 2.0, **more: Any) -> GuaranteeSubject:
    return subject(feddm(), {"embedding": kind(z, SMALL, 1.0, 20.0)}, **more)


def steps(kind: type[ClippedSum] = ClippedSum) -> GuaranteeSubject:
    return subject(fedavg(), {"dpsgd": kind(1.0, SMALL, 0.2, 20.0)})


def test_noised_reads_and_counts_are_certified_near_what_is_accounted() -> None:
    of = subject(
        feddm(),
        {"embedding": ClippedSum(2.0, SMALL, 1.0, 20.0), "class_counts": ClippedSum(4.0, 1.0)},
    )
    found = certificate(of)
    told = found.diagnostics["certificate"]
    assert 0.97 <= float(found.measures.epsilon_shown) / of.ledger.epsilon() <= 1.001
    assert (
        told["kappa"]["min"] == pytest.approx(1.0, abs=1e-3)
        and told["runs"] == found.measures.n >= 60
    )
    assert "4 releases" in found.measures.note  # three reads and a count


def test_sampled_steps_are_certified_near_what_is_accounted() -> None:
    assert 0.93 <= ratio(steps()) <= 1.001


def test_updates_of_whole_clients_are_certified_near_what_is_accounted() -> None:
    assert 0.97 <= ratio(of_client(ClientLevel(1.0, SMALL), rounds=3)) <= 1.001


@dataclass(frozen=True)
class Unclipped(ClippedSum):
    """A mutant that forgets to clip."""

    def __call__(self, value: Any, noise: Any) -> Output:
        honest = super().__call__(value, noise)
        exact = {n: t.sum(0) / self.normaliser for n, t in value.items()}
        drawn = {n: honest.value[n] - t for n, t in (honest.exact or {}).items()}
        return replace(honest, exact=exact, value={n: t + drawn[n] for n, t in exact.items()})


@dataclass(frozen=True)
class Silent(ClippedSum):
    """A mutant that adds no noise."""

    def __call__(self, value: Any, noise: Any) -> Output:
        honest = super().__call__(value, noise)
        return replace(honest, value=dict(honest.exact or {}))


@dataclass(frozen=True)
class Doubled(ClippedSum):
    """A mutant whose event was worked out for half of its sensitivity."""

    @property
    def event(self) -> dpa.DpEvent:
        return ClippedSum(
            2 * self.noise_multiplier, self.clip_norm, self.sampling_probability
        ).event


@pytest.mark.nightly(but=["reads-Quiet", "steps-Silent"])
@pytest.mark.parametrize("kind", [Quiet, Loose, Unclipped, Silent, Doubled])
@pytest.mark.parametrize("asked", [reads, steps], ids=["reads", "steps"])
def test_a_faulty_mechanism_is_certified_above_what_it_states(
    kind: type[ClippedSum], asked: Any
) -> None:
    found = ratio(asked(kind))
    assert found > 1.2
    assert (found == math.inf) == (kind is Silent)


def test_a_ledger_that_counts_too_few_releases_is_contradicted() -> None:
    of = reads()
    short = Ledger("add_remove", "record", of.delta)
    short.append([replace(row, count=1) for row in of.ledger.releases], absolute=True)
    assert ratio(replace(of, ledger=short)) > 1.3


@dataclass(frozen=True)
class OwnNoise(ClippedSum):
    """Its noise is its own, not of ``noise``."""

    def __call__(self, value: Any, noise: Any) -> Output:
        honest = super().__call__(value, noise)
        drawn = np.random.default_rng()
        made = {
            n: t + self.noise_std * drawn.standard_normal(t.shape)
            for n, t in (honest.exact or {}).items()
        }
        return replace(honest, value=made)


@dataclass(frozen=True)
class Counting(ClippedSum):
    """It shows how many records took part, as it may where that count is public."""

    def __call__(self, value: Any, noise: Any) -> Output:
        honest = super().__call__(value, noise)
        count = len(next(iter(value.values())))
        return replace(honest, value={n: t + 100.0 * count for n, t in honest.value.items()})


@pytest.mark.nightly
@pytest.mark.filterwarnings("ignore:epsilon is reported as infinite")
def test_where_records_are_exchanged_the_count_is_public_and_the_pair_a_real_one() -> None:
    """Presence against absence would see the count; a record against its opposite must not."""
    assert ratio(reads(Counting)) > 5
    assert 0.2 < ratio(reads(Counting, relation="replace")) <= 1.001
    assert 0.2 < ratio(reads(relation="replace")) <= 1.001
    assert ratio(reads(Silent, relation="replace")) == math.inf


@pytest.mark.nightly(but=["Silent"])
@pytest.mark.filterwarnings("ignore:epsilon is reported as infinite")
@pytest.mark.parametrize("kind", [ClippedSum, Quiet, Loose, Silent])
def test_a_sampled_record_that_is_exchanged_for_another_is_tested(kind: type[ClippedSum]) -> None:
    """Its opposite joins by the same coins, and does not undo all that it does: less is shown than
    where it is absent."""
    found = ratio(subject(fedavg(), {"dpsgd": kind(1.0, SMALL, 0.2, 20.0)}, relation="replace"))
    assert 0.2 < found <= 1.001 if kind is ClippedSum else found > 1


def test_the_loss_of_a_sampled_exchange_is_that_of_two_mixtures() -> None:
    """Against densities written out: the record moves the release by (1, 0), the other one by
    (-0.6, 0.8), each with q 0.3."""
    mechanism = ClippedSum(1.0, 1.0, 0.3)
    one = torch.tensor([[1.0, 0.0]])
    other = torch.tensor([[-0.6, 0.8]])
    for taken in ({"x": one}, None):
        alone = [{"x": one}]
        blank = EmptyRelease.from_mechanism(mechanism, {"x": one[:0]})
        given = alone[0] if taken else None
        made = release_prescribed(
            mechanism,
            blank,
            alone,
            given,
            np.array([0.7]),
            torch.Generator(),
            {"x": one[:0]},
            [{"x": other}],
        )
        inside, outside = (
            0.7 * _density(made, torch.zeros(2)) + 0.3 * _density(made, row[0])
            for row in (one, other)
        )
        assert made.losses[0] == pytest.approx(math.log(inside / outside), abs=2e-3)


def _density(made: PrescribedRelease, mean: torch.Tensor) -> float:
    return math.exp(-float((made.output.value["x"].double() - mean).square().sum()) / 2)


def test_runs_in_lockstep_are_the_runs_that_are_played_one_by_one() -> None:
    of = steps()
    run = WholeRunReplay(of, strongest_guest(of))
    coins = np.array([[True, False, True], [False, True, True], [False, False, False]])
    draws = TiltedDraws(
        coins, np.random.default_rng(0).standard_normal((3, 3)), np.zeros(3), np.zeros(3), 0.0
    )

    def fresh():
        return [run.new_script(torch.Generator().manual_seed(at), draws, at) for at in range(3)]

    together = fresh()
    single = fresh()
    run.play_in_lockstep(together)
    for script in single:
        run.play_run(script)
    assert np.array(together[0].steps).shape == (1, 3, 3)
    for one, other in zip(together, single):
        assert one.losses == pytest.approx(other.losses, abs=1e-3)
        assert np.array(one.steps) == pytest.approx(np.array(other.steps), abs=1e-4)


def test_noise_that_cannot_be_dealt_is_said_and_not_passed_over() -> None:
    found = certificate(reads(OwnNoise))
    assert found.measures.epsilon_shown is None and "was not tested" in found.measures.note


def test_two_runs_of_one_seed_say_the_same_and_of_two_seeds_do_not() -> None:
    first, again, other = (
        certificate(reads(seed=seed)).measures.epsilon_shown for seed in (0, 0, 1)
    )
    assert first == again != other


def dealt(
    mechanism: Mechanism, nobody: Tensors, alone: list[Tensors], taken: Tensors, noise: list[float]
) -> PrescribedRelease:
    blank = EmptyRelease.from_mechanism(mechanism, nobody)
    return release_prescribed(
        mechanism, blank, alone, taken, np.array(noise), torch.Generator(), nobody
    )


def test_runs_side_by_side_do_not_see_each_other() -> None:
    """Two records in numbers of their own: the noise along each is what was dealt to it, whatever
    the other does."""
    mechanism = ClippedSum(1.0, 1.0)
    rows = torch.eye(2, 5)
    alone = [{"x": rows[:1]}, {"x": rows[1:]}]
    for taken in ({"x": rows}, {"x": rows[:1]}):
        made = dealt(mechanism, {"x": rows[:0]}, alone, taken, [2.0, -1.0])
        inside = torch.tensor([1.0, float(len(taken["x"]) == 2)])
        expected = (
            inside + torch.tensor([2.0, -1.0])
        ) - 0.5  # mu x - mu^2 / 2 of a Gaussian with mu = 1
        assert made.losses == pytest.approx(expected.numpy(), abs=2e-3)
        assert made.mus == pytest.approx([1.0, 1.0], abs=1e-3)


def test_records_that_overlap_cannot_be_played_side_by_side() -> None:
    rows = torch.ones(2, 5)
    with pytest.raises(NoiseNotPrescribed, match="overlap"):
        dealt(
            ClippedSum(1.0, 1.0),
            {"x": rows[:0]},
            [{"x": rows[:1]}, {"x": rows[1:]}],
            {"x": rows},
            [0.0, 0.0],
        )


def test_copies_of_a_feature_are_seen_together() -> None:
    """Two copies with noise 1 and 2 of one row of norm 1: mu^2 = 1 + 1/4."""
    mechanism = FeatureNoise(clip_norm=1.0, noise_std=[1.0, 2.0], copies=2)
    row = torch.eye(1, 6) * 9
    made = dealt(mechanism, {"x": 0 * row}, [{"x": row}], {"x": row}, [0.0])
    assert made.mus[0] ** 2 == pytest.approx(1.25, rel=1e-3)


def test_laplace_noise_is_refused() -> None:
    with pytest.raises(NoiseNotPrescribed, match="Gaussian"):
        FeatureNoise(clip_norm=1.0, noise_std=1.0, distribution="laplace")(
            {"x": torch.ones(1, 2)}, PrescribedNoise()
        )


def test_nothing_is_certified_where_nothing_is_protected() -> None:
    assert list(certificate_findings(subject(fedavg(), {}))) == []


def test_what_an_event_allows_one_record_to_move_a_release_by() -> None:
    gaussian = dpa.GaussianDpEvent(2.0)
    assert stated_mu(gaussian) == stated_mu(dpa.PoissonSampledDpEvent(0.1, gaussian)) == 0.5
    assert stated_mu(dpa.ComposedDpEvent([gaussian, gaussian])) == pytest.approx(math.sqrt(0.5))


def test_a_client_is_played_for_as_many_updates_as_it_sends() -> None:
    run = ClientRunReplay(of_client(ClientLevel(1.0, SMALL), rounds=3), "update")
    assert (
        run.update_count == 3
        and max(float(t.abs().max()) for t in run.huge_update.values()) > SMALL
    )
