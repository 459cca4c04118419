"""A finding says what its attack was handed beyond the adversary's own position."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from attacks.types import Adversary, Attack, Evidence, Family, Finding, Surface, Truth, View
from privdd.auditing.pipeline import audit_experiment
from privdd.cli.build import build_experiment
from privdd.runtime.run_folder import RunFolder
from tests.federations import tiny_config

OWN = "the adversary is granted the audited client's own"


@dataclass(frozen=True)
class Reader(Attack):
    """Reads everything, finds nothing."""

    family: Family
    name: str = "reader"
    surfaces: frozenset[Surface] = frozenset(Surface)
    adversaries: frozenset[Adversary] = frozenset(Adversary)

    def run(self, view: View, generator: torch.Generator) -> Evidence:
        return Evidence()

    def judge(self, evidence: Evidence, view: View, truth: Truth) -> Finding:
        measures = self.family.measures(note="the attack's own words")
        return Finding(view.surface, self.name, self.family, view.adversary, measures)


def notes(algo: str, folder: Path, *more: str) -> dict[tuple[str, str], str]:
    """(surface, family) -> the note of one reader of each family, in a tiny audit."""
    config = tiny_config(
        algo,
        "audit.records=20",
        "audit.worlds=4",
        "audit.federations=2",
        "audit.victims=0",
        "audit.guarantee.runs=20",
        "audit.guarantee.slow_runs=20",
        "audit.guarantee.images=1",
        *more,
        command="audit",
    )
    readers = {
        family.value: Reader(family) for family in (Family.MEMBERSHIP, Family.MODEL_INVERSION)
    }
    found = audit_experiment(build_experiment(config), readers, RunFolder(folder)).findings
    return {(str(f.surface), str(f.family)): f.measures.note for f in found if f.attack in readers}


@pytest.fixture(scope="module")
def fedrd(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], str]:
    return notes("fedrd", tmp_path_factory.mktemp("fedrd"), "model.width=4")


def test_a_personal_model_is_read_with_the_clients_own_part_and_says_so(
    fedrd: dict[tuple[str, str], str],
) -> None:
    note = fedrd["global_model", "membership"]
    assert note.startswith(f"after the last round; {OWN} part of the model")
    assert note.endswith("predicts nothing; the attack's own words")
    assert f"{OWN} projection" in fedrd["synthetic_representations", "membership"]
    assert f"{OWN} projection" in fedrd["synthetic_representations", "model_inversion"]


def test_nothing_is_claimed_where_nothing_is_granted(
    fedrd: dict[tuple[str, str], str], tmp_path: Path
) -> None:
    assert OWN not in fedrd["labels", "membership"]
    assert (
        OWN not in fedrd["global_model", "model_inversion"]
    )  # it reads the server's tensors alone
    for algo in ("fedproto", "fedavg"):
        others = notes(algo, tmp_path / algo)
        assert others and not any(OWN in note for note in others.values())
