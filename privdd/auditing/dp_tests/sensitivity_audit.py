"""T1: how far one record, crafted or left out, moves a release before its noise, and the
contributions of other records.

kappa is the change before noise that a record causes, in units of noise std / noise multiplier (the
change that the stated multiplier allows one record).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

import torch
from scipy.special import chdtri
from torch import Tensor

from attacks.canaries import Canaries
from privdd.auditing.dp_tests.clean_values import (
    clean_numbers,
    flatten_tensors,
    sensitivity_unit,
    value_before_noise,
)
from privdd.auditing.dp_tests.contributions import (
    COMPARED_RELEASES,
    MAX_CHANGE,
    EnoughReleases,
    contribution_fingerprints,
    contribution_norms,
    equal_fingerprints,
    match_rows,
    single_contributions,
)
from privdd.auditing.dp_tests.crafted_records import with_guests, with_records
from privdd.auditing.dp_tests.forced_runs import COUNT_DEPENDS, ExaminedRound
from privdd.auditing.dp_tests.instrumentation import (
    RecordedRelease,
    recording_context,
    without_guests,
)
from privdd.auditing.dp_tests.presence_trials import (
    ROUNDING_TOLERANCE,
    change_of_others,
    measure_presence,
)
from privdd.core.types import (
    UNKNOWN_CELL,
    Records,
    Tensors,
    class_of_cell,
    name_class_cell,
)
from privdd.federated.channel import TranscriptEnded
from privdd.privacy.clipping import count_records, scale_records, take_records
from privdd.privacy.mechanism import Mechanism

UNBOUNDED = MAX_CHANGE
BEYOND_CLIP = 1e6  # times a guest's contribution: longer than any clip norm
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
