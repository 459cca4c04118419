"""A run folder as the report sees it: typed findings, arrays of evidence, and the command that
makes the run again.

Only ``findings.json`` is required. What else is missing has no section on the page; what is there
but damaged is an error."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np

from privdd.reporting.schema import FindingRow, Findings, load_findings
from privdd.runtime.files import DamagedRun, read_json_object, safe_name
from privdd.runtime.run_folder import read_tensors
from privdd.runtime.yaml_files import read_yaml

LIMIT = 256 * 2**20  # largest evidence file in bytes that is read

# Arrays of one shape, and how many dimensions it has.
ALIKE = (
    (("scores", "members", "blind", "record", "world"), (1,)),
    (("real", "reconstructed", "guess"), (2, 4)),
    (("exposed",), (2, 4)),
    (("exposed_label",), (1,)),
)
ATTACKED = "attacked"  # key of the manifest


@dataclass(frozen=True)
class StoredEvidence:
    """The stored evidence of one attack: scores (m,), members (m,) bool, blind (m,), pictures (b,
    c, h, w) or rows of a table (b, d).

    record, world: (m,) labels of scores that may be correlated (world: the replay); the ROC's band
    then allows for it. exposed (b, ...), exposed_label (b,): the most exposed records
    themselves, where they are kept."""

    scores: np.ndarray | None = None
    members: np.ndarray | None = None
    blind: np.ndarray | None = None
    record: np.ndarray | None = None
    world: np.ndarray | None = None
    real: np.ndarray | None = None
    reconstructed: np.ndarray | None = None
    guess: np.ndarray | None = None
    exposed: np.ndarray | None = None
    exposed_label: np.ndarray | None = None

    @property
    def has_curve(self) -> bool:
        """Scores of both members and non-members are there."""
        return (
            self.scores is not None
            and self.members is not None
            and 0 < self.members.sum() < len(self.members)
        )

    @property
    def cluster_labels(self) -> tuple[np.ndarray, ...]:
        return tuple(labels for labels in (self.record, self.world) if labels is not None)


@dataclass(frozen=True)
class RunRecord:
    """One run, read whole except for the evidence, which is read when asked for."""

    path: Path
    findings: Findings
    ledger: Mapping[str, Any] = field(default_factory=dict)
    config: Mapping[str, Any] = field(default_factory=dict)
    manifest: Mapping[str, Any] = field(default_factory=dict)

    @property
    def shows_images(self) -> bool:
        """Whether its page may show records as images: not those of a target, which are its
        owner's."""
        setting = self.findings.run.show_images
        return self.findings.target is None if setting is None else setting

    def evidence(self, row: FindingRow) -> StoredEvidence:
        """The evidence of one finding, empty where its file is absent. Raises DamagedRun if
        damaged."""
        path = self.path / "evidence" / safe_name(row.evidence_name)
        if not path.is_file():
            return StoredEvidence()
        arrays = {
            key: np.asarray(value.double()) for key, value in read_tensors(path, LIMIT).items()
        }
        return _check_evidence(arrays, path)


def _check_evidence(arrays: Mapping[str, np.ndarray], path: Path) -> StoredEvidence:
    part = {one.name: arrays[one.name] for one in fields(StoredEvidence) if one.name in arrays}
    for name, value in part.items():
        if not np.isfinite(value).all():
            raise DamagedRun(f"{path}: {name!r} holds NaN or infinity")
    for names, allowed in ALIKE:
        shapes = {name: part[name].shape for name in names if name in part}
        if len(set(shapes.values())) > 1 or any(len(s) not in allowed for s in shapes.values()):
            needed = " or ".join(map(str, allowed))
            plural = "s" * (allowed != (1,))
            raise DamagedRun(f"{path}: {shapes} must be equal shapes of {needed} dimension{plural}")
    for name in {"real", "exposed"} & part.keys():
        if part[name].ndim == 2:
            continue
        if 0 in part[name].shape[2:]:
            raise DamagedRun(f"{path}: images must have at least one pixel, got {part[name].shape}")
        if part[name].shape[1] not in (1, 3):
            raise DamagedRun(f"{path}: images must have 1 or 3 channels, got {part[name].shape[1]}")
    if "exposed" in part and len(part["exposed"]) != len(part.get("exposed_label", ())):
        raise DamagedRun(f"{path}: {len(part['exposed'])} exposed records must have as many labels")
    if "members" in part:
        part["members"] = part["members"] > 0.5
    return StoredEvidence(**part)


def read_run_config(path: Path) -> Mapping[str, Any]:
    """A run's config.yaml, empty where there is none. Raises DamagedRun if damaged."""
    if not path.is_file():
        return {}
    data = read_yaml(path)
    return data if isinstance(data, dict) else {}


def read_run_record(path: Path | str, config: Mapping[str, Any] | None = None) -> RunRecord:
    """A run folder. Raises DamagedRun (one line) if it is none, of another schema, or damaged.
    config: what ``read_run_config`` gives, where that is known."""
    path = Path(path)
    if not path.is_dir():
        raise DamagedRun(f"{path}: no such folder")
    if not (path / "findings.json").is_file():
        raise DamagedRun(f"{path}: not a finished run (it has no findings.json)")
    return RunRecord(
        path,
        load_findings(path),
        read_json_object(path / "ledger.json", optional=True),
        read_run_config(path / "config.yaml") if config is None else config,
        read_json_object(path / "manifest.json", optional=True),
    )


@dataclass(frozen=True)
class AttackCommand:
    """One command that attacked a run: when (UTC, "" = not recorded), with which version and
    commit, and its attacks."""

    date: str
    command: str
    version: str
    commit: str | None
    attacks: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """An entry of ``attacked`` in manifest.json."""
        return {**vars(self), "attacks": list(self.attacks)}


@dataclass(frozen=True)
class ReproductionRecipe:
    """exact: the manifest recorded the command; otherwise it is put together from the findings.
    commands: where several commands attacked the run."""

    command: str
    exact: bool
    seed: int
    version: str
    machine: str
    digests: tuple[tuple[str, str], ...]
    commands: tuple[AttackCommand, ...] = ()


def attack_commands(record: RunRecord) -> tuple[AttackCommand, ...]:
    """All commands that attacked the run, in order; of a folder that lists none, the only one."""
    entries = record.manifest.get(ATTACKED)
    if isinstance(entries, list):
        commands = [entry for entry in entries if isinstance(entry, dict)]
        return tuple(_command(entry, entry.get("attacks")) for entry in commands)
    attacks = record.config.get("attack")
    if isinstance(attacks, dict) and attacks:
        return (_command(record.manifest, list(attacks)),)
    return ()


def _command(entry: Mapping[str, Any], attacks: object) -> AttackCommand:
    commit = entry.get("commit")
    text = _command_text(entry.get("command"))
    if isinstance(attacks, list):
        names = tuple(map(str, attacks))
    else:
        names = ()
    return AttackCommand(
        str(entry.get("date") or ""), text, str(entry.get("version")), commit and str(commit), names
    )


def _command_text(command: object) -> str:
    if isinstance(command, list):
        return shlex.join(map(str, command))
    return str(command or "").strip()


def reproduction_recipe(record: RunRecord) -> ReproductionRecipe:
    """The command from the manifest, else from the run."""
    run = record.findings.run
    manifest = record.manifest
    recorded = _command_text(manifest.get("command"))
    commands = attack_commands(record)
    parts = (f"algo={run.algo}", f"data={run.data}", f"preset={run.preset}", f"seed={run.seed}")
    text = recorded or shlex.join(["python", "-m", "privdd.audit", *parts])
    machine = manifest.get("machine") or ""
    if isinstance(machine, dict):
        facts = [f"{k} {v}" for k, v in machine.items() if not isinstance(v, dict | list)]
        machine = ", ".join(facts)
    digests = manifest.get("digests")
    listed: list[tuple[str, str]] = []
    if isinstance(digests, dict):
        listed = [(str(name), str(digest)) for name, digest in digests.items()]
    return ReproductionRecipe(
        text,
        bool(recorded),
        run.seed,
        run.version,
        str(machine),
        tuple(listed),
        commands if len(commands) > 1 else (),
    )
