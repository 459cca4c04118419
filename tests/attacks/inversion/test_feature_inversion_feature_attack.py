"""Several rounds of the same rows through the same map are read as one: the mean, and less noise."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from attacks.inversion.feature_inversion import (
    DecoderTraining,
    FeatureInversion,
    WhiteBox,
    average_captures,
    class_mean_rows,
    shadow_map,
)
from attacks.types import Adversary, Capture, Knowledge, Surface, Truth, View
from tests.attacks.pictures import digits, rng

SMALL = FeatureInversion(limit=8, decoder=DecoderTraining(50, width=8), whitebox=WhiteBox(80, tv=1e-4))
MIX = torch.linalg.qr(torch.randn(64, 64, generator=rng(5))).Q


def through(x: Tensor) -> Tensor:
    """A map that loses nothing: the noise alone decides."""
    return (x.flatten(1) @ MIX).reshape(-1, 1, 8, 8)


def view_of(noised: list[Tensor], y: list[Tensor], std: float) -> View:
    x, labels = digits()
    knowledge = Knowledge(
        (1, 8, 8), 10, x[300:800], labels[300:800], maps={"feature": through}, settings={"noise_std": std}
    )
    captures = tuple(Capture(t, 0, "features", {"x": z, "y": own}) for t, (z, own) in enumerate(zip(noised, y)))
    return View(Surface.FEATURES, Adversary.SERVER, captures, knowledge)


def test_joined_rounds_show_more_than_one_and_the_finding_says_how_many() -> None:
    x, y = digits()
    truth = Truth(x[:8], y[:8], x[100:199], y[100:199], torch.bincount(y[:8], minlength=10))
    noised = [through(x[:8]) + 0.6 * torch.randn((8, 1, 8, 8), generator=rng(t)) for t in range(9)]
    found: dict[int, Any] = {}
    for count in (1, 9):
        view = view_of(noised[:count], [y[:8]] * count, 0.6)
        found[count] = SMALL.judge(SMALL.run(view, rng()), view, truth).measures
    ladder = {count: found[count]["diagnostics"]["ladder"]["knows_map"]["psnr"] for count in found}
    assert ladder[9] > ladder[1] + 2  # a third of the noise is 9.5 dB, less what the decoder had taken off already
    assert ladder[1] > 4.4 + 5  # the noise itself is at 20 log10(1 / 0.6) = 4.4 dB
    assert found[9]["diagnostics"]["captures"] == 9 and found[9]["note"].startswith("9 rounds' releases joined")
    assert found[1]["diagnostics"]["captures"] == 1 and "joined" not in found[1].get("note", "")


def test_rows_that_are_not_in_step_stay_apart() -> None:
    x, y = digits()
    first, other = through(x[:8]), through(x[8:16])
    for captures, expected in (
        ([(first, y[:8]), (other, y[:8])], 2),
        ([(first, y[:8]), (other, y[8:16])], 1),  # other labels
        ([(first, y[:8]), (other[:5], y[:5]), (other, y[:8])], 2),  # other rows, then the same again
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
    assert average_captures(replace(view, surface=Surface.SHARED_FEATURES, captures=(*view.captures, more)), None)[1] == 1


def test_rows_of_known_records_are_judged_by_their_own_records() -> None:
    """A release whose rows are shuffled against the records is judged row by row, not by the best assignment."""
    x, y = digits()
    truth = Truth(
        x[:8], y[:8], x[100:199], y[100:199], torch.bincount(y[:8], minlength=10), rows=torch.arange(7, -1, -1)
    )
    view = view_of([through(x[:8]).flip(0)], [y[:8].flip(0)], 0.0)
    found = SMALL.judge(SMALL.run(view, rng()), view, truth).measures
    assert found["diagnostics"]["pairing"] == "row" and found["psnr"] > 25 and found["identified"] == 1
    assert found["identified_chance"] == 1 / 100
    lost = replace(truth, rows=torch.tensor([3, 0, 5, 1, 7, 2, 4, 6]))  # labels contradict: no such pairing
    assert SMALL.judge(SMALL.run(view, rng()), view, lost).measures["diagnostics"]["pairing"] == "nearest"


def test_the_best_rung_that_counts_is_reported_and_none_above_it() -> None:
    x, y = digits()
    truth = Truth(x[:8], y[:8], x[100:199], y[100:199], torch.bincount(y[:8], minlength=10))
    view = view_of([through(x[:8])], [y[:8]], 0.0)
    for rung in ("can_query", "nothing"):
        attack = replace(SMALL, report=rung)
        found = attack.judge(attack.run(view, rng()), view, truth).measures
        ladder = found["diagnostics"]["ladder"]
        assert found["diagnostics"]["rung"] == rung and found["psnr"] == ladder[rung]["psnr"]
        assert ladder[rung]["psnr"] < ladder["knows_map"]["psnr"]


def test_who_knows_a_wrong_map_is_reported_with_what_the_release_shows_by_itself() -> None:
    """The rows are the pictures; a decoder of another map makes noise of them, which no attacker has to rely on."""
    x, y = digits()
    truth = Truth(x[:8], y[:8], x[100:199], y[100:199], torch.bincount(y[:8], minlength=10), rows=torch.arange(8))
    view = view_of([x[:8]], [y[:8]], 0.0)
    view = replace(view, knowledge=replace(view.knowledge, maps={"shadow": through}))
    found = SMALL.judge(SMALL.run(view, rng()), view, truth).measures
    ladder = found["diagnostics"]["ladder"]
    assert ladder["shadow_map"]["identified"] < 0.5 < found["identified"] == ladder["nothing"]["identified"]
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
    mean, count = torch.rand(4, 5), torch.tensor([3.0, 0.0, 1.0, 7.0])
    for value in ({"mean": mean, "count": count}, {"sum": mean * count[:, None], "count": count}):
        torch.testing.assert_close(class_mean_rows(value), mean[[0, 2, 3]])
