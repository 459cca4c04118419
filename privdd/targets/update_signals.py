"""What captured updates say about records: three numbers for each, larger = more like a member."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from attacks.membership.ridge import SMALL, coefficients
from attacks.membership.signals import gradient_alignment, logit_scaled
from attacks.types import Capture
from privdd.targets.labelled import Labelled
from privdd.targets.predictor import predictor

BLOCK = 32  # gradients of single records at once
LARGEST = 50_000_000  # numbers of all records' gradients together, up to which they are solved for jointly


def signals_of_updates(
    model: nn.Module, captures: Sequence[Capture], records: Labelled, classes: int, gradients_sent: bool
) -> dict[str, Tensor]:
    """name -> (n,) float64, the mean over captures.

    "alignment": cosine of the change with each record's own descent direction at the model that was sent (the gradient
    attack of Nasr, Shokri and Houmansadr 2019); "joint": the same for all records at once, by ridge regression, where
    their gradients fit into memory; "confidence": by how much the client's training raised it, not of a sent gradient.
    """
    found: dict[str, list[Tensor]] = {}
    for capture in captures:
        names = [name for name, _ in model.named_parameters()]
        value = {name: capture.value[name].to(capture.broadcast[name].dtype) for name in names}
        change = {name: -value[name] if gradients_sent else value[name] - capture.broadcast[name] for name in names}
        step = torch.cat([change[name].flatten() for name in names])
        joint = len(records) * len(step) <= LARGEST
        cosines, kept = [], []
        for block in record_gradients(model, capture, records):
            cosines.append(gradient_alignment(step.double(), block.double()))
            kept += [block] if joint else []
        found.setdefault("alignment", []).append(torch.cat(cosines))
        if joint:
            found.setdefault("joint", []).append(coefficients(step, -torch.cat(kept), SMALL))
        if not gradients_sent:
            gained = _confidence(model, capture.value, capture, records, classes)
            gained = gained - _confidence(model, capture.broadcast, capture, records, classes)
            found.setdefault("confidence", []).append(gained)
    return {name: torch.stack(values).double().mean(0) for name, values in found.items()}


def record_gradients(model: nn.Module, capture: Capture, records: Labelled) -> Iterable[Tensor]:
    """Blocks (b, p) of each record's loss gradient at the model that was sent, in eval mode."""
    plain = _loaded(model, capture.broadcast)
    parameters = {name: p.detach() for name, p in plain.named_parameters()}
    buffers = {name: b for name, b in plain.named_buffers()}
    kind = next(iter(parameters.values())).dtype

    def loss(own: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        return nn.functional.cross_entropy(functional_call(plain, {**own, **buffers}, (x[None],)), y[None])

    each = vmap(grad(loss), in_dims=(None, 0, 0))
    for x, y in zip(records.x.split(BLOCK), records.y.split(BLOCK)):
        found = each(parameters, x.to(kind) if x.is_floating_point() else x, y)
        yield torch.cat([part.flatten(1) for part in found.values()], 1)


def _confidence(
    model: nn.Module, state: Mapping[str, Tensor], capture: Capture, records: Labelled, classes: int
) -> Tensor:
    held = _loaded(model, {**capture.broadcast, **state})
    return logit_scaled(predictor(held, "target.model")(records.x, classes), records.y)


def _loaded(model: nn.Module, state: Mapping[str, Tensor]) -> nn.Module:
    held = copy.deepcopy(model)
    held.load_state_dict(dict(state))
    return held.eval()
