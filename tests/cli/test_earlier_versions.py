"""Run folders of an earlier version open, can be attacked again, and go on where they were stopped.

``old_runs`` was written by commit 36bce66, before classes moved and ``init`` of FedDM and FedRD became ``start``:
``finished`` is an audit of FedDM, ``stopped`` the same one after the first of its two rounds, ``protected`` what a page needs
of an audit of FedDM with noise, ``names.json`` the
fingerprint of every algo at preset=smoke and the classes that its yaml files named. A default that is changed on
purpose makes another run: its fingerprint is then to be taken out there.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hydra.core.global_hydra import GlobalHydra
from hydra.utils import get_object
from omegaconf import OmegaConf

from privdd import report
from privdd.auditing.coverage import UNREAD_REASON
from privdd.cli import main as command
from privdd.cli.build import build_experiment, check_config_types
from privdd.cli.compose import compose_config
from privdd.cli.run import run_audit
from privdd.cli.settings import settings_fingerprint
from privdd.cli.stored_config import load_stored_config
from privdd.federated.settings import AuditSettings
from privdd.reporting.schema import load_findings
from privdd.runtime.renames import TARGET, use_current_names
from privdd.runtime.run_folder import read_tensors

OLD = Path(__file__).parent / "old_runs"
NAMES = json.loads((OLD / "names.json").read_text())
SAME = "nothing to read: no attack of this audit found in it what it reads"
ADDED = {"public", "multiplicity", "reconstruction"}  # parts of findings.json that came later
ASKED = [  # what both folders were asked for
    "algo=feddm", "preset=smoke", "data=digits", "data.limit=150", "data.test_limit=60", "partition=iid",
    "partition.clients=3", "model=mlp", "algo.rounds=2", "algo.ipc=2", "algo.matching.iterations=3", "algo.matching.lr=1.0",
    "algo.matching.batch=16", "algo.server.epochs=3", "audit.records=20", "audit.worlds=4", "audit.victims=1",
    "attack=[lira,loss_threshold,copy_detection,label_counts,feature_inversion]",
]  # fmt: skip


@pytest.fixture
def old(tmp_path: Path) -> Callable[[str], Path]:
    return lambda name: Path(shutil.copytree(OLD / name, tmp_path / name))


@pytest.fixture(scope="module", autouse=True)
def quiet_logging() -> Iterator[None]:
    """Hydra would bind the root logger to this test's captured stderr, and keep it when it is closed."""
    with pytest.MonkeyPatch.context() as patch:
        for module in ("hydra.core.utils", "hydra._internal.hydra"):
            patch.setattr(f"{module}.configure_log", lambda *_, **__: None)
        yield


@pytest.fixture
def audit(monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    """``privdd.audit`` in this process -> exit status."""

    def run(*arguments: str) -> int:
        monkeypatch.setattr(sys, "argv", ["privdd-audit", *arguments])
        GlobalHydra.instance().clear()
        return command.main("audit", run_audit)

    return run


def found(path: Path) -> dict[str, Any]:
    return json.loads((path / "findings.json").read_text())


def files(path: Path) -> dict[str, bytes]:
    return {str(file.relative_to(path)): file.read_bytes() for file in path.rglob("*") if file.is_file()}


@pytest.mark.parametrize("algo", NAMES["fingerprints"])
def test_a_run_of_today_has_the_fingerprint_of_the_same_run_before(algo: str) -> None:
    """Of every algo whose settings are what they were (those of FedFed, FedRD, FedLGD and FedDM in a public map were changed since; of FedDM the
    rate of its images)."""
    before = ["algo.matching.lr=1.0"] if algo == "feddm" else []
    assert settings_fingerprint(compose_config("audit", [f"algo={algo}", "preset=smoke", *before])) == NAMES["fingerprints"][algo]


@pytest.mark.parametrize("name", NAMES["targets"])
def test_every_class_that_a_config_named_is_found(name: str) -> None:
    assert isinstance(get_object(use_current_names({TARGET: name})[TARGET]), type)


def test_a_stored_config_keeps_its_fingerprint_and_has_todays_settings() -> None:
    config = load_stored_config(OLD / "finished")
    assert settings_fingerprint(config) == json.loads((OLD / "finished" / "manifest.json").read_text())["config"]
    today = compose_config("audit", [*ASKED, "name=feddm"])
    assert today.audit.canaries == AuditSettings.canaries  # came later: an old config has its default
    OmegaConf.set_struct(today, False)
    del today.audit.canaries, today.audit.rounds, today.audit.require, today.audit.federation_rounds  # later too: one round, every surface is read
    assert (dict(today.audit.tail), today.audit.worst_pictures) == (vars(AuditSettings.tail), AuditSettings.worst_pictures)
    del today.audit.tail, today.audit.worst_pictures
    del today.audit.transcripts, today.audit.processed_worlds, today.audit.processed_federations  # later too, and of no weight without noised sums
    del today.attack.feature_inversion.report  # an old config has its default
    del today.trust, today.resources, today.data.standardise, today.policy, today.fail_on  # likewise
    today.capture.clients = "all"  # as an old config says
    today.engine.kind, today.engine.workers = "serial", 1  # the default of then
    assert config == today


STORED = {"fedfed": ("loss.rho", 0.1), "fedlgd": ("contrast", 1.0), "fedrd": ("model.norm", "batch")}


@pytest.mark.parametrize("name", STORED)
def test_what_an_earlier_version_stored_of_a_corrected_method_is_built_with_its_own_settings(name: str) -> None:
    key, value = STORED[name]
    config = load_stored_config(OLD / "configs" / name)
    check_config_types(config)
    assert OmegaConf.select(config.algo, key) == value
    made: Any = build_experiment(config).plan.method
    for part in key.split("."):
        made = getattr(made, part)
    assert made == value


def test_the_report_opens(old: Callable[[str], Path]) -> None:
    path = old("finished")
    assert report.main([str(path)]) == 0
    assert "(start=real)" in (path / "report.html").read_text()  # said of runs whose config starts from real records


def test_a_run_from_before_untested_parts_is_shown_under_its_own_rules(
    old: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    path = old("protected")
    assert report.main([str(path)]) == 0
    said = "under the rules of version 0.1.0"
    assert said in " ".join(capsys.readouterr().out.split()) and said in (path / "report.html").read_text()
    assert report.main([str(path), str(old("finished")), "--out", str(path / "both")]) == 0
    assert said in (path / "both" / "comparison.html").read_text()
    assert load_findings(path).verdict == "untested" and "not tested in every part" in (path / "report.html").read_text()
    stored = json.loads((path / "findings.json").read_text())
    (path / "findings.json").write_text(json.dumps({**stored, "schema": 2}))
    assert report.main([str(path)]) == 1  # a file of today has to list what no test looked at
    assert "untested: stored [" in capsys.readouterr().err


def test_it_is_attacked_again_with_the_shadow_models_that_it_kept(
    old: Callable[[str], Path], audit: Callable[..., int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("privdd.federated.trainer.run_round", None)  # a round would fail
    path = old("finished")
    before, kept = found(path), files(path / "worlds")
    assert audit(f"run={path}", "attack=[lira,loss_threshold]") == 0
    shadows = {name: data for name, data in files(path / "worlds").items() if name.endswith(".safetensors")}
    assert shadows == kept and len(kept) == 4
    after = found(path)
    assert {f["attack"] for f in after["findings"]} >= {f["attack"] for f in before["findings"]}  # all of them, of this version
    notes = {f["surface"]: f["note"] for f in after["findings"] if f["attack"] in ("lira", "loss_threshold")}  # the signals that came later are not there, and it says so
    assert "lack joint, joint_embedding, public_logits" in notes["synthetic_images"]
    assert "earlier version" not in notes["labels"] + notes["global_model"]
    aucs = [{(f["surface"], f["attack"]): f["auc"] for f in one["findings"] if "auc" in f} for one in (before, after)]
    assert aucs[1] == pytest.approx({key: aucs[0][key] for key in aucs[1]}, abs=0.01)
    assert aucs[0].keys() - aucs[1].keys() == {("labels", "lira"), ("labels", "loss_threshold")}  # nothing to read
    assert after["utility"] == before["utility"] and after["privacy"].keys() - before["privacy"].keys() == ADDED
    (claim,) = after["privacy"].pop("claims")  # the version before knew of none for this run
    assert claim["epsilon"] == "no number" and before["privacy"].pop("claims") == []
    assert {key: after["privacy"][key] for key in before["privacy"]} == before["privacy"]


def test_only_what_is_asked_for_attacks_it_again_and_the_rest_is_said(
    old: Callable[[str], Path], audit: Callable[..., int]
) -> None:
    """README's own line: a stored run may be attacked by an attack that does not read all of its surfaces."""
    path = old("finished")

    def audited() -> dict[str, bool | str]:
        return {row["surface"]: row["audited"] for row in found(path)["surfaces"]}

    config = OmegaConf.load(path / "config.yaml")
    config.attack = {"lira": config.attack.lira}
    OmegaConf.save(config, path / "config.yaml")
    (path / "findings.json").unlink()
    assert audit(f"run={path}", "attack=[lira]") == 0
    assert audited() == {"global_model": f"not attacked: {UNREAD_REASON}", "synthetic_images": True, "labels": SAME}
    assert audit(f"run={path}", "attack=[copy_detection]", "audit.waive.labels=public") == 0
    assert audited() == {"global_model": f"not attacked: {UNREAD_REASON}", "synthetic_images": True, "labels": "waived: public"}
    assert audit(f"run={path}", "attack=[lira,loss_threshold]") == 0
    assert audited() == {"global_model": True, "synthetic_images": True, "labels": "waived: public"}
    assert load_stored_config(path).audit.waive.global_model is None and load_stored_config(path).audit.waive.labels == "public"


def test_a_new_run_of_which_every_surface_has_to_be_read_is_refused_where_nothing_reads_one(
    tmp_path: Path, audit: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    assert audit(*ASKED[:-1], "attack=[lira]", "audit.require=all", f"hydra.run.dir={tmp_path / 'new'}") == 1
    assert "no attack for global_model" in capsys.readouterr().err


def test_a_stopped_run_goes_on_to_the_result_of_an_undisturbed_one(
    old: Callable[[str], Path], audit: Callable[..., int], tmp_path: Path
) -> None:
    """To the same bits, where this machine computes the first round to the bits that the other one stored."""
    path, whole = old("stopped"), tmp_path / "whole"
    assert audit(f"resume={path}") == 0 and audit(*ASKED, "audit.rounds=1", f"hydra.run.dir={whole}") == 0
    today = load_stored_config(whole)
    assert today.audit.pop("canaries") == AuditSettings.canaries  # came later
    assert today.audit.pop("federation_rounds") == 2  # came later: an old config has all rounds replayed
    assert today.audit.pop("require") == "some"  # came later: an old config has every surface read
    assert today.audit.pop("rounds") == AuditSettings.rounds  # came later: an old config has one round
    assert today.attack.feature_inversion.pop("report") == "knows_map"  # came later: the first that was inverted
    assert dict(today.audit.pop("tail")) == vars(AuditSettings.tail) and today.audit.pop("worst_pictures")  # came later
    del today.audit.transcripts, today.audit.processed_worlds, today.audit.processed_federations  # came later: without noised sums all replays are run
    del today.trust, today.resources, today.data.standardise  # came later
    today.capture.clients = "all"  # as an old config says
    assert load_stored_config(path) == today
    sent = [sorted(p.relative_to(run) for p in (run / "artifacts").rglob("*.safetensors")) for run in (path, whole)]
    assert sent[0] == sent[1] and len(sent[0]) == 6
    first = [files(run / "artifacts" / "round_000") for run in (path, whole)]
    if first[0] == first[1]:
        for part in ("artifacts", "worlds", "ledger.json"):
            ours, theirs = (files(run / part) or (run / part).read_bytes() for run in (path, whole))
            assert ours == theirs, part
    for name in sent[0]:
        ours, theirs = read_tensors(path / name), read_tensors(whole / name)
        assert ours.keys() == theirs.keys()
        for key in ours:
            torch.testing.assert_close(ours[key], theirs[key], rtol=1e-3, atol=1e-3)
