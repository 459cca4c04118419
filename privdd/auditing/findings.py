"""``findings.json`` and ``manifest.json``: what the audit found, beside what is claimed, proven and
public."""

from __future__ import annotations

import math
import platform
import shlex
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

import torch

from attacks.types import Finding, Surface
from privdd import __version__
from privdd.auditing.coverage import (
    describe_unmeasured,
    describe_waiver,
    is_about_releases,
    untested_parts,
    why_not_read,
)
from privdd.auditing.pipeline import AuditState
from privdd.auditing.signal_extraction import (
    SEARCH_HOOKS,
    missing_map_hooks,
    reads_counts_alone,
)
from privdd.auditing.verdicts import (
    DECISIVE_VALIDITIES,
    SurfaceKey,
    SurfaceLimit,
    deciding_bound,
    findings_on_surface,
    judge_run,
)
from privdd.data.partition import hard_example_counts
from privdd.distillation.diagnostics import DistillationDiagnostics
from privdd.federated.checkpoint import DATA_KEY, counts_json, write_ledger
from privdd.federated.experiment import Experiment
from privdd.federated.simulation import Plan, Progress, round_half_up
from privdd.federated.trainer import divergence_message
from privdd.privacy.claims import Claim, smallest_claim
from privdd.privacy.ledger import SERVER, Ledger, Release
from privdd.privacy.mechanism import Mechanism
from privdd.privacy.reconstruction import naming_bound_of_claim, reconstruction
from privdd.reporting.run_record import ATTACKED, AttackCommand
from privdd.reporting.schema import Findings, validate_findings, write_findings
from privdd.runtime.engine import describe_engine, describe_mixed_workers
from privdd.runtime.files import SCHEMA, to_plain_json, write_json
from privdd.runtime.run_folder import RunFolder, run_provenance

# in a finding's diagnostics: how a bound for the whole run was come by
CERTIFICATE_KEY = "certificate"
PUBLIC_BY_RELATION = {
    "add_remove": "nothing of a client's records, not how many there are either",
    "zero_out": "how many records a client has, and the labels sent with them: these "
    "depend on its records",
    "replace": "how many records a client has, which depends on its records",
}
GLOBAL_ACCURACY_NOTE = (
    "of the published model, on test records that no client trains on: post-processing of "
    "what has a row"
)
PERSONAL_ACCURACY_NOTE = (
    "of each client's own model, on that client's own test records: measured by the "
    "simulator only. No row counts it "
    "and no ε covers it; in a real federation it would be one more disclosure"
)
AUDIT_NOTE = (
    "what attacks found is worked out from private records, by the evaluator only; no ε covers it"
)


def shown_entries(findings: Sequence[Finding]) -> dict[str, Any]:
    """``shown`` and ``shown_by`` of the run, or nothing where no bound for the whole run
    was taken."""
    certified = [finding for finding in findings if CERTIFICATE_KEY in finding.diagnostics]
    if not certified:
        return {}
    best = max(certified, key=lambda finding: finding.measures.epsilon_shown or 0.0)
    return {
        "shown": best.measures.epsilon_shown,
        "shown_by": best.diagnostics[CERTIFICATE_KEY],
    }


def shown_entries_of_surface(
    victim: int, ledger: Ledger, surface: str, findings: Sequence[Finding]
) -> dict[str, Any]:
    """The shown entries of one surface: those of the run if all that the audited client spends
    lies behind this surface, else none."""
    spent = {row.id for row in ledger.releases if row.client == victim and row.is_protected}
    if spent and spent <= ledger.behind([surface]):
        return shown_entries(findings)
    return {}


def manifest_json(
    experiment: Experiment, progress: Progress, seconds: Mapping[str, float], argv: Sequence[str]
) -> dict[str, Any]:
    """Where, when and on what a run was made, and every client's bytes by round."""
    mixed_workers = describe_mixed_workers(experiment.engine)
    return {
        "schema": SCHEMA,
        "version": __version__,
        "seed": experiment.plan.keys.seed,
        "config": experiment.run.fingerprint,
        "command": list(argv),
        "machine": {
            "system": platform.system(),
            "processor": platform.machine(),
            "python": sys.version.split()[0],
            "torch": torch.__version__,
            **(
                {"workers": mixed_workers} if mixed_workers else {}
            ),  # the page prints what stands here
        },
        "engine": describe_engine(experiment.engine),
        "audited_client": experiment.plan.victim,
        "data_note": experiment.dataset.note,
        DATA_KEY: experiment.plan.data,
        "seconds": dict(seconds),
        "uploaded_bytes": counts_json(progress.uploaded),
        "downloaded_bytes": counts_json(progress.downloaded),
    }


# All else that leaves a client has a row. A fact stands here only if the plan alone decides it, or
# the relation says so.


def noise_settings_of(experiment: Experiment) -> dict[str, Any] | None:
    """{"source", "paired", "for_release"}, None where no mechanism adds noise."""
    privacy = experiment.privacy
    if not experiment.plan.mechanisms:
        return None
    return {
        "source": privacy.noise_source,
        "paired": privacy.paired_noise,
        "for_release": privacy.is_for_release,
    }


def public_information(experiment: Experiment, ledger: Ledger) -> list[dict[str, str]]:
    """[{"what", "value"}] in words, for the report."""
    plan = experiment.plan
    facts = [
        *_describe_rounds(plan),
        *_describe_mechanisms(plan, ledger),
        *_describe_shapes(ledger),
    ]
    facts += _describe_relation(experiment)
    if plan.method.audit_hooks.accuracy_kind == "personal":
        facts.append(("accuracy", PERSONAL_ACCURACY_NOTE))
    else:
        facts.append(("accuracy", GLOBAL_ACCURACY_NOTE))
    if experiment.auditing is not None:
        facts += [("audit", AUDIT_NOTE)]
    return [{"what": what, "value": value[:1000]} for what, value in facts]


def _describe_rounds(plan: Plan) -> Iterator[tuple[str, str]]:
    clients = plan.problem.clients
    all_in = [t for t in range(plan.method.rounds) if plan.method.needs_all_clients(t)]
    participants = max(1, round_half_up(plan.fraction * clients))
    yield "rounds", str(plan.method.rounds)
    if participants == clients:
        participation = f"all {clients} clients in every round"
    else:
        participation = f"{participants} of {clients} clients a round"
        if all_in:
            participation += f", all in round {', '.join(map(str, all_in))}"
        participation += ", drawn from the seed: the participants are public"
    yield "participation", participation
    if plan.trust.is_summed:
        yield "server's view", _describe_secure_sum(plan)
    seed_text = "initial model, networks, augmentation and the order of batches are drawn from it"
    yield "seed", f"{seed_text}; the noise's source is separate"


def _describe_secure_sum(plan: Plan) -> str:
    trust = plan.trust
    clients = len(plan.asked_clients(0))
    description = (
        "the sum over the clients of a round, never of fewer than "
        f"{trust.min_clients(clients)}, and no single upload"
    )
    if plan.mechanisms:
        description += (
            f"; each client adds one of {trust.noise_shares(clients)} shares of the noise"
        )
    if plan.mechanisms and trust.colluding:
        description += (
            f", so that the guarantee holds even if {trust.colluding} clients reveal theirs "
            "to the server"
        )
    return f"{description}. Secure aggregation is taken on trust: its protocol is not run"


def _describe_mechanisms(plan: Plan, ledger: Ledger) -> Iterator[tuple[str, str]]:
    by_class = {release.name for release in ledger.releases if release.partition is not None}
    for name, mechanism in plan.mechanisms.items():
        yield f"mechanism of {name}", _describe_settings(mechanism)
        applications = _describe_applications(plan, name)
        if name in by_class:
            applications += ", to each class"
        yield f"applications of {name}", applications


def _describe_settings(mechanism: Mechanism) -> str:
    """The mechanism's name and every setting: noise, clip norm, sampling rate, normaliser."""
    held = vars(mechanism).items()
    settings = {
        n.replace("_", " "): v for n, v in held if isinstance(v, int | float | str | list | tuple)
    }
    setting_texts = [
        f"{name} {value:g}" if isinstance(value, float) else f"{name} {value}"
        for name, value in settings.items()
    ]
    return ", ".join([type(mechanism).__name__, *setting_texts])


def _describe_applications(plan: Plan, name: str) -> str:
    """How often one client applies it in a round: the number of local steps, where each step is a
    release."""
    spent = [plan.method.releases_per_round(t, plan.mechanisms) for t in range(plan.method.rounds)]
    if any(counts_of_round is None for counts_of_round in spent):
        return "not planned by the method: one row each in the ledger"
    counts = [(counts_of_round or {}).get(name, 0) for counts_of_round in spent]
    each = {count for count in counts if count}
    if not each:
        return "none"
    active = sum(map(bool, counts))
    if all(counts):
        active_text = "each round"
    elif active == 1:
        active_text = "one round"
    else:
        active_text = f"each of {active} rounds"
    if len(each) == 1:
        often = f"{min(each)}"
    else:
        often = f"{min(each)} to {max(each)}"
    return f"{often} by a client in {active_text}"


def _describe_shapes(ledger: Ledger) -> Iterator[tuple[str, str]]:
    """The shapes of messages that clients send as public or under a finite ε; unprotected messages
    have an infinite ε."""
    rows: dict[str, list[Release]] = {}
    for release in ledger.releases:
        if (
            release.client != SERVER
            and release.nonprivate_reason is None
            and release.visible_to != ("analyst",)
        ):
            rows.setdefault(release.name, []).append(release)
    for name, releases in rows.items():
        sizes = sorted({sum(map(math.prod, r.shape.values())) for r in releases})
        if len(sizes) == 1:
            size_text = f"{sizes[0]} numbers"
        else:
            size_text = f"{sizes[0]} to {sizes[-1]} numbers"
        count = max(len(r.shape) for r in releases)
        yield f"shape of {name}", f"{size_text} in {count} tensor{'s' if count > 1 else ''}"


def _describe_relation(experiment: Experiment) -> Iterator[tuple[str, str]]:
    privacy = experiment.privacy
    of_client = "that a client takes part in a round"
    if experiment.plan.mechanisms:
        of_record = PUBLIC_BY_RELATION[privacy.relation]
        yield "made public by the relation", of_client if privacy.unit == "client" else of_record


def paper_claims_of(experiment: Experiment) -> list[Claim]:
    """The theorems printed in the method's paper, evaluated for this run."""
    return experiment.plan.method.audit_hooks.claims(experiment.plan, experiment.shards)


def hold_to_claims(
    findings: Sequence[Finding], claims: Sequence[Claim], delta: float
) -> list[Finding]:
    """The findings; one whose bound is above what a paper prints for this very mechanism, at a
    delta that is no larger, has
    that as its stated ε: so the claim is contradicted like any other statement."""
    limits: dict[str, float] = {}
    for claim in claims:
        if claim.surface and claim.number is not None and (claim.delta or delta) <= delta:
            limits[claim.surface] = min(claim.number, limits.get(claim.surface, math.inf))
    held = []
    for finding in findings:
        limit = limits.get(str(finding.surface), math.inf)
        stated = finding.measures.epsilon_stated
        if stated is None:
            stated = math.inf
        is_decisive = finding.measures.epsilon_validity in DECISIVE_VALIDITIES
        if is_decisive and deciding_bound(finding) > limit:
            finding = finding.with_measures(epsilon_stated=min(limit, stated))
        held.append(finding)
    return held


def findings_json(audited: AuditState) -> dict[str, Any]:
    """The whole result as plain data (see ``privdd.reporting.schema``)."""
    finished_run = audited.finished_run
    experiment = finished_run.experiment
    progress = finished_run.progress
    ledger = progress.ledger
    stated = stated_epsilons(record_level_ledger(ledger))
    findings = hold_to_claims(audited.findings, paper_claims_of(experiment), ledger.delta)
    surfaces = list(_surface_rows(audited, findings))
    keys = [(row["surface"], row["sender"]) for row in surfaces]
    verdicts = judge_run(ledger, surface_limits(ledger, keys, stated, findings), findings)
    for key, row in zip(keys, surfaces, strict=True):
        row |= verdicts.surface_entries(key)
    rows = [
        finding_row(finding, _printed_epsilon(finding, stated, ledger), refutes)
        for finding, refutes in zip(findings, verdicts.refuting, strict=True)
    ]
    return to_plain_json(
        {
            "schema": SCHEMA,
            "run": _run_json(experiment, progress, audited.seconds),
            "utility": _utility_json(experiment, progress),
            **distillation_entry(audited.distillation),
            "privacy": _privacy_json(experiment, ledger, audited),
            "surfaces": surfaces,
            "findings": rows,
            "verdict": verdicts.verdict,
        }
    )


def distillation_entry(diagnostics: DistillationDiagnostics | None) -> dict[str, Any]:
    """The section ``distillation``: one row for the audited client; {} if nothing was distilled."""
    if diagnostics is None:
        return {}
    row = {name: value for name, value in asdict(diagnostics).items() if value is not None}
    return {"distillation": [row]}


def surface_limits(
    ledger: Ledger,
    keys: Sequence[SurfaceKey],
    stated: Mapping[str, float],
    findings: Sequence[Finding],
) -> list[SurfaceLimit]:
    """What the verdict of each surface rests on beside the findings."""
    return [
        SurfaceLimit(
            surface,
            sender,
            ledger.epsilon_by_accountant(surfaces=[surface]),
            stated.get(surface),
            untested_parts(ledger, surface, findings),
        )
        for surface, sender in keys
    ]


def _run_json(
    experiment: Experiment, progress: Progress, seconds: Mapping[str, float]
) -> dict[str, Any]:
    run = experiment.run
    tail = experiment.audit_settings.tail
    return {
        "algo": run.algo,
        "data": run.data,
        "preset": run.preset,
        "seed": experiment.plan.keys.seed,
        "version": __version__,
        "clients": experiment.plan.problem.clients,
        "rounds": experiment.plan.method.rounds,
        **({"tail": dict(hard_example_counts(tail))} if tail.size else {}),
        "show_images": experiment.shows_images,
        "seconds": {
            name: round(float(seconds.get(name, 0.0)), 3)
            for name in ("train", "worlds", "attacks", "total")
        },
    }


def bytes_per_client(counts: Sequence[Mapping[int, int]], clients: int) -> int:
    """Bytes of one client over the whole run, averaged over clients."""
    return round(sum(sum(c.values()) for c in counts) / clients)


def _utility_json(experiment: Experiment, progress: Progress) -> dict[str, Any]:
    clients = experiment.plan.problem.clients
    return {
        "accuracy": progress.accuracy[-1],
        "accuracy_kind": experiment.plan.method.audit_hooks.accuracy_kind,
        "accuracy_by_round": list(progress.accuracy),
        **({} if progress.diverged is None else {"diverged": progress.diverged}),
        "uploaded_bytes_per_client": bytes_per_client(progress.uploaded, clients),
        "downloaded_bytes_per_client": bytes_per_client(progress.downloaded, clients),
    }


def _privacy_json(experiment: Experiment, ledger: Ledger, audited: AuditState) -> dict[str, Any]:
    noise = noise_settings_of(experiment)
    claims = paper_claims_of(experiment)
    return {
        "delta": ledger.delta,
        "unit": ledger.unit,
        "relation": ledger.relation,
        "epsilon": ledger.epsilon_by_accountant() | shown_entries(audited.findings),
        **({} if noise is None else {"noise": noise}),
        "public": public_information(experiment, ledger),
        "claims": [claim.to_json() for claim in claims],
        "reconstruction": reconstruction_rows(ledger, claims),
        "multiplicity": audited.budget.to_json(),
    }


def states_records(ledger: Ledger) -> bool:
    """Whether what the ledger states holds for single records as it is."""
    return ledger.unit != "client" or ledger.relation == "replace"


def record_level_ledger(ledger: Ledger) -> Ledger:
    """The ledger that states what a ledger of whole clients promises about one record of a client.
    Whatever the client's records are, its releases are close to those of a client that sends
    nothing; so two clients that differ in one record are two such steps apart, as under the
    relation replace."""
    if states_records(ledger):
        return ledger
    twice = Ledger("replace", ledger.unit, ledger.delta)
    twice.append(ledger.releases, absolute=True)
    return twice


def _printed_epsilon(finding: Finding, stated: Mapping[str, float], ledger: Ledger) -> float | None:
    """The epsilon that a row prints as stated: what follows for a record from a client's only where
    it is broken."""
    promised = stated.get(str(finding.surface))
    if states_records(ledger) or (promised is not None and deciding_bound(finding) > promised):
        return promised
    return None


def reconstruction_rows(ledger: Ledger, claims: Sequence[Claim]) -> list[dict[str, Any]]:
    """How often one of k candidates could be named: proven at most, reached, and what the boldest
    claim allows."""
    rows = [naming.to_json() for naming in reconstruction(ledger)]
    claim = smallest_claim(claims)
    if claim is None or claim.number is None:
        return rows
    epsilon = claim.number
    delta = claim.delta or ledger.delta
    return [row | {"claimed": naming_bound_of_claim(epsilon, delta, row["prior"])} for row in rows]


def stated_epsilons(ledger: Ledger) -> dict[str, float]:
    """The stated ε of each surface, which is the proven ε. Surfaces that promise nothing (infinite)
    are left out."""
    surfaces = dict.fromkeys(r.surface for r in ledger.releases)
    promised = {s: ledger.proven_epsilon(surfaces=[s]) for s in surfaces}
    return {s: e for s, e in promised.items() if math.isfinite(e)}


def _surface_rows(state: AuditState, findings: Sequence[Finding]) -> Iterable[dict[str, Any]]:
    """The entries of each surface but those that its verdict brings."""
    experiment = state.finished_run.experiment
    ledger = state.finished_run.progress.ledger
    rows: dict[SurfaceKey, list[Release]] = {}
    for release in ledger.releases:
        if release.visible_to != ("analyst",):
            sender = "server" if release.client == SERVER else "client"
            rows.setdefault((release.surface, sender), []).append(release)
    for key, releases in rows.items():
        surface, sender = key
        entries = shown_entries_of_surface(experiment.plan.victim, ledger, surface, findings)
        yield {
            "surface": surface,
            "sender": sender,
            "names": list(dict.fromkeys(r.name for r in releases)),
            "rounds": len({r.round for r in releases}),
            "bytes": size_in_bytes(releases),
            "mechanism": _name_mechanisms(experiment, releases),
            "epsilon": ledger.epsilon_by_accountant(surfaces=[surface]) | entries,
            "audited": _describe_attacks(state, findings_on_surface(findings, key, rows), key),
            **_missing_hooks_entry(state, key),
        }


def _missing_hooks_entry(state: AuditState, key: SurfaceKey) -> dict[str, str]:
    """Hooks of the method without which attacks cannot compare a record with what clients send on a
    surface."""
    surface, sender = key
    if sender != "client":
        return {}
    hooks = missing_map_hooks(state.finished_run.experiment.plan.method, Surface(surface))
    if surface == Surface.STATISTICS and _has_unsearched_statistics(state):
        hooks = SEARCH_HOOKS
    if not hooks:
        return {}
    return {"missing_hooks": hooks}


def _has_unsearched_statistics(state: AuditState) -> bool:
    """Whether the audited client sent statistics whose class counts alone were read."""
    run = state.finished_run
    for snapshot in run.progress.snapshots.values():
        for name, value in snapshot.sent.items():
            if run.plan.method.uploads[name] != Surface.STATISTICS:
                continue
            classes = run.plan.problem.classes
            if reads_counts_alone(run.method, name, value, snapshot.broadcast, classes):
                return True
    return False


def _describe_attacks(
    state: AuditState, findings: Sequence[Finding], key: SurfaceKey
) -> bool | str:
    """True where an attack measured something on a surface, else in words why none did. findings:
    those on it. Raises RuntimeError for a surface that was forgotten."""
    surface, sender = key
    progress = state.finished_run.progress
    settings = state.finished_run.experiment.audit_settings
    waived = settings.waive
    tried = [f for f in findings if is_about_releases(f.family, f.adversary)]
    if any(finding.measures.has_result for finding in tried):
        return True
    if surface in waived:
        return describe_waiver(waived[surface])
    if any(is_unread(f) for f in findings):
        return "nothing to read: no attack of this audit applies to it"
    if progress.diverged is not None:
        return f"waived: {divergence_message(progress.diverged)}"
    if why := why_not_read(tried):
        return why
    senders = {
        "server" if r.client == SERVER else "client"
        for r in progress.ledger.releases
        if r.surface == surface
    }
    if len(senders) > 1:
        return f"not attacked: no attack of this audit read the {sender}'s part of it"
    if why := describe_unmeasured(
        surface, state.finished_run.experiment.plan.method, state.attacks, settings
    ):
        return why
    # ``check_coverage`` refuses such a run before it trains
    raise RuntimeError(f"surface {surface} was released and neither attacked nor waived")


def is_unread(finding: Finding) -> bool:
    """Whether an attack looked at replays of the client and found nothing in them that depends on a
    record."""
    measures = finding.measures
    return measures.status == "nothing_to_read" and (measures.worlds or 0) > 1


def size_in_bytes(releases: Sequence[Release]) -> int:
    """All tensors of these releases, four bytes a number (eight for labels)."""
    total = 0
    for release in releases:
        bytes_a_number = 8 if release.name == "labels" else 4
        total += bytes_a_number * sum(map(math.prod, release.shape.values()))
    return total


def _name_mechanisms(experiment: Experiment, releases: Sequence[Release]) -> str:
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


def finding_row(finding: Finding, stated: float | None, refutes: bool = False) -> dict[str, Any]:
    """One of ``findings`` in findings.json; stated: what its surface promises; refutes: whether it
    contradicts that."""
    measures = finding.measures
    if measures.is_measured and measures.status is None:
        measures = replace(measures, status="measured")
    if measures.epsilon_shown is not None and measures.epsilon_stated is None:
        measures = replace(measures, epsilon_stated=stated)
    head = {
        name: str(getattr(finding, name)) for name in ("surface", "attack", "family", "adversary")
    }
    marks = {"message": finding.message, "refutes": refutes}
    return head | {name: value for name, value in marks.items() if value} | measures.to_row()


def write_audit(
    folder: RunFolder,
    audited: AuditState,
    argv: Sequence[str],
    commands: Sequence[AttackCommand] = (),
    asked: Collection[str] = (),
) -> Findings:
    """findings.json last: a folder that holds it is a finished run. commands: of earlier commands;
    asked: the attacks that this one asked for."""
    result = findings_json(audited)
    finished_run = audited.finished_run
    write_ledger(folder.ledger_file, finished_run.progress.ledger)
    about = (
        manifest_json(finished_run.experiment, finished_run.progress, audited.seconds, argv)
        | run_provenance()
    )
    now = AttackCommand(
        about["date"], shlex.join(argv), about["version"], about["commit"], tuple(sorted(asked))
    )
    worlds = [{"round": t, **asdict(choice)} for t, choice in audited.signals.training.items()]
    numbers = {"worlds": worlds, "attacks_not_run": list(audited.not_run)}
    if commands:
        numbers["command"] = shlex.split(commands[0].command) or list(argv)
    write_json(
        folder.manifest_file,
        about | numbers | {ATTACKED: [command.to_json() for command in (*commands, now)]},
    )
    checked = validate_findings(result, str(folder.findings_file))
    write_findings(checked, folder.findings_file)
    return checked
