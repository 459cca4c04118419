"""The membership signals that an attacker extracts from what one client sent in one round.

There is one reader of signals per surface; what it computes models, embeddings and gradients with
is an ``AdversaryView``. A signal is one number per audited record, larger = more like a member. See
``attacks.membership.signals``. In a model's parameters every layer is solved by itself: their noise
differs, and what they say together is for an attack that takes several signals.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from attacks.inversion.labels import sent_class_counts
from attacks.membership import signals as sig
from attacks.membership.shared_noise import COINCIDENCE_SIGNAL, noise_coincidence
from attacks.membership.signals import (
    class_mean_embeddings,
    class_ridge_coefficients,
    distance_to_synthetic,
    generated_share,
    nearest_distance,
    patch_distance,
    ridge_readout,
    ridge_student,
    single_record_means,
)
from attacks.membership.soft_labels import SOFT_SIGNAL, soft_label_student
from attacks.types import SENT_BY_SERVER, Surface
from privdd.auditing.adversary_view import (
    POPULATION_RECORDS,
    AdversaryView,
    Signals,
    embed_in_batches,
)
from privdd.core.device import to_device
from privdd.core.rng import Keys
from privdd.core.types import Tensors, Values, is_image
from privdd.federated.audit_hooks import overrides_hook
from privdd.federated.method import Method
from privdd.methods.fedgen import generate_features

SignalReader = Callable[[AdversaryView, str, Tensors, Values], Signals]
SIGNAL_READERS: dict[Surface, SignalReader] = {}
GENERATED_ROWS = 500  # that an attacker draws of each class
GENERATOR_LAYERS = frozenset({"first.weight", "first.bias", "second.weight", "second.bias"})
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

# Hooks by one of which attacks search statistics of any names for a record.
SEARCH_HOOKS = "record_loss, or classifier, sent_state and model_state"
DENSITY_NAMES = frozenset({"mean", "std"})  # of statistics that attacks read without a hook


def read_from(*surfaces: Surface) -> Callable[[SignalReader], SignalReader]:
    """Enters a function in ``SIGNAL_READERS`` as the one that reads uploads of these surfaces."""

    def enter_reader(reader: SignalReader) -> SignalReader:
        SIGNAL_READERS.update(dict.fromkeys(surfaces, reader))
        return reader

    return enter_reader


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


class UnreadableUpload(ValueError):
    """No signal in an upload can depend on a record: an audit would find nothing there, however
    much it leaks."""

    def __init__(self, method: Method, name: str, hooks: str) -> None:
        super().__init__(
            f"{type(method).__name__} sends {name!r}, in which no attack can search for a "
            f"record: it must define {hooks}"
        )


@read_from(Surface.UPDATE)
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


@read_from(Surface.GRADIENT, Surface.CONTROL_VARIATE)
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


@read_from(Surface.FEATURES)
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
    std_of_copy = float(noise.get("std") or 1e-3)
    stds = noise.get("noise_stds") or [std_of_copy] * int(noise.get("copies", 1))
    if batch:
        signals = _shared_noise_signal(
            rows, labels, clean, adversary.candidates.y, int(batch), stds
        )
        # noise that is shared by a release batch cancels in differences: each batch is centred by
        # its own mean
        centred = []
        for copy in rows.chunk(len(stds)):
            centred += [part - part.mean(0) for part in copy.split(int(batch))]
        rows = torch.cat(centred)
    else:
        signals = {}
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
    lowest = 0.0
    if not absent.all():
        lowest = float(out[~absent].min())
    return {**signals, "matched_filter": out.masked_fill(absent, lowest)}


def _shared_noise_signal(
    rows: Tensor, labels: Tensor, clean: Tensor, y: Tensor, batch: int, stds: Sequence[float]
) -> Signals:
    """The best of all copies: each has noise of its own, and one coincidence is enough."""
    parts = zip(rows.chunk(len(stds)), labels.chunk(len(stds)), stds)
    coincidences = [noise_coincidence(r, c, clean, y, batch, std) for r, c, std in parts]
    return {COINCIDENCE_SIGNAL: torch.stack(coincidences).amax(0)}


@read_from(Surface.LABELS)
def _label_signals(adversary: AdversaryView, name: str, value: Tensors, values: Values) -> Signals:
    """How many released labels a record's class has: one more when the record is in."""
    counts = torch.bincount(value["y"].long(), minlength=adversary.problem.classes).float()
    return {"count": counts[adversary.candidates.y]}


def _distances_to_set(records: Tensor, synthetic: Tensor) -> Signals:
    """Distance of each record to the nearest of a synthetic set, and of its nearest part to a part;
    rows of a table have no parts."""
    black_to_white = records[0].numel() ** 0.5
    distances = {"distance": distance_to_synthetic(records, synthetic, black_to_white)}
    if is_image(records.shape[1:]):
        distances["patch_distance"] = patch_distance(records, synthetic)
    return distances


@read_from(Surface.SYNTHETIC_IMAGES)
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
        **_distances_to_set(records.x, x),
        "joint": coefficients_in_means(adversary, x.flatten(1), y, records.x.flatten(1)),
        "joint_embedding": coefficients_in_means(adversary, image_features, y, record_features),
    }
    if adversary.public_map is not None:
        middle, mapped = adversary.public_map_features
        public_rows = embed_in_batches(adversary.public_map, x) - middle
        signals["embedding_alignment"] = _class_mean_alignment(adversary, public_rows, y, mapped)
        signals["joint_public_map"] = coefficients_in_means(adversary, public_rows, y, mapped)
        return signals | _soft_label_signal(adversary, values, public_rows, mapped)
    return signals | _soft_label_signal(adversary, values, image_features, record_features)


def _soft_label_signal(
    adversary: AdversaryView, values: Values, rows: Tensor, own: Tensor
) -> Signals:
    """Confidence of a student of the soft labels, where the rows (m, d) travel with such."""
    if "soft" not in values["labels"]:
        return {}
    student = soft_label_student(rows, values["labels"]["soft"], own)
    return {SOFT_SIGNAL: sig.logit_scaled(student, adversary.candidates.y)}


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


@read_from(Surface.SYNTHETIC_REPRESENTATIONS)
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
        **_soft_label_signal(adversary, values, released_rows, record_rows),
    }


@read_from(Surface.PROTOTYPES)
def _prototype_signals(
    adversary: AdversaryView, name: str, value: Tensors, values: Values
) -> Signals:
    """A class mean (or sum) and a class count move with each of the class's members.

    "count": the record's own class; "row": the norm of its class's mean, which needs no map;
    "alignment": the part of the class's sum (mean times count) along the record, seen from public
    records, where the server knows a map; "joint_opening": the record's part in the class's mean,
    by the map that all clients start from; "distance": to the nearest mean of a class of one
    record, which is that record in the map; of second moments, ``_second_moment_signals``."""
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
    if adversary.prototype_rows is None:
        return signals
    record_rows, public_rows = adversary.prototype_rows
    if record_rows.shape[1:] != mean.shape[1:]:
        return signals
    alone = single_record_means(mean, value.get("count"))
    signals["distance"] = distance_to_synthetic(
        record_rows, alone, 2 * float(record_rows.norm(dim=1).max())
    )
    centre = public_rows.mean(0)
    signals["alignment"] = sig.embedding_alignment(
        mean - centre, record_rows - centre, y, cosine=False
    )
    if "second" in value and "count" in value:
        signals |= _second_moment_signals(adversary, value["second"], value["count"])
    return signals


def _second_moment_signals(adversary: AdversaryView, second: Tensor, count: Tensor) -> Signals:
    """ "moment_alignment" and "joint_moments": a record's part in the sum of outer products, by
    itself and solved for with those of all candidates."""
    if adversary.prototype_rows is None:
        return {}
    record_rows, public_rows = adversary.prototype_rows
    if second.ndim == 2:
        parts = (second[None], count.sum()[None])
    else:
        parts = (second, count)
    reference = public_rows.T @ public_rows / len(public_rows)
    labels = adversary.candidates.y
    return {
        "moment_alignment": sig.moment_alignment(*parts, record_rows, labels, reference),
        "joint_moments": sig.moment_coefficients(*parts, record_rows, labels, reference),
    }


@read_from(Surface.STATISTICS)
def _statistics_signals(
    adversary: AdversaryView, name: str, value: Tensors, values: Values
) -> Signals:
    """Class statistics by their own density; class counts alone by the record's own class;
    batch-norm buffers through the model that they complete."""
    if set(value) == {"count"} and value["count"].ndim == 1 and len(value["count"]) > 1:
        return {"count": value["count"][adversary.candidates.y]}
    if set(value) >= DENSITY_NAMES:
        per_channel = adversary.candidates.x.mean((2, 3))
        return {
            "density": sig.class_log_density(
                value["mean"], value["std"], per_channel, adversary.candidates.y
            )
        }
    state = adversary.state_of_upload(name, value)
    if state is None and not overrides_hook(adversary.method, "record_loss"):
        counts = sent_class_counts(value, adversary.problem.classes)
        if counts is not None:  # all that is known to hold a record's part, as for counts alone
            return {"count": counts[adversary.candidates.y]}
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
        raise UnreadableUpload(adversary.method, name, SEARCH_HOOKS)
    return {"loss": -loss(adversary.candidates.x, adversary.candidates.y)}


@read_from(Surface.COUNTS)
def _count_signal(adversary: AdversaryView, name: str, value: Tensors, values: Values) -> Signals:
    """The signal of counts: the sum of all numbers sent, the same for every record."""
    total = torch.stack([t.float().sum() for t in value.values()]).sum()
    return {"count": total.expand(len(adversary.candidates)).clone()}


@read_from(Surface.LOGITS)
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


@read_from(Surface.GENERATOR)
def _generator_signals(
    adversary: AdversaryView, name: str, value: Tensors, values: Values
) -> Signals:
    """Of the rows that a generator draws of a record's class: the share near the record, and the
    distance to the nearest, in the features of the classifier that is sent with the generator.

    All replays draw from the same noise. Near is nearer than half of the audited records are to
    any row (the median heuristic of Hilprecht, Härterich and Bernau 2019).
    """
    if not value.keys() >= GENERATOR_LAYERS:
        return {}
    labels = adversary.candidates.y
    sent_with_it = {**adversary.snapshot.broadcast, **values}
    receiver = replace(adversary, snapshot=replace(adversary.snapshot, broadcast=sent_with_it))
    records = receiver.embed_images(adversary.candidates.x)
    if records.shape[1] != len(value["second.bias"]):
        return {}
    latent = value["first.weight"].shape[1] - adversary.problem.classes
    keys = (adversary.query_keys or Keys(0)).fold("generated")
    noise = torch.randn(GENERATED_ROWS, latent, generator=keys.torch()).to(records)
    distance = torch.zeros(len(records)).to(records)
    rows_by_class: dict[int, Tensor] = {}
    for label in labels.unique().tolist():
        rows = generate_features(value, noise, labels.new_full((GENERATED_ROWS,), label))
        distance[labels == label] = nearest_distance(records[labels == label], rows)
        rows_by_class[label] = rows
    radius = -float(distance.median())
    share = torch.zeros_like(distance)
    for label, rows in rows_by_class.items():
        share[labels == label] = generated_share(records[labels == label], rows, radius)
    return {"generated_share": share, "distance": distance}


def missing_map_hooks(method: Method, surface: Surface) -> str:
    """The hooks that would give attacks a map to the rows of a surface, "" if the method names
    one."""
    ways = MAP_HOOKS.get(surface, ())
    missing = [[hook for hook in way if not overrides_hook(method, hook)] for way in ways]
    if not ways or not all(missing):
        return ""
    return ", or ".join(" and ".join(hooks) for hooks in missing)


def reads_counts_alone(
    method: Method, name: str, value: Tensors, broadcast: Values, classes: int
) -> bool:
    """Whether attacks read the class counts of these statistics alone, as the method says of no
    other tensor how a record would fit it (``SEARCH_HOOKS``)."""
    if len(value) < 2 or sent_class_counts(value, classes) is None:
        return False
    if overrides_hook(method, "record_loss") or set(value) >= DENSITY_NAMES:
        return False
    return method.audit_hooks.model_state(name, value, broadcast) is None


def missing_hooks(method: Method, surface: Surface) -> str:
    """The hooks that a method must define before its uploads of a surface can be read, "" if none
    is missing."""
    if surface in SENT_BY_SERVER:
        return f"another surface than {surface}, which only a server sends"
    return " and ".join(
        hook for hook in NEEDED_HOOKS.get(surface, ()) if not overrides_hook(method, hook)
    )


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
