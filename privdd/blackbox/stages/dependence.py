"""What depends on the record: a mechanism's randomness is replayed on neighbours, so that it shows
without statistics.

What each number of a release gains by the record before noise, whether the noise's size, the shape
of a release or a line of code that runs depends on it, and what has no noise at all. Epsilon
follows if the noise has a law that is known.
"""

from __future__ import annotations

import linecache
import math
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
from scipy import stats

from attacks.epsilon import clopper_pearson
from privdd.blackbox.check_report import SingleTestResult
from privdd.blackbox.check_run import FEWEST, CheckRun
from privdd.blackbox.claims import TINY
from privdd.blackbox.code_lines import CodeLine, lines_of
from privdd.blackbox.dependence_measures import (
    NOISELESS,
    SCALE,
    SHAPE,
    SHARED,
    noise_ratio,
    noiseless_combination,
    noiseless_numbers,
)
from privdd.blackbox.frozen_sources import FrozenSources
from privdd.blackbox.inputs import NeighbouringInputs
from privdd.blackbox.law_recognition import fit_scale, follows_law
from privdd.blackbox.mechanism import Data, InputRefused
from privdd.blackbox.paired_replays import PairedReplays
from privdd.blackbox.shift_bounds import exact_shift_bound
from privdd.blackbox.stages.law_confirmation import confirmed_epsilon
from privdd.blackbox.stages.replays import FEW, affordable_replays, replay, report_shift
from privdd.blackbox.transcripts import PairSample, Sides, Transcripts

REPLAYS = 8000  # of the pair that decides
COUNTED = 5000  # of the pair whose releases are counted
SHARE = 0.3  # of the calls that are left, for each kind of dependence
TRACED = 60  # pairs whose lines are compared
FIRST = 1000  # the seed of the first replay that counts
SHOWN = 4  # numbers or lines
LONGEST = 60  # characters of what is no number
SHIFT = "shift before noise"
# of ``rescaled_epsilon``: points of the integral, its reach in widths, and halvings of [0, highest]
GRID = 400_001
REACH = 60.0
HALVINGS = 50
HIGHEST_EPSILON = 700.0


def examine_dependence(run: CheckRun) -> None:
    """Of each kind of dependence, judge the pair on which replays show most of it."""
    for pair in run.replays.shifted_pairs():
        _describe_shift(run, pair)
    judges = {
        SHAPE: _judge_shape,
        NOISELESS: _judge_numbers,
        SCALE: _judge_scale,
        SHARED: _judge_sharing,
    }
    with FrozenSources() as sources:
        for kind, judge in judges.items():
            if kind in run.replays.by_kind:
                replays = run.replays.by_kind[kind]
                _run_judge(run, kind, partial(judge, run, replays, sources))
        _compare_lines(run, sources)


def examine_replayed_shift(run: CheckRun) -> None:
    """Epsilon by the largest shift, from replays alone; then what else depends on the record."""
    with FrozenSources() as sources:
        for pair in run.replays.shifted_pairs():
            _run_judge(run, SHIFT, partial(judge_shift, run, pair, sources))
    examine_dependence(run)


def _run_judge(run: CheckRun, name: str, judge: Callable[[], None]) -> None:
    if affordable_replays(run, SHARE) < FEWEST:
        run.note_skipped(name)
        return
    try:
        judge()
    except InputRefused as refusal:  # now and then, as it was accepted before
        run.note_refused(name, refusal)


def _replay_often(
    run: CheckRun, pair: NeighbouringInputs, sources: FrozenSources, most: int = REPLAYS
) -> PairedReplays:
    """With as many seeds as a share of the calls pays for."""
    count = min(affordable_replays(run, SHARE), most)
    return replay(run, pair, sources, range(FIRST, FIRST + count))


def _describe_shift(run: CheckRun, pair: NeighbouringInputs) -> None:
    """What the record adds before noise, and what is declared of that."""
    shift = run.replays.shift_of(pair)
    if shift is None:
        return
    l1 = float(np.abs(shift).sum())
    l2 = float(np.linalg.norm(shift))
    flat = shift.ravel()
    by_size = np.argsort(-np.abs(flat), kind="stable")[:SHOWN]
    largest = sorted(int(index) for index in by_size if flat[index] != 0)
    listed = ", ".join(f"{flat[index]:.4g} to number {index}" for index in largest)
    if np.count_nonzero(flat) > len(largest):
        listed += " and more"
    says = (
        f"before noise the record adds {listed} (L1 {l1:.4g}, L2 {l2:.4g}); "
        f"largest of {run.replays.compared} pairs"
    )
    _add_dependence(run, SHIFT, says, pair.says)
    _judge_declaration(run, l1, l2, pair)


def judge_shift(run: CheckRun, pair: NeighbouringInputs, sources: FrozenSources) -> None:
    """Epsilon by the law of the noise and the exact shift. Raises InputRefused, OutOfTime."""
    shift = run.replays.shift_of(pair)
    replays = _replay_often(run, pair, sources)
    if shift is None or not replays.alike:
        return
    level = run.next_level()
    sample = _judging_sample(replays, shift, pair)
    bound = None
    if noiseless_combination(replays) == 0:
        bound = exact_shift_bound(sample, level)
    if bound is None:
        among = f"among {len(replays.present) // 2} releases of each side"
        run.report.notes.append(f"the noise has no law that is known {among}: no epsilon follows")
        return
    report_shift(run, bound, pair)
    says = (
        f"its noise is {bound.law}: epsilon is {bound.about:.4g} by this law and the "
        f"shift, {bound.mu:.4g} times its deviation"
    )
    run.add_result(
        "exact epsilon",
        bound.epsilon,
        "noise_law",
        says,
        pair.says,
        exact=True,
        law=bound.law,
        mu=bound.mu,
    )


def _judge_declaration(run: CheckRun, l1: float, l2: float, pair: NeighbouringInputs) -> None:
    """Sensitivity as it is declared: the noise over the noise multiplier."""
    claim = run.claim
    if claim.noise_std is None or claim.noise_multiplier is None:
        return
    norm = "L1" if claim.noise == "laplace" else "L2"
    size = l1 if claim.noise == "laplace" else l2
    radii = 2.0 if claim.relation == "replace" else 1.0  # a replaced record may cross the ball
    declared = claim.noise_std / claim.noise_multiplier * radii
    says = (
        f"the record moves the release by {size:.4g} ({norm}); {declared:.4g} is declared "
        "(stated.noise_std over stated.noise_multiplier)"
    )
    if size > declared * (1 + claim.tolerance / 5):
        outcome = "refuted"
    else:
        outcome = "not refuted"
    run.report.looks.append(
        SingleTestResult("declared sensitivity", outcome, says, 0.0, "certain", pair.says)
    )


def _judge_shape(run: CheckRun, strongest: PairedReplays, sources: FrozenSources) -> None:
    replays = _replay_often(run, strongest.pair, sources, COUNTED)
    present, absent = replays.codes
    count = len(present)
    with_record_only = sorted(set(present) - set(absent))[:1]
    without_record_only = sorted(set(absent) - set(present))[:1]
    examples = " against ".join(code[:LONGEST] for code in with_record_only + without_record_only)
    differing = sum(code not in set(absent) for code in present)
    says = (
        f"names, shapes or texts of the release differ by the record in {differing} of {count} "
        f"replays ({examples})"
    )
    level = run.next_level()
    # outcomes are chosen on one half and counted on the other
    half = count // 2
    without_record = set(absent[:half])
    hits = sum(code not in without_record for code in present[half:])
    false_hits = sum(code not in without_record for code in absent[half:])
    rest = count - half
    # P(outcome | present) <= e^epsilon P(outcome | absent) + delta, each share at its limit by
    # Clopper and Pearson: exact at any count, as such outcomes may be rare
    bound = clopper_pearson(
        hits,
        rest - hits,
        false_hits,
        rest - false_hits,
        delta=level.delta,
        confidence=level.confidence,
    )
    _add_dependence(run, SHAPE, says, strongest.pair.says)
    if bound > run.claim.refutation_limit:
        run.add_result(SHAPE, bound, "finite_sample", says, strongest.pair.says)


def _judge_numbers(run: CheckRun, strongest: PairedReplays, sources: FrozenSources) -> None:
    replays = _replay_often(run, strongest.pair, sources, COUNTED)
    places = np.flatnonzero(noiseless_numbers(replays))
    if not len(places):
        return
    if replays.is_random:
        draws = "sources of randomness are drawn from, and"
    else:
        draws = "no source of randomness is drawn from:"
    says = f"{draws} number {places[0]} of the release never changes, but by the record"
    _add_counted(run, NOISELESS, len(replays.codes[0]), says, strongest.pair)


def _add_counted(run: CheckRun, name: str, count: int, says: str, pair: NeighbouringInputs) -> None:
    """A bound from ``count`` replays of each side, none of which was like any of the other side:
    Clopper and Pearson's limits of count / count and 0 / count."""
    level = run.next_level()
    bound = clopper_pearson(count, 0, 0, count, delta=level.delta, confidence=level.confidence)
    says = f"{says} ({count} replays of each side)"
    run.add_result(name, bound, "finite_sample", says, pair.says)


def _judge_sharing(run: CheckRun, strongest: PairedReplays, sources: FrozenSources) -> None:
    replays = _replay_often(run, strongest.pair, sources, COUNTED)
    if replays.alike and noiseless_combination(replays) > 0:
        says = (
            "noise is shared: a combination of the released numbers has none, and the "
            "record changes it"
        )
        _add_counted(run, SHARED, len(replays.codes[0]), says, strongest.pair)


def _judge_scale(run: CheckRun, strongest: PairedReplays, sources: FrozenSources) -> None:
    """The noise of a number is wider or narrower with the record."""
    pair = strongest.pair
    replays = _replay_often(run, pair, sources)
    ratio = noise_ratio(replays)
    if ratio is None:
        return
    index = int(np.argmax(np.abs(np.log(ratio))))
    says = (
        f"the noise of number {index} is {ratio[index]:.6g} times as wide with the record as "
        "without it"
    )
    _add_dependence(run, SCALE, says, pair.says)
    noise = replays.absent[:, [index]] - np.median(replays.absent[:, index])
    law = next((law for law in ("gaussian", "laplace") if follows_law(law, noise)), None)
    if law is None:
        return
    scale, error = fit_scale(law, noise)
    gap = abs(float(np.median(replays.present[:, index]) - np.median(replays.absent[:, index])))
    shift = gap / float(scale[0])
    error += 2 / math.sqrt(len(noise)) / max(shift, 1e-9)
    tail = float(stats.norm.isf(run.next_level().error))
    share = max(0.0, 1 - tail * error)
    bound = rescaled_epsilon(law, shift * share, float(ratio[index]), run.claim.delta)
    sample = _judging_sample(replays, None, pair)
    bound = confirmed_epsilon(run, run.stated_calls(pair.absent), sample, law, bound, exact=True)
    if not bound:
        return
    says = f"{says}: epsilon is at least {bound:.4g} by its {law} law"
    run.add_result(SCALE, bound, "noise_law", says, pair.says, exact=True)


def _compare_lines(run: CheckRun, sources: FrozenSources) -> None:
    """Lines of the mechanism's code that run on one side only, under the same noise."""
    pairs = run.replays.pairs
    with_record_only: dict[CodeLine, str] = {}
    without_record_only: dict[CodeLine, str] = {}
    places = np.linspace(0, len(pairs) - 1, min(TRACED, len(pairs))).astype(int)
    for index in np.unique(places):
        pair = pairs[index]
        present = lines_of(partial(_call_restarted, run, pair.present, sources))
        absent = lines_of(partial(_call_restarted, run, pair.absent, sources))
        for line in sorted(present - absent):
            with_record_only.setdefault(line, pair.says)
        for line in sorted(absent - present):
            without_record_only.setdefault(line, pair.says)
    _report_lines(run, with_record_only, "with the record only")
    _report_lines(run, without_record_only, "without the record only")


def _report_lines(run: CheckRun, lines: dict[CodeLine, str], when: str) -> None:
    if not lines:
        return
    listed = []
    for file, number in [*lines][:SHOWN]:
        listed.append(f"{Path(file).name}:{number} {linecache.getline(file, number).strip()}")
    if len(lines) > SHOWN:
        remainder = f" and {len(lines) - SHOWN} more"
    else:
        remainder = ""
    says = f"{when}, under the same noise: {'; '.join(listed)}{remainder}"
    _add_dependence(run, "lines that run", says, next(iter(lines.values())))


def _call_restarted(run: CheckRun, data: Data, sources: FrozenSources) -> None:
    sources.restart(FEW[0])
    run.mechanism.transcript(run.stated_calls(data))


def _add_dependence(run: CheckRun, name: str, says: str, inputs: str) -> None:
    result = SingleTestResult(name, "depends on the record", says, inputs=inputs)
    run.report.looks.append(result)


def _judging_sample(
    replays: PairedReplays, shift: np.ndarray | None, pair: NeighbouringInputs
) -> PairSample:
    """The first half of the seeds with the record, the second without it: no noise is on both
    sides."""
    half = len(replays.present) // 2
    of_one_call = (1, replays.present.shape[1])
    shape = of_one_call if shift is None else shift.shape
    sides: Sides = (
        _as_transcripts(replays.present[:half], shape),
        _as_transcripts(replays.absent[half:], shape),
    )
    return PairSample(sides, sides, pair.axis, shift)


def _as_transcripts(rows: np.ndarray, shape: tuple[int, ...]) -> Transcripts:
    return Transcripts(rows.reshape(len(rows), *shape), ["f"] * len(rows))


def rescaled_epsilon(law: str, shift: float, ratio: float, delta: float) -> float:
    """Epsilon at ``delta`` of one number: noise of scale 1 against shifted noise of another scale.

    With densities p(x) and q(x) = p((x - shift) / ratio) / ratio, the larger of both orders of the
    least epsilon for which the integral of max(p - e^epsilon q, 0) is at most delta. By numerical
    integration, as the set on which p > e^epsilon q is no half line once the scales differ.

    Args:
        law: "gaussian" or "laplace".
        shift: in scales of the first noise, at least 0.
        ratio: of the second scale to the first, above 0.
        delta: in [0, 1).

    Returns:
        Epsilon; infinite for Laplace noise at delta 0, as the tails have another slope.
    """
    if law == "laplace" and delta == 0:
        return math.inf
    noise = stats.norm if law == "gaussian" else stats.laplace
    x = np.linspace(-1, 1, GRID) * (REACH * max(1.0, ratio) + shift)
    log_p = noise.logpdf(x)
    log_q = noise.logpdf(x, shift, ratio)
    step = x[1] - x[0]
    target = max(delta, TINY)
    in_order = _epsilon_of_densities(log_p, log_q, step, target)
    in_reverse = _epsilon_of_densities(log_q, log_p, step, target)
    return max(in_order, in_reverse)


def _epsilon_of_densities(log_p: np.ndarray, log_q: np.ndarray, step: float, delta: float) -> float:
    """The least epsilon with sum over x of max(p(x) - e^epsilon q(x), 0) step <= delta, by
    halving."""
    low = 0.0
    high = HIGHEST_EPSILON
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        excess = np.exp(log_p) - np.exp(np.minimum(log_q + middle, log_p))
        if float(excess.sum()) * step > delta:
            low = middle
        else:
            high = middle
    return low
