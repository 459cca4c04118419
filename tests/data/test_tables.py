"""Tables: rows scaled by public ranges, against scikit-learn's records and its documentation."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch
from sklearn.datasets import load_breast_cancer

from privdd.cli.build import build_experiment
from privdd.cli.compose import compose_config
from privdd.core.rng import Keys
from privdd.core.types import DataColumn, Records
from privdd.core.validation import BadConfig
from privdd.data.sources import load_dataset
from privdd.data.tables import encode_columns, parse_columns
from privdd.distillation import alexnet

TINY = ["data=breast_cancer", "preset=smoke", "attack=[lira]", "engine=serial"]


def test_rows_of_breast_cancer_are_scikit_learns_in_the_printed_ranges():
    experiment = build_experiment(compose_config("audit", [*TINY, "algo=fedavg"]))
    bunch = load_breast_cancer()
    printed = np.array(re.findall(r"\):\s+([\d.]+)\s+([\d.]+)", bunch.DESCR), float)
    low, high = printed.T
    assert len(printed) == 30 and experiment.plan.problem.shape == (30,)
    scaled = ((bunch.data - low) / (high - low)).clip(0, 1)
    is_test = np.arange(569) % 5 == 4
    data = experiment.dataset
    assert np.allclose(data.train.x, scaled[~is_test]) and np.allclose(data.test.x, scaled[is_test])
    assert data.train.y.tolist() == bunch.target[~is_test].tolist() and data.classes == 2
    assert [column.name for column in data.columns] == bunch.feature_names.tolist()


@pytest.mark.parametrize(
    "stated",
    [None, {}, "auto", {"age": "auto"}, {"age": [90, 17]}, {"age": None}, {"age": ["a", 1]}],
)
def test_a_column_without_a_public_range_is_refused_as_a_release(stated):
    with pytest.raises(BadConfig, match="they would be a release of their extremes"):
        parse_columns(stated, ["age", "sex"])


def test_columns_that_the_table_does_not_have_are_named():
    with pytest.raises(BadConfig, match="no column 'aeg'; it has 'age', 'sex'"):
        parse_columns({"aeg": [0, 1]}, ["age", "sex"])


def test_numbers_and_categories_become_numbers_from_0_to_1():
    columns = parse_columns({"sex": ["f", "m", "x"], "age": [20, 60]}, ["age", "sex"])
    assert columns == (
        DataColumn("sex", categories=("f", "m", "x")),
        DataColumn("age", 20.0, 60.0),
    )
    table = {"age": np.array([20.0, 30, 60, 99]), "sex": np.array(["x", "f", "m", "f"])}
    rows = encode_columns(table, columns, "refuse", "here")
    assert rows.tolist() == [[0, 0, 1, 0], [1, 0, 0, 0.25], [0, 1, 0, 1], [1, 0, 0, 1]]


def test_a_missing_value_is_refused_or_follows_the_stated_rule():
    columns = parse_columns({"sex": ["f", "m"], "age": [20, 60]}, ["age", "sex"])
    table = {"age": np.array(["30", "?"], object), "sex": np.array(["", "m"], object)}
    with pytest.raises(
        ValueError, match=r"column 'sex' lacks a value in record 0 .*missing=middle"
    ):
        encode_columns(table, columns, "refuse", "here")
    rows = encode_columns(table, columns, "middle", "here")
    assert rows.tolist() == [[0, 0, 0.25], [0, 1, 0.5]]
    strange = {"age": np.array([1.0]), "sex": np.array(["w"])}
    with pytest.raises(ValueError, match="holds 'w', none of its categories 'f', 'm'"):
        encode_columns(strange, columns, "middle", "here")


def test_records_are_images_or_rows():
    ids = torch.arange(2)
    assert Records(torch.zeros(2, 3), ids, ids).take([1]).x.shape == (1, 3)
    with pytest.raises(ValueError, match=r"x \(n, c, h, w\) or \(n, d\)"):
        Records(torch.zeros(2, 3, 4), ids, ids)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (["algo=fedavg", "model=convnet"], "model.name='convnet': it reads images"),
        (["algo=fedrd"], "model.name='convnet': it reads images"),
        (["algo=fedfed"], "model.name='vae': it reads images"),
        (["algo=vhl"], "VHL needs images, .*anchors are drawn by a convolutional generator"),
        (["algo=fedlgd"], "FedLGD needs images"),
        (["algo=dp_head"], "AlexNet needs images, .*it was trained on photos"),
        (["algo=dp_means"], "AlexNet needs images, .*it was trained on photos"),
        (["algo=dp_moments"], "AlexNet needs images, .*it was trained on photos"),
        (["algo=dp_head_scattering"], "Scattering needs images, .*wavelets lie in a plane"),
        (["algo=virtual_data"], "MatchingSettings.augment=.*must be none"),
    ],
)
def test_what_reads_images_is_refused_before_anything_is_trained(settings, said, monkeypatch):
    # a bare machine has no weights, which AlexNet asks for first
    monkeypatch.setattr(alexnet, "load_pretrained_trunk", object)
    with pytest.raises(ValueError, match=said):
        build_experiment(compose_config("audit", [*TINY, *settings]))


def test_rows_have_no_side_to_be_resized_to():
    columns = {"mean radius": [6, 30]}
    with pytest.raises(BadConfig, match=r"data\.size=8: rows of a table have no side"):
        load_dataset("breast_cancer", size=8, columns=columns, keys=Keys(0))
