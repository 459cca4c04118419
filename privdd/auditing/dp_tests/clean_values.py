"""A mechanism's value before its noise, and the unit in which its changes are measured."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from privdd.core.types import Tensors
from privdd.privacy.lattice import BITS
from privdd.privacy.mechanism import Mechanism, Output
from privdd.privacy.noise import ZERO_NOISE


def value_before_noise(mechanism: Mechanism, rows: Tensors) -> Tensors:
    """A mechanism's value before noise; {} where it shows none. That is what it releases where the
    noise is zero. If its own statement (``Output.exact``) differs from that, and it draws no noise
    from elsewhere, the larger of the two counts, as either may be true."""
    output = mechanism(rows, ZERO_NOISE)
    said = output.exact or {}
    rounded = min(output.lattice or 0.0, 2.0**-BITS * output.noise_std) / 2
    shapes_differ = (
        any(said[n].shape != t.shape for n, t in output.value.items()) if said else False
    )
    if not said or _is_close(said, output.value, rounded) or shapes_differ:
        return said
    sizes = [float(flatten_tensors(value).double().norm()) for value in (output.value, said)]
    larger = sizes[0] > sizes[1]  # not where one is no number
    return (
        output.value
        if larger and _is_close(mechanism(rows, ZERO_NOISE).value, output.value)
        else said
    )


def _is_close(one: Tensors, other: Tensors, rounded: float = 0.0) -> bool:
    """Up to rounding, by so much: a value may be shown in more digits than it is released in."""
    if one.keys() != other.keys() or any(one[n].shape != other[n].shape for n in one):
        return False
    a, b = (flatten_tensors(value).double() for value in (one, other))
    return torch.allclose(a, b, rtol=1e-6, atol=1e-9 + rounded, equal_nan=True)


def flatten_tensors(value: Tensors) -> Tensor:
    """All numbers of a value as one vector, tensors in order of their names."""
    return torch.cat([value[name].flatten() for name in sorted(value)])


def clean_numbers(mechanism: Mechanism, rows: Tensors) -> Tensor:
    """All numbers of a mechanism's value before noise as one vector."""
    return flatten_tensors(value_before_noise(mechanism, rows))


def stated_multiplier(output: Output) -> float:
    """The noise multiplier that an output's event states for one record in the batch."""
    event: Any = output.event
    return float(getattr(event, "event", event).noise_multiplier)


def sensitivity_unit(output: Output) -> float:
    """The change before noise that the stated multiplier allows one record."""
    return output.noise_std / stated_multiplier(output)
