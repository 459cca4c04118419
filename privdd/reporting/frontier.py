"""Accuracy against epsilon on equal terms: which setting beats which."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import variance
from typing import Any, Literal

from privdd.reporting.compared_settings import Setting, lower_median
from privdd.runtime.yaml_files import TARGET

# A setting is dominated where another, of the same data, clients, unit, relation, delta and kind of
# accuracy, has no larger, and a finite, proven epsilon and no smaller accuracy, one of them
# better, under a server that sees no less and with no public pre-training that the setting itself
# does without.
MARGIN = 2.0  # standard errors: accuracies within them count as equal
EPSILON_MARGIN = 0.01  # a share: epsilons within it count as equal
# class of a public map -> what it was trained on
PRETRAINED = {"AlexNet": "ImageNet (AlexNet's weights)"}
# what the server sees, from least to most trust
TRUST = {"local": "every upload", "secagg": "sums only"}
LINEAR = "scattering features and a linear head (Tramèr and Boneh, ICLR 2021)"


@dataclass(frozen=True)
class PublishedFigure:
    """An accuracy in [0, 1] that others report at an epsilon (delta 1e-5), 60,000 records of one
    holder, without public data."""

    data: str
    kind: Literal["model", "data set"]
    source: str
    epsilon: float
    accuracy: float


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
        text = ""
        if self.trust != "local":
            text += f", {self.sees}"
        if self.public:
            text += f", public: {self.public}"
        return text

    @property
    def beaten_by(self) -> str:
        """The dominating setting as the page names it, with a mark if a single seed cannot show
        the spread."""
        if self.dominated and len(self.setting.accuracies) == 1:
            return f"{self.dominated} (one seed)"
        return self.dominated


def trust_of_config(config: Mapping[str, Any]) -> str:
    """The trust setting of a run; "local" where its folder holds no config."""
    node = config.get("trust")
    if isinstance(node, Mapping):
        return str(node.get("name", "local"))
    return "local"


def public_data_of(config: Mapping[str, Any]) -> str:
    """The pre-training that the method's settings name, "" if there is none."""
    classes = [path.rsplit(".", 1)[-1] for path in _target_paths(config.get("algo"))]
    sources = dict.fromkeys(PRETRAINED[name] for name in classes if name in PRETRAINED)
    return ", ".join(sources)


def _target_paths(node: Any) -> Iterator[str]:
    if isinstance(node, Mapping):
        if TARGET in node:
            yield str(node[TARGET])
        for part in node.values():
            yield from _target_paths(part)


def frontier_places(settings: Sequence[Setting]) -> list[FrontierPlace]:
    """Place settings on the frontier.

    Args:
        settings: The settings of a page; those that trained no model have no place.

    Returns:
        One place a setting, by rising epsilon and falling accuracy, each with the label of the
        setting that dominates it.
    """
    places = []
    for setting in settings:
        if not setting.accuracies:
            continue
        config = setting.runs[0].config
        shown = lower_median(run.findings.privacy.epsilon.shown for run in setting.runs)
        if shown is None:
            shown = setting.shown
        trust = trust_of_config(config)
        places.append(FrontierPlace(setting, trust, public_data_of(config), shown))
    marked = [replace(place, dominated=_dominating_setting(place, places)) for place in places]
    return sorted(marked, key=_frontier_order)


def _frontier_order(place: FrontierPlace) -> tuple[float, float, str]:
    setting = place.setting
    return setting.epsilon, -(setting.accuracy or 0.0), setting.label


def _dominating_setting(place: FrontierPlace, places: Sequence[FrontierPlace]) -> str:
    """The label of the most accurate setting that dominates this one, "" if none does."""
    rivals = [
        rival
        for rival in places
        if rival is not place
        and _is_on_stricter_terms(rival, place)
        and _dominates(rival.setting, place.setting)
    ]
    best = max(rivals, key=lambda rival: rival.setting.accuracy or 0.0, default=None)
    return best.setting.label if best else ""


def _is_on_stricter_terms(rival: FrontierPlace, place: FrontierPlace) -> bool:
    """Whether ``rival`` is on terms at least as strict: a server that sees as much, no more
    pre-training."""
    if _comparison_terms(place.setting) != _comparison_terms(rival.setting):
        return False
    order = list(TRUST)
    if place.trust not in order or rival.trust not in order:
        return False
    sees_as_much = order.index(rival.trust) <= order.index(place.trust)
    return sees_as_much and rival.public in ("", place.public)


def _comparison_terms(setting: Setting) -> tuple[Any, ...]:
    run = setting.runs[0]
    privacy = run.findings.privacy
    parts = (run.config.get("data"), run.config.get("partition"))
    utility = run.findings.utility
    kind = utility.accuracy_kind if utility else ""  # of one model for all, or of each client's own
    return (run.findings.run.data, str(parts), privacy.delta, privacy.unit, privacy.relation, kind)


def _dominates(rival: Setting, setting: Setting) -> bool:
    """A finite epsilon, no larger one, no smaller accuracy, and more accurate by more than the
    seeds' spread, or cheaper."""
    if math.isinf(rival.epsilon) or rival.epsilon > setting.epsilon * (1 + EPSILON_MARGIN):
        return False
    gain = (rival.accuracy or 0) - (setting.accuracy or 0)
    if gain < 0:
        return False
    # standard error of a difference of means: sqrt(s_1^2 / n_1 + s_2^2 / n_2)
    error = math.sqrt(_mean_variance(rival) + _mean_variance(setting))
    return gain > MARGIN * error or rival.epsilon < setting.epsilon * (1 - EPSILON_MARGIN)


def _mean_variance(setting: Setting) -> float:
    """Variance of the mean accuracy over seeds; 0 of one seed, whose error is not known."""
    count = len(setting.accuracies)
    if count < 2:
        return 0.0
    return variance(setting.accuracies) / count
