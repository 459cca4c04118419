"""Stages in which the record is a secret drawn among very many, to be named from what is released."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from privdd.checking.called import Refused
from privdd.checking.constant_parts import constant_part
from privdd.checking.direction_game import games, play
from privdd.checking.examining import FEWEST, Examining
from privdd.checking.late_call import late_call
from privdd.checking.long_run import CALLS as LONG
from privdd.checking.long_run import FEWEST as SHORT
from privdd.checking.long_run import RUNS, long_run
from privdd.checking.looked_up import GAMES, looked_up
from privdd.checking.looks import Looked
from privdd.checking.one_call import CALLS, hidden_call
from privdd.checking.one_call import GAMES as GAMES_HIDDEN

DIRECTIONS = 1200  # games
SHARES = (0.08, 0.04)  # of what is left, for each game: by itself, and between public calls
CANDIDATES = 100_000
WITHOUT_NOISE = "a piece of the release, or what two pieces differ in, is the record itself, scaled: it has no noise"
NO_PIECES = "releases differ in size, or cannot be cut into pieces as long as the record (three numbers or more)"


@dataclass
class SecretRecords(Examining):
    """Bounds without a ceiling at the logarithm of the number of calls, for any mechanism."""

    def directions(self) -> None:
        """The record's direction, read back; then one call on it among many."""
        names, asked = ("directions", "directions, between public calls"), self.stated.limit
        for around, name, share in zip((self.around, self.between), names, SHARES):
            for game in games(self.mechanism.kind, self.tried):
                if self.result.refuted and self._seen_free():
                    return
                try:
                    count = self._affordable(around(game.with_record(np.eye(game.dimensions)[0])), share, DIRECTIONS)
                    if count < FEWEST:
                        self._left_out(name)
                        continue
                    found = play(
                        self.mechanism, game, around, count, self.clock, self.rng, asked=asked, **self._test(2)
                    )
                except Refused as no:
                    self.result.notes.append(f"{name}: refused with: {no}")
                    continue
                says = f"the record's direction, one of a sphere, is read back with a cosine of {found.cosine:.3g}"
                self._add(name, found.epsilon, "finite_sample", says, found.says, transcripts=found.transcripts)
                self._add_pieces(f"{name}, as released", found.pieces, found.says)
                if found.worst is not None and around == self.around:
                    self.worst.append(replace(game.tried, along=(found.worst,)))
        self._hidden()
        self._series()

    def _add_pieces(self, name: str, bound: float | None, inputs: str) -> None:
        if bound is None:
            self.result.looks.append(Looked(name, "not looked at", NO_PIECES, inputs=inputs))
        else:
            self._add_fault(name, bound, "finite_sample", WITHOUT_NOISE, inputs)

    def _hidden(self) -> None:
        """One call among many of the same instance."""
        name = "one call among many"
        for game in list(games(self.mechanism.kind, self.tried))[:1]:
            try:
                most = self._stated_calls(CALLS)
                count = self._affordable([game.without()] * most, SHARES[1], GAMES_HIDDEN)
                if count < CALLS:  # as many transcripts as calls at least: the record comes in each place
                    self._left_out(name)
                    return
                bound = hidden_call(
                    self.mechanism,
                    game,
                    count,
                    self.clock,
                    self.rng,
                    asked=self.stated.limit,
                    calls=most,
                    **self._test(),
                )
            except Refused as no:
                self.result.notes.append(f"{name}: refused with: {no}")
                return
            self._add_pieces(name, bound, game.says)

    def _stated_calls(self, most: int) -> int:
        """At most as many calls of an instance as a series has: of later ones nothing is stated."""
        return most if self.stated.calls == 1 else min(most, self.stated.calls)

    def _series(self) -> None:
        """Hundreds of calls of one instance."""
        self._play_series("many calls, each on a record of its own", long_run)
        self._play_series("one call after many on public data", late_call)

    def _play_series(self, name: str, played: Callable[..., float | None]) -> None:
        for game in list(games(self.mechanism.kind, self.tried))[:1]:
            try:
                most = self._stated_calls(LONG)
                if most < SHORT or self.result.refuted:
                    return
                count = self._affordable([game.without()], SHARES[1], RUNS * most) // RUNS
                if count < SHORT:
                    self._left_out(name)
                    return
                bound = played(
                    self.mechanism, game, count, self.clock, self.rng, asked=self.stated.limit, **self._test()
                )
            except Refused as no:
                self.result.notes.append(f"{name}: refused with: {no}")
                return
            self._add_pieces(name, bound, game.says)

    def constants(self) -> None:
        """What has no noise at all."""
        try:
            found = constant_part(self.mechanism, self.tried, self.clock, self.rng,
                                  delta=self.stated.delta, confidence=self.shares.one)  # fmt: skip
        except Refused:
            return
        if found is not None:
            says = f"number {found.place} of the release has no noise and tells the record's size ({found.won} of 16 named)"
            self._add("numbers without noise", found.epsilon, "finite_sample", says, "a record of a secret norm")
        elif not self.result.refuted:
            self._look_up()

    def _look_up(self) -> None:
        """Whatever repeats exactly, in a table of candidates."""
        for game in list(games(self.mechanism.kind, self.tried))[:1]:
            count = lambda: self._affordable([game.without()], 0.2, CANDIDATES)  # noqa: E731, B023
            try:
                found = looked_up(self.mechanism, game, count, self.rng, **self._test())
            except Refused:
                return
            if found is not None:
                says = f"what repeats exactly in the release names the record: {found.won} of {GAMES} among {found.candidates}"
                self._add("looked up in a table", found.epsilon, "finite_sample", says, game.says)
