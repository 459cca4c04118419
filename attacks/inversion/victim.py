"""What the victim computed, as a function of unknown images; what an inversion returns, and the
pixel space it works in."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd

from attacks.types import Capture, Surface, View
from attacks.validation import check_below_one, check_counts, check_non_negative, check_positive

Channelwise = float | Sequence[float]


@dataclass(frozen=True)
class Reconstruction:
    """What a gradient inversion reconstructs.

    Attributes:
        images: (b, c, h, w) in [0, 1].
        labels: (b,), -1 for an unknown one.
        objective: the data term alone, at these images.
        history: the lowest objective at regular steps.
        diagnostics: numbers about the search.
    """

    images: Tensor
    labels: Tensor
    objective: float
    history: tuple[float, ...] = ()
    diagnostics: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class PixelScale:
    """The map between [0, 1] images and the model's inputs: input = (image - mean) / std."""

    mean: Channelwise = 0.0
    std: Channelwise = 1.0

    def __post_init__(self) -> None:
        if not bool((torch.as_tensor(self.std) > 0).all()):
            raise ValueError(f"std={self.std}: positive numbers are needed")

    def _channel_columns(self, like: Tensor) -> tuple[Tensor, Tensor]:
        def channel_column(
            numbers: Channelwise,
        ) -> Tensor:  # filled where they are needed: nothing travels to a GPU
            each = torch.as_tensor(numbers, dtype=torch.float64).reshape(-1).tolist()
            if len(each) == 1:  # of images and of rows of a table
                return like.new_full((), each[0])
            return torch.stack([like.new_full((1, 1), number) for number in each])

        return channel_column(self.mean), channel_column(self.std)

    def to_input(self, images: Tensor) -> Tensor:
        mean, std = self._channel_columns(images)
        return (images - mean) / std

    def to_image(self, inputs: Tensor) -> Tensor:
        mean, std = self._channel_columns(inputs)
        return (inputs * std + mean).clamp(0, 1)

    def input_box(self, like: Tensor) -> tuple[Tensor, Tensor]:
        """The inputs of black and of white."""
        mean, std = self._channel_columns(like)
        return (0 - mean) / std, (1 - mean) / std


def check_gradient_request(
    gradients: Sequence[Tensor], parameters: Sequence[Tensor], shape: Sequence[int]
) -> None:
    """Raise ValueError unless there is one gradient of the same shape per parameter and shape is
    (b, c, h, w) or (b, d)."""
    if len(shape) not in (2, 4) or not all(int(side) >= 1 for side in shape):
        raise ValueError(
            f"shape={tuple(shape)}: positive integers (b, c, h, w) or (b, d) are needed"
        )
    got = [tuple(g.shape) for g in gradients]
    need = [tuple(p.shape) for p in parameters]
    if got != need:
        raise ValueError(
            f"gradients have shapes {got}: those of model.parameters() are needed, {need}"
        )
    if not all(bool(torch.isfinite(g).all()) for g in gradients):
        raise ValueError("gradients hold NaN or infinity: finite values are needed")


@dataclass(frozen=True)
class LocalSteps:
    """The client's local work: plain SGD, in the order of the images.

    Step t uses images t*B ... t*B + B - 1, from the first again after the last.

    Attributes:
        steps: of SGD, at least 1.
        lr: learning rate, above 0.
        momentum: heavy ball from zero, in [0, 1).
        weight_decay: times the parameters, added to each gradient.
        proximal: FedProx's mu.
        batch_size: images a step; None: all.

    Raises:
        ValueError: for a number out of its range.
    """

    steps: int = 1
    lr: float = 1.0
    momentum: float = 0.0
    weight_decay: float = 0.0
    proximal: float = 0.0
    batch_size: int | None = None

    def __post_init__(self) -> None:
        check_counts(self, "steps")
        check_positive(self, "lr")
        check_below_one(self, "momentum")
        check_non_negative(self, "weight_decay", "proximal")
        if self.batch_size is not None:
            check_counts(self, "batch_size")

    def values_of_step(self, values: Tensor, step: int) -> Tensor:
        """Of ``values`` (b, ...), those of the images that step ``step`` reads: cut out, for an
        index would travel."""
        records = len(values)
        size = records
        if self.batch_size is not None:
            size = min(self.batch_size, records)
        first = step * size % records
        if first + size <= records:
            return values[first : first + size]
        return torch.cat([values[first:], values[: first + size - records]])


SINGLE_STEP = LocalSteps()


@dataclass(frozen=True)
class Victim:
    """The victim's model (in its own mode, left untouched) and its local work."""

    model: nn.Module
    local: LocalSteps = SINGLE_STEP

    def detached_parameters(self) -> dict[str, Tensor]:
        """Detached parameters by name, in the order of ``model.parameters()``."""
        return {name: p.detach() for name, p in self.model.named_parameters()}

    def is_batchable(self) -> bool:
        """Whether vmap may run it."""
        return keeps_rows_apart(self.model)

    @cached_property
    def _is_single_step(self) -> bool:
        """One bare step of a model whose own parameters can be differentiated and that keeps no
        buffers."""
        return (
            self.local.steps == 1
            and not self.local.weight_decay
            and next(self.model.buffers(), None) is None
            and all(p.requires_grad for p in self.model.parameters())
        )

    def loss(self, parameters: Mapping[str, Tensor], images: Tensor, labels: Tensor) -> Tensor:
        """Mean cross-entropy; buffers are copies, so running statistics stay as they are."""
        buffers = {name: b.clone() for name, b in self.model.named_buffers()}
        return F.cross_entropy(
            functional_call(self.model, {**parameters, **buffers}, (images,)), labels
        )

    def simulated_gradients(
        self,
        images: Tensor,
        labels: Tensor,
        *,
        functional: bool = False,
        parameters: Mapping[str, Tensor] | None = None,
    ) -> list[Tensor]:
        """(theta_0 - theta_T) / lr as a differentiable function of the images; with one step the
        gradient itself.

        labels: (b,) classes or (b, C) probabilities. functional: differentiate with torch.func,
            which nests inside vmap.
        parameters: theta_0, in the model's order (only with ``functional``); None: the model's own.
        """
        if not functional and self._is_single_step:
            # without swapping parameters: fastest
            value = F.cross_entropy(self.model(images), labels)
            return list(
                torch.autograd.grad(value, list(self.model.parameters()), create_graph=True)
            )
        if parameters is None:
            start = self.detached_parameters()
        else:
            start = dict(parameters)
        if functional:
            here = start
        else:
            here = {name: p.requires_grad_() for name, p in start.items()}
        speed: list[Tensor] = []
        for step in range(self.local.steps):
            slope = self._loss_gradient(
                here,
                self.local.values_of_step(images, step),
                self.local.values_of_step(labels, step),
                functional,
            )
            slope = [self._add_penalties(g, here[n], start[n]) for g, n in zip(slope, here)]
            if step:
                speed = [self.local.momentum * v + g for v, g in zip(speed, slope)]
            else:
                speed = slope
            if self.local.steps > 1:
                here = {name: p - self.local.lr * v for (name, p), v in zip(here.items(), speed)}
        if self.local.steps == 1:
            return speed
        return [(start[name] - here[name]) / self.local.lr for name in start]

    def _add_penalties(self, slope: Tensor, here: Tensor, start: Tensor) -> Tensor:
        if self.local.weight_decay:
            slope = slope + self.local.weight_decay * here
        if self.local.proximal:
            return slope + self.local.proximal * (here - start)
        return slope

    def _loss_gradient(
        self, parameters: Mapping[str, Tensor], images: Tensor, labels: Tensor, functional: bool
    ) -> list[Tensor]:
        if functional:
            return list(torch.func.grad(self.loss)(dict(parameters), images, labels).values())
        value = self.loss(parameters, images, labels)
        return list(torch.autograd.grad(value, list(parameters.values()), create_graph=True))


def update_to_gradients(
    before: Mapping[str, Tensor], after: Mapping[str, Tensor], lr: float
) -> list[Tensor]:
    """The gradients that a model update stands for, as ``reconstruct`` takes them.

    Args:
        before: name -> parameter, as broadcast to the client (theta_0).
        after: name -> parameter, as the client sent it (theta_T).
        lr: the client's learning rate, above 0.

    Returns:
        (theta_0 - theta_T) / lr, in the order of ``before``; after one step, the gradient itself.

    Raises:
        ValueError: if a name of ``before`` is missing from ``after``.
    """
    missing = [name for name in before if name not in after]
    if missing:
        raise ValueError(f"after lacks {missing}: it must have the same names as before")
    return [(before[name] - after[name]) / lr for name in before]


def local_steps(settings: Mapping[str, Any]) -> LocalSteps:
    """The client's local work as the protocol states it."""
    batch_size = settings.get("batch_size")
    if batch_size is not None:
        batch_size = int(batch_size)
    return LocalSteps(
        steps=max(1, int(settings.get("local_steps", 1))),
        lr=float(settings.get("lr", 1.0)),
        momentum=float(settings.get("momentum", 0.0)),
        weight_decay=float(settings.get("weight_decay", 0.0)),
        proximal=float(settings.get("mu", 0.0)),
        batch_size=batch_size,
    )


def victim_model(view: View, capture: Capture) -> nn.Module:
    """A copy of the known architecture at the broadcast parameters, in the mode that the client
    trained in."""
    if view.knowledge.model is None:
        raise ValueError(f"surface={view.surface}: the attack needs knowledge.model")
    model = copy.deepcopy(view.knowledge.model)
    if capture.broadcast:
        state = model.state_dict()
        model.load_state_dict(
            {**state, **{k: v for k, v in capture.broadcast.items() if k in state}}
        )
    return model.train(bool(view.knowledge.settings.get("training", True)))


def observed_gradients(view: View, capture: Capture, model: nn.Module) -> list[Tensor]:
    """(theta_0 - theta_T) / lr in the model's order, from parameters, changes or gradients."""
    names = [name for name, _ in model.named_parameters()]
    value = capture.value
    lr = local_steps(view.knowledge.settings).lr
    if view.surface == Surface.GRADIENT:
        return [value[name].detach() for name in names]
    if not capture.broadcast:
        return [-value[name].detach() / lr for name in names]
    before = {name: capture.broadcast[name].detach() for name in names}
    return update_to_gradients(before, {name: value[name].detach() for name in names}, lr)


def keeps_rows_apart(model: nn.Module) -> bool:
    """Whether a row's output depends on that row alone: no layer draws or keeps statistics in
    training mode."""
    stateful = (_BatchNorm, _DropoutNd)
    return not any(isinstance(m, stateful) and m.training for m in model.modules())


def are_of_one_model(captures: Sequence[Capture]) -> bool:
    """Whether all captures had the same broadcast."""
    first = captures[0].broadcast
    for capture in captures[1:]:
        if capture.broadcast.keys() != first.keys():
            return False
        if not all(torch.equal(value, capture.broadcast[name]) for name, value in first.items()):
            return False
    return True
