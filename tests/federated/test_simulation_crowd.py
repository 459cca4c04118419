"""When client-level noise drowns what is learned: the closed form, and what it says."""

from __future__ import annotations

import math

import pytest
import torch

from privdd.federated.simulation import noise_to_signal, too_few_clients_warning
from tests.federations import tiny

torch.set_num_threads(1)
CLIENT = ("fedavg", "privacy=client", "model=mlp", "algo.rounds=4")


def ratio(*more: str) -> float:
    found = noise_to_signal(tiny(*CLIENT, *more).plan)
    assert found is not None
    return found[0]


def test_the_noise_of_the_average_is_that_of_simulated_noise() -> None:
    """Length of the mean of three clients' noise over four rounds, against four rounds of updates of the clip norm."""
    plan = tiny(*CLIENT).plan
    size = sum(p.numel() for p in plan.method.classifier(plan.problem).parameters())  # type: ignore[union-attr]
    noise = torch.randn(4, 3, size, generator=torch.Generator().manual_seed(1)).mean(1).sum(0)
    assert ratio() == pytest.approx(float(noise.norm()) / 4, rel=0.05)


def test_shares_of_noise_are_counted_as_such() -> None:
    assert ratio() / ratio("trust=secagg", "trust.colluding=0") == pytest.approx(math.sqrt(3))


@pytest.mark.parametrize("trust", ["local", "secagg"])
def test_the_number_of_clients_named_is_enough(trust: str) -> None:
    more = (f"trust={trust}",) if trust == "local" else ("trust=secagg", "trust.colluding=0")
    least = noise_to_signal(tiny(*CLIENT, *more, "privacy.noise_multiplier=.5").plan)
    assert least is not None and least[0] > 2 and least[1] > 3
    alike = noise_to_signal(tiny(*CLIENT, *more, "privacy.noise_multiplier=.5", f"partition.clients={min(least[1], 14)}").plan)
    assert alike is not None and alike[0] < least[0]
    if least[1] <= 14:
        assert alike[0] <= 2


def test_it_is_said_once_and_only_where_it_is_so() -> None:
    with pytest.warns(UserWarning, match=r"3 clients a round are too few: .* about \d+ clients are needed"):
        tiny(*CLIENT, "privacy.noise_multiplier=9")
    assert too_few_clients_warning(tiny("fedavg").plan) == "" and noise_to_signal(tiny("feddm_dp").plan) is None
    assert too_few_clients_warning(tiny(*CLIENT, "privacy.noise_multiplier=.05").plan) == ""
