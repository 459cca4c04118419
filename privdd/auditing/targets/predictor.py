"""A trained model of any kind as one function: records in, one number for each class out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from privdd.core.errors import BadConfig

BATCH = 1024
FLOOR = 1e-6  # a probability of 0 or 1, as trees give it, is read as one in a million: its logarithm stays finite


@dataclass(frozen=True)
class Predictor:
    """ask: records (b, ...) -> whatever the model gives; key: what messages call it."""

    ask: Callable[[Tensor], Any]
    key: str

    def __call__(self, x: Tensor, classes: int = 2) -> Tensor:
        """(n, C >= classes) float64, softmax of which are the model's probabilities. Raises BadConfig."""
        parts = [as_logits(self.ask(part), self.key, classes) for part in x.split(BATCH)]
        if len({part.shape[1] for part in parts}) > 1:
            raise BadConfig(f"{self.key}: gives numbers for another set of classes from one batch to the next")
        return torch.cat(parts)

    def classes(self, x: Tensor, labels: Tensor) -> int:
        """How many classes it knows. Raises BadConfig where it cannot read such records, or a label is not among them."""
        try:
            found = self.ask(x[:2])
        except BadConfig:
            raise
        except Exception as error:  # whatever the model raises
            said = " ".join(str(error).split())[:200]
            raise BadConfig(f"{self.key}: cannot read records of shape {tuple(x.shape[1:])}: {said}") from error
        most = int(labels.max()) + 1
        if _array(found, self.key).dtype.kind in "biu" and np.ndim(found) == 1:
            return max(2, most)  # predicted labels: they do not say which other classes there are
        logits = as_logits(found, self.key)
        if len(logits) != 2:
            raise BadConfig(f"{self.key}: gives {tuple(np.shape(found))} for 2 records; (2, classes) is needed")
        if most > logits.shape[1]:
            raise BadConfig(f"{self.key}: knows {logits.shape[1]} classes, labels go up to {most - 1} (0 is the first)")
        return logits.shape[1]


def predictor(model: Any, key: str = "model", kind: str = "numpy") -> Predictor:
    """A torch module (set to eval mode), a scikit-learn estimator, or a function of records.

    What an estimator or a function gives for b records may be probabilities (b, C) or logits (b, C), decision values
    (b,) of two classes, or labels (b,) of whole numbers. kind: which arrays a function is called with. Raises BadConfig.
    """
    if isinstance(model, nn.Module):
        model.eval()
        return Predictor(lambda x: _of_module(model, x, key), key)
    for name in ("predict_proba", "decision_function", "predict"):
        method = getattr(model, name, None)
        if callable(method):
            return Predictor(lambda x, f=method: f(x.numpy()), key)  # type: ignore[misc]
    if callable(model):
        return Predictor(lambda x: model(x if kind == "torch" else x.numpy()), key)
    raise BadConfig(
        f"{key}: a torch module, a scikit-learn estimator or a function is needed, got {type(model).__name__}"
    )


def as_logits(values: Any, key: str, classes: int = 2) -> Tensor:
    """(b, C) float64 from probabilities, logits, decision values or labels. Raises BadConfig for anything else."""
    found = _array(values, key)
    if found.dtype.kind not in "biuf" or found.ndim not in (1, 2) or not np.isfinite(found).all():
        raise BadConfig(f"{key}: gives {found.dtype} {found.shape}; finite numbers (b, C), or (b,), are needed")
    if found.ndim == 1 and found.dtype.kind in "biu":
        if found.min(initial=0) < 0 or found.max(initial=0) >= classes:
            raise BadConfig(f"{key}: predicts labels from {found.min()} to {found.max()}; 0 to {classes - 1} are known")
        return _log(np.eye(classes)[found.astype(int)])
    if found.ndim == 1 or found.shape[1] == 1:  # one decision value: of class 1 against class 0
        value = torch.from_numpy(found.astype(np.float64).reshape(-1))
        return torch.stack([torch.zeros_like(value), value], 1)
    if (found >= 0).all() and np.allclose(found.sum(1), 1, atol=1e-3):
        return _log(found)
    return torch.from_numpy(found.astype(np.float64))


def _array(values: Any, key: str) -> NDArray[Any]:
    try:
        return values.detach().cpu().numpy() if isinstance(values, Tensor) else np.asarray(values)
    except (ValueError, TypeError) as error:  # lists of unequal lengths
        raise BadConfig(f"{key}: gives no array of numbers ({' '.join(str(error).split())[:100]})") from None


def _log(probabilities: NDArray[Any]) -> Tensor:
    return torch.from_numpy(np.log(np.clip(probabilities.astype(np.float64), FLOOR, 1)))


def _of_module(model: nn.Module, x: Tensor, key: str) -> Tensor:
    """The module's own kind of number goes in, unless it looks records up as whole numbers."""
    first = next(model.parameters(), None)
    looks_up = any(isinstance(part, nn.Embedding | nn.EmbeddingBag) for part in model.modules())
    if not (looks_up and not x.is_floating_point()):
        x = x.to(torch.float32 if first is None else first.dtype)
    with torch.no_grad():
        found = model(x if first is None else x.to(first.device))
    if not isinstance(found, Tensor):
        raise BadConfig(f"{key}: gives {type(found).__name__}; a tensor (b, classes) is needed")
    return found
