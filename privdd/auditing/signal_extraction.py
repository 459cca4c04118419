"""Membership signals extracted from what one client sent: one reader per surface.

A signal is one number per audited record, larger = more like a member. ``AdversaryView`` holds what a reader may use.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from attacks.membership import signals as sig
from attacks.membership.shared_noise import COINCIDENCE_SIGNAL, noise_coincidence
from attacks.membership.signals import (
    class_mean_embeddings,
    class_ridge_coefficients,
    distance_to_synthetic,
    ridge_readout,
)
from attacks.types import Surface
from privdd.auditing.adversary_view import AdversaryView, embed_in_batches, method_maps
from privdd.core.device import to_device
from privdd.core.types import Tensors
from privdd.federated.method import Method, overrides_hook

# See ``attacks.membership.signals``. In a model's parameters every layer is solved by itself: their noise differs, and what
# they say together is for an attack that takes several signals.


def coefficients_by_layer(adversary: AdversaryView, vector: Tensor) -> dict[str, Tensor]:
    """ "joint_LAYER" -> (n,): the records' parts in a sum of their gradients, shaped like the parameters (p,)."""
    return {f"joint_{layer}": matrix @ vector[place] for layer, (place, matrix) in adversary.layer_solvers.items()}


def coefficients_in_means(adversary: AdversaryView, inside: Tensor, labels: Tensor, own: Tensor) -> Tensor:
    """(n,): the records' parts in the class means of released rows (m, d) with labels (m,); own: the records' (n, d)."""
    means = class_mean_embeddings(inside, labels, adversary.problem.classes)
    absent = torch.bincount(labels.long(), minlength=adversary.problem.classes) == 0
    means = means.masked_fill(absent.unsqueeze(-1), torch.nan)
    return class_ridge_coefficients(means, own, adversary.candidates.y)


POPULATION_RECORDS = 200  # public records on which RMIA compares a record's ratio with others'
Signals = dict[str, Tensor]  # "surface|signal" -> (n,)


class UnreadableUpload(ValueError):
    """No signal in an upload can depend on a record: an audit would find nothing there, however much it leaks."""

    def __init__(self, method: Method, name: str, hooks: str) -> None:
        super().__init__(
            f"{type(method).__name__} sends {name!r}, in which no attack can look for a record: it must define {hooks}"
        )


SignalReader = Callable[[AdversaryView, str, Tensors, Mapping[str, Tensors]], Mapping[str, Tensor]]


def _update_signals(
    adversary: AdversaryView, name: str, value: Tensors, values: Mapping[str, Tensors]
) -> Mapping[str, Tensor]:
    """Confidence of the uploaded model, and alignment of the change with each record's gradient."""
    state = adversary.state_of_upload(name, value)
    if (
        state is None or adversary.broadcast_state is None or adversary.model is None
    ):  # inversion would have nothing to invert either
        raise UnreadableUpload(adversary.method, name, "classifier, sent_state and model_state")
    logits = adversary.predict_logits(state, adversary.candidates.x)
    out = {
        "confidence": sig.logit_scaled(logits, adversary.candidates.y),
        "loss": sig.negative_loss(logits, adversary.candidates.y),
    }
    out["logits"] = logits
    out["public_logits"] = adversary.predict_logits(state, adversary.public.x[:POPULATION_RECORDS])
    out["gradient_norm"] = -sig.output_gradient(logits, adversary.candidates.y).norm(dim=-1)
    if adversary.record_gradients is not None:
        names = [n for n, _ in adversary.model.named_parameters()]
        change = torch.cat([(state[n] - adversary.broadcast_state[n]).flatten() for n in names])
        out |= adversary.record_gradients.alignment_signals(-change)
        out |= coefficients_by_layer(adversary, -change)
    return out


def _gradient_signals(
    adversary: AdversaryView, name: str, value: Tensors, values: Mapping[str, Tensors]
) -> Mapping[str, Tensor]:
    """A control variate is a mean gradient, as is a gradient itself: a member's own points along it."""
    if adversary.record_gradients is None or adversary.model is None:
        raise UnreadableUpload(adversary.method, name, "classifier and sent_state")
    vector = torch.cat([value[n].flatten() for n, _ in adversary.model.named_parameters() if n in value])
    found = adversary.record_gradients.alignment_signals(vector)
    if len(vector) == adversary.record_gradients.parameter_count:
        return found | coefficients_by_layer(adversary, vector)
    return found


def _feature_signals(
    adversary: AdversaryView, name: str, value: Tensors, values: Mapping[str, Tensors]
) -> Mapping[str, Tensor]:
    """Matched filter: is some released row this record's own feature plus noise? Labels travel along."""
    maps = adversary.method.audit_hooks.maps(adversary.snapshot.broadcast, adversary.memory, adversary.problem)
    clean = maps["feature"](adversary.candidates.x).flatten(1)
    rows, labels = value["x"].flatten(1), values["labels"]["y"]
    stds = adversary.noise.get("noise_stds") or [float(adversary.noise.get("std") or 1e-3)] * int(
        adversary.noise.get("copies", 1)
    )
    batch = adversary.noise.get("broadcast_batch")
    found = _shared_noise_signal(rows, labels, clean, adversary.candidates.y, int(batch), stds) if batch else {}
    if batch:
        rows = _subtract_batch_mean(rows, int(batch), len(stds))
    rows, std = sig.average_noisy_copies(rows, stds)  # a peer averages several noised copies of a row
    labels = labels[: len(rows)]
    if batch:
        clean = clean - maps["feature"](adversary.public.x).flatten(1).mean(0)
        std = max(std / int(batch) ** 0.5, 1e-2)
    out = torch.full((len(clean),), torch.nan, device=clean.device)
    for c in labels.unique():
        mine = adversary.candidates.y == c
        if mine.any():
            out[mine] = sig.matched_filter(rows[labels == c], clean[mine], std)
    absent = out.isnan()  # no row of this class was released: give it the lowest score seen
    return {**found, "matched_filter": out.masked_fill(absent, float(out[~absent].min()) if not absent.all() else 0.0)}


def _shared_noise_signal(
    rows: Tensor, labels: Tensor, clean: Tensor, y: Tensor, batch: int, stds: Sequence[float]
) -> Mapping[str, Tensor]:
    """The best of all copies: each has noise of its own, and one coincidence is enough."""
    parts = zip(rows.chunk(len(stds)), labels.chunk(len(stds)), stds)
    return {
        COINCIDENCE_SIGNAL: torch.stack([noise_coincidence(r, c, clean, y, batch, std) for r, c, std in parts]).amax(0)
    }


def _subtract_batch_mean(rows: Tensor, batch: int, copies: int) -> Tensor:
    """Noise that is shared by a release batch cancels in differences: centre each batch by its own mean."""
    parts = [part - part.mean(0) for copy in rows.chunk(copies) for part in copy.split(batch)]
    return torch.cat(parts)


def _label_signals(
    adversary: AdversaryView, name: str, value: Tensors, values: Mapping[str, Tensors]
) -> Mapping[str, Tensor]:
    """How many released labels a record's class has: one more when the record is in."""
    counts = torch.bincount(value["y"].long(), minlength=adversary.problem.classes).float()
    return {"count": counts[adversary.candidates.y]}


def _synthetic_image_signals(
    adversary: AdversaryView, name: str, value: Tensors, values: Mapping[str, Tensors]
) -> Mapping[str, Tensor]:
    """A model trained on the synthetic set, alignment of class means, distance to the nearest image.

    Images that were matched in a public map are compared there as well: in the classifier they may say nothing.
    """
    x, y = value["x"], values["labels"]["y"]
    records = adversary.candidates
    centre = adversary.embed_images(adversary.public.x).mean(0)
    inside, own = adversary.embed_images(x) - centre, adversary.embed_images(records.x) - centre
    others = adversary.embed_images(adversary.public.x[:POPULATION_RECORDS]) - centre
    found = {
        **_readout_signals(inside, y, own, others, adversary),
        "alignment": _class_mean_alignment(adversary, inside, y, own),
        "distance": distance_to_synthetic(records.x, x, records.x[0].numel() ** 0.5),  # from black to white
        "joint": coefficients_in_means(adversary, x.flatten(1), y, records.x.flatten(1)),
        "joint_embedding": coefficients_in_means(adversary, inside, y, own),
    }
    if adversary.public_map is not None:
        middle, mapped = adversary.public_map_features
        there = embed_in_batches(adversary.public_map, x) - middle
        found["embedding_alignment"] = _class_mean_alignment(adversary, there, y, mapped)
        found["joint_public_map"] = coefficients_in_means(adversary, there, y, mapped)
    return found


def _readout_signals(
    inside: Tensor, y: Tensor, own: Tensor, others: Tensor, adversary: AdversaryView
) -> dict[str, Tensor]:
    """Signals of a model trained on rows ``inside`` (m, d), for the audited records and for public ones."""
    logits = ridge_readout(inside, y, own, adversary.problem.classes)
    public = ridge_readout(inside, y, others, adversary.problem.classes)
    return {"confidence": sig.logit_scaled(logits, adversary.candidates.y), "logits": logits, "public_logits": public}


def _class_mean_alignment(adversary: AdversaryView, inside: Tensor, labels: Tensor, own: Tensor) -> Tensor:
    means = class_mean_embeddings(inside, labels, adversary.problem.classes)
    return sig.embedding_alignment(means, own, adversary.candidates.y, cosine=False)


def _representation_signals(
    adversary: AdversaryView, name: str, value: Tensors, values: Mapping[str, Tensors]
) -> Mapping[str, Tensor]:
    """The signals of images, in the space of the projection; the attacker is granted the client's own map.

    Nothing can be read before a client has its own, unless projected records are as large as records.
    """
    maps = method_maps(adversary.method, adversary.snapshot, adversary.memory, adversary.problem)
    project = maps.get("projection") or (lambda x: x)
    own, inside, y = project(adversary.candidates.x).flatten(1), value["x"].flatten(1), values["labels"]["y"]
    if own.shape[1] != inside.shape[1]:
        return {}
    public = project(adversary.public.x).flatten(1)
    centre = public.mean(0)
    farthest = 2 * float(own.norm(dim=1).max())  # no bound is known: the diameter of the records' ball
    return {
        **_readout_signals(inside - centre, y, own - centre, public[:POPULATION_RECORDS] - centre, adversary),
        "alignment": _class_mean_alignment(adversary, inside - centre, y, own - centre),
        "distance": distance_to_synthetic(own, inside, farthest),
        "joint": coefficients_in_means(adversary, inside - centre, y, own - centre),
    }


def _prototype_signals(
    adversary: AdversaryView, name: str, value: Tensors, values: Mapping[str, Tensors]
) -> Mapping[str, Tensor]:
    """A class mean (or sum) and a class count move with each of the class's members, and nothing else of the class's does.

    "count": the record's own class; "row": the norm of its class's mean, which needs no map; "alignment": the part
    of the class's sum (mean times count) along the record, seen from public records, where the server knows a map;
    "joint_opening": the record's part in the class's mean, by the map that all clients start from.
    """
    y, mean = adversary.candidates.y, value["mean" if "mean" in value else "sum"].flatten(1)
    found = {"row": mean.norm(dim=1)[y]}
    if "count" in value:
        found["count"] = value["count"][y]
    if adversary.opening_features is not None and adversary.opening_features.shape[1:] == mean.shape[1:]:
        absent = value["count"] == 0 if "count" in value else mean.new_zeros(len(mean), dtype=torch.bool)
        found["joint_opening"] = class_ridge_coefficients(
            mean.masked_fill(absent[:, None], torch.nan), adversary.opening_features, y
        )
    see = adversary.embed_images if adversary.broadcast_state is not None else adversary.public_map
    own = embed_in_batches(see, adversary.candidates.x) if see is not None else mean[:0]
    if own.shape[1:] != mean.shape[1:] or see is None:
        return found
    centre = embed_in_batches(see, adversary.public.x).mean(0)
    found["alignment"] = sig.embedding_alignment(mean - centre, own - centre, y, cosine=False)
    return found


def _statistics_signals(
    adversary: AdversaryView, name: str, value: Tensors, values: Mapping[str, Tensors]
) -> Mapping[str, Tensor]:
    """Class statistics by their own density; batch-norm buffers through the model that they complete."""
    if {"mean", "std"} <= set(value):
        per_channel = adversary.candidates.x.mean((2, 3))
        return {"density": sig.class_log_density(value["mean"], value["std"], per_channel, adversary.candidates.y)}
    state = adversary.state_of_upload(name, value)
    if state is None:
        return _record_loss_signal(adversary, name, value)
    return {
        "confidence": sig.logit_scaled(adversary.predict_logits(state, adversary.candidates.x), adversary.candidates.y)
    }


def _record_loss_signal(adversary: AdversaryView, name: str, value: Tensors) -> Mapping[str, Tensor]:
    """By the method's own loss, where an upload implies no classifier."""
    loss = adversary.method.audit_hooks.record_loss(name, value, adversary.snapshot.broadcast, adversary.problem)
    if loss is None:
        raise UnreadableUpload(adversary.method, name, "classifier, sent_state and model_state, or record_loss")
    return {"loss": -loss(adversary.candidates.x, adversary.candidates.y)}


def _count_signal(
    adversary: AdversaryView, name: str, value: Tensors, values: Mapping[str, Tensors]
) -> Mapping[str, Tensor]:
    """The signal of counts: the sum of all numbers sent, the same for every record."""
    total = torch.stack([t.float().sum() for t in value.values()]).sum()
    return {"count": total.expand(len(adversary.candidates)).clone()}


NEEDED_HOOKS: Mapping[Surface, tuple[str, ...]] = {  # hooks without which a reader sees no record
    Surface.UPDATE: ("classifier", "sent_state", "model_state"),
    Surface.GRADIENT: ("classifier", "sent_state"),
    Surface.CONTROL_VARIATE: ("classifier", "sent_state"),
    Surface.FEATURES: ("maps",),
}


def missing_hooks(method: Method, surface: Surface) -> str:
    """The hooks that a method must define before its uploads of a surface can be read, "" if none is missing."""
    if surface not in SIGNAL_READERS:
        return f"another surface than {surface}, which only a server sends"
    return " and ".join(hook for hook in NEEDED_HOOKS.get(surface, ()) if not overrides_hook(method, hook))


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
}


def extract_signals(adversary: AdversaryView, values: Mapping[str, Tensors]) -> Signals:
    """Every surface among ``values`` (one client's upload) gets at least one signal, unless waived and unreadable.

    Raises NoReader where no signal could depend on the record.
    """
    adversary, values = adversary.on_device, to_device(values, adversary.problem.device)
    found: Signals = {}
    with torch.no_grad():
        for name, value in values.items():
            surface = adversary.method.uploads[name]
            if str(surface) in adversary.waived and missing_hooks(adversary.method, surface):
                continue
            for signal, scores in SIGNAL_READERS[surface](adversary, name, value, values).items():
                found[f"{surface}|{signal}"] = scores.float()
    return to_device(found, "cpu")
