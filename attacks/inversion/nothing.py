"""A surface on which the client sent not one row (all its classes were dropped): a finding, not a crash."""

from __future__ import annotations

from attacks.types import Attack, Family, Finding, View

ROWS = ("x", "mean")  # where captures keep images, features, representations, prototypes


def nothing_sent(attack: Attack, view: View) -> Finding | None:
    """The finding of an attack on rows where no capture holds any, else None.

    Membership attacks are never excused: that nothing was sent may itself tell members from others.
    """
    rows = [len(capture.value[name]) for capture in view.captures for name in ROWS if name in capture.value]
    if attack.family == Family.MEMBERSHIP or not rows or any(rows):
        return None
    note = "nothing to attack: the client sent an empty set"
    return Finding(view.surface, attack.name, attack.family, view.adversary, {"n": 0, "note": note})
