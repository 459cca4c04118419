"""``findings.json``: what the audit found, beside what is claimed and what is proven."""

from __future__ import annotations

import math
import shlex
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from attacks.types import Finding
from privdd import __version__
from privdd.auditing.certified import certified, certified_on
from privdd.auditing.coverage import not_attacked, not_read, on_what_was_sent
from privdd.auditing.looked_at import gaps
from privdd.auditing.pipeline import Audited
from privdd.auditing.public_facts import noise_of, public_facts
from privdd.auditing.run_manifest import manifest
from privdd.data.tail import named
from privdd.federated.checkpoint import write_ledger
from privdd.federated.experiment import Experiment
from privdd.federated.measured import words
from privdd.federated.simulation import Progress
from privdd.privacy.claims import Claim, boldest
from privdd.privacy.ledger import SERVER, Ledger, Release
from privdd.privacy.reconstruction import reconstruction, stated_at_most
from privdd.reporting.findings_file import validate, write
from privdd.reporting.reproduce import ATTACKED, AttackCommand
from privdd.reporting.schema import Findings, worst_verdict
from privdd.runtime.files import jsonable, write_json
from privdd.runtime.provenance import provenance
from privdd.runtime.run_folder import RunFolder

DECIDING = ("finite_sample", "curve")  # bounds whose being above what is stated is a contradiction
# A finding without any of these only explains why its attack had nothing to read; it does not count as an attack.
MEASURED = {"auc", "psnr", "label_accuracy", "identified", "epsilon_measured"}


def claims_of(experiment: Experiment) -> list[Claim]:
    """The theorems printed in the method's paper, evaluated for this run."""
    return experiment.plan.method.claims(experiment.plan, experiment.shards)


def findings_json(audited: Audited) -> dict[str, Any]:
    """The whole result as plain data of schema 2 (see ``privdd.reporting.schema``)."""
    scene = audited.scene
    experiment, progress = scene.experiment, scene.progress
    stated = stated_epsilons(experiment, for_records(progress.ledger))
    surfaces = list(_surfaces(experiment, progress, audited.findings, stated))
    return jsonable(
        {
            "schema": 2,
            "run": _run(experiment, progress, audited.seconds),
            "utility": _utility(experiment, progress),
            "privacy": _privacy(experiment, progress.ledger, audited),
            "surfaces": surfaces,
            "findings": [finding_row(f, _said(f, stated, progress.ledger)) for f in audited.findings],
            "verdict": worst_verdict(row["verdict"] for row in surfaces),
        }
    )


def _run(experiment: Experiment, progress: Progress, seconds: Mapping[str, float]) -> dict[str, Any]:
    run = experiment.run
    return {
        "algo": run.algo,
        "data": run.data,
        "preset": run.preset,
        "seed": experiment.plan.keys.seed,
        "version": __version__,
        "clients": experiment.plan.problem.clients,
        "rounds": experiment.plan.method.rounds,
        **({"tail": dict(named(experiment.audit.tail))} if experiment.audit.tail.size else {}),
        "seconds": {name: round(float(seconds.get(name, 0.0)), 3) for name in ("train", "worlds", "attacks", "total")},
    }


def per_client(counts: Sequence[Mapping[int, int]], clients: int) -> int:
    """Bytes of one client over the whole run, averaged over clients."""
    return round(sum(sum(c.values()) for c in counts) / clients)


def _utility(experiment: Experiment, progress: Progress) -> dict[str, Any]:
    clients = experiment.plan.problem.clients
    return {
        "accuracy": progress.accuracy[-1],
        "accuracy_kind": experiment.plan.method.accuracy_kind,
        "accuracy_by_round": list(progress.accuracy),
        **({} if progress.diverged is None else {"diverged": progress.diverged}),
        "uploaded_bytes_per_client": per_client(progress.uploaded, clients),
        "downloaded_bytes_per_client": per_client(progress.downloaded, clients),
    }


def both(ledger: Ledger, surfaces: Sequence[str] | None = None) -> dict[str, float]:
    """Epsilon by the PLD and by the RDP accountant."""
    return {a: ledger.epsilon(surfaces=surfaces, accountant=a) for a in ("pld", "rdp")}  # type: ignore[arg-type]


def _privacy(experiment: Experiment, ledger: Ledger, audited: Audited) -> dict[str, Any]:
    noise = noise_of(experiment)
    claims = claims_of(experiment)
    return {
        "delta": ledger.delta,
        "unit": ledger.unit,
        "relation": ledger.relation,
        "epsilon": both(ledger) | certified(audited.findings),
        **({} if noise is None else {"noise": noise}),
        "public": public_facts(experiment, ledger),
        "claims": [claim.to_json() for claim in claims],
        "reconstruction": reconstruction_rows(ledger, claims),
        "multiplicity": audited.budget.to_json(),
    }


def for_records(ledger: Ledger) -> Ledger:
    """The ledger that states what a ledger of whole clients promises about one record of a client.

    Whatever the client's records are, its releases are close to those of a client that sends nothing; so two
    clients that differ in one record are two such steps apart, as under the relation replace.
    """
    if ledger.unit != "client" or ledger.relation == "replace":
        return ledger
    twice = Ledger("replace", ledger.unit, ledger.delta)
    twice.append(ledger.releases, absolute=True)
    return twice


def _said(finding: Finding, stated: Mapping[str, float], ledger: Ledger) -> float | None:
    """The epsilon that a row prints as stated: what follows for a record from a client's only where it is broken."""
    promised = stated.get(str(finding.surface))
    whole = ledger.unit == "record" or ledger.relation == "replace"
    return promised if whole or (promised is not None and lower_bound(finding) > promised) else None


def lower_bound(finding: Finding) -> float:
    """The bound on epsilon that a finding decides by: at its share of the error budget, where several share it."""
    m = finding.measures
    return float(m.get("diagnostics", {}).get("epsilon_familywise", m.get("epsilon_measured", 0.0)))


def reconstruction_rows(ledger: Ledger, claims: Sequence[Claim]) -> list[dict[str, Any]]:
    """How often one of k candidates could be named: proven at most, reached, and what the boldest claim allows."""
    rows, claim = [naming.to_json() for naming in reconstruction(ledger)], boldest(claims)
    if claim is None or claim.epsilon is None:
        return rows
    epsilon, delta = claim.epsilon, claim.delta or ledger.delta
    return [row | {"claimed": stated_at_most(epsilon, delta, row["prior"])} for row in rows]


def stated_epsilons(experiment: Experiment, ledger: Ledger) -> dict[str, float]:
    """What each surface promises: what its method states (``Method.stated``), else what is accounted.

    Surfaces that promise nothing (infinite) are left out.
    """
    promised = {s: min(both(ledger, [s]).values()) for s in dict.fromkeys(r.surface for r in ledger.releases)}
    promised |= experiment.plan.method.stated(experiment.plan, experiment.shards)
    return {s: e for s, e in promised.items() if math.isfinite(e)}


def _surfaces(
    experiment: Experiment, progress: Progress, findings: Sequence[Finding], stated: Mapping[str, float]
) -> Iterable[dict[str, Any]]:
    waived = experiment.audit.waive
    rows: dict[tuple[str, str], list[Release]] = {}
    for release in progress.ledger.releases:
        if release.visible_to != ("analyst",):
            sender = "server" if release.client == SERVER else "client"
            rows.setdefault((release.surface, sender), []).append(release)
    for (surface, sender), releases in rows.items():
        epsilon, mine = both(progress.ledger, [surface]), [f for f in findings if str(f.surface) == surface]
        missing = gaps(progress.ledger, surface, findings)
        tried = [f for f in mine if on_what_was_sent(f.family, f.adversary)]
        attacked = any(MEASURED & set(f.measures) for f in tried)
        audited: bool | str = True if attacked else not_attacked(waived[surface]) if surface in waived else False
        if audited is False and any(str(f.surface) == surface and unread(f) for f in findings):
            audited = "nothing to read: no attack of this audit found in it what it reads"
        audited = audited if audited or progress.diverged is None else f"waived: {words(progress.diverged)}"
        audited = audited or not_read(tried)
        if audited is False:
            raise RuntimeError(f"surface {surface} was released and neither attacked nor waived")
        yield {
            "surface": surface,
            "sender": sender,
            "names": list(dict.fromkeys(r.name for r in releases)),
            "rounds": len({r.round for r in releases}),
            "bytes": size_in_bytes(releases),
            "mechanism": _mechanism(experiment, releases),
            "epsilon": epsilon | certified_on(experiment.plan.victim, progress.ledger, surface, findings),
            "audited": audited,
            "untested": missing,
            "verdict": verdict(epsilon, stated.get(surface), mine, missing),
        }


def unread(finding: Finding) -> bool:
    """Whether an attack looked at replays of the client and found nothing in them that depends on a record."""
    return finding.measures.get("status") == "nothing_to_read" and finding.measures.get("worlds", 0) > 1


def size_in_bytes(releases: Sequence[Release]) -> int:
    """All tensors of these releases, four bytes a number (eight for labels)."""
    size = {"labels": 8}
    return sum(size.get(r.name, 4) * math.prod(shape) for r in releases for shape in r.shape.values())


def _mechanism(experiment: Experiment, releases: Sequence[Release]) -> str:
    """The mechanisms behind a surface in words, "none" where nothing protects it."""
    plan = experiment.plan
    names = {type(plan.mechanisms[r.name]).__name__ for r in releases if r.name in plan.mechanisms}
    if names:
        return ", ".join(sorted(names))
    if any(r.nonprivate_reason for r in releases):
        return "none"
    inner = sorted(type(m).__name__ for n, m in plan.mechanisms.items() if n in plan.method.queries)
    if releases[0].client == SERVER or any(r.post_of for r in releases):
        return f"post-processing of {', '.join(inner) or 'what clients sent'}"
    return "none needed: public"


def verdict(
    epsilon: Mapping[str, float], stated: float | None, findings: Sequence[Finding], missing: Sequence[str] = ()
) -> str:
    """contradiction, unprotected, untested or consistent, the first that applies.

    contradiction: a finite-sample bound above what is stated, a kappa above what is allowed, or noise or sampling
    of the run that is not what is stated; unprotected: nothing is proven; untested: something is, and of what
    it rests on no test looked at the parts ``missing``. Bounds decide at their share of the run's error budget.
    """
    for finding in findings:
        m = finding.measures
        promised, sound = m.get("epsilon_stated", stated), m.get("epsilon_validity") in DECIDING
        if promised is not None and sound and lower_bound(finding) > float(promised):
            return "contradiction"
        if "kappa" in m and float(m["kappa"]) > float(m["kappa_allowed"]) * (1 + 1e-4):
            return "contradiction"
        if m.get("diagnostics", {}).get("refuted"):
            return "contradiction"
    if math.isinf(min(epsilon.values())):
        return "unprotected"
    return "untested" if missing else "consistent"


def finding_row(finding: Finding, stated: float | None) -> dict[str, Any]:
    """One of ``findings`` in findings.json; stated: what its surface promises."""
    measures = {k: v for k, v in finding.measures.items() if v is not None}
    if (MEASURED | {"kappa"}) & set(measures):
        measures.setdefault("status", "measured")
    if "epsilon_measured" in measures and stated is not None:
        measures.setdefault("epsilon_stated", stated)
    return {name: str(getattr(finding, name)) for name in ("surface", "attack", "family", "adversary")} | measures


def write_run(
    folder: RunFolder,
    audited: Audited,
    argv: Sequence[str],
    commands: Sequence[AttackCommand] = (),
    asked: Collection[str] = (),
) -> Findings:
    """findings.json last: a folder that holds it is a finished run.

    commands: of earlier commands; asked: the attacks that this one asked for.
    """
    result = findings_json(audited)
    scene = audited.scene
    write_ledger(folder.ledger, scene.progress.ledger)
    about = manifest(scene.experiment, scene.progress, audited.seconds, argv) | provenance()
    now = AttackCommand(about["date"], shlex.join(argv), about["version"], about["commit"], tuple(sorted(asked)))
    worlds = [{"round": t, **asdict(choice)} for t, choice in audited.training.items()]
    found = {"worlds": worlds, "attacks_not_run": list(audited.not_run)}
    if commands:
        found["command"] = shlex.split(commands[0].command) or list(argv)
    write_json(folder.manifest, about | found | {ATTACKED: [look.to_json() for look in (*commands, now)]})
    checked = validate(result, str(folder.findings))
    write(checked, folder.findings)
    return checked
