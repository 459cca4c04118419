"""Which algorithm distilled a set: descriptions by hand, scores against normal densities, and the
algorithm behind real sets."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.stats import norm
from torch import Tensor
from torch.nn.functional import avg_pool2d

from attacks.inversion.distiller_inference import (
    SMALL,
    DistillerInference,
    describe_own_sets,
    describe_set,
    distiller_scores,
)
from attacks.types import Adversary, Capture, Evidence, Knowledge, Surface, Truth, View
from privdd.cli.build import build_attacks
from privdd.cli.compose import compose_config
from tests.attacks.pictures import rng
from tests.federations import tiny

CLASSES = 3
SIDE = 6


def records(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Of 17 grey levels, as digits have them."""
    x = (16 * torch.rand(count, 1, SIDE, SIDE, generator=rng(seed))).round() / 16
    return x, torch.arange(count) % CLASSES


def view_of(images: Tensor, labels: Tensor, public: tuple[Tensor, Tensor], classes: int) -> View:
    capture = Capture(0, 0, "images", {"x": images, "y": labels})
    knowledge = Knowledge(tuple(images.shape[1:]), classes, *public)
    return View(Surface.SYNTHETIC_IMAGES, Adversary.SERVER, (capture,), knowledge)


def truth_of(distiller: str) -> Truth:
    nobody = torch.zeros(1, 1, SIDE, SIDE)
    label = torch.zeros(1, dtype=torch.long)
    return Truth(nobody, label, nobody, label, torch.zeros(CLASSES), distiller=distiller)


def test_a_set_is_described_by_hand() -> None:
    images = torch.tensor([[[[0.0, 1.0], [0.0, 2.0]]], [[[0.0, 0.0], [0.0, 0.5]]]])
    labels = torch.tensor([0, 0])
    told = describe_set(images, labels, torch.tensor([[[[0.0, 1.0], [1.0, 0.25]]]]))
    x = images.double().numpy()
    across = x[..., 1:] - x[..., :-1]
    down = x[..., 1:, :] - x[..., :-1, :]
    within = ((x - x.mean(0)) ** 2).mean()
    expected = [
        np.log((across**2).mean() + (down**2).mean() + SMALL),
        np.log(x.var(ddof=1) + SMALL),
        np.log(within + SMALL),
        np.log(1 / 8 + SMALL),
        x.mean(),
        1 / 8,
        6 / 8,
    ]
    # images of two rows have no second difference
    numbers = [float(value) for i, value in enumerate(told) if i != 1]
    assert numbers == pytest.approx(expected)


def test_scores_are_normal_densities() -> None:
    sets = torch.randn(3, 5, 4, generator=rng(0), dtype=torch.float64)
    target = torch.randn(4, generator=rng(1), dtype=torch.float64)
    variance = sets.var(1).numpy()
    scale = np.sqrt((variance + variance.mean(0)) / 2 + SMALL)
    expected = norm(sets.mean(1).numpy(), scale).logpdf(target.numpy()).sum(1)
    constant = 4 * np.log(2 * np.pi) / 2
    torch.testing.assert_close(
        distiller_scores(sets, target), torch.from_numpy(expected + constant)
    )


def test_one_set_has_no_spread() -> None:
    with pytest.raises(ValueError, match="at least 2"):
        distiller_scores(torch.zeros(3, 1, 4), torch.zeros(4))


def copies(x: Tensor, y: Tensor, classes: int, count: int, g: torch.Generator) -> tuple:
    order = torch.randperm(len(x), generator=g)
    rows = torch.cat([order[y[order] == label][:count] for label in range(classes)])
    return x[rows], y[rows]


def smoothed(x: Tensor, y: Tensor, classes: int, count: int, g: torch.Generator) -> tuple:
    images, labels = copies(x, y, classes, count, g)
    return avg_pool2d(images, 3, stride=1, padding=1), labels


def noised(x: Tensor, y: Tensor, classes: int, count: int, g: torch.Generator) -> tuple:
    images, labels = copies(x, y, classes, count, g)
    return images + 0.05 * torch.randn(images.shape, generator=g), labels


def test_planted_algorithms_are_named_in_nine_of_ten_seeds() -> None:
    algorithms = {"copies": copies, "smoothed": smoothed, "noised": noised}
    attack = DistillerInference(algorithms)
    hits = 0
    for seed in range(10):
        name = list(algorithms)[seed % 3]
        made = algorithms[name](*records(60, seed), CLASSES, 4, rng(seed))
        view = view_of(*made, records(60, 100 + seed), CLASSES)
        finding = attack.judge(attack.run(view, rng(seed)), view, truth_of(name))
        diagnostics = finding.diagnostics
        assert diagnostics["chance"] == 1 / 3 and diagnostics["true_distiller"] == name
        hits += diagnostics["distiller"] == name
    assert hits >= 9


def test_algorithms_that_are_the_same_are_named_at_chance_level() -> None:
    attack = DistillerInference({"first": copies, "second": copies})
    hits = 0
    for seed in range(60):
        view = view_of(
            *copies(*records(60, seed), CLASSES, 4, rng(seed)), records(60, 100 + seed), CLASSES
        )
        scores = attack.run(view, rng(seed)).notes["scores"]
        hits += scores["first"] > scores["second"]
    assert 2 / 3 * 30 <= hits <= 3 / 2 * 30


def test_a_set_of_no_known_algorithm_is_said_to_be_like_one() -> None:
    attack = DistillerInference({"first": copies, "second": noised})
    view = view_of(*records(6, 0), records(6, 1), CLASSES)
    evidence = Evidence(notes={"scores": {"first": 1.0, "second": 0.0}})
    note = attack.judge(evidence, view, truth_of("")).measures.note
    assert "most like those of first (chance level 50%)" in note and "made by" not in note


def test_one_algorithm_leaves_nothing_to_decide() -> None:
    with pytest.raises(ValueError, match="at least 2"):
        DistillerInference({"first": copies})


@pytest.mark.nightly(cases=["2-9"])
@pytest.mark.parametrize(("repeats", "least"), [(1, 4), (2, 9)])
def test_shipped_algorithms_are_named_in_all_seeds_but_one(repeats: int, least: int) -> None:
    """Digits: each of the five, on records of a client that the attacker does not have."""
    config = compose_config("audit", ["attack=[distiller_inference]", "preset=smoke"])
    (attack,) = build_attacks(config).values()
    assert isinstance(attack, DistillerInference)
    experiment = tiny("feddm", "data.limit=600", "data.test_limit=300")
    public = experiment.test_records
    own = experiment.shards[0].train
    pool = (public.x, public.y, 10)
    reference = describe_own_sets(attack.distillers, pool, 5, attack.sets, rng(0))
    hits = 0
    for seed, name in enumerate([*attack.distillers] * repeats):
        images, labels = attack.distillers[name](own.x, own.y, 10, 5, rng(seed))
        scores = distiller_scores(reference, describe_set(images, labels, public.x))
        hits += list(attack.distillers)[int(scores.argmax())] == name
    assert hits >= least
