"""Files of a run folder: plain files and JSON, written atomically and checked when read. Quick to
import.

A folder that comes from a stranger may hold plain files and folders only, so that nothing leads out
of it. One process at a time writes a run folder: the lock belongs to an open file, so the operating
system lets go of it when its process ends, however that happens, and the next run takes over what a
killed one left.
"""

from __future__ import annotations

import errno
import fcntl
import json
import logging
import math
import os
import re
import secrets
import socket
import stat
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final, NoReturn

from privdd import __version__
from privdd.core.validation import BadConfig

SCHEMA: Final = 1  # of every file that privdd stores
LARGEST_JSON = 512 * 2**20  # bytes of one file: a ledger of about a million rows
# a name that nobody else gives, as ``write_bytes`` calls what it has not finished
HALF_WRITTEN_PREFIX = ".privdd-partial."
HALF_WRITTEN = re.compile(r"\.privdd-partial\.\d+\.[0-9a-f]{16}")
LOCK_FILE = ".lock"
LOCK_TEXT = re.compile(r"process \d+ on [^\n]*")  # what a lock says of its owner
# of a file system that has none
NO_LOCKS = {errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOTSUP, errno.EINVAL}
LOG = logging.getLogger("privdd")
MOST_FILES = 2_000_000
IGNORE = ".gitignore"
PROJECT = "pyproject.toml"
LOOKED_AT = 10_000  # folders below a private one, at most


class DamagedRun(ValueError):
    """A run folder or file that is missing, unreadable, or not of the format that it should be."""


def check_schema(place: Path | str, stored: Mapping[str, Any]) -> None:
    """Refuse a file that another version of privdd wrote.

    Args:
        place: The file, for the message.
        stored: Its content; ``schema`` is its format, ``version`` who wrote it, where it says so.

    Raises:
        DamagedRun: One line that names both versions.
    """
    schema = stored.get("schema")
    if schema == SCHEMA and not isinstance(schema, bool):
        return
    run = stored.get("run")
    source = run if isinstance(run, Mapping) else stored
    if "version" in source:
        writer = f"privdd {source['version']}"
    else:
        writer = "another version of privdd"
    raise DamagedRun(
        f"{place}: written by {writer} in schema {schema!r}; privdd {__version__} reads "
        f"schema {SCHEMA}"
    )


def read_bytes(path: Path, limit: int) -> bytes:
    """A plain file of at most ``limit`` bytes.

    Raises FileNotFoundError, and DamagedRun for a link, a pipe, a device or a folder, and for a
    larger file."""
    status = path.lstat()
    if not stat.S_ISREG(status.st_mode):
        raise DamagedRun(f"{path}: not a plain file")
    if status.st_size > limit:
        raise DamagedRun(f"{path}: {status.st_size} bytes, at most {limit} are read")
    return path.read_bytes()


def write_bytes(
    path: Path, data: bytes | Iterable[bytes], *, private: bool = False, durable: bool = True
) -> None:
    """Write beside the target, flush to disk, then rename: a reader sees the old file or the new
    one.

    data: in one or several parts. private: for the owner alone from the first byte, else as the
    umask has it. durable: file and name are on the disk afterwards, whatever happens. Raises
    OSError, naming the file, where the disk is full or the folder cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.parent / f"{HALF_WRITTEN_PREFIX}{os.getpid()}.{secrets.token_hex(8)}"
        handle = os.open(
            temporary,
            os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC,
            0o600 if private else 0o666,
        )
        try:
            with os.fdopen(handle, "wb") as file:
                file.writelines([data] if isinstance(data, bytes) else data)
                if durable:
                    file.flush()
                    os.fsync(file.fileno())
            temporary.replace(path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        if durable:
            _sync_folder(path.parent)
    except OSError as error:
        error.filename = str(path)  # otherwise it would be missing, or name the temporary file
        raise


def _sync_folder(folder: Path) -> None:
    """Put the names in a folder on the disk, where its file system can."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with suppress(OSError):  # some network file systems refuse it
            os.fsync(handle)
    finally:
        os.close(handle)


def is_half_written(name: str) -> bool:
    """Whether a file of this name, with "/" between folders, was left by a process that was killed
    while it wrote."""
    return HALF_WRITTEN.fullmatch(name.rpartition("/")[2]) is not None


def to_plain_json(value: Any) -> Any:
    """Plain JSON data: infinities become "inf", NaN is refused, tensors and tuples become lists."""
    if value is None or type(value) in (str, int, bool):  # most values in a ledger
        return value
    if isinstance(value, Mapping):
        return {str(k): to_plain_json(v) for k, v in value.items()}
    if hasattr(value, "tolist"):  # a tensor or an array
        return to_plain_json(value.tolist())
    if isinstance(value, list | tuple | set | frozenset):
        return [to_plain_json(v) for v in value]
    if isinstance(value, bool | int | str) or value is None:
        return str(value) if isinstance(value, str) else value
    number = float(value)
    if math.isnan(number):
        raise ValueError("NaN cannot be written to JSON")
    if math.isinf(number):
        return "inf" if number > 0 else "-inf"
    return number


def write_json(path: Path, value: Any, *, compact: bool = False, private: bool = False) -> None:
    """Indented for readers; ``compact`` is ten times faster, for files that grow with rounds and
    clients.

    private: as of ``write_bytes``.
    """
    text = json.dumps(to_plain_json(value), indent=None if compact else 1, allow_nan=False) + "\n"
    write_bytes(path, text.encode(), private=private)


def read_json(path: Path) -> Any:
    """A file in which every number is finite. Raises DamagedRun, one line that names it, for any
    other."""
    try:
        text = read_bytes(path, LARGEST_JSON).decode()
        return json.loads(text, parse_constant=_refuse_constant, parse_float=_parse_finite)
    except DamagedRun:
        raise
    except FileNotFoundError:
        raise DamagedRun(f"{path}: no such file") from None
    except (OSError, ValueError, RecursionError) as error:
        raise DamagedRun(f"{path}: not readable as JSON ({str(error)[:120]})") from None


def read_json_object(path: Path, *, optional: bool = False) -> dict[str, Any]:
    """``read_json`` of an object; optional: an empty one where there is no file."""
    if optional and not path.is_file():
        return {}
    content = read_json(path)
    if not isinstance(content, dict):
        raise DamagedRun(f"{path}: an object is needed")
    return content


def _refuse_constant(text: str) -> NoReturn:
    raise ValueError(f'{text} is not allowed (infinity is the string "inf")')


def _parse_finite(text: str) -> float:
    value = float(text)
    if math.isfinite(value):
        return value
    return _refuse_constant(text)


def safe_name(name: str) -> str:
    """``name`` if it stays inside its folder. Raises DamagedRun otherwise."""
    if not name or name in {".", ".."} or any(c in name for c in "/\\\0"):
        raise DamagedRun(f"{name!r} is not a plain file name")
    return name


def printable(text: str) -> str:
    """One line for a terminal: whatever could break it or set the terminal's title, colours or
    direction is a question mark."""
    return "".join(c if c.isprintable() else "?" for c in text)


def check_plain_folder(path: Path) -> None:
    """Raises DamagedRun, one line, for a link, a pipe, a socket or a device anywhere below
    ``path``.

    A link would let a run folder read or replace files outside it. ``path`` itself may be a link:
    its name was typed."""
    for _ in list_plain_files(path):
        pass


def list_plain_files(path: Path) -> Iterator[str]:
    """The names of all files below ``path``, relative to it, with "/" between the parts, in no
    fixed order.

    Raises DamagedRun as ``check_plain_folder`` does, and for more than two million files.
    """
    waiting = [""]
    count = 0
    while waiting:
        folder_name = waiting.pop()
        with os.scandir(path / folder_name) as listing:
            entries = list(listing)
        for entry in entries:
            name = f"{folder_name}{entry.name}"
            count += 1
            if count > MOST_FILES:
                raise DamagedRun(f"{path}: more than {MOST_FILES} files")
            try:
                kind = entry.stat(follow_symlinks=False).st_mode
            except FileNotFoundError:  # another process has just replaced it
                continue
            if stat.S_ISDIR(kind):
                waiting.append(f"{name}/")
            elif stat.S_ISREG(kind):
                yield name
            else:
                if stat.S_ISLNK(kind):
                    what = "a link"
                else:
                    what = "neither a file nor a folder"
                raise DamagedRun(f"{path}: {name!r} is {what}; a run folder holds plain files only")


@contextmanager
def lock_folder(folder: Path) -> Iterator[None]:
    """Hold the folder, which is made where there is none. Raises BadConfig, naming the process that
    holds it, and for a lock that privdd did not write. On a file system without locks one line says
    so, and nothing is held."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / LOCK_FILE
    handle = _acquire_lock(file)
    try:
        os.ftruncate(handle, 0)
        os.pwrite(handle, f"process {os.getpid()} on {socket.gethostname()}".encode(), 0)
        yield
    finally:
        # while it is still held: whoever waits for this file sees that it is gone
        file.unlink(missing_ok=True)
        os.close(handle)


def _acquire_lock(file: Path) -> int:
    """A handle of the file that is there now, locked. Another process may remove it between opening
    and locking."""
    while True:
        handle = _open_lock(file)
        try:
            _lock_handle(handle, file)
            if _is_same_file(handle, file):
                return handle
        except BlockingIOError:
            owner = os.pread(handle, 200, 0).decode(errors="replace").strip() or "another process"
            os.close(handle)
            raise BadConfig(
                f"{file.parent}: {owner} is writing this run; wait for it, or use another folder"
            ) from None
        except BaseException:
            os.close(handle)
            raise
        os.close(handle)


def _open_lock(file: Path) -> int:
    """A handle of a lock of privdd's own, unchanged. Raises BadConfig for a link and for any other
    file of that name."""
    # a pipe of that name may not block
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        handle = os.open(file, flags, 0o644)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO, errno.EISDIR):
            raise _foreign_lock(file) from None
        raise
    state = os.fstat(handle)
    # 0: its owner has just removed it
    is_lock = stat.S_ISREG(state.st_mode) and state.st_nlink <= 1
    if is_lock and state.st_size:
        is_lock = LOCK_TEXT.fullmatch(os.pread(handle, 400, 0).decode(errors="replace")) is not None
    if not is_lock:
        os.close(handle)
        raise _foreign_lock(file)
    return handle


def _foreign_lock(file: Path) -> BadConfig:
    return BadConfig(
        f"{file}: a link, or no lock of privdd's; it stays as it is: use another folder"
    )


def _lock_handle(handle: int, file: Path) -> None:
    """Raises BlockingIOError where another process holds it."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise
        LOG.warning(
            "%s: this file system has no locks; let no other run write there meanwhile", file.parent
        )


def _is_same_file(handle: int, file: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(handle), file.stat())
    except FileNotFoundError:
        return False


# Folders whose files must not travel: with a mode, an ignore file, and never where a packer takes
# them along. Flower packs every JSON, yaml, Markdown and Python file below the folder of an app
# into the bundle that all nodes get.


def state_folder() -> Path:
    """The folder for privdd's own state, outside all projects: $XDG_STATE_HOME/privdd."""
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "privdd"


def make_private(folder: Path) -> None:
    """The folder, for its owner alone where it is new, with a .gitignore. Raises OSError where it
    cannot be made."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    folder.mkdir(mode=0o700, exist_ok=True)
    ignore_all(folder)


def ignore_all(folder: Path) -> None:
    """A .gitignore in a folder, which is made where there is none, that names all of it."""
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / IGNORE).exists():
        (folder / IGNORE).write_text("*\n", encoding="utf-8")


def check_private(folder: Path, what: str) -> None:
    """Raises BadConfig where ``folder`` lies in, beside or around a Flower app. what: is kept
    there, in words."""
    for app in _apps(folder.resolve()):
        raise BadConfig(
            f"{folder}: {what} would lie with the Flower app in {app}, and flwr packs "
            "json files there into what all "
            "nodes get; use a folder outside it, or beside_app=true if it is packed by nobody"
        )


def _apps(folder: Path) -> Iterator[Path]:
    for place in (folder, *folder.parents):
        if _is_app(place):
            yield place
    for number, (below, folders, _) in enumerate(os.walk(folder)):
        folders.sort()
        if number and _is_app(Path(below)):
            yield Path(below)
        if number >= LOOKED_AT:
            return


def _is_app(folder: Path) -> bool:
    file = folder / PROJECT
    try:
        if file.is_file():
            text = file.read_text(encoding="utf-8", errors="replace")
        else:
            text = ""
    except OSError:
        return False
    try:
        return "flwr" in tomllib.loads(text).get("tool", {})
    except (tomllib.TOMLDecodeError, AttributeError, TypeError):
        return "tool.flwr" in text
