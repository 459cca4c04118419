"""A small network that turns released features back into images, trained on public pairs."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import skip_init

from attacks.baselines import class_means
from attacks.gpu import ahead
from attacks.ranges import check_counts, check_from_zero, check_positive


def blank(layer: type[nn.Module], *sizes: int, **options: int) -> nn.Module:
    """A layer whose weights are not drawn yet: the global random stream stays untouched."""
    return skip_init(layer, *sizes, **options)  # type: ignore[arg-type]


@torch.no_grad()
def draw_weights(network: nn.Module, generator: torch.Generator) -> None:
    """Kaiming-normal weights and zero biases for every linear and convolutional layer."""
    for module in network.modules():
        if isinstance(module, nn.Linear | nn.Conv2d | nn.ConvTranspose2d):
            fan = module.weight[0].numel()
            module.weight.copy_(torch.randn(module.weight.shape, generator=generator) * math.sqrt(2 / fan))
            if module.bias is not None:
                module.bias.zero_()


class Decoder(nn.Module):
    """(b, *feature shape) -> (b, c, h, w) in [0, 1].

    Works at half the image's size, where it is four times cheaper: full-size maps are folded to it
    (four pixels to four channels), others are resized, vectors pass a linear layer; the image is
    unfolded at the end. Inputs are standardised by the training features' mean and deviation. centres: (C, c, h, w)
    images of the classes, from which it starts where labels are given.
    """

    def __init__(
        self, features: Tensor, shape: tuple[int, int, int], width: int, centres: Tensor | None = None
    ) -> None:
        super().__init__()
        c, h, w = shape
        self.size, self.middle = (h, w), (math.ceil(h / 2), math.ceil(w / 2))
        self.low = (math.ceil(h / 4), math.ceil(w / 4))
        self.centres = None if centres is None else centres.clamp(0.02, 0.98).logit()
        self.mean = features.mean(0, keepdim=True)
        self.spread = features.std().clamp_min(1e-6)
        self.spatial = features.ndim == 4
        self.folded = self.spatial and tuple(features.shape[-2:]) == (2 * self.middle[0], 2 * self.middle[1])
        channels = features.shape[1] * (4 if self.folded else 1) if self.spatial else width
        flat = features.flatten(1).shape[1]
        self.enter = nn.Identity() if self.spatial else blank(nn.Linear, flat, width * self.low[0] * self.low[1])
        self.first = blank(nn.Conv2d, channels, width, 3, padding=1)
        self.second = blank(nn.Conv2d, width, width, 3, padding=1)
        self.third = blank(nn.Conv2d, width, width, 3, padding=1)
        self.last = blank(nn.Conv2d, width, 4 * c, 3, padding=1)

    def forward(self, features: Tensor, labels: Tensor | None = None) -> Tensor:
        z = (features - self.mean) / self.spread
        z = z if self.spatial else F.relu(self.enter(z.flatten(1))).unflatten(1, (-1, *self.low))
        z = F.pixel_unshuffle(z, 2) if self.folded else z
        z = F.relu(self.first(z))
        z = z if z.shape[-2:] == self.middle else F.interpolate(z, self.middle, mode="bilinear", align_corners=False)
        z = F.relu(self.third(F.relu(self.second(z))))
        image = F.pixel_shuffle(self.last(z), 2)[..., : self.size[0], : self.size[1]]
        known = self.centres is not None and labels is not None
        return torch.sigmoid(image + self.centres[labels] if known else image)  # type: ignore[index]


@dataclass(frozen=True)
class DecoderTraining:
    """Adam on the squared error; lr halves at two thirds (He, Zhang, Lee 2019, sec. 4.2).

    noise_std: deviation of fresh Gaussian noise added to the features at each step, so that the
    decoder learns to invert noised releases.
    """

    steps: int = 300
    batch: int = 64
    width: int = 32
    lr: float = 2e-3
    noise_std: float = 0.0

    def __post_init__(self) -> None:
        check_counts(self, "steps", "batch", "width")
        check_positive(self, "lr")
        check_from_zero(self, "noise_std")

    def fit(
        self,
        features: Tensor,
        images: Tensor,
        generator: torch.Generator,
        labels: Tensor | None = None,
        classes: int = 0,
    ) -> Decoder:
        """A decoder trained on pairs features (m, ...) and images (m, c, h, w) in [0, 1].

        labels: (m,), where those of the released features are known too; classes: how many there are, for the images
        may lack some.
        """
        centres = None if labels is None else class_means(images, labels, classes)
        shape = (images.shape[1], images.shape[2], images.shape[3])
        decoder = Decoder(features, shape, self.width, centres).to(features.device)
        draw_weights(decoder, generator)
        optimiser = torch.optim.Adam(decoder.parameters(), lr=self.lr)
        schedule = torch.optim.lr_scheduler.MultiStepLR(optimiser, [2 * self.steps // 3], 0.5)
        for rows, *noise in ahead(lambda: self._drawn(features, generator), self.steps, features.device):
            given = features[rows]
            if noise:
                given = given + self.noise_std * noise[0].to(given)
            optimiser.zero_grad()
            F.mse_loss(decoder(given, None if labels is None else labels[rows]), images[rows]).backward()
            optimiser.step()
            schedule.step()
        return decoder.eval().requires_grad_(False)

    def _drawn(self, features: Tensor, generator: torch.Generator) -> tuple[Tensor, ...]:
        """The rows of one step, and where there is noise that of the rows."""
        rows = torch.randint(len(features), (min(self.batch, len(features)),), generator=generator)
        shape = (len(rows), *features.shape[1:])
        return (rows, torch.randn(shape, generator=generator)) if self.noise_std else (rows,)
