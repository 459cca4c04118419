"""Faults of clipping, of the normaliser, and of contributions that depend on more than their own record."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from privdd.auditing.guarantees.recording_context import Witness
from privdd.core.types import Tensors
from privdd.distillation import noisy_embedding
from privdd.distillation.public_head import PublicRows
from privdd.federated import channel
from privdd.methods import dp_head
from privdd.planted.fault import Fault, Kind, Moment, Plant, around, swapped, together
from privdd.privacy import clipping
from privdd.privacy.lattice import ROOM, Lattice
from privdd.privacy.mechanism import Output
from privdd.privacy.mechanisms import ClippedSum, client_level, clipped_sum, gaussian_features
from privdd.privacy.noise import Noise
from privdd.training import dp_sgd

Factors = Callable[[Tensor, float], Tensor]
Rows = Callable[[Tensor], Tensor]


@around("head_gradients", dp_head)
def _unbounded(honest: Any, weight: Any, rows: Any, y: Any, longest: Any = None) -> Any:
    """A method's own bound on its contributions taken away: nothing but the mechanism's clipping is left."""
    return honest(weight, rows, y)


def _factors(made: Factors) -> Plant:
    """What each record is multiplied by: (norms (n,), clip norm) -> (n,). Sums are then counted in 64 bits."""
    under = Lattice.under
    roomy = staticmethod(lambda std, norm: replace(under(std, norm), largest=ROOM))
    places = ((clipping, "clip_factors", made), (gaussian_features, "clip_factors", made), (Lattice, "under", roomy))
    return together(lambda: swapped(*places), _unbounded)


def _clipped(made: Factors) -> Callable[[Moment], Plant]:
    honest = clipping.clip_factors

    def at(moment: Moment) -> Plant:
        return _factors(lambda norms, c: (made if moment.active(len(norms)) else honest)(norms, c))

    return at


def _doubled(norms: Tensor, clip_norm: float) -> Tensor:
    return (2 * clip_norm / norms.clamp_min(1e-30)).clamp_max(1.0) * torch.isfinite(norms)


def _by_count(norms: Tensor, clip_norm: float) -> Tensor:
    return (clip_norm * len(norms) / norms.clamp_min(1e-30)).clamp_max(1.0) * torch.isfinite(norms)


def _unclipped(norms: Tensor, clip_norm: float) -> Tensor:
    return torch.isfinite(norms).to(norms)


def _by_mean(norms: Tensor, clip_norm: float) -> Tensor:
    return torch.nan_to_num(torch.full_like(norms, clip_norm) / norms.mean().clamp_min(1e-30)).clamp_max(1.0)


def _summed(value: Tensors) -> tuple[Tensors, int]:
    size = max(1, len(next(iter(value.values()))))
    return {name: tensor.detach().float().sum(0, keepdim=True) for name, tensor in value.items()}, size


@around("clipped_sum", clipped_sum)
def _mean_clipped(honest: Any, value: Tensors, clip_norm: float, *more: Any, **settings: Any) -> Tensor:
    """The mean of a batch is clipped in place of each record."""
    total, size = _summed(value)
    return honest(total, clip_norm * size, *more, **settings)


@around("clipped_sum", clipped_sum, client_level)
def _tensor_by_tensor(honest: Any, value: Tensors, *more: Any, **settings: Any) -> Tensor:
    """Each tensor of a record is clipped by itself."""
    return torch.cat([honest({name: tensor}, *more, **settings) for name, tensor in value.items()])


@around("clipped_sum", clipped_sum, client_level)
def _number_by_number(honest: Any, value: Tensors, clip_norm: float, *more: Any, **settings: Any) -> Tensor:
    """Each number is cut to [-C, C], in place of each record's norm."""
    cut = {name: tensor.detach().clamp(-clip_norm, clip_norm) for name, tensor in value.items()}
    return honest(cut, 1e6 * clip_norm, *more, **settings)


@around("__call__", ClippedSum)
def _divided_by_the_count(honest: Any, self: ClippedSum, value: Tensors, noise: Noise) -> Output:
    """Divided by the number of records that came, with the noise that is stated for the public normaliser."""
    count = float(max(1, len(next(iter(value.values())))))
    times = count / self.normaliser  # so that the noise stays what is stated
    other = replace(self, normaliser=count, noise_multiplier=self.noise_multiplier * times)
    return replace(honest(other, value, noise), event=self.event, sensitivity=self.clip_norm / self.normaliser)


def _contributions(change: Rows) -> Plant:
    """What records contribute, changed for all of them at once: rows (n, ...) -> (n, ...)."""

    def rows(honest: Any, *given: Any) -> Tensor:
        return change(honest(*given))

    @around("record_gradients", dp_sgd)
    def grads(honest: Any, *given: Any) -> Tensors:
        return {name: change(tensor) for name, tensor in honest(*given).items()}

    return together(around("record_embeddings", noisy_embedding)(rows), grads, around("of", PublicRows)(rows))


def _at_times(change: Rows) -> Callable[[Moment], Plant]:
    return lambda moment: _contributions(lambda rows: change(rows) if moment.active(len(rows)) else rows)


def _centred(rows: Tensor) -> Tensor:
    return rows - rows.mean(0) if len(rows) else rows


def _odd(rows: Tensor) -> Tensor:
    return rows * (0.01 if len(rows) % 2 else 1.0)


def _stale() -> AbstractContextManager[None]:
    """Each contribution has a part of what was contributed before, kept without noise."""
    kept: dict[tuple[int, ...], Tensor] = {}

    def change(rows: Tensor) -> Tensor:
        shape = tuple(rows.shape[1:])
        before = kept.get(shape, torch.zeros(shape))
        if len(rows):
            kept[shape] = rows.detach().mean(0)
        return rows + 0.5 * before.to(rows)

    return _contributions(change)()


def _noised_moments(rows: Tensor) -> Tensor:
    """Standardised over the batch, as batch norm does."""
    return (rows - rows.mean(0)) / rows.std(0, unbiased=False).clamp_min(1e-3) if len(rows) > 1 else rows


def _largest_most(rows: Tensor) -> Tensor:
    """Ten times the record whose numbers add up to most, a tenth of each other: lengths may all be the same."""
    sums = rows.flatten(1).sum(1)
    times = torch.where(sums >= sums.max(), 10.0, 0.1) if len(rows) else sums
    return rows * times.to(rows).reshape(-1, *(1,) * (rows.ndim - 1))


@around("record_gradients", dp_sgd)
def _gradients_by_count(honest: Any, *given: Any) -> Tensors:
    """Gradients larger than the clip norm hide a factor: here their norm is 20 / n, within it for n of at least 20."""
    grads = honest(*given)
    norms = torch.cat([t.flatten(1) for t in grads.values()], 1).norm(dim=1).clamp_min(1e-12)
    size = 20 / max(len(norms), 1) / norms
    return {name: t * size.reshape(-1, *(1,) * (t.ndim - 1)) for name, t in grads.items()}


@around("mechanism", channel.ClientContext, Witness)
def _in_two_classes(
    honest: Any, self: Any, name: str, contributions: Tensors, *, partition: str | None = None
) -> Tensors:
    kept = self.__dict__.setdefault("before", {})
    both = contributions
    if partition is not None:
        before = kept.get(name, {n: t[:0] for n, t in contributions.items()})
        both = {n: torch.cat([before[n], t]) for n, t in contributions.items()}
        kept[name] = contributions
    return honest(self, name, both, partition=partition)


RECORDS = ("records",)
CLIP_KINDS = {
    "missing": Kind("nothing is clipped", _clipped(_unclipped), ("clipped",), ("round", "call"), limited=("records",)),
    "double": Kind("clipped to twice the stated norm", _clipped(_doubled), ("clipped",), ("round", "call"), limited=("records",)),
    "by_mean_norm": Kind("all records are scaled by the mean of their norms", _clipped(_by_mean), ("records", "clipped"), ("round", "call")),
    "by_count": Kind("clipped to the stated norm times the number of records", _clipped(_by_count), ("records", "clipped"), ("round", "call")),
}  # fmt: skip
CONTRIBUTION_KINDS = {
    "centred": Kind("the client's own mean is taken off each contribution", _at_times(_centred), RECORDS),
    "standardised": Kind("contributions standardised over the batch", _at_times(_noised_moments), RECORDS),
    "odd": Kind("a hundredth where the number of records is odd", _at_times(_odd), RECORDS),
    "sorted": Kind("a record's contribution depends on whether it is the largest", _at_times(_largest_most), RECORDS),
}
CLASSES, STEPS = ("records", "classes"), ("records", "steps")
CLIPPED = ("clipped",)
CLIPPING_FAULTS = (
    *(kind.fault(f"clip_{name}", says=kind.says) for name, kind in CLIP_KINDS.items()),
    Fault("clip_the_mean", "the mean of the batch is clipped, not each record", together(_mean_clipped, _unbounded), (*RECORDS, *CLIPPED)),
    Fault("clip_tensor_by_tensor", "each tensor is clipped by itself", together(_tensor_by_tensor, _unbounded), ("several", *CLIPPED)),
    Fault("clip_number_by_number", "each number is cut, not each record's norm", together(_number_by_number, _unbounded), CLIPPED),
    Fault("normaliser_is_the_count", "divided by the number of records that came, with the stated noise", _divided_by_the_count, (*RECORDS, "normalised")),
    *(kind.fault(f"contributions_{name}", says=kind.says) for name, kind in CONTRIBUTION_KINDS.items()),
    Fault("contributions_by_count", "20 over the number of records", _contributions(lambda rows: rows * 20 / max(len(rows), 1)), CLASSES),
    Fault("gradients_by_count", "gradients are brought to the norm 20 over the number of records", _gradients_by_count, STEPS),
    Fault("record_in_two_classes", "each record counts in its own class and in the next", _in_two_classes, CLASSES),
    Fault("contributions_stale", "what was contributed before is kept without noise and added again", _stale, RECORDS),
)  # fmt: skip
