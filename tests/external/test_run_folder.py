"""What is stated of an epsilon, as it reads for an exchanged record."""

from __future__ import annotations

import math
from typing import Any

import pytest

from privdd.core.validation import BadConfig
from privdd.external.run_folder import StatedLimit, parse_stated_limit
from privdd.reporting import wording
from privdd.reporting.schema import ClaimRow


def test_an_exchange_is_two_steps_of_adding_and_removing() -> None:
    """Randomised response, where both are known: exchanging a bit under epsilon each way costs at
    most 2 epsilon."""
    assert StatedLimit(1.5, 1e-6).exchange_limit() == (1.5, 1e-6)
    epsilon, delta = StatedLimit(1.5, 1e-6, "add_remove").exchange_limit()
    assert epsilon == 3.0 and delta == pytest.approx((1 + math.exp(1.5)) * 1e-6)
    assert (
        parse_stated_limit({}).exchange_limit() == (math.inf, 1e-5)
        and parse_stated_limit({}).claim_entries() == []
    )
    (claim,) = parse_stated_limit(
        {"epsilon": 1, "relation": "add_remove", "unit": "client"}
    ).claim_entries()
    assert (
        claim["epsilon"] == 2 and "one client (add_remove)" in claim["why"] and not claim["sound"]
    )


def test_a_limit_is_repeated_as_it_was_typed_beside_what_it_was_converted_to() -> None:
    for relation, words, cell in (
        (
            "add_remove",
            "epsilon 3 at delta 1e-5 (stated, add/remove; 6 at 2.1e-4 for an exchange)",
            "3 (6)",
        ),
        ("replace", "", "3"),
    ):
        rows = [ClaimRow(**claim) for claim in StatedLimit(3.0, 1e-5, relation).claim_entries()]
        assert (
            wording.typed_limit_text(rows[0]) == words
            and wording.stated_cell(rows[0].number, rows) == cell
        )
    assert wording.stated_cell(None, rows) == wording.NONE


def test_a_group_of_two_by_brute_force() -> None:
    """Three data sets in a chain, each step as far as (epsilon, delta) lets an output's chance
    grow: the ends differ by exactly the limit for two steps."""
    epsilon = 0.7
    delta = 0.03
    chance = 0.01
    for _ in range(2):
        chance = math.exp(epsilon) * chance + delta
    far, limit = StatedLimit(epsilon, delta, "add_remove").exchange_limit()
    assert chance == pytest.approx(math.exp(far) * 0.01 + limit)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"epsilon": -1}, "stated.epsilon=-1: a number above 0"),
        ({"epsilon": "x"}, "stated.epsilon='x': a number"),
        ({"epsilon": 1, "delta": 0}, "stated.delta=0: a number in"),
        ({"epsilon": 1, "relation": "remove"}, "stated.relation=remove: allowed are add_remove"),
        ({"epsilon": 1, "unit": "group"}, "stated.unit=group: allowed are record"),
        ({"delta": 1e-5}, "stated.delta: stated.epsilon must be given too"),
        ({"epsilon": 1, "noise": 1}, "stated.noise: unknown"),
        ({"epsilon": 20, "relation": "add_remove"}, "nothing can contradict it"),
        ({"epsilon": 1000, "relation": "add_remove"}, "nothing can contradict it"),
        ({"epsilon": 10**400}, "a finite number below"),
    ],
)
def test_a_wrong_statement_is_one_line(given: dict[str, Any], said: str) -> None:
    with pytest.raises(BadConfig, match=said) as caught:
        parse_stated_limit(given)
    assert "\n" not in str(caught.value)
