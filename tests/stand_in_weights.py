"""An AlexNet of our own drawing in place of the pretrained one, so that methods over a public map
are tested everywhere.

Weights follow He's law, N(0, 2 / fan-in), from a seed. What a map has to be for those tests,
public, fixed and the same for every client, this one is; only that a method learns on it as on
pretrained features is looked at with the real weights (``extra("lpips_weights")``).
"""

from __future__ import annotations

from functools import cache

import torch

from attacks import images
from attacks.images import LpipsTrunk
from privdd.distillation import alexnet
from privdd.selftest_faults import fault

SEED = 11
REAL = images.load_pretrained_trunk


@cache
def draw_trunk() -> LpipsTrunk:
    """AlexNet's shapes; biases are 0 and the linear rows of LPIPS 1."""
    generator = torch.Generator().manual_seed(SEED)
    weights = []
    for shape in images._SHAPES:
        fan_in = shape[1] * shape[2] * shape[3]
        weights.append(torch.randn(shape, generator=generator) * (2 / fan_in) ** 0.5)
    biases = tuple(torch.zeros(shape[0]) for shape in images._SHAPES)
    rows = tuple(torch.ones(shape[0]) for shape in images._SHAPES)
    return LpipsTrunk("alexnet:stand-in", tuple(weights), biases, rows)


def load_trunk() -> LpipsTrunk:
    """The real weights in a test that asks for them, else the stand-in."""
    return REAL() or draw_trunk()


def install() -> None:
    """For the maps of this process. LPIPS, which is defined by its weights alone, has no
    stand-in."""
    alexnet.load_pretrained_trunk = load_trunk
    fault.load_pretrained_trunk = load_trunk
