"""Pooling and sampling off the CPU against torch's own, and what ``deterministic_kernels`` sets; on a GPU, the same bits twice."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from attacks.gpu import average_pool
from privdd.core.device import deterministic_kernels
from privdd.distillation.augmentation import sample_grid
from tests.fake_device import fake_gpu

SIZES = [((8, 8), 1), ((8, 8), 4), ((13, 13), 6), ((7, 5), (3, 2)), ((3, 4), (5, 4))]


def images(*side: int) -> Tensor:
    return torch.rand((3, 2, *side), generator=torch.Generator().manual_seed(0))


def turned(side: tuple[int, int], a: float, b: float) -> Tensor:
    matrix = torch.tensor([[[a, b, 0.1], [-b, a, -0.2]]])
    return F.affine_grid(matrix, [1, 2, *side], align_corners=False)[0]


def with_slope(there: str, x: Tensor, compute: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor]:
    """What ``compute`` makes of x, and the gradient of its squares, computed ``there``."""
    x = x.to(there).requires_grad_(True)
    found = compute(x)
    return found.detach().cpu(), torch.autograd.grad(found.square().sum(), x)[0].cpu()


@pytest.mark.parametrize(("side", "size"), SIZES)
def test_pooling_off_the_cpu_is_torchs(side: tuple[int, int], size: int | tuple[int, int]) -> None:
    expected = with_slope("cpu", images(*side), lambda x: F.adaptive_avg_pool2d(x, size))
    with fake_gpu():
        found = with_slope("cuda", images(*side), lambda x: average_pool(x, size))
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other)
    assert torch.equal(average_pool(images(*side), size), F.adaptive_avg_pool2d(images(*side), size))


@pytest.mark.parametrize("side", [(8, 8), (5, 7)])
@pytest.mark.parametrize(("a", "b"), [(1.0, 0.0), (0.8, 0.3), (1.4, -0.6)])
def test_sampling_off_the_cpu_is_torchs(side: tuple[int, int], a: float, b: float) -> None:
    grid = turned(side, a, b)
    expected = with_slope("cpu", images(*side), lambda x: F.grid_sample(x, grid.expand(3, -1, -1, -1), align_corners=False))
    with fake_gpu():
        found = with_slope("cuda", images(*side), lambda x: sample_grid(x, grid.to("cuda")))
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other)


def flags() -> tuple[bool, bool, bool]:
    return torch.are_deterministic_algorithms_enabled(), torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32


def test_what_is_set_for_a_gpu_is_restored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":16:8")
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", True)
    before = flags()
    with deterministic_kernels("cpu"):
        assert flags() == before
    with pytest.raises(ZeroDivisionError), deterministic_kernels("cuda"):
        assert flags() == (True, False, False)
        raise ZeroDivisionError
    assert flags() == before == (False, False, True)
    assert torch.utils.deterministic.fill_uninitialized_memory  # torch's own choice


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU: torch.cuda.is_available() is False")
@pytest.mark.parametrize("what", ["pooling", "sampling"])
def test_gradients_on_a_gpu_are_the_same_bits_twice(what: str) -> None:
    x, grid = torch.rand((64, 3, 31, 31), generator=torch.Generator().manual_seed(0)), turned((31, 31), 1.3, 0.4)
    ways: dict[str, Callable[[Tensor], Tensor]] = {
        "pooling": lambda x: average_pool(x, 6), "sampling": lambda x: sample_grid(x, grid.to("cuda"))
    }  # fmt: skip
    with deterministic_kernels("cuda"):
        first, second = (with_slope("cuda", x, ways[what]) for _ in range(2))
    assert torch.equal(first[0], second[0]) and torch.equal(first[1], second[1])
