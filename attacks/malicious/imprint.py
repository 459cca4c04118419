"""A first layer that keeps records apart, so that an update holds them one by one.

Fowl, Geiping, Czaja, Goldblum and Goldstein, "Robbing the Fed" (ICLR 2022), and Boenisch et al.,
"When the Curious Abandon Honesty" (2021): where one record alone activates a unit, the change of
that unit's weights over the change of its bias is that record, exactly. Here each unit measures
along its own direction and is rarely active (Fowl et al.'s sparse variant), so that it holds
through many local steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from attacks.malicious.chosen_model import ChosenModel, cluster_rows, draw_gates, linear_layers
from attacks.types import Evidence, Surface, View
from attacks.validation import check_counts

# Of the first and the second layer and the head. Small products, so that local training hardly
# moves the thresholds: a step changes a layer by the step size times the product of the other two,
# and training takes far fewer than 1 / that steps.
FIRST_SCALE = 0.02
SECOND_SCALE = 3e-4
HEAD_SCALE = 0.1
PIXEL_TOLERANCE = 0.05  # by how much a pixel may leave [0, 1] in a row that is taken for a record
MIN_BIAS_CHANGE = 1e-3  # of the largest bias change: below it a unit was not activated


def records_from_layer(
    before: tuple[Tensor, Tensor], after: tuple[Tensor, Tensor], count: int
) -> Tensor:
    """At most ``count`` records (m, d) in [0, 1] from a first layer's weights (u, d) and bias (u,),
    before and after.

    Weight decay shrinks all units alike, by a factor that is read from the idle units.
    """
    # dW_i = (dL/db_i) x for a unit that one record alone activates, so x = dW_i / db_i
    weight, bias = (value.double() for value in before)
    new_weight, new_bias = (value.double() for value in after)
    decay = _weight_decay_factor(weight, new_weight)
    weight_change = new_weight - decay * weight
    bias_change = new_bias - decay * bias
    is_active = bias_change.abs() > MIN_BIAS_CHANGE * bias_change.abs().max().clamp_min(1e-300)
    rows = weight_change[is_active] / bias_change[is_active].unsqueeze(1)
    fits = (rows.amin(1) > -PIXEL_TOLERANCE) & (rows.amax(1) < 1 + PIXEL_TOLERANCE)
    return cluster_rows(rows[fits].clamp(0, 1).float(), count)


def _weight_decay_factor(before: Tensor, after: Tensor) -> Tensor:
    """The factor that most idle rows were multiplied by: those closest to a multiple of what they
    were."""
    factor = (before * after).sum(1) / before.square().sum(1).clamp_min(1e-300)
    off = (after - factor.unsqueeze(1) * before).norm(dim=1)
    idle = off.argsort()[: max(1, len(off) // 10)]
    return factor[idle].median()


@dataclass(frozen=True)
class Imprint(ChosenModel):
    """units: of the first layer; more of them isolate more records."""

    units: int = 1024
    name: ClassVar[str] = "imprint"
    surfaces: ClassVar[frozenset[Surface]] = frozenset({Surface.UPDATE})

    def __post_init__(self) -> None:
        check_counts(self, "units")

    def hidden_width(self, pixels: int, classes: int) -> int:
        return self.units

    def set_parameters(
        self, model: nn.Module, public_x: Tensor, records: int, generator: torch.Generator
    ) -> None:
        """Every unit opens for one record in ``records``; all of them end in one unit of the second
        layer."""
        first, second, head = linear_layers(model)
        directions, thresholds = draw_gates(
            public_x, first.out_features, 1 / max(records, 2), generator
        )
        with torch.no_grad():
            first.weight.copy_(FIRST_SCALE * directions)
            first.bias.copy_(-FIRST_SCALE * thresholds)
            for layer in (second, head):
                layer.weight.zero_()
                layer.bias.zero_()
            second.weight[0] = SECOND_SCALE
            # the unit stays open for every record, whichever way training moves it
            second.bias[0] = 1.0
            # no class at the others' mean
            head.weight[:, 0] = HEAD_SCALE * torch.linspace(0, 1, head.out_features).square()

    def record_contributions(self, model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        """The size of each record's gradient in each unit of the first layer."""
        first = linear_layers(model)[0]
        outputs: list[Tensor] = []
        handle = first.register_forward_hook(lambda module, inputs, out: outputs.append(out))
        try:
            loss = nn.functional.cross_entropy(model(x), y, reduction="sum")
            pull = torch.autograd.grad(loss, outputs[0])[0]
        finally:
            handle.remove()
        return pull.abs() * x.flatten(1).norm(dim=1, keepdim=True)

    def run(self, view: View, generator: torch.Generator) -> Evidence:
        """images (m, c, h, w): all records that the update reveals, at most as many as the client
        holds."""
        capture = view.captures[0]
        count = int(view.knowledge.settings["batch_records"])
        weight, bias = first_layer_names(view.knowledge.model)
        before = (capture.broadcast[weight], capture.broadcast[bias])
        after = (capture.value[weight], capture.value[bias])
        records = records_from_layer(before, after, count)
        if not len(records):
            records = view.knowledge.public_x.mean(0).flatten()[None]
        return Evidence(images=records.reshape(-1, *view.knowledge.shape))


def first_layer_names(model: nn.Module | None) -> tuple[str, str]:
    """The names of the first linear layer's weight and bias."""
    layers = []
    if model is not None:
        modules = model.named_modules()
        layers = [name for name, module in modules if isinstance(module, nn.Linear)]
    if not layers:
        raise ValueError("imprint: the view holds no model with a linear layer")
    return f"{layers[0]}.weight", f"{layers[0]}.bias"
