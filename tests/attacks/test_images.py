"""Metrics against other libraries and by hand; matching against brute force."""

from __future__ import annotations

import itertools

import pytest
import torch
from scipy.stats import binom
from skimage.metrics import peak_signal_noise_ratio, structural_similarity

from attacks import images
from attacks.inversion.copy_detection import compare_copies
from attacks.inversion.evaluation import class_mean_images, naive_reconstructions, rank_in_gallery
from tests.attacks.pictures import pictures, rng


def _noisy(x: torch.Tensor, sigma: float, seed: int = 0) -> torch.Tensor:
    return (x + sigma * torch.randn(x.shape, generator=rng(seed))).clamp(0, 1)


@pytest.mark.parametrize("channels", [1, 3])
def test_psnr_and_ssim_equal_scikit_image(channels: int) -> None:
    a = torch.rand((3, channels, 28, 30), generator=rng(1)).double()
    b = _noisy(a, 0.1)
    for i in range(3):
        x = a[i].numpy()
        y = b[i].numpy()
        assert float(images.psnr(a, b)[i]) == pytest.approx(
            peak_signal_noise_ratio(x, y, data_range=1), abs=1e-4
        )
        expected = structural_similarity(
            x,
            y,
            gaussian_weights=True,
            sigma=1.5,
            use_sample_covariance=False,
            data_range=1,
            channel_axis=0,
        )
        assert float(images.ssim(a, b)[i]) == pytest.approx(expected, abs=1e-5)


def test_small_images_take_the_small_window() -> None:
    a = torch.rand((2, 1, 8, 8), generator=rng(2)).double()
    b = _noisy(a, 0.1)
    expected = structural_similarity(
        a[0, 0].numpy(),
        b[0, 0].numpy(),
        gaussian_weights=True,
        sigma=0.5,
        use_sample_covariance=False,
        data_range=1,
    )
    assert float(images.ssim(a, b)[0]) == pytest.approx(expected, abs=1e-5)
    with pytest.raises(ValueError, match="at least 5"):
        images.ssim(a[..., :4], b[..., :4])


def test_identical_images_are_finite_and_shapes_are_checked() -> None:
    a = torch.rand((2, 1, 12, 12), generator=rng())
    assert images.psnr(a, a).tolist() == [200.0, 200.0]
    with pytest.raises(ValueError, match="two equal"):
        images.psnr(a, a[:1])


@pytest.mark.parametrize("order", list(itertools.permutations(range(4))))
def test_match_lines_reconstructions_up_with_the_truth(order: tuple[int, ...]) -> None:
    truth = pictures()[0][:4]
    shuffled = _noisy(truth, 0.05)[list(order)]
    permutation = images.match(shuffled, truth)
    assert torch.equal(images.match(truth[list(order)], truth), permutation)
    assert float(images.psnr(shuffled[permutation], truth).min()) > 20


def test_match_is_the_best_of_all_permutations() -> None:
    a = torch.rand((5, 1, 6, 6), generator=rng(3))
    b = torch.rand((5, 1, 6, 6), generator=rng(4))
    scores = images.negative_mse(a, b)
    assert float(scores[1, 2]) == pytest.approx(-float((a[1] - b[2]).double().square().mean()))
    best = max(
        itertools.permutations(range(5)), key=lambda p: float(scores[list(p), range(5)].sum())
    )
    assert images.match(a, b).tolist() == list(best)
    assert len(images.match(torch.cat([a, b]), b)) == 5
    with pytest.raises(ValueError, match="at least as many"):
        images.match(a[:2], b)


def test_bootstrap_covers_a_known_mean_about_as_often_as_it_says() -> None:
    covered = 0
    for seed in range(200):
        low, high = images.bootstrap_interval(
            torch.randn(30, generator=rng(seed)) + 5, rng(seed + 1000), draws=300
        )
        covered += low <= 5 <= high
    assert binom.ppf(0.0005, 200, 0.92) <= covered <= 199


def test_identification_ranks_and_chance() -> None:
    x = pictures()[0]
    found = rank_in_gallery(_noisy(x[:20], 0.1), x[:20], x[100:199])
    assert (
        found.top_k_rate(1) == 1.0
        and found.chance_rate == pytest.approx(0.01)
        and found.median_rank == 1
    )
    blind = rank_in_gallery(x[200:300], x[:100], x[300:399])
    assert blind.top_k_rate(1) < 0.1
    same = x[:1].expand(5, -1, -1, -1)
    assert (
        rank_in_gallery(same, same, same).ranks.tolist() == [6] * 5
    )  # a tie counts against the attacker


def test_guesses_are_what_they_say() -> None:
    x, y = pictures()
    free = naive_reconstructions(y[:6], x[100:400], y[100:400], rng())
    assert float(free["black"].max()) == 0
    assert torch.allclose(free["class_mean"][0], x[100:400][y[100:400] == y[0]].mean(0))
    pool = x[100:400][y[100:400] == y[1]]
    assert any(torch.equal(free["random_same_class"][1], p) for p in pool)
    assert torch.equal(class_mean_images(x[:5], torch.zeros(5).long(), 2)[1], x[:5].mean(0))


def test_copies_are_found_and_independent_images_are_not() -> None:
    x = pictures()[0]
    x = x[torch.randperm(len(x), generator=rng(1))]  # the file goes from writer to writer
    members = x[:300]
    out = x[300:600]
    fresh = x[600:800]
    copied = compare_copies(_noisy(members[:50], 0.02), members, out, rng())
    assert copied.closer == 1.0 and copied.interval[0] > 0.9
    assert copied.nearest.tolist() == list(range(50))
    null = compare_copies(fresh, members, out, rng())
    assert null.interval[0] <= 0.5 <= null.interval[1]
