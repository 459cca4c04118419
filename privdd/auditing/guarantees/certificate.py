"""T2 for the run as a whole: the largest epsilon that its own code, played with one crafted record or without, refutes.

A trial run with the record finds out what a run consists of: how far each release moves and with which probability
the record takes part. Coins and noise of all runs are then drawn by ``attacks.tilted``, and the runs are played.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from attacks.canaries import Canaries
from attacks.tilted import certified_epsilon, propose
from attacks.types import Finding
from privdd.auditing.guarantees.dealt_noise import NotDealt
from privdd.auditing.guarantees.queries import guests_of
from privdd.auditing.guarantees.statement import Statement, Subject
from privdd.auditing.guarantees.tilted_context import Script
from privdd.auditing.guarantees.whole_run import ClientRun, WholeRun, candidates, in_each_class
from privdd.privacy.ledger import Ledger

RELEASES = 4_000  # in all runs together, about, played side by side; never fewer than LEAST runs
IN_LOCKSTEP = 3_200  # the same in lockstep
IN_LOCKSTEP_NUMBERS = 6 * 10**7  # noise values in all runs in lockstep, about: for models of some size these cost most
UPDATES = 2_400  # the same where a client's updates are played
ONE_BY_ONE = 1_000  # the same where a run is played alone: each release costs a pass over the model
NUMBERS = 2 * 10**8  # noise values in all runs together, about
LEAST = 8
FEW = 8  # releases of a round that tell how far a crafted record moves them
CLIPPED = 0.999  # of what is allowed, squared, on average: no other record can do noticeably better
TRUSTS = (
    "noise.normal is standard normal (T0 tests the run's own noise)",
    "records take part by independent coins of the stated probability (T0, T1)",
    "other records' contributions do not depend on this one (T1)",
    "rounding to a lattice hides nothing",
)


@dataclass(frozen=True)
class Certified:
    """What was certified: epsilon, from how many runs, and the records' kappa over all releases."""

    epsilon: float
    runs: int
    kappas: np.ndarray
    what: str


def certificate_findings(subject: Subject) -> Iterator[Finding]:
    """One finding for the run, or one that says why it could not be tested; nothing where nothing is protected.

    Of a client's several uploads one is played, and another finding says that the others were not.
    """
    names = [name for name in subject.plan.mechanisms if subject.spends(name)]
    unit = subject.ledger.unit
    played = names[:1] if unit == "client" else names
    for some in filter(None, (played, names[len(played) :])):
        stated = _accounted(subject, some)
        if not np.isfinite(stated):
            continue
        source = f"accounted for the whole run of client {subject.plan.victim}"
        statement = Statement(subject, subject.surface(some[-1]), stated, source, ", ".join(some), unit)
        try:
            if some is not played:
                raise NotDealt(f"a client's run is played of {played[0]!r} alone")
            found = of_client(subject, some[0]) if unit == "client" else of_record(subject)
        except NotDealt as why:
            yield statement.no_whole_run(str(why))
            continue
        yield statement.whole_run(found.epsilon, found.runs, found.kappas, TRUSTS, found.what)


def _accounted(subject: Subject, names: Sequence[str]) -> float:
    """Epsilon of all that the audited client released under these names, whatever else it sent bare."""
    ledger, client = subject.ledger, subject.plan.victim
    rows = [replace(row, post_of=()) for row in ledger.releases if row.name in names and row.client == client]
    own = Ledger(ledger.relation, ledger.unit, ledger.delta)
    own.append(rows)
    return min(own.epsilon(client=client, accountant=a) for a in ("pld", "rdp"))  # type: ignore[arg-type]


def of_client(subject: Subject, name: str) -> Certified:
    run = ClientRun(subject, name)
    trial = run.script(subject.keys.fold("trial").torch())
    run.play(trial)
    size = sum(t.numel() for t in run.update.values())
    most = max(LEAST, min(subject.budget.runs, NUMBERS // (run.updates * size), UPDATES // run.updates))
    return _certified(subject, run, trial, most, "an update beyond the clip norm in each round")


def of_record(subject: Subject) -> Certified:
    """Side by side with every label where releases are made class by class, else in lockstep, else run by run."""
    guest = strongest(subject)
    other = "its opposite" if subject.plan.relation == "replace" else "nothing"
    note = f"{guest.names[0]!r} or {other}, and no other record"
    alone = WholeRun(subject, guest)
    alone = alone.as_counted(alone.script(subject.keys.fold("count").torch()))
    side = replace(alone, hosts=in_each_class(guest.x[0], subject.shard.classes))
    try:
        trial = _trial(side)
        same = len({len(steps) for steps in trial.steps}) == 1
    except NotDealt:
        same = False
    if not same:
        side, trial = alone, _trial(alone)
    together = trial.hosts == 1 and _runs_together(side)
    releases = sum(len(steps) for steps in trial.steps) / trial.hosts
    most = RELEASES if trial.hosts > 1 else IN_LOCKSTEP if together else ONE_BY_ONE
    if together:
        most = min(most, IN_LOCKSTEP_NUMBERS // trial.numbers)
    most = max(LEAST, min(subject.budget.runs, int(most / max(releases, 1))))
    return _certified(subject, side, trial, most, note, together=together)


def _runs_together(run: WholeRun) -> bool:
    """Whether ``vmap`` can run the local code: tried on the first round."""
    first = replace(run)
    first.__dict__["rounds"] = dict(list(run.rounds.items())[:1])
    try:
        first.play_together([first.script(run.subject.keys.fold("together").torch())])
    except NotDealt:
        raise
    except RuntimeError:
        return False
    return True


def strongest(subject: Subject) -> Canaries:
    """Of some crafted records, the one that moves the first releases of the first and the last round most."""
    found = []
    for guest in candidates(guests_of(subject)):
        run = WholeRun(subject, guest)
        script = run.script(subject.keys.fold("search").torch())
        run.play(script, sorted({min(run.rounds), max(run.rounds)}), few=FEW)
        found.append((float(np.mean([min(kappa, 1.0) ** 2 for _, _, kappa in script.steps[0]])), guest))
        if found[-1][0] >= CLIPPED:
            break
    return max(found, key=lambda pair: pair[0])[1]


def _trial(run: WholeRun) -> Script:
    script = run.script(run.subject.keys.fold("trial").torch())
    run.play(script)
    return script


def _certified(
    subject: Subject, run: WholeRun | ClientRun, trial: Script, most: int, what: str, *, together: bool = False
) -> Certified:
    """Play ``most`` runs, rounded up to whole groups of runs side by side; together: all in lockstep."""
    hosts = trial.hosts
    mu, q, kappa = np.array(trial.steps).mean(0).T
    planned = np.maximum(mu / np.maximum(kappa, 1.0), 1e-6)  # at most as stated: any plan is valid
    runs = -(-most // hosts) * hosts
    generator = subject.keys.fold("draws").numpy()
    draws = propose(planned, q, subject.delta, runs, generator, confidence=subject.confidence)
    if len(draws) < hosts:
        raise NotDealt("no draws that would tell the record's presence")
    noise = subject.keys.fold("noise").torch()
    scripts = [run.script(noise, draws, first) for first in range(0, len(draws) - hosts + 1, hosts)]
    if together and isinstance(run, WholeRun):
        run.play_together(scripts)
    else:
        for script in scripts:
            run.play(script)
    losses = np.concatenate([script.losses for script in scripts])
    kappas = np.array([[kappa for _, _, kappa in steps] for script in scripts for steps in script.steps])
    played = draws.first(len(losses))
    epsilon = certified_epsilon(played, losses, subject.delta, confidence=subject.confidence)
    return Certified(epsilon, len(played), kappas, what)
