"""Tests of ``privdd.auditing.attack_tasks``."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from attacks.inversion.analytic import AnalyticInversion
from attacks.inversion.gradient import InvertingGradients
from attacks.inversion.gradient_attack import GradientInversion
from attacks.measures import MembershipMeasures, ReconstructionMeasures
from attacks.membership.lira import Lira
from attacks.membership.shadow_classifier import ShadowClassifier
from attacks.membership.threshold import LossThreshold
from attacks.types import (
    Adversary,
    Attack,
    Evidence,
    Family,
    Finding,
    Knowledge,
    Surface,
    Truth,
    View,
    Worlds,
)
from privdd.auditing.attack_tasks import (
    AttackJob,
    AttackTask,
    AttackTerms,
    ErrorBudget,
    error_budget,
)
from privdd.auditing.pipeline import audit_experiment
from privdd.cli.build import build_experiment
from privdd.core.rng import Keys
from privdd.federated.experiment import Experiment
from privdd.runtime.engine import Engine
from privdd.runtime.files import read_json
from privdd.runtime.run_folder import RunFolder
from tests.conftest import SmallAudit
from tests.federations import tiny_config

# Attacks and guarantee tests are tasks: the same bits on every engine and in every order.
#
# One worker: what is tested is that a task takes all that it reads along, and a second worker takes
# seconds to start.


SMALL = [
    "model.width=4",
    "privacy=dpsgd",
    "audit.records=20",
    "audit.worlds=4",
    "audit.federations=0",
    "audit.victims=2",
    "audit.rounds=1",
    "audit.guarantee.runs=20",
    "audit.guarantee.slow_runs=20",
    "audit.guarantee.images=1",
]


@dataclass(frozen=True)
class Backwards(Engine):
    """Runs the last task first."""

    def map(self, fn: Callable[[Any], Any], items: Iterable[Any]) -> Iterator[Any]:
        work = list(items)
        return iter([fn(item) for item in reversed(work)][::-1])


def attacks() -> dict[str, Attack]:
    inversion = GradientInversion(
        InvertingGradients(iterations=3, objective="absolute"), captures=2
    )
    return {
        "lira": Lira(),
        "classifier": ShadowClassifier(),
        "analytic": AnalyticInversion(),
        "inverting": inversion,
    }


def experiment() -> Experiment:
    return build_experiment(tiny_config("fedavg", *SMALL, command="audit"))


def found(
    engine: Engine, folder: Path, attacks: dict[str, Attack]
) -> tuple[list[Any], dict[str, str]]:
    """The findings without their seconds, and a digest of each evidence file."""
    made = audit_experiment(
        replace(experiment(), engine=engine), attacks, RunFolder(folder)
    ).findings
    rows = [
        (
            f.surface,
            f.attack,
            f.adversary,
            replace(f.measures, seconds=None).to_row(),
        )
        for f in made
    ]
    files = {
        p.name: hashlib.sha256(p.read_bytes()).hexdigest()
        for p in sorted((folder / "evidence").iterdir())
    }
    return rows, files


@pytest.fixture(scope="module")
def serial(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Any], dict[str, str]]:
    return found(Engine(), tmp_path_factory.mktemp("serial"), attacks())


@pytest.mark.nightly
@pytest.mark.parametrize(
    "engine", [Engine("processes", workers=1), Backwards()], ids=["processes", "backwards"]
)
def test_same_bits_on_every_engine_and_in_every_order(
    engine: Engine, serial: tuple[list[Any], dict[str, str]], tmp_path: Path
) -> None:
    rows, files = found(engine, tmp_path, attacks())
    assert repr(rows) == repr(serial[0])
    assert files == serial[1] and len(files) >= 6
    assert {"inverting", "t2_whole_run", "t1_sensitivity"} <= {row[1] for row in rows}


def test_findings_stand_in_the_order_of_views_and_attacks(
    audited: Callable[[str], SmallAudit],
) -> None:
    """Not in the order in which they were run, longest first."""
    folder = audited("fedavg_dpsgd").path
    names = [row["attack"] for row in read_json(folder / "findings.json")["findings"]]
    assert names.index("lira") < names.index("gradient_inversion") < names.index("t2_whole_run")
    assert {
        "update.gradient_inversion.safetensors",
        "update.gradient_inversion.2.safetensors",
    } <= {path.name for path in (folder / "evidence").iterdir()}


@dataclass(frozen=True)
class Breaks(Attack):
    name: str = "breaks"
    family: Family = Family.GRADIENT_INVERSION
    surfaces: frozenset[Surface] = frozenset({Surface.UPDATE})
    adversaries: frozenset[Adversary] = frozenset({Adversary.SERVER})

    def run(self, view: View, generator: torch.Generator) -> Evidence:
        raise ZeroDivisionError("nothing to divide by")

    def judge(self, evidence: Evidence, view: View, truth: Truth) -> Finding:
        raise AssertionError("never asked")


class OldMeasures(Breaks):
    def run(self, view: View, generator: torch.Generator) -> Evidence:
        return Evidence()

    def judge(self, evidence: Evidence, view: View, truth: Truth) -> Finding:
        measures = {"psnr": 20.0}
        return Finding(view.surface, self.name, self.family, view.adversary, measures)  # type: ignore[arg-type]


def test_an_attack_with_measures_of_another_kind_ends_alone(tmp_path: Path) -> None:
    rows, _ = found(Engine("serial"), tmp_path, {"mine": OldMeasures()})
    mine = [measures for _, attack, _, measures in rows if attack == "mine"]
    assert mine and all(measures["status"] == "failed" for measures in mine)
    assert all("must be ReconstructionMeasures, not dict" in one["note"] for one in mine)


class Careless(Breaks):
    def run(self, view: View, generator: torch.Generator) -> Evidence:
        return Evidence()


class ReturnsNothing(Careless):
    def judge(self, evidence: Evidence, view: View, truth: Truth) -> Finding:
        return None  # type: ignore[return-value]


class ReturnsNan(Careless):
    def judge(self, evidence: Evidence, view: View, truth: Truth) -> Finding:
        measures = ReconstructionMeasures(psnr=math.nan, n=3)
        return Finding(view.surface, self.name, self.family, view.adversary, measures)


class ReturnsTooMuch(Careless):
    def judge(self, evidence: Evidence, view: View, truth: Truth) -> Finding:
        measures = ReconstructionMeasures(identified=1.5, n=3)
        return Finding(view.surface, self.name, self.family, view.adversary, measures)


class ReturnsAnotherFamily(Careless):
    def judge(self, evidence: Evidence, view: View, truth: Truth) -> Finding:
        measures = MembershipMeasures(auc=0.5)
        return Finding(view.surface, self.name, Family.MEMBERSHIP, view.adversary, measures)


class ReturnsAList(Careless):
    def judge(self, evidence: Evidence, view: View, truth: Truth) -> Finding:
        measures = ReconstructionMeasures(psnr=20.0, n=3)
        figures: Any = {"real": [0.0, 1.0]}
        return Finding(view.surface, self.name, self.family, view.adversary, measures, figures)


class ReturnsOtherScores(Breaks):
    def run(self, view: View, generator: torch.Generator) -> Evidence:
        return Evidence(scores=torch.rand(7))

    def judge(self, evidence: Evidence, view: View, truth: Truth) -> Finding:
        measures = ReconstructionMeasures(psnr=20.0, n=3)
        return Finding(view.surface, self.name, self.family, view.adversary, measures)


@pytest.mark.parametrize(
    ("attack", "error"),
    [
        (ReturnsNothing(), "TypeError: judge must return a Finding, not NoneType"),
        (ReturnsNan(), "ValueError: NaN cannot be written to JSON"),
        (ReturnsTooMuch(), "ValueError: identified: Input should be less than or equal to 1"),
        (ReturnsAnotherFamily(), "ValueError: judge returned a finding of membership, not of"),
        (ReturnsAList(), "TypeError: figure 'real' must be a tensor, not list"),
        (ReturnsOtherScores(), "ValueError: scores"),
    ],
)
def test_an_attack_that_returns_what_no_file_takes_ends_alone(attack: Attack, error: str) -> None:
    view = exposing_view((1, 4, 4))
    truth = Truth(*[torch.zeros(0, 1, 1, 1), torch.zeros(0, dtype=torch.long)] * 2, torch.zeros(2))
    terms = AttackTerms(Keys(0), 1e-5, ErrorBudget(0.05))
    (outcome,) = AttackTask((AttackJob(view, truth, "here", "mine", attack),), terms).run()
    assert outcome.finding.measures.status == "failed" and not outcome.evidence_tensors
    assert (outcome.finding.measures.note or "").startswith(f"failed: {error}")


@pytest.mark.nightly
def test_an_attack_that_fails_in_a_worker_ends_alone(tmp_path: Path) -> None:
    rows, _ = found(Engine("processes", workers=1), tmp_path, {"mine": Breaks(), "lira": Lira()})
    mine = [measures for _, attack, _, measures in rows if attack == "mine"]
    assert mine and all(measures["status"] == "failed" for measures in mine)
    assert all(
        measures["note"].endswith("failed: ZeroDivisionError: nothing to divide by")
        for measures in mine
    )
    assert any("auc" in measures for _, attack, _, measures in rows if attack == "lira")


@dataclass(frozen=True)
class Thirsty(LossThreshold):
    """Draws more than its first seed, as label_only does for its noise."""

    def run(self, view: View, generator: torch.Generator) -> Evidence:
        evidence = super().run(view, generator)
        torch.randn(7, generator=generator)
        return evidence


def test_the_decisive_bound_depends_on_no_other_draw_of_the_attack() -> None:
    """A verifier knows the scores and not what the attack drew; tied scores make the bound depend
    on the seed."""
    draw = torch.Generator().manual_seed(0)
    masks = torch.rand(1, 300, generator=draw) < 0.5
    signal = ((masks.double() + torch.randn(1, 300, generator=draw)) > 0.5).double()
    worlds = Worlds(
        {"confidence": signal}, masks, torch.zeros(300), torch.zeros(300, dtype=torch.long)
    )
    known = Knowledge(
        (1, 1, 1),
        2,
        torch.zeros(1, 1, 1, 1),
        torch.zeros(1, dtype=torch.long),
        settings={"delta": 1e-5},
    )
    view = View(Surface.UPDATE, Adversary.SERVER, (), known, worlds)
    truth = Truth(*[torch.zeros(0, 1, 1, 1), torch.zeros(0, dtype=torch.long)] * 2, torch.zeros(2))

    def bound(attack: Attack, seed: int) -> float:
        task = AttackTask(
            (AttackJob(view, truth, "here", "mine", attack),),
            AttackTerms(Keys(seed), 1e-5, ErrorBudget(0.05)),
        )
        value: float = task.run()[0].finding.diagnostics["epsilon_familywise"]
        return value

    plain = [bound(LossThreshold("confidence"), seed) for seed in range(8)]
    assert len({*plain}) > 3
    assert [bound(Thirsty("confidence"), seed) for seed in range(8)] == plain


def exposing_view(shape: tuple[int, ...]) -> View:
    """64 replays in which the first two of 120 records give themselves away."""
    draw = torch.Generator().manual_seed(2)
    masks = torch.rand(64, 120, generator=draw) < 0.5
    signal = torch.randn(64, 120, generator=draw).double()
    signal[:, :2] += 9 * masks[:, :2]
    records = torch.rand(120, *shape, generator=draw)
    worlds = Worlds(
        {"confidence": signal}, masks, torch.zeros(120), torch.arange(120) % 7, records=records
    )
    known = Knowledge(
        (1, 1, 1),
        7,
        torch.zeros(1, 1, 1, 1),
        torch.zeros(1, dtype=torch.long),
        settings={"delta": 1e-5},
    )
    return View(Surface.UPDATE, Adversary.SERVER, (), known, worlds)


@pytest.mark.parametrize(
    ("shape", "asked", "kept"),
    [
        ((1, 4, 4), True, True),
        ((1, 4, 4), False, False),
        ((5,), True, True),
        ((2, 4, 4), True, False),
    ],
)
def test_the_most_exposed_records_are_kept_only_if_asked_for_and_shown(
    shape: tuple[int, ...], asked: bool, kept: bool
) -> None:
    view = exposing_view(shape)
    truth = Truth(*[torch.zeros(0, 1, 1, 1), torch.zeros(0, dtype=torch.long)] * 2, torch.zeros(2))
    task = AttackTask(
        (AttackJob(view, truth, "here", "mine", Lira("confidence")),),
        AttackTerms(Keys(0), 1e-5, ErrorBudget(0.05), asked),
    )
    (done,) = task.run()
    named = [row["record"] for row in done.finding.measures.worst_records["records"]]
    assert (
        named == [0, 1]
        and ("exposed" in done.evidence_tensors) == kept
        and ("exposed_label" in done.evidence_tensors) == kept
    )
    if kept:
        assert view.worlds is not None and view.worlds.records is not None
        assert torch.equal(
            done.evidence_tensors["exposed"], view.worlds.records[:2]
        ) and done.evidence_tensors["exposed_label"].tolist() == [0, 1]


# How the error of a run is shared by the bounds that can decide its verdict.


def test_the_error_budget_counts_every_bound_and_reaches_each_of_them() -> None:
    """audit.confidence over 12 membership tests and six bounds for each of two mechanisms, and one
    for the whole run."""
    shared = error_budget(0.9, 12, 2)
    assert shared.to_json() == {"alpha": 0.1, "tests": 25}
    assert shared.tests * (1 - shared.confidence) == pytest.approx(0.1)
    assert error_budget(0.95, 0, 0).confidence == pytest.approx(0.95)
    for alpha, tests in ((0.0, 1), (1.0, 1), (0.05, 0)):
        with pytest.raises(ValueError, match="is needed"):
            ErrorBudget(alpha, tests)
