"""Averages of what clients sent, whatever order it arrived in."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from privdd.core.types import Received, State


def sort_by_client(inbox: Sequence[Received]) -> list[Received]:
    """The inbox by client number. Raises ValueError when it is empty."""
    if not inbox:
        raise ValueError("inbox=[]: a round needs at least one client")
    return sorted(inbox, key=lambda received: received.client)


def client_weights(inbox: Sequence[Received]) -> Tensor:
    """Weights (clients,) float64 that sum to 1, in client order.

    By "count" where every client sent one, else uniform.
    """
    clients = sort_by_client(inbox)
    if all("count" in received.values for received in clients):
        counts = torch.stack([received.values["count"]["n"].double().sum() for received in clients])
        return counts / counts.sum()
    return torch.full((len(clients),), 1 / len(clients), dtype=torch.float64)


def average(inbox: Sequence[Received], name: str, weights: Tensor | None = None) -> State:
    """Weighted mean of upload ``name``, tensor by tensor, in float64 -> {tensor name: float64 tensor}.

    weights: (clients,) in client order, default ``client_weights``; they are used as given.
    """
    clients = sort_by_client(inbox)
    weights = client_weights(inbox) if weights is None else weights
    first = clients[0].values[name]
    return {
        key: sum((w * c.values[name][key].double() for w, c in zip(weights, clients)), torch.zeros(())) for key in first
    }
