"""The audited client's whole run, played again with crafted records alone: every round, every noised release.

The method's own local code makes the queries, the mechanisms answer them. What the server sends is what it sent in
the real run (in rounds whose snapshot was not kept, what it sent in another round of the same phase): a bound that
the accountant states holds for whatever is sent. Local work ends with the last release of a round.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from functools import cached_property, partial

import torch
from torch import Tensor

from attacks.canaries import Canaries
from attacks.tilted import Draws
from privdd.auditing.guarantees.crafted_records import holding, with_guests
from privdd.auditing.guarantees.dealt_noise import NotDealt
from privdd.auditing.guarantees.lockstep import LockstepContext, in_lockstep
from privdd.auditing.guarantees.statement import Subject
from privdd.auditing.guarantees.tilted_context import RoundPlayed, Script, TiltedContext, exchange
from privdd.core.types import Records, Tensors, Upload, Values
from privdd.federated.method import defines
from privdd.federated.simulation import Snapshot

HUGE = 1e6  # times a client's own update: beyond any clip norm


@dataclass(frozen=True)
class WholeRun:
    """What is played: the subject's rounds, for records ``hosts`` (their labels say which cells they fall into)."""

    subject: Subject
    hosts: Canaries
    early: bool = True  # local work stops after as many releases as the ledger counts

    @cached_property
    def rounds(self) -> dict[int, int]:
        """Round -> releases of queries by the client in it, by the ledger; only rounds in which it spends."""
        plan, found = self.subject.plan, {}
        for t in range(plan.method.rounds):
            if plan.victim in plan.participants(t) and any((plan.method.spends(t, plan.mechanisms) or {}).values()):
                found[t] = 0
        for row in self.subject.ledger.releases:
            if row.client == plan.victim and row.protected:
                found[row.round] = found.get(row.round, 0) + (row.name in plan.method.queries) * row.count
        return dict(sorted(found.items()))

    def as_counted(self, script: Script) -> WholeRun:
        """The same run; local work goes to its end if a round makes more releases than the ledger counts."""
        last = {self.subject.plan.method.phase(t): t for t in self.rounds if self._as_it_was(t)}
        made = replace(self, early=False).play(script, list(last.values()))
        return self if all(made[t] == self.rounds[t] for t in made) else replace(self, early=False)

    def snapshot(self, round: int) -> Snapshot:
        """The client's state before a round, or before the nearest earlier one of the same phase that was kept."""
        kept = self.subject.snapshots
        phase = self.subject.plan.method.phase(round)
        alike = sorted(t for t in kept if kept[t].phase == phase) or sorted(kept)
        return kept[max((t for t in alike if t <= round), default=alike[0])]

    def play(self, script: Script, rounds: Sequence[int] | None = None, *, few: int = 0) -> dict[int, int]:
        """Play the rounds (all) under a script -> releases of queries made in each; few: only so many a round.

        Raises ``NotDealt`` where runs cannot be played side by side or noise cannot be dealt.
        """
        made = {}
        for round in self.rounds if rounds is None else rounds:
            outward = self._outward(round)
            last = self.rounds[round] if (self.early or not self._as_it_was(round)) and not outward else 0
            ctx = self._context(round, script, last)
            ctx.few = few + min(map(len, script.steps)) if few else 0
            with suppress(RoundPlayed):
                upload = self._local(round, ctx, self.snapshot(round).broadcast, outward)
                for name in outward:
                    self._send(script, name, upload[name].value)
            made[round] = ctx.made
        return made

    def _as_it_was(self, round: int) -> bool:
        """Whether the state before this very round was kept: another round's may lead to more releases."""
        return self.snapshot(round).round == round

    def play_together(self, scripts: Sequence[Script]) -> None:
        """The same in lockstep, of one record. Raises what ``vmap`` raises for code that it cannot run."""
        for round in self.rounds:
            if self._outward(round):
                for script in scripts:
                    self.play(script, [round])
                continue
            of = self._context(round, scripts[0], self.rounds[round] if self.early or not self._as_it_was(round) else 0)
            ctx = LockstepContext(**{f.name: getattr(of, f.name) for f in fields(of) if f.init}, scripts=scripts)
            in_lockstep(partial(self._local, round, ctx), self.snapshot(round).broadcast, ctx)

    def _outward(self, round: int) -> list[str]:
        """Uploads of this round that the channel noises."""
        subject = self.subject
        rows = [r for r in subject.ledger.releases if r.round == round and r.client == subject.plan.victim]
        return [n for n in dict.fromkeys(r.name for r in rows if r.protected) if n in subject.plan.channel.mechanisms]

    def _context(self, round: int, script: Script, last: int) -> TiltedContext:
        plan = self.subject.plan
        of = plan.context(round, plan.victim)
        shared = (of.keys, of.problem, of.mechanisms, of.queries, of.noise_source, of.relation)
        ctx = TiltedContext(round, plan.victim, *shared)
        ctx.script, ctx.labels, ctx.last = script, self.hosts.y.tolist(), last
        return ctx

    def _local(self, round: int, ctx: TiltedContext, broadcast: Values, outward: Sequence[str] = ()) -> Upload:
        method, memory = self.subject.few_images().method, dict(self.snapshot(round).memory)
        shard = holding(self.subject.shard, self.records)
        if defines(method, "released") and not outward:
            return method.released(broadcast, shard, ctx)
        return method.local(broadcast, memory, shard, ctx)[0]

    @cached_property
    def records(self) -> Records:
        own = self.subject.shard.train
        base = with_guests(own.take(torch.zeros(0, dtype=torch.long)), self.hosts)
        return base if self.subject.plan.relation != "replace" else with_guests(base, opposites(self.hosts))

    def script(self, generator: torch.Generator, draws: Draws | None = None, first: int = 0) -> Script:
        """Of as many runs side by side as there are hosts."""
        return Script(len(self.hosts), generator, draws, first, exchanged=self.subject.plan.relation == "replace")

    def _send(self, script: Script, name: str, value: Tensors) -> None:
        """One upload through its mechanism: rows of one record each, the others' zeroed out as the relation says.

        Raises NotDealt for an upload that is not one row a record: it tells of the client as a whole.
        """
        if any(t.ndim == 0 or len(t) != len(self.hosts) for t in value.values()):
            raise NotDealt(f"{name} is not one row for each record")
        mechanism = self.subject.plan.channel.mechanisms[name]
        if not script.exchanged:
            value = {n: torch.cat([t, torch.zeros_like(t)]) for n, t in value.items()}
        script.release(mechanism, *exchange(value, len(self.hosts)), range(len(self.hosts)))


@dataclass(frozen=True)
class ClientRun:
    """The same where the unit is a client: an update beyond any clip norm, or zero, in each of its rounds."""

    subject: Subject
    name: str

    @cached_property
    def updates(self) -> int:
        rows = [r for r in self.subject.ledger.releases if r.name == self.name and r.protected]
        return sum(r.count for r in rows if r.client == self.subject.plan.victim)

    @cached_property
    def update(self) -> Tensors:
        """The change of the model that the client sends last, so large that it is clipped."""
        subject, snapshot = self.subject, self.subject.snapshots[max(self.subject.snapshots)]
        ctx = subject.plan.context(snapshot.round, subject.plan.victim)
        sent, _ = subject.plan.method.local(snapshot.broadcast, dict(snapshot.memory), subject.shard, ctx)
        return {n: HUGE * t.detach() for n, t in sent[self.name].value.items()}

    def script(self, generator: torch.Generator, draws: Draws | None = None, first: int = 0) -> Script:
        return Script(1, generator, draws, first, exchanged=self.subject.plan.relation == "replace")

    def play(self, script: Script) -> None:
        mechanism = self.subject.plan.channel.mechanisms[self.name]
        other = -1.0 if script.exchanged else 0.0
        nobody = {n: other * t for n, t in self.update.items()}
        for _ in range(self.updates):
            script.release(mechanism, nobody, [self.update], self.update, [0])


def in_each_class(guest: Tensor, classes: int) -> Canaries:
    """The same record with every label: as many runs side by side where releases are made class by class."""
    return Canaries(guest.expand(classes, *guest.shape), torch.arange(classes), ("crafted",) * classes)


def opposites(guests: Canaries) -> Canaries:
    """The same labels, images (values in [0, 1]) turned to their negatives: what each is exchanged for."""
    return replace(guests, x=1 - guests.x)


def candidates(guests: Canaries) -> Iterator[Canaries]:
    """Each guest alone."""
    for at, name in enumerate(guests.names):
        yield replace(guests, x=guests.x[at : at + 1], y=guests.y[at : at + 1], names=(name,))
