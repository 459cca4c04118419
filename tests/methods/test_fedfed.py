"""Tests of ``privdd.methods.fedfed``."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import dp_accounting as dpa
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from torch import nn
from torch.func import functional_call

from attacks.inversion.known_neighbour import KnownNeighbour
from attacks.membership.signals import average_noisy_copies
from attacks.roc import roc
from attacks.types import Adversary, Capture, Knowledge, Surface, Truth, View
from privdd.auditing.adversary_view import AdversaryView
from privdd.auditing.findings import public_information
from privdd.auditing.signal_extraction import extract_signals
from privdd.cli.build import build_experiment
from privdd.cli.overrides import check_overrides
from privdd.core.rng import Keys
from privdd.core.validation import BadConfig
from privdd.distillation.feature_split import (
    FeatureSplit,
    SplitLoss,
    bound_features,
    draw_batch_noise,
    feature_map,
    laplace_from_normal,
    train_split,
)
from privdd.federated.simulation import Snapshot
from privdd.methods.fedavg import FedAvg
from privdd.methods.fednova import FedNova
from privdd.methods.fedprox import FedProx
from privdd.methods.scaffold import Scaffold
from privdd.models import ModelSpec, build, initial
from privdd.privacy.accounting import epsilon
from privdd.privacy.ledger import SERVER
from privdd.privacy.mechanisms import FeatureNoise
from privdd.privacy.noise import noise_for
from tests.federations import equal, finished, tiny, tiny_config, trained

# FedFed's feature split against its formulas, and what the released code's shared noise gives away.


SHAPE = (1, 8, 8)
GENERATOR = ModelSpec(name="vae", width=8, latent=16, norm="group")
CLASSIFIER = ModelSpec(name="convnet", width=8, depth=2)


@pytest.fixture(scope="module")
def model() -> FeatureSplit:
    parts = []
    for i, spec in enumerate((GENERATOR, CLASSIFIER)):
        part = build(spec, SHAPE, 10)
        part.load_state_dict(initial(spec, SHAPE, 10, Keys(i).torch()))
        parts.append(part)
    return FeatureSplit(*parts).eval()


def images(count: int, seed: int = 0) -> torch.Tensor:
    return torch.rand(count, *SHAPE, generator=Keys(seed).fold("images").torch())


@given(st.integers(0, 999), st.floats(0.01, 1.0), st.floats(1e-3, 10.0))
def test_rho_bound_holds(seed, rho, scale):
    """||x_s|| <= rho ||x||; smaller features stay as they are; the direction never changes."""
    x = images(6, seed)
    features = scale * torch.randn(x.shape, generator=Keys(seed).fold("f").torch())
    out = bound_features(features, x, rho)
    limit, before, after = (t.double().flatten(1).norm(dim=1) for t in (rho * x, features, out))
    assert (after <= limit * (1 + 1e-5)).all()
    small = before <= limit * (1 - 1e-5)
    assert torch.equal(out[small], features[small])
    assert torch.allclose(after[~small], torch.minimum(limit, before)[~small], rtol=1e-4)
    assert (F.cosine_similarity(out.flatten(1), features.flatten(1)) > 1 - 1e-5).all()


def test_no_bound_and_black_images():
    x = images(3)
    assert bound_features(x, x, None) is x
    assert (
        not bound_features(x, torch.zeros_like(x), 0.5).any()
        and not bound_features(torch.zeros_like(x), x, 0.5).any()
    )


def test_released_features_of_a_run_keep_the_bound():
    """End to end: noise removed by its known law, fedfed's features are x - q(x) within rho
    ||x||."""
    experiment = tiny("fedfed")
    method, (*_, servers) = experiment.plan.method, trained("fedfed")
    x = experiment.shards[0].train.x
    feature = method.maps(
        method.broadcast(servers[method.distill_rounds]), {}, experiment.plan.problem
    )["feature"]
    with torch.no_grad():
        norms = feature(x).flatten(1).norm(dim=1) / x.flatten(1).norm(dim=1)
    assert method.loss.rho == 0.3 and (norms <= 0.3 * (1 + 1e-5)).all() and (norms > 0.05).any()


@pytest.mark.parametrize("rho", [None, 0.3])
@pytest.mark.parametrize("stds", [(0.4,), (0.15, 0.25)])
def test_loss_is_the_formula(model, rho, stds):
    """Against a record-by-record computation with numpy-like loops."""
    loss = SplitLoss(7.0, 2.0, 0.5, 0.3, stds, rho)
    x = images(5)
    y = torch.tensor([1, 4, 4, 0, 9])
    noise = draw_batch_noise(x, 16, len(stds), Keys(3).torch())
    with torch.no_grad():
        got = model(x, y, noise, loss).item()
        q, mu, logvar = model.generator(x, noise["latent"])
        total = 0.0
        for i in range(5):
            xs = x[i] - q[i]
            if rho is not None and xs.norm() > rho * x[i].norm():
                xs = xs * rho * x[i].norm() / xs.norm()
            total += 7.0 * ((q[i] - x[i]) ** 2).sum().item() / 64
            for c, std in enumerate(stds):
                logits = model.classifier((xs + std * noise[f"copy_{c}"][i])[None])[0]
                total -= 2.0 * logits.log_softmax(0)[y[i]].item()
            total -= 0.3 * model.classifier(x[i : i + 1])[0].log_softmax(0)[y[i]].item()
            # KL(N(mu, var) || N(0, 1))
            kl = 0.5 * (mu[i] ** 2 + logvar[i].exp() - 1 - logvar[i]).sum().item()
            total += 0.5 * kl / (3 * 16)
    assert got == pytest.approx(total / 5, rel=1e-5)


@pytest.mark.parametrize(
    "bad",
    [
        {"kl": -1},
        {"rho": 0},
        {"rho": 1.5},
        {"stds": ()},
        {"stds": (float("nan"),)},
        {"image_ce": float("nan")},
    ],
)
def test_loss_refuses_nonsense(bad):
    with pytest.raises(ValueError, match=rf"algo\.loss\.{next(iter(bad))}"):
        SplitLoss(**bad)


def test_training_is_adamw(model):
    """Two epochs of ``train_split`` against a loop over torch.optim on a deep copy, in float64,
    where Adam does not turn the rounding of a gradient near zero into whole steps; inputs
    untouched."""
    import copy

    records = tiny("fedavg").shards[0].train
    model = copy.deepcopy(model).double()
    records = replace(records, x=records.x.double())
    loss = SplitLoss(stds=(0.2,))
    state = {k: v.clone() for k, v in model.state_dict().items()}
    kept = {k: v.clone() for k, v in state.items()}
    settings = {"lr": 1e-3, "weight_decay": 1e-2, "batch_size": 16}
    got, moments = train_split(
        model, state, {}, records, loss, epochs=1, generator=Keys(1).torch(), **settings
    )
    got, _ = train_split(
        model, got, moments, records, loss, epochs=1, generator=Keys(2).torch(), **settings
    )
    plain = copy.deepcopy(model).train()
    adam = torch.optim.AdamW(plain.parameters(), lr=1e-3, weight_decay=1e-2)
    for seed in (1, 2):
        generator = Keys(seed).torch()
        for at in torch.randperm(len(records), generator=generator).split(16):
            adam.zero_grad()
            plain(
                records.x[at],
                records.y[at],
                draw_batch_noise(records.x[at], 16, 1, generator),
                loss,
            ).backward()
            adam.step()
    for name, value in plain.state_dict().items():
        assert torch.allclose(got[name], value, atol=1e-9), name
    assert equal(state, kept)


def test_flbench_noises_each_record_and_its_copies_average_out():
    """From a run's own upload: the best mean of two copies of deviations 0.15 and 0.25 has 0.129,
    and nothing of it is shared; the record behind a row is found in nine of ten cases or more."""
    experiment = tiny(
        "fedfed_flbench", "partition.clients=1", "partition.heldout=1", "data.limit=180"
    )
    plan = experiment.plan
    method = plan.method
    shard = experiment.shards[0]
    t = method.distill_rounds
    server = method.init(plan.problem, plan.keys.fold("public", "init"))
    sent = method.broadcast({**server, "round": torch.tensor([float(t)])})
    ctx = plan.client_context(t, 0)
    values = plan.channel.send(method.local(sent, {}, shard, ctx)[0], ctx)[0].values
    with torch.no_grad():
        clean = method.maps(sent, {}, plan.problem)["feature"](shard.train.x)
    clean = clean[shard.train.ids.argsort()].flatten(1)
    averaged, std = average_noisy_copies(values["features"]["x"].flatten(1), (0.15, 0.25))
    assert std == pytest.approx(0.15 * 0.25 / math.hypot(0.15, 0.25))
    noise = averaged - clean
    assert float(noise.std()) == pytest.approx(std, rel=0.05)
    neighbours = (noise[:-1] * noise[1:]).mean() / noise.square().mean()
    assert abs(float(neighbours)) < 0.05
    found = torch.cdist(averaged, clean).argmin(1)
    assert float((found == torch.arange(len(clean))).double().mean()) >= 0.9


def test_released_profile_shares_one_noise_image_per_batch_in_two_copies():
    """From a run's own upload: the features' noise is constant within 64 rows, and copies come in
    order."""
    experiment = tiny(
        "fedfed_released", "partition.clients=1", "partition.heldout=1", "data.limit=180"
    )
    plan = experiment.plan
    method = experiment.plan.method
    shard = experiment.shards[0]
    t = experiment.plan.method.distill_rounds
    server = method.init(plan.problem, plan.keys.fold("public", "init")) | {
        "round": torch.tensor([float(t)])
    }
    sent = method.broadcast(server)
    ctx = plan.client_context(t, 0)
    values = plan.channel.send(method.local(sent, {}, shard, ctx)[0], ctx)[0].values
    order = shard.train.ids.argsort()
    with torch.no_grad():
        clean = method.maps(sent, {}, plan.problem)["feature"](shard.train.x)[order]
    n = len(clean)
    assert n > 128 and values["features"]["x"].shape == (2 * n, 1, 8, 8)
    assert torch.equal(values["labels"]["y"], shard.train.y[order].repeat(2))
    for copy, std in enumerate((0.2, 0.25)):
        noise = values["features"]["x"][copy * n : (copy + 1) * n] - clean
        for start in range(0, n, 64):
            part = noise[start : start + 64]
            assert (part - part[0]).abs().max() < 1e-5
        heads = noise[::64]
        assert (heads[0] - heads[1]).abs().max() > 0.05
        assert 0.75 * std < heads.std() < 1.3 * std


def release(
    mechanism: FeatureNoise, model: FeatureSplit, count: int = 150, known: int = 3
) -> tuple[View, Truth]:
    """Features of ``count`` images under a mechanism, as an insider who holds one record a batch
    sees them."""
    x = images(count, 5)

    def feature(z: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            return feature_map(model.generator, model.generator.state_dict(), None)(z) / 4

    out = mechanism({"x": feature(x)}, noise_for("seed", Keys(9))).value
    rows = torch.arange(count)
    at = torch.tensor([7, 64 + 60, 128 + 1])[:known]
    settings = {
        "copies": mechanism.copies,
        "broadcast_batch": mechanism.broadcast_batch,
        "noise_std": 0.15,
    }
    knowledge = Knowledge(
        SHAPE,
        10,
        x[:2],
        rows[:2],
        maps={"feature": feature},
        settings=settings,
        known={"x": x[at], "row": at},
    )
    view = View(Surface.FEATURES, Adversary.SERVER, (Capture(0, 0, "features", out),), knowledge)
    empty = torch.zeros(0, *SHAPE)
    return view, Truth(x, rows % 10, empty, rows[:0], torch.zeros(10), rows=rows)


def test_a_known_neighbour_cancels_shared_noise_and_only_that(model):
    """Above 100 dB where a batch shares its noise; at the same sigma, independent noise gives
    nothing away."""
    stds = (0.15, 0.25)
    attack = KnownNeighbour()
    psnr = {}
    for batch in (64, None):
        view, truth = release(FeatureNoise(noise_std=stds, copies=2, broadcast_batch=batch), model)
        finding = attack.judge(attack.run(view, Keys(0).torch()), view, truth)
        psnr[batch] = finding.measures.psnr
        assert finding.measures.n == 150 - 3
        if batch is None:
            assert finding.measures.psnr == pytest.approx(
                finding.measures.baselines["psnr_as_released"]
            )
    assert psnr[64] > 100 and psnr[None] < 40


def test_a_batch_without_a_known_record_stays_noisy(model):
    view, truth = release(FeatureNoise(noise_std=0.15, broadcast_batch=64), model, known=2)
    found = KnownNeighbour().run(view, Keys(0).torch()).images
    with torch.no_grad():
        error = (found - view.knowledge.maps["feature"](truth.x)).flatten(1).norm(dim=1)
    assert error[:128].max() < 1e-4 and error[128:].min() > 0.1


@pytest.mark.nightly  # above, the same attack on both releases without an audit
def test_audits_show_the_difference(audited):
    """The same comparison in findings.json of whole runs."""
    psnr = {}
    for name in ("fedfed", "fedfed_released"):
        findings = json.loads((audited(name).path / "findings.json").read_text())["findings"]
        psnr[name] = next(f["psnr"] for f in findings if f["attack"] == "known_neighbour")
    assert psnr["fedfed_released"] > 100 and psnr["fedfed"] < 60


@pytest.mark.parametrize("batch", [None, 64])
def test_matched_filter_finds_members_on_noised_features(model, batch):
    """AUC over members and non-members, on independent and on shared noise; a release of others
    tells nothing."""
    method = tiny("fedfed").plan.method
    x = images(160, 1)
    public = images(200, 2)
    y = torch.arange(160) % 10
    member = torch.arange(160) % 2 == 0
    from privdd.core.types import Problem, Records

    problem = Problem(SHAPE, 10, 1)
    state = {
        f"generator.{k}": v
        for k, v in initial(method.generator, SHAPE, 10, Keys(0).torch()).items()
    }
    snapshot = Snapshot(1, {"generator": state}, {})
    feature = method.maps(snapshot.broadcast, {}, problem)["feature"]
    with torch.no_grad():
        norm = feature(x).flatten(1).norm(dim=1).mean().item()
    std = norm / 8 if batch else norm / 4
    mechanism = FeatureNoise(noise_std=std, broadcast_batch=batch)
    noise = {"std": std, "broadcast_batch": batch, "copies": 1}
    lens = AdversaryView(
        method,
        problem,
        snapshot,
        Records(x, y, torch.arange(160)),
        Records(public, torch.arange(200) % 10, torch.arange(200)),
        {},
        frozenset(),
        noise,
    )

    def auc(kept: torch.Tensor) -> float:
        with torch.no_grad():
            value = mechanism({"x": feature(x[kept])}, noise_for("seed", Keys(4))).value
        scores = extract_signals(lens, {"features": value, "labels": {"y": y[kept]}})[
            "features|matched_filter"
        ]
        return roc(scores.numpy(), member.numpy()).auc

    assert auc(member) > 0.9 and auc(~member) < 0.1
    assert 0.3 < auc(torch.arange(160) % 4 < 2) < 0.7  # half of each


def test_phase_a_classifier_predicts_until_phase_b_begins():
    method, (_, _, servers) = tiny("fedfed").plan.method, trained("fedfed")
    x = images(4)
    early = servers[0]
    late = trained("fedfed")[0].server
    inner = {
        k.removeprefix("generator/classifier."): v
        for k, v in early.items()
        if k.startswith("generator/classifier.")
    }
    skeleton: nn.Module = method.classifier(tiny("fedfed").plan.problem).eval()
    with torch.no_grad():
        assert torch.allclose(
            method.predict(early, None, x), functional_call(skeleton, inner, (x,))
        )
        base = {k.removeprefix("base/"): v for k, v in late.items() if k.startswith("base/")}
        assert torch.allclose(method.predict(late, None, x), method.base.predict(base, None, x))


def test_sound_profile_trains_on_shared_features_alone():
    """Phase B of fedfed_dp does not change when the client's records do; fedfed's does."""
    for algo, same in (("fedfed_dp", True), ("fedfed", False)):
        experiment, (_, _, servers) = tiny(algo), trained(algo)
        plan = experiment.plan
        t = experiment.plan.method.distill_rounds + 1
        sent = plan.method.broadcast(servers[t])
        mine, other = (
            plan.method.local(sent, {}, experiment.shards[k], plan.client_context(t, 0))[0]
            for k in (0, 1)
        )
        assert equal(mine["update"].value, other["update"].value) is same


def test_features_cost_what_their_map_cost_as_well():
    """The generator that makes the features was trained on the same records: both are in the
    surface's epsilon."""
    progress, _, _ = trained("fedfed_dp")
    ledger = progress.ledger
    victim = tiny("fedfed_dp").plan.victim
    mine = [r for r in ledger.releases if r.client == victim and r.is_protected]
    assert [r.name for r in mine] == ["dpsgd", "features"]
    both = dpa.ComposedDpEvent([dpa.SelfComposedDpEvent(r.event, r.count) for r in mine])
    whole, alone = (
        epsilon(event, ledger.delta, relation="zero_out") for event in (both, mine[1].event)
    )
    found = ledger.epsilon(surfaces=["features"], client=victim)
    assert found == pytest.approx(whole, rel=1e-6) and found > 1.05 * alone
    assert found == pytest.approx(
        ledger.epsilon(client=victim), rel=1e-6
    )  # nothing else reads the records


@pytest.mark.parametrize(
    ("algo", "privacy", "copies"),
    [
        ("fedfed_released", "none", 1),
        ("fedfed", "fedfed_released", 2),
        ("fedfed_released", "fedfed", 1),
    ],
)
def test_the_noises_of_phase_a_are_as_many_as_the_copies_that_are_sent(algo, privacy, copies):
    """Whatever algo and privacy are put together: features and labels are as many, and phase A saw
    that many noises."""
    assert len(tiny(algo, f"privacy={privacy}").plan.method.loss.stds) == copies
    experiment, (_, inboxes, _) = (
        tiny(algo, f"privacy={privacy}"),
        trained(algo, f"privacy={privacy}"),
    )
    sent = next(received for received in inboxes if "features" in received.values)
    assert len(sent.values["features"]["x"]) == len(sent.values["labels"]["y"])
    assert len(sent.values["labels"]["y"]) == copies * len(experiment.shards[sent.client].train)


# What FedFed's settings decide: who releases, one key for noise and bound, any base, any generator,
# whole images.


SHAPE_OPTIONS = (1, 8, 8)


def test_all_clients_release_and_half_of_them_train():
    """Algorithm 1 collects features from everyone: rows, labels and records of all, at any
    participation."""
    experiment = tiny("fedfed", "participation=0.34")
    plan = experiment.plan
    release = experiment.plan.method.distill_rounds
    assert [len(plan.participants(t)) for t in range(plan.method.rounds)] == [
        1,
        3,
        1,
    ] and release == 1
    progress = trained("fedfed", "participation=0.34")[0]
    assert {r.client for r in progress.ledger.releases if r.name == "features"} == {SERVER, 0, 1, 2}
    assert len(progress.server["labels/y"]) == sum(len(s.train) for s in experiment.shards)
    said = {f["what"]: f["value"] for f in public_information(experiment, progress.ledger)}
    assert said["participation"].startswith("1 of 3 clients a round, all in round 1")


def test_all_clients_send_the_statistics_that_the_server_starts_from():
    for algo, whole in (("fedlgd_released", [3, 1]), ("fedlgd", [1, 1])):
        plan = tiny(algo, "participation=0.34").plan
        assert [len(plan.participants(t)) for t in range(2)] == whole


def test_noise_and_bound_are_one_key_each():
    """privacy.variance and privacy.rho move phase A, the mechanism and the claim together."""
    experiment = tiny("fedfed", "privacy.variance=0.04", "privacy.rho=0.5")
    method = experiment.plan.method
    mechanism = experiment.plan.mechanisms["features"]
    assert method.loss.stds == pytest.approx((0.2,)) and method.loss.rho == mechanism.rho == 0.5
    assert mechanism.copy_stds(mechanism.norm_for_size(64)) == pytest.approx((0.2,))
    claim = next(
        c for c in method.claims(experiment.plan, experiment.shards) if "3.4 as printed" in c.source
    )
    assert any("rho = 0.5" in choice for choice in claim.choices)
    for key in ("algo.loss.stds=[0.1]", "algo.loss.rho=0.3"):
        with pytest.raises(BadConfig, match="unknown key"):
            check_overrides("train", ["algo=fedfed", key])


@pytest.mark.parametrize(
    ("algo", "more", "stds", "rho"),
    [
        ("fedfed_released", [], (0.2, 0.25), None),
        ("fedfed_flbench", [], (0.15, 0.25), None),
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
    assert (
        experiment.plan.method.loss.distribution
        == experiment.plan.mechanisms["features"].distribution
        == "laplace"
    )
    plain, other = (
        trained("fedfed", *more)[2][1] for more in ((), ("privacy.distribution=laplace",))
    )
    assert any(
        not torch.equal(plain[n], other[n]) for n in plain if n.startswith("generator/")
    )  # before the release


def test_normal_draws_become_laplace_ones():
    """Kolmogorov-Smirnov against scipy, and the exact quantile at three points."""
    z = torch.randn(20_000, generator=Keys(0).torch())
    assert stats.kstest(laplace_from_normal(z).numpy(), "laplace").pvalue > 0.01
    at = torch.tensor([-1.5, 0.25, 3.0], dtype=torch.float64)
    assert laplace_from_normal(at).numpy() == pytest.approx(
        stats.laplace.ppf(stats.norm.cdf(at.numpy())), rel=1e-9
    )


def test_the_loss_reads_features_under_laplace_noise():
    """By hand: with everything else switched off, the loss is the cross-entropy of x_s + b L(z)."""
    parts = []
    for seed, spec in enumerate(
        (ModelSpec(name="zero"), ModelSpec(name="convnet", width=8, depth=2))
    ):
        part = build(spec, SHAPE_OPTIONS, 10)
        part.load_state_dict(initial(spec, SHAPE_OPTIONS, 10, Keys(seed).torch()))
        parts.append(part)
    model = FeatureSplit(*parts)
    x = torch.rand(6, *SHAPE_OPTIONS)
    z = torch.randn(6, *SHAPE_OPTIONS)
    loss = SplitLoss(0.0, 1.0, 0.0, 0.0, (0.5,), None, "laplace")
    y = torch.arange(6)
    got = model(x, y, {"latent": torch.zeros(6, 1), "copy_0": z}, loss)
    noised = x + 0.5 * torch.tensor(stats.laplace.ppf(stats.norm.cdf(z.double().numpy()))).float()
    assert got.item() == pytest.approx(
        torch.nn.functional.cross_entropy(parts[1](noised), y).item(), rel=1e-4
    )


def test_a_base_that_would_not_see_the_features_is_refused_before_anything_is_computed():
    own = "algo.base._target_=privdd.methods.own_training.OwnTraining"
    with pytest.raises(
        ValueError,
        match=r"^algo\.base=OwnTraining: .* allowed are FedAvg, FedProx, FedNova, Scaffold$",
    ):
        tiny("fedfed", own)


@pytest.mark.nightly(but=["fedavg-FedAvg"])
@pytest.mark.parametrize(
    ("base", "kind"),
    [("fedavg", FedAvg), ("fedprox", FedProx), ("fednova", FedNova), ("scaffold", Scaffold)],
)
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
    assert {"scaffold": "base/control/head.weight", "fedavg": "base/model/head.weight"}.get(
        base, "base/model/head.weight"
    ) in progress.server
    assert all(t.isfinite().all() for t in progress.server.values())


def test_whole_images_are_shared_at_the_protection_of_features():
    """Appendix F.3: noise over norm is that of FedFed's features; what is released is x within its
    law."""
    config = tiny_config("fedfed_raw", "algo.distill_rounds=0")
    experiment = build_experiment(config)
    raw = experiment.plan.mechanisms["features"]
    features = tiny("fedfed").plan.mechanisms["features"]
    ratios = [m.copy_stds(m.norm_for_size(64))[0] / m.norm_for_size(64) for m in (raw, features)]
    assert ratios[0] == pytest.approx(ratios[1]) and raw.norm_for_size(64) == 8.0
    assert raw.copy_stds(8.0)[0] == pytest.approx(math.sqrt(0.15) / features.rho)
    plan = experiment.plan
    shard = experiment.shards[0]
    assert plan.method.rounds == 1 + plan.method.base.rounds
    upload = plan.method.local(
        plan.method.broadcast(plan.method.init(plan.problem, Keys(0))),
        {},
        shard,
        plan.client_context(0, 0),
    )[0]
    order = shard.train.ids.argsort()
    assert torch.equal(upload["features"].value["x"], shard.train.x[order])
    progress = finished(experiment)
    assert progress.server["features/x"].shape[0] == sum(len(s.train) for s in experiment.shards)
    claims = {c.source: c.why for c in plan.method.claims(plan, experiment.shards)}
    assert "as this run does" in claims["Yang 2023, Lemma D.1"]


def test_replays_of_phase_a_side_by_side_are_those_of_each_alone():
    """With shards of unequal size; of later phases there are none. The classifier is judged by its
    logits: AdamW steps along gradients that are zero but for rounding."""
    experiment = tiny("fedfed")
    plan = experiment.plan
    method = plan.method
    whole = experiment.shards[plan.victim]
    sizes = (len(whole.train), len(whole.train) // 2)
    shards = [whole.with_train(whole.train.take(range(size))).client_data for size in sizes]
    broadcast = method.broadcast(method.init(plan.problem, Keys(1)))
    x = whole.train.x
    contexts = [plan.client_context(0, plan.victim) for _ in shards]
    together = method.local_batched(broadcast, [{}] * 2, shards, contexts) or ()
    assert len(together) == 2
    for (upload, memory), shard, ctx in zip(together, shards, contexts):
        alone, kept = method.local(broadcast, {}, shard, ctx)
        assert upload.keys() == alone.keys() and memory == kept == {}
        assert equal(upload["count"].value, alone["count"].value)
        updates = [work["update"].value for work in (upload, alone)]
        states = [method.model_state("update", value, broadcast) for value in updates]
        logits = [functional_call(method.classifier(plan.problem), s, (x,)) for s in states]
        assert torch.allclose(*logits, atol=1e-3)
    for t in (method.distill_rounds, method.distill_rounds + 1):
        later = plan.client_context(t, plan.victim)
        assert method.local_batched(broadcast, [{}], shards[:1], [later]) is None
    moments = replace(method, keep_moments=True)
    assert moments.local_batched(broadcast, [{}] * 2, shards, contexts) is None
