"""A command that is run by another program, in its own process: what a command changes for good is
put back."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from unittest import mock

import hydra._internal.hydra as hydra_start
import hydra.core.utils as hydra_job

from privdd.cli.main import main
from privdd.cli.run import run_audit


def run_audit_in_process(argv: Sequence[str]) -> int:
    """``python -m privdd.audit`` with these arguments -> its exit status. Logging of this process
    stays as it is: Hydra would close its handlers."""
    with _replaced_arguments(["privdd-audit", *argv]), _unchanged_logging():
        return main("audit", run_audit)


@contextmanager
def _replaced_arguments(argv: Sequence[str]) -> Iterator[None]:
    before = sys.argv
    sys.argv = list(argv)
    try:
        yield
    finally:
        sys.argv = before


@contextmanager
def _unchanged_logging() -> Iterator[None]:
    ignore: Callable[..., None] = lambda *given: None  # noqa: E731
    with (
        mock.patch.object(hydra_start, "configure_log", ignore),
        mock.patch.object(hydra_job, "configure_log", ignore),
    ):
        yield
