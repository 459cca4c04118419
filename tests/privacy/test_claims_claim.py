"""What a claim may hold, and how it is written down."""

from __future__ import annotations

import math

import pytest

from privdd.privacy.claims import Claim, smallest_claim


def test_what_is_written_down() -> None:
    assert Claim("a", 1.5, True, "b").to_json() == {"source": "a", "epsilon": 1.5, "sound": True, "why": "b"}
    assert Claim("a", math.inf, True, "b").to_json()["epsilon"] == "inf"
    whole = Claim("a", None, False, "b", 1e-5, ("R = 2",), "a record", ("lira",)).to_json()
    assert whole["epsilon"] == "no number" and whole["delta"] == 1e-5 and whole["choices"] == ["R = 2"]
    assert whole["neighbours"] == "a record" and whole["tested_by"] == ["lira"]


@pytest.mark.parametrize(("epsilon", "delta"), [(-1.0, None), (math.nan, None), (1.0, 0.0), (1.0, 1.0)])
def test_numbers_without_meaning_are_refused(epsilon: float, delta: float | None) -> None:
    with pytest.raises(ValueError, match=r"epsilon=|delta="):
        Claim("a", epsilon, True, "b", delta)


def test_a_claim_without_a_number_is_never_the_boldest() -> None:
    claims = [Claim("words", None, False, ""), Claim("large", 3.0, False, ""), Claim("small", 0.0, False, "")]
    found = smallest_claim(claims)
    assert found is not None and found.source == "small"
    assert smallest_claim(claims[:1]) is None and smallest_claim([]) is None
