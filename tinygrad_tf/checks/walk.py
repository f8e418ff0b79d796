"""Watching a forward go by: every operation with the values it had at that moment, and the user's line."""

from __future__ import annotations

import contextlib
import inspect
import linecache
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from .. import graph, modes
from ..graph import Array, TensorBase
from .problem import Problem


class Value:
    """A Tensor as it was when an operation used it."""

    def __init__(self, tensor: TensorBase):
        self.array: Array = np.array(tensor._data, order="K")
        self.requires_grad = tensor._requires_grad


def _keep(value: Any) -> Any:
    if isinstance(value, TensorBase):
        return Value(value)
    if isinstance(value, np.ndarray):
        return value.copy()
    if isinstance(value, (list, tuple)):
        return [_keep(v) for v in value] if any(isinstance(v, TensorBase) for v in value) else value
    return value


def _flat(values: Any) -> list[Any]:
    return [v for value in values for v in (_flat(value) if isinstance(value, list) else [value])]


class Step:
    """One operation that ran: how to run it again, on what, its outputs, its node and the user's line."""

    def __init__(self, record: Any, module: str = ""):
        self.module = module  # the path of the layer that called it, such as blocks.0.attention.f
        op = record.op
        outputs = record.output if isinstance(record.output, (list, tuple)) else [record.output]
        self.name: str = op.name
        self.line: str = record.line
        self.node = next((o._node for o in outputs if o._node is not None), None)
        self.args = [_keep(a) for a in record.args]
        self.outputs = [np.array(o._data) for o in outputs]
        self.function: Any = None if callable(op) else getattr(op, "function", None)  # a user's Function
        function: Any = self.function
        self.call: Callable[..., Any] = op if callable(op) else function.apply
        target = self.function.forward if self.function is not None else op.function
        words = [p.name for p in inspect.signature(target).parameters.values() if p.kind is not p.VAR_POSITIONAL]
        self.words = words[1:] if self.function is not None else words
        self.op = op
        tensors = [(i, t) for i, a in enumerate(record.args) for t in (a if isinstance(a, (list, tuple)) else [a])]
        self.edges: list[tuple[int, Any, Array]] = [
            (i, t._edge(), np.array(t._data)) for i, t in tensors if isinstance(t, TensorBase) and t._node
        ]

    def word(self, i: int) -> str:
        return self.words[i] if i < len(self.words) else f"argument {i}"

    def rule(self, i: int) -> str:
        """`file:line` of the gradient rule for argument i."""
        rule: Any = self.function.backward if self.function is not None else getattr(self.op, "backward", None)
        if rule is None and self.op.inputs:
            names = [self.op.inputs[0]] if self.op.variadic else list(self.op.inputs)
            rule = self.op.rules[names.index(self.word(i)) if self.word(i) in names else 0][0]
        code = getattr(inspect.unwrap(rule), "__code__", None) if rule is not None else None
        return f"{code.co_filename}:{code.co_firstlineno}" if code is not None else ""

    def inputs(self) -> list[Any]:
        """The arguments as Tensors of their own; those that carried a gradient require one."""

        def again(value: Any) -> Any:
            if isinstance(value, list):
                return [again(v) for v in value]
            if not isinstance(value, Value):
                return value
            is_checked = value.requires_grad and value.array.dtype == np.float64
            return graph._wrap(value.array.copy(order="K"), is_checked)

        return [again(a) for a in self.args]

    def arrays(self) -> list[tuple[int, Any]]:
        """(number of the argument, Value or ndarray) for each array among the arguments."""
        return [
            (i, v) for i, a in enumerate(self.args) for v in _flat([a]) if isinstance(v, (Value, np.ndarray))
        ]  # fmt: skip


class Watch(list[Any]):
    """What collects the Records: each is turned into a Step at once, before a later in-place write."""

    def __init__(self, fn: Any = None):
        super().__init__()
        self.fn, self.path = fn, [""]

    def append(self, record: Any) -> None:
        super().append(Step(record, self.path[-1]))

    @contextlib.contextmanager
    def follow(self) -> Iterator[None]:
        """Inside, note which layer of the module `fn` is running."""
        handles = []
        for name, module in self.fn.named_modules() if hasattr(self.fn, "named_modules") else ():

            def enter(*_: Any, name: str = name) -> None:
                self.path.append(name)

            def leave(*_: Any) -> None:
                self.path.pop()

            handles += [module.register_forward_pre_hook(enter), module.register_forward_hook(leave)]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()


def watched(problem: Problem) -> list[Step]:
    """The steps of one forward."""
    watch = Watch(problem.fn)
    with modes.enable_grad(), watch.follow():
        problem.outputs(watch)
    return watch


def source(line: str) -> str:
    """The text of the source at `file:line`, or nothing."""
    file, _, number = line.rpartition(":")
    return linecache.getline(file, int(number)).strip() if number.isdigit() else ""


# -- what a walk can tell without any differences ----------------------------------------------------------------------


def magnitude(problem: Problem) -> float:
    """The largest number on the way if it is far above the outputs, which then carry its rounding; else 0.

    1e12 and more is a mask, not a number.
    """

    def largest(arrays: list[Array]) -> float:
        finite = [
            np.abs(a[np.isfinite(a) & (np.abs(a) < 1e12)]).max(initial=0.0) for a in arrays if a.dtype.kind == "f"
        ]
        return float(max(finite, default=0.0))

    watch = Watch()
    with modes.enable_grad():
        outputs = problem.outputs(watch)
    top = largest([o for step in watch for o in step.outputs])
    return top if top > 1e4 * max(1.0, largest([o._data for o in outputs])) else 0.0


def float32_operation(problem: Problem) -> Step | None:
    """The first operation that is given float64 numbers and answers with float32's precision."""
    for step in watched(problem):
        given = [a.array if isinstance(a, Value) else a for _, a in step.arrays()]
        fine = [a for a in given if a.dtype == np.float64 and not _on_grid(a)]
        for out in step.outputs:
            if fine and out.dtype.kind == "f" and (out.dtype != np.float64 or (_on_grid(out) and _fractional(out))):
                return step
    return None


def _on_grid(a: Array) -> bool:
    """Whether every number is one that float32 has."""
    with np.errstate(over="ignore", invalid="ignore"):
        return bool(np.array_equal(a, a.astype(np.float32), equal_nan=True))


def _fractional(a: Array) -> bool:
    """Whether some number has more digits than chance or a mask would give it."""
    with np.errstate(invalid="ignore"):
        scaled = a * 1024.0
        return bool((scaled != np.round(scaled)).any())


def random_operation(problem: Problem) -> tuple[Step, str] | None:
    """The first operation with two results in two calls, and what it was given that changed (nothing: it is random itself)."""
    for a, b in zip(watched(problem), watched(problem), strict=False):
        if a.name != b.name:
            return None
        if not all(equal(x, y) for x, y in zip(a.outputs, b.outputs, strict=False)):
            changed = [i for (i, x), (_, y) in zip(a.arrays(), b.arrays(), strict=False) if not equal(x, y)]
            return a, a.word(changed[0]) if changed else ""
    return None


def equal(x: Any, y: Any) -> bool:
    a, b = (v.array if isinstance(v, Value) else v for v in (x, y))
    return a.shape == b.shape and np.array_equal(a, b, equal_nan=a.dtype.kind == "f")
