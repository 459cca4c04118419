"""The published constants are those of the data: held against the records of what comes offline."""

from __future__ import annotations

import pytest

from privdd.core.rng import Keys
from privdd.data.dataset import PUBLISHED_SCALES, describe_standardisation
from privdd.data.sources import load_dataset


def test_each_channel_has_a_mean_within_the_pixels_and_a_deviation() -> None:
    for name, (mean, std) in PUBLISHED_SCALES.items():
        assert len(mean) == len(std) == (1 if "mnist" in name else 3)
        assert all(0 < m < 1 and 0 < s < 0.5 for m, s in zip(mean, std, strict=True))
        assert all(f"{value:g}" in describe_standardisation(name) for value in (*mean, *std))


@pytest.mark.extra("fashion_mnist")
def test_fashion_mnist_has_these_values_and_the_note_says_so() -> None:
    data = load_dataset("fashion_mnist", limit=4000, test_limit=10, standardise=True, keys=Keys(0))
    (mean,), (std,) = PUBLISHED_SCALES["fashion_mnist"]
    assert float(data.train.x.mean()) == pytest.approx(mean, abs=0.01)
    assert float(data.train.x.std()) == pytest.approx(std, abs=0.01)
    assert (
        data.train.x.min() == 0 and data.train.x.max() == 1
    )  # the records themselves stay as they are
    assert data.note.endswith(describe_standardisation("fashion_mnist"))
