"""What an audit adds to ``benchmarks.gpu``: shadow models as one wide network, worlds of FedDM,
gradient inversion."""

from __future__ import annotations

import torch
from torch import Tensor

from attacks.inversion.gradient import InvertingGradients
from attacks.inversion.victim import Victim
from benchmarks.gpu_clock import Run
from benchmarks.gpu_stages import CLASSES, SHAPE, Stage, batch, feddm_of, images, shard_of
from privdd.core.device import to_device
from privdd.core.rng import Keys
from privdd.core.types import Problem, Records
from privdd.federated.channel import ClientContext
from privdd.federated.method import Method
from privdd.methods.fedavg import FedAvg
from privdd.methods.feddm import FedDM
from privdd.models import ModelSpec, build, initial

PROBLEMS = 8


def worlds_of(method: Method, pool: Records, passes: int, device: str) -> Run:
    """So many passes of ``worlds_per_pass`` replays of one client, each on its own random half of
    the records."""
    problem = Problem(SHAPE, CLASSES, 1, device)
    count = method.worlds_per_pass
    sent = method.broadcast(method.init(problem, Keys(5)))

    def run() -> None:
        for first in range(0, passes * count, count):
            worlds = range(first, first + count)
            contexts = [ClientContext(0, 0, Keys(6).fold("world", w), problem) for w in worlds]
            shards = [shard_of(pool.take(half(pool, w))) for w in worlds]
            if method.local_batched(sent, [{} for _ in worlds], shards, contexts) is None:
                raise RuntimeError(f"{type(method).__name__}: no batched form of these rounds")

    return run


def half(pool: Records, world: int) -> Tensor:
    return torch.rand(len(pool), generator=Keys(4).fold(world).torch()) < 0.5


def shadows(device: str, steps: int, dry: bool) -> Run:
    """A step is a group of shadow models, trained for two epochs on about 500 records each."""
    model = ModelSpec("smallcnn", width=4 if dry else 32)
    method = FedAvg(
        model=model,
        rounds=1,
        lr=0.05,
        batch_size=batch(64)(dry),
        local_epochs=2,
        weighting="uniform",
    )
    return worlds_of(method, images(40 if dry else 1000), steps, device)


def feddm_worlds(device: str, steps: int, dry: bool) -> Run:
    """A step is a matching iteration of all worlds together."""
    return worlds_of(feddm_of(steps, dry), images(CLASSES * (10 if dry else 500)), 1, device)


def inversion(device: str, steps: int, dry: bool) -> Run:
    """A step is an iteration of all problems together; labels are recovered first, once."""
    spec = ModelSpec(width=8 if dry else 64, norm="none")
    records = images(PROBLEMS)
    model = build(spec, SHAPE, CLASSES)
    model.load_state_dict(initial(spec, SHAPE, CLASSES, Keys(7).torch()))
    sent = [
        Victim(model).simulated_gradients(records.x[i : i + 1], records.y[i : i + 1])
        for i in range(PROBLEMS)
    ]
    there, gradients = to_device(
        (model, [torch.stack(part).detach() for part in zip(*sent)]), device
    )
    attack = InvertingGradients(iterations=steps, lr=0.03, schedule="cosine", objective="absolute")
    return lambda: attack.reconstruct_each(there, gradients, (1, *SHAPE), generator=Keys(8).torch())


AUDIT = (
    Stage(
        "shadows",
        "models a second",
        shadows,
        cpu=2,
        gpu=8,
        profile=1,
        per_step=lambda dry: FedAvg.worlds_per_pass,
    ),
    Stage(
        "worlds",
        f"ms an iteration of {FedDM.worlds_per_pass}",
        feddm_worlds,
        cpu=2,
        gpu=20,
        profile=3,
    ),
    # from 400 steps on a search's kernels are recorded once and replayed: on both sides, but not in
    # its profile
    Stage(
        "inversion",
        f"ms an iteration of {PROBLEMS}",
        inversion,
        cpu=400,
        gpu=400,
        profile=30,
        least=400,
    ),
)
