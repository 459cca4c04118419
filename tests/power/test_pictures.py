"""Every attack on pictures and labels finds what is planted on each surface that it claims, and
nothing in a null."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from attacks.inversion.gradient_attack import UpdateInversion
from attacks.types import Evidence, Surface, View
from tests.power import pictures
from tests.power.pictures import ATTACKS, claimed, power

pytestmark = pytest.mark.nightly

CLAIMED = list(claimed())


@pytest.mark.parametrize(("surface", "name"), CLAIMED, ids=[f"{s}-{n}" for s, n in CLAIMED])
def test_a_planted_leak_is_found_and_a_null_is_not(surface: Surface, name: str) -> None:
    found = power(surface, name, [0])
    assert found.found == 1 and found.nulls == 0, found


def test_an_attack_that_draws_noise_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    class Noise(UpdateInversion):
        def run(self, view: View, generator: torch.Generator) -> Evidence:
            found = super().run(view, generator)
            return replace(found, images=torch.rand(found.images.shape, generator=generator))

    monkeypatch.setattr(pictures, "ATTACKS", {**ATTACKS, "update_inversion": Noise(budget=1)})
    assert power(Surface.UPDATE, "update_inversion", [0]).broken
