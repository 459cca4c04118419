"""NVFlare's privacy filters: an update in, what leaves the client out."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import numpy as np

SELECTION, RELEASE = 1.0, 1.0  # epsilon of the two phases, where none is given


def sparse_vector(target: Any, args: Mapping[str, Any], stated: Mapping[str, Any]) -> tuple[type, dict[str, Any]]:
    """``SVTPrivacy``: which numbers are sent is chosen by noised comparisons, and each of them gets Laplace noise.

    args: of the filter. It states for a call, by its own accountant, epsilon + epsilon_release at delta 0.
    """
    from nvflare.apis.dxo import DXO, DataKind
    from nvflare.apis.fl_context import FLContext
    from nvflare.apis.shareable import Shareable

    logging.getLogger("nvflare").setLevel(logging.CRITICAL)
    logging.getLogger(target.__name__).setLevel(logging.CRITICAL)
    given = {"epsilon": SELECTION, "epsilon_release": RELEASE, **args}
    total = float(given["epsilon"]) + float(given["epsilon_release"])
    context = FLContext()

    class Filtered:
        def __init__(self) -> None:
            self.filter = target(**given)
            self.filter.logger.setLevel(logging.CRITICAL)

        def __call__(self, update: list[np.ndarray]) -> list[np.ndarray]:
            sent = DXO(DataKind.WEIGHT_DIFF, {str(at): part for at, part in enumerate(update)})
            filtered = self.filter.process_dxo(sent, Shareable(), context)
            return [filtered.data[str(at)] for at in range(len(update))]

    return Filtered, {"epsilon": total, "delta": 0.0, "kind": "update", "relation": "zero_out"}
