"""Workers of these tests are forked from a server, as those of every command are: each that starts
by itself imports torch for two CPU seconds, and here many are killed. Some start by themselves in
tests/auditing/test_shadow_models and, at night, tests/runtime/test_startup."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from multiprocessing.context import BaseContext

import pytest

from privdd.runtime import process_pool
from privdd.runtime.startup import FORKSERVER


def server_context() -> BaseContext:
    """The server starts with its first worker."""
    multiprocessing.set_forkserver_preload(["tests.runtime.crash_tasks", process_pool.__name__])
    return multiprocessing.get_context(FORKSERVER)


@pytest.fixture(scope="session", autouse=True)
def forked_workers() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(process_pool, "worker_context", server_context)
        yield
