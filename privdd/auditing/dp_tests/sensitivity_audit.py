"""T1: how far one record, crafted or left out, moves a release before its noise, and the
contributions of other records.

kappa is the change before noise that a record causes, in units of noise std / noise multiplier (the
change that the stated multiplier allows one record):

    kappa = sup |f(D + record) - f(D)|_2 / (noise_std / z),

over the records and data sets tried. A mechanism is as stated if kappa <= 1, under replace if
kappa <= 2. It is measured before noise, so a violation shows with certainty, from one release.
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
from privdd.core.types import UNKNOWN_CELL, Records, Tensors, class_of_cell, name_class_cell
from privdd.federated.channel import TranscriptEnded
from privdd.privacy.clipping import count_records, scale_records, take_records
from privdd.privacy.mechanism import Mechanism

UNBOUNDED = MAX_CHANGE
BEYOND_CLIP = 1e6  # times a guest's contribution: longer than any clip norm
NOISE_ERROR = 1e-6  # probability that noise of the stated size is reported as too small
MAX_OTHER_CLIENTS = 16  # clients beside the audited one that are examined
RELEASES_OF_OTHERS = 2  # of each cell, that are examined
SEARCH_INTERVAL = 8  # of a partition's later releases, one in so many is searched
LEAST_NOISE_RATIO = 1e-12  # of noise that was not drawn at all


@dataclass
class SensitivityTally:
    """What T1 measured for one query.

    Attributes:
        changes: guest -> largest change, in units.
        calls: releases by partition.
        residual: sum of squares of the drawn noise values, in units of the stated noise.
        numbers: count of these values.
        others: the other records' contributions (n, p) in the first releases.
        moved: the most that these change in all, in units. Zero wherever the proof holds: batch
            norm, a map trained on the records, or a normaliser that reads them shows up here.
        leak: what else depends on a record, in words, which has no bound.
        pairs: largest distance between the changes of two guests, in units.
        sizes: guest -> the norm of its contribution before it is clipped.
        unclipped: what a contribution beyond any clip norm changes, if that is more than one unit
            and the mechanism says that it clips.
        others_at: another client than the audited one, if most of the change was seen there.
        in_order: whether the method leaves its records in the order in which it has them.
        recorded_guest: the guest whose contributions are recorded.
        contributions: of that guest, release by release.
        message_leaks: message -> what it says of a record beside the releases, in words.
        in_classes: whether every cell held the records of its class.
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
    unclipped: float = 0.0
    others_at: int | None = None
    in_order: bool = True
    recorded_guest: int = 0
    contributions: list[Tensors] = field(default_factory=list)
    message_leaks: Mapping[str, str] = field(default_factory=dict)
    in_classes: bool = True

    def add_noise(self, residuals: Tensor) -> None:
        """Adds drawn noise values, in units of the stated noise."""
        self.residual += float(residuals.double().square().sum())
        self.numbers += residuals.numel()

    def raise_change(self, guest: int, change: float) -> None:
        """Takes note of a change by a guest, in units, if it is the guest's largest."""
        self.changes[guest] = max(self.changes.get(guest, 0.0), change)

    @property
    def largest_change(self) -> float:
        """By any guest, in units; 0 if none was measured."""
        return max(self.changes.values(), default=0.0)

    @property
    def noise_ratio(self) -> float:
        """Drawn noise over stated noise if it is significantly smaller, else 1.

        An upper confidence limit of the scale: sum x_i^2 ~ r^2 chi-square(n), so r <= sqrt(sum
        x_i^2 / chi2_{n, a}) with probability 1 - a, a = ``NOISE_ERROR``. A limit, not the estimate,
        so that a sound mechanism keeps its kappa.
        """
        if not self.numbers:
            return 1.0
        ceiling = math.sqrt(self.residual / float(chdtri(self.numbers, 1 - NOISE_ERROR)))
        return min(1.0, max(ceiling, LEAST_NOISE_RATIO))

    def describe_faults(self) -> str:
        """Faults other than a record's own change, as text for a note."""
        faults = []
        if self.leak:
            faults.append(self.leak)
        if self.moved:
            faults.append(f"other records' contributions move by {self.moved:.3g} units")
        if self.unclipped:
            size = f"{self.unclipped:.3g} units"
            faults.append(f"a contribution beyond the clip norm moves it by {size}")
        if self.others_at is not None:
            faults.append(f"that is of client {self.others_at}")
        if self.noise_ratio < 1:
            faults.append(f"the drawn noise is {self.noise_ratio:.3g} times the stated one")
        return "".join(f"; {fault}" for fault in faults)

    def name_guest(self, guests: Canaries, which: int) -> str:
        """The name of a guest; if the method has put its records in another order, which one it is
        is not known."""
        if self.in_order:
            return repr(guests.names[which])
        return "one of them"

    def worst_guest(self, relation: str) -> tuple[float, int]:
        """(kappa, guest) of the worst guest.

        kappa = (change + what the others move) / noise ratio: the triangle inequality bounds what a
        record does by itself and through others. Under replace one guest is exchanged for another,
        whose distance counts, and two contributions may be beyond the clip norm.
        """
        guest = max(self.changes, key=lambda j: self.changes[j])
        size = self.changes[guest]
        beyond_clip = self.unclipped
        if relation == "replace":
            size = max(self.pairs, size)
            beyond_clip *= 2
        change = max(size + self.moved, beyond_clip)
        return UNBOUNDED if self.leak else change / self.noise_ratio, guest


def guests_in_partition(guests: Canaries, partition: str | None) -> list[int]:
    """Which guests are in a partition, in order."""
    label = class_of_cell(partition)
    return [guest for guest, y in enumerate(guests.y.tolist()) if label in (None, y)]


@dataclass
class SensitivityExaminer:
    """Fills one ``SensitivityTally`` per query while the method runs.

    Attributes:
        guests: the crafted records, at the end of the client's data.
        earlier: query -> fingerprints of each release of a run with other guests. Rows that are not
            in it too are the guests', wherever the method has put them.
        fingerprints: the same of this run.
        tallies: query -> what was measured.
        recorded_guests: query -> the guest whose contributions are recorded.
        enough: query -> releases after which the method is stopped; {}: it runs to its end.
        base: the labels (n,) of the records beside the guests. If a release has another number of
            rows than all of them have, whose is whose is not known, and only pairs of data sets
            tell what a record does.
    """

    guests: Canaries
    earlier: Mapping[str, Sequence[Tensor]] = field(default_factory=dict)
    fingerprints: dict[str, list[Tensor]] = field(default_factory=dict)
    tallies: dict[str, SensitivityTally] = field(default_factory=dict)
    recorded_guests: Mapping[str, int] = field(default_factory=dict)
    enough: Mapping[str, int] = field(default_factory=dict)
    base: Tensor | None = None

    def __call__(self, mechanism: Mechanism, release: RecordedRelease) -> None:
        self._add_release(mechanism, release)
        if self.enough and all(self._count_calls(name) >= n for name, n in self.enough.items()):
            raise EnoughReleases

    def _count_calls(self, name: str) -> int:
        if name in self.tallies:
            return sum(self.tallies[name].calls.values())
        return 0

    def _add_release(self, mechanism: Mechanism, release: RecordedRelease) -> None:
        tally = self.tallies.setdefault(release.name, SensitivityTally())
        tally.calls[release.partition] += 1
        output = release.released
        noise = flatten_tensors(output.value) - flatten_tensors(output.exact or {})
        tally.add_noise(noise / output.noise_std)
        is_unknown = class_of_cell(release.partition) == UNKNOWN_CELL
        if is_unknown or (release.guests and self._has_other_rows(release)):
            self._add_unknown_rows(release, tally, is_unknown=is_unknown)
            return
        if release.guests:
            release = self._move_guests_last(release, tally)
        self._add_guest_changes(mechanism, release, tally)
        if sum(tally.calls.values()) <= COMPARED_RELEASES:
            # In a first run, who is who is not known yet.
            if self.earlier:
                rows = without_guests(release.rows, release.guests)
            else:
                rows = release.rows
            alone = single_contributions(mechanism, rows)
            tally.others.append(alone / sensitivity_unit(output))

    def _add_unknown_rows(
        self, release: RecordedRelease, tally: SensitivityTally, *, is_unknown: bool
    ) -> None:
        """A release whose rows cannot be distinguished: no guest's change is known of it."""
        fingerprints = contribution_fingerprints(release.rows)
        self.fingerprints.setdefault(release.name, []).append(fingerprints)
        tally.others.append(torch.zeros(0, 1))
        tally.in_classes = False
        tally.in_order = False
        if is_unknown:
            guest = 0
        else:
            guest = guests_in_partition(self.guests, release.partition)[0]
        tally.changes.setdefault(guest, 0.0)

    def _add_guest_changes(
        self, mechanism: Mechanism, release: RecordedRelease, tally: SensitivityTally
    ) -> None:
        """What each guest alone changes in the base rows' value."""
        call = tally.calls[release.partition]
        guests = guests_in_partition(self.guests, release.partition)[: release.guests]
        if call == 1 and release.guests:
            norms = contribution_norms(release.rows)[-release.guests :].tolist()
            tally.sizes.update(zip(guests, norms))
        if call <= COMPARED_RELEASES or call % SEARCH_INTERVAL == 0:
            self._search_guests(mechanism, release, tally, guests)
        recorded = self.recorded_guests.get(release.name)
        if recorded in guests:
            row = count_records(release.rows) - release.guests + guests.index(recorded)
            tally.contributions.append(take_records(release.rows, [row]))  # a list: a copy

    @staticmethod
    def _search_guests(
        mechanism: Mechanism,
        release: RecordedRelease,
        tally: SensitivityTally,
        guests: Sequence[int],
    ) -> None:
        """Measures changes of all guests, and of the first one beyond any clip norm."""
        if not release.guests:
            return
        unit = sensitivity_unit(release.released)
        base = without_guests(release.rows, release.guests)
        absent = flatten_tensors(value_before_noise(mechanism, base))
        changes = []
        for number in range(release.guests):
            present = clean_numbers(mechanism, _with_guest(release, number))
            changes.append((present - absent) / unit)
        if release.released.clip_norm is not None:
            present = clean_numbers(mechanism, _with_guest(release, 0, BEYOND_CLIP))
            change = float((present - absent).norm()) / unit
            if change > 1 + ROUNDING_TOLERANCE:
                tally.unclipped = max(tally.unclipped, change)
        for guest, guest_change in zip(guests, changes):
            tally.raise_change(guest, float(guest_change.norm()))
        if len(changes) > 1:
            stacked = torch.stack(changes)
            tally.pairs = max(tally.pairs, float(torch.cdist(stacked, stacked).max()))

    def _has_other_rows(self, release: RecordedRelease) -> bool:
        if self.base is None:
            return False
        label = class_of_cell(release.partition)
        if label is None:
            records = len(self.base)
        else:
            records = int((self.base == label).sum())
        return count_records(release.rows) != records + release.guests

    def _move_guests_last(
        self, release: RecordedRelease, tally: SensitivityTally
    ) -> RecordedRelease:
        """The same release with its rows in another order, if the method has not put the guests at
        the end."""
        releases = self.fingerprints.setdefault(release.name, [])
        now = contribution_fingerprints(release.rows)
        releases.append(now)
        earlier_releases = self.earlier.get(release.name, ())
        earlier = now
        if len(releases) <= len(earlier_releases):
            earlier = earlier_releases[len(releases) - 1]
        base = len(now) - release.guests
        is_same_size = len(earlier) == len(now)
        if is_same_size and bool(equal_fingerprints(earlier[:base], now[:base]).all()):
            return release
        _, columns, distances = match_rows(earlier, now)
        # Rows without a match are the farthest, and come last: they are the guests'.
        distance = torch.full((len(now),), torch.inf, dtype=torch.float64)
        order = distance.index_copy(0, columns, distances).argsort(stable=True)
        tally.in_order = False
        return replace(release, rows=take_records(release.rows, order))


def _with_guest(release: RecordedRelease, guest: int, times: float = 1.0) -> Tensors:
    """The base rows and one guest's, so many times as long."""
    base = count_records(release.rows) - release.guests
    rows = take_records(release.rows, torch.tensor([*range(base), base + guest]))
    if times == 1:
        return rows
    return scale_records(rows, torch.tensor([*[1.0] * base, times]))


def measure_sensitivity(
    examined: ExaminedRound,
    base: Records,
    guests: Canaries,
    labels: Sequence[int],
    brief: bool = False,
) -> dict[str, SensitivityTally]:
    """T1 on one round of the audited client.

    The method runs twice with the same random draws and the same releases: first with the guests'
    negatives (inverted images), then with the guests as crafted, so that what the guests change in
    other records shows.

    Args:
        examined: the round.
        base: records of the client's beside the guests.
        guests: crafted records.
        labels: the classes to release, those of base and guests.
        brief: whether the client's own records are examined for fewer pairs.

    Returns:
        Query -> what was measured.
    """
    negatives = Canaries(1 - guests.x, guests.y, guests.names)
    first = SensitivityExaminer(guests, base=base.y)
    outputs, leak = _run_with_guests(examined, base, negatives, labels, first, None)
    recorded_guests = {}
    for name, tally in first.tallies.items():
        if tally.changes:
            recorded_guests[name] = tally.worst_guest("add_remove")[1]
    second = SensitivityExaminer(
        guests, first.fingerprints, recorded_guests=recorded_guests, base=base.y
    )
    outputs_again, leak_again = _run_with_guests(examined, base, guests, labels, second, outputs)
    if len(outputs_again) < len(outputs):
        leak_again = COUNT_DEPENDS
    for name, tally in second.tallies.items():
        tally.recorded_guest = recorded_guests.get(name, 0)
        # Else who is who is not known; pairs of data sets tell.
        if tally.in_classes and first.tallies[name].in_classes:
            tally.moved = change_of_others(tally.others, first.tallies[name].others)
    presence = replace(examined, keys=examined.keys.fold("presence"))
    _add_presence_changes(presence, base, guests, second.tallies, brief)
    for tally in second.tallies.values():
        tally.leak = leak or leak_again or tally.leak
    return second.tallies


def _run_with_guests(
    examined: ExaminedRound,
    base: Records,
    guests: Canaries,
    labels: Sequence[int],
    examiner: SensitivityExaminer,
    forced: list[Tensors] | None,
) -> tuple[list[Tensors], str]:
    """Runs the round with guests -> (its releases, what the number of them says of the records)."""
    snapshot = examined.snapshot
    ctx = recording_context(
        examined.plan,
        snapshot.round,
        examined.keys,
        examiner,
        labels,
        guests=_guest_counts(guests),
        forced=forced,
    )
    client = with_records(examined.shard, with_guests(base, guests))
    memory = dict(examined.snapshot_of(client).memory)
    try:
        examined.plan.method.local(snapshot.broadcast, memory, client.client_data, ctx)
    except TranscriptEnded:
        return ctx.outputs, COUNT_DEPENDS
    return ctx.outputs, ""


def measure_other_clients(
    examined: ExaminedRound,
    base: Records,
    guests: Canaries,
    labels: Sequence[int],
    tallies: Mapping[str, SensitivityTally],
) -> list[int]:
    """Whether other clients than the audited one clip as it does; what moves more goes into
    ``tallies``.

    Each makes its first releases of every query and cell with the audited client's data in place of
    its own: what it does by its number shows, what it does by its own data does not.

    Args:
        examined: the round.
        base: records of the client's beside the guests.
        guests: crafted records.
        labels: the classes to release.
        tallies: query -> what was measured of the audited client.

    Returns:
        The clients that were examined.
    """
    plan = examined.plan
    snapshot = examined.snapshot
    clients = [client for client in range(plan.problem.clients) if client != plan.victim]
    clients = clients[:MAX_OTHER_CLIENTS]
    enough = {}
    for name, tally in tallies.items():
        per_cell = min(RELEASES_OF_OTHERS, max(tally.calls.values()))
        enough[name] = len(tally.calls) * per_cell
    data = with_records(examined.shard, with_guests(base, guests))
    memory = examined.snapshot_of(data).memory
    for client in clients:
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
                snapshot.broadcast, dict(memory), replace(data, client=client).client_data, ctx
            )
        for name, client_tally in examiner.tallies.items():
            _compare_clients(tallies[name], client_tally, client)
    return clients


def _compare_clients(tally: SensitivityTally, client_tally: SensitivityTally, client: int) -> None:
    """Takes over what another client's release moves, if that is more than the audited one's."""
    change = max(client_tally.unclipped, client_tally.largest_change)
    own_change = max(1.0, tally.unclipped, tally.largest_change)
    if tally.changes and change > (1 + ROUNDING_TOLERANCE) * own_change:
        tally.unclipped = change
        tally.others_at = client


def _add_presence_changes(
    examined: ExaminedRound,
    base: Records,
    guests: Canaries,
    tallies: Mapping[str, SensitivityTally],
    brief: bool,
) -> None:
    """Adds what pairs of neighbouring data sets show, of the first guest and of those that
    contribute most."""
    if not tallies:
        return
    longest = {max(t.sizes, key=lambda j: t.sizes[j]) for t in tallies.values() if t.sizes}
    chosen = list(dict.fromkeys([0, *sorted(longest)]))
    records = Records(guests.x[chosen], guests.y[chosen], torch.arange(len(chosen)))
    cells = len(examined.plan.problem.class_list)
    limit = {}
    for name, tally in tallies.items():
        if None in tally.calls:
            times = 1
        else:
            times = max(cells, len(tally.calls))
        limit[name] = times * min(COMPARED_RELEASES, max(tally.calls.values()))
    effects = measure_presence(examined, base, records, limit, brief)
    for name, tally in tallies.items():
        effect = effects.by_query.get(name)
        if effect is not None and tally.changes:
            tally.moved = max(tally.moved, effect.moved)
            worst = max(tally.changes, key=lambda j: tally.changes[j])
            tally.raise_change(worst, effect.total)
        tally.leak = effects.leak
        tally.message_leaks = effects.message_leaks


def _guest_counts(guests: Canaries) -> dict[str | None, int]:
    counts = Counter(guests.y.tolist())
    return {None: len(guests), **{name_class_cell(label): count for label, count in counts.items()}}
