"""Nightly: every profile with a guarantee, by the command, without noise and with half of it:
status 2, and all agree."""

from __future__ import annotations

from pathlib import Path

import pytest

from privdd.selftest_faults.fault_trials import NOISE_PLANTS, audit_with_plant
from privdd.selftest_faults.profiles import PROFILES
from tests import stand_in_weights

pytestmark = pytest.mark.nightly

stand_in_weights.install()


@pytest.mark.parametrize("plant", NOISE_PLANTS)
@pytest.mark.parametrize("profile", PROFILES)
def test_too_little_noise_ends_with_status_2(profile: str, plant: str, tmp_path: Path) -> None:
    result = audit_with_plant(PROFILES[profile], plant, tmp_path / "run")
    assert result.is_contradicted and not result.disagreement, (
        result.status,
        result.first_line,
        result.error,
        result.surfaces,
    )
