"""What the accounting and the noise log need to know of a law of noise."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import dp_accounting as dpa
from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution
from torch import Tensor


@dataclass(frozen=True)
class NoiseLaw:
    """One law of additive noise, with a scale in units of what one record may change.

    Attributes:
        name: of the law, in ledger.json.
        event: its class of events, which have a ``noise_multiplier`` z > 0.
        norm_order: p of the L_p norm in which the change of one record is measured.
        normal_scores: residuals in noise scales -> standard normal numbers, monotonically.
        privacy_loss: (z, sensitivity, interval) -> the privacy loss of one release, rounded up to a
            grid of that interval. None: the law has a closed form of its own (Gaussian noise).
        rdp_event: z -> an event of dp-accounting that has a Renyi divergence, and costs no less.
    """

    name: str
    event: type[dpa.DpEvent]
    norm_order: int
    normal_scores: Callable[[Tensor], Tensor]
    privacy_loss: Callable[[float, float, float], PrivacyLossDistribution] | None = None
    rdp_event: Callable[[float], dpa.DpEvent] | None = None
