"""Neighbours under the same noise: sources that are held still, exact shifts, releases without
noise."""

from __future__ import annotations

import gc
import os
import random
import secrets

import numpy as np
import pytest
import torch

from privdd.api import check
from privdd.blackbox import frozen_sources
from privdd.blackbox.frozen_sources import FrozenSources, find_generators
from privdd.blackbox.inputs import InputShapes, NeighbouringInputs
from privdd.blackbox.mechanism import BlackBox
from privdd.blackbox.neighbours import counted_neighbours
from privdd.blackbox.paired_replays import replay_pair

RNG = np.random.default_rng(5)
SMALL = InputShapes(structures=(((6,),),), tables=((4, 3),), crowds=(3,))


class Holder:
    generator = torch.Generator()


SOURCES = {
    "a generator of numpy": lambda: RNG.normal(),
    "numpy's global one": lambda: np.random.normal(),  # noqa: NPY002
    "one made in the call": lambda: np.random.default_rng().random(),
    "an old one made in the call": lambda: np.random.RandomState().rand(),
    "random": lambda: random.gauss(0, 1),
    "the system's": lambda: random.SystemRandom().random(),
    "secrets": lambda: secrets.randbelow(2**40),
    "os.urandom": lambda: os.urandom(9),
    "torch's global one": lambda: float(torch.randn(1)),
    "one of torch": lambda: float(torch.randn(1, generator=Holder.generator)),
}


@pytest.mark.parametrize("name", SOURCES)
def test_a_source_gives_the_same_again_and_is_put_back(name: str) -> None:
    draw = SOURCES[name]
    system = os.urandom
    with FrozenSources() as sources:
        sources.restart(3)
        assert not sources.drawn_from()
        first = draw()
        assert sources.drawn_from()
        sources.restart(3)
        assert draw() == first
        sources.restart(4)
        assert draw() != first
    assert os.urandom is system


def test_states_go_on_where_they_were() -> None:
    one = np.random.default_rng(8)
    other = np.random.default_rng(8)
    with FrozenSources() as sources:
        sources.restart(1)
        one.random()
    assert one.random() == other.random()


def _pair(present, absent):
    return NeighbouringInputs(present, absent, "two tables", np.ones(1))


def _replayed(mechanism, present, absent, seeds=range(1, 9)):
    pair = _pair(np.asarray(present, float), np.asarray(absent, float))
    with FrozenSources() as sources:
        return replay_pair(
            BlackBox(lambda: mechanism, "records", fresh=False),
            pair,
            ([pair.present], [pair.absent]),
            sources,
            seeds,
        )


def test_the_shift_is_exact_where_noise_is_added_and_unknown_elsewhere() -> None:
    rows = [[3.0], [0.25]]
    fewer = [[0.25]]
    added = _replayed(lambda x: np.clip(x, -1, 1).sum(0) + RNG.laplace(0, 5, 1), rows, fewer)
    assert (
        added.shift() == pytest.approx([1.0], abs=1e-12)
        and added.repeats
        and added.is_random
        and max(added.score) > 0
    )
    scaled = _replayed(
        lambda x: (np.clip(x, -1, 1).sum(0) + RNG.laplace(0, 5, 1)) / len(x), rows, fewer
    )
    assert scaled.shift() is None and scaled.score == (0.0, 0.0)
    assert _replayed(lambda x: [1.0] * len(x), rows, fewer).shift() is None  # another size


def test_what_is_made_from_the_data_is_no_noise_and_told_in_a_second() -> None:
    """Also with noise that is seeded by the record; and a float that a choice gives is one of few
    values, so it is counted."""
    seeded = lambda x: x.sum(0) + np.random.default_rng(abs(int(x.sum() * 1e6))).laplace(0, 1, 3)  # noqa: E731
    for mechanism in (seeded, lambda x: x.mean(0)):
        found = check(
            mechanism,
            stated={"epsilon": 10.0, "delta": 1e-5},
            kind="records",
            seconds=10.0,
            tried=SMALL,
        )
        assert (
            found.refuted
            and found.certified == float("inf")
            and "no source of randomness" in found.says
        )
        assert found.calls < 100
    counted = check(
        lambda x: len(x),
        stated={"epsilon": 1.0, "delta": 1e-5},
        kind="records",
        max_calls=30_000,
        tried=SMALL,
    )
    assert counted.refuted and 5 < counted.certified < float("inf")


@pytest.mark.nightly
def test_a_sum_rounded_before_noise_moves_at_one_count_and_one_rounded_after_it_does_not() -> None:
    """To tens: the step from five records alike to six is ten, every other is none."""
    before_noise = lambda x: float(np.round(np.clip(x[:, 0], -1, 1).sum(), -1))  # noqa: E731
    before = lambda x: before_noise(x) + RNG.laplace(0, 1)  # noqa: E731
    after = lambda x: float(np.round(np.clip(x[:, 0], -1, 1).sum() + RNG.laplace(0, 1), 1))  # noqa: E731
    asked = {
        "kind": "records",
        "seconds": 40.0,
        "max_calls": 30_000,
        "tried": InputShapes(tables=((12, 3),)),
    }
    found = check(before, stated={"epsilon": 1.0, "delta": 0.0}, record=True, **asked)
    assert found.refuted and found.exact is not None and found.exact.shift_l1 == pytest.approx(10.0)
    assert found.exact.epsilon == pytest.approx(10.0, rel=0.06)
    steps = [
        pair.says
        for pair in counted_neighbours("add_remove", asked["tried"])
        if before_noise(pair.present) != before_noise(pair.absent)
    ]
    assert len(steps) == 1 and "others 5 alike and zeros" in steps[0]
    assert not check(after, stated={"epsilon": 1.0, "delta": 0.0}, **asked).refuted


def test_a_choice_that_seldom_varies_is_not_called_noiseless() -> None:
    """Randomised response at epsilon 9: three calls of four thousand give another answer."""
    keep = 1 / (1 + np.exp(-9.0))

    def answer(x):
        bits = x[:, 0] > 0
        return np.where(RNG.random(len(bits)) < keep, bits, ~bits).astype(int)

    found = check(
        answer,
        stated={"epsilon": 9.0, "delta": 0.0},
        kind="records",
        relation="replace",
        max_calls=30_000,
        tried=SMALL,
    )
    assert not found.refuted


def test_generators_that_were_frozen_are_found_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """As tests/conftest.py freezes those of this module. The search is the shipped one, not that of
    this folder's conftest."""
    monkeypatch.setattr(frozen_sources, "gc", gc)
    assert gc.get_freeze_count() > 0
    assert (
        any(bits is RNG.bit_generator for bits in find_generators().bits)
        and gc.get_freeze_count() > 0
    )
