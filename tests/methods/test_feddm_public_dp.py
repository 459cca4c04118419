"""feddm_public_dp: one read, in one public map; what a crafted record can move, and what is sent
depends on."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from privdd.cli.build import build_experiment
from privdd.cli.compose import compose_config
from privdd.core.types import Artifact, Records, Shard
from privdd.federated.channel import ClientContext, OutputLog
from privdd.federated.simulation import Plan

torch.set_num_threads(1)
TINY = [
    "algo=feddm_public_dp",
    "preset=smoke",
    "data=digits",
    "data.limit=150",
    "data.test_limit=40",
    "partition=iid",
    "partition.clients=3",
    "algo.fitting.steps=2",
    "algo.ipc=2",
    "algo.server.epochs=1",
]


def federation(*more: str):  # type: ignore[no-untyped-def]
    return build_experiment(compose_config("train", [*TINY, *more]))


def released(plan: Plan, shard: Shard, **kw: object) -> tuple[dict[str, Artifact], ClientContext]:
    ctx = replace(plan.client_context(0, 0), observer=OutputLog(), **kw)  # type: ignore[arg-type]
    sent = plan.method.broadcast(plan.method.init(plan.problem, plan.keys))
    return plan.method.local(sent, {}, shard, ctx)[0], ctx  # type: ignore[return-value]


def moves(plan: Plan, shard: Shard, x: Tensor, label: int) -> list[tuple[str, float]]:
    """(query, change in units of what its multiplier allows one record) of every release."""
    guest = Records(x[None], torch.tensor([label]), torch.tensor([10**6]))
    _, without = released(plan, shard)
    _, inside = released(plan, shard.with_train(Records.concat([shard.train, guest])))
    return [
        (
            name,
            float((next(iter(a.exact.values())) - next(iter(b.exact.values()))).norm())
            / a.sensitivity,
        )
        for (name, a), (_, b) in zip(inside.observer.outputs, without.observer.outputs, strict=True)  # type: ignore[arg-type]
    ]


def test_one_record_moves_one_row_by_at_most_the_clip_norm() -> None:
    experiment = federation("privacy.clip_norm=0.3")
    shard = experiment.shards[0]
    found = []
    ones = torch.ones(shard.shape)
    stripes = ones.clone()
    stripes[:, ::2] = 0
    for x in (
        ones,
        0 * ones,
        stripes,
        1e4 * ones,
        -ones,
        float("nan") * ones,
        shard.train.x[0] + 1e-4,
    ):
        for label in (0, 3):
            changes = moves(experiment.plan, shard, x, label)
            rows = [change for name, change in changes if name == "embedding"]
            assert all(change == 0 for row, change in enumerate(rows) if row != label)
            found += [change for _, change in changes]
    assert 0.9 < max(found) <= 1 + 1e-4  # the search reaches the bound, so it would see a breach


def test_small_classes_are_dropped_by_the_noised_count_alone() -> None:
    """On replayed releases, images, labels and which classes are sent are those of the first
    client."""
    experiment = federation("algo.least=4", "privacy.count_noise=2")
    plan, (first, other, _) = experiment.plan, experiment.shards
    upload, ctx = released(plan, first)
    again, _ = released(plan, other.with_train(other.train.take([0])), transcript=list(ctx.outputs))
    for name in ("images", "labels"):
        assert upload[name].private
        for key, value in upload[name].value.items():
            assert torch.equal(value, again[name].value[key])
    counts = ctx.outputs[0]["count"]
    sent = upload["labels"].value["y"].unique().tolist()
    assert sent == (counts >= 4).nonzero()[:, 0].tolist() and 0 < len(sent) < 10


def test_a_client_of_noise_alone_may_send_nothing() -> None:
    experiment = federation("algo.least=1000")
    upload, _ = released(experiment.plan, experiment.shards[0])
    assert len(upload["images"].value["x"]) == 0 == len(upload["labels"].value["y"])


def test_the_budget_buys_one_read_of_each_class() -> None:
    experiment = federation("privacy.epsilon=3")
    plan = experiment.plan
    assert plan.method.releases_per_round(0, plan.mechanisms) == {"embedding": 1, "class_counts": 1}
    _, ctx = released(plan, experiment.shards[0])
    assert {row.name: row.count for row in ctx.rows if row.partition in (None, "label:0")} == {
        "embedding": 1,
        "class_counts": 1,
    }


@pytest.mark.parametrize(
    ("override", "named"),
    [
        ("algo.reads=2", "reads=2: 1 with an extractor"),
        ("algo.extractor=null", "fitting: needs an extractor"),
        ("algo.least=-1", "least=-1"),
        ("algo.start=real", "start=noise or smooth"),
    ],
)
def test_what_has_no_meaning_or_no_guarantee_is_refused(override: str, named: str) -> None:
    with pytest.raises(ValueError, match=named):
        experiment = federation(override)
        released(experiment.plan, experiment.shards[0])


@pytest.mark.parametrize(
    ("overrides", "named"),
    [
        (("privacy=none",), "fitting=.*'embedding'"),
        (("privacy=none", "algo.fitting.steps=3"), "fitting=.*steps=3.*fitting=null"),
        (("algo.least=40", "~privacy.mechanisms.class_counts"), "least=40.*'class_counts'"),
    ],
)
def test_settings_that_would_be_ignored_are_refused(overrides: tuple[str, ...], named: str) -> None:
    with pytest.raises(ValueError, match=named) as refused:
        federation(*overrides)
    assert "\n" not in str(refused.value)


def test_the_same_settings_run_where_nothing_is_ignored() -> None:
    """No guarantee and nothing fitted, and no noised counts where every class is sent."""
    for overrides in (("privacy=none", "algo.fitting=null"), ("~privacy.mechanisms.class_counts",)):
        experiment = federation(*overrides)
        upload, _ = released(experiment.plan, experiment.shards[0])
        assert len(upload["images"].value["x"])


@pytest.mark.parametrize(("start", "noise"), [("noise", True), ("smooth", True), ("real", False)])
def test_every_public_start_is_a_start_from_noise_for_theorem_3_2(start: str, noise: bool) -> None:
    overrides = ["algo=feddm", *TINY[1:6], "privacy=clipped_gradient", "algo.start=noise"]
    experiment = build_experiment(compose_config("train", overrides))
    plan = replace(experiment.plan, method=replace(experiment.plan.method, start=start))  # type: ignore[type-var]
    claim = plan.method.claims(plan, experiment.shards)[0]
    assert claim.source.endswith("Theorem 3.2")
    assert ("starts from real images" in claim.why) is not noise


def test_without_fitting_the_plain_matching_steps_follow_the_same_map() -> None:
    experiment = federation("algo.fitting=null", "algo.matching.iterations=2")
    upload, ctx = released(experiment.plan, experiment.shards[0])
    assert len(upload["images"].value["x"]) == 20
    assert {row.name: row.count for row in ctx.rows if row.partition in (None, "label:0")} == {
        "embedding": 1,
        "class_counts": 1,
    }
