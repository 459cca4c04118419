"""Paths that the papers' own data take, on made files in torchvision's layouts: every one trains a
round at full image size."""

from __future__ import annotations

import bz2
import pickle
from pathlib import Path

import numpy as np
import pytest
import scipy.io
from PIL import Image

from privdd.cli.build import build_experiment
from privdd.cli.compose import compose_config
from privdd.core.user_modules import import_torchvision
from privdd.federated.simulation import run_round, start_training
from privdd.runtime.engine import Engine

pytestmark = pytest.mark.nightly

EACH = 300  # records of a file


def images(count: int, channels: int, side: int, classes: int) -> tuple[np.ndarray, np.ndarray]:
    """A pattern of each class under noise, (n, c, h, w) bytes, and labels (n,)."""
    rng = np.random.default_rng(0)
    y = np.arange(count) % classes
    base = rng.integers(0, 256, (classes, channels, side, side))[y]
    return np.clip(0.6 * base + rng.integers(0, 100, base.shape), 0, 255).astype(np.uint8), y


def write_cifar(root: Path) -> None:
    ten = root / "cifar-10-batches-py"
    hundred = root / "cifar-100-python"
    x, y = images(EACH, 3, 32, 10)
    many, fine = images(3 * EACH, 3, 32, 100)
    parts = {
        ten / name: {"data": x.reshape(EACH, -1), "labels": y.tolist()}
        for name in (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch")
    }
    parts |= {
        hundred / name: {"data": many.reshape(3 * EACH, -1), "fine_labels": fine.tolist()}
        for name in ("train", "test")
    }
    names = [str(at) for at in range(100)]
    parts |= {
        ten / "batches.meta": {"label_names": names[:10]},
        hundred / "meta": {"fine_label_names": names},
    }
    for file, part in parts.items():
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(pickle.dumps(part))


def write_digits(root: Path) -> None:
    x, y = images(EACH, 3, 32, 10)
    for name in ("train_32x32.mat", "test_32x32.mat"):
        scipy.io.savemat(
            root / name, {"X": x.transpose(2, 3, 1, 0), "y": np.where(y == 0, 10, y)[:, None]}
        )
    x, y = images(EACH, 1, 16, 10)
    lines = [
        f"{label + 1} " + " ".join(f"{at + 1}:{v / 127.5 - 1:.4f}" for at, v in enumerate(row))
        for row, label in zip(x.reshape(EACH, -1), y, strict=True)
    ]
    for name in ("usps.bz2", "usps.t.bz2"):
        (root / name).write_bytes(bz2.compress("\n".join(lines).encode()))


def write_folders(root: Path) -> None:
    rng = np.random.default_rng(1)
    for folder in (
        root / "retina" / domain / kind
        for domain in ("a", "b", "c", "d")
        for kind in ("glaucoma", "normal")
    ):
        folder.mkdir(parents=True)
        for at in range(20):
            Image.fromarray(rng.integers(0, 255, (120, 110, 3), dtype=np.uint8)).save(
                folder / f"{at}.png"
            )


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("files")
    for write in (write_cifar, write_digits, write_folders):
        write(made)
    return made


TINY = ["preset=smoke", "data.limit=60", "data.test_limit=30"]
THREE = "partition.clients=3"
SHORT = ["algo.matching.iterations=2", "algo.server.epochs=1"]
VIRTUAL = [f"algo.virtual.{name}.iterations=2" for name in ("warmup", "refine")] + [
    "algo.global_iterations=2",
    "paper.terms.rounds=1",
]


@pytest.mark.parametrize(
    ("overrides", "shape", "classes", "clients", "note"),
    [
        (["algo=feddm", "data=cifar10", THREE, *SHORT], (3, 32, 32), 10, 3, "1500 + 300"),
        (
            ["algo=fedrd", "data=cifar100", THREE, "algo.projection_epochs=1", *SHORT],
            (3, 32, 32),
            100,
            3,
            "900 + 900",
        ),
        (
            ["algo=fedfed", "data=svhn", THREE, "model=resnet18_fedfed", "algo.distill_rounds=1"],
            (3, 32, 32),
            10,
            3,
            "300 + 300",
        ),
        (
            ["experiment=fedlgd_table2", "data.source=cifar10", "data.limit=570", *VIRTUAL],
            (3, 28, 28),
            10,
            57,
            "",
        ),
        (
            ["experiment=fedlgd_table3", "data=domain_folder", "data.size=96", *VIRTUAL],
            (3, 96, 96),
            2,
            4,
            "",
        ),
        (["experiment=fedlgd_table1", *VIRTUAL], (3, 28, 28), 10, 5, ""),
    ],
    ids=[
        "FedDM, CIFAR-10",
        "FedRD, CIFAR-100",
        "FedFed, SVHN, ResNet-18",
        "FedLGD, 19 corruptions",
        "FedLGD, folders",
        "FedLGD, digits",
    ],
)
def test_a_round_is_trained_on_files_of_the_papers_data(
    overrides: list[str],
    shape: tuple[int, ...],
    classes: int,
    clients: int,
    note: str,
    root: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for module in ("utils", "cifar", "svhn"):  # made files have other checksums
        monkeypatch.setattr(
            import_torchvision(f"torchvision.datasets.{module}"),
            "check_integrity",
            lambda path, md5=None: Path(path).is_file(),
        )
    where = root / "retina" if "data=domain_folder" in overrides else root
    typed = {one.split("=")[0] for one in overrides}
    tiny = [one for one in TINY if one.split("=")[0] not in typed]
    experiment = build_experiment(
        compose_config("train", [*tiny, *overrides, f"data.root={where}", "seed=0"])
    )
    data = experiment.dataset
    plan = experiment.plan
    assert (tuple(data.shape), data.classes, len(experiment.shards)) == (
        shape,
        classes,
        clients,
    ) and note in data.note
    progress = start_training(plan, experiment.new_ledger())
    progress, inbox, _ = run_round(plan, progress, experiment.shards, Engine())
    assert progress.round == 1 and inbox and progress.diverged is None
