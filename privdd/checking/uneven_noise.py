"""A stage for noise that is larger in some releases than in others, on one pair of neighbours of many numbers.

The more numbers a release has, the better they tell how much noise it got (``symmetric_law``). A few hundred
releases say whether that varies at all: noise of one size costs no more than those.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from privdd.checking.called import Refused
from privdd.checking.examining import Examining
from privdd.checking.neighbours import Neighbouring, Tried, pairs, size_of
from privdd.checking.sampled import Block, drawn
from privdd.checking.symmetric_law import LEAST, alike, noise_frame, symmetric_epsilon
from privdd.checking.tail_law import quiet

NUMBERS, ROWS = 128, 20
FEW, MANY = 150, 30_000  # releases a side: to see whether the noise varies, and to judge
FIRST, SHARE = 0.1, 0.4  # of what is left
NAME = "neighbours, noise of uneven size"
SAYS = "where its noise is small, the release tells the record; its noise looks alike from every side"


@dataclass
class UnevenNoise(Examining):
    """Bounds under a law of directions only."""

    def uneven(self) -> None:
        pair = next(
            (one for one in pairs(self.mechanism.kind, self.stated.relation, self._wide()) if self._fits(one)), None
        )
        if pair is None:
            return
        try:
            self._judge(pair)
        except Refused:
            return  # wide inputs were never promised

    def _wide(self) -> Tried:
        """One long array or wide table, where no sizes were asked for; else the longest of those that were."""
        shapes = max(self.tried.structures, key=size_of) if self.shapes_given else ((NUMBERS,),)
        table = max(self.tried.tables, key=lambda size: size[1]) if self.shapes_given else (ROWS, NUMBERS)
        return replace(self.tried, structures=(shapes,), tables=(table,), crowds=self.tried.crowds[-1:], along=())

    def _fits(self, pair: Neighbouring) -> bool:
        """Nothing but the record is in the data, and clients weigh the same."""
        alone = quiet(pair.absent, self.tried.nothing)
        return alone and (self.mechanism.kind != "aggregate" or len(set(pair.present[1])) == 1)

    def _judge(self, pair: Neighbouring) -> None:
        if self._affordable(self.around(pair.present), FIRST, 2 * FEW) < 2 * FEW:
            self._left_out(NAME)
            return
        few = self._pair(pair, FEW)
        first = noise_frame(*few, pair.axis)
        if first is None or not (noise := first.view(few[1])).uneven or not alike(noise):
            return
        count = self._affordable(self.around(pair.present), SHARE, 2 * MANY) // 2
        if count < 2 * LEAST:
            self._left_out(NAME)
            return
        trained = self._pair(pair, count // 3)
        seen = noise_frame(*trained, pair.axis)
        if seen is not None:
            fresh = self._pair(pair, count - count // 3)
            found = symmetric_epsilon(seen, trained, fresh, **self._test())
            self._add_fault(NAME, found, "noise_law", SAYS, pair.says)

    def _pair(self, pair: Neighbouring, count: int) -> tuple[Block, Block]:
        one, other = (
            drawn(self.mechanism, self.around(side), count, self.clock) for side in (pair.present, pair.absent)
        )
        return one, other
