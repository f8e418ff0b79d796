"""What kernels need of the host and what needs no numba: how many threads, memory, and where arrays lie."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable

import numpy as np

from ..modes import _recorder


def _cores() -> int:
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on this platform
        return os.cpu_count() or 1


_num_threads = min(int(os.environ.get("NUMBA_NUM_THREADS") or _cores()), _cores())


def set_num_threads(n: int) -> None:
    """Let kernels use `n` threads (default: one per core).

    Results do not depend on it. Raises ValueError unless n is an integer of at least 1. More threads than numba started
    in this process (its NUMBA_NUM_THREADS) are allowed but do not help.

    >>> import tinygrad_tf as tg
    >>> before = tg.get_num_threads()
    >>> tg.set_num_threads(1)
    >>> tg.get_num_threads()
    1
    >>> tg.set_num_threads(before)
    """
    global _num_threads
    if isinstance(n, bool) or not isinstance(n, (int, np.integer)) or n < 1:
        raise ValueError(f"set_num_threads: expected an integer of at least 1, got {n!r}")
    _num_threads = int(n)


def get_num_threads() -> int:
    """The number of threads that kernels use (see `set_num_threads`)."""
    return _num_threads


def tasks(work: int, grain: int = 32768) -> int:
    """How many parallel tasks to cut `work` element-operations into: one per thread, but none smaller than `grain`."""
    return max(1, min(_num_threads, work // grain))


def native(dtype: np.dtype) -> np.dtype:
    """The dtype in this machine's byte order: itself where it is so, since comparing dtypes is quick if they are one object."""
    return dtype if dtype.isnative else dtype.newbyteorder("=")


def write(function: Callable[..., object], *args: object, **kwargs: object) -> None:
    """Call what writes into arrays among its arguments; a capture's replays do it again."""
    recorder = _recorder.get()
    if recorder is None:
        function(*args, **kwargs)
    else:
        recorder.apply(function, *args, **kwargs)


def empty(shape: tuple[int, ...] | int, dtype: np.dtype | type) -> np.ndarray:
    """np.empty, for whatever a kernel writes: a capture wants it at a place that stays."""
    recorder = _recorder.get()
    return np.empty(shape, dtype) if recorder is None else recorder.empty(shape, dtype)


def full(shape: tuple[int, ...] | int, value: float, dtype: np.dtype | type) -> np.ndarray:
    """np.full."""
    out = empty(shape, dtype)
    write(np.ndarray.fill, out, value)
    return out


def copied(a: np.ndarray, dtype: np.dtype | type) -> np.ndarray:
    """A C-contiguous copy."""
    out = empty(a.shape, dtype)
    write(np.copyto, out, a)
    return out


def contiguous(a: np.ndarray, dtype: np.dtype | type | None = None) -> np.ndarray:
    """`a` as a C-contiguous, writable, aligned array of the given dtype (default: its own): copied only if it must be.

    Every kernel takes its arguments through this, so each has one compiled signature per dtype.
    """
    if a.flags.carray and (dtype is None or a.dtype == dtype) and a.dtype.isnative:
        return a
    return copied(a, native(np.dtype(dtype or a.dtype)))


def address(a: np.ndarray) -> int:
    """Where the first element of `a` lies in memory."""
    return _word(id(a) + _DATA).value  # ten times as fast as a.ctypes.data


_word = ctypes.c_size_t.from_address
_DATA = object.__basicsize__  # in numpy's struct of an array, the data pointer is what follows Python's header
_probe = np.empty(3)[1:]
assert address(_probe) == _probe.ctypes.data, "numpy's arrays have another layout than they had up to version 2"
