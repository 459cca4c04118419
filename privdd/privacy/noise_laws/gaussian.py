"""Gaussian noise. Its compositions are Gaussian again, so that the accounting adds up 1 / z^2."""

from __future__ import annotations

import dp_accounting as dpa
import torch

from privdd.privacy.noise_laws.law import NoiseLaw


def law() -> NoiseLaw:
    """Gaussian noise; its residuals are normal as they are (``torch.positive``, the identity)."""
    return NoiseLaw("gaussian", dpa.GaussianDpEvent, 2, torch.positive)
