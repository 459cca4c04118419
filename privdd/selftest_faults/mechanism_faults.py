"""Faults of clipping, of contributions that depend on more than their own record, and of what the
ledger and the accountant count."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

import dp_accounting as dpa
import torch
from torch import Tensor

from privdd.auditing.dp_tests.instrumentation import InstrumentedContext
from privdd.core.types import Tensors
from privdd.distillation import private_matching
from privdd.distillation.public_map import PublicRows
from privdd.federated import channel
from privdd.federated.channel import POST_PROCESSING
from privdd.methods import dp_head
from privdd.privacy import accounting, calibration, clipping, ledger, trade_off
from privdd.privacy.clipping import count_records
from privdd.privacy.events import Tally
from privdd.privacy.mechanism import LedgerRow, Output
from privdd.privacy.mechanisms import ClippedSum, client_level, clipped_sum, gaussian_features
from privdd.privacy.noise import Noise
from privdd.privacy.noise_laws import noise_law
from privdd.selftest_faults.fault import (
    Fault,
    FaultKind,
    FaultMoment,
    FaultScope,
    Patch,
    combine_patches,
    wrap_functions,
)
from privdd.selftest_faults.noise_faults import patch_outputs
from privdd.training import dp_sgd

FactorRule = Callable[[Tensor, float], Tensor]
RowChange = Callable[[Tensor], Tensor]
NEEDS_RECORDS = ("records",)
NEEDS_ROUNDS = ("rounds",)
NEEDS_CLIPPING = ("clipped",)
NEEDS_CLASSES = ("records", "classes")
NEEDS_STEPS = ("records", "steps")
CLIENT_COUNT = 3


@wrap_functions("head_gradients", dp_head)
def _remove_own_bound(honest: Any, weight: Any, rows: Any, y: Any, longest: Any = None) -> Any:
    """A method's own bound on its contributions taken away: nothing but the mechanism's clipping is
    left."""
    return honest(weight, rows, y)


def _patch_clipping(rule: FactorRule) -> Callable[[FaultMoment], Patch]:
    """Change the factor of each record: (norms (n,), clip norm) -> (n,)."""

    def at_moment(moment: FaultMoment) -> Patch:
        @wrap_functions("clip_factors", clipping, gaussian_features)
        def change_factors(honest: FactorRule, norms: Tensor, clip_norm: float) -> Tensor:
            return (rule if moment.is_active(len(norms)) else honest)(norms, clip_norm)

        return combine_patches(change_factors, _remove_own_bound)

    return at_moment


def _clip_to_double_norm(norms: Tensor, clip_norm: float) -> Tensor:
    return (2 * clip_norm / norms.clamp_min(1e-30)).clamp_max(1.0) * torch.isfinite(norms)


def _clip_to_norm_by_count(norms: Tensor, clip_norm: float) -> Tensor:
    return (clip_norm * len(norms) / norms.clamp_min(1e-30)).clamp_max(1.0) * torch.isfinite(norms)


def _scale_by_mean_norm(norms: Tensor, clip_norm: float) -> Tensor:
    return torch.nan_to_num(
        torch.full_like(norms, clip_norm) / norms.mean().clamp_min(1e-30)
    ).clamp_max(1.0)


@wrap_functions("clipped_sum", clipped_sum)
def _clip_mean(
    honest: Any, value: Tensors, clip_norm: float, *arguments: Any, **settings: Any
) -> Tensor:
    """The mean of a batch is clipped in place of each record."""
    total = {name: tensor.detach().float().sum(0, keepdim=True) for name, tensor in value.items()}
    return honest(total, clip_norm * max(1, count_records(value)), *arguments, **settings)


@wrap_functions("clipped_sum", clipped_sum, client_level)
def _clip_each_tensor(honest: Any, value: Tensors, *arguments: Any, **settings: Any) -> Tensor:
    """Each tensor of a record is clipped by itself."""
    return torch.cat(
        [honest({name: tensor}, *arguments, **settings) for name, tensor in value.items()]
    )


@wrap_functions("clipped_sum", clipped_sum, client_level)
def _clip_each_number(
    honest: Any, value: Tensors, clip_norm: float, *arguments: Any, **settings: Any
) -> Tensor:
    """Each number is cut to [-C, C], in place of each record's norm."""
    cut = {name: tensor.detach().clamp(-clip_norm, clip_norm) for name, tensor in value.items()}
    return honest(cut, 1e6 * clip_norm, *arguments, **settings)


@wrap_functions("__call__", ClippedSum)
def _divide_by_count(honest: Any, self: ClippedSum, value: Tensors, noise: Noise) -> Output:
    """Divided by the number of records that came, with the noise that is stated for the public
    normaliser."""
    count = float(max(1, count_records(value)))
    times = count / self.normaliser  # so that the noise stays what is stated
    changed = replace(self, normaliser=count, noise_multiplier=self.noise_multiplier * times)
    return replace(
        honest(changed, value, noise),
        event=self.event,
        sensitivity=self.clip_norm / self.normaliser,
    )


def _patch_contributions(change: RowChange) -> Patch:
    """Change the contributions of all records at once: rows (n, ...) -> (n, ...)."""

    def change_rows(honest: Any, *arguments: Any) -> Tensor:
        return change(honest(*arguments))

    @wrap_functions("record_gradients", dp_sgd)
    def change_gradients(honest: Any, *arguments: Any) -> Tensors:
        return {name: change(tensor) for name, tensor in honest(*arguments).items()}

    return combine_patches(
        wrap_functions("record_embeddings", private_matching)(change_rows),
        change_gradients,
        wrap_functions("embed_rows", PublicRows)(change_rows),
    )


def _patch_at_times(change: RowChange) -> Callable[[FaultMoment], Patch]:
    return lambda moment: _patch_contributions(
        lambda rows: change(rows) if moment.is_active(len(rows)) else rows
    )


def _add_stale_part() -> AbstractContextManager[None]:
    """Each contribution has a part of what was contributed before, kept without noise."""
    earlier: dict[tuple[int, ...], Tensor] = {}

    def add_previous(rows: Tensor) -> Tensor:
        shape = tuple(rows.shape[1:])
        before = earlier.get(shape, torch.zeros(shape))
        if len(rows):
            earlier[shape] = rows.detach().mean(0)
        return rows + 0.5 * before.to(rows)

    return _patch_contributions(add_previous)()


def _standardise_rows(rows: Tensor) -> Tensor:
    """Standardised over the batch, as batch norm does."""
    if len(rows) > 1:
        return (rows - rows.mean(0)) / rows.std(0, unbiased=False).clamp_min(1e-3)
    return rows


def _amplify_largest(rows: Tensor) -> Tensor:
    """Ten times the record whose numbers add up to most, a tenth of each other: lengths may all be
    the same."""
    sums = rows.flatten(1).sum(1)
    if len(rows):
        times = torch.where(sums >= sums.max(), 10.0, 0.1)
    else:
        times = sums
    return rows * times.to(rows).reshape(-1, *(1,) * (rows.ndim - 1))


@wrap_functions("record_gradients", dp_sgd)
def _scale_gradients_by_count(honest: Any, *arguments: Any) -> Tensors:
    """Gradients larger than the clip norm hide a factor: here their norm is 20 / n, within it for n
    of at least 20."""
    grads = honest(*arguments)
    norms = torch.cat([t.flatten(1) for t in grads.values()], 1).norm(dim=1).clamp_min(1e-12)
    size = 20 / max(len(norms), 1) / norms
    return {name: t * size.reshape(-1, *(1,) * (t.ndim - 1)) for name, t in grads.items()}


@wrap_functions("mechanism", channel.ClientContext, InstrumentedContext)
def _count_in_two_classes(
    honest: Any, self: Any, name: str, contributions: Tensors, *, partition: str | None = None
) -> Tensors:
    earlier = self.__dict__.setdefault("before", {})
    joined = contributions
    if partition is not None:
        before = earlier.get(name, {n: t[:0] for n, t in contributions.items()})
        joined = {n: torch.cat([before[n], t]) for n, t in contributions.items()}
        earlier[name] = contributions
    return honest(self, name, joined, partition=partition)


CLIP_KINDS = {
    "missing": FaultKind(
        "nothing is clipped",
        _patch_clipping(lambda norms, clip_norm: torch.isfinite(norms).to(norms)),
        ("clipped",),
        ("round", "call"),
    ),
    "double": FaultKind(
        "clipped to twice the stated norm",
        _patch_clipping(_clip_to_double_norm),
        ("clipped",),
        ("round", "call"),
    ),
    "by_mean_norm": FaultKind(
        "all records are scaled by the mean of their norms",
        _patch_clipping(_scale_by_mean_norm),
        ("records", "clipped"),
        ("round", "call"),
    ),
    "by_count": FaultKind(
        "clipped to the stated norm times the number of records",
        _patch_clipping(_clip_to_norm_by_count),
        ("records", "clipped"),
        ("round", "call"),
    ),
}
CONTRIBUTION_KINDS = {
    "centred": FaultKind(
        "the client's own mean is taken off each contribution",
        _patch_at_times(lambda rows: rows - rows.mean(0) if len(rows) else rows),
        NEEDS_RECORDS,
    ),
    "standardised": FaultKind(
        "contributions standardised over the batch",
        _patch_at_times(_standardise_rows),
        NEEDS_RECORDS,
    ),
    "odd": FaultKind(
        "a hundredth if the number of records is odd",
        _patch_at_times(lambda rows: rows * (0.01 if len(rows) % 2 else 1.0)),
        NEEDS_RECORDS,
    ),
    "sorted": FaultKind(
        "a record's contribution depends on whether it is the largest",
        _patch_at_times(_amplify_largest),
        NEEDS_RECORDS,
    ),
}
CLIPPING_FAULTS = (
    *(kind.fault_at(f"clip_{name}", says=kind.says) for name, kind in CLIP_KINDS.items()),
    replace(
        CLIP_KINDS["double"].fault_at(
            "clip_double_elsewhere",
            FaultScope(client="other"),
            "clipped to twice the stated norm at a client that is not audited",
        ),
        needs=(*NEEDS_RECORDS, *NEEDS_CLIPPING),
    ),
    Fault(
        "clip_the_mean",
        "the mean of the batch is clipped, not each record",
        combine_patches(_clip_mean, _remove_own_bound),
        (*NEEDS_RECORDS, *NEEDS_CLIPPING),
    ),
    Fault(
        "clip_tensor_by_tensor",
        "each tensor is clipped by itself",
        combine_patches(_clip_each_tensor, _remove_own_bound),
        ("several", *NEEDS_CLIPPING),
    ),
    Fault(
        "clip_number_by_number",
        "each number is cut, not each record's norm",
        combine_patches(_clip_each_number, _remove_own_bound),
        NEEDS_CLIPPING,
    ),
    Fault(
        "normaliser_is_the_count",
        "divided by the number of records that came, with the stated noise",
        _divide_by_count,
        (*NEEDS_RECORDS, "normalised"),
    ),
    *(
        kind.fault_at(f"contributions_{name}", says=kind.says)
        for name, kind in CONTRIBUTION_KINDS.items()
    ),
    Fault(
        "contributions_by_count",
        "20 over the number of records",
        _patch_contributions(lambda rows: rows * 20 / max(len(rows), 1)),
        NEEDS_CLASSES,
    ),
    Fault(
        "gradients_by_count",
        "gradients are scaled to the norm 20 over the number of records",
        _scale_gradients_by_count,
        NEEDS_STEPS,
    ),
    Fault(
        "record_in_two_classes",
        "each record counts in its own class and in the next",
        _count_in_two_classes,
        NEEDS_CLASSES,
    ),
    Fault(
        "contributions_stale",
        "the last contribution is kept without noise and added again",
        _add_stale_part,
        NEEDS_RECORDS,
    ),
)


def with_multiplier(event: dpa.DpEvent, times: float) -> dpa.DpEvent:
    """The event as if its noise multiplier were so many times as large."""
    if noise_law(event) is not None:
        multiplier = event.noise_multiplier  # type: ignore[attr-defined]
        return type(event)(multiplier * times)  # type: ignore[call-arg]
    if isinstance(event, dpa.PoissonSampledDpEvent):
        return dpa.PoissonSampledDpEvent(
            event.sampling_probability, with_multiplier(event.event, times)
        )
    return event


def with_sampling_rate(event: dpa.DpEvent, times: float) -> dpa.DpEvent:
    """The event as if records were sampled at so many times the rate."""
    if isinstance(event, dpa.PoissonSampledDpEvent):
        return dpa.PoissonSampledDpEvent(event.sampling_probability * times, event.event)
    return event


def _patch_rows(change: Callable[[LedgerRow], LedgerRow]) -> Patch:
    """Rows of mechanisms, and of what clients computed from them, changed as the ledger takes them
    in."""

    @wrap_functions("append", ledger.Ledger)
    def append_rows(
        honest: Any, self: Any, rows: Sequence[LedgerRow], *, absolute: bool = False
    ) -> tuple[int, ...]:
        return honest(
            self, [change(row) if row.client >= 0 else row for row in rows], absolute=absolute
        )

    return append_rows


def _patch_protected_rows(change: Callable[[LedgerRow], LedgerRow]) -> Patch:
    return _patch_rows(
        lambda row: row if isinstance(row.event, ledger.UNPROTECTED_EVENTS) else change(row)
    )


def _patch_by_count(tells: Callable[[Output, int], Output]) -> Patch:
    """Change the statement of a clipped sum by the number of records."""

    @wrap_functions("__call__", ClippedSum)
    def call_mechanism(honest: Any, self: ClippedSum, value: Tensors, noise: Noise) -> Output:
        return tells(honest(self, value, noise), count_records(value))

    return call_mechanism


@wrap_functions("__call__", ClippedSum)
def _normalise_by_count(honest: Any, self: ClippedSum, value: Tensors, noise: Noise) -> Output:
    """Sum, noise and what is stated of them, all divided by the number of records that came."""
    return honest(replace(self, normaliser=float(max(1, count_records(value)))), value, noise)


def _halve_epsilon(honest: Any, *arguments: Any, **settings: Any) -> float:
    return honest(*arguments, **settings) / 2


def _account_add_remove(honest: Any, *arguments: Any, **settings: Any) -> float:
    return honest(*arguments, **{**settings, "relation": "add_remove"})


def _patch_accountant(change: Callable[[dpa.DpEvent, int], tuple[dpa.DpEvent, int]]) -> Patch:
    """The accountant counts other events than it is given: (event, count) -> (event, count). The
    audit's own is the same."""

    @wrap_functions("tally_events", ledger, accounting, calibration, trade_off)
    def tally_changed_events(honest: Any, items: Iterable[tuple[dpa.DpEvent, int]]) -> Tally:
        return honest([change(event, count) for event, count in items])

    return tally_changed_events


def _take_root_of_count(event: dpa.DpEvent, count: int) -> tuple[dpa.DpEvent, int]:
    if isinstance(event, dpa.SelfComposedDpEvent):
        return event.event, math.isqrt(event.count * count)
    return event, math.isqrt(count)


def _patch_flags(**flags: bool | None) -> Patch:
    """Flags set, or taken away, in every output."""
    named = {name.replace("_of_", ":"): value for name, value in flags.items()}

    def change_flags(mechanism: Any, output: Output, noise: Noise) -> Output:
        flags = {
            name: value for name, value in {**output.flags, **named}.items() if value is not None
        }
        return replace(output, flags=flags)

    return patch_outputs(change_flags)


ACCOUNTING_FAULTS = (
    Fault(
        "event_quieter",
        "twice the noise multiplier is stated",
        patch_outputs(lambda m, o, n: replace(o, event=with_multiplier(o.event, 2))),
    ),
    Fault(
        "event_and_scale_quieter",
        "twice the noise multiplier and twice the noise are stated",
        patch_outputs(
            lambda m, o, n: replace(o, event=with_multiplier(o.event, 2), noise_std=2 * o.noise_std)
        ),
    ),
    Fault(
        "event_lower_rate",
        "half the rate of sampling is stated",
        patch_outputs(lambda m, o, n: replace(o, event=with_sampling_rate(o.event, 0.5))),
        ("sampled",),
    ),
    Fault(
        "row_quieter",
        "the ledger enters twice the noise multiplier",
        _patch_protected_rows(lambda r: replace(r, event=with_multiplier(r.event, 2))),
    ),
    Fault(
        "row_count_dropped",
        "several releases are entered as one",
        _patch_protected_rows(lambda r: replace(r, count=1)),
        ("counted",),
    ),
    Fault(
        "row_round_missing",
        "only the first round is entered",
        _patch_protected_rows(lambda r: replace(r, event=dpa.NoOpDpEvent()) if r.round else r),
        NEEDS_ROUNDS,
        rounds=2,
    ),
    Fault(
        "row_own_cell",
        "rounds are entered as if they read different records",
        _patch_protected_rows(
            lambda r: replace(r, partition=f"{r.partition or 'label:0'}{r.round}")
        ),
        NEEDS_ROUNDS,
        rounds=2,
    ),
    Fault(
        "row_other_client",
        "later rounds are entered for other clients",
        _patch_protected_rows(lambda r: replace(r, client=(r.client + r.round) % CLIENT_COUNT)),
        NEEDS_ROUNDS,
        rounds=2,
    ),
    Fault(
        "row_without_origin",
        "a value computed from releases is entered without its origin",
        _patch_rows(lambda r: replace(r, post_of=()) if r.why == POST_PROCESSING else r),
        NEEDS_RECORDS,
    ),
    Fault(
        "row_tells_count",
        "the ledger says how many records came",
        _patch_by_count(lambda o, n: replace(o, why=f"{o.why}; {n} records")),
        NEEDS_RECORDS,
    ),
    Fault(
        "row_tells_normaliser",
        "sum, noise and row are divided by the number of records",
        _normalise_by_count,
        NEEDS_RECORDS,
    ),
    Fault(
        "accountant_half",
        "half of the composed epsilon is stated",
        wrap_functions("epsilon_of", ledger)(_halve_epsilon),
    ),
    Fault(
        "accountant_half_everywhere",
        "the accountant states half, to the audit too",
        wrap_functions("epsilon_of", ledger, accounting)(_halve_epsilon),
    ),
    Fault(
        "accountant_root_of_count",
        "n releases are composed as if they were the root of n",
        _patch_accountant(_take_root_of_count),
        ("counted",),
    ),
    Fault(
        "accountant_rate_squared",
        "the rate of sampling is squared",
        _patch_accountant(
            lambda e, n: (with_sampling_rate(e, getattr(e, "sampling_probability", 1.0)), n)
        ),
        ("sampled",),
    ),
    Fault(
        "sensitivity_beyond_noise",
        "twice the sensitivity is entered with the same noise",
        patch_outputs(
            lambda m, o, n: replace(o, sensitivity=2 * o.sensitivity if o.sensitivity else None)
        ),
    ),
    Fault(
        "relation_mismatch",
        "replacement is stated and add/remove is accounted",
        wrap_functions("epsilon_of", ledger)(_account_add_remove),
        settings=("privacy.relation=replace",),
    ),
    Fault(
        "relation_flag_missing",
        "a record for each row, and add/remove is stated",
        _patch_flags(relation_of_zero_out=None),
        ("features",),
        ("privacy.relation=add_remove",),
    ),
    Fault(
        "unit_called_client",
        "records are clipped and a client is stated to be protected",
        _patch_flags(unit_of_client=True),
        NEEDS_RECORDS,
        ("privacy.unit=client",),
    ),
    Fault(
        "unit_called_record",
        "a client's update is clipped and a record is stated to be protected",
        _patch_flags(unit_of_client=None),
        ("client",),
        ("privacy.unit=record",),
    ),
    Fault(
        "unit_not_declared",
        "the ledger is for clients, the mechanism for records",
        nullcontext,
        NEEDS_RECORDS,
        ("privacy.unit=client",),
        refusal="its mechanism protects a record, this ledger's unit is a client",
    ),
)
