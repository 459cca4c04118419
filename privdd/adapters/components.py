"""Components of other libraries as callables on arrays, for ``privdd.check``."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

PLACES = {  # class -> the adapter that makes it callable
    "LocalDpMod": "flower_components:local_dp",
    "DifferentialPrivacyServerSideFixedClipping": "flower_components:server_side",
    "DifferentialPrivacyClientSideFixedClipping": "flower_components:client_side_fixed",
    "DifferentialPrivacyServerSideAdaptiveClipping": "flower_components:server_side",
    "DifferentialPrivacyClientSideAdaptiveClipping": "flower_components:client_side_adaptive",
    "DPOptimizer": "opacus_components:optimizer",
    "DPPerLayerOptimizer": "opacus_components:per_layer",
    "AdaClipDPOptimizer": "opacus_components:adaptive",
    "UniformWithReplacementSampler": "opacus_components:poisson_step",
    "PrivacyEngine": "opacus_components:engine_epoch",
    "clipped_fun": "jax_privacy_components:clipped_sum",
    "GaussianMechanism": "pfl_components:gaussian",
    "LaplaceMechanism": "pfl_components:laplace",
    "SVTPrivacy": "nvflare_components:sparse_vector",
}
LIBRARIES = ("flwr", "opacus", "jax_privacy", "pfl", "nvflare")


def adapted(target: Any, args: Mapping[str, Any], stated: Mapping[str, Any]) -> tuple[Any, dict[str, Any]] | None:
    """A class without arguments whose instances take arrays, and what it states by itself; None for what is not known.

    args: of the component, as on the command line; stated: as given there. Raises BadConfig for bad arguments.
    """
    name, module = getattr(target, "__name__", ""), str(getattr(target, "__module__", ""))
    if name not in PLACES or module.split(".")[0] not in LIBRARIES:
        return None
    file, _, function = PLACES[name].partition(":")
    return getattr(importlib.import_module(f"privdd.adapters.{file}"), function)(target, args, stated)
