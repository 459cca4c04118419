"""FedFed's feature split by DP-SGD: generator and classifier that may be published."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.func import functional_call

from privdd.channel import ClientContext
from privdd.core import Records, State, Tensors
from privdd.distill.split import FeatureSplit, SplitLoss, draw_noise
from privdd.privacy.dpsgd import QUERY, dp_local_sgd


def split_steps(epochs: int, sampling_probability: float) -> int:
    """Steps that draw each record ``epochs`` times on average: a public constant."""
    return max(1, round(epochs / sampling_probability))


def train_split_privately(
    model: FeatureSplit,
    state: State,
    records: Records,
    loss: SplitLoss,
    *,
    lr: float,
    momentum: float,
    epochs: int,
    ctx: ClientContext,
) -> State:
    """The joint loss, each record's gradient clipped over generator and classifier together."""
    shape, copies = records.x.shape[1:], len(loss.stds)
    latent = int(model.generator.latent)  # type: ignore[arg-type]
    generator = ctx.keys.fold("split-noise").torch()

    def draws(count: int) -> tuple[Tensor, ...]:
        noise = draw_noise(torch.empty(count, *shape), latent, copies, generator)
        return tuple(noise[name] for name in sorted(noise))

    names = sorted(["latent", *(f"copy_{i}" for i in range(copies))])

    def one(params: Tensors, x: Tensor, y: Tensor, *noise: Tensor) -> Tensor:
        return functional_call(model, dict(params), (x, y, dict(zip(names, noise)), loss))

    model.train()
    steps = split_steps(epochs, float(getattr(ctx.mechanisms[QUERY], "sampling_probability", 1.0)))
    return dp_local_sgd(
        model, state, records, lr=lr, momentum=momentum, weight_decay=0.0, steps=steps, ctx=ctx, loss=one, draws=draws
    )
