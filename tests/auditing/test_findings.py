"""Tests of ``privdd.auditing.findings``."""

from __future__ import annotations

import json
import math
import re
from collections import defaultdict
from dataclasses import replace
from itertools import product
from types import SimpleNamespace
from typing import Any

import dp_accounting as dpa
import numpy as np
import pytest
import torch
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant

from attacks.measures import GuaranteeMeasures, MembershipMeasures
from attacks.membership.lira import Lira
from attacks.membership.measures import one_run_bound
from attacks.types import Adversary, Family, Finding, Knowledge, Surface, View, Worlds
from privdd.auditing import findings
from privdd.auditing import pipeline as auditing
from privdd.auditing.attack_tasks import error_budget, familywise_bound
from privdd.auditing.coverage import check_coverage
from privdd.auditing.findings import (
    noise_settings_of,
    public_information,
    reconstruction_rows,
    record_level_ledger,
    shown_entries,
    shown_entries_of_surface,
    stated_epsilons,
)
from privdd.auditing.verdicts import decide_verdict
from privdd.cli import external_scores
from privdd.cli.build import build_attacks, build_experiment, build_shipped_attacks
from privdd.cli.compose import compose_config
from privdd.cli.run import run_audit
from privdd.cli.settings import audit_settings
from privdd.core.types import Records, Shard
from privdd.core.validation import BadConfig
from privdd.federated.experiment import Experiment
from privdd.federated.simulation import publish_final_state, run_round, start_training
from privdd.privacy.accounting import epsilon as accounted
from privdd.privacy.claims import Claim
from privdd.privacy.ledger import Ledger
from privdd.privacy.mechanism import LedgerRow
from privdd.reporting.schema import load_findings, worst_verdict
from privdd.runtime.engine import Engine
from privdd.runtime.files import read_json
from privdd.runtime.run_folder import read_tensors
from tests.federations import ALGOS, tiny, tiny_config, trained
from tests.privacy.test_ledger import G
from tests.privacy.test_ledger import row as released

# findings.json and ledger.json of real small audits, against what others must be able to recompute.


NAMES = ["fedavg", "fedfed", "fedfed_released", "fedfed_dp", "fedavg_dpsgd"]


def timeless(value: Any) -> Any:
    """Plain data without any key called seconds."""
    if isinstance(value, dict):
        return {k: timeless(v) for k, v in value.items() if k != "seconds"}
    return [timeless(v) for v in value] if isinstance(value, list) else value


@pytest.mark.nightly(cases=["fedfed_released"])
@pytest.mark.parametrize("name", NAMES)
def test_schema_and_exit_status(audited, name):
    """The reader accepts it; status 0 or 2 as the verdict says; numbers are finite or the string
    "inf"."""
    run = audited(name)
    found = load_findings(run.path)
    raw = (run.path / "findings.json").read_text()
    assert run.status == (2 if found.verdict == "contradiction" else 0)
    assert "NaN" not in raw and "Infinity" not in raw
    data = json.loads(raw)
    assert data["schema"] == 1 and data["run"]["algo"] == name and data["run"]["clients"] == 3
    assert len(data["utility"]["accuracy_by_round"]) == data["run"]["rounds"]
    assert data["utility"]["accuracy"] == data["utility"]["accuracy_by_round"][-1]
    assert str(run.path / "findings.json") in run.printed


@pytest.mark.nightly(cases=["fedfed_released"])
@pytest.mark.parametrize("name", NAMES)
def test_every_surface_of_the_ledger_is_a_row_and_attacked(audited, name):
    """Surfaces that the server, peers or the public see; each attacked by someone; bytes as
    sent."""
    path = audited(name).path
    data = read_json(path / "findings.json")
    ledger = read_json(path / "ledger.json")
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
            assert (
                "auc" not in finding
                and "epsilon_shown" not in finding
                and "nothing to" in finding["note"]
            )
        elif finding["family"] == "membership":
            assert {
                "auc",
                "auc_ci",
                "blind_auc",
                "epsilon_shown",
                "epsilon_validity",
                "n",
                "worlds",
            } <= set(finding)


@pytest.mark.nightly(cases=["fedfed_released"])
@pytest.mark.parametrize("name", NAMES)
def test_bytes_are_those_of_the_artifacts(audited, name):
    """Uploaded bytes by client against the files that were captured."""
    path = audited(name).path
    files = list((path / "artifacts").rglob("client_*.safetensors"))
    total = sum(t.numel() * t.element_size() for file in files for t in read_tensors(file).values())
    data = read_json(path / "findings.json")
    assert data["utility"]["uploaded_bytes_per_client"] == round(total / 3)
    assert sum(r["bytes"] for r in data["surfaces"] if r["sender"] == "client") == total


@pytest.mark.nightly(cases=["fedfed_released"])
@pytest.mark.parametrize("name", ["fedavg", "fedfed", "fedfed_released"])
def test_epsilon_is_infinite_without_a_guarantee(audited, name):
    data = read_json(audited(name).path / "findings.json")
    assert data["privacy"]["epsilon"] == {"pld": "inf", "rdp": "inf"}
    update = next(s for s in data["surfaces"] if s["surface"] == "update")
    assert update["mechanism"] == "none" and update["verdict"] == "unprotected"


def test_epsilons_say_what_is_protected(audited):
    """fedfed_dp and DP-SGD: finite everywhere; fedfed's claim beside it."""
    for name in ("fedfed_dp", "fedavg_dpsgd"):
        data = read_json(audited(name).path / "findings.json")
        values = [data["privacy"]["epsilon"], *(s["epsilon"] for s in data["surfaces"])]
        assert all(
            isinstance(v, float | int) and 0 <= v < math.inf
            for pair in values
            for v in (pair["pld"], pair["rdp"])
        )
        assert 0 < 0.7 * data["privacy"]["epsilon"]["pld"] < data["privacy"]["epsilon"]["shown"]
        assert data["privacy"]["epsilon"]["shown"] <= 1.001 * data["privacy"]["epsilon"]["pld"]
    claims = read_json(audited("fedfed").path / "findings.json")["privacy"]["claims"]
    assert claims and not any(claim["sound"] for claim in claims)
    told = {claim["source"]: claim for claim in claims}
    assert told["Yang 2023, Lemma D.2"]["epsilon"] == "no number"
    assert told["Yang 2023, Theorem 3.4 as printed"]["delta"] > 1e-5


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
            worst = max(
                worst,
                accountant(add_remove)
                .compose(dpa.ComposedDpEvent(events))
                .get_epsilon(data["delta"]),
            )
    return worst


@pytest.mark.nightly(cases=["fedfed_dp", "fedavg_dpsgd", "fedfed_released"])
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
    pld = recomputed(
        ledger, lambda n: PLDAccountant(neighboring_relation=n, value_discretization_interval=1e-3)
    )
    assert stated["pld"] == pytest.approx(pld, rel=2e-2) and pld < rdp


def test_partition_cells_compose_in_parallel():
    """feddm_dp's reads are by label: the worst cell counts, not the sum over labels."""
    ledger = trained("feddm_dp", "privacy.sampling_probability=1.0")[0].ledger.to_json()
    cells = {r["partition"] for r in ledger["releases"] if r["client"] >= 0}
    assert len(cells - {None}) == 10
    rdp = recomputed(ledger, lambda n: RdpAccountant(neighboring_relation=n))
    flat = {**ledger, "releases": [{**r, "partition": None} for r in ledger["releases"]]}
    assert Ledger.from_json(ledger).epsilon(accountant="rdp") == pytest.approx(rdp, rel=2e-2)
    assert recomputed(flat, lambda n: RdpAccountant(neighboring_relation=n)) > 1.5 * rdp


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
            assert file.read_bytes() == (again.path / file.relative_to(first.path)).read_bytes(), (
                file.name
            )
    other = timeless(read_json(audited("fedavg_seed1").path / "findings.json"))
    assert other["findings"] != a["findings"]


def small_config(*more: str):
    config = tiny_config(
        "fedavg", "audit.records=10", "audit.worlds=3", "audit.victims=1", *more, command="audit"
    )
    config.name = "fedavg"
    return config


def test_a_surface_without_attack_stops_before_training(tmp_path, monkeypatch):
    def never(*_: object) -> None:
        raise AssertionError("training began")

    monkeypatch.setattr(auditing, "Trainer", never)
    with pytest.raises(
        BadConfig,
        match=r"no attack for counts, global_model, statistics.*audit\.waive\.counts='reason'",
    ):
        run_audit(small_config("attack=[gradient_inversion]"), tmp_path / "run", [])
    assert not (tmp_path / "run").exists()
    with pytest.raises(BadConfig, match="at least one attack"):
        run_audit(small_config("attack=[]"), tmp_path / "run", [])


def test_waivers_need_reasons_and_are_reported(tmp_path, monkeypatch):
    waivers = [
        f"audit.waive.{s}='only the update matters here'"
        for s in ("counts", "statistics", "global_model")
    ]
    config = small_config(
        "attack=[gradient_inversion]", "attack.gradient_inversion.method.iterations=2", *waivers
    )
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
                small_config(
                    "attack=[gradient_inversion]", *waivers[1:], f"audit.waive.counts={empty}"
                ),
                tmp_path / "x",
                [],
            )


def test_what_certain_attacks_do_not_read_is_said_and_not_called_waived(tmp_path, monkeypatch):
    """``attack=[...]`` runs what it can; in the findings the rest is not attacked, and a written
    reason stays one."""
    monkeypatch.setattr("privdd.reporting.page.write_report", lambda path: path)
    config = small_config(
        "attack=[gradient_inversion]",
        "attack.gradient_inversion.method.iterations=2",
        "audit.require=some",
        "audit.waive.counts='public here'",
    )
    assert run_audit(config, tmp_path, []) == 0
    rows = {r["surface"]: r["audited"] for r in read_json(tmp_path / "findings.json")["surfaces"]}
    assert rows == {
        "update": True,
        "counts": "waived: public here",
        "global_model": "not attacked: not read by the attacks asked for",
    }


def test_an_answer_to_a_chosen_model_does_not_count_as_a_look_at_what_was_sent(
    tmp_path, monkeypatch, capsys
):
    """A malicious server reads another upload than the run's own; and an attack with nothing to
    read here is named."""
    monkeypatch.setattr("privdd.reporting.page.write_report", lambda path: path)
    config = small_config(
        "attack=[copy_detection,imprint,model_inversion]",
        "attack.imprint.units=64",
        "audit.require=some",
        "attack.model_inversion.prior=null",
        "attack.model_inversion.miface.iterations=2",
        "attack.model_inversion.referee.steps=2",
    )
    assert run_audit(config, tmp_path, []) == 0
    found = read_json(tmp_path / "findings.json")
    assert any(
        f["attack"] == "imprint" and f["surface"] == "update" and "psnr" in f
        for f in found["findings"]
    )
    rows = {r["surface"]: r["audited"] for r in found["surfaces"]}
    assert (
        rows["update"] == "not attacked: not read by the attacks asked for"
        and rows["global_model"] is True
    )
    assert read_json(tmp_path / "manifest.json")["attacks_not_run"] == ["copy_detection"]
    assert (
        "not run, as fedavg releases nothing that they read: copy_detection\n"
        in capsys.readouterr().out
    )


@pytest.mark.nightly
def test_all_attacks_cover_every_method():
    """attack=all, the default, leaves no surface of any yaml open."""
    from privdd.cli.compose import expand_arguments
    from tests.federations import ALGOS

    config = compose_config("audit", expand_arguments(["algo=fedavg", "preset=smoke"], "audit"))
    attacks = build_attacks(config)
    for algo in ALGOS:
        check_coverage(
            tiny(algo).plan.method, attacks, audit_settings(config), build_shipped_attacks
        )


def test_attacks_that_lack_worlds_do_not_cover():
    """LiRA reads the global model only where federations are replayed; a single world gives it
    nothing."""
    method = tiny("fedavg").plan.method

    def uncovered(*more: str) -> str:
        config = compose_config("audit", ["algo=fedavg", "preset=smoke", "attack=[lira]", *more])
        try:
            check_coverage(
                method, build_attacks(config), audit_settings(config), build_shipped_attacks
            )
        except BadConfig as error:
            return str(error)
        return ""

    assert "no attack for global_model with" in uncovered()
    assert uncovered("audit.federations=4") == ""
    assert "counts, global_model, statistics, update" in uncovered(
        "audit.worlds=1", "audit.federations=4"
    )
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


@pytest.mark.nightly(cases=["fusion"])
@pytest.mark.parametrize("attack", ["lira", "fusion"])
def test_a_signal_that_a_surface_lacks_is_named_with_those_it_has(attack, tmp_path):
    run_audit(
        small_config(
            f"attack=[{attack}]",
            f"attack.{attack}.signal=nowhere",
            "audit.worlds=5",
            "audit.require=some",
        ),
        tmp_path,
        [],
    )
    notes = [
        row.note
        for row in load_findings(tmp_path).findings
        if row.surface == "update" and row.status == "nothing_to_read"
    ]
    assert notes and all(
        "no signal nowhere on update, which has align" in str(note) for note in notes
    )


def test_an_attack_that_breaks_ends_and_the_others_go_on(tmp_path, monkeypatch, capsys):
    def broken(self, view, generator):
        raise ZeroDivisionError("no shadows")

    monkeypatch.setattr(Lira, "run", broken)
    run_audit(small_config("attack=[lira,loss_threshold]"), tmp_path, [])
    rows = {row.attack: row for row in load_findings(tmp_path).findings if row.surface == "update"}
    assert rows["lira"].status == "failed" and str(rows["lira"].note).endswith(
        "failed: ZeroDivisionError: no shadows"
    )
    assert rows["lira"].auc is None and rows["loss_threshold"].auc is not None
    said = " ".join(capsys.readouterr().out.split())
    assert (
        "Not tested: LiRA on the model update (round 1; failed: ZeroDivisionError: no shadows)."
        in said
    )
    assert (
        "The membership attack that had something to read was not shown to do better than chance"
        in said
    )


def test_a_surface_that_its_only_attack_could_not_read_was_not_attacked() -> None:
    """An attack of one's own may find nothing to compare in a single world: that is said, and the
    run goes on."""
    progress, _, _ = trained("fedavg")
    unread = MembershipMeasures(
        status="nothing_to_read", note="nothing to read: its scores are the same", worlds=1
    )
    sent = {release.surface for release in progress.ledger.releases}
    mute = [
        Finding(Surface(one), "rank", Family.MEMBERSHIP, Adversary.SERVER, unread) for one in sent
    ]
    experiment = build_experiment(tiny_config("fedavg", command="audit"))
    run = SimpleNamespace(experiment=experiment, progress=progress)
    state = SimpleNamespace(finished_run=run, attacks={})
    rows = list(findings._surface_rows(state, mute))
    assert len(rows) >= 2
    assert {row["audited"] for row in rows} == {
        f"not attacked: rank could not read it; {unread.note}"
    }
    with pytest.raises(RuntimeError, match="neither attacked nor waived"):
        list(findings._surface_rows(state, []))


# Which bound is a run's certified epsilon: the largest that speaks of the whole run, and says what
# it trusts.


def row(epsilon: float, **diagnostics: object) -> Finding:
    measures = GuaranteeMeasures(epsilon_shown=epsilon, diagnostics=diagnostics)
    return Finding(Surface.UPDATE, "t2_whole_run", Family.GUARANTEE, Adversary.ANALYST, measures)


def test_the_largest_bound_for_the_whole_run_is_taken_with_what_it_trusts() -> None:
    found = [
        row(1.0, certificate={"runs": 1}),
        row(3.0, certificate={"runs": 3}),
        row(9.0, unit="record"),
    ]
    assert shown_entries(found) == {"shown": 3.0, "shown_by": {"runs": 3}}


def test_nothing_is_certified_without_such_a_bound() -> None:
    assert shown_entries([row(9.0, unit="record")]) == {}


def test_a_surface_is_certified_where_it_was_computed_from_all_that_the_client_spends() -> None:
    found = [row(3.0, certificate={"runs": 3})]
    one = released(G(1.0), surface="a")
    two = released(G(1.0), surface="b")
    other = released(G(1.0), surface="a", client=1)
    ledger = Ledger()
    ledger.append([one])
    assert shown_entries_of_surface(0, ledger, "a", found) == shown_entries(found)
    ledger.append([other])
    assert (
        shown_entries_of_surface(0, ledger, "a", found)
        == shown_entries(found)
        == shown_entries_of_surface(1, ledger, "a", found)
    )
    assert (
        shown_entries_of_surface(0, ledger, "b", found)
        == shown_entries_of_surface(2, ledger, "a", found)
        == {}
    )
    ledger.append([two])
    assert shown_entries_of_surface(0, ledger, "a", found) == {}


# What a report calls public does not depend on the records, and says what the plan does.


CASES = [
    *((algo,) for algo in ALGOS if algo.endswith("_dp")),
    ("fedavg",),
    ("fedavg", "privacy=dpsgd"),
    ("fedavg", "privacy=client", "participation=0.67"),
]


def facts(experiment: Experiment, ledger: Ledger) -> dict[str, str]:
    found = [(fact["what"], fact["value"]) for fact in public_information(experiment, ledger)]
    assert len(dict(found)) == len(found)
    return dict(found)


def other_records(shard: Shard) -> Shard:
    """As many records, with other images and, where labels may change, other labels."""
    return shard.with_train(Records(1 - shard.train.x, shard.train.y.flip(0), shard.train.ids))


def halved(shard: Shard) -> Shard:
    """Half of the records zeroed out: what fewer of them is where their number is public."""
    half = len(shard.train) // 2
    gone = shard.train.take(range(half, len(shard.train)))
    return replace(
        shard.with_train(shard.train.take(range(half))),
        nulls=replace(gone, x=torch.zeros_like(gone.x)),
    )


@pytest.mark.nightly(but=["fedavg", "fedavg privacy=client participation=0.67"])
@pytest.mark.parametrize("case", CASES, ids=" ".join)
def test_no_fact_depends_on_the_records(case: tuple[str, ...]) -> None:
    experiment = tiny(*case)
    said = [facts(experiment, trained(*case)[0].ledger)]
    for other in (other_records, halved):
        shards = [other(shard) for shard in experiment.shards]
        progress = start_training(experiment.plan, experiment.new_ledger())
        while progress.round < experiment.plan.method.rounds:
            progress = run_round(experiment.plan, progress, shards, Engine())[0]
        said.append(facts(experiment, publish_final_state(experiment.plan, progress).ledger))
    assert said[0] == said[1] == said[2]


@pytest.mark.nightly(cases=["feddm_public_dp", "fedrd_dp", "feddm_dp", "feddm_guided_dp"])
@pytest.mark.parametrize("case", CASES, ids=" ".join)
def test_the_applications_are_those_of_the_ledger(case: tuple[str, ...]) -> None:
    """Counted in the rows, release by release: of one client and, where a release has one, one
    class."""
    experiment, (progress, _, _) = tiny(*case), trained(*case)
    said = facts(experiment, progress.ledger)
    for name in experiment.plan.mechanisms:
        counts: dict[tuple[int, int, str | None], int] = {}
        for row in progress.ledger.releases:
            if row.name == name:
                at = (row.round, row.client, row.partition)
                counts[at] = counts.get(at, 0) + row.count
        (each,) = set(counts.values())
        assert said[f"applications of {name}"].startswith(f"{each} by a client in ")
        assert said[f"applications of {name}"].endswith("to each class") is any(
            part for _, _, part in counts
        )


def test_the_words_of_one_run() -> None:
    case = ("fedavg", "privacy=dpsgd", "participation=0.67")
    said = facts(tiny(*case), trained(*case)[0].ledger)
    assert said["participation"].startswith("2 of 3 clients a round") and said["rounds"] == "2"
    assert said["mechanism of dpsgd"] == (
        "ClippedSum, noise multiplier 1, clip norm 1, sampling probability 0.5, normaliser 20"
    )
    assert said["applications of dpsgd"] == "2 by a client in each round"
    numbers = sum(t.numel() for t in trained(*case)[1][0].values["update"].values())
    assert said["shape of update"].startswith(f"{numbers} numbers in ")


def test_accuracy_on_private_records_is_said_to_be_uncovered() -> None:
    for algo, private in (
        ("fedrd_dp", True),
        ("fedproto", True),
        ("fedavg", False),
        ("feddm_dp", False),
    ):
        said = facts(tiny(algo), trained(algo)[0].ledger)["accuracy"]
        assert ("no ε covers it" in said) is private, algo


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        (("privacy=none",), None),
        (("privacy=dpsgd",), ("seed", False, False)),
        (("privacy=dpsgd", "privacy.noise_source=os"), ("os", False, True)),
        (
            ("privacy=dpsgd", "privacy.noise_source=secret", "privacy.secret=a_secret_of_letters"),
            ("secret", False, True),
        ),
        (
            (
                "privacy=dpsgd",
                "privacy.noise_source=secret",
                "privacy.secret=a_secret_of_letters",
                "privacy.paired_noise=true",
            ),
            ("secret", True, False),
        ),
    ],
)
def test_whose_the_noise_is(more: tuple[str, ...], expected: tuple[str, bool, bool] | None) -> None:
    found = noise_settings_of(tiny("fedavg", *more))
    assert found == (expected and dict(zip(("source", "paired", "for_release"), expected)))


# ``decide_verdict`` and ``stated_epsilons``: when a report says contradiction, and what it holds a
# surface to.


STATED = 4.0
LITTLE = 1.0
MUCH = 9.0
FINITE = "finite_sample"
GAUSSIAN = "gaussian_only"
PROVEN = {"pld": 4.0, "rdp": 4.5}
NOTHING_PROVEN = {"pld": math.inf, "rdp": math.inf}
# kappa too large, family-wise too large, validity
CASES_VERDICT = list(product((False, True), (False, True), (FINITE, GAUSSIAN)))


def membership(
    familywise: float | None, single: float, validity: str = FINITE, **more: Any
) -> Finding:
    measures = MembershipMeasures(auc=0.6, epsilon_shown=single, epsilon_validity=validity, **more)
    if familywise is not None:
        diagnostics = {"epsilon_familywise": familywise, "tests": 12}
        measures = replace(measures, diagnostics=diagnostics)
    return Finding(Surface.UPDATE, "lira", Family.MEMBERSHIP, Adversary.SERVER, measures)


def sensitivity(kappa: float, allowed: float = 1.0) -> Finding:
    measures = GuaranteeMeasures(kappa=kappa, kappa_allowed=allowed)
    return Finding(Surface.UPDATE, "sensitivity", Family.GUARANTEE, Adversary.SERVER, measures)


def case(moved: bool, above: bool, validity: str) -> list[Finding]:
    """The single bound always says the opposite of the family-wise one."""
    bound, single = (MUCH, LITTLE) if above else (LITTLE, MUCH)
    return [membership(bound, single, validity), sensitivity(1.5 if moved else 0.9)]


@pytest.mark.parametrize(("moved", "above", "validity"), CASES_VERDICT)
@pytest.mark.parametrize("epsilon", [PROVEN, NOTHING_PROVEN])
def test_verdict_of_kappa_familywise_bound_and_validity(
    moved: bool, above: bool, validity: str, epsilon: dict[str, float]
) -> None:
    findings = case(moved, above, validity)
    quiet = "consistent" if epsilon is PROVEN else "unprotected"
    expected = "contradiction" if moved or (above and validity == FINITE) else quiet
    assert decide_verdict(epsilon, STATED, findings) == expected
    assert (
        decide_verdict(epsilon, STATED, findings[::-1]) == expected
    )  # whichever finding comes first


@pytest.mark.parametrize(("single", "expected"), [(MUCH, "contradiction"), (LITTLE, "consistent")])
def test_verdict_takes_the_single_bound_where_no_familywise_one_was_computed(
    single: float, expected: str
) -> None:
    assert decide_verdict(PROVEN, STATED, [membership(None, single)]) == expected


def test_verdict_at_the_limits() -> None:
    """A bound that equals what is stated, and a kappa within rounding of what is allowed,
    contradict nothing."""
    assert decide_verdict(PROVEN, STATED, [membership(STATED, MUCH)]) == "consistent"
    assert decide_verdict(PROVEN, STATED, [sensitivity(2.0 * (1 + 5e-5), 2.0)]) == "consistent"
    assert decide_verdict(PROVEN, STATED, [sensitivity(2.0 * (1 + 2e-4), 2.0)]) == "contradiction"
    assert (
        decide_verdict(PROVEN, None, [membership(MUCH, MUCH)]) == "consistent"
    )  # nothing is promised, nothing is broken
    assert (
        decide_verdict({"pld": 3.0, "rdp": math.inf}, STATED, []) == "consistent"
    )  # one accountant's proof is enough


def test_verdict_prefers_the_limit_of_the_finding_itself() -> None:
    """Guarantee findings bring the epsilon of the one mechanism that they test."""
    assert (
        decide_verdict(PROVEN, STATED, [membership(5.0, 5.0, epsilon_stated=6.0)]) == "consistent"
    )
    assert (
        decide_verdict(PROVEN, 10.0, [membership(7.0, 7.0, epsilon_stated=6.0)]) == "contradiction"
    )
    assert (
        decide_verdict(PROVEN, None, [membership(7.0, 7.0, epsilon_stated=6.0)]) == "contradiction"
    )


@pytest.mark.parametrize(
    "order",
    [("contradiction", "unprotected", "untested", "consistent"), ("untested", "consistent")],
)
def test_the_worst_verdict_of_any_surface_is_the_runs(order: tuple[str, ...]) -> None:
    assert worst_verdict(order[::-1]) == order[0] and worst_verdict([]) == "consistent"


def test_epsilon_familywise_shares_five_percent_among_all_tests() -> None:
    """The bound that decides is the one-run bound at confidence 1 - 0.05 / tests, on the run that
    happened."""
    masks = torch.rand(3, 400, generator=torch.Generator().manual_seed(0)) < 0.5
    scores = masks.double() * 4 + torch.randn(
        3, 400, generator=torch.Generator().manual_seed(1), dtype=torch.float64
    )
    knowledge = Knowledge((1, 2, 2), 2, torch.zeros(0, 1, 2, 2), torch.zeros(0).long())
    labels = torch.zeros(400, dtype=torch.long)
    view = View(
        Surface.UPDATE, Adversary.SERVER, (), knowledge, Worlds({}, masks, torch.zeros(400), labels)
    )
    bounds = {}
    for tests in (1, 20):
        said = familywise_bound(scores, view, 1e-4, error_budget(0.95, tests, 0), 2, None)
        rng = np.random.default_rng(2)
        expected = one_run_bound(scores, masks, 1e-4, rng, confidence={1: 0.95, 20: 0.9975}[tests])
        assert said == {"epsilon_familywise": expected.value, "tests": tests}
        bounds[tests] = said["epsilon_familywise"]
    assert 0 < bounds[20] < bounds[1]
    smaller = familywise_bound(scores, view, 1e-4, error_budget(0.95, 20, 0), 2, bounds[20] / 2)
    assert (
        smaller["epsilon_familywise"] == bounds[20] / 2
    )  # ties broken by other draws: never above the uncorrected one


def external(familywise: float | None, single: float, validity: str) -> tuple[Finding, Finding]:
    """One finding at the single confidence, and what the same test gives at the shared one."""
    lone = replace(membership(None, single, validity), surface=Surface.GLOBAL_MODEL)
    lone = lone.with_measures(
        auc_ci=[0.5, 0.7], tpr_at_fpr={}, confidence=0.95, n=100, epsilon_method="one_run"
    )
    return lone, lone if familywise is None else lone.with_measures(epsilon_shown=familywise)


@pytest.mark.parametrize(
    ("above", "validity", "stated"),
    list(product((False, True), (FINITE, GAUSSIAN), (STATED, None))),
)
def test_external_scores_are_judged_by_the_same_rule(
    above: bool, validity: str, stated: float | None, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    lone, strict = external(*((MUCH, LITTLE) if above else (LITTLE, MUCH)), validity)

    def scored(path: str, *, confidence: float, **given: Any) -> list[Finding]:
        # two tests share alpha: 0.975
        return [lone, lone] if confidence == 0.95 else [strict, strict]

    monkeypatch.setattr(external_scores, "audit_scores", scored)
    monkeypatch.setattr("privdd.reporting.page.write_report", lambda path: path / "report.html")
    scores = tmp_path / "scores.npz"  # the result says which arrays it holds
    np.savez(scores, scores=np.arange(4.0), member=np.arange(4) % 2)
    config = compose_config(
        "audit", [f"scores={scores}", f"privacy.epsilon={'null' if stated is None else stated}"]
    )
    status = external_scores.audit_external_scores(
        external_scores.scores_request(config), tmp_path / "run", []
    )
    broken = above and validity == FINITE and stated is not None
    assert load_findings(tmp_path / "run").verdict == ("contradiction" if broken else "unprotected")
    assert status == (2 if broken else 0)


@pytest.mark.parametrize("broken", [False, True])
@pytest.mark.parametrize("epsilon", [PROVEN, NOTHING_PROVEN])
def test_what_no_test_looked_at_is_untested_and_no_more(
    epsilon: dict[str, float], broken: bool
) -> None:
    """A contradiction stays one, and where nothing is proven there is nothing to test."""
    findings = [sensitivity(1.5 if broken else 0.9)]
    quiet = "untested" if epsilon is PROVEN else "unprotected"
    assert decide_verdict(epsilon, STATED, findings, ["update, noise: why"]) == (
        "contradiction" if broken else quiet
    )


@pytest.mark.parametrize(("refuted", "expected"), [(True, "contradiction"), (False, "consistent")])
def test_noise_that_is_not_what_is_stated_is_a_contradiction(refuted: bool, expected: str) -> None:
    noise = Finding(
        Surface.UPDATE,
        "t0_noise",
        Family.GUARANTEE,
        Adversary.ANALYST,
        GuaranteeMeasures(diagnostics={"refuted": refuted}),
    )
    assert decide_verdict(PROVEN, STATED, [noise]) == expected


def test_what_the_boldest_claim_allows_stands_beside_what_is_proven() -> None:
    """(0, delta) leaves 1/k + delta; claims without a number allow nothing to be said."""
    ledger = Ledger(delta=1e-5)
    words = Claim("w", None, False, "")
    number = Claim("n", 0.0, False, "", 1e-3)
    assert all("claimed" not in row for row in reconstruction_rows(ledger, [words]))
    rows = reconstruction_rows(ledger, [words, number])
    assert [row["claimed"] for row in rows] == pytest.approx([row["prior"] + 1e-3 for row in rows])
    assert [(row["k"], row["bound"]) for row in rows] == [
        (2, 0.5),
        (10, 0.1),
        (100, 0.01),
        (1000, 0.001),
    ]


def row_verdict(surface: Surface, event: dpa.DpEvent, **more: Any) -> LedgerRow:
    return LedgerRow(0, 0, str(surface), str(surface), ("server",), {"x": (1,)}, "", event, **more)


def test_stated_epsilons_are_what_is_accounted() -> None:
    """The smaller accountant; infinite ones left out; a surface pays for what it was computed
    from."""
    ledger = Ledger(delta=1e-5)
    gradient = dpa.GaussianDpEvent(1.0)
    labels = dpa.GaussianDpEvent(3.0)
    ledger.append(
        [
            row_verdict(Surface.GRADIENT, gradient),
            row_verdict(Surface.UPDATE, dpa.NoOpDpEvent(), post_of=(0,)),
            row_verdict(Surface.LABELS, labels),
            row_verdict(
                Surface.STATISTICS, dpa.NonPrivateDpEvent(), nonprivate_reason="no mechanism"
            ),
        ]
    )

    def smaller(event: dpa.DpEvent) -> float:
        return min(accounted(event, 1e-5), accounted(event, 1e-5, accountant="rdp"))

    found = stated_epsilons(ledger)
    assert found == pytest.approx(
        {"gradient": smaller(gradient), "update": smaller(gradient), "labels": smaller(labels)}
    )
    assert smaller(labels) < accounted(
        labels, 1e-5, accountant="rdp"
    )  # or the choice would not show


def test_a_promise_to_a_client_is_a_promise_to_each_of_its_records() -> None:
    """Client-level noise z bounds one record as noise z/2 does: a client with it, and without, is
    close to no client."""
    ledger = Ledger("zero_out", "client", 1e-5)
    ledger.append(
        [
            row_verdict(
                Surface.UPDATE, dpa.GaussianDpEvent(1.0), flags={"unit:client": True}, count=3
            )
        ]
    )
    twice = accounted(dpa.SelfComposedDpEvent(dpa.GaussianDpEvent(0.5), 3), 1e-5)
    assert (
        record_level_ledger(ledger).epsilon() == pytest.approx(twice, rel=1e-3)
        and twice > 2 * ledger.epsilon()
    )
    for same in (Ledger("add_remove"), Ledger("replace", "client")):
        assert record_level_ledger(same) is same
