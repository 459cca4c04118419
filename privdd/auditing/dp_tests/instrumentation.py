"""How guarantee tests run a client's round: recording contexts, crafted records, and traces of
rounds on other data.

Guests are crafted records (canaries) at the end of a client's data. The method and its mechanisms
run unchanged, and every release is recorded with and without the guests on the same transcript.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import lru_cache
from typing import Any

import dp_accounting as dpa
import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from attacks.canaries import Canaries, join_canaries, mislabel_records, out_of_distribution_canaries
from privdd.core.device import to_device
from privdd.core.rng import Keys
from privdd.core.types import Received, Records, Shard, State, Tensors, Values
from privdd.federated.channel import (
    POST_PROCESSING,
    ClientContext,
    ReleaseObserver,
    TranscriptEnded,
    UndeclaredArtifact,
    device_of,
    digest_tensors,
    find_answer,
)
from privdd.federated.simulation import Plan, Snapshot
from privdd.privacy.clipping import count_records, take_records
from privdd.privacy.lattice import BITS
from privdd.privacy.ledger import UNPROTECTED_EVENTS
from privdd.privacy.mechanism import LedgerRow, Mechanism, Output
from privdd.privacy.noise import ZERO_NOISE, Noise, SeededNoise


@dataclass
class InstrumentedContext(ClientContext):
    """A client's round played again: ``observer`` says who is sampled and what each query is
    answered."""

    def sample(self, name: str, count: int) -> Tensor:
        everyone = torch.ones(count, dtype=torch.bool)
        taken = self._player.on_sample(
            name, float(self.mechanisms[name].sampling_probability), everyone
        )
        return everyone if taken is None else taken

    def mechanism(
        self, name: str, contributions: Tensors, *, partition: str | None = None
    ) -> Tensors:
        if name not in self.queries:
            raise UndeclaredArtifact(
                f"query {name!r} is not declared; declared are {sorted(self.queries)}"
            )
        given = to_device(contributions, "cpu")  # what is noted is compared there
        value = self._player.on_release(self.mechanisms[name], name, None, partition, given) or {}
        self.outputs.append(value)
        return to_device(value, device_of(contributions))

    @property
    def _player(self) -> ReleaseObserver:
        if self.observer is None:
            raise ValueError("an instrumented round needs an observer that answers")
        return self.observer


def instrumented_context(
    plan: Plan, round: int, observer: ReleaseObserver, class_list: Sequence[int] | None = None
) -> InstrumentedContext:
    """The audited client's round as ``observer`` plays it: public streams as in the run."""
    ctx = plan.client_context(round, plan.victim)
    problem = (
        ctx.problem if class_list is None else replace(ctx.problem, class_list=tuple(class_list))
    )
    held = (ctx.keys, problem, ctx.mechanisms, ctx.queries, "seed", plan.relation)
    return InstrumentedContext(round, plan.victim, *held, observer=observer)


@dataclass(frozen=True)
class RecordedRelease:
    """One recorded release. rows: the contributions, the guests' last; released: the mechanism's
    output."""

    name: str
    partition: str | None
    rows: Tensors
    guests: int
    released: Output


@dataclass
class ReleaseRecorder:
    """Runs every release, with the guests or without, and tells ``observe`` of it.

    inside: (query, partition) -> whether the partition's guests take part in this release; guests:
        partition -> how many guests it has (None: a query over all records); forced: outputs to
        return instead of the real ones; drawn: number of
    records -> who is drawn (n,) bool, all unless it is given: ``inside`` decides about the guests.
    """

    noise: Noise
    observe: Callable[[Mechanism, RecordedRelease], None]
    inside: Callable[[str, str | None], bool] = lambda name, partition: False
    guests: Mapping[str | None, int] = field(default_factory=dict)
    forced: Sequence[Tensors] | None = None
    drawn: Callable[[int], Tensor] | None = None
    answered: int = 0

    def on_sample(self, name: str, probability: float, taken: Tensor) -> Tensor:
        return self.drawn(len(taken)) if self.drawn else taken

    def on_release(
        self, mechanism: Mechanism, name: str, output: Output | None, *asked: Any
    ) -> Tensors:
        partition, rows = asked
        guests = self.guests.get(partition, 0) if mechanism.per_record else 0
        output = mechanism(
            rows if self.inside(name, partition) else without_guests(rows, guests), self.noise
        )
        self.observe(mechanism, RecordedRelease(name, partition, rows, guests, output))
        self.answered += 1
        if self.forced is None:
            return output.value
        return find_answer(self.forced, self.answered - 1, name, output.value)


def without_guests(rows: Tensors, guests: int) -> Tensors:
    """The rows without the last ``guests``."""
    return take_records(rows, slice(count_records(rows) - guests)) if guests else rows


def value_before_noise(mechanism: Mechanism, rows: Tensors) -> Tensors:
    """A mechanism's value before noise; {} where it shows none. That is what it releases where the
    noise is zero. If its own statement (``Output.exact``) differs from that, and it draws no noise
    from elsewhere, the larger of the two counts, as either may be true."""
    output = mechanism(rows, ZERO_NOISE)
    said = output.exact or {}
    rounded = min(output.lattice or 0.0, 2.0**-BITS * output.noise_std) / 2
    shapes_differ = (
        any(said[n].shape != t.shape for n, t in output.value.items()) if said else False
    )
    if not said or _is_close(said, output.value, rounded) or shapes_differ:
        return said
    sizes = [float(flatten_tensors(value).double().norm()) for value in (output.value, said)]
    larger = sizes[0] > sizes[1]  # not where one is no number
    return (
        output.value
        if larger and _is_close(mechanism(rows, ZERO_NOISE).value, output.value)
        else said
    )


def _is_close(one: Tensors, other: Tensors, rounded: float = 0.0) -> bool:
    """Up to rounding, by so much: a value may be shown in more digits than it is released in."""
    if one.keys() != other.keys() or any(one[n].shape != other[n].shape for n in one):
        return False
    a, b = (flatten_tensors(value).double() for value in (one, other))
    return torch.allclose(a, b, rtol=1e-6, atol=1e-9 + rounded, equal_nan=True)


def flatten_tensors(value: Tensors) -> Tensor:
    """All numbers of a value as one vector, tensors in order of their names."""
    return torch.cat([value[name].flatten() for name in sorted(value)])


def recording_context(
    plan: Plan,
    round: int,
    keys: Keys,
    observe: Callable[[Mechanism, RecordedRelease], None],
    class_list: Sequence[int] | None = None,
    **more: Any,
) -> InstrumentedContext:
    """The audited client's round with noise from ``keys``; more: of ``ReleaseRecorder``."""
    noise = SeededNoise(keys.torch())
    ctx = instrumented_context(plan, round, ReleaseRecorder(noise, observe, **more), class_list)
    ctx.noise = noise
    return ctx


def clean_numbers(mechanism: Mechanism, rows: Tensors) -> Tensor:
    """All numbers of a mechanism's value before noise as one vector."""
    return flatten_tensors(value_before_noise(mechanism, rows))


def stated_multiplier(output: Output) -> float:
    """The noise multiplier that an output's event states for one record in the batch."""
    event: Any = output.event
    return float(getattr(event, "event", event).noise_multiplier)


def sensitivity_unit(output: Output) -> float:
    """The change before noise that the stated multiplier allows one record."""
    return output.noise_std / stated_multiplier(output)


COMPARED_RELEASES = 4  # releases of one query in which other records are compared one by one
COMPARED_RECORDS = 32  # of these records at most
EXTRA_RECORDS = 4  # more where one has joined, and rounding may have put others before it
FINGERPRINT_SIZE = 4  # numbers by which a contribution is known
MAX_CHANGE = 1e6  # units: what has no bound at all
MIN_NORM = 1e-9
FINGERPRINT_TOLERANCE = 1e-4  # of their size: batched kernels round differently with the batch size

ReleasePlace = tuple[int, str | None, int]  # which release of the query, its cell, which row


class EnoughReleases(Exception):
    """Every query was seen often enough; the rest of the round is not needed."""


@dataclass
class SeenContributions:
    """What one run of a round contributed to its releases.

    limit: query -> releases after which it is enough; singly: query -> release -> what its first
        rows contribute one by one (first by ``marks``); where: query -> the cell of each release;
        largest: query -> (size before it is clipped,
    place) of the row that contributes most; marks: query -> those of each release.
    """

    limit: Mapping[str, int]
    rows: int = COMPARED_RECORDS
    totals: dict[str, list[Tensor]] = field(default_factory=dict)
    singly: dict[str, dict[int, Tensor]] = field(default_factory=dict)
    largest: dict[str, tuple[float, ReleasePlace]] = field(default_factory=dict)
    where: dict[str, list[str | None]] = field(default_factory=dict)
    marks: dict[str, list[Tensor]] = field(default_factory=dict)

    def __call__(self, mechanism: Mechanism, heeded: RecordedRelease) -> None:
        one = sensitivity_unit(heeded.released)
        name = heeded.name
        cell = heeded.partition
        totals = self.totals.setdefault(name, [])
        cells = self.where.setdefault(name, [])
        totals.append(clean_numbers(mechanism, heeded.rows) / one)
        if mechanism.per_record:
            self.marks.setdefault(name, []).append(contribution_fingerprints(heeded.rows))
        if mechanism.per_record and (len(totals) <= COMPARED_RELEASES or cell not in cells):
            order = self.marks[name][-1][:, 0].argsort()[: self.rows]
            alone = single_contributions(mechanism, take_records(heeded.rows, order)) / one
            self.singly.setdefault(name, {})[len(totals)] = alone
            self._update_largest(name, (len(totals) - 1, cell), contribution_norms(heeded.rows))
        cells.append(cell)
        if self.limit and all(
            len(self.totals.get(n, ())) >= most for n, most in self.limit.items()
        ):
            raise EnoughReleases

    def _update_largest(self, name: str, release: tuple[int, str | None], norms: Tensor) -> None:
        if len(norms) and float(norms.max()) > self.largest.get(name, (0.0, None))[0]:
            self.largest[name] = float(norms.max()), (*release, int(norms.argmax()))


def contribution_norms(rows: Tensors) -> Tensor:
    """The norm of each record's contribution (n,), before it is clipped."""
    return torch.cat([part.double() for part in _flatten_rows(rows)], 1).nan_to_num().norm(dim=1)


def _flatten_rows(rows: Tensors) -> list[Tensor]:
    """Each tensor as (n, numbers)."""
    return [(t.flatten(1) if t.ndim > 1 else t.unsqueeze(1)).detach() for t in rows.values()]


def single_contributions(mechanism: Mechanism, rows: Tensors) -> Tensor:
    """What each of the records alone would contribute, (n, p), clipped as the mechanism does."""
    each = [
        clean_numbers(mechanism, take_records(rows, slice(i, i + 1)))
        for i in range(count_records(rows))
    ]
    return torch.stack(each) if each else torch.zeros(0, 1)


def contribution_fingerprints(rows: Tensors) -> Tensor:
    """A few numbers of each contribution (n, FINGERPRINT_SIZE) that equal ones share and no others
    do: a method may put its records in any order, so a contribution is known by what it is, not by
        its place."""
    parts = [part.float().nan_to_num() for part in _flatten_rows(rows)]
    return torch.stack([part @ _projection_matrix(part.shape[1]) for part in parts]).sum(0).double()


@lru_cache(maxsize=64)
def _projection_matrix(size: int) -> Tensor:
    return torch.randn(size, FINGERPRINT_SIZE, generator=torch.Generator().manual_seed(size))


def match_rows(one: Tensor, other: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The cheapest matching of rows: (rows of one, rows of the other, how far each pair is
    apart)."""
    away = torch.cdist(one.double(), other.double(), compute_mode="donot_use_mm_for_euclid_dist")
    away = away.nan_to_num(nan=torch.inf).clamp_max(MAX_CHANGE)
    rows, columns = map(torch.from_numpy, linear_sum_assignment(away.numpy()))
    return rows, columns, away[rows, columns]


def equal_fingerprints(one: Tensor, other: Tensor) -> Tensor:
    """Whether fingerprints (n, FINGERPRINT_SIZE) are the same, row by row, up to rounding."""
    return (one - other).norm(dim=1) <= FINGERPRINT_TOLERANCE * (
        one.norm(dim=1) + other.norm(dim=1)
    ) + MIN_NORM


def unmatched_rows(one: Tensor, other: Tensor) -> tuple[Tensor, Tensor]:
    """Places of marks that have no equal on the other side: (in one, in the other)."""
    a, b, _ = match_rows(one, other)
    same = equal_fingerprints(one[a], other[b])
    left = torch.ones(len(one), dtype=torch.bool)
    right = torch.ones(len(other), dtype=torch.bool)
    left[a[same]] = right[b[same]] = False
    return left.nonzero()[:, 0], right.nonzero()[:, 0]


BASE_RECORDS = 12  # of the client's own records that stand beside the guests


def draw_own_records(shard: Shard, keys: Keys, spare: int) -> Records:
    """A few of the client's records, none with the label ``spare``."""
    at = (shard.train.y != spare).nonzero()[:, 0]
    order = torch.randperm(len(at), generator=keys.fold("base").torch())
    return shard.train.take(at[order[:BASE_RECORDS]])


def common_label(shard: Shard) -> int:
    """The class that the client holds most of."""
    return int(torch.bincount(shard.train.y, minlength=shard.classes).argmax())


def spare_label(shard: Shard) -> int:
    """The class that the client holds least of; a guest with this label is alone in its class."""
    return int(torch.bincount(shard.train.y, minlength=shard.classes).argmin())


def unusual_records(shard: Shard, label: int, keys: Keys) -> Canaries:
    """Out-of-distribution canaries (white, black, stripes, noise) with ``label``, and mislabelled
    own records."""
    generator = keys.fold("oddities").torch()
    odd = out_of_distribution_canaries(shard.shape, label, generator)
    few = shard.train.take(torch.randperm(len(shard.train), generator=generator)[:3])
    wrong = mislabel_records(few.x, few.y, shard.classes, generator)
    return join_canaries(odd, wrong)


def lone_class_record(shard: Shard, keys: Keys) -> Canaries:
    """One white record in the class that has no other."""
    odd = out_of_distribution_canaries(shard.shape, spare_label(shard), keys.fold("alone").torch())
    return Canaries(odd.x[:1], odd.y[:1], ("alone in its class",))


def with_guests(base: Records, guests: Canaries) -> Records:
    """``base`` and then the guests, with ids above all others."""
    start = int(base.ids.max()) + 1 if len(base) else 0
    ids = torch.arange(start, start + len(guests))
    return Records.concat([base, Records(guests.x.to(base.x), guests.y, ids)])


def with_records(shard: Shard, records: Records) -> Shard:
    """The same client with other records and nothing zeroed out."""
    return replace(shard, train=records, nulls=None)


def copies_of_record(x: torch.Tensor, label: int, count: int) -> Records:
    """``count`` copies of one image (c, h, w)."""
    return Records(x.expand(count, *x.shape), torch.full((count,), label), torch.arange(count))


def zero_out_others(shard: Shard, records: Records) -> Shard:
    """The client with these of its records (by id); its others are zeroed out, under their ids and
    labels."""
    gone = shard.train.take(~torch.isin(shard.train.ids, records.ids))
    nulls = replace(gone, x=torch.zeros_like(gone.x))
    return replace(
        shard,
        train=records,
        nulls=nulls if shard.nulls is None else Records.concat([nulls, shard.nulls]),
    )


MessageForm = tuple[
    tuple[str, str, tuple[int, ...]], ...
]  # name, type and shape of tensors, in their order

ORDER_DEPENDS = "the order of what is sent depends on the records"


def message_form(value: Tensors) -> MessageForm:
    """All of a message but its numbers."""
    return tuple((name, str(tensor.dtype), tuple(tensor.shape)) for name, tensor in value.items())


@dataclass
class ReleaseFormLog:
    """Notes of each protected release which query it answers, for which cell, and its form."""

    forms: list[tuple[str, str | None, MessageForm]] = field(default_factory=list)

    def on_release(
        self, mechanism: Mechanism, name: str, output: Output | None, *given: Any
    ) -> None:
        if (
            output
            and not isinstance(output.event, dpa.NonPrivateDpEvent)
            and all(output.flags.values())
        ):
            self.forms.append((name, given[0] if given else None, message_form(output.value)))

    def on_sample(self, *given: Any) -> None:
        """The sampling coins are not replaced: the queries' answers do not depend on them."""


@dataclass(frozen=True)
class RoundTrace:
    """One round of one client: what was sent and entered, what it keeps, and what its mechanisms
    released."""

    received: Received
    rows: list[LedgerRow]
    memory: State
    outputs: list[Tensors]
    releases: list[tuple[str, str | None, MessageForm]]

    @property
    def protected_message(self) -> list[tuple[str, MessageForm]]:
        """What is sent and promises something, in its order."""
        rows = self.rows[len(self.rows) - len(self.received.values) :]
        return [
            (row.name, message_form(self.received.values[row.name])) for row in protected_rows(rows)
        ]


def trace_round(
    plan: Plan,
    round: int,
    broadcast: Values,
    memory: State,
    shard: Shard,
    transcript: Sequence[Tensors] | None = None,
) -> RoundTrace:
    """One client's round; transcript: what its queries are answered. Raises TranscriptEnded where
    it asks for more."""
    log = ReleaseFormLog()
    ctx = plan.client_context(round, shard.client, transcript=transcript, observer=log)
    upload, memory = plan.method.local(broadcast, dict(memory), shard, ctx)
    received, rows = plan.channel.send(upload, ctx)
    return RoundTrace(
        received, rows, {n: t.detach() for n, t in memory.items()}, list(ctx.outputs), log.forms
    )


def protected_rows(rows: Sequence[LedgerRow]) -> list[LedgerRow]:
    """Rows that promise something; digests of what mechanisms have not noised, which are the same
    twice."""
    kept = [row for row in rows if row.nonprivate_reason is None]
    return [
        row if isinstance(row.event, UNPROTECTED_EVENTS) else replace(row, digest="")
        for row in kept
    ]


@dataclass(frozen=True)
class MessageLeak:
    """What tells two data sets apart, in words. message: the name of the message or query that
    tells it; "" = all together."""

    says: str
    message: str = ""


def compare_traces(one: RoundTrace, other: RoundTrace) -> Iterator[MessageLeak]:
    """What tells the records of two turns with the same mechanism outputs apart."""
    asked = [[(name, cell) for name, cell, _ in turn.releases] for turn in (one, other)]
    before = protected_rows(one.rows)
    after = protected_rows(other.rows)
    if asked[0] != asked[1]:
        yield MessageLeak(
            "how often mechanisms are applied, or in which order, depends on the records"
        )
        return
    names = [[row.name for row in rows] for rows in (before, after)]
    if names[0] != names[1]:
        lone = sorted(set(names[0]) ^ set(names[1]))
        says = (
            f"whether {lone[0]!r} is sent, or is private, depends on the records"
            if lone
            else ORDER_DEPENDS
        )
        yield MessageLeak(says, lone[0] if lone else "")
        return
    for row, again in zip(before, after):
        differing = [
            f.name for f in fields(LedgerRow) if getattr(row, f.name) != getattr(again, f.name)
        ]
        if isinstance(row.event, UNPROTECTED_EVENTS) and differing:
            claim = "private" if row.why == POST_PROCESSING else "public"
            yield MessageLeak(
                f"{row.name!r} claims to be {claim} and depends on the records", row.name
            )
        elif differing:
            says = (
                f"the ledger row of {row.name!r} tells about the records, in {', '.join(differing)}"
            )
            yield MessageLeak(says, row.name)
    told = [name for (name, _, a), (_, _, b) in zip(one.releases, other.releases) if a != b]
    told += [
        name for (name, a), (_, b) in zip(one.protected_message, other.protected_message) if a != b
    ]
    for name in dict.fromkeys(told):
        yield MessageLeak(
            f"the order, types or shapes of the tensors of {name!r} depend on the records", name
        )


@dataclass(frozen=True)
class RecordDependence:
    """What a round told about the records. with_other: the name of the data set that showed it;
    broken: the method did not run on that data, which is not looked at any further; message: as of
        ``MessageLeak``."""

    round: int
    with_other: str
    says: str
    broken: bool = False
    message: str = ""


def find_interference(
    plan: Plan,
    snapshots: Mapping[int, Snapshot],
    shard: Shard,
    others: Mapping[str, tuple[Shard, Collection[int]]],
) -> Iterator[RecordDependence]:
    """Everything that the client's rounds tell of its records. others: by their name, other data of
    the client and the rounds that are run with it; all rounds up to the last of these, from the
    first, where the client remembers. Where a method says that a round's upload does not read what
    is remembered, the other client remembers nothing."""
    wanted = {name: set(rounds) for name, (_, rounds) in others.items()}
    linked = has_linked_rounds(plan, snapshots)
    if linked:
        wanted = {
            name: {t for t in snapshots if t <= max(rounds, default=-1)}
            for name, rounds in wanted.items()
        }
    memories: dict[str | None, State] = {}
    for round in sorted(set(snapshots) & set[int]().union(*wanted.values())):
        broadcast = snapshots[round].broadcast
        own = trace_round(
            plan, round, broadcast, memories.get(None, snapshots[round].memory), shard
        )
        for name in [name for name in wanted if round in wanted[name]]:
            try:
                again = trace_round(
                    plan, round, broadcast, memories.get(name, {}), others[name][0], own.outputs
                )
            except TranscriptEnded:
                yield RecordDependence(
                    round, name, "how often mechanisms are applied depends on the records"
                )
                return
            except (
                Exception
            ) as problem:  # of a method of one's own, on data that it was not written for
                yield RecordDependence(
                    round, name, f"{type(problem).__name__}: {problem}", broken=True
                )
                wanted[name] = set()
                continue
            for leak in compare_traces(own, again):
                yield RecordDependence(round, name, leak.says, message=leak.message)
            memories |= {name: again.memory} if linked else {}
        memories |= {None: own.memory} if linked else {}


def has_linked_rounds(plan: Plan, snapshots: Mapping[int, Snapshot]) -> bool:
    """Whether what the client keeps decides what it sends later."""
    remembers = plan.method.audit_hooks.remembers
    return any(
        remembers(t, snapshot.memory) for t, snapshot in snapshots.items() if snapshot.memory
    )


@dataclass(frozen=True)
class MemoryHistory:
    """What other data would have left in the client's memory. transcripts: round -> what queries
    were answered with; {} where memory does not depend on the data, and is the run's own."""

    plan: Plan
    snapshots: Mapping[int, Snapshot]
    transcripts: Mapping[int, Sequence[Tensors]] = field(default_factory=dict)

    def snapshot_before(self, round: int, shard: Shard) -> Snapshot:
        """The round as a client with this data begins it."""
        if not self.transcripts:
            return self.snapshots[round]
        memory: State = {}
        for t in sorted(t for t in self.snapshots if t < round):
            turn = trace_round(
                self.plan, t, self.snapshots[t].broadcast, memory, shard, self.transcripts[t]
            )
            memory = turn.memory
        return replace(self.snapshots[round], memory=memory)


def memory_history_of(
    plan: Plan, snapshots: Mapping[int, Snapshot], shard: Shard, other: Shard
) -> MemoryHistory:
    """The client's history; other: data that tells whether memory depends on it."""
    transcripts = dict[int, Sequence[Tensors]]()
    same = True
    memory: State = {}
    others: State = {}
    for t in sorted(snapshots) if has_linked_rounds(plan, snapshots) else ():
        own = trace_round(plan, t, snapshots[t].broadcast, memory, shard)
        try:
            again = trace_round(plan, t, snapshots[t].broadcast, others, other, own.outputs)
        except TranscriptEnded:  # that is a fault of its own
            return MemoryHistory(plan, snapshots)
        transcripts[t], memory, others = own.outputs, own.memory, again.memory
        same = same and digest_tensors(memory) == digest_tensors(others)
    return MemoryHistory(plan, snapshots, {} if same else transcripts)
