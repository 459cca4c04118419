"""Runs of a query with and without one record, and the likelihood ratio of what they released.

The client holds one crafted record (the guest) or nothing, so the transcript hides only that record's own sampling
coins. For methods that send images, each class of a long public list is an independent run, so one call of the
method's own code makes them all. For others, the mechanism alone is run on the queries of one real transcript.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import dp_accounting as dpa
import torch
from torch import Tensor

from attacks.guarantee import gaussian_log_ratio, subsampled_log_ratio
from privdd.auditing.guarantees.crafted_records import copies, holding
from privdd.auditing.guarantees.matching_transcripts import Transcripts
from privdd.auditing.guarantees.recording_context import Heeded, Witness, exact, flat, without, witness
from privdd.core.keys import Keys
from privdd.core.types import Shard, Tensors, Upload
from privdd.federated.simulation import Plan, Snapshot
from privdd.privacy.mechanism import Mechanism
from privdd.privacy.mechanisms import FeatureNoise
from privdd.privacy.noise import SeededNoise

IMAGES = ("images", "representations")


@dataclass(frozen=True)
class QueryStage:
    """Where a query is asked: the plan, one round of the audited client, and the guest (c, h, w)."""

    plan: Plan
    snapshot: Snapshot
    shard: Shard
    name: str
    guest: Tensor

    @property
    def probability(self) -> float:
        """The chance that a record takes part in one release."""
        return float(self.plan.mechanisms[self.name].sampling_probability)


class AllReleased(Exception):
    """Raised after the last release: what follows is post-processing."""


@dataclass
class Recorder:
    """Adds up each run's log ratio, release by release; a run is a partition. left: releases until it is enough, 0 = all."""

    stage: QueryStage
    ratios: Tensor
    left: int = 0

    def __call__(self, mechanism: Mechanism, heeded: Heeded) -> None:
        if heeded.name != self.stage.name or not heeded.guests:
            return
        at = int(str(heeded.partition).removeprefix("label:"))
        inside = exact(mechanism, heeded.rows)
        outside = exact(mechanism, without(heeded.rows, heeded.guests))
        released = flat(heeded.released.value).unsqueeze(0)
        step = gaussian_log_ratio(released, flat(inside), flat(outside), heeded.released.noise_std)
        self.ratios[at] += subsampled_log_ratio(step.unsqueeze(1), self.stage.probability)[0]
        self.left -= 1
        if not self.left:
            raise AllReleased


def by_class(stage: QueryStage, runs: int, keys: Keys, *, releases: int = 0) -> Transcripts:
    """One run per class, all in one call: the method's own release of 2R classes, R of them with the guest.

    releases: of a class, after which the runs end without images; 0 = they end with images.
    """
    plan, total = stage.plan, 2 * runs
    recorder = Recorder(stage, torch.zeros(total, dtype=torch.float64), releases * total)
    coins = keys.fold("coins").torch()

    def inside(name: str, partition: str | None) -> bool:
        if name != stage.name or partition is None:
            return True
        return int(partition.removeprefix("label:")) < runs and _heads(stage.probability, coins)

    ctx = witness(
        plan,
        stage.snapshot.round,
        keys.fold("noise"),
        range(total),
        observe=recorder,
        inside=inside,
        guests={f"label:{run}": 1 for run in range(total)},
    )
    records = copies(stage.guest, 0, total)
    records.y.copy_(torch.arange(total))
    try:
        upload = _released(stage, ctx, holding(stage.shard, records))
    except AllReleased:
        return Transcripts(recorder.ratios, torch.zeros(total, 0))
    return Transcripts(recorder.ratios, _rows(upload, total))


def _rows(upload: Upload, total: int) -> Tensor:
    """What was sent of each class (total, D); zeros for a class that was not sent because of its noised count."""
    x = upload[next(n for n in IMAGES if n in upload)].value["x"]
    sent = upload["labels"].value["y"].unique().cpu()
    if len(sent) in (0, total):
        return x.reshape(total, -1) if len(sent) else torch.zeros(total, 1)
    rows = x.reshape(len(sent), -1)
    return torch.zeros(total, rows.shape[1]).index_copy(0, sent, rows)


def _heads(probability: float, coins: torch.Generator) -> bool:
    return probability >= 1 or bool(torch.rand((), generator=coins) < probability)


def _released(stage: QueryStage, ctx: Witness, shard: Shard) -> Upload:
    """The upload by the method's ``released`` hook, whose default is its whole local work."""
    return stage.plan.method.released(stage.snapshot.broadcast, shard, ctx)


def on_transcript(mechanism: Mechanism, rows: Sequence[Tensors], runs: int, keys: Keys) -> Transcripts:
    """Releases of one record's contributions ``rows`` (1, ...), or of nothing, along one fixed transcript.

    The accountant's bound holds for any choice of queries: here they are those of one real transcript and do not
    depend on what is released.
    """
    noise, coins = SeededNoise(keys.fold("noise").torch()), keys.fold("coins").torch()
    q = float(mechanism.sampling_probability)
    ratios = torch.zeros(2 * runs, dtype=torch.float64)
    for row in rows:
        present, absent = row, without(row, 1)
        inside, outside = flat(exact(mechanism, present)), flat(exact(mechanism, absent))
        for run in range(2 * runs):
            output = mechanism(present if run < runs and _heads(q, coins) else absent, noise)
            step = gaussian_log_ratio(flat(output.value).unsqueeze(0), inside, outside, output.noise_std)
            ratios[run] += subsampled_log_ratio(step.unsqueeze(1), q)[0]
    return Transcripts(ratios, torch.zeros(2 * runs, 0))


def of_features(mechanism: FeatureNoise, features: Tensor, runs: int, noise: Any) -> Transcripts:
    """Records released one by one: R times the guest's features (c, h, w), R times zeros."""
    member = torch.arange(2 * runs) < runs
    rows = features.unsqueeze(0) * member.reshape(-1, *(1,) * features.ndim)
    output = mechanism({"x": rows}, noise)
    inside = (output.exact or {})["x"][0].flatten()
    copied = output.value["x"].reshape(mechanism.copies, 2 * runs, -1)
    ratios = torch.zeros(2 * runs, dtype=torch.float64)
    for copy, std in zip(copied, mechanism.stds(output.clip_norm)):
        if mechanism.distribution == "gaussian":
            ratios += gaussian_log_ratio(copy, inside, torch.zeros_like(inside), std)
        else:
            ratios += ((copy.abs() - (copy - inside).abs()).double() / std).sum(1)
    return Transcripts(ratios, copied.transpose(0, 1).reshape(2 * runs, -1))


def sampled_event(mechanism: Any, calls: int) -> dpa.DpEvent:
    """The event of one record over ``calls`` releases."""
    return dpa.SelfComposedDpEvent(mechanism.event, calls)
