"""Shares of noise: each client adds a part of it, and the sum over clients has all of it (Dwork et
al. 2006).

For a sum that reaches the server through secure aggregation. Among p clients each adds Gaussian
noise of std / sqrt(p) to its clean value, so that the sum has noise of ``std``; what more clients
add is independent of it, and only hides more.

Rounding. A client's value x, between whole steps, gets its share of noise, and the sum is rounded
to whole steps of one public lattice; these integers are added. Let W be the sum of p clients'
rounded sums, whose shares have s steps each, X that of their values, and Z = N(0, p s**2) plus p -
1 independent uniform draws from [-1/2, 1/2]. Each probability of W differs from that of round(X +
Z) by at most 3 p exp(-pi**2 s**2 / 2). Proof: on [-pi, pi] the characteristic function of one
client's rounded sum is exp(i x t - s**2 t**2 / 2) sin(t / 2) / (t / 2) but for the terms at t + 2
pi k, k not 0 (Poisson summation), together below exp(-pi**2 s**2 / 2); that of round(X + Z) is the
product of these, but for terms that are smaller still; and a probability is a mean of the
characteristic function. So W is as good as a function of the ideal mechanism X + N(0, p s**2). A
lattice has 2**16 steps or more a share, so that what is left out is below 10**-(10**9).

Numbers are float64 here, so that they and their sums are exact up to 2**53 steps: the sum of values
that float32 had rounded one by one would not be a function of the sum. A deployment adds the
integers themselves."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from privdd.core.types import Tensors
from privdd.privacy.mechanism import Mechanism, Output
from privdd.privacy.mechanisms.client_level import ClientLevel
from privdd.privacy.mechanisms.clipped_sum import ClippedSum
from privdd.privacy.noise import Noise


@dataclass(frozen=True)
class NoiseShare(Mechanism, hooks=("noise_std",)):
    """One client's share of a mechanism's noise: what is stated holds for a sum over at least
    ``parts`` clients."""

    parts: int = 1

    @property
    def noise_std(self) -> float:
        """The standard deviation of this client's share of the noise."""
        std: float = super().noise_std  # type: ignore[misc]  # of the mechanism that comes next
        return std / math.sqrt(self.parts)

    def __call__(self, value: Tensors, noise: Noise) -> Output:
        exact = {name: tensor.double() for name, tensor in value.items()}
        output: Output = super().__call__(exact, noise)  # type: ignore[safe-super]
        why = (
            f"{output.why}; its share of the noise is one of {self.parts} that reach the "
            "stated noise in the sum"
        )
        return replace(output, why=why, shares=self.parts)


@dataclass(frozen=True)
class SumShare(NoiseShare, ClippedSum):
    """``ClippedSum`` of one client of many."""


@dataclass(frozen=True)
class ClientShare(NoiseShare, ClientLevel):
    """``ClientLevel`` of one client of many."""


SHARE_CLASSES: Mapping[type[Mechanism], type[Mechanism]] = {
    ClippedSum: SumShare,
    ClientLevel: ClientShare,
}


def noise_share_of(mechanism: Mechanism, parts: int) -> Mechanism:
    """This mechanism with the noise share of one of ``parts`` clients. Raises ValueError if its
    noise cannot be shared."""
    kind = SHARE_CLASSES.get(type(mechanism))
    if kind is None:
        raise ValueError(
            f"{type(mechanism).__name__} adds its noise to what one client sends, not to "
            "a sum over clients"
        )
    return kind(**vars(mechanism), parts=parts)  # type: ignore[call-arg]


def share_count_of(mechanism: Mechanism) -> int:
    """Over how many clients its noise is dealt; 1 where each adds all of it."""
    if isinstance(mechanism, NoiseShare):
        return mechanism.parts
    return 1


def unshared_mechanism(mechanism: Mechanism) -> Mechanism:
    """The mechanism whose noise is that of the sum: what a share is a share of."""
    if not isinstance(mechanism, NoiseShare):
        return mechanism
    settings = {name: value for name, value in vars(mechanism).items() if name != "parts"}
    return (ClippedSum if isinstance(mechanism, SumShare) else ClientLevel)(**settings)
