"""Images that a classifier takes for a class: drawn first, then moved along the classifier's gradient.

What a linear head over a public map says of blurred images is wrong for whole classes: they lack the edges and textures
that the map sees. A few short steps give each image what its class is known by, and hardly change what it looks like
(activation maximisation with jitter: Mordvintsev et al. 2015; data-free distillation: Yin et al., CVPR 2020).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from privdd.core.keys import Keys
from privdd.core.long_loops import turns
from privdd.distillation.fitting import TINY, variation
from privdd.distillation.networks import CHUNK, Embed

KEPT = 0.7  # of the last step's direction
LEAST = 0.2  # of a step, for an image that already is of its class
SMOOTHNESS = 1e-3  # weight of the total variation


def pushed(images: Tensor, y: Tensor, score: Embed, steps: int, rate: float, keys: Keys) -> Tensor:
    """Images (n, c, h, w) in [0, 1] after ``steps``, each by itself, towards a high probability of class y (n,).

    score: images -> logits (b, C); rate: root mean square of the first step's change of pixels, half of which is left
    at the last; steps are shorter where the probability is high. Each step sees the images moved by up to one pixel.
    """
    generator = keys.torch()
    return torch.cat(
        [_pushed(x, of, score, steps, rate, generator) for x, of in zip(images.split(CHUNK), y.split(CHUNK))]
    )


def _pushed(x: Tensor, y: Tensor, score: Embed, steps: int, rate: float, generator: torch.Generator) -> Tensor:
    direction = torch.zeros_like(x)
    for step in turns(range(steps)):
        down, right = (torch.randint(-1, 2, (2,), generator=generator)).tolist()
        leaf = x.detach().requires_grad_(True)
        with torch.enable_grad():
            logits = score(torch.roll(leaf, (down, right), (2, 3)))
            loss = F.cross_entropy(logits, y, reduction="sum") + SMOOTHNESS * variation(leaf).sum()
        (slope,) = torch.autograd.grad(loss, leaf)
        size = slope.square().mean((1, 2, 3), keepdim=True).sqrt()
        direction = KEPT * direction + (1 - KEPT) * slope / (size + TINY)
        unsure = 1 - torch.softmax(logits.detach(), 1).gather(1, y[:, None]).view(-1, 1, 1, 1)
        length = rate * (1 - step / (2 * steps)) * (LEAST + (1 - LEAST) * unsure)
        x = (x - length * direction).clamp(0, 1).detach()
    return x
