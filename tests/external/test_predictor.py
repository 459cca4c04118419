"""Whatever a model gives, its probabilities are read right."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.svm import LinearSVC
from torch import nn

from privdd.core.validation import BadConfig
from privdd.external.predictor import PROBABILITY_FLOOR, Predictor, build_predictor, resolve_classes
from privdd.external.records import records_from_arrays

X = torch.linspace(-2, 2, 40, dtype=torch.float64).reshape(20, 2)
Y = (X[:, 0] > 0).long()


class Named(nn.Module):
    """Several outputs by name, as many public networks give them."""

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"features": x, "logits": x.repeat(1, 3)}


def values_to_logits(values: Any, key: str, classes: int = 2) -> torch.Tensor:
    return Predictor(lambda _: values, key)(torch.zeros(len(values), 1), classes)


def softmax(values: Any) -> np.ndarray:
    return values_to_logits(values, "m").softmax(1).numpy()


def test_probabilities_logits_decisions_and_labels() -> None:
    given = np.array([[0.2, 0.3, 0.5], [0.0, 0.0, 1.0]])
    assert np.allclose(softmax(given), given, atol=2 * PROBABILITY_FLOOR)
    logits = np.array([[1.0, -2.0, 0.5], [0.0, 3.0, 0.0]])
    assert np.allclose(softmax(logits), torch.tensor(logits).softmax(1))
    assert np.allclose(softmax(np.array([0.3, -1.0]))[:, 1], 1 / (1 + np.exp([-0.3, 1.0])))
    assert np.allclose(values_to_logits(np.array([2, 0]), "m", 4).softmax(1).argmax(1), [2, 0])


def test_estimators_functions_and_modules_agree() -> None:
    fitted = LogisticRegression().fit(X.numpy(), Y.numpy())
    own = build_predictor(fitted)(X).softmax(1).numpy()
    assert np.allclose(own, fitted.predict_proba(X.numpy()), atol=1e-5)
    net = nn.Linear(2, 2, dtype=torch.float32)
    net.weight.data = torch.tensor(np.concatenate([np.zeros((1, 2)), fitted.coef_])).float()
    net.bias.data = torch.tensor([0.0, float(fitted.intercept_[0])])
    assert np.allclose(build_predictor(net)(X).softmax(1), own, atol=1e-4)
    assert np.allclose(build_predictor(fitted.decision_function)(X).softmax(1), own, atol=1e-5)
    assert np.array_equal(build_predictor(LinearSVC().fit(X.numpy(), Y.numpy()))(X).argmax(1), Y)


def test_a_module_is_asked_in_eval_mode_and_in_batches() -> None:
    net = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
    predict = build_predictor(net)
    assert not net.training
    many = torch.randn(2500, 2, generator=torch.Generator().manual_seed(0))
    assert torch.allclose(predict(many)[7:9], predict(many[7:9]))
    words = build_predictor(nn.Sequential(nn.Embedding(9, 4), nn.Flatten(), nn.Linear(8, 2)))
    assert words(torch.ones(5, 2, dtype=torch.int64)).shape == (5, 2)


@pytest.mark.parametrize(
    ("model", "said"),
    [
        (nn.Linear(7, 2), r"m: cannot read records of shape \(2,\): mat1 and mat2"),
        (lambda x: np.zeros((len(x), 2)), "m: knows 2 classes, labels go up to 4"),
        (lambda x: np.full((len(x), 9), np.nan), "m: gives float64 .*; finite numbers"),
        (lambda x: np.zeros((1, 9)), r"m: gives \(1, 9\) for 2 records"),
        (lambda x: [[1], [2, 3]], "m: gives no array of numbers"),
        (nn.LSTM(2, 9), r"m: gives tuple; a tensor .*def predict\(x\): return .*\[1\]"),
        (
            Named(),
            r"m: gives dict; a tensor \(b, classes\) is needed \(features, logits\)\. "
            r".*def predict\(x\).*\['logits'\]",
        ),
        (3, "m: a torch module, a scikit-learn estimator or a function is needed, got int"),
    ],
)
def test_what_cannot_be_asked_is_one_line(model: Any, said: str) -> None:
    with pytest.raises(BadConfig, match=said) as caught:
        build_predictor(model, "m").count_classes(X, torch.arange(5))
    assert "\n" not in str(caught.value)


def test_predicted_labels_do_not_say_how_many_classes_there_are() -> None:
    predict = build_predictor(lambda x: np.zeros(len(x), int))
    assert predict.count_classes(X, torch.arange(5)) == 5 and predict(X, 5).shape == (20, 5)


RNG = np.random.default_rng(0)
P = RNG.dirichlet(np.ones(3), 60)
MANY = np.arange(120.0).reshape(60, 2)
LABELS = np.arange(60) % 3


def settle(model: Any, y: Any = LABELS, x: Any = MANY) -> Any:
    one = records_from_arrays("target.train", x, y)
    return resolve_classes(
        build_predictor(model, "target.model", one.form),
        one,
        records_from_arrays("target.heldout", x, y),
        np.arange(60),
    )


def at(values: Any) -> Any:
    """A model that gives the row of each record."""
    return lambda x: values[(np.asarray(x)[:, 0] / 2).astype(int)]


@pytest.mark.parametrize(
    ("values", "reading"),
    [
        (P, "probabilities"),
        (P.astype(np.float16), "probabilities"),
        (P.round(2), "shares"),
        (100 * P, "shares"),
        ((1000 * P).round().astype(int), "shares"),
        (np.log(P), "logits"),
        (np.where(P < 1e-3, -np.inf, np.log(P)), "logits"),
        (np.log(P) + 7, "logits"),
    ],
)
def test_numbers_for_each_class_are_read_for_what_they_are(values: Any, reading: str) -> None:
    predict, *_ = settle(at(values))
    assert predict.reading == reading
    assert np.abs(predict(torch.from_numpy(MANY), 3).softmax(1).numpy() - P).max() < 0.02


@pytest.mark.parametrize(
    ("values", "reading"),
    [
        (P[:, 1], "positive"),
        (P[:, 1:2].astype(np.float32), "positive"),
        (100 * P[:, 1], "percent"),
        (np.log(P[:, 1] / (1 - P[:, 1])), "decisions"),
        (torch.from_numpy(P[:, 1:2]).bfloat16(), "positive"),
    ],
)
def test_one_number_is_a_probability_or_a_decision_value(values: Any, reading: str) -> None:
    predict, *_, classes, _ = settle(at(values), LABELS % 2)
    assert predict.reading == reading and classes == 2
    assert (
        np.abs(predict(torch.from_numpy(MANY), 2).softmax(1)[:, 1].numpy() - P[:, 1]).max() < 0.01
    )


def test_separate_probabilities_are_no_logits() -> None:
    predict, *_ = settle(at(np.array([[0.9, 0.8, 0.1], [0.1, 0.05, 0.02]])[np.arange(60) % 2]))
    assert predict.reading == "separate"
    assert np.allclose(
        predict(torch.from_numpy(MANY[:1]), 3).softmax(1),
        np.array([[0.9, 0.8, 0.1]]) / 1.8,
        atol=1e-4,
    )


class Estimator:
    """Of scikit-learn's kind: its columns stand for ``classes_``."""

    def __init__(self, classes: Any, values: Any) -> None:
        self.classes_ = np.array(classes)
        self.predict_proba = at(values)


@pytest.mark.parametrize("classes", [["b", "c", "a"], [7, -1, 10**9], [1, 2, 3], [True, False]])
def test_an_estimators_columns_are_its_own_classes(classes: Any) -> None:
    values = P if len(classes) == 3 else P[:, :2] / P[:, :2].sum(1, keepdims=True)
    y = np.array(classes)[values.argmax(1)]
    predict, train, heldout, count, notes = settle(Estimator(classes, values), y)
    assert count == len(classes) and not notes
    assert torch.equal(predict(train.x, count).argmax(1), train.y) and torch.equal(
        heldout.y, train.y
    )
    assert train.original_labels().tolist() == y.tolist()


def test_a_shadow_that_saw_other_classes_is_placed_among_the_targets() -> None:
    two = P[:, :2] / P[:, :2].sum(1, keepdims=True)
    shadow = build_predictor(Estimator(["c", "a"], two))
    placed = (
        replace(shadow, names=np.array(["a", "b", "c"]))(torch.from_numpy(MANY), 3)
        .softmax(1)
        .numpy()
    )
    assert np.allclose(placed[:, [2, 0]], two, atol=1e-4) and placed[:, 1].max() < 1e-5


def test_labels_of_a_function_are_those_of_its_outputs() -> None:
    _, train, _, _, notes = settle(at(P[:, 1]), LABELS % 2 * 2 - 1)
    assert set(train.y.tolist()) == {0, 1} and "-1 and 1 were read as" in notes[0]
    names = np.array(["x", "y", "z"])
    predict, train, *_ = settle(at(names[LABELS]), names[LABELS])
    assert predict.reading == "labels" and torch.equal(predict(train.x, 3).argmax(1), train.y)


@pytest.mark.parametrize(
    ("values", "y", "said"),
    [
        (P, LABELS + 1, "knows 3 classes, labels go up to 3 .*; give y - 1 if they count from 1"),
        (
            P,
            np.array(["a", "b", "c"])[LABELS],
            "y holds text .*give whole numbers from 0 in the order of its outputs",
        ),
        (P, LABELS - 1, "labels go down to -1"),
        (P, np.where(LABELS, 10**9, 0), "knows 3 classes, labels go up to 1000000000"),
        (
            P[:, 1],
            LABELS,
            "gives one number for each record, and y holds 3 classes; a classifier is needed",
        ),
        (np.where(P > 0.5, np.nan, P), LABELS, "gives float64 .* with NaN or infinity"),
    ],
)
def test_labels_that_are_no_outputs_are_one_line(values: Any, y: Any, said: str) -> None:
    with pytest.raises(BadConfig, match=said) as caught:
        settle(at(values), y)
    assert "\n" not in str(caught.value)
