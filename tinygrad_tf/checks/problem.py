"""A function under check: its float64 inputs and parameters on private copies that can be nudged, and its outputs."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from .. import graph, modes, rng
from ..graph import Array, TensorBase
from ..ops.elementwise import clone


class GradcheckError(AssertionError):
    """The analytic gradient is not the numeric one; the text is the report.

    Attributes:
        diagnosis: the pattern that the fault fits, such as "transposed", or None.
        operation: the name of the operation whose own rule is wrong, or None.
        line: where that operation was called, `file:line`, or None.
    """

    def __init__(
        self, text: str, *, diagnosis: str | None = None, operation: str | None = None, line: str | None = None
    ):
        super().__init__(text)
        self.diagnosis, self.operation, self.line = diagnosis, operation, line


class Leaf:
    """One input or parameter: its label, the Tensor that is nudged, and what its axes are called."""

    def __init__(self, label: str, tensor: TensorBase, axes: tuple[str, ...]):
        self.label, self.tensor, self.axes = label, tensor, axes
        self.used: Any = tensor  # what the function is given; for an input a copy, so that it may be written in place
        self.edge: Any = tensor  # where the gradient of `used` goes
        self.value: Array = tensor._data  # while checked: a private, writable array

    @property
    def shape(self) -> tuple[int, ...]:
        return self.value.shape

    @property
    def size(self) -> int:
        return self.value.size


class Problem:
    """`fn(*inputs)` as a function of its leaves. Inside `with problem:` parameters stand on private copies."""

    def __init__(self, fn: Callable[..., Any], inputs: Any, name: str, labels: list[str] | None = None):
        self.fn, self.name = fn, name
        self.originals = list(inputs) if isinstance(inputs, (list, tuple)) else [inputs]
        self.leaves: list[Leaf] = []
        self.inputs: list[Any] = []
        words = self._words()
        for i, value in enumerate(self.originals):
            label = labels[i] if labels else f"input {i}"
            name = words[i] if i < len(words) else ""
            self.inputs.append(self._adopt(value, label, name))
        self._buffers: list[tuple[TensorBase, Array, Array, int]] = []
        self._parameters: list[tuple[TensorBase, Array]] = []
        if hasattr(fn, "named_parameters"):
            for label, parameter in fn.named_parameters():
                if parameter._requires_grad:
                    self._check_dtype(f"parameter {label}", parameter)
                    axes = axis_names(_owner(fn, label), label.rpartition(".")[2], parameter._data.ndim)
                    self.leaves.append(Leaf(f"parameter {label}", parameter, axes))
                    self._parameters.append((parameter, parameter._data))
        if not self.leaves:
            raise ValueError(
                f"{self.name}: no input requires grad, so there is nothing to check; pass requires_grad=True"
            )
        self._no_grad = True

    def _words(self) -> list[str]:
        """What the function calls its arguments."""
        target = getattr(self.fn, "forward", self.fn) if hasattr(self.fn, "named_parameters") else self.fn
        owner: Any = getattr(target, "__self__", None)
        if getattr(target, "__name__", "") == "apply" and hasattr(owner, "backward"):
            target = owner.forward  # a Function: forward(ctx, *arguments)
            return list(inspect.signature(target).parameters)[1:]
        try:
            return list(inspect.signature(target).parameters)
        except (TypeError, ValueError):
            return []

    def _adopt(self, value: Any, label: str, name: str) -> Any:
        """The input with its Tensors that require grad replaced by leaves on private copies."""
        if isinstance(value, (list, tuple)) and any(isinstance(v, TensorBase) for v in value):
            return [self._adopt(v, f"{label}.{i}", name) for i, v in enumerate(value)]
        if not isinstance(value, TensorBase) or not value._requires_grad:
            return value
        self._check_dtype(label, value)
        leaf = Leaf(label, graph._wrap(np.array(value._data, order="K"), True), ())
        leaf.axes = axis_names(self.fn, name, leaf.value.ndim)
        self.leaves.append(leaf)
        return leaf

    def _check_dtype(self, label: str, value: TensorBase) -> None:
        if value._data.dtype != np.float64:
            raise TypeError(
                f"{self.name}: {label} is {value._data.dtype}; finite differences need float64, since float32 keeps "
                "only 7 digits; convert with .double()"
            )

    def __enter__(self) -> Problem:
        for leaf in self.leaves:
            leaf.value = leaf.tensor._data = np.array(leaf.tensor._data, order="K")
        if hasattr(self.fn, "named_buffers"):
            self._buffers = [(b, b._data, b._data.copy(), b._storage.version) for _, b in self.fn.named_buffers()]
        return self

    def __exit__(self, *_: object) -> None:
        self._restore_buffers()
        for parameter, data in self._parameters:
            parameter._data = data

    def _restore_buffers(self) -> None:
        """A running mean that the function moves is part of where it starts."""
        for buffer, data, values, version in self._buffers:
            buffer._data = data
            if not np.array_equal(data, values, equal_nan=data.dtype.kind == "f"):
                np.copyto(data, values)
            buffer._storage.version = buffer._version = version

    # -- calling -------------------------------------------------------------------------------------------------------

    def outputs(self, watch: Any = None) -> list[Any]:
        """The float outputs, recorded; `watch` collects a Record of each operation."""
        self._restore_buffers()
        arguments = [self._given(value) for value in self.inputs]
        if watch is None:
            out = self.fn(*arguments)
        else:
            with modes.Mode(modes._records, watch):
                out = self.fn(*arguments)
        outs = list(out) if isinstance(out, (list, tuple)) else [out]
        floats = [o for o in outs if isinstance(o, TensorBase) and o._data.dtype.kind == "f"]
        if not floats:
            raise TypeError(
                f"{self.name}: the function must return a float Tensor or several, got {type(out).__name__}"
            )
        return floats

    def _given(self, value: Any) -> Any:
        if isinstance(value, list):
            return [self._given(v) for v in value]
        if not isinstance(value, Leaf):
            return value
        copy = np.array(value.value, order="K")  # of the same layout: sums in another order are other numbers
        if modes._grad_enabled.get():
            value.edge = clone(value.tensor)._edge()
            value.used = graph.at_edge(copy, value.edge)
        else:
            value.used = graph._wrap(copy, True)
        return value.used

    def values(self) -> Array:
        """All outputs' elements in one row, computed without recording (with it, where the function needs that)."""
        with np.errstate(all="ignore"):  # a step may leave the domain
            return self._values()

    def _values(self) -> Array:
        if self._no_grad:
            state = rng.get_rng_state()
            try:
                with modes.no_grad():
                    return _row(self.outputs())
            except RuntimeError:  # a function that calls grad() itself
                rng.set_rng_state(state)
                self._no_grad = False
        return _row(self.outputs())


def _row(outputs: list[Any]) -> Array:
    return np.concatenate([np.array(o._data, dtype=np.float64).reshape(-1) for o in outputs])


# -- names of axes -----------------------------------------------------------------------------------------------------


def _owner(module: Any, label: str) -> Any:
    for part in label.split(".")[:-1]:
        module = getattr(module, part, None)
    return module


def _legends(thing: Any) -> Iterator[str]:
    """The docstring and comments of a function, or of a module's class and its forward."""
    target = type(thing) if hasattr(thing, "named_parameters") else thing
    owner = getattr(target, "__self__", None)
    for part in (target, owner, getattr(target, "forward", None), getattr(owner, "forward", None)):
        if part is None:
            continue
        yield inspect.getdoc(part) or ""
        try:
            lines = inspect.getsource(part).splitlines()
        except (OSError, TypeError):
            continue
        yield "\n".join(line.partition("#")[2] for line in lines)


def axis_names(thing: Any, name: str, ndim: int) -> tuple[str, ...]:
    """What a legend such as `x (B, T, d_model)` or `# x: (B, T, d_model)` in the text of `thing` calls the axes of `name`."""
    if thing is None or not name or not ndim:
        return ()
    for text in _legends(thing):
        for found in re.finditer(rf"\b{re.escape(name)}`?:? +\(([^()]+)\)", text):
            parts = [p.strip() for p in found[1].split(",") if p.strip()]
            if parts and parts[0] in ("...", "…"):
                parts = [f"axis {i}" for i in range(ndim - len(parts) + 1)] + parts[1:]
            if len(parts) == ndim and all(re.fullmatch(r"[\w·']+|axis \d+", p) for p in parts):
                return tuple(parts)
    return ()
