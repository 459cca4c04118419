"""T1: run the method's own code with crafted records (guests) added, and compute kappa for every release.

kappa is the change before noise that a record causes, in units of noise std / noise multiplier (the change that
the stated multiplier allows one record). It also counts how much the other records' contributions move when the
guests change, which is zero wherever the proof holds: batch norm, a map trained on the records, or a normaliser
that reads them shows up here. And the noise that was really drawn is compared with the stated noise.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from scipy.special import chdtri
from torch import Tensor

from attacks.canaries import Canaries
from privdd.auditing.guarantees.contributions import HELD, alike, marks, matched, singly, sizes
from privdd.auditing.guarantees.crafted_records import holding, with_guests
from privdd.auditing.guarantees.presence import HUGE, moved, presence
from privdd.auditing.guarantees.recording_context import Heeded, exact, flat, unit, without, witness
from privdd.auditing.non_interference import History
from privdd.core.keys import Keys
from privdd.core.types import Records, Shard, Tensors
from privdd.federated.simulation import Plan, Snapshot
from privdd.privacy.mechanism import Mechanism

SURE = 1e-6  # probability that noise of the stated size is reported as too small
EVERY = 8  # of a partition's later releases, one in so many is searched


@dataclass
class QueryTally:
    """What T1 measured for one query.

    changes: guest -> largest change, in units; calls: releases by partition; residual, numbers: sum of squares and
    count of the drawn noise values, in units of the stated noise; others: the other records' contributions in the
    first releases; moved: the most that they change; leak: what else depends on a record, in words, which has no
    bound; sizes: guest -> the norm of its contribution before it is clipped; kept: contributions of the guest
    ``keeps``, release by release; in_order: whether the method leaves its records in the order in which it has them.
    """

    changes: dict[int, float] = field(default_factory=dict)
    calls: Counter[str | None] = field(default_factory=Counter)
    residual: float = 0.0
    numbers: int = 0
    others: list[Tensor] = field(default_factory=list)
    moved: float = 0.0
    leak: str = ""
    pairs: float = 0.0
    sizes: dict[int, float] = field(default_factory=dict)
    in_order: bool = True
    keeps: int = 0
    kept: list[Tensors] = field(default_factory=list)

    @property
    def shrink(self) -> float:
        """Drawn noise over stated noise if it is significantly smaller, else 1."""
        if not self.numbers:
            return 1.0
        ceiling = math.sqrt(self.residual / float(chdtri(self.numbers, 1 - SURE)))
        return min(1.0, max(ceiling, 1e-12))

    def faults(self) -> str:
        """Faults other than a record's own change, as text for a note."""
        told = [self.leak] if self.leak else []
        told += [f"other records' contributions move by {self.moved:.3g} units"] if self.moved else []
        told += [f"the drawn noise is {self.shrink:.3g} times the stated one"] if self.shrink < 1 else []
        return "".join(f"; {text}" for text in told)

    def called(self, guests: Canaries, which: int) -> str:
        """The name of a guest; where the method has put its records in another order, which one it is is not known."""
        return repr(guests.names[which]) if self.in_order else "one of them"

    def worst(self, relation: str) -> tuple[float, int]:
        """(kappa, guest) of the worst guest; under replace, one guest is exchanged for another."""
        guest = max(self.changes, key=lambda j: self.changes[j])
        size = max(self.pairs, self.changes[guest]) if relation == "replace" else self.changes[guest]
        return HUGE if self.leak else (size + self.moved) / self.shrink, guest


def positions(guests: Canaries, partition: str | None) -> list[int]:
    """Which guests are in a partition, in order."""
    if partition is None:
        return list(range(len(guests)))
    label = int(partition.removeprefix("label:"))
    return [j for j, y in enumerate(guests.y.tolist()) if y == label]


@dataclass
class Examiner:
    """Fills one ``QueryTally`` per query while the method runs.

    before: query -> marks of each release of a run with other guests; the rows that are not in it too are the guests',
    wherever the method has put them.
    """

    guests: Canaries
    before: Mapping[str, Sequence[Tensor]] = field(default_factory=dict)
    marks: dict[str, list[Tensor]] = field(default_factory=dict)
    tallies: dict[str, QueryTally] = field(default_factory=dict)
    keep: Mapping[str, int] = field(default_factory=dict)

    def __call__(self, mechanism: Mechanism, heeded: Heeded) -> None:
        tally = self.tallies.setdefault(heeded.name, QueryTally())
        tally.calls[heeded.partition] += 1
        one, base = unit(heeded.released), heeded.released.exact or {}
        gap = (flat(heeded.released.value) - flat(base)) / heeded.released.noise_std
        tally.residual += float(gap.double().square().sum())
        tally.numbers += gap.numel()
        at = tally.calls[heeded.partition]
        heeded = self._guests_last(heeded, tally) if heeded.guests else heeded
        weighed = (
            sizes(heeded.rows).tolist()[len(next(iter(heeded.rows.values()))) - heeded.guests :] if at == 1 else []
        )
        searched = heeded.guests if at <= HELD or at % EVERY == 0 else 0
        alone = flat(exact(mechanism, without(heeded.rows, heeded.guests))) if searched else flat(base)
        changes = [(flat(exact(mechanism, _with(heeded, i))) - alone) / one for i in range(searched)]
        for i, guest in enumerate(positions(self.guests, heeded.partition)[: heeded.guests]):
            if i < searched:
                tally.changes[guest] = max(tally.changes.get(guest, 0.0), float(changes[i].norm()))
            if i < len(weighed):
                tally.sizes[guest] = weighed[i]
            if self.keep.get(heeded.name) == guest:
                tally.kept.append(_only(heeded, i))
        if len(changes) > 1:
            stacked = torch.stack(changes)
            tally.pairs = max(tally.pairs, float(torch.cdist(stacked, stacked).max()))
        if sum(tally.calls.values()) <= HELD:
            rows = (
                without(heeded.rows, heeded.guests) if self.before else heeded.rows
            )  # before, who is who is not known
            tally.others.append(singly(mechanism, rows) / one)

    def _guests_last(self, heeded: Heeded, tally: QueryTally) -> Heeded:
        """The same release with its rows in another order, if the method has not put the guests at the end."""
        made = self.marks.setdefault(heeded.name, [])
        made.append(marks(heeded.rows))
        now, known = made[-1], self.before.get(heeded.name, ())
        then = known[len(made) - 1] if len(made) <= len(known) else now
        base = len(now) - heeded.guests
        if len(then) == len(now) and bool(alike(then[:base], now[:base]).all()):
            return heeded
        _, columns, away = matched(then, now)
        apart = torch.full((len(now),), torch.inf, dtype=torch.float64).index_copy(0, columns, away)
        order = apart.argsort(stable=True)
        tally.in_order = False
        return replace(heeded, rows={n: t[order] for n, t in heeded.rows.items()})


def _with(heeded: Heeded, guest: int) -> Tensors:
    """The base rows and one guest's."""
    base = {n: len(t) - heeded.guests for n, t in heeded.rows.items()}
    return {n: torch.cat([t[: base[n]], t[base[n] + guest : base[n] + guest + 1]]) for n, t in heeded.rows.items()}


def _only(heeded: Heeded, guest: int) -> Tensors:
    """One guest's row."""
    at = {n: len(t) - heeded.guests + guest for n, t in heeded.rows.items()}
    return {n: t[at[n] : at[n] + 1].clone() for n, t in heeded.rows.items()}


def examine(
    plan: Plan,
    snapshot: Snapshot,
    shard: Shard,
    base: Records,
    guests: Canaries,
    keys: Keys,
    labels: Sequence[int],
    history: History | None = None,
    brief: bool = False,
) -> dict[str, QueryTally]:
    """T1 on one round of the audited client: query -> tally.

    The method runs twice with the same random draws and the same releases: first with the guests' negatives (inverted
    images), then with the guests as crafted, so that what the guests change in other records shows.
    labels: the classes to release, those of base and guests; history: of what each of these clients remembers; brief: the
    client's own records are looked at for fewer pairs.
    """
    history = history or History(plan, {snapshot.round: snapshot})
    strangers = Canaries(1 - guests.x, guests.y, guests.names)
    first = Examiner(guests)
    second = Examiner(guests, first.marks)
    forced: list[Tensors] | None = None
    for examiner, who in ((first, strangers), (second, guests)):
        ctx = witness(plan, snapshot.round, keys, labels, observe=examiner, guests=_counts(guests), forced=forced)
        client = holding(shard, with_guests(base, who))
        memory = dict(history.before(snapshot.round, client).memory)
        plan.method.local(snapshot.broadcast, memory, client, ctx)
        forced = ctx.outputs
        second.keep = {name: tally.worst("add_remove")[1] for name, tally in first.tallies.items() if tally.changes}
    for name, tally in second.tallies.items():
        tally.keeps = second.keep.get(name, 0)
        tally.moved = moved(tally.others, first.tallies[name].others)
    _add_presence(history, snapshot, shard, base, guests, keys.fold("presence"), second.tallies, brief)
    return second.tallies


def _add_presence(
    history: History,
    snapshot: Snapshot,
    shard: Shard,
    base: Records,
    guests: Canaries,
    keys: Keys,
    tallies: Mapping[str, QueryTally],
    brief: bool,
) -> None:
    if not tallies:
        return
    most = {max(t.sizes, key=lambda j: t.sizes[j]) for t in tallies.values() if t.sizes}
    who = list(dict.fromkeys([0, *sorted(most)]))
    tried = Records(guests.x[who], guests.y[who], torch.arange(len(who)))
    plan = history.plan
    cells = len(plan.problem.class_list)
    calls = {name: HELD if None in tally.calls else HELD * cells for name, tally in tallies.items()}
    made = {name: max(tally.calls.values()) * (1 if None in tally.calls else cells) for name, tally in tallies.items()}
    limit = {name: min(count, made[name]) for name, count in calls.items()}
    found, leak = presence(plan, snapshot, shard, base, tried, limit, keys, history, brief)
    for name, tally in tallies.items():
        seen = found.get(name)
        if seen is not None and tally.changes:
            tally.moved = max(tally.moved, seen.moved)
            worst = max(tally.changes, key=lambda j: tally.changes[j])
            tally.changes[worst] = max(tally.changes[worst], seen.total)
        tally.leak = leak


def _counts(guests: Canaries) -> dict[str | None, int]:
    counts = Counter(guests.y.tolist())
    return {None: len(guests), **{f"label:{label}": count for label, count in counts.items()}}
