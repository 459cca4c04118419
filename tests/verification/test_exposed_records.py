"""The rates of single exposed records, and of records that were made hard to fit, follow from the
stored scores."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from attacks.membership.lira import Lira
from attacks.types import Adversary, Knowledge, Surface, Truth, View, Worlds
from privdd.auditing.attack_tasks import AttackJob, AttackTask, AttackTerms, ErrorBudget
from privdd.auditing.findings import finding_row
from privdd.core.rng import Keys
from privdd.reporting.schema import FindingRow
from privdd.runtime.files import DamagedRun
from privdd.verification.recomputed import check_score_numbers

WORLDS = 40
RECORDS = 100


@pytest.fixture
def record(tmp_path: Path) -> Any:
    """What ``check_score_numbers`` reads of a run folder with one finding of LiRA."""
    draw = torch.Generator().manual_seed(4)
    masks = torch.rand(WORLDS, RECORDS, generator=draw) < 0.5
    signal = torch.randn(WORLDS, RECORDS, generator=draw).double()
    signal[:, :5] += 6 * masks[:, :5]
    worlds = Worlds(
        {"confidence": signal},
        masks,
        torch.zeros(RECORDS),
        torch.arange(RECORDS) % 3,
        kinds={"mislabelled": torch.arange(5)},
    )
    known = Knowledge(
        (1, 1, 1),
        3,
        torch.zeros(1, 1, 1, 1),
        torch.zeros(1, dtype=torch.long),
        settings={"delta": 1e-5},
    )
    view = View(Surface.UPDATE, Adversary.SERVER, (), known, worlds)
    truth = Truth(*[torch.zeros(0, 1, 1, 1), torch.zeros(0, dtype=torch.long)] * 2, torch.zeros(3))
    (done,) = AttackTask(
        (AttackJob(view, truth, "here", "lira", Lira("confidence")),),
        AttackTerms(Keys(3), 1e-5, ErrorBudget(0.05, 1)),
    ).run()
    (tmp_path / "evidence").mkdir()
    save_file(dict(done.evidence_tensors), tmp_path / "evidence" / "lira.safetensors")
    row = FindingRow(
        **finding_row(done.finding.with_measures(note="here", figure="lira.safetensors"), None)
    )
    findings = SimpleNamespace(
        findings=[row],
        run=SimpleNamespace(seed=3),
        utility="some",
        target=None,
        privacy=SimpleNamespace(delta=1e-5, multiplicity=None),
    )
    return SimpleNamespace(path=tmp_path, findings=findings, config={}, ledger={"releases": []})


def test_untouched_rates_agree_and_an_edit_of_any_is_found(record: Any) -> None:
    assert list(check_score_numbers(record)) == []
    row = record.findings.findings[0]
    assert (
        row.by_kind["mislabelled"].tpr > 0.5 > row.by_kind["ordinary"].tpr
        and row.worst_records.records
    )
    for part, name in (
        (row.by_kind["mislabelled"], "tpr"),
        (row.by_kind["ordinary"], "fpr"),
        (row.worst_records.records[0], "hits"),
    ):
        kept = getattr(part, name)
        part.__dict__[name] = kept + 1  # the model itself is frozen
        assert len(list(check_score_numbers(record))) == 1
        part.__dict__[name] = kept
    assert list(check_score_numbers(record)) == []


def test_rates_that_the_scores_do_not_show_are_found(record: Any) -> None:
    path = record.path / "evidence" / "lira.safetensors"
    kept = {name: value for name, value in load_file(path).items() if not name.startswith("kind_")}
    save_file(kept, path)
    (found,) = check_score_numbers(record)
    assert found.key.endswith(".by_kind") and found.found == "nothing"
    # too few replays to choose records in one half and judge them in the other
    few = kept["world"] < 3
    save_file({name: value[few] for name, value in kept.items()}, path)
    assert any(
        one.key.endswith(".worst_records") and one.found == "nothing"
        for one in check_score_numbers(record)
    )


def test_an_emptied_list_of_records_is_a_disagreement(record: Any) -> None:
    record.findings.findings[0].worst_records.records.clear()
    (found,) = check_score_numbers(record)
    assert "worst_records.records" in found.key


def test_places_that_are_no_records_are_damage(record: Any) -> None:
    path = record.path / "evidence" / "lira.safetensors"
    for bad in (torch.tensor([RECORDS]), torch.tensor([-1]), torch.zeros(0, dtype=torch.long)):
        save_file(load_file(path) | {"kind_mislabelled": bad}, path)
        with pytest.raises(DamagedRun, match="kind's places"):
            list(check_score_numbers(record))
