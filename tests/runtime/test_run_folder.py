"""Tensors of a run folder: the same values in the same order, and refusals in one line."""

from __future__ import annotations

from pathlib import Path

import pytest
import safetensors.torch
import torch

from privdd.runtime.files import DamagedRun
from privdd.runtime.run_folder import RunFolder, read_tensors, same_tensors, write_tensors

STATE = {"z": torch.arange(6.0).reshape(2, 3).t(), "a": torch.tensor([7]), "m": torch.zeros(0)}


def test_tensors_come_back_in_their_order(tmp_path: Path) -> None:
    """Sums and noise run over a state in its order, and safetensors alone sorts names."""
    write_tensors(tmp_path / "x.safetensors", STATE)
    back = read_tensors(tmp_path / "x.safetensors")
    assert [*back] == ["z", "a", "m"] and same_tensors(back, STATE)
    assert not same_tensors(back, {**STATE, "a": torch.tensor([8])}) and not same_tensors(back, {"z": STATE["z"]})


def test_files_of_other_programs_are_read(tmp_path: Path) -> None:
    safetensors.torch.save_file({"b": torch.ones(2)}, tmp_path / "x.safetensors")
    assert same_tensors(read_tensors(tmp_path / "x.safetensors"), {"b": torch.ones(2)})


@pytest.mark.parametrize("data", [b"", b"no", (2**40).to_bytes(8, "little") + b"{}", b"\x10" + b"\0" * 7 + b"{" * 16])
def test_damage_is_one_line_that_names_the_file(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "x.safetensors").write_bytes(data)
    with pytest.raises(DamagedRun, match=r"x\.safetensors: not readable as safetensors") as caught:
        read_tensors(tmp_path / "x.safetensors")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("told", "read"), [("null", True), ('{"order": "%s"}' % ("[" * 100_000), False)])
def test_what_a_strangers_file_says_of_its_order_breaks_nothing(tmp_path: Path, told: str, read: bool) -> None:
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
