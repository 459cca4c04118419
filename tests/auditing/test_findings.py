"""findings.json and ledger.json of real small audits, against what others must be able to recompute."""

from __future__ import annotations

import json
import math
import re
from collections import defaultdict
from dataclasses import replace
from typing import Any

import dp_accounting as dpa
import pytest
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant

from attacks.membership.lira import Lira
from attacks.types import Adversary, Family, Finding, Surface
from privdd.auditing import findings
from privdd.auditing import pipeline as auditing
from privdd.auditing.attack_tasks import AttackFailed
from privdd.auditing.coverage import check_coverage
from privdd.auditing.findings import epsilon_by_accountant
from privdd.cli.build import build_attacks, build_experiment, build_shipped_attacks
from privdd.cli.compose import compose_config
from privdd.cli.run import run_audit
from privdd.cli.settings import audit_settings
from privdd.core.validation import BadConfig
from privdd.privacy.ledger import Ledger
from privdd.reporting.findings_file import load_findings
from privdd.runtime.files import read_json
from privdd.runtime.run_folder import read_tensors
from tests.federations import tiny, tiny_config, trained

NAMES = ["fedavg", "fedfed", "fedfed_released", "fedfed_dp", "fedavg_dpsgd"]


def timeless(value: Any) -> Any:
    """Plain data without any key called seconds."""
    if isinstance(value, dict):
        return {k: timeless(v) for k, v in value.items() if k != "seconds"}
    return [timeless(v) for v in value] if isinstance(value, list) else value


# --- the file itself --------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_schema_and_exit_status(audited, name):
    """The reader accepts it; status 0 or 2 as the verdict says; numbers are finite or the string "inf"."""
    run = audited(name)
    found = load_findings(run.path)
    raw = (run.path / "findings.json").read_text()
    assert run.status == (2 if found.verdict == "contradiction" else 0)
    assert "NaN" not in raw and "Infinity" not in raw
    data = json.loads(raw)
    assert data["schema"] == 2 and data["run"]["algo"] == name and data["run"]["clients"] == 3
    assert len(data["utility"]["accuracy_by_round"]) == data["run"]["rounds"]
    assert data["utility"]["accuracy"] == data["utility"]["accuracy_by_round"][-1]
    assert str(run.path / "findings.json") in run.printed


@pytest.mark.parametrize("name", NAMES)
def test_every_surface_of_the_ledger_is_a_row_and_attacked(audited, name):
    """Surfaces that the server, peers or the public see; each attacked by someone; bytes as sent."""
    path = audited(name).path
    data, ledger = read_json(path / "findings.json"), read_json(path / "ledger.json")
    seen = {
        (r["surface"], "server" if r["client"] < 0 else "client")
        for r in ledger["releases"]
        if r["visible_to"] != ["analyst"]
    }
    assert {(s["surface"], s["sender"]) for s in data["surfaces"]} == seen
    attacked = {f["surface"] for f in data["findings"] if f["family"] != "guarantee"}
    for row in data["surfaces"]:
        assert row["surface"] in attacked
        if row["surface"] == "counts":  # one number for all records
            assert row["audited"].startswith("nothing to read: ")
        else:
            assert row["audited"] is True
    for finding in data["findings"]:
        if finding.get("status") == "nothing_to_read":
            assert "auc" not in finding and "epsilon_measured" not in finding and "nothing to" in finding["note"]
        elif finding["family"] == "membership":
            assert {"auc", "auc_ci", "blind_auc", "epsilon_measured", "epsilon_validity", "n", "worlds"} <= set(finding)


@pytest.mark.parametrize("name", NAMES)
def test_bytes_are_those_of_the_artifacts(audited, name):
    """Uploaded bytes by client against the files that were captured."""
    path = audited(name).path
    files = list((path / "artifacts").rglob("client_*.safetensors"))
    total = sum(t.numel() * t.element_size() for file in files for t in read_tensors(file).values())
    data = read_json(path / "findings.json")
    assert data["utility"]["uploaded_bytes_per_client"] == round(total / 3)
    assert sum(r["bytes"] for r in data["surfaces"] if r["sender"] == "client") == total


def test_epsilons_say_what_is_protected(audited):
    """fedavg and fedfed: infinite; fedfed_dp and DP-SGD: finite everywhere; fedfed's claim beside it."""
    for name in ("fedavg", "fedfed", "fedfed_released"):
        data = read_json(audited(name).path / "findings.json")
        assert data["privacy"]["epsilon"] == {"pld": "inf", "rdp": "inf"}
        update = next(s for s in data["surfaces"] if s["surface"] == "update")
        assert update["mechanism"] == "none" and update["verdict"] == "unprotected"
    for name in ("fedfed_dp", "fedavg_dpsgd"):
        data = read_json(audited(name).path / "findings.json")
        values = [data["privacy"]["epsilon"], *(s["epsilon"] for s in data["surfaces"])]
        assert all(
            isinstance(v, float | int) and 0 <= v < math.inf for pair in values for v in (pair["pld"], pair["rdp"])
        )
        assert 0 < 0.7 * data["privacy"]["epsilon"]["pld"] < data["privacy"]["epsilon"]["certified"]
        assert data["privacy"]["epsilon"]["certified"] <= 1.001 * data["privacy"]["epsilon"]["pld"]
    claims = read_json(audited("fedfed").path / "findings.json")["privacy"]["claims"]
    assert claims and not any(claim["sound"] for claim in claims)
    told = {claim["source"]: claim for claim in claims}
    assert told["Yang 2023, Lemma D.2"]["epsilon"] == "no number"
    assert told["Yang 2023, Theorem 3.4 as printed"]["delta"] > 1e-5


# --- epsilon from ledger.json with dp-accounting alone ------------------------------------------


def event_of(form: dict[str, Any]) -> dpa.DpEvent:
    """The documented JSON form, read by hand."""
    kind = form["type"]
    if kind == "gaussian":
        return dpa.GaussianDpEvent(form["noise_multiplier"])
    if kind == "laplace":
        return dpa.LaplaceDpEvent(form["noise_multiplier"])
    if kind == "poisson":
        return dpa.PoissonSampledDpEvent(form["probability"], event_of(form["event"]))
    if kind == "compose":
        return dpa.ComposedDpEvent([event_of(e) for e in form["events"]])
    if kind == "repeat":
        return dpa.SelfComposedDpEvent(event_of(form["event"]), form["count"])
    return {"none": dpa.NoOpDpEvent(), "non_private": dpa.NonPrivateDpEvent()}[kind]


def recomputed(data: dict[str, Any], accountant: Any) -> float:
    """The worst client's worst cell, composed release by release, as the design prescribes."""
    add_remove = dpa.NeighboringRelation.ADD_OR_REMOVE_ONE
    assert data["relation"] in ("add_remove", "zero_out")
    cells: dict[int, dict[str | None, list[dpa.DpEvent]]] = defaultdict(lambda: defaultdict(list))
    for release in data["releases"]:
        if release["client"] >= 0:
            event = dpa.SelfComposedDpEvent(event_of(release["event"]), release["count"])
            cells[release["client"]][release["partition"]].append(event)
    worst = 0.0
    for mine in cells.values():
        for cell in {*mine, None}:
            events = mine[None] if cell is None else [*mine[None], *mine[cell]]
            worst = max(worst, accountant(add_remove).compose(dpa.ComposedDpEvent(events)).get_epsilon(data["delta"]))
    return worst


@pytest.mark.parametrize("name", NAMES)
def test_total_epsilon_follows_from_the_ledger_alone(audited, name):
    path = audited(name).path
    stated = read_json(path / "findings.json")["privacy"]["epsilon"]
    ledger = read_json(path / "ledger.json")
    if "inf" in stated.values():
        assert any(r["event"]["type"] == "non_private" for r in ledger["releases"])
        assert recomputed(ledger, lambda n: RdpAccountant(neighboring_relation=n)) == math.inf
        return
    rdp = recomputed(ledger, lambda n: RdpAccountant(neighboring_relation=n))
    assert stated["rdp"] == pytest.approx(rdp, rel=2e-2)
    pld = recomputed(ledger, lambda n: PLDAccountant(neighboring_relation=n, value_discretization_interval=1e-3))
    assert stated["pld"] == pytest.approx(pld, rel=2e-2) and pld < rdp


def test_partition_cells_compose_in_parallel():
    """feddm_dp's reads are by label: the worst cell counts, not the sum over labels."""
    ledger = trained("feddm_dp", "privacy.sampling_probability=1.0")[0].ledger.to_json()
    cells = {r["partition"] for r in ledger["releases"] if r["client"] >= 0}
    assert len(cells - {None}) == 10
    rdp = recomputed(ledger, lambda n: RdpAccountant(neighboring_relation=n))
    flat = {**ledger, "releases": [{**r, "partition": None} for r in ledger["releases"]]}
    assert epsilon_by_accountant(Ledger.from_json(ledger))["rdp"] == pytest.approx(rdp, rel=2e-2)
    assert recomputed(flat, lambda n: RdpAccountant(neighboring_relation=n)) > 1.5 * rdp


# --- the same again -----------------------------------------------------------------------------


def test_same_seed_same_findings_other_seed_others(audited, run_small_audit, tmp_path):
    """Two runs of one config agree in every file but for seconds; another seed does not."""
    first = audited("fedavg")
    again = run_small_audit("fedavg", tmp_path / "again")
    a, b = (timeless(read_json(run.path / "findings.json")) for run in (first, again))
    assert a == b
    assert read_json(first.path / "ledger.json") == read_json(again.path / "ledger.json")
    for folder in ("artifacts", "worlds", "evidence"):
        files = sorted((first.path / folder).rglob("*.safetensors"))
        assert files
        for file in files:
            assert file.read_bytes() == (again.path / file.relative_to(first.path)).read_bytes(), file.name
    other = timeless(read_json(audited("fedavg_seed1").path / "findings.json"))
    assert other["findings"] != a["findings"]


# --- coverage: attacked, or waived in writing ---------------------------------------------------


def small_config(*more: str):
    config = tiny_config("fedavg", "audit.records=10", "audit.worlds=3", "audit.victims=1", *more, command="audit")
    config.name = "fedavg"
    return config


def test_a_surface_without_attack_stops_before_training(tmp_path, monkeypatch):
    def never(*_: object) -> None:
        raise AssertionError("training began")

    monkeypatch.setattr(auditing, "Trainer", never)
    with pytest.raises(
        BadConfig, match=r"no attack for counts, global_model, statistics.*audit\.waive\.counts='reason'"
    ):
        run_audit(small_config("attack=[gradient_inversion]"), tmp_path / "run", [])
    assert not (tmp_path / "run").exists()
    with pytest.raises(BadConfig, match="at least one attack"):
        run_audit(small_config("attack=[]"), tmp_path / "run", [])


def test_waivers_need_reasons_and_are_reported(tmp_path, monkeypatch):
    waivers = [f"audit.waive.{s}='only the update matters here'" for s in ("counts", "statistics", "global_model")]
    config = small_config("attack=[gradient_inversion]", "attack.gradient_inversion.method.iterations=2", *waivers)
    monkeypatch.setattr("privdd.reporting.page.write_report", lambda path: path)
    assert run_audit(config, tmp_path, []) == 0
    rows = {r["surface"]: r["audited"] for r in read_json(tmp_path / "findings.json")["surfaces"]}
    assert rows == {
        "update": True,
        "counts": "waived: only the update matters here",
        "global_model": "waived: only the update matters here",
    }
    for empty in ("''", "' '"):
        with pytest.raises(BadConfig, match=r"audit\.waive\.counts: a reason is needed"):
            run_audit(
                small_config("attack=[gradient_inversion]", *waivers[1:], f"audit.waive.counts={empty}"),
                tmp_path / "x",
                [],
            )


def test_what_certain_attacks_do_not_read_is_said_and_not_called_waived(tmp_path, monkeypatch):
    """``attack=[...]`` runs what it can; in the findings the rest is not attacked, and a written reason stays one."""
    monkeypatch.setattr("privdd.reporting.page.write_report", lambda path: path)
    config = small_config("attack=[gradient_inversion]", "attack.gradient_inversion.method.iterations=2",
                          "audit.require=some", "audit.waive.counts='public here'")  # fmt: skip
    assert run_audit(config, tmp_path, []) == 0
    rows = {r["surface"]: r["audited"] for r in read_json(tmp_path / "findings.json")["surfaces"]}
    assert rows == {
        "update": True,
        "counts": "waived: public here",
        "global_model": "not attacked: not read by the attacks asked for",
    }


def test_an_answer_to_a_chosen_model_does_not_count_as_a_look_at_what_was_sent(tmp_path, monkeypatch, capsys):
    """A malicious server reads another upload than the run's own; and an attack with nothing to read here is named."""
    monkeypatch.setattr("privdd.reporting.page.write_report", lambda path: path)
    config = small_config("attack=[copy_detection,imprint,model_inversion]", "attack.imprint.units=64", "audit.require=some",
                          "attack.model_inversion.prior=null", "attack.model_inversion.miface.iterations=2",
                          "attack.model_inversion.referee.steps=2")  # fmt: skip
    assert run_audit(config, tmp_path, []) == 0
    found = read_json(tmp_path / "findings.json")
    assert any(f["attack"] == "imprint" and f["surface"] == "update" and "psnr" in f for f in found["findings"])
    rows = {r["surface"]: r["audited"] for r in found["surfaces"]}
    assert rows["update"] == "not attacked: not read by the attacks asked for" and rows["global_model"] is True
    assert read_json(tmp_path / "manifest.json")["attacks_not_run"] == ["copy_detection"]
    assert "not run, as fedavg releases nothing that they read: copy_detection\n" in capsys.readouterr().out


def test_all_attacks_cover_every_method():
    """attack=all, the default, leaves no surface of any yaml open."""
    from privdd.cli.compose import expand_arguments
    from tests.federations import ALGOS

    config = compose_config("audit", expand_arguments(["algo=fedavg", "preset=smoke"], "audit"))
    attacks = build_attacks(config)
    for algo in ALGOS:
        check_coverage(tiny(algo).plan.method, attacks, audit_settings(config), build_shipped_attacks)


def test_attacks_that_lack_worlds_do_not_cover():
    """LiRA reads the global model only where federations are replayed; a single world gives it nothing."""
    method = tiny("fedavg").plan.method

    def uncovered(*more: str) -> str:
        config = compose_config("audit", ["algo=fedavg", "preset=smoke", "attack=[lira]", *more])
        try:
            check_coverage(method, build_attacks(config), audit_settings(config), build_shipped_attacks)
        except BadConfig as error:
            return str(error)
        return ""

    assert "no attack for global_model with" in uncovered()
    assert uncovered("audit.federations=4") == ""
    assert "counts, global_model, statistics, update" in uncovered("audit.worlds=1", "audit.federations=4")
    assert "no attack for" in uncovered("attack=[gradient_inversion]", "audit.victims=0")


@pytest.mark.parametrize("algo", ["fedavg", "scaffold", "fedfed", "fedrd"])
def test_what_the_message_says_to_add_is_enough(algo):
    """Both ways out of missing coverage can be copied from the one line."""
    method = tiny(algo).plan.method
    config = compose_config("audit", ["algo=fedavg", "preset=smoke", "attack=[analytic_inversion]"])
    settings = audit_settings(config)
    with pytest.raises(BadConfig) as error:
        check_coverage(method, build_attacks(config), settings, build_shipped_attacks)
    (line,) = str(error.value).splitlines()
    asked = re.search(r"ask for (attack=\[[a-z_,]+\])", line)
    assert asked is not None
    more = compose_config("audit", ["algo=fedavg", "preset=smoke", asked[1]])
    check_coverage(method, build_attacks(more), audit_settings(more))
    waived = re.findall(r"audit\.waive\.(\w+)='(reason)'", line)
    check_coverage(method, build_attacks(config), replace(settings, waive=dict(waived)))
    with pytest.raises(BadConfig):
        check_coverage(method, build_attacks(config), replace(settings, waive=dict(waived[1:])))


@pytest.mark.parametrize("attack", ["lira", "fusion"])
def test_a_signal_that_a_surface_lacks_is_named_with_those_it_has(attack, tmp_path):
    with pytest.raises(AttackFailed, match=rf"attack {attack} on update .*signal='nowhere': surface update has \['align"):
        run_audit(small_config(f"attack=[{attack}]", f"attack.{attack}.signal=nowhere", "audit.worlds=5", "audit.require=some"), tmp_path, [])


def test_an_attack_that_breaks_stops_the_audit(tmp_path, monkeypatch):
    def broken(self, view, generator):
        raise ZeroDivisionError("no shadows")

    monkeypatch.setattr(Lira, "run", broken)
    with pytest.raises(AttackFailed, match=r"attack lira on update \(server\) failed: ZeroDivisionError: no shadows"):
        run_audit(small_config("attack=[lira,loss_threshold]"), tmp_path, [])
    assert not (tmp_path / "findings.json").exists()


def test_a_surface_that_its_only_attack_could_not_read_was_not_attacked() -> None:
    """An attack of one's own may find nothing to compare in a single world: that is said, and the run goes on."""
    progress, _, _ = trained("fedavg")
    note = {"status": "nothing_to_read", "note": "nothing to read: its scores are the same", "worlds": 1}
    sent = {release.surface for release in progress.ledger.releases}
    mute = [Finding(Surface(one), "rank", Family.MEMBERSHIP, Adversary.SERVER, dict(note)) for one in sent]
    experiment = build_experiment(tiny_config("fedavg", command="audit"))
    rows = list(findings._surface_rows(experiment, progress, mute, {}))
    assert len(rows) >= 2
    assert {row["audited"] for row in rows} == {f"not attacked: rank could not read it; {note['note']}"}
    with pytest.raises(RuntimeError, match="neither attacked nor waived"):
        list(findings._surface_rows(experiment, progress, [], {}))
