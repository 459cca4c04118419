"""A mechanism's value before its noise, and the unit in which its changes are measured."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from privdd.core.types import Tensors
from privdd.privacy.lattice import BITS
from privdd.privacy.mechanism import Mechanism, Output
from privdd.privacy.noise import ZERO_NOISE

VALUE_RTOL = 1e-6
VALUE_ATOL = 1e-9


def value_before_noise(mechanism: Mechanism, rows: Tensors) -> Tensors:
    """A mechanism's value before noise; {} if it shows none.

    That is what it releases if the noise is zero. If its own statement (``Output.exact``) differs
    from that, and it draws no noise from elsewhere, the larger of the two counts, as either may be
    true.
    """
    output = mechanism(rows, ZERO_NOISE)
    stated = output.exact or {}
    if not stated:
        return stated
    # A value may be stated in more digits than it is released in: half a step of the lattice.
    rounding = min(output.lattice or 0.0, 2.0**-BITS * output.noise_std) / 2
    if _is_close(stated, output.value, rounding):
        return stated
    if stated.keys() != output.value.keys():
        return stated
    if any(stated[name].shape != tensor.shape for name, tensor in output.value.items()):
        return stated
    released_size = float(flatten_tensors(output.value).double().norm())
    stated_size = float(flatten_tensors(stated).double().norm())
    is_larger = released_size > stated_size  # False for sizes that are no numbers
    if is_larger and _is_close(mechanism(rows, ZERO_NOISE).value, output.value):
        return output.value
    return stated


def _is_close(first: Tensors, second: Tensors, rounding: float = 0.0) -> bool:
    """Whether two values are equal up to rounding, by so much."""
    if first.keys() != second.keys():
        return False
    if any(first[name].shape != second[name].shape for name in first):
        return False
    return torch.allclose(
        flatten_tensors(first).double(),
        flatten_tensors(second).double(),
        rtol=VALUE_RTOL,
        atol=VALUE_ATOL + rounding,
        equal_nan=True,
    )


def flatten_tensors(value: Tensors) -> Tensor:
    """All numbers of a value as one vector, tensors in order of their names."""
    return torch.cat([value[name].flatten() for name in sorted(value)])


def clean_numbers(mechanism: Mechanism, rows: Tensors) -> Tensor:
    """All numbers of a mechanism's value before noise as one vector."""
    return flatten_tensors(value_before_noise(mechanism, rows))


def stated_multiplier(output: Output) -> float:
    """The noise multiplier z that an output's event states for one record in the batch."""
    event: Any = output.event
    return float(getattr(event, "event", event).noise_multiplier)


def sensitivity_unit(output: Output) -> float:
    """The change before noise that the stated multiplier allows one record, noise_std / z."""
    return output.noise_std / stated_multiplier(output)
