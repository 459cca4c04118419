"""pfl-research's local mechanisms: an update in, what leaves the user out."""

from __future__ import annotations

import copy
import functools
from collections.abc import Mapping
from typing import Any

import numpy as np

from privdd.core.errors import BadConfig

DELTA = 1e-5


def gaussian(target: Any, args: Mapping[str, Any], stated: Mapping[str, Any]) -> tuple[type, dict[str, Any]]:
    """``GaussianMechanism.construct_single_iteration(clipping_bound, epsilon, delta)``; it keeps what these say.

    args: clipping_bound (default 1), epsilon (needed), delta; with_metrics: the metrics that come with the update leave
    the user too.
    """
    delta = float(args.get("delta", stated.get("delta", DELTA)))
    bound, epsilon = float(args.get("clipping_bound", 1.0)), _epsilon(args)
    said = {"epsilon": epsilon, "delta": delta, "kind": "update", "relation": "zero_out"}
    return _as_class(lambda: target.construct_single_iteration(bound, epsilon, delta), args), said


def laplace(target: Any, args: Mapping[str, Any], stated: Mapping[str, Any]) -> tuple[type, dict[str, Any]]:
    """``LaplaceMechanism(clipping_bound, epsilon)``: clipped in L1, pure epsilon."""
    bound, epsilon = float(args.get("clipping_bound", 1.0)), _epsilon(args)
    return _as_class(lambda: target(bound, epsilon), args), {
        "epsilon": epsilon, "delta": 0.0, "kind": "update", "relation": "zero_out",
    }  # fmt: skip


def _epsilon(args: Mapping[str, Any]) -> float:
    if "epsilon" not in args:
        raise BadConfig("args.epsilon= is needed")
    return float(args["epsilon"])


def _as_class(make: Any, args: Mapping[str, Any]) -> type:
    """The mechanism with pfl's numpy operations, a copy of its own for each transcript: making one looks for its noise
    scale, which takes longer than thirty calls."""
    from pfl.internal.ops import numpy_ops
    from pfl.internal.ops.selector import set_framework_module
    from pfl.stats import MappedVectorStatistics

    set_framework_module(numpy_ops)
    told, first = bool(args.get("with_metrics", False)), functools.cache(make)

    class Local:
        def __init__(self) -> None:
            self.mechanism = copy.deepcopy(first())

        def __call__(self, update: list[np.ndarray]) -> list[np.ndarray]:
            given = MappedVectorStatistics({str(at): part for at, part in enumerate(update)}, weight=1)
            released, metrics = self.mechanism.privatize(given)
            sent = [released[str(at)] for at in range(len(update))]
            return [*sent, np.array([value.overall_value for _, value in metrics])] if told else sent

    return Local
