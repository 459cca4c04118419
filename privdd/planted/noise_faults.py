"""Faults of the noise: too little of it, of another law, or not drawn anew."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from privdd.core.keys import Keys
from privdd.federated import channel
from privdd.planted.fault import Fault, Plant, around, swapped
from privdd.privacy.mechanism import Output
from privdd.privacy.mechanisms import ClientLevel, ClippedSum, FeatureNoise
from privdd.privacy.noise import Noise, noise_for

MECHANISMS = (ClippedSum, ClientLevel, FeatureNoise)
Change = Callable[[Tensor], Tensor]


def _same(drawn: Tensor) -> Tensor:
    return drawn


@dataclass(frozen=True)
class Changed:
    """Noise whose normal and Laplace draws are changed; its coins are as they were."""

    inner: Noise
    of_normal: Change = _same
    of_laplace: Change = _same

    def normal(self, shape: tuple[int, ...]) -> Tensor:
        return self.of_normal(self.inner.normal(shape))

    def laplace(self, shape: tuple[int, ...]) -> Tensor:
        return self.of_laplace(self.inner.laplace(shape))

    def uniform(self, shape: tuple[int, ...]) -> Tensor:
        return self.inner.uniform(shape)


@dataclass(frozen=True)
class OfLaw(Changed):
    """Normal draws of another law."""

    draw: Callable[[Noise, tuple[int, ...]], Tensor] = field(default=lambda noise, shape: noise.laplace(shape))

    def normal(self, shape: tuple[int, ...]) -> Tensor:
        return self.draw(self.inner, shape)


@dataclass(frozen=True)
class Repeated(Changed):
    """The same draw at every release of a shape."""

    kept: dict[tuple[int, ...], Tensor] = field(default_factory=dict)

    def normal(self, shape: tuple[int, ...]) -> Tensor:
        return self.kept.setdefault(shape, self.inner.normal(shape)).clone()


def _noise(made: Callable[[Any, Keys], Noise]) -> Plant:
    return lambda: swapped((channel, "noise_for", made))


def _changed(change: Change, where: Callable[[Keys], bool] = lambda keys: True) -> Plant:
    """Draws of the streams that ``where`` chooses, changed."""
    return _noise(lambda source, keys: Changed(noise_for(source, keys), *[change if where(keys) else _same] * 2))


def _times(size: float, where: Callable[[Keys], bool] = lambda keys: True) -> Plant:
    return _changed(lambda drawn: drawn * size, where)


def _named(keys: Keys, name: str) -> str:
    """What follows a name in the path of a client's stream: ("round", 1, "client", 0, ...)."""
    return keys.path[keys.path.index(name) + 1] if name in keys.path else ""


def _without(name: str) -> Plant:
    """The stream of a client round with one part of its address held fixed."""

    def made(source: Any, keys: Keys) -> Noise:
        path = list(keys.path)
        if name in path:
            path[path.index(name) + 1] = "0"
        return noise_for(source, replace(keys, path=tuple(path)))

    return _noise(made)


def _first_bare(drawn: Tensor) -> Tensor:
    bare = drawn.clone()
    if bare.numel():
        bare.view(-1)[0] = 0
    return bare


def _uniform(noise: Noise, shape: tuple[int, ...]) -> Tensor:
    return (noise.uniform(shape) - 0.5) * 12**0.5


def _one_stream(source: Any, keys: Keys) -> Noise:
    return noise_for("seed", Keys(3))


def outputs(change: Callable[[Any, Output, Noise], Output]) -> Plant:
    """Every shipped mechanism's output changed: (mechanism, output, noise) -> output."""
    around_each = around("__call__", *MECHANISMS)
    return around_each(lambda honest, self, value, noise: change(self, honest(self, value, noise), noise))


def _floating(mechanism: Any, output: Output, noise: Noise) -> Output:
    """The same noise, added in float32 as it comes."""
    exact = output.exact or {}
    gaps = {
        n: t - exact[n].repeat(len(t) // max(len(exact[n]), 1), *(1,) * (t.ndim - 1)) if t.ndim else t - exact[n]
        for n, t in output.value.items()
    }
    shaken = {n: gap * 1.0000123 for n, gap in gaps.items()}
    return replace(output, value={n: t - gaps[n] + shaken[n] for n, t in output.value.items()})


def _last_bare(mechanism: Any, output: Output, noise: Noise) -> Output:
    last = sorted(output.value)[-1]
    clean = (output.exact or {})[last]
    copies = len(output.value[last]) // max(len(clean), 1) if clean.ndim else 1
    return replace(output, value={**output.value, last: torch.cat([clean] * copies) if copies > 1 else clean})


def _laplace_half(source: Any, keys: Keys) -> Noise:
    return Changed(noise_for(source, keys), of_laplace=lambda drawn: drawn / 2)


def _of_law(draw: Callable[[Noise, tuple[int, ...]], Tensor]) -> Plant:
    return _noise(lambda source, keys: OfLaw(noise_for(source, keys), draw=draw))


def _of_each_name() -> AbstractContextManager[None]:
    """Each mechanism of a client round draws from the start of one stream, as if it were alone."""
    ask, release = channel.ClientContext.mechanism, channel.Channel._release

    def own(ctx: channel.ClientContext, name: str) -> Noise:
        streams = ctx.__dict__.setdefault("streams", {})
        return streams.setdefault(name, noise_for(ctx.noise_source, ctx.keys.fold("one for all")))  # type: ignore[arg-type]

    def alone(ctx: channel.ClientContext, name: str, call: Callable[[], Any]) -> Any:
        before, ctx.noise = ctx.noise, own(ctx, name)
        made, ctx.noise = call(), before
        return made

    def mechanism(self: Any, name: str, contributions: Any, *, partition: str | None = None) -> Any:
        return alone(self, name, lambda: ask(self, name, contributions, partition=partition))

    def released(self: Any, name: str, artifact: Any, ctx: Any, inner: Any) -> Any:
        return alone(ctx, name, lambda: release(self, name, artifact, ctx, inner))

    return swapped((channel.ClientContext, "mechanism", mechanism), (channel.Channel, "_release", released))


@dataclass(frozen=True)
class Later(Changed):
    """A stream whose first draws were thrown away: as many as the number of the round."""

    first: list[int] = field(default_factory=list)

    def normal(self, shape: tuple[int, ...]) -> Tensor:
        if self.first:
            self.inner.normal((self.first.pop(),))
        return self.inner.normal(shape)


def _later(source: Any, keys: Keys) -> Noise:
    path = list(keys.path)
    at = path.index("round") + 1 if "round" in path else -1
    started, path[at] = int(path[at]) if at >= 0 else 0, "0"
    return Later(noise_for(source, replace(keys, path=tuple(path))), first=[started])


def _tiled(drawn: Tensor) -> Tensor:
    """The second half of a draw repeats the first."""
    flat = drawn.reshape(-1).clone()
    half = len(flat) // 2
    flat[len(flat) - half :] = flat[:half]
    return flat.reshape(drawn.shape)


@around("__call__", ClippedSum)
def _bare_where_empty(honest: Any, self: ClippedSum, value: Any, noise: Noise) -> Output:
    made = honest(self, value, noise)
    empty = not len(next(iter(value.values())))
    return replace(made, value={n: t.to(made.value[n]) for n, t in (made.exact or {}).items()}) if empty else made


SECRET = ("privacy.noise_source=secret", "privacy.secret=known-to-the-self-test")
LAPLACE = ("+privacy.mechanisms.features.distribution=laplace",)
ROUNDS = ("rounds",)
NOISE_FAULTS = (
    Fault("noise_missing", "no noise at all", _times(0.0)),
    Fault("noise_half", "half of the stated noise", _times(0.5)),
    Fault("noise_two_thirds", "two thirds of the stated noise", _times(2 / 3)),
    Fault("noise_first_round_only", "no noise after the first round", _times(0.0, lambda k: _named(k, "round") != "0"), ROUNDS),
    Fault("noise_of_others_missing", "clients other than the audited one add half of the noise", _times(0.5, lambda k: _named(k, "client") == "2")),
    Fault("noise_one_number_bare", "the first number of each tensor has no noise", _changed(_first_bare)),
    Fault("noise_last_tensor_bare", "the last tensor of each release has no noise", outputs(_last_bare)),
    Fault("noise_cut", "noise cut at two standard deviations", _changed(lambda d: d.clamp(-2, 2))),
    Fault("noise_sign_fixed", "noise of one sign only", _changed(lambda d: d.abs())),
    Fault("noise_uniform", "uniform noise of the stated variance", _of_law(_uniform)),
    Fault("noise_laplace", "Laplace noise of the variance of the stated Gaussian", _of_law(lambda n, s: n.laplace(s) / 2**0.5)),
    Fault("laplace_half", "Laplace noise of half the stated scale", _noise(_laplace_half), ("features",), LAPLACE),
    Fault("noise_shared_by_rounds", "the same noise in every round", _without("round"), ROUNDS, two_rounds=True),
    Fault("noise_shared_by_clients", "all clients draw the same noise", _without("client")),
    Fault("noise_shared_by_releases", "the same noise at every release of a round",
          _noise(lambda s, k: Repeated(noise_for(s, k))), ("counted",)),
    Fault("noise_one_stream", "one stream of noise for all rounds and clients", _noise(_one_stream)),
    Fault("noise_shared_by_names", "two mechanisms of a client draw the same noise", _of_each_name, ("names",)),
    Fault("noise_later_by_rounds", "each round's noise is the former's, one draw later", _noise(_later), ROUNDS, two_rounds=True),
    Fault("noise_tiled", "the second half of each draw repeats the first", _changed(_tiled)),
    Fault("noise_integer", "noise cut to whole numbers of standard deviations", _changed(torch.trunc)),
    Fault("noise_rounded", "noise rounded to whole numbers of standard deviations", _changed(torch.round)),
    Fault("noise_missing_where_empty", "a class without records is released without noise", _bare_where_empty, ("records", "classes")),
    Fault("noise_public_not_os", "drawn from the public seed, where the operating system is stated",
          _noise(lambda s, k: noise_for("seed", k)), settings=("privacy.noise_source=os",)),
    Fault("noise_public_not_secret", "drawn from the public seed, where a secret is stated",
          _noise(lambda s, k: noise_for("seed", k)), settings=SECRET),
    Fault("low_bits", "noise added in floating point, off the lattice", outputs(_floating)),
)  # fmt: skip
