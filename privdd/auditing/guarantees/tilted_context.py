"""A client context that plays whole runs of the audited client with coins and noise dealt beforehand.

The client's data are crafted records alone, each the subject of a run of its own: the records share every release,
but not the numbers in which they move it, so that what one leaves behind says nothing of the others. Under
``replace`` each stands against another record (its opposite), else against none; where records are sampled, both join
by coins of the same law, and what each does is compared with what is released without either.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import dp_accounting as dpa
import numpy as np
import torch
from torch import Tensor

from attacks.tilted import Draws
from privdd.auditing.guarantees.dealt_noise import Blank, Given, NotDealt, deal
from privdd.core.placement import placed
from privdd.core.types import Tensors
from privdd.federated.channel import ClientContext, UndeclaredArtifact, place_of
from privdd.privacy.events import tally
from privdd.privacy.mechanism import Mechanism


class RoundPlayed(Exception):
    """Raised in local work after the last release of a round: the rest is post-processing."""


def stated_mu(event: dpa.DpEvent) -> float:
    """The shift, in units of the noise, that an event allows one record; 0 where it states none."""
    total = tally([(event, 1)])
    return float(np.sqrt(total.squared_mu + sum(n / (z * z) for (_, z), n in total.poisson)))


@dataclass
class Script:
    """Coins and noise of H runs that are played side by side, and what became of them.

    exchanged: the relation is ``replace``, under which a release may move twice as far as the event says of one record.
    draws: None = the record always takes part, with noise as it comes (to learn what a run is made of); first: the
    row of draws of the first of them. losses (H,): summed over releases; steps: by run, (mu, q, kappa) of each;
    numbers: of the largest release.
    """

    hosts: int
    generator: torch.Generator
    draws: Draws | None = None
    first: int = 0
    exchanged: bool = False
    losses: np.ndarray = field(init=False)
    steps: list[list[tuple[float, float, float]]] = field(init=False)
    numbers: int = field(default=1, init=False)

    def __post_init__(self) -> None:
        self.losses = np.zeros(self.hosts)
        self._blanks: dict[Any, Blank] = {}
        self.steps = [[] for _ in range(self.hosts)]

    def _blank(self, mechanism: Mechanism, nobody: Tensors) -> Blank:
        """Of inputs without rows it is the same each time."""
        if any(tensor.numel() for tensor in nobody.values()):
            return Blank.of(mechanism, nobody)
        key = (id(mechanism), *((n, tuple(t.shape)) for n, t in nobody.items()))
        if key not in self._blanks:
            self._blanks[key] = Blank.of(mechanism, nobody)
        return self._blanks[key]

    def next(self, host: int, q: float) -> tuple[bool, float]:
        """The coin and the noise of a run's next release; beyond what was planned, as they come."""
        at, row = len(self.steps[host]), self.first + host
        if self.draws is not None and at < self.draws.coins.shape[1]:
            return bool(self.draws.coins[row, at]), float(self.draws.noise[row, at])
        coin = self.draws is None or float(torch.rand((), generator=self.generator, dtype=torch.float64)) < q
        return coin, float(torch.randn((), generator=self.generator, dtype=torch.float64))

    def release(
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
            raise NotDealt("no loss is known of a sampled upload that is exchanged for another")
        dealt = [self.next(host, q) for host in hosts]
        coins = torch.tensor([coin for coin, _ in dealt])
        taken = _chosen(present, nobody, alone, coins)
        blank = self._blank(mechanism, nobody)
        made = deal(mechanism, blank, alone, taken, np.array([z for _, z in dealt]), self.generator, nobody, against)
        self.numbers = max(self.numbers, len(blank.numbers))
        allowed = stated_mu(made.output.event) * (2 if self.exchanged and not against else 1)
        for host, mu, loss in zip(hosts, made.mus, made.losses):
            self.losses[host] += loss
            self.steps[host].append((float(mu), q, float(mu) / allowed if allowed else np.inf))
        return made.output.value


def _chosen(present: Tensors, nobody: Tensors, alone: Sequence[Tensors], coins: Tensor) -> Tensors | None:
    """The rows whose coins say so, None if none does: the others are left out, or zeroed where all must be there."""
    if not bool(coins.any()):
        return None
    if bool(coins.all()):
        return alone[0] if len(alone) == 1 else present
    kept = {}
    for name, rows in present.items():
        if len(nobody[name]) == len(rows):
            kept[name] = torch.where(coins.reshape(-1, *(1,) * (rows.ndim - 1)), rows, nobody[name])
        else:
            kept[name] = rows[coins]
    return kept


@dataclass
class TiltedContext(ClientContext):
    """labels: of the client's records, one a run; last: releases of queries in this round, 0 = do not stop early;
    few: so many releases of each run are enough, 0 = all."""

    script: Script = field(default_factory=lambda: Script(1, torch.Generator()))
    labels: Sequence[int] = ()
    last: int = 0
    few: int = 0
    made: int = 0

    def sample(self, name: str, count: int) -> Tensor:
        """All take part as far as the method sees; whether they do is decided by dealt coins in ``mechanism``."""
        return torch.ones(count, dtype=torch.bool)

    def mechanism(self, name: str, contributions: Tensors, *, partition: str | None = None) -> Tensors:
        if name not in self.queries:
            raise UndeclaredArtifact(f"query {name!r} is not declared; declared are {sorted(self.queries)}")
        mechanism = self.mechanisms[name]
        wanted = None if partition is None else int(partition.removeprefix("label:"))
        hosts = [h for h, label in enumerate(self.labels) if wanted in (None, label)]
        count, needed = len(next(iter(contributions.values()))), len(hosts) * (2 if self.script.exchanged else 1)
        if count != needed and needed != 1:  # of one record alone, all are its own
            raise NotDealt(
                f"query {name!r} is asked with {count} contributions of {needed} records: whose is not known"
            )
        where, contributions = place_of(contributions), placed(contributions, "cpu")  # where the script's numbers are
        value = self.answered(mechanism, contributions, hosts)
        self.outputs.append(value)
        self.made += 1
        if self.made == self.last or (self.few and min(map(len, self.script.steps)) >= self.few):
            raise RoundPlayed
        return placed(value, where)

    def answered(self, mechanism: Mechanism, contributions: Tensors, hosts: Sequence[int]) -> Tensors:
        """What the mechanism releases; ``hosts``: the runs whose records take part, in order."""
        return release(self.script, mechanism, contributions, hosts)


def release(script: Script, mechanism: Mechanism, contributions: Tensors, hosts: Sequence[int]) -> Tensors:
    """One release of a query, of records that the script's runs ``hosts`` are about, or of none."""
    count = len(hosts)
    if hosts and script.exchanged and mechanism.sampling_probability >= 1:
        return script.release(mechanism, *exchange(contributions, count), hosts)
    if hosts:
        row = lambda a, b: {n: tensor[a:b] for n, tensor in contributions.items()}  # noqa: E731
        alone = [row(h, h + 1) for h in range(count)] if count > 1 or script.exchanged else [contributions]
        against = [row(h, h + 1) for h in range(count, 2 * count)] if script.exchanged else ()
        return script.release(mechanism, row(0, 0), alone, alone[0] if count == 1 else row(0, count), hosts, against)
    size = sum(tensor.numel() for tensor in mechanism(contributions, Given()).value.values())
    draws = torch.randn(size, generator=script.generator, dtype=torch.float64)
    return mechanism(contributions, Given(draws)).value


def exchange(rows: Tensors, count: int) -> tuple[Tensors, list[Tensors], Tensors]:
    """(the ``count`` opposites, the same with one of them exchanged for its record each, the records).

    rows: of the records, and then of their opposites.
    """
    records, others = ({n: t[part] for n, t in rows.items()} for part in (slice(count), slice(count, None)))
    return others, [with_row(others, records, h) for h in range(count)], records


def with_row(base: Tensors, rows: Tensors, host: int) -> Tensors:
    """``base`` with row ``host`` of ``rows`` in its place."""
    made = {n: tensor.clone() for n, tensor in base.items()}
    for n, tensor in made.items():
        tensor[host] = rows[n][host]
    return made
