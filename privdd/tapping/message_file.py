"""One recorded message: its arrays as safetensors, and what is known of it in the file's header."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import torch
from torch import Tensor

from privdd.core.types import State
from privdd.federated.channel import digest
from privdd.runtime.files import DamagedRun, write_bytes
from privdd.runtime.run_folder import LARGEST_HEADER, LARGEST_TENSORS, read_with_header

BROADCAST, REPLY, FINAL = "broadcast", "reply", "final"
SERVER = -1
DIFFERENCE = "privdd/difference"  # among the metrics of a reply that holds changes of parameters, not parameters
HEADING = "privdd"  # the only key of the header: with several, safetensors writes other bytes each time


@dataclass(frozen=True)
class Heading:
    """What is known of a message beside its arrays.

    part: broadcast (server to client), reply (client to server) or final (the latest aggregate); kind: train, evaluate
    or a name of the app's own; node: the client's number, SERVER where the message went to all of them alike; run: the
    library's number of the run; partition: what the client's own machine calls it, None = not told; metrics: numbers
    that travelled beside the arrays; claims: what components that were recognised say of their own privacy.
    """

    round: int
    node: int
    kind: str
    part: str
    run: int = 0
    partition: int | None = None
    metrics: Mapping[str, Any] = field(default_factory=dict)
    claims: tuple[Mapping[str, Any], ...] = ()


def place(heading: Heading) -> Path:
    """Where the message lies in its recording: round-001/client-7/update.safetensors and the like."""
    kind = "" if heading.kind == "train" else re.sub(r"[^\w.-]", "_", heading.kind)
    if heading.part == FINAL:
        return Path("final.safetensors")
    stem = "-".join(filter(None, [BROADCAST, kind])) if heading.part == BROADCAST else kind or "update"
    here = Path(f"round-{heading.round:03d}")
    return (
        here / f"{stem}.safetensors"
        if heading.node == SERVER
        else here / f"client-{heading.node}" / f"{stem}.safetensors"
    )


def write_message(path: Path, heading: Heading, arrays: Mapping[str, np.ndarray]) -> str:
    """Keep a message -> the digest of its arrays. Raises OSError, and TypeError for arrays without a torch type.

    Not forced onto the disk, which would cost most of a tap's time: a file that a power failure cuts short is not what
    its header says, and is refused when it is read.
    """
    tensors: dict[str, Tensor] = {
        name: torch.from_numpy(np.ascontiguousarray(a)).reshape(a.shape) for name, a in arrays.items()
    }
    mark = digest(tensors)
    told = {**asdict(heading), "order": list(tensors), "digest": mark}
    data = safetensors.torch.save(tensors, {HEADING: json.dumps(told, allow_nan=False)})
    write_bytes(path, data, durable=False)
    return mark


def read_heading(path: Path) -> tuple[Heading, str, dict[str, tuple[int, ...]]]:
    """(what is known of a message, the digest of its arrays, their shapes), without the arrays. Raises DamagedRun."""
    try:
        with path.open("rb") as file:
            size = int.from_bytes(file.read(8), "little")
            if size > LARGEST_HEADER:
                raise ValueError(f"a header of more than {LARGEST_HEADER >> 20} MiB")
            head = json.loads(file.read(size))
        told = head.pop("__metadata__")
        shapes = {str(name): tuple(int(n) for n in entry["shape"]) for name, entry in head.items()}
        return (*_heading(json.loads(told[HEADING])), shapes)
    except FileNotFoundError:
        raise DamagedRun(f"{path}: no such file") from None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise DamagedRun(f"{path}: no recorded message ({type(error).__name__}: {str(error)[:100]})") from None


def read_message(path: Path, limit: int = LARGEST_TENSORS) -> State:
    """The arrays in the order in which they were sent. Raises DamagedRun where they are not those that were recorded."""
    heading, mark, _ = read_heading(path)
    tensors, told = read_with_header(path, limit)
    try:
        found = {name: tensors[name] for name in json.loads(told[HEADING])["order"]}
    except (KeyError, TypeError) as error:
        raise DamagedRun(f"{path}: not readable as safetensors with what it says of itself ({error})") from None
    if len(found) != len(tensors) or digest(found) != mark:
        raise DamagedRun(f"{path}: its arrays of round {heading.round} are not those that were recorded")
    return found


def _heading(told: Any) -> tuple[Heading, str]:
    if not isinstance(told, dict) or set(told) != {*(f.name for f in fields(Heading)), "order", "digest"}:
        raise ValueError("the heading has other parts than a recording of this version")
    whole = {name: told[name] for name in ("round", "node", "run")}
    if any(type(value) is not int for value in whole.values()) or whole["round"] < 0 or whole["node"] < SERVER:
        raise ValueError(f"round, node and run {whole}: whole numbers are needed")
    if told["part"] not in (BROADCAST, REPLY, FINAL) or not isinstance(told["kind"], str):
        raise ValueError(f"part={told['part']!r}, kind={told['kind']!r}")
    if (
        not isinstance(told["metrics"], dict)
        or not isinstance(told["claims"], list)
        or not isinstance(told["digest"], str)
    ):
        raise ValueError("metrics, claims and digest: an object, a list and text are needed")
    if told["partition"] is not None and type(told["partition"]) is not int:
        raise ValueError(f"partition={told['partition']!r}")
    if not all(isinstance(claim, dict) and isinstance(claim.get("settings", {}), dict) for claim in told["claims"]):
        raise ValueError("claims: objects with settings are needed")
    rest = {name: told[name] for name in ("kind", "part", "partition", "metrics")}
    return Heading(**whole, **rest, claims=tuple(told["claims"])), told["digest"]
