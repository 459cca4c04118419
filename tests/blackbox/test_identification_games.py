"""Tests of ``privdd.blackbox.identification_games``."""

from __future__ import annotations

import math
from itertools import count

import numpy as np
import pytest

from privdd.blackbox.budgets import BoundLevel, CallBudget
from privdd.blackbox.identification_games import (
    HIDDEN_CALLS,
    ROOM,
    RUNS,
    GameSetting,
    bound_from_pieces,
    bound_hidden_call,
    bound_series,
    direction_games,
    pieces_along_record,
    play_direction_game,
    play_lookup_game,
)
from privdd.blackbox.inputs import InputShapes
from privdd.blackbox.mechanism import BlackBox

# Records that are named by what repeats in a release.


GAME = next(direction_games("update", InputShapes(structures=(((5,),),))))
NOISE = np.random.default_rng(3)
K = 500


def named(f, rng: np.random.Generator):
    return play_lookup_game(
        GameSetting(
            BlackBox(lambda: f, "update", fresh=False),
            CallBudget(60, 10**6),
            rng,
            0.0,
            BoundLevel(0.0, 0.99),
        ),
        GAME,
        lambda: K,
    )


def seeded_by_the_data(update):
    return update[0] + np.random.default_rng(abs(hash(update[0].tobytes()))).standard_normal(5)


def digits_in_a_text(update):
    return {"a": update[0] + NOISE.standard_normal(5), "note": f"{np.linalg.norm(update[0]):.12f}"}


def longer_where_it_is_large(update):
    return np.zeros(1 if np.linalg.norm(update[0]) < 1 else 2)


@pytest.mark.parametrize(
    ("f", "most"),
    [
        (seeded_by_the_data, math.log(K)),
        (digits_in_a_text, math.log(K)),
        (longer_where_it_is_large, math.log(2)),
    ],
)
def test_what_repeats_names_the_record_and_no_more_than_it_tells(f, most: float) -> None:
    found = named(f, np.random.default_rng(2))
    assert found is not None and found.epsilon <= most + 1e-9
    assert found.epsilon > 0.9 * most or most < 1


def test_noise_or_a_constant_names_nobody() -> None:
    rng = np.random.default_rng(2)
    assert named(lambda update: update[0] + NOISE.standard_normal(5), rng) is None
    assert named(lambda update: np.zeros(5), rng) is None


# Pieces of a release that are the record: the chance of a hit is as computed, and hits come only
# where noise is missing.


SMALL = InputShapes(structures=(((4, 3), (4,)),))


def spheres(n: int, m: int, rng: np.random.Generator) -> np.ndarray:
    s = rng.standard_normal((n, m))
    return s / np.linalg.norm(s, axis=1, keepdims=True)


@pytest.mark.parametrize(("m", "pieces"), [(3, 1), (8, 1), (8, 3)])
def test_releases_that_know_nothing_hit_no_more_often_than_is_said(m: int, pieces: int) -> None:
    rng = np.random.default_rng(4)
    said = math.exp(-2.0)
    n = 40_000
    outputs = np.tile(rng.standard_normal(m * pieces), (n, 1))
    share = pieces_along_record(spheres(n, m, rng), outputs, -2.0).mean()
    error = 4 * math.sqrt(said / n)
    assert share < said + error and (share > said - error or pieces > 1)


def test_nothing_is_said_where_the_release_has_no_piece_as_long_as_the_record() -> None:
    s = spheres(50, 5, np.random.default_rng(1))
    assert bound_from_pieces(s, s[:, :4], -3.0, BoundLevel(0.0, 0.9)) is None
    assert bound_from_pieces(s, -3 * s, -3.0, BoundLevel(0.0, 0.9)) > 1.0


def noisy(skipped: float, rng: np.random.Generator):
    def mechanism(update):
        flat = np.concatenate([a.ravel() for a in update])
        flat = flat / max(1.0, float(np.linalg.norm(flat)))
        return flat if rng.random() < skipped else flat + rng.standard_normal(len(flat))

    return mechanism


@pytest.mark.parametrize(("skipped", "found"), [(0.0, False), (0.02, True)])
def test_noise_that_is_skipped_at_times_is_seen(skipped: float, found: bool) -> None:
    rng = np.random.default_rng(5)
    box = BlackBox(lambda: noisy(skipped, rng), "update", fresh=False)
    told = play_direction_game(
        setting(box, rng), next(direction_games("update", SMALL)), lambda data: [data], 600
    )
    assert (told.pieces > 4.0) == found


LEVEL = BoundLevel(1e-5, 0.999)


def setting(box: BlackBox, rng: np.random.Generator, level: BoundLevel = LEVEL) -> GameSetting:
    return GameSetting(box, CallBudget(60, 10**6), rng, 4.0, level)


class Cached:
    """A class whose k-th noise is ``again[k]`` times that of an earlier call, where it has an
    entry."""

    again: dict[int, float] = {}

    def __init__(self) -> None:
        self.rng = np.random.default_rng()
        self.noises = []

    def __call__(self, update):
        flat = np.concatenate([a.ravel() for a in update])
        at = len(self.noises)
        fresh = self.rng.standard_normal(len(flat))
        self.noises.append(self.again[at] * self.noises[0] if at in self.again else fresh)
        return flat / max(1.0, float(np.linalg.norm(flat))) + self.noises[-1]


@pytest.mark.parametrize(
    ("again", "found"), [({}, False), ({17: 1.0}, True), ({9: -1.0}, True), ({20: 0.0}, True)]
)
def test_one_call_among_many_shows_noise_that_comes_back_or_is_missing(
    again: dict[int, float], found: bool
) -> None:
    kind = type("Kind", (Cached,), {"again": again})
    game = next(direction_games("update", SMALL))
    bound = bound_hidden_call(
        setting(BlackBox(kind, "update"), np.random.default_rng(6)), game, 5 * HIDDEN_CALLS
    )
    assert (bound > 4.0) == found


class Late:
    """Adds noise to its first calls only, or to all but one in many."""

    first = 0
    every = 0
    seeds = count()

    def __init__(self) -> None:
        self.at = 0
        self.rng = np.random.default_rng(next(self.seeds))

    def __call__(self, update):
        self.at += 1
        flat = np.concatenate([a.ravel() for a in update])
        flat = flat / max(1.0, float(np.linalg.norm(flat)))
        plain = (self.first and self.at > self.first) or (
            self.every and self.rng.random() < 1 / self.every
        )
        return flat if plain else flat + self.rng.standard_normal(len(flat))


@pytest.mark.parametrize(
    ("first", "every", "found"), [(0, 0, False), (100, 0, True), (0, 300, True), (200, 0, False)]
)
def test_noise_that_stops_after_a_while_is_seen_in_a_long_run(
    first: int, every: int, found: bool
) -> None:
    kind = type("Kind", (Late,), {"first": first, "every": every, "seeds": count()})
    game = next(direction_games("update", SMALL))
    bound = bound_series(
        setting(BlackBox(kind, "update"), np.random.default_rng(7)), game, 150, late=False
    )
    assert (bound > 4.0) == found


def test_a_long_run_says_no_more_than_its_share_of_each_call() -> None:
    """Every run meets a hit: epsilon of one call is at least ln(share / calls) more than the chance
    of a hit."""
    plain = type("Plain", (Late,), {"every": 1, "seeds": count()})
    game = next(direction_games("update", SMALL))
    rng = np.random.default_rng(8)
    bound = bound_series(
        setting(BlackBox(plain, "update"), rng, BoundLevel(1e-5, 0.99)), game, 50, late=False
    )
    share = 0.01 ** (1 / RUNS) / 50
    assert bound == pytest.approx(math.log(share - 1e-5) + 4.0 + ROOM)
    assert (
        bound_series(
            setting(BlackBox(plain, "update"), rng, BoundLevel(share, 0.99)), game, 50, late=False
        )
        == 0.0
    )
