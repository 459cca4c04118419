"""Small runs to test guarantees on: one client, one round, no training."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from attacks.measures import ReconstructionMeasures
from attacks.types import Adversary, Attack, Evidence, Family, Finding, Surface, Truth, View
from privdd.auditing.dp_tests.runner import mechanism_tests
from privdd.auditing.dp_tests.statement import GuaranteeSubject
from privdd.core.rng import Keys
from privdd.core.types import Artifact, Problem, Records, Shard
from privdd.distillation.distribution_matching import MatchingSettings
from privdd.federated.method import Method
from privdd.federated.settings import GuaranteeBudget
from privdd.federated.simulation import ClientTask, Plan, Snapshot, client_step
from privdd.methods.fedavg import FedAvg
from privdd.methods.feddm import FedDM
from privdd.models import ModelSpec
from privdd.privacy.ledger import Ledger
from privdd.privacy.mechanism import Output
from privdd.privacy.mechanisms import ClippedSum
from privdd.training.server import ServerTraining

SHAPE = (1, 8, 8)
CLASSES = 3
DELTA = 1e-5


def feddm(iterations: int = 6, batch: int = 16) -> FedDM:
    return FedDM(
        model=ModelSpec(name="convnet", width=8),
        rounds=1,
        matching=MatchingSettings(iterations, batch=batch),
        server=ServerTraining(1),
        ipc=2,
        start="noise",
        rho=1.0,
        reads=3,
    )


def fedavg() -> FedAvg:
    return FedAvg(
        model=ModelSpec(name="convnet", width=4), rounds=1, local_epochs=0.6, weighting="uniform"
    )


def client(seed: int, count: int = 30) -> Shard:
    g = Keys(seed).fold("data").torch()
    x = torch.rand(count, *SHAPE, generator=g)
    y = torch.arange(count) % (CLASSES - 1)
    data = Records(x, y, torch.arange(count))
    return Shard(0, data, data.take([0]), data.take([1]), CLASSES)


def subject(
    method: Any,
    mechanisms: dict[str, Any],
    seed: int = 0,
    *,
    relation: str = "add_remove",
    runs: int = 60,
    scale: float = 1.0,
    slow_runs: int = 40,
) -> GuaranteeSubject:
    """A run of one client, whose server stays as it is; ``scale`` stretches the head as training
    would."""
    keys = Keys(seed)
    problem = Problem(SHAPE, CLASSES, 1)
    plan = Plan(keys, problem, method, mechanisms, relation=relation)
    shard = client(seed)
    server = method.init(problem, keys.fold("init"))
    server = {n: t * scale if "head" in n or "weight" in n else t for n, t in server.items()}
    broadcast = method.broadcast(server)
    # type: ignore[arg-type]
    ledger = Ledger(relation, "record", DELTA)
    memory = {}
    snapshots = {}
    for t in range(method.rounds):
        received, rows, kept = client_step(ClientTask(plan, t, 0, broadcast, memory, shard))
        ledger.append(rows)
        snapshots[t], memory = (
            Snapshot(t, broadcast, memory, received.values, method.audit_hooks.phase(t)),
            kept,
        )
    return GuaranteeSubject(
        plan,
        shard,
        snapshots,
        ledger,
        DELTA,
        0.95,
        GuaranteeBudget(runs, slow_runs, 2),
        keys.fold("audit"),
    )


@dataclass(frozen=True)
class Quiet(ClippedSum):
    """A mutant: a third of the noise that it states."""

    def __call__(self, value: Any, noise: Any) -> Output:
        honest = super().__call__(value, noise)
        exact = honest.exact or {}
        return replace(
            honest, value={n: exact[n] + (t - exact[n]) / 3 for n, t in honest.value.items()}
        )


@dataclass(frozen=True)
class Loose(ClippedSum):
    """A mutant: it clips at three times the norm that its noise is meant for."""

    def __call__(self, value: Any, noise: Any) -> Output:
        honest = super().__call__(value, noise)
        wide = ClippedSum(self.noise_multiplier, 3 * self.clip_norm, 1.0, self.normaliser)(
            value, noise
        )
        drawn = {n: honest.value[n] - t for n, t in (honest.exact or {}).items()}
        return replace(
            honest, exact=wide.exact, value={n: t + drawn[n] for n, t in (wide.exact or {}).items()}
        )


@dataclass(frozen=True)
class Averaging(ClippedSum):
    """A mutant: it divides by the number of records that took part, and states the constant."""

    def __call__(self, value: Any, noise: Any) -> Output:
        honest = super().__call__(value, noise)
        scale = self.normaliser / max(len(next(iter(value.values()))), 1)
        drawn = {n: honest.value[n] - t for n, t in (honest.exact or {}).items()}
        exact = {n: t * scale for n, t in (honest.exact or {}).items()}
        return replace(honest, exact=exact, value={n: t + drawn[n] for n, t in exact.items()})


@dataclass(frozen=True)
class Coupled(Method):
    """A method whose map standardises the batch, as a batch norm in training mode does."""

    coupled: bool = True
    rounds: int = 1
    uploads = {"prototypes": Surface.PROTOTYPES}
    queries = {"embedding": Surface.PROTOTYPES}
    broadcasts = {"model": Surface.GLOBAL_MODEL}

    def init(self, problem: Problem, keys: Keys) -> dict[str, Tensor]:
        return {"model/w": torch.randn(SHAPE[1] * SHAPE[2], 5, generator=keys.torch())}

    def broadcast(self, server: dict[str, Tensor]) -> dict[str, Any]:
        return {"model": {"w": server["model/w"]}}

    def local(self, broadcast: Any, memory: Any, shard: Shard, ctx: Any) -> Any:
        rows = (shard.train.x - 0.5).flatten(1) @ broadcast["model"]["w"]
        if self.coupled:
            rows = (rows - rows.mean(0)) / rows.std(0)
        return {
            "prototypes": Artifact(ctx.mechanism("embedding", {"rows": rows}), private=True)
        }, {}

    def aggregate(self, server: Any, inbox: Any, keys: Keys) -> Any:
        return server

    def predict(self, server: Any, memory: Any, x: Tensor) -> Tensor:
        return torch.zeros(len(x), 2)


def mechanism_findings(of: GuaranteeSubject) -> Iterator[Finding]:
    """Findings for every mechanism of the plan, one after the other."""
    for test in mechanism_tests(of):
        yield from test.findings(of, *test.names)


@dataclass(frozen=True)
class IdleAttack(Attack):
    """Reads every surface and finds nothing, at no cost: what is tested here are guarantees."""

    family: Family = Family.RECONSTRUCTION
    surfaces: frozenset[Surface] = frozenset(Surface)
    adversaries: frozenset[Adversary] = frozenset(Adversary)

    def run(self, view: View, generator: torch.Generator) -> Evidence:
        return Evidence()

    def judge(self, evidence: Evidence, view: View, truth: Truth) -> Finding:
        measures = ReconstructionMeasures(identified=0.0)
        return Finding(view.surface, "idle", self.family, view.adversary, measures)
