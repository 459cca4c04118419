"""Risks, kinds of attack and facts of an epsilon: each is answered by the findings that belong to it, or is said to be open."""

from __future__ import annotations

from pathlib import Path

from privdd.reporting import assessment
from privdd.reporting.run_record import read_run_record
from tests.reporting.test_decision import BROKEN, UNREAD, run


def answers(folder: Path) -> dict[str, str]:
    findings = read_run_record(folder).findings
    return {one.term: " ".join(f"{where} {said}" for where, said in one.found) for one in assessment.answer_risks(findings)}


def test_each_risk_is_answered_by_its_own_findings(runs: dict[str, Path]) -> None:
    found = answers(runs["unprotected"])
    assert set(found) == {"Singling out", "Linkability", "Inference"}
    assert "of the training records" in found["Singling out"] and "pictures" not in found["Singling out"]
    assert "pictures" in found["Inference"] and "training records" not in found["Inference"]


def test_what_was_not_tried_is_said_and_is_no_all_clear(runs: dict[str, Path]) -> None:
    findings = read_run_record(runs["unprotected"]).findings
    bare = findings.model_copy(update={"findings": []})
    assert {one.found for one in assessment.answer_risks(bare)} == {(("", assessment.UNTRIED),)}
    assert {tried for _, tried in assessment.attack_kinds_tried(bare)} == {assessment.UNTRIED}
    quiet = [row.model_copy(update={"auc_ci": None, "tpr_at_fpr": None}) for row in findings.findings if row.family == "membership"]
    weak = assessment.answer_risks(findings.model_copy(update={"findings": quiet}))[0]
    assert weak.found == (("", assessment.NOTHING),) and "no evidence" in assessment.NOTHING


def test_an_attack_that_had_nothing_to_read_is_no_answer() -> None:
    singling_out = assessment.answer_risks(run([UNREAD], "unprotected", "inf"))[0]
    assert singling_out.by == assessment.UNTRIED and singling_out.found == (("", assessment.UNTRIED),)


def test_naming_is_bounded_by_the_accounting_alone(runs: dict[str, Path]) -> None:
    findings = read_run_record(runs["consistent"]).findings
    row = {"k": 100, "prior": 0.01, "bound": 0.425}
    rows = [{"k": 2, "prior": 0.5, "bound": 0.9}, row]  # the smallest prior says most
    privacy = type(findings.privacy).model_validate(findings.privacy.model_dump() | {"reconstruction": rows})
    first = assessment.answer_risks(findings.model_copy(update={"privacy": privacy}))[0].found[0][1]
    assert "among 100" in first and "42.5\u00a0%" in first and "1\u00a0%" in first


def test_who_sees_what_is_read_from_the_ledger(runs: dict[str, Path]) -> None:
    record = read_run_record(runs["consistent"])
    ledger = {"releases": [{"visible_to": ["server", "analyst"]}, {"visible_to": ["peer"]}, {"visible_to": 3}, 4]}
    facts = dict(assessment.guarantee_facts(record.findings, ledger))
    assert facts["who sees what is sent (the trust model)"] == "the server and the other clients"
    assert facts["the unit of privacy"].startswith("one record") and "ε at most 4.85" in facts["the limit"]
    assert facts["the unit of privacy"] == "one record; neighbours: one record more or less"
    assert facts["whether the code does what the proof says"] == assessment.UNTRIED
    tested = dict(assessment.guarantee_facts(run([BROKEN], "contradiction", 0.9), {}))
    assert tested["whether the code does what the proof says"] == "looked at by the likelihood-ratio test (T2)"
    assert dict(assessment.guarantee_facts(run([], "unprotected", "inf"), {}))["the limit"] == "none is proven: ε = ∞"
    assert dict(assessment.guarantee_facts(record.findings, {}))["who sees what is sent (the trust model)"] == "not recorded"
