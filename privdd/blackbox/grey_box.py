"""The grey box: a check by replays alone, which says what depends on the record and searches for
nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from privdd.blackbox.dependence import SHIFT
from privdd.blackbox.examination import Examination, check_nonfinite_inputs
from privdd.blackbox.replays import FrozenSources

RECORD_STAGES = ("first calls", "replays", "what depends on the record", "conditions")
ALONE = "replays alone: no neighbours were searched for, so nothing is decided but what they refute"


@dataclass
class GreyBox(Examination):
    """One mechanism against one statement, by replays alone."""

    names = RECORD_STAGES

    def _stages(self) -> tuple[Callable[[], None], ...]:
        self.result.undecided.append(ALONE)
        return (
            self._examine_first_calls,
            self.replay_neighbours,
            self._examine_replays,
            self._examine_conditions,
        )

    def _examine_replays(self) -> None:
        with FrozenSources() as sources:
            for pair in self.shifted:
                self._run_judge(SHIFT, partial(self.judge_shift, pair, sources))
        self.examine_dependence()

    def _examine_conditions(self) -> None:
        self.result.looks += check_nonfinite_inputs(
            self.mechanism, self.stated, self.tried, self.clock
        )
