"""What a limit rests on: a part counts as tested only where a test says that it looked, for every
mechanism behind it."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import dp_accounting as dpa
import pytest

from attacks.measures import GuaranteeMeasures
from attacks.types import Adversary, Attack, Family, Finding, Surface
from privdd.auditing.coverage import (
    PARTS_OF_OLD_RUNS,
    TESTS_BY_PART,
    UNREAD_REASON,
    check_coverage,
    covered_diagnostics,
    describe_unmeasured,
    uncovered_surfaces,
    untested_diagnostics,
    untested_parts,
)
from privdd.cli.build import build_shipped_attacks, instantiate_node, standardise_classifiers
from privdd.cli.compose import compose_config, expand_arguments
from privdd.cli.run import run_audit
from privdd.cli.settings import audit_settings
from privdd.core.validation import BadConfig
from privdd.federated.settings import AuditSettings
from privdd.privacy.ledger import Ledger
from privdd.privacy.mechanism import LedgerRow
from privdd.runtime.files import read_json
from tests.federations import ALGOS, tiny, tiny_config

SAMPLED = dpa.PoissonSampledDpEvent(0.1, dpa.GaussianDpEvent(1.0))
TESTS = dict.fromkeys(test for tests in TESTS_BY_PART.values() for test in tests)


def row(name: str, surface: Surface, event: dpa.DpEvent, **more: Any) -> LedgerRow:
    return LedgerRow(0, 0, name, str(surface), ("server",), {"x": (1,)}, "", event, **more)


def guarantee(attack: str, name: str, **measures: Any) -> Finding:
    tested = GuaranteeMeasures(signal=name, **measures)
    return Finding(Surface.UPDATE, attack, Family.GUARANTEE, Adversary.ANALYST, tested)


def looked(test: str, name: str = "dpsgd") -> Finding:
    return guarantee(test, name, diagnostics=covered_diagnostics(test, [0]))


@pytest.fixture
def ledger() -> Ledger:
    """A sampled query, an update computed from it, counts with noise of their own, and labels that
    need none."""
    made = Ledger("add_remove", "record", 1e-5)
    made.append(
        [
            row("dpsgd", Surface.GRADIENT, SAMPLED),
            row("update", Surface.UPDATE, dpa.NoOpDpEvent(), post_of=(0,)),
            row("counts", Surface.COUNTS, dpa.GaussianDpEvent(2.0)),
            row("labels", Surface.LABELS, dpa.NoOpDpEvent()),
            row(
                "raw", Surface.STATISTICS, dpa.NonPrivateDpEvent(), nonprivate_reason="no mechanism"
            ),
        ]
    )
    return made


@pytest.mark.parametrize("absent", TESTS)
def test_a_surface_needs_tests_of_all_parts_of_all_mechanisms_that_it_was_computed_from(
    ledger: Ledger, absent: str
) -> None:
    assert untested_parts(ledger, "update", [looked(test) for test in TESTS]) == []
    left = [looked(test) for test in TESTS if test != absent]
    parts = [part for part, tests in TESTS_BY_PART.items() if absent in tests]
    assert untested_parts(ledger, "update", left) == [
        f"dpsgd, {part}: no test applies to it" for part in parts
    ]
    of_counts = [
        line.split(":")[0]
        for line in untested_parts(ledger, "counts", [looked(test) for test in TESTS])
    ]
    assert of_counts == [
        f"counts, {part}" for part in TESTS_BY_PART if part != "sampling"
    ]  # its accounting counts on none


@pytest.mark.parametrize("declined", TESTS)
def test_a_test_that_declined_leaves_its_parts_untested_whatever_others_covered(
    ledger: Ledger, declined: str
) -> None:
    said = [looked(test) for test in TESTS]
    said.append(
        guarantee(
            declined,
            "counts, dpsgd",
            diagnostics=untested_diagnostics(declined, "rounds 1 to 3 ran out of time"),
        )
    )
    parts = [part for part, tests in TESTS_BY_PART.items() if declined in tests]
    assert untested_parts(ledger, "update", said) == [
        f"dpsgd, {part}: rounds 1 to 3 ran out of time" for part in parts
    ]


def test_a_test_that_looked_at_no_round_has_not_looked(ledger: Ledger) -> None:
    left = [looked(test) for test in TESTS if test != "t1_told"]
    none = guarantee(
        "t1_told", "dpsgd", note="no round was kept", diagnostics=covered_diagnostics("t1_told", [])
    )
    assert untested_parts(ledger, "update", [*left, none]) == [
        f"dpsgd, {p}: no round was kept" for p in ("memory", "messages")
    ]


def test_runs_that_were_stored_before_tests_said_so_are_judged_by_what_they_measured(
    ledger: Ledger,
) -> None:
    noise = guarantee("t0_noise", "dpsgd", diagnostics={"p_value": 0.5})
    sampling = guarantee("t0_sampling", "dpsgd", diagnostics={"p_value": 0.5})
    kappa = guarantee("t1_sensitivity", "dpsgd", kappa=0.9, kappa_allowed=1.0)
    assert untested_parts(ledger, "update", [noise, sampling, kappa]) == []
    silent = guarantee(
        "t0_noise", "dpsgd", diagnostics={"untested": "it shows no value"}, note="longer"
    )
    refused = guarantee("t1_sensitivity", "dpsgd", n=0, note="was not tested")
    assert untested_parts(ledger, "update", [silent, sampling, refused]) == [
        "dpsgd, noise: it shows no value",
        "dpsgd, sensitivity: was not tested",
    ]
    assert [line.split(":")[0] for line in untested_parts(ledger, "update", [])] == [
        f"dpsgd, {part}" for part in PARTS_OF_OLD_RUNS
    ]


@pytest.mark.parametrize("surface", ["labels", "statistics"])
def test_where_no_mechanism_promises_anything_nothing_is_missing(
    ledger: Ledger, surface: str
) -> None:
    assert untested_parts(ledger, surface, []) == []


def test_a_test_says_in_which_rounds_it_looked_at_its_parts() -> None:
    for test in TESTS:
        parts = [part for part, tests in TESTS_BY_PART.items() if test in tests]
        assert parts and covered_diagnostics(test, {3, 0}) == {
            "covers": {part: [0, 3] for part in parts}
        }


@cache
def audit_of_one_attack() -> tuple[dict[str, Attack], AuditSettings]:
    config = compose_config("audit", expand_arguments(["algo=fedavg", "preset=smoke"], "audit"))
    settings = audit_settings(config)
    assert settings is not None
    return build_shipped_attacks(), settings


@pytest.mark.nightly(
    cases=[
        "feddm_guided_dp",
        "feddm_guided_scattering",
        "fedfed_flbench",
        "dp_head_scattering",
        "fedfed_virtual",
        "fedlgd_released",
    ]
)
@pytest.mark.parametrize("algo", sorted(ALGOS))
def test_a_single_attack_is_refused_before_training_or_leaves_no_surface_without_a_word(
    algo: str,
) -> None:
    """Every attack on every profile, by the function that the check before training and the note
    after it ask."""
    method = instantiate_node(standardise_classifiers(tiny_config(algo)))
    attacks, settings = audit_of_one_attack()
    surfaces = {str(surface) for surface in (*method.uploads.values(), *method.broadcasts.values())}
    assert len(attacks) > 15
    for name, attack in attacks.items():
        alone = {name: attack}
        unread = uncovered_surfaces(method, alone, replace(settings, waive={}))
        if {*unread} == surfaces:
            continue  # "none of them reads anything that ... releases"
        waived = replace(settings, waive=dict.fromkeys(unread, UNREAD_REASON))
        check_coverage(method, alone, waived, build_shipped_attacks)
        silent = [s for s in surfaces if not describe_unmeasured(s, method, alone, waived)]
        assert sorted(silent) == unread, name


def test_what_is_read_off_without_a_measure_is_not_attacked() -> None:
    """Label counts as a message: an attack that reports them alone leaves the surface open, and
    says so before training."""
    attacks, settings = audit_of_one_attack()
    alone = {"label_counts": attacks["label_counts"]}
    method = tiny("fedavg").plan.method
    assert "counts" in uncovered_surfaces(method, alone, settings)
    assert "counts" not in uncovered_surfaces(method, attacks, settings)
    with pytest.raises(BadConfig, match="no attack for counts"):
        check_coverage(method, alone, settings, build_shipped_attacks)
    assert "label_counts" in describe_unmeasured("update", method, alone, settings)


@pytest.mark.parametrize("attack", ["label_counts", "analytic_inversion"])
def test_an_audit_with_one_attack_ends(
    attack: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("privdd.reporting.page.write_report", lambda path: path)
    overrides = [
        "algo=fedavg",
        "privacy=none",
        "preset=smoke",
        f"attack=[{attack}]",
        "engine=serial",
        "model=mlp",
        "model.width=8",
        "partition.clients=2",
        "data.limit=80",
        "algo.rounds=1",
        "audit.worlds=2",
        "audit.records=8",
        "audit.victims=1",
    ]
    config = compose_config("audit", expand_arguments(overrides, "audit"))
    assert run_audit(config, tmp_path / "run", []) == 0
    rows = {
        row["surface"]: row["audited"]
        for row in read_json(tmp_path / "run" / "findings.json")["surfaces"]
    }
    assert rows["update"] is True and str(rows["counts"]).startswith("not attacked: not read")
