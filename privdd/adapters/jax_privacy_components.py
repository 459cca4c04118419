"""jax-privacy's clipped aggregation: rows are what single records give, what is released is their clipped sum with noise."""

from __future__ import annotations

import functools
import secrets
from collections.abc import Callable, Mapping
from typing import Any

import dp_accounting as dpa
import numpy as np

from privdd.core.errors import BadConfig
from privdd.privacy.accounting import epsilon

DELTA = 1e-5


def clipped_sum(target: Any, args: Mapping[str, Any], stated: Mapping[str, Any]) -> tuple[type, dict[str, Any]]:
    """``clipped_fun`` of the rows themselves, then ``matrix_factorization_privatizer`` with independent noise.

    args: noise_multiplier (noise over the sensitivity that ``clipped_fun`` states for a row more or less), and arguments
    of ``clipped_fun``. Raises BadConfig where the multiplier is missing.
    """
    if "noise_multiplier" not in args:
        raise BadConfig("args.noise_multiplier= is needed")
    z, delta = float(args["noise_multiplier"]), float(stated.get("delta", DELTA))
    given = {"l2_clip_norm": 1.0, "keep_batch_dim": False, **{k: v for k, v in args.items() if k != "noise_multiplier"}}
    said = {
        "epsilon": epsilon(dpa.GaussianDpEvent(z), delta),
        "delta": delta,
        "kind": "records",
        "relation": "add_remove",
    }

    release = functools.cache(lambda: _release(target, given, z))  # compiled once: it keeps nothing between calls

    class Rows:
        def __call__(self, x: np.ndarray) -> np.ndarray:
            return release()(x)

    return Rows, {**said, "noise_multiplier": z}


def _release(target: Any, given: Mapping[str, Any], z: float) -> Callable[[np.ndarray], np.ndarray]:
    """One compiled function, with a key of its own for each call from the system's randomness."""
    import jax
    from jax_privacy.noise_addition import matrix_factorization_privatizer

    clipped = target(lambda row: row, **given)
    relation = dpa.NeighboringRelation.ADD_OR_REMOVE_ONE
    std = z * float(clipped.sensitivity(relation))
    one = np.eye(1)

    def noised(x: Any, key: Any) -> Any:
        privatizer = matrix_factorization_privatizer(one, stddev=std, prng_key=key)
        total = clipped(x)
        return privatizer.update(total, privatizer.init(total))[0]

    compiled = jax.jit(noised)
    return lambda x: np.asarray(compiled(x.astype(np.float32), jax.random.key(secrets.randbits(32))))
