"""What a command sets up before torch is imported: the allocator, how modules are loaded, and a
process that workers are forked from.

By default glibc returns freed memory to the kernel, so each training step has its activations'
pages zeroed again; kept, small ConvNets and distribution matching take about 35 % less time, at the
same peak memory. A worker takes some seconds to import torch; the fork server does so while the
main process still reads the settings. It serves this project's own commands only (a forked worker
imports the program's main file once more), and only without a GPU, which a forked process cannot
use."""

from __future__ import annotations

import ctypes
import functools
import gc
import multiprocessing
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from multiprocessing import forkserver
from multiprocessing.context import BaseContext

# M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_THRESHOLD of <malloc.h>
TRIM = -1
TOP_PAD = -2
MAP = -3
MIB = 2**20
# 32 MiB is the most that glibc takes for MAP
ALLOCATOR_OPTIONS = {
    MAP: 32 * MIB,
    TRIM: 512 * MIB,
    TOP_PAD: 16 * MIB,
}
FORKSERVER = "forkserver"
# command -> the module that loads what its worker processes need
WORKER_MODULES = {
    "audit": ("privdd.cli.audit_workers",),
    "train": ("privdd.cli.train_workers",),
}
# of libraries beside torch, whose threads are set task by task
SINGLE_THREADED = {
    name: "1" for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
}


@functools.cache
def keep_freed_memory() -> bool:
    """Reuse blocks below 32 MiB and keep up to 512 MiB of free memory -> whether the allocator
    accepted.

    Called once per process; changes no result. Does nothing and returns False if the C library is
    not glibc."""
    try:
        libc = ctypes.CDLL(None)
        libc.gnu_get_libc_version  # noqa: B018
    except (OSError, TypeError, AttributeError):
        return False
    return all([libc.mallopt(option, value) == 1 for option, value in ALLOCATOR_OPTIONS.items()])


@contextmanager
def loading_modules() -> Iterator[None]:
    """Within, no garbage is collected; what the first loading of torch makes stands for good.

    Modules make some million objects that live as long as the process. A collection passes over all
    of them and finds nothing, which is a fifth of the time that they take to load.
    """
    was_enabled = gc.isenabled()
    is_first = "torch" not in sys.modules
    gc.disable()
    try:
        yield
        if is_first:  # later ones would freeze garbage of what ran before
            gc.freeze()
    finally:
        if was_enabled:
            gc.enable()


_preloaded_modules: list[str] = []


def can_fork(device: str) -> bool:
    """Whether this program's workers can be forked; not those of a worker. device: cpu or cuda."""
    is_worker = multiprocessing.parent_process() is not None
    return sys.platform == "linux" and device == "cpu" and _is_privdd_command() and not is_worker


def starts_beforehand(preset: str) -> bool:
    """Whether the fork server starts before ``engine=auto`` is decided, so that nobody waits for
    it. At smoke sizes the work of a run is shorter than this start."""
    return preset != "smoke"


def usable_cores() -> int:
    """Cores for this process: all that the machine, its affinity, its container and
    LOKY_MAX_CPU_COUNT allow; in a worker process one, because its siblings have the others."""
    if multiprocessing.parent_process() is not None:
        return 1
    from joblib.externals.loky import cpu_count

    return int(cpu_count())


def start_forkserver(modules: Sequence[str], device: str) -> bool:
    """Begin to import ``modules`` in a process beside this one -> whether workers will be forked
    from it."""
    if not can_fork(device):
        return False
    if not _preloaded_modules:
        multiprocessing.set_forkserver_preload([*modules])
        try:
            with environment_variables(SINGLE_THREADED):
                forkserver.ensure_running()
        except (
            OSError
        ):  # it listens in the temporary folder, whose path may be too long for a socket
            return False
        _preloaded_modules.extend(modules)
    return True


def worker_context() -> BaseContext | None:
    """The context that starts workers: forks of the fork server if it was started, else None (each
    from scratch)."""
    if _preloaded_modules:
        return multiprocessing.get_context(FORKSERVER)
    return None


def wait_for_parent() -> None:
    """In a forked worker: wait until the process that asked for it has ended; in any other, return
    at once."""
    parent = multiprocessing.parent_process()
    if parent is not None and multiprocessing.get_start_method(allow_none=True) == FORKSERVER:
        parent.join()


def _is_privdd_command() -> bool:
    """Whether the program is ``python -m privdd.something``: importing its main file again does
    nothing."""
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    return spec is not None and spec.name.startswith("privdd.")


@contextmanager
def environment_variables(values: Mapping[str, str]) -> Iterator[None]:
    """Set these variables, and restore them on the way out."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name)
            if value is not None:
                os.environ[name] = value
