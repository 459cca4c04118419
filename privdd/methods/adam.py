"""Training with Adam (Kingma and Ba 2015), for methods whose papers ask for it."""

from __future__ import annotations

import torch
from torch import nn

from privdd.core import Records, State, Tensors
from privdd.methods.local import Loss, Replica, batches, cross_entropy, step_count


def local_adam(
    model: nn.Module,
    params: Tensors,
    records: Records,
    *,
    lr: float,
    batch_size: int,
    epochs: float,
    generator: torch.Generator,
    loss: Loss | None = None,
) -> State:
    """Adam with PyTorch's defaults, fresh each call -> state after ``epochs`` passes in train mode.

    params: parameters and float buffers by name; both come back. Raises ValueError for no records.
    """
    if len(records) == 0:
        raise ValueError("records=0: training needs at least one record")
    replica, loss = Replica(model, params), loss or cross_entropy
    net, flat = replica.module.train(), replica.flat
    x, y = records.x.to(flat), records.y.to(flat.device)
    index = batches(len(y), batch_size, generator, flat.device)
    flat.grad = replica.grad
    optimiser = torch.optim.Adam([flat], lr=lr)
    for _ in range(step_count(len(y), batch_size, epochs)):
        replica.grad.zero_()
        at = next(index)
        loss(net, x[at], y[at]).backward()
        optimiser.step()
    return replica.state()
