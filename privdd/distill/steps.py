"""The public half of noised matching steps, and what the papers claim for them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from privdd.core import Shard
from privdd.distill.augment import draw
from privdd.distill.matching import Matching, Streams
from privdd.distill.networks import Embed, Networks
from privdd.privacy.claims import Claim
from privdd.privacy.claims import Matching as MatchingRun

DELTA = 1e-5  # at which the papers evaluate their theorems
QUERY = "synthetic_gradient"


@dataclass(frozen=True)
class Steps:
    """All that a step on the images needs beside the records: whoever knows the public coins has it.

    maps: step -> the map of images (transform, then network); project: a record (b, c, h, w) as an
    image of that space; start: N(0, 1) images (m, c, h, w) -> what the images start as.
    """

    maps: Callable[[int], Embed]
    settings: Matching
    project: Embed = lambda x: x
    start: Embed = lambda noise: noise


def seen_maps(networks: Networks, settings: Matching, streams: Streams, shape: tuple[int, int, int]) -> Networks:
    """Step -> map: that step's transform and then its network, as records and images are both seen."""

    def at(step: int) -> Embed:
        transform = draw(settings.augment, shape, streams.augment.fold(step).torch())
        network = networks(step)
        return lambda x: network(transform(x))

    return at


def matching_claims(
    theorem: Callable[[MatchingRun], Claim], plan: Any, shards: Sequence[Shard], settings: Matching, noise_init: bool
) -> list[Claim]:
    """The paper's theorem for a run whose matching gradients are noised; nothing for any other run."""
    mechanism = plan.mechanisms.get(QUERY)
    if mechanism is None:
        return []
    by_record = bool(getattr(mechanism, "per_record", True))
    counts = torch.cat([torch.bincount(shard.train.y, minlength=1) for shard in shards])
    smallest = int(counts[counts > 0].min()) if bool((counts > 0).any()) else 1
    rate = mechanism.sampling_probability if by_record else min(1.0, settings.batch / smallest)
    run = MatchingRun(
        float(mechanism.noise_multiplier),
        max(settings.iterations, 1),
        float(rate),
        DELTA,
        noise_init,
        clipping="record" if by_record else "aggregate",
        poisson=by_record,
    )
    return [theorem(run)]


def clean_start(project: Callable[[Tensor], Tensor]) -> Embed:
    """FedRD's start: noise images held in [0, 1] and projected."""
    return lambda noise: project(noise.abs().clamp(max=1)).detach()
