"""Neighbours under the same noise: how far the record moves a release, and what of it has no
noise."""

from __future__ import annotations

import gc
import os
import random
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any
from unittest import mock

import numpy as np
from scipy import stats

from attacks.epsilon import clopper_pearson
from privdd.blackbox.inputs import NeighbouringInputs, counted_neighbours, size_of_data
from privdd.blackbox.mechanism import BlackBox, Data, InputRefused
from privdd.blackbox.noise_laws import ShiftBound
from privdd.blackbox.stages import ExaminationState
from privdd.blackbox.verdict import ExactEpsilon, SingleTestResult

ROUNDING = {"float16": 2e-3, "float32": 1e-6}  # relative; 1e-9 for float64
# replays of a side, after which a source that was not drawn from is taken for one that never is
WATCHED = 200
AGREES = 1e-7  # of the noise: two differences that are the same


@dataclass(frozen=True, eq=False)
class PairedReplays:
    """Transcripts of two neighbouring inputs, each seed used for both. present, absent (S, M):
    numbers of all calls, (S,
    0) where releases differ in size (alike is false); codes: what is no number, for each side;
      is_random: whether any call drew from a source that is known; repeats: whether a seed gives
          the same release again."""

    pair: NeighbouringInputs
    present: np.ndarray
    absent: np.ndarray
    alike: bool
    codes: tuple[tuple[str, ...], tuple[str, ...]]
    is_random: bool
    repeats: bool

    @property
    def score(self) -> tuple[float, float]:
        """The L2 and the L1 norm of the shift over the noise; 0 where the shift depends on the
        noise, or a number has none."""
        shift = self.shift()
        if shift is None or not shift.any() or not self.noise[shift != 0].all():
            return 0.0, 0.0
        over = shift[shift != 0] / self.noise[shift != 0]
        return float(np.linalg.norm(over)), float(np.abs(over).sum())

    @property
    def differs(self) -> bool:
        """Whether any seed gives the two sides another release."""
        return (
            not self.alike
            or not np.array_equal(self.present, self.absent)
            or self.codes[0] != self.codes[1]
        )

    @property
    def is_constant(self) -> bool:
        """Whether each side gives one and the same release for every seed."""
        if not self.alike or any(len(set(side)) > 1 for side in self.codes):
            return False
        return all(bool((side == side[0]).all()) for side in (self.present, self.absent))

    @property
    def noise(self) -> np.ndarray:
        """(M,): standard deviation over seeds, of the side that has less; 0 where a number never
        changes."""
        one, other = (
            np.where(np.ptp(side, axis=0) > 0, side.std(0), 0.0)
            for side in (self.present, self.absent)
        )
        return np.minimum(one, other)

    def shift(self) -> np.ndarray | None:
        """(M,): what the record adds to each number, exactly; None where that depends on the
        noise."""
        if not self.alike or self.codes[0] != self.codes[1]:
            return None
        moved = self.present - self.absent
        share = max(
            [1e-9, *(value for name, value in ROUNDING.items() if name in self.codes[0][0])]
        )
        largest = np.maximum(np.abs(self.present), np.abs(self.absent)).max(0)
        allowed = share * largest + (AGREES * self.noise if share == 1e-9 else 0.0)
        if (np.ptp(moved, axis=0) > allowed).any():
            return None
        middle = np.median(moved, axis=0)
        return np.where(np.abs(middle) > allowed, middle, 0.0)


def replay_pair(
    mechanism: BlackBox,
    pair: NeighbouringInputs,
    calls: Sequence[Sequence[Data]],
    sources: FrozenSources,
    seeds: range,
) -> PairedReplays:
    """One transcript of each side for each seed, and one again. calls: those of either side. Raises
    InputRefused."""
    is_random = False
    found = []
    for inputs in calls:
        side = []
        for at, seed in enumerate((*seeds, seeds[0])):
            watch = not is_random and at < WATCHED
            sources.restart(seed, watch=watch)
            side.append(mechanism.transcript(inputs))
            is_random = is_random or (watch and sources.drawn_from())
        found.append(side)
    ends = [(side[0], side[-1]) for side in found]
    repeats = all(
        np.array_equal(a.numbers, b.numbers) and a.signature == b.signature for a, b in ends
    )
    numbers = [[one.numbers for one in side[:-1]] for side in found]
    alike = len({len(row) for side in numbers for row in side}) == 1
    present, absent = (np.stack(side) if alike else np.zeros((len(seeds), 0)) for side in numbers)
    codes = [tuple(one.signature for one in side[:-1]) for side in found]
    return PairedReplays(pair, present, absent, alike, (codes[0], codes[1]), is_random, repeats)


SHARE = 0.08  # of the calls that are left
# seeds: of every pair, and of the best
FEW = range(1, 4)
MANY = range(1, 129)
# kurtosis from which on the sum of shifts counts, as for Laplace noise (6), not their length (3)
HEAVY_TAILS = 4.5
COUNTED = 4000  # calls of either side that a choice without noise is told from
# looks
REPLAYED = "replays"
LARGEST_SHIFT = "the largest shift"
HELD = "the randomness of the mechanism could not be held still: the same seed gave another release"
UNKNOWN = (
    "on {} of {} pairs of neighbours what the record changes depends on the noise, so no "
    "exact epsilon is said"
)
NO_NOISE = (
    "no source of randomness was drawn from: the same input gives the same release, and the "
    "record changes it"
)


@dataclass
class ReplayStage(ExaminationState):
    """All neighbours under the same noise: the pairs with the largest shift, which is known exactly
    then, and releases without noise."""

    shifted: list[NeighbouringInputs] = field(default_factory=list)
    compared: int = 0  # pairs
    unknown: int = 0  # those of them on which what the record changes depends on the noise
    known_pairs: list[NeighbouringInputs] = field(default_factory=list)  # all that are tried
    _best: float = 0.0
    _shift: dict[int, np.ndarray] = field(default_factory=dict)

    def shift_of(self, pair: NeighbouringInputs) -> np.ndarray | None:
        """(T, m) of the stated calls on this pair, None where it is not known."""
        return self._shift.get(id(pair))

    def replay_neighbours(self) -> None:
        with FrozenSources() as sources:
            best: dict[tuple[object, ...], list[PairedReplays]] = {}
            for one in self._replays(sources):
                if (
                    not one.is_random
                    and one.is_constant
                    and one.differs
                    and self._tell_no_noise(one, sources)
                ):
                    return
                if max(one.score) > 0:
                    rivals = [*best.get(size_of_data(one.pair.present), []), one]
                    best[size_of_data(one.pair.present)] = [
                        max(rivals, key=lambda r: r.score[norm]) for norm in (0, 1)
                    ]
            if self.unknown:
                self.result.notes.append(UNKNOWN.format(self.unknown, self.compared))
            self._keep_largest(
                {id(one): one.pair for pairs in best.values() for one in pairs}, sources
            )

    def _replays(self, sources: FrozenSources) -> Iterator[PairedReplays]:
        """Of as many pairs as can be paid for, evenly chosen; none where randomness cannot be held
        still."""
        tried = self.stated_neighbours()
        if self.mechanism.kind == "records":
            tried = tried + counted_neighbours(self.stated.relation, self.tried)
        self.known_pairs = tried
        count = self._affordable_replays(SHARE) // (len(FEW) + 1)
        if not count:
            self._note_skipped(REPLAYED)
            return
        for at in np.unique(np.linspace(0, len(tried) - 1, min(count, len(tried))).astype(int)):
            try:
                found = self._replay(tried[at], sources, FEW)
            except InputRefused:
                continue
            if not found.repeats:
                self.result.looks.append(
                    SingleTestResult(REPLAYED, "not looked at", HELD, inputs=tried[at].says)
                )
                return
            self.compared += 1
            self.unknown += found.shift() is None
            self._note_replay(found)
            yield found

    def keep_shift(self, moved: ShiftBound, pair: NeighbouringInputs) -> None:
        """What the result says of the mechanism: kappa, the law of its noise, the exact epsilon."""
        calls = self.stated.calls
        if moved.law == "other":
            return
        if self.result.kappa is None or moved.epsilon > self._best:
            self._best = (
                moved.epsilon
            )  # the best guess is that of the best bound: the largest guess is a lucky one
            of_laplace = moved.about / max(
                self.stated.epsilon, 1e-12
            )  # its epsilon grows with the shift
            of_gaussian = moved.mu / (self.stated.gaussian_mu_per_call * calls**0.5)
            self.result.kappa = of_gaussian if moved.law.endswith("gaussian") else of_laplace
            self.result.about = moved.about
            self.result.law, self.result.worst = moved.law, pair.says
        shift = self.shift_of(pair)
        best = self.result.exact
        more = best is None or moved.transcripts > best.transcripts
        if moved.exact and shift is not None and not self.unknown and more:
            norms = float(np.abs(shift).sum()), float(np.linalg.norm(shift))
            seen = {"transcripts": moved.transcripts, "pairs": self.compared}
            self.result.exact = ExactEpsilon(
                moved.law, moved.about, moved.epsilon, *norms, **seen, inputs=pair.says
            )

    def _note_replay(self, one: PairedReplays) -> None:
        """For those who look at more than the shift."""

    def _replay(
        self, pair: NeighbouringInputs, sources: FrozenSources, seeds: range
    ) -> PairedReplays:
        self.clock.check_budget(self.mechanism)
        calls = self.stated_calls(pair.present), self.stated_calls(pair.absent)
        self.calls_by_words[pair.says] = calls
        return replay_pair(self.mechanism, pair, calls, sources, seeds)

    def _affordable_replays(self, share: float) -> int:
        """Seeds for both sides that a share of the calls that are left pays for."""
        return int(share * self.clock.calls_left(self.mechanism) / (2 * self.stated.calls))

    def _tell_no_noise(self, one: PairedReplays, sources: FrozenSources) -> bool:
        """Whether that is certain; of whole numbers, which a source outside of this process may
        choose, only calls are counted."""
        both = np.concatenate([one.present[0], one.absent[0]])
        if not np.array_equal(both, np.rint(both)):
            self._add_certain("no noise", NO_NOISE, one.pair.says)
            return True
        count = min(self._affordable_replays(SHARE), COUNTED)
        if count < 100:
            return False
        again = self._replay(one.pair, sources, range(count))
        if again.is_random or not again.is_constant:
            return False
        level = self._next_level()
        bound = clopper_pearson(count, 0, 0, count, delta=level.delta, confidence=level.confidence)
        self._add_fault("no noise", bound, "finite_sample", NO_NOISE, one.pair.says)
        return self.result.is_refuted

    def _keep_largest(self, pairs: dict[int, NeighbouringInputs], sources: FrozenSources) -> None:
        """Of the best pair of each size the one with the largest shift, if it is the same for many
        seeds."""
        again = []
        for pair in pairs.values():
            if self._affordable_replays(SHARE) < len(MANY):
                self._note_skipped(LARGEST_SHIFT)
                break
            with suppress(InputRefused):
                again.append(self._replay(pair, sources, MANY))
        sure = [one for one in again if max(one.score) > 0]
        if not sure:
            return
        rows = sure[0].absent
        spread = rows.std(0)
        tails = stats.kurtosis(
            (rows - rows.mean(0))[:, spread > 0] / spread[spread > 0], axis=None, fisher=False
        )
        largest = max(sure, key=lambda one: one.score[int(tails > HEAVY_TAILS)])
        shift = largest.shift()
        if shift is not None and len(shift) % self.stated.calls == 0:
            self.shifted = [largest.pair]
            self._shift[id(largest.pair)] = shift.reshape(self.stated.calls, -1)


class FrozenSources:
    """While it is entered, ``restart(seed)`` sets every source to a state that follows from the
    seed; states are put
    back. Sources: every generator of numpy, torch and ``random``, those made without a seed,
        ``secrets`` and ``os.urandom``. Others, such as those of compiled libraries, go on as they
        like."""

    def __enter__(self) -> FrozenSources:
        self._numpy, self._legacy, self._plain, self._torch = _find_generators()
        self._saved = self._states()
        self._bits = random.Random(0)
        self._asked = False
        self._stack = ExitStack()
        self._system = os.urandom
        for module in [*sys.modules.values()]:
            self._replace_entropy(module)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()
        self._put_states(self._saved)

    def restart(self, seed: int, *, watch: bool = True) -> None:
        """Every source as ``seed`` wants it; watch: whether ``drawn_from`` will be asked."""
        for at, one in enumerate(self._numpy):
            one.state = type(one)(np.random.SeedSequence([seed, at])).state
        for at, old in enumerate(self._legacy):
            old.seed(SPREAD * seed + at)
        for at, plain in enumerate(self._plain):
            plain.seed(SPREAD * seed + at)
        for at, other in enumerate(self._torch):
            other.manual_seed(SPREAD * seed + at)
        self._bits.seed(seed)
        self._asked = False
        self._restarted = self._states() if watch else []

    def drawn_from(self) -> bool:
        """Whether any source was asked for a number since the restart."""
        return self._asked or not _is_same_state(self._restarted, self._states())

    def _states(self) -> list[Any]:
        held = [
            *(one.state for one in self._numpy),
            *(one.get_state(legacy=False) for one in self._legacy),
        ]
        held += [one.getstate() for one in self._plain]
        return [*held, *(one.get_state().numpy().copy() for one in self._torch)]

    def _put_states(self, states: list[Any]) -> None:
        rest = iter(states)
        for one in self._numpy:
            one.state = next(rest)
        for one in self._legacy:
            one.set_state(next(rest))
        for plain in self._plain:
            plain.setstate(next(rest))
        for other in self._torch:
            other.set_state(sys.modules["torch"].from_numpy(next(rest)))

    def _replace_entropy(self, module: ModuleType | None) -> None:
        """The system's entropy, under whatever name a module holds it."""
        held = getattr(module, "__dict__", {})
        for name in [name for name, value in held.items() if value is self._system]:
            self._stack.enter_context(mock.patch.object(module, name, self._random_bytes))
        if held.get("__name__") == "numpy.random.bit_generator" and "randbits" in held:
            self._stack.enter_context(mock.patch.object(module, "randbits", self._random_bits))

    def _random_bytes(self, count: int) -> bytes:
        self._asked = True
        return self._bits.randbytes(count)

    def _random_bits(self, count: int) -> int:
        self._asked = True
        return self._bits.getrandbits(count)


SPREAD = 1024  # seeds of different sources
HEAP = 1 << 9  # flag of types that Python code made: their instances hold what they like


def _find_generators() -> tuple[list[Any], list[Any], list[random.Random], list[Any]]:
    """numpy's bit generators and old generators, those of ``random``, and torch's: the garbage
    collector knows who holds these."""
    numpy = []
    legacy = []
    plain = []
    others = {}
    torch = sys.modules.get("torch")
    kind = getattr(torch, "Generator", None)
    if torch is not None:
        others[id(torch.default_generator)] = torch.default_generator
    if frozen := gc.get_freeze_count() > 0:  # what is frozen is not listed
        gc.unfreeze()
    listed = gc.get_objects()
    if frozen:
        gc.freeze()
    for one in listed:
        sort = type(one)
        if issubclass(sort, np.random.BitGenerator):
            numpy.append(one)
        elif issubclass(sort, np.random.RandomState) and isinstance(
            one._bit_generator, np.random.MT19937
        ):
            legacy.append(one)
        elif issubclass(sort, random.Random):
            plain += [] if issubclass(sort, random.SystemRandom) else [one]
        elif kind is not None and (
            sort is dict or sort.__name__ == "cell" or sort.__flags__ & HEAP
        ):
            others |= {id(held): held for held in gc.get_referents(one) if type(held) is kind}
    seeded = {id(one._bit_generator) for one in legacy}
    return [one for one in numpy if id(one) not in seeded], legacy, plain, [*others.values()]


def _is_same_state(one: Any, other: Any) -> bool:
    if isinstance(one, Mapping):
        return all(_is_same_state(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return all(map(_is_same_state, one, other))
    return bool(np.array_equal(one, other)) if isinstance(one, np.ndarray) else bool(one == other)
