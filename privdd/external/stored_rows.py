"""Training records that a model holds by its structure: nearest neighbours and support vectors are
records, which whoever holds the model reads without an attack."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from scipy import sparse

from attacks.inversion.copy_detection import NO_COPY, copies_in_pool
from privdd.external.records import LabelledRecords

# attributes of scikit-learn's fitted estimators that hold training records, with what they are
STORED_RECORDS: Mapping[str, str] = {
    "_fit_X": "its stored neighbours",
    "support_vectors_": "its support vectors",
    "X_train_": "the records of its Gaussian process",
    "X_fit_": "the records of its kernel",
}
# attributes that hold an estimator, or several, of which a model is made
PARTS = ("best_estimator_", "estimator_", "estimator", "estimators_", "calibrated_classifiers_")
MAX_DEPTH = 4  # estimators within estimators


def describe_stored_rows(model: Any, train: LabelledRecords) -> list[str]:
    """A sentence for each estimator within ``model`` that keeps training records.

    Args:
        model: the target, or a bound method of it.
        train: its training records.

    Returns:
        Sentences for the page; [] for a model that keeps none as far as its attributes show.
    """
    sentences = []
    for estimator in _estimators(getattr(model, "__self__", model), MAX_DEPTH):
        for name, what in STORED_RECORDS.items():
            rows = getattr(estimator, name, None)
            if isinstance(rows, np.ndarray) or sparse.issparse(rows):
                kind = type(estimator).__name__
                sentences.append(f"{_describe_rows(kind, name, what, rows, train)}.")
    return list(dict.fromkeys(sentences))


def _estimators(model: Any, depth: int) -> Iterator[Any]:
    """A model and the estimators that it is made of."""
    yield model
    if not depth:
        return
    steps = [step for _, step in getattr(model, "steps", [])]
    parts = [getattr(model, name, None) for name in PARTS]
    for part in [*steps, *parts]:
        members = part if isinstance(part, list | tuple | np.ndarray) else [part]
        for member in members:
            if hasattr(member, "get_params") or hasattr(member, "estimator"):
                yield from _estimators(member, depth - 1)


def _describe_rows(kind: str, name: str, what: str, rows: Any, train: LabelledRecords) -> str:
    """What an estimator keeps, and how many of its rows equal a training record."""
    text = (
        f"By its structure, {kind} keeps {rows.shape[0]} training records ({name}: {what}): "
        "whoever holds the model holds them, without an attack"
    )
    width = int(np.prod(train.record_shape))
    if sparse.issparse(rows) or rows.ndim != 2 or rows.shape[1] != width or train.has_gaps:
        return text
    pool = train.x.flatten(1).double()
    equal = int((copies_in_pool(torch.from_numpy(rows).double(), pool) != NO_COPY).sum())
    if not equal:  # an earlier step transformed the records
        return text
    return f"{text}; {equal} of these rows equal a training record number by number"
