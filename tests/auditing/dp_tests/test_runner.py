"""The three tiers against mechanisms whose soundness, or fault, is known."""

from __future__ import annotations

import math

import pytest
import torch

from attacks.tradeoff import gaussian_epsilon
from privdd.auditing.dp_tests.crafted_records import copies_of_record
from privdd.auditing.dp_tests.likelihood_ratios import (
    QuerySetup,
    runs_by_class,
    runs_of_features,
    runs_on_transcript,
)
from privdd.auditing.dp_tests.matching_step_ratios import MatchingStepLaw, run_transcripts
from privdd.auditing.dp_tests.printed_theorem_audit import copies_within_theorem
from privdd.auditing.dp_tests.query_audit import craft_guests
from privdd.auditing.dp_tests.run_certificate import certificate_findings
from privdd.auditing.dp_tests.runner import without_single_ratios
from privdd.auditing.verdicts import decide_verdict
from privdd.core.rng import Keys
from privdd.distillation.private_matching import mean_image_gradients
from privdd.privacy.mechanisms import AggregateClip, ClippedSum, FeatureNoise
from privdd.privacy.noise import ZERO_NOISE, SeededNoise
from tests.auditing.dp_tests.subjects import (
    CLASSES,
    DELTA,
    SHAPE,
    Averaging,
    Coupled,
    Loose,
    Quiet,
    fedavg,
    feddm,
    mechanism_findings,
    subject,
)

FINITE = {"pld": 1.0, "rdp": 1.0}
SOUND = {
    "noisy_embedding": (feddm, {"embedding": ClippedSum(5.0, 1.0, 1.0, 10.0)}),
    "sampled_embedding": (feddm, {"embedding": ClippedSum(2.0, 1.0, 0.5, 10.0)}),
    "clipped_gradient": (
        lambda: feddm(4),
        {"synthetic_gradient": ClippedSum(3.0, 0.01, 0.7, 10.0)},
    ),
    "dpsgd": (fedavg, {"dpsgd": ClippedSum(1.0, 0.1, 0.2, 6.0)}),
}


def test_the_printed_step_exceeds_what_the_paper_states():
    """Clipping the mean: kappa above 2, and T2 certifies more than ln(1/delta) / sigma^2 + T q^2 =
    0.66.

    The copies are as many as T q^2 = log10(1/delta) / sigma^2 asks for, where the second form's
    condition holds."""
    method = feddm(iterations=30)
    found = list(
        mechanism_findings(
            subject(method, {"synthetic_gradient": AggregateClip(5.0, 1.0)}, scale=2.5, runs=120)
        )
    )
    rows = {f.attack: f.measures.to_row() for f in found}
    assert list(rows) == ["t1_sensitivity", "t2_likelihood_ratio", "t3_transcript", "t3_final"]
    assert (
        rows["t1_sensitivity"]["kappa"] > 2 * 1.5 and rows["t1_sensitivity"]["kappa_allowed"] == 2.0
    )
    stated = (math.log(1 / DELTA) + math.log10(1 / DELTA)) / 25
    assert all(
        r["epsilon_stated"] == pytest.approx(stated, rel=0.01) for r in rows.values()
    )  # whole copies
    assert rows["t2_likelihood_ratio"]["epsilon_shown"] > stated
    assert decide_verdict(FINITE, None, found) == "contradiction"
    assert {str(f.surface) for f in found} == {"gradient"}


@pytest.mark.nightly(but=["0-noisy_embedding"])
@pytest.mark.parametrize("name", list(SOUND))
@pytest.mark.parametrize("seed", [0, 1])
def test_sound_queries_stay_within_their_bound(name, seed):
    make, mechanisms = SOUND[name]
    found = list(mechanism_findings(subject(make(), mechanisms, seed, runs=40, slow_runs=20)))
    kappas = [f.measures.kappa for f in found if f.measures.kappa is not None]
    assert (
        len(kappas) == 1 and 0.9 < kappas[0] <= 1 + 1e-4
    )  # the search reaches the bound and not beyond
    assert len(found) >= 3
    for finding in found:
        assert (
            finding.measures.to_row().get("epsilon_shown", 0.0) <= finding.measures.epsilon_stated
        )
    assert decide_verdict(FINITE, None, found) == "consistent"


def test_an_exchange_may_move_a_sound_query_by_two_units():
    toy = Coupled(coupled=False)
    mechanism = {"embedding": ClippedSum(5.0, 1.0, 1.0, 10.0)}
    kappa = next(mechanism_findings(subject(toy, mechanism, relation="replace"))).measures.to_row()
    assert 1.0 < kappa["kappa"] <= 2 + 1e-4 and kappa["kappa_allowed"] == 2.0


@pytest.mark.nightly(but=["fedavg-Quiet"])
@pytest.mark.parametrize("mutant", [Quiet, Loose])
@pytest.mark.parametrize("method", [feddm, fedavg])
def test_a_mechanism_that_states_more_than_it_does_is_caught(mutant, method):
    name = "embedding" if method is feddm else "dpsgd"
    clip = 0.1 if method is feddm else 0.02
    found = list(
        mechanism_findings(
            subject(method(), {name: mutant(4.0, clip, 1.0, 10.0)}, runs=20, slow_runs=20)
        )
    )
    assert 2 < found[0].measures.kappa <= 3.1
    assert decide_verdict(FINITE, None, found) == "contradiction"


def test_dividing_by_the_realised_batch_is_caught():
    honest, mutant = (kind(4.0, 0.1, 1.0, 10.0) for kind in (ClippedSum, Averaging))
    assert (
        next(mechanism_findings(subject(feddm(), {"embedding": honest}))).measures.kappa <= 1 + 1e-4
    )
    assert next(mechanism_findings(subject(feddm(), {"embedding": mutant}))).measures.kappa > 2


def test_a_map_that_couples_records_is_caught_where_the_same_map_without_coupling_is_not():
    mechanism = {"embedding": ClippedSum(5.0, 1.0, 1.0, 10.0)}
    coupled, single = (
        next(mechanism_findings(subject(Coupled(c), mechanism))).measures.to_row()
        for c in (True, False)
    )
    assert coupled["kappa"] > 1.2 and "other records" in coupled["note"]
    assert single["kappa"] <= 1 + 1e-4 and "other records" not in single["note"]


def test_an_unprotected_release_states_nothing():
    one = subject(feddm(), {})
    assert list(mechanism_findings(one)) == []


@pytest.mark.nightly
def test_certificates_of_a_sound_query_never_exceed_its_epsilon():
    """40 audits of one Gaussian release, both orders, against the closed form."""
    mechanism = ClippedSum(0.5, 1.0)
    rows = [{"g": torch.full((1, 4), 9.0)}]
    exact = gaussian_epsilon(2.0, DELTA)
    found = []
    from privdd.auditing.dp_tests.statement import Statement

    one = subject(feddm(), {"embedding": mechanism}, runs=20)
    for seed in range(40):
        runs = runs_on_transcript(mechanism, rows, 60, Keys(seed))
        findings = Statement(
            one, one.surface_of("embedding"), exact, "closed form", "embedding"
        ).likelihood_ratio_findings(runs, "", final=None)
        found.append([f.measures.epsilon_shown for f in findings])
    worst = torch.tensor(found).max(0).values
    assert bool((worst <= exact).all()) and torch.tensor(found)[:, 0].median() > 0.3 * exact


@pytest.mark.nightly
def test_log_ratios_of_runs_by_class_follow_the_closed_form():
    """A record that fills the clip norm in K reads: ln P/Q ~ N(+-mu^2/2, mu^2) with mu = sqrt(K) /
    sigma."""
    one = subject(feddm(), {"embedding": ClippedSum(1.5, 0.1, 1.0, 10.0)})
    guests = craft_guests(one)
    stage = QuerySetup(one.plan, one.snapshots[0], one.shard, "embedding", guests.x[0])
    runs = runs_by_class(stage, 200, Keys(3))
    short = runs_by_class(stage, 200, Keys(3), releases=3)
    mu2 = 3 / 1.5**2
    for ratios, sign in ((runs.ratios[:200], 1), (runs.ratios[200:], -1)):
        assert float(ratios.mean()) == pytest.approx(sign * mu2 / 2, abs=4 * math.sqrt(mu2 / 200))
        assert float(ratios.var()) == pytest.approx(mu2, rel=0.45)
    assert runs.final.shape == (400, 2 * math.prod(SHAPE)) and len(runs.final.unique(dim=0)) == 400
    assert torch.equal(short.ratios, runs.ratios) and short.final.shape == (
        400,
        0,
    )  # to the last release, and no images


def test_stacked_steps_are_those_of_the_mechanism():
    one = subject(feddm(), {"synthetic_gradient": AggregateClip(5.0, 0.3)}, scale=2.0)
    ctx = one.plan.client_context(0, 0)
    steps = one.plan.method.audit_hooks.matching_steps(
        one.snapshots[0].broadcast, one.shard.client_data, ctx
    )
    law = MatchingStepLaw(one.plan.mechanisms["synthetic_gradient"], 16, 0.5)
    base = one.shard.train.x[0]
    guest = torch.ones(SHAPE)
    images = torch.randn(4, 2, *SHAPE, generator=torch.Generator().manual_seed(0))
    embed = steps.maps(2)
    both = law.clipped_gradients(
        images, law.target_means(embed, steps, base, guest.unsqueeze(0)), embed
    )
    x = copies_of_record(base, 0, 16).x.clone()
    for world in range(2):
        for own, expected in zip(images, both[:, world]):
            rows = mean_image_gradients(own.unsqueeze(0), embed, [x])[0].expand(16, *own.shape)
            out = law.mechanism({"g": rows}, ZERO_NOISE)
            torch.testing.assert_close(out.exact["g"], expected, atol=1e-5, rtol=1e-3)
            assert out.noise_std == pytest.approx(law.noise_std)
        x[-1] = guest


def test_without_a_guest_the_stacked_runs_say_nothing():
    one = subject(feddm(), {"synthetic_gradient": AggregateClip(5.0, 0.3)})
    steps = one.plan.method.audit_hooks.matching_steps(
        one.snapshots[0].broadcast, one.shard.client_data, one.plan.client_context(0, 0)
    )
    base = one.shard.train.x[0]
    law = MatchingStepLaw(one.plan.mechanisms["synthetic_gradient"], 16, 0.5)
    runs = run_transcripts(steps, law, base, base, 5, 2, torch.Generator().manual_seed(1))
    assert float(runs.ratios.abs().max()) < 1e-4 and runs.final.shape == (10, 2 * math.prod(SHAPE))


def test_copies_are_as_few_as_the_stricter_reading_of_the_condition_allows():
    """T q^2 <= log10(1/delta) / sigma^2, where the first form claims less than where the natural
    logarithm stands."""
    one = subject(feddm(iterations=50, batch=128), {"synthetic_gradient": AggregateClip(5.0, 1.0)})
    law = MatchingStepLaw(one.plan.mechanisms["synthetic_gradient"], 128, 1.0)
    count, claim = copies_within_theorem(
        one.plan, one.shard, one.shard.train.x[0], 0, law, 50, DELTA
    )
    bound = math.log10(1e5) / 25
    assert claim.epsilon == pytest.approx(math.log(1e5) / 25 + 50 * (128 / count) ** 2, rel=1e-9)
    assert 50 * (128 / count) ** 2 <= bound < 50 * (128 / (count - 1)) ** 2


@pytest.mark.parametrize("distribution", ["gaussian", "laplace"])
def test_feature_ratios_are_the_densities(distribution):
    mechanism = FeatureNoise(
        clip_norm=0.5, noise_std=[0.4, 0.7], copies=2, distribution=distribution
    )
    features = torch.rand(2, 3, generator=torch.Generator().manual_seed(0))
    runs = runs_of_features(mechanism, features, 30, SeededNoise(torch.Generator().manual_seed(1)))
    law = {"gaussian": torch.distributions.Normal, "laplace": torch.distributions.Laplace}[
        distribution
    ]
    order = 2 if distribution == "gaussian" else 1
    inside = (features * 0.5 / features.flatten().norm(p=order)).flatten().double()
    copied = runs.final.reshape(60, 2, 6).double()
    expected = sum(
        (law(inside, std).log_prob(copied[:, i]) - law(0 * inside, std).log_prob(copied[:, i])).sum(
            1
        )
        for i, std in enumerate((0.4, 0.7))
    )
    torch.testing.assert_close(runs.ratios, expected, atol=1e-3, rtol=1e-3)


def test_guests_include_one_alone_in_its_class():
    guests = craft_guests(subject(feddm(), {}))
    assert guests.names[-1] == "alone in its class" and int(guests.y[-1]) == CLASSES - 1


@pytest.mark.nightly(cases=["mechanism0-shown0"])
@pytest.mark.parametrize(
    ("mechanism", "shown"),
    [
        (ClippedSum(2.0, 0.02, 1.0, 20.0), ["t2_whole_run"]),
        (AggregateClip(5.0, 1.0), ["t2_likelihood_ratio"]),
    ],
)
def test_likelihood_ratios_of_a_query_are_shown_where_no_certificate_speaks_of_it(mechanism, shown):
    method = feddm() if isinstance(mechanism, ClippedSum) else feddm(iterations=3)
    name = "embedding" if isinstance(mechanism, ClippedSum) else "synthetic_gradient"
    of = subject(method, {name: mechanism}, runs=20, slow_runs=20)
    found = [
        f.attack
        for f in without_single_ratios(of, [*mechanism_findings(of), *certificate_findings(of)])
    ]
    assert [attack for attack in found if attack.startswith("t2")] == shown


def test_without_a_certificate_they_come_last_and_say_why():
    of = subject(feddm(), {"embedding": ClippedSum(2.0, 0.02, 1.0, 20.0)}, runs=20, slow_runs=20)
    *_, last = without_single_ratios(of, mechanism_findings(of))
    assert last.attack == "t2_likelihood_ratio" and "no certificate" in last.measures.note
