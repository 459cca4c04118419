"""T2 for the run as a whole: the largest epsilon that its own code, played with one crafted record or without, refutes.

A trial run with the record finds out what a run consists of: how far each release moves and with which probability
the record takes part. Coins and noise of all runs are then drawn by ``attacks.certificates``, and the runs are played.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property, partial

import numpy as np
import torch
from torch import Tensor

from attacks.canaries import Canaries
from attacks.certificates import TiltedDraws, certified_epsilon, draw_tilted_runs
from attacks.types import Finding
from privdd.auditing.dp_tests.instrumentation import instrumented_context, with_guests, with_records
from privdd.auditing.dp_tests.mechanism_tests import craft_guests
from privdd.auditing.dp_tests.statement import GuaranteeSubject
from privdd.auditing.dp_tests.tilted_replay import (
    NoiseNotPrescribed,
    RoundPlayed,
    RunScript,
    ScriptPlayer,
    exchange_records,
    run_in_lockstep,
)
from privdd.core.types import Records, Tensors, Upload, Values
from privdd.federated.method import overrides_hook
from privdd.federated.simulation import Snapshot
from privdd.privacy.ledger import Ledger

HUGE_UPDATE = 1e6  # times a client's own update: beyond any clip norm


@dataclass(frozen=True)
class WholeRunReplay:
    """What is played: the subject's rounds, for records ``hosts`` (their labels say which cells they fall into)."""

    subject: GuaranteeSubject
    hosts: Canaries
    early: bool = True  # local work stops after as many releases as the ledger counts

    @cached_property
    def releases_by_round(self) -> dict[int, int]:
        """Round -> releases of queries by the client in it, by the ledger; only rounds in which it spends."""
        plan, found = self.subject.plan, {}
        for t in range(plan.method.rounds):
            if plan.victim in plan.participants(t) and any((plan.method.spends(t, plan.mechanisms) or {}).values()):
                found[t] = 0
        for row in self.subject.ledger.releases:
            if row.client == plan.victim and row.is_protected:
                found[row.round] = found.get(row.round, 0) + (row.name in plan.method.queries) * row.count
        return dict(sorted(found.items()))

    def fit_ledger_counts(self, script: RunScript) -> WholeRunReplay:
        """The same run; local work goes to its end if a round makes more releases than the ledger counts."""
        last = {
            self.subject.plan.method.audit_hooks.phase(t): t for t in self.releases_by_round if self._is_own_snapshot(t)
        }
        made = replace(self, early=False).play_run(script, list(last.values()))
        return self if all(made[t] == self.releases_by_round[t] for t in made) else replace(self, early=False)

    def snapshot_before(self, round: int) -> Snapshot:
        """The client's state before a round, or before the nearest earlier one of the same phase that was kept.

        What the server sent in another round may stand for this one's: a stated bound holds for whatever is sent.
        """
        kept = self.subject.snapshots
        phase = self.subject.plan.method.audit_hooks.phase(round)
        alike = sorted(t for t in kept if kept[t].phase == phase) or sorted(kept)
        return kept[max((t for t in alike if t <= round), default=alike[0])]

    def play_run(self, script: RunScript, rounds: Sequence[int] | None = None, *, few: int = 0) -> dict[int, int]:
        """Play the rounds (all) under a script -> releases of queries made in each; few: only so many a round.

        Raises ``NoiseNotPrescribed`` where runs cannot be played side by side or noise cannot be dealt.
        """
        made = {}
        for round in self.releases_by_round if rounds is None else rounds:
            outward = self._noised_uploads(round)
            last = (
                self.releases_by_round[round] if (self.early or not self._is_own_snapshot(round)) and not outward else 0
            )
            enough = few + min(map(len, script.steps)) if few else 0
            player = ScriptPlayer(script, self.hosts.y.tolist(), last, enough)
            with suppress(RoundPlayed):
                upload = self._run_local(round, player, self.snapshot_before(round).broadcast, outward)
                for name in outward:
                    self._release_upload(script, name, upload[name].value)
            made[round] = player.made
        return made

    def _is_own_snapshot(self, round: int) -> bool:
        """Whether the state before this very round was kept: another round's may lead to more releases."""
        return self.snapshot_before(round).round == round

    def play_in_lockstep(self, scripts: Sequence[RunScript]) -> None:
        """The same in lockstep, of one record. Raises what ``vmap`` raises for code that it cannot run."""
        for round in self.releases_by_round:
            if self._noised_uploads(round):
                for script in scripts:
                    self.play_run(script, [round])
                continue
            last = self.releases_by_round[round] if self.early or not self._is_own_snapshot(round) else 0
            player = ScriptPlayer(scripts[0], self.hosts.y.tolist(), last, scripts=scripts)
            run_in_lockstep(partial(self._run_local, round, player), self.snapshot_before(round).broadcast, player)

    def _noised_uploads(self, round: int) -> list[str]:
        """Uploads of this round that the channel noises."""
        subject = self.subject
        rows = [r for r in subject.ledger.releases if r.round == round and r.client == subject.plan.victim]
        return [
            n for n in dict.fromkeys(r.name for r in rows if r.is_protected) if n in subject.plan.channel.mechanisms
        ]

    def _run_local(self, round: int, player: ScriptPlayer, broadcast: Values, outward: Sequence[str] = ()) -> Upload:
        ctx = instrumented_context(self.subject.plan, round, player)
        method, memory = self.subject.plan_with_few_images().method, dict(self.snapshot_before(round).memory)
        shard = with_records(self.subject.shard, self.host_records)
        if overrides_hook(method, "released") and not outward:
            return method.audit_hooks.released(broadcast, shard, ctx)
        return method.local(broadcast, memory, shard, ctx)[0]

    @cached_property
    def host_records(self) -> Records:
        own = self.subject.shard.train
        base = with_guests(own.take(torch.zeros(0, dtype=torch.long)), self.hosts)
        return base if self.subject.plan.relation != "replace" else with_guests(base, negative_guests(self.hosts))

    def new_script(self, generator: torch.Generator, draws: TiltedDraws | None = None, first: int = 0) -> RunScript:
        """Of as many runs side by side as there are hosts."""
        return RunScript(len(self.hosts), generator, draws, first, exchanged=self.subject.plan.relation == "replace")

    def _release_upload(self, script: RunScript, name: str, value: Tensors) -> None:
        """One upload through its mechanism: rows of one record each, the others' zeroed out as the relation says.

        Raises NotDealt for an upload that is not one row a record: it tells of the client as a whole.
        """
        if any(t.ndim == 0 or len(t) != len(self.hosts) for t in value.values()):
            raise NoiseNotPrescribed(f"{name} is not one row for each record")
        mechanism = self.subject.plan.channel.mechanisms[name]
        if not script.exchanged:
            value = {n: torch.cat([t, torch.zeros_like(t)]) for n, t in value.items()}
        script.add_release(mechanism, *exchange_records(value, len(self.hosts)), range(len(self.hosts)))


@dataclass(frozen=True)
class ClientRunReplay:
    """The same where the unit is a client: an update beyond any clip norm, or zero, in each of its rounds."""

    subject: GuaranteeSubject
    name: str

    @cached_property
    def update_count(self) -> int:
        rows = [r for r in self.subject.ledger.releases if r.name == self.name and r.is_protected]
        return sum(r.count for r in rows if r.client == self.subject.plan.victim)

    @cached_property
    def huge_update(self) -> Tensors:
        """The change of the model that the client sends last, so large that it is clipped."""
        subject, snapshot = self.subject, self.subject.snapshots[max(self.subject.snapshots)]
        ctx = subject.plan.client_context(snapshot.round, subject.plan.victim)
        sent, _ = subject.plan.method.local(snapshot.broadcast, dict(snapshot.memory), subject.shard, ctx)
        return {n: HUGE_UPDATE * t.detach() for n, t in sent[self.name].value.items()}

    def new_script(self, generator: torch.Generator, draws: TiltedDraws | None = None, first: int = 0) -> RunScript:
        return RunScript(1, generator, draws, first, exchanged=self.subject.plan.relation == "replace")

    def play_run(self, script: RunScript) -> None:
        mechanism = self.subject.plan.channel.mechanisms[self.name]
        other = -1.0 if script.exchanged else 0.0
        nobody = {n: other * t for n, t in self.huge_update.items()}
        for _ in range(self.update_count):
            script.add_release(mechanism, nobody, [self.huge_update], self.huge_update, [0])


def guest_in_each_class(guest: Tensor, classes: int) -> Canaries:
    """The same record with every label: as many runs side by side where releases are made class by class."""
    return Canaries(guest.expand(classes, *guest.shape), torch.arange(classes), ("crafted",) * classes)


def negative_guests(guests: Canaries) -> Canaries:
    """The same labels, images (values in [0, 1]) turned to their negatives: what each is exchanged for."""
    return replace(guests, x=1 - guests.x)


def split_guests(guests: Canaries) -> Iterator[Canaries]:
    """Each guest alone."""
    for at, name in enumerate(guests.names):
        yield replace(guests, x=guests.x[at : at + 1], y=guests.y[at : at + 1], names=(name,))


RELEASES_SIDE_BY_SIDE = 4_000  # in all runs together, about, played side by side; never fewer than LEAST runs
RELEASES_IN_LOCKSTEP = 3_200  # the same in lockstep
NUMBERS_IN_LOCKSTEP = 6 * 10**7  # noise values in all runs in lockstep, about: for models of some size these cost most
MAX_UPDATES = 2_400  # the same where a client's updates are played
RELEASES_ONE_BY_ONE = 1_000  # the same where a run is played alone: each release costs a pass over the model
MAX_NOISE_NUMBERS = 2 * 10**8  # noise values in all runs together, about
MIN_RUNS = 8
SEARCH_RELEASES = 8  # releases of a round that tell how far a crafted record moves them
FULLY_CLIPPED = 0.999  # of what is allowed, squared, on average: no other record can do noticeably better
ASSUMPTIONS = (
    "noise.normal is standard normal (T0 tests the run's own noise)",
    "records take part by independent coins of the stated probability (T0, T1)",
    "other records' contributions do not depend on this one (T1)",
    "rounding to a lattice hides nothing",
)


@dataclass(frozen=True)
class RunCertificate:
    """What was certified: epsilon, from how many runs, and the records' kappa over all releases."""

    epsilon: float
    runs: int
    kappas: np.ndarray
    what: str


def certificate_findings(subject: GuaranteeSubject) -> Iterator[Finding]:
    """One finding for the run, or one that says why it could not be tested; nothing where nothing is protected.

    Of a client's several uploads one is played, and another finding says that the others were not.
    """
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
            found = certify_client(subject, some[0]) if unit == "client" else certify_record(subject)
        except NoiseNotPrescribed as why:
            yield statement.untested_run_finding(str(why))
            continue
        yield statement.whole_run_finding(found.epsilon, found.runs, found.kappas, ASSUMPTIONS, found.what)


def _accounted_epsilon(subject: GuaranteeSubject, names: Sequence[str]) -> float:
    """Epsilon of all that the audited client released under these names, whatever else it sent bare."""
    ledger, client = subject.ledger, subject.plan.victim
    rows = [replace(row, post_of=()) for row in ledger.releases if row.name in names and row.client == client]
    own = Ledger(ledger.relation, ledger.unit, ledger.delta)
    own.append(rows)
    return min(own.epsilon(client=client, accountant=a) for a in ("pld", "rdp"))  # type: ignore[arg-type]


def certify_client(subject: GuaranteeSubject, name: str) -> RunCertificate:
    run = ClientRunReplay(subject, name)
    trial = run.new_script(subject.keys.fold("trial").torch())
    run.play_run(trial)
    size = sum(t.numel() for t in run.huge_update.values())
    most = max(
        MIN_RUNS,
        min(subject.budget.runs, MAX_NOISE_NUMBERS // (run.update_count * size), MAX_UPDATES // run.update_count),
    )
    return _certify_runs(subject, run, trial, most, "an update beyond the clip norm in each round")


def certify_record(subject: GuaranteeSubject) -> RunCertificate:
    """Side by side with every label where releases are made class by class, else in lockstep, else run by run."""
    guest = strongest_guest(subject)
    other = "its opposite" if subject.plan.relation == "replace" else "nothing"
    note = f"{guest.names[0]!r} or {other}, and no other record"
    alone = WholeRunReplay(subject, guest)
    alone = alone.fit_ledger_counts(alone.new_script(subject.keys.fold("count").torch()))
    side = replace(alone, hosts=guest_in_each_class(guest.x[0], subject.shard.classes))
    try:
        trial = _play_trial(side)
        same = len({len(steps) for steps in trial.steps}) == 1
    except NoiseNotPrescribed:
        same = False
    if not same:
        side, trial = alone, _play_trial(alone)
    together = trial.hosts == 1 and _is_vectorisable(side)
    releases = sum(len(steps) for steps in trial.steps) / trial.hosts
    most = RELEASES_SIDE_BY_SIDE if trial.hosts > 1 else RELEASES_IN_LOCKSTEP if together else RELEASES_ONE_BY_ONE
    if together:
        most = min(most, NUMBERS_IN_LOCKSTEP // trial.numbers)
    most = max(MIN_RUNS, min(subject.budget.runs, int(most / max(releases, 1))))
    return _certify_runs(subject, side, trial, most, note, together=together)


def _is_vectorisable(run: WholeRunReplay) -> bool:
    """Whether ``vmap`` can run the local code: tried on the first round."""
    first = replace(run)
    first.__dict__["releases_by_round"] = dict(list(run.releases_by_round.items())[:1])
    try:
        first.play_in_lockstep([first.new_script(run.subject.keys.fold("together").torch())])
    except NoiseNotPrescribed:
        raise
    except RuntimeError:
        return False
    return True


def strongest_guest(subject: GuaranteeSubject) -> Canaries:
    """Of some crafted records, the one that moves the first releases of the first and the last round most."""
    found = []
    for guest in split_guests(craft_guests(subject)):
        run = WholeRunReplay(subject, guest)
        script = run.new_script(subject.keys.fold("search").torch())
        run.play_run(script, sorted({min(run.releases_by_round), max(run.releases_by_round)}), few=SEARCH_RELEASES)
        found.append((float(np.mean([min(kappa, 1.0) ** 2 for _, _, kappa in script.steps[0]])), guest))
        if found[-1][0] >= FULLY_CLIPPED:
            break
    return max(found, key=lambda pair: pair[0])[1]


def _play_trial(run: WholeRunReplay) -> RunScript:
    script = run.new_script(run.subject.keys.fold("trial").torch())
    run.play_run(script)
    return script


def _certify_runs(
    subject: GuaranteeSubject,
    run: WholeRunReplay | ClientRunReplay,
    trial: RunScript,
    most: int,
    what: str,
    *,
    together: bool = False,
) -> RunCertificate:
    """Play ``most`` runs, rounded up to whole groups of runs side by side; together: all in lockstep."""
    hosts = trial.hosts
    mu, q, kappa = np.array(trial.steps).mean(0).T
    planned = np.maximum(mu / np.maximum(kappa, 1.0), 1e-6)  # at most as stated: any plan is valid
    runs = -(-most // hosts) * hosts
    generator = subject.keys.fold("draws").numpy()
    draws = draw_tilted_runs(planned, q, subject.delta, runs, generator, confidence=subject.confidence)
    if len(draws) < hosts:
        raise NoiseNotPrescribed("no draws that would tell the record's presence")
    noise = subject.keys.fold("noise").torch()
    scripts = [run.new_script(noise, draws, first) for first in range(0, len(draws) - hosts + 1, hosts)]
    if together and isinstance(run, WholeRunReplay):
        run.play_in_lockstep(scripts)
    else:
        for script in scripts:
            run.play_run(script)
    losses = np.concatenate([script.losses for script in scripts])
    kappas = np.array([[kappa for _, _, kappa in steps] for script in scripts for steps in script.steps])
    played = draws.first_runs(len(losses))
    epsilon = certified_epsilon(played, losses, subject.delta, confidence=subject.confidence)
    return RunCertificate(epsilon, len(played), kappas, what)
