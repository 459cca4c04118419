"""Tests of ``attacks.inversion.gradient``."""

from __future__ import annotations

import copy
import inspect
import math
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from scipy import stats
from torch import Tensor, nn

from attacks.images import match, psnr
from attacks.inversion import analytic, gradient_matching
from attacks.inversion.evaluation import class_mean_images, naive_reconstructions
from attacks.inversion.gradient import (
    DLG,
    IDLG,
    OBJECTIVES,
    SOFTENED_SHARE,
    InvertingGradients,
    LocalSteps,
    SeeThrough,
    SharpeningObjective,
    batchnorm_distance,
    running_statistics,
    sent_statistics,
    soften_relus,
)
from attacks.inversion.gradient_matching import (
    AdamMoments,
    DescentTrace,
    GradientMatching,
    RecordedMatching,
    SignedAdam,
    can_share_batch,
    max_problems_per_batch,
    minimise_objective,
)
from attacks.inversion.victim import LocalSteps as LocalStepsBatched
from attacks.inversion.victim import Victim, update_to_gradients
from tests.attacks.pictures import convnet, digits, drawn, lenet, mlp, pictures, rng, sent

# Attacks that must work, attacks that must fail, and derivatives against autograd.


ALL = [
    InvertingGradients(iterations=5),
    DLG(iterations=1, attempts=1),
    IDLG(iterations=1, attempts=1),
    SeeThrough(iterations=5, seeds=2),
]
ONE = (1, 1, 28, 28)


def counts_denormals_as_zero() -> bool:
    smallest_normal = torch.tensor(torch.finfo(torch.float32).tiny)
    return float(smallest_normal / 2) == 0


@pytest.mark.parametrize("before", [False, True])
def test_a_search_counts_denormal_numbers_as_zero_and_leaves_the_setting(before: bool) -> None:
    processor_can_flush = torch.set_flush_denormal(before)
    inside = []

    def slope(images: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        inside.append(counts_denormals_as_zero())
        value = images.flatten(1).square().sum(1)
        return value, value, 2 * images

    try:
        box = (torch.zeros(()), torch.ones(()))
        minimise_objective(slope, torch.rand(1, *ONE), SignedAdam(2, 0.1), box, rng())
        assert inside == [processor_can_flush] * 3
        assert counts_denormals_as_zero() is (before and processor_can_flush)
    finally:
        torch.set_flush_denormal(False)


@pytest.mark.parametrize(
    "objective",
    [
        gradient_matching.cosine_distance,
        gradient_matching.squared_distance,
        gradient_matching.layerwise_distance,
        gradient_matching.absolute_distance,
    ],
)
def test_cotangents_are_the_derivative_of_the_value(objective: gradient_matching.Objective) -> None:
    g = [
        torch.randn(s, generator=rng(1), dtype=torch.float64).requires_grad_()
        for s in ((3, 4), (5,))
    ]
    t = [torch.randn(s, generator=rng(2), dtype=torch.float64) for s in ((3, 4), (5,))]
    value, cotangents = objective(g, t)
    for found, expected in zip(cotangents, torch.autograd.grad(value, g)):
        assert torch.allclose(found, expected, atol=1e-12)


def test_cosine_spans_the_whole_concatenation() -> None:
    g, t = ([torch.randn(s, generator=rng(k)) for s in ((3, 4), (5,))] for k in (1, 2))
    flat = [torch.cat([p.flatten() for p in part]) for part in (g, t)]
    assert float(gradient_matching.cosine_distance(g, t)[0]) == pytest.approx(
        1 - float(F.cosine_similarity(*flat, dim=0)), abs=1e-6
    )


@pytest.mark.parametrize("problems", [1, 3])
def test_slope_equals_plain_autograd_alone_and_batched(problems: int) -> None:
    model, (x, y) = convnet(4), pictures()
    observed = [sent(model, x[i : i + 2], y[i : i + 2]) for i in range(problems)]
    stacked = [torch.stack(part) for part in zip(*observed)]
    labels = torch.stack([y[i : i + 2] for i in range(problems)])
    start = torch.rand((problems, 2, 1, 28, 28), generator=rng())
    data, total, slope = GradientMatching(
        Victim(model), gradient_matching.cosine_distance, stacked, labels, 0.01
    )(start)
    for r in range(problems):
        leaf = start[r].clone().requires_grad_()
        g = torch.autograd.grad(
            F.cross_entropy(model(leaf), labels[r]), list(model.parameters()), create_graph=True
        )
        a, b = (torch.cat([p.flatten() for p in part]) for part in (g, observed[r]))
        cost = 1 - a @ b / (a.norm() * b.norm())
        whole = cost + 0.01 * gradient_matching.mean_total_variation(leaf)
        assert float(data[r]) == pytest.approx(float(cost), abs=1e-5)
        assert float(total[r]) == pytest.approx(float(whole), abs=1e-5)
        expected = torch.autograd.grad(whole, leaf)[0]
        assert torch.allclose(slope[r], expected, atol=1e-4 * float(expected.abs().max()))


@pytest.mark.nightly(but=["first steps"])
@pytest.mark.parametrize(
    ("attack", "decibels"),
    [
        pytest.param(DLG(iterations=60, tolerance=1e-8), 60, id="dlg"),
        pytest.param(IDLG(iterations=60, tolerance=1e-8), 60, id="idlg"),
        pytest.param(IDLG(iterations=12, tolerance=1e-8), 15, id="first steps"),
    ],
)
def test_dlg_and_idlg_exceed_60_db_on_the_sigmoid_lenet(attack: DLG, decibels: float) -> None:
    model, (x, y) = lenet(), pictures()
    result = attack.reconstruct(model, sent(model, x[1:2], y[1:2]), ONE, generator=rng(1))
    assert float(psnr(result.images, x[1:2])) > decibels
    assert result.labels.tolist() == y[1:2].tolist()


def test_analytic_attack_exceeds_100_db_on_an_mlp() -> None:
    model, (x, y) = mlp(), pictures()
    result = analytic.reconstruct_from_layer(model, sent(model, x[:1], y[:1]), ONE)
    assert float(psnr(result.images, x[:1])) > 100


def test_inverting_gradients_finds_the_record_and_noise_hides_it() -> None:
    model, (x, y) = convnet(16, side=8, depth=1), digits()
    gradients = sent(model, x[:1], y[:1])
    attack = InvertingGradients(iterations=300, tv=1e-4)
    works = attack.reconstruct(model, gradients, (1, 1, 8, 8), generator=rng(1))
    noise = [
        torch.randn(g.shape, generator=rng(9)) * g.norm() / math.sqrt(g.numel()) for g in gradients
    ]
    fails = attack.reconstruct(model, noise, (1, 1, 8, 8), labels=y[:1], generator=rng(1))
    free = max(
        float(psnr(g, x[:1]))
        for g in naive_reconstructions(y[:1], x[100:], y[100:], rng()).values()
    )
    assert float(psnr(works.images, x[:1])) > 25 > free
    assert float(psnr(fails.images, x[:1])) < free + 1
    assert fails.objective > 0.3 > 0.01 > works.objective


def test_large_dp_noise_drops_to_the_baseline() -> None:
    model, (x, y) = convnet(16, side=8, depth=1), digits()
    clean = sent(model, x[:1], y[:1])
    norm = float(torch.cat([g.flatten() for g in clean]).norm())
    # clip 1, sigma 1
    noisy = [g / norm + torch.randn(g.shape, generator=rng(k)) for k, g in enumerate(clean)]
    result = InvertingGradients(iterations=150).reconstruct(
        model, noisy, (1, 1, 8, 8), labels=y[:1], generator=rng()
    )
    free = float(psnr(naive_reconstructions(y[:1], x[100:], y[100:], rng())["class_mean"], x[:1]))
    assert float(psnr(result.images, x[:1])) < free + 1


def test_a_batch_of_four_is_matched() -> None:
    (x, y), model = digits(), convnet(32, side=8, depth=1)
    x = x[[0, 1, 2, 3]]
    y = y[[0, 1, 2, 3]]
    attack = InvertingGradients(iterations=500, tv=1e-4)
    result = attack.reconstruct(
        model, sent(model, x, y), (4, 1, 8, 8), labels=y[[2, 0, 3, 1]], generator=rng()
    )
    order = match(result.images, x)
    assert float(psnr(result.images[order], x).mean()) > 20
    assert result.labels[order].tolist() == y.tolist()


@pytest.mark.parametrize("attack", ALL)
@pytest.mark.parametrize(
    "local",
    [LocalSteps(), LocalSteps(3, 0.1, momentum=0.5, weight_decay=0.01, proximal=0.1, batch_size=2)],
)
def test_objective_vanishes_at_the_truth_and_nowhere_near_it(
    attack: InvertingGradients, local: LocalSteps
) -> None:
    model, (x, y) = convnet(8, norm=nn.BatchNorm2d).train(), pictures()
    gradients = sent(model, x[:4], y[:4], local)
    scale = attack.evaluate_objective(model, gradients, torch.zeros_like(x[:4]), y[:4], local=local)
    assert abs(attack.evaluate_objective(model, gradients, x[:4], y[:4], local=local)) < 1e-5 * max(
        scale, 1
    )
    assert scale > 1e-2


def test_several_local_steps_equal_the_optimiser() -> None:
    model, (x, y) = convnet(4), pictures()
    local = LocalSteps(5, 0.1, momentum=0.9, weight_decay=0.01, proximal=0.3, batch_size=2)
    found = sent(model, x[:4], y[:4], local)
    twin = copy.deepcopy(model)
    before = {n: p.detach().clone() for n, p in twin.named_parameters()}
    optimiser = torch.optim.SGD(twin.parameters(), lr=0.1, momentum=0.9, weight_decay=0.01)
    for step in range(5):
        rows = [2 * step % 4, (2 * step + 1) % 4]
        optimiser.zero_grad()
        pull = sum((p - before[n]).square().sum() for n, p in twin.named_parameters())
        (F.cross_entropy(twin(x[rows]), y[rows]) + 0.15 * pull).backward()
        optimiser.step()
    expected = update_to_gradients(before, {n: p.detach() for n, p in twin.named_parameters()}, 0.1)
    for a, b in zip(found, expected):
        assert torch.allclose(a, b, atol=1e-4 * float(b.abs().max()))
    with pytest.raises(ValueError, match="lacks"):
        update_to_gradients(before, {}, 0.1)


def test_unrolled_updates_are_inverted() -> None:
    model, (x, y), local = convnet(16, side=8, depth=1), digits(), LocalSteps(3, 0.05)
    gradients = sent(model, x[:1], y[:1], local)
    attack = InvertingGradients(iterations=250, tv=1e-4)
    result = attack.reconstruct(model, gradients, (1, 1, 8, 8), generator=rng(1), local=local)
    assert float(psnr(result.images, x[:1])) > 20


@pytest.mark.parametrize("attack", ALL)
def test_model_and_global_streams_stay_as_they_were(attack: InvertingGradients) -> None:
    model, (x, y) = convnet(4, norm=nn.BatchNorm2d).train(), pictures()
    gradients = sent(model, x[:2], y[:2])
    before = copy.deepcopy(model.state_dict())
    stream = torch.random.get_rng_state()
    kept = [g.clone() for g in gradients]
    attack.reconstruct(model, gradients, (2, 1, 28, 28), labels=y[:2], generator=rng())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert model.training and all(p.grad is None for p in model.parameters())
    assert torch.equal(stream, torch.random.get_rng_state())
    assert all(torch.equal(a, b) for a, b in zip(gradients, kept))


@pytest.mark.parametrize("attack", ALL)
def test_no_attack_can_be_handed_the_truth(attack: InvertingGradients) -> None:
    names = set(inspect.signature(attack.reconstruct).parameters)
    assert names <= {
        "model",
        "gradients",
        "shape",
        "labels",
        "mean",
        "std",
        "generator",
        "local",
        "statistics",
    }


@pytest.mark.parametrize("attack", ALL)
def test_colour_any_size_and_normalised_inputs(attack: InvertingGradients) -> None:
    model = convnet(4, channels=3, side=18, depth=1)
    x = torch.rand((2, 3, 18, 18), generator=rng())
    gradients = sent(model, (x - 0.5) / 0.25, torch.tensor([1, 2]))
    result = attack.reconstruct(
        model, gradients, (2, 3, 18, 18), mean=[0.5] * 3, std=[0.25] * 3, generator=rng()
    )
    assert (
        result.images.shape == x.shape
        and 0 <= float(result.images.min()) <= float(result.images.max()) <= 1
    )
    assert result.labels.shape == (2,)
    same = attack.reconstruct(
        model, gradients, (2, 3, 18, 18), mean=[0.5] * 3, std=[0.25] * 3, generator=rng()
    )
    assert torch.equal(same.images, result.images)


def test_restarts_are_chosen_by_the_objective_and_never_hurt_it() -> None:
    model, (x, y) = convnet(8, side=8, depth=1), digits()
    gradients = sent(model, x[:1], y[:1])
    many = InvertingGradients(iterations=40, restarts=4, tv=0.0)
    found = many.reconstruct(model, gradients, (1, 1, 8, 8), labels=y[:1], generator=rng())
    scored = many.evaluate_objective(model, gradients, found.images, y[:1])
    assert scored == pytest.approx(
        found.objective, abs=1e-5
    )  # the kept iterate is the one that was scored
    starts = torch.randn((4, 1, 1, 8, 8), generator=rng())
    lone = []
    for start in starts:
        problem = GradientMatching(
            Victim(model),
            gradient_matching.cosine_distance,
            [g[None] for g in gradients],
            y[None, :1],
        )
        lone.append(
            float(
                minimise_objective(
                    problem,
                    start[None],
                    SignedAdam(40, 0.1),
                    (torch.tensor(0.0), torch.tensor(1.0)),
                    rng(),
                ).data
            )
        )
    assert found.objective == pytest.approx(min(lone), abs=2e-3)


def test_best_iterate_is_kept_with_its_own_value() -> None:
    trace = DescentTrace.start_at(torch.zeros(2, 1, 1, 2, 2))
    trace.keep_better(
        torch.full((2, 1, 1, 2, 2), 1.0), torch.tensor([3.0, 3.0]), torch.tensor([3.0, 3.0])
    )
    trace.keep_better(
        torch.full((2, 1, 1, 2, 2), 2.0), torch.tensor([1.0, 9.0]), torch.tensor([1.0, torch.nan])
    )
    assert trace.images[:, 0, 0, 0, 0].tolist() == [2.0, 1.0] and trace.total.tolist() == [1.0, 3.0]


def test_non_finite_problems_start_afresh() -> None:
    calls = []

    def slope(images: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        calls.append(images.clone())
        value = images.flatten(1).square().sum(1)
        if len(calls) == 3:
            value = torch.stack([value[0], torch.tensor(torch.nan)])
        return value, value, 2 * images

    box = (torch.tensor(-1.0), torch.tensor(1.0))
    start = torch.full((2, 1, 1, 2, 2), 0.9)
    trace = minimise_objective(slope, start, SignedAdam(500, 0.1), box, rng())
    assert not torch.equal(calls[3][1], calls[2][1]) and torch.equal(calls[3][0], calls[2][0])
    assert trace.steps == 500 and float(trace.total.max()) < 1e-3


def test_batchnorm_prior_is_zero_at_the_batch_that_made_it() -> None:
    model = convnet(4, norm=nn.BatchNorm2d).train()
    x = pictures()[0][:6]
    twin = copy.deepcopy(model)
    twin(x)
    own = sent_statistics(model, dict(model.state_dict()), dict(twin.state_dict()), 1)
    assert own.keys() == running_statistics(model).keys()
    statistics = {}
    for (name, (mean, var)), side in zip(own.items(), (28, 14, 7)):
        count = 6 * side * side  # layers keep unbiased variances
        statistics[name] = mean, var * (count - 1) / count
    assert float(batchnorm_distance(Victim(model), x, statistics)) < 1e-4
    assert float(batchnorm_distance(Victim(model), x.flip(1) * 0.5, statistics)) > 1e-2


def test_sent_statistics_of_several_steps_weigh_the_last_batch_most() -> None:
    layer = nn.BatchNorm1d(2, momentum=0.3).train()
    before = {k: v.clone() for k, v in layer.state_dict().items()}
    batches = torch.randn(3, 8, 2, generator=rng(2))
    for batch in batches:
        layer(batch)
    model = nn.Sequential(layer)
    buffers = [{f"0.{k}": v for k, v in state.items()} for state in (before, layer.state_dict())]
    mean, var = sent_statistics(model, *buffers, 3)["0"]
    weights = torch.tensor([0.49, 0.7, 1.0])
    expected = [weights @ at / weights.sum() for at in (batches.mean(1), batches.var(1))]
    torch.testing.assert_close(mean, expected[0])
    torch.testing.assert_close(var, expected[1])
    assert sent_statistics(model, {}, buffers[1], 3) == {}  # no buffers in the broadcast


def test_see_through_learns_something_and_improves_its_objective() -> None:
    model, (x, y) = convnet(16, side=8, depth=1), digits()
    attack = SeeThrough(iterations=200, seeds=2, group=1e-3)
    result = attack.reconstruct(model, sent(model, x[:1], y[:1]), (1, 1, 8, 8), generator=rng())
    assert result.history[-1] < 0.5 * result.history[0]
    assert float(psnr(result.images, x[:1])) > 15


def test_bad_requests_say_what_is_needed() -> None:
    model, (x, y) = mlp(), pictures()
    gradients = sent(model, x[:1], y[:1])
    attack = InvertingGradients(iterations=1)
    with pytest.raises(ValueError, match="those of model"):
        attack.reconstruct(model, gradients[::-1], ONE, generator=rng())
    with pytest.raises(ValueError, match="NaN"):
        attack.reconstruct(model, [g * math.nan for g in gradients], ONE, generator=rng())
    with pytest.raises(ValueError, match="std="):
        attack.reconstruct(model, gradients, ONE, std=0.0, generator=rng())
    for bad in ({"iterations": 0}, {"tv": math.nan}, {"restarts": 0}, {"lr": -1.0}):
        with pytest.raises(ValueError):
            InvertingGradients(**bad)
    headless = drawn(nn.Sequential(nn.Conv2d(1, 10, 28), nn.Flatten()))
    with pytest.raises(ValueError, match="pass labels="):
        attack.reconstruct(headless, sent(headless, x[:1], y[:1]), ONE, generator=rng())


# Problems of several models in one batch: the same images as one by one, within a bound on memory.


LOCAL = LocalStepsBatched(3, 0.1, momentum=0.5)
SHAPE = (1, 1, 8, 8)
SHORT = InvertingGradients(
    iterations=4, restarts=2, objective="absolute", lr=0.03, schedule="cosine"
)


def models(count: int = 2) -> list[nn.Module]:
    """The same architecture with other numbers."""
    made = [convnet(4, side=8, depth=1) for _ in range(count)]
    for i, model in enumerate(made):
        for p in model.parameters():
            p.data.add_(0.1 * torch.randn(p.shape, generator=rng(i)))
    return made


def sent_batched(model: nn.Module, first: int, count: int) -> list[Tensor]:
    x, y = digits()
    rows = [
        Victim(model, LOCAL).simulated_gradients(x[i : i + 1], y[i : i + 1])
        for i in range(first, first + count)
    ]
    return [torch.stack([g.detach() for g in part]) for part in zip(*rows)]


def streams() -> list[torch.Generator]:
    return [rng(5), rng(6)]


def test_several_models_in_one_batch_give_the_images_of_each_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    two = models()
    asked = [(0, 2), (2, 3)]
    calls = []
    gradients = [sent_batched(model, *rows) for model, rows in zip(two, asked)]
    alone = [
        SHORT.reconstruct_each(m, g, SHAPE, generator=s, local=LOCAL)
        for m, g, s in zip(two, gradients, streams())
    ]
    real = GradientMatching.evaluate_batch

    def counted(self: GradientMatching, images: Tensor, *more: Any) -> Any:
        calls.append(len(images))
        return real(self, images, *more)

    monkeypatch.setattr(GradientMatching, "evaluate_batch", counted)
    joined = SHORT.reconstruct_models(two, gradients, SHAPE, generators=streams(), local=LOCAL)
    assert calls == [10] * (
        SHORT.iterations + 1
    )  # 5 problems with 2 restarts each, all in every call
    for one, other in zip(alone, joined, strict=True):
        for a, b in zip(one, other, strict=True):
            assert torch.allclose(a.images, b.images, atol=1e-5) and torch.equal(a.labels, b.labels)
            assert a.objective == pytest.approx(b.objective, abs=1e-5)
    assert not torch.allclose(joined[0][0].images, joined[1][0].images, atol=1e-2)


@pytest.mark.parametrize("together", [0, 1, 3])
def test_a_bound_on_memory_changes_no_value(together: int) -> None:
    model, (_, y) = models(1)[0], digits()
    given = sent_batched(model, 0, 4)
    start = torch.rand((4, *SHAPE), generator=rng(1))
    one = GradientMatching(Victim(model, LOCAL), OBJECTIVES["absolute"], given, y[:4, None], 1e-3)
    other = GradientMatching(
        one.victim, one.objective, given, one.labels, one.tv, together=together
    )
    for a, b in zip(one(start), other(start), strict=True):
        assert torch.allclose(a, b, atol=1e-6)


def test_twice_the_memory_lets_twice_the_problems_through() -> None:
    model = models(1)[0]
    x = torch.zeros(SHAPE)
    found = max_problems_per_batch(Victim(model, LOCAL), x, 2**26)
    assert found > 1 and max_problems_per_batch(Victim(model, LOCAL), x, 2**27) in (
        2 * found,
        2 * found + 1,
    )
    longer = max_problems_per_batch(Victim(model, LocalStepsBatched(6, 0.1)), x, 2**26)
    assert (
        longer in (found // 2, found // 2 + 1)
        and max_problems_per_batch(Victim(model, LOCAL), x, 1) == 1
    )


@pytest.mark.nightly
def test_recorded_kernels_give_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    two = models()
    gradients = [sent_batched(m, 0, 2) for m in two]
    found = []
    for from_iterations in (10**6, 1):
        monkeypatch.setattr(gradient_matching, "MIN_RECORDED_ITERATIONS", from_iterations)
        made = SHORT.reconstruct_models(two, gradients, SHAPE, generators=streams(), local=LOCAL)
        found.append(torch.cat([r.images for one in made for r in one]))
    assert torch.equal(*found)


def test_kernels_are_recorded_once_and_see_new_images(monkeypatch: pytest.MonkeyPatch) -> None:
    model, (_, y) = models(1)[0], digits()
    matching = GradientMatching(
        Victim(model, LOCAL), OBJECTIVES["absolute"], sent_batched(model, 0, 2), y[:2, None], 1e-3
    )
    recorded = RecordedMatching(matching)
    calls = []
    real = gradient_matching.GradientMatching._evaluate_functional
    monkeypatch.setattr(
        GradientMatching,
        "_evaluate_functional",
        lambda self, *at: calls.append(0) or real(self, *at),
    )
    for seed in (1, 2):
        start = torch.rand((2, *SHAPE), generator=rng(seed))
        made = recorded(start)
        before = len(calls)
        assert before == 1
        assert all(torch.equal(a, b) for a, b in zip(made, matching(start), strict=True))
        calls.pop()


def test_models_that_cannot_share_a_batch_are_solved_alone() -> None:
    first, second = models()
    wide = convnet(5, side=8, depth=1)
    moved = copy.deepcopy(second).eval()
    normed = [convnet(4, side=8, depth=1, norm=nn.BatchNorm2d) for _ in range(2)]
    quiet = [copy.deepcopy(model).eval() for model in normed]
    assert can_share_batch([first, second]) and can_share_batch(quiet)
    for name, buffer in quiet[1].named_buffers():
        if name.endswith("running_mean"):
            buffer.add_(1.0)
    for pair in ([first, wide], [first, moved], normed, quiet):
        assert not can_share_batch(pair)
    gradients = [sent_batched(m, 0, 2) for m in (first, wide)]
    found = SHORT.reconstruct_models(
        [first, wide], gradients, SHAPE, generators=streams(), local=LOCAL
    )
    for model, given, stream, made in zip((first, wide), gradients, streams(), found, strict=True):
        alone = SHORT.reconstruct_each(model, given, SHAPE, generator=stream, local=LOCAL)
        assert all(torch.equal(a.images, b.images) for a, b in zip(alone, made, strict=True))


def test_problems_with_models_of_their_own_need_one_that_can_be_batched() -> None:
    model, (x, y) = convnet(4, side=8, depth=1, norm=nn.BatchNorm2d).train(), digits()
    rows = {name: torch.stack([p.detach(), p.detach()]) for name, p in model.named_parameters()}
    problem = GradientMatching(
        Victim(model), OBJECTIVES["absolute"], [], y[:2, None], parameters=rows
    )
    with pytest.raises(ValueError, match=r"^parameters: problems with models of their own"):
        problem(x[:2, None])


# Networks with rounded corners: they become the victim's own, and the search keeps what it found
# there alone.


def test_a_softened_network_is_near_the_victims_and_in_the_end_equal() -> None:
    model = convnet(8, side=8, depth=1)
    x = digits()[0][:4]
    twin, corners = soften_relus(model)
    relus = sum(isinstance(m, nn.ReLU) for m in model.modules())
    assert len(corners) == relus > 0 and not any(isinstance(m, nn.ReLU) for m in twin.modules())
    assert [n for n, _ in twin.named_parameters()] == [n for n, _ in model.named_parameters()]
    assert torch.equal(twin(x), model(x))
    gaps = []
    for beta in (10.0, 100.0, 1000.0):
        for corner in corners:
            corner.beta = beta
        gaps.append(float((twin(x) - model(x)).abs().max()))
    assert 0 < gaps[2] < gaps[1] < gaps[0] < 1


def test_corners_sharpen_and_are_put_back() -> None:
    _, corners = soften_relus(convnet(2, side=8, depth=1))
    seen: list[float] = []
    blank = torch.zeros(1)

    def slope(images: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        seen.append(corners[0].beta)
        return blank, blank, images

    sharpening = SharpeningObjective(slope, corners, 10.0, 20)
    for _ in range(20):
        sharpening(blank)
    assert seen[0] == 10 and seen[: int(20 * SOFTENED_SHARE)] == sorted(
        seen[: int(20 * SOFTENED_SHARE)]
    )
    assert seen[int(20 * SOFTENED_SHARE) - 1] < 1000 and set(seen[int(20 * SOFTENED_SHARE) :]) == {
        0.0
    }


@pytest.mark.nightly(cases=["better0"])
@pytest.mark.parametrize("better", [{"soften": 100.0}, {"objective": "absolute"}])
def test_eight_records_are_found_where_the_published_recipe_stalls(
    better: dict[str, float | str],
) -> None:
    (x, y), model = digits(), convnet(32, side=8, depth=2)
    quality = []
    gradients = [g[None] for g in sent(model, x[:8], y[:8])]
    near = {"start": class_mean_images(x[300:], y[300:], 10)[y[:8]], "spread": 0.1}
    published = InvertingGradients(iterations=250, tv=1e-4, lr=0.03, schedule="cosine")
    for attack in (published, replace(published, **better)):  # type: ignore[arg-type]
        found = attack.reconstruct_each(
            model, gradients, (8, 1, 8, 8), labels=y[None, :8], generator=rng(1), **near
        )[0]  # type: ignore[arg-type]
        quality.append(float(psnr(found.images[match(found.images, x[:8])], x[:8]).mean()))
        assert (
            abs(
                found.objective
                - attack.evaluate_objective(model, [g[0] for g in gradients], found.images, y[:8])
            )
            < 1e-4
        )
    assert quality[1] > quality[0] + 3


# The optimiser of the search, against closed forms and another library.


def test_the_rate_is_that_of_the_published_schedules() -> None:
    """Divided by ten after 3/8, 5/8 and 7/8 of the steps; or half a cosine; warmed up linearly from
    the first step on."""
    steps = SignedAdam(80, 0.5)
    assert [steps.learning_rate(t) for t in (0, 29, 30, 49, 50, 69, 70, 79)] == pytest.approx(
        [0.5, 0.5, *[0.05] * 2, *[0.005] * 2, *[0.0005] * 2]
    )
    warm = SignedAdam(1000, 0.5, warmup=10)
    assert [warm.learning_rate(t) for t in (0, 4, 9, 10, 15, 300)] == pytest.approx(
        [0.05, 0.25, 0.5, 0.5, 0.5, 0.5]
    )
    cosine = SignedAdam(100, 2.0, schedule="cosine", warmup=4)
    assert [cosine.learning_rate(t) for t in (1, 50, 100)] == pytest.approx(
        [(0.01 + 0.99 * (1 + math.cos(math.pi / 100)) / 2), 1.01, 0.02]
    )


@pytest.mark.parametrize("signed", [False, True])
def test_steps_are_those_of_torchs_adam(signed: bool) -> None:
    slopes = [torch.randn(3, 4, dtype=torch.float64, generator=rng(t)) for t in range(6)]
    place = torch.zeros(3, 4, dtype=torch.float64, requires_grad=True)
    other = torch.optim.Adam([place], lr=0.3)
    mine = torch.zeros(3, 4, dtype=torch.float64)
    moments = AdamMoments(mine, SignedAdam(6, 0.3, signed=signed))
    for t, slope in enumerate(slopes):
        place.grad = slope.sign() if signed else slope.clone()
        other.step()
        mine = mine + moments.step(slope, t, 0.3)
        assert torch.allclose(mine, place, atol=1e-6)


def test_langevin_noise_has_its_scale() -> None:
    """Without a slope the iterates are a random walk: the sum of 50 steps, chi-squared at 1e-6 each
    way."""
    rule = SignedAdam(51, 0.1, schedule="cosine", langevin=0.7)
    start = torch.zeros(1, 4, 1, 30, 30)
    wide = torch.tensor(1e9)
    seen: list[Tensor] = []

    def flat(images: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        seen.append(images.clone())
        return torch.zeros(1), torch.zeros(1), torch.zeros_like(images)

    minimise_objective(flat, start, rule, (-wide, wide), rng(1))
    variance = sum((0.7 * rule.learning_rate(t)) ** 2 for t in range(51))
    square = float(seen[-1].double().square().sum())
    n = seen[-1].numel()
    p = lambda scale: stats.chi2.cdf(square / (scale**2 * variance), n)  # noqa: E731
    assert 1e-6 < p(1) < 1 - 1e-6 and p(2 / 3) > 1 - 1e-6 and p(3 / 2) < 1e-6
