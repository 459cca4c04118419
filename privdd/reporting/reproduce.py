"""The command that makes a run again, from what its folder recorded."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from privdd.reporting.folder import RunRecord


@dataclass(frozen=True)
class AttackCommand:
    """One command that attacked a run: when (UTC, "" = not recorded), with which version and commit, and its attacks."""

    date: str
    command: str
    version: str
    commit: str | None
    attacks: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """An entry of ``attacked`` in manifest.json."""
        return {**vars(self), "attacks": list(self.attacks)}


@dataclass(frozen=True)
class Recipe:
    """exact: the manifest recorded the command; otherwise it is put together from the findings. commands: where several
    commands attacked the run."""

    command: str
    exact: bool
    seed: int
    version: str
    machine: str
    digests: tuple[tuple[str, str], ...]
    commands: tuple[AttackCommand, ...] = ()


ATTACKED = "attacked"  # key of the manifest


def attack_commands(record: RunRecord) -> tuple[AttackCommand, ...]:
    """All commands that attacked the run, in order; of a run of an earlier version, which kept no list, the only one."""
    manifest, stored = record.manifest, record.manifest.get(ATTACKED)
    if isinstance(stored, list):
        return tuple(_command(one, one.get("attacks")) for one in stored if isinstance(one, dict))
    attacks = record.config.get("attack")
    return (_command(manifest, list(attacks)),) if isinstance(attacks, dict) and attacks else ()


def _command(told: Mapping[str, Any], attacks: object) -> AttackCommand:
    command, commit = told.get("command"), told.get("commit")
    text = shlex.join(map(str, command)) if isinstance(command, list) else str(command or "")
    names = tuple(map(str, attacks)) if isinstance(attacks, list) else ()
    return AttackCommand(str(told.get("date") or ""), text, str(told.get("version")), commit and str(commit), names)


def recipe(record: RunRecord) -> Recipe:
    """The command from the manifest's ``command`` (text or list) or ``overrides`` (list), else from the run."""
    run, manifest = record.findings.run, record.manifest
    given, overrides = manifest.get("command"), manifest.get("overrides")
    exact = True
    if isinstance(given, str) and given.strip():
        text = given.strip()
    elif isinstance(given, list) and given:
        text = shlex.join(str(part) for part in given)
    elif isinstance(overrides, list):
        text = shlex.join(["python", "-m", "privdd.audit", *(str(part) for part in overrides)])
    else:
        parts = (f"algo={run.algo}", f"data={run.data}", f"preset={run.preset}", f"seed={run.seed}")
        text, exact = shlex.join(["python", "-m", "privdd.audit", *parts]), False
    several = attack_commands(record) if len(attack_commands(record)) > 1 else ()
    machine, digests = _flat(manifest.get("machine")), _digests(manifest.get("digests"))
    return Recipe(text, exact, run.seed, run.version, machine, digests, several)


def _flat(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} {inner}" for key, inner in value.items() if not isinstance(inner, dict | list))
    return str(value) if value else ""


def _digests(value: object) -> tuple[tuple[str, str], ...]:
    if not isinstance(value, dict):
        return ()
    return tuple((str(key), str(inner)) for key, inner in value.items())
