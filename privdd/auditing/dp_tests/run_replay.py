"""The audited client's rounds, played again under a script with crafted records alone."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property, partial

import torch

from attacks.canaries import Canaries
from attacks.certificates import TiltedDraws
from privdd.auditing.dp_tests.crafted_records import with_guests, with_records
from privdd.auditing.dp_tests.instrumentation import instrumented_context
from privdd.auditing.dp_tests.prescribed_noise import NoiseNotPrescribed
from privdd.auditing.dp_tests.run_script import (
    RoundPlayed,
    RunScript,
    ScriptPlayer,
    exchange_records,
    run_in_lockstep,
)
from privdd.auditing.dp_tests.statement import GuaranteeSubject
from privdd.auditing.dp_tests.update_audit import HUGE_UPDATE
from privdd.core.types import Records, Tensors, Upload, Values
from privdd.federated.method import overrides_hook
from privdd.federated.simulation import Snapshot


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
