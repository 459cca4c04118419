"""T1: what the presence of one record changes in a round, by runs on pairs of neighbouring data
sets."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import torch
from torch import Tensor

from privdd.auditing.dp_tests.contributions import (
    COMPARED_RECORDS,
    EXTRA_RECORDS,
    MIN_NORM,
    SeenContributions,
    equal_fingerprints,
    match_rows,
    unmatched_rows,
)
from privdd.auditing.dp_tests.crafted_records import with_records, zero_out_others
from privdd.auditing.dp_tests.forced_runs import ExaminedRound, ForcedRun
from privdd.auditing.dp_tests.neighbouring_pairs import (
    crowd_around,
    near_copy,
    pair_with_guest,
    pair_without_record,
    with_twin_second,
)
from privdd.auditing.dp_tests.round_traces import MessageLeak, message_form
from privdd.core.types import Artifact, Records, Shard, Tensors, Upload, name_class_cell
from privdd.federated.channel import digest_tensors
from privdd.federated.simulation import Plan
from privdd.privacy.noise import ZERO_NOISE

# Of the contributions' size: batched kernels round differently with the batch size.
ROUNDING_TOLERANCE = 1e-4
ROUNDING_UNITS = 1e-2  # units: a release changed by less has only been rounded in another way
REDRAWN_COINS = (0, 1, -1)  # coins of a draw that are tossed again, one at a time
CROWD_AMONG_FEW = 2  # near copies that are among the few records examined apart


@dataclass
class PresenceEffect:
    """What a guest's presence changed for one query, in units.

    Attributes:
        total: the most that the value before noise moved.
        moved: the summed change of the other records' contributions.
    """

    total: float = 0.0
    moved: float = 0.0


@dataclass(frozen=True)
class PresenceEffects:
    """What presence changed in a round.

    Attributes:
        by_query: query -> its change.
        leak: what else the releases say of a record, in words.
        message_leaks: message -> what it says beside them, in words.
    """

    by_query: Mapping[str, PresenceEffect]
    leak: str
    message_leaks: Mapping[str, str]


def change_of_others(before: Sequence[Tensor], after: Sequence[Tensor]) -> float:
    """Summed change of the other records' contributions, in units; 0 up to float rounding.

    min over matchings of sum_i |c_i - c'_i|_2: a record that is in one data set only may stand
    anywhere, so contributions are compared in their cheapest matching, and the true change is never
    less. By the triangle inequality the sum bounds how far the release moves by the others.

    Args:
        before: contributions (n, p) in each release, in units.
        after: the same in the other run.
    """
    worst = 0.0
    for rows, other_rows in zip(before, after):
        if len(rows) and len(other_rows):
            _, _, distances = match_rows(rows, other_rows)
            worst = max(worst, float(distances.sum()))
    records = max((len(rows) for rows in before), default=1)
    return worst if worst > ROUNDING_TOLERANCE * records else 0.0


def measure_presence(
    examined: ExaminedRound,
    base: Records,
    guests: Records,
    calls: Mapping[str, int],
    brief: bool = False,
) -> PresenceEffects:
    """What the presence of a record changed in one round of the audited client.

    Each guest joins the client's own records alone; then the first joins ``base``, a few of them,
    as the size of what each record does may depend on their number; then own records leave. A
    record of another class that looks like the client's first is among those that join, and stays
    when that one leaves: what is left out as a near copy depends on which others there are. Last, a
    few records are examined apart from the others.

    Args:
        examined: the round.
        base: a few of the client's records.
        guests: crafted records that join.
        calls: query -> releases of one round that are enough to be seen.
        brief: whether only one pair of each kind is examined.
    """
    trial = _PresenceTrial(examined)
    plan = examined.plan
    shard = examined.shard
    absent_run = None
    twin = near_copy(shard)
    guests = Records.concat([guests, twin])
    if not brief:
        for number in range(len(guests)):
            pair = pair_with_guest(plan, shard, shard.train, guests.take([number]))
            absent_run = trial.compare_pair(pair, calls, absent_run)
    trial.compare_pair(pair_with_guest(plan, shard, base, guests.take([0])), {}, None)
    if brief and len(shard.train) > 1:
        trial.compare_pair(pair_without_record(plan, shard, 0), calls, None)
    if absent_run is not None:
        for number in trial.records_to_remove(absent_run):
            trial.compare_pair(pair_without_record(plan, shard, number), calls, None)
        pair = pair_without_record(plan, with_twin_second(shard, twin), 0)
        trial.compare_pair(pair, calls, None)
        trial.compare_sampled_half(calls, absent_run)
    if plan.relation != "replace":  # there the number of records is public
        trial.compare_parts(calls, guests)
    return PresenceEffects(trial.effects, trial.leak, trial.message_leaks)


@dataclass
class _PresenceTrial:
    """Pairs of data sets that differ in one record, and the most that any of them showed.

    Attributes:
        examined: the round.
        effects: query -> what presence changed.
        leak: the first thing else that the releases said, in words.
        message_leaks: message -> what it said, in words.
        in_order: whether a record that joins at the end contributes after all others.
    """

    examined: ExaminedRound
    effects: dict[str, PresenceEffect] = field(default_factory=dict)
    leak: str = ""
    message_leaks: dict[str, str] = field(default_factory=dict)
    in_order: bool = True

    def compare_pair(
        self, pair: tuple[Shard, Shard], limit: Mapping[str, int], absent_run: ForcedRun | None
    ) -> ForcedRun:
        """Runs one pair (record absent, present).

        Args:
            pair: the two data sets.
            limit: query -> releases that are enough.
            absent_run: the run of the first data set, if it was made already.

        Returns:
            The run of the first data set.
        """
        absent, present = pair
        examined = self.examined
        absent_start = examined.snapshot_of(absent)
        present_start = examined.snapshot_of(present)
        if absent_run is None:
            absent_run = examined.run_forced(absent, SeenContributions(limit), None, absent_start)
        contributions = SeenContributions(limit, COMPARED_RECORDS + EXTRA_RECORDS)
        present_run = examined.run_forced(present, contributions, absent_run.outputs, present_start)
        self._add_leak(present_run.problem)
        for leak in _list_differences(examined.plan, absent_run.upload, present_run.upload):
            self.message_leaks.setdefault(leak.message, leak.says)
        if torch.equal(present.train.ids[:-1], absent.train.ids):
            self.in_order &= _are_in_order(absent_run.seen, present_run.seen)
        for name in absent_run.seen.totals:
            self._add_effect(name, absent_run.seen, present_run.seen)
        return absent_run

    def _add_leak(self, says: str) -> None:
        self.leak = self.leak or says

    def _add_effect(self, name: str, absent: SeenContributions, present: SeenContributions) -> None:
        effect = self.effects.setdefault(name, PresenceEffect())
        change = _largest_change(absent.totals[name], present.totals.get(name, []))
        effect.total = max(effect.total, change)
        before = absent.single.get(name, {})
        after = present.single.get(name, {})
        common = [release for release in before if release in after]
        moved = change_of_others(
            [before[release] for release in common], [after[release] for release in common]
        )
        effect.moved = max(effect.moved, moved)
        self._add_leak(_describe_two_cells(name, absent, present))

    def compare_parts(self, limit: Mapping[str, int], guests: Records) -> None:
        """Contributions must be additive, f(A + B) = f(A) + f(B), in any order. If not, bisects for
        the record that changes what others contribute, and compares that pair.

        A is a few records: the guests, the first of which is an outlier in its class, and some of
        the near copies that make it one, so that decisions by how many records there are, or by how
        far one is from the others, fall otherwise where they are alone.
        """
        shard = self.examined.shard
        crowd = crowd_around(shard, guests.take([0]))
        small_set = Records.concat([guests, crowd.take(range(CROWD_AMONG_FEW))])
        rest = crowd.take(range(CROWD_AMONG_FEW, len(crowd)))
        records = Records.concat([small_set, shard.train, rest])
        records = replace(records, ids=torch.arange(len(records)).to(records.ids))
        client = with_records(shard, records)
        low = len(small_set)
        high = len(records)
        if not self._breaks_additivity(client, low, high, limit):
            return
        while high - low > 1:
            middle = (low + high) // 2
            if self._breaks_additivity(client, len(small_set), middle, limit):
                high = middle
            else:
                low = middle
        for start in (0, len(small_set)):
            if start < low:
                absent = self._with_some(client, range(start, low))
                present = self._with_some(client, range(start, high))
                self.compare_pair((absent, present), limit, None)

    def _with_some(self, client: Shard, places: range) -> Shard:
        """The client with some of its records; the others are gone, or zeroed out."""
        records = client.train.take(places)
        if self.examined.plan.relation == "zero_out":
            return zero_out_others(client, records)
        return with_records(client, records)

    def _breaks_additivity(
        self, client: Shard, few: int, size: int, limit: Mapping[str, int]
    ) -> bool:
        """Whether f(first ``size``) differs from f(first ``few``) + f(the rest of them)."""
        totals = []
        outputs = None
        for places in (range(size), range(few), range(few, size)):
            part = self._with_some(client, places)
            contributions = SeenContributions(
                limit, 0
            )  # sums are enough, whatever the number of records
            run = self.examined.run_forced(
                part, contributions, outputs, self.examined.snapshot_of(part)
            )
            self._add_leak(run.problem)
            outputs = outputs or run.outputs
            totals.append(contributions.totals)
        together, first, second = totals
        for name, sums in together.items():
            parts = [a + b for a, b in zip(first.get(name, []), second.get(name, []))]
            if _largest_change(sums, parts) > ROUNDING_UNITS:
                return True
        return False

    def compare_sampled_half(self, limit: Mapping[str, int], absent_run: ForcedRun) -> None:
        """Half of the records are drawn: the releases must be those of a client that holds this
        half and draws all.

        Otherwise, or if other numbers of records are drawn from than the client has, they may stand
        in another order: then what each draw brings in is examined (``_follows_draws``).
        """
        shard = self.examined.shard
        records = shard.train
        mechanisms = self.examined.plan.mechanisms
        sampled = [name for name in limit if float(mechanisms[name].sampling_probability) < 1]
        if not sampled:
            return
        half = torch.rand(len(records), generator=self.examined.keys.fold("half").torch()) < 0.5
        draw_sizes = set[int]()

        def draw_half(count: int) -> Tensor:
            draw_sizes.add(count)
            if count == len(half):
                return half
            return torch.ones(count, dtype=torch.bool)

        half_shard = with_records(shard, records.take(half))
        half_run = self.examined.run_forced(half_shard, SeenContributions(limit), None)
        drawn_run = self.examined.run_forced(
            with_records(shard, records),
            SeenContributions(limit),
            half_run.outputs,
            drawn=draw_half,
        )
        for name in sampled:
            change = _largest_change(
                half_run.seen.totals.get(name, []), drawn_run.seen.totals.get(name, [])
            )
            differs = change > ROUNDING_UNITS or draw_sizes != {len(half)}
            if differs and not self._follows_draws(name, limit, absent_run):
                self._add_leak(f"not those records contribute to {name!r} that were drawn")

    def _follows_draws(self, name: str, limit: Mapping[str, int], absent_run: ForcedRun) -> bool:
        """Whether a draw and its complement partition the records, and flipping one coin adds or
        removes exactly one."""
        every = absent_run.seen.fingerprints.get(name, [])
        draw = partial(self._fingerprints_after_draws, name, limit, absent_run)
        first = draw()
        opposite = draw(opposite=True)
        joined = [torch.cat(pair) for pair in zip(first, opposite)]
        is_same_size = bool(every) and len(first) == len(joined) == len(every)
        if not is_same_size:
            return False
        if any(_count_unmatched(rows, every_rows) for rows, every_rows in zip(joined, every)):
            return False
        for coin in REDRAWN_COINS:
            redrawn = draw(flipped=coin)
            if len(redrawn) != len(first):
                return False
            if sum(_count_unmatched(rows, again) for rows, again in zip(first, redrawn)) > 1:
                return False
        return True

    def _fingerprints_after_draws(
        self,
        name: str,
        limit: Mapping[str, int],
        absent_run: ForcedRun,
        *,
        opposite: bool = False,
        flipped: int | None = None,
    ) -> list[Tensor]:
        """Fingerprints of each release after draws that are the same each time.

        Args:
            name: of the query.
            limit: query -> releases that are enough.
            absent_run: whose releases are returned.
            opposite: whether all coins fall the other way.
            flipped: a coin of the first draw that falls the other way.
        """
        generator = self.examined.keys.fold("draws").torch()
        is_first = [True]

        def draw_coins(count: int) -> Tensor:
            mask = (torch.rand(count, generator=generator) < 0.5) ^ opposite
            if flipped is not None and is_first[0] and count:
                mask[flipped % count] ^= True
            is_first[0] = False
            return mask

        run = self._run_own_records(self.examined.shard.train, limit, absent_run, draw_coins)
        return run.seen.fingerprints.get(name, [])

    def _run_own_records(
        self,
        records: Records,
        limit: Mapping[str, int],
        absent_run: ForcedRun,
        drawn: Callable[[int], Tensor] | None = None,
    ) -> ForcedRun:
        shard = with_records(self.examined.shard, records)
        contributions = SeenContributions(limit)
        return self.examined.run_forced(shard, contributions, absent_run.outputs, drawn=drawn)

    def records_to_remove(self, absent_run: ForcedRun) -> list[int]:
        """Places of own records that leave: the first, and the one that contributes most to each
        query."""
        labels = self.examined.shard.train.y.tolist()
        places = {0} if len(labels) > 1 else set()
        contributions = absent_run.seen
        for name, (_, (release, cell, row)) in contributions.largest.items():
            fingerprints = contributions.fingerprints[name][release]
            in_cell = [
                number
                for number, label in enumerate(labels)
                if cell in (None, name_class_cell(label))
            ]
            candidates = torch.tensor(in_cell)
            is_known = len(candidates) == len(fingerprints)  # else cells are no classes
            if is_known:
                places.add(int(candidates[row]))
            else:
                candidates = torch.arange(len(labels))
            if not self.in_order or not is_known:
                contributor = self._find_contributor(
                    name, release, fingerprints[row], candidates, absent_run
                )
                places |= set(contributor.tolist())
        return sorted(places)

    def _find_contributor(
        self, name: str, release: int, target: Tensor, candidates: Tensor, absent_run: ForcedRun
    ) -> Tensor:
        """Which of the candidates contributes ``target``: half of those that may leave, until one
        is left."""
        while len(candidates) > 1:
            half = candidates[: len(candidates) // 2]
            records = self.examined.shard.train.take(half)
            run = self._run_own_records(records, {name: release + 1}, absent_run)
            releases = run.seen.fingerprints.get(name, [])
            is_in_half = False
            if len(releases) > release:
                rows = releases[release]
                is_in_half = bool(equal_fingerprints(rows, target.expand_as(rows)).any())
            candidates = half if is_in_half else candidates[len(half) :]
        return candidates


def _are_in_order(absent: SeenContributions, present: SeenContributions) -> bool:
    """Whether contributions stand where they stood before one joined at the end."""
    for name, releases in absent.fingerprints.items():
        for rows, longer in zip(releases, present.fingerprints.get(name, [])):
            if len(rows) > len(longer):
                return False
            if not bool(equal_fingerprints(rows, longer[: len(rows)]).all()):
                return False
    return True


def _count_unmatched(first: Tensor, second: Tensor) -> int:
    """How many contributions are on one side only; those of nothing do not count."""
    nonzero = [rows[rows.norm(dim=1) > MIN_NORM] for rows in (first, second)]
    return sum(map(len, unmatched_rows(*nonzero)))


def _largest_change(before: Sequence[Tensor], after: Sequence[Tensor]) -> float:
    """The largest |a - b|_2 of any release."""
    return max((float((a - b).norm()) for a, b in zip(before, after)), default=0.0)


def _describe_two_cells(name: str, before: SeenContributions, after: SeenContributions) -> str:
    """What is wrong if one record is in two cells; "" if it is not.

    Cells are accounted as if no record were in two of them: all cells together cost what the most
    expensive one does (parallel composition, McSherry 2009, Theorem 4). A call releases each cell
    at most once. A record that is in one cell of each call, and not in the same one of all, costs
    the same if each call releases every cell: one release a call.
    """
    cells = before.cells[name]
    calls = _number_calls(cells)
    changed: dict[int, set[str | None]] = {}
    for call, cell, a, b in zip(calls, cells, before.totals[name], after.totals.get(name, [])):
        if float((a - b).norm()) > ROUNDING_UNITS:
            changed.setdefault(call, set()).add(cell)
    in_one_call = max(map(len, changed.values()), default=0)
    if in_one_call > 1:
        return f"one record changes releases of {in_one_call} cells of {name!r} in one call"
    count = len(set[str | None]().union(*changed.values()))
    times = Counter(cells).values()
    # The last call may have been cut off.
    is_even = max(times, default=0) - min(times, default=0) <= 1
    if count > 1 and not is_even:
        return f"one record changes releases of {count} cells of {name!r}"
    return ""


def _number_calls(cells: Sequence[str | None]) -> list[int]:
    """The number of the call that each release belongs to: a new one begins where a cell comes
    again."""
    numbers = list[int]()
    call = 0
    cells_of_call = set[str | None]()
    for cell in cells:
        if cell in cells_of_call:
            call += 1
            cells_of_call = set()
        cells_of_call.add(cell)
        numbers.append(call)
    return numbers


def _list_differences(
    plan: Plan, absent: Upload | None, present: Upload | None
) -> Iterator[MessageLeak]:
    """What is sent as if it were post-processing or public, and yet is not the same; None: a round
    that was not run to its end."""
    if absent is None or present is None:
        return
    for name in sorted({*absent, *present}):
        artifacts = (absent.get(name), present.get(name))
        if name in plan.mechanisms:
            if plan.relation == "add_remove" and _differ_in_form(plan, name, artifacts):
                yield MessageLeak(f"the size of {name!r} reveals the number of records", name)
            continue
        free = [artifact is not None and _is_free(artifact) for artifact in artifacts]
        if any(free) and not all(free):
            yield MessageLeak(
                f"whether {name!r} is sent, or is private, depends on the records", name
            )
        elif all(free) and not _is_identical(absent[name].value, present[name].value):
            yield MessageLeak(
                f"{name!r} is sent as post-processing and depends on the records in another way",
                name,
            )


def _is_free(artifact: Artifact) -> bool:
    """Whether it claims to cost nothing."""
    return artifact.private or bool(artifact.public)


def _differ_in_form(plan: Plan, name: str, artifacts: Sequence[Artifact | None]) -> bool:
    """Whether what the mechanism makes of them differs in its names, types or shapes."""
    mechanism = plan.mechanisms[name]
    forms = {
        message_form(mechanism(artifact.value, ZERO_NOISE).value)
        for artifact in artifacts
        if artifact
    }
    return len(forms) > 1


def _is_identical(first: Tensors, second: Tensors) -> bool:
    """Bit by bit, in the same order of tensors."""
    return message_form(first) == message_form(second) and digest_tensors(first) == digest_tensors(
        second
    )
