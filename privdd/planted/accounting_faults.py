"""Faults of the books: releases that are not counted, counted as less than they are, or for another neighbour."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import dp_accounting as dpa

from privdd.core.types import Tensors
from privdd.federated.channel import POST_PROCESSING
from privdd.planted.fault import Fault, Plant, around
from privdd.planted.noise_faults import outputs
from privdd.privacy import accounting, ledger
from privdd.privacy.events import Tally
from privdd.privacy.mechanism import Output, Row
from privdd.privacy.mechanisms import ClippedSum
from privdd.privacy.noise import Noise

CLIENTS = 3


def with_multiplier(event: dpa.DpEvent, times: float) -> dpa.DpEvent:
    """The event as if its noise multiplier were so many times as large."""
    if isinstance(event, dpa.GaussianDpEvent | dpa.LaplaceDpEvent):
        return type(event)(event.noise_multiplier * times)
    if isinstance(event, dpa.PoissonSampledDpEvent):
        return dpa.PoissonSampledDpEvent(event.sampling_probability, with_multiplier(event.event, times))
    return event


def with_rate(event: dpa.DpEvent, times: float) -> dpa.DpEvent:
    """The event as if records were sampled at so many times the rate."""
    if isinstance(event, dpa.PoissonSampledDpEvent):
        return dpa.PoissonSampledDpEvent(event.sampling_probability * times, event.event)
    return event


def _rows(change: Callable[[Row], Row]) -> Plant:
    """Rows of mechanisms, and of what clients computed from them, changed as the ledger takes them in."""

    @around("append", ledger.Ledger)
    def append(honest: Any, self: Any, rows: Sequence[Row], *, absolute: bool = False) -> tuple[int, ...]:
        return honest(self, [change(row) if row.client >= 0 else row for row in rows], absolute=absolute)

    return append


def _protected(change: Callable[[Row], Row]) -> Plant:
    return _rows(lambda row: row if isinstance(row.event, ledger.FREE) else change(row))


def _free_later(row: Row) -> Row:
    return replace(row, event=dpa.NoOpDpEvent()) if row.round else row


def _own_cell(row: Row) -> Row:
    return replace(row, partition=f"{row.partition or 'label:0'}{row.round}")


def _rootless(row: Row) -> Row:
    return replace(row, post_of=()) if row.why == POST_PROCESSING else row


def _counted(tells: Callable[[Output, int], Output]) -> Plant:
    """What a clipped sum states, changed by how many records came."""

    @around("__call__", ClippedSum)
    def call(honest: Any, self: ClippedSum, value: Tensors, noise: Noise) -> Output:
        return tells(honest(self, value, noise), len(next(iter(value.values()))))

    return call


@around("__call__", ClippedSum)
def _by_realised_count(honest: Any, self: ClippedSum, value: Tensors, noise: Noise) -> Output:
    """Sum, noise and what is stated of them, all divided by the number of records that came."""
    return honest(replace(self, normaliser=float(max(1, len(next(iter(value.values())))))), value, noise)


def _half(honest: Any, *given: Any, **more: Any) -> float:
    return honest(*given, **more) / 2


def _other_relation(honest: Any, *given: Any, **more: Any) -> float:
    return honest(*given, **{**more, "relation": "add_remove"})


def _accounting(change: Callable[[dpa.DpEvent, int], tuple[dpa.DpEvent, int]]) -> Plant:
    """The accountant counts other events than it is given: (event, count) -> (event, count). The audit's own is the same."""

    @around("tally", ledger, accounting)
    def tally(honest: Any, items: Iterable[tuple[dpa.DpEvent, int]]) -> Tally:
        return honest([change(event, count) for event, count in items])

    return tally


def _rate_squared(event: dpa.DpEvent, count: int) -> tuple[dpa.DpEvent, int]:
    return with_rate(event, getattr(event, "sampling_probability", 1.0)), count


def _root_of_count(event: dpa.DpEvent, count: int) -> tuple[dpa.DpEvent, int]:
    if isinstance(event, dpa.SelfComposedDpEvent):
        return event.event, math.isqrt(event.count * count)
    return event, math.isqrt(count)


def _flagged(**flags: bool | None) -> Plant:
    """Flags set, or taken away, in every output."""
    named = {name.replace("_of_", ":"): value for name, value in flags.items()}

    def change(mechanism: Any, output: Output, noise: Noise) -> Output:
        kept = {name: value for name, value in {**output.flags, **named}.items() if value is not None}
        return replace(output, flags=kept)

    return outputs(change)


RECORDS, ROUNDS = ("records",), ("rounds",)
ACCOUNTING_FAULTS = (
    Fault("event_quieter", "twice the noise multiplier is stated",
          outputs(lambda m, o, n: replace(o, event=with_multiplier(o.event, 2)))),
    Fault("event_and_scale_quieter", "twice the noise multiplier and twice the noise are stated",
          outputs(lambda m, o, n: replace(o, event=with_multiplier(o.event, 2), noise_std=2 * o.noise_std))),
    Fault("event_lower_rate", "half the rate of sampling is stated",
          outputs(lambda m, o, n: replace(o, event=with_rate(o.event, 0.5))), ("sampled",)),
    Fault("row_quieter", "the ledger enters twice the noise multiplier", _protected(lambda r: replace(r, event=with_multiplier(r.event, 2)))),
    Fault("row_count_dropped", "several releases are entered as one", _protected(lambda r: replace(r, count=1)), ("counted",)),
    Fault("row_round_missing", "only the first round is entered", _protected(_free_later), ROUNDS, rounds=2),
    Fault("row_own_cell", "rounds are entered as if they read different records", _protected(_own_cell), ROUNDS, rounds=2),
    Fault("row_other_client", "later rounds are entered for other clients",
          _protected(lambda r: replace(r, client=(r.client + r.round) % CLIENTS)), ROUNDS, rounds=2),
    Fault("row_without_origin", "what was computed from releases is entered as if from nothing", _rows(_rootless), RECORDS),
    Fault("row_tells_count", "the ledger says how many records came", _counted(lambda o, n: replace(o, why=f"{o.why}; {n} records")), RECORDS),
    Fault("row_tells_normaliser", "sum, noise and row are divided by the number of records", _by_realised_count, RECORDS),
    Fault("accountant_half", "half of the composed epsilon is stated", around("epsilon_of", ledger)(_half)),
    Fault("accountant_half_everywhere", "the accountant states half, to the audit too", around("epsilon_of", ledger, accounting)(_half)),
    Fault("accountant_root_of_count", "n releases are composed as if they were the root of n", _accounting(_root_of_count), ("counted",)),
    Fault("accountant_rate_squared", "the rate of sampling is squared", _accounting(_rate_squared), ("sampled",)),
    Fault("sensitivity_beyond_noise", "twice the sensitivity is entered beside the same noise",
          outputs(lambda m, o, n: replace(o, sensitivity=2 * o.sensitivity if o.sensitivity else None))),
    Fault("relation_mismatch", "replacement is stated and add/remove is accounted", around("epsilon_of", ledger)(_other_relation),
          settings=("privacy.relation=replace",)),
    Fault("relation_flag_missing", "a record for each row, and add/remove is stated", _flagged(relation_of_zero_out=None),
          ("features",), ("privacy.relation=add_remove",)),
    Fault("unit_called_client", "records are clipped and a client is stated to be protected", _flagged(unit_of_client=True),
          RECORDS, ("privacy.unit=client",)),
    Fault("unit_called_record", "a client's update is clipped and a record is stated to be protected",
          _flagged(unit_of_client=None), ("client",), ("privacy.unit=record",)),
    Fault("unit_not_declared", "the ledger is for clients, the mechanism for records", nullcontext, RECORDS, ("privacy.unit=client",),
          refusal="its mechanism protects a record, this ledger's unit is a client"),
)  # fmt: skip
