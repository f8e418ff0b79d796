"""Where the time and the memory of a step go: by operation and by module, against what the machine can do."""

from __future__ import annotations

import functools
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from . import kernels
from .graph import Node, Op, Saved, TensorBase
from .kernels.host import get_num_threads
from .modes import _profile


@dataclass
class Row:
    """What one operation, or one module, took: seconds, floating-point operations, bytes moved, bytes kept for backward."""

    name: str
    calls: int = 0
    forward: float = 0.0
    backward: float = 0.0
    flops: float = 0.0
    moved: int = 0
    kept: int = 0

    @property
    def seconds(self) -> float:
        """Forward and backward together."""
        return self.forward + self.backward


def _size(value: Any) -> int:
    """Bytes of the arrays in a value."""
    if isinstance(value, np.ndarray):
        return value.nbytes
    if isinstance(value, TensorBase):
        return int(value._data.nbytes)
    return sum(_size(v) for v in value) if isinstance(value, (list, tuple)) else 0


def _flops(op: Op, arrays: Sequence[Any]) -> float:
    """Multiplications and additions of a product, forward; 0 for operations whose bound is the memory."""
    if op.name == "matmul":
        a, b = arrays[0], arrays[1]
        batch = int(np.prod(np.broadcast_shapes(a.shape[:-2], b.shape[:-2]), dtype=np.int64))
        return 2.0 * batch * a.shape[-2] * a.shape[-1] * b.shape[-1]
    if op.name == "linear":
        return 2.0 * arrays[0].size * arrays[1].shape[0]
    if op.name == "scaled_dot_product_attention":
        q, k, v = arrays[:3]
        flops = 2.0 * q.shape[0] * q.shape[1] * q.shape[2] * k.shape[2] * (q.shape[3] + v.shape[3])
        return flops / 2 if arrays[4] else flops  # half of the scores lie behind a causal mask
    return 0.0


# What a backward costs, in forwards, when every gradient is wanted: two products for one; five for two in attention,
# whose backward computes the scores again.
_BACKWARD = {"matmul": 2.0, "linear": 2.0, "scaled_dot_product_attention": 2.5}


@functools.lru_cache
def peaks(threads: int) -> tuple[float, float]:
    """(float32 operations, bytes) a second that this machine reaches here: a 1024³ product, and scaling 64 MiB in place.

    The best of several tries; the result is kept for the process.
    """
    a = np.ones((1024, 1024), np.float32)
    out = np.empty_like(a)
    long = np.ones(1 << 24, np.float32)

    def best(work: Callable[[], Any]) -> float:
        work()
        seconds = []
        for _ in range(5):
            start = time.perf_counter()
            work()
            seconds.append(time.perf_counter() - start)
        return min(seconds)

    multiply = best(lambda: kernels.gemm.matmul(a, a, out))
    scale = best(lambda: kernels.optimizer.scale([long], 1.0))
    return 2.0 * 1024**3 / multiply, 2.0 * long.nbytes / scale


@dataclass
class Profile:
    """What happened inside `tg.profile()`; print it, or take the rows.

    operations, modules: name -> `Row`. A module's row has the operations that ran while it was the innermost module.
    seconds: the whole time inside; what no operation took is Python and whatever else the block did.
    peak_memory: the largest resident size of the process so far, in bytes (0 where the platform does not tell).
    """

    operations: dict[str, Row] = field(default_factory=dict)
    modules: dict[str, Row] = field(default_factory=dict)
    seconds: float = 0.0
    peak_memory: int = 0
    _stack: list[str] = field(default_factory=list)
    _names: dict[int, str] = field(default_factory=dict)
    _places: dict[int, tuple[str, float]] = field(default_factory=dict)
    _counted: set[int] = field(default_factory=set)
    _inside: bool = False
    _flops_now: float = 0.0

    # -- called by the engine ----------------------------------------------------------------------------------------

    def run(self, op: Op, function: Callable[..., Any], arrays: Sequence[Any]) -> Any:
        """Compute an operation's forward, and count it."""
        if self._inside:
            return function(*arrays)
        self._inside = True
        start = time.perf_counter()
        try:
            result = function(*arrays)
        finally:
            self._inside = False
        seconds = time.perf_counter() - start
        self._flops_now = _flops(op, arrays)
        for row in self._rows(op.name, self._stack[-1] if self._stack else "(no module)"):
            row.calls += 1
            row.forward += seconds
            row.flops += self._flops_now
            row.moved += 0 if getattr(op, "view", False) else _size(list(arrays)) + _size(result)
        return result

    def recorded(self, node: Node) -> None:
        """Note where a node was made, and what it keeps for backward."""
        module = self._stack[-1] if self._stack else "(no module)"
        self._places[node.number] = module, self._flops_now
        kept = 0
        stack = [node.saved]
        while stack:
            value = stack.pop()
            if isinstance(value, Saved):
                data = value.data
                if data is None or isinstance(value.edge, TensorBase):  # packed away, or a leaf
                    continue
                owner = data if data.base is None else data.base
                if id(owner) not in self._counted:
                    self._counted.add(id(owner))
                    kept += data.nbytes
            elif isinstance(value, dict):
                stack.extend(value.values())
            elif isinstance(value, (list, tuple)):
                stack.extend(value)
        for row in self._rows(node.op.name, module):
            row.kept += kept

    def backward(self, node: Node, grads: list[Any], needs: tuple[bool, ...], create_graph: bool) -> Sequence[Any]:
        """Compute a node's gradients, and count it."""
        outside, self._inside = self._inside, True
        start = time.perf_counter()
        try:
            results = node.op.gradients(node, grads, needs, create_graph)
        finally:
            self._inside = outside
        seconds = time.perf_counter() - start
        module, flops = self._places.get(node.number, ("(before the profile)", 0.0))
        wanted = sum(needs) / max(1, len(needs)) if node.op.name != "linear" else sum(needs[:2]) / 2
        for row in self._rows(node.op.name, module):
            row.backward += seconds
            row.flops += flops * _BACKWARD.get(node.op.name, 0.0) * wanted
            row.moved += 0 if getattr(node.op, "view", False) else _size(grads) + _size(list(results))
        return results

    def other(self, name: str, seconds: float) -> None:
        """Count work that is no operation: an optimizer's step."""
        row = self.operations.setdefault(name, Row(name))
        row.calls += 1
        row.forward += seconds

    def enter(self, module: Any) -> None:
        """A module's forward begins."""
        if not self._stack:
            kind = type(module).__name__
            self._names = {id(m): f"{kind}.{name}" if name else kind for name, m in module.named_modules()}
        self._stack.append(self._names.get(id(module), type(module).__name__))

    def leave(self) -> None:
        """A module's forward ends."""
        self._stack.pop()

    def _rows(self, operation: str, module: str) -> tuple[Row, Row]:
        return self.operations.setdefault(operation, Row(operation)), self.modules.setdefault(module, Row(module))

    # -- for people --------------------------------------------------------------------------------------------------

    def table(self, by: str = "operation", limit: int = 25) -> str:
        """The rows that took longest, as text; by "operation" or "module"."""
        if by not in ("operation", "module"):
            raise ValueError(f"Profile.table: by must be 'operation' or 'module', got {by!r}")
        rows = sorted((self.operations if by == "operation" else self.modules).values(), key=lambda r: -r.seconds)
        top_flops, top_bytes = peaks(get_num_threads())
        width = max([len(by), *(len(r.name) for r in rows[:limit])])
        lines = [
            f"{by:<{width}}  calls  forward ms  backward ms  share  GFLOP/s       GB/s      kept MB",
        ]
        for r in rows[:limit]:
            seconds = max(r.seconds, 1e-12)
            products = (
                f"{r.flops / seconds / 1e9:7.1f} ({100 * r.flops / seconds / top_flops:3.0f} %)" if r.flops else ""
            )
            moved = f"{r.moved / seconds / 1e9:6.1f} ({100 * r.moved / seconds / top_bytes:3.0f} %)" if r.moved else ""
            lines.append(
                f"{r.name:<{width}}  {r.calls:5d}  {1000 * r.forward:10.2f}  {1000 * r.backward:11.2f}  "
                f"{100 * r.seconds / max(self.seconds, 1e-12):4.0f} %  {products:<15} {moved:<14} {r.kept / 1e6:7.2f}"
            )
        if len(rows) > limit:
            lines.append(f"... and {len(rows) - limit} more")
        return "\n".join(lines)

    def __str__(self) -> str:
        inside = sum(r.seconds for r in self.operations.values())
        top_flops, top_bytes = peaks(get_num_threads())
        return (
            f"{self.table('operation')}\n\n{self.table('module')}\n\n"
            f"{1000 * self.seconds:.2f} ms in all, {1000 * (self.seconds - inside):.2f} ms of it outside operations; "
            f"{sum(r.kept for r in self.operations.values()) / 1e6:.2f} MB kept for backward; "
            f"peak memory of the process {self.peak_memory / 1e6:.0f} MB\n"
            f"this machine's own peaks with {get_num_threads()} threads: {top_flops / 1e9:.1f} GFLOP/s, {top_bytes / 1e9:.1f} GB/s"
        )


class profile:
    """Measures what runs inside: `with tg.profile() as p: ...; print(p)` shows where a step's time and memory went.

    For each operation and each module: calls, seconds forward and backward, arithmetic of products (2·M·N·K, backward
    included) and bytes read and written, both a second and as a share of the machine's own peaks, and the bytes that the
    graph keeps for backward. The clock is on around every operation; it costs a few percent.

    Run a step before, or the numbers contain the compiling of kernels. A profile inside a profile raises RuntimeError.

    >>> import tinygrad_tf as tg
    >>> x = tg.ones(8, 8, requires_grad=True)
    >>> with tg.profile() as p:
    ...     (x @ x).sum().backward()
    >>> p.operations["matmul"].calls, p.operations["matmul"].flops == 3 * 2 * 8**3
    (1, True)
    """

    def __enter__(self) -> Profile:
        if _profile.get() is not None:
            raise RuntimeError("profile: a profile is running already; profiles do not nest")
        self._profile = Profile()
        self._token = _profile.set(self._profile)
        self._start = time.perf_counter()
        return self._profile

    def __exit__(self, *_: object) -> None:
        self._profile.seconds = time.perf_counter() - self._start
        self._profile.peak_memory = _peak_memory()
        _profile.reset(self._token)


def _peak_memory() -> int:
    try:
        import resource
    except ImportError:  # Windows
        return 0
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return int(peak if sys.platform == "darwin" else 1024 * peak)
