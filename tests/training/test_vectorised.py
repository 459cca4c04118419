"""Clients trained as one wide network against each client's own loop."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest
import torch
from torch.nn import functional as F

from privdd.core.rng import Keys
from privdd.core.types import Problem, Records, Shard, State
from privdd.federated.channel import ClientContext
from privdd.methods.fedadam import FedAdam
from privdd.methods.fedavg import FedAvg
from privdd.methods.fedavg_adaptive import FedAvgAdaptive
from privdd.methods.fedavgm import FedAvgM
from privdd.methods.fednova import FedNova
from privdd.methods.fedproto import FedProto
from privdd.methods.fedprox import FedProx
from privdd.methods.moon import Moon
from privdd.methods.own_training import OwnTraining
from privdd.methods.scaffold import Scaffold
from privdd.methods.vhl import VHL
from privdd.models import ModelSpec, build, initial
from privdd.models.build import build_skeleton
from privdd.training.sgd import is_vectorisable, local_sgd, pool_records, vectorised_sgd
from tests.methods.toy import BATCH_NORM, SPEC, digits, make, shards

MLP = ModelSpec("mlp", width=16)
CNN = ModelSpec("smallcnn", width=8)
HEAVY = {"momentum": 0.9, "weight_decay": 1e-2, "local_epochs": 2.5, "batch_size": 16}
CASES = [
    (FedAvg, MLP, HEAVY),
    (FedAvg, CNN, HEAVY),
    (FedAvg, CNN, {**HEAVY, "update_is_delta": True, "weighting": "uniform"}),
    (FedAvg, SPEC, HEAVY),  # instance norm
    (FedAvg, ModelSpec("smallcnn", width=8, norm="group"), HEAVY),
    (FedAvg, ModelSpec("resnet18", width=4, norm="instance"), {**HEAVY, "local_epochs": 0.5}),
    (FedAvg, ModelSpec("lenet", width=4), HEAVY),
    (
        FedAvg,
        MLP,
        {"momentum": 0.0, "weight_decay": 0.0, "batch_size": 1000},
    ),  # whole sets, of unequal size
    (FedAvgM, MLP, HEAVY),
    (FedAdam, CNN, HEAVY),
    (FedNova, MLP, HEAVY),
    (FedProx, CNN, {**HEAVY, "mu": 0.5}),
    (FedProx, MLP, {**HEAVY, "mu": 0.5}),
    (Scaffold, CNN, {**HEAVY, "momentum": 0.0}),
    (Scaffold, MLP, {**HEAVY, "momentum": 0.0}),
]
SIZES = [70, 31, 5, 64]


def context(method: FedAvg, shard: Shard, round: int = 0, **more: Any) -> ClientContext:
    keys = Keys(3).fold("round", round, "client", shard.client)
    return ClientContext(
        round,
        shard.client,
        keys,
        Problem(shard.shape, 10, len(SIZES)),
        queries=method.queries,
        **more,
    )


def worlds() -> list[Shard]:
    """One client's records in four worlds: subsets of one set, of very unequal size."""
    (whole,) = shards([80])
    drawn = [
        torch.randperm(80, generator=Keys(k).torch())[:size].sort().values
        for k, size in enumerate(SIZES)
    ]
    return [whole.with_train(whole.train.take(at)) for at in drawn]


def test_a_pass_of_one_client_is_that_client_alone() -> None:
    """As the last pass of an odd number of replays is."""
    method, (client, *_) = make(FedAvg), worlds()
    sent = method.broadcast(method.init(Problem(client.shape, 10, 1), Keys(0)))
    ctx = context(make(FedAvg), client)
    ((upload, _),) = method.local_batched(sent, [{}], [client], [ctx]) or ()
    alone, _ = method.local(sent, {}, client, ctx)
    assert all(
        torch.allclose(upload["update"].value[n], v, atol=1e-5)
        for n, v in alone["update"].value.items()
    )


@pytest.mark.nightly(
    but=[
        "FedAvg-model0-settings0",
        "FedAvg-model7-settings7",
        "FedAvgM-model8-settings8",
        "FedNova-model10-settings10",
        "FedProx-model12-settings12",
        "Scaffold-model13-settings13",
        "Scaffold-model14-settings14",
    ]
)
@pytest.mark.parametrize(("kind", "model", "settings"), CASES)
def test_every_upload_is_what_the_client_would_send_alone(
    kind: Any, model: ModelSpec, settings: dict
) -> None:  # type: ignore[type-arg]
    """Two rounds, so that what a client remembers (a control variate, say) differs between
    worlds."""
    method = make(kind, model=model, **settings)
    clients = worlds()
    server = method.init(Problem(clients[0].shape, 10, len(SIZES)), Keys(0))
    sent = method.broadcast(server)
    together: list[State] = [{}] * len(clients)
    alone: list[State] = [{}] * len(clients)
    for t in range(2):
        contexts = [context(method, shard, t) for shard in clients]
        got = method.local_batched(sent, together, clients, contexts)
        assert got is not None
        expected = [method.local(sent, m, s, c) for m, s, c in zip(alone, clients, contexts)]
        for (upload, memory), (wanted, kept) in zip(got, expected):
            assert {n: set(a.value) for n, a in upload.items()} == {
                n: set(a.value) for n, a in wanted.items()
            }
            for name, artifact in wanted.items():
                gaps = [
                    float((upload[name].value[n] - v).abs().max())
                    for n, v in artifact.value.items()
                ]
                scale = max(1.0, max(float(v.abs().max()) for v in artifact.value.values()))
                assert max(gaps) <= 2e-5 * scale, name  # float32, over all layers and steps
            assert memory.keys() == kept.keys()
            assert all(
                (memory[n] - kept[n]).abs().max() <= 1e-5 * max(1, kept[n].abs().max())
                for n in kept
            )
        together = [memory for _, memory in got]
        alone = [memory for _, memory in expected]
    moved = max(
        float((expected[0][0]["update"].value[n] - sent["model"][n]).abs().max())
        for n in sent["model"]
    )
    assert moved > 1e-3  # the comparison is of models that have trained


def test_torch_trains_the_same_models() -> None:
    """Against torch.optim.SGD on batches written out by hand."""
    state = initial(CNN, (1, 8, 8), 10, Keys(1).torch())
    parts = [s.train for s in worlds()]
    done = vectorised_sgd(
        build_skeleton(CNN, (1, 8, 8), 10),
        state,
        parts,
        lr=0.05,
        momentum=0.9,
        weight_decay=1e-2,
        batch_size=16,
        epochs=2,
        generators=[Keys(2).fold(k).torch() for k in range(len(parts))],
    )
    for k, (records, (got, steps)) in enumerate(zip(parts, done)):
        model = build(CNN, (1, 8, 8), 10)
        generator = Keys(2).fold(k).torch()
        taken = 0
        model.load_state_dict(state)
        optimiser = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-2)
        for _ in range(2):
            for at in torch.randperm(len(records), generator=generator).split(16):
                optimiser.zero_grad()
                F.cross_entropy(model(records.x[at]), records.y[at]).backward()
                optimiser.step()
                taken += 1
        assert steps == taken
        for name, value in model.state_dict().items():
            torch.testing.assert_close(got[name], value, rtol=1e-5, atol=1e-6)


def test_a_model_does_not_see_its_neighbours() -> None:
    """Whatever the others hold, even values that are not numbers: the same model, bit for bit."""
    state = initial(CNN, (1, 8, 8), 10, Keys(1).torch())
    parts = [s.train for s in worlds()]
    odd = Records(torch.full_like(parts[1].x, torch.nan), parts[1].y, parts[1].ids + 10_000)
    options: dict[str, Any] = {"lr": 0.1, "batch_size": 16, "steps": 4}

    def first(second: Records) -> State:
        generators = [Keys(2).fold(k).torch() for k in range(2)]
        return vectorised_sgd(
            build_skeleton(CNN, (1, 8, 8), 10),
            state,
            [parts[0], second],
            generators=generators,
            **options,
        )[0][0]

    a = first(parts[1])
    b = first(odd)
    assert all(torch.equal(a[n], b[n]) and a[n].isfinite().all() for n in a)


def test_inputs_and_global_streams_are_left_alone() -> None:
    state = initial(MLP, (1, 8, 8), 10, Keys(1).torch())
    parts = [s.train for s in worlds()]
    kept = {n: t.clone() for n, t in state.items()}
    before = torch.get_rng_state()
    model = build_skeleton(MLP, (1, 8, 8), 10)
    layers = [type(part) for part in model.modules()]

    def run() -> list[tuple[State, int]]:
        generators = [Keys(2).fold(k).torch() for k in range(len(parts))]
        return vectorised_sgd(
            model, state, parts, lr=0.1, batch_size=16, epochs=1, generators=generators
        )

    one = run()
    two = run()
    assert all(torch.equal(a[n], b[n]) for (a, _), (b, _) in zip(one, two) for n in a)
    assert all(torch.equal(state[n], kept[n]) for n in state) and torch.equal(
        torch.get_rng_state(), before
    )
    assert [type(part) for part in model.modules()] == layers


def test_records_that_several_worlds_hold_are_kept_once() -> None:
    parts = [s.train for s in worlds()]
    pool, rows = pool_records(parts)
    assert sorted(pool.ids.tolist()) == sorted({i for part in parts for i in part.ids.tolist()})
    for part, at in zip(parts, rows):
        assert (
            torch.equal(pool.ids[at], part.ids)
            and torch.equal(pool.x[at], part.x)
            and torch.equal(pool.y[at], part.y)
        )


class Clipped(FedAvg):
    """A correction over the whole gradient: of all models together it would be another one."""

    def correction(self, turn: Any) -> Any:
        return lambda params, grads: {
            n: g / sum(v.norm() for v in grads.values()) for n, g in grads.items()
        }


class Declared(FedAvg):
    """Changes how clients train, and says that many train at once."""

    vectorisable: ClassVar[bool] = True

    def correction(self, turn: Any) -> Any:
        return lambda params, grads: {n: 2 * g for n, g in grads.items()}


class Heir(Declared):
    """Says nothing, so it may train in another way."""


def test_who_trains_together() -> None:
    at_once = (FedAvg, FedAvgM, FedAdam, FedNova, FedProx, Scaffold, FedAvgAdaptive, Declared)
    assert all(kind.vectorisable for kind in at_once)
    assert not any(kind.vectorisable for kind in (Moon, FedProto, VHL, OwnTraining, Clipped, Heir))
    clients = worlds()
    for method in (make(Moon), make(VHL), make(FedAvg, model=BATCH_NORM)):
        sent = method.broadcast(method.init(Problem((1, 8, 8), 10, 4), Keys(0)))
        assert (
            method.local_batched(sent, [{}] * 4, clients, [context(method, s) for s in clients])
            is None
        )
    method = make(FedAvg)
    sent = method.broadcast(method.init(Problem((1, 8, 8), 10, 4), Keys(0)))
    private = [context(method, s, mechanisms={"dpsgd": object()}) for s in clients]
    assert method.local_batched(sent, [{}] * 4, clients, private) is None
    shared = {**sent, "features": {"x": digits().x[:5]}, "labels": {"y": digits().y[:5]}}
    assert (
        method.local_batched(shared, [{}] * 4, clients, [context(method, s) for s in clients])
        is None
    )


def test_refusals() -> None:
    parts = [s.train for s in worlds()][:1]
    options = {"lr": 0.1, "batch_size": 4, "generators": [Keys(0).torch()]}
    assert not is_vectorisable(build_skeleton(BATCH_NORM, (1, 8, 8), 10))
    with pytest.raises(ValueError, match="no form for many"):
        vectorised_sgd(build_skeleton(BATCH_NORM, (1, 8, 8), 10), {}, parts, steps=1, **options)  # type: ignore[arg-type]
    model = build_skeleton(MLP, (1, 8, 8), 10)
    state = initial(MLP, (1, 8, 8), 10, Keys(1).torch())
    for wrong in ({}, {"steps": 1, "epochs": 1}):
        with pytest.raises(ValueError, match="exactly one"):
            vectorised_sgd(model, state, parts, **wrong, **options)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="records=0"):
        vectorised_sgd(model, state, [parts[0].take(torch.arange(0))], steps=1, **options)  # type: ignore[arg-type]


def test_channels_last_changes_rounding_only() -> None:
    """The loop's memory order against the same loop on a network whose order is the plain one."""
    records = digits().take(range(64))
    state = initial(CNN, (1, 8, 8), 10, Keys(1).torch())
    options: dict[str, Any] = {"lr": 0.05, "momentum": 0.9, "batch_size": 16, "epochs": 2}
    ours = local_sgd(
        build_skeleton(CNN, (1, 8, 8), 10), state, records, generator=Keys(2).torch(), **options
    )[0]
    plain = vectorised_sgd(
        build_skeleton(CNN, (1, 8, 8), 10),
        state,
        [records],
        generators=[Keys(2).torch()],
        **options,
    )[0][0]
    assert all(torch.allclose(ours[n], plain[n], atol=1e-6) for n in ours)
