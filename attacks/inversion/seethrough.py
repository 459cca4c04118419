"""See through gradients: layer-wise matching with image, batch-norm and group priors (Yin et al. 2021)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from attacks.inversion.gradient_matching import (
    DescentInverter,
    GradientMatching,
    LayerStatistics,
    MatchingObjective,
    Objective,
    SignedAdam,
    layerwise_distance,
)
from attacks.inversion.victim import Victim
from attacks.validation import check_counts, check_non_negative


def running_statistics(model: nn.Module) -> dict[str, tuple[Tensor, Tensor]]:
    """Layer name -> (mean, variance) as kept by the model's batch-norm layers."""
    return {
        name: (m.running_mean, m.running_var)
        for name, m in model.named_modules()
        if isinstance(m, _BatchNorm) and m.running_mean is not None and m.running_var is not None
    }


def sent_statistics(
    model: nn.Module, before: Mapping[str, Tensor], after: Mapping[str, Tensor], steps: int
) -> LayerStatistics:
    """Layer name -> (mean, variance) of the victim's own batches, solved from the buffers that it sent.

    A layer of momentum m keeps (1 - m) of what it had in each of ``steps`` >= 1 steps, so
    (after - kept * before) / (1 - kept), kept = (1 - m)^steps, is a mean over the batches, the last ones weighing most;
    of one step it is the batch's. Variances are the unbiased ones that layers keep, N / (N - 1) times those of N values.
    Layers without momentum (a cumulative mean) or whose buffers did not travel are left out.
    """
    found = {}
    for name, module in model.named_modules():
        keys = f"{name}.running_mean", f"{name}.running_var"
        if isinstance(module, _BatchNorm) and module.momentum and all(k in before and k in after for k in keys):
            kept = (1 - module.momentum) ** steps
            mean, var = ((after[k] - kept * before[k]) / (1 - kept) for k in keys)
            found[name] = mean.detach(), var.detach().clamp_min(0)
    return found


def batchnorm_distance(victim: Victim, inputs: Tensor, statistics: LayerStatistics) -> Tensor:
    """sum over layers of |mean_l(x) - m_l| + |var_l(x) - v_l| (eq. 8), biased variance."""
    distances: list[Tensor] = []

    def add_layer_distance(target: tuple[Tensor, Tensor], seen: Tensor) -> None:
        axes = [0, *range(2, seen.ndim)]
        distances.append((seen.mean(axes) - target[0]).norm() + (seen.var(axes, unbiased=False) - target[1]).norm())

    layers = dict(victim.model.named_modules())
    hooks = [
        layers[name].register_forward_pre_hook(lambda _, given, target=target: add_layer_distance(target, given[0]))
        for name, target in statistics.items()
    ]
    try:
        victim.loss(
            victim.detached_parameters(), inputs, torch.zeros(len(inputs), dtype=torch.int64, device=inputs.device)
        )
    finally:
        for hook in hooks:
            hook.remove()
    return torch.stack(distances).sum()


@dataclass(frozen=True)
class PriorObjective:
    """The matching problem plus the priors that a single forward pass or none can give."""

    matching: GradientMatching
    l2: float
    batchnorm: float
    group: float
    statistics: LayerStatistics

    def __call__(self, images: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        data, total, slope = self.matching(images)
        leaf = images.detach().requires_grad_()
        with torch.enable_grad():
            prior = self.l2 * leaf.square().flatten(1).mean(1)
            centre = images.mean(0, keepdim=True)
            prior = prior + self.group * (leaf - centre).square().flatten(1).mean(1)
            if self.batchnorm and self.statistics:
                rows = [batchnorm_distance(self.matching.victim, x, self.statistics) for x in leaf]
                prior = prior + self.batchnorm * torch.stack(rows)
            (extra,) = torch.autograd.grad(prior.sum(), leaf)
        return data, total + prior.detach(), slope + extra


@dataclass(frozen=True)
class SeeThrough(DescentInverter):
    """GradInversion: layer-wise norms, TV, L2, batch-norm statistics, agreement of several seeds.

    seeds: problems solved together, pulled to their mean by ``group``; langevin: noise in units of
    the learning rate. The published weights are for 224-pixel ImageNet; these are scaled for small
    images and belong to the caller to tune.
    """

    iterations: int = 1000
    tv: float = 1e-4
    l2: float = 1e-6
    batchnorm: float = 1e-2
    group: float = 1e-2
    seeds: int = 4
    lr: float = 0.1
    langevin: float = 0.01
    warmup: int = 50

    def __post_init__(self) -> None:
        check_counts(self, "seeds")
        check_non_negative(self, "tv", "l2", "batchnorm", "group")
        self.descent_rule()

    @property
    def distance(self) -> Objective:
        return layerwise_distance

    @property
    def start_count(self) -> int:
        return self.seeds

    def descent_rule(self) -> SignedAdam:
        return SignedAdam(self.iterations, self.lr, signed=False, warmup=self.warmup, langevin=self.langevin)

    def whole_objective(
        self, matching: GradientMatching, statistics: LayerStatistics | None
    ) -> tuple[MatchingObjective, float]:
        """statistics: by default the running ones, used as a penalty only."""
        known = running_statistics(matching.victim.model) if statistics is None else statistics
        return PriorObjective(matching, self.l2, self.batchnorm, self.group, known), 0.0
