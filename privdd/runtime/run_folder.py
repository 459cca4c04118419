"""The run folder: safetensors and JSON, written atomically, and checked when read."""

from __future__ import annotations

import json
import math
import os
import stat
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import safetensors.torch
import torch
from torch import Tensor

from privdd.core.types import State

LARGEST_JSON = 512 * 2**20  # bytes of one file: a ledger of about a million rows
LARGEST_TENSORS = 16 * 2**30
LARGEST_HEADER = 16 * 2**20  # bytes of names and shapes at the start of a safetensors file


class DamagedRun(ValueError):
    """A run folder or file that is missing, unreadable, or not of the format that it should be."""


def read_bytes(path: Path, limit: int) -> bytes:
    """A plain file of at most ``limit`` bytes.

    Raises FileNotFoundError, and DamagedRun for a link, a pipe, a device or a folder, and for a larger file.
    """
    known = path.lstat()
    if not stat.S_ISREG(known.st_mode):
        raise DamagedRun(f"{path}: not a plain file")
    if known.st_size > limit:
        raise DamagedRun(f"{path}: {known.st_size} bytes, at most {limit} are read")
    return path.read_bytes()


def write_bytes(path: Path, data: bytes) -> None:
    """``write_parts`` of one part."""
    write_parts(path, [data])


def write_parts(path: Path, parts: Iterable[bytes]) -> None:
    """Write beside the target, flush to disk, then rename: a reader sees the old file or the new one.

    Raises OSError, naming the file, where the disk is full or the folder cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        _write(handle, Path(temporary), path, parts)
    except OSError as error:
        error.filename = str(path)  # otherwise it would be missing, or name the temporary file
        raise


def _write(handle: int, temporary: Path, path: Path, parts: Iterable[bytes]) -> None:
    try:
        with os.fdopen(handle, "wb") as file:
            file.writelines(parts)
            file.flush()
            os.fsync(file.fileno())
        temporary.chmod(0o644)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def jsonable(value: Any) -> Any:
    """Plain JSON data: infinities become "inf", NaN is refused, tensors and tuples become lists."""
    if value is None or type(value) in (str, int, bool):  # most values in a ledger
        return value
    if isinstance(value, Mapping):
        return {str(k): jsonable(v) for k, v in value.items()}
    if isinstance(value, Tensor):
        return jsonable(value.tolist())
    if isinstance(value, list | tuple | set | frozenset):
        return [jsonable(v) for v in value]
    if isinstance(value, bool | int | str) or value is None:
        return str(value) if isinstance(value, str) else value
    number = float(value)
    if math.isnan(number):
        raise ValueError("NaN cannot be written to JSON")
    return ("inf" if number > 0 else "-inf") if math.isinf(number) else number


def write_json(path: Path, value: Any, *, compact: bool = False) -> None:
    """Indented for readers; ``compact`` is ten times faster, for files that grow with rounds and clients."""
    write_bytes(path, (json.dumps(jsonable(value), indent=None if compact else 1, allow_nan=False) + "\n").encode())


def read_json(path: Path) -> Any:
    """A file in which every number is finite. Raises DamagedRun, one line that names it, for any other."""
    try:
        text = read_bytes(path, LARGEST_JSON).decode()
        return json.loads(text, parse_constant=_refuse, parse_float=_finite)
    except DamagedRun:
        raise
    except FileNotFoundError:
        raise DamagedRun(f"{path}: no such file") from None
    except (OSError, ValueError, RecursionError) as error:
        raise DamagedRun(f"{path}: not readable as JSON ({str(error)[:120]})") from None


def _refuse(text: str) -> NoReturn:
    raise ValueError(f'{text} is not allowed (infinity is the string "inf")')


def _finite(text: str) -> float:
    value = float(text)
    return value if math.isfinite(value) else _refuse(text)


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Contiguous copies on the CPU, as safetensors.

    The names' order is kept beside them: sums and noise run over a state in its order, so a resumed
    run gives the same bits only if the order comes back.
    """
    plain = {name: t.detach().cpu().contiguous().clone() for name, t in tensors.items()}
    write_bytes(path, safetensors.torch.save(plain, {"order": json.dumps(list(plain))}))


def read_tensors(path: Path, limit: int = LARGEST_TENSORS) -> State:
    """Raises DamagedRun, naming the file, where it is missing, larger than ``limit`` bytes or not safetensors."""
    try:
        data = read_bytes(path, limit)
        if int.from_bytes(data[:8], "little") > LARGEST_HEADER:
            raise ValueError(f"a header of more than {LARGEST_HEADER >> 20} MiB")
        tensors = safetensors.torch.load(data)
        order = _order(data)
        return {name: tensors[name] for name in order} if set(order) == set(tensors) else tensors
    except DamagedRun:
        raise
    except FileNotFoundError:
        raise DamagedRun(f"{path}: no such file") from None
    except Exception as error:  # safetensors raises its own and built-in errors
        raise DamagedRun(f"{path}: not readable as safetensors ({str(error)[:120]})") from None


def _order(data: bytes) -> list[str]:
    """The names in the order in which they were written; empty for files that privdd did not write."""
    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    names = json.loads(header.get("__metadata__", {}).get("order", "[]"))
    return names if isinstance(names, list) and all(isinstance(name, str) for name in names) else []


def safe_name(name: str) -> str:
    """``name`` if it stays inside its folder. Raises DamagedRun otherwise."""
    if not name or name in {".", ".."} or any(c in name for c in "/\\\0"):
        raise DamagedRun(f"{name!r} is not a plain file name")
    return name


@dataclass(frozen=True)
class RunFolder:
    """One run on disk."""

    path: Path

    def artifact(self, round: int, client: int) -> Path:
        return self.path / "artifacts" / f"round_{round:03d}" / f"client_{client}.safetensors"

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
