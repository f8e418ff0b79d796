"""How the kernels are compiled, cached on disk, and spread over threads.

A `kernel` is a function of its task, (t, n_tasks, *arguments), called as `kernel(n_tasks, *arguments)`; the tasks run in
parallel. It is compiled with numba at its first call, never at import, once for each list of argument types:

- `device` functions are inlined into their callers; a `routine` is compiled once by itself and called by its symbol, so
  that a big piece of code is optimised once and not again inside each of its callers;
- one parallel loop, `_run`, serves all kernels: it calls a kernel's machine code by its address (numba takes longer to
  compile a `prange` than to compile most kernels);
- machine code is cached on disk. The cache folder's name is a hash of all kernel sources, of the versions of numba and
  Python, and of the CPU, because numba's own cache does not notice an edit in a helper that another file inlines.

What a task computes depends on the problem and its cut alone, and no number depends on the cut, so results are the same,
bit for bit, on 1 to N threads. numba's own settings are left as they are: they belong to the user's process. Kernels
run one at a time, since a launch (launch.py) holds Python's lock: numba's workqueue layer (its last choice) aborts when
two Python threads enter it at once. `lock` is for what spans several launches, and for compiling. In a forked child of a
process whose threads were OpenMP's (which would kill the child), the tasks run one after another.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import os
import pathlib
import pickle
import platform
import sys
import tempfile
import threading
import types as types_
import warnings

import llvmlite.binding as llvm
import llvmlite.ir as ir
import numba
import numpy as np
from numba import prange, types
from numba.core import ccallback, cgutils, compiler, serialize
from numba.extending import intrinsic

from ..modes import _recorder
from .host import address, contiguous, copied, empty, full, get_num_threads, native, set_num_threads, tasks, write
from .launch import NOTE_HEAD, kind_of, make_entry, note, plain

__all__ = [
    "address", "cache_folder", "contiguous", "copied", "device", "empty", "full", "get_num_threads", "kernel", "lock", "native",
    "replayer", "routine", "set_num_threads", "share", "tasks", "write",
]  # fmt: skip

# No nnan, no ninf: -inf masks and NaN keep their meaning.
FASTMATH = {"contract", "reassoc", "arcp", "nsz"}

lock = threading.RLock()
_serial = False  # True in a forked child that must not enter OpenMP


# -- the cache ---------------------------------------------------------------------------------------------------------


def _fingerprint() -> str:
    """A hash of everything that decides what machine code comes out."""
    digest = hashlib.sha256()
    for source in sorted(pathlib.Path(__file__).parent.glob("*.py")):
        digest.update(source.name.encode())
        digest.update(source.read_bytes())
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


def _digest(signature) -> str:
    return hashlib.sha256(repr(signature).encode()).hexdigest()[:16]


class _Cache:
    """The machine code of one function on disk: a file for each signature, written beside and renamed.

    A file also names the routines that the code calls by symbol, which must be there before it is loaded. (numba's own
    cache has one index for all signatures of a function; two processes that write it at once can swap their code.)
    """

    def __init__(self, name: str, code: types_.CodeType) -> None:
        self.name = name
        self.code = code.co_firstlineno, code.co_code  # for functions outside this package, whose sources nobody hashed
        self.routines: list[tuple[str, tuple]] = []

    def _path(self, sig) -> pathlib.Path:
        return cache_folder() / f"{self.name}-{_digest((sig, self.code))}"

    def load_overload(self, sig, target_context):
        target_context.refresh()
        try:
            routines, payload = pickle.loads(self._path(sig).read_bytes())
        except (OSError, EOFError, pickle.UnpicklingError):
            _announce()
            return None
        for name, argument_types in routines:
            Routine.known[name].symbol(argument_types)
        return compiler.CompileResult._rebuild(target_context, *payload)

    def save_overload(self, sig, result) -> None:
        path = self._path(sig)
        beside = path.with_name(f"{path.name}.{os.getpid()}.{threading.get_ident()}")
        try:
            beside.write_bytes(serialize.dumps((self.routines, result._reduce())))
            os.replace(beside, path)
        except OSError:  # a full disk: the code runs, and is compiled again next time
            beside.unlink(missing_ok=True)


_announced = False


def _announce() -> None:
    """Say once per process that compiling takes a while."""
    global _announced
    if not _announced:
        _announced = True
        print("tinygrad_tf: compiling its kernels for this CPU (later runs load them)", file=sys.stderr, flush=True)


# -- compiling ---------------------------------------------------------------------------------------------------------

OPTIONS = {"fastmath": FASTMATH, "error_model": "numpy", "boundscheck": False}
_compiling: list[_Cache] = []  # the caches of what is being compiled, outermost first


def device(function):
    """Compile a small function that its callers inline: always, or it would have two bodies, of one symbol.

    Its own, and the copy inside the caller's code, optimised once more. A process that compiles would call the one, and a
    process that loads the code from disk the other, with results that differ in the last bit.
    """
    return numba.njit(forceinline=True, no_cpython_wrapper=True, no_cfunc_wrapper=True, **OPTIONS)(function)


def _name(function) -> str:
    return f"{function.__module__.rpartition('.')[2]}.{function.__name__}"


def _compile(function, name: str, signature, **options) -> int:
    """The address of the machine code of `function`, in C's calling convention; from the disk where it is there."""
    code = ccallback.CFunc(function, signature, {}, {"nopython": True, **OPTIONS, **options})
    code._cache = cache = _Cache(name, function.__code__)
    _compiling.append(cache)
    try:
        code.compile()
    finally:
        _compiling.pop()
    _alive.append(code)
    return code.address


_alive: list[ccallback.CFunc] = []  # what is compiled stays


class Routine:
    """A function that is compiled once by itself for each list of argument types; kernels call it by its symbol."""

    known: dict[str, Routine] = {}

    def __init__(self, function, returns) -> None:
        self.function, self.returns = function, returns
        self.name = _name(function)
        self.symbols: dict[tuple, str] = {}
        self.known[self.name] = self

    def symbol(self, argument_types: tuple) -> str:
        """The symbol under which the machine code for these types is found; compiled or loaded if it is new."""
        if argument_types not in self.symbols:
            address = _compile(self.function, self.name, (argument_types, self.returns))
            symbol = f"tinygrad_tf.{self.name}.{_digest(argument_types)}"
            llvm.add_symbol(symbol, address)
            self.symbols[argument_types] = symbol
        return self.symbols[argument_types]


def routine(returns=types.void):
    """Compile a big function once, to be called, not inlined; `returns` is its result's type."""

    def decorate(function):
        made = Routine(function, returns)

        def call(typing_context, *arguments):
            argument_types = tuple(types.unliteral(a) for a in arguments)
            symbol = made.symbol(argument_types)
            if _compiling:
                _compiling[-1].routines.append((made.name, argument_types))

            def generate(context, builder, signature, values):
                result = ir.VoidType() if returns == types.void else context.get_value_type(returns)
                kind = ir.FunctionType(result, [v.type for v in values])
                answer = builder.call(cgutils.get_or_insert_function(builder.module, kind, symbol), values)
                return context.get_dummy_value() if returns == types.void else answer

            return returns(*argument_types), generate

        own = inspect.signature(function)  # numba matches the arguments of a call with these parameters
        context = inspect.Parameter("typing_context", inspect.Parameter.POSITIONAL_OR_KEYWORD)
        call.__signature__ = own.replace(parameters=[context, *own.parameters.values()])
        return intrinsic(call)

    return decorate


# -- running -----------------------------------------------------------------------------------------------------------


@intrinsic
def _call_task(typing_context, task, slots, t, n_tasks):
    """task(slots, t, n_tasks), task the address of a C function of three integers."""

    def generate(context, builder, signature, values):
        kind = ir.FunctionType(ir.VoidType(), [v.type for v in values[1:]])
        builder.call(builder.inttoptr(values[0], kind.as_pointer()), values[1:])
        return context.get_dummy_value()

    return types.void(task, slots, t, n_tasks), generate


def _run(task, slots, n_tasks):
    for t in prange(n_tasks):
        _call_task(task, slots, t, n_tasks)


def _run_serially(task, slots, n_tasks):
    for t in range(n_tasks):
        _call_task(task, slots, t, n_tasks)


_runners: dict[bool, int] = {}
_entries: dict[tuple, types_.BuiltinFunctionType] = {}


def _runner() -> int:
    """The address of the loop over tasks."""
    if _serial not in _runners:
        three = ((types.intp,) * 3, types.void)
        function = _run_serially if _serial else _run
        _runners[_serial] = _compile(function, _name(function), three, parallel=not _serial)
    return _runners[_serial]


def _entry(kinds: tuple):
    """What Python calls to launch any kernel with arguments of these kinds, and of no others."""
    if kinds not in _entries:
        _entries[kinds] = make_entry(
            kinds, lambda function, signature: _compile(function, f"entry.{_digest(kinds)}", signature)
        )
    return _entries[kinds]


class Kernel:
    """A function of its task, (t, n_tasks, *arguments): compiled at its first call, run for every t at once.

    Each array among the arguments has the same number of axes in every call.
    """

    def __init__(self, function) -> None:
        self.__name__ = function.__name__
        self.__doc__ = function.__doc__
        self.__wrapped__ = function
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
        arguments = [plain(a) for a in arguments]
        kinds = tuple([kind_of(a) for a in arguments])
        with lock:
            if kinds not in self.compiled:
                signature = ((types.intp, types.intp, *kinds), types.void)
                code = _compile(self.__wrapped__, _name(self.__wrapped__), signature)
                self.compiled = {**self.compiled, kinds: (_entry(kinds), code)}
        return *self.compiled[kinds], arguments


def kernel(function):
    """Make a function of (t, n_tasks, *arguments) a kernel, see `Kernel`; arguments are numbers and `contiguous` arrays."""
    return Kernel(function)


@device
def share(t, n_tasks, n):
    """The part (first, end) of n things that is task t's."""
    return t * n // n_tasks, (t + 1) * n // n_tasks


@intrinsic
def _call_noted(typing_context, runner, noted, n_tasks):
    """Run the launch that `note` wrote at this address."""

    def generate(context, builder, signature, values):
        runner_, noted_, n_tasks_ = values
        integer = n_tasks_.type
        three = ir.FunctionType(ir.VoidType(), [integer] * 3)
        task = builder.load(builder.inttoptr(noted_, integer.as_pointer()))
        slots = builder.add(noted_, integer(NOTE_HEAD))
        with builder.if_else(builder.icmp_signed("==", n_tasks_, integer(1))) as (alone, together):
            with alone:
                builder.call(builder.inttoptr(task, three.as_pointer()), [slots, integer(0), n_tasks_])
            with together:
                builder.call(builder.inttoptr(runner_, three.as_pointer()), [task, slots, n_tasks_])
        return context.get_dummy_value()

    return types.void(runner, noted, n_tasks), generate


@kernel
def _replay(t, n_tasks, runner, notes, counts):
    for i in range(len(notes)):
        _call_noted(runner, notes[i], counts[i])


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
