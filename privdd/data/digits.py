"""The embedded default: scikit-learn's digits, real scans that need no network and no file."""

from __future__ import annotations

from pathlib import Path

import torch

from privdd.core.keys import Keys
from privdd.data.dataset import Dataset, dataset

NOTE = "scikit-learn's digits: 1797 handwritten digits (the test part of UCI optdigits) at 8x8, every fifth for test"


def digits(name: str, root: Path | None, keys: Keys) -> Dataset:
    """1438 training and 359 test images (1, 8, 8); the split is fixed: every fifth record is for test."""
    from sklearn.datasets import load_digits  # slow to import, so only here

    bunch = load_digits()
    x = torch.from_numpy(bunch.images / 16.0).float().unsqueeze(1)
    y = torch.from_numpy(bunch.target).long()
    test = torch.arange(len(y)) % 5 == 4
    return dataset(name, NOTE, 10, (x[~test], y[~test]), (x[test], y[test]))
