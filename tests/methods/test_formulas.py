"""The formulas inside the methods, against brute force and other libraries."""

import math

import pytest
import torch

from privdd.core.rng import Keys
from privdd.core.types import Problem, Received
from privdd.federated.aggregation import average, client_weights
from privdd.methods.fedavg import FedAvg
from privdd.methods.fednova import step_mass
from privdd.methods.fedproto import FedProto, compute_prototypes
from privdd.methods.moon import model_contrastive_loss
from privdd.methods.scaffold import Scaffold
from privdd.methods.vhl import VHL, draw_anchors, supervised_contrast
from privdd.models import build, initial
from tests.methods.toy import METHODS, SPEC, digits, federate, make, receive, shards


@pytest.mark.parametrize("rho", [0.0, 0.5, 0.9])
def test_step_mass_is_the_displacement_of_a_heavy_ball(rho):
    """A ball under a constant unit gradient at lr 1 moves by exactly a_i."""
    position = velocity = 0.0
    for steps in range(1, 60):
        velocity = rho * velocity + 1.0
        position += velocity
        assert step_mass(
            torch.tensor(float(steps), dtype=torch.float64), rho
        ).item() == pytest.approx(position)


def test_contrast_by_hand():
    z, towards, away = torch.randn(3, 4, 6, generator=Keys(0).torch())
    total = 0.0
    for a, b, c in zip(z, towards, away):
        up, down = (math.exp(float(a @ t / a.norm() / t.norm()) / 0.5) for t in (b, c))
        total -= math.log(up / (up + down))
    assert model_contrastive_loss(z, towards, away, 0.5).item() == pytest.approx(
        total / 4, rel=1e-5
    )


def test_supervised_contrast_by_hand():
    z = torch.randn(7, 5, generator=Keys(1).torch())
    y = torch.tensor([0, 0, 0, 1, 1, 2, 0])
    unit = z / z.norm(dim=1, keepdim=True)
    terms = []
    for i in range(7):
        partners = [p for p in range(7) if p != i and y[p] == y[i]]
        below = sum(math.exp(float(unit[i] @ unit[a]) / 0.2) for a in range(7) if a != i)
        if partners:
            logs = [math.log(math.exp(float(unit[i] @ unit[p]) / 0.2) / below) for p in partners]
            terms.append(-sum(logs) / len(partners))
    assert supervised_contrast(z, y, 0.2).item() == pytest.approx(sum(terms) / len(terms), rel=1e-5)
    assert supervised_contrast(z[:2], torch.tensor([0, 1]), 0.2).item() == 0.0


@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 32, 32), (1, 28, 28)])
def test_anchors_are_public_noise_with_a_class_in_it(shape):
    some = draw_anchors(shape, 4, 30, Keys(3))
    again = draw_anchors(shape, 4, 30, Keys(3))
    assert some.x.shape == (120, *shape) and torch.equal(some.x, again.x)
    assert some.x.min() >= 0 and some.x.max() <= 1 and some.x.std() > 0.1
    centres = torch.stack([some.x[some.y == c][:15].mean(0).flatten() for c in range(4)])
    rest = torch.cat([torch.nonzero(some.y == c).flatten()[15:] for c in range(4)])
    nearest = torch.cdist(some.x[rest].flatten(1), centres).argmin(1)
    assert (nearest == some.y[rest]).float().mean() > 0.7


def test_prototypes_are_class_means_of_features():
    state = initial(SPEC, (1, 8, 8), 10, Keys(1).torch())
    records = digits().take(range(60))
    records = records.take(records.y != 3)
    own = compute_prototypes(build(SPEC, (1, 8, 8), 10), state, records, 10, batch=16)
    model = build(SPEC, (1, 8, 8), 10)
    model.load_state_dict(state)
    for c in range(10):
        z = model.features(records.x[records.y == c]).detach()
        assert own["count"][c] == len(z)
        torch.testing.assert_close(
            own["mean"][c], z.mean(0) if len(z) else torch.zeros_like(own["mean"][c])
        )


def test_global_prototypes_are_those_of_the_pooled_records():
    method = make(FedProto)
    clients = shards((60, 90))
    server = method.init(Problem((1, 8, 8), 10, 2), Keys(0))
    sent = receive(method, server, {}, clients, 0, 0)
    new = method.aggregate(server, sent, Keys(0))
    values = [r.values["prototypes"] for r in sent]
    for c in range(10):
        sums = sum(v["mean"][c] * v["count"][c] for v in values)
        torch.testing.assert_close(
            new["prototypes/mean"][c], sums / sum(v["count"][c] for v in values)
        )


def test_scaffold_control_variates_average_to_the_servers():
    clients = shards((40, 60, 90))
    server, memories = federate(make(Scaffold), clients, rounds=3)
    names = [n for n in server if n.startswith("control/")]
    assert names and any(server[n].abs().max() > 1e-4 for n in names)
    for n in names:
        torch.testing.assert_close(
            server[n], sum(m[n] for m in memories.values()) / 3, rtol=1e-3, atol=1e-5
        )


def test_average_weighs_and_refuses_an_empty_inbox():
    inbox = [
        Received(
            k, 0, {"u": {"w": torch.tensor([float(k)])}, "count": {"n": torch.tensor([k + 1.0])}}
        )
        for k in (1, 0)
    ]
    assert client_weights(inbox).tolist() == pytest.approx([1 / 3, 2 / 3])
    assert average(inbox, "u")["w"].item() == pytest.approx(2 / 3)
    with pytest.raises(ValueError, match="inbox"):
        client_weights([])


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (FedAvg, {"lr": float("nan")}),
        (FedAvg, {"momentum": 1.0}),
        (FedAvg, {"weighting": "votes"}),
        (FedAvg, {"local_epochs": 0}),
        (Scaffold, {"momentum": 0.9}),
        (METHODS["fedprox"], {"mu": float("nan")}),
        (METHODS["moon"], {"temperature": 0}),
        (METHODS["fedadam"], {"tau": 0}),
        (METHODS["fedavgm"], {"server_momentum": 1}),
        (FedProto, {"weight": -1}),
        (VHL, {"per_class": 0}),
    ],
)
def test_bad_values_are_named(kind, options):
    with pytest.raises(ValueError, match=next(iter(options))):
        make(kind, **options)


def test_what_an_auditor_reads():
    clients = shards((70,))
    for delta in (False, True):
        method = make(FedAvg, update_is_delta=delta)
        server = method.init(Problem((1, 8, 8), 10, 1), Keys(0))
        sent = method.broadcast(server)
        received = receive(method, server, {}, clients, 0, 0)[0]
        state = method.model_state("update", received.values["update"], sent)
        classifier = method.classifier(Problem((1, 8, 8), 10, 1))
        logits = torch.func.functional_call(classifier, state, (clients[0].test.x,))
        after = method.aggregate(server, [received], Keys(0))
        torch.testing.assert_close(
            logits, method.predict(after, None, clients[0].test.x), rtol=1e-3, atol=1e-4
        )
        assert method.model_state("count", {}, sent) is None
    assert (
        method.settings(70)["local_steps"] == 3 and method.settings(70)["update_is_delta"] is True
    )
