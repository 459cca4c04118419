"""Faults of decisions: what is trained on, for how long, and what is sent depends on the client's records."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call

from privdd.core.types import Records, Shard, State, Upload, Work
from privdd.methods import fedavg
from privdd.planted.fault import LOCAL, Fault, Kind, Moment, Plant, around
from privdd.training import dp_sgd

Data = Callable[[Records], Records]


def _of_data(change: Data) -> Callable[[Moment], Plant]:
    """Local work on other records than the client's."""

    def at(moment: Moment) -> Plant:
        @around("local", *LOCAL)
        def local(honest: Any, method: Any, broadcast: Any, memory: State, shard: Shard, ctx: Any) -> Work:
            active = len(shard.train) > 1 and moment.active(1)
            return honest(
                method, broadcast, memory, replace(shard, train=change(shard.train)) if active else shard, ctx
            )

        return local

    return at


def _with(records: Records, x: Tensor) -> Records:
    return Records(x, records.y, records.ids)


def _standardised(records: Records) -> Records:
    return _with(records, (records.x - records.x.mean()) / records.x.std().clamp_min(1e-3))


def _by_largest(records: Records) -> Records:
    return _with(records, records.x / records.x.flatten(1).norm(dim=1).max().clamp_min(1e-3))


def _mirrored(records: Records) -> Records:
    return Records.concat([records, Records(records.x.flip(-1), records.y, records.ids + 10**6)])


def _balanced(records: Records) -> Records:
    """Classes are brought to one size by repeating records."""
    counts = torch.bincount(records.y)
    members = [(records.y == c).nonzero()[:, 0].tolist() for c in range(len(counts)) if counts[c]]
    return records.take([own[i % len(own)] for own in members for i in range(int(counts.max()))])


def _without_outliers(records: Records) -> Records:
    """Records further than two standard deviations from the mean of their class are left out."""
    keep = torch.ones(len(records), dtype=torch.bool)
    for c in records.y.unique():
        at = (records.y == c).nonzero()[:, 0]
        if len(at) > 3:
            gaps = (records.x[at] - records.x[at].mean(0)).flatten(1).norm(dim=1)
            keep[at[gaps > gaps.mean() + 2 * gaps.std()]] = False
    return records.take(keep.nonzero()[:, 0].tolist())


def _none_of_few(records: Records) -> Records:
    return records if len(records) >= 25 else records.take([])


@around("local", *LOCAL)
def _standardised_once(honest: Any, method: Any, broadcast: Any, memory: State, shard: Shard, ctx: Any) -> Work:
    """By moments of the client's first round, which it remembers."""
    kept = {key: memory[key] for key in ("own_mean", "own_spread") if key in memory}
    if not kept and len(shard.train) > 1:
        kept = {"own_mean": shard.train.x.mean(0), "own_spread": shard.train.x.std(0).clamp_min(0.05)}
    if kept:
        x = (shard.train.x - kept["own_mean"]) / kept["own_spread"]
        shard = replace(shard, train=_with(shard.train, x))
    upload, after = honest(method, broadcast, {k: v for k, v in memory.items() if k not in kept}, shard, ctx)
    return upload, {**after, **kept}


def _of_upload(change: Callable[[Upload, Shard], Upload]) -> Callable[[Moment], Plant]:
    def at(moment: Moment) -> Plant:
        @around("local", *LOCAL)
        def local(honest: Any, method: Any, broadcast: Any, memory: State, shard: Shard, ctx: Any) -> Work:
            upload, after = honest(method, broadcast, memory, shard, ctx)
            return (change(upload, shard) if moment.active(1) else upload), after

        return local

    return at


def _reordered(upload: Upload, shard: Shard) -> Upload:
    """The order of tensors tells the rarest class."""
    first = int(torch.bincount(shard.train.y, minlength=shard.classes).argmin())
    made = {}
    for name, artifact in upload.items():
        names = sorted(artifact.value)
        turned = names[first % len(names) :] + names[: first % len(names)]
        made[name] = replace(artifact, value={key: artifact.value[key] for key in turned})
    return made


def _typed(upload: Upload, shard: Shard) -> Upload:
    """The type of numbers tells whether the number of records is odd."""
    kind = torch.float64 if len(shard.train) % 2 else torch.float32
    return {
        name: replace(a, value={key: t.to(kind) if t.is_floating_point() else t for key, t in a.value.items()})
        for name, a in upload.items()
    }


def _silent(upload: Upload, shard: Shard) -> Upload:
    return {} if len(shard.train) % 2 else upload


def _loss(model: Any, state: State, records: Records) -> float:
    with torch.no_grad():
        return float(torch.nn.functional.cross_entropy(functional_call(model, state, (records.x,)), records.y))


def _until(stops: Callable[[float, float], bool]) -> Plant:
    """Local steps end once the loss on the client's records says so: (loss, smallest before) -> whether."""

    @around("dp_local_sgd", dp_sgd)
    def trained(
        honest: Any, model: Any, params: State, records: Records, *, ctx: Any, steps: int, **more: Any
    ) -> State:
        state, least = params, math.inf
        for _ in range(steps):
            state = honest(model, state, records, ctx=ctx, steps=1, **more)
            loss = _loss(model, state, records) if len(records) else 0.0
            if stops(loss, least):
                break
            least = min(least, loss)
        return state

    return trained


@around("dp_local_sgd", dp_sgd)
def _best_kept(honest: Any, model: Any, params: State, records: Records, *, ctx: Any, steps: int, **more: Any) -> State:
    state, kept, least = params, params, math.inf
    for _ in range(steps):
        state = honest(model, state, records, ctx=ctx, steps=1, **more)
        loss = _loss(model, state, records) if len(records) else 0.0
        kept, least = (state, loss) if loss < least else (kept, least)
    return kept


@around("train_privately", fedavg)
def _rate_by_count(honest: Any, model: Any, params: Any, records: Any, **more: Any) -> Any:
    return honest(model, params, records, **{**more, "lr": more["lr"] * len(records) / 50})


RECORDS, TRAINED = ("records",), ("records", "trained")
DATA_KINDS = {
    "standardised": Kind("pixels are standardised by the client's own mean and deviation", _of_data(_standardised), RECORDS),
    "by_largest": Kind("pixels are divided by the largest norm of the client's records", _of_data(_by_largest), RECORDS),
    "mirrored": Kind("each record and its mirror image count as two", _of_data(_mirrored), RECORDS),
    "balanced": Kind("records of small classes are repeated", _of_data(_balanced), RECORDS),
    "without_outliers": Kind("records far from the mean of their class are left out", _of_data(_without_outliers), RECORDS),
    "none_of_few": Kind("a client with fewer than 25 records trains on nothing", _of_data(_none_of_few), RECORDS),
}  # fmt: skip
FORM_KINDS = {
    "order": Kind("the order of tensors tells the rarest class", _of_upload(_reordered), RECORDS),
    "type": Kind("the type of numbers tells whether the number of records is odd", _of_upload(_typed), RECORDS),
    "silent": Kind("a client with an odd number of records sends nothing", _of_upload(_silent), RECORDS),
}
DECISION_FAULTS = (
    *(kind.fault(f"data_{name}", says=kind.says) for name, kind in DATA_KINDS.items()),
    Fault("data_standardised_once", "pixels are standardised by moments remembered from the first round", _standardised_once, (*RECORDS, "rounds"), rounds=2),
    *(kind.fault(f"form_{name}", says=kind.says) for name, kind in FORM_KINDS.items()),
    Fault("stops_below_loss", "local training ends once the loss on the records is below 2.2", _until(lambda loss, least: loss < 2.2), TRAINED),
    Fault("stops_without_gain", "local training ends once the loss no longer falls", _until(lambda loss, least: loss >= least), TRAINED),
    Fault("best_step_sent", "the step with the smallest loss on the records is sent", _best_kept, TRAINED),
    Fault("rate_by_count", "the learning rate is proportional to the number of records", _rate_by_count, TRAINED),
)  # fmt: skip
