"""Transcripts of two neighbouring inputs under the same noise."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from privdd.blackbox.frozen_sources import FrozenSources
from privdd.blackbox.inputs import NeighbouringInputs
from privdd.blackbox.mechanism import BlackBox, Data, Outcomes

DOUBLE_ROUNDING = 1e-9  # relative rounding of float64, and of the types that are no float64:
ROUNDING = {"float16": 2e-3, "float32": 1e-6}
# replays of a side, after which a source that was not drawn from is taken for one that never is
WATCHED = 200
AGREES = 1e-7  # of the noise: two differences that are the same


@dataclass(frozen=True, eq=False)
class PairedReplays:
    """Transcripts of two neighbouring inputs, each seed used for both.

    Attributes:
        pair: the neighbours.
        present: (S, M), M numbers of all calls for each of S seeds, with the record; (S, 0) if
            releases differ in size.
        absent: the same without the record.
        alike: whether all releases are of one size.
        codes: what is no number, for each side and seed.
        is_random: whether any call drew from a source that is known.
        repeats: whether a seed gives the same release again.
    """

    pair: NeighbouringInputs
    present: np.ndarray
    absent: np.ndarray
    alike: bool
    codes: tuple[tuple[str, ...], tuple[str, ...]]
    is_random: bool
    repeats: bool

    @property
    def score(self) -> tuple[float, float]:
        """The L2 and the L1 norm of the shift over the noise; 0 if the shift depends on the noise,
        or a number that shifts has none."""
        shift = self.shift()
        if shift is None or not shift.any() or not self.noise[shift != 0].all():
            return 0.0, 0.0
        over_noise = shift[shift != 0] / self.noise[shift != 0]
        return float(np.linalg.norm(over_noise)), float(np.abs(over_noise).sum())

    @property
    def has_same_codes(self) -> bool:
        """Whether both sides are of one size, and what is no number is equal for every seed."""
        return self.alike and self.codes[0] == self.codes[1]

    @property
    def differs(self) -> bool:
        """Whether any seed gives the two sides another release."""
        return not self.has_same_codes or not np.array_equal(self.present, self.absent)

    @property
    def is_constant(self) -> bool:
        """Whether each side gives one and the same release for every seed."""
        if not self.alike or any(len(set(side)) > 1 for side in self.codes):
            return False
        return all(bool((side == side[0]).all()) for side in (self.present, self.absent))

    @property
    def noise(self) -> np.ndarray:
        """(M,): standard deviation over seeds, of the side that has less; 0 if a number never
        changes."""
        return np.minimum(_noise_of_side(self.present), _noise_of_side(self.absent))

    def shift(self) -> np.ndarray | None:
        """(M,): what the record adds to each number, exactly; None if that depends on the noise."""
        if not self.has_same_codes:
            return None
        gaps = self.present - self.absent
        rounding = [DOUBLE_ROUNDING]
        rounding += [share for name, share in ROUNDING.items() if name in self.codes[0][0]]
        share = max(rounding)
        largest = np.maximum(np.abs(self.present), np.abs(self.absent)).max(0)
        allowed = share * largest
        if share == DOUBLE_ROUNDING:
            allowed = allowed + AGREES * self.noise
        if (np.ptp(gaps, axis=0) > allowed).any():
            return None
        middle = np.median(gaps, axis=0)
        return np.where(np.abs(middle) > allowed, middle, 0.0)


def _noise_of_side(numbers: np.ndarray) -> np.ndarray:
    return np.where(np.ptp(numbers, axis=0) > 0, numbers.std(0), 0.0)


def replay_pair(
    mechanism: BlackBox,
    pair: NeighbouringInputs,
    calls: Sequence[Sequence[Data]],
    sources: FrozenSources,
    seeds: range,
) -> PairedReplays:
    """One transcript of each side for each seed, and one again with the first seed.

    Args:
        mechanism: what is called.
        pair: the neighbours.
        calls: those with the record, and those without it.
        sources: that are restarted before each transcript.
        seeds: one for each pair of transcripts.

    Raises:
        InputRefused: the mechanism raised an error.
    """
    is_random = False
    sides: list[list[Outcomes]] = []
    for inputs in calls:
        side: list[Outcomes] = []
        for index, seed in enumerate((*seeds, seeds[0])):
            watch = not is_random and index < WATCHED
            sources.restart(seed, watch=watch)
            side.append(mechanism.transcript(inputs))
            is_random = is_random or (watch and sources.drawn_from())
        sides.append(side)
    repeats = all(_is_same_release(side[0], side[-1]) for side in sides)
    with_record, without_record = (side[:-1] for side in sides)
    is_uniform = len({len(release.numbers) for release in with_record + without_record}) == 1
    return PairedReplays(
        pair,
        _stack_numbers(with_record, is_uniform),
        _stack_numbers(without_record, is_uniform),
        is_uniform,
        (_codes_of(with_record), _codes_of(without_record)),
        is_random,
        repeats,
    )


def _is_same_release(release: Outcomes, later: Outcomes) -> bool:
    same_numbers = np.array_equal(release.numbers, later.numbers)
    return same_numbers and release.signature == later.signature


def _stack_numbers(releases: list[Outcomes], alike: bool) -> np.ndarray:
    if not alike:
        return np.zeros((len(releases), 0))
    return np.stack([release.numbers for release in releases])


def _codes_of(releases: list[Outcomes]) -> tuple[str, ...]:
    return tuple(release.signature for release in releases)
