"""Runs grouped into settings: one point of a comparison over its seeds."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import mean
from typing import Any

from privdd.reporting import finding_selection, wording
from privdd.reporting.leaks import LeakResult
from privdd.reporting.run_record import RunRecord
from privdd.reporting.schema import FindingRow, TprAt, Utility, Verdict, worst_verdict
from privdd.reporting.summary import is_weak_limit, leaks_of_run

# Keys about where and how a run was computed, not what was computed: at the top level, and at any
# depth.
APART = frozenset(
    {
        "engine",
        "hydra",
        "run",
        "resume",
        "device",
        "capture",
        "tracking",
        "name",
        "scores",
        "resources",
    }
)
APART_ANYWHERE = frozenset({"seed", "root"})
ASKED = "config:privacy.epsilon"  # None where nobody asked for one


@dataclass(frozen=True)
class Setting:
    """One point: a method with its parameters, over its seeds. runs is sorted by seed and not
    empty."""

    label: str
    method: str
    parameters: tuple[tuple[str, str], ...]
    runs: tuple[RunRecord, ...]

    @property
    def title(self) -> str:
        """The label without names of settings, for figures."""
        return wording.setting_title(self.label)

    @property
    def noise(self) -> str:
        """The noise multiplier of the runs, "σ = 1"; "" if there is none."""
        for name, value in flatten_config(self.runs[0].config).items():
            if name == "privacy.noise_multiplier" and _is_numeric(value):
                return f"σ = {float(value):g}"
        return ""

    @property
    def verdict(self) -> Verdict:
        return worst_verdict(run.findings.verdict for run in self.runs)

    @property
    def weak(self) -> bool:
        """Not contradicted, and still no reassurance: its limit is large, or its noise can be drawn
        again."""
        return any(is_weak_limit(self.verdict, run.findings) for run in self.runs)

    @property
    def _used(self) -> list[Utility]:
        return [run.findings.utility for run in self.runs if run.findings.utility]

    @property
    def accuracies(self) -> tuple[float, ...]:
        """The accuracies of the runs that trained a model: none if all diverged, or are audits of
        external scores."""
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
        """The largest proven epsilon of the seeds (one value, unless seeds changed the data's
        split)."""
        return max(run.findings.privacy.epsilon.proven for run in self.runs)

    @property
    def epsilon_rdp(self) -> float:
        return max(run.findings.privacy.epsilon.rdp for run in self.runs)

    @property
    def claim(self) -> float | None:
        """The smallest epsilon of a paper that holds at the delta of the runs: one at a larger
        delta does not stand beside it."""
        privacies = [run.findings.privacy for run in self.runs]
        numbers: list[float] = []
        for privacy in privacies:
            for claim in privacy.claims:
                holds = (claim.delta or privacy.delta) <= privacy.delta
                if holds and claim.number is not None:
                    numbers.append(claim.number)
        return min(numbers, default=None)

    @property
    def shown(self) -> float | None:
        """The middle of the seeds' lower bounds: their largest would not hold at 95 %."""
        return lower_median(
            finding_selection.shown_epsilon(run.findings.findings) for run in self.runs
        )

    @property
    def uploaded(self) -> int | None:
        return max((utility.uploaded_bytes_per_client for utility in self._used), default=None)

    @property
    def psnr(self) -> float | None:
        """The middle of the seeds' typical images, in dB."""
        medians = []
        for run in self.runs:
            row = _best_reconstruction(run)
            if row is not None:
                medians.append(row.pictures.median if row.pictures else row.psnr)
        return lower_median(medians)

    @property
    def rebuilds(self) -> bool:
        """Whether any seed's best image is clearly above a blind guess, by the rule of
        ``finding_selection``."""
        for run in self.runs:
            row = _best_reconstruction(run)
            if row is not None and finding_selection.rebuilds_records(row, run.findings.scope):
                return True
        return False

    def _middle_rate(self, key: str) -> tuple[RunRecord, TprAt] | None:
        """The strongest attack's rate, of the run in the middle of the seeds, with this run."""
        rates = []
        for run in self.runs:
            rate = _strongest_at(run, key)
            if rate is not None:
                rates.append((run, rate))
        if not rates:
            return None
        return sorted(rates, key=lambda pair: pair[1].tpr)[(len(rates) - 1) // 2]

    def tpr(self, key: str) -> TprAt | None:
        """The strongest attack's rate at that false-positive rate, of the run in the middle of the
        seeds."""
        middle = self._middle_rate(key)
        return None if middle is None else middle[1]

    def beats_chance(self, key: str) -> bool:
        """Whether the rate that ``tpr`` gives lies above the chance level of its run."""
        middle = self._middle_rate(key)
        if middle is None:
            return False
        run, rate = middle
        return finding_selection.beats_chance(rate, float(key), run.findings.scope)

    def leak(self) -> LeakResult | None:
        """The gravest leak of the run in the middle of the seeds; None if that run has none."""
        gravest = [next(iter(leaks_of_run(run.findings)), None) for run in self.runs]
        weakest_first = sorted(gravest, key=_gravity)
        return weakest_first[(len(weakest_first) - 1) // 2]

    def attack(self) -> tuple[RunRecord, FindingRow] | None:
        """The strongest membership attack of the run in the middle of the seeds."""
        strongest = []
        for run in self.runs:
            findings = run.findings
            result = finding_selection.strongest_membership(findings.findings, findings.scope)
            if result is not None:
                strongest.append((run, result))
        if not strongest:
            return None
        strongest.sort(key=lambda pair: pair[1].strength_key)
        run, result = strongest[(len(strongest) - 1) // 2]
        return run, result.row


def _gravity(leak: LeakResult | None) -> tuple[float, float]:
    """Sorts the gravest last, and no leak first."""
    if leak is None:
        return -math.inf, 0.0
    rank, weakness = leak.order
    return -rank, -weakness


def _best_reconstruction(run: RunRecord) -> FindingRow | None:
    findings = run.findings
    return finding_selection.strongest_reconstruction(findings.findings, findings.scope)


def lower_median(values: Iterable[float | None]) -> float | None:
    """The lower median of those that are no None; None of none."""
    numbers = sorted(value for value in values if value is not None)
    return numbers[(len(numbers) - 1) // 2] if numbers else None


def _strongest_at(run: RunRecord, key: str) -> TprAt | None:
    rates = []
    for row in run.findings.findings:
        rate = (row.tpr_at_fpr or {}).get(key)
        if row.family == "membership" and rate is not None and rate.resolvable:
            rates.append(rate)
    return max(rates, key=lambda rate: rate.tpr, default=None)


def flatten_config(config: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Dotted names of a nested mapping to texts, leaving out where and how a run was computed."""
    flat: dict[str, str] = {}
    for key, value in config.items():
        if str(key) in APART_ANYWHERE or (not prefix and str(key) in APART):
            continue
        if isinstance(value, Mapping):
            flat |= flatten_config(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = str(value)
    return flat


def group_runs(runs: Sequence[RunRecord]) -> list[Setting]:
    """Group runs by everything but the seed.

    Args:
        runs: Any runs.

    Returns:
        Settings, sorted by method, then falling epsilon, then label.
    """
    groups: dict[tuple[tuple[str, str], ...], list[RunRecord]] = {}
    for run in runs:
        groups.setdefault(tuple(sorted(_identity(run).items())), []).append(run)
    identities = [dict(key) for key in groups]
    settings = [_make_setting(dict(key), members, identities) for key, members in groups.items()]
    return sorted(
        _number_equal_labels(settings),
        key=lambda setting: (setting.method, -setting.epsilon, setting.label),
    )


def _identity(run: RunRecord) -> dict[str, str]:
    """What two runs of one setting share."""
    facts = run.findings.run
    identity = {"algo": facts.algo, "data": facts.data, "preset": facts.preset}
    config = flatten_config(run.config)
    return identity | {f"config:{key}": value for key, value in config.items()}


def _make_setting(
    identity: Mapping[str, str], runs: list[RunRecord], identities: Sequence[Mapping[str, str]]
) -> Setting:
    """identities: of all settings of the page, so that a label names what sets this one apart."""
    rivals = [rival for rival in identities if rival["algo"] == identity["algo"]]
    keys = [key for key in identity if key.startswith("config:") and _values_differ(key, rivals)]
    if _is_numeric(identity.get(ASKED, "")):  # the noise multiplier follows from it
        keys = [key for key in keys if not key.endswith("noise_multiplier")]
    # a value that several parts of the config take over counts once
    parameters = tuple(dict.fromkeys((_last_name(key), identity[key]) for key in sorted(keys)))
    wide = [identity[key] for key in ("data", "preset") if _values_differ(key, identities)]
    words = [value.rsplit(".", 1)[-1] for _, value in parameters if not _is_numeric(value)]
    numbers = [f"{name}={value}" for name, value in parameters if _is_numeric(value)]
    method = " ".join([identity["algo"], *wide, *words][:4])
    label = " ".join([method, *numbers[:3]])
    ordered = sorted(runs, key=lambda run: (run.findings.run.seed, str(run.path)))
    return Setting(label, method, parameters, tuple(ordered))


def _values_differ(key: str, identities: Sequence[Mapping[str, str]]) -> bool:
    return len({identity.get(key) for identity in identities}) > 1


def _last_name(key: str) -> str:
    return key.removeprefix("config:").rsplit(".", 1)[-1]


def _is_numeric(text: str) -> bool:
    try:
        return not math.isnan(float(text))
    except ValueError:
        return False


def _number_equal_labels(settings: list[Setting]) -> list[Setting]:
    """Numbers behind labels that several settings share."""
    counts: Counter[str] = Counter()
    numbered = []
    for setting in settings:
        counts[setting.label] += 1
        count = counts[setting.label]
        if count > 1:
            setting = replace(setting, label=f"{setting.label} ({count})")
        numbered.append(setting)
    return numbered
