"""What attackers did, in words: only what holds for all that the run looked at together."""

from __future__ import annotations

from typing import Any

import pytest

from privdd.reporting.summary import is_certain, leak_sentences
from tests.reporting.test_decision import BROKEN, NOTHING, row, run

LABELS = {"attack": "label_counts", "family": "label", "label_accuracy": 0.65, "baselines": {"label_accuracy_chance": 0.5}}
NAMES = {"attack": "copy_detection", "family": "reconstruction", "identified": 0.65, "identified_chance": 0.5}


@pytest.mark.parametrize(("figures", "word"), [(LABELS, "classes"), (NAMES, "match")])
def test_a_rate_that_counts_alone_does_not_among_eighty(figures: dict[str, Any], word: str) -> None:
    """65 of 100 against one half: the interval at 95 % begins at 0.548, that at 1 - 0.05 / 80 below one half."""
    one = {"surface": "features", "adversary": "server", "n": 100, **figures}
    alone = leak_sentences(run([one], "unprotected", "inf").findings)
    assert len(alone) == 1 and word in alone[0]
    assert leak_sentences(run([one, *[row(NOTHING)] * 20], "unprotected", "inf").findings) == []


def test_a_bound_that_assumes_a_distribution_is_no_proof() -> None:
    assumed = BROKEN | {"epsilon_measured": 50.0, "epsilon_validity": "gaussian_only"}
    assert leak_sentences(run([assumed], "consistent", 0.9).findings) == []
    (said,) = leak_sentences(run([BROKEN, assumed], "contradiction", 0.9).findings)
    assert "at least 6 " in said and said.endswith("0.9 is stated")


def test_pictures_alone_are_no_certain_leak() -> None:
    picture = {"surface": "features", "attack": "x", "family": "reconstruction", "adversary": "server", "n": 40, "psnr": 30.0, "baselines": {"psnr_mean": 12.0}}
    rows = run([picture], "unprotected", "inf").findings
    assert len(leak_sentences(rows)) == 1 and not is_certain(rows)
