"""T1 with presence: a record is in the client's data or not, so that the number of its records changes too.

It is a guest, after the client's own records, or one of the client's own: the first, and the one that contributes
most. Both times the method's own local work runs with the same public streams, and every release returns the same value.
What may differ is the guest's own contribution, by one unit at most. What may not: the contributions of all other
records, how many releases there are, and whatever is sent as post-processing of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from privdd.auditing.guarantees.contributions import FAR, SINGLE, SPARE, TINY, Enough, Seen, alike, matched, strangers
from privdd.auditing.guarantees.crafted_records import holding
from privdd.auditing.guarantees.recording_context import Silence, witness
from privdd.auditing.non_interference import History, form
from privdd.core.keys import Keys
from privdd.core.types import Records, Shard, State, Tensors, Upload
from privdd.federated.channel import digest
from privdd.federated.simulation import Plan, Snapshot

MOVED = 1e-4  # of the contributions' size: batched kernels round differently with the batch size
CELL = 1e-2  # units: a release changed by less has only been rounded in another way
HUGE = FAR
NEAR = 1e-2  # how far a near copy is drawn to grey
TOSSED = (0, 1, -1)  # coins of a draw that are tossed again, one at a time


@dataclass
class Presence:
    """What a guest's presence changed for one query, in units.

    total: the most that the value before noise moved; moved: summed change of the other records' contributions.
    """

    total: float = 0.0
    moved: float = 0.0


def moved(before: Sequence[Tensor], after: Sequence[Tensor]) -> float:
    """Summed change of the other records' contributions, in units; 0 up to float rounding.

    A record that is there in one case only may stand anywhere: each contribution is compared with the one that is
    its own in the cheapest matching of all, so that the true change is never less than this.
    """
    worst = max((float(matched(a, b)[2].sum()) for a, b in zip(before, after) if len(a) and len(b)), default=0.0)
    return worst if worst > MOVED * max((len(a) for a in before), default=1) else 0.0


def presence(
    plan: Plan,
    snapshot: Snapshot,
    shard: Shard,
    base: Records,
    guests: Records,
    calls: Mapping[str, int],
    keys: Keys,
    history: History | None = None,
    brief: bool = False,
) -> tuple[dict[str, Presence], str]:
    """(query -> what presence changed, what else changed in words) in one round of the audited client.

    Each guest joins the client's own records alone; then the first joins ``base``, a few of them, as the size
    of what each record does may depend on their number; then own records leave. calls: query -> releases of one round that
    are enough to be seen; history: of what each of these clients remembers. A record of another class that looks like the
    client's first is among those that join, and stays when that one leaves: what is left out as a near copy depends on
    which others there are. brief: only one pair of each kind.
    """
    look = _Look(plan, snapshot, shard, keys, history or History(plan, {snapshot.round: snapshot}))
    out = None
    twin = near(shard)
    guests = Records.concat([guests, twin])
    for at in range(0 if brief else len(guests)):
        out = look.compare(pair(plan, shard, shard.train, guests.take([at])), calls, out)
    look.compare(pair(plan, shard, base, guests.take([0])), {}, None)
    if brief and len(shard.train) > 1:
        look.compare(absent(plan, shard, 0), calls, None)
    if out is not None:
        for at in look.leaving(out):
            look.compare(absent(plan, shard, at), calls, None)
        beside = pair(plan, shard, shard.train, twin)[1]
        look.compare(absent(plan, beside, 0), calls, None)
        look.heeds(calls, out)
    return look.found, look.said


@dataclass
class _Look:
    """Pairs of data sets that differ in one record, and the most that any of them showed."""

    plan: Plan
    snapshot: Snapshot
    shard: Shard
    keys: Keys
    history: History
    found: dict[str, Presence] = field(default_factory=dict)
    said: str = ""
    in_order: bool = True  # a record that joins at the end contributes after all others

    def compare(self, both: tuple[Shard, Shard], limit: Mapping[str, int], out: Played | None) -> Played:
        """One pair (record absent, present); out: its first run, where that was made -> the first run."""
        plan, keys = self.plan, self.keys
        before = [self.history.before(self.snapshot.round, shard) for shard in both]
        out = out or played(plan, before[0], both[0], Seen(limit), keys, None)
        inside = played(plan, before[1], both[1], Seen(limit, SINGLE + SPARE), keys, out.outputs)
        self.said = self.said or inside.problem or _differs(plan, out.upload, inside.upload)
        if torch.equal(both[1].train.ids[:-1], both[0].train.ids):
            self.in_order &= all(_in_order(out.seen.marks[n], inside.seen.marks.get(n, [])) for n in out.seen.marks)
        for name, totals in out.seen.totals.items():
            kept = self.found.setdefault(name, Presence())
            kept.total = max(kept.total, _largest(totals, inside.seen.totals.get(name, [])))
            one, other = out.seen.singly.get(name, {}), inside.seen.singly.get(name, {})
            alike = [at for at in one if at in other]
            kept.moved = max(kept.moved, moved([one[at] for at in alike], [other[at] for at in alike]))
            self.said = self.said or _in_two_cells(name, out.seen, inside.seen)
        return out

    def heeds(self, limit: Mapping[str, int], out: Played) -> None:
        """Half of the records are drawn: the releases must be those of a client that holds this half and draws all.

        Where they are not, or other numbers of records are drawn from than the client has, the records may stand in
        another order: then what each draw brings in is looked at (``_divided``).
        """
        plan, whole, asked = self.plan, self.shard.train, set[int]()
        sampled = [name for name in limit if float(plan.mechanisms[name].sampling_probability) < 1]
        half = torch.rand(len(whole), generator=self.keys.fold("half").torch()) < 0.5

        def drawn(count: int) -> Tensor:
            asked.add(count)
            return half if count == len(half) else torch.ones(count, dtype=torch.bool)

        if not sampled:
            return
        some = holding(self.shard, whole.take(half))
        alone = played(plan, self.snapshot, some, Seen(limit), self.keys, None)
        heeded = played(
            plan, self.snapshot, holding(self.shard, whole), Seen(limit), self.keys, alone.outputs, drawn=drawn
        )
        for name in sampled:
            gap = _largest(alone.seen.totals.get(name, []), heeded.seen.totals.get(name, []))
            if (gap > CELL or asked != {len(half)}) and not self._divided(name, limit, out):
                self.said = self.said or f"not those records contribute to {name!r} that were drawn"

    def _divided(self, name: str, limit: Mapping[str, int], out: Played) -> bool:
        """Whether draws divide the records, whatever their order: those drawn and those of the opposite draw are all of
        them together, and a coin that falls otherwise brings in, or leaves out, one."""
        whole = out.seen.marks.get(name, [])
        one, opposite = self._marks(name, limit, out), self._marks(name, limit, out, opposite=True)
        both = [torch.cat(pair) for pair in zip(one, opposite)]
        if (
            not whole
            or len(one) != len(whole)
            or len(both) != len(whole)
            or any(_apart(a, b) for a, b in zip(both, whole))
        ):
            return False
        tossed = (self._marks(name, limit, out, other=coin) for coin in TOSSED)
        return all(len(again) == len(one) and sum(_apart(a, b) for a, b in zip(one, again)) <= 1 for again in tossed)

    def _marks(
        self, name: str, limit: Mapping[str, int], out: Played, *, opposite: bool = False, other: int | None = None
    ) -> list[Tensor]:
        """Marks of each release after draws that are the same each time, or the opposite; other: a coin of the first draw
        that falls the other way."""
        generator, draws = self.keys.fold("draws").torch(), [0]

        def drawn(count: int) -> Tensor:
            taken = (torch.rand(count, generator=generator) < 0.5) ^ opposite
            if other is not None and not draws[0] and count:
                taken[other % count] ^= True
            draws[0] += 1
            return taken

        shard = holding(self.shard, self.shard.train)
        run = played(self.plan, self.snapshot, shard, Seen(limit), self.keys, out.outputs, drawn=drawn)
        return run.seen.marks.get(name, [])

    def leaving(self, out: Played) -> list[int]:
        """Places of own records that leave: the first, and that which contributes most to each query."""
        y, at = self.shard.train.y, {0} if len(self.shard.train) > 1 else set()
        for name, (_, (release, cell, row)) in out.seen.largest.items():
            own = torch.tensor([i for i, label in enumerate(y.tolist()) if cell in (None, f"label:{label}")])
            at |= {int(own[row])} if row < len(own) else set()
            if not self.in_order:
                at |= set(self._contributor(name, release, out.seen.marks[name][release][row], own, out).tolist())
        return sorted(at)

    def _contributor(self, name: str, release: int, target: Tensor, own: Tensor, out: Played) -> Tensor:
        """Which of the records ``own`` contributes ``target``: half of those that may leave, until one is left."""
        while len(own) > 1:
            some = own[: len(own) // 2]
            shard = holding(self.shard, self.shard.train.take(some))
            run = played(self.plan, self.snapshot, shard, Seen({name: release + 1}), self.keys, out.outputs)
            seen = run.seen.marks.get(name, [])
            there = len(seen) > release and bool(alike(seen[release], target.expand_as(seen[release])).any())
            own = some if there else own[len(some) :]
        return own


def _in_order(out: Sequence[Tensor], inside: Sequence[Tensor]) -> bool:
    """Whether contributions stand where they stood before one joined at the end."""
    return all(len(a) <= len(b) and bool(alike(a, b[: len(a)]).all()) for a, b in zip(out, inside))


def _apart(one: Tensor, other: Tensor) -> int:
    """How many contributions are on one side only; those of nothing do not count."""
    return sum(map(len, strangers(*(side[side.norm(dim=1) > TINY] for side in (one, other)))))


def _largest(before: Sequence[Tensor], after: Sequence[Tensor]) -> float:
    return max((float((a - b).norm()) for a, b in zip(before, after)), default=0.0)


def _in_two_cells(name: str, before: Seen, after: Seen) -> str:
    """Cells are accounted as if no record were in two of them."""
    changed = zip(before.where[name], before.totals[name], after.totals.get(name, []))
    cells = {cell for cell, a, b in changed if float((a - b).norm()) > CELL}
    return f"one record changes releases of {len(cells)} cells of {name!r}" if len(cells) > 1 else ""


def absent(plan: Plan, shard: Shard, at: int) -> tuple[Shard, Shard]:
    """(one of the client's own records absent, present)."""
    whole = shard.train
    out = holding(shard, whole.take([i for i in range(len(whole)) if i != at]))
    if plan.relation == "zero_out":
        gone = whole.take([at])
        out = replace(out, nulls=replace(gone, x=torch.zeros_like(gone.x)))
    return out, holding(shard, whole)


def near(shard: Shard) -> Records:
    """A record that looks nearly like the client's first, of another class."""
    first = shard.train.take([0])
    return replace(first, x=(first.x * (1 - NEAR) + NEAR / 2), y=(first.y + 1) % shard.classes)


def pair(plan: Plan, shard: Shard, records: Records, guest: Records) -> tuple[Shard, Shard]:
    """(guest absent, guest present); under zero_out an absent one is zeroed out and keeps its label."""
    first = int(records.ids.max()) + 1 if len(records) else 0
    named = Records(
        guest.x.to(records.x), guest.y.to(records.y), torch.arange(first, first + len(guest)).to(records.ids)
    )
    inside = holding(shard, Records.concat([records, named]))
    out = holding(shard, records)
    if plan.relation == "zero_out":
        out = replace(out, nulls=replace(named, x=torch.zeros_like(named.x)))
    return out, inside


@dataclass
class Played:
    seen: Seen
    outputs: list[Tensors]
    upload: Upload | None = None
    problem: str = ""
    memory: State = field(default_factory=dict)


def played(
    plan: Plan, snapshot: Snapshot, shard: Shard, seen: Seen, keys: Keys, forced: list[Tensors] | None, **more: Any
) -> Played:
    """The round with every record sampled; forced: what its releases return."""
    run = Played(seen, [])
    ctx = witness(plan, snapshot.round, keys, observe=run.seen, forced=forced, **more)
    ctx.outputs = run.outputs
    try:
        run.upload, run.memory = plan.method.local(snapshot.broadcast, dict(snapshot.memory), shard, ctx)
    except Enough:
        return run
    except IndexError:
        if forced is None or len(run.outputs) < len(forced):
            raise
    if (forced is not None and len(run.outputs) != len(forced)) or run.upload is None:
        run.problem = "how many releases there are depends on the records"
    return run


def _differs(plan: Plan, out: Upload | None, inside: Upload | None) -> str:
    """What is sent as if it were post-processing or public, and yet is not the same."""
    if out is None or inside is None:
        return ""
    return next(_changed(plan, out, inside), "")


def _changed(plan: Plan, out: Upload, inside: Upload) -> Iterator[str]:
    for name in sorted({*out, *inside}):
        sides = out.get(name), inside.get(name)
        if name in plan.mechanisms:
            if plan.relation == "add_remove" and len({_shape(plan, name, side.value) for side in sides if side}) > 1:
                yield f"the size of {name!r} tells how many records there are"
            continue
        free = [side is not None and (side.private or bool(side.public)) for side in sides]
        if any(free) and not all(free):
            yield f"whether {name!r} is sent, or is private, depends on the records"
        elif all(free) and sides[0] and sides[1] and not _same(sides[0].value, sides[1].value):
            yield f"{name!r} is sent as post-processing and depends on the records in another way"


def _shape(plan: Plan, name: str, value: Tensors) -> str:
    return str(form(plan.mechanisms[name](value, Silence()).value))


def _same(a: Tensors, b: Tensors) -> bool:
    """Bit by bit, in the same order of tensors."""
    return form(a) == form(b) and digest(a) == digest(b)
