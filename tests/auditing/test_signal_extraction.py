"""Tests of ``privdd.auditing.signal_extraction``."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from scipy.stats import mannwhitneyu
from torch import Tensor, nn
from torch.distributions import Normal

from attacks.membership.signals import average_noisy_copies
from attacks.roc import roc
from attacks.types import Surface
from privdd.auditing.adversary_view import MIN_LAYER_SIZE, AdversaryView
from privdd.auditing.replay import draw_membership_game
from privdd.auditing.signal_extraction import (
    coefficients_by_layer,
    coefficients_in_means,
    extract_signals,
)
from privdd.auditing.views import feature_noise_constants
from privdd.core.rng import Keys
from privdd.core.types import Problem, Records, unpack
from privdd.federated.simulation import Plan, Snapshot
from privdd.privacy.mechanisms import FeatureNoise
from privdd.privacy.noise import noise_for
from tests.federations import equal, tiny

# The matched filter on released features (``_features``): a log-likelihood ratio under the
# mechanism's own noise.


SHAPE_FEATURE_SIGNAL = (1, 4, 4)
CLASSES_FEATURE_SIGNAL = 3
PROBLEM_FEATURE_SIGNAL = Problem(SHAPE_FEATURE_SIGNAL, CLASSES_FEATURE_SIGNAL, clients=1)
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
    y = torch.arange(count) % CLASSES_FEATURE_SIGNAL
    return Records(torch.rand(count, *SHAPE_FEATURE_SIGNAL, generator=g), y, torch.arange(count))


def lens(mechanism: FeatureNoise, candidates: Records) -> AdversaryView:
    """With the noise that the audit itself reads off the mechanism."""
    method: Any = Halved()
    plan = Plan(Keys(0), PROBLEM_FEATURE_SIGNAL, method, {"features": mechanism})
    return AdversaryView(
        method=method,
        problem=PROBLEM_FEATURE_SIGNAL,
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
    return extract_signals(lens(mechanism, candidates), released(mechanism, of, seed))[
        "features|matched_filter"
    ]


def log_ratio(row: Tensor, clean: Tensor, std: float) -> float:
    """log N(row; clean, std^2) - log N(row; 0, std^2) by torch's own densities."""
    row = row.double()
    clean = clean.double()
    return float(
        (
            Normal(clean, std).log_prob(row) - Normal(torch.zeros_like(clean), std).log_prob(row)
        ).sum()
    )


@pytest.mark.parametrize(("options", "stds"), INDEPENDENT)
def test_features_are_scored_by_their_log_likelihood_ratio_at_the_mechanisms_std(
    options: dict[str, Any], stds: tuple[float, ...]
) -> None:
    """The largest, over the rows of the record's class, of the sum over copies: each at its own
    std."""
    mechanism = FeatureNoise(**options)
    candidates = records(12, 0)
    of = records(9, 5)
    sent = (
        released(mechanism, of)["features"]["x"].flatten(1).reshape(mechanism.copies, len(of), -1)
    )
    found = scores(mechanism, candidates, of)
    for clean, label, score in zip(feature(candidates.x), candidates.y, found, strict=True):
        rows = [i for i in range(len(of)) if of.y[i] == label]
        best = max(
            sum(log_ratio(sent[k, i], clean, std) for k, std in enumerate(stds)) for i in rows
        )
        assert float(score) == pytest.approx(best, rel=1e-4, abs=1e-4)


@pytest.mark.nightly(cases=["options0"])
@pytest.mark.parametrize("options", [{"noise_std": 0.4}, {"noise_std": (0.4, 0.8), "copies": 2}])
def test_the_ratio_of_a_member_has_the_mean_and_spread_that_its_noise_gives(
    options: dict[str, Any],
) -> None:
    """Its own row alone, drawn 800 times: mean m / 2 and variance m, m = sum over copies of
    |clean|^2 / std^2."""
    mechanism = FeatureNoise(**options)
    one = records(1, 3)
    drawn = torch.cat([scores(mechanism, one, one, seed) for seed in range(800)]).double()
    strength = sum(
        float(feature(one.x).square().sum()) / std**2 for std in mechanism.copy_stds(None)
    )
    assert abs(float(drawn.mean()) - strength / 2) < 5 * math.sqrt(strength / 800)
    assert float(drawn.var()) == pytest.approx(
        strength, rel=0.25
    )  # five standard errors of a variance


@pytest.mark.parametrize("copies", [1, 2])
@pytest.mark.parametrize("std", [0.15, 0.02])
def test_one_noise_tensor_for_a_batch_is_taken_off_by_the_batch_mean(
    copies: int, std: float
) -> None:
    """Rows minus the mean of their batch, copy by copy; clean features minus their public mean; std
    / sqrt(batch)."""
    batch = 4
    stds = (std, 2 * std)[:copies]
    mechanism = FeatureNoise(noise_std=stds, copies=copies, broadcast_batch=batch)
    # the last batch holds two
    candidates = records(12, 0)
    of = records(10, 5)
    # all noise is gone
    centred = torch.cat([part - part.mean(0) for part in feature(of.x).split(batch)])
    left = max((sum(s**-2 for s in stds)) ** -0.5 / math.sqrt(batch), 1e-2)
    middle = feature(records(50, 77).x).mean(0)
    for clean, label, score in zip(
        feature(candidates.x) - middle, candidates.y, scores(mechanism, candidates, of)
    ):
        best = max(log_ratio(centred[i], clean, left) for i in range(len(of)) if of.y[i] == label)
        assert float(score) == pytest.approx(best, rel=2e-3, abs=2e-3)


def test_a_second_noisier_copy_helps_the_attacker() -> None:
    """AUC over members and others: two copies at 0.3 and 0.5 are worth one at their effective std,
    no less."""

    def auc(mechanism: FeatureNoise) -> float:
        found = []
        members = []
        for seed in range(40):
            candidates = records(60, 100 + seed)
            member = torch.rand(60, generator=torch.Generator().manual_seed(seed)) < 0.5
            found.append(scores(mechanism, candidates, candidates.take(member), seed))
            members.append(member)
        return roc(torch.cat(found), torch.cat(members).numpy()).auc

    one = auc(FeatureNoise(noise_std=0.3))
    two = auc(FeatureNoise(noise_std=(0.3, 0.5), copies=2))
    effective = auc(FeatureNoise(noise_std=(0.3**-2 + 0.5**-2) ** -0.5))
    assert two > one + 0.02 and abs(two - effective) < 0.02


def test_a_class_of_which_nothing_was_released_scores_lowest() -> None:
    candidates = records(12, 0)
    of = records(9, 5)
    kept = of.take(of.y != 1)
    found = scores(FeatureNoise(noise_std=0.3), candidates, kept)
    assert torch.equal(found[candidates.y == 1], found[candidates.y != 1].min().expand(4))
    empty = {
        "features": {"x": torch.zeros(0, *SHAPE_FEATURE_SIGNAL)},
        "labels": {"y": torch.zeros(0, dtype=torch.long)},
    }
    nothing = extract_signals(lens(FeatureNoise(noise_std=0.3), candidates), empty)
    assert not nothing["features|matched_filter"].any()


def test_averaged_copies_weigh_by_inverse_variance_and_leave_one_copy_alone() -> None:
    rows = torch.arange(12.0).reshape(6, 2)
    same, std = average_noisy_copies(rows, (0.2,))
    assert same is rows and std == 0.2
    mean, std = average_noisy_copies(rows, (1.0, 0.5))
    assert torch.allclose(mean, (rows[:3] + 4 * rows[3:]) / 5) and std == pytest.approx(
        math.sqrt(1 / 5)
    )
    assert average_noisy_copies(rows[:0], (1.0, 0.5))[0].shape == (0, 2)


def test_feature_noise_reads_the_public_constants_off_the_mechanism() -> None:
    """{} where there is no mechanism on features."""

    def read(**mechanisms: FeatureNoise) -> dict[str, Any]:
        method: Any = Halved()
        return feature_noise_constants(Plan(Keys(0), PROBLEM_FEATURE_SIGNAL, method, mechanisms))

    copied = {"std": 0.15, "noise_stds": (0.15, 0.25), "copies": 2, "broadcast_batch": 64}
    assert (
        read(features=FeatureNoise(noise_std=(0.15, 0.25), copies=2, broadcast_batch=64)) == copied
    )
    assert read(features=FeatureNoise(noise_multiplier=2.0, rho=0.1))["std"] == pytest.approx(0.8)
    assert read() == {}


# Prototypes are read through the classifier that all clients are known to start from, where no
# server sends one.


NAME = "prototypes|joint_opening"


def known_start() -> tuple[Plan, Any]:
    plan = tiny("fedproto").plan
    state = plan.method.initial_classifier(plan.problem, plan.keys.seed)
    assert state is not None
    return plan, state


def signal(mean: Tensor, count: Tensor, candidates: Any, opening: Any) -> dict[str, Tensor]:
    plan, _ = known_start()
    snapshot = Snapshot(0, {"prototypes": {"mean": mean, "count": count}}, {})
    lens = AdversaryView(
        plan.method, plan.problem, snapshot, candidates, candidates, {}, frozenset(), {}, opening
    )
    return extract_signals(lens, {"prototypes": {"mean": mean, "count": count}})


def features(state: Any, x: Tensor) -> Tensor:
    """The network's own layers before its head, with nothing of the lens."""
    plan, _ = known_start()
    model: nn.Module = plan.method.classifier(plan.problem)  # type: ignore[assignment]
    model.load_state_dict(state)
    with torch.no_grad():
        return model.eval().features(x)  # type: ignore[operator, no-any-return]


def test_it_is_the_model_that_clients_start_from() -> None:
    """A client that takes no step sends the class means of its records under that very model."""
    plan, state = known_start()
    server = plan.method.init(plan.problem, plan.keys)
    assert equal(state, {**unpack("model", server), **unpack("buffers", server)})
    assert not equal(state, plan.method.initial_classifier(plan.problem, plan.keys.seed + 1))  # type: ignore[arg-type]
    sent = tiny("fedavg").plan
    assert (
        sent.method.initial_classifier(sent.problem, 0) is None
    )  # what the server sends is read instead
    nested = tiny("virtual_data", "algo/inner=fedproto").plan
    assert equal(
        nested.method.initial_classifier(nested.problem, 0),
        nested.method.inner.initial_classifier(nested.problem, 0),
    )  # type: ignore[attr-defined, arg-type]


@pytest.mark.parametrize("seed", range(2))
def test_members_of_a_class_mean_are_told_from_others_of_the_class(seed: int) -> None:
    """Class means of half the records, exact: each member's part stands out, and under other coins
    nobody's does."""
    made = tiny("fedproto")
    _, state = known_start()
    records = draw_membership_game(made.shards[made.plan.victim], 30, 1, Keys(seed)).audited_records
    inside = torch.arange(len(records)) % 2 == seed
    classes = made.plan.problem.classes
    own = features(state, records.x)
    count = torch.bincount(records.y[inside], minlength=classes).float()
    sums = torch.zeros(classes, own.shape[1]).index_add_(0, records.y[inside], own[inside])
    mean = sums / count.clamp_min(1)[:, None]
    found = signal(mean, count, records, state)[NAME]
    assert (found[count[records.y] == 0] == 0).all()
    there = count[records.y] > 0
    assert (
        mannwhitneyu(found[inside & there], found[~inside & there], alternative="greater").pvalue
        < 1e-3
    )


def test_where_no_start_is_known_there_is_no_such_signal() -> None:
    made, (_, state) = tiny("fedproto"), known_start()
    records = made.shards[made.plan.victim].train
    mean = torch.rand(made.plan.problem.classes, features(state, records.x[:1]).shape[1])
    count = torch.ones(len(mean))
    assert NAME not in signal(mean, count, records, None)
    assert NAME in signal(mean, count, records, state) and NAME not in signal(
        mean[:, 1:], count, records, state
    )


# What each reader makes of an upload, by closed form, for a linear classifier whose artifacts are
# written by hand.


SHAPE = (2, 2, 2)
CLASSES = 3
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
    """What readers ask of a method: its classifier travels as "model" and comes back as
    "update"."""

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
    return Records(
        torch.rand(count, *SHAPE, generator=g), torch.arange(count) % CLASSES, torch.arange(count)
    )


CANDIDATES = drawn(7, 0)
PUBLIC = drawn(20, 1)
START = {
    name: torch.randn(t.shape, generator=torch.Generator().manual_seed(2))
    for name, t in Linear().state_dict().items()
}


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
    x = CANDIDATES.x[at : at + 1]
    y = CANDIDATES.y[at]
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
    assert found["update|alignment"].argmax() == 4 and math.isclose(
        float(found["update|alignment"][4]), 1, abs_tol=1e-4
    )


def test_a_control_variate_points_along_its_members_own_gradient() -> None:
    found = read(control=gradient(START, 2))["control_variate|alignment"]
    assert found.argmax() == 2 and math.isclose(float(found[2]), 1, abs_tol=1e-5)
    flipped = read(control={name: -g for name, g in gradient(START, 2).items()})[
        "control_variate|alignment"
    ]
    assert torch.allclose(flipped, -found, atol=1e-6)


def test_labels_are_counted_by_the_records_own_class() -> None:
    found = read(labels={"y": torch.tensor([0, 2, 2, 2, 0])})["labels|count"]
    assert found.tolist() == [{0: 2.0, 1: 0.0, 2: 3.0}[int(y)] for y in CANDIDATES.y]


def test_counts_are_the_same_for_every_record() -> None:
    assert read(count={"n": torch.tensor([41.0])})["counts|count"].tolist() == [41.0] * 7


def test_representations_are_compared_in_the_granted_projection_seen_from_public_records() -> None:
    rows = torch.randn(6, 8, generator=torch.Generator().manual_seed(3))
    y = torch.tensor([0, 0, 1, 1, 2, 2])
    found = read(representations={"x": rows}, labels={"y": y})
    own = CANDIDATES.x.flatten(1) - 1
    centre = (PUBLIC.x.flatten(1) - 1).mean(0)
    means = torch.stack([rows[y == c].mean(0) for c in range(CLASSES)]) - centre
    expected = torch.stack([torch.dot(means[c], r - centre) for r, c in zip(own, CANDIDATES.y)])
    assert torch.allclose(found["synthetic_representations|alignment"], expected, atol=1e-4)
    distance = torch.stack([(rows - r).norm(dim=1).min() for r in own])  # whatever the class
    assert torch.allclose(found["synthetic_representations|distance"], -distance, atol=1e-4)


def test_representations_of_another_size_than_the_adversarys_own_are_not_read() -> None:
    """Before a client has a projection of its own, records stay as large as they are."""
    rows = torch.randn(6, 5, generator=torch.Generator().manual_seed(3))
    y = torch.tensor([0, 0, 1, 1, 2, 2])
    found = read(representations={"x": rows}, labels={"y": y})
    assert {name for name in found if name.startswith("synthetic_representations")} == set()
    assert "labels|count" in found


def test_prototypes_are_compared_with_the_features_of_the_broadcast_classifier() -> None:
    mean = torch.randn(CLASSES, 8, generator=torch.Generator().manual_seed(4))
    own = 2 * CANDIDATES.x.flatten(1)
    centre = 2 * PUBLIC.x.flatten(1).mean(0)
    expected = ((mean - centre)[CANDIDATES.y] * (own - centre)).sum(1)
    assert torch.allclose(
        read(prototypes={"mean": mean})["prototypes|alignment"], expected, atol=1e-4
    )


def test_class_statistics_are_read_as_a_density_of_the_records_channel_means() -> None:
    g = torch.Generator().manual_seed(5)
    mean = torch.rand(CLASSES, 2, generator=g)
    std = 0.1 + torch.rand(CLASSES, 2, generator=g)
    found = read(statistics={"mean": mean, "std": std})["statistics|density"]
    own = CANDIDATES.x.mean((2, 3))
    expected = Normal(mean[CANDIDATES.y], std[CANDIDATES.y]).log_prob(own).sum(1) + math.log(
        2 * math.pi
    )
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
    """Two well separated rows for each class, near one candidate of it: the readout knows this
    candidate's class."""
    project = [CANDIDATES.x.flatten(1) - 1, PUBLIC.x.flatten(1) - 1]
    rows = project[0][:3].repeat_interleave(2, 0)
    found = read(representations={"x": rows}, labels={"y": CANDIDATES.y[:3].repeat_interleave(2)})
    confidence = found["synthetic_representations|confidence"]
    seen = found["synthetic_representations|logits"]
    assert torch.equal(seen[:3].argmax(1), CANDIDATES.y[:3])
    chances = seen.double().softmax(1)[torch.arange(7), CANDIDATES.y]
    assert torch.allclose(confidence.double(), (chances / (1 - chances)).log(), atol=1e-4)
    assert found["synthetic_representations|public_logits"].shape == (20, CLASSES)


def test_prototypes_carry_the_count_and_the_mean_of_the_records_own_class() -> None:
    mean = torch.randn(CLASSES, 5, generator=torch.Generator().manual_seed(4))
    count = torch.tensor([4.0, 0.0, 9.0])
    found = read(prototypes={"mean": mean, "count": count})
    assert found["prototypes|count"].tolist() == [float(count[c]) for c in CANDIDATES.y]
    assert torch.allclose(found["prototypes|row"], mean.norm(dim=1)[CANDIDATES.y])


# Records' parts in planted releases: a step of descent on known members, class means of known
# members.


MEMBER = torch.tensor([1, 0, 0, 1, 1, 0, 1], dtype=torch.bool)


def lens_joint(**sent: dict[str, Tensor]) -> AdversaryView:
    method: Any = Method()
    return AdversaryView(
        method,
        PROBLEM,
        Snapshot(0, {"model": START}, {}, sent),
        CANDIDATES,
        PUBLIC,
        {},
        frozenset(),
        {},
    )


def stepped(rate: float = 0.1) -> dict[str, Tensor]:
    """One step of descent on the members, together."""
    sums = {name: torch.zeros_like(t) for name, t in START.items()}
    for i in MEMBER.nonzero().flatten().tolist():
        sums = {name: t + gradient(START, i)[name] for name, t in sums.items()}
    return {name: START[name] - rate * t for name, t in sums.items()}


def apart(parts: Tensor) -> bool:
    return bool(parts[MEMBER].min() > parts[~MEMBER].max())


def test_a_step_on_several_records_is_taken_apart(monkeypatch: Any) -> None:
    monkeypatch.setattr("privdd.auditing.adversary_view.MIN_LAYER_SIZE", 1)
    monkeypatch.setattr("privdd.auditing.adversary_view.SMALL_RIDGE_SHARE", 1e-6)
    found = extract_signals(lens_joint(), {"update": stepped()})
    assert torch.allclose(found["update|joint_head"], 0.1 * MEMBER.float(), atol=2e-3)
    assert apart(found["update|joint_head"])
    total = torch.cat([(START[n] - t).flatten() for n, t in stepped().items()])
    assert torch.allclose(
        coefficients_by_layer(lens_joint(), total)["joint_head"], found["update|joint_head"]
    )


def test_the_way_that_was_gone_is_followed_and_noise_at_its_end_does_not_drown_the_start() -> None:
    still = lens_joint(update=START)  # it ended where it began
    assert still.record_gradients is not None and still.path_gradients is not None
    assert torch.allclose(still.path_gradients, still.record_gradients.gradient_matrix, atol=1e-6)
    far = {
        name: t + 50 * torch.randn(t.shape, generator=torch.Generator().manual_seed(3))
        for name, t in START.items()
    }
    noisy = lens_joint(update=far)
    assert noisy.path_gradients is not None and noisy.record_gradients is not None
    start = noisy.record_gradients.gradient_matrix
    assert float((noisy.path_gradients - start / 3).norm()) <= 2 / 3 * float(start.norm()) * 1.001
    assert lens_joint().path_gradients is None


def test_a_view_whose_round_is_read_holds_no_gradients_and_gives_the_same_again(
    monkeypatch: Any,
) -> None:
    monkeypatch.setattr("privdd.auditing.adversary_view.MIN_LAYER_SIZE", 1)
    view = lens_joint(update=stepped())
    fields = set(view.__dict__)
    before = extract_signals(view, {"update": stepped()})
    assert {"on_device", "record_gradients", "layer_solvers"} <= set(view.__dict__) - fields
    assert "path_gradients" not in view.__dict__
    view.drop_derived_values()
    assert set(view.__dict__) == fields
    again = extract_signals(view, {"update": stepped()})
    assert all(torch.equal(again[name], value) for name, value in before.items())


def test_small_layers_are_not_solved_by_themselves() -> None:
    assert (
        START["head.weight"].numel() + START["head.bias"].numel() < MIN_LAYER_SIZE
        and lens_joint().layer_solvers == {}
    )


def test_parts_in_class_means_of_members_and_none_where_a_class_is_absent() -> None:
    flat = CANDIDATES.x.flatten(1)
    rows = flat[MEMBER]
    labels = CANDIDATES.y[MEMBER]
    found = coefficients_in_means(lens_joint(), rows, labels, flat)
    for c in range(CLASSES):
        mine = CANDIDATES.y == c
        inside = (CANDIDATES.y == c) & MEMBER
        if not inside.any():
            assert (found[mine] == 0).all()
        elif (mine & ~MEMBER).any():
            assert found[inside].min() > found[mine & ~MEMBER].max()
    nothing = coefficients_in_means(lens_joint(), flat[:0], CANDIDATES.y[:0], flat)
    assert torch.equal(nothing, torch.zeros(7, dtype=torch.float64))
