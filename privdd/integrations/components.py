"""Components of other libraries as callables on arrays, for ``privdd.check``: each adapter calls the component and records.

An adapter repeats no part of what it judges: no clipping, no noise, no scale (tests/integrations/test_components.py reads them).
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

COMPONENT_ADAPTERS = {  # class or function -> the file and the function that make it callable, and what that calls
    "LocalDpMod": "flower_components:adapt_local_dp:ClientApp",
    "DifferentialPrivacyServerSideFixedClipping": "flower_components:adapt_server_side:start",
    "DifferentialPrivacyClientSideFixedClipping": "flower_components:adapt_client_side_fixed:start",
    "DifferentialPrivacyServerSideAdaptiveClipping": "flower_components:adapt_server_side:start",
    "DifferentialPrivacyClientSideAdaptiveClipping": "flower_components:adapt_client_side_adaptive:start",
    "PrivacyEngine": "opacus_components:adapt_privacy_engine:make_private",
    "PLDAccountant": "opacus_components:adapt_accountant:compose",
    "RdpAccountant": "opacus_components:adapt_accountant:compose",
    "BandMFExecutionPlanConfig": "library_components:adapt_execution_plan:clipped_grad",
    "clipped_fun": "library_components:adapt_clipped_sum:matrix_factorization_privatizer",
    "GaussianMechanism": "library_components:adapt_gaussian_mechanism:construct_single_iteration",
    "AdaptiveClippingGaussianMechanism": "library_components:adapt_adaptive_clipping:postprocess_server",
    "LaplaceMechanism": "library_components:adapt_laplace_mechanism:privatize",
    "SVTPrivacy": "library_components:adapt_update_filter:process",
    "PercentilePrivacy": "library_components:adapt_update_filter:process",
    "AddNoiseToMinMax": "library_components:adapt_statistics_cleanser:apply",
    "mean": "library_components:adapt_statistics_tool:target",
    "var": "library_components:adapt_statistics_tool:target",
    "median": "library_components:adapt_statistics_tool:target",
    "histogram": "library_components:adapt_statistics_tool:target",
    "make_laplace": "library_components:adapt_measurement:binary_search_chain",
    "BoundedSum": "library_components:adapt_aggregation:quick_result",
    "BoundedMean": "library_components:adapt_aggregation:quick_result",
    "Count": "library_components:adapt_aggregation:quick_result",
}
COMPONENT_LIBRARIES = (
    "flwr", "opacus", "jax_privacy", "pfl", "nvflare", "dp_accounting", "diffprivlib", "opendp", "pydp",
)  # fmt: skip


def adapt_component(
    target: Any, args: Mapping[str, Any], stated: Mapping[str, Any]
) -> tuple[Any, dict[str, Any]] | None:
    """A class without arguments whose instances take arrays, and what it states by itself; None for what is not known.

    args: of the component, as on the command line; stated: as given there. Raises BadConfig for bad arguments.
    """
    name, module = getattr(target, "__name__", ""), str(getattr(target, "__module__", ""))
    if name not in COMPONENT_ADAPTERS or module.split(".")[0] not in COMPONENT_LIBRARIES:
        return None
    file, function, _ = COMPONENT_ADAPTERS[name].split(":")
    return getattr(importlib.import_module(f"privdd.integrations.{file}"), function)(target, args, stated)
