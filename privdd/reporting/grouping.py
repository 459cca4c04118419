"""Several runs as settings: runs that differ by seed alone are one point of one method's curve."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import mean
from typing import Any

from privdd.reporting import strongest
from privdd.reporting.folder import RunRecord
from privdd.reporting.schema import FindingRow, TprAt, Utility, worst_verdict
from privdd.reporting.schema_values import Verdict
from privdd.reporting.summary import weak

# Keys about where and how a run was computed, not what was computed: at the top level, and at any depth.
APART = frozenset({"engine", "hydra", "run", "resume", "device", "capture", "tracking", "name", "scores", "resources"})
APART_ANYWHERE = frozenset({"seed", "root"})
ASKED = "config:privacy.epsilon"  # None where nobody asked for one


@dataclass(frozen=True)
class Setting:
    """One point: a method with its parameters, over its seeds. runs is sorted by seed and not empty."""

    label: str
    method: str
    parameters: tuple[tuple[str, str], ...]
    runs: tuple[RunRecord, ...]

    @property
    def verdict(self) -> Verdict:
        return worst_verdict(run.findings.verdict for run in self.runs)

    @property
    def weak(self) -> bool:
        """Not contradicted, and still no reassurance: its limit is large, or its noise can be drawn again."""
        return any(weak(self.verdict, run.findings) for run in self.runs)

    @property
    def _used(self) -> list[Utility]:
        return [run.findings.utility for run in self.runs if run.findings.utility]

    @property
    def accuracies(self) -> tuple[float, ...]:
        """Of the runs that trained a model: none if all diverged, or are audits of external scores."""
        return tuple(utility.accuracy for utility in self._used if utility.diverged is None)

    @property
    def diverged(self) -> int:
        """How many of the runs ended without a finite model."""
        return sum(utility.diverged is not None for utility in self._used)

    @property
    def accuracy(self) -> float | None:
        return mean(self.accuracies) if self.accuracies else None

    @property
    def epsilon(self) -> float:
        """The largest accounted epsilon of the seeds (one value, unless seeds changed the data's split)."""
        return max(run.findings.privacy.epsilon.best for run in self.runs)

    @property
    def epsilon_rdp(self) -> float:
        return max(run.findings.privacy.epsilon.rdp for run in self.runs)

    @property
    def claim(self) -> float | None:
        claims = [strongest.boldest(run.findings.privacy.claims) for run in self.runs]
        return min((c.number for c in claims if c is not None and c.number is not None), default=None)

    @property
    def measured(self) -> float | None:
        """The middle of the seeds' lower bounds: their largest would not hold at 95 %."""
        return middle(strongest.measured_epsilon(run.findings.findings) for run in self.runs)

    @property
    def uploaded(self) -> int | None:
        return max((utility.uploaded_bytes_per_client for utility in self._used), default=None)

    @property
    def _pictures(self) -> list[FindingRow]:
        return [row for run in self.runs if (row := strongest.best_pictures(run.findings.findings))]

    @property
    def psnr(self) -> float | None:
        return middle(row.pictures.median if row.pictures else row.psnr for row in self._pictures)

    @property
    def rebuilds(self) -> bool:
        """Whether any seed's best picture is clearly above a blind guess, by the rule of ``strongest``."""
        return any(map(strongest.rebuilds, self._pictures))

    def tpr(self, key: str) -> TprAt | None:
        """The strongest attack's rate at that false-positive rate, of the run in the middle of the seeds."""
        found = [at for at in (_strongest_at(run, key) for run in self.runs) if at is not None]
        return sorted(found, key=lambda at: at.tpr)[(len(found) - 1) // 2] if found else None

    def attack(self) -> tuple[RunRecord, FindingRow] | None:
        """The strongest membership attack of the run in the middle of the seeds."""
        worst = [(run, strongest.worst_membership(run.findings.findings)) for run in self.runs]
        found = sorted(((run, one) for run, one in worst if one), key=lambda pair: pair[1].strength)
        if not found:
            return None
        run, one = found[(len(found) - 1) // 2]
        return run, one.row


def middle(values: Iterable[float | None]) -> float | None:
    """The lower median of what is there."""
    there = sorted(v for v in values if v is not None)
    return there[(len(there) - 1) // 2] if there else None


def _strongest_at(run: RunRecord, key: str) -> TprAt | None:
    rows = [row for row in run.findings.findings if row.family == "membership" and row.tpr_at_fpr]
    found = [row.tpr_at_fpr[key] for row in rows if row.tpr_at_fpr and key in row.tpr_at_fpr]
    return max((at for at in found if at.resolvable), key=lambda at: at.tpr, default=None)


def flatten(config: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Dotted names of a nested mapping to texts, leaving out where and how a run was computed."""
    flat: dict[str, str] = {}
    for key, value in config.items():
        if str(key) in APART_ANYWHERE or (not prefix and str(key) in APART):
            continue
        if isinstance(value, Mapping):
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = str(value)
    return flat


def settings(runs: Sequence[RunRecord]) -> list[Setting]:
    """Group runs by everything but the seed; sorted by method, then falling epsilon, then label."""
    flats = [_identity(run) for run in runs]
    grouped: dict[tuple[tuple[str, str], ...], list[RunRecord]] = {}
    for run, flat in zip(runs, flats, strict=True):
        grouped.setdefault(tuple(sorted(flat.items())), []).append(run)
    made = [_setting(dict(key), members, [dict(k) for k in grouped]) for key, members in grouped.items()]
    return sorted(_distinct(made), key=lambda s: (s.method, -s.epsilon, s.label))


def _identity(run: RunRecord) -> dict[str, str]:
    known = run.findings.run
    return {"algo": known.algo, "data": known.data, "preset": known.preset} | {
        f"config:{key}": value for key, value in flatten(run.config).items()
    }


def _setting(mine: Mapping[str, str], runs: list[RunRecord], everyone: Sequence[Mapping[str, str]]) -> Setting:
    alike = [other for other in everyone if other["algo"] == mine["algo"]]
    keys = [k for k in mine if k.startswith("config:") and len({other.get(k) for other in alike}) > 1]
    if _numeric(mine.get(ASKED, "")):  # the noise multiplier follows from it
        keys = [k for k in keys if not k.endswith("noise_multiplier")]
    named = ((k.removeprefix("config:").rsplit(".", 1)[-1], mine[k]) for k in sorted(keys))
    parameters = tuple(dict.fromkeys(named))  # a value that several parts of the config take over counts once
    wide = [k for k in ("data", "preset") if len({other[k] for other in everyone}) > 1]
    method = " ".join(
        [mine["algo"], *(mine[k] for k in wide), *(v.rsplit(".", 1)[-1] for _, v in parameters if not _numeric(v))][:4]
    )
    numbers = [f"{name}={value}" for name, value in parameters if _numeric(value)]
    label = " ".join([method, *numbers[:3]])
    return Setting(
        label, method, parameters, tuple(sorted(runs, key=lambda run: (run.findings.run.seed, str(run.path))))
    )


def _numeric(text: str) -> bool:
    try:
        return not math.isnan(float(text))
    except ValueError:
        return False


def _distinct(made: list[Setting]) -> list[Setting]:
    """Numbers behind labels that several settings share."""
    counts: Counter[str] = Counter()
    result = []
    for setting in made:
        counts[setting.label] += 1
        again = counts[setting.label]
        result.append(setting if again == 1 else replace(setting, label=f"{setting.label} ({again})"))
    return result
