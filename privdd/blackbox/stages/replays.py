"""All neighbours under the same noise: those with the largest shift, which is known exactly then,
and releases without noise."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

import numpy as np
from scipy import stats

from attacks.epsilon import clopper_pearson
from privdd.blackbox.check_report import ExactEpsilon, SingleTestResult
from privdd.blackbox.check_run import CheckRun, KnownShift
from privdd.blackbox.dependence_measures import dependence_sizes
from privdd.blackbox.frozen_sources import FrozenSources
from privdd.blackbox.inputs import NeighbouringInputs, size_of_data
from privdd.blackbox.mechanism import InputRefused
from privdd.blackbox.neighbours import counted_neighbours
from privdd.blackbox.paired_replays import PairedReplays, replay_pair
from privdd.blackbox.shift_bounds import ShiftBound

SHARE = 0.08  # of the calls that are left
# seeds: of every pair, and of the best
FEW = range(1, 4)
MANY = range(1, 129)
# kurtosis from which on the sum of shifts counts, as for Laplace noise (6), not their length (3)
HEAVY_TAILS = 4.5
COUNTED = 4000  # calls of either side that a choice without noise is told from
FEWEST_COUNTED = 100
# looks
REPLAYED = "replays"
LARGEST_SHIFT = "the largest shift"
HELD = "the randomness of the mechanism could not be held still: the same seed gave another release"
UNKNOWN = (
    "on {} of {} pairs of neighbours the record's effect depends on the noise, so no "
    "exact epsilon is given"
)
NO_NOISE = (
    "no source of randomness was drawn from: the same input gives the same release, and the "
    "record changes it"
)


def replay_neighbours(run: CheckRun) -> None:
    """Replay as many neighbours as a share of the calls pays for; keep the largest shift."""
    with FrozenSources() as sources:
        best_by_size: dict[tuple[object, ...], list[PairedReplays]] = {}
        for replays in _replays_of_neighbours(run, sources):
            if _seems_noiseless(replays) and _report_no_noise(run, replays, sources):
                return
            if max(replays.score) > 0:
                size = size_of_data(replays.pair.present)
                rivals = [*best_by_size.get(size, []), replays]
                best_by_size[size] = [_largest_by_norm(rivals, norm) for norm in (0, 1)]
        if run.replays.unknown:
            note = UNKNOWN.format(run.replays.unknown, run.replays.compared)
            run.report.notes.append(note)
        best = {}
        for replays_of_size in best_by_size.values():
            for replays in replays_of_size:
                best[id(replays)] = replays.pair
        _keep_largest_shift(run, [*best.values()], sources)


def _largest_by_norm(rivals: list[PairedReplays], norm: int) -> PairedReplays:
    """norm: 0 for L2, 1 for L1."""
    return max(rivals, key=lambda replays: replays.score[norm])


def _seems_noiseless(replays: PairedReplays) -> bool:
    return not replays.is_random and replays.is_constant and replays.differs


def _replays_of_neighbours(run: CheckRun, sources: FrozenSources) -> Iterator[PairedReplays]:
    """Of as many pairs as can be paid for, evenly chosen; none if randomness cannot be held
    still."""
    evidence = run.replays
    evidence.pairs = run.stated_neighbours()
    if run.mechanism.kind == "records":
        evidence.pairs = evidence.pairs + counted_neighbours(run.claim.relation, run.inputs)
    count = affordable_replays(run, SHARE) // (len(FEW) + 1)
    if not count:
        run.note_skipped(REPLAYED)
        return
    last = len(evidence.pairs) - 1
    places = np.linspace(0, last, min(count, len(evidence.pairs))).astype(int)
    for index in np.unique(places):
        pair = evidence.pairs[index]
        try:
            replays = replay(run, pair, sources, FEW)
        except InputRefused:
            continue
        if not replays.repeats:
            result = SingleTestResult(REPLAYED, "not tested", HELD, inputs=pair.says)
            run.report.looks.append(result)
            return
        evidence.compared += 1
        if replays.shift() is None:
            evidence.unknown += 1
        keep_dependences(run, replays)
        yield replays


def keep_dependences(run: CheckRun, replays: PairedReplays) -> None:
    """Keep the replays of a pair that shows more of some kind of dependence than those before."""
    by_kind = run.replays.by_kind
    for kind, size in dependence_sizes(replays).items():
        if kind not in by_kind or size > dependence_sizes(by_kind[kind])[kind]:
            by_kind[kind] = replays


def replay(
    run: CheckRun, pair: NeighbouringInputs, sources: FrozenSources, seeds: range
) -> PairedReplays:
    """The stated calls on both sides of a pair, for each seed. Raises InputRefused, OutOfTime."""
    run.budget.check_budget(run.mechanism)
    calls = run.stated_calls(pair.present), run.stated_calls(pair.absent)
    run.calls_by_words[pair.says] = calls
    return replay_pair(run.mechanism, pair, calls, sources, seeds)


def affordable_replays(run: CheckRun, share: float) -> int:
    """Seeds for both sides that a share of the calls that are left pays for."""
    return int(share * run.budget.calls_left(run.mechanism) / (2 * run.claim.calls))


def _report_no_noise(run: CheckRun, replays: PairedReplays, sources: FrozenSources) -> bool:
    """Whether the lack of noise refutes the statement. For whole numbers, which a source outside of
    this process may choose, only calls are counted."""
    numbers = np.concatenate([replays.present[0], replays.absent[0]])
    if not np.array_equal(numbers, np.rint(numbers)):
        run.add_certain("no noise", NO_NOISE, replays.pair.says)
        return True
    count = min(affordable_replays(run, SHARE), COUNTED)
    if count < FEWEST_COUNTED:
        return False
    recount = replay(run, replays.pair, sources, range(count))
    if recount.is_random or not recount.is_constant:
        return False
    level = run.next_level()
    # P(release of this side | present) = 1 and P(.. | absent) = 0 in all of n calls: the largest
    # epsilon that Clopper and Pearson's limits of both shares allow
    bound = clopper_pearson(count, 0, 0, count, delta=level.delta, confidence=level.confidence)
    run.add_fault("no noise", bound, "finite_sample", NO_NOISE, replays.pair.says)
    return run.report.is_refuted


def _keep_largest_shift(
    run: CheckRun, pairs: list[NeighbouringInputs], sources: FrozenSources
) -> None:
    """Of the best pair of each size the one with the largest shift, if it is the same for many
    seeds."""
    replayed = []
    for pair in pairs:
        if affordable_replays(run, SHARE) < len(MANY):
            run.note_skipped(LARGEST_SHIFT)
            break
        with suppress(InputRefused):
            replayed.append(replay(run, pair, sources, MANY))
    shifted = [replays for replays in replayed if max(replays.score) > 0]
    if not shifted:
        return
    norm = 1 if _has_heavy_tails(shifted[0].absent) else 0
    largest = _largest_by_norm(shifted, norm)
    shift = largest.shift()
    if shift is not None and len(shift) % run.claim.calls == 0:
        run.replays.shift = KnownShift(largest.pair, shift.reshape(run.claim.calls, -1))


def _has_heavy_tails(rows: np.ndarray) -> bool:
    """Whether the noise of releases (n, M) is nearer to Laplace's law than to the normal one:
    kurtosis E z^4 of the standardised numbers, pooled."""
    spread = rows.std(0)
    noised = spread > 0
    residuals = (rows - rows.mean(0))[:, noised] / spread[noised]
    return bool(stats.kurtosis(residuals, axis=None, fisher=False) > HEAVY_TAILS)


def report_shift(run: CheckRun, bound: ShiftBound, pair: NeighbouringInputs) -> None:
    """What the report says of the mechanism: kappa, the law of its noise, the exact epsilon."""
    if bound.law == "other":
        return
    report = run.report
    # the best guess is that of the best bound: the largest guess is a lucky one
    if report.kappa is None or bound.epsilon > report.kappa_bound:
        report.kappa_bound = bound.epsilon
        report.kappa = _kappa_of(run, bound)
        report.about = bound.about
        report.law = bound.law
        report.worst = pair.says
    shift = run.replays.shift_of(pair)
    has_more = report.exact is None or bound.transcripts > report.exact.transcripts
    if bound.exact and shift is not None and not run.replays.unknown and has_more:
        report.exact = ExactEpsilon(
            law=bound.law,
            epsilon=bound.about,
            low=bound.epsilon,
            shift_l1=float(np.abs(shift).sum()),
            shift_l2=float(np.linalg.norm(shift)),
            transcripts=bound.transcripts,
            pairs=run.replays.compared,
            inputs=pair.says,
        )


def _kappa_of(run: CheckRun, bound: ShiftBound) -> float:
    """Shift over noise, over what is stated: kappa = mu / (mu of one call * sqrt(calls)) for normal
    noise, whose mu-GDP composes by the root of the calls (Dong, Roth and Su 2022, corollary 3.3);
    epsilon over epsilon for Laplace noise, whose epsilon grows with the shift."""
    if bound.law.endswith("gaussian"):
        return bound.mu / (run.claim.gaussian_mu_per_call * run.claim.calls**0.5)
    return bound.about / max(run.claim.epsilon, 1e-12)
