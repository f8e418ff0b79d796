"""How the kernels are compiled, cached on disk, and spread over threads.

- `kernel` compiles a function of ndarrays with numba: at its first call, never at import; the machine code is cached on
  disk. `device` does the same for the small functions that kernels inline.
- The cache folder's name is a hash of all kernel sources, of the versions of numba and Python, and of the CPU, because
  numba's own cache does not notice an edit in a helper that another file inlines.
- A kernel gets the number of tasks as an argument (`tasks(...)`) and runs `prange` over them; what a task computes
  depends on the problem alone, so results are the same, bit for bit, on 1 to N threads. numba's own settings are left as
  they are: they belong to the user's process.
- Parallel kernels run one at a time, under a process-wide lock, since numba's workqueue layer (its last choice) aborts
  when two Python threads enter it at once. In a forked child of a process whose threads were OpenMP's (which would kill
  the child), kernels run serially.
"""

from __future__ import annotations

import hashlib
import os
import pathlib
import platform
import sys
import tempfile
import threading
import warnings

import numba
import numpy as np
from numba.core import caching

# No nnan, no ninf: -inf masks and NaN keep their meaning.
FASTMATH = {"contract", "reassoc", "arcp", "nsz"}

_lock = threading.RLock()
_num_threads = min(numba.config.NUMBA_NUM_THREADS, os.cpu_count() or 1)
_serial = False  # True in a forked child that must not enter OpenMP
_announced = False


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


def contiguous(a: np.ndarray, dtype: np.dtype | type | None = None) -> np.ndarray:
    """`a` as a C-contiguous, writable, aligned array of the given dtype (default: its own): copied only if it must be.

    Every kernel takes its arguments through this, so each has one compiled signature per dtype.
    """
    if a.flags.carray and (dtype is None or a.dtype == dtype) and a.dtype.isnative:
        return a
    return np.require(
        a, (dtype or a.dtype).newbyteorder("=") if isinstance(dtype or a.dtype, np.dtype) else dtype, ["C", "A", "W"]
    )


# -- the cache ---------------------------------------------------------------------------------------------------------


def _fingerprint() -> str:
    """A hash of everything that decides what machine code comes out."""
    digest = hashlib.sha256()
    for source in sorted(pathlib.Path(__file__).parent.glob("*.py")):
        digest.update(source.name.encode())
        digest.update(source.read_bytes())
    import llvmlite.binding as llvm

    facts = (
        numba.__version__,
        sys.version,
        platform.machine(),
        llvm.get_host_cpu_name(),
        llvm.get_host_cpu_features().flatten(),
    )
    digest.update(repr(facts).encode())
    return digest.hexdigest()[:16]


def _user_cache() -> pathlib.Path:
    """The folder in which this platform's programs keep what they can make again."""
    if "TINYGRAD_TF_CACHE_DIR" in os.environ:
        return pathlib.Path(os.environ["TINYGRAD_TF_CACHE_DIR"])
    if sys.platform == "win32":
        base = os.environ.get("LOCALAPPDATA") or os.path.expanduser("~/AppData/Local")
    elif sys.platform == "darwin":
        base = os.path.expanduser("~/Library/Caches")
    else:
        base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return pathlib.Path(base) / "tinygrad_tf"


def _writable(folder: pathlib.Path) -> bool:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return True
    except OSError:
        return False


_folder: pathlib.Path | None = None


def cache_folder() -> pathlib.Path:
    """The folder with this version's compiled kernels; a temporary one, with a warning, where none can be written."""
    global _folder
    if _folder is None:
        folder = _user_cache() / _fingerprint()
        if not _writable(folder):
            fallback = pathlib.Path(tempfile.mkdtemp(prefix="tinygrad_tf-"))
            warnings.warn(
                f"tinygrad_tf: cannot write its kernel cache {folder}; kernels are compiled into {fallback} "
                "for this process only. Set TINYGRAD_TF_CACHE_DIR to a writable folder.",
                stacklevel=3,
            )
            folder = fallback
        _folder = folder
    return _folder


class _Locator(caching._CacheLocator):
    """Tells numba's disk cache to use our folder; the folder's name already says which sources and which CPU."""

    def __init__(self, py_func, py_file):
        self._name = pathlib.Path(py_file).stem
        self._line = py_func.__code__.co_firstlineno

    def get_cache_path(self):
        return str(cache_folder())

    def get_source_stamp(self):
        return "the folder's name is the stamp"

    def get_disambiguator(self):
        return f"{self._name}-{self._line}"

    @classmethod
    def from_function(cls, py_func, py_file):
        return cls(py_func, py_file)


class _CacheImpl(caching.CompileResultCacheImpl):
    _locator_classes = [_Locator]


class _Cache(caching.FunctionCache):
    _impl_class = _CacheImpl

    def load_overload(self, sig, target_context):
        found = super().load_overload(sig, target_context)
        if found is None:
            _announce()
        return found


def _announce() -> None:
    """Say once per process that compiling takes a while."""
    global _announced
    if not _announced:
        _announced = True
        print(
            "tinygrad_tf: compiling its kernels for this CPU, once (about half a minute)", file=sys.stderr, flush=True
        )


# -- compiling and calling ---------------------------------------------------------------------------------------------


def device(function):
    """Compile a small function that kernels inline."""
    return numba.njit(fastmath=FASTMATH, error_model="numpy")(function)


def _compile(function, parallel: bool):
    compiled = numba.njit(parallel=parallel, fastmath=FASTMATH, error_model="numpy", boundscheck=False)(function)
    if parallel:
        compiled._cache = _Cache(function)
    return compiled


class Kernel:
    """A parallel numba function: compiled at its first call, run one at a time."""

    def __init__(self, function):
        self.__name__ = function.__name__
        self.__doc__ = function.__doc__
        self.__wrapped__ = function
        self.function = function
        self.compiled = None
        self.serial = None

    def __call__(self, *args):
        with _lock:
            if _serial:
                if self.serial is None:
                    self.serial = _compile(self.function, parallel=False)
                return self.serial(*args)
            if self.compiled is None:
                self.compiled = _compile(self.function, parallel=True)
            return self.compiled(*args)


def kernel(function):
    """Compile a function of ndarrays and numbers with numba (parallel, cached); see this module's text for the rules."""
    return Kernel(function)


def _after_fork_in_child() -> None:
    global _serial
    _lock.release()
    try:
        _serial = numba.threading_layer() != "workqueue"
    except ValueError:  # no threads were started yet
        pass


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_after_fork_in_child)
