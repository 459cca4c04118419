"""Every membership attack finds the leak that is planted on each surface that it claims, and finds
none in a null."""

from __future__ import annotations

import pytest
import torch

from attacks.membership.lira import Lira
from attacks.types import Surface
from privdd.auditing import signal_extraction
from tests.power.membership import claimed, finds, power

pytestmark = pytest.mark.nightly

SEEDS = range(3)
CLAIMED = list(claimed())


def test_every_surface_is_claimed() -> None:
    assert {surface for surface, _ in CLAIMED} == set(Surface)


@pytest.mark.parametrize(("surface", "name"), CLAIMED, ids=[f"{s}-{n}" for s, n in CLAIMED])
def test_a_planted_leak_is_found_and_a_null_is_not(surface: Surface, name: str) -> None:
    # a network is fitted for every fold
    seeds = SEEDS[:1] if name == "shadow_classifier" else SEEDS
    found = power(surface, name, seeds)
    assert not found.broken, found
    if surface == Surface.COUNTS:  # how many records there are: one number for all
        assert found.unread == 2 * len(seeds)
    else:
        assert found.found == len(seeds) and found.nulls <= 1


def test_a_reader_that_sees_one_number_for_all_records_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As prototypes were once read: the sum of all numbers sent."""
    blind = dict(signal_extraction.SIGNAL_READERS) | {
        Surface.PROTOTYPES: signal_extraction._count_signal
    }
    monkeypatch.setattr(signal_extraction, "SIGNAL_READERS", blind)
    found = power(Surface.PROTOTYPES, "lira", [100])
    assert found.found == 0 and found.broken and str(found) == "nothing to read"


def test_an_attack_that_guesses_is_noticed() -> None:
    class Guess(Lira):
        def score(self, view, name, seed):  # type: ignore[no-untyped-def]
            return torch.rand(
                view.worlds.masks.shape, generator=torch.Generator().manual_seed(seed)
            ).double()

    assert not any(finds(Guess(), Surface.UPDATE, seed) for seed in SEEDS)
