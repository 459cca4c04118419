"""Tests of ``privdd.auditing.dp_tests.instrumentation``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import dp_accounting as dpa
import pytest
import torch

from privdd.auditing.dp_tests.contributions import (
    EnoughReleases,
    SeenContributions,
    contribution_norms,
    single_contributions,
)
from privdd.auditing.dp_tests.crafted_records import zero_out_others
from privdd.auditing.dp_tests.instrumentation import RecordedRelease
from privdd.auditing.dp_tests.round_traces import compare_traces, trace_round
from privdd.auditing.method_contract import BrokenContract, check_method
from privdd.federated.simulation import Plan, start_training
from privdd.methods.fedavg import FedAvg
from privdd.models import ModelSpec
from privdd.privacy.mechanism import Mechanism, Output
from privdd.privacy.mechanisms import ClientLevel, ClippedSum
from privdd.privacy.noise import ZERO_NOISE
from tests.federations import tiny

# What one run of a round contributes: sums, single records, and which of them is the largest.


MECHANISM = ClippedSum(1.0, 1.0)


def heeded(rows: torch.Tensor, cell: str | None = None) -> RecordedRelease:
    return RecordedRelease("sums", cell, {"rows": rows}, 0, MECHANISM({"rows": rows}, ZERO_NOISE))


def test_single_contributions_are_clipped_and_their_sizes_are_not() -> None:
    rows = torch.tensor([[3.0, 4.0], [0.0, 0.5]])
    torch.testing.assert_close(
        single_contributions(MECHANISM, {"rows": rows}).float(),
        torch.tensor([[0.6, 0.8], [0.0, 0.5]]),
        atol=1e-4,
        rtol=0,
    )
    assert contribution_norms(
        {"rows": rows, "one": torch.tensor([0.0, 1.2])}
    ).tolist() == pytest.approx([5.0, 1.3])


def test_the_largest_row_of_all_cells_is_remembered_by_its_place() -> None:
    seen = SeenContributions({})
    seen(MECHANISM, heeded(torch.tensor([[1.0, 0.0], [0.0, 3.0]]), "label:0"))
    seen(MECHANISM, heeded(torch.tensor([[2.0, 0.0]]), "label:1"))
    assert seen.largest["sums"] == (3.0, (0, "label:0", 1)) and seen.cells["sums"] == [
        "label:0",
        "label:1",
    ]
    torch.testing.assert_close(
        seen.totals["sums"][0].float(), torch.tensor([1.0, 1.0]), atol=1e-4, rtol=0
    )


def test_a_round_ends_once_every_query_was_seen_often_enough() -> None:
    with pytest.raises(EnoughReleases):
        SeenContributions({"sums": 1})(MECHANISM, heeded(torch.ones(1, 2)))


# A mechanism that writes about the records into its ledger row is named; the shipped ones are not.


METHOD = FedAvg(model=ModelSpec("mlp", width=8), rounds=2, lr=0.05, batch_size=8, local_epochs=1)
CLIENT = METHOD.client_private()
TELLING: dict[str, Callable[[Output, int], Output]] = {
    "why": lambda output, n: replace(output, why=f"the mean of {n} records"),
    "clip_norm": lambda output, n: replace(output, clip_norm=float(n + 1)),
    "noise_std": lambda output, n: replace(output, noise_std=output.noise_std * (n + 1)),
    "sensitivity": lambda output, n: replace(output, sensitivity=1 / (n + 1)),
    "flags": lambda output, n: replace(output, flags={f"records {n}": True}),
    "event": lambda output, n: replace(output, event=dpa.GaussianDpEvent(5.0 + n)),
}


@dataclass(frozen=True)
class Tells(ClippedSum):
    place: str = ""

    def __call__(self, value: Any, noise: Any) -> Output:
        return TELLING[self.place](super().__call__(value, noise), len(next(iter(value.values()))))


@dataclass(frozen=True)
class FlagsSmall(ClientLevel):
    """Says that its side conditions fail for some values of what it hides."""

    def __call__(self, value: Any, noise: Any) -> Output:
        output = super().__call__(value, noise)
        return replace(
            output,
            flags={"small": float(sum(t.abs().sum() for t in value.values())) < self.clip_norm},
        )


@pytest.mark.parametrize("place", TELLING)
def test_what_a_row_tells_is_named(place: str) -> None:
    with pytest.raises(
        BrokenContract, match=f"row of 'dpsgd' depends on the records, in .*{place}|applied"
    ):
        check_method(
            METHOD, mechanisms={"dpsgd": Tells(1.0, 1.0, sampling_probability=0.5, place=place)}
        )


class Counts(FedAvg):
    """Applies its mechanism once for each record."""

    def local(self, broadcast: Any, memory: Any, shard: Any, ctx: Any) -> Any:
        upload, memory = super().local(broadcast, memory, shard, ctx)
        for _ in range(len(shard.train) - 1):
            ctx.sample("dpsgd", 1)
            ctx.mechanism("dpsgd", {"x": shard.train.x[:1]})
        return upload, memory


def test_the_second_run_has_the_first_ones_outputs() -> None:
    """Values that were computed from noised ones, and so differ with the noise alone, are no
    fault."""
    plan = tiny("feddm_dp").plan
    shard = tiny("feddm_dp").shards[0]
    server = start_training(plan, tiny("feddm_dp").new_ledger()).server
    few = zero_out_others(shard, shard.train.take(range(5)))

    def told(plan: Plan) -> set[str]:
        own = trace_round(plan, 0, plan.method.broadcast(server), {}, shard)
        return set(
            compare_traces(
                own, trace_round(plan, 0, plan.method.broadcast(server), {}, few, own.outputs)
            )
        )

    assert told(plan) == set()
    (said,) = told(
        replace(plan, mechanisms={**plan.mechanisms, "embedding": Tells(5.0, 1.0, place="why")})
    )
    assert said.message == "embedding"
    assert said.says == "the ledger row of 'embedding' depends on the records, in why"


def test_how_often_a_mechanism_is_applied_is_looked_at() -> None:
    method = Counts(
        **{
            name: getattr(METHOD, name)
            for name in ("model", "rounds", "lr", "batch_size", "local_epochs")
        }
    )
    with pytest.raises(BrokenContract, match="depends on the records"):
        check_method(method, mechanisms={"dpsgd": ClippedSum(1.0, 1.0, sampling_probability=0.5)})


@pytest.mark.parametrize("mechanism", [ClientLevel(1.0, 1.0), ClientLevel(1.0, 1e-3)])
def test_a_healthy_client_level_mechanism_passes(mechanism: Mechanism) -> None:
    check_method(CLIENT, mechanisms={"update": mechanism})


def test_a_flag_that_depends_on_the_value_is_caught() -> None:
    """Whether the proof's conditions hold must not depend on the records."""
    found = []
    for norm in (0.3, 0.6, 1.2, 2.4, 4.8, 9.6):
        try:
            check_method(CLIENT, mechanisms={"update": FlagsSmall(1.0, norm)})
        except BrokenContract as error:
            found.append(str(error))
    assert any("depends on the records" in text for text in found)


@pytest.mark.nightly(cases=["algo0", "algo2", "algo3"])
@pytest.mark.parametrize(
    "algo",
    [("fedavg", "privacy=dpsgd"), ("fedavg", "privacy=client"), ("feddm_dp",), ("fedfed_dp",)],
)
def test_shipped_mechanisms_pass(algo: tuple[str, ...]) -> None:
    plan = tiny(*algo).plan
    check_method(plan.method, mechanisms=plan.mechanisms)
