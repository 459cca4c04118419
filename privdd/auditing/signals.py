"""From a run and its worlds to what an attacker holds: the only adapter between the two packages."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from attacks.membership import signals as sig
from attacks.membership.readout import class_means, nearest, readout
from attacks.types import Surface
from privdd.core.types import Problem, Records, State, Tensors
from privdd.federated.method import Method
from privdd.federated.simulation import Snapshot

Signals = dict[str, Tensor]  # "surface|signal" -> (n,)


@dataclass(frozen=True)
class Lens:
    """Turns what one client sent in one round into membership signals for the audited records.

    snapshot: the round's broadcast; memory: what the client kept then (used only for maps that the
    strongest attacker is granted, and named so); public: records of nobody, for centring.
    """

    method: Method
    problem: Problem
    snapshot: Snapshot
    candidates: Records
    public: Records
    memory: State
    noise: Mapping[str, Any]  # of the feature mechanism: std, broadcast_batch, copies

    # --- what the attacker can compute --------------------------------------------------------

    @cached_property
    def model(self) -> nn.Module | None:
        build = getattr(self.method, "classifier", None)
        return build(self.problem).eval() if build else None

    @cached_property
    def start(self) -> State | None:
        """The classifier as the server sent it, where one was sent."""
        return self.state("update", self._sent_parameters(), absolute=True) if self.model is not None else None

    def _sent_parameters(self) -> Tensors:
        return self.snapshot.broadcast.get("model") or self.snapshot.broadcast.get("generator") or {}

    def state(self, name: str, value: Tensors, absolute: bool = False) -> State | None:
        """The classifier that an upload implies, complete, or None."""
        hook = getattr(self.method, "model_state", None)
        if hook is None or self.model is None or not value:
            return None
        if absolute and getattr(self.method, "update_is_delta", False):
            value = {k: torch.zeros_like(t) for k, t in value.items()}
        try:
            state = hook(name, value, self.snapshot.broadcast)
        except KeyError:
            return None
        wanted = set(dict(self.model.named_parameters()))
        return state if state is not None and wanted <= set(state) else None

    def logits(self, state: State, x: Tensor) -> Tensor:
        model = self.model
        if model is None:
            raise ValueError("this method shares no classifier")
        with torch.no_grad():
            return torch.cat([functional_call(model, state, (part,)) for part in x.split(512)])

    @cached_property
    def gradients(self) -> Tensor | None:
        """(n, p) loss gradient of each audited record at the broadcast model."""
        if self.start is None or self.model is None:
            return None
        model, start = self.model, self.start
        names = [n for n, _ in model.named_parameters()]
        rest = {n: t for n, t in start.items() if n not in names}

        def loss(params: State, x: Tensor, y: Tensor) -> Tensor:
            return F.cross_entropy(functional_call(model, {**params, **rest}, (x[None],)), y[None])

        params = {n: start[n] for n in names}
        pull = vmap(grad(loss), in_dims=(None, 0, 0))
        parts = [pull(params, x, y) for x, y in zip(self.candidates.x.split(32), self.candidates.y.split(32))]
        return torch.cat([torch.cat([p[n].flatten(1) for n in names], 1) for p in parts])

    def embed(self, x: Tensor) -> Tensor:
        """(b, d) penultimate features of the broadcast classifier; pixels where none was sent."""
        if self.start is None or self.model is None:
            return x.flatten(1)
        features = _Features(self.model)
        state = {f"model.{k}": t for k, t in self.start.items()}
        return _seen(lambda part: functional_call(features, state, (part,)), x)

    @cached_property
    def mapped(self) -> tuple[Tensor, Tensor]:
        """In the public map: the centre (d,) of public records, and the audited records (n, d) seen from it."""
        if self.public_map is None:
            raise ValueError("this method names no public map")
        centre = _seen(self.public_map, self.public.x).mean(0)
        return centre, _seen(self.public_map, self.candidates.x) - centre

    @cached_property
    def public_map(self) -> Callable[[Tensor], Tensor] | None:
        """The public map, the same in all rounds, in which synthetic images carry what they carry; None without."""
        return maps_of(self.method, self.snapshot, self.memory, self.problem).get("public")

    # --- signals ------------------------------------------------------------------------------

    def signals(self, values: Mapping[str, Tensors]) -> Signals:
        """Every surface among ``values`` (one client's upload) gets at least one signal."""
        with torch.no_grad():
            return self._signals(values)

    def _signals(self, values: Mapping[str, Tensors]) -> Signals:
        found: Signals = {}
        for name, value in values.items():
            surface = self.method.uploads[name]
            reader = READERS.get(surface, _total)
            for signal, scores in reader(self, name, value, values).items():
                found[f"{surface}|{signal}"] = scores.float()
        return found


def _seen(see: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
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
    hook = getattr(method, "maps", None)
    return dict(hook(snapshot.broadcast, memory, problem)) if hook else {}


Reader = Callable[[Lens, str, Tensors, Mapping[str, Tensors]], Mapping[str, Tensor]]


def _update(lens: Lens, name: str, value: Tensors, values: Mapping[str, Tensors]) -> Mapping[str, Tensor]:
    """Confidence of the uploaded model, and alignment of the change with each record's gradient."""
    state = lens.state(name, value)
    if state is None:
        return _total(lens, name, value, values)
    logits = lens.logits(state, lens.candidates.x)
    out = {
        "confidence": sig.logit_scaled(logits, lens.candidates.y),
        "loss": sig.negative_loss(logits, lens.candidates.y),
    }
    out["logits"] = logits
    if lens.gradients is not None and lens.start is not None and lens.model is not None:
        names = [n for n, _ in lens.model.named_parameters()]
        change = torch.cat([(state[n] - lens.start[n]).flatten() for n in names])
        out["alignment"] = sig.gradient_alignment(change, lens.gradients)
    return out


def _control(lens: Lens, name: str, value: Tensors, values: Mapping[str, Tensors]) -> Mapping[str, Tensor]:
    """A control variate is a mean gradient: a member's own gradient points along it."""
    if lens.gradients is None or lens.model is None:
        return _total(lens, name, value, values)
    vector = torch.cat([value[n].flatten() for n, _ in lens.model.named_parameters() if n in value])
    return {"alignment": sig.alignment(vector, lens.gradients)}


def _features(lens: Lens, name: str, value: Tensors, values: Mapping[str, Tensors]) -> Mapping[str, Tensor]:
    """Matched filter: is some released row this record's own feature plus noise? Labels travel along."""
    maps = lens.method.maps(lens.snapshot.broadcast, lens.memory, lens.problem)  # type: ignore[attr-defined]
    clean = maps["feature"](lens.candidates.x).flatten(1)
    rows, labels = value["x"].flatten(1), values["labels"]["y"]
    std = float(lens.noise.get("std") or 1e-3)
    batch = lens.noise.get("broadcast_batch")
    if batch:
        rows = _subtract_batch_mean(rows, int(batch), int(lens.noise.get("copies", 1)))
        clean = clean - maps["feature"](lens.public.x).flatten(1).mean(0)
        std = max(std / int(batch) ** 0.5, 1e-2)
    out = torch.full((len(clean),), torch.nan)
    for c in labels.unique():
        mine = lens.candidates.y == c
        if mine.any():
            out[mine] = sig.matched_filter(rows[labels == c], clean[mine], std)
    absent = out.isnan()  # no row of the class was released: as unlike a member as anything seen
    return {"matched_filter": out.masked_fill(absent, float(out[~absent].min()) if not absent.all() else 0.0)}


def _subtract_batch_mean(rows: Tensor, batch: int, copies: int) -> Tensor:
    """One noise image per release batch cancels in differences: centre each batch by its own mean."""
    parts = [part - part.mean(0) for copy in rows.chunk(copies) for part in copy.split(batch)]
    return torch.cat(parts)


def _labels(lens: Lens, name: str, value: Tensors, values: Mapping[str, Tensors]) -> Mapping[str, Tensor]:
    """How many released labels a record's class has: one more when the record is in."""
    counts = torch.bincount(value["y"].long(), minlength=lens.problem.classes).float()
    return {"count": counts[lens.candidates.y]}


def _synthetic(lens: Lens, name: str, value: Tensors, values: Mapping[str, Tensors]) -> Mapping[str, Tensor]:
    """A model trained on the synthetic set, alignment of class means, distance to the nearest image.

    Images that were matched in a public map are compared there as well: in the classifier they may say nothing.
    """
    x, y = value["x"], values["labels"]["y"]
    records = lens.candidates
    centre = lens.embed(lens.public.x).mean(0)
    inside, own = lens.embed(x) - centre, lens.embed(records.x) - centre
    logits = readout(inside, y, own, lens.problem.classes)
    found = {
        "confidence": sig.logit_scaled(logits, records.y),
        "logits": logits,
        "alignment": _aligned(lens, inside, y, own),
        "distance": nearest(records.x, x, records.x[0].numel() ** 0.5),  # from black to white
    }
    if lens.public_map is not None:
        middle, mapped = lens.mapped
        found["embedding_alignment"] = _aligned(lens, _seen(lens.public_map, x) - middle, y, mapped)
    return found


def _aligned(lens: Lens, inside: Tensor, labels: Tensor, own: Tensor) -> Tensor:
    means = class_means(inside, labels, lens.problem.classes)
    return sig.embedding_alignment(means, own, lens.candidates.y, cosine=False)


def _representations(lens: Lens, name: str, value: Tensors, values: Mapping[str, Tensors]) -> Mapping[str, Tensor]:
    """As for images, in the space of the projection; the attacker is granted the client's own map."""
    maps = maps_of(lens.method, lens.snapshot, lens.memory, lens.problem)
    project = maps.get("projection") or (lambda x: x)
    own, inside, y = project(lens.candidates.x).flatten(1), value["x"].flatten(1), values["labels"]["y"]
    centre = project(lens.public.x).flatten(1).mean(0) if own.shape[1] == inside.shape[1] else inside.mean(0)
    farthest = 2 * float(own.norm(dim=1).max())  # no bound is known, but the records' own ball
    return {
        "alignment": _aligned(lens, inside - centre, y, own - centre),
        "distance": nearest(own, inside, farthest),
    }


def _prototypes(lens: Lens, name: str, value: Tensors, values: Mapping[str, Tensors]) -> Mapping[str, Tensor]:
    own = lens.embed(lens.candidates.x)
    if own.shape[1] != value["mean"].shape[1]:
        return _total(lens, name, value, values)
    centre = lens.embed(lens.public.x).mean(0)
    return {"alignment": sig.embedding_alignment(value["mean"] - centre, own - centre, lens.candidates.y, cosine=False)}


def _statistics(lens: Lens, name: str, value: Tensors, values: Mapping[str, Tensors]) -> Mapping[str, Tensor]:
    """Class statistics by their own density; batch-norm buffers through the model that they complete."""
    if {"mean", "std"} <= set(value):
        per_channel = lens.candidates.x.mean((2, 3))
        return {"density": sig.class_statistics(value["mean"], value["std"], per_channel, lens.candidates.y)}
    if lens.start is not None and lens.model is not None:
        inner = {k.removeprefix("classifier."): t for k, t in value.items()}
        known = {k: t for k, t in inner.items() if k in dict(lens.model.named_buffers())}
        if known:
            logits = lens.logits({**lens.start, **known}, lens.candidates.x)
            return {"confidence": sig.logit_scaled(logits, lens.candidates.y)}
    return _total(lens, name, value, values)


def _total(lens: Lens, name: str, value: Tensors, values: Mapping[str, Tensors]) -> Mapping[str, Tensor]:
    """The sum of all numbers sent, the same for every record: for counts, that is the count."""
    total = torch.stack([t.float().sum() for t in value.values()]).sum()
    return {"count": total.expand(len(lens.candidates)).clone()}


READERS: Mapping[Surface, Reader] = {
    Surface.UPDATE: _update,
    Surface.CONTROL_VARIATE: _control,
    Surface.FEATURES: _features,
    Surface.LABELS: _labels,
    Surface.SYNTHETIC_IMAGES: _synthetic,
    Surface.SYNTHETIC_REPRESENTATIONS: _representations,
    Surface.PROTOTYPES: _prototypes,
    Surface.STATISTICS: _statistics,
    Surface.COUNTS: _total,
}
