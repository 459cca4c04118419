"""Models that keep training records by their structure, of scikit-learn."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC

from privdd.external.records import records_from_arrays
from privdd.external.stored_rows import describe_stored_rows

RNG = np.random.default_rng(0)
X = RNG.normal(size=(60, 4))
Y = (X[:, 0] + RNG.normal(0, 0.5, 60) > 0).astype(int)
TRAIN = records_from_arrays("train", X, Y)


def test_every_neighbour_and_support_vector_is_counted():
    neighbours = KNeighborsClassifier(3).fit(X, Y)
    machine = SVC().fit(X, Y)
    (said,) = describe_stored_rows(neighbours, TRAIN)
    assert said.startswith("By its structure, KNeighborsClassifier keeps 60 training records")
    assert "60 of these rows equal a training record" in said
    (said,) = describe_stored_rows(machine.decision_function, TRAIN)
    count = len(machine.support_)
    assert f"keeps {count} training records" in said and f"; {count} of these rows equal" in said
    assert 0 < count < 60


def test_rows_behind_a_transform_are_said_without_a_count():
    model = make_pipeline(StandardScaler(), KNeighborsClassifier(3)).fit(X, Y)
    (said,) = describe_stored_rows(model, TRAIN)
    assert "keeps 60 training records" in said and "equal" not in said


def test_a_search_is_looked_into():
    search = GridSearchCV(SVC(), {"C": [0.5, 1.0]}, cv=2).fit(X, Y)
    said = describe_stored_rows(search, TRAIN)
    assert any("SVC keeps" in one for one in said)


@pytest.mark.parametrize("model", [LogisticRegression().fit(X, Y), lambda x: x, None])
def test_a_model_without_records_says_nothing(model):
    assert describe_stored_rows(model, TRAIN) == []
