"""Prototypes are read through the classifier that all clients are known to start from, where no server sends one."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from scipy.stats import mannwhitneyu
from torch import Tensor, nn

from privdd.auditing.adversary_view import AdversaryView
from privdd.auditing.replay import draw_membership_game
from privdd.auditing.signal_extraction import extract_signals
from privdd.core.rng import Keys
from privdd.core.types import unpack
from privdd.federated.simulation import Plan, Snapshot
from tests.federations import equal, tiny

NAME = "prototypes|joint_opening"


def known_start() -> tuple[Plan, Any]:
    plan = tiny("fedproto").plan
    state = plan.method.opening(plan.problem, plan.keys.seed)
    assert state is not None
    return plan, state


def signal(mean: Tensor, count: Tensor, candidates: Any, opening: Any) -> dict[str, Tensor]:
    plan, _ = known_start()
    snapshot = Snapshot(0, {"prototypes": {"mean": mean, "count": count}}, {})
    lens = AdversaryView(plan.method, plan.problem, snapshot, candidates, candidates, {}, frozenset(), {}, opening)
    return extract_signals(lens, {"prototypes": {"mean": mean, "count": count}})


def features(state: Any, x: Tensor) -> Tensor:
    """The network's own layers before its head, with nothing of the lens."""
    plan, _ = known_start()
    model: nn.Module = plan.method.classifier(plan.problem)  # type: ignore[assignment]
    model.load_state_dict(state)
    with torch.no_grad():
        return model.eval().features(x)  # type: ignore[operator, no-any-return]


def test_it_is_the_model_that_clients_start_from() -> None:
    """A client that takes no step sends the class means of its records under that very model."""
    plan, state = known_start()
    server = plan.method.init(plan.problem, plan.keys)
    assert equal(state, {**unpack("model", server), **unpack("buffers", server)})
    assert not equal(state, plan.method.opening(plan.problem, plan.keys.seed + 1))  # type: ignore[arg-type]
    sent = tiny("fedavg").plan
    assert sent.method.opening(sent.problem, 0) is None  # what the server sends is read instead
    nested = tiny("virtual_data", "algo/inner=fedproto").plan
    assert equal(nested.method.opening(nested.problem, 0), nested.method.inner.opening(nested.problem, 0))  # type: ignore[attr-defined, arg-type]


@pytest.mark.parametrize("seed", range(2))
def test_members_of_a_class_mean_are_told_from_others_of_the_class(seed: int) -> None:
    """Class means of half the records, exact: each member's part stands out, and under other coins nobody's does."""
    made = tiny("fedproto")
    _, state = known_start()
    records = draw_membership_game(made.shards[made.plan.victim], 30, 1, Keys(seed)).audited_records
    inside = torch.arange(len(records)) % 2 == seed
    classes, own = made.plan.problem.classes, features(state, records.x)
    count = torch.bincount(records.y[inside], minlength=classes).float()
    sums = torch.zeros(classes, own.shape[1]).index_add_(0, records.y[inside], own[inside])
    mean = sums / count.clamp_min(1)[:, None]
    found = signal(mean, count, records, state)[NAME]
    assert (found[count[records.y] == 0] == 0).all()
    there = count[records.y] > 0
    assert mannwhitneyu(found[inside & there], found[~inside & there], alternative="greater").pvalue < 1e-3


def test_where_no_start_is_known_there_is_no_such_signal() -> None:
    made, (_, state) = tiny("fedproto"), known_start()
    records = made.shards[made.plan.victim].train
    mean = torch.rand(made.plan.problem.classes, features(state, records.x[:1]).shape[1])
    count = torch.ones(len(mean))
    assert NAME not in signal(mean, count, records, None)
    assert NAME in signal(mean, count, records, state) and NAME not in signal(mean[:, 1:], count, records, state)
