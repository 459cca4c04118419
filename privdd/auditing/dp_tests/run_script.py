"""The coins and noise of many runs, dealt to a client's releases one by one or in lockstep."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple

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


class RunStep(NamedTuple):
    """One release of one run.

    Attributes:
        mu: how far the record moves it, in units of the noise that was added.
        q: the chance that the record takes part.
        kappa: mu over what the event allows; infinite if it allows nothing.
    """

    mu: float
    q: float
    kappa: float


def stated_mu(event: dpa.DpEvent) -> float:
    """The shift, in units of the noise, that an event allows one record; 0 if none.

    mu = sqrt(sum 1 / z^2) over its Gaussians, those of a sample as if all took part: the shift of
    one release in which the record does.
    """
    total = tally_events([(event, 1)])
    sampled = sum(count / (z * z) for (_, z), count in total.poisson)
    return float(np.sqrt(total.squared_mu + sampled))


@dataclass
class RunScript:
    """Coins and noise of H runs that are played side by side, and what became of them.

    Attributes:
        hosts: H.
        generator: of noise in all other directions.
        draws: None: the record always takes part, with noise as it comes, to learn what a run is
            made of.
        first: the row of draws of the first run.
        exchanged: the relation is ``replace``, under which a release may move twice as far as the
            event says of one record.
        numbers: of the largest release.
        losses: (H,) ln P/Q of each run, summed over releases.
        steps: of each run.
    """

    hosts: int
    generator: torch.Generator
    draws: TiltedDraws | None = None
    first: int = 0
    exchanged: bool = False
    numbers: int = 1

    def __post_init__(self) -> None:
        self.losses: np.ndarray = np.zeros(self.hosts)
        self.steps: list[list[RunStep]] = [[] for _ in range(self.hosts)]
        self._empty_releases: dict[Any, EmptyRelease] = {}

    @property
    def fewest_steps(self) -> int:
        """The releases of the run that made the fewest."""
        return min(len(steps) for steps in self.steps)

    def _empty_release(self, mechanism: Mechanism, nobody: Tensors) -> EmptyRelease:
        """The release of ``nobody``, which is the same each time if that is no row."""
        if any(tensor.numel() for tensor in nobody.values()):
            return EmptyRelease.from_mechanism(mechanism, nobody)
        shapes = [(name, tuple(tensor.shape)) for name, tensor in nobody.items()]
        key = (id(mechanism), *shapes)
        if key not in self._empty_releases:
            self._empty_releases[key] = EmptyRelease.from_mechanism(mechanism, nobody)
        return self._empty_releases[key]

    def next_draw(self, host: int, q: float) -> tuple[bool, float]:
        """The coin and the noise of a run's next release; beyond what was planned, as they come."""
        step = len(self.steps[host])
        row = self.first + host
        if self.draws is not None and step < self.draws.coins.shape[1]:
            return bool(self.draws.coins[row, step]), float(self.draws.noise[row, step])
        coin = True
        if self.draws is not None:
            coin = float(torch.rand((), generator=self.generator, dtype=torch.float64)) < q
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
        """Makes one release, and adds its losses and steps to the runs that it concerns.

        Args:
            mechanism: whose release it is.
            nobody: its input without any of the runs' records.
            alone: its input with each of them only.
            present: its input with all of them, by row or alone.
            hosts: the runs.
            against: its input with each record only that one of them is exchanged for, if
                ``nobody`` holds none of these.

        Returns:
            What was released.
        """
        q = float(mechanism.sampling_probability)
        if self.exchanged and q < 1 and not against:
            raise NoiseNotPrescribed(
                "privacy loss of a subsampled upload under relation=replace is not implemented"
            )
        draws = [self.next_draw(host, q) for host in hosts]
        coins = torch.tensor([coin for coin, _ in draws])
        noise = np.array([z for _, z in draws])
        participating = _participating_rows(present, nobody, alone, coins)
        empty = self._empty_release(mechanism, nobody)
        release = release_prescribed(
            mechanism, empty, alone, participating, noise, self.generator, nobody, against
        )
        self.numbers = max(self.numbers, len(empty.numbers))
        allowed = stated_mu(release.output.event)
        if self.exchanged and not against:
            allowed *= 2
        for host, mu, loss in zip(hosts, release.mus, release.losses):
            self.losses[host] += loss
            kappa = float(mu) / allowed if allowed else np.inf
            self.steps[host].append(RunStep(float(mu), q, kappa))
        return release.output.value


def _participating_rows(
    present: Tensors, nobody: Tensors, alone: Sequence[Tensors], coins: Tensor
) -> Tensors | None:
    """The rows whose coins say so, None if none does: the others are left out, or zeroed if all
    must be there."""
    if not bool(coins.any()):
        return None
    if bool(coins.all()):
        return alone[0] if len(alone) == 1 else present
    if count_records(nobody) != count_records(present):
        return take_records(present, coins)
    chosen = {}
    for name, rows in present.items():
        mask = coins.reshape(-1, *(1,) * (rows.ndim - 1))
        chosen[name] = torch.where(mask, rows, nobody[name])
    return chosen


@dataclass
class ScriptPlayer:
    """Answers a round's queries by a script: all records take part as far as the method sees, and
    dealt coins decide.

    Attributes:
        script: of the runs that are played side by side.
        labels: of the client's records, one a run.
        last: releases of queries in this round, after which it stops; 0: it does not.
        enough: releases of each run after which it stops; 0: it does not.
        answered: releases of queries so far.
        by_contribution: whether a record is known by what it contributes, whatever the cell: cells
            are no classes, and the client holds one record.
        scripts: of runs in lockstep, one record each.
        lane: () as the local code sees it.
    """

    script: RunScript
    labels: Sequence[int] = ()
    last: int = 0
    enough: int = 0
    answered: int = 0
    by_contribution: bool = False
    scripts: Sequence[RunScript] = ()
    lane: Tensor = field(default_factory=lambda: torch.zeros(()))

    def on_sample(self, *draw: object) -> None:
        """Takes every record; the prescribed coins decide at release."""

    def on_release(
        self, mechanism: Mechanism, name: str, output: Output | None, *query: Any
    ) -> Tensors:
        partition, rows = query
        hosts = self._hosts_of(name, partition, count_records(rows))
        if self.scripts:
            value = self._answer_all_runs(mechanism, rows, hosts)
        else:
            value = release_query(self.script, mechanism, rows, hosts)
        self.answered += 1
        is_enough = self.enough and self.script.fewest_steps >= self.enough
        if self.answered == self.last or is_enough:
            raise RoundPlayed
        return value

    def _hosts_of(self, name: str, partition: str | None, count: int) -> list[int]:
        """The runs whose records are in a cell. Raises UnknownContributions if it holds other
        records."""
        label = class_of_cell(partition)
        if self.by_contribution:
            hosts = [0] if count else []
        else:
            hosts = [
                host for host, host_label in enumerate(self.labels) if label in (None, host_label)
            ]
        if self.script.exchanged:
            needed = 2 * len(hosts)
        else:
            needed = len(hosts)
        if count != needed and (needed != 1 or count > 1):
            raise UnknownContributions(
                f"{name!r} has {count} contributions of {needed} records: whose is not known"
            )
        return hosts

    def _answer_all_runs(
        self, mechanism: Mechanism, contributions: Tensors, hosts: Sequence[int]
    ) -> Tensors:
        """The answers of all runs in lockstep, outside of ``vmap``."""
        names = list(contributions)
        released = list[str]()

        def answer_runs(tensors: Sequence[Tensor]) -> list[Tensor]:
            answers = []
            for script, *parts in zip(self.scripts, *(tensor.unbind() for tensor in tensors)):
                rows = dict(zip(names, parts))
                answers.append(release_query(script, mechanism, rows, hosts))
            released.extend(answers[0])
            return [torch.stack([answer[name] for answer in answers]) for name in answers[0]]

        values = _LeaveVmap.apply(answer_runs, self.lane, *contributions.values())
        return dict(zip(released, values))


def release_query(
    script: RunScript, mechanism: Mechanism, contributions: Tensors, hosts: Sequence[int]
) -> Tensors:
    """One release of a query, of records that the script's runs ``hosts`` are about, or of none."""
    count = len(hosts)
    if not hosts:
        return _release_freely(script, mechanism, contributions)
    if script.exchanged and mechanism.sampling_probability >= 1:
        return script.add_release(mechanism, *exchange_records(contributions, count), hosts)
    nobody = take_records(contributions, slice(0, 0))
    if count == 1 and not script.exchanged:
        alone = [contributions]
    else:
        alone = _single_rows(contributions, range(count))
    if count == 1:
        present = alone[0]
    else:
        present = take_records(contributions, slice(0, count))
    if script.exchanged:
        against = _single_rows(contributions, range(count, 2 * count))
    else:
        against = []
    return script.add_release(mechanism, nobody, alone, present, hosts, against)


def _single_rows(contributions: Tensors, rows: range) -> list[Tensors]:
    return [take_records(contributions, slice(row, row + 1)) for row in rows]


def _release_freely(script: RunScript, mechanism: Mechanism, contributions: Tensors) -> Tensors:
    """A release that no run is about, with fresh noise."""
    value = mechanism(contributions, PrescribedNoise()).value
    size = sum(tensor.numel() for tensor in value.values())
    draws = torch.randn(size, generator=script.generator, dtype=torch.float64)
    return mechanism(contributions, PrescribedNoise(draws)).value


def exchange_records(rows: Tensors, count: int) -> tuple[Tensors, list[Tensors], Tensors]:
    """Inputs under an exchange, of rows of ``count`` records and then of their opposites.

    Returns:
        (the opposites, the same with one of them exchanged for its record each, the records).
    """
    records = {name: tensor[:count] for name, tensor in rows.items()}
    opposites = {name: tensor[count:] for name, tensor in rows.items()}
    exchanged: list[Tensors] = []
    for host in range(count):
        inputs = {}
        for name, tensor in opposites.items():
            record = records[name][host : host + 1]
            inputs[name] = torch.cat([tensor[:host], record, tensor[host + 1 :]])
        exchanged.append(inputs)
    return opposites, exchanged, records


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
        batched = []
        for tensor, dim in zip(tensors, dims[2:]):
            if dim is None:  # the same in all runs
                batched.append(tensor.expand(runs, *tensor.shape))
            else:
                batched.append(tensor.movedim(dim, 0))
        answers = tuple(answer(batched))
        return answers, (0,) * len(answers)


def run_in_lockstep(
    local: Callable[[Mapping[str, Tensors]], Any],
    broadcast: Mapping[str, Tensors],
    player: ScriptPlayer,
) -> None:
    """Runs ``local`` on what was sent, for every script of ``player``, until it ends or
    ``RoundPlayed`` is raised.

    ``vmap`` runs the code on the states of all runs at a time; mechanisms answer one by one.

    Raises:
        RuntimeError: for code that branches on what it computed: it is played run by run.
    """
    runs = len(player.scripts)
    stacked = {}
    for group, tensors in broadcast.items():
        stacked[group] = {
            name: tensor.expand(runs, *tensor.shape) for name, tensor in tensors.items()
        }

    def run_lane(lane: Tensor, sent: Mapping[str, Tensors]) -> Tensor:
        player.lane = lane
        local(sent)
        return lane

    with suppress(RoundPlayed):
        torch.func.vmap(run_lane, randomness="same")(torch.arange(runs), stacked)
