"""A server that chooses the model: what every such attack must define, and how a client could
notice.

It hands out a network of its own for one round and reads the answer. The client follows the
protocol; what it could notice is a model in which most of what it sends stems from single records.
"""

from __future__ import annotations

import copy
from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import ClassVar

import torch
from torch import Tensor, nn

from attacks.inversion.evaluation import _require_images, compare_with_records
from attacks.types import Adversary, Attack, Evidence, Family, Finding, Surface, Truth, View

# After the disaggregation signal-to-noise ratio of Garov, Dimitrov, Jovanovic and Vechev ("Hiding
# in Plain Sight", ICLR 2024): the client looks at its own records' gradients before it sends their
# sum.

# share of a unit's total that one record makes, averaged over units; an ordinary network stays
# below
ALARM_THRESHOLD = 0.5
DETECTOR_BATCHES = 20
DETECTOR_SEED = 20
RecordContributions = Callable[[nn.Module, Tensor, Tensor], Tensor]
MIN_SPREAD = 0.05  # of the widest direction's: along narrower ones public records say too little
RECOVERED_ERROR = 0.02  # root mean square error below which a record counts as recovered


def isolation_share(parts: Tensor) -> float:
    """In [0, 1]: the largest record's share of each unit, averaged over the units that any record
    reaches; 0 if none does.

    parts (n, u): how much each record adds to each unit, at least 0.
    """
    total = parts.sum(0)
    is_reached = total > 0
    if not is_reached.any():
        return 0.0
    return float((parts.amax(0)[is_reached] / total[is_reached]).mean())


def random_network(model: nn.Module, generator: torch.Generator) -> nn.Module:
    """The same architecture with a usual random start (He et al. 2015), biases zero."""
    fresh = copy.deepcopy(model).requires_grad_(True)
    with torch.no_grad():
        for value in fresh.parameters():
            scale = 0.0
            if value.ndim > 1:
                scale = (2 / value[0].numel()) ** 0.5
            value.copy_(scale * torch.randn(value.shape, generator=generator))
    return fresh


def detection_rate(
    parts: RecordContributions, model: nn.Module, x: Tensor, y: Tensor, batch: int
) -> Mapping[str, float]:
    """ "detected": share of the client's batches that raise an alarm; "false_alarms": the same for
    ordinary models."""
    generator = torch.Generator().manual_seed(DETECTOR_SEED)
    alarms = {"detected": 0, "false_alarms": 0}
    for _ in range(DETECTOR_BATCHES):
        chosen = torch.randperm(len(x), generator=generator)[:batch]
        for name, net in (("detected", model), ("false_alarms", random_network(model, generator))):
            alarms[name] += isolation_share(parts(net, x[chosen], y[chosen])) > ALARM_THRESHOLD
    return {name: count / DETECTOR_BATCHES for name, count in alarms.items()}


class ChosenModel(Attack, hooks=("set_parameters", "hidden_width", "record_contributions")):
    """An attack by a chosen model: three linear layers with two ReLUs between them, all of
    ``hidden_width`` units.

    That architecture, if it is not the protocol's own, is part of what the server chooses.
    """

    name: ClassVar[str]
    family: ClassVar[Family] = Family.GRADIENT_INVERSION
    surfaces: ClassVar[frozenset[Surface]]
    adversaries: ClassVar[frozenset[Adversary]] = frozenset({Adversary.MALICIOUS_SERVER})

    @abstractmethod
    def hidden_width(self, pixels: int, classes: int) -> int:
        """Units of each hidden layer, for records of so many pixels."""

    @abstractmethod
    def set_parameters(
        self, model: nn.Module, public_x: Tensor, records: int, generator: torch.Generator
    ) -> None:
        """Set all parameters of ``model``; public_x (m, c, h, w); records: how many the client
        holds."""

    @abstractmethod
    def record_contributions(self, model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        """(n, u) at least 0: how much each record adds to each unit of what is sent, as the client
        can compute it."""

    def judge(self, evidence: Evidence, view: View, truth: Truth) -> Finding:
        """As for any inversion, with the share of all records that were recovered, and a detector's
        rate."""
        images = _require_images(evidence)
        compared = compare_with_records(images, view, truth)
        distances = torch.cdist(truth.x.flatten(1), images.flatten(1).to(truth.x))
        errors = (distances / truth.x[0].numel() ** 0.5).min(1).values
        diagnostics = {
            "recovered": float((errors < RECOVERED_ERROR).double().mean()),
            "records": len(truth.x),
        }
        if view.knowledge.model is not None:
            batch = int(view.knowledge.settings.get("batch_size", 16))
            diagnostics |= detection_rate(
                self.record_contributions, view.knowledge.model, truth.x, truth.y, batch
            )
        finding = Finding(
            view.surface,
            self.name,
            self.family,
            view.adversary,
            compared.measures,
            compared.figures,
        )
        return finding.with_diagnostics(**diagnostics)


def linear_layers(model: nn.Module) -> list[nn.Linear]:
    """The three linear layers of the chosen model. Raises ValueError for any other number."""
    layers = [module for module in model.modules() if isinstance(module, nn.Linear)]
    if len(layers) != 3 or any(layer.bias is None for layer in layers):
        raise ValueError(
            f"{type(model).__name__}: three linear layers with biases are needed, it has "
            f"{len(layers)}"
        )
    return layers


def draw_gates(
    public_x: Tensor, count: int, share: float, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Weights (count, d) of random measurements, and the thresholds (count,) that ``share`` of
    public records exceed.

    A measurement has variance 1 on public records, and is random in all directions in which they
    vary."""
    flat = public_x.flatten(1)
    _, spread, axes = torch.linalg.svd(flat - flat.mean(0), full_matrices=False)
    spread = spread / len(flat) ** 0.5
    is_wide = spread > MIN_SPREAD * spread[0]
    mix = torch.randn(count, int(is_wide.sum()), generator=generator)
    whitening = axes[is_wide] / spread[is_wide].unsqueeze(1)
    weights = (mix / mix.norm(dim=1, keepdim=True)) @ whitening
    return weights, (flat @ weights.T).quantile(1 - share, dim=0)


def cluster_rows(rows: Tensor, count: int) -> Tensor:
    """At most ``count`` of rows (m, d), no two of them alike, those first with most rows like them.

    Every gate that one record alone has opened yields that record's row, so a row of a single
    record recurs. Of rows with equally many the one farthest from the mean is taken: a mixture of
    records lies between them."""
    if not len(rows):
        return rows
    is_alike = torch.cdist(rows, rows) / rows.shape[1] ** 0.5 < RECOVERED_ERROR
    far = (rows - rows.mean(0)).norm(dim=1)
    far = far / (far.max() + 1)  # below 1: it decides between equal numbers of votes
    remains = torch.ones(len(rows), dtype=torch.bool)
    chosen: list[torch.Tensor] = []
    while remains.any() and len(chosen) < count:
        votes = ((is_alike & remains).sum(1) + far).masked_fill(~remains, -1)
        best = int(votes.argmax())
        chosen.append(rows[best])
        remains &= ~is_alike[best]
        remains[best] = False
    return torch.stack(chosen)
