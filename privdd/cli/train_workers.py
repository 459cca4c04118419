"""What the worker processes of a training need; as ``privdd.cli.audit_workers``."""

from __future__ import annotations

from privdd.runtime.startup import loading_modules

with loading_modules():
    import torch._dynamo  # noqa: F401

    import privdd.federated.simulation  # noqa: F401
