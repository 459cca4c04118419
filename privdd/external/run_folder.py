"""The run folder of an audit of an external target (ledger, evidence, findings, page, seal), and
the epsilon that someone states of the target."""

from __future__ import annotations

import math
import platform
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import dp_accounting as dpa
import torch

from attacks.types import SENT_BY_SERVER, Surface
from privdd import __version__
from privdd.auditing.attack_tasks import ErrorBudget
from privdd.auditing.findings import finding_row, size_in_bytes
from privdd.auditing.verdicts import decide_verdict, refutes_limit
from privdd.core.validation import BadConfig, check_choice, check_number, setting_error
from privdd.external.membership_game import JudgedAttack
from privdd.external.records import LabelledRecords
from privdd.federated.channel import digest_tensors, tensor_shapes
from privdd.federated.checkpoint import write_ledger
from privdd.privacy.ledger import SERVER, Ledger, Release
from privdd.privacy.mechanism import LedgerRow
from privdd.reporting.page import write_report
from privdd.reporting.schema import Findings, validate_findings, worst_verdict, write_findings
from privdd.runtime.files import SCHEMA, to_plain_json, write_json
from privdd.runtime.run_files import hold_run_folder, remove_half_written
from privdd.runtime.run_folder import RunFolder, check_folder_free, run_provenance, write_tensors
from privdd.runtime.seal import seal_folder

# The coins of ``membership_game`` show what exchanging a record does. A statement for records added
# or removed, or for whole clients, covers an exchange in two steps (Dwork and Roth 2014, theorem
# 2.2, for a group of two): (epsilon, delta) becomes (2 epsilon, (1 + exp(epsilon)) delta).


STATED_RELATIONS = ("add_remove", "replace", "zero_out")
STATED_UNITS = ("record", "client")
STATED_BY = "stated by the owner of the target"
GLOBAL_DRAWS = "the {} draws from torch's global generator: another run gives other shadow models"
UNPROTECTED_REASON = "it was made outside privdd: no guarantee is proven here"


@dataclass(frozen=True)
class StatedLimit:
    """epsilon > 0 at delta in (0, 1) for a unit and a relation; None where nothing is stated."""

    epsilon: float | None = None
    delta: float = 1e-5
    relation: str = "replace"
    unit: str = "record"

    def __post_init__(self) -> None:
        check_number("stated.epsilon", self.epsilon, optional=True)
        check_number("stated.delta", self.delta)
        if self.epsilon is not None and not self.epsilon > 0:
            raise setting_error("stated.epsilon", self.epsilon, "a number above 0 is needed")
        if not 0 < self.delta < 1:
            raise setting_error("stated.delta", self.delta, "a number in (0, 1) is needed")
        check_choice("stated.relation", self.relation, STATED_RELATIONS)
        check_choice("stated.unit", self.unit, STATED_UNITS)
        if self.epsilon is not None and self.exchange_limit()[1] >= 1:
            raise BadConfig(
                f"stated.epsilon={self.epsilon:g} stated.delta={self.delta:g} "
                f"{self.relation}: allows anything to be "
                "learned of a record that is exchanged for another, so nothing can contradict it"
            )

    def exchange_limit(self) -> tuple[float, float]:
        """(epsilon, delta) for one record exchanged for another; epsilon infinite where nothing is
        stated."""
        if self.epsilon is None:
            epsilon = math.inf
        else:
            epsilon = float(self.epsilon)
        if self.relation == "replace" or self.epsilon is None:
            return epsilon, self.delta
        return 2 * epsilon, (
            1 + math.exp(min(epsilon, 700.0))
        ) * self.delta  # exp of more than 709 overflows

    def claim_entries(self) -> list[dict[str, Any]]:
        """``privacy.claims`` of findings.json."""
        if self.epsilon is None:
            return []
        epsilon, delta = self.exchange_limit()
        why = "nothing here shows how it was derived; only attacks were run"
        entry = {"source": STATED_BY, "epsilon": epsilon, "delta": delta, "sound": False}
        if self.relation == "replace":
            return [{**entry, "why": why}]
        typed = {"epsilon": self.epsilon, "delta": self.delta, "relation": self.relation}
        stated = (
            f"stated is epsilon = {self.epsilon:g} at delta = {self.delta:g} for one "
            f"{self.unit} ({self.relation})"
        )
        steps = "one record exchanged for another is two such steps"
        return [{**entry, "typed": typed, "why": f"{stated}; {steps}; {why}"}]


def parse_stated_limit(settings: Mapping[str, Any]) -> StatedLimit:
    """From ``stated.*`` settings without their prefix. Raises BadConfig; without an epsilon nothing
    else may be given."""
    if settings and settings.get("epsilon") is None:
        raise BadConfig(f"stated.{next(iter(settings))}: stated.epsilon must be given too")
    keys = ("epsilon", "delta", "relation", "unit")
    if unknown := [name for name in settings if name not in keys]:
        raise BadConfig(
            f"stated.{unknown[0]}: unknown; known are "
            f"{', '.join(f'stated.{name}' for name in keys)}"
        )
    return StatedLimit(**settings)


@dataclass(frozen=True)
class HeldArtifact:
    """One thing that attackers hold: its surface, a name, its tensors (only shapes and a digest are
    kept)."""

    surface: Surface
    name: str
    value: Mapping[str, torch.Tensor]
    round: int = 0
    client: int = SERVER

    def ledger_row(self) -> LedgerRow:
        if self.client == SERVER:
            visible = ("public",)
        else:
            visible = ("server",)
        return LedgerRow(
            self.round,
            self.client,
            self.name,
            str(self.surface),
            visible,
            tensor_shapes(self.value),
            digest_tensors(self.value),
            dpa.NonPrivateDpEvent(),
            nonprivate_reason=UNPROTECTED_REASON,
        )


@dataclass(frozen=True)
class ExternalAudit:
    """The result of the audit of a target. about: what the manifest says of the target; target:
    what findings.json says of it (``membership_game``)."""

    name: str
    data: str
    seed: int
    seen: Sequence[HeldArtifact]
    judged: Sequence[JudgedAttack]
    stated: StatedLimit
    budget: ErrorBudget
    seconds: Mapping[str, float]
    target: Mapping[str, Any]
    accuracy: float | None = None
    about: Mapping[str, Any] = field(default_factory=dict)
    clients: int = 0
    rounds: int = 0


@dataclass(frozen=True)
class AuditTimes:
    """Seconds of one clock: when an audit began, when its shadow models were there, and when its
    attacks were done."""

    began: float
    trained: float
    done: float

    def to_seconds(self) -> dict[str, float]:
        return {
            "worlds": self.trained - self.began,
            "attacks": self.done - self.trained,
            "total": self.done - self.began,
        }


def audit_of_arrays(
    kind: str,
    about: Mapping[str, Any],
    *,
    seed: int,
    times: AuditTimes,
    train: LabelledRecords,
    sizes: Sequence[int],
    seen: Sequence[HeldArtifact],
    judged: Sequence[JudgedAttack],
    stated: StatedLimit,
    budget: ErrorBudget,
    target: Mapping[str, Any],
    draws_randomly: str = "",
    accuracy: float | None = None,
    clients: int = 0,
    rounds: int = 0,
    **more: Any,
) -> ExternalAudit:
    """The result of the audit of a target that came as arrays.

    Args:
        kind: what was audited, its name unless ``about`` has one.
        about: what the manifest says of the target.
        train: the training records.
        sizes: how many records each set holds.
        draws_randomly: what draws from torch's global generator; "" if nothing does.
        more: further entries of the manifest.
    """
    entries = {**about, **more, "records": list(sizes), "shape": list(train.record_shape)}
    if draws_randomly:
        entries["note"] = GLOBAL_DRAWS.format(draws_randomly)
    return ExternalAudit(
        str(about.get("name", kind)),
        str(about.get("data", "arrays")),
        seed,
        seen,
        judged,
        stated,
        budget,
        times.to_seconds(),
        target,
        accuracy,
        entries,
        clients,
        rounds,
    )


def write_audit_folder(run: ExternalAudit, path: Path, command: Sequence[str]) -> Findings:
    """Everything into the folder ``path``, findings.json last. Raises BadConfig where another
    process writes there."""
    with hold_run_folder(path):
        check_folder_free(path)
        folder = RunFolder(path)
        # the first file of a run: from now on the folder proves to be one
        write_json(folder.manifest_file, _manifest_entries(run, command))
        remove_half_written(path)
        ledger = Ledger("replace", "record", run.stated.exchange_limit()[1])
        for artifact in run.seen:  # unprotected: epsilon is infinite, whatever is stated
            ledger.append([artifact.ledger_row()])
        for judged_attack in run.judged:
            write_tensors(
                folder.path / "evidence" / str(judged_attack.finding.measures.figure),
                judged_attack.evidence_tensors,
            )
        write_ledger(folder.ledger_file, ledger)
        result = validate_findings(
            to_plain_json(_findings_document(run, ledger)), str(folder.findings_file)
        )
        write_findings(result, folder.findings_file)
        write_report(path)
        seal_folder(path)
    return result


def _findings_document(run: ExternalAudit, ledger: Ledger) -> dict[str, Any]:
    surfaces = list(_surface_rows(run, ledger))
    head = {name: getattr(ledger, name) for name in ("delta", "unit", "relation")}
    head["epsilon"] = ledger.epsilon_by_accountant()
    if run.accuracy is None:
        utility = {}
    else:
        utility = {"utility": {"accuracy": run.accuracy, "accuracy_kind": "global"}}
    return {
        "schema": SCHEMA,
        "run": {
            "algo": run.name,
            "data": run.data,
            "preset": "none",
            "seed": run.seed,
            "version": __version__,
            "clients": run.clients,
            "rounds": run.rounds,
            "seconds": {
                name: round(run.seconds.get(name, 0.0), 3)
                for name in ("train", "worlds", "attacks", "total")
            },
        },
        "target": dict(run.target),
        **utility,
        "privacy": {
            **head,
            "claims": run.stated.claim_entries(),
            "multiplicity": run.budget.to_json(),
        },
        "surfaces": surfaces,
        "findings": [
            finding_row(
                judged_attack.finding,
                _stated_epsilon(run),
                refutes_limit(judged_attack.finding, _stated_epsilon(run)),
            )
            for judged_attack in run.judged
        ],
        "verdict": worst_verdict(row["verdict"] for row in surfaces),
    }


def _stated_epsilon(run: ExternalAudit) -> float | None:
    epsilon = run.stated.exchange_limit()[0]
    return epsilon if math.isfinite(epsilon) else None


def _surface_rows(run: ExternalAudit, ledger: Ledger) -> Any:
    rows: dict[str, list[Release]] = {}
    for release in ledger.releases:
        rows.setdefault(release.surface, []).append(release)
    for surface, releases in rows.items():
        mine = [
            judged_attack.finding
            for judged_attack in run.judged
            if str(judged_attack.finding.surface) == surface
        ]
        notes = [finding.measures.note or "" for finding in mine][:3]
        tried = any(finding.measures.has_result for finding in mine)
        epsilon = ledger.epsilon_by_accountant(surfaces=[surface])
        yield {
            "surface": surface,
            "sender": "server"
            if Surface(surface) in SENT_BY_SERVER or releases[0].client == SERVER
            else "client",
            "names": list(dict.fromkeys(r.name for r in releases)),
            "rounds": len({r.round for r in releases}),
            "bytes": size_in_bytes(releases),
            "mechanism": "unknown",
            "epsilon": epsilon,
            "audited": True
            if tried
            else f"not attacked: {'; '.join(dict.fromkeys(notes)) or 'no attack applies'}",
            "verdict": decide_verdict(epsilon, _stated_epsilon(run), mine),
        }


def _manifest_entries(run: ExternalAudit, command: Sequence[str]) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "version": __version__,
        "seed": run.seed,
        "command": list(command),
        "target": dict(run.about),
        "seconds": dict(run.seconds),
        "machine": {
            "system": platform.system(),
            "processor": platform.machine(),
            "python": sys.version.split()[0],
            "torch": torch.__version__,
        },
        **run_provenance(),
    }
