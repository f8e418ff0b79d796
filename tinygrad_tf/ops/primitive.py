"""How an operation is written: `@primitive` with a gradient rule per input, and `@fused` with kernels and a definition.

    @primitive(x=lambda g, out: g * out)
    def exp(x):
        return np.exp(x)

The function computes on ndarrays. Each keyword names an input and gives its rule: from `g`, the gradient of the result,
and whatever else it names, the gradient of that input. It may name inputs, `out` (the result), an input's
`NAME_shape`, and the other arguments; what it names is what is saved. Rules use operators and operations of this
package, never `np.*`, so that the same rule runs on ndarrays (the ordinary backward) and on Tensors (`create_graph`).
The sum over broadcast axes is not the rule's business: backward's driver does it.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np

from .. import graph, modes
from ..graph import Array, Node, Op, Saved, TensorBase
from ..kernels.host import full

_FLOAT32, _FLOAT64 = _FLOATS = np.dtype(np.float32), np.dtype(np.float64)


def operand(value: Any, like: TensorBase | Array, name: str) -> Any:
    """A scalar or ndarray operand in the Tensor's dtype: an integer Tensor with a fraction becomes float32."""
    dtype = like._data.dtype if isinstance(like, TensorBase) else like.dtype
    if isinstance(value, (bool, int, float)):
        kind = "b" if isinstance(value, bool) else "i" if isinstance(value, int) else "f"
    elif isinstance(value, (np.ndarray, np.generic)):
        kind = value.dtype.kind
        kind = "i" if kind == "u" else kind
    elif isinstance(value, (list, tuple)):
        return operand(np.asarray(value), like, name)
    else:
        raise TypeError(f"{name}: expected a Tensor, an ndarray or a number, got {type(value).__name__}")
    if kind not in "bif":
        raise TypeError(f"{name}: expected real numbers, got dtype {value.dtype}")
    order = "bif"
    if order.index(kind) <= order.index("i" if dtype.kind == "u" else dtype.kind):
        return np.asarray(value, dtype=dtype)
    return np.asarray(value, dtype=np.int64 if kind == "i" else np.float32)


def _argument_names(function: Callable[..., Any]) -> list[str]:
    return list(inspect.signature(function).parameters)


#: What PyTorch calls the second argument of some operations.
_SECOND = ("other", "target", "exponent", "mat2", "vec", "vec2", "split_size_or_sections", "split_size")


def renamed(kwargs: dict[str, Any], parameters: Sequence[str]) -> dict[str, Any]:
    """Keyword arguments under the names that PyTorch and numpy use, by our names: `input`, `other`, `axis`, ..."""
    if all([k in parameters for k in kwargs]):
        return kwargs
    first = int(parameters[0] in ("condition", "sorted_sequence"))  # where(condition, input, other)
    ours = {"axis": "dim", "keepdims": "keepdim", "input": parameters[min(first, len(parameters) - 1)]}
    if len(parameters) > first + 1:
        ours |= dict.fromkeys(_SECOND, parameters[first + 1])
    return {k if k in parameters else ours.get(k, k): v for k, v in kwargs.items()}


def with_names(function: Callable[..., Any]) -> Callable[..., Any]:
    """A composed operation that takes those names too."""
    if isinstance(function, _Callable):
        return function
    parameters = _argument_names(function)

    @functools.wraps(function)
    def operation(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **(renamed(kwargs, parameters) if kwargs else kwargs))

    return operation


def with_dtype(function: Callable[..., Any]) -> Callable[..., Any]:
    """An operation with PyTorch's `dtype`: its first argument is converted before."""

    @functools.wraps(function)
    def operation(*args: Any, dtype: Any = None, **kwargs: Any) -> Any:
        return function(*(args if dtype is None else (args[0].astype(dtype), *args[1:])), **kwargs)

    operation.__name__ = function.__name__
    return operation


class _Callable(Op):
    """What primitives and fused operations share: a signature, a name, a docstring, and what is kept for backward."""

    def __init__(self, function: Callable[..., Any], inputs: Sequence[str]):
        functools.update_wrapper(self, function)  # type: ignore[arg-type]
        self.name = function.__name__.rstrip("_")
        self.function = function
        self.signature = inspect.signature(function)
        self.parameters = list(self.signature.parameters)
        self.defaults = [p.default for p in self.signature.parameters.values()]
        self.inputs = tuple(inputs)
        self.positions = tuple(self.parameters.index(i) for i in inputs)

    def _want(self, name: str) -> tuple[str, str, int]:
        """What a rule names, as (name, what to keep, the place of the argument)."""
        if name == "out":
            return name, "out", 0
        if name.endswith("_shape") and name not in self.parameters:
            return name, "shape", self.parameters.index(name[: -len("_shape")])
        return name, "input" if name in self.inputs else "argument", self.parameters.index(name)

    def _keep(
        self, kept: dict[str, Any], wants: Sequence[tuple[str, str, int]], values: Sequence[Any], out: Any
    ) -> None:
        """Add what is wanted: Saved for Tensors and the result, the rest as it is."""
        for name, what, place in wants:
            if name in kept:
                continue
            if what == "out":
                kept[name] = Saved(out, "self")
                continue
            value = values[place]
            if what == "shape":
                kept[name] = np.shape(graph._raw(value))
            elif isinstance(value, TensorBase) or (what == "input" and isinstance(value, np.ndarray)):
                kept[name] = Saved(value)
            else:
                kept[name] = value

    def _open(self, value: Any, node: Node, create_graph: bool) -> Any:
        """What was saved, as an ndarray, or with create_graph as a Tensor at its place in the graph."""
        if type(value) is list:
            return [self._open(v, node, create_graph) for v in value]
        if type(value) is not Saved:
            return value
        if not create_graph:
            return value.array(self)
        return graph.at_edge(value.array(self), (node, 0)) if value.edge == "self" else value.tensor(self)

    def _bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
        if not kwargs and len(args) == len(self.parameters):
            return list(args)
        if not kwargs and self.defaults[len(args) : len(args) + 1] != [inspect.Parameter.empty]:
            return (
                list(args) + self.defaults[len(args) :] if len(args) <= len(self.parameters) else self._refuse(args, {})
            )
        kwargs = renamed(kwargs, self.parameters)
        try:
            bound = self.signature.bind(*args, **kwargs)
        except TypeError:
            return self._refuse(args, kwargs)
        bound.apply_defaults()
        return list(bound.arguments.values())

    def _refuse(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
        try:
            self.signature.bind(*args, **kwargs)
        except TypeError as error:
            raise TypeError(f"{self.name}{self.signature}: {error}") from None
        raise AssertionError("unreachable")

    def __repr__(self) -> str:
        return f"<operation {self.name}{self.signature}>"


class Primitive(_Callable):
    """An operation with one gradient rule per differentiable input (see this module's text)."""

    def __init__(
        self,
        function: Callable[..., Any],
        rules: dict[str, Callable[..., Any]],
        promote: bool = False,
        view: bool = False,
        several: bool = False,
        exact: bool = False,
    ):
        super().__init__(function, list(rules))
        self.promote, self.view, self.several, self.exact = promote, view, several, exact
        if promote:
            self.positions = tuple(i for i, name in enumerate(self.parameters) if name in "ab")
            self.inputs = tuple(name for name in self.parameters if name in "ab") if rules else ()
        self.variadic = bool(rules) and self.inputs[0] == self.parameters[0] == "tensors"
        self.rules = [(rules[i], _argument_names(rules[i])[1:]) for i in self.inputs]
        self.wants = [[self._want(name) for name in names if name != "i"] for _, names in self.rules]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        values = list(args) if not kwargs and len(args) == len(self.parameters) else self._bind(args, kwargs)
        members = list(values[0]) if self.variadic else values
        first = None
        for v in (*members, *values) if self.variadic else values:
            if isinstance(v, TensorBase):
                first = v
                break
        recorder = modes._recorder.get()
        if first is None:
            return self.function(*values) if recorder is None else recorder.traced(recorder.run(self.function, *values))
        arrays = [v._data if isinstance(v, TensorBase) else v for v in values]
        if self.promote:
            i, j = self.positions
            if values[i] is arrays[i] or values[j] is arrays[j]:  # one of them is no Tensor
                self._promote(values, first)
                arrays[i], arrays[j] = graph._raw(values[i]), graph._raw(values[j])
            if arrays[i].dtype is not arrays[j].dtype:
                self._match(arrays)
        if self.variadic:
            arrays[0] = [m._data if isinstance(m, TensorBase) else operand(m, first, self.name) for m in members]
        profile = modes._profile.get()
        if recorder is not None:
            recorder.given(values)
            recorder.given(arrays)
            result = recorder.run(self.function, *arrays)
        else:
            result = self.function(*arrays) if profile is None else profile.run(self, self.function, arrays)
        outs = list(result) if self.several else [np.asarray(result)]
        out = outs[0]
        if (
            out.dtype is _FLOAT64
            and not self.exact
            and not any(
                [isinstance(a, np.ndarray) and a.dtype == _FLOAT64 for a in (arrays[0] if self.variadic else arrays)]
            )
        ):
            out = outs[0] = modes.converted(out, _FLOAT32)  # numpy's answer to integers; ours is float32
        node = None
        if modes._grad_enabled.get() and self.inputs and out.dtype.kind == "f":
            candidates = members if self.variadic else [values[p] for p in self.positions]
            inputs = [t if isinstance(t, TensorBase) and t._requires_grad else None for t in candidates]
            if any([t is not None for t in inputs]):
                node = Node(self, inputs, outs)
                self._save(node, values, inputs, out)
                if profile is not None:
                    profile.recorded(node)
        storage = None
        if self.view and (out.base is not None or out is first._data) and np.may_share_memory(out, first._data):
            storage = first._storage
        results = graph.finish(self, node, values, outs, storage)
        if storage is not None and (first._node is not None or storage.in_graph):
            for result in results:  # of a leaf without history: a write before this view is no fault
                result._version = first._version
        if node is not None and "out" in node.saved:
            node.saved["out"].watch(results[0])
        return tuple(results) if self.several else results[0]

    def _promote(self, values: list[Any], first: TensorBase) -> None:
        """Give a scalar or ndarray among the two operands the Tensor's dtype."""
        i, j = self.positions
        a, b = values[i], values[j]
        if not isinstance(a, TensorBase):
            values[i] = operand(a, b if isinstance(b, TensorBase) else first, self.name)
        if not isinstance(b, TensorBase):
            values[j] = operand(b, a if isinstance(a, TensorBase) else first, self.name)

    def _match(self, arrays: list[Any]) -> None:
        """An integer or bool array meeting a float one takes its dtype (numpy would answer float64)."""
        i, j = self.positions
        a, b = arrays[i], arrays[j]
        if (a.dtype.kind == "f") != (b.dtype.kind == "f"):
            dtype = a.dtype if a.dtype.kind == "f" else b.dtype
            arrays[i], arrays[j] = modes.converted(a, dtype), modes.converted(b, dtype)

    def _save(self, node: Node, values: list[Any], inputs: Sequence[TensorBase | None], out: Array) -> None:
        """Keep what the needed rules name."""
        kept: dict[str, Any] = {}
        node.saved = kept
        if not self.variadic:
            for t, wants in zip(inputs, self.wants, strict=True):
                if t is not None and wants:
                    self._keep(kept, wants, values, out)
            return
        for name, what, place in self.wants[0]:
            if what == "input":
                kept[name] = [Saved(v) if isinstance(v, (TensorBase, np.ndarray)) else v for v in values[place]]
            elif what == "shape":
                kept[name] = [np.shape(graph._raw(v)) for v in values[place]]
            else:
                self._keep(kept, [(name, what, place)], values, out)

    def gradients(self, node: Node, grads: list[Any], needs: tuple[bool, ...], create_graph: bool) -> list[Any]:
        opened = {name: self._open(value, node, create_graph) for name, value in node.saved.items()}
        g = grads[0]
        if self.several:
            g = [full(m[0], 0, m[1]) if part is None else part for part, m in zip(grads, node.outputs, strict=True)]
        results: list[Any] = []
        recorder = None if create_graph else modes._recorder.get()
        for i, needed in enumerate(needs):
            rule, names = self.rules[0 if self.variadic else i]
            if not needed:
                results.append(None)
            else:
                named = [i if name == "i" else opened[name] for name in names]
                results.append(rule(g, *named) if recorder is None else recorder.run(rule, g, *named))
        return results


def primitive(
    *,
    promote: bool = False,
    view: bool = False,
    several: bool = False,
    exact: bool = False,
    **rules: Callable[..., Any],
) -> Callable[..., Primitive]:
    """Make an operation of a function on ndarrays; each keyword is the gradient rule of the input of that name.

    Args:
        promote: scalars and ndarrays among the inputs take the Tensors' dtype (binary arithmetic).
        view: the result may share the first input's memory, and then shares its version counter.
        several: the function returns a tuple of results, and `g` is the list of their gradients.
        exact: the result's dtype is meant, also where integers give float64.
    """
    return lambda function: Primitive(function, rules, promote, view, several, exact)


class Fused(_Callable):
    """An operation with kernels for forward and backward, and a definition made of primitives.

    `forward(*arguments) -> (out, saved)` works on ndarrays, and so does `backward(g, needs, ...) -> gradients`: one for
    each name in `inputs`, None where not needed. Behind g and needs, backward names what it needs, as a primitive's rule
    does: arguments, a `NAME_shape`, `out`, or `saved`. Only that is kept. `create_graph` differentiates the definition,
    evaluated again at the inputs; an input that backward does not name has no influence on the gradients, and zeros
    stand for it. `cheap`: the result, where large, is computed again for those who need it in backward; all
    inputs are kept then.
    """

    def __init__(
        self,
        definition: Callable[..., Any],
        inputs: Sequence[str],
        forward: Callable[..., Any],
        backward: Callable[..., Any],
        cheap: bool = False,
    ):
        super().__init__(definition, inputs)
        self.definition, self.forward, self.backward, self.cheap = definition, forward, backward, cheap
        self.names = _argument_names(backward)[2:]
        needed = dict.fromkeys([*self.names, *(inputs if cheap else ())])
        self.wants = [self._want(name) for name in needed if name != "saved"]
        self.unnamed = [(i, p) for i, p in enumerate(self.positions) if inputs[i] not in needed]
        self.constants = [i for i in range(len(self.parameters)) if i not in self.positions]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        values = args if not kwargs and len(args) == len(self.parameters) else self._bind(args, kwargs)
        if modes._reference.get():
            return self.definition(*values)
        arrays = [v._data if isinstance(v, TensorBase) else v for v in values]
        dtype = None
        for p in self.positions:
            a = arrays[p]
            if a is not None and (type(a) is not np.ndarray or a.dtype is not dtype):
                if dtype is not None or type(a) is not np.ndarray or a.dtype not in _FLOATS:
                    self._check_dtypes(arrays)
                    break
                dtype = a.dtype
        profile, recorder = modes._profile.get(), modes._recorder.get()
        if recorder is not None:
            recorder.given(values, self.name == "scaled_dot_product_attention")
            arrays = recorder.plain(arrays)
        out, saved = self.forward(*arrays) if profile is None else profile.run(self, self.forward, arrays)
        if recorder is not None:
            recorder.require(self.name, out)
        node = None
        inputs: list[Any] = []
        if modes._grad_enabled.get():
            given = [values[p] for p in self.positions]
            inputs = [t if isinstance(t, TensorBase) and t._requires_grad else None for t in given]
        if inputs and any([t is not None for t in inputs]):
            node = Node(self, inputs, [out])
            kept: dict[str, Any] = (
                {"saved": [Saved(s) if isinstance(s, np.ndarray) else s for s in saved]} if saved else {}
            )
            self._keep(kept, self.wants, values, out)
            for i, p in self.unnamed:
                if inputs[i] is None and values[p] is not None:  # for the definition, which may not do without it
                    kept[self.inputs[i]] = Saved(values[p])
            node.saved = kept
            node.static = [Saved(v) if isinstance(v, TensorBase) else v for v in [values[i] for i in self.constants]]
            if profile is not None:
                profile.recorded(node)
        else:
            for v in values:
                if isinstance(v, TensorBase):
                    break
            else:
                return out if recorder is None else recorder.traced(out)
        result = graph.finish(self, node, values, [out])[0]
        if node is not None and "out" in kept:
            kept["out"].watch(result)
        return result

    def _check_dtypes(self, arrays: Sequence[Any]) -> None:
        dtypes = [arrays[p].dtype for p in self.positions if isinstance(arrays[p], np.ndarray)]
        if all([d is _FLOAT32 for d in dtypes]) or all([d is _FLOAT64 for d in dtypes]):
            return
        named = {n: arrays[p].dtype for n, p in zip(self.inputs, self.positions, strict=True)
                 if isinstance(arrays[p], np.ndarray)}  # fmt: skip
        for name, dtype in named.items():
            if dtype.kind != "f":
                raise TypeError(f"{self.name}: {name} must be float32 or float64, got dtype {dtype}")
        if len(set(dtypes)) > 1:
            came = ", ".join(f"{n} is {d}" for n, d in named.items())
            raise TypeError(f"{self.name}: the inputs must share one dtype, got: {came}; convert with .to(dtype)")

    def gradients(self, node: Node, grads: list[Any], needs: tuple[bool, ...], create_graph: bool) -> list[Any]:
        if not create_graph:
            kept, recorder = node.saved, modes._recorder.get()
            opened = [self._open(kept.get(name, ()), node, False) for name in self.names]
            results = list(self.backward(grads[0], needs, *opened))
            if recorder is not None:
                recorder.require(f"backward of {self.name}", results)
            return results
        if any([isinstance(v, np.ndarray) for v in node.static]):
            modes.not_captured(f"create_graph through {self.name}, whose definition looks at ids or masks")
        return differentiate(self.definition, self._arguments(node, True), self.positions, needs, grads[0])

    def _arguments(self, node: Node, create_graph: bool) -> list[Any]:
        """The arguments that made this node, as ndarrays or as Tensors at their places."""
        values: list[Any] = [None] * len(self.parameters)
        for position, value in zip(self.constants, node.static, strict=True):
            values[position] = self._open(value, node, create_graph)
        for name, position, meta in zip(self.inputs, self.positions, node.metas, strict=True):
            if name in node.saved:
                values[position] = self._open(node.saved[name], node, create_graph)
            elif meta is not None:
                values[position] = graph._wrap(np.zeros(*meta), True)
        return values

    def again(self, node: Node) -> Array:
        return cast(Array, self.forward(*self._arguments(node, False))[0])


def differentiate(
    function: Callable[..., Any], values: Sequence[Any], positions: Sequence[int], needs: Sequence[bool], g: Any
) -> list[Any]:
    """The gradients of `function(*values)` at `positions`, as recorded Tensors that lead to the values and to `g`.

    The inputs enter through an identity each, at which this inner backward stops.
    """
    from .elementwise import identity

    with modes.enable_grad():
        stand_ins = list(values)
        wanted = [p for p, needed in zip(positions, needs, strict=True) if needed]
        for p in wanted:
            stand_ins[p] = identity(values[p])
        out = function(*stand_ins)
        found = graph.grad(out, [stand_ins[p] for p in wanted], g, create_graph=True, allow_unused=True)
    by_position = dict(zip(wanted, found, strict=True))
    return [by_position.get(p) for p in positions]


def fused(
    *inputs: str, forward: Callable[..., Any], backward: Callable[..., Any], cheap: bool = False
) -> Callable[[Callable[..., Any]], Fused]:
    """Make a fused operation of a definition (see `Fused`); `inputs` names its differentiable arguments."""
    return lambda definition: Fused(definition, inputs, forward, backward, cheap)


def normalize_dims(dim: Any, ndim: int, name: str) -> tuple[int, ...]:
    """`dim` (None for all, an int, or a sequence) as sorted non-negative axes; raises IndexError or ValueError."""
    if dim is None:
        return tuple(range(ndim))
    dims = (dim,) if isinstance(dim, (int, np.integer)) else tuple(dim)
    limit = max(ndim, 1)
    for d in dims:
        if not isinstance(d, (int, np.integer)) or isinstance(d, bool):
            raise TypeError(f"{name}: dim must be an integer or a tuple of them, got {dim!r}")
        if not -limit <= d < limit:
            raise IndexError(f"{name}: dim must be from {-limit} to {limit - 1} for a tensor of {ndim} axes, got {d}")
    axes = tuple(int(d) % limit for d in dims)
    if len(set(axes)) != len(axes):
        raise ValueError(f"{name}: an axis appears twice in dim={dim!r}")
    return cast(tuple[int, ...], tuple(sorted(axes)) if ndim else ())
