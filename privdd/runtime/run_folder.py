"""The run folder: where its parts lie, its tensors as safetensors, what it is computed with, and its manifest.

Another torch or numpy rounds or draws otherwise, so a stopped run may not go on with it: both can be installed again, and a
difference is refused. Another processor may round otherwise too, but whoever resumes on a cluster cannot choose it: a
difference is said, not refused.
"""

from __future__ import annotations

import hashlib
import json
import logging
import platform
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import torch
from torch import Tensor

from privdd.core.types import State
from privdd.core.validation import BadConfig
from privdd.runtime import files

LARGEST_TENSORS = 16 * 2**30
LARGEST_HEADER = 16 * 2**20  # bytes of names and shapes at the start of a safetensors file


def write_tensors(path: Path, tensors: Mapping[str, Tensor], *, durable: bool = True) -> None:
    """Contiguous copies on the CPU, as safetensors. durable: as of ``write_bytes``.

    The names' order is kept beside them: sums and noise run over a state in its order, so a resumed
    run gives the same bits only if the order comes back.
    """
    plain = {name: t.detach().cpu().contiguous().clone() for name, t in tensors.items()}
    files.write_bytes(path, safetensors.torch.save(plain, {"order": json.dumps(list(plain))}), durable=durable)


def read_tensors(path: Path, limit: int = LARGEST_TENSORS) -> State:
    """Raises DamagedRun, naming the file, where it is missing, larger than ``limit`` bytes or not safetensors."""
    tensors, told = read_tensors_and_header(path, limit)
    try:
        order = _tensor_order(told)
    except (ValueError, RecursionError) as error:
        raise files.DamagedRun(f"{path}: not readable as safetensors ({str(error)[:120]})") from None
    return {name: tensors[name] for name in order} if set(order) == set(tensors) else tensors


def read_tensors_and_header(path: Path, limit: int = LARGEST_TENSORS) -> tuple[State, dict[str, str]]:
    """The tensors in no order, and what was written beside them. Raises DamagedRun as ``read_tensors`` does."""
    try:
        data = files.read_bytes(path, limit)
        size = int.from_bytes(data[:8], "little")
        if size > LARGEST_HEADER:
            raise ValueError(f"a header of more than {LARGEST_HEADER >> 20} MiB")
        tensors = safetensors.torch.load(data)
        return tensors, json.loads(data[8 : 8 + size]).get("__metadata__") or {}
    except files.DamagedRun:
        raise
    except FileNotFoundError:
        raise files.DamagedRun(f"{path}: no such file") from None
    except Exception as error:  # safetensors raises its own and built-in errors
        raise files.DamagedRun(f"{path}: not readable as safetensors ({str(error)[:120]})") from None


def _tensor_order(told: Mapping[str, str]) -> list[str]:
    """The names in the order in which they were written; empty for files that privdd did not write."""
    names = json.loads(told.get("order", "[]"))
    return names if isinstance(names, list) and all(isinstance(name, str) for name in names) else []


@dataclass(frozen=True)
class RunFolder:
    """One run on disk."""

    path: Path

    def artifact_file(self, round: int, client: int) -> Path:
        """The file of a client's messages; for a negative number, of the sum over the clients of a round."""
        name = f"client_{client}" if client >= 0 else "sum"
        return self.path / "artifacts" / f"round_{round:03d}" / f"{name}.safetensors"

    @property
    def checkpoint_file(self) -> Path:
        return self.path / "state" / "checkpoint.json"

    def evidence_file(self, surface: str, attack: str) -> Path:
        return self.path / "evidence" / f"{files.safe_name(surface)}.{files.safe_name(attack)}.safetensors"

    @property
    def findings_file(self) -> Path:
        return self.path / "findings.json"

    @property
    def is_half_audited(self) -> bool:
        """Whether some shadow models are there that no finding has come of yet."""
        return (self.path / "worlds").is_dir() and not self.findings_file.exists()

    @property
    def ledger_file(self) -> Path:
        return self.path / "ledger.json"

    @property
    def manifest_file(self) -> Path:
        return self.path / "manifest.json"

    @property
    def config_file(self) -> Path:
        return self.path / "config.yaml"


def check_folder_free(path: Path) -> None:
    """Raises BadConfig where the folder holds a run already: its files would stand beside the new ones."""
    if path.is_dir():
        files.check_plain_folder(path)
    if held := [name for name in ("findings.json", "config.yaml", "manifest.json") if (path / name).exists()]:
        raise BadConfig(f"{path}: holds a run already ({held[0]}); use another folder")


def same_tensors(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> bool:
    """Equal names and bit-equal values."""
    return a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)


LOG = logging.getLogger("privdd")
DECIDING_LIBRARIES = ("torch", "numpy")


def library_versions() -> dict[str, str]:
    """Versions of this process's libraries. processor: with the instructions that torch's kernels use."""
    processor = f"{platform.machine()} {torch.backends.cpu.get_cpu_capability()}"
    return {"torch": str(torch.__version__), "numpy": np.__version__, "processor": processor}


def record_library_versions(folder: RunFolder, *, goes_on: bool) -> None:
    """Keep in the folder what it is computed with from now on.

    goes_on: results that are there already will be joined by others. Raises BadConfig, one line, where torch or numpy
    is another than theirs. Folders of earlier versions do not say theirs, and go on.
    """
    file, now = folder.path / "state" / "computed_with.json", library_versions()
    before = files.read_json(file) if file.exists() else None
    if before is not None and not (isinstance(before, dict) and all(isinstance(v, str) for v in before.values())):
        raise files.DamagedRun(f"{file}: not what privdd writes")
    if before == now:
        return
    if before is not None and goes_on:
        _check_library_versions(folder, before, now)
    files.write_json(file, now)


def _check_library_versions(folder: RunFolder, before: dict[str, str], now: dict[str, str]) -> None:
    for name in DECIDING_LIBRARIES:
        if (then := before.get(name, now[name])) != now[name]:
            raise BadConfig(
                f"{folder.path}: was begun with {name} {then[:40]}, and {now[name]} would give other bits; "
                f"install {name} {then[:40]}, or start it again in another folder"
            )
    then = before.get("processor", now["processor"])
    if then != now["processor"]:
        LOG.warning(
            "begun on another processor (%s, here %s): what follows may round otherwise", then[:40], now["processor"]
        )


# The manifest lists the sha256 of every file, and its seal covers the list. A seal shows that nothing changed since it was
# made, not who made it: whoever edits a file can seal again. What the numbers say of each other is checked by
# ``privdd.verification``; who vouches for them, by a signature. No number depends on date and commit.

MANIFEST = "manifest.json"
SIGNATURE = "signature.json"
PAGE = "report.html"
CARD = "card.json"  # the page's twin for other programs
FIGURES = "figures/"
# a sweep's own note; a print of the page; what tells a run's secret, which may be left out of what is given to others
UNSEALED = frozenset({MANIFEST, SIGNATURE, "point.json", "report.pdf", ".lock", "state/secret.json"})
# keys of the manifest; the page is redrawn from the files at any time
FILES_KEY, PAGE_KEY, SEAL_KEY, PLOTTING_KEY = "files", "page", "seal", "drawn_with"


def file_sha256(file: Path) -> str:
    """The digest of a file's bytes, in hexadecimal."""
    with file.open("rb") as data:
        return hashlib.file_digest(data, "sha256").hexdigest()


def is_page_file(name: str) -> bool:
    """Whether a file was drawn from the others."""
    return name in (PAGE, CARD) or name.startswith(FIGURES)


def file_digests(folder: Path) -> dict[str, str]:
    """Name -> sha256 of every file below ``folder`` that a seal covers. Raises DamagedRun for a link."""
    names = sorted(
        name for name in files.list_plain_files(folder) if name not in UNSEALED and not files.is_half_written(name)
    )
    return {name: file_sha256(folder / name) for name in names}


def seal_folder(folder: Path) -> None:
    """Write the digests of all files into the manifest, as the last step of a run."""
    found = file_digests(folder)
    kept = {name: mark for name, mark in found.items() if not is_page_file(name)}
    drawn = {name: mark for name, mark in found.items() if is_page_file(name)}
    _write_manifest(folder, {**_read_manifest(folder), FILES_KEY: kept, PAGE_KEY: drawn})


def seal_page(folder: Path) -> None:
    """Seal a page that was drawn anew; a folder that was never sealed stays unsealed."""
    manifest = _read_manifest(folder)
    if FILES_KEY in manifest:
        drawn = {
            name: file_sha256(folder / name) for name in sorted(files.list_plain_files(folder)) if is_page_file(name)
        }
        _write_manifest(folder, {**manifest, PAGE_KEY: drawn})


def plotting_library() -> str:
    """The plotting library with its version: another version draws other bytes."""
    return f"matplotlib {version('matplotlib')}"


def _read_manifest(folder: Path) -> dict[str, Any]:
    return files.read_json_object(folder / MANIFEST, optional=True)


def _write_manifest(folder: Path, manifest: Mapping[str, Any]) -> None:
    manifest = {**manifest, PLOTTING_KEY: plotting_library()}
    files.write_json(folder / MANIFEST, {**manifest, SEAL_KEY: compute_seal(manifest)})


def compute_seal(manifest: Mapping[str, Any]) -> str:
    """The digest of all of the manifest but the seal itself."""
    return hashlib.sha256(_canonical_json({k: v for k, v in manifest.items() if k != SEAL_KEY})).hexdigest()


def signed_bytes(manifest: Mapping[str, Any]) -> bytes:
    """The signed part of the manifest: everything but the entries that change when the page is drawn anew."""
    return _canonical_json({k: v for k, v in manifest.items() if k not in (SEAL_KEY, PAGE_KEY, PLOTTING_KEY)})


def _canonical_json(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


COMMIT_HASH = re.compile(r"[0-9a-f]{40}([0-9a-f]{24})?")
PACKAGE = Path(__file__).resolve().parents[1]


def run_provenance() -> dict[str, str | None]:
    """{"date": UTC, to the second, "commit": in hexadecimal, None where privdd runs from no git checkout}."""
    return {"date": datetime.now(UTC).isoformat(timespec="seconds"), "commit": source_commit(PACKAGE)}


def source_commit(package: Path) -> str | None:
    """The checked-out commit of the source tree that holds the folder ``package``, read from git's files.

    No program is started, and changes that were not committed do not show.
    """
    git = package.parent / ".git"
    try:
        head = (git / "HEAD").read_text(encoding="ascii").strip()
        if head.startswith("ref: "):
            head = _resolve_reference(git, head.removeprefix("ref: "))
    except (OSError, ValueError):
        return None
    return head if COMMIT_HASH.fullmatch(head) else None


def _resolve_reference(git: Path, name: str) -> str:
    if (git / name).is_file():
        return (git / name).read_text(encoding="ascii").strip()
    packed = (git / "packed-refs").read_text(encoding="ascii").splitlines()
    return next((line.split(" ")[0] for line in packed if line.endswith(f" {name}")), "")
