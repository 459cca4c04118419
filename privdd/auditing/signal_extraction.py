"""What an attacker can compute from one round of one client, and the membership signals that it
extracts from what was sent.

``AdversaryView`` computes models, embeddings, gradients of single records; there is one reader of
signals per surface. A signal is one number per audited record, larger = more like a member. See
``attacks.membership.signals``. In a model's parameters every layer is solved by itself: their noise
differs, and what they say together is for an attack that takes several signals.
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

from attacks.membership import signals as sig
from attacks.membership.attack import PUBLISHED_QUERY_COUNT
from attacks.membership.shared_noise import COINCIDENCE_SIGNAL, noise_coincidence
from attacks.membership.signals import (
    SMALL_RIDGE_SHARE,
    LogitInfluence,
    class_mean_embeddings,
    class_ridge_coefficients,
    distance_to_synthetic,
    patch_distance,
    ridge_readout,
    ridge_solver,
    ridge_student,
    single_record_means,
    solve_ridge,
)
from attacks.tensors import memory_budget
from attacks.types import Surface
from privdd.core.device import to_device
from privdd.core.rng import Keys
from privdd.core.types import Problem, Records, State, Tensors, Values
from privdd.federated.audit_hooks import overrides_hook
from privdd.federated.method import Method
from privdd.federated.simulation import Snapshot

# Signals need gradients' inner products with a vector, and their lengths. Where the matrix (n, p)
# is too large, a product is a derivative along the vector (forward mode), and lengths and the
# columns of some layers are taken from blocks.
MAX_MATRIX_BYTES = 2**29  # bytes of all records' gradients, up to which they are one matrix
MAX_BLOCK_BYTES = 2**28  # bytes of the gradients of one block
RECORDS_PER_BLOCK = 32  # records that go through the model together, at most
# (n, q): "confidence" of q copies of each record, the record itself first
QUERIED_CONFIDENCE = "queried_confidence"
# numbers (records times parameters) held at once besides the gradients on the CPU
MAX_HELD_NUMBERS = 50_000_000
# layers in which records are solved for together; parameters of such a layer
SOLVED_LAYERS = 4
MIN_LAYER_SIZE = 100
POPULATION_RECORDS = 200  # public records on which RMIA compares a record's ratio with others'
NEEDED_HOOKS: Mapping[Surface, tuple[str, ...]] = {  # hooks without which a reader sees no record
    Surface.UPDATE: ("classifier", "sent_state", "model_state"),
    Surface.GRADIENT: ("classifier", "sent_state"),
    Surface.CONTROL_VARIATE: ("classifier", "sent_state"),
    Surface.FEATURES: ("maps",),
    Surface.LOGITS: ("public_images",),
}
# Ways to a map from records to the rows of a surface, one of which its readers need before they
# compare a record with a row; without any they see how many rows there are, and how long these are.
MAP_HOOKS: Mapping[Surface, tuple[tuple[str, ...], ...]] = {
    Surface.PROTOTYPES: (
        ("classifier", "initial_classifier"),
        ("classifier", "sent_state"),
        ("maps",),
    ),
    Surface.SYNTHETIC_REPRESENTATIONS: (("maps",),),
}


@dataclass(frozen=True)
class RecordGradients:
    """Gradients of the cross-entropy of each single record x (n, ...), y (n,) at a model's
    ``state``, in the model's
    mode. names: the parameters, in the order of their numbers p."""

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
        """(b, p) each, of b records in turn, at most MAX_BLOCK_BYTES (or one record)."""
        pull = vmap(grad(self._record_loss), in_dims=(None, 0, 0))
        step = min(
            RECORDS_PER_BLOCK,
            max(1, MAX_BLOCK_BYTES // max(self.parameter_count * self._item_bytes, 1)),
        )
        for x, y in zip(self.x.split(step), self.y.split(step)):
            gradients = pull(self._parameter_values, x, y)
            yield torch.cat([gradients[name].flatten(1) for name in self.names], 1)

    @cached_property
    def gradient_matrix(self) -> Tensor:
        """(n, p). Ask ``is_one_matrix`` first."""
        matrix = self.x.new_empty(0)
        row = 0
        for block in self.iterate_blocks():
            if not row:
                matrix = block.new_empty(len(self), self.parameter_count)
            matrix[row : row + len(block)] = block
            row += len(block)
        return matrix

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
        """ "gradient_product": ``inner_products``, "alignment": these over the lengths; (n,)
        each."""
        product = self.inner_products(vector)
        lengths = (vector.norm(dim=-1) * self.gradient_norms).clamp_min(
            torch.finfo(vector.dtype).tiny
        )
        return {"gradient_product": product, "alignment": product / lengths}

    def gram_matrix(self) -> Tensor:
        """(n, n) float64 of inner products. Where the gradients are not held, each block is met by
        all later ones, made anew."""
        if self.is_one_matrix:
            return self.gradient_matrix.double() @ self.gradient_matrix.double().T
        gram = torch.zeros(len(self), len(self), dtype=torch.float64, device=self.x.device)
        row = 0
        for block in self.iterate_blocks():
            rest = RecordGradients(self.model, self.state, self.x[row:], self.y[row:], self.names)
            below = torch.cat(
                [later_block.double() @ block.double().T for later_block in rest.iterate_blocks()]
            )
            gram[row:, row : row + len(block)] = below
            gram[row : row + len(block), row:] = below.T
            row += len(block)
        return gram

    def _derivatives_along(self, vector: Tensor) -> Tensor:
        parts = vector.split([self.state[name].numel() for name in self.names])
        way = {
            name: part.view_as(self.state[name]).to(self.state[name])
            for name, part in zip(self.names, parts)
        }

        def slope_along(x: Tensor, y: Tensor) -> Tensor:
            return jvp(
                lambda values: self._record_loss(values, x, y), (self._parameter_values,), (way,)
            )[1]  # type: ignore[no-any-return]

        each = vmap(slope_along)
        return torch.cat(
            [
                each(x, y)
                for x, y in zip(self.x.split(RECORDS_PER_BLOCK), self.y.split(RECORDS_PER_BLOCK))
            ]
        )

    @property
    def _parameter_values(self) -> State:
        return {name: self.state[name] for name in self.names}

    def _record_loss(self, values: State, x: Tensor, y: Tensor) -> Tensor:
        complete = {**self.state, **values}
        return F.cross_entropy(functional_call(self.model, complete, (x[None],)), y[None])


@dataclass(frozen=True)
class LayerCoefficients:
    """Takes a change (p,) to the records' parts in it (n,), as ridge regression's matrix does,
    which would be too large."""

    gradients: RecordGradients
    gram: Tensor
    ridge: float

    @classmethod
    def from_gradients(cls, gradients: RecordGradients, ridge: float) -> LayerCoefficients:
        return cls(gradients, gradients.gram_matrix(), ridge)

    def __matmul__(self, vector: Tensor) -> Tensor:
        return solve_ridge(
            self.gram, self.gradients.inner_products(vector).double(), self.ridge
        ).float()


@dataclass(frozen=True)
class AdversaryView:
    """What one adversary holds of one client's round, to turn what was sent into membership signals
    of the audited
    records. snapshot: the round's broadcast; memory: what the client kept after it (used only for
    maps that the strongest attacker is granted, and named so); public: test records that no
    client trained on, for centring; query_keys: the streams
    of the copies that a model is asked about, None = of no copies."""

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
        return model.to(self.candidates.x.device).eval()

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
        size = gradients.gradient_matrix.norm()
        total = gradients.gradient_matrix
        for state in (middle, end):
            gradients_there = self.record_gradients_at(state)
            matrix = None if gradients_there is None else gradients_there.gradient_matrix
            if matrix is not None and torch.isfinite(matrix).all():
                total = total + matrix * (size / matrix.norm().clamp_min(1e-30)).clamp(max=1)
        return total / 3

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
        return solvers

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
            raise ValueError("this method names no public images")
        return LogitReading.before_training(self, self.public_images)

    @cached_property
    def public_map_features(self) -> tuple[Tensor, Tensor]:
        """In the public map: the mean (d,) of the public records, and the audited records (n, d)
        relative to it."""
        if self.public_map is None:
            raise ValueError("this method names no public map")
        centre = embed_in_batches(self.public_map, self.public.x).mean(0)
        return centre, embed_in_batches(self.public_map, self.candidates.x) - centre

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
        return self.model.features(x)  # type: ignore[operator]


def coefficients_by_layer(adversary: AdversaryView, vector: Tensor) -> dict[str, Tensor]:
    """ "joint_LAYER" -> (n,): the records' parts in a sum of their gradients, shaped like the
    parameters (p,)."""
    return {
        f"joint_{layer}": matrix @ vector[place]
        for layer, (place, matrix) in adversary.layer_solvers.items()
    }


def coefficients_in_means(
    adversary: AdversaryView, inside: Tensor, labels: Tensor, own: Tensor
) -> Tensor:
    """(n,): the records' parts in the class means of released rows (m, d) with labels (m,); own:
    the records' (n, d)."""
    means = class_mean_embeddings(inside, labels, adversary.problem.classes)
    absent = torch.bincount(labels.long(), minlength=adversary.problem.classes) == 0
    means = means.masked_fill(absent.unsqueeze(-1), torch.nan)
    return class_ridge_coefficients(means, own, adversary.candidates.y)


Signals = dict[str, Tensor]  # "surface|signal" (``signal_group``) -> (n,)


class UnreadableUpload(ValueError):
    """No signal in an upload can depend on a record: an audit would find nothing there, however
    much it leaks."""

    def __init__(self, method: Method, name: str, hooks: str) -> None:
        super().__init__(
            f"{type(method).__name__} sends {name!r}, in which no attack can look for a "
            f"record: it must define {hooks}"
        )


SignalReader = Callable[[AdversaryView, str, Tensors, Values], Signals]


def _update_signals(adversary: AdversaryView, name: str, value: Tensors, values: Values) -> Signals:
    """Confidence of the uploaded model, and alignment of the change with each record's gradient."""
    state = adversary.state_of_upload(name, value)
    # without these inversion would have nothing to invert either
    if state is None or adversary.broadcast_state is None or adversary.model is None:
        raise UnreadableUpload(adversary.method, name, "classifier, sent_state and model_state")
    logits = adversary.predict_logits(state, adversary.candidates.x)
    y = adversary.candidates.y
    public = adversary.public.x[:POPULATION_RECORDS]
    out = {
        "confidence": sig.logit_scaled(logits, y),
        "loss": sig.negative_loss(logits, y),
        "logits": logits,
        "public_logits": adversary.predict_logits(state, public),
        "gradient_norm": -sig.output_gradient(logits, y).norm(dim=-1),
    }
    out |= adversary.query_copies(out["confidence"], lambda x: adversary.predict_logits(state, x))
    if adversary.record_gradients is not None:
        names = [n for n, _ in adversary.model.named_parameters()]
        change = torch.cat([(state[n] - adversary.broadcast_state[n]).flatten() for n in names])
        out |= adversary.record_gradients.alignment_signals(-change)
        out |= coefficients_by_layer(adversary, -change)
    return out


def _gradient_signals(
    adversary: AdversaryView, name: str, value: Tensors, values: Values
) -> Signals:
    """A control variate is a mean gradient, as is a gradient itself: a member's own points along
    it."""
    if adversary.record_gradients is None or adversary.model is None:
        raise UnreadableUpload(adversary.method, name, "classifier and sent_state")
    vector = torch.cat(
        [value[n].flatten() for n, _ in adversary.model.named_parameters() if n in value]
    )
    signals = adversary.record_gradients.alignment_signals(vector)
    if len(vector) == adversary.record_gradients.parameter_count:
        return signals | coefficients_by_layer(adversary, vector)
    return signals


def _feature_signals(
    adversary: AdversaryView, name: str, value: Tensors, values: Values
) -> Signals:
    """Matched filter: is some released row this record's own feature plus noise? Labels travel
    along."""
    maps = adversary.method.audit_hooks.maps(
        adversary.snapshot.broadcast, adversary.memory, adversary.problem
    )
    clean = maps["feature"](adversary.candidates.x).flatten(1)
    rows = value["x"].flatten(1)
    labels = values["labels"]["y"]
    noise = adversary.noise
    batch = adversary.noise.get("broadcast_batch")
    stds = noise.get("noise_stds") or [float(noise.get("std") or 1e-3)] * int(
        noise.get("copies", 1)
    )
    if batch:
        signals = _shared_noise_signal(
            rows, labels, clean, adversary.candidates.y, int(batch), stds
        )
    else:
        signals = {}
    if batch:
        # noise that is shared by a release batch cancels in differences: each batch is centred by
        # its own mean
        rows = torch.cat(
            [p - p.mean(0) for copy in rows.chunk(len(stds)) for p in copy.split(int(batch))]
        )
    # a peer averages several noised copies of a row
    rows, std = sig.average_noisy_copies(rows, stds)
    labels = labels[: len(rows)]
    if batch:
        clean = clean - maps["feature"](adversary.public.x).flatten(1).mean(0)
        std = max(std / int(batch) ** 0.5, 1e-2)
    signals["distance"] = distance_to_synthetic(clean, rows, 2 * float(clean.norm(dim=1).max()))
    out = torch.full((len(clean),), torch.nan, device=clean.device)
    for c in labels.unique():
        mine = adversary.candidates.y == c
        if mine.any():
            out[mine] = sig.matched_filter(rows[labels == c], clean[mine], std)
    absent = out.isnan()  # no row of this class was released: give it the lowest score seen
    return {
        **signals,
        "matched_filter": out.masked_fill(
            absent, float(out[~absent].min()) if not absent.all() else 0.0
        ),
    }


def _shared_noise_signal(
    rows: Tensor, labels: Tensor, clean: Tensor, y: Tensor, batch: int, stds: Sequence[float]
) -> Signals:
    """The best of all copies: each has noise of its own, and one coincidence is enough."""
    parts = zip(rows.chunk(len(stds)), labels.chunk(len(stds)), stds)
    coincidences = [noise_coincidence(r, c, clean, y, batch, std) for r, c, std in parts]
    return {COINCIDENCE_SIGNAL: torch.stack(coincidences).amax(0)}


def _label_signals(adversary: AdversaryView, name: str, value: Tensors, values: Values) -> Signals:
    """How many released labels a record's class has: one more when the record is in."""
    counts = torch.bincount(value["y"].long(), minlength=adversary.problem.classes).float()
    return {"count": counts[adversary.candidates.y]}


def _synthetic_image_signals(
    adversary: AdversaryView, name: str, value: Tensors, values: Values
) -> Signals:
    """A model trained on the synthetic set, alignment of class means, distance to the nearest
    image. Images that were matched in a public map are compared there as well: in the classifier
    they may say nothing."""
    x = value["x"]
    y = values["labels"]["y"]
    records = adversary.candidates
    centre = adversary.embed_images(adversary.public.x).mean(0)
    image_features = adversary.embed_images(x) - centre
    record_features = adversary.embed_images(records.x) - centre
    public_features = adversary.embed_images(adversary.public.x[:POPULATION_RECORDS]) - centre
    signals = {
        **_readout_signals(
            image_features,
            y,
            record_features,
            public_features,
            adversary,
            lambda x: adversary.embed_images(x) - centre,
        ),
        "alignment": _class_mean_alignment(adversary, image_features, y, record_features),
        "distance": distance_to_synthetic(
            records.x, x, records.x[0].numel() ** 0.5
        ),  # from black to white
        "patch_distance": patch_distance(records.x, x),
        "joint": coefficients_in_means(adversary, x.flatten(1), y, records.x.flatten(1)),
        "joint_embedding": coefficients_in_means(adversary, image_features, y, record_features),
    }
    if adversary.public_map is not None:
        middle, mapped = adversary.public_map_features
        public_rows = embed_in_batches(adversary.public_map, x) - middle
        signals["embedding_alignment"] = _class_mean_alignment(adversary, public_rows, y, mapped)
        signals["joint_public_map"] = coefficients_in_means(adversary, public_rows, y, mapped)
    return signals


def _readout_signals(
    inside: Tensor,
    y: Tensor,
    own: Tensor,
    others: Tensor,
    adversary: AdversaryView,
    embed: Callable[[Tensor], Tensor],
) -> dict[str, Tensor]:
    """Signals of a model trained on rows ``inside`` (m, d), for the audited records and for public
    ones; embed: takes records to such rows."""

    def predict_rows(rows: Tensor) -> Tensor:
        return ridge_readout(inside, y, rows, adversary.problem.classes)

    logits = predict_rows(own)
    confidence = sig.logit_scaled(logits, adversary.candidates.y)
    queried = adversary.query_copies(confidence, lambda x: predict_rows(embed(x)))
    return {
        "confidence": confidence,
        "logits": logits,
        "public_logits": predict_rows(others),
        **queried,
    }


def _class_mean_alignment(
    adversary: AdversaryView, inside: Tensor, labels: Tensor, own: Tensor
) -> Tensor:
    means = class_mean_embeddings(inside, labels, adversary.problem.classes)
    return sig.embedding_alignment(means, own, adversary.candidates.y, cosine=False)


def _representation_signals(
    adversary: AdversaryView, name: str, value: Tensors, values: Values
) -> Signals:
    """The signals of images, in the space of the projection; the attacker is granted the client's
    own map, as it was when the representations were made. Without one, nothing is read unless
    projected records are as large as records."""
    maps = adversary.method.audit_hooks.maps(
        adversary.snapshot.broadcast, adversary.memory, adversary.problem
    )
    project = maps.get("projection") or (lambda x: x)
    record_rows = project(adversary.candidates.x).flatten(1)
    released_rows = value["x"].flatten(1)
    y = values["labels"]["y"]
    if record_rows.shape[1] != released_rows.shape[1]:
        return {}
    public = project(adversary.public.x).flatten(1)
    centre = public.mean(0)
    # no bound is known: the diameter of the records' ball
    farthest = 2 * float(record_rows.norm(dim=1).max())
    rows = (released_rows - centre, y, record_rows - centre, public[:POPULATION_RECORDS] - centre)
    return {
        **_readout_signals(*rows, adversary, lambda x: project(x).flatten(1) - centre),
        "alignment": _class_mean_alignment(
            adversary, released_rows - centre, y, record_rows - centre
        ),
        "distance": distance_to_synthetic(record_rows, released_rows, farthest),
        "joint": coefficients_in_means(adversary, released_rows - centre, y, record_rows - centre),
    }


def _prototype_signals(
    adversary: AdversaryView, name: str, value: Tensors, values: Values
) -> Signals:
    """A class mean (or sum) and a class count move with each of the class's members.

    "count": the record's own class; "row": the norm of its class's mean, which needs no map;
    "alignment": the part of the class's sum (mean times count) along the record, seen from public
    records, where the server knows a map; "joint_opening": the record's part in the class's mean,
    by the map that all clients start from; "distance": to the nearest mean of a class of one
    record, which is that record in the map."""
    y = adversary.candidates.y
    mean = value["mean" if "mean" in value else "sum"].flatten(1)
    signals = {"row": mean.norm(dim=1)[y]}
    if "count" in value:
        signals["count"] = value["count"][y]
    opening = adversary.opening_features
    if opening is not None and opening.shape[1:] == mean.shape[1:]:
        if "count" in value:
            absent = value["count"] == 0
        else:
            absent = mean.new_zeros(len(mean), dtype=torch.bool)
        signals["joint_opening"] = class_ridge_coefficients(
            mean.masked_fill(absent[:, None], torch.nan), opening, y
        )
    if adversary.broadcast_state is not None:
        see = adversary.embed_images
    else:
        see = adversary.public_map
    if see is not None:
        record_rows = embed_in_batches(see, adversary.candidates.x)
    else:
        record_rows = mean[:0]
    if record_rows.shape[1:] != mean.shape[1:] or see is None:
        return signals
    alone = single_record_means(mean, value.get("count"))
    signals["distance"] = distance_to_synthetic(
        record_rows, alone, 2 * float(record_rows.norm(dim=1).max())
    )
    centre = embed_in_batches(see, adversary.public.x).mean(0)
    signals["alignment"] = sig.embedding_alignment(
        mean - centre, record_rows - centre, y, cosine=False
    )
    return signals


def _statistics_signals(
    adversary: AdversaryView, name: str, value: Tensors, values: Values
) -> Signals:
    """Class statistics by their own density; batch-norm buffers through the model that they
    complete."""
    if {"mean", "std"} <= set(value):
        per_channel = adversary.candidates.x.mean((2, 3))
        return {
            "density": sig.class_log_density(
                value["mean"], value["std"], per_channel, adversary.candidates.y
            )
        }
    state = adversary.state_of_upload(name, value)
    if state is None:
        return _record_loss_signal(adversary, name, value)
    logits = adversary.predict_logits(state, adversary.candidates.x)
    confidence = sig.logit_scaled(logits, adversary.candidates.y)
    queried = adversary.query_copies(confidence, lambda x: adversary.predict_logits(state, x))
    return {"confidence": confidence, **queried}


def _record_loss_signal(adversary: AdversaryView, name: str, value: Tensors) -> Signals:
    """By the method's own loss, where an upload implies no classifier."""
    loss = adversary.method.audit_hooks.record_loss(
        name, value, adversary.snapshot.broadcast, adversary.problem
    )
    if loss is None:
        raise UnreadableUpload(
            adversary.method, name, "classifier, sent_state and model_state, or record_loss"
        )
    return {"loss": -loss(adversary.candidates.x, adversary.candidates.y)}


def _count_signal(adversary: AdversaryView, name: str, value: Tensors, values: Values) -> Signals:
    """The signal of counts: the sum of all numbers sent, the same for every record."""
    total = torch.stack([t.float().sum() for t in value.values()]).sum()
    return {"count": total.expand(len(adversary.candidates)).clone()}


def _logit_signals(adversary: AdversaryView, name: str, value: Tensors, values: Values) -> Signals:
    """A student distilled from the logits on public images, asked about the records; and each
    record's part in how the logits differ from those before training."""
    if adversary.public_images is None:
        raise UnreadableUpload(adversary.method, name, "public_images")
    logits = value["logits"]
    if len(logits) != len(adversary.public_images):
        raise ValueError(
            f"{name!r}: logits of {len(logits)} images, public_images are "
            f"{len(adversary.public_images)}"
        )
    reading = adversary.logit_reading
    taught = logits - logits.mean(1, keepdim=True)  # softmax sees no more
    offset = taught.mean(0)

    def ask_student(rows: Tensor) -> Tensor:
        return ridge_student(reading.rows, taught - offset, rows) + offset

    student = ask_student(reading.own)
    change = logits - reading.start
    return {
        "confidence": sig.logit_scaled(student, adversary.candidates.y),
        "logits": student,
        "public_logits": ask_student(reading.others),
        **reading.influence.signals(change - change.mean(1, keepdim=True)),
    }


def missing_map_hooks(method: Method, surface: Surface) -> str:
    """The hooks that would give attacks a map to the rows of a surface, "" if the method names
    one."""
    ways = MAP_HOOKS.get(surface, ())
    missing = [[hook for hook in way if not overrides_hook(method, hook)] for way in ways]
    if not ways or not all(missing):
        return ""
    return ", or ".join(" and ".join(hooks) for hooks in missing)


def missing_hooks(method: Method, surface: Surface) -> str:
    """The hooks that a method must define before its uploads of a surface can be read, "" if none
    is missing."""
    if surface not in SIGNAL_READERS:
        return f"another surface than {surface}, which only a server sends"
    return " and ".join(
        hook for hook in NEEDED_HOOKS.get(surface, ()) if not overrides_hook(method, hook)
    )


SIGNAL_READERS: Mapping[Surface, SignalReader] = {
    Surface.UPDATE: _update_signals,
    Surface.GRADIENT: _gradient_signals,
    Surface.CONTROL_VARIATE: _gradient_signals,
    Surface.FEATURES: _feature_signals,
    Surface.LABELS: _label_signals,
    Surface.SYNTHETIC_IMAGES: _synthetic_image_signals,
    Surface.SYNTHETIC_REPRESENTATIONS: _representation_signals,
    Surface.PROTOTYPES: _prototype_signals,
    Surface.STATISTICS: _statistics_signals,
    Surface.COUNTS: _count_signal,
    Surface.LOGITS: _logit_signals,
}


def signal_group(method: Method, name: str) -> str:
    """What the names of a message's signals begin with: its surface, and its own name where it is
    not the first message that the method declares on that surface."""
    surface = method.uploads[name]
    first = next(upload for upload, of in method.uploads.items() if of == surface)
    return str(surface) if name == first else f"{surface}:{name}"


def extract_signals(adversary: AdversaryView, values: Values) -> Signals:
    """Every message among ``values`` (one client's upload) gets at least one signal, unless waived
    and unreadable. Raises UnreadableUpload where no signal could depend on the record."""
    adversary, values = adversary.on_device, to_device(values, adversary.problem.device)
    signals: Signals = {}
    with torch.no_grad():
        for name, value in values.items():
            surface = adversary.method.uploads[name]
            if str(surface) in adversary.waived and missing_hooks(adversary.method, surface):
                continue
            for signal, scores in SIGNAL_READERS[surface](adversary, name, value, values).items():
                signals[f"{signal_group(adversary.method, name)}|{signal}"] = scores.float()
    return to_device(signals, "cpu")
