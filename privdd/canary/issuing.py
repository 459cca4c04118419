"""The canaries of an issue, for all its sites."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from privdd.canary.canary_records import crafted, mislabelled
from privdd.canary.sealed_files import Canary, records


def made(given: Mapping[str, Any], sites: Sequence[str], seed: int) -> Canary:
    """``count`` canaries for each site, different ones. given: shape and classes, or from. Raises BadConfig, DamagedRun."""
    total = given["count"] * len(sites)
    if "from" in given:
        x, y = records(Path(given["from"]))
        x, y = mislabelled(x, y, int(given.get("classes", int(y.max()) + 1)), total, seed)
    else:
        x, y = crafted(given["shape"], given["classes"], total, seed)
    order = np.random.default_rng(seed).permutation(total)  # no site gets the tail of the choice
    return Canary(x[order], y[order], np.repeat(list(sites), given["count"]))
