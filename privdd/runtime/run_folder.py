"""The run folder: where its parts lie, and its tensors, as safetensors."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import safetensors.torch
import torch
from torch import Tensor

from privdd.core.types import State
from privdd.runtime.files import DamagedRun, read_bytes, safe_name, write_bytes

LARGEST_TENSORS = 16 * 2**30
LARGEST_HEADER = 16 * 2**20  # bytes of names and shapes at the start of a safetensors file


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Contiguous copies on the CPU, as safetensors.

    The names' order is kept beside them: sums and noise run over a state in its order, so a resumed
    run gives the same bits only if the order comes back.
    """
    plain = {name: t.detach().cpu().contiguous().clone() for name, t in tensors.items()}
    write_bytes(path, safetensors.torch.save(plain, {"order": json.dumps(list(plain))}))


def read_tensors(path: Path, limit: int = LARGEST_TENSORS) -> State:
    """Raises DamagedRun, naming the file, where it is missing, larger than ``limit`` bytes or not safetensors."""
    tensors, told = read_with_header(path, limit)
    try:
        order = _order(told)
    except (ValueError, RecursionError) as error:
        raise DamagedRun(f"{path}: not readable as safetensors ({str(error)[:120]})") from None
    return {name: tensors[name] for name in order} if set(order) == set(tensors) else tensors


def read_with_header(path: Path, limit: int = LARGEST_TENSORS) -> tuple[State, dict[str, str]]:
    """The tensors in no order, and what was written beside them. Raises DamagedRun as ``read_tensors`` does."""
    try:
        data = read_bytes(path, limit)
        size = int.from_bytes(data[:8], "little")
        if size > LARGEST_HEADER:
            raise ValueError(f"a header of more than {LARGEST_HEADER >> 20} MiB")
        tensors = safetensors.torch.load(data)
        return tensors, json.loads(data[8 : 8 + size]).get("__metadata__") or {}
    except DamagedRun:
        raise
    except FileNotFoundError:
        raise DamagedRun(f"{path}: no such file") from None
    except Exception as error:  # safetensors raises its own and built-in errors
        raise DamagedRun(f"{path}: not readable as safetensors ({str(error)[:120]})") from None


def _order(told: Mapping[str, str]) -> list[str]:
    """The names in the order in which they were written; empty for files that privdd did not write."""
    names = json.loads(told.get("order", "[]"))
    return names if isinstance(names, list) and all(isinstance(name, str) for name in names) else []


@dataclass(frozen=True)
class RunFolder:
    """One run on disk."""

    path: Path

    def artifact(self, round: int, client: int) -> Path:
        """What a client sent; a negative number: the sum over the clients of a round."""
        name = f"client_{client}" if client >= 0 else "sum"
        return self.path / "artifacts" / f"round_{round:03d}" / f"{name}.safetensors"

    @property
    def checkpoint(self) -> Path:
        return self.path / "state" / "checkpoint.json"

    def evidence(self, surface: str, attack: str) -> Path:
        return self.path / "evidence" / f"{safe_name(surface)}.{safe_name(attack)}.safetensors"

    @property
    def findings(self) -> Path:
        return self.path / "findings.json"

    @property
    def half_audited(self) -> bool:
        """Whether some shadow models are there that no finding has come of yet."""
        return (self.path / "worlds").is_dir() and not self.findings.exists()

    @property
    def ledger(self) -> Path:
        return self.path / "ledger.json"

    @property
    def manifest(self) -> Path:
        return self.path / "manifest.json"

    @property
    def config(self) -> Path:
        return self.path / "config.yaml"


def same_tensors(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> bool:
    """Equal names and bit-equal values."""
    return a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)
