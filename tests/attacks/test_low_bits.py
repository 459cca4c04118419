"""Low bits: numbers on a public lattice pass, float noise does not, whatever the clean value is."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from attacks.low_bits import NO_BIT, examine_low_bits, is_off_lattice, lowest_set_bits

STD = 3.0
STEP = 2.0**-15  # about STD * 2**-16


def drawn(clean: Tensor, seed: int = 0) -> Tensor:
    return (
        clean.double()
        + STD * torch.randn(clean.shape, generator=torch.Generator().manual_seed(seed)).double()
    )


@pytest.mark.parametrize("clean", [0.0, 1.0, 10.0])
def test_lattice_numbers_pass_and_their_step_is_found(clean: float) -> None:
    rounded = ((drawn(torch.full((500,), clean)) / STEP).round() * STEP).float()
    assert not examine_low_bits(rounded, STD, STEP).off
    found = examine_low_bits(rounded, STD)
    assert found.step == STEP and not found.off and found.judged > 400


@pytest.mark.parametrize("clean", [0.0, 1.0, 10.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_float_noise_is_found(clean: float, dtype: torch.dtype) -> None:
    released = drawn(torch.full((50,), clean)).to(dtype)
    assert examine_low_bits(released, STD).off and examine_low_bits(released, STD).step == 0
    assert examine_low_bits(released, STD, STEP).off


def test_one_number_off_the_lattice_is_enough() -> None:
    released = torch.arange(100.0) * STEP
    released[7] += STEP / 2
    assert examine_low_bits(released, STD, STEP).off == 1
    assert is_off_lattice(released, STEP).nonzero().tolist() == [[7]]


def test_numbers_that_are_none_are_off() -> None:
    assert is_off_lattice(torch.tensor([1.0, math.nan, math.inf]), 0.5).tolist() == [
        False,
        True,
        True,
    ]


def test_zeros_are_on_every_lattice() -> None:
    assert not examine_low_bits(torch.zeros(5), STD).off


@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf])
def test_bad_scales_are_refused(bad: float) -> None:
    with pytest.raises(ValueError, match="std="):
        examine_low_bits(torch.zeros(1), bad)
    with pytest.raises(ValueError, match="step="):
        examine_low_bits(torch.zeros(1), 1.0, bad)


def test_lowest_bits_of_numbers_that_are_known() -> None:
    known = torch.tensor([0.75, 4.0, -6.0, 0.0, 2.0**-1074 * 8, 1 + 2.0**-52], dtype=torch.float64)
    assert lowest_set_bits(known).tolist() == [-2, 2, 1, NO_BIT, -1071, -52]
