"""An independent classifier that says whether an image shows its class, whatever the attacked model thinks."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attacks.gpu import ahead
from attacks.inversion.decoder import blank, draw_weights
from attacks.ranges import check_counts, check_positive


class JudgeNet(nn.Module):
    """Two strided convolutions and a linear layer: another architecture than the attacked ones."""

    def __init__(self, shape: tuple[int, int, int], classes: int, width: int) -> None:
        super().__init__()
        c, h, w = shape
        self.first = blank(nn.Conv2d, c, width, 5, stride=2, padding=2)
        self.second = blank(nn.Conv2d, width, 2 * width, 5, stride=2, padding=2)
        self.head = blank(nn.Linear, 2 * width * ((h + 3) // 4) * ((w + 3) // 4), classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.leaky_relu(self.second(F.leaky_relu(self.first(x - 0.5), 0.1)), 0.1).flatten(1))


@dataclass(frozen=True)
class Judge:
    """Training of the judge on public records: Adam, random shifts of one pixel and light noise."""

    steps: int = 300
    batch: int = 64
    width: int = 16
    lr: float = 2e-3

    def __post_init__(self) -> None:
        check_counts(self, "steps", "batch", "width")
        check_positive(self, "lr")

    def fit(self, x: Tensor, y: Tensor, classes: int, generator: torch.Generator) -> JudgeNet:
        """A classifier trained on x (m, c, h, w) in [0, 1], y (m,)."""
        net = JudgeNet((x.shape[1], x.shape[2], x.shape[3]), classes, self.width).to(x.device)
        draw_weights(net, generator)
        optimiser = torch.optim.Adam(net.parameters(), lr=self.lr)
        shifts: list[list[int]] = []

        def drawn() -> tuple[Tensor, Tensor]:
            rows = torch.randint(len(x), (min(self.batch, len(x)),), generator=generator)
            shifts.append(torch.randint(-1, 2, (2,), generator=generator).tolist())
            return rows, torch.randn((len(rows), *x.shape[1:]), generator=generator)

        for step, (rows, noise) in enumerate(ahead(drawn, self.steps, x.device)):
            images = torch.roll(x[rows], shifts[step], dims=(2, 3))
            images = images + 0.05 * noise.to(images)
            optimiser.zero_grad()
            F.cross_entropy(net(images), y[rows]).backward()
            optimiser.step()
        return net.eval().requires_grad_(False)


def success(judge: nn.Module, images: Tensor, labels: Tensor) -> float:
    """Share of ``images`` that the judge puts in their class."""
    with torch.no_grad():
        return float((judge(images).argmax(1) == labels).double().mean())
