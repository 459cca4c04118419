"""The user's own network, and its weights from a file that can run nothing."""

from __future__ import annotations

import inspect
import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from privdd.checking.named import load_target
from privdd.core.errors import BadConfig
from privdd.runtime.files import DamagedRun, read_bytes
from privdd.runtime.run_folder import LARGEST_TENSORS, read_tensors

PICKLES = (".pkl", ".pickle", ".joblib", ".sav", ".dill", ".bin")
INSIDE = ("state_dict", "model_state_dict", "model")  # where training scripts keep the weights beside other values
PYTHON = "load it in your own program and give it to privdd.api.audit_model, or name a predict function as target.model"


def model_of(name: str, args: Mapping[str, Any], weights: Path | None) -> Any:
    """What ``module:Class`` makes with ``args``, with the weights of a file; or a function that predicts, as it is.

    Raises BadConfig, one line: nothing of this name, a class that cannot be made, a network without weights.
    """
    if Path(name).suffix.lower() in PICKLES and ":" not in name:
        raise BadConfig(f"target.model={name}: a pickle can run any program and is not read; {PYTHON}")
    target = load_target(name, "target.model")
    if inspect.isclass(target):
        target = _made(name, target, args)
    elif args:
        raise BadConfig(f"target.args: {name} is no class, so nothing is made with them")
    if isinstance(target, nn.Module):
        if weights is not None:
            fill(target, weights)
        elif inspect.isclass(load_target(name, "target.model")):
            raise BadConfig(f"target.model={name}: target.weights=FILE is needed; a new network has seen no record")
    elif weights is not None:
        raise BadConfig(f"target.weights={weights}: {name} is no torch module, so nothing is read from it")
    return target


def _made(name: str, target: Any, args: Mapping[str, Any]) -> Any:
    try:
        return target(**args)
    except Exception as error:  # whatever the class raises
        given = ", ".join(f"{key}={value!r}" for key, value in args.items())
        said = " ".join(str(error).split())[:200]
        raise BadConfig(f"target.model={name}({given}): {type(error).__name__}: {said}") from error


def fill(model: nn.Module, path: Path) -> None:
    """Load a file of weights into ``model``. Raises BadConfig, naming those that are missing, unknown or of another shape."""
    found, own = read_weights(path), model.state_dict()
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


def read_weights(path: Path) -> Mapping[str, Tensor]:
    """name -> tensor, from safetensors, or from ``.pt`` read by torch's restricted reader (weights_only)."""
    if not path.is_file():
        raise BadConfig(f"target.weights={path}: no such file")
    if path.suffix.lower() == ".safetensors":
        try:
            return read_tensors(path)
        except DamagedRun as error:
            raise BadConfig(f"target.weights={error}") from None
    if path.suffix.lower() not in (".pt", ".pth"):
        raise BadConfig(f"target.weights={path}: .safetensors or a state_dict in .pt is read, never a pickle; {PYTHON}")
    try:
        found = torch.load(io.BytesIO(read_bytes(path, LARGEST_TENSORS)), map_location="cpu", weights_only=True)
    except Exception as error:  # zip, pickle and torch raise their own
        said = " ".join(str(error).split())[:80]
        raise BadConfig(
            f"target.weights={path}: holds more than tensors, or is damaged ({said}); save model.state_dict()"
        ) from error
    for key in INSIDE:
        if isinstance(found, Mapping) and isinstance(found.get(key), Mapping):
            found = found[key]
    if not isinstance(found, Mapping) or not found or not all(isinstance(value, Tensor) for value in found.values()):
        raise BadConfig(f"target.weights={path}: no state_dict (name -> tensor); save model.state_dict()")
    return {str(name): value for name, value in found.items()}


def _few(names: list[str]) -> str:
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
