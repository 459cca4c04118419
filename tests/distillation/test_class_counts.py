"""Protected counts, without noise equal to the plain ones."""

from __future__ import annotations

import torch

from privdd.distillation.noisy_embedding import release_class_counts
from privdd.privacy.mechanisms import ClippedSum
from tests.contexts import CLASSES, context, records


def test_counts_without_noise_are_the_counts() -> None:
    data = records(30)
    ctx = context({"class_counts": ClippedSum(1.0, 1.0)}, silent=True)
    expected = torch.bincount(data.y, minlength=CLASSES)
    assert torch.allclose(release_class_counts(data, range(CLASSES), ctx), expected.float(), atol=1e-3)


def test_one_record_changes_the_counts_by_one() -> None:
    data = records(30)
    values = []
    for part in (data, data.take(range(29))):
        ctx = context({"class_counts": ClippedSum(1.0, 1.0)}, silent=True)
        release_class_counts(part, range(CLASSES), ctx)
        values.append(ctx.observer.outputs[0][1].exact["count"])  # type: ignore[index]
    assert float((values[0] - values[1]).norm()) <= 1
