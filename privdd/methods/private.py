"""Local training by DP-SGD for the model-averaging methods."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad
from torch.nn import functional as F

from privdd.channel import ClientContext
from privdd.core import Records, State, Tensors
from privdd.methods.local import Correction, Mix, batches
from privdd.privacy.base import Mechanism


def private_steps(mechanism: Mechanism, epochs: float) -> int:
    """DP-SGD steps in ``epochs`` expected passes: epochs / sampling probability, at least one."""
    return max(1, round(epochs / float(getattr(mechanism, "sampling_probability", 1.0))))


def train_privately(
    model: nn.Module,
    params: Tensors,
    records: Records,
    *,
    lr: float,
    momentum: float,
    weight_decay: float,
    epochs: float,
    ctx: ClientContext,
    correct: Correction | None = None,
    extra: Mix | None = None,
) -> tuple[State, int]:
    """DP-SGD through the mechanism set for "dpsgd" -> (parameters, steps).

    The number of steps, epochs / sampling probability, is a public constant: it must not depend on
    how many records the client has. ``extra`` holds what everyone knows already, so its gradient is
    added after the noise, exactly, as a correction.
    """
    from privdd.privacy.dpsgd import dp_local_sgd  # Opacus is slow to import and few runs need it

    steps = private_steps(ctx.mechanisms["dpsgd"], epochs)
    if extra is not None:
        correct = _and_shared(model, extra, correct)
    trained = dp_local_sgd(
        model,
        params,
        records,
        lr=lr,
        momentum=momentum,
        weight_decay=weight_decay,
        steps=steps,
        ctx=ctx,
        correct=correct,
    )
    return dict(trained), steps


def _and_shared(model: nn.Module, extra: Mix, correct: Correction | None) -> Correction:
    """The given correction, then the gradient of the cross-entropy on one batch of shared records."""
    indices = batches(len(extra.records), extra.batch_size, extra.generator, extra.records.y.device)

    def loss(params: State, x: Tensor, y: Tensor) -> Tensor:
        return extra.weight * F.cross_entropy(functional_call(model, params, (x,)), y)

    def corrected(params: Tensors, grads: Tensors) -> Tensors:
        at = next(indices)
        grads = correct(params, grads) if correct is not None else grads
        with torch.enable_grad():
            more = grad(loss)(dict(params), extra.records.x[at], extra.records.y[at])
        return {name: value + more[name] for name, value in grads.items()}

    return corrected
