"""More noise is drawn before a bound that trusts its law refutes a statement, and the law is tested
once more: noise that is normal in the middle and has other tails passes for normal among a few
thousand numbers."""

from __future__ import annotations

import numpy as np

from privdd.blackbox.budgets import OutOfTime
from privdd.blackbox.check_run import CheckRun
from privdd.blackbox.law_recognition import has_law
from privdd.blackbox.mechanism import Data, InputRefused
from privdd.blackbox.transcripts import PairSample, Transcripts, draw_transcripts, transcript_totals

LAW_NUMBERS = 600_000  # of the noise; enough for a kurtosis that is off by a twentieth
LAW_SHARE = 0.25  # of the calls that are left
WORTH = 2  # times the transcripts that the law was told from: fewer say nothing new
MOVED_ERRORS = 4.0  # standard errors of a mean from which on the record is seen to move a number
OTHER = (
    "the noise fits {law} in a few thousand numbers and does not in many more: no bound that "
    "trusts that law counts"
)
UNCONFIRMED = (
    "the noise fits {law} in a few thousand numbers; there were too few calls left to test "
    "that on more"
)


def is_law_confirmed(law: str, transcripts: Transcripts, moved: np.ndarray) -> bool:
    """Whether noise follows a law.

    Args:
        law: the law's name.
        transcripts: of one input.
        moved: (m,) bool, numbers that the record moves, which are tested by themselves too.
    """
    parts = [transcripts]
    if not moved.all() and transcripts.rows.shape[2] == len(moved):
        parts.append(Transcripts(transcripts.rows[:, :, moved], transcripts.codes))
    return all(has_law(law, part, LAW_NUMBERS) for part in parts)


def confirmed_epsilon(
    run: CheckRun,
    inputs: list[Data],
    sample: PairSample,
    law: str,
    epsilon: float,
    *,
    exact: bool = False,
) -> float:
    """``epsilon``, unless it refutes the statement and more of the noise has another law: then 0.

    Args:
        run: the check.
        inputs: calls of a transcript without the record.
        sample: transcripts that the law was told from.
        law: of the noise, which the bound trusts.
        epsilon: the bound.
        exact: whether the bound follows from an exact shift.
    """
    if epsilon <= run.claim.limit(exact=exact, law=law):
        return epsilon
    if law not in run.doubted_laws and not _confirm_law(run, law, inputs, sample):
        run.doubted_laws.add(law)
        run.report.notes.append(OTHER.format(law=law))
    return 0.0 if law in run.doubted_laws else epsilon


def _confirm_law(run: CheckRun, law: str, inputs: list[Data], sample: PairSample) -> bool:
    """True too if more releases cannot be had."""
    try:
        absent = sample.fresh[1]
        noised = int((absent.rows.reshape(len(absent), -1).std(0) > 0).sum())
        wanted = -(-LAW_NUMBERS // max(1, noised))  # rounded up
        count = run.affordable_transcripts(inputs, LAW_SHARE, wanted)
        if count < WORTH * len(absent):
            note = UNCONFIRMED.format(law=law)
            if note not in run.report.notes:
                run.report.notes.append(note)
            return True
        transcripts = draw_transcripts(run.mechanism, inputs, count, run.budget)
        moved = _moved_numbers(sample)
        return is_law_confirmed(law, transcripts, moved if moved.any() else ~moved)
    except (InputRefused, OutOfTime):
        return True


def _moved_numbers(sample: PairSample) -> np.ndarray:
    """(m,) bool: numbers that the record moves, by the exact shift or the difference of means."""
    present, absent = (transcript_totals(side) for side in sample.trained)
    gap = present.mean(0) - absent.mean(0)
    error = np.sqrt(present.var(0) / len(present) + absent.var(0) / len(absent))
    if sample.shift is not None:
        return (sample.shift != 0).any(0)
    return np.abs(gap) > MOVED_ERRORS * error
