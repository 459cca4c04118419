"""T1: how far one record, crafted or left out, moves a release before its noise, and the
contributions of other records.

kappa is the change before noise that a record causes, in units of noise std / noise multiplier (the
change that the stated multiplier allows one record).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from scipy.special import chdtri
from torch import Tensor

from attacks.canaries import Canaries
from privdd.auditing.dp_tests.instrumentation import (
    COMPARED_RECORDS,
    COMPARED_RELEASES,
    EXTRA_RECORDS,
    MAX_CHANGE,
    MIN_NORM,
    EnoughReleases,
    MemoryHistory,
    MessageLeak,
    RecordedRelease,
    SeenContributions,
    clean_numbers,
    contribution_fingerprints,
    contribution_norms,
    equal_fingerprints,
    flatten_tensors,
    match_rows,
    message_form,
    recording_context,
    sensitivity_unit,
    single_contributions,
    unmatched_rows,
    value_before_noise,
    with_guests,
    with_records,
    without_guests,
    zero_out_others,
)
from privdd.core.rng import Keys
from privdd.core.types import (
    UNKNOWN_CELL,
    Records,
    Shard,
    State,
    Tensors,
    Upload,
    class_of_cell,
    name_class_cell,
)
from privdd.federated.channel import TranscriptEnded, digest_tensors
from privdd.federated.simulation import Plan, Snapshot
from privdd.privacy.clipping import count_records, scale_records, take_records
from privdd.privacy.mechanism import Mechanism
from privdd.privacy.noise import ZERO_NOISE

ROUNDING_TOLERANCE = (
    1e-4  # of the contributions' size: batched kernels round differently with the batch size
)
ROUNDING_UNITS = 1e-2  # units: a release changed by less has only been rounded in another way
UNBOUNDED = MAX_CHANGE
BEYOND_CLIP = 1e6  # times a guest's contribution: longer than any clip norm
NEAR_COPY_SHARE = 1e-2  # how far a near copy is drawn to grey
CROWD_SIZE = 12  # near copies of one record, of which an outlier is three standard deviations away
COUNT_DEPENDS = "how many releases there are depends on the records"
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


@dataclass
class ForcedRun:
    seen: SeenContributions
    outputs: list[Tensors]
    upload: Upload | None = None
    problem: str = ""
    memory: State = field(default_factory=dict)


@dataclass(frozen=True)
class ExaminedRound:
    """One round of the audited client, played on other data. history: of what each of these clients
    remembers, None where all remember what the client does."""

    plan: Plan
    snapshot: Snapshot
    shard: Shard
    keys: Keys
    history: MemoryHistory | None = None

    def snapshot_of(self, shard: Shard) -> Snapshot:
        """The round as a client with this data begins it."""
        return (
            self.history.snapshot_before(self.snapshot.round, shard)
            if self.history
            else self.snapshot
        )

    def run_forced(
        self,
        shard: Shard,
        seen: SeenContributions,
        forced: list[Tensors] | None,
        snapshot: Snapshot | None = None,
        **more: Any,
    ) -> ForcedRun:
        """The round with every record sampled; forced: what its releases return; more: of
        ``ReleaseRecorder``."""
        run = ForcedRun(seen, [])
        start = snapshot or self.snapshot
        ctx = recording_context(self.plan, start.round, self.keys, run.seen, forced=forced, **more)
        ctx.outputs = run.outputs
        try:
            run.upload, run.memory = self.plan.method.local(
                start.broadcast, dict(start.memory), shard, ctx
            )
        except EnoughReleases:
            return run
        except TranscriptEnded:
            run.problem = COUNT_DEPENDS
        if forced is not None and len(run.outputs) < len(forced):
            run.problem = COUNT_DEPENDS
        return run


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
        crowd = _crowd_around(self.examined.shard, guests.take([0]))
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


def _pair_of_shards(
    plan: Plan, shard: Shard, out: Records, inside: Records, one: Records
) -> tuple[Shard, Shard]:
    """(record ``one`` absent, present); under zero_out an absent one is zeroed out and keeps its
    label."""
    nulls = replace(one, x=torch.zeros_like(one.x)) if plan.relation == "zero_out" else None
    return replace(shard, train=out, nulls=nulls), with_records(shard, inside)


def pair_without_record(plan: Plan, shard: Shard, at: int) -> tuple[Shard, Shard]:
    """(one of the client's own records absent, present)."""
    whole = shard.train
    rest = whole.take([i for i in range(len(whole)) if i != at])
    return _pair_of_shards(plan, shard, rest, whole, whole.take([at]))


def near_copy(shard: Shard) -> Records:
    """A record that looks nearly like the client's first, of another class."""
    first = shard.train.take([0])
    return replace(
        first,
        x=(first.x * (1 - NEAR_COPY_SHARE) + NEAR_COPY_SHARE / 2),
        y=(first.y + 1) % shard.classes,
    )


def with_twin_second(shard: Shard, twin: Records) -> Shard:
    """The client with ``twin`` right behind its first record.

    Where near copies of earlier records are left out, the twin takes the place of the first record
    once that one leaves. Farther behind, a third record near to both could keep it out.
    """
    fresh_id = int(shard.train.ids.max()) + 1
    renamed = replace(twin, ids=torch.full_like(twin.ids, fresh_id))
    first = shard.train.take([0])
    rest = shard.train.take(range(1, len(shard.train)))
    return with_records(shard, Records.concat([first, renamed, rest]))


def _crowd_around(shard: Shard, outlier: Records) -> Records:
    """Near copies of a record of the client's, of the class of one that looks otherwise."""
    same = (shard.train.y == outlier.y).nonzero()[:, 0]
    first = shard.train.take(same[:1] if len(same) else [0])
    share = NEAR_COPY_SHARE * torch.arange(1, CROWD_SIZE + 1).to(first.x).reshape(
        -1, *[1] * (first.x.ndim - 1)
    )
    label = outlier.y.to(first.y).expand(CROWD_SIZE)
    return Records(first.x * (1 - share) + share / 2, label, torch.arange(CROWD_SIZE).to(first.ids))


def pair_with_guest(
    plan: Plan, shard: Shard, records: Records, guest: Records
) -> tuple[Shard, Shard]:
    """(guest absent, guest present), after ``records``."""
    first = int(records.ids.max()) + 1 if len(records) else 0
    ids = torch.arange(first, first + len(guest)).to(records.ids)
    named = Records(guest.x.to(records.x), guest.y.to(records.y), ids)
    return _pair_of_shards(plan, shard, records, Records.concat([records, named]), named)


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


NOISE_ERROR = 1e-6  # probability that noise of the stated size is reported as too small
MAX_OTHER_CLIENTS = 16  # clients beside the audited one that are looked at
RELEASES_OF_OTHERS = 2  # that are looked at, of each cell
SEARCH_INTERVAL = 8  # of a partition's later releases, one in so many is searched


@dataclass
class SensitivityTally:
    """What T1 measured for one query.

    changes: guest -> largest change, in units; calls: releases by partition; residual, numbers: sum
        of squares and count of the drawn noise values, in units of the stated noise; others: the
        other records' contributions in the
    first releases; moved: the most that they change, zero wherever the proof holds (batch norm, a
    map trained on the records, or a normaliser that reads them shows up here); leak: what else
    depends on a record, in words, which has no bound; others_at: another client than the audited
    one, where most of the change was seen; sizes: guest -> the norm of its contribution before it
    is clipped; unclipped: what a contribution beyond any clip norm changes where that is more than
    one unit and the mechanism says that it clips; kept: contributions of the guest ``keeps``,
    release by release; in_order: whether the method leaves its records in the order in which it has
    them; told: message -> what it tells of a record beside the releases, in words; in_classes:
    whether every cell held the records of its class."""

    changes: dict[int, float] = field(default_factory=dict)
    calls: Counter[str | None] = field(default_factory=Counter)
    residual: float = 0.0
    numbers: int = 0
    others: list[Tensor] = field(default_factory=list)
    moved: float = 0.0
    leak: str = ""
    pairs: float = 0.0
    sizes: dict[int, float] = field(default_factory=dict)
    unclipped: float = 0.0
    others_at: int | None = None
    in_order: bool = True
    keeps: int = 0
    kept: list[Tensors] = field(default_factory=list)
    told: Mapping[str, str] = field(default_factory=dict)
    in_classes: bool = True

    def add_noise(self, gap: Tensor) -> None:
        """Drawn noise values, in units of the stated noise."""
        self.residual += float(gap.double().square().sum())
        self.numbers += gap.numel()

    @property
    def noise_ratio(self) -> float:
        """Drawn noise over stated noise if it is significantly smaller, else 1."""
        if not self.numbers:
            return 1.0
        ceiling = math.sqrt(self.residual / float(chdtri(self.numbers, 1 - NOISE_ERROR)))
        return min(1.0, max(ceiling, 1e-12))

    def describe_faults(self) -> str:
        """Faults other than a record's own change, as text for a note."""
        told = [self.leak] if self.leak else []
        told += (
            [f"other records' contributions move by {self.moved:.3g} units"] if self.moved else []
        )
        clip = f"a contribution beyond the clip norm moves it by {self.unclipped:.3g} units"
        told += [clip] if self.unclipped else []
        told += [f"that is of client {self.others_at}"] if self.others_at is not None else []
        told += (
            [f"the drawn noise is {self.noise_ratio:.3g} times the stated one"]
            if self.noise_ratio < 1
            else []
        )
        return "".join(f"; {text}" for text in told)

    def name_guest(self, guests: Canaries, which: int) -> str:
        """The name of a guest; where the method has put its records in another order, which one it
        is is not known."""
        return repr(guests.names[which]) if self.in_order else "one of them"

    def worst_guest(self, relation: str) -> tuple[float, int]:
        """(kappa, guest) of the worst guest; under replace, one guest is exchanged for another."""
        guest = max(self.changes, key=lambda j: self.changes[j])
        size = (
            max(self.pairs, self.changes[guest]) if relation == "replace" else self.changes[guest]
        )
        most = max(size + self.moved, self.unclipped * (2 if relation == "replace" else 1))
        return UNBOUNDED if self.leak else most / self.noise_ratio, guest


def guests_in_partition(guests: Canaries, partition: str | None) -> list[int]:
    """Which guests are in a partition, in order."""
    label = class_of_cell(partition)
    return [j for j, y in enumerate(guests.y.tolist()) if label in (None, y)]


@dataclass
class SensitivityExaminer:
    """Fills one ``SensitivityTally`` per query while the method runs.

    before: query -> marks of each release of a run with other guests; the rows that are not in it
        too are the guests',
    wherever the method has put them. enough: query -> releases after which the method is stopped;
        {}: it runs to its end.
    base: the labels (n,) of the records beside the guests: where a release has another number of
        rows than all of them have, whose is whose is not known, and only pairs of data sets tell
        what a record does.
    """

    guests: Canaries
    before: Mapping[str, Sequence[Tensor]] = field(default_factory=dict)
    marks: dict[str, list[Tensor]] = field(default_factory=dict)
    tallies: dict[str, SensitivityTally] = field(default_factory=dict)
    keep: Mapping[str, int] = field(default_factory=dict)
    enough: Mapping[str, int] = field(default_factory=dict)
    base: Tensor | None = None

    def __call__(self, mechanism: Mechanism, heeded: RecordedRelease) -> None:
        self._add_release(mechanism, heeded)
        made = {name: sum(tally.calls.values()) for name, tally in self.tallies.items()}
        if self.enough and all(made.get(name, 0) >= most for name, most in self.enough.items()):
            raise EnoughReleases

    def _add_release(self, mechanism: Mechanism, heeded: RecordedRelease) -> None:
        tally = self.tallies.setdefault(heeded.name, SensitivityTally())
        tally.calls[heeded.partition] += 1
        one = sensitivity_unit(heeded.released)
        base = heeded.released.exact or {}
        tally.add_noise(
            (flatten_tensors(heeded.released.value) - flatten_tensors(base))
            / heeded.released.noise_std
        )
        at = tally.calls[heeded.partition]
        is_unknown = class_of_cell(heeded.partition) == UNKNOWN_CELL
        if is_unknown or (heeded.guests and self._has_other_rows(heeded)):
            self.marks.setdefault(heeded.name, []).append(contribution_fingerprints(heeded.rows))
            tally.others.append(torch.zeros(0, 1))
            tally.in_classes = False
            tally.changes.setdefault(
                0 if is_unknown else guests_in_partition(self.guests, heeded.partition)[0], 0.0
            )
            tally.in_order = False
            return
        heeded = self._move_guests_last(heeded, tally) if heeded.guests else heeded
        weighed = (
            contribution_norms(heeded.rows)[-heeded.guests :].tolist()
            if at == 1 and heeded.guests
            else []
        )
        searched = heeded.guests if at <= COMPARED_RELEASES or at % SEARCH_INTERVAL == 0 else 0
        others = (
            value_before_noise(mechanism, without_guests(heeded.rows, heeded.guests))
            if searched
            else base
        )
        alone = flatten_tensors(others)
        changes = [
            (clean_numbers(mechanism, _with_guest(heeded, i)) - alone) / one
            for i in range(searched)
        ]
        if searched and heeded.released.clip_norm is not None:
            long = clean_numbers(mechanism, _with_guest(heeded, 0, BEYOND_CLIP))
            change = float((long - alone).norm()) / one
            tally.unclipped = max(
                tally.unclipped, change if change > 1 + ROUNDING_TOLERANCE else 0.0
            )
        for i, guest in enumerate(
            guests_in_partition(self.guests, heeded.partition)[: heeded.guests]
        ):
            if i < searched:
                tally.changes[guest] = max(tally.changes.get(guest, 0.0), float(changes[i].norm()))
            if i < len(weighed):
                tally.sizes[guest] = weighed[i]
            if self.keep.get(heeded.name) == guest:
                at_row = count_records(heeded.rows) - heeded.guests + i
                tally.kept.append(take_records(heeded.rows, [at_row]))  # a list: a copy
        if len(changes) > 1:
            stacked = torch.stack(changes)
            tally.pairs = max(tally.pairs, float(torch.cdist(stacked, stacked).max()))
        if sum(tally.calls.values()) <= COMPARED_RELEASES:
            # before, who is who is not known
            rows = without_guests(heeded.rows, heeded.guests) if self.before else heeded.rows
            tally.others.append(single_contributions(mechanism, rows) / one)

    def _has_other_rows(self, heeded: RecordedRelease) -> bool:
        if self.base is None:
            return False
        label = class_of_cell(heeded.partition)
        held = len(self.base) if label is None else int((self.base == label).sum())
        return count_records(heeded.rows) != held + heeded.guests

    def _move_guests_last(
        self, heeded: RecordedRelease, tally: SensitivityTally
    ) -> RecordedRelease:
        """The same release with its rows in another order, if the method has not put the guests at
        the end."""
        made = self.marks.setdefault(heeded.name, [])
        made.append(contribution_fingerprints(heeded.rows))
        now = made[-1]
        known = self.before.get(heeded.name, ())
        then = known[len(made) - 1] if len(made) <= len(known) else now
        base = len(now) - heeded.guests
        if len(then) == len(now) and bool(equal_fingerprints(then[:base], now[:base]).all()):
            return heeded
        _, columns, away = match_rows(then, now)
        apart = torch.full((len(now),), torch.inf, dtype=torch.float64).index_copy(0, columns, away)
        order = apart.argsort(stable=True)
        tally.in_order = False
        return replace(heeded, rows=take_records(heeded.rows, order))


def _with_guest(heeded: RecordedRelease, guest: int, times: float = 1.0) -> Tensors:
    """The base rows and one guest's, so many times as long."""
    base = count_records(heeded.rows) - heeded.guests
    rows = take_records(heeded.rows, torch.tensor([*range(base), base + guest]))
    return rows if times == 1 else scale_records(rows, torch.tensor([*[1.0] * base, times]))


def measure_sensitivity(
    examined: ExaminedRound,
    base: Records,
    guests: Canaries,
    labels: Sequence[int],
    brief: bool = False,
) -> dict[str, SensitivityTally]:
    """T1 on one round of the audited client: query -> tally.

    The method runs twice with the same random draws and the same releases: first with the guests'
    negatives (inverted images), then with the guests as crafted, so that what the guests change in
    other records shows.
    labels: the classes to release, those of base and guests; brief: the client's own records are
        looked at for fewer pairs."""
    plan = examined.plan
    snapshot = examined.snapshot
    strangers = Canaries(1 - guests.x, guests.y, guests.names)
    first = SensitivityExaminer(guests, base=base.y)
    second = SensitivityExaminer(guests, first.marks, base=base.y)
    forced: list[Tensors] | None = None
    leak = ""
    for examiner, who in ((first, strangers), (second, guests)):
        ctx = recording_context(
            plan,
            snapshot.round,
            examined.keys,
            examiner,
            labels,
            guests=_guest_counts(guests),
            forced=forced,
        )
        client = with_records(examined.shard, with_guests(base, who))
        try:
            plan.method.local(
                snapshot.broadcast, dict(examined.snapshot_of(client).memory), client, ctx
            )
        except TranscriptEnded:
            leak = COUNT_DEPENDS
        leak = COUNT_DEPENDS if forced is not None and len(ctx.outputs) < len(forced) else leak
        forced = ctx.outputs
        seen = {name: tally for name, tally in first.tallies.items() if tally.changes}
        second.keep = {name: tally.worst_guest("add_remove")[1] for name, tally in seen.items()}
    for name, tally in second.tallies.items():
        tally.keeps = second.keep.get(name, 0)
        if (
            tally.in_classes and first.tallies[name].in_classes
        ):  # else who is who is not known; pairs of data sets tell
            tally.moved = change_of_others(tally.others, first.tallies[name].others)
    presence = replace(examined, keys=examined.keys.fold("presence"))
    _add_presence_changes(presence, base, guests, second.tallies, brief)
    for tally in second.tallies.values():
        tally.leak = leak or tally.leak
    return second.tallies


def measure_other_clients(
    examined: ExaminedRound,
    base: Records,
    guests: Canaries,
    labels: Sequence[int],
    tallies: Mapping[str, SensitivityTally],
) -> list[int]:
    """Whether other clients than the audited one clip alike -> the clients that were looked at;
    what moves more goes into ``tallies``. Each makes its first releases of every query and cell
    with the audited client's data in place of its own: what it does by its number shows, what it
    does by its own data does not."""
    plan = examined.plan
    snapshot = examined.snapshot
    others = [client for client in range(plan.problem.clients) if client != plan.victim][
        :MAX_OTHER_CLIENTS
    ]
    enough = {
        n: len(t.calls) * min(RELEASES_OF_OTHERS, max(t.calls.values())) for n, t in tallies.items()
    }
    client_data = with_records(examined.shard, with_guests(base, guests))
    memory = examined.snapshot_of(client_data).memory
    for client in others:
        examiner = SensitivityExaminer(guests, enough=enough, base=base.y)
        ctx = recording_context(
            replace(plan, victim=client),
            snapshot.round,
            examined.keys,
            examiner,
            labels,
            guests=_guest_counts(guests),
        )
        with suppress(EnoughReleases):
            plan.method.local(
                snapshot.broadcast, dict(memory), replace(client_data, client=client), ctx
            )
        for name, found in examiner.tallies.items():
            tally = tallies[name]
            most = max([found.unclipped, *found.changes.values()], default=0.0)
            if tally.changes and most > (1 + ROUNDING_TOLERANCE) * max(
                1.0, tally.unclipped, *tally.changes.values()
            ):
                tally.unclipped = most
                tally.others_at = client
    return others


def _add_presence_changes(
    examined: ExaminedRound,
    base: Records,
    guests: Canaries,
    tallies: Mapping[str, SensitivityTally],
    brief: bool,
) -> None:
    if not tallies:
        return
    most = {max(t.sizes, key=lambda j: t.sizes[j]) for t in tallies.values() if t.sizes}
    who = list(dict.fromkeys([0, *sorted(most)]))
    tried = Records(guests.x[who], guests.y[who], torch.arange(len(who)))
    cells = len(examined.plan.problem.class_list)
    limit = {}
    for name, tally in tallies.items():
        times = 1 if None in tally.calls else max(cells, len(tally.calls))
        limit[name] = times * min(COMPARED_RELEASES, max(tally.calls.values()))
    found = measure_presence(examined, base, tried, limit, brief)
    for name, tally in tallies.items():
        seen = found.by_query.get(name)
        if seen is not None and tally.changes:
            tally.moved = max(tally.moved, seen.moved)
            worst = max(tally.changes, key=lambda j: tally.changes[j])
            tally.changes[worst] = max(tally.changes[worst], seen.total)
        tally.leak = found.leak
        tally.told = found.told


def _guest_counts(guests: Canaries) -> dict[str | None, int]:
    counts = Counter(guests.y.tolist())
    return {None: len(guests), **{name_class_cell(label): count for label, count in counts.items()}}
