"""Heads over a public map: what one record can move, what is learned, and that batches agree with
single clients."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from sklearn.linear_model import Ridge

from privdd.core.types import Records
from privdd.distillation.linear_head import record_ballots, voted_head
from privdd.federated.channel import OutputLog
from privdd.federated.experiment import Experiment
from privdd.federated.simulation import Progress, run_round, start_training
from privdd.methods.base import PublicMap
from privdd.methods.dp_head import DPHead
from privdd.methods.dp_means import DPMeans
from privdd.methods.dp_moments import DPMoments
from privdd.methods.dp_votes import DPVotes
from privdd.runtime.engine import Engine
from tests.federations import finished, tiny

torch.set_num_threads(1)
KINDS = {"dp_head": DPHead, "dp_means": DPMeans, "dp_moments": DPMoments, "dp_votes": DPVotes}
ALL = ("privacy.sampling_probability=1",)


def accuracy(experiment: Experiment, progress: Progress) -> float:
    test = experiment.test_records
    return float(
        (experiment.plan.method.predict(progress.server, None, test.x).argmax(1) == test.y)
        .float()
        .mean()
    )


@pytest.mark.parametrize("algo", KINDS)
def test_one_record_moves_a_release_by_the_clip_norm_and_no_more(algo: str) -> None:
    experiment = tiny(algo, *ALL)
    plan = experiment.plan
    shard = experiment.shards[0]
    assert isinstance(plan.method, KINDS[algo]) and isinstance(plan.method, PublicMap)
    broadcast = plan.method.broadcast(plan.method.init(plan.problem, plan.keys))
    found = []
    for x in (
        torch.ones(shard.shape),
        torch.zeros(shard.shape),
        1e4 * torch.ones(shard.shape),
        shard.train.x[0] + 1e-4,
    ):
        guest = Records(x[None], torch.tensor([3]), torch.tensor([10**6]))
        outputs = []
        for train in (shard.train, Records.concat([shard.train, guest])):
            ctx = replace(plan.client_context(0, 0), observer=OutputLog())
            plan.method.local(broadcast, {}, shard.with_train(train), ctx)
            outputs.append([output for _, output in ctx.observer.outputs])
        for without, inside in zip(*outputs, strict=True):
            moved = torch.cat([(inside.exact[n] - t).flatten() for n, t in without.exact.items()])
            found.append(float(moved.norm()) / without.sensitivity)
    assert 0.99 < max(found) <= 1 + 1e-4


@pytest.mark.parametrize("algo", KINDS)
def test_worlds_side_by_side_send_what_each_sends_alone(algo: str) -> None:
    experiment = tiny(algo, *ALL)
    plan = experiment.plan
    shard = experiment.shards[0]
    broadcast = plan.method.broadcast(plan.method.init(plan.problem, plan.keys))
    shards = [shard.with_train(shard.train.take(range(at, len(shard.train)))) for at in (0, 3, 7)]
    together = plan.method.local_batched(
        broadcast, [{}] * 3, shards, [plan.client_context(0, 0) for _ in shards]
    )
    for one, (upload, _) in zip(shards, together or (), strict=True):
        alone, _ = plan.method.local(broadcast, {}, one, plan.client_context(0, 0))
        for name, artifact in alone.items():
            for key, value in artifact.value.items():
                assert torch.allclose(upload[name].value[key], value, atol=1e-3), (name, key)


@pytest.mark.parametrize("algo", ["dp_means", "feddm_guided_dp", "fedcgs"])
def test_without_noise_class_sums_are_those_of_the_map_that_an_auditor_is_told(algo: str) -> None:
    """What attacks invert, sum over count, is the mean of ``maps["embedding"]`` over the class's
    records."""
    experiment = tiny(algo, "privacy=none")
    plan = experiment.plan
    shard = experiment.shards[0]
    broadcast = plan.method.broadcast(plan.method.init(plan.problem, plan.keys))
    sent = plan.method.local(broadcast, {}, shard, plan.client_context(0, 0))[0]["prototypes"].value
    own = plan.method.maps(broadcast, {}, plan.problem)["embedding"](shard.train.x)
    for label in shard.train.y.unique().tolist():
        mean = own[shard.train.y == label].mean(0)
        assert torch.allclose(sent["sum"][label] / sent["count"][label], mean, atol=1e-4)


def test_without_noise_it_is_gradient_descent_with_momentum() -> None:
    experiment = tiny("dp_head", "privacy=none", "algo.rounds=4", "algo.lr=5")
    plan = experiment.plan
    method = experiment.plan.method
    assert isinstance(method, DPHead)
    found = finished(experiment).server["model/head.weight"]
    pool = Records.concat([shard.train for shard in experiment.shards])
    rows = method.rows.embed_rows(pool.x)
    weight = torch.zeros(plan.problem.classes, rows.shape[1], requires_grad=True)
    descent = torch.optim.SGD([weight], lr=5, momentum=0.9)
    for _ in range(4):
        descent.zero_grad()
        F.cross_entropy(rows @ weight.T, pool.y).backward()
        descent.step()
    assert torch.allclose(found, weight.detach(), atol=1e-3)


@pytest.mark.parametrize(
    ("noisiest", "trust"), [(None, "local"), (0.01, "local"), (0.01, "secagg"), (1e6, "local")]
)
def test_a_step_is_as_long_as_its_noise_allows(noisiest: float | None, trust: str) -> None:
    """From public numbers: the noise of the mean gradient, z C sqrt(clients) / records (one
    client's under secagg)."""
    experiment = tiny(
        "dp_head",
        *ALL,
        "privacy.noise_multiplier=4",
        "algo.lr=7",
        f"algo.noisiest={noisiest or 'null'}",
        f"trust={trust}",
        *(["trust.colluding=0"] if trust == "secagg" else []),
    )
    plan = experiment.plan
    progress = run_round(
        plan, start_training(plan, experiment.new_ledger()), experiment.shards, Engine()
    )[0]
    moved, velocity = (
        progress.server[f"{name}/head.weight"].norm() for name in ("model", "velocity")
    )
    added = 1 if trust == "secagg" else len(experiment.shards)
    noise = 4 * 0.4 * added**0.5 / max(float(progress.server["seen/count"]), 1.0)
    expected = 7.0 if noisiest is None else min(7.0, noisiest / noise)
    assert float(moved / velocity) == pytest.approx(expected, rel=1e-3)


def public_rows(count: int, seed: int) -> torch.Tensor:
    """Rows that end with the same constant."""
    rows = torch.randn(count, 6, generator=torch.Generator().manual_seed(seed))
    return torch.cat([rows, torch.full((count, 1), 0.3)], 1)


def test_a_record_votes_for_its_class_on_what_resembles_it() -> None:
    """By the formula, one record at a time; its votes are 1 long, and its bits its own."""
    images, rows = public_rows(9, 0), public_rows(5, 1)
    y = torch.tensor([0, 2, 1, 1, 0])
    ballots = record_ballots(rows, images, y, 3)
    centre = images.mean(0)
    for i in range(5):
        votes = (images - centre) @ (rows[i] - centre)
        expected = torch.zeros(9, 3)
        expected[:, y[i]] = votes / votes.norm()
        found = ballots[i : i + 1]
        torch.testing.assert_close(found.left.T @ found.right, expected)
        alone = record_ballots(rows[i : i + 1], images, y[i : i + 1], 3)
        assert torch.equal(alone.left[0], ballots.left[i])


def test_the_head_of_votes_is_ridge_regression() -> None:
    """Against scikit-learn's, with a bias; votes that are the same for all classes say nothing."""
    images = public_rows(40, 2).double()
    votes = torch.randn(40, 3, generator=torch.Generator().manual_seed(3)).double()
    head = voted_head(votes, images, 0.5)
    centred = images - images.mean(0)
    penalty = 0.5 * float((centred**2).sum(0).mean())
    targets = votes - votes.mean(1, keepdim=True)
    fitted = Ridge(alpha=penalty).fit(images.numpy(), targets.numpy())
    expected = torch.from_numpy(fitted.predict(images.numpy()))
    torch.testing.assert_close(images @ head.T, expected)
    torch.testing.assert_close(voted_head(votes + 7 * torch.randn(40, 1), images, 0.5), head)


def test_local_steps_are_federated_averaging_in_the_map() -> None:
    """Of two steps without noise, a client sends the mean of its gradients at the two points; each
    step is a release."""
    experiment = tiny("dp_head", "privacy=none", "algo.lr=5", "algo.local_steps=2")
    plan = experiment.plan
    method = experiment.plan.method
    shard = experiment.shards[0]
    upload, _ = method.local(
        method.broadcast(method.init(plan.problem, plan.keys)), {}, shard, plan.client_context(0, 0)
    )
    # type: ignore[attr-defined]
    rows = method.rows.embed_rows(shard.train.x)
    first = torch.zeros(10, 21)

    def slope(at: torch.Tensor) -> torch.Tensor:
        return (torch.softmax(rows @ at.T, 1) - F.one_hot(shard.train.y, 10)).T @ rows

    second = first - 5 / 2 * slope(first) / len(rows)
    assert torch.allclose(
        upload["gradient"].value["head.weight"], (slope(first) + slope(second)) / 2, atol=1e-4
    )
    noised = tiny("dp_head", "algo.local_steps=2", *ALL).plan
    assert noised.method.releases_per_round(0, noised.mechanisms) == {"head_gradient": 2}


@pytest.mark.parametrize(
    ("algo", "least"), [("dp_head", 0.6), ("dp_means", 0.6), ("dp_moments", 0.5), ("dp_votes", 0.4)]
)
def test_digits_are_learned_where_noise_is_small(algo: str, least: float) -> None:
    """Chance is 0.1; 120 records, rows of 100 numbers (60 for second moments)."""
    width = 60 if algo == "dp_moments" else 100
    rounds = ("algo.rounds=10",) if algo == "dp_head" else ()
    experiment = tiny(
        algo, *ALL, f"algo.rows.width={width}", "privacy.noise_multiplier=0.1", *rounds
    )
    assert accuracy(experiment, finished(experiment)) > least


def test_votes_say_that_they_are_no_logits() -> None:
    assert tiny("dp_votes").plan.method.audit_hooks.settings(9)["votes"]


@pytest.mark.parametrize("algo", KINDS)
def test_the_ledger_counts_the_releases_that_were_foretold(algo: str) -> None:
    experiment = tiny(algo, *ALL, "privacy.epsilon=3")
    progress = finished(experiment)
    assert 2.9 < progress.ledger.epsilon() <= 3.0 + 1e-6


@pytest.mark.parametrize(
    ("algo", "override", "named"),
    [
        ("dp_head", "algo.lr=0", "lr=0"),
        ("dp_head", "algo.noisiest=0", "noisiest=0"),
        ("dp_head", "algo.momentum=1", "momentum=1"),
        ("dp_head", "algo.local_steps=0", "local_steps=0"),
        ("dp_means", "algo.least=1", "least=1"),
        ("dp_moments", "algo.ridge=-1", "ridge=-1"),
        ("dp_moments", "algo.share=1", "share=1"),
        ("dp_votes", "algo.ridge=0", "ridge=0"),
        ("dp_votes", "algo.images=0", "images=0"),
    ],
)
def test_settings_without_a_meaning_are_refused(algo: str, override: str, named: str) -> None:
    with pytest.raises(ValueError, match=named):
        tiny(algo, override)
