"""A number that a paper prints for this very mechanism is contradicted by a bound above it; any
other is no claim of the run."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest

from attacks.measures import GuaranteeMeasures
from attacks.types import Adversary, Family, Finding, Surface
from privdd.auditing.findings import hold_to_claims
from privdd.auditing.verdicts import decide_verdict
from privdd.privacy.claims import Claim
from privdd.reporting.schema import load_findings
from privdd.reporting.summary import _contradiction_headline as headline
from tests.reporting.fixture import write_run

CLAIM = Claim("a paper", 4.0, False, "why", 1e-3, surface="features")


def shown(bound: float, **measures: object) -> Finding:
    decisive = GuaranteeMeasures(epsilon_shown=bound, epsilon_validity="finite_sample")
    stated = replace(decisive, **measures)
    return Finding(Surface.FEATURES, "t3_final", Family.GUARANTEE, Adversary.ANALYST, stated)


@pytest.mark.parametrize(
    ("claim", "bound", "delta", "broken"),
    [
        (CLAIM, 5.0, 1e-3, True),
        (CLAIM, 3.9, 1e-3, False),
        (CLAIM, 5.0, 1e-5, False),  # at a smaller delta more epsilon is no contradiction
        (replace(CLAIM, not_applicable="it is for another mechanism"), 5.0, 1e-3, False),
        (replace(CLAIM, surface="update"), 5.0, 1e-3, False),
        (replace(CLAIM, epsilon=None), 5.0, 1e-3, False),
    ],
)
def test_a_bound_above_what_is_printed_contradicts_it(
    claim: Claim, bound: float, delta: float, broken: bool
) -> None:
    (held,) = hold_to_claims([shown(bound, epsilon_stated=9.0)], [claim], delta)
    assert held.measures.epsilon_stated == (4.0 if broken else 9.0)
    assert (decide_verdict({"pld": 9.0}, 9.0, [held]) == "contradiction") == broken
    (bare,) = hold_to_claims([shown(bound)], [claim], delta)  # where nothing is accounted
    assert (decide_verdict({"pld": math.inf}, None, [bare]) == "contradiction") == broken


def test_an_estimate_contradicts_nothing() -> None:
    (held,) = hold_to_claims([shown(5.0, epsilon_validity="gaussian_only")], [CLAIM], 1e-3)
    assert held.measures.epsilon_stated is None


def test_the_headline_says_whose_statement_is_broken(tmp_path: Path) -> None:
    # at 0.9, as its paper's claim
    stated = load_findings(write_run(tmp_path, kind="contradiction") / "findings.json")
    assert headline(stated)[0] == "The paper's claim is contradicted."
    claims = [stated.privacy.claims[0].model_copy(update={"epsilon": 0.8})]
    own = stated.model_copy(
        update={"privacy": stated.privacy.model_copy(update={"claims": claims})}
    )
    assert headline(own)[0] == "The stated guarantee of fedfed is false in this run."
