"""Problems of several models in one batch: the same images as one by one, within a bound on memory."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from attacks.inversion import gradient_matching
from attacks.inversion.gradient import InvertingGradients
from attacks.inversion.gradient_matching import (
    OBJECTIVES,
    GradientMatching,
    RecordedMatching,
    can_share_batch,
    max_problems_per_batch,
)
from attacks.inversion.victim import LocalSteps, Victim
from tests.attacks.pictures import convnet, digits, rng

LOCAL = LocalSteps(3, 0.1, momentum=0.5)
SHAPE = (1, 1, 8, 8)
SHORT = InvertingGradients(iterations=4, restarts=2, objective="absolute", lr=0.03, schedule="cosine")


def models(count: int = 2) -> list[nn.Module]:
    """The same architecture with other numbers."""
    made = [convnet(4, side=8, depth=1) for _ in range(count)]
    for i, model in enumerate(made):
        for p in model.parameters():
            p.data.add_(0.1 * torch.randn(p.shape, generator=rng(i)))
    return made


def sent(model: nn.Module, first: int, count: int) -> list[Tensor]:
    x, y = digits()
    rows = [Victim(model, LOCAL).simulated_gradients(x[i : i + 1], y[i : i + 1]) for i in range(first, first + count)]
    return [torch.stack([g.detach() for g in part]) for part in zip(*rows)]


def streams() -> list[torch.Generator]:
    return [rng(5), rng(6)]


def test_several_models_in_one_batch_give_the_images_of_each_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    two, asked, calls = models(), [(0, 2), (2, 3)], []
    gradients = [sent(model, *rows) for model, rows in zip(two, asked)]
    alone = [
        SHORT.reconstruct_each(m, g, SHAPE, generator=s, local=LOCAL) for m, g, s in zip(two, gradients, streams())
    ]
    real = GradientMatching.evaluate_batch

    def counted(self: GradientMatching, images: Tensor, *more: Any) -> Any:
        calls.append(len(images))
        return real(self, images, *more)

    monkeypatch.setattr(GradientMatching, "evaluate_batch", counted)
    joined = SHORT.reconstruct_models(two, gradients, SHAPE, generators=streams(), local=LOCAL)
    assert calls == [10] * (SHORT.iterations + 1)  # 5 problems with 2 restarts each, all in every call
    for one, other in zip(alone, joined, strict=True):
        for a, b in zip(one, other, strict=True):
            assert torch.allclose(a.images, b.images, atol=1e-5) and torch.equal(a.labels, b.labels)
            assert a.objective == pytest.approx(b.objective, abs=1e-5)
    assert not torch.allclose(joined[0][0].images, joined[1][0].images, atol=1e-2)


@pytest.mark.parametrize("together", [0, 1, 3])
def test_a_bound_on_memory_changes_no_value(together: int) -> None:
    model, (_, y) = models(1)[0], digits()
    given = sent(model, 0, 4)
    start = torch.rand((4, *SHAPE), generator=rng(1))
    one = GradientMatching(Victim(model, LOCAL), OBJECTIVES["absolute"], given, y[:4, None], 1e-3)
    other = GradientMatching(one.victim, one.objective, given, one.labels, one.tv, together=together)
    for a, b in zip(one(start), other(start), strict=True):
        assert torch.allclose(a, b, atol=1e-6)


def test_twice_the_memory_lets_twice_the_problems_through() -> None:
    model, x = models(1)[0], torch.zeros(SHAPE)
    found = max_problems_per_batch(Victim(model, LOCAL), x, 2**26)
    assert found > 1 and max_problems_per_batch(Victim(model, LOCAL), x, 2**27) in (2 * found, 2 * found + 1)
    longer = max_problems_per_batch(Victim(model, LocalSteps(6, 0.1)), x, 2**26)
    assert longer in (found // 2, found // 2 + 1) and max_problems_per_batch(Victim(model, LOCAL), x, 1) == 1


def test_recorded_kernels_give_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    two = models()
    gradients, found = [sent(m, 0, 2) for m in two], []
    for from_iterations in (10**6, 1):
        monkeypatch.setattr(gradient_matching, "MIN_RECORDED_ITERATIONS", from_iterations)
        made = SHORT.reconstruct_models(two, gradients, SHAPE, generators=streams(), local=LOCAL)
        found.append(torch.cat([r.images for one in made for r in one]))
    assert torch.equal(*found)


def test_kernels_are_recorded_once_and_see_new_images(monkeypatch: pytest.MonkeyPatch) -> None:
    model, (_, y) = models(1)[0], digits()
    matching = GradientMatching(Victim(model, LOCAL), OBJECTIVES["absolute"], sent(model, 0, 2), y[:2, None], 1e-3)
    recorded, calls = RecordedMatching(matching), []
    real = gradient_matching.GradientMatching._evaluate_functional
    monkeypatch.setattr(GradientMatching, "_evaluate_functional", lambda self, *at: calls.append(0) or real(self, *at))
    for seed in (1, 2):
        start = torch.rand((2, *SHAPE), generator=rng(seed))
        made, before = recorded(start), len(calls)
        assert before == 1
        assert all(torch.equal(a, b) for a, b in zip(made, matching(start), strict=True))
        calls.pop()


def test_models_that_cannot_share_a_batch_are_solved_alone() -> None:
    first, second = models()
    wide, moved = convnet(5, side=8, depth=1), copy.deepcopy(second).eval()
    normed = [convnet(4, side=8, depth=1, norm=nn.BatchNorm2d) for _ in range(2)]
    quiet = [copy.deepcopy(model).eval() for model in normed]
    assert can_share_batch([first, second]) and can_share_batch(quiet)
    for name, buffer in quiet[1].named_buffers():
        if name.endswith("running_mean"):
            buffer.add_(1.0)
    for pair in ([first, wide], [first, moved], normed, quiet):
        assert not can_share_batch(pair)
    gradients = [sent(m, 0, 2) for m in (first, wide)]
    found = SHORT.reconstruct_models([first, wide], gradients, SHAPE, generators=streams(), local=LOCAL)
    for model, given, stream, made in zip((first, wide), gradients, streams(), found, strict=True):
        alone = SHORT.reconstruct_each(model, given, SHAPE, generator=stream, local=LOCAL)
        assert all(torch.equal(a.images, b.images) for a, b in zip(alone, made, strict=True))


def test_problems_with_models_of_their_own_need_one_that_can_be_batched() -> None:
    model, (x, y) = convnet(4, side=8, depth=1, norm=nn.BatchNorm2d).train(), digits()
    rows = {name: torch.stack([p.detach(), p.detach()]) for name, p in model.named_parameters()}
    problem = GradientMatching(Victim(model), OBJECTIVES["absolute"], [], y[:2, None], parameters=rows)
    with pytest.raises(ValueError, match=r"^parameters: problems with models of their own"):
        problem(x[:2, None])
