"""Plain files and JSON of a run folder, written atomically, and checked when read. Quick to import."""

from __future__ import annotations

import json
import math
import os
import re
import secrets
import stat
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

LARGEST_JSON = 512 * 2**20  # bytes of one file: a ledger of about a million rows


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


def write_bytes(path: Path, data: bytes, *, private: bool = False, durable: bool = True) -> None:
    """``write_parts`` of one part."""
    write_parts(path, [data], private=private, durable=durable)


def write_parts(path: Path, parts: Iterable[bytes], *, private: bool = False, durable: bool = True) -> None:
    """Write beside the target, flush to disk, then rename: a reader sees the old file or the new one.

    private: for the owner alone from the first byte, else as the umask has it. durable: file and name are on the disk
    afterwards, whatever happens. Raises OSError, naming the file, where the disk is full or the folder cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.parent / f".{path.name}.{secrets.token_hex(4)}"
        handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600 if private else 0o666)
        _write(handle, temporary, path, parts, durable)
    except OSError as error:
        error.filename = str(path)  # otherwise it would be missing, or name the temporary file
        raise


def _write(handle: int, temporary: Path, path: Path, parts: Iterable[bytes], durable: bool) -> None:
    try:
        with os.fdopen(handle, "wb") as file:
            file.writelines(parts)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    if durable:
        _sync_folder(path.parent)


def _sync_folder(folder: Path) -> None:
    """Put the names in a folder on the disk, where its file system can."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with suppress(OSError):  # some network file systems refuse it
            os.fsync(handle)
    finally:
        os.close(handle)


HALF_WRITTEN = re.compile(r"\..+\.[a-z0-9_]+\.[a-z0-9_]{6,8}")  # as ``write_parts`` calls what it has not finished


def is_half_written(name: str) -> bool:
    """Whether a file of this name, with "/" between folders, was left by a process that was killed while it wrote."""
    return HALF_WRITTEN.fullmatch(name.rpartition("/")[2]) is not None


def jsonable(value: Any) -> Any:
    """Plain JSON data: infinities become "inf", NaN is refused, tensors and tuples become lists."""
    if value is None or type(value) in (str, int, bool):  # most values in a ledger
        return value
    if isinstance(value, Mapping):
        return {str(k): jsonable(v) for k, v in value.items()}
    if hasattr(value, "tolist"):  # a tensor or an array
        return jsonable(value.tolist())
    if isinstance(value, list | tuple | set | frozenset):
        return [jsonable(v) for v in value]
    if isinstance(value, bool | int | str) or value is None:
        return str(value) if isinstance(value, str) else value
    number = float(value)
    if math.isnan(number):
        raise ValueError("NaN cannot be written to JSON")
    return ("inf" if number > 0 else "-inf") if math.isinf(number) else number


def write_json(path: Path, value: Any, *, compact: bool = False, private: bool = False) -> None:
    """Indented for readers; ``compact`` is ten times faster, for files that grow with rounds and clients.

    private: as of ``write_parts``.
    """
    text = json.dumps(jsonable(value), indent=None if compact else 1, allow_nan=False) + "\n"
    write_bytes(path, text.encode(), private=private)


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


def safe_name(name: str) -> str:
    """``name`` if it stays inside its folder. Raises DamagedRun otherwise."""
    if not name or name in {".", ".."} or any(c in name for c in "/\\\0"):
        raise DamagedRun(f"{name!r} is not a plain file name")
    return name


def printable(text: str) -> str:
    """One line for a terminal: whatever could break it or set the terminal's title, colours or direction is a question mark."""
    return "".join(c if c.isprintable() else "?" for c in text)
