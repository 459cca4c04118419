"""What each reader makes of an upload, by closed form, for a linear classifier whose artifacts are written by hand."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributions import Normal

from attacks.types import Surface
from privdd.auditing.adversary_view import AdversaryView
from privdd.auditing.signal_extraction import extract_signals
from privdd.core.types import Problem, Records
from privdd.federated.simulation import Snapshot

SHAPE, CLASSES = (2, 2, 2), 3
PROBLEM = Problem(SHAPE, CLASSES, clients=1)


class Linear(nn.Module):
    """Twice the pixels are its features."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(8, CLASSES)

    def features(self, x: Tensor) -> Tensor:
        return 2 * x.flatten(1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.features(x))


class Method:
    """What readers ask of a method: its classifier travels as "model" and comes back as "update"."""

    audit_hooks = property(lambda self: self)
    uploads = {
        "update": Surface.UPDATE,
        "control": Surface.CONTROL_VARIATE,
        "labels": Surface.LABELS,
        "representations": Surface.SYNTHETIC_REPRESENTATIONS,
        "prototypes": Surface.PROTOTYPES,
        "statistics": Surface.STATISTICS,
        "count": Surface.COUNTS,
    }

    def classifier(self, problem: Problem) -> nn.Module:
        return Linear()

    def sent_state(self, broadcast: Any) -> Any:
        return broadcast.get("model")

    def model_state(self, name: str, value: Any, broadcast: Any) -> Any:
        return value if name == "update" else None

    def maps(self, broadcast: Any, memory: Any, problem: Problem) -> dict[str, Any]:
        return {"projection": lambda x: x.flatten(1) - 1}


def drawn(count: int, seed: int) -> Records:
    g = torch.Generator().manual_seed(seed)
    return Records(torch.rand(count, *SHAPE, generator=g), torch.arange(count) % CLASSES, torch.arange(count))


CANDIDATES, PUBLIC = drawn(7, 0), drawn(20, 1)
START = {name: torch.randn(t.shape, generator=torch.Generator().manual_seed(2)) for name, t in Linear().state_dict().items()}


def read(**values: dict[str, Tensor]) -> dict[str, Tensor]:
    method: Any = Method()
    lens = AdversaryView(
        method=method,
        problem=PROBLEM,
        snapshot=Snapshot(0, {"model": START}, {}),
        candidates=CANDIDATES,
        public=PUBLIC,
        memory={},
        waived=frozenset(),
        noise={},
    )
    return extract_signals(lens, values)


def logits(state: dict[str, Tensor], x: Tensor) -> Tensor:
    return 2 * x.flatten(1) @ state["head.weight"].T + state["head.bias"]


def gradient(state: dict[str, Tensor], at: int) -> dict[str, Tensor]:
    """Of the cross-entropy of one candidate: (softmax - one hot) times its features."""
    x, y = CANDIDATES.x[at : at + 1], CANDIDATES.y[at]
    error = logits(state, x).softmax(1)[0] - torch.eye(CLASSES)[y]
    return {"head.weight": torch.outer(error, 2 * x.flatten()), "head.bias": error}


def moved(at: int, rate: float = 0.1) -> dict[str, Tensor]:
    """One step of descent on one candidate."""
    return {name: START[name] - rate * g for name, g in gradient(START, at).items()}


def test_an_update_is_read_by_its_confidence_its_loss_and_the_descent_it_shows() -> None:
    state = moved(4)
    found = read(update=state)
    chances = logits(state, CANDIDATES.x).double().softmax(1)
    own = chances[torch.arange(7), CANDIDATES.y]
    assert torch.allclose(found["update|confidence"].double(), (own / (1 - own)).log(), atol=1e-4)
    assert torch.allclose(found["update|loss"].double(), own.log(), atol=1e-5)
    assert torch.allclose(found["update|logits"], logits(state, CANDIDATES.x), atol=1e-5)
    flat = [torch.cat([g.flatten() for g in gradient(START, i).values()]) for i in range(7)]
    cosines = torch.stack([torch.dot(g, flat[4]) / (g.norm() * flat[4].norm()) for g in flat])
    assert torch.allclose(found["update|alignment"], cosines, atol=1e-4)
    assert found["update|alignment"].argmax() == 4 and math.isclose(float(found["update|alignment"][4]), 1, abs_tol=1e-4)


def test_a_control_variate_points_along_its_members_own_gradient() -> None:
    found = read(control=gradient(START, 2))["control_variate|alignment"]
    assert found.argmax() == 2 and math.isclose(float(found[2]), 1, abs_tol=1e-5)
    flipped = read(control={name: -g for name, g in gradient(START, 2).items()})["control_variate|alignment"]
    assert torch.allclose(flipped, -found, atol=1e-6)


def test_labels_are_counted_by_the_records_own_class() -> None:
    found = read(labels={"y": torch.tensor([0, 2, 2, 2, 0])})["labels|count"]
    assert found.tolist() == [{0: 2.0, 1: 0.0, 2: 3.0}[int(y)] for y in CANDIDATES.y]


def test_counts_are_the_same_for_every_record() -> None:
    assert read(count={"n": torch.tensor([41.0])})["counts|count"].tolist() == [41.0] * 7


def test_representations_are_compared_in_the_granted_projection_seen_from_public_records() -> None:
    rows, y = torch.randn(6, 8, generator=torch.Generator().manual_seed(3)), torch.tensor([0, 0, 1, 1, 2, 2])
    found = read(representations={"x": rows}, labels={"y": y})
    own, centre = CANDIDATES.x.flatten(1) - 1, (PUBLIC.x.flatten(1) - 1).mean(0)
    means = torch.stack([rows[y == c].mean(0) for c in range(CLASSES)]) - centre
    expected = torch.stack([torch.dot(means[c], r - centre) for r, c in zip(own, CANDIDATES.y)])
    assert torch.allclose(found["synthetic_representations|alignment"], expected, atol=1e-4)
    distance = torch.stack([(rows - r).norm(dim=1).min() for r in own])  # whatever the class
    assert torch.allclose(found["synthetic_representations|distance"], -distance, atol=1e-4)


def test_representations_of_another_size_than_the_adversarys_own_are_not_read() -> None:
    """Before a client has a projection of its own, records stay as large as they are."""
    rows, y = torch.randn(6, 5, generator=torch.Generator().manual_seed(3)), torch.tensor([0, 0, 1, 1, 2, 2])
    found = read(representations={"x": rows}, labels={"y": y})
    assert {name for name in found if name.startswith("synthetic_representations")} == set()
    assert "labels|count" in found


def test_prototypes_are_compared_with_the_features_of_the_broadcast_classifier() -> None:
    mean = torch.randn(CLASSES, 8, generator=torch.Generator().manual_seed(4))
    own, centre = 2 * CANDIDATES.x.flatten(1), 2 * PUBLIC.x.flatten(1).mean(0)
    expected = ((mean - centre)[CANDIDATES.y] * (own - centre)).sum(1)
    assert torch.allclose(read(prototypes={"mean": mean})["prototypes|alignment"], expected, atol=1e-4)


def test_class_statistics_are_read_as_a_density_of_the_records_channel_means() -> None:
    g = torch.Generator().manual_seed(5)
    mean, std = torch.rand(CLASSES, 2, generator=g), 0.1 + torch.rand(CLASSES, 2, generator=g)
    found = read(statistics={"mean": mean, "std": std})["statistics|density"]
    own = CANDIDATES.x.mean((2, 3))
    expected = Normal(mean[CANDIDATES.y], std[CANDIDATES.y]).log_prob(own).sum(1) + math.log(2 * math.pi)
    assert torch.allclose(found, expected, atol=1e-4)


def test_a_models_outputs_on_public_records_and_its_output_gradients_are_read() -> None:
    state = moved(4)
    found = read(update=state)
    assert torch.allclose(found["update|public_logits"], logits(state, PUBLIC.x), atol=1e-5)
    errors = logits(state, CANDIDATES.x).softmax(1) - torch.eye(CLASSES)[CANDIDATES.y]
    assert torch.allclose(found["update|gradient_norm"], -errors.norm(dim=1), atol=1e-5)
    flat = [torch.cat([g.flatten() for g in gradient(START, i).values()]) for i in range(7)]
    products = torch.stack([0.1 * torch.dot(g, flat[4]) for g in flat])
    assert torch.allclose(found["update|gradient_product"], products, atol=1e-4)


def test_a_model_trained_on_representations_is_asked_about_the_records() -> None:
    """Two well separated rows for each class, near one candidate of it: the readout knows this candidate's class."""
    project = [CANDIDATES.x.flatten(1) - 1, PUBLIC.x.flatten(1) - 1]
    rows = project[0][:3].repeat_interleave(2, 0)
    found = read(representations={"x": rows}, labels={"y": CANDIDATES.y[:3].repeat_interleave(2)})
    confidence, seen = found["synthetic_representations|confidence"], found["synthetic_representations|logits"]
    assert torch.equal(seen[:3].argmax(1), CANDIDATES.y[:3])
    chances = seen.double().softmax(1)[torch.arange(7), CANDIDATES.y]
    assert torch.allclose(confidence.double(), (chances / (1 - chances)).log(), atol=1e-4)
    assert found["synthetic_representations|public_logits"].shape == (20, CLASSES)


def test_prototypes_carry_the_count_and_the_mean_of_the_records_own_class() -> None:
    mean, count = torch.randn(CLASSES, 5, generator=torch.Generator().manual_seed(4)), torch.tensor([4.0, 0.0, 9.0])
    found = read(prototypes={"mean": mean, "count": count})
    assert found["prototypes|count"].tolist() == [float(count[c]) for c in CANDIDATES.y]
    assert torch.allclose(found["prototypes|row"], mean.norm(dim=1)[CANDIDATES.y])
