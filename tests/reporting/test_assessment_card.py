"""card.json: the decision lines for other programs, the same as on the page, and plain JSON."""

from __future__ import annotations

import html
import json
from pathlib import Path

import pytest

from privdd.reporting.assessment import audit_signature, decision_card, encode_card
from privdd.reporting.decision import decide_surfaces
from privdd.reporting.page import write_report
from privdd.reporting.run_record import RunRecord, read_run_record
from privdd.verification.run_folder import check_page
from tests.reporting.fixture import write_run
from tests.reporting.test_decision import NOTHING, SEED, row, run

KEYS = {"schema", "run", "verdict", "headline", "large_enough", "why_too_small", "simulation", "epsilon", "artifacts"}
OF_ARTIFACT = {
    "surface", "sender", "decision", "title", "tone", "why", "conditions", "attackers_can", "seen_by", "verdict",
    "same_values_as", "epsilon", "sample", "large_enough", "how_sure",
}  # fmt: skip


@pytest.mark.parametrize("kind", ["unprotected", "consistent", "contradiction"])
def test_the_card_says_what_the_page_says(tmp_path: Path, kind: str) -> None:
    folder = write_run(tmp_path / "run", kind=kind)
    page = write_report(folder).read_text(encoding="utf-8")
    record = read_run_record(folder)
    card = json.loads(
        (folder / "card.json").read_text(), parse_constant=lambda name: pytest.fail(f"{name} in card.json")
    )
    assert (folder / "card.json").read_bytes() == encode_card(record)
    assert card.keys() == KEYS and card["schema"] == 1 and card["verdict"] == kind
    assert all(one.keys() == OF_ARTIFACT for one in card["artifacts"])
    assert [one["decision"] for one in card["artifacts"]] == [d.kind for d in decide_surfaces(record.findings, record.ledger)]
    first = html.unescape(page[page.index('class="decisions"') : page.index('class="cards"')])
    for one in card["artifacts"]:
        assert one["title"] in first and one["seen_by"] in first
        assert all(said in first for said in one["attackers_can"] + one["conditions"])
    assert card["epsilon"]["proven_at_most"] == (
        "inf" if kind == "unprotected" else record.findings.privacy.epsilon.best
    )


def test_every_number_of_the_card_has_its_own_name() -> None:
    """Of a smoke run whose noise comes from its seed."""
    found = run([row(NOTHING, epsilon_measured=0.25, epsilon_stated=1.5, epsilon_validity="finite_sample")], "consistent", 2.0, noise=SEED, preset="smoke")
    made = decision_card(RunRecord(Path("run"), found))
    (one,) = made["artifacts"]
    assert made["epsilon"] == {
        "claimed": None, "proven_at_most": 2.0, "shown_at_least": 0.25, "delta": 1e-5, "unit": "record", "relation": "add_remove", "large": 8.0,
    }  # fmt: skip
    assert one["epsilon"] == {"stated": 1.5, "proven_at_most": 2.0, "shown_at_least": 0.25}
    assert made["simulation"] and not made["large_enough"] and "too small to decide" in made["why_too_small"] and not one["large_enough"]
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
    assert about["attackers"] == "the server" and about["command"] == "python -m privdd.audit algo=fedfed seed=0"
    text = write_report(folder).read_text(encoding="utf-8")
    assert "&lt;b&gt;" in text and "<b>" not in text and "2026-11-22 08:00:00 UTC" in text


def test_the_signature_says_where_networks_see_something_else_than_the_records(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", kind="unprotected")
    assert "networks see images" not in dict(audit_signature(read_run_record(folder)))
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["data_note"] = "Fashion-MNIST, 28x28 grey; networks see it standardised by published constants (mean 0.2861)"
    (folder / "manifest.json").write_text(json.dumps(manifest))
    seen = dict(audit_signature(read_run_record(folder)))["networks see images"]
    assert seen == "standardised by published constants (mean 0.2861)"


def test_a_card_that_says_something_else_than_the_run_is_seen(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run")
    write_report(folder)
    assert list(check_page(read_run_record(folder))) == []
    text = (folder / "card.json").read_text()
    (folder / "card.json").write_text(text.replace("do_not_share", "share_only_under"))
    assert [one.file for one in check_page(read_run_record(folder))] == ["card.json"]
    (folder / "card.json").unlink()
    assert list(check_page(read_run_record(folder))) == []  # folders of earlier versions have none
