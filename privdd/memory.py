"""The C library's allocator, told to keep what it has.

By default glibc takes every block above 128 KiB fresh from the kernel and gives it back when it is
freed, so each training step pays for the same pages again, zeroed one fault at a time.
"""

from __future__ import annotations

import ctypes
import functools

TRIM, TOP_PAD, MAP = -1, -2, -3  # M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_THRESHOLD of <malloc.h>
MIB = 2**20
KEPT = {MAP: 32 * MIB, TRIM: 512 * MIB, TOP_PAD: 16 * MIB}  # 32 MiB is the most that glibc takes for MAP


@functools.cache
def keep_memory() -> bool:
    """Blocks below 32 MiB are reused, up to 512 MiB of free memory kept -> whether the allocator obeyed.

    Once per process; changes no result. False, and nothing done, where the C library is not glibc.
    """
    try:
        libc = ctypes.CDLL(None)
        libc.gnu_get_libc_version  # noqa: B018  absent from every other C library
    except (OSError, TypeError, AttributeError):
        return False
    return all([libc.mallopt(option, value) == 1 for option, value in KEPT.items()])
