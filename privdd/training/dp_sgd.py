"""DP-SGD (Abadi et al. 2016, Algorithm 1): Poisson batches, each record's gradient clipped, noised sums.

Per-record gradients come from one backward pass to the layers' outputs (``record_gradients``); Opacus
decides which models have per-record gradients at all. Noise, clipping and accounting are those of the
mechanism set for the query "dpsgd"; the optimiser's steps are post-processing.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad
from torch.nn import functional as F

from privdd.core.loop_timing import timed_steps
from privdd.core.types import Records, State, Tensors
from privdd.federated.channel import ClientContext
from privdd.privacy.mechanism import Mechanism
from privdd.training.record_gradients import RecordLoss, record_gradients
from privdd.training.sgd import Correction, SharedBatches

Draws = Callable[[int, Tensor], tuple[Tensor, ...]]  # step, ids (n,) of a batch -> tensors (n, ...) that read no data
QUERY = "dpsgd"


def check_model(model: nn.Module) -> None:
    """Raises ValueError for layers that mix records or that Opacus does not support."""
    from opacus.validators import ModuleValidator  # slow to import, and methods that may use DP-SGD need not

    training = model.training
    errors = ModuleValidator.validate(model.train())
    model.train(training)
    if not errors:
        return
    mixing = sorted({type(m).__name__ for m in model.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)})
    if mixing:
        raise ValueError(f"model: {', '.join(mixing)} mixes records, so DP-SGD has no bound: set model.norm=group")
    problems = "; ".join(str(problem).splitlines()[0] for problem in errors)
    raise ValueError(f"model: no per-record gradients for DP-SGD: {problems}")


def cross_entropy_of(model: nn.Module) -> RecordLoss:
    """The default loss: cross-entropy of one record."""
    return lambda params, x, y: -F.log_softmax(functional_call(model, params, (x,)), 1).gather(1, y.unsqueeze(1)).mean()


def dp_local_sgd(
    model: nn.Module,
    params: Tensors,
    records: Records,
    *,
    lr: float,
    momentum: float,
    weight_decay: float,
    steps: int,
    ctx: ClientContext,
    correct: Correction | None = None,
    loss: RecordLoss | None = None,
    draws: Draws | None = None,
) -> State:
    """``steps`` steps of DP-SGD from ``params`` -> the new parameters, which depend on the records only
    through ``ctx.mechanism("dpsgd")``.

    loss: of one record, (parameters, x, y, *draws), default cross-entropy; draws: further per-record
    inputs that read no data (a generator's latent noise), where each record's row must depend on the step
    and its own id alone, else one record moves the sum by more than the clip norm. correct: changes the noised gradient and must
    read no records (a proximal term, control variates from noised gradients). Weight decay and
    heavy-ball momentum (PyTorch's rule) act on what it returns. steps must be a public constant.
    Raises ValueError for models whose layers mix records.
    """
    check_model(model)
    loss = loss or cross_entropy_of(model)
    state = {name: params[name].detach().clone() for name, _ in model.named_parameters()}
    velocity = {name: torch.zeros_like(value) for name, value in state.items()} if momentum else None
    for at in timed_steps(range(steps)):
        taken = ctx.sample(QUERY, len(records)).nonzero()[:, 0].to(records.y.device)
        x, y = records.x[taken], records.y[taken]
        extra = tuple(tensor.to(x.device) for tensor in draws(at, records.ids[taken])) if draws else ()
        released = ctx.mechanism(QUERY, record_gradients(loss, state, x, y, extra))
        gradients = correct(state, released) if correct else released
        with torch.no_grad():
            _apply_sgd_step(state, gradients, velocity, lr, momentum, weight_decay)
    return state


def _apply_sgd_step(
    state: State, gradients: Tensors, velocity: State | None, lr: float, momentum: float, weight_decay: float
) -> None:
    for name, value in state.items():
        step = gradients[name].to(value)
        if weight_decay:
            step = step + weight_decay * value
        if velocity is not None:
            step = velocity[name].mul_(momentum).add_(step)
        value.sub_(step, alpha=lr)


def count_private_steps(mechanism: Mechanism, epochs: float) -> int:
    """DP-SGD steps in ``epochs`` expected passes: epochs / sampling probability, at least one."""
    return max(1, round(epochs / float(mechanism.sampling_probability)))


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
    extra: SharedBatches | None = None,
) -> tuple[State, int]:
    """DP-SGD through the mechanism set for "dpsgd" -> (parameters, steps).

    The number of steps, epochs / sampling probability, is a public constant: it must not depend on
    how many records the client has. ``extra`` holds records that everyone knows already, so their exact
    gradient is added after the noise, as a correction.
    """
    steps = count_private_steps(ctx.mechanisms["dpsgd"], epochs)
    if extra is not None:
        correct = _add_shared_gradient(model, extra, correct)
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


def _add_shared_gradient(model: nn.Module, extra: SharedBatches, correct: Correction | None) -> Correction:
    """The given correction, then the gradient of the cross-entropy on one batch of shared records."""
    indices = extra.draw_indices(extra.records.y.device)

    def shared_loss(params: State, x: Tensor, y: Tensor) -> Tensor:
        return extra.weight * F.cross_entropy(functional_call(model, params, (x,)), y)

    def correct_gradients(params: Tensors, grads: Tensors) -> Tensors:
        at = next(indices)
        grads = correct(params, grads) if correct is not None else grads
        with torch.enable_grad():
            more = grad(shared_loss)(dict(params), extra.records.x[at], extra.records.y[at])
        return {name: value + more[name] for name, value in grads.items()}

    return correct_gradients
