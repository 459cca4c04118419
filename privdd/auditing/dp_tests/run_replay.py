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
from privdd.federated.audit_hooks import overrides_hook
from privdd.federated.simulation import Snapshot


@dataclass(frozen=True)
class WholeRunReplay:
    """The subject's rounds, played for crafted records.

    Attributes:
        subject: the run.
        hosts: the records; their labels say which cells they fall into.
        stops_early: whether local work stops after as many releases as the ledger counts.
        by_contribution: as of ``ScriptPlayer``.
        first_round_only: whether only the first round is played, as a trial.
    """

    subject: GuaranteeSubject
    hosts: Canaries
    stops_early: bool = True
    by_contribution: bool = False
    first_round_only: bool = False

    @cached_property
    def releases_by_round(self) -> dict[int, int]:
        """Round -> releases of queries by the client in it, by the ledger; only rounds in which it
        spends."""
        plan = self.subject.plan
        releases: dict[int, int] = {}
        for t in range(plan.method.rounds):
            if plan.victim in plan.participants(t):
                spent = plan.method.releases_per_round(t, plan.mechanisms) or {}
                if any(spent.values()):
                    releases[t] = 0
        for row in self.subject.own_releases():
            if row.is_protected:
                count = row.count if row.name in plan.method.queries else 0
                releases[row.round] = releases.get(row.round, 0) + count
        rounds = sorted(releases)
        if self.first_round_only:
            rounds = rounds[:1]
        return {t: releases[t] for t in rounds}

    def fit_ledger_counts(self, script: RunScript) -> WholeRunReplay:
        """The same run; its local work goes to its end if a round makes more releases than the
        ledger counts."""
        phase = self.subject.plan.method.audit_hooks.phase
        last = {phase(t): t for t in self.releases_by_round if self._is_own_snapshot(t)}
        to_end = replace(self, stops_early=False)
        counts = to_end.play_run(script, list(last.values()))
        is_as_counted = all(counts[t] == self.releases_by_round[t] for t in counts)
        return self if is_as_counted else to_end

    def snapshot_before(self, round: int) -> Snapshot:
        """The client's state before a round, or before the nearest earlier one of its phase that
        was kept: a stated bound holds for whatever the server sends."""
        snapshots = self.subject.snapshots
        phase = self.subject.plan.method.audit_hooks.phase(round)
        same_phase = sorted(t for t in snapshots if snapshots[t].phase == phase)
        candidates = same_phase or sorted(snapshots)
        return snapshots[max((t for t in candidates if t <= round), default=candidates[0])]

    def play_run(
        self, script: RunScript, rounds: Sequence[int] | None = None, *, most: int = 0
    ) -> dict[int, int]:
        """Plays rounds under a script.

        Args:
            script: the coins and noise of runs side by side.
            rounds: None: all.
            most: of each round only so many releases of each run; 0: all.

        Returns:
            Round -> the releases of queries made in it.

        Raises:
            NoiseNotPrescribed: if runs cannot be played side by side, or noise cannot be dealt.
        """
        counts = {}
        for round in self.releases_by_round if rounds is None else rounds:
            uploads = self._noised_uploads(round)
            player = ScriptPlayer(
                script,
                self.hosts.y.tolist(),
                last=0 if uploads else self._last_release(round),
                enough=most + script.fewest_steps if most else 0,
                by_contribution=self.by_contribution,
            )
            with suppress(RoundPlayed):
                broadcast = self.snapshot_before(round).broadcast
                sent = self._run_local(round, player, broadcast, uploads)
                for name in uploads:
                    self._release_upload(script, name, sent[name].value)
            counts[round] = player.answered
        return counts

    def _last_release(self, round: int) -> int:
        """After how many releases local work stops (0: at its end); the state before another round
        may lead to more of them."""
        if self.stops_early or not self._is_own_snapshot(round):
            return self.releases_by_round[round]
        return 0

    def _is_own_snapshot(self, round: int) -> bool:
        return self.snapshot_before(round).round == round

    def play_in_lockstep(self, scripts: Sequence[RunScript]) -> None:
        """The same in lockstep, of one record.

        Raises:
            RuntimeError: what ``vmap`` raises for code that it cannot run.
        """
        for round in self.releases_by_round:
            if self._noised_uploads(round):
                for script in scripts:
                    self.play_run(script, [round])
                continue
            player = ScriptPlayer(
                scripts[0],
                self.hosts.y.tolist(),
                last=self._last_release(round),
                by_contribution=self.by_contribution,
                scripts=scripts,
            )
            broadcast = self.snapshot_before(round).broadcast
            run_in_lockstep(partial(self._run_local, round, player), broadcast, player)

    def _noised_uploads(self, round: int) -> list[str]:
        """Uploads of this round that the channel noises."""
        subject = self.subject
        rows = [row for row in subject.own_releases() if row.round == round and row.is_protected]
        names = dict.fromkeys(row.name for row in rows)
        return [name for name in names if name in subject.plan.channel.mechanisms]

    def _run_local(
        self, round: int, player: ScriptPlayer, broadcast: Values, uploads: Sequence[str] = ()
    ) -> Upload:
        """Local work, up to its releases if no upload is needed."""
        ctx = instrumented_context(self.subject.plan, round, player)
        method = self.subject.plan_with_few_images().method
        memory = dict(self.snapshot_before(round).memory)
        shard = with_records(self.subject.shard, self.host_records)
        if overrides_hook(method, "protected_upload") and not uploads:
            return method.audit_hooks.protected_upload(broadcast, shard.client_data, ctx)
        return method.local(broadcast, memory, shard.client_data, ctx)[0]

    @cached_property
    def host_records(self) -> Records:
        """The crafted records; under ``replace`` their opposites after them."""
        empty = self.subject.shard.train.take(torch.zeros(0, dtype=torch.long))
        records = with_guests(empty, self.hosts)
        if self.subject.plan.relation != "replace":
            return records
        return with_guests(records, replace(self.hosts, x=1 - self.hosts.x))

    def new_script(
        self, generator: torch.Generator, draws: TiltedDraws | None = None, first: int = 0
    ) -> RunScript:
        """A script of one run for each record, from row ``first`` of the draws."""
        exchanged = self.subject.plan.relation == "replace"
        return RunScript(len(self.hosts), generator, draws, first, exchanged=exchanged)

    def _release_upload(self, script: RunScript, name: str, value: Tensors) -> None:
        """One upload through its mechanism: rows of one record each, the others' zeroed out as the
        relation says. Raises NoiseNotPrescribed for an upload that is not one row a record: it
        tells of the client as a whole."""
        count = len(self.hosts)
        if any(tensor.ndim == 0 or len(tensor) != count for tensor in value.values()):
            raise NoiseNotPrescribed(f"{name} is not one row for each record")
        mechanism = self.subject.plan.channel.mechanisms[name]
        if not script.exchanged:
            value = {key: torch.cat([rows, torch.zeros_like(rows)]) for key, rows in value.items()}
        script.add_release(mechanism, *exchange_records(value, count), range(count))


@dataclass(frozen=True)
class ClientRunReplay:
    """The same if the unit is a client: an update beyond any clip norm, or zero, in each of its
    rounds."""

    subject: GuaranteeSubject
    name: str

    @cached_property
    def update_count(self) -> int:
        """Protected updates that the client sends."""
        rows = self.subject.own_releases(self.name)
        return sum(row.count for row in rows if row.is_protected)

    @cached_property
    def huge_update(self) -> Tensors:
        """The change of the model that the client sends last, so large that it is clipped."""
        subject = self.subject
        snapshot = subject.snapshots[max(subject.snapshots)]
        ctx = subject.plan.client_context(snapshot.round, subject.plan.victim)
        sent, _ = subject.plan.method.local(
            snapshot.broadcast, dict(snapshot.memory), subject.shard.client_data, ctx
        )
        update = sent[self.name].value
        return {name: HUGE_UPDATE * tensor.detach() for name, tensor in update.items()}

    def new_script(
        self, generator: torch.Generator, draws: TiltedDraws | None = None, first: int = 0
    ) -> RunScript:
        """A script of one run, by row ``first`` of the draws."""
        exchanged = self.subject.plan.relation == "replace"
        return RunScript(1, generator, draws, first, exchanged=exchanged)

    def play_run(self, script: RunScript) -> None:
        """Releases the huge update, against its opposite or zero, as often as the client does."""
        mechanism = self.subject.plan.channel.mechanisms[self.name]
        factor = -1.0 if script.exchanged else 0.0
        absent = {name: factor * tensor for name, tensor in self.huge_update.items()}
        for _ in range(self.update_count):
            script.add_release(mechanism, absent, [self.huge_update], self.huge_update, [0])
