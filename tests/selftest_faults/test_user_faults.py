"""The same faults in mechanisms, methods and samplers that somebody brings: only ``privdd.api`` is
used to write them.

Each class has one switch. Without a fault the audit is consistent; with one, a test says what is
wrong."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ClassVar

import dp_accounting as dpa
import pytest
import torch
from torch import Tensor

from attacks.types import Surface
from privdd.api import Artifact, Keys, Lattice, Mechanism, Method, Output, Shard
from privdd.auditing.dp_tests.runner import guarantee_findings, guarantee_subject
from privdd.auditing.findings import findings_json
from privdd.auditing.method_contract import contract_findings
from privdd.auditing.pipeline import audit_experiment, train_federation
from privdd.auditing.verdicts import refutes_limit
from privdd.federated.experiment import Experiment
from privdd.privacy.noise import SeededNoise
from privdd.runtime.run_folder import RunFolder
from privdd.selftest_faults.profiles import PROFILES
from tests.auditing.dp_tests.subjects import IdleAttack

Q = 0.25
Z = 3.0
C = 1.0
CLASSES = 10
PUBLIC = 20.0


@dataclass(frozen=True)
class Drawn:
    """Noise with every normal draw changed."""

    inner: Any
    change: Callable[[Tensor], Tensor]

    def normal(self, shape: tuple[int, ...]) -> Tensor:
        return self.change(self.inner.normal(shape))


def clipped(rows: Tensor, norm: float) -> Tensor:
    return rows * (norm / rows.norm(dim=1, keepdim=True).clamp_min(1e-12)).clamp_max(1.0)


@dataclass(frozen=True)
class OwnSum(Mechanism):
    """Clipped rows (n, p), added up, divided by a public constant, and noised on a lattice."""

    fault: str = ""
    sampling_probability: float = Q
    for_queries: ClassVar[bool] = True
    calls: list[int] = field(default_factory=list, compare=False, repr=False)

    @property
    def event(self) -> dpa.DpEvent:
        z = 2 * Z if self.fault == "twice the multiplier stated" else Z
        q = (
            self.sampling_probability / 2
            if self.fault == "half the rate stated"
            else self.sampling_probability
        )
        return (
            dpa.PoissonSampledDpEvent(q, dpa.GaussianDpEvent(z))
            if q < 1
            else dpa.GaussianDpEvent(z)
        )

    def __call__(self, value: Any, noise: Any) -> Output:
        (name, rows), std = next(iter(value.items())), Z * C / PUBLIC
        fault = self.fault
        count = len(rows)
        honest = clipped(rows, C).sum(0)
        total = {
            "nothing clipped": rows.sum(0),
            "the mean clipped": clipped(rows.mean(0, keepdim=True), C)[0] * count
            if count
            else honest,
            "each number clipped": rows.clamp(-C, C).sum(0),
            "clipped by the count": clipped(rows, C * count).sum(0),
            "divided by the count": honest * PUBLIC / max(count, 1),
            "a sensitivity of half": 2 * honest,
        }.get(fault, honest)
        draw = {
            "no noise": lambda d: 0 * d,
            "half the noise": lambda d: d / 2,
            "noise cut to integers": torch.trunc,
            "noise of whole numbers": torch.round,
            "noise only of one sign": torch.abs,
            "one number for all": lambda d: d.flatten()[:1].expand(d.shape) if d.numel() else d,
            "no noise where nobody is": lambda d: d * (count > 0),
        }.get(fault, lambda d: d)
        if fault in ("the same noise each time", "its own public stream"):
            self.calls.append(count)
            again = 0 if fault == "the same noise each time" else len(self.calls)
            noise = SeededNoise(torch.Generator().manual_seed(again % 7))
        source = Drawn(noise, draw)
        unit = {name: total / PUBLIC}
        if fault == "floating-point noise":
            exact = {name: t.float() for name, t in unit.items()}
            noised = {
                name: t + std * source.normal(tuple(t.shape)).float() for name, t in exact.items()
            }
            return Output(noised, self.event, noise_std=std, sensitivity=C / PUBLIC, exact=exact)
        made = Lattice.under(std, 1e3 * C / PUBLIC).released(unit, std, source.normal)
        if fault == "another value shown than noised":
            bare = Lattice.under(std, 1e3 * C / PUBLIC).released(
                {name: rows.sum(0) / PUBLIC}, std, source.normal
            )
            made = {**bare, "exact": made["exact"]}
        why = (
            f"{count} records" if fault == "the count in the row" else "one clipped vector a record"
        )
        return Output(event=self.event, sensitivity=C / PUBLIC, why=why, **made)


RECORD_RULES: dict[
    str, Callable[[Shard, Any], Tensor]
] = {  # no faults: who takes part follows from each record alone
    "even ids in even rounds": lambda shard, ctx: shard.train.ids % 2 == ctx.round % 2,
    "bright ones": lambda shard, ctx: shard.train.x.flatten(1).mean(1) > 0.3,
}


@dataclass(frozen=True)
class OwnMeans(Method):
    """Noised class sums of a public random map of the images, read twice a round, and a noised
    number of records."""

    fault: str = ""
    rounds: int = 2
    uploads: ClassVar = {"prototypes": Surface.PROTOTYPES}
    queries: ClassVar = {"sums": Surface.PROTOTYPES, "count": Surface.PROTOTYPES}
    broadcasts: ClassVar = {"model": Surface.GLOBAL_MODEL}

    def init(self, problem: Any, keys: Keys) -> Any:
        numbers = torch.Size(problem.shape).numel()
        return {"model/w": torch.randn(numbers, 12, generator=keys.torch()) / numbers**0.5}

    def broadcast(self, server: Any) -> Any:
        return {"model": {"w": server["model/w"]}}

    def _rows(self, x: Tensor, w: Tensor) -> Tensor:
        rows = 3 * x.flatten(1) @ w
        if self.fault == "centred" and len(rows):
            rows = rows - rows.mean(0)
        if self.fault == "the largest counts ten times" and len(rows):
            size = rows.norm(dim=1)
            rows = (
                rows
                / size.max().clamp_min(1e-9)
                * (1 + 9 * (size >= size.max())).unsqueeze(1)
                * 0.5
            )
        if self.fault == "the first counts ten times" and len(rows):
            rows = (
                0.1
                * rows
                / rows.norm(dim=1, keepdim=True)
                * torch.tensor([10.0] + [1.0] * (len(rows) - 1)).unsqueeze(1)
            )
        return rows

    def _taken(self, ctx: Any, count: int) -> Tensor:
        taken = ctx.sample("sums", count)
        if self.fault == "everybody taken":
            return torch.ones_like(taken)
        if self.fault == "the first so many taken":
            return torch.arange(count) < int(taken.sum())
        if self.fault == "drawn again while few":
            while int(taken.sum()) < 0.3 * count:
                taken = ctx.sample("sums", count)
        if self.fault == "public coins":
            return torch.rand(count, generator=ctx.public("coins").torch()) < Q
        return taken

    def local(self, broadcast: Any, memory: Any, shard: Shard, ctx: Any) -> Any:
        x = shard.train.x
        y = shard.train.y
        w = broadcast["model"]["w"]
        reads = []
        if self.fault in RECORD_RULES:
            keep = RECORD_RULES[self.fault](shard, ctx)
            x = x[keep]
            y = y[keep]
        for _ in range(2):
            taken = self._taken(ctx, len(x))
            rows = self._rows(x[taken], w)
            own = y[taken]
            wide = {"in two classes": 2}.get(self.fault, 1)
            listed = (
                sorted({*own.tolist()}) if self.fault == "present classes only" else range(CLASSES)
            )
            cells = [
                ctx.mechanism(
                    "sums",
                    {"rows": rows[(own - label) % CLASSES < wide]},
                    partition=f"label:{label}",
                )["rows"]
                for label in listed
            ]
            reads.append(torch.stack(cells) if len(cells) == CLASSES else torch.zeros(CLASSES, 12))
        count = ctx.mechanism("count", {"rows": torch.ones(len(x), 1)})["rows"]
        sums = sum(reads) + 0 * count
        if self.fault == "the count hidden":
            sums = sums + 1e-3 * len(x)
        if self.fault == "the first image hidden":
            sums = sums + 1e-6 * x[0].mean() if len(x) else sums
        kept = {"mean": x.mean(0)} if self.fault == "told in the next round" and len(x) else {}
        if "mean" in memory:
            sums = sums + 1e-3 * memory["mean"].mean()
        sent = {"prototypes": Artifact({"mean": sums}, private=True)}
        return sent, kept

    def aggregate(self, server: Any, inbox: Any, keys: Keys) -> Any:
        return server

    def predict(self, server: Any, memory: Any, x: Tensor) -> Tensor:
        return torch.zeros(len(x), CLASSES)


def brought(mechanism: str = "", method: str = "", *more: str) -> Experiment:
    """A small federation with a method and mechanisms of one's own in place of the shipped ones."""
    made = PROFILES["fedavg_dpsgd"].build_experiment(0, *more)
    mechanisms = {"sums": OwnSum(mechanism), "count": OwnSum(sampling_probability=1.0)}
    return replace(made, plan=replace(made.plan, method=OwnMeans(method), mechanisms=mechanisms))


def audit_of(mechanism: str = "", method: str = "") -> tuple[str, list[str]]:
    """(verdict, notes of the findings that refute) of the whole audit."""
    with TemporaryDirectory() as folder:
        state = audit_experiment(
            brought(mechanism, method), {"idle": IdleAttack()}, RunFolder(Path(folder))
        )
        result = findings_json(state)
    return result["verdict"], [row["note"] for row in result["findings"] if row.get("refutes")]


def is_refuted(mechanism: str = "", method: str = "", *more: str) -> bool:
    """Whether a test refutes: cheap ones first, and none after the first that does, for that
    contradicts the run."""
    with TemporaryDirectory() as folder:
        state = train_federation(
            brought(mechanism, method, *more), {"idle": IdleAttack()}, RunFolder(Path(folder))
        )
        run = state.finished_run
        confidence = state.budget.confidence
        tests = chain(
            guarantee_findings(run, confidence),
            contract_findings(guarantee_subject(run, confidence)),
        )
        return any(refutes_limit(finding, None) for finding in tests)


MECHANISM_FAULTS = [
    "no noise",
    "half the noise",
    "noise cut to integers",
    "noise of whole numbers",
    "noise only of one sign",
    "one number for all",
    "no noise where nobody is",
    "the same noise each time",
    "floating-point noise",
    "nothing clipped",
    "the mean clipped",
    "each number clipped",
    "clipped by the count",
    "divided by the count",
    "a sensitivity of half",
    "twice the multiplier stated",
    "half the rate stated",
    "another value shown than noised",
    "the count in the row",
]
METHOD_FAULTS = [
    "centred",
    "the largest counts ten times",
    "the first counts ten times",
    "everybody taken",
    "the first so many taken",
    "drawn again while few",
    "in two classes",
    "present classes only",
    "the count hidden",
    "the first image hidden",
    "told in the next round",
]


def test_sound_ones_are_consistent() -> None:
    assert audit_of() == ("consistent", [])


@pytest.mark.nightly(cases=["even ids in even rounds"])
@pytest.mark.parametrize("rule", RECORD_RULES)
def test_a_method_may_leave_records_out_by_what_each_is(rule: str) -> None:
    assert audit_of(method=rule) == ("consistent", [])


@pytest.mark.nightly(
    cases=[
        "twice the multiplier stated",
        "half the rate stated",
        "each number clipped",
        "nothing clipped",
        "a sensitivity of half",
        "divided by the count",
        "the mean clipped",
        "clipped by the count",
    ]
)
@pytest.mark.parametrize("fault", MECHANISM_FAULTS)
def test_a_mechanism_with_a_fault_is_a_contradiction(fault: str) -> None:
    assert is_refuted(mechanism=fault)


@pytest.mark.nightly(
    cases=[
        "present classes only",
        "the first so many taken",
        "the first counts ten times",
        "the largest counts ten times",
        "centred",
    ]
)
@pytest.mark.parametrize("fault", METHOD_FAULTS)
def test_a_method_with_a_fault_is_a_contradiction(fault: str) -> None:
    assert is_refuted(method=fault)


@pytest.mark.parametrize(
    ("mechanism", "method"), [("its own public stream", ""), ("", "public coins")]
)
def test_public_streams_are_a_contradiction_where_the_operating_system_is_stated(
    mechanism: str, method: str
) -> None:
    assert is_refuted(mechanism, method, "privacy.noise_source=os")
