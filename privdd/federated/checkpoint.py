"""Checkpoints between rounds, written so that a kill at any moment leaves the last complete one
intact."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from privdd.core.types import flatten_values, nest_values, unpack
from privdd.core.validation import BadConfig
from privdd.federated.simulation import Plan, Progress, Snapshot
from privdd.privacy.ledger import Ledger
from privdd.runtime.files import (
    HALF_WRITTEN_PREFIX,
    SCHEMA,
    DamagedRun,
    check_schema,
    is_half_written,
    read_json,
    read_json_object,
    safe_name,
    write_bytes,
    write_json,
)
from privdd.runtime.run_folder import RunFolder, read_tensors, write_tensors

# of checkpoint.json and manifest.json: the digest of all records, labels and their split
DATA_KEY = "data"
STATE_FILES = ("server.safetensors", "memories.safetensors", "ledger.json")
STATE_FOLDER = re.compile(r"round_\d{4,}")
SNAPSHOT_NAME = re.compile(r"victim_\d{4,}\.safetensors")


def save_checkpoint(folder: RunFolder, progress: Progress, data: str = "") -> None:
    """Write a new numbered state, then point ``checkpoint.json`` at it, then drop what it does not
    name. data: as of ``Plan``."""
    name = f"round_{progress.round:04d}"
    place = folder.path / "state" / name
    if folder.checkpoint_file.exists():
        before = read_json(folder.checkpoint_file)["digests"]
    else:
        before = {}
    write_tensors(place / "server.safetensors", progress.server)
    memories = flatten_values({str(client): memory for client, memory in progress.memories.items()})
    write_tensors(place / "memories.safetensors", memories)
    write_ledger(place / "ledger.json", progress.ledger)
    for snapshot in progress.snapshots.values():
        _save_snapshot(folder, snapshot)
    files = _state_files(folder, name, progress.snapshots)
    # a snapshot never changes once it is written, so its digest is reused
    digests = {
        str(f.relative_to(place.parent)): before.get(f.name) or _file_digest(f) for f in files
    }
    head = {
        "schema": SCHEMA,
        DATA_KEY: data,
        "state": name,
        "round": progress.round,
        "accuracy": list(progress.accuracy),
        "diverged": progress.diverged,
        "uploaded": counts_json(progress.uploaded),
        "downloaded": counts_json(progress.downloaded),
        "sent": dict(progress.sent),
        "sent_ids": list(progress.sent_ids),
        "inbox_ids": list(progress.inbox_ids),
        "snapshots": sorted(progress.snapshots),
        "digests": digests,
    }
    write_json(folder.checkpoint_file, head, compact=True)
    _delete_unnamed(folder, name, progress.snapshots)


def write_ledger(path: Path, ledger: Ledger) -> None:
    """ledger.json, row by row."""
    write_bytes(path, (part.encode() for part in ledger.text()))


def _file_digest(file: Path) -> str:
    with file.open("rb") as data:
        return hashlib.file_digest(data, lambda: hashlib.blake2b(digest_size=16)).hexdigest()


def _state_files(folder: RunFolder, state: str, rounds: Collection[int]) -> list[Path]:
    place = folder.path / "state" / state
    return [place / part for part in STATE_FILES] + [_snapshot_file(folder, t) for t in rounds]


def _verify_files(folder: RunFolder, digests: Mapping[str, str], files: Iterable[Path]) -> None:
    """Raises DamagedRun for a file that is missing or is not what was written."""
    for file in files:
        if not file.is_file():
            raise DamagedRun(f"{file}: no such file")
        if digests.get(str(file.relative_to(folder.path / "state"))) != _file_digest(file):
            raise DamagedRun(f"{file}: damaged (differs from the written file)")


def _delete_unnamed(folder: RunFolder, name: str, snapshots: Collection[int]) -> None:
    """States that a checkpoint does not name: older ones, and what a killed ``save_checkpoint``
    left behind.

    Only files that a run writes go, and folders that are empty then.
    """
    state = folder.path / "state"
    for old in state.glob("round_*"):
        if old.name == name or not STATE_FOLDER.fullmatch(old.name):
            continue
        for part in [
            *STATE_FILES,
            *(f.name for f in old.glob(f"{HALF_WRITTEN_PREFIX}*") if is_half_written(f.name)),
        ]:
            (old / part).unlink(missing_ok=True)
        with suppress(OSError):  # somebody else's file lies there
            old.rmdir()
    named = {_snapshot_file(folder, t) for t in snapshots}
    for old in state.glob("victim_*"):
        if SNAPSHOT_NAME.fullmatch(old.name) and old not in named:
            old.unlink(missing_ok=True)


def _save_snapshot(folder: RunFolder, snapshot: Snapshot) -> None:
    place = _snapshot_file(folder, snapshot.round)
    if place.exists():  # by an earlier checkpoint of this run: ``load_checkpoint`` drops any other
        return
    broadcast = flatten_values(snapshot.broadcast)
    sent = flatten_values(snapshot.sent)
    write_tensors(
        place, flatten_values({"broadcast": broadcast, "memory": snapshot.memory, "sent": sent})
    )


def _snapshot_file(folder: RunFolder, round: int) -> Path:
    return folder.path / "state" / f"victim_{round:04d}.safetensors"


def load_checkpoint(folder: RunFolder, plan: Plan) -> Progress | None:
    """The last whole state, or None where there is none yet. Raises DamagedRun, naming the file."""
    if not folder.checkpoint_file.exists():
        _delete_unnamed(folder, "", ())
        return None
    head = read_json(folder.checkpoint_file)
    if not isinstance(head, dict):
        raise DamagedRun(f"{folder.checkpoint_file}: not a checkpoint")
    check_schema(folder.checkpoint_file, head)
    check_same_data(folder, plan.data)
    try:
        place = folder.path / "state" / safe_name(str(head["state"]))
        rounds = [int(t) for t in head["snapshots"]]
        _verify_files(folder, head["digests"], _state_files(folder, place.name, rounds))
        memories = read_tensors(place / "memories.safetensors")
        progress = Progress(
            round=int(head["round"]),
            server=read_tensors(place / "server.safetensors"),
            memories={int(k): memory for k, memory in nest_values(memories).items()},
            ledger=Ledger.from_json(read_json(place / "ledger.json")),
            accuracy=tuple(float(a) for a in head["accuracy"]),
            diverged=None if head["diverged"] is None else int(head["diverged"]),
            uploaded=_parse_counts(head["uploaded"]),
            downloaded=_parse_counts(head["downloaded"]),
            sent={str(k): str(v) for k, v in head["sent"].items()},
            sent_ids=tuple(int(i) for i in head["sent_ids"]),
            inbox_ids=tuple(int(i) for i in head["inbox_ids"]),
            snapshots={t: _load_snapshot(folder, plan, t) for t in rounds},
        )
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        if isinstance(error, DamagedRun):
            raise
        raise DamagedRun(
            f"{folder.checkpoint_file}: damaged ({' '.join(str(error).split())[:100]})"
        ) from None
    _delete_unnamed(folder, place.name, progress.snapshots)
    return progress


def check_same_data(folder: RunFolder, data: str) -> None:
    """Raises BadConfig, one line, where the run in a folder began with other data than those of the
    digest ``data``."""
    if not data or not folder.checkpoint_file.exists():
        return
    began_with = read_json_object(folder.checkpoint_file).get(DATA_KEY)
    if began_with and began_with != data:
        raise BadConfig(
            f"{folder.path}: began with other data (digest {str(began_with)[:12]}, here "
            f"{data[:12]}): records, labels or their "
            "split differ; bring the first ones back, or use another folder"
        )


def _parse_counts(rounds: Any) -> tuple[dict[int, int], ...]:
    parsed = []
    for counts in rounds:
        parsed.append({int(client): int(size) for client, size in counts.items()})
    return tuple(parsed)


def counts_json(rounds: Iterable[Mapping[int, int]]) -> list[dict[str, int]]:
    """Bytes by client of each round, with the keys that JSON has."""
    counts_by_round = []
    for counts in rounds:
        counts_by_round.append({str(client): size for client, size in counts.items()})
    return counts_by_round


def _load_snapshot(folder: RunFolder, plan: Plan, round: int) -> Snapshot:
    tensors = read_tensors(_snapshot_file(folder, round))
    return Snapshot(
        round,
        nest_values(unpack("broadcast", tensors)),
        unpack("memory", tensors),
        nest_values(unpack("sent", tensors)),
        plan.method.audit_hooks.phase(round),
    )
