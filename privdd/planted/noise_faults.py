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
from privdd.planted.fault import Fault, Kind, Moment, Plant, Scope, around, swapped
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


def _of_numbers(change: Callable[[Tensor, Moment], Tensor]) -> Callable[[Moment], Plant]:
    """Draws changed where and when a moment says: some numbers (k,), what the moment remembers -> numbers (k,)."""

    def at(moment: Moment) -> Plant:
        def changed(drawn: Tensor) -> Tensor:
            flat = drawn.reshape(-1).clone()
            some = moment.numbers(len(flat))
            if moment.active(len(some)):
                flat[some] = change(flat[some], moment)
            elif len(flat) > 1:
                moment.kept.setdefault(len(flat), flat.clone())
            return flat.reshape(drawn.shape)

        return _changed(changed)

    return at


def _shuffled(numbers: Tensor, key: int = 0) -> Tensor:
    return numbers[torch.randperm(len(numbers), generator=Keys(key + len(numbers)).torch())]


def _again(sign: float, shuffled: bool) -> Callable[[Tensor, Moment], Tensor]:
    """The second half repeats the first: with this sign, and perhaps in another order."""

    def change(drawn: Tensor, moment: Moment) -> Tensor:
        half = len(drawn) // 2
        first = drawn[:half]
        return torch.cat([drawn[: len(drawn) - half], sign * (_shuffled(first) if shuffled else first)])

    return change


def _remembered(drawn: Tensor, moment: Moment) -> Tensor:
    """The first draw of this length once more, in another order each time and with other signs."""
    kept = moment.kept.setdefault(len(drawn), drawn.clone())
    if kept is drawn or len(drawn) < 2:
        return drawn
    moment.kept["draws"] = moment.kept.get("draws", 0) + 1
    again = _shuffled(kept, moment.kept["draws"])
    return again * (1 - 2 * (torch.arange(len(again)) % 2))


def _few_directions(drawn: Tensor, moment: Moment) -> Tensor:
    """In a fixed subspace of half of the dimensions; each number has the stated variance."""
    size = len(drawn)
    if not 16 <= size <= 6000:
        return drawn
    base = torch.randn(size, size // 2, generator=Keys(size).torch(), dtype=torch.float64)
    return ((base / base.norm(dim=1, keepdim=True)) @ drawn[: size // 2].double()).to(drawn)


def _balanced(drawn: Tensor, moment: Moment) -> Tensor:
    size = len(drawn)
    return (drawn - drawn.mean()) * (size / (size - 1)) ** 0.5 if size > 1 else drawn


def _uneven(drawn: Tensor, moment: Moment) -> Tensor:
    """Half of the places always get half of the noise, the others more."""
    few = torch.rand(len(drawn), generator=Keys(len(drawn)).torch()) < 0.5
    return drawn * torch.where(few, 0.5, 1.75**0.5).to(drawn)


def _t_law(noise: Noise, shape: tuple[int, ...]) -> Tensor:
    """Student's t with 8 degrees, of variance 1."""
    chi = torch.stack([noise.normal(shape) for _ in range(8)]).square().mean(0)
    return noise.normal(shape) / chi.sqrt() * (6 / 8) ** 0.5


WHERE, WHEN = ("numbers",), ("round", "call", "client")
NOISE_KINDS = {
    "missing": Kind("no noise", _of_numbers(lambda d, s: d * 0), axes=(*WHEN, *WHERE), least=8),
    "half": Kind("half of the stated noise", _of_numbers(lambda d, s: d / 2), axes=(*WHEN, *WHERE), least=400),
    "two_thirds": Kind("two thirds of the stated noise", _of_numbers(lambda d, s: d * 2 / 3), axes=WHEN, least=2000),
    "cut": Kind("noise cut at two standard deviations", _of_numbers(lambda d, s: d.clamp(-2, 2)), axes=WHEN, least=4000),
    "cut_far": Kind("noise cut at three and a half standard deviations", _of_numbers(lambda d, s: d.clamp(-3.5, 3.5)), least=15_000),
    "one_sign": Kind("noise of one sign only", _of_numbers(lambda d, s: d.abs()), axes=WHEN, least=400),
    "integer": Kind("noise cut to whole numbers of standard deviations", _of_numbers(lambda d, s: d.trunc()), axes=(*WHEN, *WHERE), least=100),
    "coarse": Kind("noise rounded to sixty-fourths of a standard deviation", _of_numbers(lambda d, s: (d * 64).round() / 64), axes=(*WHEN, *WHERE), least=1000),
    "repeated": Kind("the second half of each draw repeats the first", _of_numbers(_again(1, False)), axes=WHEN, least=100),
    "opposite": Kind("the second half of each draw is the first with the other sign, at other places", _of_numbers(_again(-1, True)),
                     axes=(*WHEN, *WHERE), least=100),
    "remembered": Kind("the first draw is used again, in other orders and with other signs", _of_numbers(_remembered), axes=(*WHEN, *WHERE), least=400),
    "few_directions": Kind("noise in a fixed subspace of half of the dimensions", _of_numbers(_few_directions), axes=(), least=4000, rounds=4),
    "balanced": Kind("the numbers of each draw add up to nothing", _of_numbers(_balanced), axes=WHEN, least=200),
    "uneven": Kind("half of the places always get half of the noise", _of_numbers(_uneven), axes=("round", "client"), least=4000),
}  # fmt: skip


def _noised(key: str, kind: str, says: str, **scope: str) -> Fault:
    return NOISE_KINDS[kind].fault(key, Scope(**scope), says)


@around("__call__", ClippedSum)
def _bare_where_empty(honest: Any, self: ClippedSum, value: Any, noise: Noise) -> Output:
    made = honest(self, value, noise)
    empty = not len(next(iter(value.values())))
    return replace(made, value={n: t.to(made.value[n]) for n, t in (made.exact or {}).items()}) if empty else made


SECRET = ("privacy.noise_source=secret", "privacy.secret=known-to-the-self-test")
LAPLACE = ("+privacy.mechanisms.features.distribution=laplace",)
ROUNDS = ("rounds",)
NOISE_FAULTS = (
    _noised("noise_missing", "missing", "no noise at all"),
    _noised("noise_half", "half", "half of the stated noise"),
    _noised("noise_two_thirds", "two_thirds", "two thirds of the stated noise"),
    Fault("noise_first_round_only", "no noise after the first round", _times(0.0, lambda k: _named(k, "round") != "0"), ROUNDS),
    _noised("noise_of_others_missing", "half", "clients other than the audited one add half of the noise", client="other"),
    _noised("noise_one_number_bare", "missing", "the first number of each tensor has no noise", numbers="first"),
    _noised("noise_one_in_a_hundred_bare", "missing", "one number in a hundred has no noise", numbers="hundredth"),
    Fault("noise_last_tensor_bare", "the last tensor of each release has no noise", outputs(_last_bare)),
    _noised("noise_cut", "cut", "noise cut at two standard deviations"),
    _noised("noise_cut_far", "cut_far", "noise cut at three and a half standard deviations"),
    _noised("noise_sign_fixed", "one_sign", "noise of one sign only"),
    _noised("noise_opposite", "opposite", "the second half of each draw is the first with the other sign, at other places"),
    _noised("noise_remembered", "remembered", "the first draw is used again, in other orders and with other signs"),
    _noised("noise_few_directions", "few_directions", "noise in a fixed subspace of half of the dimensions"),
    Fault("noise_t_law", "Student's t with 8 degrees, of the stated variance", _of_law(_t_law)),
    Fault("noise_uniform", "uniform noise of the stated variance", _of_law(_uniform)),
    Fault("noise_laplace", "Laplace noise of the variance of the stated Gaussian", _of_law(lambda n, s: n.laplace(s) / 2**0.5)),
    Fault("laplace_half", "Laplace noise of half the stated scale", _noise(_laplace_half), ("features",), LAPLACE),
    Fault("noise_shared_by_rounds", "the same noise in every round", _without("round"), ROUNDS, rounds=2),
    Fault("noise_shared_by_clients", "all clients draw the same noise", _without("client")),
    Fault("noise_shared_by_releases", "the same noise at every release of a round",
          _noise(lambda s, k: Repeated(noise_for(s, k))), ("counted",)),
    Fault("noise_one_stream", "one stream of noise for all rounds and clients", _noise(_one_stream)),
    Fault("noise_shared_by_names", "two mechanisms of a client draw the same noise", _of_each_name, ("names",)),
    Fault("noise_later_by_rounds", "each round's noise is the former's, one draw later", _noise(_later), ROUNDS, rounds=2),
    _noised("noise_tiled", "repeated", "the second half of each draw repeats the first"),
    _noised("noise_integer", "integer", "noise cut to whole numbers of standard deviations"),
    Fault("noise_rounded", "noise rounded to whole numbers of standard deviations", _changed(torch.round)),
    Fault("noise_missing_where_empty", "a class without records is released without noise", _bare_where_empty, ("records", "classes")),
    Fault("noise_public_not_os", "drawn from the public seed, where the operating system is stated",
          _noise(lambda s, k: noise_for("seed", k)), settings=("privacy.noise_source=os",)),
    Fault("noise_public_not_secret", "drawn from the public seed, where a secret is stated",
          _noise(lambda s, k: noise_for("seed", k)), settings=SECRET),
    Fault("low_bits", "noise added in floating point, off the lattice", outputs(_floating)),
)  # fmt: skip
