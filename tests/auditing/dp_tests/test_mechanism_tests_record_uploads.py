"""Uploads that mechanisms of one's own protect record by record."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import dp_accounting as dpa
import pytest

from attacks.types import Surface
from privdd.auditing.dp_tests.mechanism_tests import record_upload_findings
from privdd.core.types import Artifact, Records
from privdd.privacy.lattice import Lattice
from privdd.privacy.mechanism import Mechanism, Output
from privdd.privacy.mechanisms import ClientLevel
from tests.auditing.dp_tests.subjects import Coupled, subject


@dataclass(frozen=True)
class Rows(Coupled):
    """A row for each record, zeroed-out ones too, as it is or as their mean."""

    mean: bool = False
    queries: ClassVar = {}

    def local(self, broadcast: Any, memory: Any, shard: Any, ctx: Any) -> Any:
        whole = shard.train if shard.nulls is None else Records.concat([shard.train, shard.nulls])
        rows = 9 * whole.x.flatten(1) @ broadcast["model"]["w"]
        return {"prototypes": Artifact({"rows": rows.mean(0) if self.mean else rows})}, {}


@dataclass(frozen=True)
class OwnRows(Mechanism):
    """Noise on each row, clipped to 1 by itself unless ``clips`` is false."""

    clips: bool = True

    def __call__(self, value: Any, noise: Any) -> Output:
        rows = value["rows"]
        if self.clips:
            rows = rows / rows.norm(dim=1, keepdim=True).clamp_min(1.0)
        return Output(event=dpa.GaussianDpEvent(2.0), **Lattice.under(2.0, 1e3).released({"rows": rows}, 2.0, noise.normal))


@dataclass(frozen=True)
class Unflagged(ClientLevel):
    """It clips an upload as a whole, and does not say that its unit is a client."""

    def __call__(self, value: Any, noise: Any) -> Output:
        return replace(super().__call__(value, noise), flags={})


def kappa(method: Any, mechanism: Any, relation: str = "zero_out") -> float:
    assert method.uploads["prototypes"] == Surface.PROTOTYPES
    (found,) = record_upload_findings(subject(method, {"prototypes": mechanism}, relation=relation), "prototypes")
    return float(found.measures["kappa"])


def test_rows_that_are_clipped_one_by_one_move_by_one_unit() -> None:
    assert 0.5 < kappa(Rows(), OwnRows()) <= 1 + 1e-4


def test_rows_that_are_not_clipped_move_further() -> None:
    assert kappa(Rows(), OwnRows(clips=False)) > 2


def test_the_number_of_rows_is_private_under_add_remove() -> None:
    assert kappa(Rows(), OwnRows(), "add_remove") > 1e5


def test_under_replace_one_record_is_exchanged_for_another() -> None:
    """So the number of rows stays, and a row may move by two units at most."""
    assert 0.5 < kappa(Rows(), OwnRows(), "replace") <= 2 + 1e-4
    assert kappa(Rows(), OwnRows(clips=False), "replace") > 3
    rows = {"prototypes": OwnRows(clips=False)}
    (found,) = record_upload_findings(subject(Rows(), rows, relation="replace"), "prototypes")
    assert found.measures["kappa_allowed"] == 2


def test_an_upload_that_is_clipped_as_a_whole_may_move_across_the_ball() -> None:
    assert kappa(Rows(mean=True), Unflagged(2.0, 1.0)) == pytest.approx(2.0, rel=1e-3)
