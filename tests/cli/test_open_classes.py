"""A class of one record is open where class means are sent without noise: said before training, and
by ``check_method``."""

from __future__ import annotations

import warnings

import pytest

from privdd.auditing.method_contract import check_method
from privdd.cli.build import open_classes_warning
from tests.federations import tiny
from tests.methods.strangers import MappedFedProto


def with_one_record_of_a_class(algo: str) -> str:
    """What is said of a federation whose second client keeps one record of class 3."""
    experiment = tiny(algo)
    shards = list(experiment.shards)
    y = shards[1].train.y
    kept = [i for i in range(len(y)) if int(y[i]) != 3] + (y == 3).nonzero()[:1, 0].tolist()
    shards = [shards[1].with_train(shards[1].train.take(kept))]
    return open_classes_warning(experiment.plan, shards)


@pytest.mark.parametrize(
    ("algo", "warns"),
    [("fedproto", True), ("fedcgs", True), ("fedavg", False), ("dp_means", False)],
)
def test_a_class_of_one_record_is_said_before_training(algo: str, warns: bool) -> None:
    said = with_one_record_of_a_class(algo)
    assert bool(said) is warns
    assert not warns or (
        said.startswith("prototypes: of client 1 ") and "3" in said and "open" in said
    )


def test_the_check_of_a_method_says_that_counts_are_read() -> None:
    plan = tiny("fedproto").plan
    with pytest.warns(UserWarning, match="'prototypes' holds how many records of each class"):
        check_method(plan.method, shape=plan.problem.shape, classes=plan.problem.classes)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        plan = tiny("fedavg").plan
        check_method(plan.method, shape=plan.problem.shape, classes=plan.problem.classes)
        check_method(MappedFedProto())  # its "count" says which classes the client has
