"""A network of the user's own: it is the same function after it was split, and what cannot be used
is one line."""

from __future__ import annotations

import sys
import types
from typing import Any

import pytest
import torch
from torch import nn
from torch.func import functional_call

from attacks.inversion.labels import last_layer_gradients
from privdd.models import OwnModel, build, initial
from privdd.models.build import build_skeleton
from privdd.models.own import INITIALISED_LAYERS, NORM_LAYERS, CutHead
from privdd.training.sgd import is_vectorisable

SHAPE = (1, 6, 6)


class Net(nn.Module):
    def __init__(self, width: int = 4, classes: int = 3) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, width, 3)
        self.norm = nn.GroupNorm(2, width)
        self.last = nn.Linear(width * 16, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(torch.relu(self.norm(self.conv(x))).flatten(1))


class Batch(Net):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(4)  # type: ignore[assignment]


class After(Net):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x).log_softmax(1)


class Drops(Net):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.drop(super().forward(x))

    def __init__(self) -> None:
        super().__init__()
        self.drop = nn.Dropout(0.5)


class Table(Net):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(2))


class Tied(Net):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(64, 64, bias=False)
        self.second = nn.Linear(64, 64, bias=False)
        self.second.weight = self.first.weight


class Raises(Net):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(x)


@pytest.fixture(autouse=True)
def named(monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("my_nets")
    for part in (Net, Batch, After, Drops, Table, Tied, Raises):
        setattr(module, part.__name__, part)
    monkeypatch.setitem(sys.modules, "my_nets", module)
    build_skeleton.cache_clear()


def test_it_computes_what_the_class_computes() -> None:
    spec = OwnModel(target="my_nets:Net", args={"width": 6})
    state = initial(spec, SHAPE, 3, torch.Generator().manual_seed(0))
    x = torch.rand(5, *SHAPE, generator=torch.Generator().manual_seed(1))
    built = build(spec, SHAPE, 3)
    own = Net(6)
    theirs = {
        key.removeprefix("body.").replace("head.", "last."): value for key, value in state.items()
    }
    own.load_state_dict(theirs)
    assert torch.allclose(functional_call(built, state, (x,)), own(x), atol=1e-6)
    assert built.head.out_features == 3 and functional_call(built, state, (x,)).shape == (5, 3)
    assert (
        hash(spec) == hash(OwnModel(target="my_nets:Net", args={"width": 6}))
        and {CutHead}
        and INITIALISED_LAYERS
        and NORM_LAYERS
    )


def test_attacks_find_its_classifier_behind_other_linear_layers() -> None:
    """They take the last linear layer in the module's order: of the hidden layer's 32 numbers none
    is a class."""
    built = build(OwnModel(target="privdd.models.own:Example"), SHAPE, 3)
    assert last_layer_gradients(built, list(built.parameters()))[0] is built.head.weight


def test_nobody_widens_it() -> None:
    """Its forward is the user's: many networks side by side would be mixed by a flatten."""
    assert not is_vectorisable(build(OwnModel(target="my_nets:Net"), SHAPE, 3))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"target": "my_nets"}, "model.target=my_nets: module:Class is needed"),
        ({"target": "no_such_module:Net"}, "ModuleNotFoundError"),
        ({"target": "my_nets:None_"}, "AttributeError"),
        ({"target": "math:pi"}, "no class of torch modules"),
        ({"target": "my_nets:Net", "args": {"depth": 1}}, "TypeError: .*depth"),
        (
            {"target": "my_nets:Net", "args": {"classes": 5}},
            "gives 5 numbers, the data has 3 classes",
        ),
        ({"target": "my_nets:Batch"}, "my_nets:Batch has a batch norm; model.norm=batch"),
        ({"target": "my_nets:Net", "norm": "batch"}, "has no batch norm; model.norm=none"),
        ({"target": "my_nets:After"}, "its last linear layer has to be its last step"),
        ({"target": "my_nets:Drops"}, "drop draws from torch's global generator"),
        (
            {"target": "my_nets:Table"},
            r"Table \(Table\) holds scale, whose first values are not known",
        ),
        (
            {"target": "my_nets:Tied"},
            r"second.weight and first.weight are one tensor \(tied weights\)",
        ),
        ({"target": "my_nets:Raises"}, r"cannot read records of shape \(1, 6, 6\)"),
        ({"target": "my_nets:Net", "args": 3}, "model.args=3: a mapping is needed"),
        ({"target": "my_nets:Net", "norm": "group"}, "model.norm='group': one of none, batch"),
    ],
)
def test_what_cannot_be_used_is_one_line(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said) as caught:
        build(OwnModel(**given), SHAPE, 3)
    assert "\n" not in str(caught.value)


def test_batch_norm_is_taken_where_it_is_said() -> None:
    spec = OwnModel(target="my_nets:Batch", norm="batch")
    assert spec.norm == "batch" and "body.norm.running_mean" in initial(
        spec, SHAPE, 3, torch.Generator()
    )
