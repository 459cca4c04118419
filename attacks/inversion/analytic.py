"""The exact inputs of a linear layer from its gradients (Phong et al. 2018; Geiping et al. 2020,
sec. 3)."""

from __future__ import annotations

import contextlib
import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from attacks.inversion.evaluation import _require_images, compare_with_records, own_records
from attacks.inversion.feature_inversion import WhiteBox
from attacks.inversion.victim import (
    Channelwise,
    PixelScale,
    Reconstruction,
    are_of_one_model,
    check_gradient_request,
    keeps_rows_apart,
    observed_gradients,
    victim_model,
)
from attacks.tensors import accepts_numpy
from attacks.types import (
    SERVER_ONLY,
    UPDATE_SURFACES,
    Attack,
    Capture,
    Evidence,
    Family,
    Finding,
    Truth,
    View,
)
from attacks.validation import check_counts


@accepts_numpy
def linear_inputs(weight_grad: Tensor, bias_grad: Tensor) -> Tensor:
    """Candidates for the layer's input, (rows, d), the most reliable first, from weight_grad (m, d)
    and bias_grad (m,).

    Of one record, every row is that record exactly. Of several, a row is one record only if that
    record alone activates it, else a mixture. Raises ValueError if no row has a bias gradient.
    """
    # dL/dW_i = (dL/db_i) x,  so  x = dW_i / db_i  for every row with db_i != 0, by falling |db_i|
    if weight_grad.ndim != 2 or bias_grad.shape != weight_grad.shape[:1]:
        shapes = tuple(weight_grad.shape), tuple(bias_grad.shape)
        raise ValueError(f"weight_grad, bias_grad have shapes {shapes}: (m, d) and (m,) are needed")
    order = bias_grad.abs().argsort(descending=True)
    order = order[bias_grad[order] != 0]
    if not len(order):
        raise ValueError(
            "bias_grad is zero everywhere: the layer carries no information about its input"
        )
    inputs = weight_grad[order].double() / bias_grad[order].double().unsqueeze(1)
    return inputs.to(weight_grad.dtype)


@accepts_numpy
def distinct_rows(rows: Tensor, count: int, similarity: float = 0.999) -> Tensor:
    """At most ``count`` rows, each with a cosine below ``similarity`` to every earlier pick."""
    picks: list[Tensor] = []
    for row in rows:
        cosines = (float(torch.cosine_similarity(row, pick, dim=0)) for pick in picks)
        if all(cosine < similarity for cosine in cosines):
            picks.append(row)
        if len(picks) == count:
            break
    return torch.stack(picks)


def biased_linear_layers(model: nn.Module) -> list[nn.Linear]:
    """The model's linear layers that have a bias, first to last."""
    return [m for m in model.modules() if isinstance(m, nn.Linear) and m.bias is not None]


@accepts_numpy
def layer_inputs(model: nn.Module, gradients: Sequence[Tensor], layer: nn.Linear) -> Tensor:
    """``linear_inputs`` of one layer of ``model``; gradients in the order of
    ``model.parameters()``."""
    by_id = {id(p): g for p, g in zip(model.parameters(), gradients)}
    return linear_inputs(by_id[id(layer.weight)], by_id[id(layer.bias)])


@accepts_numpy
def reconstruct_from_layer(
    model: nn.Module,
    gradients: Sequence[Tensor],
    shape: tuple[int, ...],
    *,
    mean: Channelwise = 0.0,
    std: Channelwise = 1.0,
    invert: Callable[[Tensor], Tensor] | None = None,
) -> Reconstruction:
    """Images (b, c, h, w), or rows (b, d), from the first biased linear layer: exact if it
    reads the records.

    invert: (b, d) layer inputs -> (b, c, h, w) images, for a layer that reads features; without it
    the layer must have as many inputs as a record has numbers, else ValueError. Places beyond the
    distinct inputs repeat the first one.
    """
    check_gradient_request(gradients, list(model.parameters()), shape)
    layers = biased_linear_layers(model)
    if not layers:
        raise ValueError("the model has no linear layer with a bias")
    rows = distinct_rows(layer_inputs(model, gradients, layers[0]), shape[0])
    distinct = len(rows)
    rows = torch.cat([rows, rows[:1].expand(shape[0] - distinct, -1)])
    if invert is not None:
        images = invert(rows)
    elif rows.shape[1] == math.prod(shape[1:]):
        images = PixelScale(mean, std).to_image(rows.reshape(shape))
    else:
        raise ValueError(
            f"the first linear layer reads {rows.shape[1]} features, not pixels: pass invert="
        )
    unknown = torch.full((shape[0],), -1, dtype=torch.int64, device=images.device)
    return Reconstruction(images, unknown, 0.0, diagnostics={"distinct": float(distinct)})


def _keep_rows(rows: Tensor) -> Tensor:
    return rows


@dataclass(frozen=True)
class AnalyticInversion(Attack):
    """The exact input of the first biased linear layer; features are inverted in turn, with the map
    known."""

    whitebox: WhiteBox = field(default_factory=lambda: WhiteBox(iterations=500, tv=1e-3))
    captures: int = 8
    name: str = "analytic_inversion"
    family = Family.GRADIENT_INVERSION
    on_gpu = True
    surfaces = UPDATE_SURFACES
    adversaries = SERVER_ONLY

    def __post_init__(self) -> None:
        check_counts(self, "captures")

    def run(self, view: View, generator: torch.Generator) -> Evidence:
        """images (captures * records, c, h, w); the public mean if no layer has a bias."""
        records = int(view.knowledge.settings.get("batch_records", 1))
        captures = view.captures[: self.captures]
        groups = [[capture] for capture in captures]
        # batch statistics would mix the images of one capture with those of another
        model = victim_model(view, captures[0])
        if are_of_one_model(captures) and keeps_rows_apart(model):
            groups = [list(captures)]
        images = [self._reconstruct(view, group, records) for group in groups]
        return Evidence(images=torch.cat(images), notes={"records": records})

    def _reconstruct(self, view: View, captures: Sequence[Capture], records: int) -> Tensor:
        """The images of captures of one model, whose features are inverted as one batch."""
        shape = (records, *view.knowledge.shape)
        model = victim_model(view, captures[0])
        layers = biased_linear_layers(model)
        public_mean = view.knowledge.public_x.mean(0)
        reads_features = bool(layers) and layers[0].in_features != public_mean.numel()
        if not layers or (reads_features and not hasattr(model, "features")):
            return public_mean.expand(len(captures) * records, *view.knowledge.shape)
        invert = None
        if reads_features:
            invert = _keep_rows
        # of a network that standardises its inputs
        mean, std = getattr(model, "scale", None) or (0.0, 1.0)
        inputs: dict[int, Tensor] = {}
        for i, capture in enumerate(captures):
            gradients = observed_gradients(view, capture, model)
            # no bias gradient at all: the layer says nothing about its input
            with contextlib.suppress(ValueError):
                inputs[i] = reconstruct_from_layer(
                    model, gradients, shape, mean=mean, std=std, invert=invert
                ).images
        if reads_features and inputs:
            images = self._invert_features(model, view, torch.cat(list(inputs.values())))
            inputs = dict(zip(inputs, images.split(records)))
        unknown = public_mean.expand(shape)
        return torch.cat([inputs.get(i, unknown) for i in range(len(captures))])

    def _invert_features(self, model: nn.Module, view: View, features: Tensor) -> Tensor:
        start = view.knowledge.public_x.mean(0).expand(len(features), *view.knowledge.shape)
        frozen = copy.deepcopy(model).requires_grad_(False)
        return self.whitebox.optimise_images([frozen.features], [features], start, apart=True)[0]  # type: ignore[list-item]

    def judge(self, evidence: Evidence, view: View, truth: Truth) -> Finding:
        compared = compare_with_records(
            _require_images(evidence), view, truth, own_records(evidence, truth)
        )
        return Finding(
            view.surface,
            self.name,
            self.family,
            view.adversary,
            compared.measures,
            compared.figures,
        )
