"""Rows of findings.json and the measures that findings state have the same fields."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest

from attacks.measures import GuaranteeMeasures, Measures, MembershipMeasures
from attacks.types import MEASURES_BY_FAMILY, Adversary, Family, Finding, Surface
from privdd.auditing.attack_tasks import HEAD, as_finding
from privdd.reporting.schema import FindingRow
from privdd.runtime.files import DamagedRun


def test_each_measure_is_a_field_of_a_row_and_each_field_a_measure() -> None:
    names = {field.name for kind in MEASURES_BY_FAMILY.values() for field in fields(kind)}
    assert names == set(FindingRow.model_fields) - HEAD


@pytest.mark.parametrize("family", Family)
def test_what_counts_as_a_result_is_a_measure_of_its_family(family: Family) -> None:
    kind: type[Measures] = family.measures
    assert not kind(n=3, note="why").has_result
    for name in kind.results:
        assert kind(**{name: 0.0}).has_result
        assert kind(**{name: 0.0}).is_measured


def test_a_row_holds_what_applies_alone() -> None:
    shown = MembershipMeasures(auc=0.5, epsilon_shown=0.0, epsilon_method="one_run", n=0)
    assert shown.to_row() == {"auc": 0.5, "epsilon_shown": 0.0, "epsilon_method": "one_run", "n": 0}
    assert shown.without_bound() == MembershipMeasures(auc=0.5, n=0)
    assert GuaranteeMeasures(kappa=1.2).is_measured
    assert not GuaranteeMeasures(kappa=1.2).has_result


def test_a_measure_that_the_family_lacks_is_refused() -> None:
    finding = Finding(
        Surface.UPDATE, "t1", Family.GUARANTEE, Adversary.ANALYST, GuaranteeMeasures(kappa=1.2)
    )
    with pytest.raises(TypeError, match="auc"):
        finding.with_measures(auc=0.6)
    with pytest.raises(TypeError, match="guarantee must be GuaranteeMeasures, not Membership"):
        replace(finding, measures=MembershipMeasures(auc=0.6))
    with pytest.raises(TypeError, match="membership must be MembershipMeasures, not Guarantee"):
        replace(finding, family=Family.MEMBERSHIP)
    row = FindingRow(
        surface="update", attack="t1", family="guarantee", adversary="analyst", auc=0.6
    )
    with pytest.raises(DamagedRun, match="a finding of guarantee has no auc"):
        as_finding(row)
