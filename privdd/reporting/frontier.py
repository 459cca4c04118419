"""Runs grouped into settings over their seeds, and accuracy against epsilon on equal terms."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import mean, variance
from typing import Any, Literal

from privdd.reporting import finding_selection
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
        held = (
            c.number for one in privacies for c in one.claims if (c.delta or one.delta) <= one.delta
        )
        return min((number for number in held if number is not None), default=None)

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
    def _pictures(self) -> list[FindingRow]:
        return [
            row
            for run in self.runs
            if (row := finding_selection.strongest_reconstruction(run.findings.findings))
        ]

    @property
    def psnr(self) -> float | None:
        return lower_median(
            row.pictures.median if row.pictures else row.psnr for row in self._pictures
        )

    @property
    def rebuilds(self) -> bool:
        """Whether any seed's best picture is clearly above a blind guess, by the rule of
        ``finding_selection``."""
        return any(map(finding_selection.rebuilds_records, self._pictures))

    def tpr(self, key: str) -> TprAt | None:
        """The strongest attack's rate at that false-positive rate, of the run in the middle of the
        seeds."""
        found = [at for at in (_strongest_at(run, key) for run in self.runs) if at is not None]
        return sorted(found, key=lambda at: at.tpr)[(len(found) - 1) // 2] if found else None

    def leak(self) -> LeakResult | None:
        """The gravest leak of the run in the middle of the seeds; None where that run has none."""
        first = [next(iter(leaks_of_run(run.findings)), None) for run in self.runs]
        weakest_first = sorted(
            first,
            key=lambda leak: (-math.inf, 0.0) if leak is None else (-leak.order[0], -leak.order[1]),
        )
        return weakest_first[(len(weakest_first) - 1) // 2]

    def attack(self) -> tuple[RunRecord, FindingRow] | None:
        """The strongest membership attack of the run in the middle of the seeds."""
        worst = [
            (run, finding_selection.strongest_membership(run.findings.findings))
            for run in self.runs
        ]
        found = sorted(
            ((run, one) for run, one in worst if one), key=lambda pair: pair[1].strength_key
        )
        if not found:
            return None
        run, one = found[(len(found) - 1) // 2]
        return run, one.row


def lower_median(values: Iterable[float | None]) -> float | None:
    """The lower median of what is there."""
    there = sorted(v for v in values if v is not None)
    return there[(len(there) - 1) // 2] if there else None


def _strongest_at(run: RunRecord, key: str) -> TprAt | None:
    rows = [row for row in run.findings.findings if row.family == "membership" and row.tpr_at_fpr]
    found = (row.tpr_at_fpr[key] for row in rows if row.tpr_at_fpr and key in row.tpr_at_fpr)
    return max((at for at in found if at.resolvable), key=lambda at: at.tpr, default=None)


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
    """Group runs by everything but the seed; sorted by method, then falling epsilon, then label."""
    grouped: dict[tuple[tuple[str, str], ...], list[RunRecord]] = {}
    for run in runs:
        mine = {name: getattr(run.findings.run, name) for name in ("algo", "data", "preset")}
        mine |= {f"config:{key}": value for key, value in flatten_config(run.config).items()}
        grouped.setdefault(tuple(sorted(mine.items())), []).append(run)
    made = [
        _make_setting(dict(key), members, [dict(k) for k in grouped])
        for key, members in grouped.items()
    ]
    return sorted(_number_equal_labels(made), key=lambda s: (s.method, -s.epsilon, s.label))


def _make_setting(
    mine: Mapping[str, str], runs: list[RunRecord], everyone: Sequence[Mapping[str, str]]
) -> Setting:
    alike = [other for other in everyone if other["algo"] == mine["algo"]]
    keys = [
        k for k in mine if k.startswith("config:") and len({other.get(k) for other in alike}) > 1
    ]
    if _is_numeric(mine.get(ASKED, "")):  # the noise multiplier follows from it
        keys = [k for k in keys if not k.endswith("noise_multiplier")]
    named = ((k.removeprefix("config:").rsplit(".", 1)[-1], mine[k]) for k in sorted(keys))
    parameters = tuple(
        dict.fromkeys(named)
    )  # a value that several parts of the config take over counts once
    wide = [mine[k] for k in ("data", "preset") if len({other[k] for other in everyone}) > 1]
    words = [value.rsplit(".", 1)[-1] for _, value in parameters if not _is_numeric(value)]
    numbers = [f"{name}={value}" for name, value in parameters if _is_numeric(value)]
    method = " ".join([mine["algo"], *wide, *words][:4])
    ordered = sorted(runs, key=lambda run: (run.findings.run.seed, str(run.path)))
    return Setting(" ".join([method, *numbers[:3]]), method, parameters, tuple(ordered))


def _is_numeric(text: str) -> bool:
    try:
        return not math.isnan(float(text))
    except ValueError:
        return False


def _number_equal_labels(made: list[Setting]) -> list[Setting]:
    """Numbers behind labels that several settings share."""
    counts: Counter[str] = Counter()
    for at, setting in enumerate(made):
        counts[setting.label] += 1
        if (again := counts[setting.label]) > 1:
            made[at] = replace(setting, label=f"{setting.label} ({again})")
    return made


# A setting is dominated where another, of the same data, clients, unit, relation, delta and kind of
# accuracy, has no larger, and a finite, proven epsilon and no smaller accuracy, one of them
# better, under a server that sees no less and with no public pre-training that the setting itself
# does without.
PRETRAINED = {
    "AlexNet": "ImageNet (AlexNet's weights)"
}  # class of a public map -> what it was trained on
TRUST = {
    "local": "every upload",
    "secagg": "sums only",
}  # what the server sees, from least to most trust
MARGIN = 2.0  # standard errors: accuracies within them are not told apart


@dataclass(frozen=True)
class PublishedFigure:
    """An accuracy in [0, 1] that others report at an epsilon (delta 1e-5), 60,000 records of one
    holder, without public data."""

    data: str
    kind: Literal["model", "data set"]
    source: str
    epsilon: float
    accuracy: float


LINEAR = "scattering features and a linear head (Tramèr and Boneh, ICLR 2021)"
PUBLISHED = (
    PublishedFigure("fashion_mnist", "model", LINEAR, 3.0, 0.897),
    PublishedFigure(
        "fashion_mnist", "data set", "DPDM, as DPImageBench (2025) measures it", 1.0, 0.764
    ),
    PublishedFigure(
        "fashion_mnist", "data set", "DPDM, as DPImageBench (2025) measures it", 10.0, 0.856
    ),
    PublishedFigure(
        "fashion_mnist", "data set", "DP-FETA, as DPImageBench (2025) measures it", 1.0, 0.817
    ),
    PublishedFigure(
        "fashion_mnist", "data set", "DP-FETA, as DPImageBench (2025) measures it", 10.0, 0.873
    ),
    PublishedFigure("mnist", "model", LINEAR, 3.0, 0.987),
)


@dataclass(frozen=True)
class FrontierPlace:
    """A setting on the frontier. trust: what the server sees; public: data of others that it was
    built on, "" = none;
    shown: the middle of the seeds' lower bounds for all that is released; dominated: the label
        of one that beats it."""

    setting: Setting
    trust: str
    public: str
    shown: float | None
    dominated: str = ""

    @property
    def sees(self) -> str:
        return TRUST.get(self.trust, self.trust)

    @property
    def terms(self) -> str:
        """What it rests on beside the accountant, behind a comma; "" for a server that sees all and
        no public data."""
        return "".join(
            [f", {self.sees}"] * (self.trust != "local")
            + [f", public: {self.public}"] * bool(self.public)
        )

    @property
    def beaten_by(self) -> str:
        """The dominating setting as the page names it, with a mark where a single seed cannot show
        the spread."""
        return self.dominated and self.dominated + (
            " (one seed)" if len(self.setting.accuracies) == 1 else ""
        )


def trust_of_config(config: Mapping[str, Any]) -> str:
    """The trust setting of a run; "local" where its folder holds no config."""
    node = config.get("trust")
    return str(node.get("name", "local")) if isinstance(node, Mapping) else "local"


def public_data_of(config: Mapping[str, Any]) -> str:
    """The pre-training that the method's settings name, "" where there is none."""
    found = (PRETRAINED.get(name.rsplit(".", 1)[-1]) for name in _target_paths(config.get("algo")))
    return ", ".join(dict.fromkeys(one for one in found if one))


def _target_paths(node: Any) -> Iterator[str]:
    if isinstance(node, Mapping):
        if "_target_" in node:
            yield str(node["_target_"])
        for part in node.values():
            yield from _target_paths(part)


def frontier_places(made: Sequence[Setting]) -> list[FrontierPlace]:
    """Every setting that trained a model, by rising epsilon and falling accuracy."""
    there = []
    for setting in (one for one in made if one.accuracies):
        config = setting.runs[0].config
        shown = lower_median(run.findings.privacy.epsilon.shown for run in setting.runs)
        shown = setting.shown if shown is None else shown
        there.append(FrontierPlace(setting, trust_of_config(config), public_data_of(config), shown))
    marked = [replace(p, dominated=_dominating_setting(p, there)) for p in there]
    return sorted(
        marked, key=lambda p: (p.setting.epsilon, -(p.setting.accuracy or 0.0), p.setting.label)
    )


def _dominating_setting(mine: FrontierPlace, everyone: Sequence[FrontierPlace]) -> str:
    """The label of the most accurate setting that dominates this one, "" where none does."""
    others = (
        p
        for p in everyone
        if p is not mine and _is_on_stricter_terms(mine, p) and _dominates(p, mine)
    )
    best = max(others, key=lambda p: p.setting.accuracy or 0.0, default=None)
    return best.setting.label if best else ""


def _is_on_stricter_terms(mine: FrontierPlace, other: FrontierPlace) -> bool:
    """Whether ``other`` is on terms at least as strict: a server that sees as much, no more
    pre-training."""
    same = _comparison_terms(mine.setting) == _comparison_terms(other.setting)
    order = list(TRUST)
    known = mine.trust in order and other.trust in order
    return (
        same
        and known
        and order.index(other.trust) <= order.index(mine.trust)
        and other.public in ("", mine.public)
    )


def _comparison_terms(setting: Setting) -> tuple[Any, ...]:
    run = setting.runs[0]
    privacy = setting.runs[0].findings.privacy
    parts = (run.config.get("data"), run.config.get("partition"))
    utility = run.findings.utility
    kind = utility.accuracy_kind if utility else ""  # of one model for all, or of each client's own
    return (run.findings.run.data, str(parts), privacy.delta, privacy.unit, privacy.relation, kind)


def _dominates(other: FrontierPlace, mine: FrontierPlace) -> bool:
    """A finite epsilon, no larger one (to 1 %), no smaller accuracy, and more accurate by more than
    the seeds' spread, or cheaper."""
    a = other.setting
    b = mine.setting
    if (
        math.isinf(a.epsilon)
        or a.epsilon > b.epsilon * 1.01
        or (a.accuracy or 0) < (b.accuracy or 0)
    ):
        return False
    spread = [
        (variance(s.accuracies) if len(s.accuracies) > 1 else 0.0) / len(s.accuracies)
        for s in (a, b)
    ]
    gap = (a.accuracy or 0) - (b.accuracy or 0)
    return gap > MARGIN * sum(spread) ** 0.5 or a.epsilon < b.epsilon * 0.99
