"""What an attacker can compute from one round of one client: models, embeddings, gradients of single records.

``AdversaryView`` offers these to ``privdd.auditing.signal_extraction``, which turns them into membership signals.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, grad, jvp, vmap

from attacks.gpu import memory_budget
from attacks.membership.signals import SMALL_RIDGE_SHARE, ridge_solver, solve_ridge
from attacks.types import Surface
from privdd.core.device import to_device
from privdd.core.types import Problem, Records, State, Tensors
from privdd.federated.method import Method
from privdd.federated.simulation import Snapshot

# What signals need of them are inner products with a vector and lengths. Where the matrix (n, p) is too large, a product
# is a derivative along the vector (forward mode), and lengths and the columns of some layers are taken from blocks.


MAX_MATRIX_BYTES = 2**29  # bytes of all records' gradients, up to which they are one matrix
MAX_BLOCK_BYTES = 2**28  # bytes of the gradients of one block
RECORDS_PER_BLOCK = 32  # records that go through the model together, at most


@dataclass(frozen=True)
class RecordGradients:
    """Gradients of the cross-entropy of each single record x (n, ...), y (n,) at a model's ``state``, in the model's mode.

    names: the parameters, in the order of their numbers p.
    """

    model: nn.Module
    state: State
    x: Tensor
    y: Tensor
    names: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.y)

    @cached_property
    def parameter_count(self) -> int:
        """p."""
        return sum(self.state[name].numel() for name in self.names)

    @property
    def numel(self) -> int:
        return len(self) * self.parameter_count

    @property
    def is_one_matrix(self) -> bool:
        """Whether all are one matrix in memory."""
        return self.numel * self._item_bytes <= MAX_MATRIX_BYTES

    @property
    def _item_bytes(self) -> int:
        return max((self.state[name].element_size() for name in self.names), default=4)

    def of_parameters(self, names: Sequence[str]) -> RecordGradients:
        """The same records' gradients of these parameters alone."""
        return RecordGradients(self.model, self.state, self.x, self.y, tuple(names))

    def iterate_blocks(self) -> Iterator[Tensor]:
        """(b, p) each, of b records in turn, at most AT_ONCE bytes (or one record)."""
        pull = vmap(grad(self._record_loss), in_dims=(None, 0, 0))
        step = min(RECORDS_PER_BLOCK, max(1, MAX_BLOCK_BYTES // max(self.parameter_count * self._item_bytes, 1)))
        for x, y in zip(self.x.split(step), self.y.split(step)):
            found = pull(self._parameter_values, x, y)
            yield torch.cat([found[name].flatten(1) for name in self.names], 1)

    @cached_property
    def gradient_matrix(self) -> Tensor:
        """(n, p). Ask ``is_one_matrix`` first."""
        whole, at = self.x.new_empty(0), 0
        for block in self.iterate_blocks():
            if not at:
                whole = block.new_empty(len(self), self.parameter_count)
            whole[at : at + len(block)] = block
            at += len(block)
        return whole

    @cached_property
    def gradient_norms(self) -> Tensor:
        """(n,) Euclidean lengths."""
        if self.is_one_matrix:
            return self.gradient_matrix.norm(dim=-1)
        return torch.cat([block.norm(dim=-1) for block in self.iterate_blocks()])

    def inner_products(self, vector: Tensor) -> Tensor:
        """<vector, g_i> (n,), for a vector (p,)."""
        if self.is_one_matrix:
            return vector @ self.gradient_matrix.T
        try:
            return self._derivatives_along(vector)
        except NotImplementedError:  # a layer without a derivative in forward mode
            return torch.cat([block @ vector for block in self.iterate_blocks()])

    def alignment_signals(self, vector: Tensor) -> dict[str, Tensor]:
        """ "gradient_product": ``inner_products``, "alignment": these over the lengths; (n,) each."""
        product = self.inner_products(vector)
        lengths = (vector.norm(dim=-1) * self.gradient_norms).clamp_min(torch.finfo(vector.dtype).tiny)
        return {"gradient_product": product, "alignment": product / lengths}

    def gram_matrix(self) -> Tensor:
        """(n, n) float64 of inner products. Where the gradients are not held, each block is met by all later ones, made anew."""
        if self.is_one_matrix:
            return self.gradient_matrix.double() @ self.gradient_matrix.double().T
        found, at = torch.zeros(len(self), len(self), dtype=torch.float64, device=self.x.device), 0
        for block in self.iterate_blocks():
            rest = RecordGradients(self.model, self.state, self.x[at:], self.y[at:], self.names)
            below = torch.cat([other.double() @ block.double().T for other in rest.iterate_blocks()])
            found[at:, at : at + len(block)] = below
            found[at : at + len(block), at:] = below.T
            at += len(block)
        return found

    def _derivatives_along(self, vector: Tensor) -> Tensor:
        parts = vector.split([self.state[name].numel() for name in self.names])
        way = {name: part.view_as(self.state[name]).to(self.state[name]) for name, part in zip(self.names, parts)}

        def slope_along(x: Tensor, y: Tensor) -> Tensor:
            return jvp(lambda values: self._record_loss(values, x, y), (self._parameter_values,), (way,))[1]  # type: ignore[no-any-return]

        each = vmap(slope_along)
        return torch.cat([each(x, y) for x, y in zip(self.x.split(RECORDS_PER_BLOCK), self.y.split(RECORDS_PER_BLOCK))])

    @property
    def _parameter_values(self) -> State:
        return {name: self.state[name] for name in self.names}

    def _record_loss(self, values: State, x: Tensor, y: Tensor) -> Tensor:
        complete = {**self.state, **values}
        return F.cross_entropy(functional_call(self.model, complete, (x[None],)), y[None])


@dataclass(frozen=True)
class LayerCoefficients:
    """Takes a change (p,) to the records' parts in it (n,), as ridge regression's matrix does, which would be too large."""

    gradients: RecordGradients
    gram: Tensor
    ridge: float

    @classmethod
    def from_gradients(cls, gradients: RecordGradients, ridge: float) -> LayerCoefficients:
        return cls(gradients, gradients.gram_matrix(), ridge)

    def __matmul__(self, vector: Tensor) -> Tensor:
        return solve_ridge(self.gram, self.gradients.inner_products(vector).double(), self.ridge).float()


MAX_HELD_NUMBERS = (
    50_000_000  # numbers (records times parameters) that are held at once besides the gradients on the CPU
)
SOLVED_LAYERS, MIN_LAYER_SIZE = (
    4,
    100,
)  # layers in which records are solved for together, and parameters that such a layer has


@dataclass(frozen=True)
class AdversaryView:
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
    def on_device(self) -> AdversaryView:
        """The same view with all that it holds on the problem's device."""
        return to_device(self, self.problem.device)

    @property
    def _max_held_numbers(self) -> int:
        """Numbers (float32) that may be held at once, where the adversary computes."""
        return memory_budget(self.candidates.x.device, 4 * MAX_HELD_NUMBERS) // 4

    @cached_property
    def model(self) -> nn.Module | None:
        model = self.method.audit_hooks.classifier(self.problem)
        return None if model is None else model.to(self.candidates.x.device).eval()

    @cached_property
    def broadcast_state(self) -> State | None:
        """The classifier as the server sent it, where one was sent."""
        return self._complete_state(self.method.audit_hooks.sent_state(self.snapshot.broadcast))

    def state_of_upload(self, name: str, value: Tensors) -> State | None:
        """The classifier that an upload implies, complete, or None."""
        return self._complete_state(self.method.audit_hooks.model_state(name, value, self.snapshot.broadcast))

    def _complete_state(self, state: State | None) -> State | None:
        if state is None or self.model is None:
            return None
        if not dict(self.model.named_parameters()).keys() <= state.keys():
            return None
        return {n: t.float() if t.dtype in (torch.float16, torch.bfloat16) else t for n, t in state.items()}

    def predict_logits(self, state: State, x: Tensor) -> Tensor:
        model = self.model
        if model is None:
            raise ValueError("this method shares no classifier")
        with torch.no_grad():
            return torch.cat([functional_call(model, state, (part,)) for part in x.split(512)])

    @cached_property
    def record_gradients(self) -> RecordGradients | None:
        """Loss gradient of each audited record at the broadcast model."""
        return None if self.broadcast_state is None else self.record_gradients_at(self.broadcast_state)

    def record_gradients_at(self, state: State) -> RecordGradients | None:
        """Loss gradient of each audited record at a model; None where no classifier is shared."""
        if self.model is None:
            return None
        names = tuple(n for n, _ in self.model.named_parameters())
        return RecordGradients(self.model, state, self.candidates.x, self.candidates.y, names)

    @cached_property
    def path_gradients(self) -> Tensor | None:
        """(n, p) ``record_gradients``, averaged over the start, the middle and the end of the way that was really gone.

        The server knows the end from the upload. Where that is mostly noise it must not drown the start, so no point
        counts for more than the start does. None, for the start alone, where no model was sent back or there is no room.
        """
        if (
            self.record_gradients is None
            or self.broadcast_state is None
            or self.record_gradients.numel > self._max_held_numbers
        ):
            return None
        ends = [self.state_of_upload(name, value) for name, value in self.snapshot.sent.items()
                if self.method.uploads[name] == Surface.UPDATE]  # fmt: skip
        if not ends or ends[0] is None:
            return None
        start, end = self.broadcast_state, ends[0]
        middle = {n: (t + end[n]) / 2 if t.is_floating_point() else t for n, t in start.items()}
        size, total = self.record_gradients.gradient_matrix.norm(), self.record_gradients.gradient_matrix
        for there in (middle, end):
            at = self.record_gradients_at(there)
            found = None if at is None else at.gradient_matrix
            if found is not None and torch.isfinite(found).all():
                total = total + found * (size / found.norm().clamp_min(1e-30)).clamp(max=1)
        return total / 3

    @cached_property
    def layer_solvers(self) -> dict[str, tuple[slice, Tensor | LayerCoefficients]]:
        """Layer -> its place in the parameters, and the matrix (n, k) that takes its change to the records' parts in it.

        The last LAYERS layers of LEAST parameters or more, as far as there is room. The last one is solved for in any
        case: by the records' inner products where its gradients are too many for one matrix.
        """
        if self.record_gradients is None or self.model is None:
            return {}
        found: dict[str, tuple[slice, Tensor | LayerCoefficients]] = {}
        left = self._max_held_numbers
        for layer, place in self._last_layers(self.model):
            left -= len(self.record_gradients) * (place.stop - place.start)
            if left >= 0:
                found[layer] = (place, ridge_solver(self._layer_directions(layer, place), SMALL_RIDGE_SHARE).float())
            elif not found:
                found[layer] = (
                    place,
                    LayerCoefficients.from_gradients(
                        self.record_gradients.of_parameters(_parameters_of_layer(self.model, layer)), SMALL_RIDGE_SHARE
                    ),
                )
        return found

    def _last_layers(self, model: nn.Module) -> list[tuple[str, slice]]:
        ends: dict[str, tuple[int, int]] = {}
        at = 0
        for name, value in model.named_parameters():
            layer = _layer_of(name)
            ends[layer] = (ends.get(layer, (at, at))[0], at + value.numel())
            at += value.numel()
        last = [(layer, slice(*span)) for layer, span in reversed(ends.items()) if span[1] - span[0] >= MIN_LAYER_SIZE]
        return last[:SOLVED_LAYERS]

    def _layer_directions(self, layer: str, place: slice) -> Tensor:
        """(n, k) of the records' gradients in one layer, along the path where there is one."""
        if self.path_gradients is not None:
            return self.path_gradients[:, place]
        if self.record_gradients is None or self.model is None:
            raise ValueError("this method shares no classifier")
        held = self.record_gradients.is_one_matrix
        if held:
            return self.record_gradients.gradient_matrix[:, place]
        return self.record_gradients.of_parameters(_parameters_of_layer(self.model, layer)).gradient_matrix

    def embed_images(self, x: Tensor) -> Tensor:
        """(b, d) penultimate features of the broadcast classifier; pixels where none was sent."""
        if self.broadcast_state is None or self.model is None:
            return x.flatten(1)
        return _penultimate_features(self.model, self.broadcast_state, x)

    @cached_property
    def opening_features(self) -> Tensor | None:
        """(n, d) features of the audited records under the classifier that all clients start from; None without one."""
        state = self._complete_state(self.opening)
        return (
            None if state is None or self.model is None else _penultimate_features(self.model, state, self.candidates.x)
        )

    @cached_property
    def public_map_features(self) -> tuple[Tensor, Tensor]:
        """In the public map: the mean (d,) of the public records, and the audited records (n, d) relative to it."""
        if self.public_map is None:
            raise ValueError("this method names no public map")
        centre = embed_in_batches(self.public_map, self.public.x).mean(0)
        return centre, embed_in_batches(self.public_map, self.candidates.x) - centre

    @cached_property
    def public_map(self) -> Callable[[Tensor], Tensor] | None:
        """The public map in which synthetic images were matched, the same in all rounds; None if there is none."""
        return method_maps(self.method, self.snapshot, self.memory, self.problem).get("public")


def _layer_of(parameter: str) -> str:
    return parameter.rpartition(".")[0] or parameter


def _parameters_of_layer(model: nn.Module, layer: str) -> list[str]:
    return [name for name, _ in model.named_parameters() if _layer_of(name) == layer]


def _penultimate_features(model: nn.Module, state: State, x: Tensor) -> Tensor:
    features, named = _FeatureModel(model), {f"model.{k}": t for k, t in state.items()}
    return embed_in_batches(lambda part: functional_call(features, named, (part,)), x)


def embed_in_batches(see: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """(b, d) of images (b, c, h, w), none of them included: not every layer takes an empty batch."""
    with torch.no_grad():
        if not len(x):
            return see(x.new_zeros(1, *x.shape[1:]))[:0]
        return torch.cat([see(part) for part in x.split(512)])


class _FeatureModel(nn.Module):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        return self.model.features(x)  # type: ignore[operator]


def method_maps(
    method: Method, snapshot: Snapshot, memory: State, problem: Problem
) -> dict[str, Callable[[Tensor], Tensor]]:
    """The maps from records to what is shared that a method names, {} where it names none."""
    return dict(method.audit_hooks.maps(snapshot.broadcast, memory, problem))
