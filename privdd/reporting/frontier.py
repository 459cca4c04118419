"""Accuracy against epsilon on equal terms: who may be compared with whom, and which settings another one beats.

A setting is dominated where another, of the same data, clients, unit, relation and delta, has no larger accounted
epsilon and no smaller accuracy, one of them better, under a server that sees no less and with no public pre-training
that the setting itself does without.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import variance
from typing import Any

from privdd.reporting.grouping import Setting, middle

PRETRAINED = {"AlexNet": "ImageNet (AlexNet's weights)"}  # class of a public map -> what it was trained on
TRUST = {"local": "every upload", "secagg": "sums only"}  # what the server sees, from least to most trust
MARGIN = 2.0  # standard errors: accuracies within them are not told apart


@dataclass(frozen=True)
class Place:
    """A setting on the frontier. trust: what the server sees; public: data of others that it was built on, "" = none;
    certified: the middle of the seeds' lower bounds for all that is released; dominated: the label of one that beats it."""

    setting: Setting
    trust: str
    public: str
    certified: float | None
    dominated: str = ""

    @property
    def sees(self) -> str:
        return TRUST.get(self.trust, self.trust)

    @property
    def beaten_by(self) -> str:
        """As the page says it: one seed does not tell how far another one would be."""
        return self.dominated and self.dominated + (" (one seed)" if len(self.setting.accuracies) == 1 else "")


def trust_of(config: Mapping[str, Any]) -> str:
    """What the server saw; local in runs of earlier versions."""
    node = config.get("trust")
    return str(node.get("name", "local")) if isinstance(node, Mapping) else "local"


def public_data(config: Mapping[str, Any]) -> str:
    """The pre-training that the method's settings name, "" where there is none."""
    found = (PRETRAINED.get(name.rsplit(".", 1)[-1]) for name in _targets(config.get("algo")))
    return ", ".join(dict.fromkeys(one for one in found if one))


def _targets(node: Any) -> Iterator[str]:
    if isinstance(node, Mapping):
        if "_target_" in node:
            yield str(node["_target_"])
        for part in node.values():
            yield from _targets(part)


def places(made: Sequence[Setting]) -> list[Place]:
    """Every setting that trained a model, by rising epsilon and falling accuracy."""
    there = [_place(s) for s in made if s.accuracies]
    marked = [Place(p.setting, p.trust, p.public, p.certified, _better(p, there)) for p in there]
    return sorted(marked, key=lambda p: (p.setting.epsilon, -(p.setting.accuracy or 0.0), p.setting.label))


def _place(setting: Setting) -> Place:
    config = setting.runs[0].config
    certified = middle(run.findings.privacy.epsilon.certified for run in setting.runs)
    certified = setting.measured if certified is None else certified
    return Place(setting, trust_of(config), public_data(config), certified)


def _better(mine: Place, everyone: Sequence[Place]) -> str:
    """The label of the most accurate setting that dominates this one, "" where none does."""
    found = [other for other in everyone if other is not mine and _comparable(mine, other) and _beats(other, mine)]
    return max(found, key=lambda p: p.setting.accuracy or 0.0).setting.label if found else ""


def _comparable(mine: Place, other: Place) -> bool:
    """Whether ``other`` is on terms at least as strict: a server that sees as much, no more pre-training."""
    same = _terms(mine.setting) == _terms(other.setting)
    order = list(TRUST)
    known = mine.trust in order and other.trust in order
    return same and known and order.index(other.trust) <= order.index(mine.trust) and other.public in ("", mine.public)


def _terms(setting: Setting) -> tuple[Any, ...]:
    run, privacy = setting.runs[0], setting.runs[0].findings.privacy
    parts = (run.config.get("data"), run.config.get("partition"))
    return (run.findings.run.data, str(parts), privacy.delta, privacy.unit, privacy.relation)


def _beats(other: Place, mine: Place) -> bool:
    """No larger epsilon (to 1 %), no smaller accuracy, and more accurate by more than the seeds' spread, or cheaper."""
    a, b = other.setting, mine.setting
    if a.epsilon > b.epsilon * 1.01 or (a.accuracy or 0) < (b.accuracy or 0):
        return False
    spread = [(variance(s.accuracies) if len(s.accuracies) > 1 else 0.0) / len(s.accuracies) for s in (a, b)]
    gap = (a.accuracy or 0) - (b.accuracy or 0)
    return gap > MARGIN * sum(spread) ** 0.5 or a.epsilon < b.epsilon * 0.99
