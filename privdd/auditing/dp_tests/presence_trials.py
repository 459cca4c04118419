"""T1: what the presence of one record changes in a round, by runs on pairs of neighbouring data
sets."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
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
from privdd.core.types import (
    Records,
    Shard,
    Tensors,
    Upload,
    name_class_cell,
)
from privdd.federated.channel import digest_tensors
from privdd.federated.simulation import Plan
from privdd.privacy.noise import ZERO_NOISE

ROUNDING_TOLERANCE = (
    1e-4  # of the contributions' size: batched kernels round differently with the batch size
)
ROUNDING_UNITS = 1e-2  # units: a release changed by less has only been rounded in another way
REDRAWN_COINS = (0, 1, -1)  # coins of a draw that are tossed again, one at a time


@dataclass
class PresenceEffect:
    """What a guest's presence changed for one query, in units. total: the most that the value
    before noise moved; moved: summed change of the other records' contributions."""

    total: float = 0.0
    moved: float = 0.0


def change_of_others(before: Sequence[Tensor], after: Sequence[Tensor]) -> float:
    """Summed change of the other records' contributions, in units; 0 up to float rounding. A record
    that is there in one case only may stand anywhere, so contributions are compared in their
    cheapest matching: the true change is never less."""
    worst = max(
        (float(match_rows(a, b)[2].sum()) for a, b in zip(before, after) if len(a) and len(b)),
        default=0.0,
    )
    return worst if worst > ROUNDING_TOLERANCE * max((len(a) for a in before), default=1) else 0.0


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
        few records are looked at apart from the others. calls: query -> releases of one round that
        are enough to be seen; brief: only one pair of each kind.
    """
    look = _PresenceTrial(examined)
    plan = examined.plan
    shard = examined.shard
    out = None
    twin = near_copy(shard)
    guests = Records.concat([guests, twin])
    for at in range(0 if brief else len(guests)):
        out = look.compare_pair(
            pair_with_guest(plan, shard, shard.train, guests.take([at])), calls, out
        )
    look.compare_pair(pair_with_guest(plan, shard, base, guests.take([0])), {}, None)
    if brief and len(shard.train) > 1:
        look.compare_pair(pair_without_record(plan, shard, 0), calls, None)
    if out is not None:
        for at in look.records_to_remove(out):
            look.compare_pair(pair_without_record(plan, shard, at), calls, None)
        look.compare_pair(pair_without_record(plan, with_twin_second(shard, twin), 0), calls, None)
        look.compare_sampled_half(calls, out)
    if plan.relation != "replace":  # there the number of records is public
        look.compare_parts(calls, guests)
    return PresenceEffects(look.found, look.said, look.told)


@dataclass(frozen=True)
class PresenceEffects:
    """by_query: query -> what presence changed; leak: what else the releases tell, in words; told:
    message -> what it tells beside them, in words."""

    by_query: Mapping[str, PresenceEffect]
    leak: str
    told: Mapping[str, str]


@dataclass
class _PresenceTrial:
    """Pairs of data sets that differ in one record, and the most that any of them showed."""

    examined: ExaminedRound
    found: dict[str, PresenceEffect] = field(default_factory=dict)
    said: str = ""
    told: dict[str, str] = field(default_factory=dict)
    in_order: bool = True  # a record that joins at the end contributes after all others

    def compare_pair(
        self, both: tuple[Shard, Shard], limit: Mapping[str, int], out: ForcedRun | None
    ) -> ForcedRun:
        """One pair (record absent, present); out: its first run, where that was made -> the first
        run."""
        run = self.examined.run_forced
        before = [self.examined.snapshot_of(shard) for shard in both]
        out = out or run(both[0], SeenContributions(limit), None, before[0])
        inside = run(
            both[1],
            SeenContributions(limit, COMPARED_RECORDS + EXTRA_RECORDS),
            out.outputs,
            before[1],
        )
        self.said = self.said or inside.problem
        for leak in _list_differences(self.examined.plan, out.upload, inside.upload):
            self.told.setdefault(leak.message, leak.says)
        if torch.equal(both[1].train.ids[:-1], both[0].train.ids):
            self.in_order &= all(
                _is_in_order(out.seen.marks[n], inside.seen.marks.get(n, []))
                for n in out.seen.marks
            )
        for name, totals in out.seen.totals.items():
            kept = self.found.setdefault(name, PresenceEffect())
            kept.total = max(kept.total, _largest_change(totals, inside.seen.totals.get(name, [])))
            one = out.seen.singly.get(name, {})
            other = inside.seen.singly.get(name, {})
            alike = [at for at in one if at in other]
            kept.moved = max(
                kept.moved, change_of_others([one[at] for at in alike], [other[at] for at in alike])
            )
            self.said = self.said or _describe_two_cells(name, out.seen, inside.seen)
        return out

    def compare_parts(self, limit: Mapping[str, int], guests: Records) -> None:
        """A few records and the others must contribute apart what they contribute together, in any
        order. Else some record on the way from the few to all changes what others contribute: that
        pair is looked for, and compared.

        The few are the guests, the first of which is an outlier in its class, and some of the near
        copies that make it one, so that decisions by how many records there are, or by how far one
        is from the others, fall otherwise where they are alone."""
        crowd = crowd_around(self.examined.shard, guests.take([0]))
        few = Records.concat([guests, crowd.take(range(2))])
        joined = Records.concat([few, self.examined.shard.train, crowd.take(range(2, len(crowd)))])
        whole = with_records(
            self.examined.shard, replace(joined, ids=torch.arange(len(joined)).to(joined.ids))
        )
        low = len(few)
        high = len(joined)
        if not self._differs_in_parts(whole, low, high, limit):
            return
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (
                (low, middle)
                if self._differs_in_parts(whole, len(few), middle, limit)
                else (middle, high)
            )
        for start in (start for start in (0, len(few)) if start < low):
            both = (self._with_some(whole, range(start, end)) for end in (low, high))
            self.compare_pair((next(both), next(both)), limit, None)

    def _with_some(self, whole: Shard, places: range) -> Shard:
        some = whole.train.take(places)
        return (
            zero_out_others(whole, some)
            if self.examined.plan.relation == "zero_out"
            else with_records(whole, some)
        )

    def _differs_in_parts(
        self, whole: Shard, few: int, size: int, limit: Mapping[str, int]
    ) -> bool:
        """Whether the first ``size`` records contribute otherwise than the first ``few`` and the
        rest of them apart."""
        seen = list[SeenContributions]()
        outputs = None
        for places in (range(size), range(few), range(few, size)):
            held = self._with_some(whole, places)
            seen.append(
                SeenContributions(limit, 0)
            )  # sums are enough, whatever the number of records
            run = self.examined.run_forced(held, seen[-1], outputs, self.examined.snapshot_of(held))
            self.said = self.said or run.problem
            outputs = outputs or run.outputs
        together, one, other = (of.totals for of in seen)
        apart = {
            name: [a + b for a, b in zip(one.get(name, []), other.get(name, []))]
            for name in together
        }
        return any(
            _largest_change(sums, apart[name]) > ROUNDING_UNITS for name, sums in together.items()
        )

    def compare_sampled_half(self, limit: Mapping[str, int], out: ForcedRun) -> None:
        """Half of the records are drawn: the releases must be those of a client that holds this
        half and draws all. Else, or where other numbers of records are drawn from than the client
        has, they may stand in another order: then what each draw brings in is looked at
            (``_follows_draws``)."""
        shard = self.examined.shard
        asked = set[int]()
        whole = shard.train
        mechanisms = self.examined.plan.mechanisms
        sampled = [name for name in limit if float(mechanisms[name].sampling_probability) < 1]
        half = torch.rand(len(whole), generator=self.examined.keys.fold("half").torch()) < 0.5

        def draw_half(count: int) -> Tensor:
            asked.add(count)
            return half if count == len(half) else torch.ones(count, dtype=torch.bool)

        if not sampled:
            return
        run = self.examined.run_forced
        alone = run(with_records(shard, whole.take(half)), SeenContributions(limit), None)
        heeded = run(
            with_records(shard, whole), SeenContributions(limit), alone.outputs, drawn=draw_half
        )
        for name in sampled:
            gap = _largest_change(alone.seen.totals.get(name, []), heeded.seen.totals.get(name, []))
            if (gap > ROUNDING_UNITS or asked != {len(half)}) and not self._follows_draws(
                name, limit, out
            ):
                self.said = self.said or f"not those records contribute to {name!r} that were drawn"

    def _follows_draws(self, name: str, limit: Mapping[str, int], out: ForcedRun) -> bool:
        """Whether draws divide the records, whatever their order: those drawn and those of the
        opposite draw are all of them together, and a coin that falls otherwise brings in, or leaves
        out, one."""
        whole = out.seen.marks.get(name, [])
        marks = partial(self._fingerprints_after_draws, name, limit, out)
        one = marks()
        opposite = marks(opposite=True)
        both = [torch.cat(pair) for pair in zip(one, opposite)]
        same_size = bool(whole) and len(one) == len(both) == len(whole)
        if not same_size or any(_count_unmatched(a, b) for a, b in zip(both, whole)):
            return False
        tossed = (marks(other=coin) for coin in REDRAWN_COINS)
        return all(
            len(again) == len(one) and sum(_count_unmatched(a, b) for a, b in zip(one, again)) <= 1
            for again in tossed
        )

    def _fingerprints_after_draws(
        self,
        name: str,
        limit: Mapping[str, int],
        out: ForcedRun,
        *,
        opposite: bool = False,
        other: int | None = None,
    ) -> list[Tensor]:
        """Marks of each release after draws that are the same each time, or the opposite; other: a
        coin of the first draw that falls the other way."""
        generator = self.examined.keys.fold("draws").torch()
        draws = [0]

        def draw_coins(count: int) -> Tensor:
            taken = (torch.rand(count, generator=generator) < 0.5) ^ opposite
            if other is not None and not draws[0] and count:
                taken[other % count] ^= True
            draws[0] += 1
            return taken

        shard = with_records(self.examined.shard, self.examined.shard.train)
        run = self.examined.run_forced(
            shard, SeenContributions(limit), out.outputs, drawn=draw_coins
        )
        return run.seen.marks.get(name, [])

    def records_to_remove(self, out: ForcedRun) -> list[int]:
        """Places of own records that leave: the first, and that which contributes most to each
        query."""
        y = self.examined.shard.train.y
        at = {0} if len(y) > 1 else set()
        for name, (_, (release, cell, row)) in out.seen.largest.items():
            own = torch.tensor(
                [i for i, label in enumerate(y.tolist()) if cell in (None, name_class_cell(label))]
            )
            is_known = len(own) == len(out.seen.marks[name][release])  # else cells are no classes
            own = own if is_known else torch.arange(len(y))
            at |= {int(own[row])} if is_known else set()
            if not self.in_order or not is_known:
                at |= set(
                    self._find_contributor(
                        name, release, out.seen.marks[name][release][row], own, out
                    ).tolist()
                )
        return sorted(at)

    def _find_contributor(
        self, name: str, release: int, target: Tensor, own: Tensor, out: ForcedRun
    ) -> Tensor:
        """Which of the records ``own`` contributes ``target``: half of those that may leave, until
        one is left."""
        while len(own) > 1:
            some = own[: len(own) // 2]
            shard = with_records(self.examined.shard, self.examined.shard.train.take(some))
            run = self.examined.run_forced(
                shard, SeenContributions({name: release + 1}), out.outputs
            )
            seen = run.seen.marks.get(name, [])
            there = len(seen) > release
            there = there and bool(
                equal_fingerprints(seen[release], target.expand_as(seen[release])).any()
            )
            own = some if there else own[len(some) :]
        return own


def _is_in_order(out: Sequence[Tensor], inside: Sequence[Tensor]) -> bool:
    """Whether contributions stand where they stood before one joined at the end."""
    return all(
        len(a) <= len(b) and bool(equal_fingerprints(a, b[: len(a)]).all())
        for a, b in zip(out, inside)
    )


def _count_unmatched(one: Tensor, other: Tensor) -> int:
    """How many contributions are on one side only; those of nothing do not count."""
    return sum(
        map(len, unmatched_rows(*(side[side.norm(dim=1) > MIN_NORM] for side in (one, other))))
    )


def _largest_change(before: Sequence[Tensor], after: Sequence[Tensor]) -> float:
    return max((float((a - b).norm()) for a, b in zip(before, after)), default=0.0)


def _describe_two_cells(name: str, before: SeenContributions, after: SeenContributions) -> str:
    """Cells are accounted as if no record were in two of them: all cells together cost what the
    most expensive one does.

    A call releases each cell at most once. A record that is in one cell of each call, and not in
    the same one of all, costs the same where each call releases every cell: one release a call.
    """
    cells = before.where[name]
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
    is_even = (
        max(times, default=0) - min(times, default=0) <= 1
    )  # the last call may have been cut off
    return (
        f"one record changes releases of {count} cells of {name!r}"
        if count > 1 and not is_even
        else ""
    )


def _number_calls(cells: Sequence[str | None]) -> list[int]:
    """The number of the call that each release belongs to: a new one begins where a cell comes
    again."""
    numbers = list[int]()
    call = 0
    there = set[str | None]()
    for cell in cells:
        if cell in there:
            call = call + 1
            there = set()
        there.add(cell)
        numbers.append(call)
    return numbers


def _list_differences(
    plan: Plan, out: Upload | None, inside: Upload | None
) -> Iterator[MessageLeak]:
    """What is sent as if it were post-processing or public, and yet is not the same; None: a round
    that was not run to its end."""
    if out is None or inside is None:
        return
    for name in sorted({*out, *inside}):
        sides = out.get(name), inside.get(name)
        if name in plan.mechanisms:
            mechanism = plan.mechanisms[name]
            is_secret = plan.relation == "add_remove"
            forms = {
                message_form(mechanism(side.value, ZERO_NOISE).value)
                for side in sides
                if side and is_secret
            }
            if len(forms) > 1:
                yield MessageLeak(f"the size of {name!r} tells how many records there are", name)
            continue
        free = [side is not None and (side.private or bool(side.public)) for side in sides]
        if any(free) and not all(free):
            yield MessageLeak(
                f"whether {name!r} is sent, or is private, depends on the records", name
            )
        elif (
            all(free)
            and sides[0]
            and sides[1]
            and not _is_identical(sides[0].value, sides[1].value)
        ):
            yield MessageLeak(
                f"{name!r} is sent as post-processing and depends on the records in another way",
                name,
            )


def _is_identical(a: Tensors, b: Tensors) -> bool:
    """Bit by bit, in the same order of tensors."""
    return message_form(a) == message_form(b) and digest_tensors(a) == digest_tensors(b)
