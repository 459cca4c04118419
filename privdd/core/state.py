"""Flat states: every server state and client memory is one mapping of named tensors."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from privdd.core.types import State, Tensors


def pack(prefix: str, values: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """{"a": t} -> {"prefix/a": t}."""
    return {f"{prefix}/{name}": tensor for name, tensor in values.items()}


def unpack(prefix: str, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The part of ``state`` below ``prefix/``, with the prefix stripped."""
    start = f"{prefix}/"
    return {name[len(start) :]: tensor for name, tensor in state.items() if name.startswith(start)}


def flat(values: Mapping[str, Tensors]) -> dict[str, Tensor]:
    """{"update": {"w": t}} -> {"update/w": t}."""
    return {key: t for name, value in values.items() for key, t in pack(name, value).items()}


def nested(state: State) -> dict[str, dict[str, Tensor]]:
    """The inverse of ``flat``."""
    return {name: unpack(name, state) for name in dict.fromkeys(key.split("/", 1)[0] for key in state)}


MARK = "remembered"


def mark() -> State:
    """In the place of a memory that stays with its client."""
    return {MARK: torch.ones(())}


def marked(memory: State) -> bool:
    """Whether a memory is kept elsewhere."""
    return MARK in memory
