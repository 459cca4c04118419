"""What a client's reply must look like, known before it comes: the same round on made-up records.

Everything public about a reply (which tensors, of which shape and type; which mechanisms, how often, at what cost) is
the same for any records, which the tests of what leaves a client hold every method to. So the server works the
round out on records that nobody owns, and the ledger's rows are those, with the digests of what was received.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from attacks.types import Surface
from privdd.core.state import flat
from privdd.core.types import Records, Shard
from privdd.federated.simulation import Plan, Task, client_step
from privdd.privacy.mechanism import Row

SETS = frozenset({Surface.SYNTHETIC_IMAGES, Surface.SYNTHETIC_REPRESENTATIONS, Surface.FEATURES, Surface.LABELS})


@dataclass(frozen=True)
class Layout:
    """Of one tensor of a reply. shape: with the length of the rehearsal; free: a client may send another length."""

    surface: Surface
    dtype: torch.dtype
    shape: tuple[int, ...]
    free: bool


@dataclass(frozen=True)
class Expected:
    """layouts: "upload/tensor" -> what it looks like; rows: the ledger rows, those inside local work first;
    classes: labels lie below."""

    layouts: Mapping[str, Layout]
    rows: Sequence[Row]
    classes: int

    @property
    def inner(self) -> int:
        """How many rows stand for what is released within local work and never travels by itself."""
        return len(self.rows) - len({name.split("/", 1)[0] for name in self.layouts})


def rehearsed(task: Task) -> Expected:
    """One client's round on made-up records."""
    plan = replace(task.plan, noise_source="seed")  # of made-up records: no secret is needed, and none is here
    task = replace(task, plan=plan)
    made_up = replace(task, shard=stand_in(plan, task.client), memory={})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what the made-up records lack says nothing of anyone's
        received, rows, memory = client_step(made_up)
        if task.memory and memory:  # a client that was here before: its round may differ from a first one
            received, rows, _ = client_step(replace(made_up, memory=memory))
    layouts = {}
    for name, tensor in flat(received.values).items():
        surface = plan.method.uploads[name.split("/", 1)[0]]
        layouts[name] = Layout(surface, tensor.dtype, tuple(tensor.shape), surface in SETS and tensor.ndim > 0)
    return Expected(layouts, rows, plan.problem.classes)


def stand_in(plan: Plan, client: int) -> Shard:
    """A few random images of every class."""
    problem = plan.problem
    each = max(2, plan.method.images_per_class())
    y = torch.tensor(problem.class_list).repeat_interleave(each)
    generator = plan.keys.fold("public", "rehearsal").torch()
    records = Records(torch.rand(len(y), *problem.shape, generator=generator), y, torch.arange(len(y)))
    none = records.take([])
    return Shard(client, records, none, none, problem.classes)


class Rehearsals:
    """Remembers rehearsals: rounds that are alike in all that decides a reply's form need only one."""

    def __init__(self) -> None:
        self._known: dict[object, Expected] = {}

    def of(self, task: Task, *, anew: bool = False) -> Expected:
        """What ``task``'s reply must look like. anew: for this very round, whatever is remembered."""
        key = _kind(task)
        if anew or key not in self._known:
            self._known[key] = rehearsed(task)
        expected = self._known[key]
        mine = [replace(row, round=task.round, client=task.client) for row in expected.rows]
        return replace(expected, rows=mine)


def _kind(task: Task) -> object:
    """What a reply's form may depend on; a method that does not say what it spends is rehearsed every round."""
    method, round = task.plan.method, task.round
    spends = method.spends(round, task.plan.mechanisms)
    when = round if spends is None else (round == 0, method.phase(round), tuple(sorted(spends.items())))
    sent = tuple(sorted((name, tuple(tensor.shape)) for name, tensor in flat(task.broadcast).items()))
    return when, sent, bool(task.memory)
