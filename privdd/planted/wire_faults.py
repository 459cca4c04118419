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
from privdd.methods.dp_psg import DPPSG
from privdd.methods.fedavg import FedAvg
from privdd.methods.feddm import FedDM
from privdd.methods.fedfed import FedFed
from privdd.methods.fedlgd import FedLGD
from privdd.methods.fedrd import FedRD
from privdd.methods.public_map import PublicMap
from privdd.planted.fault import Fault, Plant, around, together
from privdd.training import dp_sgd

METHODS = (DPPSG, FedAvg, FedDM, FedFed, FedLGD, FedRD, PublicMap)
SIZE = 1e-3


def _local(change: Callable[[Work, State, Shard], Work]) -> Plant:
    """A client's local work changed: (what it made, its memory before, its data) -> what it makes."""

    @around("local", *(kind for kind in METHODS if "local" in vars(kind)))
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


def _told(read: Callable[[Shard], Tensor]) -> Plant:
    return _local(lambda work, memory, shard: (hidden(work[0], read(shard)), work[1]))


def _mean(shard: Shard) -> Tensor:
    return shard.train.x.mean(0).flatten() if len(shard.train) else torch.zeros(1)


def _first(shard: Shard) -> Tensor:
    return shard.train.x[0].flatten() if len(shard.train) else torch.zeros(1)


def _classes(shard: Shard) -> Tensor:
    return torch.bincount(shard.train.y, minlength=shard.classes)


def _labels(work: Work, memory: State, shard: Shard) -> Work:
    """Labels of synthetic data in the client's own proportions."""
    sent = dict(work[0])
    if "labels" in sent and sent["labels"].private and len(shard.train):
        y = sent["labels"].value["y"]
        own = shard.train.y.sort().values[torch.linspace(0, len(shard.train) - 1, len(y)).long()]
        sent["labels"] = replace(sent["labels"], value={"y": own.to(y)})
    return sent, work[1]


def _remembered(work: Work, memory: State, shard: Shard) -> Work:
    """The mean record is kept, and told in the next round."""
    upload, after = work
    if "kept" in memory:
        upload = hidden(upload, memory["kept"])
    return upload, {**after, "kept": _mean(shard)}


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
    Fault("class_counts_hidden", "class counts are hidden in what is sent", _told(_classes), RECORDS),
    Fault("count_hidden", "the number of records is hidden in what is sent", _told(lambda s: torch.tensor([float(len(s.train))])), RECORDS),
    Fault("mean_hidden", "the mean record is hidden in what is sent", _told(_mean), RECORDS),
    Fault("record_hidden", "one record is hidden in what is sent", _told(_first), RECORDS),
    Fault("memory_told", "the mean record is remembered and sent in the next round", _local(_remembered), ("records", "rounds"), two_rounds=True),
    Fault("release_ignored", "local work goes on with the value before noise", _clean_used, RECORDS),
    Fault("clean_sent", "the noised value is entered, the clean one travels", _sent(_clean_sent), ("channel",)),
    Fault("extra_tensor", "a tensor travels that no row tells of", _sent(_extra)),
    Fault("absent_class_skipped", "a class without records is not released", _absent_skipped, ("classes",)),
    Fault("steps_by_count", "one step more where the number of records is odd", together(_one_step_more, _one_read_more), ("steps",)),
)  # fmt: skip
