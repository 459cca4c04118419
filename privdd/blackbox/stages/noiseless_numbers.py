"""Numbers that have no noise at all, or whatever repeats exactly, in a table of candidates."""

from __future__ import annotations

from contextlib import suppress
from functools import partial

from privdd.blackbox import identification_games as games
from privdd.blackbox.check_run import CheckRun
from privdd.blackbox.mechanism import InputRefused

CANDIDATES = 100_000
LOOKUP_SHARE = 0.2  # of the calls that are left


def examine_noiseless_numbers(run: CheckRun) -> None:
    """A number without noise tells the record's size; else what repeats may name the record."""
    with suppress(InputRefused):
        identification = games.find_noiseless_number(
            run.mechanism, run.inputs, run.budget, run.rng, run.next_level
        )
        if identification is not None:
            says = (
                f"number {identification.place} of the release has no noise and reveals the "
                f"record's size ({identification.won} of {games.GAMES} named)"
            )
            run.add_result(
                "numbers without noise",
                identification.epsilon,
                "finite_sample",
                says,
                "a record of a secret norm",
            )
            return
        game = next(games.direction_games(run.mechanism.kind, run.inputs), None)
        if game is not None and not run.report.is_refuted:
            _examine_lookup(run, game)


def _examine_lookup(run: CheckRun, game: games.DirectionGame) -> None:
    affordable_candidates = partial(
        run.affordable_transcripts, [game.without_record()], LOOKUP_SHARE, CANDIDATES
    )
    identification = games.play_lookup_game(run.game_setting(), game, affordable_candidates)
    if identification is not None:
        says = (
            f"exact repetitions in the release identify the record: {identification.won} of "
            f"{games.LOOKUP.games} among {identification.candidates}"
        )
        run.add_result(
            "looked up in a table", identification.epsilon, "finite_sample", says, game.says
        )
