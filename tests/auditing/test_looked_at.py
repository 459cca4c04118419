"""Which parts of a guarantee count as looked at: only what a test measured, for every mechanism behind a surface."""

from __future__ import annotations

from typing import Any

import dp_accounting as dpa
import pytest

from attacks.types import Adversary, Family, Finding, Surface
from privdd.auditing.looked_at import gaps
from privdd.privacy.ledger import Ledger
from privdd.privacy.mechanism import Row

SAMPLED = dpa.PoissonSampledDpEvent(0.1, dpa.GaussianDpEvent(1.0))


def row(name: str, surface: Surface, event: dpa.DpEvent, **more: Any) -> Row:
    return Row(0, 0, name, str(surface), ("server",), {"x": (1,)}, "", event, **more)


def guarantee(attack: str, name: str, **measures: Any) -> Finding:
    return Finding(Surface.UPDATE, attack, Family.GUARANTEE, Adversary.ANALYST, {"signal": name, **measures})


@pytest.fixture
def ledger() -> Ledger:
    """A sampled query, an update computed from it, counts with noise of their own, and labels that need none."""
    made = Ledger("add_remove", "record", 1e-5)
    made.append(
        [
            row("dpsgd", Surface.GRADIENT, SAMPLED),
            row("update", Surface.UPDATE, dpa.NoOpDpEvent(), post_of=(0,)),
            row("counts", Surface.COUNTS, dpa.GaussianDpEvent(2.0)),
            row("labels", Surface.LABELS, dpa.NoOpDpEvent()),
            row("raw", Surface.STATISTICS, dpa.NonPrivateDpEvent(), nonprivate_reason="no mechanism"),
        ]
    )
    return made


NOISE = guarantee("t0_noise", "dpsgd", diagnostics={"p_value": 0.5})
SAMPLING = guarantee("t0_sampling", "dpsgd", diagnostics={"p_value": 0.5})
KAPPA = guarantee("t1_sensitivity", "dpsgd", kappa=0.9, kappa_allowed=1.0)


def test_a_surface_needs_tests_of_all_mechanisms_that_it_was_computed_from(ledger: Ledger) -> None:
    assert gaps(ledger, "update", [NOISE, SAMPLING, KAPPA]) == []
    for missing, part in ((NOISE, "noise"), (SAMPLING, "sampling"), (KAPPA, "sensitivity")):
        left = [finding for finding in (NOISE, SAMPLING, KAPPA) if finding is not missing]
        assert gaps(ledger, "update", left) == [f"dpsgd, {part}: no test applies to it"]
    assert [line.split(":")[0] for line in gaps(ledger, "counts", [NOISE, SAMPLING, KAPPA])] == [
        "counts, noise",  # and no sampling: its accounting does not count on any
        "counts, sensitivity",
    ]


def test_a_row_that_only_explains_itself_is_no_test(ledger: Ledger) -> None:
    silent = guarantee("t0_noise", "dpsgd", diagnostics={"untested": "it shows no value"}, note="longer")
    refused = guarantee("t1_sensitivity", "dpsgd", n=0, note="was not tested")
    assert gaps(ledger, "update", [silent, SAMPLING, refused]) == [
        "dpsgd, noise: it shows no value",
        "dpsgd, sensitivity: was not tested",
    ]


@pytest.mark.parametrize("surface", ["labels", "statistics"])
def test_where_no_mechanism_promises_anything_nothing_is_missing(ledger: Ledger, surface: str) -> None:
    assert gaps(ledger, surface, []) == []
