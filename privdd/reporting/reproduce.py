"""The command that makes a run again, from what its folder recorded."""

from __future__ import annotations

import shlex
from dataclasses import dataclass

from privdd.reporting.folder import RunRecord


@dataclass(frozen=True)
class Recipe:
    """exact: the manifest recorded the command; otherwise it is put together from the findings."""

    command: str
    exact: bool
    seed: int
    version: str
    machine: str
    digests: tuple[tuple[str, str], ...]


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
    return Recipe(text, exact, run.seed, run.version, _flat(manifest.get("machine")), _digests(manifest.get("digests")))


def _flat(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} {inner}" for key, inner in value.items() if not isinstance(inner, dict | list))
    return str(value) if value else ""


def _digests(value: object) -> tuple[tuple[str, str], ...]:
    if not isinstance(value, dict):
        return ()
    return tuple((str(key), str(inner)) for key, inner in value.items())
