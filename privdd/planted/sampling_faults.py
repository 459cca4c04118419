"""Faults of Poisson sampling: not the independent coins that amplification assumes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from privdd.core.keys import Keys
from privdd.federated import channel
from privdd.planted.fault import Fault, Kind, Moment, Plant, around
from privdd.privacy.noise import noise_for

Draw = Callable[[float, int, Any], Tensor]


def _tossed(draw: Draw) -> Callable[[Moment], Plant]:
    def at(moment: Moment) -> Plant:
        def toss(honest: Any, q: float, n: int, noise: Any) -> Tensor:
            return (draw if q < 1 and moment.active(n) else honest)(q, n, noise)

        return around("coins", channel)(toss)

    return at


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
SAMPLE_KINDS = {
    "off": Kind("every record is taken every time", _tossed(_everyone), SAMPLED, ("round", "call"), least=40),
    "double": Kind("records are taken at twice the stated rate", _tossed(_doubled), SAMPLED, ("round", "call"), least=400),
    "fixed_size": Kind("batches of one size in place of coins", _tossed(_fixed_size), SAMPLED, (), least=400),
    "last_always": Kind("one record is always taken", _tossed(_always_the_last), SAMPLED, (), least=400),
    "same_records": Kind("the same records at every draw", _tossed(_always_the_same), SAMPLED, (), least=400),
    "in_blocks": Kind("one coin for eight records", _tossed(_whole_batches), SAMPLED, ("round",), least=400),
    "uneven": Kind("a third of the records are taken at twice the rate, the others at half of it", _tossed(_by_class), SAMPLED, (), least=400),
}  # fmt: skip
SAMPLING_FAULTS = (
    *(kind.fault(f"sampling_{name}", says=kind.says) for name, kind in SAMPLE_KINDS.items()),
    Fault("sampling_not_heeded", "coins are tossed and everybody is taken", _not_heeded, SAMPLED),
    Fault("sampling_first_draw_kept", "later draws of a round are tossed and not used", _first_draw_kept,
          ("sampled", "counted")),
    Fault("sampling_public_not_os", "coins are drawn from the public seed, where the operating system is stated", _public, SAMPLED,
          ("privacy.noise_source=os",)),
)  # fmt: skip
