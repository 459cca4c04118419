"""The matched filter on released features (``_features``): a log-likelihood ratio under the mechanism's own noise."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.distributions import Normal

from attacks.membership.signals import average_noisy_copies
from attacks.roc import roc
from attacks.types import Surface
from privdd.auditing.adversary_view import AdversaryView
from privdd.auditing.signal_extraction import extract_signals
from privdd.auditing.views import feature_noise_constants
from privdd.core.rng import Keys
from privdd.core.types import Problem, Records
from privdd.federated.simulation import Plan, Snapshot
from privdd.privacy.mechanisms import FeatureNoise
from privdd.privacy.noise import noise_for

SHAPE, CLASSES = (1, 4, 4), 3
PROBLEM = Problem(SHAPE, CLASSES, clients=1)
INDEPENDENT: list[tuple[dict[str, Any], tuple[float, ...]]] = [  # options, the noise of each copy
    ({"noise_std": 0.3}, (0.3,)),
    ({"variance": 0.15}, (0.15**0.5,)),
    ({"noise_multiplier": 0.5, "clip_norm": 0.8}, (0.4,)),
    ({"noise_multiplier": 2.0, "rho": 0.1}, (0.8,)),  # the norm is rho * sqrt(16)
    ({"noise_std": (0.15, 0.25), "copies": 2}, (0.15, 0.25)),
    ({"noise_std": (0.5, 0.1), "copies": 2}, (0.5, 0.1)),
    ({"variance": 0.04, "copies": 2}, (0.2, 0.2)),
]


class Halved:
    """What the reader asks a method for: the feature of an image is half of it, less a quarter."""

    audit_hooks = property(lambda self: self)
    uploads = {"features": Surface.FEATURES, "labels": Surface.LABELS}
    queries: dict[str, Surface] = {}

    def maps(self, broadcast: Any, memory: Any, problem: Problem) -> dict[str, Any]:
        return {"feature": lambda x: x / 2 - 0.25}


def feature(x: Tensor) -> Tensor:
    return (x / 2 - 0.25).flatten(1)


def records(count: int, seed: int) -> Records:
    g = torch.Generator().manual_seed(seed)
    y = torch.arange(count) % CLASSES
    return Records(torch.rand(count, *SHAPE, generator=g), y, torch.arange(count))


def lens(mechanism: FeatureNoise, candidates: Records) -> AdversaryView:
    """With the noise that the audit itself reads off the mechanism."""
    method: Any = Halved()
    plan = Plan(Keys(0), PROBLEM, method, {"features": mechanism})
    return AdversaryView(
        method=method,
        problem=PROBLEM,
        snapshot=Snapshot(0, {}, {}),
        candidates=candidates,
        public=records(50, 77),
        memory={},
        waived=frozenset(),
        noise=feature_noise_constants(plan),
    )


def released(mechanism: FeatureNoise, of: Records, seed: int = 1) -> dict[str, dict[str, Tensor]]:
    value = mechanism({"x": of.x / 2 - 0.25}, noise_for("seed", Keys(seed))).value
    return {"features": dict(value), "labels": {"y": of.y.repeat(mechanism.copies)}}


def scores(mechanism: FeatureNoise, candidates: Records, of: Records, seed: int = 1) -> Tensor:
    return extract_signals(lens(mechanism, candidates), released(mechanism, of, seed))["features|matched_filter"]


def log_ratio(row: Tensor, clean: Tensor, std: float) -> float:
    """log N(row; clean, std^2) - log N(row; 0, std^2) by torch's own densities."""
    row, clean = row.double(), clean.double()
    return float((Normal(clean, std).log_prob(row) - Normal(torch.zeros_like(clean), std).log_prob(row)).sum())


@pytest.mark.parametrize(("options", "stds"), INDEPENDENT)
def test_features_are_scored_by_their_log_likelihood_ratio_at_the_mechanisms_std(
    options: dict[str, Any], stds: tuple[float, ...]
) -> None:
    """The largest, over the rows of the record's class, of the sum over copies: each at its own std."""
    mechanism, candidates, of = FeatureNoise(**options), records(12, 0), records(9, 5)
    sent = released(mechanism, of)["features"]["x"].flatten(1).reshape(mechanism.copies, len(of), -1)
    found = scores(mechanism, candidates, of)
    for clean, label, score in zip(feature(candidates.x), candidates.y, found, strict=True):
        rows = [i for i in range(len(of)) if of.y[i] == label]
        best = max(sum(log_ratio(sent[k, i], clean, std) for k, std in enumerate(stds)) for i in rows)
        assert float(score) == pytest.approx(best, rel=1e-4, abs=1e-4)


@pytest.mark.parametrize("options", [{"noise_std": 0.4}, {"noise_std": (0.4, 0.8), "copies": 2}])
def test_the_ratio_of_a_member_has_the_mean_and_spread_that_its_noise_gives(options: dict[str, Any]) -> None:
    """Its own row alone, drawn 800 times: mean m / 2 and variance m, m = sum over copies of |clean|^2 / std^2."""
    mechanism, one = FeatureNoise(**options), records(1, 3)
    drawn = torch.cat([scores(mechanism, one, one, seed) for seed in range(800)]).double()
    strength = sum(float(feature(one.x).square().sum()) / std**2 for std in mechanism.copy_stds(None))
    assert abs(float(drawn.mean()) - strength / 2) < 5 * math.sqrt(strength / 800)
    assert float(drawn.var()) == pytest.approx(strength, rel=0.25)  # five standard errors of a variance


@pytest.mark.parametrize("copies", [1, 2])
@pytest.mark.parametrize("std", [0.15, 0.02])
def test_one_noise_tensor_for_a_batch_is_taken_off_by_the_batch_mean(copies: int, std: float) -> None:
    """Rows minus the mean of their batch, copy by copy; clean features minus their public mean; std / sqrt(batch)."""
    batch = 4
    stds = (std, 2 * std)[:copies]
    mechanism = FeatureNoise(noise_std=stds, copies=copies, broadcast_batch=batch)
    candidates, of = records(12, 0), records(10, 5)  # the last batch holds two
    centred = torch.cat([part - part.mean(0) for part in feature(of.x).split(batch)])  # all noise is gone
    left = max((sum(s**-2 for s in stds)) ** -0.5 / math.sqrt(batch), 1e-2)
    middle = feature(records(50, 77).x).mean(0)
    for clean, label, score in zip(feature(candidates.x) - middle, candidates.y, scores(mechanism, candidates, of)):
        best = max(log_ratio(centred[i], clean, left) for i in range(len(of)) if of.y[i] == label)
        assert float(score) == pytest.approx(best, rel=2e-3, abs=2e-3)


def test_a_second_noisier_copy_helps_the_attacker() -> None:
    """AUC over members and others: two copies at 0.3 and 0.5 are worth one at their effective std, no less."""

    def auc(mechanism: FeatureNoise) -> float:
        found, members = [], []
        for seed in range(40):
            candidates = records(60, 100 + seed)
            member = torch.rand(60, generator=torch.Generator().manual_seed(seed)) < 0.5
            found.append(scores(mechanism, candidates, candidates.take(member), seed))
            members.append(member)
        return roc(torch.cat(found), torch.cat(members).numpy()).auc

    one, two = auc(FeatureNoise(noise_std=0.3)), auc(FeatureNoise(noise_std=(0.3, 0.5), copies=2))
    effective = auc(FeatureNoise(noise_std=(0.3**-2 + 0.5**-2) ** -0.5))
    assert two > one + 0.02 and abs(two - effective) < 0.02


def test_a_class_of_which_nothing_was_released_scores_lowest() -> None:
    candidates, of = records(12, 0), records(9, 5)
    kept = of.take(of.y != 1)
    found = scores(FeatureNoise(noise_std=0.3), candidates, kept)
    assert torch.equal(found[candidates.y == 1], found[candidates.y != 1].min().expand(4))
    empty = {"features": {"x": torch.zeros(0, *SHAPE)}, "labels": {"y": torch.zeros(0, dtype=torch.long)}}
    nothing = extract_signals(lens(FeatureNoise(noise_std=0.3), candidates), empty)
    assert not nothing["features|matched_filter"].any()


def test_averaged_copies_weigh_by_inverse_variance_and_leave_one_copy_alone() -> None:
    rows = torch.arange(12.0).reshape(6, 2)
    same, std = average_noisy_copies(rows, (0.2,))
    assert same is rows and std == 0.2
    mean, std = average_noisy_copies(rows, (1.0, 0.5))
    assert torch.allclose(mean, (rows[:3] + 4 * rows[3:]) / 5) and std == pytest.approx(math.sqrt(1 / 5))
    assert average_noisy_copies(rows[:0], (1.0, 0.5))[0].shape == (0, 2)


def test_feature_noise_reads_the_public_constants_off_the_mechanism() -> None:
    """{} where there is no mechanism on features."""

    def read(**mechanisms: FeatureNoise) -> dict[str, Any]:
        method: Any = Halved()
        return feature_noise_constants(Plan(Keys(0), PROBLEM, method, mechanisms))

    copied = {"std": 0.15, "noise_stds": (0.15, 0.25), "copies": 2, "broadcast_batch": 64}
    assert read(features=FeatureNoise(noise_std=(0.15, 0.25), copies=2, broadcast_batch=64)) == copied
    assert read(features=FeatureNoise(noise_multiplier=2.0, rho=0.1))["std"] == pytest.approx(0.8)
    assert read() == {}
