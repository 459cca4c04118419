"""What FedFed's settings decide: who releases, one key for noise and bound, any base, any generator, whole images."""

from __future__ import annotations

import math

import pytest
import torch
from scipy import stats

from privdd.auditing.findings import public_information
from privdd.cli.build import build_experiment
from privdd.cli.main import check_command
from privdd.cli.overrides import check_overrides
from privdd.core.rng import Keys
from privdd.core.validation import BadConfig
from privdd.distillation.feature_split import FeatureSplit, SplitLoss, laplace_from_normal
from privdd.methods.fedavg import FedAvg
from privdd.methods.fednova import FedNova
from privdd.methods.fedprox import FedProx
from privdd.methods.scaffold import Scaffold
from privdd.models import ModelSpec, build, initial
from privdd.privacy.ledger import SERVER
from tests.federations import finished, tiny, tiny_config, trained

SHAPE = (1, 8, 8)


# --- the release round --------------------------------------------------------------------------


def test_all_clients_release_and_half_of_them_train():
    """Algorithm 1 collects features from everyone: rows, labels and records of all, at any participation."""
    experiment = tiny("fedfed", "participation=0.34")
    plan, release = experiment.plan, experiment.plan.method.distill_rounds
    assert [len(plan.participants(t)) for t in range(plan.method.rounds)] == [1, 3, 1] and release == 1
    progress = trained("fedfed", "participation=0.34")[0]
    assert {r.client for r in progress.ledger.releases if r.name == "features"} == {SERVER, 0, 1, 2}
    assert len(progress.server["labels/y"]) == sum(len(s.train) for s in experiment.shards)
    said = {f["what"]: f["value"] for f in public_information(experiment, progress.ledger)}
    assert said["participation"].startswith("1 of 3 clients a round, all in round 1")


def test_all_clients_send_the_statistics_that_the_server_starts_from():
    for algo, whole in (("fedlgd_released", [3, 1]), ("fedlgd", [1, 1])):
        plan = tiny(algo, "participation=0.34").plan
        assert [len(plan.participants(t)) for t in range(2)] == whole


# --- one key each -------------------------------------------------------------------------------


def test_noise_and_bound_are_one_key_each():
    """privacy.variance and privacy.rho move phase A, the mechanism and the claim together."""
    experiment = tiny("fedfed", "privacy.variance=0.04", "privacy.rho=0.5")
    method, mechanism = experiment.plan.method, experiment.plan.mechanisms["features"]
    assert method.loss.stds == pytest.approx((0.2,)) and method.loss.rho == mechanism.rho == 0.5
    assert mechanism.copy_stds(mechanism.norm_for_size(64)) == pytest.approx((0.2,))
    claim = next(c for c in method.claims(experiment.plan, experiment.shards) if "3.4 as printed" in c.source)
    assert any("rho = 0.5" in choice for choice in claim.choices)
    for key in ("algo.loss.stds=[0.1]", "algo.loss.rho=0.3"):
        with pytest.raises(BadConfig, match="unknown key"):
            check_overrides("train", ["algo=fedfed", key])


@pytest.mark.parametrize(
    ("algo", "more", "stds", "rho"),
    [
        ("fedfed_released", [], (0.15, 0.25), None),
        ("fedfed_dp", ["privacy.noise_multiplier=4", "privacy.feature_norm=0.25"], (1.0,), None),
        ("fedfed", ["privacy=none"], (0.0,), None),
        ("fedfed", ["privacy=gaussian_features", "privacy.noise_multiplier=3"], (3.0,), None),
    ],
)
def test_phase_a_trains_under_the_mechanism_of_the_run(algo, more, stds, rho):
    loss = tiny(algo, *more).plan.method.loss
    assert loss.stds == pytest.approx(stds) and loss.rho == rho


def test_laplace_is_one_override_and_reaches_phase_a():
    experiment = tiny("fedfed", "privacy.distribution=laplace")
    assert experiment.plan.method.loss.distribution == experiment.plan.mechanisms["features"].distribution == "laplace"
    plain, other = (trained("fedfed", *more)[2][1] for more in ((), ("privacy.distribution=laplace",)))
    assert any(not torch.equal(plain[n], other[n]) for n in plain if n.startswith("generator/"))  # before the release


def test_normal_draws_become_laplace_ones():
    """Kolmogorov-Smirnov against scipy, and the exact quantile at three points."""
    z = torch.randn(20_000, generator=Keys(0).torch())
    assert stats.kstest(laplace_from_normal(z).numpy(), "laplace").pvalue > 0.01
    at = torch.tensor([-1.5, 0.25, 3.0], dtype=torch.float64)
    assert laplace_from_normal(at).numpy() == pytest.approx(stats.laplace.ppf(stats.norm.cdf(at.numpy())), rel=1e-9)


def test_the_loss_reads_features_under_laplace_noise():
    """By hand: with everything else switched off, the loss is the cross-entropy of x_s + b L(z)."""
    parts = []
    for seed, spec in enumerate((ModelSpec(name="zero"), ModelSpec(name="convnet", width=8, depth=2))):
        part = build(spec, SHAPE, 10)
        part.load_state_dict(initial(spec, SHAPE, 10, Keys(seed).torch()))
        parts.append(part)
    model, x, z = FeatureSplit(*parts), torch.rand(6, *SHAPE), torch.randn(6, *SHAPE)
    loss = SplitLoss(0.0, 1.0, 0.0, 0.0, (0.5,), None, "laplace")
    y = torch.arange(6)
    got = model(x, y, {"latent": torch.zeros(6, 1), "copy_0": z}, loss)
    noised = x + 0.5 * torch.tensor(stats.laplace.ppf(stats.norm.cdf(z.double().numpy()))).float()
    assert got.item() == pytest.approx(torch.nn.functional.cross_entropy(parts[1](noised), y).item(), rel=1e-4)


def test_a_base_that_would_not_see_the_features_is_refused_before_anything_is_computed():
    own = "algo.base._target_=privdd.methods.own_training.OwnTraining"
    for refuse in (lambda: check_command("train", ["algo=fedfed", own]), lambda: tiny("fedfed", own)):
        with pytest.raises(ValueError, match=r"^algo\.base=OwnTraining: .* allowed are FedAvg, FedProx, FedNova, Scaffold$"):
            refuse()


# --- any base, any generator --------------------------------------------------------------------


@pytest.mark.parametrize(("base", "kind"), [("fedavg", FedAvg), ("fedprox", FedProx), ("fednova", FedNova), ("scaffold", Scaffold)])
def test_any_base_by_one_override(base, kind):
    """The chosen method trains phase B, with its own settings, on both sets."""
    more = {"fedprox": ("algo.base.mu=0.5",)}.get(base, ())
    experiment = tiny("fedfed", f"algo/base={base}", *more)
    method = experiment.plan.method
    assert type(method.base) is kind and method.base.balanced
    assert method.base.momentum == (0.0 if base == "scaffold" else 0.9)
    if base == "fedprox":
        assert method.base.mu == 0.5
    progress = trained("fedfed", f"algo/base={base}", *more)[0]
    assert {"scaffold": "base/control/head.weight", "fedavg": "base/model/head.weight"}.get(base, "base/model/head.weight") in progress.server
    assert all(t.isfinite().all() for t in progress.server.values())


# --- whole images -------------------------------------------------------------------------------


def test_whole_images_are_shared_at_the_protection_of_features():
    """Appendix F.3: noise over norm is that of FedFed's features; what is released is x within its law."""
    config = tiny_config("fedfed_raw", "algo.distill_rounds=0")
    experiment = build_experiment(config)
    raw, features = experiment.plan.mechanisms["features"], tiny("fedfed").plan.mechanisms["features"]
    ratios = [m.copy_stds(m.norm_for_size(64))[0] / m.norm_for_size(64) for m in (raw, features)]
    assert ratios[0] == pytest.approx(ratios[1]) and raw.norm_for_size(64) == 8.0
    assert raw.copy_stds(8.0)[0] == pytest.approx(math.sqrt(0.15) / features.rho)
    plan, shard = experiment.plan, experiment.shards[0]
    assert plan.method.rounds == 1 + plan.method.base.rounds
    upload = plan.method.local(plan.method.broadcast(plan.method.init(plan.problem, Keys(0))), {}, shard, plan.client_context(0, 0))[0]
    order = shard.train.ids.argsort()
    assert torch.equal(upload["features"].value["x"], shard.train.x[order])
    progress = finished(experiment)
    assert progress.server["features/x"].shape[0] == sum(len(s.train) for s in experiment.shards)
    claims = {c.source: c.why for c in plan.method.claims(plan, experiment.shards)}
    assert "as this run does" in claims["Yang 2023, Lemma D.1"]
