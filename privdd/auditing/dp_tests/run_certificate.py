"""T2 for the run as a whole: the largest epsilon that its own code, played with one crafted record
or without, refutes.

A trial run with the record finds out how far each release moves and with which probability the
record takes part. Coins and noise of all runs are then drawn by ``attacks.certificates``, and the
runs are played, one by one or in lockstep.

With P and Q the laws of all releases with and without the record, and L = ln P/Q of one run, a run
is (epsilon, delta)-DP only if E_P[(1 - exp(epsilon - L))_+] <= delta. Runs are drawn from a tilted
law G under which L is large, with weights dP/dG, and a bet on the mean of exp(log_weight) (1 -
exp(epsilon - L))_+ / delta <= 1 refutes epsilon at a finite sample size
(``attacks.certificates.certified_epsilon``). Plain runs would need about 1 / delta of them.

The client's data are crafted records alone, each the subject of a run of its own: they share every
release, but not the numbers in which they move it. Under ``replace`` each stands against its
opposite, else against none; if records are sampled, both join by coins of the same law, and each is
compared with what is released without either.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

import numpy as np
import torch

from attacks.canaries import Canaries
from attacks.certificates import certified_epsilon, draw_tilted_runs
from attacks.types import Finding
from privdd.auditing.dp_tests.prescribed_noise import NoiseNotPrescribed, UnknownContributions
from privdd.auditing.dp_tests.query_audit import craft_guests
from privdd.auditing.dp_tests.run_replay import ClientRunReplay, WholeRunReplay
from privdd.auditing.dp_tests.run_script import RunScript
from privdd.auditing.dp_tests.statement import GuaranteeSubject, Statement
from privdd.privacy.ledger import Ledger

SEARCH_RELEASES = 8  # releases of a round that tell how far a crafted record moves them
# Mean kappa^2 from which no other record can do noticeably better.
FULLY_CLIPPED = 0.999
LEAST_PLANNED_MU = 1e-6  # of a release that the record does not move
ASSUMPTIONS = (
    "noise.normal is standard normal (T0 tests the run's own noise)",
    "records take part by independent coins of the stated probability (T0, T1)",
    "other records' contributions do not depend on this one (T1)",
    "rounding to a lattice hides nothing",
)


@dataclass(frozen=True)
class _RunBudget:
    """How many runs are played: what costs most decides, but never fewer than ``min_runs``.

    Attributes:
        min_runs: of the record.
        side_by_side: releases in all runs together, if records are released class by class.
        in_lockstep: releases in all runs together.
        numbers_in_lockstep: noise values in all runs; for models of some size these cost most.
        one_by_one: releases in all runs together, if each costs a pass over the model.
        updates: of a client, in all runs together.
        update_numbers: noise values of a client's updates in all runs.
    """

    min_runs: int = 8
    side_by_side: int = 4_000
    in_lockstep: int = 3_200
    numbers_in_lockstep: int = 6 * 10**7
    one_by_one: int = 1_000
    updates: int = 2_400
    update_numbers: int = 2 * 10**8


@dataclass(frozen=True)
class _RunPlan:
    """Which runs certify.

    Attributes:
        run: what is played.
        trial: one run, with the record in every release.
        most: runs, rounded up to whole groups of runs side by side.
        what: of whom, in words.
        in_lockstep: whether all are played at a time.
    """

    run: WholeRunReplay | ClientRunReplay
    trial: RunScript
    most: int
    what: str
    in_lockstep: bool = False


def certificate_findings(subject: GuaranteeSubject) -> Iterator[Finding]:
    """One finding for the run, or one that says why it could not be tested; nothing if nothing is
    protected. Of a client's several uploads one is played, and another finding says that the others
    were not."""
    names = [name for name in subject.plan.mechanisms if subject.has_finite_epsilon(name)]
    if subject.ledger.unit != "client":
        statement = _stated_for_run(subject, names)
        if statement is not None:
            yield _certified_or_untested(statement, "")
        return
    statement = _stated_for_run(subject, names[:1])
    if statement is not None:
        yield _certified_or_untested(statement, names[0])
    statement = _stated_for_run(subject, names[1:])
    if statement is not None:
        why = f"a client's run is played of {names[0]!r} alone"
        yield statement.untested_run_finding(why)


def _certified_or_untested(statement: Statement, name: str) -> Finding:
    """The certificate; name: of a client's upload, "" if the unit is a record."""
    try:
        if name:
            return certify_client(statement, name)
        return certify_record(statement)
    except NoiseNotPrescribed as why:
        return statement.untested_run_finding(str(why))


def _stated_for_run(subject: GuaranteeSubject, names: Sequence[str]) -> Statement | None:
    """What the accounting states of all releases under these names; None if it states nothing."""
    if not names:
        return None
    epsilon = _proven_epsilon(subject, names)
    if not np.isfinite(epsilon):
        return None
    source = f"accounted for the whole run of client {subject.plan.victim}"
    statement = subject.statement(names[-1], epsilon, source, subject.ledger.unit)
    return replace(statement, name=", ".join(names))


def _proven_epsilon(subject: GuaranteeSubject, names: Sequence[str]) -> float:
    """Epsilon of all that the audited client released under these names, whatever else it sent
    bare."""
    ledger = Ledger(subject.ledger.relation, subject.ledger.unit, subject.ledger.delta)
    ledger.append([replace(row, post_of=()) for row in subject.own_releases(*names)])
    return ledger.proven_epsilon(client=subject.plan.victim)


def certify_client(statement: Statement, name: str) -> Finding:
    """The bound from runs of an update beyond the clip norm in each round, or of none."""
    subject = statement.subject
    run = ClientRunReplay(subject, name)
    trial = run.new_script(subject.keys.fold("trial").torch())
    run.play_run(trial)
    budget = _RunBudget()
    size = sum(tensor.numel() for tensor in run.huge_update.values())
    runs_by_numbers = budget.update_numbers // (run.update_count * size)
    runs_by_updates = budget.updates // run.update_count
    affordable = min(subject.budget.runs, runs_by_numbers, runs_by_updates)
    most = max(budget.min_runs, affordable)
    what = "an update beyond the clip norm in each round"
    return _certify_runs(statement, _RunPlan(run, trial, most, what))


def certify_record(statement: Statement) -> Finding:
    """Side by side with every label if releases are class by class, else in lockstep or run by
    run. In cells that are no classes, a record alone is known by its contribution."""
    with suppress(UnknownContributions):
        return _certify_record_in_cells(statement, by_contribution=False)
    return _certify_record_in_cells(statement, by_contribution=True)


def _certify_record_in_cells(statement: Statement, *, by_contribution: bool) -> Finding:
    subject = statement.subject
    guest = strongest_guest(subject, by_contribution=by_contribution)
    if subject.plan.relation == "replace":
        absence = "its opposite"
    else:
        absence = "nothing"
    what = f"{guest.names[0]!r} or {absence}, and no other record"
    alone = WholeRunReplay(subject, guest, by_contribution=by_contribution)
    alone = alone.fit_ledger_counts(alone.new_script(subject.keys.fold("count").torch()))
    run = replace(alone, hosts=_with_every_label(guest, subject.shard.classes))
    trial = None
    with suppress(NoiseNotPrescribed):
        trial = None if by_contribution else _play_trial(run)
    if trial is None or len({len(steps) for steps in trial.steps}) > 1:
        run = alone
        trial = _play_trial(alone)
    in_lockstep = trial.hosts == 1 and _is_vectorisable(run)
    most = _affordable_runs(subject, trial, in_lockstep=in_lockstep)
    return _certify_runs(statement, _RunPlan(run, trial, most, what, in_lockstep))


def _with_every_label(guest: Canaries, classes: int) -> Canaries:
    """The same record with every label: of runs side by side."""
    images = guest.x.expand(classes, *guest.x.shape[1:])
    return Canaries(images, torch.arange(classes), ("crafted",) * classes)


def _affordable_runs(subject: GuaranteeSubject, trial: RunScript, *, in_lockstep: bool) -> int:
    budget = _RunBudget()
    releases = sum(len(steps) for steps in trial.steps) / trial.hosts
    if trial.hosts > 1:
        most = budget.side_by_side
    elif in_lockstep:
        most = min(budget.in_lockstep, budget.numbers_in_lockstep // trial.numbers)
    else:
        most = budget.one_by_one
    affordable = int(most / max(releases, 1))
    return max(budget.min_runs, min(subject.budget.runs, affordable))


def _is_vectorisable(run: WholeRunReplay) -> bool:
    """Whether ``vmap`` can run the local code: tried on the first round."""
    first_round = replace(run, first_round_only=True)
    script = first_round.new_script(run.subject.keys.fold("together").torch())
    try:
        first_round.play_in_lockstep([script])
        return True
    except NoiseNotPrescribed:
        raise
    except RuntimeError:
        return False


def strongest_guest(subject: GuaranteeSubject, *, by_contribution: bool = False) -> Canaries:
    """Of some crafted records, the one that moves the first releases of the first and the last
    round most: by its mean kappa^2, as squared shifts are what a composition adds up."""
    guests = craft_guests(subject)
    best = -np.inf
    strongest = guests  # of which there is always one
    for number, name in enumerate(guests.names):
        row = slice(number, number + 1)
        guest = Canaries(guests.x[row], guests.y[row], (name,))
        run = WholeRunReplay(subject, guest, by_contribution=by_contribution)
        script = run.new_script(subject.keys.fold("search").torch())
        rounds = sorted({min(run.releases_by_round), max(run.releases_by_round)})
        run.play_run(script, rounds, most=SEARCH_RELEASES)
        energy = float(np.mean([min(step.kappa, 1.0) ** 2 for step in script.steps[0]]))
        if energy > best:
            best = energy
            strongest = guest
        if energy >= FULLY_CLIPPED:
            break
    return strongest


def _play_trial(run: WholeRunReplay) -> RunScript:
    script = run.new_script(run.subject.keys.fold("trial").torch())
    run.play_run(script)
    return script


def _certify_runs(statement: Statement, plan: _RunPlan) -> Finding:
    """Plays the runs, and bounds epsilon by their losses."""
    subject = statement.subject
    if not all(plan.trial.steps):
        raise NoiseNotPrescribed("the crafted record takes part in no release")
    hosts = plan.trial.hosts
    noise = subject.keys.fold("noise").torch()
    mu, q, kappa = np.array(plan.trial.steps).mean(0).T
    # At most as stated: a plan may be any, and one of larger shifts would only waste runs.
    planned = np.maximum(mu / np.maximum(kappa, 1.0), LEAST_PLANNED_MU)
    runs = -(-plan.most // hosts) * hosts
    generator = subject.keys.fold("draws").numpy()
    draws = draw_tilted_runs(
        planned, q, subject.delta, runs, generator, confidence=subject.confidence
    )
    if len(draws) < hosts:
        raise NoiseNotPrescribed("no draws that would reveal the record's presence")
    starts = range(0, len(draws) - hosts + 1, hosts)
    scripts = [plan.run.new_script(noise, draws, first) for first in starts]
    if plan.in_lockstep and isinstance(plan.run, WholeRunReplay):
        plan.run.play_in_lockstep(scripts)
    else:
        for script in scripts:
            plan.run.play_run(script)
    losses = np.concatenate([script.losses for script in scripts])
    kappas = _kappas_of(plan.trial, scripts)
    played = draws.first_runs(len(losses))
    epsilon = certified_epsilon(played, losses, subject.delta, confidence=subject.confidence)
    return statement.whole_run_finding(epsilon, len(played), kappas, ASSUMPTIONS, plan.what)


def _kappas_of(trial: RunScript, scripts: Sequence[RunScript]) -> np.ndarray:
    """kappa of every release of every run (R, T). Raises NoiseNotPrescribed if T is not the same in
    all runs, the trial included."""
    kappas = []
    for script in scripts:
        for steps in script.steps:
            kappas.append([step.kappa for step in steps])
    lengths = {len(steps) for steps in trial.steps} | {len(row) for row in kappas}
    if len(lengths) > 1:
        raise NoiseNotPrescribed("the record does not take part in as many releases in each run")
    return np.array(kappas)
