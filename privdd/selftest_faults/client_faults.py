"""Faults of a client's local work: decisions that depend on its records, and values that travel
beside, or in place of, what mechanisms released."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call

from attacks.types import Surface
from privdd.auditing.dp_tests.clean_values import value_before_noise
from privdd.auditing.dp_tests.instrumentation import InstrumentedContext
from privdd.core.types import Artifact, Received, Records, Shard, State, Tensors, Upload, Work
from privdd.distillation import feature_split
from privdd.federated import channel
from privdd.federated.simulation import UNDECLARED_ARRIVAL
from privdd.methods import dp_psg, fedavg, fedrd
from privdd.methods.fedgen import LABEL_COUNTS
from privdd.selftest_faults.fault import (
    METHODS_WITH_LOCAL,
    Fault,
    FaultKind,
    FaultMoment,
    FaultScope,
    Patch,
    combine_patches,
    wrap_functions,
)
from privdd.training.sgd import SharedBatches

RecordChange = Callable[[Records], Records]
NEEDS_RECORDS = ("records",)
NEEDS_TRAINING = ("records", "trained")
LEAK_SIZE = 1e-3
COPIED_EVERY = 3  # one released row in so many is a record


def _patch_data(change: RecordChange) -> Callable[[FaultMoment], Patch]:
    """Local work on other records than the client's."""

    def at_moment(moment: FaultMoment) -> Patch:
        @wrap_functions("local", *METHODS_WITH_LOCAL)
        def call_local(
            honest: Any, method: Any, broadcast: Any, memory: State, shard: Shard, ctx: Any
        ) -> Work:
            active = len(shard.train) > 1 and moment.is_active()
            records = change(shard.train) if active else shard.train
            moment.touched += records is not shard.train
            return honest(method, broadcast, memory, replace(shard, train=records), ctx)

        return call_local

    return at_moment


def _standardise_pixels(records: Records) -> Records:
    return replace(records, x=(records.x - records.x.mean()) / records.x.std().clamp_min(1e-3))


def _divide_by_largest(records: Records) -> Records:
    return replace(records, x=records.x / records.x.flatten(1).norm(dim=1).max().clamp_min(1e-3))


def _add_mirrored(records: Records) -> Records:
    return Records.concat([records, Records(records.x.flip(-1), records.y, records.ids + 10**6)])


def _balance_classes(records: Records) -> Records:
    """Classes are brought to one size by repeating records."""
    counts = torch.bincount(records.y)
    members = [(records.y == c).nonzero()[:, 0].tolist() for c in range(len(counts)) if counts[c]]
    repeated: list[int] = []
    for rows in members:
        repeated += [rows[index % len(rows)] for index in range(int(counts.max()))]
    return records.take(repeated)


def _drop_outliers(records: Records) -> Records:
    """Records further than two standard deviations from the mean of their class are left out."""
    keep = torch.ones(len(records), dtype=torch.bool)
    for c in records.y.unique():
        positions = (records.y == c).nonzero()[:, 0]
        if len(positions) > 3:
            gaps = (records.x[positions] - records.x[positions].mean(0)).flatten(1).norm(dim=1)
            keep[positions[gaps > gaps.mean() + 2 * gaps.std()]] = False
    if bool(keep.all()):
        return records
    return records.take(keep.nonzero()[:, 0].tolist())


@wrap_functions("local", *METHODS_WITH_LOCAL)
def _standardise_once(
    honest: Any, method: Any, broadcast: Any, memory: State, shard: Shard, ctx: Any
) -> Work:
    """By moments of the client's first round, which it remembers."""
    moments = {key: memory[key] for key in ("own_mean", "own_spread") if key in memory}
    if not moments and len(shard.train) > 1:
        moments = {
            "own_mean": shard.train.x.mean(0),
            "own_spread": shard.train.x.std(0).clamp_min(0.05),
        }
    if moments:
        x = (shard.train.x - moments["own_mean"]) / moments["own_spread"]
        shard = replace(shard, train=replace(shard.train, x=x))
    upload, after = honest(
        method, broadcast, {k: v for k, v in memory.items() if k not in moments}, shard, ctx
    )
    return upload, {**after, **moments}


def _patch_local(change: Callable[[Work, State, Shard], Work]) -> Patch:
    """A client's local work changed: (what it made, its memory before, its data) -> what it
    makes."""

    @wrap_functions("local", *METHODS_WITH_LOCAL)
    def call_local(
        honest: Any, self: Any, broadcast: Any, memory: State, shard: Shard, ctx: Any
    ) -> Work:
        return change(honest(self, broadcast, memory, shard, ctx), memory, shard)

    return call_local


def _patch_upload(change: Callable[[Upload, Shard], Upload]) -> Callable[[FaultMoment], Patch]:
    """Change the upload where the fault is in force."""

    def at_moment(moment: FaultMoment) -> Patch:
        def change_work(work: Work, memory: State, shard: Shard) -> Work:
            if moment.is_active():
                upload = change(work[0], shard)
            else:
                upload = work[0]
            moment.touched += upload is not work[0]
            return upload, work[1]

        return _patch_local(change_work)

    return at_moment


def _reorder_tensors(upload: Upload, shard: Shard) -> Upload:
    """The order of tensors tells the rarest class."""
    first = int(torch.bincount(shard.train.y, minlength=shard.classes).argmin())
    reordered = {}
    is_changed = False
    for name, artifact in upload.items():
        names = sorted(artifact.value)
        start = first % len(names)
        order = names[start:] + names[:start]
        is_changed = is_changed or order != [*artifact.value]
        reordered[name] = replace(artifact, value={key: artifact.value[key] for key in order})
    return reordered if is_changed else upload


def _change_number_type(upload: Upload, shard: Shard) -> Upload:
    """The type of numbers tells whether the number of records is odd."""
    if len(shard.train) % 2:
        kind = torch.float64
    else:
        kind = torch.float32
    changed = {}
    for name, artifact in upload.items():
        value = dict(artifact.value)
        for key, tensor in value.items():
            if tensor.is_floating_point():
                value[key] = tensor.to(kind)
        changed[name] = replace(artifact, value=value)
    return changed


@dataclass(frozen=True, kw_only=True)
class _ContinuedBatches(SharedBatches):
    """Shared batches that go on from one call of the training to the next.

    indices: of the batches that are left.
    """

    indices: Iterator[Tensor]

    def draw_indices(self, device: torch.device) -> Iterator[Tensor]:
        return self.indices


def _continue_batches(extra: SharedBatches | None) -> SharedBatches | None:
    if extra is None:
        return None
    return _ContinuedBatches(**vars(extra), indices=extra.draw_indices(extra.records.y.device))


def _train_steps(
    honest: Any,
    model: Any,
    state: State,
    records: Records,
    *,
    ctx: Any,
    steps: int,
    extra: SharedBatches | None = None,
    **settings: Any,
) -> Iterator[tuple[State, float, float]]:
    """(state, loss on the client's records, smallest loss before) after each step of private
    training."""
    least = math.inf
    batches = _continue_batches(extra)
    for _ in range(steps):
        state = honest(model, state, records, ctx=ctx, steps=1, extra=batches, **settings)
        loss = 0.0
        if len(records):
            with torch.no_grad():
                logits = functional_call(model, state, (records.x,))
                loss = float(torch.nn.functional.cross_entropy(logits, records.y))
        yield state, loss, least
        least = min(least, loss)


def _stop_when(stops: Callable[[float, float], bool]) -> Patch:
    """Local steps end once the loss on the client's records says so: (loss, smallest before) ->
    whether."""

    @wrap_functions("dp_local_sgd", fedavg)
    def train_until(
        honest: Any, model: Any, params: State, records: Records, **settings: Any
    ) -> State:
        state = params
        for reached, loss, least in _train_steps(honest, model, params, records, **settings):
            state = reached
            if stops(loss, least):
                break
        return state

    return train_until


@wrap_functions("dp_local_sgd", fedavg)
def _keep_best_step(
    honest: Any, model: Any, params: State, records: Records, **settings: Any
) -> State:
    best = params
    for state, loss, least in _train_steps(honest, model, params, records, **settings):
        if loss < least:
            best = state
    return best


@wrap_functions("dp_local_sgd", fedavg)
def _scale_rate_by_count(
    honest: Any, model: Any, params: Any, records: Any, **settings: Any
) -> Any:
    return honest(model, params, records, **{**settings, "lr": settings["lr"] * len(records) / 50})


DATA_KINDS = {
    "standardised": FaultKind(
        "pixels are standardised by the client's own mean and deviation",
        _patch_data(_standardise_pixels),
        NEEDS_RECORDS,
    ),
    "by_largest": FaultKind(
        "pixels are divided by the largest norm of the client's records",
        _patch_data(_divide_by_largest),
        NEEDS_RECORDS,
    ),
    "mirrored": FaultKind(
        "each record and its mirror image count as two", _patch_data(_add_mirrored), NEEDS_RECORDS
    ),
    "balanced": FaultKind(
        "records of small classes are repeated", _patch_data(_balance_classes), NEEDS_RECORDS
    ),
    "without_outliers": FaultKind(
        "records far from the mean of their class are left out",
        _patch_data(_drop_outliers),
        NEEDS_RECORDS,
    ),
    "none_of_few": FaultKind(
        "a client with fewer than 25 records trains on nothing",
        _patch_data(lambda r: r if len(r) >= 25 else r.take([])),
        NEEDS_RECORDS,
    ),
}
FORM_KINDS = {
    "order": FaultKind(
        "the order of tensors reveals the rarest class",
        _patch_upload(_reorder_tensors),
        NEEDS_RECORDS,
    ),
    "type": FaultKind(
        "the type of numbers reveals whether the number of records is odd",
        _patch_upload(_change_number_type),
        NEEDS_RECORDS,
    ),
    "silent": FaultKind(
        "a client with an odd number of records sends nothing",
        _patch_upload(lambda upload, shard: {} if len(shard.train) % 2 else upload),
        NEEDS_RECORDS,
    ),
}
DECISION_FAULTS = (
    *(kind.fault_at(f"data_{name}", says=kind.says) for name, kind in DATA_KINDS.items()),
    Fault(
        "data_standardised_once",
        "pixels are standardised by moments remembered from the first round",
        _standardise_once,
        (*NEEDS_RECORDS, "rounds"),
        rounds=2,
    ),
    *(kind.fault_at(f"form_{name}", says=kind.says) for name, kind in FORM_KINDS.items()),
    Fault(
        "stops_below_loss",
        "local training ends once the loss on the records is below 2.2",
        _stop_when(lambda loss, least: loss < 2.2),
        NEEDS_TRAINING,
    ),
    Fault(
        "stops_without_gain",
        "local training ends once the loss no longer falls",
        _stop_when(lambda loss, least: loss >= least),
        NEEDS_TRAINING,
    ),
    Fault(
        "best_step_sent",
        "the step with the smallest loss on the records is sent",
        _keep_best_step,
        NEEDS_TRAINING,
    ),
    Fault(
        "rate_by_count",
        "the learning rate is proportional to the number of records",
        _scale_rate_by_count,
        NEEDS_TRAINING,
    ),
)


def hide_in_upload(upload: Upload, fact: Tensor) -> dict[str, Artifact]:
    """The upload with a few numbers added to the first that claims to be private."""
    changed = dict(upload)
    for name, artifact in upload.items():
        tensors = {n: t for n, t in artifact.value.items() if t.is_floating_point() and t.numel()}
        if artifact.private and tensors:
            key = next(iter(tensors))
            flat = tensors[key].clone().flatten()
            size = min(len(fact), len(flat))
            flat[:size] += LEAK_SIZE * fact[:size].to(flat)
            value = {**artifact.value, key: flat.reshape(tensors[key].shape)}
            changed[name] = replace(artifact, value=value)
            break
    return changed


def _class_counts(shard: Shard) -> Tensor:
    return torch.bincount(shard.train.y, minlength=shard.classes)


def _count_in_private(upload: Upload, shard: Shard) -> Upload:
    """Class counts travel, and are said to follow from noised releases."""
    counts = {"count": _class_counts(shard).float()}
    return {**upload, LABEL_COUNTS: Artifact(counts, private=True)}


HIDDEN_FACTS: dict[str, tuple[str, Callable[[Shard], Tensor]]] = {
    "count": ("the number of records", lambda s: torch.tensor([float(len(s.train))])),
    "count_in_tens": (
        "the number of records, in tens",
        lambda s: torch.tensor([float(len(s.train) // 10)]),
    ),
    "class_counts": ("class counts", _class_counts),
    "commonest_class": (
        "the commonest class",
        lambda s: _class_counts(s).argmax().reshape(1).float(),
    ),
    "last_label": ("the last record's label", lambda s: s.train.y[-1:].float()),
    "mean": ("the mean record", lambda s: s.train.x.mean(0).flatten()),
    "record": ("one record", lambda s: s.train.x[0].flatten()),
    "middle_record": ("the middle record", lambda s: s.train.x[len(s.train) // 2].flatten()),
    "largest_norm": (
        "the largest norm of a record",
        lambda s: s.train.x.flatten(1).norm(dim=1).max().reshape(1),
    ),
    "median": ("the median pixel", lambda s: s.train.x.median().reshape(1)),
}


def _read_fact(name: str, shard: Shard) -> Tensor:
    if len(shard.train):
        return HIDDEN_FACTS[name][1](shard)
    return torch.zeros(1)


def _hide_fact(name: str, upload: Upload, shard: Shard) -> Upload:
    return hide_in_upload(upload, _read_fact(name, shard))


def _remember_fact(name: str, gap: int) -> Callable[[FaultMoment], Patch]:
    """Read where the fault is in force, and told so many rounds later."""

    def at_moment(moment: FaultMoment) -> Patch:
        def change_work(work: Work, memory: State, shard: Shard) -> Work:
            upload: Upload = dict(work[0])
            after = dict(work[1])
            for wait in range(1, gap + 1):
                if f"kept_{wait}" not in memory:
                    continue
                if wait == 1:
                    moment.touched += 1
                    upload = hide_in_upload(upload, memory["kept_1"])
                else:
                    after[f"kept_{wait - 1}"] = memory[f"kept_{wait}"]
            if moment.is_active():
                after[f"kept_{gap}"] = _read_fact(name, shard)
            return upload, after

        return _patch_local(change_work)

    return at_moment


WIRE_KINDS = {
    name: FaultKind(
        f"{says} is hidden in a message", _patch_upload(partial(_hide_fact, name)), ("records",)
    )
    for name, (says, _) in HIDDEN_FACTS.items()
}
MEMORY_KINDS = {
    f"{name}_{gap}": FaultKind(
        f"{says} is remembered, and sent {gap} round(s) later",
        _remember_fact(name, gap),
        ("records", "rounds", "long"),
        ("start",),
        rounds=gap + 1,
    )
    for name, (says, _) in HIDDEN_FACTS.items()
    for gap in (1, 2)
}


def _leak_labels(work: Work, memory: State, shard: Shard) -> Work:
    """Labels of synthetic data in the client's own proportions."""
    sent = dict(work[0])
    if "labels" in sent and sent["labels"].private and len(shard.train):
        y = sent["labels"].value["y"]
        labels = shard.train.y.sort().values[torch.linspace(0, len(shard.train) - 1, len(y)).long()]
        sent["labels"] = replace(sent["labels"], value={"y": labels.to(y)})
    return sent, work[1]


def _copy_records(method: Any, broadcast: Any, work: Work, shard: Shard, ctx: Any) -> Work:
    """One released image or representation in three is a record as it is, by the client's own
    map."""
    sent = dict(work[0])
    memory = work[1]
    for name, artifact in sent.items():
        surface = method.uploads[name]
        if surface not in (Surface.SYNTHETIC_IMAGES, Surface.SYNTHETIC_REPRESENTATIONS) or not len(
            shard.train
        ):
            continue
        rows = artifact.value["x"].clone()
        places = torch.arange(0, len(rows), COPIED_EVERY)
        records = shard.train.x[torch.arange(len(places)) % len(shard.train)].to(rows)
        maps = method.audit_hooks.maps(broadcast, memory, ctx.problem)
        if surface == Surface.SYNTHETIC_REPRESENTATIONS and "projection" in maps:
            records = maps["projection"](records).detach()
        rows[places] = records.reshape(len(places), *rows.shape[1:])
        sent[name] = replace(artifact, value={**artifact.value, "x": rows})
    return sent, memory


@wrap_functions("local", *METHODS_WITH_LOCAL)
def _copy_records_of_one(
    honest: Any, method: Any, broadcast: Any, memory: State, shard: Shard, ctx: Any
) -> Work:
    return _copy_records(
        method, broadcast, honest(method, broadcast, memory, shard, ctx), shard, ctx
    )


@wrap_functions("local_batched", *METHODS_WITH_LOCAL)
def _copy_records_of_several(
    honest: Any, method: Any, broadcast: Any, memories: Any, shards: Any, contexts: Any
) -> Any:
    results = honest(method, broadcast, memories, shards, contexts)
    if results is None:
        return None
    return [
        _copy_records(method, broadcast, *arguments) for arguments in zip(results, shards, contexts)
    ]


@wrap_functions("mechanism", channel.ClientContext, InstrumentedContext)
def _use_clean_value(
    honest: Any, self: Any, name: str, contributions: Tensors, **partition: Any
) -> Tensors:
    """Local work goes on with the value before noise."""
    released = honest(self, name, contributions, **partition)
    clean = value_before_noise(self.mechanisms[name], contributions)
    return {n: clean[n].to(t) for n, t in released.items()}


def _patch_send(change: Callable[[channel.Channel, Upload, Any, Received], Received]) -> Patch:
    """Change the received messages after the ledger rows were written."""

    @wrap_functions("send", channel.Channel)
    def send_changed(
        honest: Any, self: channel.Channel, upload: Upload, ctx: Any
    ) -> tuple[Received, list[Any]]:
        received, rows = honest(self, upload, ctx)
        return change(self, upload, ctx, received), rows

    return send_changed


def _send_extra_tensor(
    of: channel.Channel, upload: Upload, ctx: Any, received: Received
) -> Received:
    debug = channel.detach_copy(next(iter(upload.values())).value)
    return replace(received, values={**received.values, "debug": debug})


def _send_clean_value(
    of: channel.Channel, upload: Upload, ctx: Any, received: Received
) -> Received:
    """Uploads of mechanisms travel as they were before noise; the rows are those of the noised
    ones."""
    bare = {}
    for name in received.values.keys() & of.mechanisms.keys():
        clean = channel.detach_copy(value_before_noise(of.mechanisms[name], upload[name].value))
        bare[name] = {
            key: tensor.to(received.values[name][key].dtype) for key, tensor in clean.items()
        }
    return replace(received, values={**received.values, **bare})


@wrap_functions("mechanism", channel.ClientContext, InstrumentedContext)
def _skip_absent_class(
    honest: Any, self: Any, name: str, contributions: Tensors, **partition: Any
) -> Tensors:
    """A class without records is answered with zeros, without a release."""
    if self.transcript is None and not len(next(iter(contributions.values()))):
        return {n: torch.zeros(t.shape[1:]) for n, t in contributions.items()}
    return honest(self, name, contributions, **partition)


@wrap_functions("dp_local_sgd", fedavg, fedrd, feature_split)
def _add_step_if_odd(
    honest: Any, model: Any, params: Any, records: Any, *, steps: int, **settings: Any
) -> State:
    return honest(model, params, records, steps=steps + len(records) % 2, **settings)


@wrap_functions("noised_gradient", dp_psg)
def _add_read_if_odd(honest: Any, model: Any, records: Any, ctx: Any) -> Any:
    read = honest(model, records, ctx)
    extra_reads = [1] * (len(records) % 2)

    def read_again(state: Any) -> Any:
        if extra_reads:
            read(state)
            extra_reads.clear()
        return read(state)

    return read_again


WIRE_FAULTS = (
    Fault(
        "labels_leaked",
        "labels of synthetic data in the client's own proportions",
        _patch_local(_leak_labels),
        ("labels",),
    ),
    *(kind.fault_at(f"{told}_hidden", says=kind.says) for told, kind in WIRE_KINDS.items()),
    MEMORY_KINDS["mean_1"].fault_at(
        "memory_told", says="the mean record is remembered and sent in the next round"
    ),
    MEMORY_KINDS["mean_1"].fault_at(
        "memory_told_once",
        FaultScope(round="first"),
        "the mean record is remembered in the first round and sent in the next",
    ),
    FaultKind(
        "class counts travel without noise, and are said to follow from noised releases",
        _patch_upload(_count_in_private),
        ("class_counts",),
    ).fault_at("class_counts_sent"),
    Fault(
        "records_copied",
        "one released image or representation in three is a record as it is",
        combine_patches(_copy_records_of_one, _copy_records_of_several),
        ("labels",),
    ),
    Fault(
        "release_ignored",
        "local work goes on with the value before noise",
        _use_clean_value,
        NEEDS_RECORDS,
    ),
    Fault(
        "clean_sent",
        "the noised value is entered, the clean one travels",
        _patch_send(_send_clean_value),
        ("channel",),
    ),
    Fault(
        "extra_tensor",
        "a tensor is sent that no row lists",
        _patch_send(_send_extra_tensor),
        refusal=UNDECLARED_ARRIVAL,
    ),
    Fault(
        "absent_class_skipped",
        "a class without records is not released",
        _skip_absent_class,
        ("classes",),
    ),
    Fault(
        "steps_by_count",
        "one step more if the number of records is odd",
        combine_patches(_add_step_if_odd, _add_read_if_odd),
        ("steps",),
    ),
)
