"""Components of other libraries as callables on arrays, for ``privdd.check``."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

COMPONENT_ADAPTERS = {  # class -> the adapter that makes it callable
    "LocalDpMod": "flower_components:adapt_local_dp",
    "DifferentialPrivacyServerSideFixedClipping": "flower_components:adapt_server_side",
    "DifferentialPrivacyClientSideFixedClipping": "flower_components:adapt_client_side_fixed",
    "DifferentialPrivacyServerSideAdaptiveClipping": "flower_components:adapt_server_side",
    "DifferentialPrivacyClientSideAdaptiveClipping": "flower_components:adapt_client_side_adaptive",
    "DPOptimizer": "library_components:adapt_dp_optimizer",
    "DPPerLayerOptimizer": "library_components:adapt_per_layer_optimizer",
    "AdaClipDPOptimizer": "library_components:adapt_adaclip_optimizer",
    "UniformWithReplacementSampler": "library_components:adapt_poisson_sampler",
    "PrivacyEngine": "library_components:adapt_privacy_engine",
    "clipped_fun": "library_components:adapt_clipped_sum",
    "GaussianMechanism": "library_components:adapt_gaussian_mechanism",
    "LaplaceMechanism": "library_components:adapt_laplace_mechanism",
    "SVTPrivacy": "library_components:adapt_sparse_vector",
}
COMPONENT_LIBRARIES = ("flwr", "opacus", "jax_privacy", "pfl", "nvflare")


def adapt_component(
    target: Any, args: Mapping[str, Any], stated: Mapping[str, Any]
) -> tuple[Any, dict[str, Any]] | None:
    """A class without arguments whose instances take arrays, and what it states by itself; None for what is not known.

    args: of the component, as on the command line; stated: as given there. Raises BadConfig for bad arguments.
    """
    name, module = getattr(target, "__name__", ""), str(getattr(target, "__module__", ""))
    if name not in COMPONENT_ADAPTERS or module.split(".")[0] not in COMPONENT_LIBRARIES:
        return None
    file, _, function = COMPONENT_ADAPTERS[name].partition(":")
    return getattr(importlib.import_module(f"privdd.integrations.{file}"), function)(target, args, stated)
