"""What one adversary can compute from one round of one client: models, embeddings and gradients of
single records."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from attacks.membership import signals as sig
from attacks.membership.attack import PUBLISHED_QUERY_COUNT
from attacks.membership.signals import (
    SMALL_RIDGE_SHARE,
    LogitInfluence,
    ridge_solver,
)
from attacks.tensors import memory_budget
from attacks.types import Surface
from privdd.auditing.record_gradients import LayerCoefficients, RecordGradients
from privdd.core.device import to_device
from privdd.core.rng import Keys
from privdd.core.types import Problem, Records, State, Tensors
from privdd.federated.method import Method
from privdd.federated.simulation import Snapshot
from privdd.runtime.task_messages import cached_property_names

Signals = dict[str, Tensor]  # "surface|signal" (``signal_group``) -> (n,)
# (n, q): "confidence" of q copies of each record, the record itself first
QUERIED_CONFIDENCE = "queried_confidence"
# numbers (records times parameters) held at once besides the gradients on the CPU
MAX_HELD_NUMBERS = 50_000_000
# of the size of all records' gradients, while a view's solvers are made: the gradients, their mean
# along the path, and one layer in float64 with its solver
MATRICES_AT_ONCE = 6
# layers in which records are solved for together; parameters of such a layer
SOLVED_LAYERS = 4
MIN_LAYER_SIZE = 100
POPULATION_RECORDS = 200  # public records on which RMIA compares a record's ratio with others'


@dataclass(frozen=True)
class AdversaryView:
    """What one adversary holds of one client's round, to turn what was sent into membership signals
    of the audited records.

    Attributes:
        snapshot: the round's broadcast.
        candidates: the audited records.
        public: test records that no client trained on, for centring.
        memory: what the client kept after the round; used only for maps that the strongest
            attacker is granted, and named so.
        query_keys: the streams of the copies that a model is asked about; None: of no copies.
    """

    method: Method
    problem: Problem
    snapshot: Snapshot
    candidates: Records
    public: Records
    memory: State
    waived: frozenset[str]  # surfaces that need not be read
    noise: Mapping[str, Any]  # of the feature mechanism: std, broadcast_batch, copies
    # the classifier that all clients are known to start from, where none is sent
    opening: State | None = None
    query_keys: Keys | None = None
    public_images: Tensor | None = None  # for whose outputs the protocol asks clients

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
        if model is None:
            return None
        return with_features(model).to(self.candidates.x.device).eval()

    @cached_property
    def broadcast_state(self) -> State | None:
        """The classifier as the server sent it, where one was sent."""
        return self._complete_state(self.method.audit_hooks.sent_state(self.snapshot.broadcast))

    def state_of_upload(self, name: str, value: Tensors) -> State | None:
        """The classifier that an upload implies, complete, or None."""
        return self._complete_state(
            self.method.audit_hooks.model_state(name, value, self.snapshot.broadcast)
        )

    def _complete_state(self, state: State | None) -> State | None:
        if (
            state is None
            or self.model is None
            or not dict(self.model.named_parameters()).keys() <= state.keys()
        ):
            return None
        return {
            n: t.float() if t.dtype in (torch.float16, torch.bfloat16) else t
            for n, t in state.items()
        }

    def predict_logits(self, state: State, x: Tensor) -> Tensor:
        if self.model is None:
            raise ValueError("this method shares no classifier")
        with torch.no_grad():
            return torch.cat([functional_call(self.model, state, (part,)) for part in x.split(512)])

    def copies_of_records(self) -> list[Tensor]:
        """PUBLISHED_QUERY_COUNT - 1 copies (n, c, h, w) of the audited records, each under one draw
        of the transform through which the client's work reads records; [] where it reads them as
        they are."""
        if self.query_keys is None:
            return []
        transform = self.method.audit_hooks.record_transform(self.problem)
        if transform is None:
            return []
        streams = [self.query_keys.fold(copy) for copy in range(1, PUBLISHED_QUERY_COUNT)]
        return [transform(self.candidates.x, stream.torch()) for stream in streams]

    def query_copies(self, confidence: Tensor, predict: Callable[[Tensor], Tensor]) -> Signals:
        """QUERIED_CONFIDENCE, (n, q), of a model whose confidence in the records themselves is
        ``confidence`` (n,); {} without
        copies. predict: records (b, c, h, w) -> logits (b, C)."""
        copies = self.copies_of_records()
        if not copies:
            return {}
        answers = [sig.logit_scaled(predict(copy), self.candidates.y) for copy in copies]
        return {QUERIED_CONFIDENCE: torch.stack([confidence, *answers], 1)}

    @cached_property
    def record_gradients(self) -> RecordGradients | None:
        """Loss gradient of each audited record at the broadcast model."""
        if self.broadcast_state is None:
            return None
        return self.record_gradients_at(self.broadcast_state)

    def record_gradients_at(self, state: State) -> RecordGradients | None:
        """Loss gradient of each audited record at a model; None where no classifier is shared."""
        if self.model is None:
            return None
        names = tuple(n for n, _ in self.model.named_parameters())
        return RecordGradients(self.model, state, self.candidates.x, self.candidates.y, names)

    @cached_property
    def path_gradients(self) -> Tensor | None:
        """(n, p) ``record_gradients``, averaged over the start, the middle and the end of the way
        that was really gone.

        The server knows the end from the upload. Where that is mostly noise it must not drown the
        start, so no point counts for more than the start does. None, for the start alone, where no
        model was sent back or there is no room."""
        gradients = self.record_gradients
        if (
            gradients is None
            or self.broadcast_state is None
            or gradients.numel > self._max_held_numbers
        ):
            return None
        sent = self.snapshot.sent
        uploads = self.method.uploads
        ends = [
            self.state_of_upload(name, v)
            for name, v in sent.items()
            if uploads[name] == Surface.UPDATE
        ]
        if not ends or ends[0] is None:
            return None
        start = self.broadcast_state
        end = ends[0]
        middle = {n: (t + end[n]) / 2 if t.is_floating_point() else t for n, t in start.items()}
        total = gradients.gradient_matrix.clone()
        size = total.norm()
        for state in (middle, end):
            self._add_gradients_at(state, size, total)
        return total.div_(3)

    def _add_gradients_at(self, state: State, largest: Tensor, total: Tensor) -> None:
        """Add the records' gradients at a model to ``total`` (n, p), in place: a matrix of them is
        large. largest: the norm that they are scaled down to if theirs is larger."""
        gradients = self.record_gradients_at(state)
        if gradients is None:
            return
        matrix = gradients.gradient_matrix
        if torch.isfinite(matrix).all():
            scale = (largest / matrix.norm().clamp_min(1e-30)).clamp(max=1)
            total += matrix.mul_(scale)

    @cached_property
    def layer_solvers(self) -> dict[str, tuple[slice, Tensor | LayerCoefficients]]:
        """Layer -> its place in the parameters, and the matrix (n, k) that takes its change to the
        records' parts in it. The last SOLVED_LAYERS layers of MIN_LAYER_SIZE parameters or more, as
        far as there is room; the last one in
        any case: by the records' inner products where its gradients are too many for one matrix."""
        if self.record_gradients is None or self.model is None:
            return {}
        solvers: dict[str, tuple[slice, Tensor | LayerCoefficients]] = {}
        numbers_left = self._max_held_numbers
        gradients = self.record_gradients
        for layer, place in self._last_layers(self.model):
            numbers_left -= len(gradients) * (place.stop - place.start)
            if numbers_left >= 0:
                solvers[layer] = (
                    place,
                    ridge_solver(self._layer_directions(layer, place), SMALL_RIDGE_SHARE).float(),
                )
            elif not solvers:
                layer_gradients = gradients.of_parameters(_parameters_of_layer(self.model, layer))
                solvers[layer] = (
                    place,
                    LayerCoefficients.from_gradients(layer_gradients, SMALL_RIDGE_SHARE),
                )
        self.__dict__.pop("path_gradients", None)  # as large as all solvers, and not read again
        return solvers

    def drop_derived_values(self) -> None:
        """Free what was computed from the view, the gradients of all records above all.

        It is computed again if it is asked for. A view is dropped so once its round is read: what
        all rounds hold together grows with rounds times parameters.
        """
        on_device = self.__dict__.pop("on_device", self)
        for view in (self, on_device):
            for name in cached_property_names(AdversaryView):
                view.__dict__.pop(name, None)

    def _last_layers(self, model: nn.Module) -> list[tuple[str, slice]]:
        ends: dict[str, tuple[int, int]] = {}
        start = 0
        for name, value in model.named_parameters():
            layer = _layer_of(name)
            ends[layer] = (ends.get(layer, (start, start))[0], start + value.numel())
            start += value.numel()
        last = [
            (layer, slice(*span))
            for layer, span in reversed(ends.items())
            if span[1] - span[0] >= MIN_LAYER_SIZE
        ]
        return last[:SOLVED_LAYERS]

    def _layer_directions(self, layer: str, place: slice) -> Tensor:
        """(n, k) of the records' gradients in one layer, along the path where there is one."""
        if self.path_gradients is not None:
            return self.path_gradients[:, place]
        if self.record_gradients is None or self.model is None:
            raise ValueError("this method shares no classifier")
        if self.record_gradients.is_one_matrix:
            return self.record_gradients.gradient_matrix[:, place]
        return self.record_gradients.of_parameters(
            _parameters_of_layer(self.model, layer)
        ).gradient_matrix

    def embed_images(self, x: Tensor) -> Tensor:
        """(b, d) penultimate features of the broadcast classifier; pixels where none was sent."""
        if self.broadcast_state is None or self.model is None:
            return x.flatten(1)
        return _penultimate_features(self.model, self.broadcast_state, x)

    @cached_property
    def opening_state(self) -> State | None:
        """The classifier that all clients start from, complete; None without one."""
        return self._complete_state(self.opening)

    def embed_by_opening(self, x: Tensor) -> Tensor | None:
        """(b, d) features under the classifier that all clients start from; None without one."""
        if self.opening_state is None or self.model is None:
            return None
        return _penultimate_features(self.model, self.opening_state, x)

    @cached_property
    def opening_features(self) -> Tensor | None:
        """``embed_by_opening`` of the audited records."""
        return self.embed_by_opening(self.candidates.x)

    @cached_property
    def logit_reading(self) -> LogitReading:
        """What logits on ``public_images`` are compared with."""
        if self.public_images is None:
            raise ValueError("this method has no public images")
        return LogitReading.before_training(self, self.public_images)

    @cached_property
    def public_map_features(self) -> tuple[Tensor, Tensor]:
        """In the public map: the mean (d,) of the public records, and the audited records (n, d)
        relative to it."""
        if self.public_map is None:
            raise ValueError("this method has no public map")
        centre = embed_in_batches(self.public_map, self.public.x).mean(0)
        return centre, embed_in_batches(self.public_map, self.candidates.x) - centre

    @cached_property
    def prototype_rows(self) -> tuple[Tensor, Tensor] | None:
        """The audited and the public records as rows (n, d), (m, d) of the map that the server
        knows; None without one."""
        embed: Callable[[Tensor], Tensor]
        if self.broadcast_state is not None:
            embed = self.embed_images
        elif self.public_map is not None:
            embed = self.public_map
        else:
            return None
        return embed_in_batches(embed, self.candidates.x), embed_in_batches(embed, self.public.x)

    @cached_property
    def public_map(self) -> Callable[[Tensor], Tensor] | None:
        """The public map in which synthetic images were matched, the same in all rounds; None if
        there is none."""
        return self.method.audit_hooks.maps(self.snapshot.broadcast, self.memory, self.problem).get(
            "public"
        )


@dataclass(frozen=True)
class LogitReading:
    """Public images and records, centred and scaled, in the method's public map, else in features
    of the classifier that all clients start from, else their pixels. If nobody knows such a
    classifier, its outputs are equal for all classes.

    rows (m, d), own (n, d), others (q, d): public images, audited records, public records; start
        (m, C): that classifier's logits of the public images; influence: of each audited record.
    """

    rows: Tensor
    own: Tensor
    others: Tensor
    start: Tensor
    influence: LogitInfluence

    @classmethod
    def before_training(cls, adversary: AdversaryView, images: Tensor) -> LogitReading:
        records = adversary.candidates
        state = adversary.opening_state

        def embed(x: Tensor) -> Tensor:
            if adversary.public_map is not None:
                return embed_in_batches(adversary.public_map, x)
            features = adversary.embed_by_opening(x)
            return x.flatten(1) if features is None else features

        def predict(x: Tensor) -> Tensor:
            if state is None:
                return x.new_zeros(len(x), adversary.problem.classes)
            return adversary.predict_logits(state, x)

        rows = embed(images)
        centre = rows.mean(0)
        scale = (rows - centre).norm(dim=1).square().mean().sqrt().clamp_min(1e-12)
        rows, own_rows, other_rows = (
            (embed(x) - centre) / scale
            for x in (images, records.x, adversary.public.x[:POPULATION_RECORDS])
        )
        labels = F.one_hot(records.y, adversary.problem.classes).to(own_rows)
        residual = labels - predict(records.x).softmax(1)
        influence = LogitInfluence(own_rows @ rows.T + 1, residual)
        return cls(rows, own_rows, other_rows, predict(images), influence)


def with_features(model: nn.Module) -> nn.Module:
    """The model with ``features``, the rows (b, d) before its last linear layer, if it has none.

    Raises:
        ValueError: it has neither ``features`` nor a linear layer.
    """
    if callable(getattr(model, "features", None)):
        return model
    linear = [name for name, part in model.named_modules() if isinstance(part, nn.Linear)]
    if not linear or not linear[-1]:
        raise ValueError(
            f"classifier: {type(model).__name__} must end with a linear layer, or define "
            "features(x), the rows (b, d) before its last layer"
        )
    model.features = partial(_rows_before, model, linear[-1])  # type: ignore[assignment]
    return model


def _rows_before(model: nn.Module, layer: str, x: Tensor) -> Tensor:
    """(b, d) that a layer of a model is given of records x."""
    given: list[Tensor] = []
    hook = model.get_submodule(layer).register_forward_pre_hook(
        lambda part, arguments: given.append(arguments[0])
    )
    try:
        model(x)
    finally:
        hook.remove()
    return given[-1].flatten(1)


def _layer_of(parameter: str) -> str:
    return parameter.rpartition(".")[0] or parameter


def _parameters_of_layer(model: nn.Module, layer: str) -> list[str]:
    return [name for name, _ in model.named_parameters() if _layer_of(name) == layer]


def _penultimate_features(model: nn.Module, state: State, x: Tensor) -> Tensor:
    features = _FeatureModel(model)
    named = {f"model.{k}": t for k, t in state.items()}
    return embed_in_batches(lambda part: functional_call(features, named, (part,)), x)


def embed_in_batches(see: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """(b, d) of images (b, c, h, w), none of them included: not every layer takes an empty
    batch."""
    with torch.no_grad():
        if not len(x):
            return see(x.new_zeros(1, *x.shape[1:]))[:0]
        return torch.cat([see(part) for part in x.split(512)])


class _FeatureModel(nn.Module):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        return self.model.features(x).flatten(1)  # type: ignore[operator]
