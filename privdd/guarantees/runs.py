"""Runs of sound queries with and without one record, and the likelihood ratio of what they released.

The client holds one crafted record or nothing: then the transcript hides only the record's own coins.
Where a method treats classes alone, each class of a long public list is an independent run, so that
all of them pass through the method's own code in one call; elsewhere runs follow each other.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import dp_accounting as dpa
import torch
from torch import Tensor

from attacks.guarantee import gaussian_log_ratio, subsampled_log_ratio
from privdd.core import Keys, Shard, Upload
from privdd.federation import Plan, Snapshot
from privdd.guarantees.base_data import copies, holding
from privdd.guarantees.matching import Transcripts
from privdd.guarantees.witness import Heard, Heeded, Witness, exact, flat, without, witness
from privdd.privacy.base import Mechanism
from privdd.privacy.mechanisms import FeatureNoise

IMAGES = ("images", "representations")


@dataclass(frozen=True)
class Stage:
    """Where a query is asked: the plan, one round of the audited client, the guest, releases a run."""

    plan: Plan
    snapshot: Snapshot
    shard: Shard
    name: str
    guest: Tensor
    label: int
    calls: int

    @property
    def probability(self) -> float:
        """The chance that a record takes part in one release."""
        return float(getattr(self.plan.mechanisms[self.name], "sampling_probability", 1.0))


@dataclass
class Recorder:
    """Adds up each run's log ratio, release by release; the run is the partition's label."""

    stage: Stage
    ratios: Tensor
    run: int | None = None
    seen: dict[str, int] = field(default_factory=dict)

    def __call__(self, mechanism: Mechanism, heeded: Heeded) -> None:
        if heeded.name != self.stage.name or not heeded.guests:
            return
        at = self.run if self.run is not None else int(str(heeded.partition).removeprefix("label:"))
        inside, outside = exact(mechanism, heeded.rows), exact(mechanism, without(heeded.rows, heeded.guests))
        released = flat(heeded.released.value).unsqueeze(0)
        step = gaussian_log_ratio(released, flat(inside), flat(outside), heeded.released.noise_std)
        self.ratios[at] += subsampled_log_ratio(step.unsqueeze(1), self.stage.probability)[0]


def by_class(stage: Stage, runs: int, keys: Keys) -> Transcripts:
    """Runs side by side, one a class: the method's own release of 2R classes, R with the guest in them."""
    plan, total = stage.plan, 2 * runs
    recorder = Recorder(stage, torch.zeros(total, dtype=torch.float64))
    coins = keys.fold("coins").torch()

    def inside(name: str, partition: str | None) -> bool:
        if name != stage.name or partition is None:
            return True
        return int(partition.removeprefix("label:")) < runs and _heads(stage.probability, coins)

    ctx = witness(
        plan, stage.snapshot.round, keys.fold("noise"), range(total),
        observe=recorder, inside=inside, guests={f"label:{run}": 1 for run in range(total)},
    )
    records = copies(stage.guest, 0, total)
    records.y.copy_(torch.arange(total))
    upload = _released(stage, ctx, holding(stage.shard, records))
    name = next(n for n in IMAGES if n in upload)
    return Transcripts(recorder.ratios, upload[name].value["x"].reshape(total, -1))


def _heads(probability: float, coins: torch.Generator) -> bool:
    return probability >= 1 or bool(torch.rand((), generator=coins) < probability)


def _released(stage: Stage, ctx: Witness, shard: Shard) -> Upload:
    """The upload of a method that has nothing but its release to do, else of its whole local work."""
    method: Any = stage.plan.method
    if hasattr(method, "released"):
        upload: Upload = method.released(stage.snapshot.broadcast, shard, ctx)
        return upload
    return method.local(stage.snapshot.broadcast, {}, shard, ctx)[0]


def one_by_one(stage: Stage, runs: int, keys: Keys, *, final: bool) -> Transcripts:
    """Runs after each other; without ``final`` each ends with its last release, and final is (2R, 0)."""
    ratios, last = torch.zeros(2 * runs, dtype=torch.float64), []
    for run in range(2 * runs):
        own = keys.fold("run", run)
        coins = own.fold("coins").torch()

        def inside(name: str, partition: str | None, member: bool = run < runs, g: torch.Generator = coins) -> bool:
            return name != stage.name or (member and _heads(stage.probability, g))

        ctx = witness(
            stage.plan, stage.snapshot.round, own, [stage.label],
            observe=Recorder(stage, ratios, run), inside=inside,
            guests={None: 1, f"label:{stage.label}": 1}, limit=None if final else (stage.name, stage.calls),
        )
        shard = holding(stage.shard, copies(stage.guest, stage.label, 1))
        last.append(_to_the_end(stage, ctx, shard))
    return Transcripts(ratios, torch.stack(last))


def _to_the_end(stage: Stage, ctx: Witness, shard: Shard) -> Tensor:
    try:
        upload, _ = stage.plan.method.local(stage.snapshot.broadcast, {}, shard, ctx)
    except Heard:
        return torch.zeros(0)
    return flat(next(iter(upload.values())).value)


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
    """What one record spends in so many releases."""
    return dpa.SelfComposedDpEvent(mechanism.event, calls)

