"""What a release says of each record, as rows: captures joined, noise averaged, classes opened, the
labels beside them, and the map from records to rows."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attacks.inversion.class_opening import OpenedRows, class_sums_of, open_message
from attacks.inversion.drawn_weights import draw_weights
from attacks.tensors import accepts_numpy
from attacks.types import Capture, Surface, View

FeatureMap = Callable[[Tensor], Tensor]

MAP_NAMES = {
    Surface.FEATURES: "feature",
    Surface.SHARED_FEATURES: "feature",
    Surface.SYNTHETIC_REPRESENTATIONS: "projection",
    Surface.PROTOTYPES: "embedding",
}


@accepts_numpy
def release_as_images(released: Tensor, public: Tensor) -> Tensor:
    """The release shown as images: channels averaged, resized, each stretched to [0, 1].

    A release without rows and columns shows nothing: the public mean image replaces it.
    """
    shape = public.shape[1:]
    if released.ndim != 4:
        return public.mean(0).expand(len(released), *shape).clone()
    z = released
    if z.shape[1] != shape[0]:
        z = z.mean(1, keepdim=True)
    z = F.interpolate(z, size=tuple(shape[1:]), mode="bilinear", align_corners=False)
    low = z.flatten(1).amin(1)
    high = z.flatten(1).amax(1)
    z = (z - low.view(-1, 1, 1, 1)) / (high - low).clamp_min(1e-6).view(-1, 1, 1, 1)
    return z.expand(-1, shape[0], -1, -1).clone()


@accepts_numpy
def remove_shared_noise(released: Tensor, batch: int, expected: Tensor) -> Tensor:
    """Released rows (n, ...) without the noise that ``batch`` consecutive rows share, by the mean
    public feature ``expected`` (...)."""
    # mean(batch) = noise + mean(features), so z - mean(batch) + expected is the feature up to a
    # sampling error of deviation / sqrt(batch)
    if not batch >= 2:
        raise ValueError(f"batch={batch}: at least 2 rows must share a noise tensor")
    return torch.cat([part - part.mean(0) + expected for part in released.split(batch)])


@accepts_numpy
def average_copies(released: Tensor, copies: int) -> Tensor:
    """(copies * n, ...) -> (n, ...): the mean of each record's noised copies, which follow each
    other set by set."""
    if not copies >= 1 or len(released) % copies:
        raise ValueError(f"copies={copies}: a positive divisor of {len(released)} rows is needed")
    return released.unflatten(0, (copies, len(released) // copies)).mean(0)


def true_map(view: View) -> FeatureMap | None:
    """The map that the released features went through, if the view grants it."""
    maps = view.knowledge.maps
    model = view.knowledge.model
    granted = maps.get(MAP_NAMES[view.surface])
    if granted is not None or view.surface != Surface.PROTOTYPES:
        return granted
    if model is None or not hasattr(model, "features"):
        return None
    frozen = copy.deepcopy(model).eval().requires_grad_(False)
    return frozen.features  # type: ignore[return-value]


def shadow_map(view: View, like: Tensor, generator: torch.Generator) -> FeatureMap | None:
    """A map of the same kind with weights of its own: granted by name, a fresh model, or two
    convolutions."""
    if "shadow" in view.knowledge.maps:
        return view.knowledge.maps["shadow"]
    model = view.knowledge.model
    if view.surface == Surface.PROTOTYPES and model is not None and hasattr(model, "features"):
        redrawn = copy.deepcopy(model).eval().requires_grad_(False)
        draw_weights(redrawn, generator)
        with torch.no_grad():
            features = redrawn.features(view.knowledge.public_x[:1])  # type: ignore[operator]
        if features.shape[1:] != like.shape[1:]:
            return None
        return redrawn.features  # type: ignore[return-value]
    if like.ndim != 4 or tuple(like.shape[2:]) != tuple(view.knowledge.shape[1:]):
        return None
    c = view.knowledge.shape[0]
    convolutions = nn.Sequential(
        nn.utils.skip_init(nn.Conv2d, c, 8, 3, padding=1),
        nn.ReLU(),
        nn.utils.skip_init(nn.Conv2d, 8, like.shape[1], 3, padding=1),
    ).requires_grad_(False)
    draw_weights(convolutions, generator)
    return convolutions.to(like.device)


def released_rows(view: View, capture: Capture, feature_map: FeatureMap | None) -> Tensor:
    """The released rows after what anyone can undo: noise shared over a batch, copies averaged."""
    value = capture.value
    settings = view.knowledge.settings
    opened = opened_class_rows(value, view.knowledge.classes)
    if opened is not None:
        rows = opened.rows
    elif "x" in value:
        rows = value["x"]
    else:
        rows = class_mean_rows(value)
    copies = 1
    if view.surface == Surface.FEATURES:
        copies = int(settings.get("copies", 1))
    batch = settings.get("broadcast_batch")
    if batch and feature_map is not None and view.surface == Surface.FEATURES:
        with torch.no_grad():
            centre = feature_map(view.knowledge.public_x).mean(0)
        sets = rows.chunk(copies)
        rows = torch.cat([remove_shared_noise(copy_rows, int(batch), centre) for copy_rows in sets])
    if copies > 1 and len(rows) % copies == 0:
        return average_copies(rows, copies)
    return rows


def opened_class_rows(value: Mapping[str, Tensor], classes: int) -> OpenedRows | None:
    """Class means in which classes that second moments open stand as their records' own rows; None
    for a message without second moments."""
    if "second" not in value:
        return None
    opened = open_message(value, classes)
    statistics = class_sums_of(value, classes)
    if opened is None or statistics is None:
        return None
    sums, count = statistics
    closed = (count > 0).index_fill(0, opened.labels, False).nonzero()[:, 0]
    means = sums[closed] / count[closed, None]
    labels = torch.cat([opened.labels, closed])
    order = labels.argsort(stable=True)
    rows = torch.cat([opened.rows, means])[order]
    return OpenedRows(rows, labels[order], count.long()[labels[order]])


def class_mean_rows(value: Mapping[str, Tensor]) -> Tensor:
    """(m, d): the mean of each class that has records, from class means or from class sums."""
    has_means = "mean" in value
    rows = value["mean"] if has_means else value["sum"]
    if "count" not in value:  # a class without records has a row of zeros
        return rows[rows.flatten(1).any(1)]
    count = value["count"].flatten()
    if not has_means:
        rows = rows / count.clamp_min(1)[:, None]
    return rows[count > 0]


# Captures of the same records through the same map are averaged, as the mean is all that a squared
# error can use: sum_k |f(x) - z_k|^2 = K |f(x) - mean z|^2 + what does not depend on x.
def average_captures(view: View, feature_map: FeatureMap | None) -> tuple[Tensor, int]:
    """(rows, number of captures): the mean over all captures with the same records in the same
    order as the first."""
    first, *later = view.captures
    rows = [released_rows(view, first, feature_map)]
    for capture in later:
        if not _has_same_records(capture, first):
            continue
        capture_rows = released_rows(view, capture, feature_map)
        if capture_rows.shape == rows[0].shape:
            rows.append(capture_rows)
    return torch.stack(rows).mean(0), len(rows)


def _has_same_records(capture: Capture, first: Capture) -> bool:
    """Whether the labels or counts of two captures agree."""
    if capture.name != first.name:
        return False
    for name in ("y", "count"):
        if (name in first.value) != (name in capture.value):
            return False
        if name in first.value and not torch.equal(first.value[name], capture.value[name]):
            return False
    return True


def released_labels(view: View, rows: int) -> Tensor | None:
    """The class that was released with each row (rows,); None if no labels were released."""
    value = view.captures[0].value
    classes = view.knowledge.classes
    opened = opened_class_rows(value, classes)
    if opened is not None:
        labels = opened.labels
    elif "count" in value and len(value["count"].flatten()) == classes:
        labels = torch.nonzero(value["count"].flatten() > 0).flatten()
    elif _holds_class_rows(value, classes):
        if "mean" in value:
            class_rows = value["mean"]
        else:
            class_rows = value["sum"]
        labels = torch.nonzero(class_rows.flatten(1).any(1)).flatten()
    elif "y" in value and value["y"].ndim == 1 and not value["y"].is_floating_point():
        labels = value["y"][:rows]
    else:
        return None
    if len(labels) != rows or not bool(((labels >= 0) & (labels < classes)).all()):
        return None
    return labels


def _holds_class_rows(value: Mapping[str, Tensor], classes: int) -> bool:
    """Whether a message has one mean or sum for each class, and neither rows nor labels."""
    if "x" in value or "y" in value:
        return False
    return len(value.get("mean", value.get("sum", ()))) == classes
