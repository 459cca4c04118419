"""Gaussian noise. Its compositions are Gaussian again, so that the accounting adds up 1 / z^2."""

from __future__ import annotations

import dp_accounting as dpa
from torch import Tensor

from privdd.privacy.noise_laws.law import NoiseLaw


def _keep_scores(residuals: Tensor) -> Tensor:
    return residuals


LAW = NoiseLaw("gaussian", dpa.GaussianDpEvent, 2, _keep_scores)
