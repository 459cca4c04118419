"""``decide_verdict`` and ``stated_epsilons``: when a report says contradiction, and what it holds a surface to."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import product
from types import SimpleNamespace
from typing import Any

import dp_accounting as dpa
import numpy as np
import pytest
import torch

from attacks.membership.attack import one_run_bound
from attacks.types import Adversary, Family, Finding, Knowledge, Surface, View, Worlds
from privdd.auditing.attack_tasks import error_budget, familywise_bound
from privdd.auditing.findings import decide_verdict, reconstruction_rows, record_level_ledger, stated_epsilons
from privdd.cli import external_scores
from privdd.cli.compose import compose_config
from privdd.privacy.accounting import epsilon as accounted
from privdd.privacy.claims import Claim
from privdd.privacy.ledger import Ledger
from privdd.privacy.mechanism import LedgerRow
from privdd.reporting.findings_file import load_findings
from privdd.reporting.schema import worst_verdict

STATED, LITTLE, MUCH = 4.0, 1.0, 9.0
FINITE, GAUSSIAN = "finite_sample", "gaussian_only"
PROVEN, NOTHING_PROVEN = {"pld": 4.0, "rdp": 4.5}, {"pld": math.inf, "rdp": math.inf}
CASES = list(product((False, True), (False, True), (FINITE, GAUSSIAN)))  # kappa too large, family-wise too large, validity


def membership(familywise: float | None, single: float, validity: str = FINITE, **more: Any) -> Finding:
    measures: dict[str, Any] = {"auc": 0.6, "epsilon_measured": single, "epsilon_validity": validity, **more}
    if familywise is not None:
        measures["diagnostics"] = {"epsilon_familywise": familywise, "tests": 12}
    return Finding(Surface.UPDATE, "lira", Family.MEMBERSHIP, Adversary.SERVER, measures)


def sensitivity(kappa: float, allowed: float = 1.0) -> Finding:
    measures = {"kappa": kappa, "kappa_allowed": allowed}
    return Finding(Surface.UPDATE, "sensitivity", Family.GUARANTEE, Adversary.SERVER, measures)


def case(moved: bool, above: bool, validity: str) -> list[Finding]:
    """The single bound always says the opposite of the family-wise one."""
    bound, single = (MUCH, LITTLE) if above else (LITTLE, MUCH)
    return [membership(bound, single, validity), sensitivity(1.5 if moved else 0.9)]


@pytest.mark.parametrize(("moved", "above", "validity"), CASES)
@pytest.mark.parametrize("epsilon", [PROVEN, NOTHING_PROVEN])
def test_verdict_of_kappa_familywise_bound_and_validity(
    moved: bool, above: bool, validity: str, epsilon: dict[str, float]
) -> None:
    findings = case(moved, above, validity)
    quiet = "consistent" if epsilon is PROVEN else "unprotected"
    expected = "contradiction" if moved or (above and validity == FINITE) else quiet
    assert decide_verdict(epsilon, STATED, findings) == expected
    assert decide_verdict(epsilon, STATED, findings[::-1]) == expected  # whichever finding comes first


@pytest.mark.parametrize(("single", "expected"), [(MUCH, "contradiction"), (LITTLE, "consistent")])
def test_verdict_takes_the_single_bound_where_no_familywise_one_was_computed(single: float, expected: str) -> None:
    assert decide_verdict(PROVEN, STATED, [membership(None, single)]) == expected


def test_verdict_at_the_limits() -> None:
    """A bound that equals what is stated, and a kappa within rounding of what is allowed, contradict nothing."""
    assert decide_verdict(PROVEN, STATED, [membership(STATED, MUCH)]) == "consistent"
    assert decide_verdict(PROVEN, STATED, [sensitivity(2.0 * (1 + 5e-5), 2.0)]) == "consistent"
    assert decide_verdict(PROVEN, STATED, [sensitivity(2.0 * (1 + 2e-4), 2.0)]) == "contradiction"
    assert decide_verdict(PROVEN, None, [membership(MUCH, MUCH)]) == "consistent"  # nothing is promised, nothing is broken
    assert decide_verdict({"pld": 3.0, "rdp": math.inf}, STATED, []) == "consistent"  # one accountant's proof is enough


def test_verdict_prefers_the_limit_of_the_finding_itself() -> None:
    """Guarantee findings bring the epsilon of the one mechanism that they test."""
    assert decide_verdict(PROVEN, STATED, [membership(5.0, 5.0, epsilon_stated=6.0)]) == "consistent"
    assert decide_verdict(PROVEN, 10.0, [membership(7.0, 7.0, epsilon_stated=6.0)]) == "contradiction"
    assert decide_verdict(PROVEN, None, [membership(7.0, 7.0, epsilon_stated=6.0)]) == "contradiction"


@pytest.mark.parametrize("order", [("contradiction", "unprotected", "untested", "consistent"), ("untested", "consistent")])
def test_the_worst_verdict_of_any_surface_is_the_runs(order: tuple[str, ...]) -> None:
    assert worst_verdict(order[::-1]) == order[0] and worst_verdict([]) == "consistent"


def test_epsilon_familywise_shares_five_percent_among_all_tests() -> None:
    """The bound that decides is the one-run bound at confidence 1 - 0.05 / tests, on the run that happened."""
    masks = torch.rand(3, 400, generator=torch.Generator().manual_seed(0)) < 0.5
    scores = masks.double() * 4 + torch.randn(3, 400, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    knowledge = Knowledge((1, 2, 2), 2, torch.zeros(0, 1, 2, 2), torch.zeros(0).long())
    labels = torch.zeros(400, dtype=torch.long)
    view = View(Surface.UPDATE, Adversary.SERVER, (), knowledge, Worlds({}, masks, torch.zeros(400), labels))
    bounds = {}
    for tests in (1, 20):
        said = familywise_bound(scores, view, 1e-4, error_budget(0.95, tests, 0), 2)
        rng = np.random.default_rng(2)
        expected = one_run_bound(scores, masks, 1e-4, rng, confidence={1: 0.95, 20: 0.9975}[tests])
        assert said == {"epsilon_familywise": expected.value, "tests": tests}
        bounds[tests] = said["epsilon_familywise"]
    assert 0 < bounds[20] < bounds[1]


# --- the same rule for scores that someone else computed -----------------------------------------


def external(familywise: float | None, single: float, validity: str) -> tuple[Finding, Finding]:
    """One finding at the single confidence, and what the same test gives at the shared one."""
    lone = replace(membership(None, single, validity), surface=Surface.GLOBAL_MODEL)
    lone = lone.with_measures(auc_ci=[0.5, 0.7], tpr_at_fpr={}, confidence=0.95, n=100, epsilon_method="one_run")
    return lone, lone if familywise is None else lone.with_measures(epsilon_measured=familywise)


@pytest.mark.parametrize(
    ("above", "validity", "stated"), list(product((False, True), (FINITE, GAUSSIAN), (STATED, None)))
)
def test_external_scores_are_judged_by_the_same_rule(
    above: bool, validity: str, stated: float | None, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    lone, strict = external(*((MUCH, LITTLE) if above else (LITTLE, MUCH)), validity)

    def scored(path: str, *, confidence: float, **given: Any) -> list[Finding]:
        return [lone, lone] if confidence == 0.95 else [strict, strict]  # two tests share alpha: 0.975

    monkeypatch.setattr(external_scores, "audit_scores", scored)
    monkeypatch.setattr(external_scores, "write_report", lambda path: path / "report.html")
    config = compose_config("audit", ["scores=none.npz", f"privacy.epsilon={'null' if stated is None else stated}"])
    status = external_scores.audit_external_scores(config, tmp_path, [])
    broken = above and validity == FINITE and stated is not None
    assert load_findings(tmp_path).verdict == ("contradiction" if broken else "unprotected")
    assert status == (2 if broken else 0)


@pytest.mark.parametrize("broken", [False, True])
@pytest.mark.parametrize("epsilon", [PROVEN, NOTHING_PROVEN])
def test_what_no_test_looked_at_is_untested_and_no_more(epsilon: dict[str, float], broken: bool) -> None:
    """A contradiction stays one, and where nothing is proven there is nothing to test."""
    findings = [sensitivity(1.5 if broken else 0.9)]
    quiet = "untested" if epsilon is PROVEN else "unprotected"
    assert decide_verdict(epsilon, STATED, findings, ["update, noise: why"]) == ("contradiction" if broken else quiet)


@pytest.mark.parametrize(("refuted", "expected"), [(True, "contradiction"), (False, "consistent")])
def test_noise_that_is_not_what_is_stated_is_a_contradiction(refuted: bool, expected: str) -> None:
    noise = Finding(Surface.UPDATE, "t0_noise", Family.GUARANTEE, Adversary.ANALYST, {"diagnostics": {"refuted": refuted}})
    assert decide_verdict(PROVEN, STATED, [noise]) == expected


# --- how often a record could be named ------------------------------------------------------------


def test_what_the_boldest_claim_allows_stands_beside_what_is_proven() -> None:
    """(0, delta) leaves 1/k + delta; claims without a number allow nothing to be said."""
    ledger = Ledger(delta=1e-5)
    words, number = Claim("w", None, False, ""), Claim("n", 0.0, False, "", 1e-3)
    assert all("claimed" not in row for row in reconstruction_rows(ledger, [words]))
    rows = reconstruction_rows(ledger, [words, number])
    assert [row["claimed"] for row in rows] == pytest.approx([row["prior"] + 1e-3 for row in rows])
    assert [(row["k"], row["bound"]) for row in rows] == [(2, 0.5), (10, 0.1), (100, 0.01), (1000, 0.001)]


# --- what a surface is held to -------------------------------------------------------------------


def row(surface: Surface, event: dpa.DpEvent, **more: Any) -> LedgerRow:
    return LedgerRow(0, 0, str(surface), str(surface), ("server",), {"x": (1,)}, "", event, **more)


def test_stated_epsilons_are_what_is_accounted_or_what_the_method_claims() -> None:
    """The smaller accountant; infinite ones left out; a surface pays for what it was computed from; claims win."""
    ledger = Ledger(delta=1e-5)
    gradient, labels = dpa.GaussianDpEvent(1.0), dpa.GaussianDpEvent(3.0)
    ledger.append(
        [
            row(Surface.GRADIENT, gradient),
            row(Surface.UPDATE, dpa.NoOpDpEvent(), post_of=(0,)),
            row(Surface.LABELS, labels),
            row(Surface.STATISTICS, dpa.NonPrivateDpEvent(), nonprivate_reason="no mechanism"),
        ]
    )

    def experiment(**claims: float) -> Any:
        method = SimpleNamespace(audit_hooks=SimpleNamespace(stated=lambda plan, shards: claims))
        return SimpleNamespace(plan=SimpleNamespace(method=method), shards=())

    def smaller(event: dpa.DpEvent) -> float:
        return min(accounted(event, 1e-5), accounted(event, 1e-5, accountant="rdp"))

    found = stated_epsilons(experiment(), ledger)
    assert found == pytest.approx({"gradient": smaller(gradient), "update": smaller(gradient), "labels": smaller(labels)})
    assert smaller(labels) < accounted(labels, 1e-5, accountant="rdp")  # or the choice would not show
    claimed = stated_epsilons(experiment(labels=0.125, statistics=2.5, update=math.inf), ledger)
    assert claimed == pytest.approx({"gradient": smaller(gradient), "labels": 0.125, "statistics": 2.5})


def test_a_promise_to_a_client_is_a_promise_to_each_of_its_records() -> None:
    """Client-level noise z bounds one record as noise z/2 does: a client with it, and without, is close to no client."""
    ledger = Ledger("zero_out", "client", 1e-5)
    ledger.append([row(Surface.UPDATE, dpa.GaussianDpEvent(1.0), flags={"unit:client": True}, count=3)])
    twice = accounted(dpa.SelfComposedDpEvent(dpa.GaussianDpEvent(0.5), 3), 1e-5)
    assert record_level_ledger(ledger).epsilon() == pytest.approx(twice, rel=1e-3) and twice > 2 * ledger.epsilon()
    for same in (Ledger("add_remove"), Ledger("replace", "client")):
        assert record_level_ledger(same) is same
