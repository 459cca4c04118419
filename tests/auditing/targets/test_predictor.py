"""Whatever a model gives, its probabilities are read right."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.svm import LinearSVC
from torch import nn

from privdd.auditing.targets.predictor import FLOOR, as_logits, predictor
from privdd.core.errors import BadConfig

X = torch.linspace(-2, 2, 40, dtype=torch.float64).reshape(20, 2)
Y = (X[:, 0] > 0).long()


def softmax(values: Any) -> np.ndarray:
    return as_logits(values, "m").softmax(1).numpy()


def test_probabilities_logits_decisions_and_labels() -> None:
    given = np.array([[0.2, 0.3, 0.5], [0.0, 0.0, 1.0]])
    assert np.allclose(softmax(given), given, atol=2 * FLOOR)
    logits = np.array([[1.0, -2.0, 0.5], [0.0, 3.0, 0.0]])
    assert np.allclose(softmax(logits), torch.tensor(logits).softmax(1))
    assert np.allclose(softmax(np.array([0.3, -1.0]))[:, 1], 1 / (1 + np.exp([-0.3, 1.0])))
    assert np.allclose(as_logits(np.array([2, 0]), "m", 4).softmax(1).argmax(1), [2, 0])


def test_estimators_functions_and_modules_agree() -> None:
    fitted = LogisticRegression().fit(X.numpy(), Y.numpy())
    own = predictor(fitted)(X).softmax(1).numpy()
    assert np.allclose(own, fitted.predict_proba(X.numpy()), atol=1e-5)
    net = nn.Linear(2, 2, dtype=torch.float32)
    net.weight.data = torch.tensor(np.concatenate([np.zeros((1, 2)), fitted.coef_])).float()
    net.bias.data = torch.tensor([0.0, float(fitted.intercept_[0])])
    assert np.allclose(predictor(net)(X).softmax(1), own, atol=1e-4)
    assert np.allclose(predictor(fitted.decision_function)(X).softmax(1), own, atol=1e-5)
    assert np.array_equal(predictor(LinearSVC().fit(X.numpy(), Y.numpy()))(X).argmax(1), Y)


def test_a_module_is_asked_in_eval_mode_and_in_batches() -> None:
    net = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
    predict = predictor(net)
    assert not net.training
    many = torch.randn(2500, 2, generator=torch.Generator().manual_seed(0))
    assert torch.allclose(predict(many)[7:9], predict(many[7:9]))
    words = predictor(nn.Sequential(nn.Embedding(9, 4), nn.Flatten(), nn.Linear(8, 2)))
    assert words(torch.ones(5, 2, dtype=torch.int64)).shape == (5, 2)


@pytest.mark.parametrize(
    ("model", "said"),
    [
        (nn.Linear(7, 2), r"m: cannot read records of shape \(2,\): mat1 and mat2"),
        (lambda x: np.zeros((len(x), 2)), "m: knows 2 classes, labels go up to 4"),
        (lambda x: np.full((len(x), 9), np.nan), "m: gives float64 .*; finite numbers"),
        (lambda x: np.zeros((1, 9)), r"m: gives \(1, 9\) for 2 records"),
        (lambda x: [[1], [2, 3]], "m: gives no array of numbers"),
        (nn.LSTM(2, 9), "m: gives tuple; a tensor"),
        (3, "m: a torch module, a scikit-learn estimator or a function is needed, got int"),
    ],
)
def test_what_cannot_be_asked_is_one_line(model: Any, said: str) -> None:
    with pytest.raises(BadConfig, match=said) as caught:
        predictor(model, "m").classes(X, torch.arange(5))
    assert "\n" not in str(caught.value)


def test_predicted_labels_do_not_say_how_many_classes_there_are() -> None:
    predict = predictor(lambda x: np.zeros(len(x), int))
    assert predict.classes(X, torch.arange(5)) == 5 and predict(X, 5).shape == (20, 5)
