"""The ledger in a few lines: releases by name, surface and mechanism."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from privdd.reporting.wording import format_number

PLAIN = {"none": "computed from protected values only", "non_private": "no protection"}
LISTED_PARTS = 4  # of a composed event
EXPOSED = "computed from unprotected messages"
PUBLIC = "reads no record"
VISIBLE = {
    "server": "the server",
    "peer": "the other clients",
    "public": "anyone",
    "analyst": "the analyst",
}


@dataclass
class ReleaseGroup:
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


def describe_event(event: Any, depth: int = 0) -> str:
    """A ledger event as a phrase; an event of an unknown type is named as such."""
    if not isinstance(event, Mapping) or depth > 8:
        return "unknown"
    kind = event.get("type")
    if kind in ("gaussian", "laplace"):
        return f"{kind.title()} noise, multiplier {_number_text(event.get('noise_multiplier'))}"
    if kind == "poisson":
        chance = _number_text(event.get("probability"))
        return (
            f"{describe_event(event.get('event'), depth + 1)}, records drawn with probability "
            f"{chance}"
        )
    if kind == "repeat":
        return f"{describe_event(event.get('event'), depth + 1)}, {event.get('count')} times"
    if kind == "compose":
        parts = event.get("events")
        return _composition_text(parts if isinstance(parts, list) else [], depth)
    return PLAIN.get(str(kind), f"unknown ({kind})")


def _composition_text(parts: Sequence[Any], depth: int) -> str:
    text = " + ".join(describe_event(part, depth + 1) for part in parts[:LISTED_PARTS])
    if len(parts) > LISTED_PARTS:
        text += f" and {len(parts) - LISTED_PARTS} more"
    return text


def _number_text(value: Any) -> str:
    if isinstance(value, int | float):
        return format_number(float(value))
    return str(value)


def ledger_rows(ledger: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The releases in ledger.json; what is no release is passed over."""
    releases = ledger.get("releases")
    if not isinstance(releases, list):
        return []
    return [row for row in releases if isinstance(row, Mapping)]


def group_releases(ledger: Mapping[str, Any]) -> list[ReleaseGroup]:
    """Releases by name, surface and mechanism, in the ledger's order."""
    groups: dict[tuple[str, ...], ReleaseGroup] = {}
    exposed: set[Any] = set()  # ids of releases that unprotected values went into
    for release in ledger_rows(ledger):
        _add_release(groups, release, exposed)
    return list(groups.values())


def _mechanism_text(release: Mapping[str, Any], exposed: set[Any]) -> str:
    """The event in words; a computed value is as protected as what it was computed from."""
    event = release.get("event")
    origin = release.get("post_of")
    if isinstance(event, Mapping):
        kind = event.get("type")
    else:
        kind = None
    parents = origin if isinstance(origin, list) else []
    if kind == "non_private" or any(isinstance(p, int) and p in exposed for p in parents):
        exposed.add(release.get("id"))
    if kind != "none":
        return describe_event(event)
    if not parents:
        return PUBLIC
    if release.get("id") in exposed:
        return EXPOSED
    return describe_event(event)


def _add_release(
    groups: dict[tuple[str, ...], ReleaseGroup], release: Mapping[str, Any], exposed: set[Any]
) -> None:
    viewers = release.get("visible_to")
    parties: list[str] = []
    if isinstance(viewers, list):
        parties = [VISIBLE.get(str(viewer), str(viewer)) for viewer in viewers]
    key = (
        str(release.get("name", "?")),
        str(release.get("surface", "?")),
        _mechanism_text(release, exposed),
        _sensitivity_text(release.get("sensitivity")),
        ", ".join(parties),
    )
    group = groups.setdefault(key, ReleaseGroup(*key))
    group.clients.add(str(release.get("client")))
    group.rounds.add(str(release.get("round")))
    count = release.get("count", 1)
    group.releases += count if isinstance(count, int) else 1
    if release.get("nonprivate_reason"):
        group.reasons.add(str(release["nonprivate_reason"]))


def _sensitivity_text(value: Any) -> str:
    if not isinstance(value, Mapping) or value.get("value") is None:
        return ""
    why = f" ({value['why']})" if value.get("why") else ""
    return f"{_number_text(value['value'])}{why}"


def parties_seeing(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    """Everyone, in words, to whom one of these rows of the ledger is visible; the analyst is no
    real party."""
    parties: dict[str, None] = {}
    for row in rows:
        viewers = row.get("visible_to")
        for viewer in viewers if isinstance(viewers, list) else []:
            name = str(viewer)
            if viewer != "analyst":
                parties[VISIBLE.get(name, name)] = None
    return list(parties)
