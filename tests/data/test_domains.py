"""Domains and corruptions: honest names, no record twice, known closed forms, no global
randomness."""

from __future__ import annotations

import io
import math

import numpy as np
import pytest
import torch
from PIL import Image

from privdd.core.rng import Keys
from privdd.data.corruptions import (
    CORRUPTIONS,
    corrupt_images,
    corruption_names,
    displace_pixels,
    plasma_clouds,
    smear_images,
)
from privdd.data.dataset import is_published
from privdd.data.partition import Partition, make_shards
from privdd.data.sources import blend_on_photos, draw_font_digits, load_dataset


def photo(count: int = 4, channels: int = 3, side: int = 24) -> torch.Tensor:
    g = torch.Generator().manual_seed(0)
    coarse = torch.rand(count, channels, 6, 6, generator=g)
    return torch.nn.functional.interpolate(coarse, size=side, mode="bilinear").clamp(0, 1)


def generator(seed: int = 1) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("name", CORRUPTIONS)
def test_corruption_is_keyed_bounded_and_grows_with_severity(name):
    x = photo()
    before = torch.get_rng_state()
    damage = []
    for severity in range(1, 6):
        y, again = (corrupt_images(name, x, severity, generator()) for _ in range(2))
        assert torch.equal(y, again) and y.shape == x.shape and y.min() >= 0 and y.max() <= 1
        damage.append(float((y - x).pow(2).mean()))
    assert torch.equal(before, torch.get_rng_state())
    # saturate turns from pale to vivid at severity 3; elastic_transform from turning to rippling at
    # severity 2
    assert damage[4] > damage[0] > 0 or (
        name in ("saturate", "elastic_transform") and min(damage) > 0
    )


def test_noise_has_the_stated_moments():
    x = torch.full((8, 3, 64, 64), 0.5)
    for severity, std in enumerate((0.04, 0.06, 0.08, 0.09, 0.10), start=1):
        assert float(
            (corrupt_images("gaussian_noise", x, severity, generator()) - x).std()
        ) == pytest.approx(std, rel=0.02)
    shot = corrupt_images("shot_noise", x, 3, generator())
    assert float(shot.var()) == pytest.approx(0.5 / 100, rel=0.03) and float(
        shot.mean()
    ) == pytest.approx(0.5, abs=0.002)
    hit = corrupt_images("impulse_noise", x, 5, generator()) != 0.5
    assert float(hit.float().mean()) == pytest.approx(0.07, abs=0.004)


def test_closed_forms():
    flat = torch.full((2, 3, 16, 16), 0.5)
    for name in (
        "gaussian_blur",
        "defocus_blur",
        "motion_blur",
        "zoom_blur",
        "contrast",
        "pixelate",
        "saturate",
    ):
        torch.testing.assert_close(
            corrupt_images(name, flat, 5, generator()), flat, atol=1e-5, rtol=0
        )
    torch.testing.assert_close(corrupt_images("brightness", flat, 1, generator()), flat + 0.05)
    x = photo()
    centred = x - x.mean((2, 3), keepdim=True)
    torch.testing.assert_close(
        corrupt_images("contrast", x, 4, generator()), 0.3 * centred + x.mean((2, 3), keepdim=True)
    )


def test_textures_and_codecs_do_what_they_say():
    """Glass moves pixels and makes none; JPEG is Pillow's; fog, snow and frost brighten; mud covers
    what it covers."""
    x = photo(side=32)
    flat = torch.full((2, 3, 32, 32), 0.5)
    torch.testing.assert_close(
        corrupt_images("glass_blur", flat, 5, generator()), flat, atol=1e-5, rtol=0
    )
    torch.testing.assert_close(
        corrupt_images("elastic_transform", flat, 5, generator()), flat, atol=1e-5, rtol=0
    )
    # a blur of 0.05 pixels changes nothing
    shuffled = corrupt_images("glass_blur", x, 1, generator())
    torch.testing.assert_close(
        shuffled.flatten(2).sort(-1).values, x.flatten(2).sort(-1).values, atol=1e-5, rtol=0
    )
    packed = io.BytesIO()
    Image.fromarray((x[0] * 255).byte().permute(1, 2, 0).numpy()).save(packed, "JPEG", quality=50)
    expected = torch.from_numpy(np.asarray(Image.open(packed)).copy()).permute(2, 0, 1) / 255
    torch.testing.assert_close(corrupt_images("jpeg_compression", x, 4, generator())[0], expected)
    for name in ("snow", "frost"):
        assert corrupt_images(name, x * 0.5, 1, generator()).mean() > (x * 0.5).mean()
    # 0.5 + 0.5 cloud, scaled by 0.5 / (0.5 + 0.5)
    fog = corrupt_images("fog", flat, 2, generator())
    assert fog.min() >= 0.25 - 1e-6 and fog.max() <= 0.5 + 1e-6 and fog.std() > 0.02
    mud = corrupt_images("spatter", flat, 5, generator())
    touched = (mud != 0.5).any(1)
    assert 0.005 < touched.float().mean() < 0.5 and (mud[:, 0][touched] > mud[:, 2][touched]).all()


def test_warps_by_hand():
    """A displacement of one pixel is a shift; smearing spreads one point along the angle alone."""
    x = photo(side=8)
    ones = torch.ones(4, 8, 8)
    zeros = torch.zeros(4, 8, 8)
    torch.testing.assert_close(
        displace_pixels(x, ones, zeros)[..., :-1], x[..., 1:], atol=1e-5, rtol=0
    )
    torch.testing.assert_close(
        displace_pixels(x, zeros, ones)[:, :, :-1], x[:, :, 1:], atol=1e-5, rtol=0
    )
    point = torch.zeros(1, 1, 9, 9)
    point[0, 0, 4, 4] = 1
    smeared = smear_images(point, 2, 1.0, torch.zeros(1))[0, 0]
    weights = torch.tensor([1.0, math.exp(-0.5), math.exp(-2.0)])
    torch.testing.assert_close(smeared[4, 2:5].flip(0), weights / weights.sum(), atol=1e-5, rtol=0)
    assert smeared.sum() == pytest.approx(1, abs=1e-5) and smeared[3].abs().max() < 1e-5


def test_clouds_are_keyed_within_bounds_and_rougher_where_they_decay_less():
    like = torch.zeros(8, 1, 32, 32)
    smooth, rough = (plasma_clouds(like, decay, generator())[:, 0] for decay in (3.0, 1.5))
    assert torch.equal(smooth, plasma_clouds(like, 3.0, generator())[:, 0]) and not torch.equal(
        smooth[0], smooth[1]
    )
    assert float(smooth.min()) == 0 and float(smooth.max()) == 1
    assert rough.diff(dim=2).abs().mean() > 1.5 * smooth.diff(dim=2).abs().mean()


def test_bad_corruptions_are_refused():
    with pytest.raises(ValueError, match="rain"):
        corrupt_images("rain", photo(), 1, generator())
    with pytest.raises(ValueError, match="severity=6"):
        corrupt_images("contrast", photo(), 6, generator())
    with pytest.raises(ValueError, match="grey"):
        corrupt_images("saturate", photo(channels=1), 1, generator())
    with pytest.raises(ValueError, match="each once"):
        corruption_names(3, ["contrast", "contrast"])
    assert "saturate" not in corruption_names(1) and len(corruption_names(3)) == 19


def test_corrupted_set_deals_each_record_once():
    data = load_dataset(
        "corrupted",
        source="digits",
        severity=2,
        corruptions=["contrast", "brightness"],
        keys=Keys(0),
    )
    assert (
        data.domains == ("contrast", "brightness")
        and len(data.train) == 1438
        and "each record under one" in data.note
    )
    shards = make_shards(data, Partition("corrupted", per_domain=3, alpha=2.0), Keys(0))
    assert len(shards) == 6 and all(len(np.unique(data.domain[s.train.ids])) == 1 for s in shards)


def test_corrupted_files_of_ones_own_stay_off_the_page(tmp_path):
    """The corruption is published, the images are not."""
    rng = np.random.default_rng(0)
    images = rng.random((40, 8, 8)).astype(np.float32)
    labels = np.arange(40) % 4
    np.savez(
        tmp_path / "own.npz",
        x_train=images[:30],
        y_train=labels[:30],
        x_test=images[30:],
        y_test=labels[30:],
    )
    chosen = {"severity": 1, "corruptions": ["contrast", "brightness"], "keys": Keys(0)}
    own = load_dataset("corrupted", source="npz", root=tmp_path / "own.npz", **chosen)
    public = load_dataset("corrupted", source="digits", **chosen)
    assert is_published(public) and not is_published(own)


def test_offline_digit_domains_are_named_for_what_they_are(tmp_path):
    data = load_dataset("digit_domains", root=tmp_path, limit=60, test_limit=20, keys=Keys(0))
    again = load_dataset("digit_domains", root=tmp_path, limit=60, test_limit=20, keys=Keys(0))
    assert torch.equal(data.train.x, again.train.x)
    assert data.shape == (3, 28, 28) and {"scikit-learn digits", "font digits"} <= set(data.domains)
    assert not {"MNIST-M", "SynthDigits"} & set(data.domains)
    assert [int((data.domain == k).sum()) for k in range(len(data.domains))] == [60] * len(
        data.domains
    )
    assert len(make_shards(data, Partition("domains"), Keys(0))) == len(data.domains)


def test_photo_blend_keeps_the_patch_where_the_digit_is_blank():
    blank, full = (
        blend_on_photos(torch.full((6, 1, 28, 28), v), np.random.default_rng(0)) for v in (0.0, 1.0)
    )
    torch.testing.assert_close(full, 1 - blank)
    assert blank.std() > 0.05


def test_font_digits_can_be_told_apart():
    """A linear model learns them, and not with shuffled labels: the labels belong to the images."""
    from sklearn.linear_model import LogisticRegression

    x, y = draw_font_digits(1500, np.random.default_rng(0))
    grey = x.mean(1).flatten(1)
    shade = (grey - grey.median(1, keepdim=True).values).abs().numpy()
    right, wrong = (
        LogisticRegression(max_iter=100)
        .fit(shade[:1200], labels[:1200])
        .score(shade[1200:], labels[1200:])
        for labels in (y.numpy(), np.random.default_rng(1).permutation(y.numpy()))
    )
    assert right > 0.4 > 0.2 > wrong


def pictures(folder, labels, side, seed) -> None:
    """A folder of grey png files, one subfolder for each class."""
    from PIL import Image

    rng = np.random.default_rng(seed)
    for label in labels:
        (folder / label).mkdir(parents=True)
        for at in range(6):
            Image.fromarray(rng.integers(0, 256, (side, side), dtype=np.uint8)).save(
                folder / label / f"{at}.png"
            )


def test_own_folders_are_domains(tmp_path):
    """One client for each hospital, with its own pictures alone; the same classes everywhere, or a
    refusal."""
    for seed, place in enumerate(("acrima", "drishti", "refuge")):
        pictures(tmp_path / place, ("glaucoma", "normal"), 12 + 4 * seed, seed)
    data = load_dataset("domain_folder", root=tmp_path, size=16, keys=Keys(0))
    assert (
        data.domains == ("acrima", "drishti", "refuge")
        and data.shape == (3, 16, 16)
        and data.classes == 2
    )
    assert torch.bincount(torch.cat([data.domain, data.test_domain])).tolist() == [12, 12, 12]
    shards = make_shards(data, Partition(name="domains", heldout=0), Keys(0))
    assert [len(s.train) for s in shards] == [int((data.domain == k).sum()) for k in range(3)]
    for k, shard in enumerate(shards):
        assert torch.equal(shard.train.x, data.train.x[data.domain == k])
    with pytest.raises(ValueError, match="differ in size"):
        load_dataset("domain_folder", root=tmp_path, keys=Keys(0))
    pictures(tmp_path / "rim", ("glaucoma", "other"), 12, 9)
    with pytest.raises(ValueError, match="rim has glaucoma, other"):
        load_dataset("domain_folder", root=tmp_path, size=16, keys=Keys(0))
    with pytest.raises(ValueError, match="one subfolder for each domain"):
        load_dataset("domain_folder", root=tmp_path / "nowhere", keys=Keys(0))


def test_an_npz_may_say_where_its_records_are_from(tmp_path):
    """With and without a test split of its own; every record keeps its place."""
    rng = np.random.default_rng(0)
    x = rng.integers(0, 256, (30, 8, 8), dtype=np.uint8)
    y = np.arange(30) % 3
    places = np.array(["north", "south"])[np.arange(30) % 2]
    np.savez(tmp_path / "own.npz", x=x, y=y, domain=places)
    data = load_dataset("npz", root=tmp_path / "own.npz", keys=Keys(0))
    assert data.domains == ("north", "south") and len(data.test) == 6
    of = {images.tobytes(): place for images, place in zip(x, places)}
    for records, domain in ((data.train, data.domain), (data.test, data.test_domain)):
        kept = (records.x[:, 0] * 255).round().to(torch.uint8).numpy()
        assert [of[image.tobytes()] for image in kept] == [data.domains[k] for k in domain]
    np.savez(
        tmp_path / "split.npz",
        x=x,
        y=y,
        domain=np.arange(30) % 2,
        x_test=x[:9],
        y_test=y[:9],
        domain_test=np.ones(9, int),
    )
    data = load_dataset("npz", root=tmp_path / "split.npz", keys=Keys(0))
    assert (
        data.domain.tolist() == [k % 2 for k in range(30)] and data.test_domain.tolist() == [1] * 9
    )
    for wrong, said in ((np.zeros(29, int), "got 29"), (np.zeros(30), "integers or text")):
        np.savez(
            tmp_path / "bad.npz",
            x=x,
            y=y,
            domain=wrong,
            x_test=x[:9],
            y_test=y[:9],
            domain_test=np.ones(9, int),
        )
        with pytest.raises(ValueError, match=said):
            load_dataset("npz", root=tmp_path / "bad.npz", keys=Keys(0))
