"""The run folder: where its parts lie, its tensors as safetensors, what it is computed with, and
its manifest.

Another torch or numpy rounds or draws otherwise, so a stopped run may not go on with it: both can
be installed again, and a difference is refused. Another processor may round otherwise too, but
whoever resumes on a cluster cannot choose it: a difference is said, not refused.
"""

from __future__ import annotations

import json
import logging
import platform
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import safetensors.torch
import torch
from torch import Tensor

from privdd.core.types import State
from privdd.core.validation import BadConfig
from privdd.runtime import files
from privdd.runtime.run_files import check_run_folder

LARGEST_TENSORS = 16 * 2**30
LARGEST_HEADER = 16 * 2**20  # bytes of names and shapes at the start of a safetensors file
LOG = logging.getLogger("privdd")
DECIDING_LIBRARIES = ("torch", "numpy")
COMMIT_HASH = re.compile(r"[0-9a-f]{40}([0-9a-f]{24})?")
PACKAGE = Path(__file__).resolve().parents[1]


def write_tensors(path: Path, tensors: Mapping[str, Tensor], *, durable: bool = True) -> None:
    """Contiguous copies on the CPU, as safetensors. durable: as of ``write_bytes``.

    The names' order is kept beside them: sums and noise run over a state in its order, so a resumed
    run gives the same bits only if the order comes back.
    """
    plain = {name: t.detach().cpu().contiguous().clone() for name, t in tensors.items()}
    files.write_bytes(
        path, safetensors.torch.save(plain, {"order": json.dumps(list(plain))}), durable=durable
    )


def read_tensors(path: Path, limit: int = LARGEST_TENSORS) -> State:
    """Raises DamagedRun, naming the file, where it is missing, larger than ``limit`` bytes or not
    safetensors."""
    tensors, header = read_tensors_and_header(path, limit)
    try:
        order = _tensor_order(header)
    except (ValueError, RecursionError) as error:
        raise files.DamagedRun(
            f"{path}: not readable as safetensors ({str(error)[:120]})"
        ) from None
    if set(order) == set(tensors):
        return {name: tensors[name] for name in order}
    return tensors


def read_tensors_and_header(
    path: Path, limit: int = LARGEST_TENSORS
) -> tuple[State, dict[str, str]]:
    """The tensors in no order, and what was written beside them. Raises DamagedRun as
    ``read_tensors`` does."""
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
        raise files.DamagedRun(
            f"{path}: not readable as safetensors ({str(error)[:120]})"
        ) from None


def _tensor_order(metadata: Mapping[str, str]) -> list[str]:
    """The names in the order in which they were written; empty for files that privdd did not
    write."""
    names = json.loads(metadata.get("order", "[]"))
    if isinstance(names, list) and all(isinstance(name, str) for name in names):
        return names
    return []


@dataclass(frozen=True)
class RunFolder:
    """One run on disk."""

    path: Path

    def artifact_file(self, round: int, client: int) -> Path:
        """The file of a client's messages; for a negative number, of the sum over the clients of a
        round."""
        name = f"client_{client}" if client >= 0 else "sum"
        return self.path / "artifacts" / f"round_{round:03d}" / f"{name}.safetensors"

    @property
    def checkpoint_file(self) -> Path:
        return self.path / "state" / "checkpoint.json"

    def evidence_file(self, surface: str, attack: str) -> Path:
        return (
            self.path
            / "evidence"
            / f"{files.safe_name(surface)}.{files.safe_name(attack)}.safetensors"
        )

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
    """Raises BadConfig where the folder holds a run already, or files of something else: they would
    stand beside the new ones.

    What is left of one that was cut off (a manifest without findings) is written anew.
    """
    check_run_folder(path)
    if held := [name for name in ("findings.json", "config.yaml") if (path / name).exists()]:
        raise BadConfig(f"{path}: holds a run already ({held[0]}); use another folder")


def same_tensors(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> bool:
    """Equal names and bit-equal values."""
    return a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)


def library_versions() -> dict[str, str]:
    """Versions of this process's libraries. processor: with the instructions that torch's kernels
    use."""
    processor = f"{platform.machine()} {torch.backends.cpu.get_cpu_capability()}"
    return {"torch": str(torch.__version__), "numpy": np.__version__, "processor": processor}


def record_library_versions(folder: RunFolder, *, goes_on: bool) -> None:
    """Keep in the folder what it is computed with from now on.

    Args:
        folder: The run's.
        goes_on: Whether results that are there already will be joined by others.

    Raises:
        BadConfig: One line, where torch or numpy is another than that of these results.
        DamagedRun: What the folder holds of it is not what privdd writes.
    """
    file = folder.path / "state" / "computed_with.json"
    now = library_versions()
    before = files.read_json(file) if file.exists() else None
    if before is not None and not (
        isinstance(before, dict) and all(isinstance(v, str) for v in before.values())
    ):
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
                f"{folder.path}: was begun with {name} {then[:40]}, and {now[name]} would "
                "give other bits; "
                f"install {name} {then[:40]}, or start it again in another folder"
            )
    then = before.get("processor", now["processor"])
    if then != now["processor"]:
        LOG.warning(
            "begun on another processor (%s, here %s): what follows may round otherwise",
            then[:40],
            now["processor"],
        )


def run_provenance() -> dict[str, str | None]:
    """{"date": UTC, to the second, "commit": in hexadecimal, None where privdd runs from no git
    checkout}."""
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": source_commit(PACKAGE),
    }


def source_commit(package: Path) -> str | None:
    """The checked-out commit of the source tree that holds the folder ``package``, read from git's
    files.

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
