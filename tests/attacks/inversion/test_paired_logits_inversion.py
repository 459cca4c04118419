"""Paired logits: the image of a class that no public image shows, from a client's logits alone."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional as F

from attacks.inversion.paired_logits_inversion import (
    ADDS_NOTHING,
    LEAST_GAIN,
    TOO_FEW,
    PairedLogitsInversion,
    invert_probabilities,
    unsure_server,
)
from attacks.types import Adversary, Capture, Knowledge, Surface, Truth, View

CLASSES = 10
PRIVATE = (0, 1, 2, 3, 4)  # classes that no public image shows
PUBLIC_IMAGES = 200
RECORDS = 300  # of the client, before classes are left out
STEPS = 150
ATTACK = PairedLogitsInversion()


def digits() -> tuple[Tensor, Tensor]:
    data = load_digits()
    images = torch.tensor(data.images, dtype=torch.float32)[:, None] / 16
    return images, torch.tensor(data.target).long()


X, Y = digits()


def drawn(seed: int, *shape: int) -> Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def trained_network(rows: Tensor, generator: torch.Generator) -> nn.Module:
    network = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, CLASSES))
    for parameter in network.parameters():
        scale = parameter.shape[-1] ** -0.5 if parameter.ndim > 1 else 0.0
        parameter.data = scale * torch.randn(parameter.shape, generator=generator)
    optimiser = torch.optim.Adam(network.parameters(), lr=5e-3)
    for _ in range(STEPS):
        optimiser.zero_grad()
        F.cross_entropy(network(X[rows]), Y[rows]).backward()
        optimiser.step()
    return network.requires_grad_(False)


def federation(seed: int, *, trained_on_private: bool) -> tuple[View, Truth]:
    """A server that knows the public images alone, and a client that trains on its records too;
    public images and public records show no private class."""
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(X), generator=generator)
    is_private = torch.isin(Y, torch.tensor(PRIVATE))
    public = order[:900]
    public = public[~is_private[public]][:PUBLIC_IMAGES]
    records = order[900 : 900 + RECORDS]
    secret = records[is_private[records]]
    learned = records if trained_on_private else records[~is_private[records]]
    server = trained_network(public, generator)
    client = trained_network(torch.cat([public, learned]), generator)
    capture = Capture(0, 0, "logits", {"logits": client(X[public])}, {"logits": server(X[public])})
    knowledge = Knowledge((1, 8, 8), CLASSES, X[public], Y[public], asked_images=X[public])
    view = View(Surface.LOGITS, Adversary.SERVER, (capture,), knowledge)
    counts = torch.bincount(Y[secret], minlength=CLASSES)
    return view, Truth(X[secret], Y[secret], X[:0], Y[:0], counts)


def finds(view: View, truth: Truth, classes: int = len(PRIVATE)) -> bool:
    """Whether the images of the private classes are closer than every guess, as the note has it."""
    finding = ATTACK.judge(ATTACK.run(view, torch.Generator()), view, truth)
    assert finding.measures.n == classes
    is_found = finding.diagnostics["gain_interval"][0] >= LEAST_GAIN
    assert is_found != (ADDS_NOTHING in str(finding.measures.note))
    return is_found


def test_private_classes_come_closer_than_any_guess_in_nine_of_ten_seeds() -> None:
    assert sum(finds(*federation(seed, trained_on_private=True)) for seed in range(10)) >= 9


def test_a_client_without_the_private_classes_gives_nothing_away() -> None:
    assert not any(finds(*federation(seed, trained_on_private=False)) for seed in range(10))


def test_logits_in_another_order_than_the_images_give_nothing_away() -> None:
    view, truth = federation(0, trained_on_private=True)
    (capture,) = view.captures
    shuffled = torch.randperm(PUBLIC_IMAGES, generator=torch.Generator().manual_seed(1))
    value = {"logits": capture.value["logits"][shuffled]}
    assert not finds(replace(view, captures=(replace(capture, value=value),)), truth)


def test_a_gain_of_some_classes_alone_is_not_called_one() -> None:
    """Two of five private classes are exchanged: the interval holds gains and losses."""
    view, truth = federation(0, trained_on_private=True)
    exchanged = torch.tensor([1, 0, 2, 3, 4])
    swapped = replace(truth, y=exchanged[truth.y])
    finding = ATTACK.judge(ATTACK.run(view, torch.Generator()), view, swapped)
    low, high = finding.diagnostics["gain_interval"]
    assert low < LEAST_GAIN < high
    assert not finds(view, swapped)


@pytest.mark.parametrize("classes", [1, 4, 5])
def test_a_gain_of_few_classes_may_be_chance(classes: int) -> None:
    view, truth = federation(0, trained_on_private=True)
    held = truth.y < classes
    counts = torch.bincount(truth.y[held], minlength=CLASSES)
    fewer = replace(truth, x=truth.x[held], y=truth.y[held], counts=counts)
    assert finds(view, fewer, classes)
    finding = ATTACK.judge(ATTACK.run(view, torch.Generator()), view, fewer)
    assert (TOO_FEW in str(finding.measures.note)) == (classes < 5)


def test_images_far_beyond_the_public_pairs_stay_images() -> None:
    view, _ = federation(0, trained_on_private=True)
    images = replace(ATTACK, prior_weight=0.0).run(view, torch.Generator()).images
    assert images is not None
    assert float(images.min()) == 0 and float(images.max()) == 1


def test_pure_classes_are_solved_for_exactly_from_mixtures() -> None:
    """Closed case: each public image is a mixture of one picture a class, and the client's
    probabilities are the shares. No public image shows a class alone."""
    pictures = drawn(0, 4, 1, 3, 3)
    shares = drawn(1, 30, 4)
    shares = shares / shares.sum(1, keepdim=True)
    mixtures = torch.einsum("mc,c...->m...", shares, pictures)
    temperature = 2.0
    capture = Capture(0, 0, "logits", {"logits": temperature * shares.log()})
    labels = torch.zeros(30, dtype=torch.long)
    knowledge = Knowledge((1, 3, 3), 4, mixtures, labels, asked_images=mixtures)
    view = View(Surface.LOGITS, Adversary.SERVER, (capture,), knowledge)
    attack = PairedLogitsInversion(temperature, prior_weight=0.0, ridge=1e-12)
    evidence = attack.run(view, torch.Generator())
    assert evidence.images is not None and not evidence.notes["paired"]
    torch.testing.assert_close(evidence.images, pictures, atol=1e-6, rtol=0)


def test_the_inversion_is_the_weighted_least_squares_fit() -> None:
    """Against one lstsq of all rows: public pairs, the prior's pairs and the ridge."""
    inputs = drawn(2, 12, 3)
    images = drawn(3, 12, 5)
    asked = drawn(4, 2, 3)
    prior = drawn(5, 2, 5)
    weight, ridge = 0.4, 0.05
    centre = inputs.mean(0)
    each = (weight * 12 / 2) ** 0.5
    rows = torch.cat([inputs - centre, each * (asked - centre)])
    targets = torch.cat([images - images.mean(0), each * (prior - images.mean(0))])
    shrinkage = ridge * rows.square().sum() / 3
    rows = torch.cat([rows, shrinkage.sqrt() * torch.eye(3, dtype=rows.dtype)])
    targets = torch.cat([targets, torch.zeros(3, 5, dtype=rows.dtype)])
    solution = torch.linalg.lstsq(rows, targets).solution
    expected = ((asked - centre) @ solution + images.mean(0)).clamp(0, 1)
    found = invert_probabilities(inputs, images, asked, prior, weight, ridge)
    torch.testing.assert_close(found, expected)


def test_a_heavy_prior_is_all_that_remains() -> None:
    asked = drawn(6, 3, 4)
    prior = drawn(7, 3, 1, 2, 2)
    found = invert_probabilities(drawn(8, 9, 4), drawn(9, 9, 1, 2, 2), asked, prior, 1e9, 1e-12)
    torch.testing.assert_close(found, prior, atol=1e-5, rtol=0)


@pytest.mark.parametrize("doubt", [0.5, 5.0])
def test_the_server_leans_to_the_class_as_far_as_its_entropy_is_worth(doubt: float) -> None:
    """p_j + alpha H(p) is highest at the row of class j among its neighbours."""
    row = unsure_server(5, doubt).double()[2]

    def worth(shares: Tensor) -> Tensor:
        return shares[..., 2] - doubt * (shares * shares.log()).sum(-1)

    steps = 0.02 * (drawn(10, 200, 5) - 0.5)
    steps = steps - steps.mean(1, keepdim=True)
    neighbours = row + steps * row.min()
    assert torch.all(worth(neighbours) < worth(row))


def test_a_server_that_sent_nothing_yet_leaves_the_clients_logits() -> None:
    view, truth = federation(0, trained_on_private=True)
    (capture,) = view.captures
    silent = {"logits": torch.zeros_like(capture.value["logits"])}
    for broadcast in ({}, silent):
        alone = replace(view, captures=(replace(capture, broadcast=broadcast),))
        assert not ATTACK.run(alone, torch.Generator()).notes["paired"]
        assert finds(alone, truth)
    assert ATTACK.run(view, torch.Generator()).notes["paired"]


def test_nothing_to_read_without_public_images_or_logits() -> None:
    view, _ = federation(0, trained_on_private=True)
    assert not ATTACK.nothing_to_read(view)
    unknown = replace(view, knowledge=replace(view.knowledge, asked_images=None))
    others = replace(view, knowledge=replace(view.knowledge, asked_images=X[:3]))
    assert "public images" in ATTACK.nothing_to_read(unknown)
    assert "public images" in ATTACK.nothing_to_read(others)
    votes = replace(view, knowledge=replace(view.knowledge, settings={"votes": True}))
    assert "not logits" in ATTACK.nothing_to_read(votes)
