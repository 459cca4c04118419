"""A run folder as the report sees it: typed findings, plain mappings, arrays of evidence.

Only ``findings.json`` is required. What else is missing leaves its section out of the page; what is
there but damaged is an error, so that a page never shows less than it seems to.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from privdd.reporting.findings_file import FindingsError, load, read_json
from privdd.reporting.schema import FindingRow, Findings
from privdd.runtime.files import safe_name
from privdd.runtime.renames import renamed
from privdd.runtime.run_folder import read_tensors

LIMIT = 256 * 2**20  # largest evidence file in bytes that is read

FLAT = ("scores", "members", "blind", "record", "world")
PICTURES = ("real", "reconstructed")
EXPOSED = ("exposed", "exposed_label")


@dataclass(frozen=True)
class Evidence:
    """What was stored of one attack: scores (m,), members (m,) bool, blind (m,), pictures (b, c, h, w).

    record, world: (m,) labels of scores that may be correlated (world: the replay); the ROC's band
    then allows for it. exposed (b, c, h, w), exposed_label (b,): the most exposed records themselves, where they are kept.
    """

    scores: np.ndarray | None = None
    members: np.ndarray | None = None
    blind: np.ndarray | None = None
    record: np.ndarray | None = None
    world: np.ndarray | None = None
    real: np.ndarray | None = None
    reconstructed: np.ndarray | None = None
    exposed: np.ndarray | None = None
    exposed_label: np.ndarray | None = None

    @property
    def has_curve(self) -> bool:
        """Scores of both members and non-members are there."""
        return self.scores is not None and self.members is not None and 0 < self.members.sum() < len(self.members)

    @property
    def clusters(self) -> tuple[np.ndarray, ...]:
        return tuple(labels for labels in (self.record, self.world) if labels is not None)


@dataclass(frozen=True)
class RunRecord:
    """One run, read whole except for the evidence, which is read when asked for."""

    path: Path
    findings: Findings
    ledger: Mapping[str, Any] = field(default_factory=dict)
    config: Mapping[str, Any] = field(default_factory=dict)
    manifest: Mapping[str, Any] = field(default_factory=dict)

    def evidence(self, row: FindingRow) -> Evidence:
        """The evidence of one finding, empty where its file is absent. Raises FindingsError if damaged."""
        path = self.path / "evidence" / safe_name(row.evidence_name)
        if not path.is_file():
            return Evidence()
        if path.stat().st_size > LIMIT:
            raise FindingsError(f"{path}: larger than {LIMIT >> 20} MiB")
        arrays = {key: np.asarray(value.double()) for key, value in read_tensors(path).items()}
        return _checked(arrays, path)


def _checked(arrays: Mapping[str, np.ndarray], path: Path) -> Evidence:
    part = {name: arrays[name] for name in FLAT + PICTURES + EXPOSED if name in arrays}
    for name, value in part.items():
        if not np.isfinite(value).all():
            raise FindingsError(f"{path}: {name!r} holds NaN or infinity")
    _same_shape(part, FLAT, 1, path)
    _same_shape(part, PICTURES, 4, path)
    _same_shape(part, ("exposed",), 4, path)
    _same_shape(part, ("exposed_label",), 1, path)
    for name in {"real", "exposed"} & part.keys():
        if 0 in part[name].shape[2:]:
            raise FindingsError(f"{path}: pictures need at least one pixel, got {part[name].shape}")
        if part[name].shape[1] not in (1, 3):
            raise FindingsError(f"{path}: pictures need 1 or 3 channels, got {part[name].shape[1]}")
    if "exposed" in part and len(part["exposed"]) != len(part.get("exposed_label", ())):
        raise FindingsError(f"{path}: {len(part['exposed'])} exposed records need as many labels")
    if "members" in part:
        part["members"] = part["members"] > 0.5
    return Evidence(**part)


def _same_shape(part: dict[str, np.ndarray], names: tuple[str, ...], ndim: int, path: Path) -> None:
    shapes = {name: part[name].shape for name in names if name in part}
    if len(set(shapes.values())) > 1 or any(len(shape) != ndim for shape in shapes.values()):
        raise FindingsError(f"{path}: {shapes} must be equal shapes of {ndim} dimension{'s' * (ndim > 1)}")


def _optional_json(path: Path) -> Mapping[str, Any]:
    if not path.is_file():
        return {}
    data = read_json(path)
    if not isinstance(data, dict):
        raise FindingsError(f"{path}: an object is needed")
    return data


def read_config(path: Path) -> Mapping[str, Any]:
    """A run's config.yaml under today's names, empty where there is none. Raises FindingsError if damaged."""
    if not path.is_file():
        return {}
    try:
        data = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError, RecursionError) as error:
        raise FindingsError(f"{path}: damaged yaml ({error.__class__.__name__})") from None
    return renamed(data) if isinstance(data, dict) else {}


def read_run(path: Path | str) -> RunRecord:
    """A run folder. Raises FindingsError (one line) if it is none, of another schema, or damaged."""
    path = Path(path)
    if not path.is_dir():
        raise FindingsError(f"{path}: no such folder")
    if not (path / "findings.json").is_file():
        raise FindingsError(f"{path}: not a finished run (it has no findings.json)")
    return RunRecord(
        path,
        load(path),
        _optional_json(path / "ledger.json"),
        read_config(path / "config.yaml"),
        _optional_json(path / "manifest.json"),
    )
