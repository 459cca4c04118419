"""What a distillation did: movement, matching loss and share at the bound against values known
beforehand, and rounds whose numbers stay as they were."""

from __future__ import annotations

import pytest
import torch

from privdd.core.rng import Keys
from privdd.core.types import Records, State, Values
from privdd.distillation.diagnostics import (
    compare_rows,
    diagnose_distillation,
    measure_matching_loss,
    measure_movement,
    relative_rate,
    share_at_bound,
    starts_as_records,
)
from privdd.models import ModelSpec
from tests.federations import equal, tiny, trained

SHAPE = (1, 8, 8)
NETWORK = ModelSpec(name="mlp", width=8)
SMALL = "algo.matching.iterations=3"
DISTILLING = {
    "feddm": (SMALL,),
    "feddm_dp": (SMALL,),
    "fedrd": (SMALL,),
    "fedrd_dp": (SMALL,),
    "fedlgd": ("algo.virtual.warmup.iterations=3", "algo.virtual.refine.iterations=3"),
    "virtual_data": ("algo.virtual.warmup.iterations=3",),
    "fedfed_virtual": ("algo.virtual.warmup.iterations=3",),
}
STILL = {
    name: tuple(setting.split("=")[0] + "=0" for setting in settings)
    for name, settings in DISTILLING.items()
}


def records(count: int = 40) -> Records:
    stream = Keys(1).torch()
    x = torch.rand(count, *SHAPE, generator=stream)
    return Records(x, torch.arange(count) % 4, torch.arange(count))


def diagnose(algo: str, *settings: str):
    progress = trained(algo, *settings)[0]
    experiment = tiny(algo, *settings)
    plan = experiment.plan
    return diagnose_distillation(plan, progress, experiment.shards[plan.victim])


def test_a_movement_of_ten_per_cent_is_reported_as_that():
    x = records().x
    away = torch.randn(x.shape, generator=Keys(2).torch())
    moved = x + 0.1 * x.norm() * away / away.norm()
    assert measure_movement(x, moved) == pytest.approx(0.1, rel=1e-5)
    assert measure_movement(x, 1.1 * x) == pytest.approx(0.1, rel=1e-5)
    assert measure_movement(x, x) == 0.0
    plan = tiny("feddm").plan
    held = records()
    found = compare_rows(plan, 0, (held.x, held.y), (1.1 * held.x, held.y), held, NETWORK)
    assert found.moved == pytest.approx(0.1, rel=1e-5) and found.starts_real
    assert found.loss_before == pytest.approx(0.0, abs=1e-10)
    assert found.loss_after > 1e-6


def test_the_matching_loss_is_the_sum_over_classes_of_squared_gaps_of_means():
    held = records(8)
    flat = lambda x: x.flatten(1)  # noqa: E731
    rows = (held.x[:4] + 1.0, held.y[:4])
    gaps = [held.x[held.y == c].flatten(1).mean(0) - (held.x[c].flatten() + 1.0) for c in range(4)]
    wanted = sum(float(gap.square().sum()) for gap in gaps)
    assert measure_matching_loss(flat, rows, held, 0) == pytest.approx(wanted, rel=1e-5)
    assert measure_matching_loss(flat, rows, held, 3) == pytest.approx(wanted, rel=1e-5)


def test_a_start_of_real_records_is_told_from_one_of_noise():
    held = records()
    assert starts_as_records(held.x[5:9], held.x)
    assert not starts_as_records(torch.cat([held.x[:3], torch.rand(1, *SHAPE)]), held.x)
    assert not starts_as_records(held.x[:0], held.x)


def test_a_feature_at_its_bound_is_counted_and_one_below_is_not():
    limits = torch.full((4,), 0.3)
    assert share_at_bound(torch.tensor([0.3, 0.31, 0.29, 0.0]), limits) == 0.5
    assert share_at_bound(torch.zeros(0), torch.zeros(0)) is None


@pytest.mark.nightly(cases=["fedrd", "fedlgd", "fedfed_virtual", "feddm_dp", "fedrd_dp"])
@pytest.mark.parametrize("algo", sorted(DISTILLING))
def test_no_step_moves_nothing_and_steps_move_something(algo: str):
    still = diagnose(algo, *STILL[algo])
    assert still is not None
    assert still.moved == 0.0 and still.loss_before == still.loss_after > 0
    matched = diagnose(algo, *DISTILLING[algo])
    assert matched.moved > 0 and matched.loss_before == still.loss_before != matched.loss_after
    assert matched.projected == algo.startswith("fedrd")
    assert matched.starts_real == (algo in ("feddm", "fedrd"))


@pytest.mark.parametrize("algo", ["fedavg", "fedproto"])
def test_a_method_that_distils_nothing_has_no_diagnostics(algo: str):
    assert diagnose(algo) is None


def test_the_share_at_rho_is_that_of_the_features_that_fedfed_releases():
    progress = trained("fedfed")[0]
    experiment = tiny("fedfed")
    plan = experiment.plan
    shard = experiment.shards[plan.victim]
    found = diagnose_distillation(plan, progress, shard)
    assert found.round == plan.method.distill_rounds
    snapshot = progress.snapshots[found.round]
    x = shard.train.x
    features = plan.method.maps(snapshot.broadcast, {}, plan.problem)["feature"](x)
    share = features.flatten(1).norm(dim=1) / x.flatten(1).norm(dim=1)
    reached = share >= plan.method.loss.rho * (1 - 1e-5)
    assert found.at_bound == pytest.approx(float(reached.double().mean()), abs=1e-12)
    assert found.moved is None and found.loss_before is None
    assert diagnose("fedfed", "privacy=none") is None


def test_diagnostics_change_no_number_of_the_run():
    progress = trained("feddm", SMALL)[0]
    experiment = tiny("feddm", SMALL)
    plan = experiment.plan

    def state() -> tuple[State, Values]:
        snapshot = progress.snapshots[0]
        sent = {
            name: {part: value.clone() for part, value in group.items()}
            for name, group in snapshot.sent.items()
        }
        return {name: value.clone() for name, value in progress.server.items()}, sent

    server, sent = state()
    before = torch.get_rng_state()
    first = diagnose_distillation(plan, progress, experiment.shards[plan.victim])
    second = diagnose_distillation(plan, progress, experiment.shards[plan.victim])
    assert first == second and torch.equal(torch.get_rng_state(), before)
    after = state()
    assert equal(server, after[0]) and all(equal(sent[name], after[1][name]) for name in sent)


def test_a_rate_is_stated_in_units_of_the_variance_of_what_it_moves() -> None:
    """Rows twice as wide get a quarter of it; without a spread or a rate there is none."""
    rows = torch.tensor([[0.0, 2.0], [4.0, 6.0]])
    variance = sum((x - 3) ** 2 for x in (0, 2, 4, 6)) / 3
    assert relative_rate(0.5, rows) == pytest.approx(0.5 / variance)
    assert relative_rate(0.5, 2 * rows) == pytest.approx(0.125 / variance)
    assert relative_rate(None, rows) is None and relative_rate(1.0, torch.ones(4)) is None
