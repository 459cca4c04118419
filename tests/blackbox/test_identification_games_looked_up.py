"""Records that are named by what repeats in a release."""

from __future__ import annotations

import math

import numpy as np
import pytest

from privdd.blackbox.identification_games import GameSetting, direction_games, play_lookup_game
from privdd.blackbox.inputs import InputShapes
from privdd.blackbox.mechanism import BlackBox
from privdd.blackbox.transcripts import BoundLevel, CallBudget

GAME = next(direction_games("update", InputShapes(structures=(((5,),),))))
NOISE = np.random.default_rng(3)
K = 500


def named(f, rng: np.random.Generator):
    return play_lookup_game(GameSetting(BlackBox(lambda: f, "update", fresh=False), CallBudget(60, 10**6), rng, 0.0, BoundLevel(0.0, 0.99)), GAME, lambda: K)


def seeded_by_the_data(update):
    return update[0] + np.random.default_rng(abs(hash(update[0].tobytes()))).standard_normal(5)


def digits_in_a_text(update):
    return {"a": update[0] + NOISE.standard_normal(5), "note": f"{np.linalg.norm(update[0]):.12f}"}


def longer_where_it_is_large(update):
    return np.zeros(1 if np.linalg.norm(update[0]) < 1 else 2)


@pytest.mark.parametrize(("f", "most"), [(seeded_by_the_data, math.log(K)), (digits_in_a_text, math.log(K)),
                                         (longer_where_it_is_large, math.log(2))])  # fmt: skip
def test_what_repeats_names_the_record_and_no_more_than_it_tells(f, most: float) -> None:
    found = named(f, np.random.default_rng(2))
    assert found is not None and found.epsilon <= most + 1e-9
    assert found.epsilon > 0.9 * most or most < 1


def test_noise_or_a_constant_names_nobody() -> None:
    rng = np.random.default_rng(2)
    assert named(lambda update: update[0] + NOISE.standard_normal(5), rng) is None
    assert named(lambda update: np.zeros(5), rng) is None
