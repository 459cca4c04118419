"""Cells are disjoint within one call, and added up as the accounting does; a mechanism that ignores
its noise is named."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import pytest
import torch

from attacks.types import Surface
from privdd.auditing.dp_tests.contributions import SeenContributions
from privdd.auditing.dp_tests.noise_use_audit import noise_use_findings
from privdd.auditing.dp_tests.presence_trials import _describe_two_cells, _number_calls
from privdd.auditing.method_contract import BrokenContract, check_foreign_uploads
from privdd.core.rng import Keys
from privdd.core.types import UNKNOWN_CELL, Problem, class_of_cell
from privdd.federated.simulation import Plan
from privdd.methods.fedavg import FedAvg
from privdd.models import ModelSpec
from privdd.privacy.mechanism import Output
from privdd.privacy.mechanisms import ClippedSum
from privdd.privacy.noise import CustomNoise
from tests.auditing.dp_tests.subjects import fedavg, subject


def seen(cells: Sequence[str], changed: Sequence[int]) -> SeenContributions:
    values = [torch.tensor([1.0 if at in changed else 0.0]) for at in range(len(cells))]
    return SeenContributions({}, totals={"q": values}, cells={"q": list(cells)})


@pytest.mark.parametrize(
    ("cells", "changed", "accused"),
    [
        ("abab", [0, 2], False),  # one cell in all calls
        # another cell in the second call: two releases, which each cell costs as well
        ("abab", [0, 3], False),
        ("abab", [0, 1], True),  # two cells of one call
        ("abab", [2, 3], True),
        # cell b is released once, a four times: what two cells cost is no cell's cost
        ("abaaa", [1, 2], True),
        ("aba", [0], False),  # the last call was cut off
        ("abcabcab", [0, 4, 6], False),
        ("abcabcab", [0, 4, 6, 7], True),
    ],
)
def test_a_record_is_in_one_cell_of_each_call(
    cells: str, changed: list[int], accused: bool
) -> None:
    says = _describe_two_cells("q", seen(cells, []), seen(cells, changed))
    assert bool(says) == accused, says


def test_a_call_ends_where_a_cell_comes_again() -> None:
    assert _number_calls(list("abab")) == [0, 0, 1, 1]
    assert _number_calls(list("aabca")) == [0, 1, 1, 1, 2]
    assert _number_calls([None, None]) == [0, 1]  # type: ignore[list-item]


def test_cells_that_are_no_classes_are_known_as_such() -> None:
    assert [
        class_of_cell(p) for p in (None, "label:3", "bright:3", "label:x", "label:-1", "3")
    ] == [None, 3, *[UNKNOWN_CELL] * 4]


@dataclass(frozen=True, kw_only=True)
class InCells(FedAvg):
    """Releases the sum of its records' pixels under one cell's name."""

    cell: Any = "label:0"
    queries: ClassVar[Mapping[str, Surface]] = {"pixels": Surface.STATISTICS}

    def local(self, broadcast: Any, memory: Any, shard: Any, ctx: Any) -> Any:
        ctx.mechanism("pixels", {"x": shard.train.x.flatten(1)}, partition=self.cell)
        return super().local(broadcast, memory, shard, ctx)


def check_cells(cell: Any) -> list[str]:
    method = InCells(model=ModelSpec("mlp", width=4), rounds=1, local_epochs=1, cell=cell)
    mechanisms = {"pixels": ClippedSum(1.0, 1.0)}
    return check_foreign_uploads(Plan(Keys(0), Problem((1, 8, 8), 3, 2), method, mechanisms))


@pytest.mark.parametrize("cell", ["label:3", "label:x", "label:-1", "label:03", "", " ", "a\nb", 3])
def test_a_cell_without_a_class_or_a_name_is_refused_before_training(cell: Any) -> None:
    with pytest.raises(BrokenContract, match=rf"^partition={re.escape(repr(cell))}: .*label:2"):
        check_cells(cell)


def test_cells_that_are_no_classes_are_named_before_training() -> None:
    assert check_cells(None) == check_cells("label:2") == []
    (line,) = check_cells("bright:3")
    assert line.startswith("query 'pixels', partition='bright:3'")


@dataclass(frozen=True)
class OwnSeed(ClippedSum):
    """A fault: the noise is drawn from a generator that the value itself seeds."""

    def __call__(self, value: Any, noise: Any) -> Output:
        total = float(sum(t.double().sum() for t in value.values()))
        generator = torch.Generator().manual_seed(int(abs(total) * 1e6) % 2**31)
        own = CustomNoise.around(
            noise, normal=lambda shape: torch.randn(shape, generator=generator, dtype=torch.float64)
        )
        return super().__call__(value, own)


def test_a_mechanism_that_draws_from_a_generator_of_its_own_is_named() -> None:
    made = subject(fedavg(), {"dpsgd": ClippedSum(1.0, 1.0, 1.0, 10.0)})
    assert list(noise_use_findings(made)) == []
    mechanisms = {"dpsgd": OwnSeed(1.0, 1.0, 1.0, 10.0)}
    (found,) = noise_use_findings(
        replace(made, plan=replace(made.plan, mechanisms=mechanisms), keys=Keys(3))
    )
    assert (
        found.message == "dpsgd"
        and found.diagnostics["refuted"]
        and "ignores its noise argument" in found.measures.note
    )
