"""The machine code of the kernels on disk.

The folder's name is a hash of all kernel sources, of the versions of numba and Python, and of the CPU, because numba's
own cache does not notice an edit in a helper that another file inlines.
"""

from __future__ import annotations

import hashlib
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
import numba
from numba.core import compiler, serialize


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


def digest(signature) -> str:
    return hashlib.sha256(repr(signature).encode()).hexdigest()[:16]


#: The routines that there are, by their symbols: their names and argument types.
routines: dict[str, tuple[str, tuple]] = {}


class Cache:
    """The machine code of one function on disk: a file for each signature, written beside and renamed.

    A file also names the routines that the code calls by symbol, which must be there before it is loaded. (numba's own
    cache has one index for all signatures of a function; two processes that write it at once can swap their code.)
    """

    def __init__(self, name: str, code: types_.CodeType, load_routine) -> None:
        self.name, self.load_routine = name, load_routine
        # for functions outside this package, whose sources nobody hashed
        numbers = [constant for constant in code.co_consts if isinstance(constant, (bool, int, float, str))]
        self.code = code.co_firstlineno, code.co_code, code.co_names, numbers

    def _path(self, sig) -> pathlib.Path:
        return cache_folder() / f"{self.name}-{digest((sig, self.code))}"

    def load_overload(self, sig, target_context):
        target_context.refresh()
        try:
            called, payload = pickle.loads(self._path(sig).read_bytes())
        except (OSError, EOFError, pickle.UnpicklingError, TypeError, ValueError):  # not there, or not whole
            _announce()
            return None
        for name, argument_types in called:
            self.load_routine(name, argument_types)
        return compiler.CompileResult._rebuild(target_context, *payload)

    def save_overload(self, sig, result) -> None:
        path = self._path(sig)
        beside = path.with_name(f"{path.name}.{os.getpid()}.{threading.get_ident()}")
        try:
            payload = result._reduce()
            called = [routines[f.name] for f in result.library._final_module.functions if f.name in routines]
            beside.write_bytes(serialize.dumps((called, payload)))
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
