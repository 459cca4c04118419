"""A run that is attacked again: nothing that was found before is lost, and all bounds share one
error."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from omegaconf import OmegaConf

from attacks.measures import GuaranteeMeasures
from attacks.types import Adversary, Family, Finding, Surface
from privdd import verify
from privdd.api import audit as audit_by_api
from privdd.auditing.attack_tasks import EarlierFindings
from privdd.cli.compose import expand_arguments
from privdd.cli.run import attacked_again, check_not_overtaken, prepare_run_folder, run_audit
from privdd.cli.stored_config import config_of_stored_run, load_stored_config
from privdd.core.validation import BadConfig
from privdd.reporting.page import write_report
from privdd.reporting.run_record import attack_commands, read_run_record
from privdd.runtime.files import HALF_WRITTEN_PREFIX, read_json
from privdd.runtime.run_folder import RunFolder, write_tensors
from privdd.runtime.seal import seal_folder
from privdd.verification.run_folder import verify_run as check
from tests.auditing.test_findings import timeless
from tests.conftest import SmallAudit


@pytest.fixture
def copied(
    audited: Callable[[str], SmallAudit], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[str], Path]:
    # drawn elsewhere
    monkeypatch.setattr("privdd.reporting.page.write_report", lambda path: path / "report.html")
    return lambda name: Path(shutil.copytree(audited(name).path, tmp_path / "run"))


@pytest.fixture
def run(copied: Callable[[str], Path]) -> Path:
    return copied("fedavg")


def attack(path: Path, *typed: str) -> int:
    """``python -m privdd.audit run=PATH TYPED``."""
    config = config_of_stored_run(
        load_stored_config(path), "audit", expand_arguments(typed, "audit"), typed, "run"
    )
    return run_audit(config, path, ["python", "-m", "privdd.audit", f"run={path}", *typed])


def rows(path: Path) -> dict[tuple[str, ...], Any]:
    """Findings without what depends on how many bounds share the error."""
    found = timeless(read_json(path / "findings.json"))["findings"]
    for row in found:
        for name in ("epsilon_familywise", "tests"):
            row.get("diagnostics", {}).pop(name, None)
    return {(r["surface"], r["attack"], r.get("figure", ""), r.get("signal", "")): r for r in found}


def attacks_of(path: Path) -> set[str]:
    return {key[1] for key in rows(path) if key[2]}


@pytest.mark.nightly
def test_a_narrower_question_takes_nothing_away(
    copied: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = copied("fedfed_dp")  # with noise, so with bounds and guarantee tests
    before = rows(run)
    kept = {p.name: p.read_bytes() for p in (run / "evidence").iterdir()}
    tests = read_json(run / "findings.json")["privacy"]["multiplicity"]["tests"]
    made: list[str] = []
    monkeypatch.setattr(
        "privdd.auditing.attack_tasks.write_tensors",
        lambda path, kept: (made.append(path.name), write_tensors(path, kept)),
    )
    assert attack(run, "attack=[rmia]") in (0, 2)
    after = rows(run)
    of_attacks = {key: row for key, row in before.items() if key[2]}
    assert {key: after[key] for key in of_attacks} == of_attacks and before.keys() <= after.keys()
    assert attacks_of(run) == {key[1] for key in of_attacks} | {"rmia"}
    assert made and all(".rmia." in name for name in made)  # nothing else ran again
    assert {name: (run / "evidence" / name).read_bytes() for name in kept} == kept
    shared = read_json(run / "findings.json")["privacy"]["multiplicity"]
    added = sum(key[1] == "rmia" for key in after)
    assert shared == {"alpha": 0.05, "tests": tests + added}
    told = [
        r["diagnostics"]["tests"]
        for r in read_json(run / "findings.json")["findings"]
        if "tests" in r.get("diagnostics", {})
    ]
    assert {*told} == {tests + added}
    assert check(run).disagreements == ()
    assert [one.attacks for one in attack_commands(read_run_record(run))][1:] == [("rmia",)]


def test_the_same_attack_again_finds_the_same_and_other_settings_stand_beside_it(run: Path) -> None:
    before = read_json(run / "findings.json")
    assert attack(run, "attack=[lira]") in (0, 2)
    assert timeless(read_json(run / "findings.json")) == timeless(before)
    assert [one.attacks for one in attack_commands(read_run_record(run))][1:] == [("lira",)]
    assert attack(run, "attack=[lira]", "attack.lira.confidence=0.9") in (0, 2)
    assert attacks_of(run) >= {"lira", "lira_2"} and check(run).disagreements == ()
    stored = OmegaConf.load(run / "config.yaml").attack
    assert stored.lira_2.confidence == 0.9 and stored.lira.confidence != 0.9
    shared = [
        read_json(run / "findings.json")["privacy"]["multiplicity"]["tests"],
        before["privacy"]["multiplicity"]["tests"],
    ]
    assert shared[0] > shared[1]


def test_less_is_refused_and_more_counts_what_it_replaces(run: Path) -> None:
    before = read_json(run / "findings.json")
    stored = load_stored_config(run)
    for typed in (
        f"audit.worlds={stored.audit.worlds - 1}",
        "audit.confidence=0.5",
        "audit.transcripts=3",
    ):
        with pytest.raises(BadConfig, match="less cannot take the place of more"):
            attack(run, "attack=[lira]", typed)
    assert read_json(run / "findings.json") == before
    assert attack(run, "attack=[lira]", f"audit.worlds={stored.audit.worlds + 1}") in (0, 2)
    after = read_json(run / "findings.json")["privacy"]["multiplicity"]
    lira = sum(row["attack"] == "lira" for row in before["findings"])
    membership = sum(row["family"] == "membership" for row in before["findings"])
    guarantee = before["privacy"]["multiplicity"]["tests"] - membership
    assert (
        after["replaced"] == lira + guarantee
        and after["tests"] == before["privacy"]["multiplicity"]["tests"] + after["replaced"]
    )
    assert check(run).disagreements == ()


def test_edited_evidence_is_not_kept_but_made_again(run: Path) -> None:
    before = rows(run)
    file = run / "evidence" / "update.lira.safetensors"
    whole = file.read_bytes()
    file.write_bytes(whole[:-8] + bytes(8))
    assert attack(run, "attack=[rmia]") in (0, 2)
    assert file.read_bytes() == whole
    after = rows(run)
    assert {key: after[key] for key in before if key[2]} == {
        key: row for key, row in before.items() if key[2]
    }


def test_the_other_ways_into_the_same_folder(
    run: Path, audited: Callable[[str], SmallAudit], tmp_path: Path
) -> None:
    """The function of the API, and scores that someone brings."""
    before = attacks_of(run)
    overrides = [one for one in audited("fedavg").overrides if not one.startswith("attack")]
    audit_by_api(*overrides, "name=fedavg", "attack=[rmia]", out=run)
    assert attacks_of(run) == before | {"rmia"} and check(run).disagreements == ()
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "s.npz", scores=rng.normal(size=50), member=rng.random(50) < 0.5)
    kept = (run / "findings.json").read_bytes()
    with pytest.raises(BadConfig, match=r"holds a run already"):
        audit_by_api(f"scores={tmp_path / 's.npz'}", out=run)
    assert (run / "findings.json").read_bytes() == kept


def test_an_attack_that_is_gone_is_named(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = read_json(run / "findings.json")
    found["findings"] = [row for row in found["findings"] if row["attack"] != "lira"]
    (run / "findings.json").write_text(json.dumps(found))
    seal_folder(run)
    assert any(
        line.startswith("findings.json: findings: stored none of lira, found it was run on 20")
        for line in map(str, check(run).disagreements)
    )
    assert verify.main([str(run)]) == 2 and "none of lira" in capsys.readouterr().out


def guarantee(signal: str, *untested: str, attack: str = "t0_noise") -> Finding:
    diagnostics = (
        {"untested": dict.fromkeys(untested, "os noise")} if untested else {"p_value": 0.3}
    )
    return Finding(
        Surface.UPDATE,
        attack,
        Family.GUARANTEE,
        Adversary.SERVER,
        GuaranteeMeasures(signal=signal, diagnostics=diagnostics),
    )


def test_a_test_that_cannot_be_made_again_does_not_take_the_place_of_one_that_was() -> None:
    made = guarantee("a")
    other = guarantee("b", "noise")
    earlier = EarlierFindings(rest=(made, other, guarantee("a", attack="one_run_canaries")))
    now = [guarantee("a", "noise"), guarantee("b"), guarantee("c", "noise")]
    assert earlier.not_lost(now) == (made, now[1], now[2])
    assert [one.attack for one in earlier.of_canaries()] == ["one_run_canaries"]


def test_a_command_that_was_overtaken_is_refused(run: Path) -> None:
    mine = config_of_stored_run(
        load_stored_config(run), "audit", ["attack=[rmia]"], ["attack=[rmia]"], "run"
    )
    attacked_again(mine, RunFolder(run))
    check_not_overtaken(RunFolder(run), mine)
    config = OmegaConf.load(run / "config.yaml")
    config.attack.other = config.attack.lira
    OmegaConf.save(config, run / "config.yaml")
    with pytest.raises(BadConfig, match="was attacked meanwhile"):
        check_not_overtaken(RunFolder(run), mine)


@pytest.mark.nightly
def test_the_page_says_which_command_ran_which_attack(run: Path) -> None:
    manifest = read_json(run / "manifest.json")
    first = manifest["attacked"][0]
    manifest["attacked"].append(
        {
            **first,
            "date": "2031-02-03T04:05:06+00:00",
            "command": "do --it=<again>",
            "attacks": ["rmia"],
        }
    )
    (run / "manifest.json").write_text(json.dumps(manifest))
    text = write_report(run).read_text()
    assert (
        "2031-02-03 04:05:06 UTC" in text
        and "do --it=&lt;again&gt;" in text
        and "by 2 commands" in text
    )


def test_what_a_killed_run_left_half_written_is_removed_and_in_no_seal(run: Path) -> None:
    name = f"{HALF_WRITTEN_PREFIX}1234.{'0a1b2c3d' * 2}"
    left = [run / "evidence" / name, run / name]
    for file in left:
        file.write_bytes(b"half")
    seal_folder(run)
    assert not any(
        file.name in name for file in left for name in read_json(run / "manifest.json")["files"]
    )
    prepare_run_folder(run, load_stored_config(run))
    assert (
        not any(file.exists() for file in left)
        and (run / "evidence" / "update.lira.safetensors").exists()
    )
