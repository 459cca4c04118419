"""The tensors that an upload of each surface holds: one table, which attacks rely on, checked
before any training.

``python -m privdd.auditing.upload_schema`` prints it as the table of docs/tutorials/own-method.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from attacks.types import Surface
from privdd.core.types import Problem, Tensors, Values, is_image
from privdd.federated.method import Method

NumberKind = Literal["float", "whole", "number"]
RECORD_AXES = "chw"  # of a record: channels, height, width
LABELS_NAME = "labels"  # the upload in which attacks look for the classes of another upload's rows
# surfaces of the server whose messages attacks read as those of clients
CLIENT_SURFACES: Mapping[Surface, Surface] = {Surface.GLOBAL_IMAGES: Surface.SYNTHETIC_IMAGES}
PARAMETERS = "named as the parameters of `classifier`"


@dataclass(frozen=True)
class TensorRule:
    """A tensor of an upload. shape: its axes, "C" classes, "c", "h", "w" those of a record, "..."
    one axis or more, any other letter a size of the upload's own; kind: "whole" numbers may be of
    an integer or a float type, a "number" may be any."""

    name: str
    shape: tuple[str, ...]
    kind: NumberKind
    meaning: str


@dataclass(frozen=True)
class UploadRule:
    """The tensors of a surface's uploads: all of ``needed``, one of ``choice`` and any of
    ``allowed``.

    free: the method names its tensors itself, as hooks explain them; with_labels: its rows' classes
        travel in LABELS_NAME."""

    needed: tuple[TensorRule, ...] = ()
    choice: tuple[TensorRule, ...] = ()
    allowed: tuple[TensorRule, ...] = ()
    free: str = ""
    with_labels: bool = False

    @property
    def tensors(self) -> tuple[TensorRule, ...]:
        return (*self.needed, *self.choice, *self.allowed)


COUNT = TensorRule(
    "count", ("C",), "number", "records of each class, 0 for a class that the client lacks"
)
MEAN = TensorRule("mean", ("C", "..."), "float", "the mean row of each class")
SUM = TensorRule("sum", ("C", "..."), "float", "the sum of the rows of each class")
SECOND = TensorRule(
    "second",
    ("...",),
    "float",
    "the sum of the outer products of all rows (d, d), or of each class's (C, d, d)",
)
# What privdd's own private means send beside them: no attack reads it by name.
NOISE_TERMS = (
    TensorRule("variance", ("...",), "number", "variance of the noise in the rows"),
    TensorRule("moments", ("...",), "number", "second moments of the rows"),
    TensorRule("moments_variance", ("...",), "number", "variance of the noise in these"),
)
UPLOAD_RULES: Mapping[Surface, UploadRule] = {
    Surface.UPDATE: UploadRule(free="any names: `model_state` turns them into a classifier"),
    Surface.GRADIENT: UploadRule(free=PARAMETERS),
    Surface.CONTROL_VARIATE: UploadRule(free=PARAMETERS),
    Surface.FEATURES: UploadRule(
        (TensorRule("x", ("m", "..."), "float", "one row of each record"),), with_labels=True
    ),
    Surface.LABELS: UploadRule(
        (TensorRule("y", ("m",), "whole", "the class of each row"),),
        allowed=(TensorRule("soft", ("m", "C"), "float", "its probabilities of all classes"),),
    ),
    Surface.SYNTHETIC_IMAGES: UploadRule(
        (TensorRule("x", ("m", *RECORD_AXES), "float", "synthetic images, shaped like a record"),),
        with_labels=True,
    ),
    Surface.SYNTHETIC_REPRESENTATIONS: UploadRule(
        (TensorRule("x", ("m", "..."), "float", "synthetic rows"),), with_labels=True
    ),
    Surface.PROTOTYPES: UploadRule(choice=(MEAN, SUM), allowed=(COUNT, SECOND, *NOISE_TERMS)),
    Surface.STATISTICS: UploadRule(
        free="`mean` and `std` (C, c) of each class's pixels, or `count` (C,) alone; other names "
        "need `model_state` or `record_loss`"
    ),
    Surface.COUNTS: UploadRule(free="any names: numbers alone"),
    Surface.LOGITS: UploadRule(
        (
            TensorRule(
                "logits", ("m", "C"), "float", "outputs on each of `public_images`, before softmax"
            ),
        )
    ),
}


def upload_faults(method: Method, problem: Problem, values: Values) -> Iterator[str]:
    """One line for each way in which a client's uploads differ from ``UPLOAD_RULES``."""
    for name in values:
        surface = method.uploads.get(name)
        if surface is not None:
            where = f"upload {name!r} of surface {surface}"
            faults = _message_faults(surface, name, values, problem, "upload")
            yield from (f"{where}: {fault}" for fault in faults)


def unreadable_broadcasts(method: Method, problem: Problem, values: Values) -> dict[str, str]:
    """Name of a message of the server -> why no attack can read it: the rules are those of uploads,
    but a server may send more than attacks read."""
    reasons: dict[str, str] = {}
    for name in values:
        surface = method.broadcasts.get(name)
        if surface is None or name == LABELS_NAME:
            continue
        read_as = CLIENT_SURFACES.get(surface, surface)
        faults = list(_message_faults(read_as, name, values, problem, "broadcast", strict=False))
        if faults:
            reasons[name] = f"broadcast {name!r} of surface {surface}: {faults[0]}"
    return reasons


def _message_faults(
    surface: Surface,
    name: str,
    values: Values,
    problem: Problem,
    kind: str,
    *,
    strict: bool = True,
) -> Iterator[str]:
    """kind: "upload" or "broadcast"; strict: whether tensors that no attack reads are faults."""
    rule = UPLOAD_RULES.get(surface)
    if rule is None:
        return
    value = values[name]
    if not strict:
        known = {tensor.name for tensor in rule.tensors}
        value = {tensor: number for tensor, number in value.items() if tensor in known}
    yield from _tensor_faults(rule, value, problem)
    if rule.with_labels and LABELS_NAME not in values:
        yield (f"its rows' classes are needed as another {kind}, {LABELS_NAME!r}, with y (m,)")


def _tensor_faults(rule: UploadRule, value: Tensors, problem: Problem) -> Iterator[str]:
    if rule.free:
        return
    rules = {tensor.name: tensor for tensor in rule.tensors}
    names = ", ".join(name for name, tensor in rules.items() if tensor not in NOISE_TERMS)
    yield from (
        f"holds {name!r}; attacks read {names} alone" for name in value if name not in rules
    )
    yield from (
        f"lacks {tensor.name!r} ({tensor.meaning})"
        for tensor in rule.needed
        if tensor.name not in value
    )
    if rule.choice and not any(tensor.name in value for tensor in rule.choice):
        yield f"lacks one of {', '.join(repr(tensor.name) for tensor in rule.choice)}"
    for name, tensor in value.items():
        if name in rules:
            yield from _shape_faults(rules[name], tensor, problem)


def _shape_faults(rule: TensorRule, tensor: Tensor, problem: Problem) -> Iterator[str]:
    sizes = {"C": problem.classes}
    shape = rule.shape
    if is_image(problem.shape):
        sizes |= dict(zip(RECORD_AXES, problem.shape, strict=True))
    else:
        sizes["d"] = problem.shape[0]
        shape = _as_rows(shape)
    fixed = [axis for axis in shape if axis != "..."]
    if len(fixed) == len(shape):
        rank_fits = tensor.ndim == len(fixed)
    else:
        rank_fits = tensor.ndim > len(fixed)
    sizes_fit = all(sizes.get(axis, size) == size for axis, size in zip(fixed, tensor.shape))
    if not rank_fits or not sizes_fit:
        wanted = ", ".join(f"{axis}={sizes[axis]}" if axis in sizes else axis for axis in shape)
        yield f"{rule.name!r} is {tuple(tensor.shape)}, needed is ({wanted})"
    if rule.kind == "float" and not tensor.is_floating_point():
        yield f"{rule.name!r} is {tensor.dtype}, numbers of a float type are needed"
    if rule.kind == "whole" and bool(
        (tensor != tensor.round()).any() if tensor.is_floating_point() else False
    ):
        yield f"{rule.name!r} holds fractions, whole numbers are needed"


def _as_rows(shape: tuple[str, ...]) -> tuple[str, ...]:
    """The axes of a tensor whose records are rows (d,) of a table."""
    others = tuple(axis for axis in shape if axis not in RECORD_AXES)
    if len(others) < len(shape):
        return (*others, "d")
    return shape


def schema_table() -> str:
    """The rules as a Markdown table."""
    lines = ["| surface | tensors of an upload |", "|---|---|"]
    for surface, rule in UPLOAD_RULES.items():
        lines.append(f"| `{surface.name}` | {_describe_rule(rule)} |")
    return "\n".join(lines) + "\n"


def _describe_rule(rule: UploadRule) -> str:
    if rule.free:
        return rule.free
    parts = [_describe_tensor(tensor) for tensor in rule.needed]
    if rule.choice:
        parts += [" or ".join(_describe_tensor(tensor) for tensor in rule.choice)]
    parts += [f"if you like, {_describe_tensor(tensor)}" for tensor in rule.allowed]
    if rule.with_labels:
        labels = [f"the classes of its rows in an upload `{LABELS_NAME}` (surface `LABELS`)"]
    else:
        labels = []
    return "; ".join([*parts, *labels])


def _describe_tensor(tensor: TensorRule) -> str:
    shape = ", ".join(tensor.shape) + ("," if len(tensor.shape) == 1 else "")
    return f"`{tensor.name}` ({shape}) {tensor.kind}: {tensor.meaning}"


if __name__ == "__main__":
    print(schema_table(), end="")
