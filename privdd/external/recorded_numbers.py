"""Numbers that travel beside a client's recorded arrays are messages too: label counts, small
groups, changes over rounds.

Read are whole numbers whose name says that they count something (``COUNT_WORDS``): one number, such
as Flower's "num-examples", or one number a class, in one list or under names that end in the class.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from attacks.inversion.labels import chance_overlap, label_overlap
from attacks.measures import LabelMeasures
from attacks.types import Adversary, Family, Finding, Surface
from privdd.external.membership_game import JudgedAttack, annotate_finding
from privdd.recording.recording import RecordedMessage

COUNT_WORDS = frozenset(
    {"count", "counts", "examples", "samples", "records", "instances", "histogram", "labels"}
)
OTHER_WORDS = frozenset({"batch", "batches", "epoch", "epochs", "step", "steps", "round", "rounds"})
# records: a count from 1 to 9 is of a group that statistical offices would not publish
SMALL_GROUP = 10
SHOWN = 5  # of each kind, in the note


@dataclass(frozen=True)
class ReportedCounts:
    """What one client reported: round -> name -> counts. single: one number a round; by_class:
    (classes,) numbers a round."""

    single: Mapping[str, Mapping[int, int]] = field(default_factory=dict)
    by_class: Mapping[str, Mapping[int, Sequence[int]]] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.single or self.by_class)


def read_reported_counts(replies: Sequence[RecordedMessage], classes: int) -> ReportedCounts:
    """The counts among the metrics of one client's replies, by name and round."""
    single: dict[str, dict[int, int]] = {}
    by_class: dict[str, dict[int, Sequence[int]]] = {}
    for reply in replies:
        for name, value in _join_class_names(reply.heading.metrics, classes).items():
            numbers = _whole_numbers(value)
            if not numbers or not counts_something(name):
                continue
            if isinstance(value, list) and len(numbers) == classes:
                by_class.setdefault(name, {})[reply.heading.round] = numbers
            elif not isinstance(value, list):
                single.setdefault(name, {})[reply.heading.round] = numbers[0]
    return ReportedCounts(single, by_class)


def counts_something(name: str) -> bool:
    """Whether a metric's name says that it counts records: "num-examples", and not
    "batch-count"."""
    words = set(re.split(r"[^a-z]+", name.lower()))
    return bool(words & COUNT_WORDS) and not words & OTHER_WORDS


def _whole_numbers(value: Any) -> list[int]:
    """The values as whole numbers of at least 0; [] where one of them is not."""
    values = value if isinstance(value, list) else [value]
    sound = [
        isinstance(number, int | float) and not isinstance(number, bool) and number >= 0
        for number in values
    ]
    if all(sound) and all(number == int(number) for number in values):
        return [int(number) for number in values]
    return []


def _join_class_names(metrics: Mapping[str, Any], classes: int) -> dict[str, Any]:
    """The metrics, in which "count_0" to "count_9" are one list "count"."""
    joined = dict(metrics)
    stems: dict[str, dict[int, Any]] = {}
    for name, value in metrics.items():
        match = re.fullmatch(r"(.*?)[-_./ ]?(\d+)", name)
        if match and not isinstance(value, list):
            stems.setdefault(match[1], {})[int(match[2])] = value
    for stem, values in stems.items():
        if sorted(values) == list(range(classes)):
            joined[stem] = [values[c] for c in range(classes)]
    return joined


def judge_reported_counts(
    replies: Sequence[RecordedMessage], labels: Tensor, classes: int
) -> list[JudgedAttack]:
    """The finding of ``label_counts`` on the numbers beside the arrays, [] where none counts
    anything.

    labels (n,): of the client's true training records. diagnostics: "sent", "small_groups",
        "changes". label_accuracy where a histogram was sent, of its last round.
    """
    reported = read_reported_counts(replies, classes)
    if not reported:
        return []
    true = torch.bincount(labels.long(), minlength=classes)
    small = list(_small_groups(reported))
    changes = list(_changes(reported))
    measures = LabelMeasures(n=len(labels))
    if reported.by_class:
        rounds = next(iter(reported.by_class.values()))
        sent = torch.tensor(rounds[max(rounds)])
        measures = replace(
            measures,
            label_accuracy=label_overlap(sent, true),
            baselines={"label_accuracy_chance": chance_overlap(true)},
        )
    everything = {**reported.single, **reported.by_class}
    sent_in = {}
    for name, by_round in everything.items():
        sent_in[name] = {str(t): value for t, value in by_round.items()}
    diagnostics = {"sent": sent_in, "small_groups": small, "changes": changes}
    measures = replace(measures, diagnostics=diagnostics)
    notes = [
        f"numbers in addition to the arrays: {', '.join(everything)}",
        f"groups of fewer than {SMALL_GROUP} records: {'; '.join(small[:SHOWN])}" if small else "",
        f"changes show records that came or left: {'; '.join(changes[:SHOWN])}" if changes else "",
    ]
    finding = Finding(Surface.COUNTS, "label_counts", Family.LABEL, Adversary.SERVER, measures)
    tensors = {"sent": torch.tensor([count for _, _, count in _all_counts(reported)])}
    return [JudgedAttack(annotate_finding(finding, "label_counts", *filter(None, notes)), tensors)]


def _all_counts(reported: ReportedCounts) -> Iterator[tuple[str, int, int]]:
    """(name, round, count) of all numbers; a class is part of its name."""
    for name, single in reported.single.items():
        yield from ((name, t, count) for t, count in single.items())
    for name, by_class in reported.by_class.items():
        for t, counts in by_class.items():
            yield from ((f"{name}, class {c}", t, count) for c, count in enumerate(counts))


def _small_groups(reported: ReportedCounts) -> Iterator[str]:
    """Every count that is once below ``SMALL_GROUP``, in the first round where it is."""
    reported_groups: set[str] = set()
    for name, t, count in _all_counts(reported):
        if 0 < count < SMALL_GROUP and name not in reported_groups:
            reported_groups.add(name)
            if count == 1:
                size_text = "one record, which is open"
            else:
                size_text = f"{count} records"
            yield f"{name}: {size_text} (round {t})"


def _changes(reported: ReportedCounts) -> Iterator[str]:
    """Every count that is another one than in the round before."""
    before: dict[str, tuple[int, int]] = {}
    for name, t, count in _all_counts(reported):
        earlier = before.get(name)
        if earlier is not None and earlier[1] != count:
            yield f"{name}: {count - earlier[1]:+d} between rounds {earlier[0]} and {t}"
        before[name] = (t, count)
