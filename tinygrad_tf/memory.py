"""Freed memory stays with the process, so that the next training step finds it there.

glibc gives the top of the heap back to the system as soon as a few megabytes are free, which is after every step, and
gives each large array a mapping of its own, which goes back when the array is freed. The next step then waits for page
faults and for the zeroing of pages: 29 ms of 90 in a small GPT's step, 0.8 s of 4.5 in one of width 384.
"""

from __future__ import annotations

import ctypes
import os
import sys
from typing import Any

M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4  # malloc.h
NEVER, NONE = -1, 0


def keep_freed_memory() -> None:
    """Tell glibc's malloc so; elsewhere, or where the user has set MALLOC_... variables, nothing is changed."""
    mallopt = None if any(name.startswith("MALLOC_") for name in os.environ) else _of_glibc("mallopt")
    if mallopt is not None:
        mallopt(M_MMAP_MAX, NONE)
        mallopt(M_TRIM_THRESHOLD, NEVER)


def give_back_freed_memory() -> None:
    """Give all of it back now, since what comes next will lie elsewhere."""
    trim = _of_glibc("malloc_trim")
    if trim is not None:
        trim(0)


def _of_glibc(name: str) -> Any:
    """A function of glibc; None with another C library."""
    try:
        return getattr(ctypes.CDLL(None), name) if sys.platform == "linux" else None
    except (OSError, AttributeError):
        return None
