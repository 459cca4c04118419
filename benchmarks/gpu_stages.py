"""What ``benchmarks.gpu`` times: one client's round as it runs in a plan, and what an audit adds
(gpu_audit_stages.py).

All on random images of 3x32x32 and 10 classes. The time of a round holds all that a run pays for
it: records to the GPU, local work, results back, the channel and its digests.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

from benchmarks.gpu_clock import Run
from privdd.core.rng import Keys
from privdd.core.types import Problem, Records, Shard
from privdd.distillation.distribution_matching import MatchingSettings
from privdd.distillation.feature_split import SplitLoss
from privdd.federated.method import Method
from privdd.federated.simulation import ClientTask, Plan, client_step
from privdd.methods.fedavg import FedAvg
from privdd.methods.feddm import FedDM
from privdd.methods.fedfed import FedFed
from privdd.models import ModelSpec
from privdd.privacy.mechanism import Mechanism
from privdd.privacy.mechanisms import ClippedSum
from privdd.training.server import ServerTraining

SHAPE = (3, 32, 32)
CLASSES = 10


@dataclass(frozen=True)
class Stage:
    """cpu, gpu, profile: how many steps each takes; least: how few a slow CPU may take; per_step:
    what the rate counts in a step, 0 = ms a step.

    work: (device, steps, dry) -> what is timed; with ``dry`` networks and batches are tiny.
    """

    name: str
    unit: str
    work: Callable[[str, int, bool], Run]
    cpu: int
    gpu: int
    profile: int = 10
    least: int = 1
    per_step: Callable[[bool], int] = lambda dry: 0

    def figure(self, seconds: float, steps: int, dry: bool) -> float:
        per_step = self.per_step(dry)
        return steps * per_step / seconds if per_step else 1e3 * seconds / steps


def images(count: int) -> Records:
    """Random records, classes in turn."""
    x = torch.rand((count, *SHAPE), generator=Keys(0).fold("images").torch())
    return Records(x, torch.arange(count) % CLASSES, torch.arange(count))


def shard_of(records: Records) -> Shard:
    empty = records.take(torch.arange(0))
    return Shard(0, records, empty, empty, CLASSES)


def round_of(
    method: Method, records: int, device: str, mechanisms: Mapping[str, Mechanism] | None = None
) -> Run:
    """The first round of the only client of a plan whose problem is on ``device``."""
    problem = Problem(SHAPE, CLASSES, 1, device)
    plan = Plan(
        Keys(3),
        problem,
        method,
        mechanisms or {},
        relation="add_remove" if mechanisms else "zero_out",
    )
    sent = method.broadcast(method.init(problem, Keys(3).fold("public", "init")))
    task = ClientTask(plan, 0, 0, sent, {}, shard_of(images(records)))
    return lambda: client_step(task)


def feddm_of(steps: int, dry: bool) -> FedDM:
    matching = MatchingSettings(steps, batch=8 if dry else 256)
    model = ModelSpec(width=8 if dry else 128)
    return FedDM(
        model=model, rounds=1, matching=matching, server=ServerTraining(), ipc=2 if dry else 10
    )


def feddm(device: str, steps: int, dry: bool) -> Run:
    return round_of(feddm_of(steps, dry), CLASSES * (10 if dry else 500), device)


def batch(usual: int) -> Callable[[bool], int]:
    return lambda dry: 8 if dry else usual


def fedavg_of(model: ModelSpec, size: int, epochs: float = 1.0) -> FedAvg:
    return FedAvg(model=model, rounds=1, batch_size=size, local_epochs=epochs)


def fedavg(device: str, steps: int, dry: bool) -> Run:
    size = batch(64)(dry)
    return round_of(
        fedavg_of(ModelSpec("resnet18", width=4 if dry else 64), size), steps * size, device
    )


def dp_sgd(device: str, steps: int, dry: bool) -> Run:
    size = batch(256)(dry)
    records = 80 if dry else 5000
    mechanism = ClippedSum(1.0, 1.0, sampling_probability=size / records, normaliser=size)
    method = fedavg_of(
        ModelSpec("smallcnn", width=4 if dry else 32), size, epochs=steps * size / records
    )
    return round_of(method, records, device, {"dpsgd": mechanism})


def fedfed(device: str, steps: int, dry: bool) -> Run:
    """Phase A: a VAE and a ResNet-18, both with batch norm, under the noise of variance 0.15 (the
    paper's)."""
    size = batch(32)(dry)
    classifier = ModelSpec("resnet18", width=4 if dry else 64, norm="batch", input_norm=True)
    generator = ModelSpec("vae", width=4 if dry else 32, latent=8 if dry else 2048)
    method = FedFed(
        base=fedavg_of(classifier, size), generator=generator, loss=SplitLoss(), distill_batch=size
    )
    return round_of(method, steps * size, device)


FEDERATED = (
    Stage("feddm", "ms an iteration", feddm, cpu=3, gpu=100),
    Stage("fedavg", "images a second", fedavg, cpu=10, gpu=100, per_step=batch(64)),
    Stage("dp_sgd", "records a second", dp_sgd, cpu=10, gpu=100, per_step=batch(256)),
    Stage("fedfed", "records a second", fedfed, cpu=10, gpu=100, per_step=batch(32)),
)
