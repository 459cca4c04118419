"""A server that chooses the model: what every such attack must define, and how a client could notice.

The honest server of the other attacks sends what the protocol makes of its clients' uploads. This one hands out a network
of its own for one round and reads the answer. The client follows the protocol, so all that it sends is an answer to that model.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from attacks.inversion.compare import _images, compare
from attacks.malicious.detector import detection_rate
from attacks.types import Adversary, Attack, Evidence, Family, Finding, Surface, Truth, View

LEAST_SPREAD = 0.05  # of the widest direction's: along narrower ones public records say too little
NEAR = 0.02  # root mean square error below which a record counts as recovered


class ChosenModel(Attack, hooks=("plant", "width", "parts")):
    """An attack by a chosen model: three linear layers with two ReLUs between them, all of ``width`` units.

    That architecture, if it is not the protocol's own, is part of what the server chooses.
    """

    name: ClassVar[str]
    family: ClassVar[Family] = Family.GRADIENT_INVERSION
    surfaces: ClassVar[frozenset[Surface]]
    adversaries: ClassVar[frozenset[Adversary]] = frozenset({Adversary.MALICIOUS_SERVER})

    @abstractmethod
    def width(self, pixels: int, classes: int) -> int:
        """Units of each hidden layer, for records of so many pixels."""

    @abstractmethod
    def plant(self, model: nn.Module, public_x: Tensor, records: int, generator: torch.Generator) -> None:
        """Set all parameters of ``model``; public_x (m, c, h, w); records: how many the client holds."""

    @abstractmethod
    def parts(self, model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        """(n, u) at least 0: how much each record adds to each unit of what is sent, as the client can compute it."""

    def judge(self, evidence: Evidence, view: View, truth: Truth) -> Finding:
        """As for any inversion, with the share of all records that were recovered, and a detector's rate."""
        images = _images(evidence)
        found = compare(images, view, truth)
        measures: dict[str, Any] = dict(found.measures)
        near = torch.cdist(truth.x.flatten(1), images.flatten(1).to(truth.x)) / truth.x[0].numel() ** 0.5
        more = {"recovered": float((near.min(1).values < NEAR).double().mean()), "records": len(truth.x)}
        diagnostics = {**measures.pop("diagnostics", {}), **more, **self._detected(view, truth)}
        measures["diagnostics"] = diagnostics
        return Finding(view.surface, self.name, self.family, view.adversary, measures, found.figures)

    def _detected(self, view: View, truth: Truth) -> Mapping[str, float]:
        model = view.knowledge.model
        if model is None:
            return {}
        batch = int(view.knowledge.settings.get("batch_size", 16))
        return detection_rate(self.parts, model, truth.x, truth.y, batch)


def linear_layers(model: nn.Module) -> list[nn.Linear]:
    """The three linear layers of the chosen model. Raises ValueError where there are other ones."""
    layers = [module for module in model.modules() if isinstance(module, nn.Linear)]
    if len(layers) != 3 or any(layer.bias is None for layer in layers):
        raise ValueError(f"{type(model).__name__}: three linear layers with biases are needed, it has {len(layers)}")
    return layers


def gates(public_x: Tensor, count: int, share: float, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Weights (count, d) of random measurements, and the thresholds (count,) that ``share`` of public records exceed.

    A measurement has variance 1 on public records, and is random in all directions in which they vary: along their few
    main directions most records would never be extreme.
    """
    flat = public_x.flatten(1)
    _, spread, axes = torch.linalg.svd(flat - flat.mean(0), full_matrices=False)
    spread = spread / len(flat) ** 0.5
    kept = spread > LEAST_SPREAD * spread[0]
    mix = torch.randn(count, int(kept.sum()), generator=generator)
    weights = (mix / mix.norm(dim=1, keepdim=True)) @ (axes[kept] / spread[kept].unsqueeze(1))
    return weights, (flat @ weights.T).quantile(1 - share, dim=0)


def clusters_of(rows: Tensor, count: int, near: float = NEAR) -> Tensor:
    """At most ``count`` of rows (m, d), those first that most others agree with, no two of them alike.

    A row that one record alone has made is made again by every other gate that this record alone has opened. Of rows with
    equally many the one farthest from the middle is taken: a mixture of records lies between them.
    """
    if not len(rows):
        return rows
    alike = torch.cdist(rows, rows) / rows.shape[1] ** 0.5 < near
    far = (rows - rows.mean(0)).norm(dim=1)
    far = far / (far.max() + 1)  # below 1: it decides between equal numbers of votes
    left = torch.ones(len(rows), dtype=torch.bool)
    chosen: list[torch.Tensor] = []
    while left.any() and len(chosen) < count:
        votes = ((alike & left).sum(1) + far).masked_fill(~left, -1)
        best = int(votes.argmax())
        chosen.append(rows[best])
        left &= ~alike[best]
        left[best] = False
    return torch.stack(chosen)
