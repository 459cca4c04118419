"""The run folder of a target from outside: ledger, evidence, findings, page, seal, as of privdd's own runs."""

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
from privdd.auditing.error_budget import ErrorBudget
from privdd.auditing.findings import MEASURED, both, finding_row, size_in_bytes, verdict
from privdd.auditing.targets.judged import Judged
from privdd.auditing.targets.stated_limit import StatedLimit
from privdd.core.errors import BadConfig
from privdd.federated.channel import digest, shapes
from privdd.federated.checkpoint import write_ledger
from privdd.privacy.ledger import SERVER, Ledger, Release
from privdd.privacy.mechanism import Row
from privdd.reporting.findings_file import validate, write
from privdd.reporting.page import write_report
from privdd.reporting.schema import Findings, worst_verdict
from privdd.runtime.files import jsonable, write_json
from privdd.runtime.lock import locked
from privdd.runtime.plain_folder import check_folder
from privdd.runtime.provenance import provenance
from privdd.runtime.run_folder import RunFolder, write_tensors
from privdd.runtime.seal import seal

UNPROTECTED = "it was made outside privdd: nothing here shows a limit on what it reveals"


@dataclass(frozen=True)
class Held:
    """One thing that attackers hold: its surface, a name, its tensors (only shapes and a digest are kept)."""

    surface: Surface
    name: str
    value: Mapping[str, torch.Tensor]
    round: int = 0
    client: int = SERVER

    def row(self) -> Row:
        visible = ("public",) if self.client == SERVER else ("server",)
        return Row(
            self.round, self.client, self.name, str(self.surface), visible, shapes(self.value), digest(self.value),
            dpa.NonPrivateDpEvent(), nonprivate_reason=UNPROTECTED,
        )  # fmt: skip


@dataclass(frozen=True)
class OutsideRun:
    """What an audit of a target found. about: what the manifest says of the target; target: what findings.json says of it (``target_facts``)."""

    name: str
    data: str
    seed: int
    seen: Sequence[Held]
    judged: Sequence[Judged]
    stated: StatedLimit
    budget: ErrorBudget
    seconds: Mapping[str, float]
    target: Mapping[str, Any]
    accuracy: float | None = None
    about: Mapping[str, Any] = field(default_factory=dict)
    clients: int = 0
    rounds: int = 0


def write_outside(run: OutsideRun, path: Path, command: Sequence[str]) -> Findings:
    """Everything into the folder ``path``, findings.json last. Raises BadConfig where another process writes there."""
    check_free(path)
    with locked(path):
        folder, ledger = RunFolder(path), _ledger(run)
        for one in run.judged:
            write_tensors(folder.path / "evidence" / str(one.finding.measures["figure"]), one.kept)
        write_ledger(folder.ledger, ledger)
        write_json(folder.manifest, _manifest(run, command))
        result = validate(jsonable(_result(run, ledger)), str(folder.findings))
        write(result, folder.findings)
        write_report(path)
        seal(path)
    return result


def check_free(path: Path) -> None:
    """Raises BadConfig where the folder holds a run already: its files would stand beside the new ones."""
    if path.is_dir():
        check_folder(path)
    if held := [name for name in ("findings.json", "config.yaml", "manifest.json") if (path / name).exists()]:
        raise BadConfig(f"{path}: holds a run already ({held[0]}); use another folder")


def _ledger(run: OutsideRun) -> Ledger:
    """One unprotected row for each thing seen: epsilon is infinite, whatever is stated."""
    ledger = Ledger("replace", "record", run.stated.exchanged()[1])
    for one in run.seen:
        ledger.append([one.row()])
    return ledger


def _result(run: OutsideRun, ledger: Ledger) -> dict[str, Any]:
    surfaces = list(_surfaces(run, ledger))
    head = {"delta": ledger.delta, "unit": ledger.unit, "relation": ledger.relation, "epsilon": both(ledger)}
    utility = {} if run.accuracy is None else {"utility": {"accuracy": run.accuracy, "accuracy_kind": "global"}}
    return {
        "schema": 2,
        "run": {
            "algo": run.name, "data": run.data, "preset": "none", "seed": run.seed, "version": __version__,
            "clients": run.clients, "rounds": run.rounds,
            "seconds": {name: round(run.seconds.get(name, 0.0), 3) for name in ("train", "worlds", "attacks", "total")},
        },
        "target": dict(run.target),
        **utility,
        "privacy": {**head, "claims": run.stated.claims(), "multiplicity": run.budget.to_json()},
        "surfaces": surfaces,
        "findings": [finding_row(one.finding, _promised(run)) for one in run.judged],
        "verdict": worst_verdict(row["verdict"] for row in surfaces),
    }  # fmt: skip


def _promised(run: OutsideRun) -> float | None:
    epsilon = run.stated.exchanged()[0]
    return epsilon if math.isfinite(epsilon) else None


def _surfaces(run: OutsideRun, ledger: Ledger) -> Any:
    rows: dict[str, list[Release]] = {}
    for release in ledger.releases:
        rows.setdefault(release.surface, []).append(release)
    for surface, releases in rows.items():
        mine = [one.finding for one in run.judged if str(one.finding.surface) == surface]
        tried = any(MEASURED & set(finding.measures) for finding in mine)
        epsilon = both(ledger, [surface])
        yield {
            "surface": surface,
            "sender": "server" if Surface(surface) in SENT_BY_SERVER or releases[0].client == SERVER else "client",
            "names": list(dict.fromkeys(r.name for r in releases)),
            "rounds": len({r.round for r in releases}),
            "bytes": size_in_bytes(releases),
            "mechanism": "unknown",
            "epsilon": epsilon,
            "audited": True
            if tried
            else f"not attacked: {'; '.join(dict.fromkeys(_notes(mine))) or 'no attack applies'}",
            "verdict": verdict(epsilon, _promised(run), mine),
        }


def _notes(findings: Sequence[Any]) -> list[str]:
    return [str(finding.measures.get("note", "")) for finding in findings][:3]


def _manifest(run: OutsideRun, command: Sequence[str]) -> dict[str, Any]:
    return {
        "schema": 1,
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
        **provenance(),
    }
