"""A trained model of any kind as one function from records to logits, and the user's own network
with weights from a file that can run nothing."""

from __future__ import annotations

import inspect
import io
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from privdd.blackbox.target import load_target, make_instance
from privdd.core.validation import BadConfig
from privdd.external.records import LabelledRecords, RecordFormat, align_columns, read_archive
from privdd.runtime.files import DamagedRun, read_bytes
from privdd.runtime.run_folder import LARGEST_TENSORS, read_tensors

PLAIN_FORMAT = RecordFormat()
QUERY_BATCH = 1024
NEEDED_OUTPUTS = "finite numbers (b, C), or (b,), are needed"
# of an estimator, the most telling first
METHODS = ("predict_proba", "decision_function", "predict")
# labels that go up to more than so many times their number are names of classes
MAX_LABEL_SPREAD = 10
# for a probability of 0 or 1, as trees give it: its logarithm stays finite
PROBABILITY_FLOOR = 1e-6
# by how much the probabilities of one record may sum to something else, after rounding
ROUNDING_TOLERANCE = 0.05
# decision values that are never negative do not reach so far: they are percentages
MIN_PERCENT = 30.0

OutputKind = Literal[
    "",
    "labels",
    "probabilities",
    "shares",
    "separate",
    "positive",
    "percent",
    "decisions",
    "logits",
]
OUTPUT_KINDS: dict[OutputKind, str] = {
    "labels": "predicted labels",
    "probabilities": "probabilities of the classes",
    "shares": "shares of the classes, divided by their sum",
    "separate": "one probability for each class on its own, divided by their sum",
    "positive": "the probability of the second class",
    "percent": "the probability of the second class in percent",
    "decisions": "decision values of the second class against the first",
    "logits": "logits of the classes",
}
PICKLE_SUFFIXES = (".pkl", ".pickle", ".joblib", ".sav", ".dill", ".bin")
STATE_DICT_KEYS = (
    "state_dict",
    "model_state_dict",
    "model",
    "net",
    "network",
    "weights",
    "params",
    "module",
    "ema",
    "model_ema",
)
MAX_WRAPPERS = 4  # wrappers of training scripts around the weights
PYTHON_HINT = (
    "load it in your own program for privdd.api.audit_model, or give a predict function as "
    "target.model"
)


@dataclass(frozen=True)
class Predictor:
    """ask: records (b, ...) -> whatever the model gives; key: what messages call it; method: of an
    estimator. order: the
    classes of its columns, names: those that are asked for, where they are others; reading: what
    its numbers are, "" where each answer shows it."""

    ask: Callable[[Tensor], Any]
    key: str
    method: str = ""
    order: NDArray[Any] | None = None
    names: NDArray[Any] | None = None
    reading: OutputKind = ""

    def __call__(self, x: Tensor, classes: int = 2) -> Tensor:
        """(n, C >= classes) float64, softmax of which are the model's probabilities. Raises
        BadConfig."""
        return self.to_logits(self.query_outputs(x), classes)

    def query_outputs(self, x: Tensor) -> NDArray[Any]:
        """The model's outputs for all records: numbers (n,) or (n, C), or labels (n,). Raises
        BadConfig."""
        parts = [self._query_batch(part) for part in x.split(QUERY_BATCH)]
        if len({part.shape[1:] for part in parts}) > 1:
            raise BadConfig(
                f"{self.key}: gives numbers for another set of classes from one batch to the next"
            )
        return np.concatenate(parts)

    def _query_batch(self, x: Tensor) -> NDArray[Any]:
        try:
            response = self.ask(x)
        except BadConfig:
            raise
        except Exception as error:  # whatever the model raises
            message = " ".join(str(error).split())[:200]
            raise BadConfig(
                f"{self.key}: cannot read records of shape {tuple(x.shape[1:])}: {message}"
            ) from error
        outputs = _as_output_array(response, self.key)
        if outputs.ndim == 2 and outputs.shape[1] == 1:
            outputs = outputs[:, 0]
        if outputs.ndim not in (1, 2) or outputs.dtype.kind not in "biufUSO":
            raise BadConfig(f"{self.key}: gives {outputs.dtype} {outputs.shape}; {NEEDED_OUTPUTS}")
        if len(outputs) != len(x):
            raise BadConfig(
                f"{self.key}: gives {outputs.shape} for {len(x)} records; ({len(x)}, "
                "classes) is needed"
            )
        if (
            outputs.dtype.kind == "f" and outputs.ndim == 2 and outputs.max() <= 0
        ):  # logarithms of probabilities, some of 0
            outputs = np.maximum(outputs, np.log(PROBABILITY_FLOOR).astype(outputs.dtype))
        if outputs.dtype.kind == "f" and not np.isfinite(outputs).all():
            if x.is_floating_point() and bool(x.isnan().any()):
                holes = " for records with missing values"
            else:
                holes = ""
            odd = f"with NaN or infinity{holes}"
            raise BadConfig(
                f"{self.key}: gives {outputs.dtype} {outputs.shape} {odd}; {NEEDED_OUTPUTS}"
            )
        return outputs

    def to_logits(self, answers: NDArray[Any], classes: int) -> Tensor:
        """(n, C >= classes) float64 of answers, each column the class of its number. Raises
        BadConfig."""
        if self.order is not None and answers.ndim == 2 and answers.shape[1] != len(self.order):
            count = f"{answers.shape[1]} numbers for each record"
            raise BadConfig(f"{self.key}: gives {count}, and has {len(self.order)} classes")
        width = len(self.order) if self.order is not None else classes
        reading = self.reading or infer_output_kind(answers, self.key, width, self.method)
        if reading == "labels":
            return _log_probabilities(np.eye(classes)[self._label_positions(answers, classes)])
        logits = outputs_to_logits(answers, reading)
        if self.order is None or self.names is None or np.array_equal(self.order, self.names):
            return logits
        place_of = {name: place for place, name in enumerate(self.order.tolist())}
        # of a class that this model was not trained on
        least = logits.min(1).values + float(np.log(PROBABILITY_FLOOR))
        return torch.stack(
            [
                logits[:, place_of[name]] if name in place_of else least
                for name in self.names.tolist()
            ],
            1,
        )

    def _label_positions(self, answers: NDArray[Any], classes: int) -> NDArray[np.int64]:
        """Predicted labels as places of their classes."""
        if self.names is None:
            names = range(classes)
        else:
            names = self.names.tolist()
        place = {name: index for index, name in enumerate(names)}
        distinct, back = np.unique(
            answers.astype(str) if answers.dtype.kind in "USO" else answers, return_inverse=True
        )
        if unknown := [name for name in distinct.tolist() if name not in place]:
            known_ones = f"the labels that are known go from {min(place)} to {max(place)}"
            raise BadConfig(f"{self.key}: predicts the label {unknown[0]}; {known_ones}")
        return np.array([place[name] for name in distinct.tolist()], np.int64)[back]

    def count_classes(self, x: Tensor, labels: Tensor) -> int:
        """How many classes it knows. Raises BadConfig where it cannot read such records, or a label
        is not among them."""
        most = int(labels.max()) + 1
        answers = self.query_outputs(x[:2])
        if infer_output_kind(answers, self.key, max(2, most), self.method) == "labels":
            return max(2, most)  # predicted labels: they do not say which other classes there are
        width = self.to_logits(answers, max(2, most)).shape[1]
        if most > width:
            raise BadConfig(
                f"{self.key}: knows {width} classes, {_describe_high_label(labels, width)}"
            )
        return width


def build_predictor(model: Any, key: str = "model", form: RecordFormat = PLAIN_FORMAT) -> Predictor:
    """A torch module (set to eval mode), a scikit-learn estimator, or a function of records, given
    as ``form`` says they were brought. It may give probabilities or logits (b, C), probabilities or
    decision values (b,) of the second of two classes, or labels (b,). Raises BadConfig."""
    if isinstance(model, nn.Module):
        if form.has_text:
            raise BadConfig(
                f"{key}: a torch module reads numbers, and the records have columns of text"
            )
        model.eval()
        return Predictor(lambda x: _call_module(model, x, key), key)
    output_form = PLAIN_FORMAT if form.kind == "torch" else form
    for name in METHODS:
        method = getattr(model, name, None)
        if callable(method):

            def predict(x: Any, method: Any = method) -> Any:
                return method(output_form.original_rows(x))

            return Predictor(predict, key, name, _class_order(model, key))
    if callable(model):
        owner = getattr(model, "__self__", None)
        name = str(getattr(model, "__name__", ""))
        if name in METHODS:
            return Predictor(
                lambda x: model(output_form.original_rows(x)), key, name, _class_order(owner, key)
            )
        return Predictor(lambda x: model(form.original_rows(x)), key)
    needed = "a torch module, a scikit-learn estimator or a function is needed"
    raise BadConfig(f"{key}: {needed}, got {type(model).__name__}")


def resolve_classes(
    predict: Predictor, train: LabelledRecords, heldout: LabelledRecords, rows: NDArray[np.int64]
) -> tuple[Predictor, LabelledRecords, LabelledRecords, int, list[str]]:
    """(predictor, training and held-out records with labels as places of its classes, how many
    these are, notes for a reader). How answers are read is seen from all held-out records and these
    ``rows`` of the training ones. Raises BadConfig."""
    train, heldout = align_columns({"target.train": train, "target.heldout": heldout})
    answers = predict.query_outputs(
        torch.cat([train.x[torch.from_numpy(rows)], heldout.x.to(train.x.dtype)])
    )
    labels = [train.original_labels(), heldout.original_labels()]
    names = predict.order
    notes = list[str]()
    if names is None:
        names, notes = _infer_classes(predict.key, answers, labels)
    numbered = [
        records.number_labels(names, f"target.{name}")
        for name, records in (("train", train), ("heldout", heldout))
    ]
    plain = np.array_equal(names, np.arange(len(names)))
    predict = replace(predict, names=None if plain and predict.order is None else names)
    predict = replace(
        predict, reading=infer_output_kind(answers, predict.key, len(names), predict.method)
    )
    width = predict.to_logits(answers[:2], len(names)).shape[1]
    return predict, numbered[0], numbered[1], width, notes


def _infer_classes(
    key: str, answers: NDArray[Any], labels: list[NDArray[Any]]
) -> tuple[NDArray[Any], list[str]]:
    """Which classes a model without names for them knows, in the order of its outputs; and a note
    where that was guessed."""
    if len({label.dtype.kind == "U" for label in labels}) > 1:
        raise BadConfig("target.heldout: y holds text in one file, and numbers in the other")
    distinct = np.unique(np.concatenate(labels))
    if (
        answers.ndim == 1 and answers.dtype.kind in "biuUSO"
    ):  # predicted labels: they name their classes
        every = np.unique(
            np.concatenate(
                [distinct, answers.astype(str) if answers.dtype.kind in "USO" else answers]
            )
        )
        if (
            every.dtype.kind == "U"
            or every.min() < 0
            or every.max() > MAX_LABEL_SPREAD * len(every)
        ):
            return every, []
        return np.arange(max(2, int(every.max()) + 1)), []
    if answers.ndim == 1 and len(distinct) <= 2:
        count = 2
    elif answers.ndim == 2:
        count = answers.shape[1]
    else:
        count = len(distinct)
    if distinct.dtype.kind == "U":
        raise BadConfig(
            f"{key}: y holds text ({str(distinct[0])!r}, ...), and the model does not say "
            f"which of its {count} outputs is which class; "
            "give whole numbers from 0 in the order of its outputs, or an estimator with classes_"
        )
    if distinct.tolist() == [-1, 1] and count == 2:
        return distinct, ["The labels -1 and 1 were read as the model's first and second class."]
    if answers.ndim == 1 and len(distinct) > 2:
        count = int(distinct[-1]) + 1
        if not _are_labels(answers, count):
            reason = f"gives one number for each record, and y holds {len(distinct)} classes"
            raise BadConfig(f"{key}: {reason}; a classifier is needed")
    if distinct[0] < 0 or distinct[-1] >= count:
        raise BadConfig(
            f"{key}: knows {count} classes, "
            f"{_describe_high_label(torch.from_numpy(distinct), count)}"
        )
    return np.arange(count), []


def _describe_high_label(labels: Tensor, classes: int) -> str:
    """The error text for labels that are not all below ``classes``, with advice."""
    low = int(labels.min())
    high = int(labels.max())
    if low >= 0:
        range_text = f"labels go up to {high} (0 is the first)"
    else:
        range_text = f"labels go down to {low} (0 is the first)"
    if low == 1 and high == classes:
        return f"{range_text}; give y - 1 if they count from 1"
    if low < 0:
        return f"{range_text}; np.unique(y, return_inverse=True)[1] numbers classes in sorted order"
    return range_text


def _class_order(model: Any, key: str) -> NDArray[Any] | None:
    """The classes of an estimator's columns, where it names them."""
    named = getattr(model, "classes_", None)
    if named is None:
        return None
    if isinstance(named, list) and named and isinstance(named[0], np.ndarray):
        raise BadConfig(
            f"{key}: predicts {len(named)} labels for each record; one class a record is needed"
        )
    order = np.asarray(named)
    if order.dtype.kind == "O" and all(isinstance(name, str) for name in order):
        return order.astype(str)
    return order


def infer_output_kind(
    answers: NDArray[Any], key: str, classes: int, method: str = ""
) -> OutputKind:
    """The kind of output that numbers (n,) or (n, C) are. Raises BadConfig for one number a record
    where there are more than two classes."""
    if answers.dtype.kind not in "biuf" or (answers.ndim == 1 and answers.dtype.kind in "biu"):
        if answers.ndim == 2:
            raise BadConfig(f"{key}: gives {answers.dtype} {answers.shape}; {NEEDED_OUTPUTS}")
        return "labels"
    low = float(answers.min())
    high = float(answers.max())
    if answers.ndim == 1:
        if classes > 2:
            if _are_labels(answers, classes):
                return "labels"
            raise BadConfig(
                f"{key}: gives one number for each record, and there are {classes} classes"
            )
        if method == "decision_function" or low < 0:
            return "decisions"
        if high <= 1:
            return "positive"
        if MIN_PERCENT < high <= 100:
            return "percent"
        return "decisions"
    if method == "decision_function" or low < 0:
        return "logits"
    sums = answers.astype(np.float64).sum(1)
    if np.allclose(sums, 1, atol=1e-3):
        return "probabilities"
    if sums.min() > 0 and np.allclose(sums, np.median(sums), rtol=ROUNDING_TOLERANCE, atol=0):
        return "shares"
    if high <= 1 or method == "predict_proba":
        return "separate"
    return "logits"


def outputs_to_logits(answers: NDArray[Any], reading: OutputKind) -> Tensor:
    """(n, C) float64, softmax of which are probabilities."""
    probabilities = answers.astype(np.float64)
    if reading == "logits":
        return torch.from_numpy(probabilities)
    if reading == "decisions":
        value = torch.from_numpy(probabilities)
        return torch.stack([torch.zeros_like(value), value], 1)
    if reading in ("positive", "percent"):
        second = probabilities / (100 if reading == "percent" else 1)
        return _log_probabilities(np.stack([1 - second, second], 1))
    if reading != "probabilities":
        probabilities = probabilities / np.maximum(
            probabilities.sum(1, keepdims=True), PROBABILITY_FLOOR
        )
    return _log_probabilities(probabilities)


def _are_labels(values: NDArray[Any], classes: int) -> bool:
    return bool((values == np.floor(values)).all() and values.min() >= 0 and values.max() < classes)


def _as_output_array(values: Any, key: str) -> NDArray[Any]:
    try:
        if isinstance(values, Tensor):
            plain = values.detach().cpu()
            return (plain.float() if plain.dtype == torch.bfloat16 else plain).numpy()
        array = np.asarray(values)
        if array.dtype.kind == "O" and not isinstance(array.flat[0], str):
            return array.astype(np.float64)
        return array
    except (ValueError, TypeError) as error:  # lists of unequal lengths
        raise BadConfig(
            f"{key}: gives no array of numbers ({' '.join(str(error).split())[:100]})"
        ) from None


def _log_probabilities(probabilities: NDArray[Any]) -> Tensor:
    return torch.from_numpy(np.log(np.clip(probabilities.astype(np.float64), PROBABILITY_FLOOR, 1)))


def _call_module(model: nn.Module, x: Tensor, key: str) -> Tensor:
    """The module's own kind of number goes in, unless it looks records up as whole numbers."""
    first = next(model.parameters(), None)
    looks_up = any(isinstance(part, nn.Embedding | nn.EmbeddingBag) for part in model.modules())
    if not looks_up or x.is_floating_point():
        dtype = torch.float32
        if first is not None:
            dtype = first.dtype
        x = x.to(dtype)
    if first is not None:
        x = x.to(first.device)
    with torch.no_grad():
        output = model(x)
    if not isinstance(output, Tensor):
        raise BadConfig(f"{key}: gives {type(output).__name__}; {_describe_way_out(output)}")
    return output


def _describe_way_out(outputs: Any) -> str:
    """What to do about a module that gives several outputs: a function of three lines, with the one
    that fits."""
    place = ""
    if isinstance(outputs, Mapping):
        place = next((f"[{name!r}]" for name in ("logits", *outputs) if name in outputs), "[NAME]")
    elif isinstance(outputs, tuple | list) and outputs:
        place = f"[{len(outputs) - 1}]"
    if isinstance(outputs, Mapping):
        held = f" ({', '.join(map(str, outputs))})"
    else:
        held = ""
    return (
        f"a tensor (b, classes) is needed{held}. Give a function in its place, in a file "
        "of yours: model = Net(...); "
        "model.load_state_dict(torch.load(FILE, weights_only=True)); "
        f"def predict(x): return model.eval()(torch.as_tensor(x).float()){place}.detach() "
        " (target.model=file:predict)"
    )


def load_target_model(
    name: str, args: Mapping[str, Any], weights: Path | None
) -> tuple[Any, list[str]]:
    """The model that ``module:Class`` builds with ``args`` and a file's weights, or a function as
    it is; and notes on the weights. Raises BadConfig, one line."""
    if Path(name).suffix.lower() in PICKLE_SUFFIXES and ":" not in name:
        raise BadConfig(
            f"target.model={name}: a pickle can run any program and is not read; {PYTHON_HINT}"
        )
    target = load_target(name, "target.model")
    if inspect.isclass(target):
        target = make_instance(target, args, f"target.model={name}")
    elif args:
        raise BadConfig(f"target.args: {name} is not a class, so nothing is made with them")
    notes = []
    if isinstance(target, nn.Module):
        if weights is not None:
            notes = load_weights(target, weights)
        elif inspect.isclass(load_target(name, "target.model")):
            raise BadConfig(
                f"target.model={name}: target.weights=FILE is needed; a new network has "
                "seen no record"
            )
    elif weights is not None:
        raise BadConfig(
            f"target.weights={weights}: {name} is not a torch module, so it takes no weights"
        )
    return target, notes


def load_weights(model: nn.Module, path: Path) -> list[str]:
    """Load a file of weights into ``model`` -> how they were read. Raises BadConfig naming missing,
    unknown and misshapen ones."""
    weights = read_weights(path)
    state = model.state_dict()
    notes = list[str]()
    kind = type(model).__name__
    if isinstance(weights, list):
        if len(weights) != len(state):
            raise BadConfig(
                f"target.weights={path}: {len(weights)} arrays without names; {kind} has "
                f"{len(state)}"
            )
        weights = dict(zip(state, weights))
        order = "they were taken in the order of the model's state_dict"
        notes.append(f"The {len(state)} arrays of {path.name} have no names; {order}.")
    weights, prefix = _strip_prefix(weights, state)
    if prefix:
        notes += [f"The names in {path.name} begin with {prefix}, which was taken off."]
    missing = sorted(state.keys() - weights.keys())
    unknown = sorted(weights.keys() - state.keys())
    wrong_shapes = [
        f"{name} is {tuple(weights[name].shape)}, the model's is {tuple(state[name].shape)}"
        for name in sorted(state.keys() & weights.keys())
        if weights[name].shape != state[name].shape
    ]
    wrong = [
        f"{word} {_list_names(names)}"
        for word, names in (("missing", missing), ("unknown", unknown))
        if names
    ]
    wrong += wrong_shapes[:3]
    if wrong:
        raise BadConfig(f"target.weights={path}: do not fit {kind}: {'; '.join(wrong)}")
    if broken := [
        name for name, value in weights.items() if not torch.isfinite(value.double()).all()
    ]:
        raise BadConfig(f"target.weights={path}: has NaN or infinity in {_list_names(broken)}")
    model.load_state_dict(dict(weights))
    return notes


def _strip_prefix(
    state: Mapping[str, Tensor], expected: Mapping[str, Tensor]
) -> tuple[Mapping[str, Tensor], str]:
    """The weights without a prefix that wrappers of the model put before all names (``module.``,
    ``_orig_mod.``), and that prefix."""
    first = next(iter(state), "").split(".")
    for depth in range(1, len(first)):
        prefix = ".".join(first[:depth]) + "."
        if state.keys() & expected.keys() or not all(name.startswith(prefix) for name in state):
            break
        short = {name.removeprefix(prefix): value for name, value in state.items()}
        if short.keys() & expected.keys():
            return short, prefix
    return state, ""


def read_weights(path: Path) -> Mapping[str, Tensor] | list[Tensor]:
    """name -> tensor, or a list of arrays, of safetensors, ``.npz``, or ``.pt`` by torch's
    restricted reader (weights_only)."""
    if not path.is_file():
        raise BadConfig(f"target.weights={path}: no such file")
    suffix = path.suffix.lower()
    if suffix == ".safetensors":
        try:
            return read_tensors(path)
        except DamagedRun as error:
            raise BadConfig(f"target.weights={error}") from None
    if suffix == ".npz":
        return _read_archive(path)
    if suffix not in (".pt", ".pth", ".ckpt"):
        advice = f".safetensors, .npz or a state_dict in .pt is read, never a pickle; {PYTHON_HINT}"
        raise BadConfig(f"target.weights={path}: {advice}")
    try:
        weights = torch.load(
            io.BytesIO(read_bytes(path, LARGEST_TENSORS)), map_location="cpu", weights_only=True
        )
    except Exception as error:  # zip, pickle and torch raise their own
        if "weights" in str(error).lower():
            advice = "objects of Python"
        else:
            advice = " ".join(str(error).split())[:80]
        advice = f"holds more than tensors, or is damaged ({advice}); save model.state_dict()"
        raise BadConfig(f"target.weights={path}: {advice}") from error
    weights = _unwrap_state_dict(weights)
    if (
        isinstance(weights, list | tuple)
        and weights
        and all(isinstance(value, Tensor) for value in weights)
    ):
        return list(weights)
    if (
        not isinstance(weights, Mapping)
        or not weights
        or not all(isinstance(value, Tensor) for value in weights.values())
    ):
        raise BadConfig(
            f"target.weights={path}: no state_dict (name -> tensor); save model.state_dict()"
        )
    return {str(name): value for name, value in weights.items()}


def _unwrap_state_dict(content: Any) -> Any:
    """The state dict below the keys that training scripts use; a model may have a part of such a
    name itself."""
    for _ in range(MAX_WRAPPERS):
        keys = STATE_DICT_KEYS if isinstance(content, Mapping) else ()
        content = next(
            (content[key] for key in keys if isinstance(content.get(key), Mapping | list | tuple)),
            content,
        )
    return content


def _read_archive(path: Path) -> Mapping[str, Tensor] | list[Tensor]:
    """Arrays of ``numpy.savez``: by name, or in order where they were given none (arr_0, arr_1,
    ...)."""
    stored, _ = read_archive(f"target.weights={path}", path)
    try:
        arrays = {name: torch.from_numpy(np.array(value)) for name, value in stored.items()}
    except (
        TypeError,
        ValueError,
    ) as error:  # text, numbers that torch does not have, another byte order
        raise BadConfig(
            f"target.weights={path}: not an .npz of plain numbers ({str(error)[:80]})"
        ) from error
    if set(arrays) == {f"arr_{index}" for index in range(len(arrays))}:
        return [arrays[f"arr_{index}"] for index in range(len(arrays))]
    return arrays


def _list_names(names: list[str]) -> str:
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
