"""What a command may take from the machine that it runs on.

Pretrained weights, data sets and browsers are searched for in the usual places, so a result may
depend on what happens to be installed. ``PRIVDD_BARE=1`` hides everything that is searched for;
what the user names (``data.root``, ``PRIVDD_DATA``, ``PRIVDD_BROWSER``, ``ATTACKS_LPIPS_ALEXNET``)
still counts."""

from __future__ import annotations

import os

BARE_VARIABLE = "PRIVDD_BARE"
MEANINGS = {"": False, "0": False, "1": True}


def is_bare() -> bool:
    """Whether the machine counts as bare. Raises ValueError for a value of ``PRIVDD_BARE`` other
    than 0 and 1."""
    value = os.environ.get(BARE_VARIABLE, "")
    if value not in MEANINGS:
        raise ValueError(f"{BARE_VARIABLE}={value}: allowed are 0 and 1")
    return MEANINGS[value]
