"""Tests of ``attacks.inversion.feature_inversion``."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from attacks.images import psnr, ssim
from attacks.inversion import evaluation
from attacks.inversion.evaluation import class_mean_images
from attacks.inversion.feature_inversion import (
    DecoderTraining,
    FeatureInversion,
    FeatureInverter,
    KnowledgeLevel,
    WhiteBox,
)
from attacks.inversion.generative import (
    Critic,
    EvaluationClassifier,
    GenerativeInversion,
    WganGp,
    class_accuracy,
)
from attacks.inversion.model_inversion import MiFace
from attacks.inversion.released_rows import (
    average_captures,
    average_copies,
    class_mean_rows,
    release_as_images,
    remove_shared_noise,
    shadow_map,
)
from attacks.types import Adversary, Capture, Knowledge, Surface, Truth, View
from tests.attacks.pictures import digits, drawn, rng

# Several rounds of the same rows through the same map are read as one: the mean, and less noise.


SMALL = FeatureInversion(
    limit=8, decoder=DecoderTraining(50, width=8), whitebox=WhiteBox(80, tv=1e-4)
)
MIX = torch.linalg.qr(torch.randn(64, 64, generator=rng(5))).Q


def through(x: Tensor) -> Tensor:
    """A map that loses nothing: the noise alone decides."""
    return (x.flatten(1) @ MIX).reshape(-1, 1, 8, 8)


def view_of(noised: list[Tensor], y: list[Tensor], std: float) -> View:
    x, labels = digits()
    knowledge = Knowledge(
        (1, 8, 8),
        10,
        x[300:800],
        labels[300:800],
        maps={"feature": through},
        settings={"noise_std": std},
    )
    captures = tuple(
        Capture(t, 0, "features", {"x": z, "y": own}) for t, (z, own) in enumerate(zip(noised, y))
    )
    return View(Surface.FEATURES, Adversary.SERVER, captures, knowledge)


def test_joined_rounds_show_more_than_one_and_the_finding_says_how_many() -> None:
    x, y = digits()
    truth = Truth(x[:8], y[:8], x[100:199], y[100:199], torch.bincount(y[:8], minlength=10))
    noised = [through(x[:8]) + 0.6 * torch.randn((8, 1, 8, 8), generator=rng(t)) for t in range(9)]
    found: dict[int, Any] = {}
    for count in (1, 9):
        view = view_of(noised[:count], [y[:8]] * count, 0.6)
        found[count] = SMALL.judge(SMALL.run(view, rng()), view, truth).measures.to_row()
    ladder = {count: found[count]["diagnostics"]["ladder"]["knows_map"]["psnr"] for count in found}
    assert (
        ladder[9] > ladder[1] + 2
    )  # a third of the noise is 9.5 dB, less what the decoder had taken off already
    assert ladder[1] > 4.4 + 5  # the noise itself is at 20 log10(1 / 0.6) = 4.4 dB
    assert found[9]["diagnostics"]["captures"] == 9 and found[9]["note"].startswith(
        "9 rounds' releases joined"
    )
    assert found[1]["diagnostics"]["captures"] == 1 and "joined" not in found[1].get("note", "")


def test_rows_that_are_not_in_step_stay_apart() -> None:
    x, y = digits()
    first = through(x[:8])
    other = through(x[8:16])
    for captures, expected in (
        ([(first, y[:8]), (other, y[:8])], 2),
        ([(first, y[:8]), (other, y[8:16])], 1),  # other labels
        (
            [(first, y[:8]), (other[:5], y[:5]), (other, y[:8])],
            2,
        ),  # other rows, then the same again
    ):
        view = view_of([z for z, _ in captures], [own for _, own in captures], 0.0)
        rows, count = average_captures(view, through)
        assert count == expected
        torch.testing.assert_close(rows, (first + other) / 2 if expected == 2 else first)


def test_the_mean_is_all_that_a_squared_error_can_use() -> None:
    """Gradients of sum_k |f(x) - z_k|^2 / K and of |f(x) - mean z|^2 are the same."""
    x, _ = digits()
    noised = [through(x[:4]) + 0.3 * torch.randn((4, 1, 8, 8), generator=rng(t)) for t in range(3)]
    image = torch.rand((4, 1, 8, 8), generator=rng(9)).requires_grad_()
    each = sum(((through(image) - z) ** 2).sum() for z in noised) / 3
    mean = ((through(image) - torch.stack(noised).mean(0)) ** 2).sum()
    (a,), (b,) = torch.autograd.grad(each, image), torch.autograd.grad(mean, image)
    torch.testing.assert_close(a, b, atol=1e-4, rtol=1e-4)


def test_the_labels_beside_shared_features_are_no_release_of_rows() -> None:
    x, y = digits()
    view = view_of([through(x[:8])], [y[:8]], 0.0)
    more = Capture(0, 0, "labels", {"y": y[:8]})
    assert (
        average_captures(
            replace(view, surface=Surface.SHARED_FEATURES, captures=(*view.captures, more)), None
        )[1]
        == 1
    )


def test_rows_of_known_records_are_judged_by_their_own_records() -> None:
    """A release whose rows are shuffled against the records is judged row by row, not by the best
    assignment."""
    x, y = digits()
    truth = Truth(
        x[:8],
        y[:8],
        x[100:199],
        y[100:199],
        torch.bincount(y[:8], minlength=10),
        rows=torch.arange(7, -1, -1),
    )
    view = view_of([through(x[:8]).flip(0)], [y[:8].flip(0)], 0.0)
    found = SMALL.judge(SMALL.run(view, rng()), view, truth).measures.to_row()
    assert (
        found["diagnostics"]["pairing"] == "row" and found["psnr"] > 25 and found["identified"] == 1
    )
    assert found["identified_chance"] == 1 / 100
    # labels contradict: no such pairing
    lost = replace(truth, rows=torch.tensor([3, 0, 5, 1, 7, 2, 4, 6]))
    assert SMALL.judge(SMALL.run(view, rng()), view, lost).diagnostics["pairing"] == "nearest"


def test_guesses_for_the_same_records_are_compared_once_for_all_rungs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    x, y = digits()
    counts = torch.bincount(y[:8], minlength=10)
    truth = Truth(x[:8], y[:8], x[100:199], y[100:199], counts, rows=torch.arange(8))
    view = view_of([through(x[:8])], [y[:8]], 0.0)
    calls: list[int] = []
    qualities = evaluation._baseline_qualities
    monkeypatch.setattr(
        evaluation, "_baseline_qualities", lambda *a: calls.append(1) or qualities(*a)
    )
    evidence = SMALL.run(view, rng())
    finding = SMALL.judge(evidence, view, truth)
    assert len(finding.diagnostics["ladder"]) > 2 and len(calls) == 1
    first = evaluation.compare_with_records(x[8:16], view, truth, torch.arange(8))
    alone = evaluation.compare_with_records(x[16:24], view, truth, torch.arange(8))
    after = evaluation.compare_with_records(x[16:24], view, truth, torch.arange(8), first)
    assert after.measures.to_row() == alone.measures.to_row() != first.measures.to_row()


@pytest.mark.parametrize(("noise", "decoders"), [(0.0, 2), (0.3, 3)])
def test_who_knows_the_map_and_who_queries_it_share_a_decoder_of_bare_features(
    noise: float, decoders: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, y = digits()
    view = view_of([through(x[:8])], [y[:8]], noise)
    calls: list[int] = []
    fit = DecoderTraining.fit
    monkeypatch.setattr(DecoderTraining, "fit", lambda *a: calls.append(1) or fit(*a))
    evidence = SMALL.run(view, rng())
    assert len(calls) == decoders  # one more for the shadow map
    assert not torch.equal(evidence.extra["knows_map"], evidence.extra["can_query"])


def test_the_best_rung_that_counts_is_reported_and_none_above_it() -> None:
    x, y = digits()
    truth = Truth(x[:8], y[:8], x[100:199], y[100:199], torch.bincount(y[:8], minlength=10))
    view = view_of([through(x[:8])], [y[:8]], 0.0)
    for rung in ("can_query", "nothing"):
        attack = replace(SMALL, report=rung)
        found = attack.judge(attack.run(view, rng()), view, truth).measures.to_row()
        ladder = found["diagnostics"]["ladder"]
        assert found["diagnostics"]["rung"] == rung and found["psnr"] == ladder[rung]["psnr"]
        assert ladder[rung]["psnr"] < ladder["knows_map"]["psnr"]


def test_who_knows_a_wrong_map_is_reported_with_what_the_release_shows_by_itself() -> None:
    """The rows are the pictures; a decoder of another map makes noise of them, which no attacker
    has to rely on."""
    x, y = digits()
    truth = Truth(
        x[:8],
        y[:8],
        x[100:199],
        y[100:199],
        torch.bincount(y[:8], minlength=10),
        rows=torch.arange(8),
    )
    view = view_of([x[:8]], [y[:8]], 0.0)
    view = replace(view, knowledge=replace(view.knowledge, maps={"shadow": through}))
    found = SMALL.judge(SMALL.run(view, rng()), view, truth).measures.to_row()
    ladder = found["diagnostics"]["ladder"]
    assert (
        ladder["shadow_map"]["identified"]
        < 0.5
        < found["identified"]
        == ladder["nothing"]["identified"]
    )
    assert found["diagnostics"]["rung"] == "nothing" and found["picked"] == 2


class Embedding(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.layer = nn.Linear(64, width)

    def features(self, x: Tensor) -> Tensor:
        return self.layer(x.flatten(1))


def test_a_model_with_other_features_is_no_shadow_of_the_map() -> None:
    """feddm_guided_dp releases means in one map while its model has features of another width."""
    x, y = digits()
    knowledge = Knowledge((1, 8, 8), 10, x[:9], y[:9], model=Embedding(5))
    view = View(Surface.PROTOTYPES, Adversary.SERVER, (), knowledge)
    assert shadow_map(view, torch.zeros(3, 5), rng()) is not None
    assert shadow_map(view, torch.zeros(3, 6), rng()) is None


def test_class_sums_are_read_as_the_means_of_the_classes_that_have_records() -> None:
    mean = torch.rand(4, 5)
    count = torch.tensor([3.0, 0.0, 1.0, 7.0])
    for value in ({"mean": mean, "count": count}, {"sum": mean * count[:, None], "count": count}):
        torch.testing.assert_close(class_mean_rows(value), mean[[0, 2, 3]])


# Feature inversion on every rung, denoising of badly noised releases, model inversion and its
# priors.


QUICK = DecoderTraining(steps=150, width=12)


def _map(seed: int, out: int = 1) -> nn.Module:
    layers = nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, out, 3, padding=1)
    )
    return drawn(layers, seed).requires_grad_(False)


def _data() -> tuple[Tensor, Tensor, Tensor]:
    x, y = digits()
    return x[:8], x[300:1300], y[300:1300]


def test_knowing_more_reveals_more() -> None:
    x, public, _ = _data()
    f = _map(0)
    shadow = _map(7)
    scores = {}
    for rung in KnowledgeLevel:
        inverter = FeatureInverter(rung, QUICK, WhiteBox(iterations=200, tv=1e-4))
        found = inverter.invert_features([f(x)], public, rng(), maps=[f], shadows=[shadow])
        scores[rung] = float(psnr(found.images, x).mean())
    mean = float(psnr(public.mean(0).expand_as(x), x).mean())
    assert scores[KnowledgeLevel.KNOWS_MAP] > 40 > scores[KnowledgeLevel.CAN_QUERY] > mean + 3
    assert scores[KnowledgeLevel.CAN_QUERY] > scores[KnowledgeLevel.SHADOW_MAP] + 3
    assert scores[KnowledgeLevel.NOTHING] < mean + 3


def test_a_rung_refuses_to_work_without_its_knowledge() -> None:
    x, public, _ = _data()
    with pytest.raises(ValueError, match="need as many maps"):
        FeatureInverter(KnowledgeLevel.CAN_QUERY).invert_features([x], public, rng())
    with pytest.raises(ValueError, match="need as many maps"):
        FeatureInverter(KnowledgeLevel.SHADOW_MAP).invert_features(
            [x], public, rng(), maps=[lambda v: v]
        )
    with pytest.raises(ValueError):
        FeatureInverter("everything")  # type: ignore[arg-type]


def test_white_box_keeps_the_best_images_with_their_residual() -> None:
    x, public, _ = _data()
    f = _map(0)
    box = WhiteBox(iterations=30, lr=0.5)
    found, residual = box.optimise_images([f], [f(x)], public[:8])
    assert torch.allclose(box.feature_residual([f], [f(x)], found), residual)
    assert bool((residual <= box.feature_residual([f], [f(x)], public[:8])).all())


def test_two_rounds_show_what_one_hides() -> None:
    x, public, _ = _data()
    halves = [lambda v: v[..., :4], lambda v: v[..., 4:]]
    box = WhiteBox(iterations=150, tv=0.0)
    start = public.mean(0).expand_as(x)
    one, _ = box.optimise_images(halves[:1], [halves[0](x)], start)
    both, _ = box.optimise_images(halves, [h(x) for h in halves], start)
    assert float(psnr(both, x).mean()) > 40 > float(psnr(one, x).mean())


def test_vectors_are_decoded_too() -> None:
    x, public, _ = _data()
    f = drawn(nn.Sequential(nn.Flatten(), nn.Linear(64, 48))).requires_grad_(False)
    found = FeatureInverter(KnowledgeLevel.CAN_QUERY, QUICK).invert_features(
        [f(x)], public, rng(), maps=[f]
    )
    assert (
        float(psnr(found.images, x).mean()) > float(psnr(public.mean(0).expand_as(x), x).mean()) + 2
    )


def test_a_decoder_told_of_the_noise_beats_one_that_is_not() -> None:
    x, public, _ = _data()
    noisy = x + 0.5 * torch.randn(x.shape, generator=rng(3))
    scores = [
        float(
            psnr(
                DecoderTraining(150, width=12, noise_std=std).fit(public, public, rng())(noisy), x
            ).mean()
        )
        for std in (0.0, 0.5)
    ]
    assert scores[1] > scores[0] + 1
    assert scores[1] > float(psnr(noisy.clamp(0, 1), x).mean()) + 2


def test_noise_shared_by_a_batch_cancels_and_independent_noise_does_not() -> None:
    x, _ = digits()
    x, public = x[:128], x[300:1300]
    sigma = 2.0
    batch = 64
    noise = sigma * torch.randn((2, 1, 8, 8), generator=rng())
    shared = x + noise.repeat_interleave(batch, 0)
    cleaned = remove_shared_noise(shared, batch, public.mean(0))
    assert (
        float((cleaned - x).square().mean()) < 5 * float(x.var(0).mean()) / batch
    )  # sampling error of a mean
    independent = x + sigma * torch.randn(x.shape, generator=rng(1))
    left = float((remove_shared_noise(independent, batch, public.mean(0)) - x).square().mean())
    assert left > 0.9 * sigma**2
    with pytest.raises(ValueError, match="at least 2"):
        remove_shared_noise(x, 1, x.mean(0))


def test_copies_average() -> None:
    x = torch.arange(6.0).view(3, 2)
    assert torch.equal(average_copies(torch.cat([x - 1, x + 1]), 2), x)
    with pytest.raises(ValueError, match="divisor"):
        average_copies(x, 2)


def test_looking_shows_image_like_releases_and_nothing_of_vectors() -> None:
    x, public, _ = _data()
    assert float(ssim(release_as_images(3 * x - 1, public), x).mean()) > 0.95
    assert torch.equal(release_as_images(torch.zeros(2, 5), public)[1], public.mean(0))


def _classifier() -> nn.Module:
    x, y = digits()
    model = drawn(nn.Sequential(nn.Flatten(), nn.Linear(64, 10)))
    optimiser = torch.optim.Adam(model.parameters(), lr=0.05)
    for _ in range(200):
        optimiser.zero_grad()
        nn.functional.cross_entropy(model(x[:300]), y[:300]).backward()
        optimiser.step()
    return model.eval().requires_grad_(False)


def test_mi_face_convinces_the_model_and_stops_where_its_rule_says() -> None:
    model = _classifier()
    labels = torch.arange(10)
    attack = MiFace(iterations=2000)
    found = attack.reconstruct(model, labels, (1, 8, 8))
    confidence = model(found.images).softmax(1).diagonal()
    assert float(confidence.min()) > 0.9
    assert found.objective == pytest.approx(float(1 - confidence.mean()), abs=1e-5)
    assert found.diagnostics["steps"] < 2000
    alone = attack.reconstruct(model, labels[3:4], (1, 8, 8))
    assert torch.allclose(alone.images[0], found.images[3], atol=1e-5)
    with pytest.raises(ValueError, match="evaluation mode"):
        attack.reconstruct(model.train(), labels, (1, 8, 8))


def test_one_judge_is_trained_for_the_same_records_and_draws() -> None:
    _, x, y = _data()
    training = EvaluationClassifier(steps=3)
    first, again, other = (torch.Generator().manual_seed(seed) for seed in (0, 0, 1))
    judge = training.fit(x, y, 10, first)
    assert training.fit(x.clone(), y, 10, again) is judge
    assert torch.equal(first.get_state(), again.get_state())
    assert training.fit(x, y, 10, other) is not judge
    assert training.fit(x[1:], y[1:], 10, torch.Generator().manual_seed(0)) is not judge
    fresh = training._train(x, y, 10, torch.Generator().manual_seed(0))
    assert torch.equal(fresh(x), judge(x))


def test_the_judge_knows_digits_and_not_noise() -> None:
    x, y = digits()
    judge = EvaluationClassifier(steps=250).fit(x[300:1300], y[300:1300], 10, rng())
    assert class_accuracy(judge, x[:300], y[:300]) > 0.85
    assert class_accuracy(judge, torch.rand((300, 1, 8, 8), generator=rng()), y[:300]) < 0.3


def test_gan_prior_moves_towards_its_data_and_the_search_convinces_the_model() -> None:
    public = _data()[1]
    training = WganGp(steps=150, width=4, latent=16, critic_steps=2, lr=2e-3)
    prior = training.fit(public, rng())
    z = torch.randn((64, 16), generator=rng(5))
    gap = float((prior.generator(z).mean(0) - public.mean(0)).abs().mean())
    raw = WganGp(steps=1, width=4, latent=16, critic_steps=1, lr=1e-9).fit(public, rng())
    assert gap < 0.5 * float((raw.generator(z).mean(0) - public.mean(0)).abs().mean())
    model = _classifier()
    labels = torch.arange(10)
    found = GenerativeInversion(iterations=100, starts=2).reconstruct(model, prior, labels, rng())
    blind = GenerativeInversion(iterations=1, starts=1).reconstruct(model, prior, labels, rng())
    assert found.objective < 0.5 * blind.objective
    assert found.images.shape == (10, 1, 8, 8)


def test_auxiliary_images_condition_the_prior() -> None:
    x, public, _ = _data()
    prior = WganGp(steps=2, width=4, latent=8, critic_steps=1).fit(public, rng(), auxiliary=public)
    z = torch.zeros((2, 8))
    a, b = prior.generator(z, public[:2])
    assert float((a - b).detach().abs().max()) > 0
    model = _classifier()
    labels = torch.tensor([1, 2])
    found = GenerativeInversion(iterations=3, starts=2).reconstruct(
        model, prior, labels, rng(), auxiliary=x[:2]
    )
    assert found.images.shape == (2, 1, 8, 8)


@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 32, 32), (1, 28, 28), (3, 20, 13)])
def test_prior_networks_fit_any_size(shape: tuple[int, int, int]) -> None:
    images = torch.rand((4, *shape), generator=rng())
    prior = WganGp(steps=1, width=4, latent=4, critic_steps=1, batch=4).fit(images, rng())
    assert prior.generator(torch.zeros(2, 4)).shape == (2, *shape)
    assert Critic.forward(prior.critic, images).shape == (4,)


@pytest.mark.parametrize(
    "make",
    [
        lambda: DecoderTraining(noise_std=math.nan),
        lambda: WhiteBox(lr=0),
        lambda: MiFace(confidence=1.5),
        lambda: WganGp(penalty=math.nan),
        lambda: GenerativeInversion(starts=0),
        lambda: EvaluationClassifier(lr=-1),
    ],
)
def test_settings_are_checked(make: object) -> None:
    with pytest.raises(ValueError):
        make()  # type: ignore[operator]


def test_no_global_random_stream_is_touched() -> None:
    public = _data()[1]
    before = torch.random.get_rng_state()
    DecoderTraining(steps=1).fit(public, public, rng())
    WganGp(steps=1, width=4, critic_steps=1).fit(public, rng())
    EvaluationClassifier(steps=1).fit(public, torch.zeros(len(public)).long(), 2, rng())
    assert torch.equal(before, torch.random.get_rng_state())


def test_the_search_knows_the_noise_and_the_decoder_the_labels() -> None:
    """In noise, fitting the features exactly is worse than a decoder's guess; weighing both is
    better than either."""
    (x, public, y), noise = _data(), 1.0
    labels = digits()[1][:8], y
    z = x + noise * torch.randn(x.shape, generator=rng(3))
    f = nn.Identity()
    told = DecoderTraining(steps=150, width=12, noise_std=noise)
    quality = {}
    for name, rung, decoder, known in (
        ("blind search", KnowledgeLevel.KNOWS_MAP, QUICK, None),
        ("search", KnowledgeLevel.KNOWS_MAP, told, None),
        ("decoder", KnowledgeLevel.CAN_QUERY, told, None),
        ("labels", KnowledgeLevel.KNOWS_MAP, told, labels),
    ):
        found = FeatureInverter(rung, decoder, WhiteBox(iterations=100)).invert_features(
            [z], public, rng(), maps=[f], labels=known
        )
        quality[name] = float(psnr(found.images, x).mean())
    means = float(psnr(class_mean_images(public, y, 10)[labels[0]], x).mean())
    assert quality["search"] > quality["blind search"] + 4
    assert (
        quality["search"] > quality["decoder"] - 0.5
        and quality["labels"] > max(quality["search"], means) - 0.2
    )


def test_a_class_that_no_public_record_has_starts_from_the_mean_of_all() -> None:
    """The last fifth of the public records, which decoders are not fitted to, may be all there is
    of a class."""
    (x, public, _), told = _data(), DecoderTraining(steps=2, width=4, noise_std=0.5)
    labels = torch.tensor([1, 2, 3, 4]), torch.arange(5).repeat_interleave(len(public) // 5)
    inverter = FeatureInverter(KnowledgeLevel.KNOWS_MAP, told, WhiteBox(iterations=2))
    found = inverter.invert_features([x[:4]], public, rng(), maps=[nn.Identity()], labels=labels)
    assert found.images.shape == x[:4].shape and bool(found.images.isfinite().all())
