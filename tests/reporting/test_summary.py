"""Tests of ``privdd.reporting.summary``."""

from __future__ import annotations

from typing import Any

import pytest

from privdd.reporting.schema import Findings, validate_findings
from privdd.reporting.summary import (
    is_certain,
    leak_sentences,
    leaks_of_run,
    surface_lines,
    verdict_headline,
)
from tests.reporting.test_decision import BROKEN, NOTHING, RATES, SEED, judged, noise_test, row, run

# The first words of a report, and the rows of its table: what is stated, what is proven, and by
# which test.


def shown(epsilon: float, stated: float, **more: Any) -> dict[str, Any]:
    """A membership attack that showed this much."""
    return row(
        NOTHING,
        epsilon_shown=epsilon,
        epsilon_stated=stated,
        epsilon_validity="finite_sample",
        **more,
    )


def with_claim(found: Findings, epsilon: float) -> Findings:
    data = found.model_dump(mode="json", by_alias=True, exclude_none=True)
    data["privacy"]["claims"] = [
        {"source": "Theorem 7", "epsilon": epsilon, "sound": False, "why": "w", "delta": 1e-6}
    ]
    return validate_findings(data)


def test_a_surface_is_held_to_the_smallest_statement_about_it() -> None:
    """A test of one mechanism speaks of a part of the epsilon, unless it broke that part."""
    part = {"attack": "t2_likelihood_ratio", "family": "guarantee", "adversary": "analyst"}
    for low, stated in ((0.25, 1.5), (0.75, 0.5)):
        found = run(
            [shown(0.25, 1.5), shown(0.25, 3.0), shown(low, 0.5, **part)], "consistent", 3.0
        )
        assert surface_lines(found)[0].stated == stated


def test_of_surfaces_of_one_verdict_the_one_that_shows_most_stands_first() -> None:
    data = run(
        [shown(0.25, 3.0), shown(0.75, 3.0, surface="labels")], "consistent", 3.0
    ).model_dump(mode="json", by_alias=True, exclude_none=True)
    data["surfaces"].append(data["surfaces"][0] | {"surface": "labels"})
    assert [line.row.surface for line in surface_lines(validate_findings(data))] == [
        "labels",
        "features",
    ]


def test_of_surfaces_of_one_verdict_the_larger_rate_stands_before_the_larger_epsilon() -> None:
    rates = {key: {"tpr": 0.5, "ci": [0.45, 0.55], "resolvable": True} for key in RATES}
    crafted = noise_test(9.0)
    data = run([crafted, row(rates, surface="labels")], "unprotected", "inf").model_dump(
        mode="json", by_alias=True, exclude_none=True
    )
    data["surfaces"].append(data["surfaces"][0] | {"surface": "labels"})
    findings = validate_findings(data)
    assert [line.row.surface for line in surface_lines(findings)] == ["labels", "features"]
    assert verdict_headline(findings).sentences[0].startswith("From the labels")


def test_a_limit_that_held_is_told_with_its_delta_and_where_it_comes_from() -> None:
    said = verdict_headline(run([shown(0.25, 2.0)], "consistent", 2.0))
    assert said.sentences[0].startswith(
        "From the released features, the server can distinguish training records"
    )
    assert said.sentences[1].startswith(
        "Everything sent is covered by ε = 2 at δ = 1e-5; the strongest attack showed ε "
        "of at least 0.25."
    )
    assert "simulation" not in said.title
    assert verdict_headline(run([shown(0.25, 2.0)], "consistent", 2.0, noise=SEED)).title.endswith(
        "This is a simulation."
    )


def test_what_no_test_looked_at_is_named() -> None:
    said = verdict_headline(run([], "untested", 2.0, untested=["m, noise: no test"])).sentences[0]
    assert said.endswith("Untested: m, noise: no test.")


def test_a_published_claim_below_what_was_shown_is_told_with_both_deltas() -> None:
    said = verdict_headline(
        with_claim(run([shown(0.25, 2.0)], "consistent", 2.0), 0.125)
    ).sentences[0]
    assert (
        "claim of ε = 0.125 at δ = 1e-6 (Theorem 7) is less than the ε of at least 0.25 "
        "at δ = 1e-5 that LiRA showed" in said
    )
    assert "published claim" not in " ".join(
        verdict_headline(with_claim(run([shown(0.25, 2.0)], "consistent", 2.0), 0.5)).sentences
    )


def test_a_bound_that_assumes_a_distribution_proves_nothing() -> None:
    assumed = BROKEN | {"epsilon_shown": 50.0, "epsilon_validity": "gaussian_only"}
    said = verdict_headline(with_claim(run([BROKEN, assumed], "contradiction", 0.9), 0.5)).sentences
    assert "proves that the true ε is at least 6 " in said[0] and "ε ≤ 0.9 is stated" in said[0]
    assert not any("published claim" in one for one in said)  # the contradiction says it already


# Tests of a guarantee have their rank among attacks.


ALL_LABELS = {
    "surface": "features",
    "adversary": "server",
    "attack": "label_counts",
    "family": "label",
    "label_accuracy": 0.98,
    "baselines": {"label_accuracy_chance": 0.5},
    "n": 281,
}


def kinds(found: Findings) -> list[str]:
    return [leak.kind for leak in leaks_of_run(found)]


def test_a_large_epsilon_for_a_crafted_record_outranks_labels() -> None:
    found = run([ALL_LABELS, row(NOTHING), noise_test(32.3)], "unprotected", "inf")
    assert kinds(found) == ["noise", "labels"]
    assert verdict_headline(found).sentences[0] == (
        "On the released features, the noise does not hide every record: for a crafted one, "
        "the likelihood-ratio test (T2) shows that the true ε is at least 32.3."
    )
    assert kinds(run([ALL_LABELS, noise_test(7.9)], "unprotected", "inf")) == ["labels"]
    assert kinds(run([noise_test(32.3, stated=45.0)], "consistent", 45.0)) == []


def test_records_that_are_identified_outrank_a_crafted_one() -> None:
    named = row({"0.001": {"tpr": 0.5, "ci": [0.4, 0.6], "resolvable": True}})
    found = run([noise_test(32.3), named], "unprotected", "inf")
    assert kinds(found) == ["membership", "noise"]


def test_a_refuted_guarantee_is_the_gravest_leak_and_is_told_once() -> None:
    named = row({"0.001": {"tpr": 0.5, "ci": [0.4, 0.6], "resolvable": True}})
    found = run([named, BROKEN], "contradiction", 0.9)
    leaks = leaks_of_run(found)
    assert leaks[0].kind == "refutation"
    sentences = verdict_headline(found).sentences
    assert sentences[0] == leaks[0].first_sentence and "ε ≤ 0.9 is stated" in sentences[0]
    assert sum("is stated" in sentence for sentence in sentences) == 1


# What attackers did, in words: only what holds for all that the run looked at together.


LABELS = {
    "attack": "label_counts",
    "family": "label",
    "label_accuracy": 0.65,
    "baselines": {"label_accuracy_chance": 0.5},
}
NAMES = {
    "attack": "copy_detection",
    "family": "reconstruction",
    "identified": 0.65,
    "identified_chance": 0.5,
}


@pytest.mark.parametrize(
    ("figures", "word"),
    [(LABELS, "classes"), (NAMES, "65 of 100 released records nearer to a training record")],
)
def test_a_rate_that_counts_alone_does_not_among_eighty(figures: dict[str, Any], word: str) -> None:
    """65 of 100 against one half: the interval at 95 % begins at 0.548, that at 1 - 0.05 / 80 below
    one half."""
    one = {"surface": "features", "adversary": "server", "n": 100, **figures}
    alone = leak_sentences(*judged(run([one], "unprotected", "inf")))
    assert len(alone) == 1 and word in alone[0]
    assert leak_sentences(*judged(run([one, *[row(NOTHING)] * 20], "unprotected", "inf"))) == []


def test_a_bound_that_assumes_a_distribution_is_no_proof() -> None:
    assumed = BROKEN | {"epsilon_shown": 50.0, "epsilon_validity": "gaussian_only"}
    assert leak_sentences(*judged(run([assumed], "consistent", 0.9))) == []
    (said,) = leak_sentences(*judged(run([BROKEN, assumed], "contradiction", 0.9)))
    assert "at least 6 " in said and said.endswith("0.9 is stated")


def test_pictures_alone_are_no_certain_leak() -> None:
    picture = {
        "surface": "features",
        "attack": "x",
        "family": "reconstruction",
        "adversary": "server",
        "n": 40,
        "psnr": 30.0,
        "baselines": {"psnr_mean": 12.0},
    }
    rows = judged(run([picture], "unprotected", "inf"))
    assert len(leak_sentences(*rows)) == 1 and not is_certain(*rows)
