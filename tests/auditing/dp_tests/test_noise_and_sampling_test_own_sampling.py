"""Sampling that is not done by ``ctx.sample`` is judged by how many records contribute to the releases."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from privdd.auditing.dp_tests.noise_and_sampling_test import sampling_outcomes
from privdd.federated.noise_log import ReleaseLog, RoundLog

HELD, Q, RELEASES = 100, 0.1, 20
Size = Callable[[np.random.Generator], int]
WAYS: dict[str, tuple[Size, bool]] = {
    "Poisson": (lambda g: int(g.binomial(HELD, Q)), True),
    "everybody": (lambda g: HELD, False),
    "twice the rate": (lambda g: int(g.binomial(HELD, 2 * Q)), False),
    "batches of one size": (lambda g: 10, False),
}


@pytest.mark.parametrize("cells", [(None,), ("label:0", "label:1")])
@pytest.mark.parametrize("way", WAYS)
def test_a_methods_own_sampling_is_seen_in_its_releases(way: str, cells: tuple[str | None, ...]) -> None:
    size, sound = WAYS[way]
    watch, g = RoundLog(0, 0, True, HELD), np.random.default_rng(0)
    for _ in range(RELEASES):
        total = size(g)
        parts = [total] if len(cells) == 1 else [total // 3, total - total // 3]
        watch.releases += [ReleaseLog("dpsgd", cell, part) for cell, part in zip(cells, parts)]
    smallest = min(look.p for look in sampling_outcomes([watch], "dpsgd", Q))
    assert (smallest > 1e-3) if sound else (smallest < 1e-4)


DRAWS: dict[str, tuple[Callable[[int], list[int]], bool]] = {
    "those that were drawn": (lambda taken: [taken], True),
    "some of them, in two releases": (lambda taken: [taken // 2, taken - taken // 2], True),
    "one more than was drawn": (lambda taken: [taken + 1], False),
    "the same ones twice": (lambda taken: [taken, taken], False),
    "none: the next draw is used": (lambda taken: [], False),
}


@pytest.mark.parametrize("way", DRAWS)
def test_releases_are_of_those_who_were_drawn(way: str) -> None:
    of, sound = DRAWS[way]
    watch, g = RoundLog(0, 0, True, HELD), np.random.default_rng(0)
    for _ in range(RELEASES):
        taken = torch.from_numpy(g.random(HELD) < Q)
        watch.on_sample("dpsgd", Q, taken)
        watch.releases += [ReleaseLog("dpsgd", None, part) for part in of(int(taken.sum()))]
    smallest = min(look.p for look in sampling_outcomes([watch], "dpsgd", Q))
    assert smallest > 1e-3 if sound else smallest == 0
