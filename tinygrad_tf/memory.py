"""Freed memory stays with the process, so that the next training step finds it there.

glibc gives the top of the heap back to the system as soon as a few megabytes are free, which is after every step; the
next step then waits for thousands of page faults (7,800 and 29 ms of 90 in a small GPT's step).
"""

from __future__ import annotations

import ctypes
import os
import sys

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # malloc.h
KEEP = 1 << 30  # bytes that may lie free at the top of the heap
MAPPED_FROM = 1 << 25  # bytes of an array that gets, and gives back, a mapping of its own: the most that glibc allows


def keep_freed_memory() -> None:
    """Tell glibc's malloc so; elsewhere, or where the user has set MALLOC_... variables, nothing is changed."""
    if sys.platform != "linux" or any(name.startswith("MALLOC_") for name in os.environ):
        return
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):  # another C library
        return
    mallopt(M_MMAP_THRESHOLD, MAPPED_FROM)
    mallopt(M_TRIM_THRESHOLD, KEEP)
