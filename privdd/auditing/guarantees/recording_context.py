"""A client's context that keeps what a guarantee is about: the values before noise, with and without a guest.

Guests are crafted records at the end of a client's data. The method and its mechanisms run as they
are; the witness only decides, release by release, whether the guests take part, and sees both cases
on the same transcript. So whatever the method does with a release stays common to both.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from privdd.core.keys import Keys
from privdd.core.types import Tensors
from privdd.federated.channel import ClientContext
from privdd.federated.simulation import Plan
from privdd.privacy.mechanism import Mechanism, Output
from privdd.privacy.noise import SeededNoise


@dataclass(frozen=True)
class Silence:
    """Noise of size zero, for the case that did not happen: only its value before noise is wanted."""

    def normal(self, shape: tuple[int, ...]) -> Tensor:
        return torch.zeros(shape)

    laplace = uniform = normal


@dataclass(frozen=True)
class Heeded:
    """One release. rows: contributions, the guests' last; released: what left."""

    name: str
    partition: str | None
    rows: Tensors
    guests: int
    released: Output


Observer = Callable[[Mechanism, Heeded], None]


@dataclass
class Witness(ClientContext):
    """observe: called after each release; inside: partition -> whether its guests take part (per release);
    guests: partition -> how many guests it has, None for a query over all records; forced: outputs that
    are returned instead of those made.
    """

    observe: Observer = lambda mechanism, heeded: None
    inside: Callable[[str, str | None], bool] = lambda name, partition: False
    guests: Mapping[str | None, int] = field(default_factory=dict)
    forced: Sequence[Tensors] | None = None

    def sample(self, name: str, count: int) -> Tensor:
        """Everyone: the coins of the guests are thrown in ``inside``, the others' are all heads."""
        return torch.ones(count, dtype=torch.bool)

    def mechanism(self, name: str, contributions: Tensors, *, partition: str | None = None) -> Tensors:
        mechanism = self.mechanisms[name]
        guests = self.guests.get(partition, 0) if mechanism.per_record else 0
        taking = contributions if self.inside(name, partition) else without(contributions, guests)
        output = mechanism(taking, self.noise)
        self.observe(mechanism, Heeded(name, partition, contributions, guests, output))
        value = output.value if self.forced is None else self.forced[len(self.outputs)]
        self.outputs.append(value)
        return value


def without(rows: Tensors, guests: int) -> Tensors:
    """The rows but for the last ``guests``."""
    return {name: tensor[: len(tensor) - guests] for name, tensor in rows.items()} if guests else rows


def exact(mechanism: Mechanism, rows: Tensors) -> Tensors:
    """A mechanism's value before noise."""
    return mechanism(rows, Silence()).exact or {}


def flat(value: Tensors) -> Tensor:
    """All numbers of a value as one vector, tensors in order of their names."""
    return torch.cat([value[name].flatten() for name in sorted(value)])


def witness(plan: Plan, round: int, keys: Keys, class_list: Sequence[int] | None = None, **more: Any) -> Witness:
    """The context of the audited client in ``round``, its private noise from ``keys``; public coins stay."""
    ctx = plan.context(round, plan.victim)
    problem = ctx.problem
    if class_list is not None:
        problem = replace(problem, class_list=tuple(class_list))
    made = Witness(round, plan.victim, ctx.keys, problem, ctx.mechanisms, ctx.queries, "seed", plan.relation, **more)
    made.noise = SeededNoise(keys.torch())
    return made
