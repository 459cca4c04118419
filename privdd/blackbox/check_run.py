"""The value that all stages of a check share, and how they spend its budget."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np

from privdd.blackbox.budgets import BoundLevel, CallBudget, ErrorShares
from privdd.blackbox.check_report import (
    CALLS_SPENT,
    CURSORY,
    CheckReport,
    SingleTestResult,
    Strength,
)
from privdd.blackbox.claims import CheckedClaim
from privdd.blackbox.identification_games import GameSetting
from privdd.blackbox.input_sizes import accepted_inputs
from privdd.blackbox.inputs import (
    CLIENTS,
    RECORDS,
    SHAPES,
    InputShapes,
    NeighbouringInputs,
    scaled_data,
    with_nonfinite_number,
)
from privdd.blackbox.mechanism import BlackBox, Data, InputRefused
from privdd.blackbox.neighbours import neighbouring_pairs
from privdd.blackbox.pair_screening import RankedPair
from privdd.blackbox.paired_replays import PairedReplays
from privdd.blackbox.transcripts import NUMBERS, Sides, draw_transcripts
from privdd.core.validation import BadConfig

FEWEST = 100  # transcripts of an input: from fewer nothing is learned
LARGEST_SHARE = 0.2  # of the calls that are left, for the fewest transcripts of a look
AFTER = 6  # calls that may still tell what an earlier one left behind

CallsOf = Callable[[Data], list[Data]]  # data of one side -> the calls of a transcript


@dataclass(frozen=True, eq=False)
class KnownShift:
    """What the record adds to each number of each stated call, exactly.

    values: (T, m), T calls of m numbers.
    """

    pair: NeighbouringInputs
    values: np.ndarray


@dataclass
class ReplayEvidence:
    """What replays of neighbours under the same noise showed."""

    pairs: list[NeighbouringInputs] = field(default_factory=list)  # all that could be replayed
    compared: int = 0  # pairs that were
    unknown: int = 0  # of those: what the record changes depends on the noise
    shift: KnownShift | None = None  # the largest
    by_kind: dict[str, PairedReplays] = field(default_factory=dict)  # largest of each dependence

    def shift_of(self, pair: NeighbouringInputs) -> np.ndarray | None:
        """(T, m) of the stated calls on this pair; None if it is not known."""
        if self.shift is None or self.shift.pair is not pair:
            return None
        return self.shift.values

    def shifted_pairs(self) -> list[NeighbouringInputs]:
        """The pair whose shift is known; none if there is no such pair."""
        return [] if self.shift is None else [self.shift.pair]

    def dependent_pairs(self) -> list[NeighbouringInputs]:
        """Pairs on which something depends on the record: what replays cannot judge, counting
        may."""
        pairs = {id(replays.pair): replays.pair for replays in self.by_kind.values()}
        return list(pairs.values())


@dataclass
class StrongestPair:
    """The pair with the largest lower bound so far."""

    pair: NeighbouringInputs | None = None
    epsilon: float = 0.0

    def compare(self, pair: NeighbouringInputs, epsilon: float) -> None:
        """Take its place if its bound is larger."""
        if epsilon > self.epsilon:
            self.epsilon = epsilon
            self.pair = pair


@dataclass
class CheckRun:
    """One mechanism against one statement. Stages read it, spend its budget and write into
    ``report``.

    Attributes:
        mechanism: what is checked.
        claim: the statement that may be refuted.
        inputs: sizes of inputs that the mechanism accepts.
        budget: calls that the stages share, and the time that ends the check.
        confidence: of all bounds together, in [0.5, 1).
        report: results so far.
        pairs: neighbours, the most promising first.
        replays: what replays showed.
        strongest: by any bound; strongest_any: by bounds that hold for any mechanism.
        fitted_inputs: inputs along the directions in which a decoder saw most.
        refused: neighbours of finite numbers that the mechanism refused.
        transcripts: id of a pair -> the pair and its transcripts of earlier looks.
        calls_by_words: words for neighbours -> (calls with the record, calls without it).
        doubted_laws: laws that the noise only seemed to follow.
        has_chosen_shapes: whether the user chose the shapes of the record.
        has_chosen_numbers: whether the user chose how many records or clients there are.
        embedded_call_examined: whether one call among others was looked at.
    """

    mechanism: BlackBox
    claim: CheckedClaim
    inputs: InputShapes
    budget: CallBudget
    confidence: float = 0.99
    report: CheckReport = field(default_factory=CheckReport)
    pairs: list[RankedPair] = field(default_factory=list)
    replays: ReplayEvidence = field(default_factory=ReplayEvidence)
    strongest: StrongestPair = field(default_factory=StrongestPair)
    strongest_any: StrongestPair = field(default_factory=StrongestPair)
    fitted_inputs: list[InputShapes] = field(default_factory=list)
    refused: list[NeighbouringInputs] = field(default_factory=list)
    transcripts: dict[int, tuple[NeighbouringInputs, Sides]] = field(default_factory=dict)
    calls_by_words: dict[str, tuple[list[Data], list[Data]]] = field(default_factory=dict)
    doubted_laws: set[str] = field(default_factory=set)
    has_chosen_shapes: bool = False
    has_chosen_numbers: bool = False
    embedded_call_examined: bool = False

    def __post_init__(self) -> None:
        self.errors = ErrorShares(self.confidence)
        self.rng = np.random.default_rng([self.inputs.seed, 3])

    def stated_neighbours(self) -> list[NeighbouringInputs]:
        """All neighbours to try; with NaN and infinity first if the statement is about them too."""
        pairs = neighbouring_pairs(self.mechanism.kind, self.claim.relation, self.inputs)
        if self.claim.inputs != "any":
            return pairs
        nonfinite: list[NeighbouringInputs] = []
        for pair in pairs[:3]:
            for value in (np.nan, np.inf):
                nonfinite.append(with_nonfinite_number(pair, self.mechanism.kind, value))
        return nonfinite + pairs

    def stated_calls(self, data: Data) -> list[Data]:
        """The calls that the statement is about."""
        return [data] * self.claim.calls

    def embedded_call(
        self, data: Data, like: Data | None = None, around: Data | None = None
    ) -> list[Data]:
        """One call on the data between calls on other data.

        Args:
            data: what the call in question is made on.
            like: data of the sizes that the default of ``around`` has; by default ``data``.
            around: data of the call before it and of the ``AFTER`` calls behind it; by default
                nobody's.
        """
        if around is None:
            sizes = self._inputs_like(data if like is None else like)
            around = scaled_data(self.mechanism.kind, sizes, 0.5)
        return [around, data, *[around] * AFTER]

    def _inputs_like(self, data: Data) -> InputShapes:
        """Inputs of the sizes of ``data``."""
        if self.mechanism.kind == "records":
            return replace(self.inputs, tables=(data.shape,))
        if self.mechanism.kind == "aggregate":
            updates = data[0]
        else:
            updates = [data]
        shapes = tuple(np.shape(a) for a in updates[0])
        return replace(self.inputs, structures=(shapes,), crowds=(len(updates),))

    def next_level(self, bounds: int = 1) -> BoundLevel:
        """Delta and confidence of the next test's bounds, which share one part of the error
        probability. Raises OutOfShares."""
        return BoundLevel(self.claim.delta, self.errors.next_confidence(bounds))

    def game_setting(self, bounds: int = 1) -> GameSetting:
        """What a game of so many bounds needs. Raises OutOfShares."""
        return GameSetting(
            self.mechanism,
            self.budget,
            self.rng,
            self.claim.refutation_limit,
            self.next_level(bounds),
        )

    def draw_pair(
        self, pair: NeighbouringInputs, count: int, calls_of: CallsOf | None = None
    ) -> Sides:
        """``count`` transcripts of each side. Raises InputRefused, OutOfTime.

        Args:
            pair: the neighbours.
            count: transcripts of each side.
            calls_of: data -> the calls of a transcript; by default those that the statement is
                about.
        """
        if calls_of is None:
            calls_of = self.stated_calls
        calls = calls_of(pair.present), calls_of(pair.absent)
        present = draw_transcripts(self.mechanism, calls[0], count, self.budget)
        absent = draw_transcripts(self.mechanism, calls[1], count, self.budget)
        self.calls_by_words[pair.says] = calls
        return present, absent

    def draw_affordable(
        self,
        pair: NeighbouringInputs,
        name: str,
        share: float,
        most: int,
        fewest: int,
        *,
        thirds: bool = False,
    ) -> list[Sides]:
        """Transcripts of each side that a share of the calls that are left pays for.

        Args:
            pair: the neighbours.
            name: of the look, for a note.
            share: of the calls that are left.
            most: transcripts of a side.
            fewest: transcripts of a side; if fewer are affordable, none are drawn, which is noted.
            thirds: whether one and two thirds of them are drawn apart.

        Returns:
            One block of both sides, two if ``thirds``, none if too few calls are left.
        """
        inputs = self.stated_calls(pair.present)
        count = self.affordable_transcripts(inputs, share, 2 * most, 2 * fewest) // 2
        if count < fewest:
            self.note_skipped(name)
            return []
        parts: tuple[int, ...]
        if thirds:
            parts = (count // 3, count - count // 3)
        else:
            parts = (count,)
        return [self.draw_pair(pair, part) for part in parts]

    def affordable_transcripts(
        self, inputs: list[Data], share: float, wanted: int, fewest: int = 0
    ) -> int:
        """How many transcripts a share of the calls that are left pays for. By calls alone: how
        fast they are decides nothing. Raises InputRefused, OutOfTime.

        Args:
            inputs: the calls of one transcript.
            share: of the calls that are left.
            wanted: transcripts, at most.
            fewest: transcripts from which on the look tells something: up to ``LARGEST_SHARE`` is
                spent for them.
        """
        block = draw_transcripts(self.mechanism, inputs, 1, self.budget)
        transcripts_left = self.budget.calls_left(self.mechanism) / len(inputs)
        in_memory = NUMBERS // max(block.rows[0].size, 1)
        count = min(int(share * transcripts_left), wanted, in_memory)
        if count >= fewest:
            return count
        return min(int(max(share, LARGEST_SHARE) * transcripts_left), fewest, in_memory)

    def note_skipped(self, name: str, how: str = "everywhere") -> None:
        """Say once that too few calls were left: a look that was not made leaves the check
        undecided, one that was made less closely does not."""
        note = f"{CALLS_SPENT} before {name!r} could be tested {how}"
        if how == CURSORY:
            notes = self.report.notes
        else:
            notes = self.report.undecided
        if note not in notes:
            notes.append(note)

    def note_refused(self, name: str, refusal: InputRefused) -> None:
        """Say that a look was not made, as the mechanism refused its inputs."""
        self.report.notes.append(f"{name}: refused with: {refusal}")

    def add_fault(
        self, name: str, epsilon: float, strength: Strength, fault: str, inputs: str
    ) -> None:
        """A look for one fault, which is said to be there only if the bound refutes the
        statement."""
        if epsilon > self.claim.refutation_limit:
            says = fault
        else:
            says = f"not seen: {fault}"
        self.add_result(name, epsilon, strength, says, inputs)

    def add_certain(self, name: str, says: str, inputs: str = "") -> None:
        """A fact that refutes any finite epsilon."""
        self.report.looks.append(
            SingleTestResult(name, "refuted", says, math.inf, "certain", inputs)
        )

    def add_result(
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
        """A lower bound on epsilon, compared with the limit of the statement.

        Args:
            name: of the look.
            epsilon: the bound.
            strength: what the bound rests on.
            says: the result in words.
            inputs: words for the neighbours.
            exact: whether the bound follows from an exact shift.
            law: of the noise, if the bound trusts it.
            **numbers: further figures of the look.
        """
        limit = self.claim.limit(exact=exact, law=law)
        outcome = "refuted" if epsilon > limit else "not refuted"
        self.report.looks.append(
            SingleTestResult(name, outcome, says, epsilon, strength, inputs, numbers)
        )


def start_check_run(
    mechanism: BlackBox,
    claim: CheckedClaim,
    inputs: InputShapes,
    budget: CallBudget,
    confidence: float,
) -> CheckRun:
    """A run on those of the inputs that the mechanism accepts. Raises BadConfig if there are none,
    or no neighbours among them."""
    has_tables = mechanism.kind == "records"
    chosen_tables = inputs.tables != RECORDS
    if has_tables:
        chosen_shapes = chosen_tables
        chosen_numbers = chosen_tables
    else:
        chosen_shapes = inputs.structures != SHAPES
        chosen_numbers = inputs.crowds != CLIENTS
    accepted, notes = accepted_inputs(mechanism, inputs)
    if not neighbouring_pairs(mechanism.kind, claim.relation, accepted):
        raise BadConfig(
            "no neighbours: tables need two rows at least, or nothing is left without the record"
        )
    return CheckRun(
        mechanism,
        claim,
        accepted,
        budget,
        confidence,
        CheckReport(notes=notes),
        has_chosen_shapes=chosen_shapes,
        has_chosen_numbers=chosen_numbers,
    )


@dataclass(frozen=True)
class ExaminationStage:
    """name: as progress and notes call it; examine: writes into the report of the run."""

    name: str
    examine: Callable[[CheckRun], None]
