"""What the papers say in words: no number, and named attacks that exist and measure it."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from privdd.privacy.claims import (
    Claim,
    feddm_membership,
    fedlgd_attacks,
    fedlgd_no_extra_leakage,
    fedrd_not_real,
    fedrd_secret_projection,
)

CONFIGS = Path(__file__).resolve().parents[2] / "configs" / "attack"
ALL = [
    feddm_membership(), fedrd_not_real(real_start=True), fedrd_not_real(real_start=False), fedlgd_attacks(),
    fedrd_secret_projection(frozen=True), fedrd_secret_projection(frozen=False),
    fedlgd_no_extra_leakage(statistics=True), fedlgd_no_extra_leakage(statistics=False),
]  # fmt: skip


@pytest.mark.parametrize("claim", ALL, ids=lambda c: c.source)
def test_no_number_and_attacks_that_can_be_chosen(claim: Claim) -> None:
    assert claim.epsilon is None and claim.tested_by
    known = {path.stem for path in CONFIGS.glob("*.yaml") if yaml.safe_load(path.read_text())}
    assert set(claim.tested_by) <= known


def test_what_the_run_makes_of_the_sentence() -> None:
    assert "start=real" in fedrd_not_real(real_start=True).why and "start=real" not in fedrd_not_real(real_start=False).why
    assert "public" in fedrd_secret_projection(frozen=True).why
    assert fedlgd_no_extra_leakage(statistics=False).sound and not fedlgd_no_extra_leakage(statistics=True).sound
