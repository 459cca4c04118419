"""All planted faults by name."""

from __future__ import annotations

from collections.abc import Mapping

from privdd.core.errors import BadConfig
from privdd.planted.accounting_faults import ACCOUNTING_FAULTS
from privdd.planted.clipping_faults import CLIPPING_FAULTS
from privdd.planted.fault import Fault
from privdd.planted.noise_faults import NOISE_FAULTS
from privdd.planted.sampling_faults import SAMPLING_FAULTS
from privdd.planted.wire_faults import WIRE_FAULTS

GROUPS: Mapping[str, tuple[Fault, ...]] = {
    "noise": NOISE_FAULTS,
    "sampling": SAMPLING_FAULTS,
    "clipping and contributions": CLIPPING_FAULTS,
    "accounting": ACCOUNTING_FAULTS,
    "what travels": WIRE_FAULTS,
}
FAULTS: Mapping[str, Fault] = {fault.key: fault for group in GROUPS.values() for fault in group}


def chosen_faults(names: str) -> list[Fault]:
    """Of "all", "none", or of names with commas between them. Raises BadConfig for a name that is not there."""
    wanted = list(FAULTS) if names == "all" else [] if names == "none" else names.split(",")
    unknown = sorted(set(wanted) - set(FAULTS))
    if unknown:
        raise BadConfig(f"fault={','.join(unknown)}: allowed are all, none, {', '.join(FAULTS)}")
    return [FAULTS[name] for name in wanted]
