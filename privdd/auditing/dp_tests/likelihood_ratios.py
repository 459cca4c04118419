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
    """Adds up each run's log ratio, release by release; a run is a partition.

    Attributes:
        stage: where the query is asked.
        ratios: (2R,) ln P/Q of each run so far.
        remaining: releases until it is enough; 0: all.
    """

    stage: QuerySetup
    ratios: Tensor
    remaining: int = 0

    def __call__(self, mechanism: Mechanism, release: RecordedRelease) -> None:
        if release.name != self.stage.name or not release.guests:
            return
        run = class_of_cell(release.partition)
        if run is None:
            raise ValueError(f"{release.name} is not released by class")
        present = clean_numbers(mechanism, release.rows)
        absent = clean_numbers(mechanism, without_guests(release.rows, release.guests))
        value = flatten_tensors(release.released.value).unsqueeze(0)
        ratio = gaussian_log_ratio(value, present, absent, release.released.noise_std)
        q = self.stage.sampling_probability
        self.ratios[run] += subsampled_log_ratio(ratio.unsqueeze(1), q)[0]
        self.remaining -= 1
        if not self.remaining:
            raise AllReleased


def runs_by_class(
    stage: QuerySetup, runs: int, keys: Keys, *, releases: int = 0
) -> RatioTranscripts:
    """One run per class, all in one call: the method's own release of 2R classes, R of them with
    the guest.

    Args:
        stage: where the query is asked.
        runs: R.
        keys: of noise and coins.
        releases: of a class, after which the runs end without images; 0: they end with images.
    """
    total = 2 * runs
    recorder = RatioRecorder(stage, torch.zeros(total, dtype=torch.float64), releases * total)
    coins = keys.fold("coins").torch()

    def takes_part(name: str, partition: str | None) -> bool:
        run = class_of_cell(partition)
        if name != stage.name or run is None:
            return True
        return run < runs and _flip_coin(stage.sampling_probability, coins)

    guests: dict[str | None, int] = {name_class_cell(run): 1 for run in range(total)}
    ctx = recording_context(
        stage.plan,
        stage.snapshot.round,
        keys.fold("noise"),
        recorder,
        range(total),
        inside=takes_part,
        guests=guests,
    )
    records = copies_of_record(stage.guest, 0, total)
    records.y.copy_(torch.arange(total))
    shard = with_records(stage.shard, records)
    try:
        upload = stage.plan.method.audit_hooks.protected_upload(
            stage.snapshot.broadcast, shard.client_data, ctx
        )
    except AllReleased:
        return RatioTranscripts(recorder.ratios, torch.zeros(total, 0))
    return RatioTranscripts(recorder.ratios, _sent_rows(upload, total))


def _sent_rows(upload: Upload, total: int) -> Tensor:
    """What was sent of each class (total, D); zeros for a class that was not sent because of its
    noised count."""
    x = upload[next(name for name in IMAGE_UPLOADS if name in upload)].value["x"]
    sent = upload["labels"].value["y"].unique().cpu()
    if not len(sent):
        return torch.zeros(total, 1)
    if len(sent) == total:
        return x.reshape(total, -1)
    rows = x.reshape(len(sent), -1)
    return torch.zeros(total, rows.shape[1]).index_copy(0, sent, rows)


def _flip_coin(probability: float, coins: torch.Generator) -> bool:
    return probability >= 1 or bool(torch.rand((), generator=coins) < probability)


def runs_on_transcript(
    mechanism: Mechanism, rows: Sequence[Tensors], runs: int, keys: Keys
) -> RatioTranscripts:
    """Releases of one record's contributions, or of nothing, along one fixed transcript.

    The accountant's bound holds for any queries, and here they do not depend on what is released.

    Args:
        mechanism: whose releases they are.
        rows: the record's contributions (1, ...), release by release.
        runs: R.
        keys: of noise and coins.
    """
    noise = SeededNoise(keys.fold("noise").torch())
    coins = keys.fold("coins").torch()
    q = float(mechanism.sampling_probability)
    ratios = torch.zeros(2 * runs, dtype=torch.float64)
    for row in rows:
        nobody = without_guests(row, 1)
        present = clean_numbers(mechanism, row)
        absent = clean_numbers(mechanism, nobody)
        for run in range(2 * runs):
            takes_part = run < runs and _flip_coin(q, coins)
            output = mechanism(row if takes_part else nobody, noise)
            value = flatten_tensors(output.value).unsqueeze(0)
            ratio = gaussian_log_ratio(value, present, absent, output.noise_std)
            ratios[run] += subsampled_log_ratio(ratio.unsqueeze(1), q)[0]
    return RatioTranscripts(ratios, torch.zeros(2 * runs, 0))


def runs_of_features(
    mechanism: FeatureNoise, features: Tensor, runs: int, noise: Any
) -> RatioTranscripts:
    """Records released one by one: R times the guest's features (c, h, w), R times zeros.

    Gaussian noise: as in this module's docstring, with m_0 = 0. Laplace noise of scale b:
    ln P/Q = sum_i (|o_i| - |o_i - m_i|) / b. Copies have independent noise, so their ratios add up.
    """
    is_member = torch.arange(2 * runs) < runs
    rows = features.unsqueeze(0) * is_member.reshape(-1, *(1,) * features.ndim)
    output = mechanism({"x": rows}, noise)
    present = (output.exact or {})["x"][0].flatten()
    copies = output.value["x"].reshape(mechanism.copies, 2 * runs, -1)
    ratios = torch.zeros(2 * runs, dtype=torch.float64)
    for copy, std in zip(copies, mechanism.copy_stds(output.clip_norm)):
        if mechanism.distribution == "gaussian":
            ratios += gaussian_log_ratio(copy, present, torch.zeros_like(present), std)
        else:
            ratios += ((copy.abs() - (copy - present).abs()).double() / std).sum(1)
    return RatioTranscripts(ratios, copies.transpose(0, 1).reshape(2 * runs, -1))


def sampled_event(mechanism: Any, calls: int) -> dpa.DpEvent:
    """The event of one record over ``calls`` releases."""
    return dpa.SelfComposedDpEvent(mechanism.event, calls)
