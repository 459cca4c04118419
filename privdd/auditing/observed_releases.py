"""The releases of a client as the analyst of its guarantee observes them, and the noised sum that
each of them is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import dp_accounting as dpa
import numpy as np
import torch
from torch import Tensor

from privdd.auditing.dp_tests.clean_values import clean_numbers, flatten_tensors
from privdd.core.types import UNKNOWN_CELL, Records, Tensors, class_of_cell
from privdd.federated.channel import device_of
from privdd.federated.noise_log import ObservedRound
from privdd.privacy.clipping import count_records, take_records
from privdd.privacy.mechanism import Mechanism, Output
from privdd.privacy.noise import ZERO_NOISE

# The analyst of the guarantee knows the client's other records and which of them were sampled,
# every canary, the public maps, and every released output. So it runs the method's local work with
# all canaries present, is handed the real outputs in turn, and notes for each release what each
# canary would have added.


@dataclass(frozen=True)
class ObservedRelease:
    """One release. rows: contributions, the canaries' last; taken: (n,) bool of the client that
    really ran, or None where nothing was sampled; value: what was released."""

    name: str
    partition: str | None
    rows: Tensors
    taken: Tensor | None
    value: Tensors


@dataclass
class TranscriptReader:
    """Answers with the outputs of a run that is over (noiseless ones without a run), and tells
    ``note`` what was asked for them."""

    observed: ObservedRound | None
    note: Callable[[ObservedRelease], None]
    drawn: dict[str, Tensor] = field(default_factory=dict)
    answered: int = 0

    def __post_init__(self) -> None:
        self._coins: Iterator[tuple[str, Tensor]] = iter(
            self.observed.samples if self.observed else ()
        )

    def on_sample(self, name: str, probability: float, taken: Tensor) -> None:
        if self.observed is not None:
            expected, coins = next(self._coins, ("nothing", torch.zeros(0)))
            if expected != name:
                raise ValueError(
                    f"{expected} was sampled in the run and {name} in its repetition: local "
                    "work must repeat"
                )
            self.drawn[name] = coins

    def on_release(
        self, mechanism: Mechanism, name: str, output: Output | None, *asked: Any
    ) -> Tensors:
        partition, rows = asked
        if self.observed is None:
            value = mechanism(rows, ZERO_NOISE).value
        else:
            value = self.observed.outputs[self.answered]
        self.note(ObservedRelease(name, partition, rows, self.drawn.get(name), value))
        self.answered += 1
        return value


def is_noised_sum(mechanism: Mechanism) -> bool:
    """Whether its releases are sums over records with Gaussian noise, which the regression is
    for."""
    if not mechanism.per_record:  # it may have no event
        return False
    event = mechanism.event
    if isinstance(event, dpa.PoissonSampledDpEvent):
        inner = event.event
    else:
        inner = event
    return isinstance(inner, dpa.GaussianDpEvent)


NoisedSumRelease = tuple[np.ndarray, np.ndarray, np.ndarray, float, float]


def noised_sum_of_release(
    mechanism: Mechanism, release: ObservedRelease, base: Records, candidates: Records
) -> NoisedSumRelease | None:
    """One release as a noised sum over candidates; None where none of them is in its class.

    asked.taken: of ``base``, or of its records in this partition first. (which candidates (g,),
    what each adds (g, p), the release less what ``base`` adds (p,), noise scale, chance to be
    sampled.) Raises ValueError where contributions are not one a record, ``base`` first.
    """
    label = class_of_cell(release.partition)
    if label == UNKNOWN_CELL:
        raise ValueError(
            f"{release.name}: the cell {release.partition!r} is not a class: its records are "
            "unknown"
        )
    if label is None:
        base_positions = torch.ones(len(base), dtype=torch.bool)
        candidate_positions = torch.ones(len(candidates), dtype=torch.bool)
    else:
        base_positions = (base.y == label).cpu()
        candidate_positions = (candidates.y == label).cpu()
    positions = candidate_positions.nonzero()[:, 0].numpy()
    rows = release.rows
    size = int(base_positions.sum())
    if not len(positions):
        return None
    if count_records(rows) != size + len(positions):
        raise ValueError(
            f"{release.name}: {count_records(rows)} contributions of {size} + "
            f"{len(positions)} records"
        )
    sampled = torch.ones(size, dtype=torch.bool)
    if (
        release.taken is not None
    ):  # one coin for each of the client's records, or for each of this partition
        if len(release.taken) == len(base):
            sampled = release.taken[base_positions]
        else:
            sampled = release.taken[:size]
    silent = mechanism(take_records(rows, sampled.nonzero()[:, 0].to(device_of(rows))), ZERO_NOISE)
    effects = [
        clean_numbers(mechanism, take_records(rows, slice(size + i, size + i + 1)))
        for i in range(len(positions))
    ]
    observed = (
        flatten_tensors(release.value).double() - flatten_tensors(silent.exact or {}).double()
    )
    stack: np.ndarray = torch.stack(effects).double().cpu().numpy()
    return (
        positions,
        stack,
        observed.cpu().numpy(),
        silent.noise_std,
        float(mechanism.sampling_probability),
    )
