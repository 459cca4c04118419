"""All planted faults: those with a name of their own, and points of a grid that a seed draws.

A point of the grid is called what:kind/round/call/client/numbers (``FaultScope``), so that one can be planted again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from privdd.core.rng import Keys
from privdd.core.validation import BadConfig
from privdd.selftest_faults.client_faults import (
    DATA_KINDS,
    DECISION_FAULTS,
    FORM_KINDS,
    MEMORY_KINDS,
    WIRE_FAULTS,
    WIRE_KINDS,
)
from privdd.selftest_faults.fault import SCOPE_AXES, Fault, FaultKind, FaultProfile, FaultScope
from privdd.selftest_faults.mechanism_faults import ACCOUNTING_FAULTS, CLIP_KINDS, CLIPPING_FAULTS, CONTRIBUTION_KINDS
from privdd.selftest_faults.noise_faults import NOISE_FAULTS, NOISE_KINDS, SAMPLE_KINDS, SAMPLING_FAULTS

FAULT_GROUPS: Mapping[str, tuple[Fault, ...]] = {
    "noise": NOISE_FAULTS,
    "sampling": SAMPLING_FAULTS,
    "clipping and contributions": CLIPPING_FAULTS,
    "accounting": ACCOUNTING_FAULTS,
    "what travels": WIRE_FAULTS,
    "decisions": DECISION_FAULTS,
}
NAMED_FAULTS: Mapping[str, Fault] = {fault.key: fault for group in FAULT_GROUPS.values() for fault in group}
FAULT_GRID: Mapping[str, Mapping[str, FaultKind]] = {
    "noise": NOISE_KINDS,
    "sample": SAMPLE_KINDS,
    "clip": CLIP_KINDS,
    "contribution": CONTRIBUTION_KINDS,
    "memory": MEMORY_KINDS,
    "wire": WIRE_KINDS,
    "data": DATA_KINDS,
    "form": FORM_KINDS,
}
DRAWN_NAME = "drawn"


def fault_at_point(key: str) -> Fault | None:
    """The fault that a point of the grid is; None for a name of another form, or of a point that is not there."""
    what, _, rest = key.partition(":")
    name, *place = rest.split("/")
    kind = FAULT_GRID.get(what, {}).get(name)
    if kind is None or len(place) != 4:
        return None
    if any(value not in allowed for value, allowed in zip(place, _allowed_values(kind))):
        return None
    return kind.fault_at(key, FaultScope(*place))


def _allowed_values(kind: FaultKind) -> list[tuple[str, ...]]:
    """The values that each part of a kind's place can have."""
    rounds = next((SCOPE_AXES[axis] for axis in ("start", "round") if axis in kind.axes), SCOPE_AXES["round"][:1])
    return [
        rounds,
        *(SCOPE_AXES[axis] if axis in kind.axes else SCOPE_AXES[axis][:1] for axis in ("call", "client", "numbers")),
    ]


def draw_faults(seed: int, count: int, profiles: Sequence[FaultProfile]) -> list[tuple[FaultProfile, Fault]]:
    """Different points of the grid, each in a profile that has the part: what, kind, place and profile, one after the other."""
    rng, found = Keys(seed).fold("selftest").numpy(), dict[str, tuple[FaultProfile, Fault]]()
    axes = np.array([max(len(kind.axes) for kind in kinds.values()) for kinds in FAULT_GRID.values()])
    for _ in range(100 * count if profiles else 0):
        if len(found) == count:
            break
        what = str(rng.choice(list(FAULT_GRID), p=axes / axes.sum()))  # the more, the more ways there are
        name = str(rng.choice(list(FAULT_GRID[what])))
        place = [str(rng.choice(allowed)) for allowed in _allowed_values(FAULT_GRID[what][name])]
        fault = fault_at_point(f"{what}:{name}/{'/'.join(place)}")
        fitting = [p for p in profiles if fault and not fault.not_applicable(p)]
        if fault and fitting:
            found.setdefault(fault.key, (fitting[int(rng.integers(len(fitting)))], fault))
    return list(found.values())


def select_faults(names: str) -> list[Fault]:
    """The faults of "all" (that have a name), "none" or "drawn", or of names and grid points separated by commas. Raises BadConfig
    for one that is not there."""
    wanted = list(NAMED_FAULTS) if names == "all" else [] if names in ("none", DRAWN_NAME) else names.split(",")
    found = {name: NAMED_FAULTS.get(name) or fault_at_point(name) for name in wanted}
    unknown = sorted(name for name, fault in found.items() if fault is None)
    if unknown:
        raise BadConfig(f"fault={','.join(unknown)}: allowed are all, none, {DRAWN_NAME}, {', '.join(NAMED_FAULTS)}")
    return [fault for fault in found.values() if fault is not None]
