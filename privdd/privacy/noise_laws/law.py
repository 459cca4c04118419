"""What the accounting and the noise log need to know of a law of noise."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import dp_accounting as dpa
from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution
from torch import Tensor


class UnsupportedEvent(ValueError):
    """An event, or an event under a relation, for which no sound accounting is known here."""


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
        rdp_event: z -> an event of dp-accounting that has a Renyi divergence, and costs no less. It
            bounds epsilon where a grid of losses overflows.
    """

    name: str
    event: type[dpa.DpEvent]
    norm_order: int
    normal_scores: Callable[[Tensor], Tensor]
    privacy_loss: Callable[[float, float, float], PrivacyLossDistribution] | None = None
    rdp_event: Callable[[float], dpa.DpEvent] | None = None

    def loss_on_grid(
        self, scale: float, sensitivity: float, interval: float
    ) -> PrivacyLossDistribution:
        """``privacy_loss``. Raises UnsupportedEvent for a law that has none."""
        if self.privacy_loss is None:
            raise UnsupportedEvent(f"{self.name}: it has no privacy loss on a grid")
        return self.privacy_loss(scale, sensitivity, interval)

    def event_with_divergence(self, scale: float) -> dpa.DpEvent:
        """``rdp_event``. Raises UnsupportedEvent for a law that has none."""
        if self.rdp_event is None:
            raise UnsupportedEvent(f"{self.name}: no Renyi divergence is known: use accountant=pld")
        return self.rdp_event(scale)


def find_laws(package: str, folders: Iterable[str]) -> Iterator[NoiseLaw]:
    """The laws of a package: what ``law()`` of each of its modules returns."""
    for module in pkgutil.iter_modules(folders):
        make_law = getattr(importlib.import_module(f"{package}.{module.name}"), "law", None)
        if callable(make_law):
            yield make_law()
