"""Which bound is a run's certified epsilon: the largest that speaks of the whole run, and says what it trusts."""

from __future__ import annotations

from attacks.types import Adversary, Family, Finding, Surface
from privdd.auditing.findings import certified_entries, certified_entries_of_surface
from privdd.privacy.ledger import Ledger
from tests.privacy.test_ledger import G
from tests.privacy.test_ledger import row as released


def row(epsilon: float, **diagnostics: object) -> Finding:
    measures = {"epsilon_measured": epsilon, "diagnostics": diagnostics}
    return Finding(Surface.UPDATE, "t2_whole_run", Family.GUARANTEE, Adversary.ANALYST, measures)


def test_the_largest_bound_for_the_whole_run_is_taken_with_what_it_trusts() -> None:
    found = [row(1.0, certificate={"runs": 1}), row(3.0, certificate={"runs": 3}), row(9.0, unit="record")]
    assert certified_entries(found) == {"certified": 3.0, "certified_by": {"runs": 3}}


def test_nothing_is_certified_without_such_a_bound() -> None:
    assert certified_entries([row(9.0, unit="record")]) == {}


def test_a_surface_is_certified_where_it_was_computed_from_all_that_the_client_spends() -> None:
    found = [row(3.0, certificate={"runs": 3})]
    one, two = released(G(1.0), surface="a"), released(G(1.0), surface="b")
    other = released(G(1.0), surface="a", client=1)
    ledger = Ledger()
    ledger.append([one])
    assert certified_entries_of_surface(0, ledger, "a", found) == certified_entries(found)
    ledger.append([other])
    assert certified_entries_of_surface(0, ledger, "a", found) == certified_entries(found) == certified_entries_of_surface(1, ledger, "a", found)
    assert certified_entries_of_surface(0, ledger, "b", found) == certified_entries_of_surface(2, ledger, "a", found) == {}
    ledger.append([two])
    assert certified_entries_of_surface(0, ledger, "a", found) == {}
