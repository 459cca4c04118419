"""Faults of the noise (too little, of another law, not drawn anew) and of Poisson sampling (not the
independent coins that amplification assumes)."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from privdd.core.rng import Keys
from privdd.federated import channel
from privdd.privacy.mechanism import Output
from privdd.privacy.mechanisms import ClientLevel, ClippedSum, FeatureNoise
from privdd.privacy.noise import CustomNoise, Noise, noise_for
from privdd.selftest_faults.fault import (
    Fault,
    FaultKind,
    FaultMoment,
    FaultScope,
    Patch,
    swap_attributes,
    wrap_functions,
)

SHIPPED_MECHANISMS = (ClippedSum, ClientLevel, FeatureNoise)
DrawChange = Callable[[Tensor], Tensor]
NUMBER_AXES = ("numbers",)
TIME_AXES = ("round", "call", "client")
SECRET_SOURCE = ("privacy.noise_source=secret", "privacy.secret=known-to-the-self-test")
LAPLACE_LAW = ("+privacy.mechanisms.features.distribution=laplace",)
NEEDS_ROUNDS = ("rounds",)
NEEDS_SAMPLING = ("sampled",)


def change_draws(inner: Noise, change: DrawChange) -> Noise:
    """Normal and Laplace draws changed; coins as they were."""
    normal, laplace = (
        (lambda shape, draw=draw: change(draw(shape))) for draw in (inner.normal, inner.laplace)
    )
    return CustomNoise.around(inner, normal=normal, laplace=laplace)


def _patch_noise(source: Callable[[Any, Keys], Noise]) -> Patch:
    return lambda: swap_attributes((channel, "noise_for", source))


def _patch_draws(change: DrawChange, where: Callable[[Keys], bool] = lambda keys: True) -> Patch:
    """Draws of the streams that ``where`` chooses, changed."""

    def make_noise(source: Any, keys: Keys) -> Noise:
        honest = noise_for(source, keys)
        return change_draws(honest, change) if where(keys) else honest

    return _patch_noise(make_noise)


def _replace_in_path(keys: Keys, name: str) -> tuple[str, Keys]:
    """What stands after a name in the path of a client's stream, ("round", 1, "client", 0, ...),
    and the stream with 0 there."""
    if name not in keys.path:
        return "", keys
    place = keys.path.index(name) + 1
    return keys.path[place], replace(keys, path=(*keys.path[:place], "0", *keys.path[place + 1 :]))


def _share_stream(name: str) -> Patch:
    """The stream of a client round with one part of its address held fixed."""
    return _patch_noise(lambda source, keys: noise_for(source, _replace_in_path(keys, name)[1]))


def _repeated_noise(source: Any, keys: Keys) -> Noise:
    """The same draw at every release of a shape."""
    inner = noise_for(source, keys)
    earlier = dict[tuple[int, ...], Tensor]()
    return CustomNoise.around(
        inner, normal=lambda shape: earlier.setdefault(shape, inner.normal(shape)).clone()
    )


def patch_outputs(change: Callable[[Any, Output, Noise], Output]) -> Patch:
    """Every shipped mechanism's output changed: (mechanism, output, noise) -> output."""
    around_each = wrap_functions("__call__", *SHIPPED_MECHANISMS)
    return around_each(
        lambda honest, self, value, noise: change(self, honest(self, value, noise), noise)
    )


def _floating_point_noise(mechanism: Any, output: Output, noise: Noise) -> Output:
    """The same noise, added in float32 as it comes."""
    exact = output.exact or {}
    gaps = {
        n: t - exact[n].repeat(len(t) // max(len(exact[n]), 1), *(1,) * (t.ndim - 1))
        if t.ndim
        else t - exact[n]
        for n, t in output.value.items()
    }
    shaken = {n: gap * 1.0000123 for n, gap in gaps.items()}
    return replace(output, value={n: t - gaps[n] + shaken[n] for n, t in output.value.items()})


def _last_tensor_bare(mechanism: Any, output: Output, noise: Noise) -> Output:
    last = sorted(output.value)[-1]
    clean = (output.exact or {})[last]
    if clean.ndim:
        copies = len(output.value[last]) // max(len(clean), 1)
    else:
        copies = 1
    return replace(
        output, value={**output.value, last: torch.cat([clean] * copies) if copies > 1 else clean}
    )


def _patch_law(draw: Callable[[Noise, tuple[int, ...]], Tensor], of: str = "normal") -> Patch:
    """Normal (or Laplace) draws of another law: (noise, shape) -> numbers."""

    def make_noise(source: Any, keys: Keys) -> Noise:
        honest = noise_for(source, keys)
        return CustomNoise.around(honest, **{of: lambda shape: draw(honest, shape)})

    return _patch_noise(make_noise)


def _share_stream_of_names() -> AbstractContextManager[None]:
    """Each mechanism of a client round draws from the start of one stream, as if it were alone."""
    ask = channel.ClientContext.mechanism
    release = channel.Channel._release_artifact

    def own_noise(ctx: channel.ClientContext, name: str) -> Noise:
        streams = ctx.__dict__.setdefault("streams", {})
        return streams.setdefault(name, noise_for(ctx.noise_source, ctx.keys.fold("one for all")))  # type: ignore[arg-type]

    def call_alone(ctx: channel.ClientContext, name: str, call: Callable[[], Any]) -> Any:
        before = ctx.noise
        ctx.noise = own_noise(ctx, name)
        release = call()
        ctx.noise = before
        return release

    def call_mechanism(
        self: Any, name: str, contributions: Any, *, partition: str | None = None
    ) -> Any:
        return call_alone(self, name, lambda: ask(self, name, contributions, partition=partition))

    def call_release(self: Any, name: str, artifact: Any, ctx: Any, inner: Any) -> Any:
        return call_alone(ctx, name, lambda: release(self, name, artifact, ctx, inner))

    return swap_attributes(
        (channel.ClientContext, "mechanism", call_mechanism),
        (channel.Channel, "_release_artifact", call_release),
    )


def _delayed_noise(source: Any, keys: Keys) -> Noise:
    """A stream whose first draws are thrown away: as many as the number of the round."""
    started, keys = _replace_in_path(keys, "round")
    honest = noise_for(source, keys)
    first = [int(started or 0)]

    def draw_normal(shape: tuple[int, ...]) -> Tensor:
        if first:
            honest.normal((first.pop(),))
        return honest.normal(shape)

    return CustomNoise.around(honest, normal=draw_normal)


def _patch_numbers(
    change: Callable[[Tensor, FaultMoment], Tensor],
) -> Callable[[FaultMoment], Patch]:
    """Draws changed where and when a moment says: some numbers (k,), what the moment remembers ->
    numbers (k,)."""

    def at_moment(moment: FaultMoment) -> Patch:
        def change_draw(draws: Tensor) -> Tensor:
            flat = draws.reshape(-1).clone()
            affected = moment.affected_places(len(flat))
            if moment.is_active(len(affected)):
                flat[affected] = change(flat[affected], moment)
            elif len(flat) > 1:
                moment.kept.setdefault(len(flat), flat.clone())
            return flat.reshape(draws.shape)

        return _patch_draws(change_draw)

    return at_moment


def _shuffle_numbers(numbers: Tensor, key: int = 0) -> Tensor:
    return numbers[torch.randperm(len(numbers), generator=Keys(key + len(numbers)).torch())]


def _repeat_half(sign: float, shuffled: bool) -> Callable[[Tensor, FaultMoment], Tensor]:
    """The second half repeats the first: with this sign, and perhaps in another order."""

    def repeat_first_half(draws: Tensor, moment: FaultMoment) -> Tensor:
        half = len(draws) // 2
        first = draws[:half]
        return torch.cat(
            [draws[: len(draws) - half], sign * (_shuffle_numbers(first) if shuffled else first)]
        )

    return repeat_first_half


def _reuse_first_draw(draws: Tensor, moment: FaultMoment) -> Tensor:
    """The first draw of this length once more, in another order each time and with other signs."""
    first_draw = moment.kept.setdefault(len(draws), draws.clone())
    if first_draw is draws or len(draws) < 2:
        return draws
    moment.kept["draws"] = moment.kept.get("draws", 0) + 1
    again = _shuffle_numbers(first_draw, moment.kept["draws"])
    return again * (1 - 2 * (torch.arange(len(again)) % 2))


def _project_to_subspace(draws: Tensor, moment: FaultMoment) -> Tensor:
    """In a fixed subspace of half of the dimensions; each number has the stated variance."""
    size = len(draws)
    if not 16 <= size <= 6000:
        return draws
    base = torch.randn(size, size // 2, generator=Keys(size).torch(), dtype=torch.float64)
    return ((base / base.norm(dim=1, keepdim=True)) @ draws[: size // 2].double()).to(draws)


def _remove_mean(draws: Tensor, moment: FaultMoment) -> Tensor:
    size = len(draws)
    if size > 1:
        return (draws - draws.mean()) * (size / (size - 1)) ** 0.5
    return draws


def _scale_unevenly(draws: Tensor, moment: FaultMoment) -> Tensor:
    """Half of the places always get half of the noise, the others more."""
    is_louder = torch.rand(len(draws), generator=Keys(len(draws)).torch()) < 0.5
    return draws * torch.where(is_louder, 0.5, 1.75**0.5).to(draws)


def _student_t_law(noise: Noise, shape: tuple[int, ...]) -> Tensor:
    """Student's t with 8 degrees, of variance 1."""
    chi = torch.stack([noise.normal(shape) for _ in range(8)]).square().mean(0)
    return noise.normal(shape) / chi.sqrt() * (6 / 8) ** 0.5


NOISE_KINDS = {
    "missing": FaultKind(
        "no noise", _patch_numbers(lambda d, s: d * 0), axes=(*TIME_AXES, *NUMBER_AXES), least=8
    ),
    "half": FaultKind(
        "half of the stated noise",
        _patch_numbers(lambda d, s: d / 2),
        axes=(*TIME_AXES, *NUMBER_AXES),
        least=400,
    ),
    "two_thirds": FaultKind(
        "two thirds of the stated noise",
        _patch_numbers(lambda d, s: d * 2 / 3),
        axes=TIME_AXES,
        least=2000,
    ),
    "cut": FaultKind(
        "noise cut at two standard deviations",
        _patch_numbers(lambda d, s: d.clamp(-2, 2)),
        axes=TIME_AXES,
        least=4000,
    ),
    "cut_far": FaultKind(
        "noise cut at three and a half standard deviations",
        _patch_numbers(lambda d, s: d.clamp(-3.5, 3.5)),
        least=15_000,
    ),
    "one_sign": FaultKind(
        "noise of one sign only", _patch_numbers(lambda d, s: d.abs()), axes=TIME_AXES, least=400
    ),
    "integer": FaultKind(
        "noise cut to whole numbers of standard deviations",
        _patch_numbers(lambda d, s: d.trunc()),
        axes=(*TIME_AXES, *NUMBER_AXES),
        least=100,
    ),
    "coarse": FaultKind(
        "noise rounded to sixty-fourths of a standard deviation",
        _patch_numbers(lambda d, s: (d * 64).round() / 64),
        axes=(*TIME_AXES, *NUMBER_AXES),
        least=1000,
    ),
    "repeated": FaultKind(
        "the second half of each draw repeats the first",
        _patch_numbers(_repeat_half(1, False)),
        axes=TIME_AXES,
        least=100,
    ),
    "opposite": FaultKind(
        "the second half of each draw is the first with the other sign, at other places",
        _patch_numbers(_repeat_half(-1, True)),
        axes=(*TIME_AXES, *NUMBER_AXES),
        least=100,
    ),
    "remembered": FaultKind(
        "the first draw is used again, in other orders and with other signs",
        _patch_numbers(_reuse_first_draw),
        axes=(*TIME_AXES, *NUMBER_AXES),
        least=400,
    ),
    "few_directions": FaultKind(
        "noise in a fixed subspace of half of the dimensions",
        _patch_numbers(_project_to_subspace),
        axes=(),
        least=4000,
        rounds=4,
    ),
    "balanced": FaultKind(
        "the numbers of each draw add up to nothing",
        _patch_numbers(_remove_mean),
        axes=TIME_AXES,
        least=200,
    ),
    "uneven": FaultKind(
        "half of the places always get half of the noise",
        _patch_numbers(_scale_unevenly),
        axes=("round", "client"),
        least=4000,
    ),
}


def _noise_fault(key: str, kind: str, says: str, **scope: str) -> Fault:
    return NOISE_KINDS[kind].fault_at(key, FaultScope(**scope), says)


@wrap_functions("__call__", ClippedSum)
def _bare_where_empty(honest: Any, self: ClippedSum, value: Any, noise: Noise) -> Output:
    release = honest(self, value, noise)
    empty = not len(next(iter(value.values())))
    if empty:
        return replace(
            release, value={n: t.to(release.value[n]) for n, t in (release.exact or {}).items()}
        )
    return release


NOISE_FAULTS = (
    _noise_fault("noise_missing", "missing", "no noise at all"),
    _noise_fault("noise_half", "half", "half of the stated noise"),
    _noise_fault("noise_two_thirds", "two_thirds", "two thirds of the stated noise"),
    Fault(
        "noise_first_round_only",
        "no noise after the first round",
        _patch_draws(lambda drawn: drawn * 0.0, lambda k: _replace_in_path(k, "round")[0] != "0"),
        NEEDS_ROUNDS,
    ),
    _noise_fault(
        "noise_of_others_missing",
        "half",
        "clients other than the audited one add half of the noise",
        client="other",
    ),
    _noise_fault(
        "noise_one_number_bare",
        "missing",
        "the first number of each tensor has no noise",
        numbers="first",
    ),
    _noise_fault(
        "noise_one_in_a_hundred_bare",
        "missing",
        "one number in a hundred has no noise",
        numbers="hundredth",
    ),
    Fault(
        "noise_last_tensor_bare",
        "the last tensor of each release has no noise",
        patch_outputs(_last_tensor_bare),
    ),
    _noise_fault("noise_cut", "cut", "noise cut at two standard deviations"),
    _noise_fault("noise_cut_far", "cut_far", "noise cut at three and a half standard deviations"),
    _noise_fault("noise_sign_fixed", "one_sign", "noise of one sign only"),
    _noise_fault(
        "noise_opposite",
        "opposite",
        "the second half of each draw is the first with the other sign, at other places",
    ),
    _noise_fault(
        "noise_remembered",
        "remembered",
        "the first draw is used again, in other orders and with other signs",
    ),
    _noise_fault(
        "noise_few_directions",
        "few_directions",
        "noise in a fixed subspace of half of the dimensions",
    ),
    Fault(
        "noise_t_law",
        "Student's t with 8 degrees, of the stated variance",
        _patch_law(_student_t_law),
    ),
    Fault(
        "noise_uniform",
        "uniform noise of the stated variance",
        _patch_law(lambda n, s: (n.uniform(s) - 0.5) * 12**0.5),
    ),
    Fault(
        "noise_laplace",
        "Laplace noise of the variance of the stated Gaussian",
        _patch_law(lambda n, s: n.laplace(s) / 2**0.5),
    ),
    Fault(
        "laplace_half",
        "Laplace noise of half the stated scale",
        _patch_law(lambda n, s: n.laplace(s) / 2, "laplace"),
        ("features",),
        LAPLACE_LAW,
    ),
    Fault(
        "noise_shared_by_rounds",
        "the same noise in every round",
        _share_stream("round"),
        NEEDS_ROUNDS,
        rounds=2,
    ),
    Fault("noise_shared_by_clients", "all clients draw the same noise", _share_stream("client")),
    Fault(
        "noise_shared_by_releases",
        "the same noise at every release of a round",
        _patch_noise(_repeated_noise),
        ("counted",),
    ),
    Fault(
        "noise_one_stream",
        "one stream of noise for all rounds and clients",
        _patch_noise(lambda source, keys: noise_for("seed", Keys(3))),
    ),
    Fault(
        "noise_shared_by_names",
        "two mechanisms of a client draw the same noise",
        _share_stream_of_names,
        ("names",),
    ),
    Fault(
        "noise_later_by_rounds",
        "each round's noise is the former's, one draw later",
        _patch_noise(_delayed_noise),
        NEEDS_ROUNDS,
        rounds=2,
    ),
    _noise_fault("noise_tiled", "repeated", "the second half of each draw repeats the first"),
    _noise_fault("noise_integer", "integer", "noise cut to whole numbers of standard deviations"),
    Fault(
        "noise_rounded",
        "noise rounded to whole numbers of standard deviations",
        _patch_draws(torch.round),
    ),
    Fault(
        "noise_missing_where_empty",
        "a class without records is released without noise",
        _bare_where_empty,
        ("records", "classes"),
    ),
    Fault(
        "noise_public_not_os",
        "drawn from the public seed, although the operating system is stated",
        _patch_noise(lambda s, k: noise_for("seed", k)),
        settings=("privacy.noise_source=os",),
    ),
    Fault(
        "noise_public_not_secret",
        "drawn from the public seed, although a secret is stated",
        _patch_noise(lambda s, k: noise_for("seed", k)),
        settings=SECRET_SOURCE,
    ),
    Fault(
        "low_bits",
        "noise added in floating point, off the lattice",
        patch_outputs(_floating_point_noise),
    ),
)


CoinDraw = Callable[[float, int, Any], Tensor]


def _patch_coins(draw: CoinDraw) -> Callable[[FaultMoment], Patch]:
    def at_moment(moment: FaultMoment) -> Patch:
        def toss_coins(honest: Any, q: float, n: int, noise: Any) -> Tensor:
            return (draw if q < 1 and moment.is_active(n) else honest)(q, n, noise)

        return wrap_functions("draw_coins", channel)(toss_coins)

    return at_moment


def _take_everyone(q: float, count: int, noise: Any) -> Tensor:
    return torch.ones(count, dtype=torch.bool)


def _double_rate(q: float, count: int, noise: Any) -> Tensor:
    return noise.uniform((count,)) < 2 * q


def _fixed_batch_size(q: float, count: int, noise: Any) -> Tensor:
    chosen = noise.uniform((count,)).argsort()[: round(q * count)]
    return torch.zeros(count).index_fill(0, chosen, 1).bool()


def _always_take_last(q: float, count: int, noise: Any) -> Tensor:
    return (noise.uniform((count,)) < q) | (torch.arange(count) == count - 1)


def _always_take_same(q: float, count: int, noise: Any) -> Tensor:
    return torch.rand(count, generator=Keys(1).torch()) < q


def _toss_for_blocks(q: float, count: int, noise: Any) -> Tensor:
    """One coin for eight neighbouring records."""
    return (noise.uniform((-(-count // 8),)) < q).repeat_interleave(8)[:count]


def _uneven_rates(q: float, count: int, noise: Any) -> Tensor:
    """The rate on average is about right, and no record's own is."""
    return noise.uniform((count,)) < q * torch.where(torch.arange(count) < count // 3, 2.0, 0.5)


@wrap_functions("sample", channel.ClientContext)
def _ignore_sample(honest: Any, *arguments: Any) -> Tensor:
    return torch.ones_like(honest(*arguments))


@wrap_functions("sample", channel.ClientContext)
def _keep_first_draw(honest: Any, self: channel.ClientContext, name: str, count: int) -> Tensor:
    """The sample of a round's first draw serves all later ones of that round."""
    sampled = honest(self, name, count)
    return next(
        (earlier for of, earlier in self.taken if of == name and len(earlier) == count), sampled
    )


@wrap_functions("sample", channel.ClientContext)
def _public_coins(honest: Any, self: channel.ClientContext, name: str, count: int) -> Tensor:
    """Coins of a stream of their own, which the public seed decides."""
    public_keys = Keys(self.keys.seed, self.keys.path).fold("coins", len(self.taken))
    before = self.noise
    self.noise = noise_for("seed", public_keys)
    sampled = honest(self, name, count)
    self.noise = before
    return sampled


SAMPLE_KINDS = {
    "off": FaultKind(
        "every record is taken every time",
        _patch_coins(_take_everyone),
        NEEDS_SAMPLING,
        ("round", "call"),
        least=40,
    ),
    "double": FaultKind(
        "records are taken at twice the stated rate",
        _patch_coins(_double_rate),
        NEEDS_SAMPLING,
        ("round", "call"),
        least=400,
    ),
    "fixed_size": FaultKind(
        "batches of one size in place of coins",
        _patch_coins(_fixed_batch_size),
        NEEDS_SAMPLING,
        (),
        least=400,
    ),
    "last_always": FaultKind(
        "one record is always taken", _patch_coins(_always_take_last), NEEDS_SAMPLING, (), least=400
    ),
    "same_records": FaultKind(
        "the same records at every draw",
        _patch_coins(_always_take_same),
        NEEDS_SAMPLING,
        (),
        least=400,
    ),
    "in_blocks": FaultKind(
        "one coin for eight records",
        _patch_coins(_toss_for_blocks),
        NEEDS_SAMPLING,
        ("round",),
        least=400,
    ),
    "uneven": FaultKind(
        "a third of the records are taken at twice the rate, the others at half of it",
        _patch_coins(_uneven_rates),
        NEEDS_SAMPLING,
        (),
        least=400,
    ),
}
SAMPLING_FAULTS = (
    *(kind.fault_at(f"sampling_{name}", says=kind.says) for name, kind in SAMPLE_KINDS.items()),
    Fault(
        "sampling_not_heeded",
        "coins are tossed and everybody is taken",
        _ignore_sample,
        NEEDS_SAMPLING,
    ),
    Fault(
        "sampling_first_draw_kept",
        "later draws of a round are tossed and not used",
        _keep_first_draw,
        ("sampled", "counted"),
    ),
    Fault(
        "sampling_public_not_os",
        "coins are drawn from the public seed, although the operating system is stated",
        _public_coins,
        NEEDS_SAMPLING,
        ("privacy.noise_source=os",),
    ),
)
