"""A client context that records every release: the values before noise, with and without a crafted record.

Guests are crafted records at the end of a client's data. The method and its mechanisms run unchanged. The recording
context (``Witness``) decides, release by release, whether the guests take part, and records both cases on the same
transcript, so that whatever the method does with a release is common to both.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from privdd.core.keys import Keys
from privdd.core.placement import placed
from privdd.core.types import Tensors
from privdd.federated.channel import ClientContext, place_of
from privdd.federated.simulation import Plan
from privdd.privacy.mechanism import Mechanism, Output
from privdd.privacy.noise import SeededNoise


@dataclass(frozen=True)
class Silence:
    """Noise of size zero, for when only a mechanism's value before noise is wanted."""

    def normal(self, shape: tuple[int, ...]) -> Tensor:
        return torch.zeros(shape)

    laplace = uniform = normal


@dataclass(frozen=True)
class Heeded:
    """One recorded release. rows: the contributions, the guests' last; released: the mechanism's output."""

    name: str
    partition: str | None
    rows: Tensors
    guests: int
    released: Output


Observer = Callable[[Mechanism, Heeded], None]


@dataclass
class Witness(ClientContext):
    """The recording context.

    observe: called after each release; inside: (query, partition) -> whether the partition's guests take part in
    this release; guests: partition -> how many guests it has (None: a query over all records); forced: outputs to
    return instead of the real ones; drawn: number of records -> who is drawn (n,) bool.
    """

    observe: Observer = lambda mechanism, heeded: None
    inside: Callable[[str, str | None], bool] = lambda name, partition: False
    guests: Mapping[str | None, int] = field(default_factory=dict)
    forced: Sequence[Tensors] | None = None
    drawn: Callable[[int], Tensor] = lambda count: torch.ones(count, dtype=torch.bool)

    def sample(self, name: str, count: int) -> Tensor:
        """All records are sampled unless ``drawn`` says otherwise: ``inside`` decides about the guests."""
        return self.drawn(count)

    def mechanism(self, name: str, contributions: Tensors, *, partition: str | None = None) -> Tensors:
        mechanism, where = self.mechanisms[name], place_of(contributions)
        contributions = placed(contributions, "cpu")  # what is recorded is compared there
        guests = self.guests.get(partition, 0) if mechanism.per_record else 0
        taking = contributions if self.inside(name, partition) else without(contributions, guests)
        output = mechanism(taking, self.noise)
        self.observe(mechanism, Heeded(name, partition, contributions, guests, output))
        value = output.value if self.forced is None else self.forced[len(self.outputs)]
        self.outputs.append(value)
        return placed(value, where)


def without(rows: Tensors, guests: int) -> Tensors:
    """The rows without the last ``guests``."""
    return {name: tensor[: len(tensor) - guests] for name, tensor in rows.items()} if guests else rows


def exact(mechanism: Mechanism, rows: Tensors) -> Tensors:
    """A mechanism's value before noise; {} where it shows none.

    That is what it releases where the noise is zero. If it says otherwise of itself (``Output.exact``), and does not draw
    noise from elsewhere, the larger of the two counts: either may be what it does.
    """
    output = mechanism(rows, Silence())
    said = output.exact or {}
    if not said or _same(said, output.value) or any(said[n].shape != t.shape for n, t in output.value.items()):
        return said
    larger = float(flat(output.value).double().norm()) > float(flat(said).double().norm())  # not where one is no number
    return output.value if larger and _same(mechanism(rows, Silence()).value, output.value) else said


def _same(one: Tensors, other: Tensors) -> bool:
    """Up to rounding: a value may be shown in more digits than it is released in."""
    if one.keys() != other.keys() or any(one[n].shape != other[n].shape for n in one):
        return False
    return torch.allclose(flat(one).double(), flat(other).double(), rtol=1e-6, atol=1e-9, equal_nan=True)


def flat(value: Tensors) -> Tensor:
    """All numbers of a value as one vector, tensors in order of their names."""
    return torch.cat([value[name].flatten() for name in sorted(value)])


def witness(plan: Plan, round: int, keys: Keys, class_list: Sequence[int] | None = None, **more: Any) -> Witness:
    """The audited client's recording context in ``round``: noise from ``keys``, public streams as in the run."""
    ctx = plan.context(round, plan.victim)
    problem = ctx.problem
    if class_list is not None:
        problem = replace(problem, class_list=tuple(class_list))
    made = Witness(round, plan.victim, ctx.keys, problem, ctx.mechanisms, ctx.queries, "seed", plan.relation, **more)
    made.noise = SeededNoise(keys.torch())
    return made


def multiplier(output: Output) -> float:
    """The noise multiplier that an output's event states for one record in the batch."""
    event: Any = output.event
    return float(getattr(event, "event", event).noise_multiplier)


def unit(output: Output) -> float:
    """The change before noise that the stated multiplier allows one record."""
    return output.noise_std / multiplier(output)
