"""privdd.verify: honest runs agree; every single edit is found, and numbers also after the folder
was sealed again."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from privdd import report, verify
from privdd.api import audit, train
from privdd.api import compare as compare_verified
from privdd.reporting.run_record import RunRecord, read_run_record
from privdd.runtime.files import DamagedRun, read_json
from privdd.runtime.run_folder import read_tensors, write_tensors
from privdd.runtime.seal import SEAL_KEY, seal_folder
from privdd.verification.file_checks import check_sent_values, find_disagreements, is_same_value
from privdd.verification.recomputed import (
    check_ledger_numbers,
    check_score_numbers,
    check_verdicts,
    load_verified_training,
    run_ledger,
)
from privdd.verification.run_folder import check_page, load_run
from privdd.verification.run_folder import verify_run as check
from tests.conftest import SmallAudit
from tests.reporting.test_decision import NOTHING
from tests.reporting.test_decision import row as finding_row
from tests.reporting.test_decision import run as findings_of

Audited = Callable[[str], SmallAudit]
EVIDENCE = "evidence/update.lira.safetensors"


@pytest.fixture
def run(audited: Audited, tmp_path: Path) -> Path:
    return Path(shutil.copytree(audited("fedfed_dp").path, tmp_path / "run"))


def lines(folder: Path) -> list[str]:
    return [str(one) for one in check(folder).disagreements]


@pytest.mark.nightly(cases=["fedavg", "fedfed_dp", "fedfed"])
@pytest.mark.parametrize("name", ["fedavg", "fedavg_dpsgd", "fedfed", "fedfed_dp"])
def test_honest_runs_agree(name: str, audited: Audited) -> None:
    folder = audited(name).path
    found = check(folder)
    assert found.disagreements == () and found.unlisted == () and found.signer == ""
    assert any("needs the data and the model" in line for line in found.not_recomputable)
    assert load_run(folder).findings.run.algo == name


@pytest.mark.nightly
def test_the_page_is_drawn_again_to_the_same_bytes(audited: Audited, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(audited("fedfed").path, tmp_path / "run"))
    page = folder / "report.html"
    assert page.is_file() and lines(folder) == []
    page.write_bytes(page.read_bytes().replace(b"<title>", b"<title>Not ", 1))
    seal_folder(folder)
    assert [line.startswith("report.html: line ") for line in lines(folder)] == [True]
    assert report.main([str(folder)]) == 0  # drawn anew, and its digest with it
    assert lines(folder) == []


def test_a_chosen_model_attacks_another_run_than_this_one(run: Path) -> None:
    """What a malicious server read, and nobody else, was not attacked here."""
    found = read_json(run / "findings.json")
    (row,) = (row for row in found["surfaces"] if row["surface"] == "update")
    assert row["audited"] is True
    row["audited"] = "waived: beside the point"
    assert any("surfaces.update.audited" in line for line in verdicts_with(run, found))
    for one in found["findings"]:
        if one["surface"] == "update":
            one["adversary"] = "malicious_server"
    assert not any("surfaces.update.audited" in line for line in verdicts_with(run, found))


def verdicts_with(run: Path, findings: Any) -> list[str]:
    (run / "findings.json").write_text(json.dumps(findings))
    record = read_run_record(run)
    return [str(one) for one in check_verdicts(record, run_ledger(record))]


def test_a_measure_that_its_family_lacks_is_a_disagreement() -> None:
    """In a membership row: kappa, which only a test of a guarantee measures."""
    honest = findings_of([finding_row(NOTHING)], "unprotected", "inf")
    assert list(check_verdicts(RunRecord(Path("run"), honest), None)) == []
    edited_rows = findings_of([finding_row(NOTHING, kappa=1.5)], "unprotected", "inf")
    (line,) = check_verdicts(RunRecord(Path("run"), edited_rows), None)
    assert str(line) == "findings.json: findings.0.kappa: stored 1.5, found nothing"


@pytest.mark.nightly
def test_brought_scores_and_a_training_agree(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    member = rng.random(200) < 0.5
    # with ties
    np.savez(tmp_path / "s.npz", scores=np.round(rng.normal(size=200) + member, 1), member=member)
    masks = rng.random((6, 40)) < 0.5
    np.savez(tmp_path / "w.npz", signals=np.round(rng.normal(size=(6, 40)) + masks, 1), masks=masks)
    for name in ("s", "w"):
        audit(f"scores={tmp_path / name}.npz", "seed=3", out=tmp_path / name)
        assert lines(tmp_path / name) == []
        change(tmp_path / name, "findings.json", "findings", 0, "epsilon_shown", 9.0)
        seal_folder(tmp_path / name)
        assert any("epsilon_shown" in line for line in lines(tmp_path / name))
    tiny = [
        "preset=smoke",
        "algo=fedavg",
        "model=mlp",
        "data.limit=100",
        "data.test_limit=40",
        "algo.rounds=2",
        "partition.clients=2",
        "privacy=dpsgd",
    ]
    train(*tiny, out=tmp_path / "trained")
    assert lines(tmp_path / "trained") == [] and verify.main([str(tmp_path / "trained")]) == 0
    assert load_verified_training(tmp_path / "trained").findings.utility is not None
    change(tmp_path / "trained", "training.json", "epsilon", "pld", 0.5)
    seal_folder(tmp_path / "trained")
    (line,) = lines(tmp_path / "trained")
    assert "epsilon.pld: stored 0.5" in line


def test_each_check_alone(run: Path) -> None:
    """Nothing of an honest run, and of an edited one what is its own."""

    def counts() -> list[int]:
        record = read_run_record(run)
        ledger = run_ledger(record)
        found = (
            check_ledger_numbers(record, ledger),
            check_score_numbers(record),
            check_verdicts(record, ledger),
            check_sent_values(record.path, ledger),
        )
        return [len(list(one)) for one in (*found, check_page(record))]

    assert counts() == [0] * 5
    row("auc", 0.0123)(run)
    assert counts() == [0, 1, 0, 0, 0]
    sent(run)
    assert counts() == [0, 1, 0, 1, 0]


@pytest.mark.parametrize(
    ("stored", "found", "equal"),
    [
        (1, 1.0, True),
        (1.0, 1 + 1e-8, True),
        (1.0, 1.001, False),
        ("inf", float("inf"), True),
        ("inf", 3, False),
        (True, 1, False),
        (None, 0, False),
        (None, None, True),
        ("a", "a", True),
        ("1", 1, False),
        (0, 1e-12, True),
        ([1, 2], (1, 2), True),
        ([1], [1, 2], False),
        ({"a": 1}, {"a": 1, "b": 2}, False),
        ({"a": {"b": 2}}, {"a": {"b": 2}}, True),
    ],
)
def test_values_differ_by_more_than_rounding(stored: Any, found: Any, equal: bool) -> None:
    assert (not list(find_disagreements("f", "k", stored, found))) is equal
    if not isinstance(stored, dict | list):
        assert is_same_value(stored, found) is equal


def change(folder: Path, name: str, *path: Any) -> None:
    """One value of a JSON file: the last of ``path`` is the new one, a function of the old one, or
    None to drop it."""
    *keys, last, new = path
    whole = inside = json.loads((folder / name).read_text())
    for key in keys:
        inside = inside[key]
    if new is None:
        del inside[last]
    else:
        inside[last] = new(inside[last]) if callable(new) else new
    (folder / name).write_text(json.dumps(whole))


def tensor(
    name: str, key: str, edit: Callable[[torch.Tensor], torch.Tensor]
) -> Callable[[Path], None]:
    def make(folder: Path) -> None:
        parts = read_tensors(folder / name)
        write_tensors(folder / name, {**parts, key: edit(parts[key])})

    return make


def edited(name: str, *path: Any) -> Callable[[Path], None]:
    return lambda folder: change(folder, name, *path)


def membership(folder: Path) -> int:
    rows = json.loads((folder / "findings.json").read_text())["findings"]
    return next(
        at
        for at, row in enumerate(rows)
        if row["surface"] == "update"
        and row["attack"] == "lira"
        and row["figure"] == EVIDENCE.split("/")[1]
    )


def row(*path: Any) -> Callable[[Path], None]:
    return lambda folder: change(folder, "findings.json", "findings", membership(folder), *path)


def noisy(ledger: Any) -> None:
    """The first noisy release with a quarter of its noise."""
    event = next(r["event"] for r in ledger if "noise_multiplier" in json.dumps(r["event"]))
    while "noise_multiplier" not in event:
        event = event.get("event") or event["events"][0]
    event["noise_multiplier"] /= 4


def quartered(releases: list[Any]) -> list[Any]:
    noisy(releases)
    return releases


def swapped(members: torch.Tensor) -> torch.Tensor:
    return 1 - members


def raised(values: torch.Tensor) -> torch.Tensor:
    """One value, by more than the spread of all."""
    changed = values.clone()
    changed.view(-1)[0] += 1 + changed.double().abs().max().to(changed)
    return changed


def first_sent(folder: Path) -> str:
    return sorted(
        str(p.relative_to(folder)) for p in (folder / "artifacts").rglob("*.safetensors")
    )[0]


def sent(folder: Path) -> None:
    name = first_sent(folder)
    tensor(name, next(iter(read_tensors(folder / name))), raised)(folder)


F = "findings.json"
L = "ledger.json"
M = "manifest.json"
# what -> (edit, in the line, found although sealed again)
SINGLE: dict[str, tuple[Callable[[Path], None], str, bool]] = {
    "epsilon by PLD": (
        edited(F, "privacy", "epsilon", "pld", lambda v: v / 2),
        "privacy.epsilon.pld",
        True,
    ),
    "epsilon by RDP": (
        edited(F, "privacy", "epsilon", "rdp", lambda v: v / 2),
        "privacy.epsilon.rdp",
        True,
    ),
    "a surface's epsilon": (edited(F, "surfaces", 0, "epsilon", "pld", 0.125), "epsilon.pld", True),
    "delta": (edited(F, "privacy", "delta", 1e-9), "privacy.delta", True),
    "the relation": (edited(F, "privacy", "relation", "replace"), "privacy.relation", True),
    "the run's verdict": (
        edited(F, "verdict", lambda v: "contradiction" if v == "unprotected" else "unprotected"),
        "verdict",
        True,
    ),
    "a surface's bytes": (edited(F, "surfaces", 0, "bytes", 1), ".bytes", True),
    "an AUC": (row("auc", lambda v: v / 2), ".auc", True),
    "a rate": (row("tpr_at_fpr", "0.1", "tpr", lambda v: 1 - v), "tpr_at_fpr.0.1.tpr", True),
    "a measured epsilon": (row("epsilon_shown", lambda v: v + 1), ".epsilon_shown", True),
    "a measured epsilon left out": (row("epsilon_shown", None), ".epsilon_shown", True),
    "the bound that decides": (
        row("diagnostics", "epsilon_familywise", lambda v: v + 1),
        "epsilon_familywise",
        True,
    ),
    "a blind control": (
        row("blind_auc", lambda v: 1 - v if v != 0.5 else 0.25),
        ".blind_auc",
        True,
    ),
    "a measure of another family": (row("kappa", 1.5), ".kappa: stored 1.5", True),
    "a stated epsilon": (row("epsilon_stated", 77.0), ".epsilon_stated", True),
    "the number of bytes sent": (
        edited(F, "utility", "uploaded_bytes_per_client", 3),
        "uploaded_bytes",
        True,
    ),
    "the accuracy": (edited(F, "utility", "accuracy", lambda v: 1 - v), "utility.accuracy", True),
    "noise in the ledger": (edited(L, "releases", quartered), L, True),
    "a release's digest": (lambda f: change(f, L, "releases", kept(f), "digest", "00"), L, True),
    "delta of the ledger": (edited(L, "delta", 1e-3), "privacy.delta", True),
    "who was a member": (tensor(EVIDENCE, "members", swapped), EVIDENCE, True),
    "a score": (tensor(EVIDENCE, "scores", lambda t: -t), EVIDENCE, True),
    "a value that was sent": (sent, "artifacts/", True),
    "the seed of the manifest": (edited(M, "seed", 5), "manifest.json: seed", True),
    "the version of the manifest": (edited(M, "version", "9"), "manifest.json: version", True),
    "the seed of the config": (
        lambda f: (
            (f / "config.yaml").write_text(
                (f / "config.yaml").read_text().replace("\nseed: 0", "\nseed: 1")
            )
            and None
        ),
        "config.yaml",
        True,
    ),
    "the machine": (edited(M, "machine", "torch", "9"), SEAL_KEY, False),
    "a digest in the manifest": (edited(M, "files", F, "0" * 64), F, False),
    "a kappa": (lambda f: change(f, F, "findings", kappa(f), "kappa", 0.1), F, False),
    "a note": (row("seconds", 99.0), F, False),
    "a shadow model": (
        lambda f: next((f / "worlds").rglob("*.safetensors")).write_bytes(b"x") and None,
        "worlds/",
        False,
    ),
    "a state that is gone": (
        lambda f: next((f / "state").glob("victim_*")).unlink(),
        "no such file",
        False,
    ),
    "one evidence file more": (
        lambda f: shutil.copy(f / EVIDENCE, f / "evidence" / "more.safetensors") and None,
        "not listed",
        False,
    ),
}


def kept(folder: Path) -> int:
    """The ledger's row of a value that the run folder keeps."""
    rows = json.loads((folder / L).read_text())["releases"]
    return next(
        row["id"] for row in rows if row["client"] >= 0 and row["visible_to"] != ["analyst"]
    )


def kappa(folder: Path) -> int:
    return next(
        at
        for at, one in enumerate(json.loads((folder / F).read_text())["findings"])
        if "kappa" in one
    )


@pytest.mark.nightly(
    but=[
        "epsilon by RDP",
        "a blind control",
        "a stated epsilon",
        "the number of bytes sent",
        "the accuracy",
        "a value that was sent",
        "the machine",
        "a note",
    ]
)
@pytest.mark.parametrize("name", SINGLE)
def test_a_single_edit_is_found(name: str, run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    edit, said, also_sealed = SINGLE[name]
    edit(run)
    assert verify.main([str(run)]) == 2
    printed = capsys.readouterr().out
    assert (
        any(said in line for line in printed.splitlines()[1:])
        and "DOES NOT AGREE" in printed.splitlines()[0]
    )
    assert all(
        ": stored " in line
        for line in printed.splitlines()
        if not line.startswith(("not ", str(run)))
    )
    seal_folder(run)
    left = lines(run)
    assert bool(left) is also_sealed
    assert not also_sealed or not {line.split(": ")[1] for line in left} & {"sha256", SEAL_KEY}


def test_there_are_at_least_twenty_edits_of_every_kind_of_file() -> None:
    assert len(SINGLE) >= 20 and sum(sealed for _, _, sealed in SINGLE.values()) >= 20


@pytest.mark.parametrize(
    "name",
    ["epsilon by PLD", "an AUC", "noise in the ledger", "who was a member", "the run's verdict"],
)
def test_no_page_and_no_comparison_of_an_edited_run(
    name: str, run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    SINGLE[name][0](run)
    for sealed in (False, True):
        if sealed:
            seal_folder(run)
        assert report.main([str(run)]) == 1
        said = capsys.readouterr().err
        assert said.count("\n") == 1 and str(run) in said and ": stored " in said
        with pytest.raises(DamagedRun, match="stored"):
            compare_verified([run], tmp_path / "out")
    assert not (tmp_path / "out").exists() and not (run / "report.html").exists()


def test_files_beside_the_run_are_said_and_forgiven(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (run / "notes.txt").write_text("mine")
    (run / "point.json").write_text("{}")
    assert verify.main([str(run)]) == 0
    assert "'notes.txt'" in capsys.readouterr().err and read_json(run / M)["files"]


def test_nothing_in_a_folder_reaches_the_terminal_raw(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    evil = "\x1b]0;owned\x07\x1b[31m\u202eRED\n"
    (run / "evidence" / f"{evil}.json").write_text("{}")
    manifest = read_json(run / M)
    manifest["files"][evil] = "0"
    manifest["seed"] = evil
    (run / M).write_text(json.dumps(manifest))
    change(run, L, "releases", 0, "event", {"type": evil})
    for _ in range(2):  # the second time as an error, of a ledger that cannot be read
        verify.main([str(run)])
        seal_folder(run)
    said = capsys.readouterr()
    assert "RED" in said.out + said.err
    assert (
        all(c.isprintable() for c in (said.out + said.err).replace("\n", ""))
        and "\nRED" not in said.out
    )


def test_the_one_line_counts_what_is_taken_on_trust_and_strict_ends_with_3(
    run: Path, audited: Audited, capsys: pytest.CaptureFixture[str]
) -> None:
    assert verify.main([str(run)]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    found = re.search(
        r": agrees: (\d+) numbers computed again, (\d+) taken on trust, among them "
        r"(epsilon shown by|kappa of|images of) \w+",
        line,
    )
    assert found and int(found[1]) > 30 and int(found[2]) > 3
    assert verify.main([str(run), "strict=true"]) == 3
    capsys.readouterr()
    rows = read_json(audited("fedavg").path / F)["findings"]
    assert any("psnr" in row for row in rows)  # its pictures need the records
    assert (
        verify.main([str(audited("fedavg").path), "strict=true"]) == 3
        and "images of gradient_inversion" in capsys.readouterr().out
    )


def test_a_run_that_was_never_sealed_is_no_finished_one(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = Path(shutil.copytree(run, tmp_path / "unsealed"))
    (folder / "manifest.json").unlink()
    with pytest.raises(DamagedRun, match=r"this run did not end \(it was never sealed\)"):
        load_run(folder)
    assert report.main([str(folder)]) == 1
    assert "this run did not end" in capsys.readouterr().err


def test_limits_hold_for_a_folder_that_agrees_and_strictly_only_for_what_was_computed_again(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    limits = ["fail_on.epsilon_shown=100", "fail_on.auc=1"]
    assert verify.main([str(run), *limits]) == 0
    agrees, passes, *_ = capsys.readouterr().out.splitlines()
    assert ": agrees: " in agrees and passes == "policy: passes: 2 holds"
    assert (
        verify.main(
            [
                str(run),
                *limits,
                "strict=true",
                f"junit={tmp_path / 'j.xml'}",
                f"markdown={tmp_path / 's.md'}",
            ]
        )
        == 3
    )
    assert re.search(
        r"policy: not decided: epsilon_shown: .*; epsilon shown by \w+ is taken on trust",
        capsys.readouterr().out,
    )
    assert (
        'failures="1"' in (tmp_path / "j.xml").read_text()
        and "taken on trust" in (tmp_path / "s.md").read_text()
    )
    assert (
        verify.main([str(run), "strict=true", "fail_on.auc=1"]) == 0
    )  # which rests on scores that are in the folder
    assert verify.main([str(run), "fail_on.auc=0.01"]) == 3


def test_brought_scores_leave_nothing_on_trust(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "s.npz", scores=rng.normal(size=60), member=rng.random(60) < 0.5)
    audit(f"scores={tmp_path / 's.npz'}", out=tmp_path / "run")
    found = check(tmp_path / "run")
    assert found.deciding == () and found.trusted == 0 and found.computed > 5
    assert verify.main([str(tmp_path / "run"), "strict=true"]) == 0


@pytest.mark.parametrize("left_out", [True, False])
def test_what_tells_a_secret_may_be_left_out(left_out: bool, run: Path) -> None:
    (run / "state" / "secret.json").write_text("{}")
    seal_folder(run)
    assert "state/secret.json" not in read_json(run / M)["files"]
    if left_out:
        (run / "state" / "secret.json").unlink()
    assert check(run).disagreements == () and check(run).unlisted == ()


def test_what_is_no_run_is_an_error(
    tmp_path: Path, run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (run / L).write_text("{")
    for folder in (tmp_path / "nowhere", tmp_path, run):
        assert verify.main([str(folder)]) == 1
        said = capsys.readouterr()
        assert said.err.count("\n") == 1 and said.out == ""
