"""Protected counts and statistics, without noise equal to the plain ones."""

from __future__ import annotations

import torch

from privdd.distillation.noisy_embedding import class_counts, class_statistics
from privdd.privacy.mechanisms import ClippedSum
from tests.contexts import CLASSES, context, records


def test_counts_without_noise_are_the_counts() -> None:
    data = records(30)
    ctx = context({"class_counts": ClippedSum(1.0, 1.0)}, silent=True)
    expected = torch.bincount(data.y, minlength=CLASSES)
    assert torch.allclose(class_counts(data, range(CLASSES), ctx), expected.float(), atol=1e-3)


def test_one_record_changes_the_counts_by_one() -> None:
    data = records(30)
    values = []
    for part in (data, data.take(range(29))):
        ctx = context({"class_counts": ClippedSum(1.0, 1.0)}, silent=True)
        class_counts(part, range(CLASSES), ctx)
        values.append(ctx.exact[0][1].exact["count"])  # type: ignore[index]
    assert float((values[0] - values[1]).norm()) <= 1


def test_statistics_without_noise_are_the_statistics() -> None:
    data = records(40)
    ctx = context({"class_statistics": ClippedSum(1.0, 3**0.5 + 1e-3, 1.0, 7.0)}, silent=True)
    mean, std = class_statistics(data, range(CLASSES), ctx)
    for label in range(CLASSES):
        own = data.x[data.y == label]
        assert torch.allclose(mean[label], own.mean((0, 2, 3)), atol=1e-4)
        assert torch.allclose(std[label], own.transpose(0, 1).flatten(1).std(1, correction=0), atol=1e-3)


def test_absent_classes_are_released_too() -> None:
    data = records(10, classes=1)
    ctx = context({"class_statistics": ClippedSum(1.0, 3**0.5)})
    mean, std = class_statistics(data, range(CLASSES), ctx)
    assert [row.partition for row in ctx.rows] == [f"label:{c}" for c in range(CLASSES)]
    assert ((mean >= 0) & (mean <= 1)).all() and (std >= 0).all()
