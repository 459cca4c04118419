"""Updates or gradients that were captured somewhere: a folder of safetensors, one file for each round and client.

``DIR/round_000/client_0.safetensors`` holds tensors under the names of the model's state_dict. What they are is said by
``target.kind``: "update" (what the client's weights changed by), "model" (its weights) or "gradient". The model that it
started from is ``DIR/round_000/server.safetensors``; of a single round it may be ``target.weights``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from attacks.types import Capture, Surface
from privdd.core.errors import BadConfig
from privdd.runtime.files import DamagedRun
from privdd.runtime.plain_folder import plain_files
from privdd.runtime.run_folder import read_tensors

FILE = re.compile(r"round_(\d{1,6})/client_(\d{1,6})\.safetensors")
SENT = "server.safetensors"  # beside the clients' files of a round: the model that they were sent
KINDS = ("update", "model", "gradient")


@dataclass(frozen=True)
class Captured:
    """captures: by round, then client; each value is the client's weights, or its gradient."""

    captures: tuple[Capture, ...]
    surface: Surface
    kind: str

    def of(self, client: int) -> tuple[Capture, ...]:
        """Those of one client. Raises BadConfig where there are none."""
        mine = tuple(one for one in self.captures if one.client == client)
        if not mine:
            known = ", ".join(str(k) for k in sorted({one.client for one in self.captures}))
            raise BadConfig(f"target.client={client}: nothing was captured of it; there are {known}")
        return mine


def captured(folder: Path, model: nn.Module, kind: str) -> Captured:
    """Every file of the folder. Raises BadConfig, one line, where there are none, or one does not fit the model."""
    if kind not in KINDS:
        raise BadConfig(f"target.kind={kind}: allowed are {', '.join(KINDS)}")
    if not folder.is_dir():
        raise BadConfig(f"target.updates={folder}: no such folder")
    try:
        names = sorted(name for name in plain_files(folder) if FILE.fullmatch(name))
    except DamagedRun as error:
        raise BadConfig(f"target.updates={error}") from None
    if not names:
        raise BadConfig(f"target.updates={folder}: holds no round_000/client_0.safetensors")
    rounds = sorted({name.split("/")[0] for name in names})
    unknown = [one for one in rounds if len(rounds) > 1 and not (folder / one / SENT).is_file()]
    if unknown:
        raise BadConfig(
            f"target.updates={folder}: {unknown[0]}/{SENT} is needed: of several rounds, each started from its own model"
        )
    surface = Surface.GRADIENT if kind == "gradient" else Surface.UPDATE
    found = [_one(folder, name, model, kind) for name in names]
    return Captured(tuple(sorted(found, key=lambda one: (one.round, one.client))), surface, kind)


def _one(folder: Path, name: str, model: nn.Module, kind: str) -> Capture:
    at = FILE.fullmatch(name)
    if at is None:
        raise ValueError(f"{name}: no name of a captured update")
    value, own = _read(folder / name), dict(model.state_dict())
    server = folder / name.split("/")[0] / SENT
    sent = {**own, **_fitting(server, _read(server), own)} if server.is_file() else own
    value = _fitting(folder / name, value, own)
    missing = sorted({key for key, _ in model.named_parameters()} - value.keys())
    if missing:
        raise BadConfig(f"target.updates={folder / name}: lacks {', '.join(missing[:4])}")
    if kind == "update":
        value = {key: sent[key] + change.to(sent[key].dtype) for key, change in value.items()}
    return Capture(int(at[1]), int(at[2]), kind, value, sent)


def _read(path: Path) -> Mapping[str, Tensor]:
    try:
        return read_tensors(path)
    except DamagedRun as error:
        raise BadConfig(f"target.updates={error}") from None


def _fitting(path: Path, value: Mapping[str, Tensor], own: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors, if each has a name and a shape of the model's. Raises BadConfig for another, and for NaN."""
    for name, tensor in value.items():
        if name not in own or own[name].shape != tensor.shape:
            there = f"the model's is {tuple(own[name].shape)}" if name in own else "the model has none of this name"
            raise BadConfig(f"target.updates={path}: {name} {tuple(tensor.shape)}: {there}")
        if tensor.is_floating_point() and not torch.isfinite(tensor).all():
            raise BadConfig(f"target.updates={path}: NaN or infinity in {name}")
    return dict(value)
