"""Stages of an examination, over what every stage needs: the mechanism, the budget, and a place for
findings."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice

import numpy as np
from scipy import stats

from attacks.statistics import lower_limit, upper_limit
from privdd.blackbox import identification_games as games
from privdd.blackbox import noise_laws
from privdd.blackbox.inputs import (
    CLIENTS,
    RECORDS,
    SHAPES,
    InputShapes,
    NeighbouringInputs,
    accepted_inputs,
    is_quiet,
    neighbouring_pairs,
    scaled_data,
    total_size,
    with_nonfinite_number,
)
from privdd.blackbox.mechanism import (
    NUMBERS,
    BlackBox,
    BoundLevel,
    CallBudget,
    CheckedClaim,
    Data,
    ErrorShares,
    InputRefused,
    OutOfTime,
    PairSample,
    Sides,
    Transcripts,
    draw_transcripts,
    transcript_totals,
)
from privdd.blackbox.verdict import (
    CALLS_SPENT,
    CURSORY,
    ExaminationResult,
    SingleTestResult,
    Strength,
)
from privdd.core.validation import BadConfig

FEWEST = 100  # transcripts of an input: from fewer nothing is learned
LARGEST_SHARE = 0.2  # of the calls that are left, for the fewest transcripts of a look
AFTER = 6  # calls that may still tell what an earlier one left behind


@dataclass
class ExaminationState:
    """One mechanism against one statement. step: told the name of each stage as it begins."""

    mechanism: BlackBox
    stated: CheckedClaim
    tried: InputShapes
    clock: CallBudget
    confidence: float
    step: Callable[[str], None]
    result: ExaminationResult = field(default_factory=ExaminationResult)
    worst: list[InputShapes] = field(
        default_factory=list
    )  # inputs along the directions in which most was seen
    # of neighbours that were judged: (calls with the record, calls without it)
    calls_by_words: dict[str, tuple[list[Data], list[Data]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.shares = ErrorShares(self.confidence)
        self.rng = np.random.default_rng([self.tried.seed, 3])
        of_tables = self.tried.tables != RECORDS
        tables = self.mechanism.kind == "records"
        self.shapes_given = of_tables if tables else self.tried.structures != SHAPES
        self.numbers_given = of_tables if tables else self.tried.crowds != CLIENTS
        self.tried, notes = accepted_inputs(self.mechanism, self.tried)
        self.result.notes += notes
        if not neighbouring_pairs(self.mechanism.kind, self.stated.relation, self.tried):
            raise BadConfig(
                "no neighbours: tables need two rows at least, or nothing is left "
                "without the record"
            )

    def stated_neighbours(self) -> list[NeighbouringInputs]:
        """All that are tried; with NaN and infinity first, where the statement is about them
        too."""
        tried = neighbouring_pairs(self.mechanism.kind, self.stated.relation, self.tried)
        if self.stated.inputs != "any":
            return tried
        odd = (np.nan, np.inf)
        return [
            with_nonfinite_number(pair, self.mechanism.kind, value)
            for pair in tried[:3]
            for value in odd
        ] + tried

    def stated_calls(self, data: Data) -> list[Data]:
        """The calls that the statement is about."""
        return [data] * self.stated.calls

    def embedded_call(
        self, data: Data, like: Data | None = None, other: Data | None = None
    ) -> list[Data]:
        """One call on the data, one before it and ``AFTER`` behind it on data ``other``, by default
        nobody's, of the sizes of ``like``."""
        if other is None:
            other = scaled_data(
                self.mechanism.kind, self._inputs_like(data if like is None else like), 0.5
            )
        return [other, data, *[other] * AFTER]

    def _inputs_like(self, data: Data) -> InputShapes:
        """Inputs of the sizes of ``data``."""
        if self.mechanism.kind == "records":
            return replace(self.tried, tables=(data.shape,))
        updates = data[0] if self.mechanism.kind == "aggregate" else [data]
        shapes = tuple(np.shape(a) for a in updates[0])
        return replace(self.tried, structures=(shapes,), crowds=(len(updates),))

    def _next_level(self, bounds: int = 1) -> BoundLevel:
        """Delta and confidence of the next test's bounds, which share one part of the error
        probability."""
        return BoundLevel(self.stated.delta, self.shares.next_confidence(bounds))

    def _game_setting(self, bounds: int = 1) -> games.GameSetting:
        limit = self.stated.refutation_limit
        return games.GameSetting(
            self.mechanism, self.clock, self.rng, limit, self._next_level(bounds)
        )

    def _draw_pair(
        self,
        pair: NeighbouringInputs,
        count: int,
        around: Callable[[Data], list[Data]] | None = None,
    ) -> Sides:
        """``count`` transcripts of each side; around: data -> calls (default: those that the
        statement is about)."""
        calls = tuple((around or self.stated_calls)(side) for side in (pair.present, pair.absent))
        one, other = (
            draw_transcripts(self.mechanism, inputs, count, self.clock) for inputs in calls
        )
        self.calls_by_words[pair.says] = calls[0], calls[1]
        return one, other

    def _draw_affordable(
        self,
        pair: NeighbouringInputs,
        name: str,
        share: float,
        most: int,
        fewest: int,
        *,
        thirds: bool = False,
    ) -> list[Sides]:
        """Of each side what a share of what is left pays for, ``most`` at most; thirds: one and two
        thirds of it apart. Nothing, which is noted, where that is less than ``fewest``."""
        count = (
            self._affordable_count(self.stated_calls(pair.present), share, 2 * most, 2 * fewest)
            // 2
        )
        if count < fewest:
            self._note_skipped(name)
            return []
        return [
            self._draw_pair(pair, n)
            for n in ((count // 3, count - count // 3) if thirds else (count,))
        ]

    def _note_skipped(self, name: str, how: str = "everywhere") -> None:
        """Say once that too few calls were left: a look that was not made leaves the check
        undecided, one that was made less closely does not."""
        note = f"{CALLS_SPENT} before {name!r} could be looked at {how}"
        said = self.result.notes if how == CURSORY else self.result.undecided
        if note not in said:
            said.append(note)

    def _affordable_count(
        self, inputs: list[Data], share: float, wanted: int, fewest: int = 0
    ) -> int:
        """Transcripts, ``wanted`` at most, that a share of the calls that are left pays for;
        ``LARGEST_SHARE`` for the ``fewest``
        that tell something. By calls alone: how fast they are decides nothing."""
        block = draw_transcripts(self.mechanism, inputs, 1, self.clock)
        transcripts_left = self.clock.calls_left(self.mechanism) / len(inputs)
        in_memory = NUMBERS // max(block.rows[0].size, 1)
        count = min(int(share * transcripts_left), wanted, in_memory)
        if count >= fewest:
            return count
        return min(int(max(share, LARGEST_SHARE) * transcripts_left), fewest, in_memory)

    def _add_fault(
        self, name: str, epsilon: float, strength: Strength, fault: str, inputs: str
    ) -> None:
        """A look for one fault, which is said to be there only where the bound refutes the
        statement."""
        says = fault if epsilon > self.stated.refutation_limit else f"not seen: {fault}"
        self._add_result(name, epsilon, strength, says, inputs)

    def _add_certain(self, name: str, says: str, inputs: str = "") -> None:
        self.result.looks.append(
            SingleTestResult(name, "refuted", says, math.inf, "certain", inputs)
        )

    def _add_result(
        self,
        name: str,
        epsilon: float,
        strength: Strength,
        says: str,
        inputs: str,
        *,
        exact: bool = False,
        law: str = "",
        **numbers: float,
    ) -> None:
        outcome = "refuted" if epsilon > self.stated.limit(exact=exact, law=law) else "not refuted"
        self.result.looks.append(
            SingleTestResult(name, outcome, says, epsilon, strength, inputs, numbers)
        )


DIRECTIONS = 1200  # games
SHARES = (0.08, 0.04)  # of what is left, for each game: by itself, and between public calls
CANDIDATES = 100_000
SERIES = "many calls, each on a record of its own", "one call after many on public data"
WITHOUT_NOISE = (
    "a piece of the release, or what two pieces differ in, is the record itself, scaled: it "
    "has no noise"
)
NO_PIECES = (
    "releases differ in size, or cannot be cut into pieces as long as the record (three "
    "numbers or more)"
)


@dataclass
class IdentificationStages(ExaminationState):
    """Bounds without a ceiling at the logarithm of the number of calls, for any mechanism."""

    def examine_directions(self) -> None:
        """The record's direction, read back; then one call on it among many."""
        names = ("directions", "directions, between public calls")
        for around, name, share in zip((self.stated_calls, self.embedded_call), names, SHARES):
            for game in games.direction_games(self.mechanism.kind, self.tried):
                refuted = [look.strength for look in self.result.looks if look.outcome == "refuted"]
                if any(strength != "noise_law" for strength in refuted):
                    return  # a bound without assumptions refutes already
                self._run_game(name, partial(self._examine_direction, name, game, around, share))
        for game in islice(games.direction_games(self.mechanism.kind, self.tried), 1):
            self._run_game("one call among many", partial(self._examine_hidden_call, game))
            for late, name in enumerate(SERIES):
                self._run_game(name, partial(self._play_series, name, game, bool(late)))

    def _run_game(self, name: str, play: Callable[[], None]) -> None:
        try:
            play()
        except InputRefused as no:
            self.result.notes.append(f"{name}: refused with: {no}")

    def _examine_direction(
        self,
        name: str,
        game: games.DirectionGame,
        around: Callable[[Data], list[Data]],
        share: float,
    ) -> None:
        count = self._affordable_count(
            around(game.with_record(np.eye(game.dimensions)[0])), share, DIRECTIONS, FEWEST
        )
        if count < FEWEST:
            self._note_skipped(name)
            return
        found = games.play_direction_game(self._game_setting(2), game, around, count)
        says = (
            "the record's direction, one of a sphere, is read back with a cosine of "
            f"{found.cosine:.3g}"
        )
        self._add_result(
            name, found.epsilon, "finite_sample", says, found.says, transcripts=found.transcripts
        )
        self._add_pieces(f"{name}, as released", found.pieces, found.says)
        if found.worst is not None and around == self.stated_calls:
            self.worst.append(replace(game.tried, along=(found.worst,)))

    def _add_pieces(self, name: str, bound: float | None, inputs: str) -> None:
        if bound is None:
            self.result.looks.append(
                SingleTestResult(name, "not looked at", NO_PIECES, inputs=inputs)
            )
        else:
            self._add_fault(name, bound, "finite_sample", WITHOUT_NOISE, inputs)

    def _examine_hidden_call(self, game: games.DirectionGame) -> None:
        """One call among many of the same instance."""
        most = self._calls_per_instance(games.HIDDEN_CALLS)
        inputs = [game.without_record()] * most
        count = self._affordable_count(inputs, SHARES[1], games.HIDDEN_GAMES, games.HIDDEN_CALLS)
        if (
            count < games.HIDDEN_CALLS
        ):  # as many transcripts as calls at least: the record comes in each place
            self._note_skipped("one call among many")
        else:
            bound = games.bound_hidden_call(self._game_setting(), game, count, most)
            self._add_pieces("one call among many", bound, game.says)

    def _calls_per_instance(self, most: int) -> int:
        """At most as many calls of an instance as a series has: of later ones nothing is stated."""
        return most if self.stated.calls == 1 else min(most, self.stated.calls)

    def _play_series(self, name: str, game: games.DirectionGame, late: bool) -> None:
        """Hundreds of calls of one instance."""
        most = self._calls_per_instance(games.SERIES_CALLS)
        if most < games.FEWEST_SERIES_CALLS or self.result.is_refuted:
            return
        fewest = games.RUNS * games.FEWEST_SERIES_CALLS
        count = (
            self._affordable_count([game.without_record()], SHARES[1], games.RUNS * most, fewest)
            // games.RUNS
        )
        if count < games.FEWEST_SERIES_CALLS:
            self._note_skipped(name)
        else:
            self._add_pieces(
                name, games.bound_series(self._game_setting(), game, count, late=late), game.says
            )

    def examine_noiseless_numbers(self) -> None:
        """What has no noise at all; else whatever repeats exactly, in a table of candidates."""
        with suppress(InputRefused):
            found = games.find_noiseless_number(
                self.mechanism, self.tried, self.clock, self.rng, self._next_level
            )
            if found is not None:
                says = (
                    f"number {found.place} of the release has no noise and tells the record's "
                    f"size ({found.won} of 16 named)"
                )
                inputs = "a record of a secret norm"
                self._add_result(
                    "numbers without noise", found.epsilon, "finite_sample", says, inputs
                )
                return
            first = next(games.direction_games(self.mechanism.kind, self.tried), None)
            if first is not None and not self.result.is_refuted:
                self._examine_lookup(first)

    def _examine_lookup(self, game: games.DirectionGame) -> None:
        count = partial(self._affordable_count, [game.without_record()], 0.2, CANDIDATES)
        found = games.play_lookup_game(self._game_setting(), game, count)
        if found is not None:
            says = (
                f"what repeats exactly in the release names the record: {found.won} of "
                f"{games.LOOKUP_GAMES} among {found.candidates}"
            )
            self._add_result(
                "looked up in a table", found.epsilon, "finite_sample", says, game.says
            )


UNEVEN_NUMBERS = 128
ROWS = 20
# releases a side: to see whether the noise varies, and to judge
FEW = 150
MANY = 30_000
# of what is left
FIRST = 0.1
UNEVEN_SHARE = 0.4
NAME = "neighbours, noise of uneven size"
SAYS = (
    "where its noise is small, the release tells the record; its noise looks alike from every side"
)


@dataclass
class UnevenNoiseStage(ExaminationState):
    """Bounds under a law of directions only, on one pair of neighbours of many numbers, which tell
    how much noise a release got."""

    def examine_uneven_noise(self) -> None:
        pairs = neighbouring_pairs(self.mechanism.kind, self.stated.relation, self._wide_inputs())
        # nothing but the record is in the data, and clients weigh the same
        alone = [pair for pair in pairs if is_quiet(pair.absent, self.tried.nothing)]
        for pair in [
            one
            for one in alone
            if self.mechanism.kind != "aggregate" or len(set(one.present[1])) == 1
        ][:1]:
            with suppress(InputRefused):  # wide inputs were never promised
                self._judge_pair(pair)

    def _wide_inputs(self) -> InputShapes:
        """One long array or wide table, where no sizes were asked for; else the longest of those
        that were."""
        shapes = (
            max(self.tried.structures, key=total_size)
            if self.shapes_given
            else ((UNEVEN_NUMBERS,),)
        )
        table = (
            max(self.tried.tables, key=lambda size: size[1])
            if self.shapes_given
            else (ROWS, UNEVEN_NUMBERS)
        )
        return replace(
            self.tried,
            structures=(shapes,),
            tables=(table,),
            crowds=self.tried.crowds[-1:],
            along=(),
        )

    def _judge_pair(self, pair: NeighbouringInputs) -> None:
        few = self._draw_affordable(pair, NAME, FIRST, FEW, FEW)
        first = noise_laws.fit_noise_frame(*few[0], pair.axis) if few else None
        noise = first.split_releases(few[0][1]) if first else None
        if noise is None or not noise.is_uneven or not noise_laws.is_spherical(noise):
            return
        many = self._draw_affordable(
            pair, NAME, UNEVEN_SHARE, MANY, 2 * noise_laws.LEAST_SYMMETRIC_VALUES, thirds=True
        )
        seen = noise_laws.fit_noise_frame(*many[0], pair.axis) if many else None
        if seen is not None:
            found = noise_laws.symmetric_epsilon(seen, many[0], many[1], self._next_level())
            self._add_fault(NAME, found, "noise_law", SAYS, pair.says)


LAW_NUMBERS = 600_000  # of the noise; enough for a kurtosis that is off by a twentieth
LAW_SHARE = 0.25  # of the calls that are left
OTHER = (
    "the noise looks {law} in a few thousand numbers and is not in many more: no bound that "
    "trusts that law counts"
)
UNCONFIRMED = (
    "the noise looks {law} in a few thousand numbers; there were too few calls left to test "
    "that on more"
)
WORTH = 2  # times the transcripts that the law was told from: fewer say nothing new


def is_law_confirmed(law: str, more: Transcripts, moved: np.ndarray) -> bool:
    """Whether all that is noised follows ``law`` in transcripts of one input, and the numbers that
    the record moves (m,) by themselves."""
    parts = [more]
    if not moved.all() and more.rows.shape[2] == len(moved):
        parts.append(Transcripts(more.rows[:, :, moved], more.codes))
    return all(noise_laws.has_law(law, part, LAW_NUMBERS) for part in parts)


@dataclass
class LawConfirmation(ExaminationState):
    """More noise is drawn before a bound that trusts its law refutes a statement, and the law is
    tested once more: noise that is normal in the middle and has other tails passes for normal among
        a few thousand numbers."""

    _doubted: set[str] = field(default_factory=set)  # laws that the noise only seemed to follow

    def confirmed_epsilon(
        self,
        inputs: list[Data],
        sample: PairSample,
        law: str,
        epsilon: float,
        *,
        exact: bool = False,
    ) -> float:
        """``epsilon``, which trusts the noise's law; 0 if it refutes the statement, and more of the
        noise has another law."""
        if epsilon <= self.stated.limit(exact=exact, law=law):
            return epsilon
        if law not in self._doubted and not self._confirm_law(law, inputs, sample):
            self._doubted.add(law)
            self.result.notes.append(OTHER.format(law=law))
        return 0.0 if law in self._doubted else epsilon

    def _confirm_law(self, law: str, inputs: list[Data], sample: PairSample) -> bool:
        """True too where more releases cannot be had."""
        try:
            fresh = sample.fresh[1]
            noised = int((fresh.rows.reshape(len(fresh), -1).std(0) > 0).sum())
            count = self._affordable_count(inputs, LAW_SHARE, -(-LAW_NUMBERS // max(1, noised)))
            if count < WORTH * len(fresh):
                unconfirmed = UNCONFIRMED.format(law=law)
                self.result.notes += [] if unconfirmed in self.result.notes else [unconfirmed]
                return True
            more = draw_transcripts(self.mechanism, inputs, count, self.clock)
            a, b = (transcript_totals(side) for side in sample.trained)
            moved = np.abs(a.mean(0) - b.mean(0)) > 4 * np.sqrt(
                a.var(0) / len(a) + b.var(0) / len(b)
            )
            if sample.shift is not None:
                moved = (sample.shift != 0).any(0)
            return is_law_confirmed(law, more, moved if moved.any() else ~moved)
        except (InputRefused, OutOfTime):
            return True


# a side: to see the tail's law, and to judge
TAIL_PILOT_RELEASES = 1500
TAIL_RELEASES = 120_000
# of what is left
TAIL_PILOT_SHARE = 0.05
TAIL_SHARE = 0.45
MISSING_TAIL_NUMBERS = 4.0  # numbers that a normal law has beyond the largest: its tail is missing
TAIL_MEAN_ERRORS = 5.0  # standard errors that a mean may be off by
MIN_TAIL_RELEASES = 4  # releases with the record beyond the threshold, at least
SIZE_TOLERANCE = 0.05  # relative difference of two noises of one size
SHARED_NOISE_CORRELATION = (
    0.1  # correlation of two numbers, or of their squares, from which they may share their noise
)
THRESHOLD_GRID = np.linspace(0.5, 6.0, 276)  # thresholds, in deviations
TAIL_STAGE_NAME = "neighbours, end of the noise"
TAIL_STAGE_TEXT = "the noise ends, or falls off, where the record moves a release past it"


@dataclass(frozen=True)
class TailResiduals:
    """In deviations: pooled (k,), of all numbers with noise of one size; own (n,), of the number
    that the record moves, with the record, from its mean without; shift: of that number, at
    least."""

    pooled: np.ndarray
    own: np.ndarray
    shift: float


def tail_residuals(present: Transcripts, absent: Transcripts) -> TailResiduals | None:
    """None where nothing is shifted, or the number that is shifted most has other noise than the
    rest."""
    a = transcript_totals(present)
    b = transcript_totals(absent)
    if a.shape[1] != b.shape[1] or not a.shape[1]:
        return None
    spread = np.sqrt((a.var(0) + b.var(0)) / 2)
    if not (spread > 0).all():
        return None
    gaps = (a.mean(0) - b.mean(0)) / spread
    at = int(np.argmax(np.abs(gaps)))
    size = np.maximum(a.std(0), b.std(0))
    z = (b - b.mean(0)) / spread
    shared = np.maximum(*(np.abs(np.corrcoef(x, rowvar=False)) for x in (z, np.square(z)))).reshape(
        len(size), -1
    )
    like = np.abs(size / size[at] - 1) < SIZE_TOLERANCE
    like &= np.abs(shared - np.eye(len(size))).max(0) < SHARED_NOISE_CORRELATION
    like[at] = True
    sign = math.copysign(1.0, gaps[at])
    error = TAIL_MEAN_ERRORS / math.sqrt(min(len(a), len(b)))
    own_z, own_y = (sign * (x[:, at] - x[:, at].mean()) / spread[at] for x in (b, a))
    pooled = np.concatenate([(sign * (x - x.mean(0)) / spread)[:, like].ravel() for x in (b, a)])
    if (
        min(stats.ks_2samp(own_z, own_y).pvalue, stats.ks_2samp(own_z, pooled).pvalue)
        < noise_laws.NOT_REJECTED
    ):
        return None
    return TailResiduals(
        pooled, sign * (a[:, at] - b[:, at].mean()) / spread[at], abs(gaps[at]) - 4 * error
    )


def ends_early(pooled: np.ndarray) -> bool:
    """Whether a normal law would have shown several numbers beyond the largest."""
    return bool(
        2 * stats.norm.sf(np.abs(pooled).max(initial=0.0)) * len(pooled) > MISSING_TAIL_NUMBERS
    )


def noise_end_epsilon(trained: TailResiduals, fresh: TailResiduals, level: BoundLevel) -> float:
    """Lower bound on epsilon at a threshold that ``trained`` suggests; 0 where the shift is not
    seen to move the tail."""
    shift = min(trained.shift, fresh.shift)
    if shift <= 0:
        return 0.0
    _, at = max(
        (_bound_noise_end(trained.pooled, t, shift, level.delta, 0.1), t) for t in THRESHOLD_GRID
    )
    moved = int((fresh.own > at).sum())
    expected = float((fresh.pooled > at - shift).mean()) * len(fresh.own)
    if moved < MIN_TAIL_RELEASES or stats.poisson.cdf(moved, expected) < noise_laws.NOT_REJECTED:
        return 0.0
    return _bound_noise_end(fresh.pooled, at, shift, level.delta, level.error)


def _bound_noise_end(
    pooled: np.ndarray, at: float, shift: float, delta: float, error: float
) -> float:
    """From Clopper-Pearson limits of both shares, half of the error each."""
    n = len(pooled)
    near = int((pooled > at - shift).sum())
    far = int((pooled > at).sum())
    least = lower_limit(near, n, error / 2)
    most = upper_limit(far, n, error / 2)
    return max(0.0, math.log((least - delta) / most)) if least > delta else 0.0


@dataclass
class NoiseTailStage(ExaminationState):
    """Bounds for noise that ends where its law goes on (sums of few uniforms, normals cut off): the
    noise of all numbers shows how rare a residual is beyond a threshold, and beyond that threshold
    less the record's shift."""

    def examine_noise_tails(self) -> None:
        tried = neighbouring_pairs(self.mechanism.kind, self.stated.relation, self.tried)
        some = [
            one
            for one in tried
            if np.count_nonzero(one.axis) == 1 and is_quiet(one.absent, self.tried.nothing)
        ]
        if some:
            with suppress(InputRefused):
                self._examine_tails_of_pair(max(some, key=lambda one: len(one.axis)))

    def _examine_tails_of_pair(self, pair: NeighbouringInputs) -> None:
        # fewer have no law
        name = TAIL_STAGE_NAME
        fewest = min(TAIL_PILOT_RELEASES, -(-noise_laws.VALUES // (2 * len(pair.axis))))
        few = self._draw_affordable(pair, name, TAIL_PILOT_SHARE, TAIL_PILOT_RELEASES, fewest)
        first = tail_residuals(*few[0]) if few else None
        if first is None or not (
            ends_early(first.pooled) or noise_laws.law_of_calls(*few[0]) == "other"
        ):
            return
        many = self._draw_affordable(
            pair, name, TAIL_SHARE, TAIL_RELEASES, TAIL_PILOT_RELEASES, thirds=True
        )
        trained, fresh = (tail_residuals(*sides) for sides in many) if many else (None, None)
        if trained is not None and fresh is not None:
            found = noise_end_epsilon(trained, fresh, self._next_level())
            self._add_fault(name, found, "noise_law", TAIL_STAGE_TEXT, pair.says)
