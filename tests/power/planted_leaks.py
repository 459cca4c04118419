"""Uploads with a leak of known size, one kind for each surface: what an attack that claims the
surface must find.

Records are random pictures that hardly resemble each other, and a fair coin puts each into each
replay. What is sent is made of the members alone, plus Gaussian noise. In a null the coins of what
is sent are not those of the masks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from attacks.types import Adversary, Capture, Knowledge, Surface, View
from privdd.auditing.adversary_view import AdversaryView
from privdd.auditing.replay import MembershipGame
from privdd.auditing.shadow_models import server_signals
from privdd.auditing.signal_extraction import extract_signals
from privdd.auditing.views import signals_to_worlds
from privdd.core.types import Problem, Records, Tensors
from privdd.federated.simulation import Snapshot

SHAPE = (1, 6, 6)
CLASSES = 10
RECORDS = 40
WORLDS = 16
PUBLIC = 40
RELEASED = 100  # random pictures with soft labels
ASKED = 100  # public images for whose outputs a client is asked
NOISE = 1.0  # of a feature or image, per coordinate: as large as the spread of records
# by how many standard deviations of the noise a member moves a model along its own gradient
PULL = 2.0
STEEP = 1e3  # steps of a planted generator in its latent number
CLOSED = 1e5  # by which a hidden unit of another class lies below 0
BATCH = 8  # rows that share one noise vector, where it is shared
OTHER_CLIENTS = 8  # who hold as many records of their own, and none of the client's
Values = dict[str, Tensors]


class Linear(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(36, CLASSES)

    def features(self, x: Tensor) -> Tensor:
        return x.flatten(1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.features(x))


class Method:
    """What readers ask of a method; every artifact is named after its surface."""

    audit_hooks = property(lambda self: self)
    uploads = {str(surface): surface for surface in Surface} | {"labels": Surface.LABELS}
    broadcasts = uploads

    def classifier(self, problem: Problem) -> nn.Module:
        return Linear()

    def sent_state(self, broadcast: Any) -> Any:
        return broadcast["model"]

    def model_state(self, name: str, value: Any, broadcast: Any) -> Any:
        return value if name == "update" else None

    def maps(self, broadcast: Any, memory: Any, problem: Problem) -> dict[str, Any]:
        return {"projection": lambda x: x.flatten(1), "feature": lambda x: x.flatten(1)}

    def predict(self, server: Tensors, memory: Any, x: Tensor) -> Tensor:
        return x.flatten(1) @ server["head.weight"].T + server["head.bias"]


def records(count: int, generator: torch.Generator) -> Records:
    x = torch.randn(count, *SHAPE, generator=generator)
    return Records(x, torch.arange(count) % CLASSES, torch.arange(count))


def _gradients(lens: AdversaryView, inside: Tensor) -> Tensor:
    """The sum of the members' unit gradients at the model that was broadcast, (p,)."""
    found = lens.record_gradients
    assert found is not None
    return F.normalize(found.gradient_matrix, dim=1)[inside].sum(0)


def _shaped(vector: Tensor) -> Tensors:
    return {
        "head.weight": vector[: 36 * CLASSES].view(CLASSES, 36),
        "head.bias": vector[36 * CLASSES :],
    }


def _moved(lens: AdversaryView, inside: Tensor, g: torch.Generator) -> Tensors:
    """A model pulled along each member's descent step, in noise."""
    total = _gradients(lens, inside)
    step = _shaped(-PULL * total + torch.randn(total.shape, generator=g))
    start = lens.snapshot.broadcast["model"]
    return {name: start[name] + 0.3 * step[name] for name in start}


def _gradient(lens: AdversaryView, inside: Tensor, g: torch.Generator) -> Tensors:
    total = _gradients(lens, inside)
    return _shaped(PULL * total + torch.randn(total.shape, generator=g))


def _rows(
    lens: AdversaryView, inside: Tensor, g: torch.Generator, shared: bool = False
) -> tuple[Tensor, Tensor]:
    x = lens.candidates.x[inside]
    count = (len(x) + BATCH - 1) // BATCH if shared else len(x)
    noise = NOISE * torch.randn(count, *SHAPE, generator=g)
    return x + (
        noise.repeat_interleave(BATCH, 0)[: len(x)] if shared else noise
    ), lens.candidates.y[inside]


def _images(lens: AdversaryView, inside: Tensor, g: torch.Generator, name: str) -> Values:
    x, y = _rows(lens, inside, g)
    return {name: {"x": x}, "labels": {"y": y}}


def _flat(
    lens: AdversaryView, inside: Tensor, g: torch.Generator, name: str, shared: bool = False
) -> Values:
    x, y = _rows(lens, inside, g, shared)
    return {name: {"x": x.flatten(1)}, "labels": {"y": y}}


def _prototypes(lens: AdversaryView, inside: Tensor, g: torch.Generator) -> Tensors:
    """Means and counts of the members' features by class, the means in noise."""
    one_hot = F.one_hot(lens.candidates.y[inside], CLASSES).float()
    count = one_hot.sum(0)
    mean = one_hot.T @ lens.candidates.x[inside].flatten(1) / count.clamp_min(1)[:, None]
    return {"mean": mean + NOISE / 3 * torch.randn(mean.shape, generator=g), "count": count}


def _statistics(lens: AdversaryView, inside: Tensor, g: torch.Generator) -> Tensors:
    """Each class's mean and standard deviation of the members' brightness, in noise; 0 and 1 for an
    empty class."""
    mean = torch.zeros(CLASSES, 1)
    std = torch.ones(CLASSES, 1)
    for c in range(CLASSES):
        own = lens.candidates.x[inside & (lens.candidates.y == c)].mean((2, 3))
        if len(own):
            mean[c] = own.mean() + 0.02 * torch.randn((), generator=g)
            std[c] = 0.1
    return {"mean": mean, "std": std}


def _logits(lens: AdversaryView, inside: Tensor, g: torch.Generator) -> Tensors:
    """Outputs on public images of a linear network after a step of its last layer on each member's
    cross-entropy, at a start that knows nothing, in noise."""
    labels = F.one_hot(lens.candidates.y[inside], CLASSES).float()
    step = (labels - 1 / CLASSES).T @ lens.candidates.x[inside].flatten(1)
    assert lens.public_images is not None
    logits = lens.public_images.flatten(1) @ step.T
    return {"logits": logits + logits.std() * torch.randn(logits.shape, generator=g)}


def _generator(lens: AdversaryView, inside: Tensor, g: torch.Generator) -> Tensors:
    """A generator that draws the members of a class, in noise, each as often as another: steps of
    one number of latent noise lead from row to row."""
    x, y = _rows(lens, inside, g)
    units = []
    outputs = []
    classes = torch.eye(CLASSES)
    for label in range(CLASSES):
        rows = x[y == label].flatten(1)
        changes = torch.diff(rows, dim=0, prepend=torch.zeros(1, 36))
        for place, change in enumerate(changes):
            # relu(s (z - t) + 1) - relu(s (z - t)): 0 below t, 1 above; classes but one stay at 0
            threshold = float(torch.special.ndtri(torch.tensor(place / len(rows)).clamp_min(1e-6)))
            for height, sign in ((1.0, 1.0), (0.0, -1.0)):
                bias = height - STEEP * threshold - CLOSED
                units.append((torch.cat([torch.tensor([STEEP]), CLOSED * classes[label]]), bias))
                outputs.append(sign * change)
    return {
        "first.weight": torch.stack([weight for weight, _ in units]),
        "first.bias": torch.tensor([bias for _, bias in units]),
        "second.weight": torch.stack(outputs, 1),
        "second.bias": torch.zeros(36),
    }


PLANTED: Mapping[Surface, Callable[[AdversaryView, Tensor, torch.Generator], Values]] = {
    Surface.UPDATE: lambda lens, inside, g: {"update": _moved(lens, inside, g)},
    Surface.GRADIENT: lambda lens, inside, g: {"gradient": _gradient(lens, inside, g)},
    Surface.CONTROL_VARIATE: lambda lens, inside, g: {
        "control_variate": _gradient(lens, inside, g)
    },
    Surface.SYNTHETIC_IMAGES: lambda lens, inside, g: _images(lens, inside, g, "synthetic_images"),
    Surface.SYNTHETIC_REPRESENTATIONS: lambda lens, inside, g: _flat(
        lens, inside, g, "synthetic_representations"
    ),
    Surface.FEATURES: lambda lens, inside, g: _flat(lens, inside, g, "features", shared=True),
    Surface.LABELS: lambda lens, inside, g: {"labels": {"y": lens.candidates.y[inside]}},
    Surface.STATISTICS: lambda lens, inside, g: {"statistics": _statistics(lens, inside, g)},
    Surface.PROTOTYPES: lambda lens, inside, g: {"prototypes": _prototypes(lens, inside, g)},
    Surface.COUNTS: lambda lens, inside, g: {"counts": {"records": inside.sum()[None].float()}},
    Surface.LOGITS: lambda lens, inside, g: {"logits": _logits(lens, inside, g)},
    Surface.GLOBAL_MODEL: lambda lens, inside, g: {"global_model": _moved(lens, inside, g)},
    Surface.GLOBAL_IMAGES: lambda lens, inside, g: _images(lens, inside, g, "global_images"),
    Surface.SHARED_FEATURES: lambda lens, inside, g: _flat(
        lens, inside, g, "features", shared=True
    ),
    Surface.GENERATOR: lambda lens, inside, g: {"generator": _generator(lens, inside, g)},
}


def _every_third(lens: AdversaryView, inside: Tensor, g: torch.Generator) -> tuple[Tensor, Tensor]:
    """One member in three as it is, among random pictures."""
    x = lens.candidates.x[inside]
    y = lens.candidates.y[inside]
    made = torch.randn(x.shape, generator=g)
    made[::3] = x[::3]
    return made, y


def _copied(lens: AdversaryView, inside: Tensor, g: torch.Generator, name: str) -> Values:
    x, y = _every_third(lens, inside, g)
    return {name: {"x": x if name.endswith("images") else x.flatten(1)}, "labels": {"y": y}}


def _copied_prototypes(lens: AdversaryView, inside: Tensor, g: torch.Generator) -> Values:
    """The mean of each class is that of one of its members alone."""
    mean = torch.randn(CLASSES, 36, generator=g)
    count = torch.full((CLASSES,), 5.0)
    for c in range(CLASSES):
        own = lens.candidates.x[inside & (lens.candidates.y == c)].flatten(1)
        if len(own):
            mean[c], count[c] = own[0], 1.0
    return {"prototypes": {"mean": mean, "count": count}}


COPIED: Mapping[Surface, Callable[[AdversaryView, Tensor, torch.Generator], Values]] = {
    Surface.SYNTHETIC_IMAGES: lambda lens, inside, g: _copied(lens, inside, g, "synthetic_images"),
    Surface.SYNTHETIC_REPRESENTATIONS: lambda lens, inside, g: _copied(
        lens, inside, g, "synthetic_representations"
    ),
    Surface.FEATURES: lambda lens, inside, g: _copied(lens, inside, g, "features"),
    Surface.PROTOTYPES: _copied_prototypes,
    Surface.GLOBAL_IMAGES: lambda lens, inside, g: _copied(lens, inside, g, "global_images"),
    Surface.SHARED_FEATURES: lambda lens, inside, g: _copied(lens, inside, g, "features"),
}


def _soft_labels(lens: AdversaryView, inside: Tensor, g: torch.Generator, name: str) -> Values:
    """Random pictures with soft labels of a linear teacher after a step on the members, the logits
    in noise of their own size."""
    taught = F.one_hot(lens.candidates.y[inside], CLASSES).float() - 1 / CLASSES
    weight = lens.candidates.x[inside].flatten(1).T @ taught
    x = torch.randn(RELEASED, *SHAPE, generator=g)
    logits = x.flatten(1) @ weight
    logits = logits + logits.std() * torch.randn(logits.shape, generator=g)
    soft = (logits / logits.std()).softmax(1)
    rows = x if name.endswith("images") else x.flatten(1)
    return {name: {"x": rows}, "labels": {"y": soft.argmax(1), "soft": soft}}


SOFT: Mapping[Surface, Callable[[AdversaryView, Tensor, torch.Generator], Values]] = {
    Surface.SYNTHETIC_IMAGES: lambda lens, inside, g: _soft_labels(
        lens, inside, g, "synthetic_images"
    ),
    Surface.SYNTHETIC_REPRESENTATIONS: lambda lens, inside, g: _soft_labels(
        lens, inside, g, "synthetic_representations"
    ),
    Surface.GLOBAL_IMAGES: lambda lens, inside, g: _soft_labels(lens, inside, g, "global_images"),
}
LEAKS = {"usual": PLANTED, "copies": COPIED, "soft": SOFT}
SENDER = {
    Surface.GLOBAL_MODEL: Adversary.PUBLIC,
    Surface.GLOBAL_IMAGES: Adversary.PEER,
    Surface.SHARED_FEATURES: Adversary.PEER,
    Surface.GENERATOR: Adversary.PEER,
}


def planted(
    surface: Surface, seed: int, *, null: bool = False, leak: str = "usual", crowd: bool = False
) -> View:
    """K replays of a client whose upload on ``surface`` holds its members; null: those of other
    coins; leak: of ``LEAKS``, "copies": some of them as they are, and nothing of the others,
    "soft": soft labels alone; crowd: what other clients sent is known too."""
    g = torch.Generator().manual_seed(seed)
    candidates = records(RECORDS, g)
    public = records(PUBLIC, g)
    start = _shaped(0.05 * torch.randn(37 * CLASSES, generator=g))
    noise = {"std": NOISE, "noise_stds": [NOISE], "copies": 1, "broadcast_batch": BATCH}
    method: Any = Method()
    problem = Problem(SHAPE, CLASSES, clients=1)
    lens = AdversaryView(
        method,
        problem,
        Snapshot(0, {"model": start}, {}),
        candidates,
        public,
        {},
        frozenset(),
        noise,
        public_images=torch.randn(ASKED, *SHAPE, generator=torch.Generator().manual_seed(seed)),
    )
    masks, others = (torch.rand(WORLDS, RECORDS, generator=g) < 0.5 for _ in range(2))
    plant = LEAKS[leak][surface]
    sent = [plant(lens, coins, g) for coins in (others if null else masks)]
    signals = [_read(lens, surface, values) for values in sent]
    stacked = {key: torch.stack([one[key] for one in signals]) for key in signals[0]}
    game = MembershipGame(candidates, torch.arange(RECORDS), masks)
    knowledge = Knowledge(
        SHAPE, CLASSES, public.x, public.y, model=Linear(), settings={"delta": 1e-5}
    )
    captures = tuple(
        Capture(0, 0, name, value, {"model": start}) for name, value in sent[0].items()
    )
    of_others = _signals_of_others(lens, surface, seed) if crowd else None
    worlds = signals_to_worlds(stacked, str(surface), game, public, others=of_others)
    return View(surface, SENDER.get(surface, Adversary.SERVER), captures, knowledge, worlds)


def _signals_of_others(lens: AdversaryView, surface: Surface, seed: int) -> dict[str, Tensor]:
    """(M, n, 1): what M clients sent of their own records, read as the audited client's upload."""
    g = torch.Generator().manual_seed(10_000 + seed)
    signals = []
    for _ in range(OTHER_CLIENTS):
        own = replace(lens, candidates=records(RECORDS, g))
        sent = PLANTED[surface](own, torch.rand(RECORDS, generator=g) < 0.5, g)
        signals.append(_read(lens, surface, sent))
    return {
        key: torch.stack([one[key] for one in signals]).unsqueeze(-1)
        for key, value in signals[0].items()
        if value.ndim == 1
    }


def _read(lens: AdversaryView, surface: Surface, values: Values) -> dict[str, Tensor]:
    """As an audit reads it: what a client sent, what the server sent, or rows that a peer sees
    among everybody's."""
    if surface in (Surface.GLOBAL_MODEL, Surface.GLOBAL_IMAGES, Surface.GENERATOR):
        plan: Any = SimpleNamespace(method=lens.method)
        return server_signals(plan, values.get("global_model", {}), lens, values)
    found = extract_signals(lens, values)
    if surface == Surface.SHARED_FEATURES:
        return {key.replace("features|", "shared_features|"): value for key, value in found.items()}
    return {key: value for key, value in found.items() if key.startswith(f"{surface}|")}
