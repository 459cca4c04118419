"""Tests of ``attacks.inversion.gradient_attack``."""

from __future__ import annotations

import copy
from dataclasses import fields, replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from attacks.images import match
from attacks.inversion.analytic import AnalyticInversion
from attacks.inversion.copy_detection import CopyDetection
from attacks.inversion.evaluation import class_mean_images, compare_with_records
from attacks.inversion.feature_inversion import (
    DecoderTraining,
    FeatureInversion,
    WhiteBox,
)
from attacks.inversion.generative import (
    EvaluationClassifier,
    GenerativeInversion,
    RoleInversion,
    WganGp,
)
from attacks.inversion.gradient import InvertingGradients, SeeThrough
from attacks.inversion.gradient_attack import (
    MIN_ITERATIONS,
    GradientInversion,
    UpdateInversion,
    describe_objectives,
    pose_update_problem,
)
from attacks.inversion.labels import LabelCounts
from attacks.inversion.model_inversion import MiFace as MiFace
from attacks.inversion.model_inversion import ModelInversion
from attacks.inversion.victim import LocalSteps, Victim, local_steps
from attacks.types import Adversary, Attack, Capture, Family, Knowledge, Surface, Truth, View
from privdd.core.types import Records
from privdd.training.sgd import draw_batches, local_sgd
from tests.attacks.pictures import convnet, digits, mlp, rng, sent

# The attacks as rows of the report: they read only the view, and what they report tells success
# from failure.


SETTINGS = {"lr": 0.1, "momentum": 0.0, "local_steps": 1, "batch_size": 32, "batch_records": 1}
SHALLOW = InvertingGradients(iterations=200, tv=1e-4)
SMALL = FeatureInversion(
    limit=8, decoder=DecoderTraining(100, width=12), whitebox=WhiteBox(120, tv=1e-4)
)
ATTACKS: list[Any] = [
    GradientInversion(),
    AnalyticInversion(),
    LabelCounts(),
    SMALL,
    ModelInversion(),
    CopyDetection(),
]


def _truth(n: int = 3) -> Truth:
    x, y = digits()
    return Truth(x[:n], y[:n], x[100:199], y[100:199], torch.bincount(y[:n], minlength=10))


def _knowledge(model: nn.Module | None = None, **settings: Any) -> Knowledge:
    x, y = digits()
    return Knowledge(
        (1, 8, 8), 10, x[300:1300], y[300:1300], model, settings={**SETTINGS, **settings}
    )


def _updates(
    model: nn.Module, truth: Truth, local: LocalSteps, noise: float = 0.0, each: int = 1
) -> tuple[Capture, ...]:
    start = {n: p.detach().clone() for n, p in model.named_parameters()}
    out = []
    for i in range(0, len(truth.x), each):
        moved = sent(
            copy.deepcopy(model).train(), truth.x[i : i + each], truth.y[i : i + each], local
        )
        after = {n: p - local.lr * g for (n, p), g in zip(start.items(), moved)}
        after = {n: p + noise * torch.randn(p.shape, generator=rng(i)) for n, p in after.items()}
        out.append(Capture(0, 0, "update", after, start))
    return tuple(out)


def _view(surface: Surface, captures: tuple[Capture, ...], knowledge: Knowledge) -> View:
    return View(surface, Adversary.SERVER, captures, knowledge)


@pytest.mark.parametrize("attack", ATTACKS)
def test_each_is_an_attack_and_declares_what_it_reads(attack: Attack) -> None:
    assert isinstance(attack, Attack) and attack.surfaces and attack.adversaries
    assert "truth" not in {f.name for f in fields(attack)}  # type: ignore[arg-type]
    assert set(type(attack).run.__annotations__) == {"view", "generator", "return"}


def test_see_through_gets_the_batch_norm_statistics_that_were_sent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    truth = _truth(2)
    model = convnet(8, side=8, depth=1, norm=nn.BatchNorm2d)
    (capture,) = _updates(model, truth, LocalSteps(1, 0.1), each=2)
    twin = copy.deepcopy(model).train()
    seen = []
    twin(truth.x)
    buffers = [{n: b.clone() for n, b in one.named_buffers()} for one in (model, twin)]
    whole = replace(
        capture,
        broadcast={**capture.broadcast, **buffers[0]},
        value={**capture.value, **buffers[1]},
    )
    real = SeeThrough.reconstruct

    def spy(self: SeeThrough, *args: Any, **more: Any) -> Any:
        seen.append(more["statistics"])
        return real(self, *args, **more)

    monkeypatch.setattr(SeeThrough, "reconstruct", spy)
    for sent_ in (whole, capture):
        GradientInversion(SeeThrough(iterations=2, seeds=1)).run(
            _view(Surface.UPDATE, (sent_,), _knowledge(model, batch_records=2)), rng(1)
        )
    inputs: list[Tensor] = []
    layer = next(m for m in model.modules() if isinstance(m, nn.BatchNorm2d))
    layer.register_forward_pre_hook(lambda _, given: inputs.append(given[0]))
    model(truth.x)
    ((mean, var),) = seen[0].values()
    torch.testing.assert_close(mean, inputs[0].mean((0, 2, 3)), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(var, inputs[0].var((0, 2, 3)), rtol=1e-3, atol=1e-5)
    assert seen[1] is None


def test_updates_of_single_records_are_inverted_as_one_batch() -> None:
    truth = _truth()
    model = convnet(16, side=8, depth=1)
    view = _view(Surface.UPDATE, _updates(model, truth, LocalSteps(1, 0.1)), _knowledge(model))
    attack = GradientInversion(SHALLOW)
    evidence = attack.run(view, rng(1))
    found = attack.judge(evidence, view, truth).measures.to_row()
    assert evidence.images is not None and evidence.images.shape == (3, 1, 8, 8)
    assert found["psnr"] > 25 > found["baselines"]["psnr_class_mean"] + 5
    assert (
        found["identified"] == 1.0 and found["identified_chance"] == 1 / 100
    )  # each has its own record
    assert found["label_accuracy"] == 1.0 and found["n"] == 3
    assert max(found["diagnostics"]["objective_at_truth"]) < 1e-4
    assert found["diagnostics"]["rows"] == [0, 1, 2]


def test_a_noised_update_is_told_apart_from_a_failed_search() -> None:
    truth = _truth(1)
    model = convnet(16, side=8, depth=1)
    attack = GradientInversion(replace(SHALLOW, iterations=60))
    noised = _view(
        Surface.UPDATE, _updates(model, truth, LocalSteps(1, 0.1), noise=1.0), _knowledge(model)
    )
    found = attack.judge(attack.run(noised, rng()), noised, truth).measures.to_row()
    assert found["psnr"] < found["baselines"]["psnr_class_mean"] + 1
    assert "the stated computation does not give" in found["diagnostics"]["reading"]
    short = GradientInversion(replace(SHALLOW, iterations=2))
    clean = _view(Surface.UPDATE, _updates(model, truth, LocalSteps(1, 0.1)), _knowledge(model))
    assert (
        "search stopped"
        in short.judge(short.run(clean, rng()), clean, truth).diagnostics["reading"]
    )
    assert "objective is met" in describe_objectives(1e-4, 0.0)


def test_the_victims_mode_and_protocol_are_replayed() -> None:
    """Batch norm in training mode, four records, three momentum steps: the objective still vanishes
    at the truth."""
    truth = _truth(4)
    model = convnet(8, side=8, depth=2, norm=nn.BatchNorm2d).eval()
    local = LocalSteps(3, 0.1, momentum=0.9, weight_decay=0.01, batch_size=2)
    knowledge = _knowledge(
        model, momentum=0.9, weight_decay=0.01, local_steps=3, batch_size=2, batch_records=4
    )
    assert local_steps(knowledge.settings) == local
    view = _view(Surface.UPDATE, _updates(model, truth, local, each=4), knowledge)
    for method in (InvertingGradients(iterations=3), SeeThrough(iterations=3, seeds=2)):
        attack = GradientInversion(method)
        found = attack.judge(attack.run(view, rng()), view, truth).diagnostics
        assert found["objective_at_truth"][0] < 1e-2 < found["objective"][0]
        assert found["norm_layers"] == "BatchNorm2d"
    wrong = replace(
        view, knowledge=replace(knowledge, settings={**knowledge.settings, "training": False})
    )
    found = attack.judge(attack.run(wrong, rng()), wrong, truth).diagnostics
    assert found["objective_at_truth"][0] > 0.05


def test_gradients_and_deltas_mean_the_same_as_parameters() -> None:
    truth = _truth(1)
    model = mlp(8, 16)
    capture = _updates(model, truth, LocalSteps(1, 0.1))[0]
    gradient = {n: (capture.broadcast[n] - capture.value[n]) / 0.1 for n in capture.value}
    delta = {n: capture.value[n] - capture.broadcast[n] for n in capture.value}
    views = [
        _view(Surface.UPDATE, (capture,), _knowledge(model)),
        _view(Surface.GRADIENT, (Capture(0, 0, "gradient", gradient),), _knowledge(model)),
        _view(Surface.UPDATE, (Capture(0, 0, "update", delta),), _knowledge(model)),
    ]
    attack = AnalyticInversion()
    for view in views:
        assert attack.judge(attack.run(view, rng()), view, truth).measures.psnr > 80


def test_pixels_are_pixels_where_the_network_standardises_them() -> None:
    class Standardising(nn.Module):
        scale = ((0.3,), (0.4,))

        def __init__(self) -> None:
            super().__init__()
            self.whole = mlp(8, 16)

        def forward(self, x: Tensor) -> Tensor:
            return self.whole((x - 0.3) / 0.4)

    truth = _truth(1)
    model = Standardising()
    view = _view(Surface.UPDATE, _updates(model, truth, LocalSteps(1, 0.1)), _knowledge(model))
    attack = AnalyticInversion()
    assert attack.judge(attack.run(view, rng()), view, truth).measures.psnr > 80


class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        whole = convnet(16, side=8, depth=1)
        self.body = whole[:-1]
        self.head = whole[-1]

    def features(self, x: Tensor) -> Tensor:
        return self.body(x)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.features(x))


def test_updates_of_one_model_are_inverted_together_as_each_alone() -> None:
    truth = _truth(3)
    model = Classifier()
    captures = _updates(model, truth, LocalSteps(1, 0.1))
    view = _view(Surface.UPDATE, captures, _knowledge(model))
    attack = AnalyticInversion(WhiteBox(60, tv=1e-4))
    together = attack.run(view, rng()).images
    alone = [attack.run(replace(view, captures=(c,)), rng()).images for c in captures]
    assert together is not None
    # Adam divides by the root of squared slopes, which rounding moves where they are small
    assert torch.allclose(together, torch.cat(alone), atol=5e-3)


def test_the_analytic_attack_chains_through_a_models_features() -> None:
    truth = _truth(2)
    model = Classifier()
    view = _view(Surface.UPDATE, _updates(model, truth, LocalSteps(1, 0.1)), _knowledge(model))
    attack = AnalyticInversion(WhiteBox(300, tv=1e-4))
    assert attack.judge(attack.run(view, rng()), view, truth).measures.psnr > 25


@pytest.mark.parametrize("surface", [Surface.UPDATE, Surface.LABELS, Surface.COUNTS])
def test_label_counts_from_an_update_or_read_off(surface: Surface) -> None:
    truth = _truth(32)
    model = mlp(8, 32)
    value = {Surface.LABELS: {"y": truth.y}, Surface.COUNTS: {"n": torch.tensor([32.0])}}.get(
        surface
    )
    captures = (
        (Capture(0, 0, "c", value),)
        if value
        else _updates(model, truth, LocalSteps(1, 0.1), each=32)
    )
    view = _view(surface, captures, _knowledge(model, batch_records=32))
    attack = LabelCounts()
    found = attack.judge(attack.run(view, rng()), view, truth).measures.to_row()
    if surface == Surface.COUNTS:
        assert found["diagnostics"] == {"sent": [32.0], "records": 32}
    else:
        assert found["label_accuracy"] >= 0.9 > found["baselines"]["label_accuracy_chance"]


def test_features_are_inverted_on_the_rungs_that_the_view_grants() -> None:
    truth = _truth(8)
    f = convnet(4, side=8, depth=1)[:2].requires_grad_(False)
    capture = Capture(0, 0, "features", {"x": f(truth.x).detach(), "y": truth.y})
    granted = replace(_knowledge(), maps={"feature": f})
    view = _view(Surface.FEATURES, (capture,), granted)
    found = SMALL.judge(SMALL.run(view, rng()), view, truth).measures.to_row()
    assert set(found["diagnostics"]["ladder"]) == {
        "knows_map",
        "can_query",
        "shadow_map",
        "nothing",
    }
    assert (
        found["diagnostics"]["rung"] == "knows_map"
        and found["psnr"] > 25
        and found["identified"] == 1
    )
    blind = _view(Surface.FEATURES, (capture,), _knowledge())
    hidden = SMALL.judge(SMALL.run(blind, rng()), blind, truth).measures.to_row()
    assert (
        set(hidden["diagnostics"]["ladder"]) == {"shadow_map", "nothing"}
        and hidden["psnr"] < found["psnr"] - 8
    )


def test_noise_that_a_release_batch_shares_is_undone_and_independent_noise_is_not() -> None:
    x, y = digits()
    truth = Truth(x[:128], y[:128], x[200:299], y[200:299], torch.bincount(y[:128], minlength=10))
    settings = {"noise_std": 2.0, "copies": 2}
    shared = [
        x[:128] + 2 * torch.randn((2, 1, 8, 8), generator=rng(k)).repeat_interleave(64, 0)
        for k in range(2)
    ]
    alone = [x[:128] + 2 * torch.randn((128, 1, 8, 8), generator=rng(k)) for k in range(2)]
    scores = {}
    for name, copies, batch in (("shared", shared, 64), ("alone", alone, None)):
        knowledge = replace(
            _knowledge(**settings, broadcast_batch=batch), maps={"feature": lambda v: v}
        )
        view = _view(
            Surface.FEATURES, (Capture(0, 0, "features", {"x": torch.cat(copies)}),), knowledge
        )
        scores[name] = SMALL.judge(SMALL.run(view, rng()), view, truth).measures.to_row()
    assert scores["shared"]["psnr"] > scores["alone"]["psnr"] + 5
    assert scores["shared"]["identified"] > 0.8 > scores["alone"]["identified"]


def test_prototypes_are_inverted_through_the_models_features() -> None:
    truth = _truth(10)
    model = nn.Module()
    model.features = nn.Sequential(nn.Flatten(), mlp(8, 48)[1])
    means = model.features(truth.x).detach()
    view = _view(
        Surface.PROTOTYPES,
        (Capture(0, 0, "prototypes", {"mean": means, "count": torch.tensor([1.0] * 9 + [0.0])}),),
        _knowledge(model),
    )
    evidence = SMALL.run(view, rng())
    assert evidence.images is not None and len(evidence.images) == 8
    assert SMALL.judge(evidence, view, truth).measures.psnr > 15


def test_model_inversion_is_judged_by_another_classifier_beside_trivial_images() -> None:
    truth = _truth(60)
    model = mlp(8, 32)
    attack = ModelInversion(
        MiFace(iterations=200),
        WganGp(steps=5, width=4, critic_steps=1),
        GenerativeInversion(iterations=10, starts=1),
        EvaluationClassifier(steps=200),
    )
    view = _view(Surface.GLOBAL_MODEL, (), _knowledge(model))
    found = attack.judge(attack.run(view, rng()), view, truth).measures.to_row()
    assert set(found["diagnostics"]["methods"]) == {"from_class_mean", "mi_face", "gmi"}
    assert found["diagnostics"]["judge_accuracy"] > 0.8
    table = found["diagnostics"]["methods"]
    assert (
        found["baselines"]["label_accuracy_class_mean"] > 0.8 > table["mi_face"]["judged"]
    )  # it knows no class
    assert found["psnr"] == table["from_class_mean"]["psnr"] > table["mi_face"]["psnr"] + 2
    assert (
        found["psnr"] > found["baselines"]["psnr_class_mean"] - 3
        and "adds nothing" in found["note"]
    )
    empty = _view(Surface.GLOBAL_MODEL, (), _knowledge())
    assert "no classifier" in attack.judge(attack.run(empty, rng()), empty, truth).measures.note


def test_both_starts_of_model_inversion_descend_together_as_each_alone() -> None:
    knowledge = _knowledge(mlp(8, 32))
    miface = MiFace(iterations=40)
    images = ModelInversion(miface, None).run(_view(Surface.GLOBAL_MODEL, (), knowledge), rng())
    model = copy.deepcopy(knowledge.model).eval()
    means = class_mean_images(knowledge.public_x, knowledge.public_y, 10)
    for name, start in {"from_class_mean": means, "mi_face": None}.items():
        alone = miface.reconstruct(model, torch.arange(10), (1, 8, 8), start=start).images
        assert torch.allclose(images.extra[name], alone, atol=1e-4)


@pytest.mark.parametrize("copied", [True, False])
def test_copy_detection(copied: bool) -> None:
    # the file is sorted by writer
    x, y = (part[torch.randperm(1797, generator=rng(3))] for part in digits())
    truth = Truth(x[:300], y[:300], x[300:600], y[300:600], torch.bincount(y[:300], minlength=10))
    shown = x[:60] if copied else x[600:660]
    view = _view(Surface.SYNTHETIC_IMAGES, (Capture(0, 0, "images", {"x": shown}),), _knowledge())
    found = CopyDetection().judge(CopyDetection().run(view, rng()), view, truth)
    low, high = found.diagnostics["closer_interval"]
    assert found.family == Family.RECONSTRUCTION and found.figures["real"].shape == shown.shape
    counts = found.diagnostics
    if copied:
        assert (
            found.measures.identified == 1
            and counts["exact_copies"] == counts["near_copies"] == counts["released"] == 60
        )
    else:
        assert low <= 0.5 <= high and counts["exact_copies"] == 0


@pytest.mark.parametrize(
    ("members", "heldout", "copies"),
    [(1200, 60, 100), (60, 1200, 30), (300, 300, 250), (1000, 12, 1)],
)
def test_all_copies_are_counted_among_all_released_images_and_representations(
    members: int, heldout: int, copies: int
) -> None:
    """At any number of held-out records, and beyond the images that are shown."""
    x, y = digits()
    x = x + 0.001 * torch.rand(x.shape, generator=rng(4))  # no two of the file are equal
    x = x.clamp(0, 1)[torch.randperm(1797, generator=rng(3))]
    truth = Truth(
        x[:members], y[:members], x[members : members + heldout], y[:heldout], torch.zeros(10)
    )
    fresh = torch.rand(40, 1, 8, 8, generator=rng(5))
    weights = torch.randn(64, 9, generator=rng(6))
    project = lambda x: x.flatten(1) @ weights  # noqa: E731
    released = torch.cat([fresh, truth.x[:copies]])
    granted = replace(_knowledge(), maps={"projection": project})
    views = [
        _view(Surface.SYNTHETIC_IMAGES, (Capture(0, 0, "images", {"x": released}),), _knowledge()),
        _view(
            Surface.SYNTHETIC_REPRESENTATIONS,
            (Capture(0, 0, "rows", {"x": project(released)}),),
            granted,
        ),
    ]
    for view in views:
        attack = CopyDetection(limit=20)
        assert not attack.nothing_to_read(view)
        counts = attack.judge(attack.run(view, rng()), view, truth).diagnostics
        assert counts["released"] == 40 + copies and counts["exact_copies_of_heldout"] == 0
        near = counts["exact_copies"] if view is views[0] else counts["near_copies"]
        assert near == copies
    blind = replace(views[1], knowledge=_knowledge())
    assert "no map" in CopyDetection().nothing_to_read(blind)


def test_baselines_may_choose_their_records_as_the_attack_may() -> None:
    truth = _truth(20)
    view = _view(Surface.UPDATE, (), _knowledge())
    blank = torch.zeros((2, 1, 8, 8))
    compared = compare_with_records(blank, view, truth)
    assert compared.measures.psnr == pytest.approx(compared.measures.baselines["psnr_black"])
    assert sorted(match(truth.x, truth.x[[5, 2]]).tolist()) == [2, 5]


@pytest.mark.parametrize("adversary", [Adversary.SERVER, Adversary.PEER])
def test_fedfeds_two_attackers_hold_different_priors(
    adversary: Adversary, monkeypatch: pytest.MonkeyPatch
) -> None:
    truth = _truth(40)
    seen = []
    fit = WganGp.fit

    def spy(
        self: WganGp, images: Tensor, rng: torch.Generator, auxiliary: Tensor | None = None
    ) -> Any:
        seen.append((images, auxiliary))
        return fit(self, images, rng, auxiliary)

    monkeypatch.setattr(WganGp, "fit", spy)
    capture = Capture(0, 0, "features", {"x": truth.x / 2, "y": truth.y})
    knowledge = replace(_knowledge(mlp(8, 16)), maps={"feature": lambda v: v / 2})
    view = View(Surface.FEATURES, adversary, (capture,), knowledge)
    attack = RoleInversion(
        WganGp(3, width=4, critic_steps=1),
        GenerativeInversion(5, starts=1),
        EvaluationClassifier(steps=150),
    )
    finding = attack.judge(attack.run(view, rng()), view, truth)
    images, auxiliary = seen[0]
    if adversary == Adversary.SERVER:
        assert torch.equal(images, truth.x / 2) and auxiliary is None
    else:
        assert torch.equal(images, knowledge.public_x) and torch.equal(
            auxiliary, knowledge.public_x / 2
        )
    assert finding.measures.n == len(truth.y.unique()) and finding.diagnostics["role"] in (
        "server",
        "client",
    )
    mute = replace(view, captures=(Capture(0, 0, "features", {"x": truth.x}),))
    assert "labels" in attack.judge(attack.run(mute, rng()), mute, truth).measures.note


# All records of a client from the update that it really sent: against updates whose records are
# known.


SOLVER = InvertingGradients(
    iterations=250, tv=1e-4, lr=0.03, objective="absolute", schedule="cosine"
)
ATTACK = UpdateInversion(SOLVER, budget=10**6)
KEYS = {"lr": 0.05, "momentum": 0.9, "weight_decay": 1e-3}


def _truth_update(n: int) -> Truth:
    x, y = digits()
    return Truth(x[:n], y[:n], x[100:160], y[100:160], torch.bincount(y[:n], minlength=10))


def _scene(truth: Truth, model: nn.Module, epochs: int, batch: int | None = None) -> View:
    """A view of the update that the product's own local training makes of the records."""
    size, x, y = batch or len(truth.x), *digits()
    records = Records(truth.x, truth.y, torch.arange(len(truth.x)))
    start = {n: t.detach().clone() for n, t in model.state_dict().items()}
    after, steps = local_sgd(
        model, start, records, batch_size=size, epochs=epochs, generator=rng(5), **KEYS
    )
    settings: dict[str, Any] = {
        **KEYS,
        "local_steps": steps,
        "batch_size": size,
        "batch_records": len(truth.x),
    }
    knowledge = Knowledge((1, 8, 8), 10, x[300:800], y[300:800], model, settings=settings)
    return View(
        Surface.UPDATE, Adversary.SERVER, (Capture(0, 0, "update", after, start),), knowledge
    )


def _judged(attack: UpdateInversion, view: View, truth: Truth) -> dict[str, Any]:
    return dict(attack.judge(attack.run(view, rng(1)), view, truth).measures.to_row())


@pytest.mark.parametrize("batch", [8, 4])
def test_the_simulation_is_the_products_own_training(batch: int) -> None:
    """One epoch from float64 parameters: the records in the order of the batches give the update to
    1e-9."""
    truth = _truth_update(8)
    model = convnet(4, side=8, depth=1).double()
    records = Records(truth.x.double(), truth.y, torch.arange(8))
    start = {n: t.detach().clone() for n, t in model.state_dict().items()}
    after, steps = local_sgd(
        model, start, records, batch_size=batch, epochs=1, generator=rng(5), **KEYS
    )
    order = torch.cat(
        [
            next(pages)
            for pages in [draw_batches(8, batch, rng(5), torch.device("cpu"))]
            for _ in range(steps)
        ]
    )
    found = Victim(model, LocalSteps(steps=steps, batch_size=batch, **KEYS)).simulated_gradients(
        records.x[order], truth.y[order]
    )
    for gradient, name in zip(found, dict(model.named_parameters())):
        assert torch.allclose(start[name] - KEYS["lr"] * gradient, after[name], atol=1e-9, rtol=0)


@pytest.mark.nightly(cases=["3"])
@pytest.mark.parametrize("epochs", [1, 3])
def test_several_records_of_a_real_update_are_found(epochs: int) -> None:
    truth = _truth_update(4)
    model = convnet(16, side=8, depth=1)
    view = _scene(truth, model, epochs)
    found = _judged(ATTACK, view, truth)
    assert found["n"] == 4 and found["label_accuracy"] == 1 and found["diagnostics"]["simulated"]
    assert found["diagnostics"]["objective_at_truth"][0] < 1e-3
    free = max(v for k, v in found["baselines"].items() if k.startswith("psnr"))
    assert (
        found["diagnostics"]["psnr_interval"][0] > free + 2
        and "no closer than" not in found["note"]
    )


def test_another_clients_update_says_nothing_about_these_records() -> None:
    truth = _truth_update(4)
    model = convnet(16, side=8, depth=1)
    x, _ = digits()
    other = Truth(x[40:44], truth.y, truth.heldout_x, truth.heldout_y, truth.counts)
    found = _judged(replace(ATTACK, budget=2000), _scene(other, model, 1), truth)
    assert "no closer than a guess" in found["note"]


def test_labels_in_a_wrong_order_do_not_explain_the_update() -> None:
    truth = _truth_update(4)
    model = convnet(8, side=8, depth=1)
    problem = pose_update_problem(_scene(truth, model, 1), _scene(truth, model, 1).captures[0], 8)
    right = SOLVER.evaluate_objective(
        problem.model, problem.gradients, truth.x, truth.y, local=problem.local
    )
    wrong = SOLVER.evaluate_objective(
        problem.model, problem.gradients, truth.x, truth.y.roll(1), local=problem.local
    )
    assert right < 1e-3 and wrong > 0.1


def test_many_steps_are_approximated_half_way_and_the_budget_holds() -> None:
    truth = _truth_update(12)
    model = convnet(8, side=8, depth=1)
    view = _scene(truth, model, 4, batch=4)  # 12 steps
    problem = pose_update_problem(view, view.captures[0], 8)
    near = pose_update_problem(view, view.captures[0], 12)
    assert (
        not problem.simulated
        and near.simulated
        and near.gradients_per_step(12) == 48
        and problem.gradients_per_step(12) == 12
    )
    ends = view.captures[0].broadcast, view.captures[0].value
    for name, value in problem.model.named_parameters():
        assert torch.allclose(value, (ends[0][name] + ends[1][name]) / 2, atol=1e-6)
    at_truth = replace(SOLVER, objective="cosine").evaluate_objective(
        problem.model, problem.gradients, truth.x, truth.y, local=problem.local
    )
    assert at_truth < 0.2
    notes = replace(ATTACK, budget=600).run(view, rng(1)).notes
    assert notes["iterations"] == 50 and not notes["simulated"]
    assert replace(ATTACK, budget=1).run(view, rng(1)).notes["iterations"] == MIN_ITERATIONS


def test_labels_are_counted_for_all_records_however_few_images_are_sought() -> None:
    """One image says little of twelve labels: the share is that of the recovered counts, 1 where
    they are right."""
    truth = _truth_update(12)
    model = convnet(8, side=8, depth=1)
    few = _judged(replace(ATTACK, budget=600, records=1), _scene(truth, model, 1), truth)
    assert few["n"] == 1 and few["label_accuracy"] > 0.8


def test_batch_norm_statistics_count_where_they_were_sent() -> None:
    truth = _truth_update(6)
    model = convnet(4, side=8, depth=1, norm=nn.BatchNorm2d).train()
    view = _scene(truth, model, 1)
    capture = view.captures[0]
    statistics = pose_update_problem(view, capture, 8).statistics
    (name,) = [n for n, m in model.named_modules() if isinstance(m, nn.BatchNorm2d)]
    seen = dict(model.named_modules())["0"](truth.x)
    assert torch.allclose(statistics[name][0], seen.mean((0, 2, 3)), atol=1e-5)
    kept = {n: v for n, v in capture.value.items() if "running" not in n}
    silent = replace(
        capture, value={**kept, **{n: v for n, v in capture.broadcast.items() if "running" in n}}
    )
    assert not pose_update_problem(view, silent, 8).statistics


def test_without_a_known_model_there_is_nothing_to_read() -> None:
    view = _scene(_truth_update(2), convnet(4, side=8, depth=1), 1)
    assert ATTACK.nothing_to_read(replace(view, knowledge=replace(view.knowledge, model=None)))
    assert not ATTACK.nothing_to_read(view)


@pytest.mark.parametrize(
    "wrong", [{"budget": 0}, {"records": 0}, {"simulated": 0}, {"spread": -1.0}]
)
def test_bad_settings_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        UpdateInversion(**wrong)


def test_model_inversion_asks_for_gradients_of_images_alone() -> None:
    """Those of parameters would cost as much memory and time again. The model that is attacked
    stays as it was."""
    knowledge = _knowledge(mlp(8, 32))
    searched = []

    class Watched(MiFace):
        def reconstruct(self, model, labels, shape, **settings):  # type: ignore[no-untyped-def]
            searched.append(model)
            return super().reconstruct(model, labels, shape, **settings)

    ModelInversion(Watched(iterations=1), None).run(
        _view(Surface.GLOBAL_MODEL, (), knowledge), rng()
    )
    (model,) = searched
    assert not model.training
    assert not any(parameter.requires_grad for parameter in model.parameters())
    assert knowledge.model is not None
    assert all(parameter.requires_grad for parameter in knowledge.model.parameters())
