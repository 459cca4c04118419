"""What captured updates say about records: three numbers for each, larger = more like a member."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor, nn

from attacks.membership.ridge import SMALL, coefficients
from attacks.membership.signals import gradient_alignment, logit_scaled
from attacks.types import Capture
from privdd.auditing.record_gradients import RecordGradients
from privdd.auditing.targets.labelled import Labelled
from privdd.auditing.targets.predictor import predictor

LARGEST = 50_000_000  # numbers of all records' gradients together, up to which they are solved for jointly


def signals_of_updates(
    model: nn.Module, captures: Sequence[Capture], records: Labelled, classes: int, gradients_sent: bool
) -> dict[str, Tensor]:
    """name -> (n,) float64, the mean over captures; see ``signals_of_worlds``."""
    return {
        name: values[0]
        for name, values in signals_of_worlds(model, [captures], records, classes, gradients_sent).items()
    }


def signals_of_worlds(
    model: nn.Module, worlds: Sequence[Sequence[Capture]], records: Labelled, classes: int, gradients_sent: bool
) -> dict[str, Tensor]:
    """name -> (K, n) float64, the mean over captures; worlds: the same rounds each, sent the same models.

    "alignment": cosine of the change with each record's own descent direction at the model that was sent (the gradient
    attack of Nasr, Shokri and Houmansadr 2019); "joint": the same for all records at once, by ridge regression, where
    their gradients fit into memory; "confidence": by how much the client's training raised it, not of a sent gradient.
    """
    found: dict[str, list[Tensor]] = {}
    for same_round in zip(*worlds, strict=True):
        sent, names = same_round[0], [name for name, _ in model.named_parameters()]
        steps = torch.stack([_step(one, names, gradients_sent) for one in same_round])
        joint = len(records) * steps.shape[1] <= LARGEST
        cosines, kept = [], []
        for block in record_gradients(model, sent, records):
            rows = block.double()
            cosines.append(torch.stack([gradient_alignment(step.double(), rows) for step in steps]))
            kept += [block] if joint else []
        found.setdefault("alignment", []).append(torch.cat(cosines, 1))
        if joint:
            found.setdefault("joint", []).append(coefficients(steps, -torch.cat(kept), SMALL))
        if not gradients_sent:
            before = _confidence(model, sent.broadcast, sent, records, classes)
            after = [_confidence(model, one.value, one, records, classes) for one in same_round]
            found.setdefault("confidence", []).append(torch.stack(after) - before)
    return {name: torch.stack(values).double().mean(0) for name, values in found.items()}


def _step(capture: Capture, names: Sequence[str], gradients_sent: bool) -> Tensor:
    """(p,): the change of all parameters, or minus the gradient."""
    value = {name: capture.value[name].to(capture.broadcast[name].dtype) for name in names}
    change = {name: -value[name] if gradients_sent else value[name] - capture.broadcast[name] for name in names}
    return torch.cat([change[name].flatten() for name in names])


def record_gradients(model: nn.Module, capture: Capture, records: Labelled) -> Iterable[Tensor]:
    """Blocks (b, p) of each record's loss gradient at the model that was sent, in eval mode."""
    plain = loaded(model, capture.broadcast)
    weights = {name: value.detach() for name, value in plain.named_parameters()}  # tied ones once
    state, names = weights | dict(plain.named_buffers()), tuple(weights)
    kind = state[names[0]].dtype
    x = records.x.to(kind) if records.x.is_floating_point() else records.x
    return RecordGradients(plain, state, x, records.y, names).blocks()


def _confidence(
    model: nn.Module, state: Mapping[str, Tensor], capture: Capture, records: Labelled, classes: int
) -> Tensor:
    held = loaded(model, {**capture.broadcast, **state})
    return logit_scaled(predictor(held, "target.model")(records.x, classes), records.y)


def loaded(model: nn.Module, state: Mapping[str, Tensor]) -> nn.Module:
    """A copy of the model with these values, in eval mode."""
    held = copy.deepcopy(model)
    held.load_state_dict(dict(state))
    return held.eval()
