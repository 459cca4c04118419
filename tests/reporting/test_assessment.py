"""Tests of ``privdd.reporting.decision``."""

from __future__ import annotations

import html
import json
from pathlib import Path

import pytest

from privdd.reporting import assessment
from privdd.reporting.card import audit_signature, decision_card, encode_card
from privdd.reporting.decision import decide_surfaces
from privdd.reporting.page import write_report
from privdd.reporting.run_record import RunRecord, read_run_record
from privdd.verification.run_folder import check_page
from tests.reporting.fixture import write_run
from tests.reporting.test_decision import BROKEN, NOTHING, SEED, UNREAD, row, run

# Risks, kinds of attack and facts of an epsilon: each is answered by the findings that belong to
# it, or is said to be open.


def answers(folder: Path) -> dict[str, str]:
    findings = read_run_record(folder).findings
    return {
        one.term: " ".join(f"{where} {said}" for where, said in one.found)
        for one in assessment.answer_risks(findings)
    }


def test_each_risk_is_answered_by_its_own_findings(runs: dict[str, Path]) -> None:
    found = answers(runs["unprotected"])
    assert set(found) == {"Singling out", "Linkability", "Inference"}
    assert (
        "of the training records" in found["Singling out"] and "images" not in found["Singling out"]
    )
    assert "images" in found["Inference"] and "training records" not in found["Inference"]


def test_what_was_not_tried_is_said_and_is_no_all_clear(runs: dict[str, Path]) -> None:
    findings = read_run_record(runs["unprotected"]).findings
    bare = findings.model_copy(update={"findings": []})
    assert {one.found for one in assessment.answer_risks(bare)} == {(("", assessment.UNTRIED),)}
    assert {tried for _, tried in assessment.attack_kinds_tried(bare)} == {assessment.UNTRIED}
    silent = dict.fromkeys(("auc_ci", "tpr_at_fpr", "copy_test", "epsilon_shown", "diagnostics"))
    membership = [row for row in findings.findings if row.family == "membership"]
    quiet = [row.model_copy(update=silent) for row in membership]
    weak = assessment.answer_risks(findings.model_copy(update={"findings": quiet}))[0]
    assert (
        weak.found == (("", assessment.NOTHING),)
        and "does not show that nothing leaks" in assessment.NOTHING
    )


def test_an_attack_that_had_nothing_to_read_is_no_answer() -> None:
    singling_out = assessment.answer_risks(run([UNREAD], "unprotected", "inf"))[0]
    assert singling_out.by == assessment.UNTRIED and singling_out.found == (
        ("", assessment.UNTRIED),
    )


def test_naming_is_bounded_by_the_accounting_alone(runs: dict[str, Path]) -> None:
    findings = read_run_record(runs["consistent"]).findings
    row = {"k": 100, "prior": 0.01, "bound": 0.425}
    rows = [{"k": 2, "prior": 0.5, "bound": 0.9}, row]  # the smallest prior says most
    privacy = type(findings.privacy).model_validate(
        findings.privacy.model_dump() | {"reconstruction": rows}
    )
    first = assessment.answer_risks(findings.model_copy(update={"privacy": privacy}))[0].found[0][1]
    assert "among 100" in first and "42.5\u00a0%" in first and "1\u00a0%" in first


def test_who_sees_what_is_read_from_the_ledger(runs: dict[str, Path]) -> None:
    record = read_run_record(runs["consistent"])
    ledger = {
        "releases": [
            {"visible_to": ["server", "analyst"]},
            {"visible_to": ["peer"]},
            {"visible_to": 3},
            4,
        ]
    }
    facts = dict(assessment.guarantee_facts(record.findings, ledger))
    assert facts["who sees the messages (the trust model)"] == "the server and the other clients"
    assert (
        facts["the unit of privacy"].startswith("one record")
        and "ε at most 4.85" in facts["the limit"]
    )
    assert facts["the unit of privacy"] == "one record; neighbours: one record added or removed"
    assert facts["whether the code follows the proof"] == assessment.UNTRIED
    tested = dict(assessment.guarantee_facts(run([BROKEN], "contradiction", 0.9), {}))
    assert (
        tested["whether the code follows the proof"] == "tested by the likelihood-ratio test (T2)"
    )
    assert (
        dict(assessment.guarantee_facts(run([], "unprotected", "inf"), {}))["the limit"]
        == "none is proven: ε = ∞"
    )
    assert (
        dict(assessment.guarantee_facts(record.findings, {}))[
            "who sees the messages (the trust model)"
        ]
        == "not recorded"
    )


# card.json: the decision lines for other programs, the same as on the page, and plain JSON.


KEYS = {
    "schema",
    "run",
    "verdict",
    "headline",
    "large_enough",
    "why_too_small",
    "simulation",
    "epsilon",
    "artifacts",
}
OF_ARTIFACT = {
    "surface",
    "sender",
    "decision",
    "title",
    "tone",
    "why",
    "conditions",
    "attackers_can",
    "seen_by",
    "verdict",
    "computed_from",
    "epsilon",
    "sample",
    "large_enough",
    "how_sure",
}


@pytest.mark.nightly(but=["contradiction"])
@pytest.mark.parametrize("kind", ["unprotected", "consistent", "contradiction"])
def test_the_card_says_what_the_page_says(tmp_path: Path, kind: str) -> None:
    folder = write_run(tmp_path / "run", kind=kind)
    page = write_report(folder).read_text(encoding="utf-8")
    record = read_run_record(folder)
    card = json.loads(
        (folder / "card.json").read_text(),
        parse_constant=lambda name: pytest.fail(f"{name} in card.json"),
    )
    assert (folder / "card.json").read_bytes() == encode_card(record)
    assert card.keys() == KEYS and card["schema"] == 1 and card["verdict"] == kind
    assert all(one.keys() == OF_ARTIFACT for one in card["artifacts"])
    assert [one["decision"] for one in card["artifacts"]] == [
        d.kind for d in decide_surfaces(record.findings, record.ledger)
    ]
    first = html.unescape(page[page.index('class="decisions"') : page.index('id="surfaces"')])
    for one in card["artifacts"]:
        assert one["title"] in first and one["seen_by"] in first
        assert all(said in first for said in one["attackers_can"] + one["conditions"])
    assert card["epsilon"]["proven"] == (
        "inf" if kind == "unprotected" else record.findings.privacy.epsilon.proven
    )


def test_every_number_of_the_card_has_its_own_name() -> None:
    """Of a smoke run whose noise comes from its seed."""
    found = run(
        [row(NOTHING, epsilon_shown=0.25, epsilon_stated=1.5, epsilon_validity="finite_sample")],
        "consistent",
        2.0,
        noise=SEED,
        preset="smoke",
    )
    made = decision_card(RunRecord(Path("run"), found))
    (one,) = made["artifacts"]
    assert made["epsilon"] == {
        "claimed": None,
        "claimed_delta": None,
        "proven": 2.0,
        "shown": 0.25,
        "delta": 1e-5,
        "unit": "record",
        "relation": "add_remove",
        "large": 8.0,
    }
    assert one["epsilon"] == {"stated": 1.5, "proven": 2.0, "shown": 0.25}
    assert (
        made["simulation"]
        and not made["large_enough"]
        and "too small to decide" in made["why_too_small"]
        and not one["large_enough"]
    )
    large = decision_card(RunRecord(Path("run"), run([row(NOTHING)], "consistent", 2.0)))
    assert large["large_enough"] and large["why_too_small"] is None and not large["simulation"]


def test_the_signature_names_what_the_manifest_knows(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run")
    assert json.loads(encode_card(read_run_record(folder)))["run"]["commit"] == "not recorded"
    manifest = json.loads((folder / "manifest.json").read_text())
    (folder / "manifest.json").write_text(
        json.dumps(manifest | {"date": "2026-11-22T08:00:00+00:00", "commit": "<b>" + 200 * "f"})
    )
    about = json.loads(encode_card(read_run_record(folder)))["run"]
    assert about["date"] == "2026-11-22T08:00:00+00:00" and len(about["commit"]) == 100
    assert (
        about["attackers"] == "the server"
        and about["command"] == "python -m privdd.audit algo=fedfed seed=0"
    )
    text = write_report(folder).read_text(encoding="utf-8")
    assert "&lt;b&gt;" in text and "<b>" not in text and "2026-11-22 08:00:00 UTC" in text


def test_the_signature_says_where_networks_see_something_else_than_the_records(
    tmp_path: Path,
) -> None:
    folder = write_run(tmp_path / "run", kind="unprotected")
    assert "networks see images" not in dict(audit_signature(read_run_record(folder)))
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["data_note"] = (
        "Fashion-MNIST, 28x28 grey; networks see it standardised by published constants "
        "(mean 0.2861)"
    )
    (folder / "manifest.json").write_text(json.dumps(manifest))
    seen = dict(audit_signature(read_run_record(folder)))["networks see images"]
    assert seen == "standardised by published constants (mean 0.2861)"


@pytest.mark.nightly
def test_a_card_that_says_something_else_than_the_run_is_seen(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run")
    write_report(folder)
    assert list(check_page(read_run_record(folder))) == []
    text = (folder / "card.json").read_text()
    (folder / "card.json").write_text(text.replace("do_not_share", "share_only_under"))
    assert [one.file for one in check_page(read_run_record(folder))] == ["card.json"]
    (folder / "card.json").unlink()
    assert list(check_page(read_run_record(folder))) == []  # folders of earlier versions have none
