"""What an attacker can compute from one round of one client: models, embeddings, gradients of records.

``Lens`` offers these to the readers of ``privdd.auditing.readers``, which turn them into membership signals.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from attacks.gpu import room
from attacks.membership.ridge import SMALL, solver
from attacks.types import Surface
from privdd.auditing.record_gradients import LayerParts, RecordGradients
from privdd.core.placement import placed
from privdd.core.types import Problem, Records, State, Tensors
from privdd.federated.method import Method
from privdd.federated.simulation import Snapshot

ROOM = 50_000_000  # numbers (records times parameters) that are held at once besides the gradients on the CPU
LAYERS, LEAST = 4, 100  # layers in which records are solved for together, and parameters that such a layer has


@dataclass(frozen=True)
class Lens:
    """Turns what one client sent in one round into membership signals for the audited records.

    snapshot: the round's broadcast; memory: what the client kept then (used only for maps that the
    strongest attacker is granted, and named so); public: test records that no client trained on, for centring.
    """

    method: Method
    problem: Problem
    snapshot: Snapshot
    candidates: Records
    public: Records
    memory: State
    waived: frozenset[str]  # surfaces that need not be read
    noise: Mapping[str, Any]  # of the feature mechanism: std, broadcast_batch, copies
    opening: State | None = None  # the classifier that all clients are known to start from, where none is sent

    @cached_property
    def there(self) -> Lens:
        """The same lens with all that it holds on the problem's device."""
        return placed(self, self.problem.device)

    @property
    def _room(self) -> int:
        """Numbers (float32) that may be held at once, where the lens computes."""
        return room(self.candidates.x.device, 4 * ROOM) // 4

    # --- what the attacker can compute --------------------------------------------------------

    @cached_property
    def model(self) -> nn.Module | None:
        model = self.method.classifier(self.problem)
        return None if model is None else model.to(self.candidates.x.device).eval()

    @cached_property
    def start(self) -> State | None:
        """The classifier as the server sent it, where one was sent."""
        return self._complete(self.method.sent_state(self.snapshot.broadcast))

    def state(self, name: str, value: Tensors) -> State | None:
        """The classifier that an upload implies, complete, or None."""
        return self._complete(self.method.model_state(name, value, self.snapshot.broadcast))

    def _complete(self, state: State | None) -> State | None:
        if state is None or self.model is None:
            return None
        if not dict(self.model.named_parameters()).keys() <= state.keys():
            return None
        return {n: t.float() if t.dtype in (torch.float16, torch.bfloat16) else t for n, t in state.items()}

    def logits(self, state: State, x: Tensor) -> Tensor:
        model = self.model
        if model is None:
            raise ValueError("this method shares no classifier")
        with torch.no_grad():
            return torch.cat([functional_call(model, state, (part,)) for part in x.split(512)])

    @cached_property
    def gradients(self) -> RecordGradients | None:
        """Loss gradient of each audited record at the broadcast model."""
        return None if self.start is None else self.gradients_at(self.start)

    def gradients_at(self, state: State) -> RecordGradients | None:
        """Loss gradient of each audited record at a model; None where no classifier is shared."""
        if self.model is None:
            return None
        names = tuple(n for n, _ in self.model.named_parameters())
        return RecordGradients(self.model, state, self.candidates.x, self.candidates.y, names)

    @cached_property
    def path(self) -> Tensor | None:
        """(n, p) ``gradients``, averaged over the start, the middle and the end of the way that was really gone.

        The server knows the end from the upload. Where that is mostly noise it must not drown the start, so no point
        counts for more than the start does. None, for the start alone, where no model was sent back or there is no room.
        """
        if self.gradients is None or self.start is None or self.gradients.numel > self._room:
            return None
        ends = [self.state(name, value) for name, value in self.snapshot.sent.items()
                if self.method.uploads[name] == Surface.UPDATE]  # fmt: skip
        if not ends or ends[0] is None:
            return None
        start, end = self.start, ends[0]
        middle = {n: (t + end[n]) / 2 if t.is_floating_point() else t for n, t in start.items()}
        size, total = self.gradients.matrix.norm(), self.gradients.matrix
        for there in (middle, end):
            at = self.gradients_at(there)
            found = None if at is None else at.matrix
            if found is not None and torch.isfinite(found).all():
                total = total + found * (size / found.norm().clamp_min(1e-30)).clamp(max=1)
        return total / 3

    @cached_property
    def solvers(self) -> dict[str, tuple[slice, Tensor | LayerParts]]:
        """Layer -> its place in the parameters, and the matrix (n, k) that takes its change to the records' parts in it.

        The last LAYERS layers of LEAST parameters or more, as far as there is room. The last one is solved for in any
        case: by the records' inner products where its gradients are too many for one matrix.
        """
        if self.gradients is None or self.model is None:
            return {}
        found: dict[str, tuple[slice, Tensor | LayerParts]] = {}
        left = self._room
        for layer, place in self._last_layers(self.model):
            left -= len(self.gradients) * (place.stop - place.start)
            if left >= 0:
                found[layer] = (place, solver(self._directions(layer, place), SMALL).float())
            elif not found:
                found[layer] = (place, LayerParts.of(self.gradients.of(_names(self.model, layer)), SMALL))
        return found

    def _last_layers(self, model: nn.Module) -> list[tuple[str, slice]]:
        ends: dict[str, tuple[int, int]] = {}
        at = 0
        for name, value in model.named_parameters():
            layer = _layer(name)
            ends[layer] = (ends.get(layer, (at, at))[0], at + value.numel())
            at += value.numel()
        last = [(layer, slice(*span)) for layer, span in reversed(ends.items()) if span[1] - span[0] >= LEAST]
        return last[:LAYERS]

    def _directions(self, layer: str, place: slice) -> Tensor:
        """(n, k) of the records' gradients in one layer, along the path where there is one."""
        if self.path is not None:
            return self.path[:, place]
        if self.gradients is None or self.model is None:
            raise ValueError("this method shares no classifier")
        held = self.gradients.held
        return self.gradients.matrix[:, place] if held else self.gradients.of(_names(self.model, layer)).matrix

    def embed(self, x: Tensor) -> Tensor:
        """(b, d) penultimate features of the broadcast classifier; pixels where none was sent."""
        if self.start is None or self.model is None:
            return x.flatten(1)
        return _penultimate(self.model, self.start, x)

    @cached_property
    def opened(self) -> Tensor | None:
        """(n, d) features of the audited records under the classifier that all clients start from; None without one."""
        state = self._complete(self.opening)
        return None if state is None or self.model is None else _penultimate(self.model, state, self.candidates.x)

    @cached_property
    def mapped(self) -> tuple[Tensor, Tensor]:
        """In the public map: the mean (d,) of the public records, and the audited records (n, d) relative to it."""
        if self.public_map is None:
            raise ValueError("this method names no public map")
        centre = embedded(self.public_map, self.public.x).mean(0)
        return centre, embedded(self.public_map, self.candidates.x) - centre

    @cached_property
    def public_map(self) -> Callable[[Tensor], Tensor] | None:
        """The public map in which synthetic images were matched, the same in all rounds; None if there is none."""
        return maps_of(self.method, self.snapshot, self.memory, self.problem).get("public")


def _layer(parameter: str) -> str:
    return parameter.rpartition(".")[0] or parameter


def _names(model: nn.Module, layer: str) -> list[str]:
    return [name for name, _ in model.named_parameters() if _layer(name) == layer]


def _penultimate(model: nn.Module, state: State, x: Tensor) -> Tensor:
    features, named = _Features(model), {f"model.{k}": t for k, t in state.items()}
    return embedded(lambda part: functional_call(features, named, (part,)), x)


def embedded(see: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """(b, d) of images (b, c, h, w), none of them included: not every layer takes an empty batch."""
    with torch.no_grad():
        if not len(x):
            return see(x.new_zeros(1, *x.shape[1:]))[:0]
        return torch.cat([see(part) for part in x.split(512)])


class _Features(nn.Module):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        return self.model.features(x)  # type: ignore[operator]


def maps_of(
    method: Method, snapshot: Snapshot, memory: State, problem: Problem
) -> dict[str, Callable[[Tensor], Tensor]]:
    """The maps from records to what is shared that a method names, {} where it names none."""
    return dict(method.maps(snapshot.broadcast, memory, problem))
