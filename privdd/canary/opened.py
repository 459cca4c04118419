"""What opened canaries show: a lower bound on epsilon from one run, and a file from which anybody computes it again.

The bound is the larger of Steinke, Nasr and Jagielski's (2023) and Mahloujifar, Melis and Chaudhuri's (2024) at
half of the error each, over guesses whose numbers were fixed in the public statement. It holds at the stated confidence
for every mechanism and every score that was computed without the coins, which nothing here can see: see the tutorial.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from attacks.epsilon import right_guesses
from attacks.one_run import one_run_bounds
from privdd.canary.sealed import CANARY_SCHEMA, OPENED_FILE, SealedCanaries, check_commitment, derive_seed, parse_secret
from privdd.runtime.files import DamagedRun, read_json

BOUND_TOLERANCE = 1e-9  # relative, between a bound and the one computed again
OPENED_KEYS = {"schema", "salt", "coins", "scores", "artifact", "guesses_right", "bounds", "bound", "stated", "verdict"}


def opened_result(
    sealed: SealedCanaries, salt: bytes, coins: Mapping[str, str], scores: np.ndarray, artifact: Mapping[str, Any]
) -> dict[str, Any]:
    """The content of opened.json. scores: (m,), larger = in, by id. Raises DamagedRun for a commitment that does not fit."""
    inside = check_commitment(sealed, salt, coins)
    told = sealed.statement
    if scores.shape != inside.shape or not np.isfinite(scores).all():
        raise DamagedRun(f"scores {scores.shape}: {len(inside)} finite numbers are needed, one for each canary")
    pairs = [(int(i), int(o)) for i, o in told["guesses"]]
    # fixed with the coins, so that nobody can draw until it fits
    ties = np.random.default_rng(derive_seed(salt, "ties"))
    counts = right_guesses(scores, inside, pairs, ties)
    bounds = one_run_bounds(len(inside), counts, delta=told["delta"], confidence=told["confidence"])
    value = max(bounds.values())
    stated = told["stated"]
    return {
        "schema": CANARY_SCHEMA,
        "salt": salt.hex(),
        "coins": dict(coins),
        "scores": [float(score) for score in scores],
        "artifact": dict(artifact),
        "guesses_right": [[made, right] for made, right in counts],
        "bounds": bounds,
        "bound": value,
        "stated": stated,
        "verdict": "nothing stated" if stated is None else "contradiction" if value > stated else "consistent",
    }


def check_opened_file(sealed: SealedCanaries, path: Path) -> dict[str, Any]:
    """opened.json, every number of it computed again. Raises DamagedRun, one line, for the first that differs."""
    told = read_json(path)
    if (
        not isinstance(told, dict)
        or set(told) != OPENED_KEYS
        or told["schema"] != CANARY_SCHEMA
        or not isinstance(told["artifact"], dict)
    ):
        raise DamagedRun(f"{path}: no {OPENED_FILE} of schema {CANARY_SCHEMA}")
    salt, coins = parse_secret(told, path)
    scores = told["scores"]
    if not isinstance(scores, list) or not all(type(s) is float and math.isfinite(s) for s in scores):
        raise DamagedRun(f"{path}: scores: a list of finite numbers is needed")
    again = opened_result(sealed, salt, coins, np.asarray(scores, dtype=np.float64), told["artifact"])
    for name in sorted(OPENED_KEYS - {"bounds", "bound"}):
        if told[name] != again[name]:
            raise DamagedRun(
                f"{path}: {name} is {_shorten_text(told[name])}, computed again it is {_shorten_text(again[name])}"
            )
    if not isinstance(told["bounds"], dict) or set(told["bounds"]) != set(again["bounds"]):
        raise DamagedRun(f"{path}: bounds are not {', '.join(again['bounds'])}")
    for name, mine in {**again["bounds"], "bound": again["bound"]}.items():
        theirs = told["bound"] if name == "bound" else told["bounds"][name]
        if type(theirs) not in (int, float) or not math.isclose(
            theirs, mine, rel_tol=BOUND_TOLERANCE, abs_tol=BOUND_TOLERANCE
        ):
            raise DamagedRun(f"{path}: {name} is {_shorten_text(theirs)}, computed again it is {mine:.6g}")
    return again


def describe_opened(found: Mapping[str, Any], sealed: SealedCanaries) -> str:
    """One line for the terminal."""
    m, told = len(found["scores"]), sealed.statement
    right = ", ".join(f"{right} of {made}" for made, right in found["guesses_right"])
    bound = f"epsilon >= {found['bound']:.3g} at delta {told['delta']:g} ({told['confidence']:.0%})"
    line = f"{m} canaries, coins read: {right}; {bound}"
    return line if found["stated"] is None else f"{line}; stated {found['stated']:g}: {found['verdict']}"


def _shorten_text(value: Any) -> str:
    return str(value)[:60]
