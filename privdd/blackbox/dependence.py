"""What depends on the record: a mechanism's randomness is replayed on neighbours, so that it shows
without statistics.

What each number of a release gains by the record before noise, whether the noise's size, the shape
of a release or a line of code that runs depends on it, and what has no noise at all. Epsilon
follows where noise has a law that is known (``exact``)."""

from __future__ import annotations

import linecache
import math
import sys
import sysconfig
import trace
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path

import numpy as np
from scipy import stats

from attacks.epsilon import clopper_pearson
from privdd.blackbox.inputs import NeighbouringInputs
from privdd.blackbox.mechanism import TINY, Data, InputRefused, PairSample, Transcripts
from privdd.blackbox.noise_laws import exact_shift_bound, fit_scale, follows_law
from privdd.blackbox.replays import FEW, FrozenSources, PairedReplays, ReplayStage
from privdd.blackbox.stages import FEWEST, LawConfirmation
from privdd.blackbox.verdict import SingleTestResult

REPLAYS = 8000  # of the pair that decides
COUNTED = 5000  # where they are counted
SHARE = 0.3  # of what is left, for each kind of dependence
TRACED = 60  # pairs whose lines are compared
FIRST = 1000  # the seed of the first replay that counts
SHOWN = 4  # numbers or lines
SAME = 1e-6  # relative: two noises of one size
SHIFT = "shift before noise"
SHAPE = "names and shapes"
NOISELESS = "numbers that never change"
SCALE = "size of the noise"
SHARED = "shared noise"
SPREAD = "spread of the releases"  # no look of its own: the pair is searched like those that shift
WIDEST = 64  # numbers of which each two are compared for noise that they share


@dataclass
class DependenceStage(ReplayStage, LawConfirmation):
    """Judges, of each kind of dependence, the pair of neighbours on which replays show most of
    it."""

    _kept: dict[str, PairedReplays] = field(
        default_factory=dict
    )  # of each kind of dependence the largest

    def dependent_pairs(self) -> list[NeighbouringInputs]:
        """Pairs on which something depends on the record: what replays cannot judge, counting
        may."""
        return list({id(one.pair): one.pair for one in self._kept.values()}.values())

    def _note_replay(self, one: PairedReplays) -> None:
        """Keep it where it shows more of some kind than those before."""
        super()._note_replay(one)
        for kind, size in dependence_sizes(one).items():
            if kind not in self._kept or size > dependence_sizes(self._kept[kind])[kind]:
                self._kept[kind] = one

    def examine_dependence(self) -> None:
        for pair in self.shifted:
            self._describe_shift(pair)
        judges = {
            SHAPE: self._judge_shape,
            NOISELESS: self._judge_numbers,
            SCALE: self._judge_scale,
            SHARED: self._judge_sharing,
        }
        with FrozenSources() as sources:
            for kind, judge in judges.items():
                if kind in self._kept:
                    self._run_judge(kind, partial(judge, self._kept[kind], sources))
            self._compare_lines(sources)

    def _run_judge(self, name: str, judge: Callable[[], None]) -> None:
        if self._affordable_replays(SHARE) < FEWEST:
            self._note_skipped(name)
            return
        try:
            judge()
        except InputRefused as no:  # now and then, as it was taken before
            self.result.notes.append(f"{name}: refused with: {no}")

    def _many(
        self, pair: NeighbouringInputs, sources: FrozenSources, most: int = REPLAYS
    ) -> PairedReplays:
        """With as many seeds as a share of the calls pays for."""
        count = self._affordable_replays(SHARE)
        return self._replay(pair, sources, range(FIRST, FIRST + min(count, most)))

    def _describe_shift(self, pair: NeighbouringInputs) -> None:
        """What the record adds before noise, and what is declared of that."""
        shift = self.shift_of(pair)
        if shift is None:
            return
        l1 = float(np.abs(shift).sum())
        l2 = float(np.linalg.norm(shift))
        flat = shift.ravel()
        first = [
            int(at) for at in np.argsort(-np.abs(flat), kind="stable")[:SHOWN] if flat[at] != 0
        ]
        says = ", ".join(f"{flat[at]:.4g} to number {at}" for at in sorted(first))
        says = (
            "before noise the record adds "
            f"{says}{' and more' if np.count_nonzero(flat) > len(first) else ''} (L1 "
            f"{l1:.4g}, L2 {l2:.4g}); largest of {self.compared} pairs"
        )
        self._add_dependence(SHIFT, says, pair.says)
        self._judge_declaration(l1, l2, pair)

    def judge_shift(self, pair: NeighbouringInputs, sources: FrozenSources) -> None:
        """Epsilon by the law of the noise and the exact shift."""
        shift = self.shift_of(pair)
        many = self._many(pair, sources)
        if shift is None or not many.alike:
            return
        half = len(many.present) // 2
        level = self._next_level()
        sample = _judging_sample(many, shift, pair)
        found = exact_shift_bound(sample, level) if noiseless_combination(many) == 0 else None
        if found is None:
            among = f"among {half} releases of each side"
            self.result.notes.append(
                f"the noise has no law that is known {among}: no epsilon follows"
            )
            return
        self.keep_shift(found, pair)
        says = (
            f"its noise is {found.law}: epsilon is {found.about:.4g} by this law and the "
            f"shift, {found.mu:.4g} times its deviation"
        )
        limits = {"exact": True, "law": found.law}
        self._add_result(
            "exact epsilon", found.epsilon, "noise_law", says, pair.says, **limits, mu=found.mu
        )

    def _judge_declaration(self, l1: float, l2: float, pair: NeighbouringInputs) -> None:
        """Sensitivity as it is declared: the noise over the noise multiplier."""
        stated = self.stated
        if stated.noise_std is None or stated.noise_multiplier is None:
            return
        norm, size = ("L1", l1) if stated.noise == "laplace" else ("L2", l2)
        declared = (
            stated.noise_std
            / stated.noise_multiplier
            * (2.0 if stated.relation == "replace" else 1.0)
        )
        says = (
            f"the record moves the release by {size:.4g} ({norm}); {declared:.4g} is declared "
            "(stated.noise_std over stated.noise_multiplier)"
        )
        outcome = "refuted" if size > declared * (1 + stated.tolerance / 5) else "not refuted"
        self.result.looks.append(
            SingleTestResult("declared sensitivity", outcome, says, 0.0, "certain", pair.says)
        )

    def _judge_shape(self, one: PairedReplays, sources: FrozenSources) -> None:
        many = self._many(one.pair, sources, COUNTED)
        with_record, without = (set(side) for side in many.codes)
        only = sorted(with_record - without)[:1] + sorted(without - with_record)[:1]
        count = len(many.codes[0])
        won = sum(code not in without for code in many.codes[0])
        says = (
            f"names, shapes or texts of the release differ by the record in {won} of {count} "
            f"replays ({' against '.join(code[:60] for code in only)})"
        )
        level = self._next_level()
        fresh = len(many.codes[0]) // 2  # outcomes are chosen on one half and counted on the other
        known = set(many.codes[1][:fresh])
        hits = [sum(code not in known for code in side[fresh:]) for side in many.codes]
        n = count - fresh
        table = hits[0], n - hits[0], hits[1], n - hits[1]
        bound = clopper_pearson(*table, delta=level.delta, confidence=level.confidence)
        self._add_dependence(SHAPE, says, one.pair.says)
        if bound > self.stated.refutation_limit:
            self._add_result(SHAPE, bound, "finite_sample", says, one.pair.says)

    def _judge_numbers(self, one: PairedReplays, sources: FrozenSources) -> None:
        many = self._many(one.pair, sources, COUNTED)
        places = np.flatnonzero(noiseless_numbers(many))
        if not len(places):
            return
        draws = "sources of randomness are drawn from, and"
        draws = draws if many.is_random else "no source of randomness is drawn from:"
        says = f"{draws} number {places[0]} of the release never changes, but by the record"
        self._add_counted(NOISELESS, len(many.codes[0]), says, one.pair)

    def _add_counted(self, name: str, count: int, says: str, pair: NeighbouringInputs) -> None:
        """A bound from ``count`` replays of each side, none of which was like any of the other
        side."""
        level = self._next_level()
        bound = clopper_pearson(count, 0, 0, count, delta=level.delta, confidence=level.confidence)
        self._add_result(
            name, bound, "finite_sample", f"{says} ({count} replays of each side)", pair.says
        )

    def _judge_sharing(self, one: PairedReplays, sources: FrozenSources) -> None:
        many = self._many(one.pair, sources, COUNTED)
        if many.alike and noiseless_combination(many) > 0:
            says = (
                "noise is shared: a combination of the released numbers has none, and the "
                "record changes it"
            )
            self._add_counted(SHARED, len(many.codes[0]), says, one.pair)

    def _judge_scale(self, one: PairedReplays, sources: FrozenSources) -> None:
        """The noise of a number is wider or narrower with the record."""
        many = self._many(one.pair, sources)
        ratio = noise_ratio(many)
        if ratio is None:
            return
        at = int(np.argmax(np.abs(np.log(ratio))))
        says = (
            f"the noise of number {at} is {ratio[at]:.6g} times as wide with the record as "
            "without it"
        )
        self._add_dependence(SCALE, says, one.pair.says)
        noise = many.absent[:, [at]] - np.median(many.absent[:, at])
        law = next((law for law in ("gaussian", "laplace") if follows_law(law, noise)), None)
        if law is None:
            return
        scale, error = fit_scale(law, noise)
        shift = abs(float(np.median(many.present[:, at]) - np.median(many.absent[:, at]))) / float(
            scale[0]
        )
        error += 2 / math.sqrt(len(noise)) / max(shift, 1e-9)
        share = max(0.0, 1 - float(stats.norm.isf(self._next_level().error)) * error)
        found = rescaled_epsilon(law, shift * share, float(ratio[at]), self.stated.delta)
        sample = _judging_sample(many, None, one.pair)
        found = self.confirmed_epsilon(
            self.stated_calls(one.pair.absent), sample, law, found, exact=True
        )
        if not found:
            return
        says = f"{says}: epsilon is at least {found:.4g} by its {law} law"
        self._add_result(SCALE, found, "noise_law", says, one.pair.says, exact=True)

    def _compare_lines(self, sources: FrozenSources) -> None:
        """Lines of the mechanism's code that run on one side only, under the same noise."""
        ran: list[dict[tuple[str, int], str]] = [{}, {}]
        tried = self.known_pairs
        for at in (
            np.unique(np.linspace(0, len(tried) - 1, min(TRACED, len(tried))).astype(int))
            if tried
            else []
        ):
            calls = (
                partial(self._call_restarted, data, sources)
                for data in (tried[at].present, tried[at].absent)
            )
            sides = [lines_of(call) for call in calls]
            for found, other, kept in ((sides[0], sides[1], ran[0]), (sides[1], sides[0], ran[1])):
                kept |= {line: tried[at].says for line in sorted(found - other) if line not in kept}
        for kept, when in zip(ran, ("with the record only", "without the record only")):
            if kept:
                first = [
                    f"{Path(file).name}:{n} {linecache.getline(file, n).strip()}"
                    for file, n in [*kept][:SHOWN]
                ]
                more = f" and {len(kept) - SHOWN} more" if len(kept) > SHOWN else ""
                says = f"{when}, under the same noise: {'; '.join(first)}{more}"
                self._add_dependence("lines that run", says, next(iter(kept.values())))

    def _call_restarted(self, data: Data, sources: FrozenSources) -> None:
        sources.restart(FEW[0])
        self.mechanism.transcript(self.stated_calls(data))

    def _add_dependence(self, name: str, says: str, inputs: str) -> None:
        self.result.looks.append(
            SingleTestResult(name, "depends on the record", says, inputs=inputs)
        )


def _judging_sample(
    many: PairedReplays, shift: np.ndarray | None, pair: NeighbouringInputs
) -> PairSample:
    """The first half of the seeds with the record, the second without it: no noise is on both
    sides."""
    half = len(many.present) // 2
    of_one_call = (1, many.present.shape[1]) if shift is None else shift.shape
    blocks = []
    for rows in (many.present[:half], many.absent[half:]):
        blocks.append(Transcripts(rows.reshape(len(rows), *of_one_call), ["f"] * len(rows)))
    sides = blocks[0], blocks[1]
    return PairSample(sides, sides, pair.axis, shift)


def dependence_sizes(one: PairedReplays) -> dict[str, float]:
    """Kind of dependence -> how much of it a pair shows."""
    still = noiseless_numbers(one)
    ratio = noise_ratio(one)
    found = {
        SHAPE: float(not set(one.codes[0]) & set(one.codes[1])),
        NOISELESS: float(np.abs(one.present[0] - one.absent[0])[still].max())
        if still.any()
        else 0.0,
        SCALE: 0.0 if ratio is None else float(np.abs(np.log(ratio)).max()),
        SHARED: shared_noise(one),
        SPREAD: spread_ratio(one),
    }
    return {kind: size for kind, size in found.items() if size > 0}


def shared_noise(one: PairedReplays) -> float:
    """How much further, in deviations, the record moves one of two numbers than the other, which
    has the same noise; 0 for none."""
    shift = one.shift()
    if shift is None or not shift.any() or not 1 < np.count_nonzero(one.noise) <= WIDEST:
        return 0.0
    some = one.noise > 0
    noise = (one.absent - one.absent.mean(0))[:, some] / one.noise[some]
    alike = noise.T @ noise / len(noise)
    over = shift[some] / one.noise[some]
    gaps = np.abs(over[:, None] - np.sign(alike) * over)
    return float(np.where(np.abs(np.abs(alike) - 1) < SAME**1.5, gaps, 0.0).max())


def noiseless_numbers(one: PairedReplays) -> np.ndarray:
    """(M,) bool: numbers that every seed leaves as they are, and the record does not."""
    if not one.alike or one.codes[0] != one.codes[1]:
        return np.zeros(0, bool)
    still = np.logical_and(*(np.ptp(side, axis=0) == 0 for side in (one.present, one.absent)))
    return np.asarray(still & (one.present[0] != one.absent[0]))


def noise_ratio(one: PairedReplays) -> np.ndarray | None:
    """(M,): how much wider each number's noise is with the record, exactly (1 where a number is no
    such case); None where none is."""
    if not one.alike or one.codes[0] != one.codes[1] or len(one.present) < len(FEW):
        return None
    a, b = (side - side.mean(0) for side in (one.present, one.absent))
    wide = np.square(b).sum(0)
    noised = (np.ptp(one.present, axis=0) > 0) & (np.ptp(one.absent, axis=0) > 0)
    ratio = np.where(noised, (a * b).sum(0) / np.where(wide > 0, wide, 1.0), 1.0)
    linear = np.abs(a - ratio * b).max(0) <= SAME * np.abs(a).max(0)
    ratio = np.where(noised & linear & (ratio > 0) & (np.abs(ratio - 1) > SAME), ratio, 1.0)
    return ratio if (ratio != 1).any() else None


def spread_ratio(one: PairedReplays) -> float:
    """The largest change of a number's spread over seeds, as a log ratio, where the record does not
    just add to it."""
    if not one.alike or one.codes[0] != one.codes[1] or one.shift() is not None:
        return 0.0
    spreads = [np.ptp(side, axis=0) for side in (one.present, one.absent)]
    noised = (spreads[0] > 0) & (spreads[1] > 0)
    return float(np.abs(np.log(spreads[0][noised] / spreads[1][noised])).max(initial=0.0))


def noiseless_combination(one: PairedReplays) -> float:
    """How much the record moves a combination of unit length of the noised numbers that no seed
    moves; 0 where there is none."""
    noise = one.absent - one.absent.mean(0)
    moved = np.median(one.present - one.absent, axis=0)
    spread = noise.std(0)
    some = np.ptp(one.absent, axis=0) > 0
    if len(noise) < 3 * some.sum() or not some.any():
        return 0.0
    _, sizes, ways = np.linalg.svd(noise[:, some] / spread[some], full_matrices=False)
    free = ways[sizes <= SAME * sizes[0]]
    found = np.abs(free @ (moved[some] / spread[some])) if len(free) else np.zeros(1)
    return float(found.max()) if found.max() > 1e-3 else 0.0


GRID = 400_001


def rescaled_epsilon(law: str, shift: float, ratio: float, delta: float) -> float:
    """Epsilon at ``delta`` of one number, noise of scale 1 against shifted noise of scale
    ``ratio``, in both orders: the integral of max(p - e^epsilon q, 0). Infinite for Laplace noise
        at delta 0, as the tails have another slope."""
    if law == "laplace" and delta == 0:
        return math.inf
    made = stats.norm if law == "gaussian" else stats.laplace
    x = np.linspace(-1, 1, GRID) * (60.0 * max(1.0, ratio) + shift)
    logs = made.logpdf(x), made.logpdf(x, shift, ratio)
    best = 0.0
    at = max(delta, TINY)
    for one, other in (logs, logs[::-1]):
        low = 0.0
        high = 700.0
        for _ in range(50):
            middle = (low + high) / 2
            excess = float((np.exp(one) - np.exp(np.minimum(other + middle, one))).sum()) * (
                x[1] - x[0]
            )
            low, high = (middle, high) if excess > at else (low, middle)
        best = max(best, low)
    return best


def lines_of(call: Callable[[], None]) -> set[tuple[str, int]]:
    """(file, line) of all that runs of a mechanism's own code, in modules that have a ``__file__``;
    libraries of numbers and the standard library apart."""
    tracer = trace.Trace(count=True, trace=False)
    before = sys.gettrace()
    try:
        tracer.runfunc(call)
    except InputRefused:
        return set()
    finally:
        sys.settrace(before)
    return {place for place in tracer.results().counts if _is_own_code(place[0])}


OTHERS = ("numpy", "scipy", "torch", "pandas", "sklearn", "jax", "privdd")


@cache
def _is_own_code(file: str) -> bool:
    if not Path(file).is_file():
        return False
    packages = {
        Path(file).parts[at + 1]
        for at, part in enumerate(Path(file).parts[:-1])
        if part.endswith("-packages")
    }
    ours = Path(__file__).resolve().parents[1]
    standard = not packages and file.startswith(sysconfig.get_paths()["stdlib"])
    return not (standard or packages & set(OTHERS) or ours in Path(file).resolve().parents)
