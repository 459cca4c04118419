"""T2 for the run as a whole: the largest epsilon that its own code, played with one crafted record
or without, refutes.

A trial run with the record finds out how far each release moves and with which probability the
record takes part. Coins and noise of all runs are then drawn by ``attacks.certificates``, and the
runs are played, one by one or in lockstep.

The client's data are crafted records alone, each the subject of a run of its own: they share every
release, but not the numbers in which they move it. Under ``replace`` each stands against its
opposite, else against none; where records are sampled, both join by coins of the same law, and each
is compared with what is released without either."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace

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
