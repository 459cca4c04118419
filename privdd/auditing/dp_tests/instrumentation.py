"""How guarantee tests run a client's round: contexts that record every release, with and without
the guests.

Guests are crafted records (canaries) at the end of a client's data. The method and its mechanisms
run unchanged, and both versions of a release see the same transcript."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from privdd.core.device import to_device
from privdd.core.rng import Keys
from privdd.core.types import Tensors
from privdd.federated.channel import (
    ClientContext,
    ReleaseObserver,
    UndeclaredArtifact,
    device_of,
    find_answer,
)
from privdd.federated.simulation import Plan
from privdd.privacy.clipping import count_records, take_records
from privdd.privacy.mechanism import Mechanism, Output
from privdd.privacy.noise import Noise, SeededNoise


@dataclass
class InstrumentedContext(ClientContext):
    """A client's round played again: ``observer`` says who is sampled and what each query is
    answered."""

    def sample(self, name: str, count: int) -> Tensor:
        everyone = torch.ones(count, dtype=torch.bool)
        sampled = self._player.on_sample(
            name, float(self.mechanisms[name].sampling_probability), everyone
        )
        return everyone if sampled is None else sampled

    def mechanism(
        self, name: str, contributions: Tensors, *, partition: str | None = None
    ) -> Tensors:
        if name not in self.queries:
            raise UndeclaredArtifact(
                f"query {name!r} is not declared; declared are {sorted(self.queries)}"
            )
        rows = to_device(contributions, "cpu")  # what is noted is compared there
        value = self._player.on_release(self.mechanisms[name], name, None, partition, rows) or {}
        self.outputs.append(value)
        return to_device(value, device_of(contributions))

    @property
    def _player(self) -> ReleaseObserver:
        if self.observer is None:
            raise ValueError("an instrumented round needs an observer that answers")
        return self.observer


def instrumented_context(
    plan: Plan, round: int, observer: ReleaseObserver, class_list: Sequence[int] | None = None
) -> InstrumentedContext:
    """The audited client's round as ``observer`` plays it: public streams as in the run."""
    ctx = plan.client_context(round, plan.victim)
    if class_list is None:
        problem = ctx.problem
    else:
        problem = replace(ctx.problem, class_list=tuple(class_list))
    held = (ctx.keys, problem, ctx.mechanisms, ctx.queries, "seed", plan.relation)
    return InstrumentedContext(round, plan.victim, *held, observer=observer)


@dataclass(frozen=True)
class RecordedRelease:
    """One recorded release. rows: the contributions, the guests' last; released: the mechanism's
    output."""

    name: str
    partition: str | None
    rows: Tensors
    guests: int
    released: Output


@dataclass
class ReleaseRecorder:
    """Runs every release, with the guests or without, and tells ``observe`` of it.

    inside: (query, partition) -> whether the partition's guests take part in this release; guests:
        partition -> how many guests it has (None: a query over all records); forced: outputs to
        return instead of the real ones; drawn: number of
    records -> who is drawn (n,) bool, all unless it is given: ``inside`` decides about the guests.
    """

    noise: Noise
    observe: Callable[[Mechanism, RecordedRelease], None]
    inside: Callable[[str, str | None], bool] = lambda name, partition: False
    guests: Mapping[str | None, int] = field(default_factory=dict)
    forced: Sequence[Tensors] | None = None
    drawn: Callable[[int], Tensor] | None = None
    answered: int = 0

    def on_sample(self, name: str, probability: float, taken: Tensor) -> Tensor:
        return self.drawn(len(taken)) if self.drawn else taken

    def on_release(
        self, mechanism: Mechanism, name: str, output: Output | None, *asked: Any
    ) -> Tensors:
        partition, rows = asked
        if mechanism.per_record:
            guests = self.guests.get(partition, 0)
        else:
            guests = 0
        output = mechanism(
            rows if self.inside(name, partition) else without_guests(rows, guests), self.noise
        )
        self.observe(mechanism, RecordedRelease(name, partition, rows, guests, output))
        self.answered += 1
        if self.forced is None:
            return output.value
        return find_answer(self.forced, self.answered - 1, name, output.value)


def without_guests(rows: Tensors, guests: int) -> Tensors:
    """The rows without the last ``guests``."""
    if guests:
        return take_records(rows, slice(count_records(rows) - guests))
    return rows


def recording_context(
    plan: Plan,
    round: int,
    keys: Keys,
    observe: Callable[[Mechanism, RecordedRelease], None],
    class_list: Sequence[int] | None = None,
    **more: Any,
) -> InstrumentedContext:
    """The audited client's round with noise from ``keys``; more: of ``ReleaseRecorder``."""
    noise = SeededNoise(keys.torch())
    ctx = instrumented_context(plan, round, ReleaseRecorder(noise, observe, **more), class_list)
    ctx.noise = noise
    return ctx
