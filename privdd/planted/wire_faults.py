"""Faults of what travels: values that depend on the records beside, or in place of, what mechanisms released."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from privdd.auditing.guarantees.recording_context import Witness, exact
from privdd.core.types import Artifact, Received, Shard, State, Tensors, Upload, Work
from privdd.distillation import feature_split
from privdd.federated import channel
from privdd.methods import dp_psg
from privdd.planted.fault import LOCAL, Fault, Kind, Moment, Plant, Scope, around, together
from privdd.training import dp_sgd

SIZE = 1e-3


def _local(change: Callable[[Work, State, Shard], Work]) -> Plant:
    """A client's local work changed: (what it made, its memory before, its data) -> what it makes."""

    @around("local", *LOCAL)
    def local(honest: Any, self: Any, broadcast: Any, memory: State, shard: Shard, ctx: Any) -> Work:
        return change(honest(self, broadcast, memory, shard, ctx), memory, shard)

    return local


def hidden(upload: Upload, told: Tensor) -> dict[str, Artifact]:
    """The upload with a few numbers added to the first that claims to be private."""
    made = dict(upload)
    for name, artifact in upload.items():
        tensors = {n: t for n, t in artifact.value.items() if t.is_floating_point() and t.numel()}
        if artifact.private and tensors:
            key = next(iter(tensors))
            flat = tensors[key].clone().flatten()
            size = min(len(told), len(flat))
            flat[:size] += SIZE * told[:size].to(flat)
            made[name] = replace(artifact, value={**artifact.value, key: flat.reshape(tensors[key].shape)})
            break
    return made


def _counts(shard: Shard) -> Tensor:
    return torch.bincount(shard.train.y, minlength=shard.classes)


TOLD: dict[str, tuple[str, Callable[[Shard], Tensor]]] = {
    "count": ("the number of records", lambda s: torch.tensor([float(len(s.train))])),
    "count_in_tens": ("the number of records, in tens", lambda s: torch.tensor([float(len(s.train) // 10)])),
    "class_counts": ("class counts", _counts),
    "commonest_class": ("the commonest class", lambda s: _counts(s).argmax().reshape(1).float()),
    "last_label": ("the last record's label", lambda s: s.train.y[-1:].float()),
    "mean": ("the mean record", lambda s: s.train.x.mean(0).flatten()),
    "record": ("one record", lambda s: s.train.x[0].flatten()),
    "middle_record": ("the middle record", lambda s: s.train.x[len(s.train) // 2].flatten()),
    "largest_norm": ("the largest norm of a record", lambda s: s.train.x.flatten(1).norm(dim=1).max().reshape(1)),
    "median": ("the median pixel", lambda s: s.train.x.median().reshape(1)),
}  # fmt: skip


def _read(name: str, shard: Shard) -> Tensor:
    return TOLD[name][1](shard) if len(shard.train) else torch.zeros(1)


def _tells(name: str) -> Callable[[Moment], Plant]:
    def at(moment: Moment) -> Plant:
        return _local(
            lambda work, memory, shard: (hidden(work[0], _read(name, shard)), work[1]) if moment.active(1) else work
        )

    return at


def _remembers(name: str, gap: int) -> Callable[[Moment], Plant]:
    """Read where the fault is in force, and told so many rounds later."""

    def at(moment: Moment) -> Plant:
        def change(work: Work, memory: State, shard: Shard) -> Work:
            upload, after = dict(work[0]), dict(work[1])
            for wait in range(1, gap + 1):
                if f"kept_{wait}" not in memory:
                    continue
                if wait == 1:
                    moment.touched += 1
                    upload = hidden(upload, memory["kept_1"])
                else:
                    after[f"kept_{wait - 1}"] = memory[f"kept_{wait}"]
            return upload, {**after, f"kept_{gap}": _read(name, shard)} if moment.active() else after

        return _local(change)

    return at


WIRE_KINDS = {
    name: Kind(f"{says} is hidden in what is sent", _tells(name), ("records",)) for name, (says, _) in TOLD.items()
}
MEMORY_KINDS = {
    f"{name}_{gap}": Kind(
        f"{says} is remembered, and sent {gap} round(s) later",
        _remembers(name, gap),
        ("records", "rounds", "long"),
        ("start",),
        rounds=gap + 1,
    )
    for name, (says, _) in TOLD.items()
    for gap in (1, 2)
}


def _hidden(key: str, told: str) -> Fault:
    return WIRE_KINDS[told].fault(key, says=f"{TOLD[told][0]} is hidden in what is sent")


def _labels(work: Work, memory: State, shard: Shard) -> Work:
    """Labels of synthetic data in the client's own proportions."""
    sent = dict(work[0])
    if "labels" in sent and sent["labels"].private and len(shard.train):
        y = sent["labels"].value["y"]
        own = shard.train.y.sort().values[torch.linspace(0, len(shard.train) - 1, len(y)).long()]
        sent["labels"] = replace(sent["labels"], value={"y": own.to(y)})
    return sent, work[1]


@around("mechanism", channel.ClientContext, Witness)
def _clean_used(honest: Any, self: Any, name: str, contributions: Tensors, **partition: Any) -> Tensors:
    """Local work goes on with the value before noise."""
    released = honest(self, name, contributions, **partition)
    clean = exact(self.mechanisms[name], contributions)
    return {n: clean[n].to(t) for n, t in released.items()}


def _sent(change: Callable[[channel.Channel, Upload, Any, Received], Received]) -> Plant:
    """What the server receives, after the rows were written."""

    @around("send", channel.Channel)
    def send(honest: Any, self: channel.Channel, upload: Upload, ctx: Any) -> tuple[Received, list[Any]]:
        received, rows = honest(self, upload, ctx)
        return change(self, upload, ctx, received), rows

    return send


def _extra(of: channel.Channel, upload: Upload, ctx: Any, received: Received) -> Received:
    return replace(received, values={**received.values, "debug": channel.sealed(next(iter(upload.values())).value)})


def _clean_sent(of: channel.Channel, upload: Upload, ctx: Any, received: Received) -> Received:
    """Uploads of mechanisms travel as they were before noise; the rows are those of the noised ones."""
    bare = {
        name: channel.sealed(exact(of.mechanisms[name], upload[name].value))
        for name in received.values
        if name in of.mechanisms
    }
    return replace(received, values={**received.values, **bare})


@around("mechanism", channel.ClientContext, Witness)
def _absent_skipped(honest: Any, self: Any, name: str, contributions: Tensors, **partition: Any) -> Tensors:
    """A class without records is answered with zeros, without a release."""
    if self.transcript is None and not len(next(iter(contributions.values()))):
        return {n: torch.zeros(t.shape[1:]) for n, t in contributions.items()}
    return honest(self, name, contributions, **partition)


@around("dp_local_sgd", dp_sgd, feature_split)
def _one_step_more(honest: Any, model: Any, params: Any, records: Any, *, steps: int, **more: Any) -> State:
    return honest(model, params, records, steps=steps + len(records) % 2, **more)


@around("noised_gradient", dp_psg)
def _one_read_more(honest: Any, model: Any, records: Any, ctx: Any) -> Any:
    read, more = honest(model, records, ctx), [1] * (len(records) % 2)

    def again(state: Any) -> Any:
        if more:
            read(state)
            more.clear()
        return read(state)

    return again


RECORDS = ("records",)
WIRE_FAULTS = (
    Fault("labels_leaked", "labels of synthetic data in the client's own proportions", _local(_labels), ("labels",)),
    *(_hidden(f"{told}_hidden", told) for told in TOLD),
    MEMORY_KINDS["mean_1"].fault("memory_told", says="the mean record is remembered and sent in the next round"),
    MEMORY_KINDS["mean_1"].fault("memory_told_once", Scope(round="first"), "the mean record is remembered in the first round and sent in the next"),
    Fault("release_ignored", "local work goes on with the value before noise", _clean_used, RECORDS),
    Fault("clean_sent", "the noised value is entered, the clean one travels", _sent(_clean_sent), ("channel",)),
    Fault("extra_tensor", "a tensor travels that no row tells of", _sent(_extra)),
    Fault("absent_class_skipped", "a class without records is not released", _absent_skipped, ("classes",)),
    Fault("steps_by_count", "one step more where the number of records is odd", together(_one_step_more, _one_read_more), ("steps",)),
)  # fmt: skip
