"""Methods of strangers: what check_method and the audit say before training, and what the first
screen says after it."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

import pytest
import torch

from attacks.types import SENT_BY_SERVER, Surface
from privdd.auditing.method_contract import (
    BrokenContract,
    UnmappedUpload,
    check_foreign_uploads,
    check_method,
    unsearched_statistics,
)
from privdd.auditing.upload_schema import UPLOAD_RULES, schema_table, upload_faults
from privdd.cli.compose import compose_config
from privdd.cli.run import run_audit
from privdd.core.rng import Keys
from privdd.core.types import Problem
from privdd.federated.simulation import Plan
from privdd.methods.fedavg import FedAvg
from privdd.models import ModelSpec
from privdd.reporting.decision import decide_surfaces
from privdd.reporting.schema import Findings, load_findings
from privdd.reporting.summary import verdict_headline
from tests.methods.strangers import (
    BareFedCGS,
    MappedFedProto,
    RenamingFedProto,
    StrangersFedCGS,
    StrangersFedDM,
    StrangersFedProto,
)

HERE = Path(__file__).parent
SMALL = (
    "preset=smoke",
    "engine=serial",
    "audit.federations=0",
    "audit.worlds=8",
    "partition.clients=2",
    "audit.records=40",
    "data.limit=500",
    "audit.victims=0",
    "audit.require=some",
)
READERS = (
    "attack=[lira,rmia,base,loss_threshold,fusion,copy_detection,label_counts,feature_inversion]"
)
HOOKS = "classifier and initial_classifier, or classifier and sent_state, or maps"


def first_screen(method: type, folder: Path) -> tuple[Findings, tuple[str, ...]]:
    own = folder / "own" / "algo"
    own.mkdir(parents=True)
    (own / "stranger.yaml").write_text(f"_target_: tests.methods.strangers.{method.__name__}\n")
    typed = ["algo=stranger", READERS, *SMALL]
    run_audit(compose_config("audit", typed, [str(own.parent)]), folder / "run", ["test"])
    findings = load_findings(folder / "run")
    return findings, tuple(
        sentence.replace("\u00a0", " ") for sentence in verdict_headline(findings).sentences
    )


def test_check_method_says_which_hooks_would_let_attacks_read() -> None:
    with pytest.warns(UnmappedUpload, match=f"prototypes: without a map .* define {HOOKS}"):
        check_method(StrangersFedProto())
    with warnings.catch_warnings():
        warnings.simplefilter("error", UnmappedUpload)
        for method in (MappedFedProto(), StrangersFedCGS(), StrangersFedDM()):
            check_method(method)


@pytest.mark.filterwarnings("ignore::privdd.auditing.method_contract.UnmappedUpload")
def test_a_tensor_of_another_name_is_named_before_training() -> None:
    method = StrangersFedProto(second="known")
    says = (
        "upload 'protos' of surface prototypes: holds 'known'; attacks read mean, sum, count, "
        "second alone"
    )
    with pytest.raises(BrokenContract, match=says):
        check_method(method)
    with pytest.raises(BrokenContract, match=says):
        check_foreign_uploads(Plan(Keys(0), Problem((1, 8, 8), 3, 2), method, {}))


def test_statistics_without_a_hook_are_read_by_their_class_counts() -> None:
    """Before training it is said which hook would let attacks read more."""
    check_method(BareFedCGS())
    problem = Problem((1, 8, 8), 3, 2)
    (said,) = check_foreign_uploads(Plan(Keys(0), problem, BareFedCGS(), {}))
    assert "class counts alone" in said and "defines record_loss, or" in said
    assert check_foreign_uploads(Plan(Keys(0), problem, StrangersFedCGS(), {})) == []


@pytest.mark.parametrize(
    ("names", "is_alone"), [(("sum", "second"), True), (("mean", "std"), False)]
)
def test_means_and_deviations_of_classes_are_read_beside_their_counts(
    names: tuple[str, ...], is_alone: bool
) -> None:
    """By the density of the record in its class, for which no hook is needed."""
    value = {name: torch.full((3, 1), 0.5) for name in names} | {"count": torch.tensor([2, 3, 4])}
    said = [*unsearched_statistics(BareFedCGS(), 3, {"stats": value}, {})]
    assert bool(said) == is_alone


class CountingFedAvg(FedAvg):
    """Sends statistics of its classes beside the update, which alone implies a model."""

    uploads: ClassVar[Mapping[str, Surface]] = {**FedAvg.uploads, "stats": Surface.STATISTICS}


def test_a_model_of_another_message_does_not_search_statistics() -> None:
    value = {"sum": torch.full((3, 1), 0.5), "count": torch.tensor([2, 3, 4])}
    settings = {"lr": 0.1, "batch_size": 8, "local_epochs": 1}
    method = CountingFedAvg(model=ModelSpec("mlp", width=8), rounds=1, **settings)
    broadcast = method.broadcast(method.init(PROBLEM, Keys(0)))
    (said,) = unsearched_statistics(method, 3, {"stats": value}, broadcast)
    assert "attacks read its class counts alone" in said


def test_a_broadcast_of_own_names_stays_untested_and_ends_nothing(tmp_path: Path) -> None:
    plan = Plan(Keys(0), Problem((1, 8, 8), 3, 2), RenamingFedProto(), {})
    (said,) = check_foreign_uploads(plan)
    assert said == (
        "broadcast 'protos' of surface prototypes: lacks one of 'mean', 'sum'; no attack reads it"
    )
    findings, _ = first_screen(RenamingFedProto, tmp_path)
    audited = {(row.surface, row.sender): row.audited for row in findings.surfaces}
    assert audited[Surface.PROTOTYPES, "client"] is True
    assert "no attack of this audit read" in str(audited[Surface.PROTOTYPES, "server"])


PROBLEM = Problem((1, 8, 8), 3, 2)
FAULTS = {
    "class sums of another number of classes": (
        Surface.PROTOTYPES,
        {"sum": torch.zeros(4, 5)},
        "'sum' is (4, 5), needed is (C=3, ...)",
    ),
    "no class row": (Surface.PROTOTYPES, {"count": torch.zeros(3)}, "lacks one of 'mean', 'sum'"),
    "flat images": (
        Surface.SYNTHETIC_IMAGES,
        {"x": torch.zeros(6, 64)},
        "needed is (m, c=1, h=8, w=8)",
    ),
    "whole pixels": (
        Surface.SYNTHETIC_IMAGES,
        {"x": torch.zeros(6, 1, 8, 8, dtype=torch.long)},
        "a float type",
    ),
    "no labels beside rows": (
        Surface.FEATURES,
        {"x": torch.zeros(6, 5)},
        "another upload, 'labels', with y (m,)",
    ),
    "soft labels": (Surface.LABELS, {"y": torch.full((6,), 0.3)}, "whole numbers are needed"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_uploads_are_named_shaped_and_typed_as_the_table_says(name: str) -> None:
    surface, value, says = FAULTS[name]

    class Sends(StrangersFedProto):
        uploads = {"protos": surface}

    assert any(says in fault for fault in upload_faults(Sends(), PROBLEM, {"protos": value}))


@pytest.mark.parametrize(
    ("surface", "value", "fits"),
    [
        (Surface.PROTOTYPES, {"mean": torch.zeros(3, 7)}, True),
        (Surface.LOGITS, {"logits": torch.zeros(5, 3)}, True),
        (Surface.SYNTHETIC_IMAGES, {"x": torch.zeros(4, 7)}, True),
        (Surface.SYNTHETIC_IMAGES, {"x": torch.zeros(4, 6)}, False),
        (Surface.SYNTHETIC_IMAGES, {"x": torch.zeros(4, 1, 7, 1)}, False),
    ],
)
def test_records_may_be_rows_of_a_table(
    surface: Surface, value: dict[str, torch.Tensor], fits: bool
) -> None:
    class Sends(StrangersFedProto):
        uploads = {"sent": surface}

    faults = upload_faults(Sends(), Problem((7,), 3, 1), {"sent": value})
    assert fits != any("is (4" in fault for fault in faults)


def test_the_tutorial_prints_the_table() -> None:
    assert schema_table() in (HERE.parents[1] / "docs/tutorials/own-method.md").read_text()
    assert set(Surface) - SENT_BY_SERVER == UPLOAD_RULES.keys()


def test_where_nothing_could_be_read_the_first_screen_says_not_tested(tmp_path: Path) -> None:
    findings, said = first_screen(StrangersFedProto, tmp_path)
    text = " ".join(said)
    assert "membership attacks had nothing to read in the prototypes" in text and HOOKS in text
    assert not any(sentence.startswith("No membership attack was shown") for sentence in said)
    uploaded = next(one for one in decide_surfaces(findings) if one.line.row.sender == "client")
    assert uploaded.title in ("Not tested", "Do not share") and uploaded.tone != "good"


# the first audit of a stranger's method stays
@pytest.mark.nightly
def test_the_same_prototypes_with_a_map_are_tested(tmp_path: Path) -> None:
    _, said = first_screen(MappedFedProto, tmp_path)
    assert "ReadsUploads" not in " ".join(said) and "nothing to read" not in " ".join(said)


def test_sums_that_no_attack_reads_are_named_on_the_first_screen_with_the_hook(
    tmp_path: Path,
) -> None:
    findings, said = first_screen(BareFedCGS, tmp_path)
    (untested,) = (sentence for sentence in said if sentence.startswith("Not tested"))
    assert "membership attacks read the class counts alone" in untested
    assert "define record_loss, or classifier, sent_state and model_state" in untested
    uploaded = next(one for one in decide_surfaces(findings) if one.line.row.sender == "client")
    assert uploaded.title in ("Not tested", "Do not share") and uploaded.tone != "good"


# the first audit of a stranger's method stays
@pytest.mark.nightly
def test_class_statistics_of_a_public_map_identify_members_first(tmp_path: Path) -> None:
    _, said = first_screen(StrangersFedCGS, tmp_path)
    assert said[0].startswith("From the statistics, the server can"), said
    assert not any(sentence.startswith("Not tested") for sentence in said), said


# the first audit of a stranger's method stays
@pytest.mark.nightly
def test_images_that_stayed_records_come_first(tmp_path: Path) -> None:
    _, said = first_screen(StrangersFedDM, tmp_path)
    assert "images" in said[0] and "synthetic images" in said[0], said
