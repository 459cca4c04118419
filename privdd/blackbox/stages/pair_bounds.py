"""Every bound on one pair of neighbours: rules that were learned on some transcripts and judge
others, and what the law of the noise says."""

from __future__ import annotations

from functools import partial

from privdd.blackbox.check_report import CURSORY
from privdd.blackbox.check_run import FEWEST, CallsOf, CheckRun
from privdd.blackbox.distinguishers import bound_by_distinguishing
from privdd.blackbox.inputs import NeighbouringInputs, is_quiet
from privdd.blackbox.mechanism import Data, InputRefused
from privdd.blackbox.rare_shift_bounds import sampled_epsilon, tail_epsilon
from privdd.blackbox.shift_bounds import ShiftBound, bound_shift, exact_shift_bound
from privdd.blackbox.stages.law_confirmation import confirmed_epsilon
from privdd.blackbox.stages.replays import report_shift
from privdd.blackbox.transcripts import PairSample, Sides, join_transcripts

# transcripts of a pair, at most: those of a first look, a closer one and the closest, and all that
# the budget pays for
FIRST_DEPTH = 1000
CLOSER_DEPTH = 6000
CLOSEST_DEPTH = 40_000
ALL_LEFT = 400_000
# of the calls that are left, for a look of a depth
SHARES = {CLOSEST_DEPTH: 0.25, ALL_LEFT: 0.8}
USUAL_SHARE = 0.15  # for other depths
LEARN = 20_000  # transcripts a side, at most; rare events show in many only
RARE_SHIFT = (
    "the share of releases that the record moves far is more than the law of the noise allows"
)
CHANCE_SHIFT = "the record moves the release by a chance amount, further or more often than stated"


def bound_pair(
    run: CheckRun,
    pair: NeighbouringInputs,
    depth: int,
    calls_of: CallsOf,
    name: str,
    share: float | None = None,
) -> None:
    """Every bound on one pair.

    Args:
        run: the check, whose report gets the bounds.
        pair: the neighbours.
        depth: transcripts of each side, at most.
        calls_of: data -> the calls of a transcript.
        name: of the look.
        share: of the calls that are left; by default that of the depth.

    Raises:
        OutOfTime: the calls, the time or the shares of the error probability are spent.
    """
    if share is None:
        share = SHARES.get(depth, USUAL_SHARE)
    try:
        sides = draw_sides(run, pair, depth, calls_of, share)
    except InputRefused as refusal:
        run.note_refused(name, refusal)
        return
    if sides is None:
        run.note_skipped(name, CURSORY if id(pair) in run.transcripts else "everywhere")
        return
    trained, fresh = sides
    if calls_of == run.stated_calls:
        shift = run.replays.shift_of(pair)
    else:
        shift = None
    sample = PairSample(trained, fresh, pair.axis, shift)
    if depth < ALL_LEFT and len(fresh[0]) < depth / 4:
        run.note_skipped(name, CURSORY)
    _bound_by_counting(run, pair, sample, calls_of, name)
    without_record = calls_of(pair.absent)
    if calls_of == run.stated_calls and is_quiet(pair.absent, run.inputs.nothing):
        _bound_rare_shifts(run, pair, sample, without_record, name)
    _bound_by_law(run, pair, sample, calls_of, name)


def draw_sides(
    run: CheckRun, pair: NeighbouringInputs, depth: int, calls_of: CallsOf, share: float
) -> tuple[Sides, Sides] | None:
    """Transcripts to learn from, and fresh ones to judge by.

    Transcripts of earlier looks at the same pair are learned from too; those that judge are always
    new.

    Args:
        run: the check.
        pair: the neighbours.
        depth: transcripts of each side to learn from and to judge by, at most.
        calls_of: data -> the calls of a transcript.
        share: of the calls that are left.

    Returns:
        (transcripts to learn from, fresh ones), None if too few calls are left.

    Raises:
        InputRefused: the mechanism raised an error.
        OutOfTime: the budget is spent.
    """
    inputs = calls_of(pair.present)
    count = run.affordable_transcripts(inputs, share, 2 * depth, 2 * FEWEST) // 2
    if count < FEWEST:
        return None
    is_stated = calls_of == run.stated_calls
    earlier = None
    if is_stated and id(pair) in run.transcripts:
        _, earlier = run.transcripts[id(pair)]
    learn = min(_wanted_to_learn(count, earlier), LEARN)
    if earlier is None or learn:
        trained = _merge_sides(earlier, run.draw_pair(pair, learn, calls_of))
    else:
        trained = earlier
    fresh = run.draw_pair(pair, count - learn, calls_of)
    if is_stated:
        run.transcripts[id(pair)] = (pair, _merge_sides(trained, fresh))
    return trained, fresh


def _wanted_to_learn(count: int, earlier: Sides | None) -> int:
    """Of ``count`` transcripts half, or what is missing to a third if earlier ones are known."""
    learned = len(earlier[0]) if earlier else 0
    return max(0, count // 3 - learned) if learned else count // 2


def _merge_sides(earlier: Sides | None, later: Sides) -> Sides:
    """At most ``LEARN`` of each side, the later ones; ``later`` alone if the sizes differ."""
    present, absent = later
    if earlier is not None and all(
        before.rows.shape[1:] == after.rows.shape[1:] for before, after in zip(earlier, later)
    ):
        present = join_transcripts(earlier[0], present)
        absent = join_transcripts(earlier[1], absent)
    return present[-LEARN:], absent[-LEARN:]


def _bound_by_counting(
    run: CheckRun, pair: NeighbouringInputs, sample: PairSample, calls_of: CallsOf, name: str
) -> None:
    """By a learned rule, for any mechanism."""
    bound = bound_by_distinguishing(sample, run.next_level())
    if bound.epsilon:
        rule = f"distinguished by {bound.how}"
    else:
        rule = "not distinguished"
    says = f"two inputs are {rule}, {bound.transcripts} transcripts"
    if calls_of == run.stated_calls:
        run.strongest_any.compare(pair, bound.epsilon)
        run.strongest.compare(pair, bound.epsilon)
    run.add_result(
        name, bound.epsilon, "finite_sample", says, pair.says, transcripts=bound.transcripts
    )


def _bound_rare_shifts(
    run: CheckRun,
    pair: NeighbouringInputs,
    sample: PairSample,
    without_record: list[Data],
    name: str,
) -> None:
    """By the tail, and by the moments, of normal noise that the record moves now and then."""
    confirm = partial(confirmed_epsilon, run, without_record, sample, "gaussian")
    tail = confirm(tail_epsilon(sample, run.next_level()))
    tail_name = f"{name}, tail of the noise law"
    run.add_fault(tail_name, tail, "noise_law", RARE_SHIFT, pair.says)
    moments = confirm(sampled_epsilon(sample, run.next_level()))
    moments_name = f"{name}, moments under the noise law"
    run.add_fault(moments_name, moments, "noise_law", CHANCE_SHIFT, pair.says)


def _bound_by_law(
    run: CheckRun, pair: NeighbouringInputs, sample: PairSample, calls_of: CallsOf, name: str
) -> None:
    """By the shift over noise of a tested law; exactly if the shift is known."""
    level = run.next_level()
    bound = exact_shift_bound(sample, level) or bound_shift(sample, level)
    if not bound.transcripts:
        return
    if bound.epsilon:
        without_record = calls_of(pair.absent)
        confirmed = confirmed_epsilon(
            run, without_record, sample, bound.law, bound.epsilon, exact=bound.exact
        )
        if not confirmed:
            bound = ShiftBound("other", bound.mu, transcripts=bound.transcripts)
    if calls_of == run.stated_calls:
        report_shift(run, bound, pair)
        run.strongest.compare(pair, bound.epsilon)
    says = f"the record shifts the release by {bound.mu:.3g} times its {bound.law} noise"
    if bound.exact:
        says += f", exactly: epsilon is {bound.about:.4g} by this law and this shift"
    run.add_result(
        f"{name}, noise law",
        bound.epsilon,
        "noise_law",
        says,
        pair.says,
        exact=bound.exact,
        law=bound.law,
        mu=bound.mu,
    )
