"""Releases of a run as the analyst observes them, against sums written out."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import dp_accounting as dpa
import numpy as np
import pytest
import torch

from privdd.auditing.observed_releases import (
    ObservedRelease,
    TranscriptReader,
    is_noised_sum,
    noised_sum_of_release,
)
from privdd.core.types import Records, name_class_cell
from privdd.federated.noise_log import ObservedRound
from privdd.privacy.mechanisms import ClippedSum

MECHANISM = ClippedSum(1.0, clip_norm=10.0, normaliser=2.0)
ROWS = torch.tensor([[1.0, 0.0], [0.0, 2.0], [3.0, 1.0], [-1.0, 4.0]])


def records(*labels: int) -> Records:
    return Records(
        torch.zeros(len(labels), 1, 1, 1), torch.tensor(labels), torch.arange(len(labels))
    )


def release(sampled: Any, value: torch.Tensor, partition: str | None = None) -> ObservedRelease:
    return ObservedRelease("sums", partition, {"sum": ROWS}, sampled, {"sum": value})


def test_what_the_base_adds_is_taken_off_a_release() -> None:
    sampled = torch.tensor([True, False])
    value = (ROWS[0] + ROWS[2]) / 2  # the first candidate was in, the second was not
    held = noised_sum_of_release(MECHANISM, release(sampled, value), records(0, 1), records(0, 1))
    assert held is not None
    positions, effects, observed, scale, probability = held
    assert positions.tolist() == [0, 1]
    assert effects == pytest.approx(ROWS[2:].numpy() / 2, abs=1e-3)
    assert observed == pytest.approx(ROWS[2].numpy() / 2, abs=1e-3)
    assert (scale, probability) == (5.0, 1.0)


def test_a_release_of_a_class_has_its_candidates_alone() -> None:
    value = torch.zeros(2)
    of_class = release(None, value, name_class_cell(1))
    base = records(1, 0, 1, 1)  # three of class 1, and one candidate: four contributions
    held = noised_sum_of_release(MECHANISM, of_class, base, records(0, 1))
    assert held is not None and held[0].tolist() == [1]
    assert held[2] == pytest.approx(-ROWS[:3].sum(0).numpy() / 2, abs=1e-3)
    assert noised_sum_of_release(MECHANISM, of_class, base, records(0, 0)) is None
    with pytest.raises(ValueError, match="4 contributions of 2"):
        noised_sum_of_release(MECHANISM, of_class, records(1, 1), records(1, 0))


def test_a_repetition_that_samples_something_else_is_refused() -> None:
    sampled = torch.tensor([True, False])
    observed = ObservedRound(0, {}, {}, ({"sum": ROWS[0]},), (("sums", sampled),))
    noted: list[ObservedRelease] = []
    reader = TranscriptReader(observed, noted.append)
    reader.on_sample("sums", 0.5, torch.ones(2, dtype=torch.bool))
    value = reader.on_release(MECHANISM, "sums", None, None, {"sum": ROWS})
    assert torch.equal(value["sum"], ROWS[0]) and np.array_equal(noted[0].taken, sampled)
    with pytest.raises(ValueError, match="local work must repeat"):
        TranscriptReader(observed, noted.append).on_sample("counts", 0.5, sampled)


def test_sums_with_gaussian_noise_are_noised_sums() -> None:
    assert is_noised_sum(MECHANISM) and is_noised_sum(ClippedSum(1.0, 1.0, 0.5))
    laplace: Any = SimpleNamespace(per_record=True, event=dpa.LaplaceDpEvent(1.0))
    of_clients: Any = SimpleNamespace(per_record=False)
    assert not is_noised_sum(laplace) and not is_noised_sum(of_clients)
