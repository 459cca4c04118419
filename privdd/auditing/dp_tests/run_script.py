"""The coins and noise of many runs, dealt to a client's releases one by one or in lockstep."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import dp_accounting as dpa
import numpy as np
import torch
from torch import Tensor

from attacks.certificates import TiltedDraws
from privdd.auditing.dp_tests.prescribed_noise import (
    EmptyRelease,
    NoiseNotPrescribed,
    PrescribedNoise,
    UnknownContributions,
    release_prescribed,
)
from privdd.core.types import Tensors, class_of_cell
from privdd.privacy.clipping import count_records, take_records
from privdd.privacy.events import tally_events
from privdd.privacy.mechanism import Mechanism, Output


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
