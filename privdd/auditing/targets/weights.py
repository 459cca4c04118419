"""The user's own network, and its weights from a file that can run nothing."""

from __future__ import annotations

import inspect
import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from attacks.archive import check_archive
from privdd.checking.named import load_target
from privdd.core.errors import BadConfig
from privdd.runtime.files import DamagedRun, read_bytes
from privdd.runtime.run_folder import LARGEST_TENSORS, read_tensors

PICKLES = (".pkl", ".pickle", ".joblib", ".sav", ".dill", ".bin")
INSIDE = (
    "state_dict",
    "model_state_dict",
    "model",
    "net",
    "network",
    "weights",
    "params",
    "module",
    "ema",
    "model_ema",
)
DEEPEST = 4  # wrappers of training scripts around the weights
PYTHON = "load it in your own program and give it to privdd.api.audit_model, or name a predict function as target.model"


def model_of(name: str, args: Mapping[str, Any], weights: Path | None) -> tuple[Any, list[str]]:
    """What ``module:Class`` makes with ``args``, with the weights of a file; or a function that predicts, as it is. And
    what a reader has to know of the weights.

    Raises BadConfig, one line: nothing of this name, a class that cannot be made, a network without weights.
    """
    if Path(name).suffix.lower() in PICKLES and ":" not in name:
        raise BadConfig(f"target.model={name}: a pickle can run any program and is not read; {PYTHON}")
    target = load_target(name, "target.model")
    if inspect.isclass(target):
        target = _made(name, target, args)
    elif args:
        raise BadConfig(f"target.args: {name} is no class, so nothing is made with them")
    notes = []
    if isinstance(target, nn.Module):
        if weights is not None:
            notes = fill(target, weights)
        elif inspect.isclass(load_target(name, "target.model")):
            raise BadConfig(f"target.model={name}: target.weights=FILE is needed; a new network has seen no record")
    elif weights is not None:
        raise BadConfig(f"target.weights={weights}: {name} is no torch module, so nothing is read from it")
    return target, notes


def _made(name: str, target: Any, args: Mapping[str, Any]) -> Any:
    try:
        return target(**args)
    except Exception as error:  # whatever the class raises
        given = ", ".join(f"{key}={value!r}" for key, value in args.items())
        said = " ".join(str(error).split())[:200]
        raise BadConfig(f"target.model={name}({given}): {type(error).__name__}: {said}") from error


def fill(model: nn.Module, path: Path) -> list[str]:
    """Load a file of weights into ``model`` -> what a reader has to know of how they were read.

    Raises BadConfig, naming those that are missing, unknown or of another shape.
    """
    found, own = read_weights(path), model.state_dict()
    notes = []
    if isinstance(found, list):
        if len(found) != len(own):
            raise BadConfig(
                f"target.weights={path}: {len(found)} arrays without names; {type(model).__name__} has {len(own)}"
            )
        found = dict(zip(own, found))
        notes = [
            f"The {len(own)} arrays of {path.name} have no names; they were taken in the order of the model's state_dict."
        ]
    found, taken = _without_prefix(found, own)
    notes += [f"The names in {path.name} begin with {taken}, which was taken off."] if taken else []
    missing, unknown = sorted(own.keys() - found.keys()), sorted(found.keys() - own.keys())
    other = [
        f"{name} is {tuple(found[name].shape)}, the model's is {tuple(own[name].shape)}"
        for name in sorted(own.keys() & found.keys())
        if found[name].shape != own[name].shape
    ]
    wrong = [f"missing {_few(missing)}"] * bool(missing) + [f"unknown {_few(unknown)}"] * bool(unknown) + other[:3]
    if wrong:
        raise BadConfig(f"target.weights={path}: do not fit {type(model).__name__}: {'; '.join(wrong)}")
    if broken := [name for name, value in found.items() if not torch.isfinite(value.double()).all()]:
        raise BadConfig(f"target.weights={path}: NaN or infinity in {_few(broken)}")
    model.load_state_dict(dict(found))
    return notes


def _without_prefix(found: Mapping[str, Tensor], own: Mapping[str, Tensor]) -> tuple[Mapping[str, Tensor], str]:
    """The weights without what all their names begin with and the model's own do not, as wrappers of the model put there
    (``module.``, ``model.``, ``_orig_mod.``), and that prefix; else as they are."""
    first = next(iter(found), "").split(".")
    for depth in range(1, len(first)):
        prefix = ".".join(first[:depth]) + "."
        if found.keys() & own.keys() or not all(name.startswith(prefix) for name in found):
            break
        short = {name.removeprefix(prefix): value for name, value in found.items()}
        if short.keys() & own.keys():
            return short, prefix
    return found, ""


def read_weights(path: Path) -> Mapping[str, Tensor] | list[Tensor]:
    """name -> tensor, from safetensors, or from ``.pt`` read by torch's restricted reader (weights_only), or a list of
    arrays, there or in ``.npz``."""
    if not path.is_file():
        raise BadConfig(f"target.weights={path}: no such file")
    suffix = path.suffix.lower()
    if suffix == ".safetensors":
        try:
            return read_tensors(path)
        except DamagedRun as error:
            raise BadConfig(f"target.weights={error}") from None
    if suffix == ".npz":
        return _of_archive(path)
    if suffix not in (".pt", ".pth", ".ckpt"):
        raise BadConfig(
            f"target.weights={path}: .safetensors, .npz or a state_dict in .pt is read, never a pickle; {PYTHON}"
        )
    try:
        found = torch.load(io.BytesIO(read_bytes(path, LARGEST_TENSORS)), map_location="cpu", weights_only=True)
    except Exception as error:  # zip, pickle and torch raise their own
        said = "objects of Python" if "weights" in str(error).lower() else " ".join(str(error).split())[:80]
        raise BadConfig(
            f"target.weights={path}: holds more than tensors, or is damaged ({said}); save model.state_dict()"
        ) from error
    found = _unwrapped(found)
    if isinstance(found, list | tuple) and found and all(isinstance(value, Tensor) for value in found):
        return list(found)
    if not isinstance(found, Mapping) or not found or not all(isinstance(value, Tensor) for value in found.values()):
        raise BadConfig(f"target.weights={path}: no state_dict (name -> tensor); save model.state_dict()")
    return {str(name): value for name, value in found.items()}


def _unwrapped(found: Any) -> Any:
    """What lies below the keys that training scripts use; a model may have a part of such a name itself."""
    for _ in range(DEEPEST):
        inside = [
            found[key]
            for key in INSIDE
            if isinstance(found, Mapping) and isinstance(found.get(key), Mapping | list | tuple)
        ]
        if not inside:
            break
        found = inside[0]
    return found


def _of_archive(path: Path) -> Mapping[str, Tensor] | list[Tensor]:
    """Arrays of ``numpy.savez``: by name, or in order where they were given none (arr_0, arr_1, ...)."""
    try:
        check_archive(path)
        with np.load(path, allow_pickle=False) as stored:
            arrays = {name: torch.from_numpy(np.array(stored[name])) for name in stored.files}
    except Exception as error:  # a damaged zip raises EOFError, zlib.error, NotImplementedError and others
        raise BadConfig(
            f"target.weights={path}: not an .npz of plain arrays ({' '.join(str(error).split())[:80]})"
        ) from error
    if set(arrays) == {f"arr_{at}" for at in range(len(arrays))}:
        return [arrays[f"arr_{at}"] for at in range(len(arrays))]
    return arrays


def _few(names: list[str]) -> str:
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
