"""The stages of a check, in an order in which most faults show early."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from privdd.blackbox.budgets import OutOfCalls, OutOfShares, OutOfTime
from privdd.blackbox.check_report import CALLS_SPENT, MADE, SPENT, CheckReport
from privdd.blackbox.check_run import CheckRun, ExaminationStage
from privdd.blackbox.mechanism import Data
from privdd.blackbox.stages.close_looks import refine_pairs
from privdd.blackbox.stages.conditions import examine_conditions, examine_nonfinite_inputs
from privdd.blackbox.stages.dependence import examine_dependence, examine_replayed_shift
from privdd.blackbox.stages.directions import examine_directions
from privdd.blackbox.stages.first_calls import examine_first_calls
from privdd.blackbox.stages.neighbour_search import search_neighbours
from privdd.blackbox.stages.noiseless_numbers import examine_noiseless_numbers
from privdd.blackbox.stages.replays import replay_neighbours

REPLAYS_ALONE = "replays alone: no neighbours were searched for, so they can refute and not confirm"


STAGES = (
    ExaminationStage("first calls", examine_first_calls),
    ExaminationStage("replays", replay_neighbours),
    ExaminationStage("what depends on the record", examine_dependence),
    ExaminationStage("search", search_neighbours),
    ExaminationStage("directions", examine_directions),
    ExaminationStage("numbers without noise", examine_noiseless_numbers),
    ExaminationStage("conditions", examine_conditions),
    ExaminationStage("closer tests", refine_pairs),
)
# of the grey box (``record=true``), which says what depends on the record and searches for nothing
REPLAY_STAGES = (
    ExaminationStage("first calls", examine_first_calls),
    ExaminationStage("replays", replay_neighbours),
    ExaminationStage("what depends on the record", examine_replayed_shift),
    ExaminationStage("conditions", examine_nonfinite_inputs),
)


def examine(
    run: CheckRun,
    stages: Sequence[ExaminationStage] = STAGES,
    begin_stage: Callable[[str], None] = lambda name: None,
) -> CheckReport:
    """Every stage, or as many as the budget pays for.

    Args:
        run: the check, whose report the stages fill.
        stages: in their order.
        begin_stage: called with the name of each stage as it begins.

    Returns:
        The report of the run. If the budget ends, it names the stage in which it did.
    """
    for stage in stages:
        if run.report.is_certain:
            break  # no number makes it worse
        begin_stage(stage.name)
        try:
            stage.examine(run)
        except OutOfTime as reason:
            words = _words_for(reason)
            run.report.undecided.append(
                f"{words} in the stage {stage.name!r}; the tests after it were not made"
            )
            break
    return run.report


def examine_replays(
    run: CheckRun, begin_stage: Callable[[str], None] = lambda name: None
) -> CheckReport:
    """The stages of the grey box, which decide nothing but what they refute.

    Args:
        run: the check, whose report the stages fill.
        begin_stage: called with the name of each stage as it begins.
    """
    run.report.undecided.append(REPLAYS_ALONE)
    return examine(run, REPLAY_STAGES, begin_stage)


def _words_for(reason: OutOfTime) -> str:
    if isinstance(reason, OutOfShares):
        return MADE
    if isinstance(reason, OutOfCalls):
        return CALLS_SPENT
    return SPENT


def find_counterexample(run: CheckRun) -> tuple[str, list[Data], list[Data]] | None:
    """(words, calls with the record, calls without it) of the neighbours on which most was shown;
    None if none were judged."""
    refuted = [
        result
        for result in run.report.looks
        if result.outcome == "refuted" and result.inputs in run.calls_by_words
    ]
    if refuted:
        words = max(refuted, key=lambda result: result.epsilon).inputs
        present, absent = run.calls_by_words[words]
        return words, present, absent
    if not run.pairs:
        return None
    pair = run.pairs[0].pair
    return pair.says, run.stated_calls(pair.present), run.stated_calls(pair.absent)
