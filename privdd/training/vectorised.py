"""K models of one architecture trained as one wide network: many small matrix products become few large ones.

The models lie side by side as channels: activations are (b, K * c, h, w) and (b, K * d), a convolution
becomes one with K groups and a linear layer one batched product. What every model computes is what it
would compute alone, up to the order of its sums.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from privdd.core.types import Records, State, Tensors
from privdd.training.sgd import Correction, count_steps, draw_batches, share_tensors

POINTWISE = (nn.ReLU, nn.LeakyReLU, nn.Sigmoid, nn.Tanh, nn.Identity, nn.MaxPool2d, nn.AvgPool2d)


class WideConv(nn.Module):
    """K convolutions; weight (K, out, in, kh, kw), bias (K, out) or None."""

    def __init__(self, conv: nn.Conv2d, weight: Tensor, bias: Tensor | None) -> None:
        super().__init__()
        self.weight, self.bias, self.conv = weight, bias, [conv]  # in a list: not a submodule

    def forward(self, x: Tensor) -> Tensor:
        conv, bias = self.conv[0], None if self.bias is None else self.bias.flatten()
        groups = len(self.weight) * conv.groups
        return F.conv2d(x, self.weight.flatten(0, 1), bias, conv.stride, conv.padding, conv.dilation, groups)  # type: ignore[arg-type]


class WideLinear(nn.Module):
    """K linear layers; weight (K, out, in), bias (K, out) or None."""

    def __init__(self, linear: nn.Linear, weight: Tensor, bias: Tensor | None) -> None:
        super().__init__()
        self.weight, self.bias = weight, bias

    def forward(self, x: Tensor) -> Tensor:
        count, _, inputs = self.weight.shape
        x, weight = x.view(len(x), count, inputs).transpose(0, 1), self.weight.transpose(1, 2)
        out = torch.bmm(x, weight) if self.bias is None else torch.baddbmm(self.bias[:, None], x, weight)
        return out.transpose(0, 1).flatten(1)


class WideGroupNorm(nn.Module):
    """K group norms; weight and bias (K, channels)."""

    def __init__(self, norm: nn.GroupNorm, weight: Tensor, bias: Tensor | None) -> None:
        super().__init__()
        self.weight, self.bias, self.groups, self.eps = weight, bias, norm.num_groups, norm.eps

    def forward(self, x: Tensor) -> Tensor:
        bias = None if self.bias is None else self.bias.flatten()
        return F.group_norm(x, len(self.weight) * self.groups, self.weight.flatten(), bias, self.eps)


WIDE_LAYERS: dict[type[nn.Module], Callable[[Any, Tensor, Tensor | None], nn.Module]] = {
    nn.Conv2d: WideConv,
    nn.Linear: WideLinear,
    nn.GroupNorm: WideGroupNorm,
}


def is_vectorisable(model: nn.Module) -> bool:
    """Whether every layer of a network has a wide form (batch norm, for one, has none)."""
    leaves = [part for part in model.modules() if not list(part.children())]
    plain = all(type(leaf) in POINTWISE or (type(leaf) in WIDE_LAYERS and leaf.weight is not None) for leaf in leaves)
    padded = any(isinstance(leaf, nn.Conv2d) and leaf.padding_mode != "zeros" for leaf in leaves)
    return plain and not padded and not list(model.buffers())


class ModelEnsemble:
    """K trainable copies of a model, all starting at ``copy_state``, in flat vectors as ``Replica`` has them.

    params, grads: name -> (K, *shape), views of ``flat`` and ``grad``.
    """

    def __init__(self, model: nn.Module, state: Tensors, count: int) -> None:
        self.module: Any = share_tensors(model)
        shapes = {name: p.shape for name, p in self.module.named_parameters()}
        self.flat = torch.cat([state[name].detach().reshape(-1).repeat(count) for name in shapes])
        self.grad = torch.zeros_like(self.flat)
        self.params: State = {}
        self.grads: State = {}
        leaves: State = {}
        sizes = [count * shape.numel() for shape in shapes.values()]
        for (name, shape), part, slope in zip(shapes.items(), self.flat.split(sizes), self.grad.split(sizes)):
            leaf = part.view(count, *shape).requires_grad_(True)
            leaf.grad = slope.view(count, *shape)
            leaves[name], self.params[name], self.grads[name] = leaf, leaf.detach(), leaf.grad
        for name, part in list(self.module.named_modules()):
            if type(part) in WIDE_LAYERS:
                wide = WIDE_LAYERS[type(part)](part, leaves[f"{name}.weight"], leaves.get(f"{name}.bias"))
                owner, _, leaf_name = name.rpartition(".")
                setattr(self.module.get_submodule(owner), leaf_name, wide)

    def copy_state(self, k: int) -> State:
        """Copies of one model's parameters, by name."""
        return {name: tensor[k].clone() for name, tensor in self.params.items()}

    def correct_gradients(self, correction: Correction) -> None:
        """Replace the gradients by ``correction(parameters, gradients)``, all K at once."""
        for name, value in correction(self.params, self.grads).items():
            if value is not self.grads[name]:
                self.grads[name].copy_(value)


@dataclass(frozen=True)
class BatchPlan:
    """The batch of every model at every step: at (S, b, K) positions in a pool, weight (S, b, K).

    A batch shorter than b is filled up with records of weight zero; the weights of a batch add up to
    one, or to zero once its model has taken all its steps (K,).
    """

    at: Tensor
    weight: Tensor
    steps: tuple[int, ...]


def plan_batches(
    rows: Sequence[Tensor], batch_size: int, steps: Sequence[int], generators: Sequence[torch.Generator]
) -> BatchPlan:
    """The batches that each model would draw alone, from its own records (positions) and generator."""
    width, longest = min(batch_size, max(len(r) for r in rows)), max(steps)
    at = torch.zeros(longest, width, len(rows), dtype=torch.long)
    weight = torch.zeros(longest, width, len(rows))
    for k, (own, count, generator) in enumerate(zip(rows, steps, generators)):
        drawn = draw_batches(len(own), batch_size, generator, torch.device("cpu"))
        for s in range(count):
            index = next(drawn)
            at[s, : len(index), k], weight[s, : len(index), k] = own[index], 1 / len(index)
    return BatchPlan(at, weight, tuple(steps))


def pool_records(parts: Sequence[Records]) -> tuple[Records, list[Tensor]]:
    """The union of the records of several replays of a client, once each by id, and the positions of each replay's."""
    positions: dict[int, int] = {}
    rows, fresh = [], []
    for part in parts:
        ids = part.ids.tolist()
        new = [i for i, identity in enumerate(ids) if identity not in positions]
        positions |= {ids[i]: len(positions) + n for n, i in enumerate(new)}
        fresh.append(part.take(torch.tensor(new, dtype=torch.long)))
        rows.append(torch.tensor([positions[identity] for identity in ids]))
    return Records.concat(fresh), rows


def vectorised_sgd(
    model: nn.Module,
    params: Tensors,
    clients: Sequence[Records],
    *,
    lr: float,
    momentum: float = 0.0,
    weight_decay: float = 0.0,
    batch_size: int,
    epochs: float | None = None,
    steps: int | None = None,
    generators: Sequence[torch.Generator],
    correct: Correction | None = None,
) -> list[tuple[State, int]]:
    """``local_sgd`` for K sets of records at once -> (state, steps taken) of each, equal up to rounding.

    All start at ``params``; clients may hold different numbers of records, their ids must tell records
    apart. The correction sees parameters and gradients with a first axis over the K models and acts
    on each entry by itself. Raises ValueError where ``is_vectorisable`` is False or a client is empty.
    """
    if not is_vectorisable(model):
        raise ValueError(f"model={type(model).__name__}: one of its layers has no form for many models at once")
    if not all(len(records) for records in clients):
        raise ValueError("records=0: a client needs at least one record to train; drop empty clients from the round")
    if (epochs is None) == (steps is None):
        raise ValueError(f"epochs={epochs!r}, steps={steps!r}: exactly one of the two is needed")
    pool, rows = pool_records(clients)
    counts = [steps if steps is not None else count_steps(len(r), batch_size, epochs or 0.0) for r in rows]
    drawn = plan_batches(rows, batch_size, counts, generators)
    ensemble = ModelEnsemble(model, params, len(clients))
    pool = pool.to(ensemble.flat.device)
    ended: dict[int, State] = {}
    velocity = torch.zeros_like(ensemble.flat) if momentum else None
    for s in range(max(counts)):
        _compute_gradients(ensemble, pool, drawn.at[s].to(pool.y.device), drawn.weight[s].to(ensemble.flat))
        with torch.no_grad():
            if correct is not None:
                ensemble.correct_gradients(correct)
            _apply_sgd_step(ensemble, velocity, lr, momentum, weight_decay)
        ended |= {k: ensemble.copy_state(k) for k, count in enumerate(counts) if count == s + 1}
    return [(ended[k], count) for k, count in enumerate(counts)]


def _compute_gradients(ensemble: ModelEnsemble, pool: Records, at: Tensor, weight: Tensor) -> None:
    """Every model's gradient of its own mean cross-entropy, into ``ensemble.grad``."""
    ensemble.grad.zero_()
    x, y = pool.x[at].to(ensemble.flat), pool.y[at]
    logits = ensemble.module(x.flatten(1, 2)).view(*at.shape, -1)
    losses = F.cross_entropy(logits.flatten(0, 1), y.flatten(), reduction="none")
    (losses * weight.flatten()).sum().backward()


def _apply_sgd_step(
    ensemble: ModelEnsemble, velocity: Tensor | None, lr: float, momentum: float, weight_decay: float
) -> None:
    flat, grad = ensemble.flat.detach(), ensemble.grad
    if weight_decay:
        grad.add_(flat, alpha=weight_decay)
    flat.sub_(grad if velocity is None else velocity.mul_(momentum).add_(grad), alpha=lr)
