"""All records of a client from the update that it really sent: against updates whose records are known."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from attacks.inversion.gradient import InvertingGradients
from attacks.inversion.gradient_attack import MIN_ITERATIONS, UpdateInversion, pose_update_problem
from attacks.inversion.victim import LocalSteps, Victim
from attacks.types import Adversary, Capture, Knowledge, Surface, Truth, View
from privdd.core.types import Records
from privdd.training.sgd import draw_batches, local_sgd
from tests.attacks.pictures import convnet, digits, rng

SOLVER = InvertingGradients(iterations=250, tv=1e-4, lr=0.03, objective="absolute", schedule="cosine")
ATTACK = UpdateInversion(SOLVER, budget=10**6)
KEYS = {"lr": 0.05, "momentum": 0.9, "weight_decay": 1e-3}


def _truth(n: int) -> Truth:
    x, y = digits()
    return Truth(x[:n], y[:n], x[100:160], y[100:160], torch.bincount(y[:n], minlength=10))


def _scene(truth: Truth, model: nn.Module, epochs: int, batch: int | None = None) -> View:
    """A view of the update that the product's own local training makes of the records."""
    size, x, y = batch or len(truth.x), *digits()
    records = Records(truth.x, truth.y, torch.arange(len(truth.x)))
    start = {n: t.detach().clone() for n, t in model.state_dict().items()}
    after, steps = local_sgd(model, start, records, batch_size=size, epochs=epochs, generator=rng(5), **KEYS)
    settings: dict[str, Any] = {**KEYS, "local_steps": steps, "batch_size": size, "batch_records": len(truth.x)}
    knowledge = Knowledge((1, 8, 8), 10, x[300:800], y[300:800], model, settings=settings)
    return View(Surface.UPDATE, Adversary.SERVER, (Capture(0, 0, "update", after, start),), knowledge)


def _judged(attack: UpdateInversion, view: View, truth: Truth) -> dict[str, Any]:
    return dict(attack.judge(attack.run(view, rng(1)), view, truth).measures)


@pytest.mark.parametrize("batch", [8, 4])
def test_the_simulation_is_the_products_own_training(batch: int) -> None:
    """One epoch from float64 parameters: the records in the order of the batches give the update to 1e-9."""
    truth, model = _truth(8), convnet(4, side=8, depth=1).double()
    records = Records(truth.x.double(), truth.y, torch.arange(8))
    start = {n: t.detach().clone() for n, t in model.state_dict().items()}
    after, steps = local_sgd(model, start, records, batch_size=batch, epochs=1, generator=rng(5), **KEYS)
    order = torch.cat([next(pages) for pages in [draw_batches(8, batch, rng(5), torch.device("cpu"))] for _ in range(steps)])
    found = Victim(model, LocalSteps(steps=steps, batch_size=batch, **KEYS)).simulated_gradients(records.x[order], truth.y[order])
    for gradient, name in zip(found, dict(model.named_parameters())):
        assert torch.allclose(start[name] - KEYS["lr"] * gradient, after[name], atol=1e-9, rtol=0)


@pytest.mark.parametrize("epochs", [1, 3])
def test_several_records_of_a_real_update_are_found(epochs: int) -> None:
    truth, model = _truth(4), convnet(16, side=8, depth=1)
    view = _scene(truth, model, epochs)
    found = _judged(ATTACK, view, truth)
    assert found["n"] == 4 and found["label_accuracy"] == 1 and found["diagnostics"]["simulated"]
    assert found["diagnostics"]["objective_at_truth"][0] < 1e-3
    free = max(v for k, v in found["baselines"].items() if k.startswith("psnr"))
    assert found["diagnostics"]["psnr_interval"][0] > free + 2 and "no closer than" not in found["note"]


def test_another_clients_update_says_nothing_about_these_records() -> None:
    truth, model = _truth(4), convnet(16, side=8, depth=1)
    x, _ = digits()
    other = Truth(x[40:44], truth.y, truth.heldout_x, truth.heldout_y, truth.counts)
    found = _judged(replace(ATTACK, budget=2000), _scene(other, model, 1), truth)
    assert "no closer than a guess" in found["note"]


def test_labels_in_a_wrong_order_do_not_explain_the_update() -> None:
    truth, model = _truth(4), convnet(8, side=8, depth=1)
    problem = pose_update_problem(_scene(truth, model, 1), _scene(truth, model, 1).captures[0], 8)
    right = SOLVER.evaluate_objective(problem.model, problem.gradients, truth.x, truth.y, local=problem.local)
    wrong = SOLVER.evaluate_objective(problem.model, problem.gradients, truth.x, truth.y.roll(1), local=problem.local)
    assert right < 1e-3 and wrong > 0.1


def test_many_steps_are_approximated_half_way_and_the_budget_holds() -> None:
    truth, model = _truth(12), convnet(8, side=8, depth=1)
    view = _scene(truth, model, 4, batch=4)  # 12 steps
    problem, near = pose_update_problem(view, view.captures[0], 8), pose_update_problem(view, view.captures[0], 12)
    assert not problem.simulated and near.simulated and near.gradients_per_step(12) == 48 and problem.gradients_per_step(12) == 12
    ends = view.captures[0].broadcast, view.captures[0].value
    for name, value in problem.model.named_parameters():
        assert torch.allclose(value, (ends[0][name] + ends[1][name]) / 2, atol=1e-6)
    at_truth = replace(SOLVER, objective="cosine").evaluate_objective(
        problem.model, problem.gradients, truth.x, truth.y, local=problem.local
    )
    assert at_truth < 0.2
    notes = replace(ATTACK, budget=600).run(view, rng(1)).notes
    assert notes["iterations"] == 50 and not notes["simulated"]
    assert replace(ATTACK, budget=1).run(view, rng(1)).notes["iterations"] == MIN_ITERATIONS


def test_labels_are_counted_for_all_records_however_few_images_are_sought() -> None:
    """One image says little of twelve labels: the share is that of the recovered counts, 1 where they are right."""
    truth, model = _truth(12), convnet(8, side=8, depth=1)
    few = _judged(replace(ATTACK, budget=600, records=1), _scene(truth, model, 1), truth)
    assert few["n"] == 1 and few["label_accuracy"] > 0.8


def test_batch_norm_statistics_count_where_they_were_sent() -> None:
    truth, model = _truth(6), convnet(4, side=8, depth=1, norm=nn.BatchNorm2d).train()
    view = _scene(truth, model, 1)
    capture = view.captures[0]
    statistics = pose_update_problem(view, capture, 8).statistics
    (name,) = [n for n, m in model.named_modules() if isinstance(m, nn.BatchNorm2d)]
    seen = dict(model.named_modules())["0"](truth.x)
    assert torch.allclose(statistics[name][0], seen.mean((0, 2, 3)), atol=1e-5)
    kept = {n: v for n, v in capture.value.items() if "running" not in n}
    silent = replace(capture, value={**kept, **{n: v for n, v in capture.broadcast.items() if "running" in n}})
    assert not pose_update_problem(view, silent, 8).statistics


def test_without_a_known_model_there_is_nothing_to_read() -> None:
    view = _scene(_truth(2), convnet(4, side=8, depth=1), 1)
    assert ATTACK.nothing_to_read(replace(view, knowledge=replace(view.knowledge, model=None)))
    assert not ATTACK.nothing_to_read(view)


@pytest.mark.parametrize("wrong", [{"budget": 0}, {"records": 0}, {"simulated": 0}, {"spread": -1.0}])
def test_bad_settings_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        UpdateInversion(**wrong)


def test_a_softened_search_has_no_plateau() -> None:
    with pytest.raises(ValueError, match="patience=5"):
        InvertingGradients(soften=100.0, patience=5)
