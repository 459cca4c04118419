"""The ledger in a few lines: releases of one kind put together, their mechanism in words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from privdd.reporting.words import number

PLAIN = {"none": "computed from protected values only", "non_private": "no protection"}
EXPOSED = "computed from what was sent without protection"
PUBLIC = "reads no record"
VISIBLE = {"server": "the server", "peer": "the other clients", "public": "anyone", "analyst": "the analyst"}


@dataclass
class Group:
    """Releases that share a name, a surface and a mechanism."""

    name: str
    surface: str
    mechanism: str
    sensitivity: str
    visible_to: str
    clients: set[Any] = field(default_factory=set)
    rounds: set[Any] = field(default_factory=set)
    releases: int = 0
    reasons: set[str] = field(default_factory=set)


def event_words(event: Any, depth: int = 0) -> str:
    """A ledger event as a phrase; an event of an unknown type is named as such."""
    if not isinstance(event, Mapping) or depth > 8:
        return "unknown"
    kind = event.get("type")
    if kind in ("gaussian", "laplace"):
        return f"{kind.title()} noise, multiplier {_number(event.get('noise_multiplier'))}"
    if kind == "poisson":
        chance = _number(event.get("probability"))
        return f"{event_words(event.get('event'), depth + 1)}, records drawn with probability {chance}"
    if kind == "repeat":
        return f"{event_words(event.get('event'), depth + 1)}, {event.get('count')} times"
    if kind == "compose":
        parts = event.get("events")
        parts = parts if isinstance(parts, list) else []
        more = f" and {len(parts) - 4} more" if len(parts) > 4 else ""
        return " + ".join(event_words(part, depth + 1) for part in parts[:4]) + more
    return PLAIN.get(str(kind), f"unknown ({kind})")


def _number(value: Any) -> str:
    return number(float(value)) if isinstance(value, int | float) else str(value)


def groups(ledger: Mapping[str, Any]) -> list[Group]:
    """Releases by name, surface and mechanism, in the ledger's order; what is not a release is passed over."""
    found: dict[tuple[str, ...], Group] = {}
    releases = ledger.get("releases")
    exposed: set[Any] = set()  # ids of releases that unprotected values went into
    for release in releases if isinstance(releases, list) else []:
        if isinstance(release, Mapping):
            _add(found, release, exposed)
    return list(found.values())


def _mechanism(release: Mapping[str, Any], exposed: set[Any]) -> str:
    """The event in words; a computed value is as protected as what it was computed from."""
    event, origin = release.get("event"), release.get("post_of")
    kind = event.get("type") if isinstance(event, Mapping) else None
    parents = origin if isinstance(origin, list) else []
    if kind == "non_private" or any(isinstance(p, int) and p in exposed for p in parents):
        exposed.add(release.get("id"))
    if kind != "none":
        return event_words(event)
    if not parents:
        return PUBLIC
    return EXPOSED if release.get("id") in exposed else event_words(event)


def _add(found: dict[tuple[str, ...], Group], release: Mapping[str, Any], exposed: set[Any]) -> None:
    sensitivity, seen = release.get("sensitivity"), release.get("visible_to")
    key = (
        str(release.get("name", "?")),
        str(release.get("surface", "?")),
        _mechanism(release, exposed),
        _sensitivity(sensitivity),
        ", ".join(VISIBLE.get(str(who), str(who)) for who in seen) if isinstance(seen, list) else "",
    )
    group = found.setdefault(key, Group(*key))
    group.clients.add(str(release.get("client")))
    group.rounds.add(str(release.get("round")))
    count = release.get("count", 1)
    group.releases += count if isinstance(count, int) else 1
    if release.get("nonprivate_reason"):
        group.reasons.add(str(release["nonprivate_reason"]))


def _sensitivity(value: Any) -> str:
    if not isinstance(value, Mapping) or value.get("value") is None:
        return ""
    why = f" ({value['why']})" if value.get("why") else ""
    return f"{_number(value['value'])}{why}"
