"""What a distillation did in a run: how far it moved what it started from, the matching loss before
and after in fresh networks, and the share of released features at their bound.

The evaluator works this out from the client's own records, after training. Nothing of it is sent,
and it draws from a stream of its own, so that no other number of a run depends on it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from privdd.core.rng import Keys
from privdd.core.types import Records, Shard, State, Values
from privdd.distillation.distribution_matching import CHUNK, Embed, build_embedder, embed_images
from privdd.federated.audit_hooks import HasLocalWork, LabelledRows
from privdd.federated.simulation import Plan, Progress
from privdd.models import ModelSpec, build_skeleton, initial

NETWORKS = 16  # fresh networks that the matching loss is averaged over
RECORDS = 256  # most records of a class that it reads
COPY = 1e-3  # a row nearer than this share of its norm to a record is a copy of it
LOG = logging.getLogger("privdd")


@dataclass(frozen=True)
class DistillationDiagnostics:
    """What the distillation of one client did; None for what does not apply to the method.

    moved: distance between the rows at the start and at the end, over the norm at the start;
    rate: step length in units of the variance of the rows' numbers at the start: the gradient falls
        as one over their scale, so that a step of 1 moves rows of deviation s by 1 / s^2 of s;
    loss_before, loss_after: matching loss, mean over fresh networks; at_bound: share of released
        features whose norm is at its bound; starts_real: whether every row starts as a record;
        projected: whether the rows are of a projection's space.
    """

    client: int
    round: int
    moved: float | None = None
    rate: float | None = None
    loss_before: float | None = None
    loss_after: float | None = None
    at_bound: float | None = None
    starts_real: bool | None = None
    projected: bool | None = None


def rows_in_message(sent: Values, name: str) -> LabelledRows | None:
    """The rows of the message ``name`` with their labels."""
    if name not in sent or "labels" not in sent:
        return None
    return sent[name]["x"], sent["labels"]["y"]


def rows_in_memory(memory: State) -> LabelledRows | None:
    """The images that a client remembers, one after the other by class."""
    if "images/x" not in memory:
        return None
    x = memory["images/x"]
    return x.flatten(0, 1), memory["images/label"].repeat_interleave(x.shape[1])


def measure_movement(start: Tensor, end: Tensor) -> float:
    """||end - start|| / ||start|| over all rows together."""
    norm = float(start.norm())
    return float((end - start).norm()) / norm if norm else 0.0


def relative_rate(rate: float | None, start: Tensor) -> float | None:
    """A step length over the variance of the numbers that it moves."""
    if rate is None or start.numel() < 2:
        return None
    variance = float(start.double().var())
    if not variance:
        return None
    return rate / variance


def measure_matching_loss(embed: Embed, rows: LabelledRows, records: Records, chunk: int) -> float:
    """sum over classes c of ||mean embedding of records of c - mean embedding of rows of c||^2.

    Args:
        embed: the network, (b, c, h, w) -> (b, p).
        rows: rows (m, c, h, w) and classes (m,).
        records: records as they are matched; classes without a row, or without a record, are left
            out.
        chunk: rows per forward pass, 0 for all at once.
    """
    x, y = rows
    real = embed_images(embed, records.x, chunk)
    matched = embed_images(embed, x, chunk)
    classes = sorted({*y.tolist()} & {*records.y.tolist()})
    gaps = [real[records.y == c].mean(0) - matched[y == c].mean(0) for c in classes]
    if gaps:
        return float(torch.stack([gap.square().sum() for gap in gaps]).sum())
    return 0.0


def starts_as_records(start: Tensor, records: Tensor) -> bool:
    """Whether every row (m, ...) equals one of the records (n, ...), up to rounding."""
    if not len(start) or not len(records):
        return False
    flat = start.flatten(1)
    distances = torch.cdist(flat, records.flatten(1), compute_mode="donot_use_mm_for_euclid_dist")
    return bool((distances.min(1).values <= COPY * flat.norm(dim=1)).all())


def share_at_bound(norms: Tensor, limits: Tensor) -> float | None:
    """Share of rows whose norm (n,) before scaling is at least its limit (n,); None of no rows."""
    if len(norms):
        return float((norms >= limits).double().mean())
    return None


def diagnose_distillation(
    plan: Plan, progress: Progress, shard: Shard
) -> DistillationDiagnostics | None:
    """What the audited client's distillation did; None if the method distils nothing.

    Images and representations: their first distillation, or what the client keeps of it at the end
    of the run. Features: those that it releases.

    Args:
        plan: the run's plan.
        progress: its end, with the audited client's rounds.
        shard: the records that the audited client trained on.
    """
    images = _diagnose_images(plan, progress, shard)
    at_bound, round = _diagnose_bound(plan, progress, shard)
    if images is not None:
        if at_bound is None:
            return images
        return _with_bound(images, at_bound)
    if at_bound is None:
        return None
    return DistillationDiagnostics(plan.victim, round, at_bound=at_bound)


def _with_bound(found: DistillationDiagnostics, at_bound: float) -> DistillationDiagnostics:
    return DistillationDiagnostics(**{**vars(found), "at_bound": at_bound})


def _diagnose_bound(plan: Plan, progress: Progress, shard: Shard) -> tuple[float | None, int]:
    hooks = plan.method.audit_hooks
    memory = progress.memories.get(plan.victim, {})
    for round, snapshot in sorted(progress.snapshots.items(), reverse=True):
        share = hooks.share_at_bound(snapshot.broadcast, memory, shard.train.x, plan.problem)
        if share is not None:
            return share, round
    return None, 0


def _diagnose_images(
    plan: Plan, progress: Progress, shard: Shard
) -> DistillationDiagnostics | None:
    matching = plan.method.audit_hooks.distillation()
    if matching is None:
        return None
    for round, snapshot in sorted(progress.snapshots.items()):
        if matching.rows({}, snapshot.memory) is not None:
            return None  # distilled in a round of which no snapshot is kept
        sent, memory = _play_round(
            matching.still, plan, round, shard, snapshot.broadcast, snapshot.memory
        )
        start = matching.rows(sent, memory)
        end = matching.rows(snapshot.sent, progress.memories.get(plan.victim, {}))
        if start is not None and end is not None and len(start[1]):
            maps = plan.method.audit_hooks.maps(snapshot.broadcast, memory, plan.problem)
            found = compare_rows(plan, round, start, end, shard.train, matching.model, maps)
            return replace(found, rate=relative_rate(matching.rate, start[0]))
    return None


def diagnose_first_round(plan: Plan, shard: Shard) -> DistillationDiagnostics | None:
    """What the distillation of one client does in the first round; None if it matches nothing.

    Args:
        plan: the run's plan; no run is needed.
        shard: the client's records.
    """
    matching = plan.method.audit_hooks.distillation()
    if matching is None:
        return None
    broadcast = plan.method.broadcast(plan.method.init(plan.problem, plan.keys))
    still = _play_round(matching.still, plan, 0, shard, broadcast, {})
    start = matching.rows(*still)
    end = matching.rows(*_play_round(plan.method, plan, 0, shard, broadcast, {}))
    if start is None or end is None or not len(start[1]):
        return None
    maps = plan.method.audit_hooks.maps(broadcast, still[1], plan.problem)
    found = compare_rows(plan, 0, start, end, shard.train, matching.model, maps)
    rate = relative_rate(matching.rate, start[0])
    return replace(found, client=shard.client, rate=rate)


def _play_round(
    method: HasLocalWork, plan: Plan, round: int, shard: Shard, broadcast: Values, memory: State
) -> tuple[Values, State]:
    """(what a client hands to the channel, what it remembers) if it runs ``method``."""
    ctx = plan.client_context(round, shard.client)
    with _no_warnings():
        upload, memory = method.local(broadcast, memory, shard.client_data, ctx)
    return {name: artifact.value for name, artifact in upload.items()}, memory


@contextmanager
def _no_warnings() -> Iterator[None]:
    """The round was run before, and its warnings were printed then."""
    level = LOG.level
    LOG.setLevel(logging.ERROR)
    try:
        yield
    finally:
        LOG.setLevel(level)


def compare_rows(
    plan: Plan,
    round: int,
    start: LabelledRows,
    end: LabelledRows,
    records: Records,
    model: ModelSpec,
    maps: object = None,
) -> DistillationDiagnostics:
    """The diagnostics of rows that start as ``start`` and end as ``end``."""
    if isinstance(maps, dict):
        project = maps.get("projection")
    else:
        project = None
    sent = torch.isin(start[1], end[1])  # a noised count may leave a class out at the end
    start = (start[0][sent], start[1][sent])
    first_records = _first_records(records)
    if project is not None:
        first_records = Records(
            embed_images(project, first_records.x), first_records.y, first_records.ids
        )
        every = embed_images(project, records.x)
    else:
        every = records.x
    loss_before = _mean_loss(model, start, first_records, plan.problem.classes, plan.keys)
    loss_after = _mean_loss(model, end, first_records, plan.problem.classes, plan.keys)
    return DistillationDiagnostics(
        plan.victim,
        round,
        moved=measure_movement(start[0], end[0]),
        loss_before=loss_before,
        loss_after=loss_after,
        starts_real=starts_as_records(start[0], every),
        projected=project is not None,
    )


def _first_records(records: Records) -> Records:
    """At most ``RECORDS`` of each class."""
    chosen = [(records.y == label).nonzero()[:RECORDS, 0] for label in records.y.unique().tolist()]
    if chosen:
        return records.take(torch.cat(chosen).tolist())
    return records


def _mean_loss(
    model: ModelSpec, rows: LabelledRows, records: Records, classes: int, keys: Keys
) -> float:
    """The matching loss, mean over fresh networks; batch norm needs all rows in one pass."""
    shape = tuple(rows[0].shape[1:])
    skeleton = build_skeleton(model, shape, classes)  # type: ignore[arg-type]
    chunk = 0 if model.norm == "batch" else CHUNK
    streams = keys.fold("audit", "distillation")
    losses = []
    for network in range(NETWORKS):
        state = initial(model, shape, classes, streams.fold("network", network).torch())  # type: ignore[arg-type]
        embed = build_embedder(skeleton, state)
        losses.append(measure_matching_loss(embed, rows, records, chunk))
    return sum(losses) / len(losses)
