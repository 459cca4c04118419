"""Damaged, foreign and hostile files: reading works, or ends in one line that names the file."""

from __future__ import annotations

import io
import json
import pickle
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from attacks.external_scores import load_scores as load_scores
from privdd.cli.build import build_experiment
from privdd.cli.compose import compose_config
from privdd.cli.errors import explain_error
from privdd.cli.run import run_training
from privdd.cli.stored_config import load_stored_config
from privdd.core.rng import Keys
from privdd.data.readers import load_npz
from privdd.federated import checkpoint
from privdd.federated.experiment import Experiment
from privdd.privacy.ledger import Ledger
from privdd.reporting.schema import load_findings as load_findings
from privdd.runtime.files import DamagedRun, read_json, safe_name
from privdd.runtime.run_folder import RunFolder, read_tensors, write_tensors

TINY = [
    "preset=smoke",
    "partition.clients=3",
    "data.limit=120",
    "model=mlp",
    "model.width=8",
    "algo.rounds=2",
    "algo.local_epochs=1",
    "algo=scaffold",
]
HOSTILE = "<script>alert(1)</script>"
EACH = 25  # damaged copies of every kind of file


class Bomb:
    """Unpickled, it leaves a mark."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return Path.touch, (self.mark,)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Experiment, Path]:
    path = tmp_path_factory.mktemp("whole") / "run"
    config = compose_config("train", TINY)
    run_training(config, path, [])
    return build_experiment(config), path


FINDINGS = {
    "schema": 1,
    "run": {
        "algo": HOSTILE,
        "data": "digits",
        "preset": "smoke",
        "seed": 0,
        "version": "0",
        "clients": 3,
        "rounds": 1,
        "seconds": {"train": 1.0, "worlds": 1.0, "attacks": 1.0, "total": 3.0},
    },
    "utility": {
        "accuracy": 0.5,
        "accuracy_kind": "global",
        "accuracy_by_round": [0.5],
        "uploaded_bytes_per_client": 1,
        "downloaded_bytes_per_client": 1,
    },
    "privacy": {
        "delta": 1e-5,
        "unit": "record",
        "relation": "zero_out",
        "epsilon": {"pld": "inf", "rdp": "inf"},
        "claims": [],
    },
    "surfaces": [],
    "findings": [],
    "verdict": "unprotected",
}


def damaged(data: bytes, rng: random.Random, mark: Path) -> Iterator[bytes]:
    """EACH variants: cut short, bits flipped, bytes inserted, and other kinds of file."""
    yield from (
        b"",
        b"\0" * 64,
        pickle.dumps(Bomb(mark)),
        b"PK\x03\x04" + data[:50],
        HOSTILE.encode(),
        b"null",
        b"NaN",
        b"[" * 100_000,
        b'{"schema": 1}',
        b'{"schema": 99}',
        b"\xff\xfe" + data,
    )
    for number in range(EACH - 11):
        copy = bytearray(data)
        if number % 3 == 0:
            yield bytes(copy[: rng.randrange(len(copy))])
            continue
        for _ in range(1 + 4 * (number % 3 == 2)):
            at = rng.randrange(min(len(copy), 600) if number % 2 else len(copy))
            copy[at] ^= 1 << rng.randrange(8)
        yield bytes(copy)


def npz_bytes(**arrays: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    return buffer.getvalue()


def readers(
    experiment: Experiment, run: Path, place: Path
) -> dict[str, tuple[Path, Callable[[], object]]]:
    """kind -> (the whole file to damage, the function that reads it)."""
    folder = RunFolder(run)
    (place / "findings.json").write_text(json.dumps(FINDINGS))
    (place / "data.npz").write_bytes(npz_bytes(x=np.zeros((9, 8, 8), np.uint8), y=np.arange(9)))
    (place / "scores.npz").write_bytes(
        npz_bytes(scores=np.arange(9.0), member=np.arange(9) % 2 == 0)
    )
    state = next((run / "state").glob("round_*"))

    def resume() -> object:
        return checkpoint.load_checkpoint(folder, experiment.plan)

    return {
        "head": (folder.checkpoint_file, resume),
        "server": (state / "server.safetensors", resume),
        "memories": (state / "memories.safetensors", resume),
        "state ledger": (state / "ledger.json", resume),
        "snapshot": (next((run / "state").glob("victim_*")), resume),
        "ledger": (folder.ledger_file, lambda: Ledger.from_json(read_json(folder.ledger_file))),
        "config": (run / "config.yaml", lambda: load_stored_config(run)),
        "findings": (place / "findings.json", lambda: load_findings(place / "findings.json")),
        "npz": (place / "data.npz", lambda: load_npz("npz", place / "data.npz", Keys(0))),
        "scores": (place / "scores.npz", lambda: load_scores(place / "scores.npz")),
    }


@pytest.mark.nightly(but=["ledger", "findings", "npz", "scores"])
@pytest.mark.parametrize(
    "kind",
    [
        "head",
        "server",
        "memories",
        "state ledger",
        "snapshot",
        "ledger",
        "config",
        "findings",
        "npz",
        "scores",
    ],
)
def test_damaged_files(kind: str, run: tuple[Experiment, Path], tmp_path: Path) -> None:
    experiment, whole = run
    copy = tmp_path / "run"
    mark = tmp_path / "mark"
    shutil.copytree(whole, copy)
    file, read = readers(experiment, copy, tmp_path)[kind]
    data = file.read_bytes()
    read()
    refused = 0
    for number, bad in enumerate(damaged(data, random.Random(kind), mark)):
        file.write_bytes(bad)
        try:
            read()
        except Exception as error:
            line = explain_error(error)
            assert line and "\n" not in line and len(line) < 700, f"variant {number}: {error!r}"
            refused += 1
        if not file.parent.is_dir() or kind in (
            "head",
            "server",
            "memories",
            "state ledger",
            "snapshot",
        ):
            shutil.rmtree(copy)  # a load that works may drop what the damaged head does not name
            shutil.copytree(whole, copy)
    assert refused >= 11, "damaged files were read as if they were whole"
    assert not mark.exists(), "a pickle was run"


def test_a_checkpoint_is_read_whole_or_not_at_all(
    run: tuple[Experiment, Path], tmp_path: Path
) -> None:
    """One flipped bit in the middle of the numbers is found too."""
    experiment, whole = run
    for name in ("server.safetensors", "memories.safetensors"):
        copy = tmp_path / name
        shutil.copytree(whole, copy)
        file = next((copy / "state").glob("round_*")) / name
        data = bytearray(file.read_bytes())
        data[-5] ^= 1
        file.write_bytes(bytes(data))
        with pytest.raises(DamagedRun, match=name):
            checkpoint.load_checkpoint(RunFolder(copy), experiment.plan)


@pytest.mark.parametrize("name", ["..", "", ".", "a/b", "..\\x", "/etc/passwd", "a\0b"])
def test_names_stay_inside_their_folder(
    name: str, run: tuple[Experiment, Path], tmp_path: Path
) -> None:
    with pytest.raises(DamagedRun, match="plain file name"):
        safe_name(name)
    copy = tmp_path / "run"
    shutil.copytree(run[1], copy)
    head = json.loads((copy / "state" / "checkpoint.json").read_text())
    (copy / "state" / "checkpoint.json").write_text(json.dumps({**head, "state": name}))
    with pytest.raises(DamagedRun):
        checkpoint.load_checkpoint(RunFolder(copy), run[0].plan)


def test_tensors_come_back_in_order_and_bit_by_bit(tmp_path: Path) -> None:
    state = {
        "z": torch.randn(3, generator=Keys(0).torch()),
        "a": torch.ones(2, 2).t(),
        "m": torch.arange(3),
        "b": torch.tensor(2.0),
    }
    write_tensors(tmp_path / "x.safetensors", state)
    found = read_tensors(tmp_path / "x.safetensors")
    assert list(found) == list(state) and all(torch.equal(found[k], state[k]) for k in state)


def test_tensors_of_others_are_read(tmp_path: Path) -> None:
    import safetensors.torch

    safetensors.torch.save_file(
        {"x": torch.ones(2)}, tmp_path / "x.safetensors", {"order": "no json", "by": "others"}
    )
    with pytest.raises(DamagedRun):
        read_tensors(tmp_path / "x.safetensors")
    safetensors.torch.save_file({"x": torch.ones(2)}, tmp_path / "y.safetensors", {"by": "others"})
    assert torch.equal(read_tensors(tmp_path / "y.safetensors")["x"], torch.ones(2))
