"""Faults of Poisson sampling: not the independent coins that amplification assumes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from privdd.core.keys import Keys
from privdd.federated import channel
from privdd.planted.fault import Fault, Plant, around
from privdd.privacy.noise import noise_for

Draw = Callable[[float, int, Any], Tensor]


def _coins(draw: Draw) -> Plant:
    """Coins of another law, where a mechanism counts on sampling (a probability of 1 is left alone)."""
    return around("coins", channel)(lambda honest, q, n, noise: (draw if q < 1 else honest)(q, n, noise))


def _everyone(q: float, count: int, noise: Any) -> Tensor:
    return torch.ones(count, dtype=torch.bool)


def _doubled(q: float, count: int, noise: Any) -> Tensor:
    return noise.uniform((count,)) < 2 * q


def _fixed_size(q: float, count: int, noise: Any) -> Tensor:
    at = noise.uniform((count,)).argsort()[: round(q * count)]
    return torch.zeros(count).index_fill(0, at, 1).bool()


def _always_the_last(q: float, count: int, noise: Any) -> Tensor:
    return (noise.uniform((count,)) < q) | (torch.arange(count) == count - 1)


def _always_the_same(q: float, count: int, noise: Any) -> Tensor:
    return torch.rand(count, generator=Keys(1).torch()) < q


def _whole_batches(q: float, count: int, noise: Any) -> Tensor:
    """One coin for eight neighbouring records."""
    return (noise.uniform((-(-count // 8),)) < q).repeat_interleave(8)[:count]


def _by_class(q: float, count: int, noise: Any) -> Tensor:
    """The rate on average is about right, and no record's own is."""
    return noise.uniform((count,)) < q * torch.where(torch.arange(count) < count // 3, 2.0, 0.5)


@around("sample", channel.ClientContext)
def _not_heeded(honest: Any, *asked: Any) -> Tensor:
    return torch.ones_like(honest(*asked))


@around("sample", channel.ClientContext)
def _first_draw_kept(honest: Any, self: channel.ClientContext, name: str, count: int) -> Tensor:
    """The sample of a round's first draw serves all later ones of that round."""
    taken = honest(self, name, count)
    return next((earlier for of, earlier in self.taken if of == name and len(earlier) == count), taken)


@around("sample", channel.ClientContext)
def _public(honest: Any, self: channel.ClientContext, name: str, count: int) -> Tensor:
    """Coins of a stream of their own, which the public seed decides."""
    own = Keys(self.keys.seed, self.keys.path).fold("coins", len(self.taken))
    before, self.noise = self.noise, noise_for("seed", own)
    taken, self.noise = honest(self, name, count), before
    return taken


SAMPLED = ("sampled",)
SAMPLING_FAULTS = (
    Fault("sampling_off", "every record is taken every time", _coins(_everyone), SAMPLED),
    Fault("sampling_double", "records are taken at twice the stated rate", _coins(_doubled), SAMPLED),
    Fault("sampling_fixed_size", "batches of one size in place of coins", _coins(_fixed_size), SAMPLED),
    Fault("sampling_last_always", "one record is always taken", _coins(_always_the_last), SAMPLED),
    Fault("sampling_same_records", "the same records at every draw", _coins(_always_the_same), SAMPLED),
    Fault("sampling_in_blocks", "one coin for eight records", _coins(_whole_batches), SAMPLED),
    Fault("sampling_not_heeded", "coins are tossed and everybody is taken", _not_heeded, SAMPLED),
    Fault("sampling_first_draw_kept", "later draws of a round are tossed and not used", _first_draw_kept,
          ("sampled", "counted")),
    Fault("sampling_public_not_os", "coins are drawn from the public seed, where the operating system is stated", _public, SAMPLED,
          ("privacy.noise_source=os",)),
    Fault("sampling_uneven", "a third of the records are taken at twice the rate, the others at half of it", _coins(_by_class), SAMPLED),
)  # fmt: skip
