"""Tests of ``privdd.runtime.run_folder``."""

from __future__ import annotations

import json
import logging
import shutil
from pathlib import Path

import pytest
import safetensors.torch
import torch

from privdd.cli.run import run_audit, run_training
from privdd.core.validation import BadConfig
from privdd.runtime.files import DamagedRun
from privdd.runtime.run_folder import (
    RunFolder,
    library_versions,
    read_tensors,
    same_tensors,
    write_tensors,
)
from tests.federations import tiny_config

# Tensors of a run folder: the same values in the same order, and refusals in one line.


STATE = {"z": torch.arange(6.0).reshape(2, 3).t(), "a": torch.tensor([7]), "m": torch.zeros(0)}


def test_tensors_come_back_in_their_order(tmp_path: Path) -> None:
    """Sums and noise run over a state in its order, and safetensors alone sorts names."""
    write_tensors(tmp_path / "x.safetensors", STATE)
    back = read_tensors(tmp_path / "x.safetensors")
    assert [*back] == ["z", "a", "m"] and same_tensors(back, STATE)
    assert not same_tensors(back, {**STATE, "a": torch.tensor([8])}) and not same_tensors(
        back, {"z": STATE["z"]}
    )


def test_files_of_other_programs_are_read(tmp_path: Path) -> None:
    safetensors.torch.save_file({"b": torch.ones(2)}, tmp_path / "x.safetensors")
    assert same_tensors(read_tensors(tmp_path / "x.safetensors"), {"b": torch.ones(2)})


@pytest.mark.parametrize(
    "data", [b"", b"no", (2**40).to_bytes(8, "little") + b"{}", b"\x10" + b"\0" * 7 + b"{" * 16]
)
def test_damage_is_one_line_that_names_the_file(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "x.safetensors").write_bytes(data)
    with pytest.raises(DamagedRun, match=r"x\.safetensors: not readable as safetensors") as caught:
        read_tensors(tmp_path / "x.safetensors")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("told", "read"), [("null", True), ('{"order": "%s"}' % ("[" * 100_000), False)]
)
def test_what_a_strangers_file_says_of_its_order_breaks_nothing(
    tmp_path: Path, told: str, read: bool
) -> None:
    header = f'{{"__metadata__": {told}}}'.encode()
    (tmp_path / "x.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)
    if read:
        assert read_tensors(tmp_path / "x.safetensors") == {}
        return
    with pytest.raises(DamagedRun, match=r"x\.safetensors: not readable as safetensors"):
        read_tensors(tmp_path / "x.safetensors")


def test_a_file_above_the_limit_is_not_read(tmp_path: Path) -> None:
    write_tensors(tmp_path / "x.safetensors", STATE)
    with pytest.raises(DamagedRun, match="at most 16 are read"):
        read_tensors(tmp_path / "x.safetensors", limit=16)


@pytest.mark.parametrize("name", ["..", "a/b", "a\\b", "", "a\0"])
def test_no_name_leaves_the_folder(tmp_path: Path, name: str) -> None:
    with pytest.raises(DamagedRun, match="plain file name"):
        RunFolder(tmp_path).evidence_file(name, "lira")


# A stopped run goes on with the torch and the numpy that it was begun with, and with no other.


AUDIT = (
    "attack=lira",
    "audit.records=12",
    "audit.worlds=3",
    *(
        f"audit.waive.{name}=small"
        for name in ("update", "global_model", "labels", "counts", "statistics", "prototypes")
    ),
)


@pytest.fixture(scope="module")
def audited(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished audit."""
    folder = tmp_path_factory.mktemp("audited") / "run"
    run_audit(
        tiny_config("fedproto", *AUDIT, "model=mlp", "model.width=8", command="audit"), folder, []
    )
    return folder


def begun_with(whole: Path, place: Path, *gone: str, **other: str) -> Path:
    """A copy without some of its files that says it was computed with something else."""
    copy = Path(shutil.copytree(whole, place / "run"))
    for name in gone:
        (copy / name).unlink()
    file = copy / "state" / "computed_with.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | other))
    return copy


def go_on(folder: Path) -> int:
    return run_audit(
        tiny_config("fedproto", *AUDIT, "model=mlp", "model.width=8", command="audit"), folder, []
    )


@pytest.mark.nightly(cases=["torch"])
@pytest.mark.parametrize("name", ["torch", "numpy"])
def test_an_audit_half_done_with_another_version_is_refused(
    name: str, audited: Path, tmp_path: Path
) -> None:
    folder = begun_with(audited, tmp_path, "findings.json", **{name: "1.0.0"})
    before = (folder / "state" / "computed_with.json").read_bytes()
    with pytest.raises(
        BadConfig,
        match=rf"was begun with {name} 1\.0\.0, and .* would give other bits; install {name} "
        r"1\.0\.0",
    ):
        go_on(folder)
    assert (
        folder / "state" / "computed_with.json"
    ).read_bytes() == before  # asked again, it refuses again


def test_a_finished_run_may_be_attacked_again_with_another_version(
    audited: Path, tmp_path: Path
) -> None:
    folder = begun_with(audited, tmp_path, torch="1.0.0")
    assert go_on(folder) == 0
    assert json.loads((folder / "state" / "computed_with.json").read_text()) == library_versions()


def test_a_trained_federation_may_be_audited_with_another_version(
    audited: Path, tmp_path: Path
) -> None:
    folder = begun_with(audited, tmp_path, "findings.json", torch="1.0.0")
    shutil.rmtree(folder / "worlds")
    assert go_on(folder) == 0


def test_rounds_are_not_added_with_another_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopped between its rounds: what the first was computed with is kept beside it."""
    from privdd.federated import trainer

    config = tiny_config("fedavg", "model=mlp")
    step = trainer.run_round
    monkeypatch.setattr(trainer, "CHECKPOINT_EVERY", 0.0)
    stopped = iter([step])
    monkeypatch.setattr(trainer, "run_round", lambda *args: next(stopped)(*args))
    with pytest.raises(StopIteration):
        run_training(config, tmp_path / "half" / "run", [])
    monkeypatch.setattr(trainer, "run_round", step)
    folder = begun_with(tmp_path / "half" / "run", tmp_path, torch="1.0.0")
    with pytest.raises(BadConfig, match=r"was begun with torch 1\.0\.0"):
        run_training(config, folder, [])
    assert run_training(config, tmp_path / "half" / "run", []) == 0


def test_another_processor_is_said(
    audited: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = begun_with(audited, tmp_path, "findings.json", processor="abacus")
    with caplog.at_level(logging.WARNING, "privdd"):
        assert go_on(folder) == 0
    assert [r.getMessage() for r in caplog.records if "abacus" in r.getMessage()] == [
        f"begun on another processor (abacus, here {library_versions()['processor']}): "
        "what follows may round otherwise"
    ]


@pytest.mark.parametrize("text", ["[]", "{", '{"torch": 7}'])
def test_a_damaged_note_is_named(text: str, audited: Path, tmp_path: Path) -> None:
    folder = begun_with(audited, tmp_path, "findings.json")
    (folder / "state" / "computed_with.json").write_text(text)
    with pytest.raises(DamagedRun, match=r"computed_with\.json: not"):
        go_on(folder)
