"""What the worker processes of an audit need, for the process that they are forked from.

Importing this module loads it all, and its objects are left out of every later collection, so that
workers share their pages for good.
"""

from __future__ import annotations

from privdd.runtime.startup import loading_modules

with loading_modules():
    # torch imports torch._dynamo at its first vmap
    import torch._dynamo  # noqa: F401

    import privdd.auditing.pipeline  # noqa: F401
