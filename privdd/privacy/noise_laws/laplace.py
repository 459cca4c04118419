"""Laplace noise of scale b, for changes in the L1 norm."""

from __future__ import annotations

import dp_accounting as dpa
import torch
from dp_accounting.pld import privacy_loss_distribution as pld
from torch import Tensor

from privdd.privacy.noise_laws.law import NoiseLaw


def law() -> NoiseLaw:
    """Laplace noise, as the accounting and the noise log know it."""
    return NoiseLaw(
        "laplace",
        dpa.LaplaceDpEvent,
        1,
        _normal_scores,
        privacy_loss=_privacy_loss,
        rdp_event=dpa.LaplaceDpEvent,
    )


def _normal_scores(residuals: Tensor) -> Tensor:
    """Phi^-1(F(x)) with Laplace's F; by symmetry -sign(x) Phi^-1(exp(-|x|) / 2), which keeps its
    digits in the tails, where 1 - F would cancel."""
    return -torch.sign(residuals) * torch.special.ndtri(0.5 * torch.exp(-residuals.abs()))


def _privacy_loss(scale: float, sensitivity: float, interval: float) -> pld.PrivacyLossDistribution:
    """ln P/Q of Lap(b) and Lap(b) shifted by the sensitivity: in [-s / b, s / b]."""
    return pld.from_laplace_mechanism(
        scale, sensitivity=sensitivity, value_discretization_interval=interval
    )
