"""Whole runs of the audited client with coins and noise prescribed beforehand: one release, one run, or many runs in lockstep.

The client's data are crafted records alone, each the subject of a run of its own: the records share every release,
but not the numbers in which they move it, so that what one leaves behind says nothing of the others. Under
``replace`` each stands against its opposite, else against none; where records are sampled, both join by coins of the same
law, and each is compared with what is released without either.

What a mechanism does with its noise is measured, not believed: its value without noise, with and without each record, and
how far a draw of given size moves each number. So a mechanism that adds less noise than it states, or moves further than
its clip norm, shows up in the privacy loss. Trusted is that ``noise.normal`` is standard normal.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

import dp_accounting as dpa
import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from attacks.certificates import TiltedDraws
from privdd.core.types import Tensors
from privdd.privacy.clipping import count_records, take_records
from privdd.privacy.events import tally_events
from privdd.privacy.mechanism import Mechanism, Output

PROBE_DRAW = 256.0  # so large that rounding to a lattice or to float32 is small beside it
ROUNDING_TOLERANCE = (
    1e-3  # of the noise: by which a release may differ from value + scale * draw (lattice step: 2**-12)
)
MAX_OVERLAP = 1e-6  # cosine of two records' directions below which they do not overlap


class NoiseNotPrescribed(RuntimeError):
    """A mechanism whose noise is not one given draw for each number that it releases, times a scale."""


@dataclass
class PrescribedNoise:
    """Noise that hands out one vector from its start, then more; ``constant`` hands out copies of one number."""

    draws: Tensor | None = None
    constant: float = 0.0
    generator: torch.Generator | None = None
    used: int = field(default=0, init=False)

    def normal(self, shape: tuple[int, ...]) -> Tensor:
        count = int(np.prod(shape, dtype=np.int64))
        if self.draws is None:
            return torch.full(shape, self.constant, dtype=torch.float64)
        part = self.draws[self.used : self.used + count]
        self.used += count
        more = torch.randn(count - len(part), generator=self.generator, dtype=torch.float64)
        return torch.cat([part, more]).reshape(shape)

    def laplace(self, shape: tuple[int, ...]) -> Tensor:
        raise NoiseNotPrescribed("its noise is not Gaussian")

    uniform = laplace


@dataclass(frozen=True)
class PrescribedRelease:
    """mus: how far each record moves the release, in units of its noise; losses: each record's ln P/Q (H,)."""

    output: Output
    mus: np.ndarray
    losses: np.ndarray


def concatenate_values(value: Tensors) -> Tensor:
    """All numbers as one float64 vector, in the order in which a mechanism noises them."""
    parts = [tensor.flatten() for tensor in value.values()]
    if len({part.dtype for part in parts}) > 1:  # else one conversion, instead of one for each of many small tensors
        parts = [part.double() for part in parts]
    return torch.cat(parts).detach().double().cpu()


@dataclass(frozen=True)
class EmptyRelease:
    """A release of no record: its numbers without noise, and how far a draw of one moves each of them."""

    numbers: Tensor
    scale: Tensor

    @cached_property
    def has_noiseless_numbers(self) -> bool:
        """Whether there are numbers that get no noise."""
        return not bool((self.scale > 0).all())

    @staticmethod
    def from_mechanism(mechanism: Mechanism, nobody: Tensors) -> EmptyRelease:
        empty = _value_at_draw(mechanism, nobody)
        return EmptyRelease(empty, ((_value_at_draw(mechanism, nobody, PROBE_DRAW) - empty) / PROBE_DRAW).abs())


def _value_at_draw(mechanism: Mechanism, value: Tensors, draw: float = 0.0) -> Tensor:
    return concatenate_values(mechanism(value, PrescribedNoise(constant=draw)).value)


def _measure_shifts(mechanism: Mechanism, empty: Tensor, alone: Sequence[Tensors]) -> Tensor:
    """How each input moves the numbers without noise, (H, numbers)."""
    rows = [_value_at_draw(mechanism, one) - empty for one in alone]
    return torch.stack(rows) if rows else empty.new_zeros(0, len(empty))


def _noise_directions(shifts: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
    """(directions (H, numbers), lengths (H,)) of shifts in units of the noise."""
    white = torch.where(scale > 0, shifts / scale, 0.0)
    mus = white.norm(dim=1)
    return white / mus.clamp_min(1e-300).unsqueeze(1), mus


def _noiseless_directions(shifts: Tensor, scale: Tensor) -> Tensor:
    """Directions of shifts among the numbers that get no noise."""
    return functional.normalize(torch.where(scale > 0, 0.0, shifts), dim=1, eps=1e-300)


def _log_likelihoods(
    seen: Tensor, moved: Tensor, shifts: Tensor, own: Tensor | None, scale: Tensor, q: float
) -> Tensor:
    """ln of how likely a release is, (H,), over white noise, if record h takes part with probability q and then moves it by
    ``shifts[h]``. seen: the release in units of its noise, moved: before noise; own (H, numbers): where a record may show,
    None where all numbers get noise.

    Numbers without noise say by themselves whether it took part, or that neither can be.
    """
    chance = torch.tensor([q, 1 - q], dtype=torch.float64).log()
    if own is None:
        white = shifts / scale
        return torch.logaddexp(chance[0] + white @ seen - white.square().sum(1) / 2, chance[1])
    white, bare = torch.where(scale > 0, shifts / scale, 0.0), own & (scale == 0)
    fits = [~(bare & ((moved - at).abs() > 1e-6 * at.abs())).any(1) for at in (shifts, torch.zeros_like(shifts))]
    joins = chance[0] + white @ seen - white.square().sum(1) / 2
    never = torch.full_like(joins, -torch.inf)
    return torch.logaddexp(torch.where(fits[0], joins, never), torch.where(fits[1], chance[1], never))


def _check_no_overlap(one: Tensor, other: Tensor) -> None:
    """Raises NotDealt where directions (H, numbers) of different records overlap."""
    overlap = (one @ other.T).fill_diagonal_(0.0).abs().max()
    if float(overlap) > MAX_OVERLAP:
        raise NoiseNotPrescribed(f"the records' directions overlap ({float(overlap):.2g})")


def release_prescribed(
    mechanism: Mechanism,
    blank: EmptyRelease,
    alone: Sequence[Tensors],
    taken: Tensors | None,
    noise: np.ndarray,
    generator: torch.Generator,
    nobody: Tensors,
    against: Sequence[Tensors] = (),
) -> PrescribedRelease:
    """Release ``taken``; along record h's direction the noise is ``noise[h]`` standard deviations.

    nobody: the mechanism's input without any of H records, and blank what it makes of that; alone: with each of them
    only; taken: with those whose coins say so, None for nobody; against: with each of the records only that they are
    exchanged for, by coins of the same law, where it is not nobody. Raises NotDealt for noise of another form, and
    for records whose directions overlap.
    """
    empty, scale = blank.numbers, blank.scale
    shifts, others = _measure_shifts(mechanism, empty, alone), _measure_shifts(mechanism, empty, against)
    if taken is None:
        taken, clean = nobody, empty
    else:
        clean = empty + shifts[0] if taken is alone[0] else _value_at_draw(mechanism, taken)
    units, mus = _noise_directions(shifts, scale)
    for rows in (shifts, others) if len(others) else (shifts,) if len(shifts) > 1 else ():
        _check_no_overlap(units, units if rows is shifts else _noise_directions(rows, scale)[0])
        if blank.has_noiseless_numbers:
            _check_no_overlap(_noiseless_directions(shifts, scale), _noiseless_directions(rows, scale))
    draws = torch.randn(len(empty), generator=generator, dtype=torch.float64)
    draws += (torch.from_numpy(np.asarray(noise, float)) * (mus > 0) - units @ draws) @ units
    given = PrescribedNoise(draws, generator=generator)
    output = mechanism(taken, given)
    gap = concatenate_values(output.value) - clean
    if bool(((gap - scale * draws).abs() > ROUNDING_TOLERANCE * scale + 1e-5 * clean.abs()).any()):
        raise NoiseNotPrescribed("its noise is not one draw for each number that it releases, times a scale")
    seen = torch.where(scale > 0, (clean + gap - empty) / scale, 0.0)
    own = (shifts != 0) | (others != 0 if len(others) else False) if blank.has_noiseless_numbers else None
    q = float(mechanism.sampling_probability)
    inside = _log_likelihoods(seen, clean - empty, shifts, own, scale, q)
    if not len(others) and own is None:  # nobody: the likelihood of white noise
        return PrescribedRelease(output, mus.numpy(), inside.numpy())
    beside = (others, q) if len(others) else (torch.zeros_like(shifts), 0.0)
    outside = _log_likelihoods(seen, clean - empty, beside[0], own, scale, beside[1])
    return PrescribedRelease(output, mus.numpy(), (inside - outside).numpy())


class RoundPlayed(Exception):
    """Raised in local work after the last release of a round: the rest is post-processing."""


def stated_mu(event: dpa.DpEvent) -> float:
    """The shift, in units of the noise, that an event allows one record; 0 where it states none."""
    total = tally_events([(event, 1)])
    return float(np.sqrt(total.squared_mu + sum(n / (z * z) for (_, z), n in total.poisson)))


@dataclass
class RunScript:
    """Coins and noise of H runs that are played side by side, and what became of them.

    exchanged: the relation is ``replace``, under which a release may move twice as far as the event says of one record.
    draws: None = the record always takes part, with noise as it comes (to learn what a run is made of); first: the
    row of draws of the first of them. losses (H,): summed over releases; steps: by run, (mu, q, kappa) of each;
    numbers: of the largest release.
    """

    hosts: int
    generator: torch.Generator
    draws: TiltedDraws | None = None
    first: int = 0
    exchanged: bool = False
    losses: np.ndarray = field(init=False)
    steps: list[list[tuple[float, float, float]]] = field(init=False)
    numbers: int = field(default=1, init=False)

    def __post_init__(self) -> None:
        self.losses = np.zeros(self.hosts)
        self._blanks: dict[Any, EmptyRelease] = {}
        self.steps = [[] for _ in range(self.hosts)]

    def _empty_release(self, mechanism: Mechanism, nobody: Tensors) -> EmptyRelease:
        """Of inputs without rows it is the same each time."""
        if any(tensor.numel() for tensor in nobody.values()):
            return EmptyRelease.from_mechanism(mechanism, nobody)
        key = (id(mechanism), *((n, tuple(t.shape)) for n, t in nobody.items()))
        if key not in self._blanks:
            self._blanks[key] = EmptyRelease.from_mechanism(mechanism, nobody)
        return self._blanks[key]

    def next_draw(self, host: int, q: float) -> tuple[bool, float]:
        """The coin and the noise of a run's next release; beyond what was planned, as they come."""
        at, row = len(self.steps[host]), self.first + host
        if self.draws is not None and at < self.draws.coins.shape[1]:
            return bool(self.draws.coins[row, at]), float(self.draws.noise[row, at])
        coin = self.draws is None or float(torch.rand((), generator=self.generator, dtype=torch.float64)) < q
        return coin, float(torch.randn((), generator=self.generator, dtype=torch.float64))

    def add_release(
        self,
        mechanism: Mechanism,
        nobody: Tensors,
        alone: Sequence[Tensors],
        present: Tensors,
        hosts: Sequence[int],
        against: Sequence[Tensors] = (),
    ) -> Tensors:
        """One release that concerns the runs ``hosts``; present: the input with all their records, by row or alone;
        against: with each record only that one of them is exchanged for, where ``nobody`` holds none of these."""
        q = float(mechanism.sampling_probability)
        if self.exchanged and q < 1 and not against:
            raise NoiseNotPrescribed("no loss is known of a sampled upload that is exchanged for another")
        dealt = [self.next_draw(host, q) for host in hosts]
        coins = torch.tensor([coin for coin, _ in dealt])
        taken = _participating_rows(present, nobody, alone, coins)
        blank = self._empty_release(mechanism, nobody)
        made = release_prescribed(
            mechanism, blank, alone, taken, np.array([z for _, z in dealt]), self.generator, nobody, against
        )
        self.numbers = max(self.numbers, len(blank.numbers))
        allowed = stated_mu(made.output.event) * (2 if self.exchanged and not against else 1)
        for host, mu, loss in zip(hosts, made.mus, made.losses):
            self.losses[host] += loss
            self.steps[host].append((float(mu), q, float(mu) / allowed if allowed else np.inf))
        return made.output.value


def _participating_rows(present: Tensors, nobody: Tensors, alone: Sequence[Tensors], coins: Tensor) -> Tensors | None:
    """The rows whose coins say so, None if none does: the others are left out, or zeroed where all must be there."""
    if not bool(coins.any()):
        return None
    if bool(coins.all()):
        return alone[0] if len(alone) == 1 else present
    if count_records(nobody) != count_records(present):
        return take_records(present, coins)
    where = {name: coins.reshape(-1, *(1,) * (rows.ndim - 1)) for name, rows in present.items()}
    return {name: torch.where(where[name], rows, nobody[name]) for name, rows in present.items()}


@dataclass
class ScriptPlayer:
    """Answers a round's queries by a script: all records take part as far as the method sees, and dealt coins decide.

    labels: of the client's records, one a run; last: releases of queries in this round, 0 = do not stop early; few: so many
    releases of each run are enough, 0 = all; scripts: of runs in lockstep, one record each; lane: () as the local code sees
    it, one number a run.
    """

    script: RunScript
    labels: Sequence[int] = ()
    last: int = 0
    few: int = 0
    made: int = 0
    scripts: Sequence[RunScript] = ()
    lane: Tensor = field(default_factory=lambda: torch.zeros(()))

    def on_sample(self, *draw: object) -> None:
        """Everybody."""

    def on_release(
        self,
        mechanism: Mechanism,
        name: str,
        output: Output | None,
        partition: str | None = None,
        given: Tensors | None = None,
    ) -> Tensors:
        rows, wanted = given or {}, None if partition is None else int(partition.removeprefix("label:"))
        hosts = [h for h, label in enumerate(self.labels) if wanted in (None, label)]
        count, needed = count_records(rows), len(hosts) * (2 if self.script.exchanged else 1)
        if count != needed and (needed != 1 or count > 1):
            raise NoiseNotPrescribed(
                f"query {name!r} is asked with {count} contributions of {needed} records: whose is not known"
            )
        value = (self._answer_all_runs if self.scripts else partial(release_query, self.script))(mechanism, rows, hosts)
        self.made += 1
        if self.made == self.last or (self.few and min(map(len, self.script.steps)) >= self.few):
            raise RoundPlayed
        return value

    def _answer_all_runs(self, mechanism: Mechanism, contributions: Tensors, hosts: Sequence[int]) -> Tensors:
        names, released = list(contributions), list[str]()

        def answer_runs(tensors: Sequence[Tensor]) -> list[Tensor]:
            each = zip(*(tensor.unbind() for tensor in tensors))  # the tensors of one run
            made = [
                release_query(script, mechanism, dict(zip(names, of)), hosts) for script, of in zip(self.scripts, each)
            ]
            released.extend(made[0])
            return [torch.stack([one[n] for one in made]) for n in made[0]]

        answers = _LeaveVmap.apply(answer_runs, self.lane, *contributions.values())
        return dict(zip(released, answers))


def release_query(script: RunScript, mechanism: Mechanism, contributions: Tensors, hosts: Sequence[int]) -> Tensors:
    """One release of a query, of records that the script's runs ``hosts`` are about, or of none."""
    count = len(hosts)
    if hosts and script.exchanged and mechanism.sampling_probability >= 1:
        return script.add_release(mechanism, *exchange_records(contributions, count), hosts)
    if hosts:
        row = lambda a, b: take_records(contributions, slice(a, b))  # noqa: E731
        alone = [row(h, h + 1) for h in range(count)] if count > 1 or script.exchanged else [contributions]
        against = [row(h, h + 1) for h in range(count, 2 * count)] if script.exchanged else ()
        return script.add_release(
            mechanism, row(0, 0), alone, alone[0] if count == 1 else row(0, count), hosts, against
        )
    size = sum(tensor.numel() for tensor in mechanism(contributions, PrescribedNoise()).value.values())
    draws = torch.randn(size, generator=script.generator, dtype=torch.float64)
    return mechanism(contributions, PrescribedNoise(draws)).value


def exchange_records(rows: Tensors, count: int) -> tuple[Tensors, list[Tensors], Tensors]:
    """(the ``count`` opposites, the same with one of them exchanged for its record each, the records).

    rows: of the records, and then of their opposites.
    """
    records, others = ({n: t[part] for n, t in rows.items()} for part in (slice(count), slice(count, None)))
    return others, [replace_row(others, records, h) for h in range(count)], records


def replace_row(base: Tensors, rows: Tensors, host: int) -> Tensors:
    """``base`` with row ``host`` of ``rows`` in its place."""
    made = {n: tensor.clone() for n, tensor in base.items()}
    for n, tensor in made.items():
        tensor[host] = rows[n][host]
    return made


LockstepAnswer = Callable[[Sequence[Tensor]], list[Tensor]]  # tensors (R, ...) of all runs -> released tensors (R, ...)


class _LeaveVmap(torch.autograd.Function):
    """Leaves ``vmap`` for one call: ``answer`` sees the tensors of all runs."""

    @staticmethod
    def forward(answer: LockstepAnswer, lane: Tensor, *tensors: Tensor) -> tuple[Tensor, ...]:
        raise RuntimeError("outside of lockstep")

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        """Nothing is kept: a release has no gradient."""

    @staticmethod
    def vmap(info: Any, dims: Any, answer: LockstepAnswer, lane: Tensor, *tensors: Tensor) -> tuple[Any, Any]:
        runs = info.batch_size
        moved = [t.expand(runs, *t.shape) if at is None else t.movedim(at, 0) for t, at in zip(tensors, dims[2:])]
        answers = tuple(answer(moved))
        return answers, (0,) * len(answers)


def run_in_lockstep(
    local: Callable[[Mapping[str, Tensors]], Any], broadcast: Mapping[str, Tensors], player: ScriptPlayer
) -> None:
    """Run ``local`` on what was sent, for every script of ``player``, until it ends or ``RoundPlayed`` is raised.

    ``torch.func.vmap`` runs the code on the states of all runs at a time; where it asks a mechanism, the answers are made one by
    one, by the mechanism itself. Code that branches on what it computed raises RuntimeError: it is played run by run.
    """
    runs = len(player.scripts)
    wide = {g: {n: t.expand(runs, *t.shape) for n, t in group.items()} for g, group in broadcast.items()}

    def run_lane(lane: Tensor, sent: Mapping[str, Tensors]) -> Tensor:
        player.lane = lane
        local(sent)
        return lane

    with suppress(RoundPlayed):
        torch.func.vmap(run_lane, randomness="same")(torch.arange(runs), wide)
