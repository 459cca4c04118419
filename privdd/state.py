"""Flat states: every server state and client memory is one mapping of named tensors."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor


def pack(prefix: str, values: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """{"a": t} -> {"prefix/a": t}."""
    return {f"{prefix}/{name}": tensor for name, tensor in values.items()}


def unpack(prefix: str, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The part of ``state`` below ``prefix/``, with the prefix stripped."""
    start = f"{prefix}/"
    return {name[len(start) :]: tensor for name, tensor in state.items() if name.startswith(start)}
