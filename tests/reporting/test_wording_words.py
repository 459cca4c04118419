"""Numbers as they are printed: rounded as one would by hand, and never smaller by a unit."""

from __future__ import annotations

import math

import pytest

from privdd.reporting import wording


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (None, "–"), (math.inf, "∞"), (0.0, "0"), (4.849, "4.85"), (0.001, "0.001"), (1e-5, "1e-5"), (1.6e-6, "1.6e-6"),
        (9.6e-4, "9.6e-4"), (999.4, "999"), (12345.0, "12 345"), (123456.0, "1.2e5"),
    ],
)  # fmt: skip
def test_a_number_in_three_digits(value: float | None, said: str) -> None:
    assert wording.format_number(value).replace("\u00a0", " ") == said


@pytest.mark.parametrize(
    ("value", "said"), [(None, "–"), (0.0, "0 %"), (0.0012, "0.12 %"), (0.0164, "1.6 %"), (0.1234, "12.3 %"), (1.0, "100 %")]
)
def test_a_rate_as_percent(value: float | None, said: str) -> None:
    assert wording.format_share(value).replace("\u00a0", " ") == said


@pytest.mark.parametrize(
    ("factor", "said"),
    [
        (2.72, "2.7-fold"), (3000, "about 3 000-fold"), (5.4e6, "about 5 million-fold"), (2.1e9, "about 2 billion-fold"),
        (2e12, "more than a trillion-fold"),
    ],
)  # fmt: skip
def test_how_far_odds_may_change(factor: float, said: str) -> None:
    assert wording.odds_factor(math.log(factor)).replace("\u00a0", " ") == said


def test_false_alarms() -> None:
    assert [wording.one_in(rate).replace("\u00a0", " ") for rate in (0.001, 0.01, 0.1)] == ["1 in 1 000", "1 in 100", "1 in 10"]


def test_what_is_computed_from_noised_values_is_not_called_noised_itself() -> None:
    assert wording.mechanism_title("FeatureNoise, Own, FeatureNoise") == "noise on each row of features, Own"
    assert wording.mechanism_title("post-processing of ClientLevel") == "post-processing of clipped, noised whole updates"


@pytest.mark.parametrize("table", [wording._RELATION, wording.VERDICT, wording._VERDICT_MEANS, wording.SURFACE, wording.ADVERSARY, wording.FAMILY])
def test_no_two_are_said_alike(table: dict[str, object]) -> None:
    assert len({*table.values()}) == len(table)
