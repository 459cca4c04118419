"""A lower bound that a test showed counts as a leak where nothing limits what is released, and of a pool too."""

from __future__ import annotations

from typing import Any

import pytest

from privdd.reporting.decision import decide_surfaces
from privdd.reporting.findings_file import validate_findings
from privdd.reporting.summary import surface_lines
from tests.reporting.test_decision import NOTHING, row, run


def noise_test(bound: float, family: str = "guarantee", stated: float = 45.0) -> dict[str, Any]:
    return {
        "surface": "features", "attack": "t2_likelihood_ratio", "family": family, "adversary": "analyst", "n": 400,
        "epsilon_measured": bound, "epsilon_stated": stated, "epsilon_validity": "finite_sample",
        "epsilon_method": "likelihood_ratio", "confidence": 0.999,
    }  # fmt: skip


@pytest.mark.parametrize(("bound", "kind"), [(32.3, "do_not_share"), (7.9, "no_leak_found")])
def test_attacks_that_fail_do_not_outweigh_a_test_that_showed_much(bound: float, kind: str) -> None:
    found = run([row(NOTHING), noise_test(bound)], "unprotected", "inf")
    (one,) = decide_surfaces(found)
    assert one.kind == kind and ("32.3" in " ".join(one.can)) is (kind == "do_not_share")
    assert one.sure.startswith("sure: shown") is (kind == "do_not_share")


def test_under_a_limit_the_same_bound_is_what_the_limit_allows() -> None:
    """A tight test of an honest mechanism: its bound is below the stated epsilon, which is what is judged."""
    (one,) = decide_surfaces(run([row(NOTHING), noise_test(9.0, stated=9.5)], "consistent", 9.5))
    assert one.kind == "share_only_under" and one.can == ()


def test_a_pool_is_as_weak_as_the_values_that_it_holds() -> None:
    alone = run([row(NOTHING), row(NOTHING, surface="shared_features"), noise_test(32.3)], "unprotected", "inf").model_dump(mode="json", by_alias=True, exclude_none=True)
    pool = alone["surfaces"][0] | {"surface": "shared_features", "sender": "server", "names": ["pool"]}
    found = validate_findings(alone | {"surfaces": [*alone["surfaces"], pool]})
    assert [one.kind for one in decide_surfaces(found)] == ["do_not_share"] * 2
    assert {line.row.surface: line.measured for line in surface_lines(found)} == {"features": 32.3, "shared_features": 32.3}


def test_labels_are_read_where_labels_were_attacked_and_a_guess_stands_beside() -> None:
    """A picture of each class has the right label too: that is no label read."""
    pictures = {"surface": "features", "attack": "model_inversion", "family": "model_inversion", "adversary": "server", "n": 10, "psnr": 10.0, "label_accuracy": 1.0}
    read = {"surface": "features", "attack": "label_counts", "family": "label", "adversary": "server", "n": 300, "label_accuracy": 0.7, "baselines": {"label_accuracy_chance": 0.52}}
    (line,) = surface_lines(run([row(NOTHING), pictures], "unprotected", "inf"))
    assert not any("of labels" in phrase for phrase in line.worst)
    (line,) = surface_lines(run([row(NOTHING), pictures, read], "unprotected", "inf"))
    assert any(phrase.replace("\u00a0", " ") == "reads 70 % of labels (guessing 52 %)" for phrase in line.worst)
