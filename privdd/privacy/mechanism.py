"""What a mechanism is: a randomised function that returns its value and its accounting together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

import dp_accounting as dpa

from privdd.core.types import Tensors
from privdd.privacy.noise import Noise


@dataclass(frozen=True)
class Output:
    """A mechanism's result: what may leave, and the row that it earns.

    event: one application's ``DpEvent``; sensitivity: L2 (or L1 for Laplace) change that one record
    can cause before noise; noise_std: absolute scale of the noise; flags: the side conditions of the
    proof (all must be true, else the ledger turns the event into NonPrivateDpEvent).
    """

    value: Tensors
    event: dpa.DpEvent
    clip_norm: float | None = None
    sensitivity: float | None = None
    why: str = ""
    noise_std: float = 0.0
    flags: Mapping[str, bool] = field(default_factory=dict)
    exact: Tensors | None = None  # before noise: for the sensitivity falsifier only, never stored


@runtime_checkable
class Mechanism(Protocol):
    """``value`` holds per-record contributions; ``noise`` is the only source of randomness."""

    def __call__(self, value: Tensors, noise: Noise) -> Output: ...


@dataclass(frozen=True, slots=True)
class Row:
    """One release before the ledger numbers it (see design: ledger.json)."""

    round: int
    client: int
    name: str
    surface: str
    visible_to: tuple[str, ...]
    shape: Mapping[str, tuple[int, ...]]
    digest: str
    records: int
    event: dpa.DpEvent
    count: int = 1
    partition: str | None = None
    clip_norm: float | None = None
    sensitivity: float | None = None
    why: str = ""
    noise_std: float = 0.0
    flags: Mapping[str, bool] = field(default_factory=dict)
    post_of: tuple[int, ...] = ()
    nonprivate_reason: str | None = None
