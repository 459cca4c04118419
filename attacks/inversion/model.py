"""MI-FACE: one image per class that the shared model is sure of (Fredrikson, Jha, Ristenpart 2015)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from attacks.gpu import look_every
from attacks.inversion.result import Channelwise, Pixels, Reconstruction
from attacks.ranges import check_counts, check_positive


@dataclass(frozen=True)
class ModelInversion:
    """Gradient descent on 1 - f_y(x) from a black image (algorithm 1, without auxiliary term).

    iterations: alpha; patience: beta, stop where no cost of the last beta steps was higher;
    confidence: gamma, stop once f_y(x) reaches it; lr: lambda.
    """

    iterations: int = 5000
    patience: int = 100
    confidence: float = 0.99
    lr: float = 0.1

    def __post_init__(self) -> None:
        check_counts(self, "iterations", "patience")
        if not 0 < self.confidence <= 1:
            raise ValueError(f"confidence={self.confidence}: a number in (0, 1] is needed")
        check_positive(self, "lr")

    def reconstruct(
        self,
        model: nn.Module,
        labels: Tensor,
        shape: tuple[int, int, int],
        *,
        mean: Channelwise = 0.0,
        std: Channelwise = 1.0,
        start: Tensor | None = None,
    ) -> Reconstruction:
        """One image (c, h, w) in [0, 1] for each of ``labels`` (b,); all descend in one batch.

        The model must be in evaluation mode (its images then do not depend on each other), else
        ValueError. objective: mean 1 - f_y. start: (b, c, h, w) in [0, 1], else black.
        """
        if model.training:
            raise ValueError("model.training=True: evaluation mode is needed")
        pixels = Pixels(mean, std)
        images = torch.zeros((len(labels), *shape), device=labels.device) if start is None else start.clone()
        best, lowest = images.clone(), torch.full((len(labels),), torch.inf, device=labels.device)
        window = torch.full((self.patience, len(labels)), torch.inf, device=labels.device)
        active = torch.ones(len(labels), dtype=torch.bool, device=labels.device)
        taken = torch.zeros((), dtype=torch.int64, device=labels.device)
        for step in range(self.iterations):
            going = active.any()
            if step % look_every(labels.device) == 0 and not going:  # what happens between two looks changes nothing
                break
            taken += going
            cost, slope = self._cost(model, pixels, images, labels)
            better = active & (cost < lowest)
            best, lowest = torch.where(better.view(-1, 1, 1, 1), images, best), torch.where(better, cost, lowest)
            active &= (cost < window.amax(0)) & (cost > 1 - self.confidence)
            window[step % self.patience] = cost
            moved = (images - self.lr * slope).clamp(0, 1)
            images = torch.where(active.view(-1, 1, 1, 1), moved, images)
        return Reconstruction(best, labels, float(lowest.mean()), diagnostics={"steps": float(taken)})

    @staticmethod
    def _cost(model: nn.Module, pixels: Pixels, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        leaf = images.detach().requires_grad_()
        with torch.enable_grad():
            cost = 1 - model(pixels.to_input(leaf)).softmax(1).gather(1, labels.view(-1, 1)).flatten()
            (slope,) = torch.autograd.grad(cost.sum(), leaf)
        return cost.detach(), slope
