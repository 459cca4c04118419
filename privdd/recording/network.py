"""A network of the user's own with recorded parameters in it, and what single records would do to
them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from privdd.core.validation import BadConfig

GRADIENT_BATCH = 256  # records whose gradients are worked out side by side
MAX_BATCH_NUMBERS = 50_000_000  # numbers of these gradients, at most
MAX_KEPT_NUMBERS = 100_000_000  # of all records' gradients that are kept together


def build_network(make: Any, args: Mapping[str, Any]) -> nn.Module:
    """``make(**args)`` as a module in evaluation mode. Raises BadConfig, one line."""
    try:
        if isinstance(make, type) or not isinstance(make, nn.Module):
            model = make(**args)
        else:
            model = make
    except Exception as error:  # whatever the user's constructor raises
        raise BadConfig(f"model=: {type(error).__name__}: {error}") from error
    if not isinstance(model, nn.Module):
        raise BadConfig(f"model=: a torch.nn.Module is needed, got {type(model).__name__}")
    return model.eval()


def align_state(model: nn.Module, arrays: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The arrays by the names of the model's state: equal names, names with one prefix, or in the
    state's order. Raises BadConfig."""
    state = model.state_dict()
    aligned = dict(arrays)
    if state and set(aligned) != set(state):
        first = next(iter(state))
        for prefix in {name[: -len(first)] for name in arrays if name.endswith(first)}:
            cut = {n[len(prefix) :]: a for n, a in arrays.items() if n.startswith(prefix)}
            if set(cut) >= set(state):
                aligned = cut
                break
    if not set(aligned) >= set(state):
        if len(aligned) != len(state):
            raise BadConfig(
                f"model=: its state has {len(state)} tensors, the recorded message {len(aligned)}"
            )
        aligned = dict(zip(state, aligned.values()))
    for name, value in state.items():
        if aligned[name].shape != value.shape:
            shapes = f"the recorded one {tuple(aligned[name].shape)}"
            raise BadConfig(f"model=: {name} has shape {tuple(value.shape)}, {shapes}")
    return {name: aligned[name] for name in state}


def load_parameters(model: nn.Module, arrays: Mapping[str, Tensor]) -> None:
    model.load_state_dict(
        {name: value.clone() for name, value in align_state(model, arrays).items()}
    )


def parameter_difference(
    model: nn.Module, before: Mapping[str, Tensor], after: Mapping[str, Tensor]
) -> np.ndarray:
    """after - before of all trained parameters, (p,) float64."""
    old = align_state(model, before)
    new = align_state(model, after)
    names = [name for name, p in model.named_parameters() if p.requires_grad]
    differences = []
    for name in names:
        difference = new[name].double() - old[name].double()
        differences.append(difference.reshape(-1).numpy())
    return np.concatenate(differences)


def thinning_step(model: nn.Module, count: int) -> int:
    """k, so that every k-th parameter of ``count`` gradients fits into memory."""
    parameters = sum(p.numel() for p in model.parameters() if p.requires_grad)
    return max(1, math.ceil(count * parameters / MAX_KEPT_NUMBERS))


def record_losses(model: nn.Module, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Cross-entropy of each record, (n,) float64. Raises BadConfig for outputs that are no logits
    of these labels."""
    losses = []
    with torch.no_grad():
        for start in range(0, len(y), GRADIENT_BATCH):
            part = x[start : start + GRADIENT_BATCH]
            labels = y[start : start + GRADIENT_BATCH]
            out = _network_logits(model, part, labels).double()
            targets = torch.from_numpy(labels).long()
            losses_of_part = nn.functional.cross_entropy(out, targets, reduction="none")
            losses.append(losses_of_part.numpy())
    return np.concatenate(losses)


def record_descents(
    model: nn.Module, x: np.ndarray, y: np.ndarray, every: int = 1, clip: float | None = None
) -> np.ndarray:
    """Minus the loss gradient of each record, every k-th parameter: (n, p / k) float32. clip:
    largest norm of a whole gradient."""
    return np.concatenate([rows.numpy() for rows in _iterate_descents(model, x, y, every, clip)])


def class_descent_sums(
    model: nn.Module, x: np.ndarray, y: np.ndarray, every: int = 1, clip: float | None = None
) -> np.ndarray:
    """The sum of the descents of the records of each class that there is, (classes, p / k)
    float64."""
    labels, label_index = np.unique(y, return_inverse=True)
    sums: Any = 0
    start = 0
    for rows in _iterate_descents(model, x, y, every, clip):
        classes = torch.from_numpy(label_index[start : start + len(rows)])
        ones = torch.nn.functional.one_hot(classes, len(labels)).double()
        sums = sums + ones.T @ rows.double()
        start = start + len(rows)
    return sums.numpy()


def _iterate_descents(
    model: nn.Module, x: np.ndarray, y: np.ndarray, every: int, clip: float | None
) -> Iterator[Tensor]:
    """Batches of rows (b, p / k): side by side where the network allows, else one by one."""
    _network_logits(model, x[:1], y[:1])
    numbers = max(1, sum(p.numel() for p in model.parameters()))
    size = max(1, min(GRADIENT_BATCH, MAX_BATCH_NUMBERS // numbers))
    together = True
    for start in range(0, len(y), size):
        part = x[start : start + size], y[start : start + size]
        try:
            if together:
                rows = _gradients_together(model, *part)
            else:
                rows = _gradients_one_by_one(model, *part)
        # what torch.func cannot transform: in-place changes, loops over values, custom functions
        except RuntimeError:
            together = False
            rows = _gradients_one_by_one(model, *part)
        if clip is not None:
            norms = rows.norm(dim=1, keepdim=True).clamp_min(1e-30)
            rows = rows * (clip / norms).clamp_max(1.0)
        yield -rows[:, ::every].float()


def _gradients_together(model: nn.Module, x: np.ndarray, y: np.ndarray) -> Tensor:
    parameters_now = {name: p.detach() for name, p in model.named_parameters() if p.requires_grad}
    rest = {
        name: v.detach()
        for name, v in (*model.named_parameters(), *model.named_buffers())
        if name not in parameters_now
    }

    def loss_of_record(parameters: dict[str, Tensor], one: Tensor, label: Tensor) -> Tensor:
        out = torch.func.functional_call(model, {**parameters, **rest}, (one[None],))
        return nn.functional.cross_entropy(out, label[None])

    kind = next((p.dtype for p in parameters_now.values()), torch.float32)
    records = torch.from_numpy(np.ascontiguousarray(x)).to(kind)
    labels = torch.from_numpy(y).long()
    differentiate = torch.func.vmap(torch.func.grad(loss_of_record), in_dims=(None, 0, 0))
    gradients = differentiate(parameters_now, records, labels)
    return torch.cat([value.reshape(len(y), -1) for value in gradients.values()], 1)


def _gradients_one_by_one(model: nn.Module, x: np.ndarray, y: np.ndarray) -> Tensor:
    parameters = [p for p in model.parameters() if p.requires_grad]
    rows = []
    for index in range(len(y)):
        record = x[index : index + 1]
        label = y[index : index + 1]
        loss = nn.functional.cross_entropy(
            _network_logits(model, record, label), torch.from_numpy(label).long()
        )
        grads = torch.autograd.grad(loss, parameters, allow_unused=True, materialize_grads=True)
        rows.append(torch.cat([g.reshape(-1) for g in grads]))
    return torch.stack(rows)


def _network_logits(model: nn.Module, x: np.ndarray, y: np.ndarray) -> Tensor:
    kind = next((p.dtype for p in model.parameters()), torch.float32)
    try:
        out = model(torch.from_numpy(np.ascontiguousarray(x)).to(kind))
    except Exception as error:  # shapes that the user's network does not take
        raise BadConfig(
            f"model=: fails on canaries of shape {x.shape[1:]}: {type(error).__name__}: {error}"
        ) from error
    if (
        not isinstance(out, Tensor)
        or out.ndim != 2
        or len(out) != len(x)
        or out.shape[1] <= int(y.max())
    ):
        raise BadConfig(f"model=: logits (n, classes) for labels up to {int(y.max())} are needed")
    return out
