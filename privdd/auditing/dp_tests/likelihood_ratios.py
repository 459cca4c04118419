"""T2 and T3: runs of a query with and without one record, and the likelihood ratio of what they
released.

The client holds one crafted record (the guest) or nothing, so the transcript hides only that
record's own sampling coins. For methods that send images, each class of a long public list is an
independent run, so one call of the method's own code makes them all. For others, the mechanism
alone is run on the queries of one real transcript.

With a release o of N(m_1, s^2 I) if the record takes part and N(m_0, s^2 I) if not, and the chance
q that it does, the ratio of one release is

    ln[(1 - q) + q exp(l)],  l = (|o - m_0|^2 - |o - m_1|^2) / (2 s^2),

and ratios of adaptive releases add up, each given the transcript before it. They are exact, so that
no classifier has to be learnt.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import dp_accounting as dpa
import torch
from torch import Tensor

from attacks.certificates import gaussian_log_ratio, subsampled_log_ratio
from privdd.auditing.dp_tests.clean_values import clean_numbers, flatten_tensors
from privdd.auditing.dp_tests.crafted_records import copies_of_record, with_records
from privdd.auditing.dp_tests.instrumentation import (
    RecordedRelease,
    recording_context,
    without_guests,
)
from privdd.core.rng import Keys
from privdd.core.types import Shard, Tensors, Upload, class_of_cell, name_class_cell
from privdd.federated.simulation import Plan, Snapshot
from privdd.privacy.mechanism import Mechanism
from privdd.privacy.mechanisms import FeatureNoise
from privdd.privacy.noise import SeededNoise

IMAGE_UPLOADS = ("images", "representations")


@dataclass(frozen=True)
class RatioTranscripts:
    """ratios: ln P(o)/Q(o) of each run, (2R,), the first R with the guest; final: the last images
    (2R, D)."""

    ratios: Tensor
    final: Tensor

    @property
    def run_count(self) -> int:
        return len(self.ratios) // 2


@dataclass(frozen=True)
class QuerySetup:
    """Where a query is asked: the plan, one round of the audited client, and the guest (c, h,
    w)."""

    plan: Plan
    snapshot: Snapshot
    shard: Shard
    name: str
    guest: Tensor

    @property
    def sampling_probability(self) -> float:
        """The chance that a record takes part in one release."""
        return float(self.plan.mechanisms[self.name].sampling_probability)


class AllReleased(Exception):
    """Raised after the last release: what follows is post-processing."""


@dataclass
class RatioRecorder:
    """Adds up each run's log ratio, release by release; a run is a partition. left: releases until
    it is enough, 0 = all."""

    stage: QuerySetup
    ratios: Tensor
    left: int = 0

    def __call__(self, mechanism: Mechanism, heeded: RecordedRelease) -> None:
        if heeded.name != self.stage.name or not heeded.guests:
            return
        if (at := class_of_cell(heeded.partition)) is None:
            raise ValueError(f"{heeded.name} is not released by class")
        inside = clean_numbers(mechanism, heeded.rows)
        outside = clean_numbers(mechanism, without_guests(heeded.rows, heeded.guests))
        released = flatten_tensors(heeded.released.value).unsqueeze(0)
        step = gaussian_log_ratio(released, inside, outside, heeded.released.noise_std)
        self.ratios[at] += subsampled_log_ratio(step.unsqueeze(1), self.stage.sampling_probability)[
            0
        ]
        self.left -= 1
        if not self.left:
            raise AllReleased


def runs_by_class(
    stage: QuerySetup, runs: int, keys: Keys, *, releases: int = 0
) -> RatioTranscripts:
    """One run per class, all in one call: the method's own release of 2R classes, R of them with
    the guest. releases: of a class, after which the runs end without images; 0 = they end with
        images."""
    plan = stage.plan
    total = 2 * runs
    recorder = RatioRecorder(stage, torch.zeros(total, dtype=torch.float64), releases * total)
    coins = keys.fold("coins").torch()

    def is_inside(name: str, partition: str | None) -> bool:
        cell = class_of_cell(partition)
        if name != stage.name or cell is None:
            return True
        return cell < runs and _flip_coin(stage.sampling_probability, coins)

    guests: dict[str | None, int] = {name_class_cell(run): 1 for run in range(total)}
    noise = keys.fold("noise")
    classes = range(total)
    ctx = recording_context(
        plan, stage.snapshot.round, noise, recorder, classes, inside=is_inside, guests=guests
    )
    records = copies_of_record(stage.guest, 0, total)
    records.y.copy_(torch.arange(total))
    try:
        shard = with_records(stage.shard, records)
        upload = stage.plan.method.audit_hooks.released(stage.snapshot.broadcast, shard, ctx)
    except AllReleased:
        return RatioTranscripts(recorder.ratios, torch.zeros(total, 0))
    return RatioTranscripts(recorder.ratios, _sent_rows(upload, total))


def _sent_rows(upload: Upload, total: int) -> Tensor:
    """What was sent of each class (total, D); zeros for a class that was not sent because of its
    noised count."""
    x = upload[next(n for n in IMAGE_UPLOADS if n in upload)].value["x"]
    sent = upload["labels"].value["y"].unique().cpu()
    if len(sent) in (0, total):
        return x.reshape(total, -1) if len(sent) else torch.zeros(total, 1)
    rows = x.reshape(len(sent), -1)
    return torch.zeros(total, rows.shape[1]).index_copy(0, sent, rows)


def _flip_coin(probability: float, coins: torch.Generator) -> bool:
    return probability >= 1 or bool(torch.rand((), generator=coins) < probability)


def runs_on_transcript(
    mechanism: Mechanism, rows: Sequence[Tensors], runs: int, keys: Keys
) -> RatioTranscripts:
    """Releases of one record's contributions ``rows`` (1, ...), or of nothing, along one fixed
    transcript: the accountant's bound holds for any queries, and here they do not depend on what is
        released."""
    noise = SeededNoise(keys.fold("noise").torch())
    coins = keys.fold("coins").torch()
    q = float(mechanism.sampling_probability)
    ratios = torch.zeros(2 * runs, dtype=torch.float64)
    for row in rows:
        present = row
        absent = without_guests(row, 1)
        inside = clean_numbers(mechanism, present)
        outside = clean_numbers(mechanism, absent)
        for run in range(2 * runs):
            output = mechanism(present if run < runs and _flip_coin(q, coins) else absent, noise)
            step = gaussian_log_ratio(
                flatten_tensors(output.value).unsqueeze(0), inside, outside, output.noise_std
            )
            ratios[run] += subsampled_log_ratio(step.unsqueeze(1), q)[0]
    return RatioTranscripts(ratios, torch.zeros(2 * runs, 0))


def runs_of_features(
    mechanism: FeatureNoise, features: Tensor, runs: int, noise: Any
) -> RatioTranscripts:
    """Records released one by one: R times the guest's features (c, h, w), R times zeros."""
    member = torch.arange(2 * runs) < runs
    rows = features.unsqueeze(0) * member.reshape(-1, *(1,) * features.ndim)
    output = mechanism({"x": rows}, noise)
    inside = (output.exact or {})["x"][0].flatten()
    copied = output.value["x"].reshape(mechanism.copies, 2 * runs, -1)
    ratios = torch.zeros(2 * runs, dtype=torch.float64)
    for copy, std in zip(copied, mechanism.copy_stds(output.clip_norm)):
        if mechanism.distribution == "gaussian":
            ratios += gaussian_log_ratio(copy, inside, torch.zeros_like(inside), std)
        else:
            ratios += ((copy.abs() - (copy - inside).abs()).double() / std).sum(1)
    return RatioTranscripts(ratios, copied.transpose(0, 1).reshape(2 * runs, -1))


def sampled_event(mechanism: Any, calls: int) -> dpa.DpEvent:
    """The event of one record over ``calls`` releases."""
    return dpa.SelfComposedDpEvent(mechanism.event, calls)
