"""T1 as the audit runs it, against queries whose sensitivity has a closed form."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor

from attacks.canaries import Canaries, join_canaries, out_of_distribution_canaries, pattern_canary
from privdd.auditing.dp_tests.sensitivity_test import ExaminedRound, SensitivityTally, measure_sensitivity
from privdd.core.rng import Keys
from privdd.core.types import Artifact, Problem, Records, Shard
from privdd.federated.simulation import Plan, Snapshot
from privdd.privacy.mechanism import Mechanism, Output
from privdd.privacy.mechanisms import ClippedSum
from tests.auditing.dp_tests.subjects import Coupled

BATCH, SYNTHETIC = 256, 10


@dataclass(frozen=True)
class Rows(Coupled):
    """A method that releases one query over ``rows`` of its images (n, p)."""

    rows: Callable[[Tensor], Tensor] = lambda x: x.flatten(1)

    def local(self, broadcast: Any, memory: Any, shard: Shard, ctx: Any) -> Any:
        sent = ctx.mechanism("embedding", {"rows": self.rows(shard.train.x)})
        return {"prototypes": Artifact(sent, private=True)}, {}


@dataclass(frozen=True)
class Aggregate(ClippedSum):
    """The papers' equation as printed: the batch's mean is clipped, and the noise is that of clipped records."""

    def __call__(self, value: Any, noise: Any) -> Output:
        honest = super().__call__(value, noise)
        means = {name: rows.sum(0) / self.normaliser for name, rows in value.items()}
        norm = math.sqrt(sum(float(mean.square().sum()) for mean in means.values()))
        exact = {name: mean * min(1.0, self.clip_norm / max(norm, 1e-30)) for name, mean in means.items()}
        drawn = {name: honest.value[name] - rows for name, rows in (honest.exact or {}).items()}
        return replace(honest, exact=exact, value={name: mean + drawn[name] for name, mean in exact.items()})


def matching_gradient(x: Tensor) -> Tensor:
    """Per-record gradient of ||mean(x) - mean(S)||^2 in S for S = 0 and identity embedding, (n, 10 p)."""
    return (-2 / SYNTHETIC) * x.flatten(1).repeat(1, SYNTHETIC)


def tally(rows: Callable[[Tensor], Tensor], mechanism: Mechanism, x: Tensor, guests: Canaries) -> SensitivityTally:
    """T1 of one release over the records ``x`` of class 0 and over each guest beside them."""
    shape = (x.shape[1], x.shape[2], x.shape[3])
    base = Records(x, torch.zeros(len(x), dtype=torch.long), torch.arange(len(x)))
    shard = Shard(0, base, base.take([0]), base.take([1]), 2)
    plan = Plan(Keys(0), Problem(shape, 2, 1), Rows(rows=rows), {"embedding": mechanism})
    return measure_sensitivity(ExaminedRound(plan, Snapshot(0, {"model": {}}, {}, {}), shard, Keys(1)), base, guests, [0])["embedding"]

ROUNDED = 3e-3  # contributions are rounded towards zero: at most sqrt(3072) steps of 5 * 2**-16 of their norm


def test_clipping_the_aggregate_has_its_closed_form() -> None:
    """Matched synthetic set, black records, one white: kappa = 2 sqrt(3072 / 10) / C = 35.05 at C = 1."""
    black, guests = torch.zeros(20, 3, 32, 32), out_of_distribution_canaries((3, 32, 32), 0, Keys(2).torch())
    printed = tally(matching_gradient, Aggregate(5.0, 1.0, 1.0, BATCH), black, guests)
    assert printed.worst_guest("add_remove") == (pytest.approx(2 * math.sqrt(3072 / 10), rel=1e-4), guests.names.index("white"))
    assert printed.describe_faults() == ""
    sound = tally(matching_gradient, ClippedSum(5.0, 1.0, 1.0, BATCH), black, guests)
    assert sound.worst_guest("add_remove")[0] == pytest.approx(1.0, rel=ROUNDED) and sound.describe_faults() == ""


def test_an_exchange_of_opposite_records_is_two_units() -> None:
    guests = join_canaries(pattern_canary("black", (3, 32, 32), 0), pattern_canary("white", (3, 32, 32), 0))
    seen = tally(lambda x: (x - 0.5).flatten(1), ClippedSum(5.0, 1.0, 1.0, BATCH), torch.ones(20, 3, 32, 32), guests)
    assert seen.worst_guest("add_remove")[0] == pytest.approx(1.0, rel=ROUNDED)
    assert seen.worst_guest("replace")[0] == pytest.approx(2.0, rel=ROUNDED)


def test_a_batch_statistic_is_caught_because_the_others_move() -> None:
    """Though the record's own change is small: the rows of the others are no longer their own."""
    x, white = torch.rand(20, 1, 4, 4, generator=Keys(3).torch()), pattern_canary("white", (1, 4, 4), 0)
    mechanism = ClippedSum(5.0, 100.0, 1.0, 1.0)
    centred = tally(lambda x: (x - x.mean(0)).flatten(1), mechanism, x, white)
    assert centred.changes[0] < 1 and centred.moved > 0.01 and "other records' contributions" in centred.describe_faults()
    assert centred.worst_guest("add_remove")[0] == pytest.approx(centred.changes[0] + centred.moved)
    alone = tally(lambda x: (x - 0.5).flatten(1), mechanism, x, white)
    assert alone.moved == 0 and alone.describe_faults() == ""
