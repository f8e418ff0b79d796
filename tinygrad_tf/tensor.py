"""Tensor: an ndarray that remembers how it was computed. Its methods and operators are thin names for the operations."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from operator import attrgetter
from typing import TYPE_CHECKING, Any, SupportsIndex

import numpy as np

from . import graph, modes
from .graph import Array, TensorBase
from .hooks import HookHandle
from .ops import binary, comparison, elementwise, indexing, products, shape
from .ops.primitive import Primitive
from .ops.table import IN_PLACE, METHODS

_READS = "Python reads a tensor's numbers"


def _any_operator(self: Any, other: Any) -> Any: ...


class Tensor(TensorBase):
    """An array of float32, float64, integers or booleans, with `.grad` and a place in the graph.

    Made by `tg.tensor(...)` and its relatives. `Tensor(array)` wraps an ndarray without copying.
    """

    __slots__ = ()
    __array_ufunc__ = None  # so `ndarray * Tensor` is one Tensor, not an array of them
    __hash__ = object.__hash__

    if TYPE_CHECKING:  # the methods and operators that the loops at the end of this file add

        def __getattr__(self, name: str) -> Any: ...

        __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = _any_operator
        __pow__ = __rpow__ = __matmul__ = __rmatmul__ = __mod__ = __floordiv__ = __and__ = __or__ = __xor__ = (
            _any_operator
        )
        __lt__ = __le__ = __gt__ = __ge__ = _any_operator

    # -- what it is --------------------------------------------------------------------------------------------------

    # properties that Python reads without calling one of its functions: they are read several times an operation
    shape: tuple[int, ...] = property(attrgetter("_data.shape"))  # type: ignore[assignment]
    dtype: np.dtype[Any] = property(attrgetter("_data.dtype"))  # type: ignore[assignment]
    ndim: int = property(attrgetter("_data.ndim"))  # type: ignore[assignment]

    def dim(self) -> int:
        return self._data.ndim

    def size(self, dim: int | None = None) -> Any:
        return self._data.shape if dim is None else self._data.shape[dim]

    def numel(self) -> int:
        return int(self._data.size)

    @property
    def requires_grad(self) -> bool:
        return self._requires_grad

    @requires_grad.setter
    def requires_grad(self, value: bool) -> None:
        self.requires_grad_(value)

    def requires_grad_(self, requires_grad: bool = True) -> Tensor:
        """Ask for gradients of this leaf, or no longer; raises for integers, and for results of operations."""
        if requires_grad and self._data.dtype.kind != "f":
            raise RuntimeError(
                f"only float tensors can require grad, got dtype {self._data.dtype}; convert with .float()"
            )
        if self._node is not None and not requires_grad:
            raise RuntimeError("requires_grad can be switched off for leaves only; use detach()")
        self._requires_grad = bool(requires_grad)
        return self

    @property
    def is_leaf(self) -> bool:
        return self._node is None

    @property
    def grad_fn(self) -> graph.Node | None:
        return self._node

    @property
    def data(self) -> Tensor:
        """The same memory and version counter, outside the graph."""
        return self.detach()

    @data.setter
    def data(self, value: Any) -> None:
        modes.not_captured("a tensor is given other data")
        self._data = value._data if isinstance(value, TensorBase) else np.asarray(value, dtype=self.dtype)
        self._bump()

    def detach(self) -> Tensor:
        """The same memory and version counter, outside the graph."""
        out = Tensor(self._data)
        out._storage, out._version = self._storage, self._storage.version
        return out

    def numpy(self) -> Array:
        """The ndarray itself, without copying; read-only if gradients are asked for."""
        modes.not_captured(_READS)
        if not self._requires_grad:
            return self._data
        view = self._data.view()
        view.flags.writeable = False
        return view

    def item(self) -> Any:
        """The one element as a Python number; raises ValueError if there is not exactly one."""
        if self._data.size != 1:
            raise ValueError(f"item: expected a tensor of one element, got shape {self.shape}")
        modes.not_captured(_READS)
        return self._data.item()

    def tolist(self) -> Any:
        modes.not_captured(_READS)
        return self._data.tolist()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        return np.array(self.numpy(), dtype=dtype, copy=copy)

    def __dlpack__(self, **options: Any) -> Any:
        modes.not_captured(_READS)
        return self._data.__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self._data.__dlpack_device__()

    def __repr__(self) -> str:
        text = np.array2string(self._data, separator=", ", prefix="tensor(", precision=4, threshold=1000)
        notes = []
        if self.dtype not in (np.float32, np.int64, np.bool_):
            notes.append(f"dtype={self.dtype}")
        if 0 in self.shape:
            notes.append(f"shape={self.shape}")
        if self._node is not None and self._requires_grad:
            notes.append(f"grad_fn=<{self._node.op.name}>")
        elif self._requires_grad:
            notes.append("requires_grad=True")
        return f"{'tensor' if type(self) is Tensor else type(self).__name__}({', '.join([text, *notes])})"

    def __format__(self, spec: str) -> str:
        return format(self.item(), spec) if spec and self.numel() == 1 else repr(self)

    def __len__(self) -> int:
        if self.ndim == 0:
            raise TypeError("len() of a 0-d tensor")
        return self.shape[0]

    def __iter__(self) -> Iterator[Tensor]:
        if self.ndim == 0:
            raise TypeError("iteration over a 0-d tensor")
        return iter(shape.unbind(self, 0))

    def __bool__(self) -> bool:
        if self.numel() != 1:
            raise ValueError(f"the truth of a tensor of shape {self.shape} is ambiguous; use .any() or .all()")
        modes.not_captured(_READS)
        return bool(self._data)

    def __float__(self) -> float:
        return float(self.item())

    def __int__(self) -> int:
        return int(self.item())

    def __index__(self) -> int:
        value: SupportsIndex = self.item()
        return value.__index__()

    def __contains__(self, value: Any) -> bool:
        modes.not_captured(_READS)
        return bool((self._data == graph._raw(value)).any())

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        if self._node is not None:
            raise RuntimeError("deepcopy: only leaves can be copied deeply; use detach() or clone()")
        out = type(self).__new__(type(self))
        TensorBase.__init__(out, self._data.copy(), self._requires_grad)
        memo[id(self)] = out
        out.grad = None if self.grad is None else self.grad.detach().clone()
        return out

    def __reduce__(self) -> Any:
        if self._node is not None:
            raise RuntimeError("pickle: only leaves can be pickled; use detach()")
        return (_rebuild, (type(self), np.ascontiguousarray(self._data).reshape(self.shape), self._requires_grad))

    # -- gradients ---------------------------------------------------------------------------------------------------

    def backward(self, gradient: Any = None, retain_graph: bool | None = None, create_graph: bool = False) -> None:
        """Add d(self)/d(leaf), weighted by `gradient` (default 1 for a scalar), into every leaf's `.grad`."""
        graph.backward(self, gradient, retain_graph, create_graph)

    def register_hook(self, hook: Callable[[Any], Any]) -> HookHandle:
        """Call `hook(gradient)` when this tensor's gradient is complete; what it returns, if anything, is used instead."""
        return graph.register_hook(self, hook)

    def retain_grad(self) -> None:
        """Keep the gradient of this result of an operation in `.grad`."""
        if self._node is not None:
            import weakref

            me = weakref.ref(self)

            def keep(gradient: Any) -> None:
                tensor = me()
                if tensor is not None:
                    kept = gradient if gradient.requires_grad else gradient.detach().clone()
                    tensor.grad = kept if tensor.grad is None else tensor.grad + kept

            graph.register_hook(self, keep)

    # -- dtypes and memory -------------------------------------------------------------------------------------------

    def to(self, dtype: Any) -> Tensor:
        """The same values in another dtype (itself if it has that one already)."""
        wanted = check_dtype(dtype)
        return self if wanted == self.dtype else elementwise.astype(self, wanted)

    def astype(self, dtype: Any) -> Tensor:
        return self.to(dtype)

    def type(self, dtype: Any) -> Tensor:
        return self.to(dtype)

    def float(self) -> Tensor:
        return self.to(np.float32)

    def double(self) -> Tensor:
        return self.to(np.float64)

    def long(self) -> Tensor:
        return self.to(np.int64)

    def bool(self) -> Tensor:
        return self.to(np.bool_)

    def is_floating_point(self) -> Any:
        return self._data.dtype.kind == "f"

    def is_contiguous(self) -> Any:
        return self._data.flags.c_contiguous

    def contiguous(self) -> Tensor:
        """Itself if its memory is C-contiguous, else a copy that is."""
        return self if self._data.flags.c_contiguous else elementwise.clone(self)

    def type_as(self, other: Tensor) -> Tensor:
        return self.to(other.dtype)

    # -- shapes ------------------------------------------------------------------------------------------------------

    def view(self, *new_shape: Any) -> Tensor:
        return shape.reshape(self, *new_shape)

    @property
    def T(self) -> Tensor:
        """The axes in reverse order."""
        return shape.permute(self, tuple(range(self.ndim))[::-1]) if self.ndim else self

    @property
    def mT(self) -> Tensor:
        """The last two axes swapped."""
        if self.ndim < 2:
            raise ValueError(f"mT: expected at least 2 axes, got shape {self.shape}")
        return shape.transpose(self, -2, -1)

    def reshape_as(self, other: Tensor) -> Tensor:
        return shape.reshape(self, other.shape)

    def where(self, condition: Any, other: Any) -> Any:
        """self where the condition is true, else other."""
        return elementwise.where(condition, self, other)

    # -- operators ---------------------------------------------------------------------------------------------------

    def __getitem__(self, index: Any) -> Tensor:
        return indexing.getitem(self, index)

    def __setitem__(self, index: Any, value: Any) -> None:
        index = indexing._plain(index)
        if not isinstance(value, TensorBase):
            value = np.asarray(value, dtype=self.dtype)
        if modes.is_grad_enabled() and (self._requires_grad or isinstance(value, TensorBase) and value._requires_grad):
            graph.in_place(self, indexing.setitem(self, index, value), "setitem")
            return
        if not self._data.flags.writeable:
            raise ValueError(
                "setitem: this tensor's memory is read-only (an expanded or a read-only array); clone() it first"
            )
        try:
            modes.written(operator.setitem, self._data, index, graph._raw(value))
        except (IndexError, ValueError) as error:
            raise type(error)(f"writing into a tensor of shape {self.shape}: {error}") from None
        self._bump()

    def __neg__(self) -> Any:
        return elementwise.neg(self)

    def __pos__(self) -> Tensor:
        return self

    def __abs__(self) -> Any:
        return elementwise.abs(self)

    def __invert__(self) -> Any:
        return binary.bitwise_not(self)

    def zero_(self) -> Tensor:
        return self.fill_(0)

    def fill_(self, value: Any) -> Tensor:
        self[...] = value
        return self

    def copy_(self, source: Any) -> Tensor:
        self[...] = source
        return self


def _rebuild(cls: Any, data: Array, requires_grad: bool) -> Any:
    out = cls.__new__(cls)
    TensorBase.__init__(out, data, requires_grad)
    return out


def check_dtype(dtype: Any) -> np.dtype[Any]:
    """A dtype that tensors can have; raises TypeError for the others, float16 among them."""
    wanted = np.dtype(dtype)
    if wanted.kind not in "biu" and wanted not in (np.float32, np.float64):
        raise TypeError(
            f"tensors are float32, float64, integer or bool, got dtype {wanted}; convert with .astype(np.float32)"
        )
    return wanted


def _operator(function: Any, swapped: bool = False) -> Any:
    def method(self: Tensor, other: Any) -> Any:
        if not isinstance(other, (TensorBase, np.ndarray, np.generic, int, float, list, tuple)):
            return NotImplemented
        return function(other, self) if swapped else function(self, other)

    return method


def _in_place_operator(function: Any, name: str) -> Any:
    keeps = not isinstance(function, Primitive) or any(function.parameters[0] in names for _, names in function.rules)

    def method(self: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        source = self
        if keeps and modes._grad_enabled.get() and (self._node is not None or not self._requires_grad):
            if self._node is not None or any(getattr(a, "_requires_grad", False) for a in (*args, *kwargs.values())):
                graph.check_input(name, self)
                source = graph.at_edge(
                    modes.copied(self._data), self._edge()
                )  # what its gradient needs: the value before
        graph.in_place(self, function(source, *[source if a is self else a for a in args], **kwargs), name)
        return self

    return method


def _matmul(a: Any, b: Any) -> Any:
    like: Any = a if isinstance(a, TensorBase) else b
    a, b = (x if isinstance(x, TensorBase) else Tensor(np.asarray(x, dtype=like.dtype)) for x in (a, b))
    return products.matmul(a, b)


for _symbol, _function in {
    "add": elementwise.add, "sub": elementwise.sub, "mul": elementwise.mul, "truediv": elementwise.div,
    "floordiv": elementwise.floor_divide, "mod": elementwise.remainder, "pow": elementwise.pow, "matmul": _matmul,
    "and": comparison.bitwise_and, "or": comparison.bitwise_or, "xor": comparison.bitwise_xor,
}.items():  # fmt: skip
    setattr(Tensor, f"__{_symbol}__", _operator(_function))
    setattr(Tensor, f"__r{_symbol}__", _operator(_function, swapped=True))
    setattr(Tensor, f"__i{_symbol}__", _in_place_operator(_function, f"{_symbol} in place"))
for _symbol in ("eq", "ne", "lt", "le", "gt", "ge"):
    setattr(Tensor, f"__{_symbol}__", _operator(getattr(comparison, _symbol)))
Tensor.__hash__ = object.__hash__  # type: ignore[method-assign, assignment]


def _method(function: Any) -> Any:
    def method(self: Tensor, *args: Any, **kwargs: Any) -> Any:
        return function(self, *args, **kwargs)

    method.__name__, method.__doc__ = function.__name__, function.__doc__
    return method


for _name, _function in METHODS.items():
    setattr(Tensor, _name, _method(_function))
for _name in IN_PLACE:
    setattr(Tensor, f"{_name}_", _in_place_operator(METHODS[_name], f"{_name}_"))
graph.set_tensor_class(Tensor)
