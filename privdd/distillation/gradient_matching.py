"""Gradient matching: images whose training gradient points where a given gradient points.

Zhao, Mopuri and Bilen, "Dataset Condensation with Gradient Matching" (ICLR 2021), section 3: per
layer and output unit 1 - cosine, summed. FedLGD (Huang et al. 2024, equations 5 to 7) matches the
average of the clients' gradients on the server.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F

from privdd.core.long_loops import turns

EPSILON = 1e-6  # in the denominator, as the published code has it


def gradient_distance(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> Tensor:
    """Sum over layers and output units of 1 - cosine(a, b); tensors of one axis do not count.

    a, b: gradients by parameter name; a weight's first axis runs over its output units.
    """
    total = torch.zeros(())
    for name in a:
        if a[name].ndim < 2:
            continue
        left, right = a[name].flatten(1), b[name].flatten(1)
        norms = left.norm(dim=1) * right.norm(dim=1)
        total = total + (1 - (left * right).sum(1) / (norms + EPSILON)).sum()
    return total


def compared(model: nn.Module, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The weights in ``state`` whose gradients are compared: parameters of at least two axes."""
    return {name: state[name].detach() for name, parameter in model.named_parameters() if parameter.ndim >= 2}


def slopes(
    model: nn.Module, state: Mapping[str, Tensor], x: Tensor, y: Tensor, *, graph: bool = False
) -> dict[str, Tensor]:
    """Gradient of the cross-entropy of x (b, c, h, w) and y (b,) at ``state``, of the weights that are compared.

    graph: it can be differentiated by x.
    """
    params = {name: value.requires_grad_(True) for name, value in compared(model, state).items()}
    loss = F.cross_entropy(functional_call(model, {**state, **params}, (x,)), y)
    return dict(zip(params, torch.autograd.grad(loss, list(params.values()), create_graph=graph)))


def match_gradient(
    model: nn.Module,
    state: Mapping[str, Tensor],
    target: Mapping[str, Tensor],
    images: Tensor,
    labels: Tensor,
    *,
    iterations: int,
    lr: float,
    momentum: float,
) -> Tensor:
    """Move ``images`` (m, c, h, w) until the gradient of their cross-entropy at ``state`` fits ``target``.

    target: gradient by parameter name; its length does not matter. One batch holds all images. The
    model should be free of batch norm. Returns the images.
    """
    x, velocity = images.detach(), torch.zeros_like(images)
    for _ in turns(range(iterations)):
        x = x.detach().requires_grad_(True)
        distance = gradient_distance(slopes(model, state, x, labels, graph=True), target)
        velocity = momentum * velocity + torch.autograd.grad(distance, x)[0]
        x = x - lr * velocity
    return x.detach()
