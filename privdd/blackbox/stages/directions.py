"""The record's direction as a secret on a sphere, to be identified: bounds without a ceiling at the
logarithm of the number of calls, for any mechanism."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np

from privdd.blackbox import identification_games as games
from privdd.blackbox.check_report import SingleTestResult
from privdd.blackbox.check_run import FEWEST, CallsOf, CheckRun
from privdd.blackbox.mechanism import InputRefused

DIRECTIONS = 1200  # games
# of the calls that are left, for each game
SHARE = 0.08  # on the stated calls
EMBEDDED_SHARE = 0.04  # on one call among others
NAME = "directions"
EMBEDDED_NAME = "directions, between public calls"
HIDDEN_NAME = "one call among many"
SERIES_NAME = "many calls, each on a record of its own"
LATE_SERIES_NAME = "one call after many on public data"
WITHOUT_NOISE = (
    "a piece of the release, or what two pieces differ in, is the record itself, scaled: it "
    "has no noise"
)
NO_PIECES = (
    "releases differ in size, or cannot be cut into pieces as long as the record (three "
    "numbers or more)"
)


def examine_directions(run: CheckRun) -> None:
    """The record's direction, read back; then one call on it among many."""
    for calls_of, name, share in (
        (run.stated_calls, NAME, SHARE),
        (run.embedded_call, EMBEDDED_NAME, EMBEDDED_SHARE),
    ):
        for game in games.direction_games(run.mechanism.kind, run.inputs):
            if _is_refuted_without_law(run):
                return  # a bound without assumptions refutes already
            _play(run, name, partial(examine_direction, run, name, game, calls_of, share))
    first_game = next(games.direction_games(run.mechanism.kind, run.inputs), None)
    if first_game is None:
        return
    _play(run, HIDDEN_NAME, partial(examine_hidden_call, run, first_game))
    for name, late in ((SERIES_NAME, False), (LATE_SERIES_NAME, True)):
        _play(run, name, partial(examine_series, run, name, first_game, late=late))


def _is_refuted_without_law(run: CheckRun) -> bool:
    refuted = [result for result in run.report.looks if result.outcome == "refuted"]
    return any(result.strength != "noise_law" for result in refuted)


def _play(run: CheckRun, name: str, examine: Callable[[], None]) -> None:
    try:
        examine()
    except InputRefused as refusal:
        run.note_refused(name, refusal)


def examine_direction(
    run: CheckRun, name: str, game: games.DirectionGame, calls_of: CallsOf, share: float
) -> None:
    """One game: the record's direction is read back from the release by a learned decoder.

    Args:
        run: the check.
        name: of the look.
        game: which data hold the record.
        calls_of: data -> the calls of a transcript.
        share: of the calls that are left.

    Raises:
        InputRefused: the mechanism raised an error.
        OutOfTime: the budget is spent.
    """
    example = calls_of(game.with_record(np.eye(game.dimensions)[0]))
    count = run.affordable_transcripts(example, share, DIRECTIONS, FEWEST)
    if count < FEWEST:
        run.note_skipped(name)
        return
    result = games.play_direction_game(run.game_setting(2), game, calls_of, count)
    says = (
        "the record's direction, one of a sphere, is read back with a cosine of "
        f"{result.cosine:.3g}"
    )
    run.add_result(
        name,
        result.epsilon,
        "finite_sample",
        says,
        result.says,
        transcripts=result.transcripts,
    )
    _add_pieces(run, f"{name}, as released", result.pieces, result.says)
    if result.worst is not None and calls_of == run.stated_calls:
        run.fitted_inputs.append(replace(game.tried, along=(result.worst,)))


def _add_pieces(run: CheckRun, name: str, bound: float | None, inputs: str) -> None:
    if bound is None:
        result = SingleTestResult(name, "not tested", NO_PIECES, inputs=inputs)
        run.report.looks.append(result)
    else:
        run.add_fault(name, bound, "finite_sample", WITHOUT_NOISE, inputs)


def examine_hidden_call(run: CheckRun, game: games.DirectionGame) -> None:
    """One call on the record among many of the same instance. Raises InputRefused, OutOfTime."""
    calls = _calls_per_instance(run, games.HIDDEN_CALLS)
    inputs = [game.without_record()] * calls
    # as many transcripts as calls at least: the record comes in each place
    count = run.affordable_transcripts(
        inputs, EMBEDDED_SHARE, games.HIDDEN_GAMES, games.HIDDEN_CALLS
    )
    if count < games.HIDDEN_CALLS:
        run.note_skipped(HIDDEN_NAME)
        return
    bound = games.bound_hidden_call(run.game_setting(), game, count, calls)
    _add_pieces(run, HIDDEN_NAME, bound, game.says)


def _calls_per_instance(run: CheckRun, most: int) -> int:
    """At most as many calls of an instance as a series has: of later ones nothing is stated."""
    if run.claim.calls == 1:
        return most
    return min(most, run.claim.calls)


def examine_series(run: CheckRun, name: str, game: games.DirectionGame, *, late: bool) -> None:
    """Hundreds of calls of one instance.

    Args:
        run: the check.
        name: of the look.
        game: which data hold the record.
        late: whether only the last call is on a record.

    Raises:
        InputRefused: the mechanism raised an error.
        OutOfTime: the budget is spent.
    """
    most = _calls_per_instance(run, games.SERIES_CALLS)
    if most < games.FEWEST_SERIES_CALLS or run.report.is_refuted:
        return
    fewest = games.RUNS * games.FEWEST_SERIES_CALLS
    inputs = [game.without_record()]
    calls = run.affordable_transcripts(inputs, EMBEDDED_SHARE, games.RUNS * most, fewest)
    calls_of_run = calls // games.RUNS
    if calls_of_run < games.FEWEST_SERIES_CALLS:
        run.note_skipped(name)
        return
    bound = games.bound_series(run.game_setting(), game, calls_of_run, late=late)
    _add_pieces(run, name, bound, game.says)
