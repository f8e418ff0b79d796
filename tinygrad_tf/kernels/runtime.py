"""How the kernels are compiled, launched, and spread over threads.

A `kernel` is a function of its task, (t, n_tasks, *arguments), called as `kernel(n_tasks, *arguments)`; the tasks run in
parallel. It is compiled with numba at its first call, never at import, once for each list of argument types:

- `device` functions are inlined into their callers; a `routine` is compiled once by itself and called by its symbol, so
  that a big piece of code is optimised once and not again inside each of its callers;
- one parallel loop, `_run`, serves all kernels: it calls a kernel's machine code by its address (numba takes longer to
  compile a `prange` than to compile most kernels);
- machine code is cached on disk (cache.py).

What a task computes depends on the problem and its cut alone, and no number depends on the cut, so results are the same,
bit for bit, on 1 to N threads. numba's own settings are left as they are: they belong to the user's process. Kernels
run one at a time, since a launch (launch.py) holds Python's lock: numba's workqueue layer (its last choice) aborts when
two Python threads enter it at once. `lock` is for what spans several launches, and for compiling. In a forked child of a
process whose threads were OpenMP's (which would kill the child), the tasks run one after another.
"""

from __future__ import annotations

import functools
import inspect
import os
import threading

import numba
import numpy as np
from numba import prange, types

from ..modes import _recorder
from .cache import cache_folder
from .compiling import compile_c, compile_task, device, name_of, routine
from .host import address, contiguous, copied, empty, full, get_num_threads, native, set_num_threads, tasks, write
from .launch import PLACE, call, entry, kind_of, note, plain, start

__all__ = [
    "Place", "address", "cache_folder", "contiguous", "copied", "device", "empty", "full", "get_num_threads", "kernel", "lock", "native",
    "replayer", "routine", "set_num_threads", "share", "tasks", "write",
]  # fmt: skip

lock = threading.RLock()
_serial = False  # True in a forked child that must not enter OpenMP


def _run(task, slots, n_tasks):
    for t in prange(n_tasks):
        call(task, slots, t, n_tasks)


def _run_serially(task, slots, n_tasks):
    for t in range(n_tasks):
        call(task, slots, t, n_tasks)


_runners: dict[bool, int] = {}


def _runner() -> int:
    """The address of the loop over tasks."""
    if _serial not in _runners:
        three = ((types.intp,) * 3, types.void)
        function = _run_serially if _serial else _run
        _runners[_serial] = compile_c(function, name_of(function), three, parallel=not _serial)
    return _runners[_serial]


class Place(int):
    """How a kernel annotates an argument that is an array for its caller, and for itself the array's address."""


class Kernel:
    """A function of its task, (t, n_tasks, *arguments): compiled at its first call, run for every t at once.

    Each array among the arguments has the same number of axes in every call; of those that the function annotates as
    `Place`, it gets the address, whatever their layout.
    """

    def __init__(self, function) -> None:
        self.__name__ = function.__name__
        self.__doc__ = function.__doc__
        self.__wrapped__ = function
        parameters = list(inspect.signature(function).parameters.values())
        names = [getattr(p.annotation, "__name__", p.annotation) for p in parameters[2:]]  # a string, or what it names
        self._places = [name.rpartition(".")[2] == Place.__name__ for name in names]
        self.compiled: dict[tuple, tuple] = {}  # for each list of kinds of arguments, what launches it, and its address

    def __call__(self, n_tasks: int, *arguments) -> None:
        recorder = _recorder.get()
        if recorder is not None:
            arguments = recorder.plain(arguments)
        runner = _runners.get(_serial) or _runner()
        for launch, code in self.compiled.values():
            if launch(runner, code, n_tasks, *arguments):
                break
        else:
            launch, code, arguments = self._compile_for(arguments)
            if not launch(runner, code, n_tasks, *arguments):
                raise AssertionError(f"{self.__name__}: the arguments are not what they were found to be")
        if recorder is not None:
            recorder.launch(arguments, n_tasks, lambda fixed: note(launch, code, fixed))

    def _compile_for(self, arguments) -> tuple:
        """What launches this kernel with such arguments, its address, and the arguments in the form that it takes."""
        if len(arguments) != len(self._places):
            raise TypeError(f"kernel {self.__name__} takes {len(self._places)} arguments, got {len(arguments)}")
        arguments = [plain(a) for a in arguments]
        kinds = tuple([kind_of(a, place) for a, place in zip(arguments, self._places, strict=True)])
        with lock:
            if kinds not in self.compiled:
                types_ = tuple([types.intp if kind is PLACE else kind for kind in kinds])
                code = compile_task(self.__wrapped__, name_of(self.__wrapped__), types_)
                self.compiled = {**self.compiled, kinds: (entry(kinds), code)}
        return *self.compiled[kinds], arguments


def kernel(function):
    """Make a function of (t, n_tasks, *arguments) a kernel, see `Kernel`; arguments are numbers and `contiguous` arrays."""
    return Kernel(function)


@device
def share(t, n_tasks, n):
    """The part (first, end) of n things that is task t's."""
    return t * n // n_tasks, (t + 1) * n // n_tasks


@kernel
def _replay(t, n_tasks, runner, notes, counts):
    for i in range(len(notes)):
        start(runner, notes[i], counts[i])


def replayer(notes: list, counts: list[int]):
    """A function that runs noted launches, in so many tasks each, one after the other, with no Python between them."""
    places = np.array([address(one) for one in notes], np.int64)
    return functools.partial(_replay, 1, _runner(), places, np.array(counts, np.int64))


def _after_fork_in_child() -> None:
    global _serial
    lock.release()
    try:
        _serial = numba.threading_layer() != "workqueue"
    except ValueError:  # no threads were started yet
        pass


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=lock.acquire, after_in_parent=lock.release, after_in_child=_after_fork_in_child)
