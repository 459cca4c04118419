"""Clients that train by a function of the user's own: FedAvg's steps written as one give FedAvg;
the tutorial's example runs."""

from __future__ import annotations

import re
import sys
import types
from pathlib import Path

import pytest
import torch
from torch.nn import functional as F

from privdd.auditing.method_contract import check_method
from privdd.core.rng import Keys
from privdd.core.types import Problem
from privdd.methods.fedavg import FedAvg
from privdd.methods.own_training import OwnTraining
from privdd.models import ModelSpec
from tests.methods.toy import BATCH_NORM, SPEC, federate, make, model_of, shards

PAGE = Path(__file__).parents[2] / "docs" / "tutorials" / "own-target.md"
HERE = __name__
LR = 0.05


def one_step(model, x, y, seed):
    F.cross_entropy(model(x), y).backward()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter -= LR * parameter.grad
    return model


def drops_and_shuffles(model, x, y, seed):
    """Draws from torch's global generator, as dropout and loaders do."""
    for batch in torch.randperm(len(y)).split(32):
        one_step(model, F.dropout(x[batch], 0.2), y[batch], seed)
        model.zero_grad()
    return model


def fails(model, x, y, seed):
    raise ValueError("no learning\nrate")


def forgets(model, x, y, seed):
    model.eval()


def other(model, x, y, seed):
    return torch.nn.Linear(2, 2)


def halved(model, x, y, seed):
    return model.half()


def own(function, **more):
    return OwnTraining(
        model=more.pop("model", SPEC), rounds=2, training=f"{HERE}:{function.__name__}", **more
    )


@pytest.mark.parametrize("model", [SPEC, BATCH_NORM])
@pytest.mark.parametrize("options", [{}, {"update_is_delta": True, "weighting": "uniform"}])
def test_the_same_steps_give_fedavg(options: dict, model: ModelSpec) -> None:
    plain = make(
        FedAvg,
        model=model,
        lr=LR,
        batch_size=500,
        local_epochs=1.0,
        momentum=0.0,
        weight_decay=0.0,
        **options,
    )
    clients = shards((40, 97))
    states = [
        federate(method, clients)[0] for method in (plain, own(one_step, model=model, **options))
    ]
    assert states[0].keys() == states[1].keys()
    for name, value in states[0].items():
        torch.testing.assert_close(states[1][name], value, rtol=1e-5, atol=1e-6)


def test_what_a_function_draws_is_repeated_and_the_global_generator_is_left_as_it_was() -> None:
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first = model_of(federate(own(drops_and_shuffles), shards((40, 40)))[0])
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(2)
    assert torch.equal(model_of(federate(own(drops_and_shuffles), shards((40, 40)))[0]), first)
    assert not torch.equal(
        model_of(federate(own(drops_and_shuffles), shards((40, 40)), seed=1)[0]), first
    )


def test_it_keeps_the_contract_of_a_method() -> None:
    check_method(own(one_step, model=ModelSpec("mlp"), update_is_delta=True, weighting="uniform"))


def test_a_client_without_records_changes_nothing() -> None:
    method = own(fails, update_is_delta=True, weighting="uniform")
    alone = federate(method, shards((0,)), rounds=1)[0]
    start = method.init(Problem((1, 8, 8), 10, 1), Keys(0).fold("public", "init"))
    assert torch.equal(model_of(alone), model_of(start))


@pytest.mark.parametrize(
    ("function", "says"),
    [
        (fails, f"algo.training={HERE}:fails: failed on 30 records: ValueError: no learning rate"),
        (forgets, f"algo.training={HERE}:forgets: gives a NoneType, the trained model is needed"),
        (
            other,
            f"algo.training={HERE}:other: gives a network of other names, shapes or types "
            "than it was sent",
        ),
        (
            halved,
            f"algo.training={HERE}:halved: gives a network of other names, shapes or "
            "types than it was sent",
        ),
    ],
)
def test_a_function_that_cannot_be_used_is_said_in_one_line(function, says: str) -> None:
    with pytest.raises(ValueError) as caught:
        federate(own(function), shards((30,)), rounds=1)
    assert str(caught.value) == says


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("train", "module:function is needed, as in algo.training=net:train"),
        ("no_such_module:f", "No module named"),
        (f"{HERE}:nope", "no attribute 'nope'"),
        (f"{HERE}:LR", "it cannot be called"),
    ],
)
def test_a_name_that_stands_for_nothing_is_refused_before_anything_runs(
    text: str, says: str
) -> None:
    with pytest.raises(ValueError, match=re.escape(says)):
        OwnTraining(model=SPEC, rounds=1, training=text)


def test_the_tutorials_function_trains(monkeypatch: pytest.MonkeyPatch) -> None:
    code = next(
        b
        for b in re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.S)
        if "def train(" in b
    )
    module = types.ModuleType("net")
    exec(compile(code, "example", "exec"), vars(module))
    monkeypatch.setitem(sys.modules, "net", module)
    method = OwnTraining(model=SPEC, rounds=3, training="net:train")
    held = shards((200, 200))
    state = federate(method, held, rounds=3)[0]
    right = (method.predict(state, None, held[0].test.x).argmax(1) == held[0].test.y).float().mean()
    assert right > 0.6  # ten classes
