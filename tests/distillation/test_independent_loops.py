"""Matching and FedDM beside loops that share no code with them: plain torch, written from the
papers' equations alone.

Zhao and Bilen 2023 (distribution matching); Xiong et al. 2023, algorithm 1 and equations 8, 9 and
15, with the noise of their section 3.3 (FedRD, equation 7).
"""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from privdd.cli.build import build_experiment
from privdd.cli.compose import compose_config
from privdd.cli.paper_rows import build_row_experiment
from privdd.core.rng import Keys
from privdd.core.types import Records, unpack
from privdd.distillation.class_cells import single_client_cells
from privdd.distillation.distribution_matching import (
    MatchingSettings,
    MatchingStreams,
    fresh_networks,
    match_distributions,
)
from privdd.federated.simulation import run_round, start_training
from privdd.federated.trainer import measure_accuracy
from privdd.models import ModelSpec, initial
from privdd.models.build import build_skeleton
from privdd.reproduce.catalogue import find_entry
from privdd.reproduce.train import paper_cells
from privdd.runtime.engine import Engine

pytestmark = pytest.mark.nightly


def convnet(width: int, side: int = 16, classes: int = 10) -> nn.Sequential:
    layers: list[nn.Module] = []
    for depth in (1, width, width):
        layers += [
            nn.Conv2d(depth, width, 3, padding=1),
            nn.GroupNorm(width, width),
            nn.ReLU(),
            nn.AvgPool2d(2),
        ]
    return nn.Sequential(
        nn.Sequential(*layers, nn.Flatten()), nn.Linear(width * (side // 8) ** 2, classes)
    )


def flat(net: nn.Module) -> Tensor:
    return nn.utils.parameters_to_vector(net.parameters()).detach()


def load(net: nn.Module, values: Tensor) -> None:
    nn.utils.vector_to_parameters(values.clone(), net.parameters())


def accuracy(net: nn.Module, x: Tensor, y: Tensor) -> float:
    with torch.no_grad():
        return 100 * float((net(x).argmax(1) == y).float().mean())


def trained_on(x: Tensor, y: Tensor, seed: int, epochs: int = 120) -> nn.Module:
    torch.manual_seed(seed)
    net = convnet(32)
    optimiser = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9, weight_decay=5e-4)
    for epoch in range(epochs):
        optimiser.param_groups[0]["lr"] = 0.01 if epoch <= epochs // 2 else 0.001
        optimiser.zero_grad()
        F.cross_entropy(net(x), y).backward()
        optimiser.step()
    return net


def match_alone(x: Tensor, y: Tensor, start: Tensor, steps: int, batch: int, lr: float) -> Tensor:
    """start (10, ipc, 1, h, w); equation 4 of Zhao and Bilen, a new random network at each step,
    plain SGD."""
    generator = torch.Generator().manual_seed(3)
    images = start.clone()
    of_class = [(y == label).nonzero()[:, 0] for label in range(10)]
    for step in range(steps):
        torch.manual_seed(1000 + step)
        see = convnet(32)[0].requires_grad_(False)
        drawn = torch.cat(
            [x[rows[torch.randint(len(rows), (batch,), generator=generator)]] for rows in of_class]
        )
        images.requires_grad_(True)
        gap = see(drawn).view(10, batch, -1).mean(1) - see(images.flatten(0, 1)).view(
            *images.shape[:2], -1
        ).mean(1)
        images = images.detach() - lr * torch.autograd.grad(gap.square().sum(), images)[0]
    return images


@pytest.fixture(scope="module")
def clothes() -> tuple[Records, Records]:
    small = [
        "preset=smoke",
        "data=fashion_mnist",
        "data.size=16",
        "data.limit=6000",
        "data.test_limit=2000",
        "partition.clients=1",
        "partition=iid",
        "partition.heldout=0",
    ]
    experiment = build_experiment(compose_config("train", ["algo=feddm", *small, "seed=0"]))
    return experiment.shards[0].train, experiment.test_records


@pytest.mark.extra("fashion_mnist")
def test_matching_is_as_good_as_that_of_an_independent_loop_at_equal_budget(
    clothes: tuple[Records, Records],
) -> None:
    """The same start, 200 steps of 32 records a class at the same rate, the same trainings
    afterwards: half a point apart at most, and both ahead of their start."""
    records, test = clothes
    steps = 200
    batch = 32
    lr = 0.1
    ipc = 10
    start = torch.stack([records.x[records.y == label][:ipc] for label in range(10)])
    spec = ModelSpec(name="convnet", width=32, norm="instance", pooling="avg")
    shape = (1, 16, 16)
    keys = Keys(5)
    networks = fresh_networks(
        build_skeleton(spec, shape, 10), partial(initial, spec, shape, 10), keys.fold("networks")
    )
    settings = MatchingSettings(iterations=steps, batch=batch, lr=lr, augment="none")
    ours = match_distributions(
        single_client_cells(records, 10),
        start,
        networks,
        settings,
        MatchingStreams(keys.fold("batch"), keys.fold("augment")),
    )
    labels = torch.arange(10).repeat_interleave(ipc)
    found = {}
    for name, images in (
        ("start", start),
        ("ours", ours),
        ("alone", match_alone(records.x, records.y, start, steps, batch, lr)),
    ):
        reached = [
            accuracy(trained_on(images.flatten(0, 1), labels, seed), test.x, test.y)
            for seed in range(6)
        ]
        found[name] = sum(reached) / len(reached)
    assert abs(found["ours"] - found["alone"]) <= 0.5, found
    assert min(found["ours"], found["alone"]) > found["start"] + 0.5, found


def noised_images(
    net: nn.Sequential,
    centre: Tensor,
    x: Tensor,
    y: Tensor,
    generator: torch.Generator,
    *,
    steps: int,
    rho: float,
    batch: int,
    clip: float,
    noise: float,
) -> tuple[Tensor, Tensor]:
    """One client's images of the classes that it holds, from N(0, 1): networks on the sphere around
    the server's model, features and logits, each class's mean gradient clipped and noised by noise
    clip / |B|."""
    of_class = {label: (y == label).nonzero()[:, 0] for label in sorted(y.unique().tolist())}
    images = torch.randn(len(of_class), 10, *x.shape[1:], generator=generator)

    def see(z: Tensor) -> Tensor:
        features = net[0](z)
        return torch.cat([features, net[1](features)], 1)

    for _ in range(steps):
        direction = torch.randn(len(centre), generator=generator)
        load(net, centre + rho * direction / direction.norm())
        drawn = [
            x[rows[torch.randperm(len(rows), generator=generator)[:batch]]]
            for rows in of_class.values()
        ]
        with torch.no_grad():
            target = torch.stack(
                [
                    part.mean(0)
                    for part in see(torch.cat(drawn)).split([len(part) for part in drawn])
                ]
            )
        images.requires_grad_(True)
        mean = see(images.flatten(0, 1)).view(len(of_class), 10, -1).mean(1)
        gradient = torch.autograd.grad((target - mean).square().sum(), images)[0]
        gradient = gradient / (gradient.flatten(1).norm(dim=1) / clip).clamp_min(1).view(
            -1, 1, 1, 1, 1
        )
        std = torch.tensor([noise * clip / len(part) for part in drawn]).view(-1, 1, 1, 1, 1)
        images = images.detach() - (gradient + std * torch.randn(images.shape, generator=generator))
    return images.flatten(0, 1), torch.tensor([*of_class]).repeat_interleave(10)


def train_in_ball(
    net: nn.Module,
    centre: Tensor,
    x: Tensor,
    y: Tensor,
    generator: torch.Generator,
    *,
    rho: float,
    epochs: int,
    lr: float,
) -> None:
    load(net, centre)
    optimiser = torch.optim.SGD(net.parameters(), lr=lr, momentum=0.9, weight_decay=5e-4)
    for _ in range(epochs):
        for rows in torch.randperm(len(x), generator=generator).split(64):
            optimiser.zero_grad()
            F.cross_entropy(net(x[rows]), y[rows]).backward()
            optimiser.step()
            away = flat(net) - centre
            load(net, centre + away * (rho / away.norm()).clamp(max=1))


def test_the_noised_rows_of_feddm_are_those_of_an_independent_loop() -> None:
    """Figure 3 at sigma 1 as scale=small runs it (T = 200), on the same clients: three points apart
    at most after a round."""
    row = "algo=feddm algo.start=noise privacy=aggregate_clip privacy.noise_multiplier=1"
    cell = next(
        one
        for one in paper_cells(find_entry("feddm.figure3"), "small")
        if (one.column, one.row) == ("sigma 1", row)
    )
    experiment = build_row_experiment(cell.overrides, 0)
    plan = experiment.plan
    method = experiment.plan.method
    test = experiment.test_records
    progress = start_training(plan, experiment.new_ledger())
    generator = torch.Generator().manual_seed(0)
    torch.manual_seed(0)
    net: nn.Sequential = convnet(method.model.width)
    assert (
        flat(net).shape
        == torch.cat([p.flatten() for p in unpack("model", progress.server).values()]).shape
    )
    progress = run_round(plan, progress, experiment.shards, Engine())[0]
    centre = flat(net)
    sent = []
    for shard in experiment.shards:
        settings = {
            "steps": method.matching.iterations,
            "rho": method.rho,
            "batch": method.matching.batch,
            "clip": 1.0,
            "noise": 1.0,
        }
        sent.append(noised_images(net, centre, shard.train.x, shard.train.y, generator, **settings))
    x, y = (torch.cat(parts) for parts in zip(*sent, strict=True))
    train_in_ball(
        net,
        centre,
        x,
        y,
        generator,
        rho=method.rho,
        epochs=method.server.epochs,
        lr=method.server.lr,
    )
    ours = 100 * measure_accuracy(plan, progress, test, experiment.shards)
    alone = accuracy(net, test.x, test.y)
    assert abs(ours - alone) <= 3.0 and min(ours, alone) > 45, (ours, alone)
