"""T2 for the run as a whole: the largest epsilon that its own code, played with one crafted record
or without, refutes.

A trial run with the record finds out how far each release moves and with which probability the
record takes part. Coins and noise of all runs are then drawn by ``attacks.certificates``, and the
runs are played, one by one or in lockstep.

The client's data are crafted records alone, each the subject of a run of its own: they share every
release, but not the numbers in which they move it. Under ``replace`` each stands against its
opposite, else against none; where records are sampled, both join by coins of the same law, and each
is compared with what is released without either.

What a mechanism does with its noise is measured, not believed: its value without noise, with and
without each record, and how far a draw of given size moves each number. So less noise than stated,
or more movement than the clip norm allows, shows up in the privacy loss. Trusted is that
``noise.normal`` is standard normal."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any

import dp_accounting as dpa
import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from attacks.canaries import Canaries
from attacks.certificates import TiltedDraws, certified_epsilon, draw_tilted_runs
from attacks.types import Finding
from privdd.auditing.dp_tests.instrumentation import instrumented_context, with_guests, with_records
from privdd.auditing.dp_tests.mechanism_tests import HUGE_UPDATE, craft_guests
from privdd.auditing.dp_tests.statement import GuaranteeSubject, Statement
from privdd.core.types import Records, Tensors, Upload, Values, class_of_cell
from privdd.federated.method import overrides_hook
from privdd.federated.simulation import Snapshot
from privdd.privacy.accounting import tally_events
from privdd.privacy.clipping import count_records, take_records
from privdd.privacy.ledger import Ledger
from privdd.privacy.mechanism import Mechanism, Output

PROBE_DRAW = 256.0  # so large that rounding to a lattice or to float32 is small beside it
ROUNDING_TOLERANCE = (
    1e-3  # of the noise: how far a release may be from value + scale * draw (lattice step: 2**-12)
)
MAX_OVERLAP = 1e-6  # cosine of two records' directions below which they do not overlap


class NoiseNotPrescribed(RuntimeError):
    """A mechanism whose noise is not one given draw for each number that it releases, times a
    scale."""


class UnknownContributions(NoiseNotPrescribed):
    """A cell holds other records than those of its class."""


@dataclass
class PrescribedNoise:
    """Noise that hands out one vector from its start, then more; ``constant`` hands out copies of
    one number."""

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
    """mus: how far each record moves the release, in units of its noise; losses: each record's ln
    P/Q (H,)."""

    output: Output
    mus: np.ndarray
    losses: np.ndarray


def concatenate_values(value: Tensors) -> Tensor:
    """All numbers as one float64 vector, in the order in which a mechanism noises them."""
    parts = [tensor.flatten() for tensor in value.values()]
    if (
        len({part.dtype for part in parts}) > 1
    ):  # else one conversion, instead of one for each of many small tensors
        parts = [part.double() for part in parts]
    return torch.cat(parts).detach().double().cpu()


@dataclass(frozen=True)
class EmptyRelease:
    """A release of no record: its numbers without noise, and how far a draw of one moves each of
    them."""

    numbers: Tensor
    scale: Tensor

    @cached_property
    def has_noiseless_numbers(self) -> bool:
        """Whether there are numbers that get no noise."""
        return not bool((self.scale > 0).all())

    @staticmethod
    def from_mechanism(mechanism: Mechanism, nobody: Tensors) -> EmptyRelease:
        empty = _value_at_draw(mechanism, nobody)
        return EmptyRelease(
            empty, ((_value_at_draw(mechanism, nobody, PROBE_DRAW) - empty) / PROBE_DRAW).abs()
        )


def _value_at_draw(mechanism: Mechanism, value: Tensors, draw: float = 0.0) -> Tensor:
    return concatenate_values(mechanism(value, PrescribedNoise(constant=draw)).value)


def _measure_shifts(mechanism: Mechanism, empty: Tensor, alone: Sequence[Tensors]) -> Tensor:
    """How each input moves the numbers without noise: (H, numbers)."""
    rows = [_value_at_draw(mechanism, one) - empty for one in alone]
    return torch.stack(rows) if rows else empty.new_zeros(0, len(empty))


def _noise_directions(shifts: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
    """(directions (H, numbers), lengths (H,)) of shifts in units of the noise."""
    white = torch.where(scale > 0, shifts / scale, 0.0)
    mus = white.norm(dim=1)
    return white / mus.clamp_min(1e-300).unsqueeze(1), mus


def _noiseless_directions(shifts: Tensor, scale: Tensor) -> Tensor:
    return functional.normalize(torch.where(scale > 0, 0.0, shifts), dim=1, eps=1e-300)


def _log_likelihoods(
    seen: Tensor, moved: Tensor, shifts: Tensor, own: Tensor | None, scale: Tensor, q: float
) -> Tensor:
    """ln of how likely a release is, (H,), over white noise, if record h takes part with
    probability q and then moves it by ``shifts[h]``. seen: the release in units of its noise,
    moved: before noise; own (H, numbers): where a record may show,
    None where all numbers get noise: one without noise says by itself whether it took part, or that
        neither can be."""
    chance = torch.tensor([q, 1 - q], dtype=torch.float64).log()
    if own is None:
        white = shifts / scale
        return torch.logaddexp(chance[0] + white @ seen - white.square().sum(1) / 2, chance[1])
    white = torch.where(scale > 0, shifts / scale, 0.0)
    bare = own & (scale == 0)
    fits = [
        ~(bare & ((moved - at).abs() > 1e-6 * at.abs())).any(1)
        for at in (shifts, torch.zeros_like(shifts))
    ]
    joins = chance[0] + white @ seen - white.square().sum(1) / 2
    never = torch.full_like(joins, -torch.inf)
    return torch.logaddexp(
        torch.where(fits[0], joins, never), torch.where(fits[1], chance[1], never)
    )


def _check_no_overlap(one: Tensor, other: Tensor) -> None:
    """Raises NoiseNotPrescribed where directions (H, numbers) of different records overlap."""
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

    nobody: the mechanism's input without any of H records, and blank what it makes of that; alone:
        with each of them only; taken: with those whose coins say so, None for nobody; against: with
        each of the records only that they are
    exchanged for, where it is not nobody. Raises NoiseNotPrescribed for noise of another form, and
    for records whose directions overlap.
    """
    empty = blank.numbers
    scale = blank.scale
    shifts = _measure_shifts(mechanism, empty, alone)
    others = _measure_shifts(mechanism, empty, against)
    if taken is None:
        taken = nobody
        clean = empty
    else:
        clean = empty + shifts[0] if taken is alone[0] else _value_at_draw(mechanism, taken)
    units, mus = _noise_directions(shifts, scale)
    for rows in (shifts, others) if len(others) else (shifts,) if len(shifts) > 1 else ():
        _check_no_overlap(units, units if rows is shifts else _noise_directions(rows, scale)[0])
        if blank.has_noiseless_numbers:
            _check_no_overlap(
                _noiseless_directions(shifts, scale), _noiseless_directions(rows, scale)
            )
    draws = torch.randn(len(empty), generator=generator, dtype=torch.float64)
    draws += (torch.from_numpy(np.asarray(noise, float)) * (mus > 0) - units @ draws) @ units
    given = PrescribedNoise(draws, generator=generator)
    output = mechanism(taken, given)
    gap = concatenate_values(output.value) - clean
    if bool(((gap - scale * draws).abs() > ROUNDING_TOLERANCE * scale + 1e-5 * clean.abs()).any()):
        raise NoiseNotPrescribed(
            "its noise is not one draw for each number that it releases, times a scale"
        )
    seen = torch.where(scale > 0, (clean + gap - empty) / scale, 0.0)
    own = (
        (shifts != 0) | (others != 0 if len(others) else False)
        if blank.has_noiseless_numbers
        else None
    )
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
    """The shift, in units of the noise, that an event allows one record; 0 if none."""
    total = tally_events([(event, 1)])
    return float(np.sqrt(total.squared_mu + sum(n / (z * z) for (_, z), n in total.poisson)))


@dataclass
class RunScript:
    """Coins and noise of H runs that are played side by side, and what became of them.

    draws: None = the record always takes part, with noise as it comes (to learn what a run is made
        of); first: the row of draws of the first run; exchanged: the relation is ``replace``, under
        which a release may move twice as far as the
    event says of one record. losses (H,): summed over releases; steps: by run, (mu, q, kappa) of
        each; numbers: of the largest release.
    """

    hosts: int
    generator: torch.Generator
    draws: TiltedDraws | None = None
    first: int = 0
    exchanged: bool = False
    numbers: int = 1

    def __post_init__(self) -> None:
        self.losses: np.ndarray = np.zeros(self.hosts)
        self.steps: list[list[tuple[float, float, float]]] = [[] for _ in range(self.hosts)]
        self._blanks: dict[Any, EmptyRelease] = {}

    def _empty_release(self, mechanism: Mechanism, nobody: Tensors) -> EmptyRelease:
        """The release of ``nobody``, which is the same each time where that is no row."""
        if any(tensor.numel() for tensor in nobody.values()):
            return EmptyRelease.from_mechanism(mechanism, nobody)
        key = (id(mechanism), *((n, tuple(t.shape)) for n, t in nobody.items()))
        if key not in self._blanks:
            self._blanks[key] = EmptyRelease.from_mechanism(mechanism, nobody)
        return self._blanks[key]

    def next_draw(self, host: int, q: float) -> tuple[bool, float]:
        """The coin and the noise of a run's next release; beyond what was planned, as they come."""
        at = len(self.steps[host])
        row = self.first + host
        if self.draws is not None and at < self.draws.coins.shape[1]:
            return bool(self.draws.coins[row, at]), float(self.draws.noise[row, at])
        coin = (
            self.draws is None
            or float(torch.rand((), generator=self.generator, dtype=torch.float64)) < q
        )
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
        """One release that concerns the runs ``hosts``; present: the input with all their records,
        by row or alone;
        against: with each record only that one of them is exchanged for, where ``nobody`` holds
            none of these."""
        q = float(mechanism.sampling_probability)
        if self.exchanged and q < 1 and not against:
            raise NoiseNotPrescribed(
                "no loss is known of a sampled upload that is exchanged for another"
            )
        dealt = [self.next_draw(host, q) for host in hosts]
        coins = torch.tensor([coin for coin, _ in dealt])
        taken = _participating_rows(present, nobody, alone, coins)
        blank = self._empty_release(mechanism, nobody)
        made = release_prescribed(
            mechanism,
            blank,
            alone,
            taken,
            np.array([z for _, z in dealt]),
            self.generator,
            nobody,
            against,
        )
        self.numbers = max(self.numbers, len(blank.numbers))
        allowed = stated_mu(made.output.event) * (2 if self.exchanged and not against else 1)
        for host, mu, loss in zip(hosts, made.mus, made.losses):
            self.losses[host] += loss
            self.steps[host].append((float(mu), q, float(mu) / allowed if allowed else np.inf))
        return made.output.value


def _participating_rows(
    present: Tensors, nobody: Tensors, alone: Sequence[Tensors], coins: Tensor
) -> Tensors | None:
    """The rows whose coins say so, None if none does: the others are left out, or zeroed where all
    must be there."""
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
    """Answers a round's queries by a script: all records take part as far as the method sees, and
    dealt coins decide.

    labels: of the client's records, one a run; by_contribution: whether a record is known by what
        it contributes, whatever the cell, where cells are no classes and the client holds one
        record; last: releases of queries in this round, few: releases of each run, after
    which it stops (0 = it does not); scripts: of runs in lockstep, one record each; lane: () as the
    local code sees it."""

    script: RunScript
    labels: Sequence[int] = ()
    last: int = 0
    few: int = 0
    made: int = 0
    by_contribution: bool = False
    scripts: Sequence[RunScript] = ()
    lane: Tensor = field(default_factory=lambda: torch.zeros(()))

    def on_sample(self, *draw: object) -> None:
        """Everybody."""

    def on_release(
        self, mechanism: Mechanism, name: str, output: Output | None, *asked: Any
    ) -> Tensors:
        partition, rows = asked
        wanted = class_of_cell(partition)
        hosts = [h for h, label in enumerate(self.labels) if wanted in (None, label)]
        count = count_records(rows)
        if self.by_contribution:
            hosts = [0] if count else []
        needed = len(hosts) * (2 if self.script.exchanged else 1)
        if count != needed and (needed != 1 or count > 1):
            raise UnknownContributions(
                f"{name!r} has {count} contributions of {needed} records: whose is not known"
            )
        value = (self._answer_all_runs if self.scripts else partial(release_query, self.script))(
            mechanism, rows, hosts
        )
        self.made += 1
        if self.made == self.last or (self.few and min(map(len, self.script.steps)) >= self.few):
            raise RoundPlayed
        return value

    def _answer_all_runs(
        self, mechanism: Mechanism, contributions: Tensors, hosts: Sequence[int]
    ) -> Tensors:
        names = list(contributions)
        released = list[str]()

        def answer_runs(tensors: Sequence[Tensor]) -> list[Tensor]:
            each = zip(*(tensor.unbind() for tensor in tensors))  # the tensors of one run
            made = [
                release_query(script, mechanism, dict(zip(names, of)), hosts)
                for script, of in zip(self.scripts, each)
            ]
            released.extend(made[0])
            return [torch.stack([one[n] for one in made]) for n in made[0]]

        answers = _LeaveVmap.apply(answer_runs, self.lane, *contributions.values())
        return dict(zip(released, answers))


def release_query(
    script: RunScript, mechanism: Mechanism, contributions: Tensors, hosts: Sequence[int]
) -> Tensors:
    """One release of a query, of records that the script's runs ``hosts`` are about, or of none."""
    count = len(hosts)
    if hosts and script.exchanged and mechanism.sampling_probability >= 1:
        return script.add_release(mechanism, *exchange_records(contributions, count), hosts)
    if hosts:
        row = lambda a, b: take_records(contributions, slice(a, b))  # noqa: E731
        alone = (
            [row(h, h + 1) for h in range(count)]
            if count > 1 or script.exchanged
            else [contributions]
        )
        against = [row(h, h + 1) for h in range(count, 2 * count)] if script.exchanged else ()
        return script.add_release(
            mechanism, row(0, 0), alone, alone[0] if count == 1 else row(0, count), hosts, against
        )
    size = sum(
        tensor.numel() for tensor in mechanism(contributions, PrescribedNoise()).value.values()
    )
    draws = torch.randn(size, generator=script.generator, dtype=torch.float64)
    return mechanism(contributions, PrescribedNoise(draws)).value


def exchange_records(rows: Tensors, count: int) -> tuple[Tensors, list[Tensors], Tensors]:
    """(the ``count`` opposites, the same with one of them exchanged for its record each, the
    records), of rows of the records and then of their opposites."""
    records, others = (
        {n: t[part] for n, t in rows.items()} for part in (slice(count), slice(count, None))
    )
    exchanged: list[Tensors] = [
        {n: torch.cat([t[:h], records[n][h : h + 1], t[h + 1 :]]) for n, t in others.items()}
        for h in range(count)
    ]
    return others, exchanged, records


class _LeaveVmap(torch.autograd.Function):
    """Leaves ``vmap`` for one call: ``answer`` makes the released tensors (R, ...) of those of all
    R runs."""

    @staticmethod
    def forward(answer: Callable[..., Any], lane: Tensor, *tensors: Tensor) -> tuple[Tensor, ...]:
        raise RuntimeError("outside of lockstep")

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        """Nothing is kept: a release has no gradient."""

    @staticmethod
    def vmap(
        info: Any, dims: Any, answer: Callable[..., Any], lane: Tensor, *tensors: Tensor
    ) -> tuple[Any, Any]:
        runs = info.batch_size
        moved = [
            t.expand(runs, *t.shape) if at is None else t.movedim(at, 0)
            for t, at in zip(tensors, dims[2:])
        ]
        answers = tuple(answer(moved))
        return answers, (0,) * len(answers)


def run_in_lockstep(
    local: Callable[[Mapping[str, Tensors]], Any],
    broadcast: Mapping[str, Tensors],
    player: ScriptPlayer,
) -> None:
    """Run ``local`` on what was sent, for every script of ``player``, until it ends or
    ``RoundPlayed`` is raised. ``vmap`` runs the code on the states of all runs at a time;
    mechanisms answer one by one. Code that branches on what
    it computed raises RuntimeError: it is played run by run."""
    runs = len(player.scripts)
    wide = {
        g: {n: t.expand(runs, *t.shape) for n, t in group.items()} for g, group in broadcast.items()
    }

    def run_lane(lane: Tensor, sent: Mapping[str, Tensors]) -> Tensor:
        player.lane = lane
        local(sent)
        return lane

    with suppress(RoundPlayed):
        torch.func.vmap(run_lane, randomness="same")(torch.arange(runs), wide)


@dataclass(frozen=True)
class WholeRunReplay:
    """The subject's rounds, played for records ``hosts`` (their labels say which cells they fall
    into)."""

    subject: GuaranteeSubject
    hosts: Canaries
    early: bool = True  # local work stops after as many releases as the ledger counts
    by_contribution: bool = False  # as of ``ScriptPlayer``

    @cached_property
    def releases_by_round(self) -> dict[int, int]:
        """Round -> releases of queries by the client in it, by the ledger; only rounds in which it
        spends."""
        plan = self.subject.plan
        found = {}
        for t in range(plan.method.rounds):
            if plan.victim in plan.participants(t) and any(
                (plan.method.spends(t, plan.mechanisms) or {}).values()
            ):
                found[t] = 0
        for row in self.subject.own_releases():
            if row.is_protected:
                found[row.round] = (
                    found.get(row.round, 0) + (row.name in plan.method.queries) * row.count
                )
        return dict(sorted(found.items()))

    def fit_ledger_counts(self, script: RunScript) -> WholeRunReplay:
        """The same run; its local work goes to its end if a round makes more releases than the
        ledger counts."""
        phase = self.subject.plan.method.audit_hooks.phase
        last = {phase(t): t for t in self.releases_by_round if self._is_own_snapshot(t)}
        made = replace(self, early=False).play_run(script, list(last.values()))
        return (
            self
            if all(made[t] == self.releases_by_round[t] for t in made)
            else replace(self, early=False)
        )

    def snapshot_before(self, round: int) -> Snapshot:
        """The client's state before a round, or before the nearest earlier one of its phase that
        was kept: a stated bound holds for whatever the server sends."""
        kept = self.subject.snapshots
        phase = self.subject.plan.method.audit_hooks.phase(round)
        alike = sorted(t for t in kept if kept[t].phase == phase) or sorted(kept)
        return kept[max((t for t in alike if t <= round), default=alike[0])]

    def play_run(
        self, script: RunScript, rounds: Sequence[int] | None = None, *, few: int = 0
    ) -> dict[int, int]:
        """Play the rounds (all) under a script -> releases of queries made in each; few: only so
        many a round. Raises ``NoiseNotPrescribed`` where runs cannot be played side by side or
        noise cannot be dealt."""
        made = {}
        for round in self.releases_by_round if rounds is None else rounds:
            outward = self._noised_uploads(round)
            last = 0 if outward else self._last_release(round)
            enough = few + min(map(len, script.steps)) if few else 0
            player = ScriptPlayer(
                script, self.hosts.y.tolist(), last, enough, by_contribution=self.by_contribution
            )
            with suppress(RoundPlayed):
                upload = self._run_local(
                    round, player, self.snapshot_before(round).broadcast, outward
                )
                for name in outward:
                    self._release_upload(script, name, upload[name].value)
            made[round] = player.made
        return made

    def _last_release(self, round: int) -> int:
        """After how many releases local work stops (0: at its end); the state before another round
        may lead to more of them."""
        return (
            self.releases_by_round[round] if self.early or not self._is_own_snapshot(round) else 0
        )

    def _is_own_snapshot(self, round: int) -> bool:
        return self.snapshot_before(round).round == round

    def play_in_lockstep(self, scripts: Sequence[RunScript]) -> None:
        """The same in lockstep, of one record. Raises what ``vmap`` raises for code that it cannot
        run."""
        for round in self.releases_by_round:
            if self._noised_uploads(round):
                for script in scripts:
                    self.play_run(script, [round])
                continue
            player = ScriptPlayer(
                scripts[0], self.hosts.y.tolist(), self._last_release(round), scripts=scripts
            )
            player.by_contribution = self.by_contribution
            run_in_lockstep(
                partial(self._run_local, round, player),
                self.snapshot_before(round).broadcast,
                player,
            )

    def _noised_uploads(self, round: int) -> list[str]:
        """Uploads of this round that the channel noises."""
        subject = self.subject
        names = dict.fromkeys(
            r.name for r in subject.own_releases() if r.round == round and r.is_protected
        )
        return [name for name in names if name in subject.plan.channel.mechanisms]

    def _run_local(
        self, round: int, player: ScriptPlayer, broadcast: Values, outward: Sequence[str] = ()
    ) -> Upload:
        ctx = instrumented_context(self.subject.plan, round, player)
        method = self.subject.plan_with_few_images().method
        memory = dict(self.snapshot_before(round).memory)
        shard = with_records(self.subject.shard, self.host_records)
        if overrides_hook(method, "released") and not outward:
            return method.audit_hooks.released(broadcast, shard, ctx)
        return method.local(broadcast, memory, shard, ctx)[0]

    @cached_property
    def host_records(self) -> Records:
        own = self.subject.shard.train
        base = with_guests(own.take(torch.zeros(0, dtype=torch.long)), self.hosts)
        exchanged = self.subject.plan.relation == "replace"
        return with_guests(base, replace(self.hosts, x=1 - self.hosts.x)) if exchanged else base

    def new_script(
        self, generator: torch.Generator, draws: TiltedDraws | None = None, first: int = 0
    ) -> RunScript:
        return RunScript(
            len(self.hosts),
            generator,
            draws,
            first,
            exchanged=self.subject.plan.relation == "replace",
        )

    def _release_upload(self, script: RunScript, name: str, value: Tensors) -> None:
        """One upload through its mechanism: rows of one record each, the others' zeroed out as the
        relation says. Raises NoiseNotPrescribed for an upload that is not one row a record: it
        tells of the client as a whole."""
        if any(t.ndim == 0 or len(t) != len(self.hosts) for t in value.values()):
            raise NoiseNotPrescribed(f"{name} is not one row for each record")
        mechanism = self.subject.plan.channel.mechanisms[name]
        if not script.exchanged:
            value = {n: torch.cat([t, torch.zeros_like(t)]) for n, t in value.items()}
        script.add_release(
            mechanism, *exchange_records(value, len(self.hosts)), range(len(self.hosts))
        )


@dataclass(frozen=True)
class ClientRunReplay:
    """The same where the unit is a client: an update beyond any clip norm, or zero, in each of its
    rounds."""

    subject: GuaranteeSubject
    name: str

    @cached_property
    def update_count(self) -> int:
        return sum(row.count for row in self.subject.own_releases(self.name) if row.is_protected)

    @cached_property
    def huge_update(self) -> Tensors:
        """The change of the model that the client sends last, so large that it is clipped."""
        subject = self.subject
        snapshot = self.subject.snapshots[max(self.subject.snapshots)]
        ctx = subject.plan.client_context(snapshot.round, subject.plan.victim)
        sent, _ = subject.plan.method.local(
            snapshot.broadcast, dict(snapshot.memory), subject.shard, ctx
        )
        return {n: HUGE_UPDATE * t.detach() for n, t in sent[self.name].value.items()}

    def new_script(
        self, generator: torch.Generator, draws: TiltedDraws | None = None, first: int = 0
    ) -> RunScript:
        return RunScript(
            1, generator, draws, first, exchanged=self.subject.plan.relation == "replace"
        )

    def play_run(self, script: RunScript) -> None:
        mechanism = self.subject.plan.channel.mechanisms[self.name]
        other = -1.0 if script.exchanged else 0.0
        nobody = {n: other * t for n, t in self.huge_update.items()}
        for _ in range(self.update_count):
            script.add_release(mechanism, nobody, [self.huge_update], self.huge_update, [0])


RELEASES_SIDE_BY_SIDE = (
    4_000  # in all runs together, about, played side by side; never fewer than MIN_RUNS
)
RELEASES_IN_LOCKSTEP = 3_200
NUMBERS_IN_LOCKSTEP = (
    6 * 10**7
)  # noise values in all runs in lockstep, about: for models of some size these cost most
MAX_UPDATES = 2_400  # of a client's, in all runs together
RELEASES_ONE_BY_ONE = 1_000  # where a run is played alone: each release costs a pass over the model
MAX_NOISE_NUMBERS = 2 * 10**8  # noise values in all runs together, about
MIN_RUNS = 8
SEARCH_RELEASES = 8  # releases of a round that tell how far a crafted record moves them
FULLY_CLIPPED = (
    0.999  # of what is allowed, squared, on average: no other record can do noticeably better
)
ASSUMPTIONS = (
    "noise.normal is standard normal (T0 tests the run's own noise)",
    "records take part by independent coins of the stated probability (T0, T1)",
    "other records' contributions do not depend on this one (T1)",
    "rounding to a lattice hides nothing",
)


def certificate_findings(subject: GuaranteeSubject) -> Iterator[Finding]:
    """One finding for the run, or one that says why it could not be tested; nothing where nothing
    is protected. Of a client's several uploads one is played, and another finding says that the
    others were not."""
    names = [name for name in subject.plan.mechanisms if subject.has_finite_epsilon(name)]
    unit = subject.ledger.unit
    played = names[:1] if unit == "client" else names
    for some in filter(None, (played, names[len(played) :])):
        stated = _accounted_epsilon(subject, some)
        if not np.isfinite(stated):
            continue
        source = f"accounted for the whole run of client {subject.plan.victim}"
        statement = replace(subject.statement(some[-1], stated, source, unit), name=", ".join(some))
        try:
            if some is not played:
                raise NoiseNotPrescribed(f"a client's run is played of {played[0]!r} alone")
            yield (
                certify_client(statement, some[0])
                if unit == "client"
                else certify_record(statement)
            )
        except NoiseNotPrescribed as why:
            yield statement.untested_run_finding(str(why))


def _accounted_epsilon(subject: GuaranteeSubject, names: Sequence[str]) -> float:
    """Epsilon of all that the audited client released under these names, whatever else it sent
    bare."""
    ledger = subject.ledger
    client = subject.plan.victim
    own = Ledger(ledger.relation, ledger.unit, ledger.delta)
    own.append([replace(row, post_of=()) for row in subject.own_releases(*names)])
    return min(own.epsilon(client=client, accountant=a) for a in ("pld", "rdp"))  # type: ignore[arg-type]


def certify_client(statement: Statement, name: str) -> Finding:
    """The bound from runs of an update beyond the clip norm in each round, or of none."""
    subject = statement.subject
    run = ClientRunReplay(statement.subject, name)
    trial = run.new_script(subject.keys.fold("trial").torch())
    run.play_run(trial)
    size = sum(t.numel() for t in run.huge_update.values())
    fitting = min(MAX_NOISE_NUMBERS // (run.update_count * size), MAX_UPDATES // run.update_count)
    most = max(MIN_RUNS, min(subject.budget.runs, fitting))
    return _certify_runs(
        statement, run, trial, most, "an update beyond the clip norm in each round"
    )


def certify_record(statement: Statement) -> Finding:
    """Side by side with every label where releases are class by class, else in lockstep or run by
    run. In cells that are no classes, a record alone is known by its contribution."""
    with suppress(UnknownContributions):
        return _certify_record_in_cells(statement, by_contribution=False)
    return _certify_record_in_cells(statement, by_contribution=True)


def _certify_record_in_cells(statement: Statement, *, by_contribution: bool) -> Finding:
    subject = statement.subject
    guest = strongest_guest(statement.subject, by_contribution=by_contribution)
    other = "its opposite" if subject.plan.relation == "replace" else "nothing"
    note = f"{guest.names[0]!r} or {other}, and no other record"
    alone = WholeRunReplay(subject, guest, by_contribution=by_contribution)
    alone = alone.fit_ledger_counts(alone.new_script(subject.keys.fold("count").torch()))
    classes = subject.shard.classes  # the same record with every label: runs side by side
    each = Canaries(
        guest.x.expand(classes, *guest.x.shape[1:]), torch.arange(classes), ("crafted",) * classes
    )
    side = replace(alone, hosts=each)
    trial = None
    with suppress(NoiseNotPrescribed):
        trial = None if by_contribution else _play_trial(side)
    if trial is None or len({len(steps) for steps in trial.steps}) > 1:
        side = alone
        trial = _play_trial(alone)
    together = trial.hosts == 1 and _is_vectorisable(side)
    releases = sum(len(steps) for steps in trial.steps) / trial.hosts
    most = (
        RELEASES_SIDE_BY_SIDE
        if trial.hosts > 1
        else RELEASES_IN_LOCKSTEP
        if together
        else RELEASES_ONE_BY_ONE
    )
    if together:
        most = min(most, NUMBERS_IN_LOCKSTEP // trial.numbers)
    most = max(MIN_RUNS, min(subject.budget.runs, int(most / max(releases, 1))))
    return _certify_runs(statement, side, trial, most, note, together=together)


def _is_vectorisable(run: WholeRunReplay) -> bool:
    """Whether ``vmap`` can run the local code: tried on the first round."""
    first = replace(run)
    first.__dict__["releases_by_round"] = dict(list(run.releases_by_round.items())[:1])
    try:
        first.play_in_lockstep([first.new_script(run.subject.keys.fold("together").torch())])
        return True
    except NoiseNotPrescribed:
        raise
    except RuntimeError:
        return False


def strongest_guest(subject: GuaranteeSubject, *, by_contribution: bool = False) -> Canaries:
    """Of some crafted records, the one that moves the first releases of the first and the last
    round most."""
    found = []
    guests = craft_guests(subject)
    for at, name in enumerate(guests.names):
        guest = Canaries(guests.x[at : at + 1], guests.y[at : at + 1], (name,))
        run = WholeRunReplay(subject, guest, by_contribution=by_contribution)
        script = run.new_script(subject.keys.fold("search").torch())
        run.play_run(
            script,
            sorted({min(run.releases_by_round), max(run.releases_by_round)}),
            few=SEARCH_RELEASES,
        )
        found.append(
            (float(np.mean([min(kappa, 1.0) ** 2 for _, _, kappa in script.steps[0]])), guest)
        )
        if found[-1][0] >= FULLY_CLIPPED:
            break
    return max(found, key=lambda pair: pair[0])[1]


def _play_trial(run: WholeRunReplay) -> RunScript:
    script = run.new_script(run.subject.keys.fold("trial").torch())
    run.play_run(script)
    return script


def _certify_runs(
    statement: Statement,
    run: WholeRunReplay | ClientRunReplay,
    trial: RunScript,
    most: int,
    what: str,
    *,
    together: bool = False,
) -> Finding:
    """Play ``most`` runs, rounded up to whole groups of runs side by side; together: all in
    lockstep."""
    subject = statement.subject
    if not all(trial.steps):
        raise NoiseNotPrescribed("the crafted record takes part in no release")
    hosts = trial.hosts
    noise = subject.keys.fold("noise").torch()
    mu, q, kappa = np.array(trial.steps).mean(0).T
    planned = np.maximum(mu / np.maximum(kappa, 1.0), 1e-6)  # at most as stated: any plan is valid
    runs = -(-most // hosts) * hosts
    generator = subject.keys.fold("draws").numpy()
    draws = draw_tilted_runs(
        planned, q, subject.delta, runs, generator, confidence=subject.confidence
    )
    if len(draws) < hosts:
        raise NoiseNotPrescribed("no draws that would tell the record's presence")
    scripts = [
        run.new_script(noise, draws, first) for first in range(0, len(draws) - hosts + 1, hosts)
    ]
    if together and isinstance(run, WholeRunReplay):
        run.play_in_lockstep(scripts)
    else:
        for script in scripts:
            run.play_run(script)
    losses = np.concatenate([script.losses for script in scripts])
    if len({len(steps) for script in [trial, *scripts] for steps in script.steps}) > 1:
        raise NoiseNotPrescribed("the record does not take part in as many releases in each run")
    kappas = np.array(
        [[kappa for _, _, kappa in steps] for script in scripts for steps in script.steps]
    )
    played = draws.first_runs(len(losses))
    epsilon = certified_epsilon(played, losses, subject.delta, confidence=subject.confidence)
    return statement.whole_run_finding(epsilon, len(played), kappas, ASSUMPTIONS, what)
