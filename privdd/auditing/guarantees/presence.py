"""T1 with presence: the guest is in the client's data or not, so that the number of its records changes too.

Both times the method's own local work runs with the same public streams, and every release returns the same value.
What may differ is the guest's own contribution, by one unit at most. What may not: the contributions of all other
records, how many releases there are, and whatever is sent as post-processing of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from privdd.auditing.guarantees.crafted_records import holding
from privdd.auditing.guarantees.recording_context import Heeded, exact, flat, unit, witness
from privdd.core.keys import Keys
from privdd.core.types import Records, Shard, Tensors, Upload
from privdd.federated.simulation import Plan, Snapshot
from privdd.privacy.mechanism import Mechanism

HELD = 4  # releases of one query in which other records are compared one by one
SINGLE = 32  # of these records at most
MOVED = 1e-4  # of the contributions' size: batched kernels round differently with the batch size
HUGE = 1e6  # units: what has no bound at all


@dataclass
class Presence:
    """What a guest's presence changed for one query, in units.

    total: the most that the value before noise moved; moved: summed change of the other records' contributions.
    """

    total: float = 0.0
    moved: float = 0.0


class Enough(Exception):
    """Every query was seen often enough; the rest of the round is not needed."""


@dataclass
class Seen:
    """What one run of a round contributed to its releases. limit: query -> releases after which it is enough."""

    limit: Mapping[str, int]
    totals: dict[str, list[Tensor]] = field(default_factory=dict)
    singly: dict[str, list[Tensor]] = field(default_factory=dict)

    def __call__(self, mechanism: Mechanism, heeded: Heeded) -> None:
        one, name = unit(heeded.released), heeded.name
        totals = self.totals.setdefault(name, [])
        totals.append(flat(heeded.released.exact or {}) / one)
        if len(totals) <= HELD and mechanism.per_record:
            self.singly.setdefault(name, []).append(singly(mechanism, heeded.rows, SINGLE) / one)
        if self.limit and all(len(self.totals.get(n, ())) >= most for n, most in self.limit.items()):
            raise Enough


def singly(mechanism: Mechanism, rows: Tensors, most: int | None = None) -> Tensor:
    """What each of the first records alone would contribute, (n, p), clipped as the mechanism does."""
    count = len(next(iter(rows.values())))
    each = [
        flat(exact(mechanism, {n: t[i : i + 1] for n, t in rows.items()}))
        for i in range(count if most is None else min(count, most))
    ]
    return torch.stack(each) if each else torch.zeros(0, 1)


def moved(before: Sequence[Tensor], after: Sequence[Tensor]) -> float:
    """Summed change of the other records' contributions, in units; 0 up to float rounding."""
    worst = 0.0
    for a, b in zip(before, after):
        size = min(len(a), len(b))
        if size:
            worst = max(worst, float((a[:size] - b[:size]).norm(dim=1).sum()))
    return worst if worst > MOVED * max((len(a) for a in before), default=1) else 0.0


def presence(
    plan: Plan,
    snapshot: Snapshot,
    shard: Shard,
    base: Records,
    guest: Records,
    calls: Mapping[str, int],
    keys: Keys,
) -> tuple[dict[str, Presence], str]:
    """(query -> what presence changed, what else changed in words) in one round of the audited client.

    The guest, one record, joins the client's own records, and then ``base``, a few of them, as the size of what each record does may
    depend on their number. calls: query -> releases of one round that are enough to be seen.
    """
    found: dict[str, Presence] = {}
    said = ""
    for records, limit in ((shard.train, calls), (base, {})):
        pair = _pair(plan, shard, records, guest)
        out = _run(plan, snapshot, pair[0], limit, keys, None)
        inside = _run(plan, snapshot, pair[1], limit, keys, out.outputs)
        said = said or inside.problem or _differs(plan, out.upload, inside.upload)
        for name, totals in out.seen.totals.items():
            kept = found.setdefault(name, Presence())
            kept.total = max(kept.total, _largest(totals, inside.seen.totals.get(name, [])))
            kept.moved = max(kept.moved, moved(out.seen.singly.get(name, []), inside.seen.singly.get(name, [])))
    return found, said


def _largest(before: Sequence[Tensor], after: Sequence[Tensor]) -> float:
    return max((float((a - b).norm()) for a, b in zip(before, after)), default=0.0)


def _pair(plan: Plan, shard: Shard, records: Records, guest: Records) -> tuple[Shard, Shard]:
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
class _Run:
    seen: Seen
    outputs: list[Tensors]
    upload: Upload | None = None
    problem: str = ""


def _run(
    plan: Plan, snapshot: Snapshot, shard: Shard, limit: Mapping[str, int], keys: Keys, forced: list[Tensors] | None
) -> _Run:
    """The round with every record sampled; forced: what its releases return."""
    run = _Run(Seen(limit), [])
    ctx = witness(plan, snapshot.round, keys, observe=run.seen, forced=forced)
    ctx.outputs = run.outputs
    try:
        run.upload, _ = plan.method.local(snapshot.broadcast, dict(snapshot.memory), shard, ctx)
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
        if name in plan.mechanisms:
            continue
        sides = out.get(name), inside.get(name)
        free = [side is not None and (side.private or bool(side.public)) for side in sides]
        if any(free) and not all(free):
            yield f"whether {name!r} is sent, or is private, depends on the records"
        elif all(free) and sides[0] and sides[1] and not _equal(sides[0].value, sides[1].value):
            yield f"{name!r} is sent as post-processing and depends on the records in another way"


def _equal(a: Tensors, b: Tensors) -> bool:
    return a.keys() == b.keys() and all(
        a[n].shape == b[n].shape and torch.allclose(a[n].double(), b[n].double(), rtol=MOVED, atol=MOVED) for n in a
    )
