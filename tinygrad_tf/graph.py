"""The graph: what a Tensor is to the engine, how an operation is recorded, and how gradients flow back.

A `Node` is one recorded operation. It knows where its inputs came from (`edges`: a leaf Tensor, or a node and the number
of its output), never its own output, so there are no reference cycles: dropping the last Tensor frees the graph at once.

`backward` visits the nodes from the newest to the oldest. A node's number grows with time, so when a node is
visited, everything that used its outputs has been visited before, and its gradient is complete.
"""

from __future__ import annotations

import heapq
import itertools
import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from .arena import owns
from .hooks import HookHandle, run_hooks
from .modes import (
    Array,
    Mode,
    _anomaly,
    _grad_enabled,
    _packer,
    _profile,
    _recorder,
    _records,
    compute,
    converted,
    written,
)  # fmt: skip
from .recording import Record, check_finite, user_line
from .recording import record as record  # graph.record()

# -- tensors as the graph sees them ------------------------------------------------------------------------------------


class Storage:
    """What all views of one buffer share: how often it was written, and whether such a write is part of a graph."""

    __slots__ = ("version", "in_graph")

    def __init__(self) -> None:
        self.version = 0
        self.in_graph = False


class TensorBase:
    """An ndarray with its place in the graph. `tensor.Tensor` adds the methods and operators that people use."""

    __slots__ = ("_data", "_requires_grad", "grad", "_node", "_index", "_storage", "_version", "_hooks", "__weakref__")

    def __init__(self, data: Array, requires_grad: bool = False, storage: Storage | None = None):
        self._data = data
        self._requires_grad = requires_grad
        self.grad: Any = None
        self._node: Node | None = None
        self._index = 0
        if storage is None:
            storage = Storage.__new__(Storage)
            storage.version, storage.in_graph = 0, False
        self._storage = storage
        self._version = storage.version
        self._hooks: dict[int, Callable[[Any], Any]] | None = None

    def _bump(self) -> None:
        """Note that the buffer was written in place."""
        self._storage.version += 1
        self._version = self._storage.version

    def _edge(self) -> Edge:
        """Where this Tensor's gradient goes: None, a leaf, or an output of a node."""
        if not self._requires_grad:
            return None
        return self if self._node is None else (self._node, self._index)


Edge = TensorBase | tuple["Node", int] | None
_wrap: Callable[..., Any] = TensorBase


def set_tensor_class(cls: Callable[..., Any]) -> None:
    """Make operations return this class (called once, by `tensor`, which stands above the operations)."""
    global _wrap
    _wrap = cls


def _raw(value: Any) -> Any:
    return value._data if isinstance(value, TensorBase) else value


def at_edge(data: Array, edge: Edge) -> Any:
    """A Tensor with this value whose gradient goes to `edge`."""
    if isinstance(edge, TensorBase):
        if edge._data is data:
            return edge
        raise RuntimeError("a leaf that an operation saved was given another buffer before backward")
    tensor = _wrap(data, edge is not None)
    if edge is not None:
        tensor._node, tensor._index = edge
    return tensor


class Saved:
    """A buffer kept for backward, with the version it had: itself, or how to get it again (`unpack`)."""

    __slots__ = ("data", "storage", "version", "edge", "unpack")

    def __init__(self, tensor: TensorBase | Array, edge: Any = None):
        self.data: Any
        self.storage: Storage | None
        self.edge: Any
        self.unpack: Callable[[], Array] | None = None
        packer = _packer.get()
        if isinstance(tensor, TensorBase):
            node = tensor._node
            self.data, self.storage = tensor._data, tensor._storage
            self.version = tensor._storage.version
            self.edge = (tensor if node is None else (node, tensor._index)) if tensor._requires_grad else None
            if node is not None and node.op.cheap and packer is None and tensor._data.nbytes >= WORTH_COMPUTING_AGAIN:
                self.data, self.unpack = None, node.again
        else:
            self.data, self.storage, self.edge, self.version = tensor, None, edge, 0
        if packer is not None:
            self.unpack = packer(self.data)
            if self.unpack is not None:
                self.data = None

    def watch(self, tensor: TensorBase) -> None:
        """Note that `tensor` holds this buffer, an operation's result: a change of it must be seen."""
        self.storage, self.version = tensor._storage, tensor._storage.version

    def array(self, op: Op) -> Array:
        """The buffer; raises RuntimeError if it was written since."""
        if self.storage is not None and self.storage.version != self.version:
            shape = (self.data if self.unpack is None else self.unpack()).shape
            raise RuntimeError(
                f"backward of {op.name}: a tensor of shape {shape} that it needs was changed in place after the "
                f"forward (version {self.version} was saved, it is now at version {self.storage.version}); "
                "use the out-of-place operation, or clone() before the change"
            )
        return self.data if self.unpack is None else self.unpack()

    def tensor(self, op: Op) -> Any:
        """The value as a Tensor at its place in the graph."""
        return at_edge(self.array(op), self.edge)


# -- nodes and operations ----------------------------------------------------------------------------------------------

_counter = itertools.count()
_NOT_RECORDED = "(unknown line: run the forward inside tg.detect_anomaly() too)"

#: A result of this many bytes that is cheap to compute is not kept for those who need it in backward.
WORTH_COMPUTING_AGAIN = 4 << 20


class Node:
    """One recorded operation: its inputs' edges, shapes and dtypes, and what its gradient rules need."""

    __slots__ = ("op", "edges", "metas", "saved", "static", "number", "outputs", "hooks", "line", "__weakref__")

    def __init__(self, op: Op, inputs: Sequence[TensorBase | None], outputs: Sequence[Array]):
        edges: list[Edge] = []
        metas: list[Any] = []
        for t in inputs:
            if t is None:
                edges.append(None)
                metas.append(None)
                continue
            if t._version != t._storage.version:
                check_input(op.name, t)
            edges.append(t if t._node is None else (t._node, t._index))
            metas.append((t._data.shape, t._data.dtype))
        self.op = op
        self.edges, self.metas = tuple(edges), tuple(metas)
        self.outputs = tuple([(o.shape, o.dtype) for o in outputs])
        self.saved: Any = None
        self.static: Any = None
        self.number = next(_counter)
        self.hooks: dict[int, dict[int, Callable[[Any], Any]]] | None = None
        self.line = user_line() if _anomaly.get() else _NOT_RECORDED

    def __repr__(self) -> str:
        return f"<{self.op.name}>"

    def again(self) -> Array:
        """The result, computed again from what was saved."""
        self.check_saved()
        return self.op.again(self)

    def check_saved(self) -> None:
        """Raise RuntimeError if an earlier backward freed what was saved."""
        if self.saved is None:
            raise RuntimeError(
                f"backward of {self.op.name}: its saved values were freed by an earlier backward; "
                "call that one with retain_graph=True to go through the graph twice"
            )


class Op:
    """What a Node points to: a name and a way to compute the inputs' gradients from the outputs'."""

    name = "op"
    owns_gradients = True  # False when a gradient may be somebody else's buffer (a user's Function)
    cheap = False  # True when the result is sooner computed `again` in backward than kept until then

    def gradients(self, node: Node, grads: list[Any], needs: tuple[bool, ...], create_graph: bool) -> Sequence[Any]:
        raise NotImplementedError

    def again(self, node: Node) -> Array:
        """The result of the forward, from what the node saved; asked for only of what is `cheap`."""
        raise NotImplementedError


def check_input(name: str, t: TensorBase) -> None:
    """Raise RuntimeError for a Tensor whose buffer was written through another view: its history is not that of its values."""
    if t._version != t._storage.version and (t._node is not None or t._storage.in_graph):
        raise RuntimeError(
            f"{name}: a tensor of shape {t._data.shape} was changed in place through another view of the same memory "
            f"(it knows version {t._version}, the memory is at version {t._storage.version}), so its gradient would be "
            "wrong; make the view again after the change, or clone() before it"
        )


def finish(
    op: Op, node: Node | None, args: Sequence[Any], outputs: Sequence[Array], storage: Storage | None = None
) -> list[Any]:
    """Wrap an operation's results as Tensors (views: of this storage), and show them to whoever is watching."""
    results = []
    for data in outputs:
        results.append(_wrap(data, False, storage))
    if node is not None:
        for index, tensor in enumerate(results):
            if tensor._data.dtype.kind == "f":
                tensor._requires_grad, tensor._node, tensor._index = True, node, index
    if _anomaly.get():
        check_finite(op.name, outputs, args, user_line(), "the forward")
    records = _records.get()
    if records is not None:
        records.append(Record(op, args, results[0] if len(results) == 1 else results, user_line()))
    return results


def in_place(target: TensorBase, result: TensorBase, name: str) -> None:
    """Write `result` into `target`'s buffer, and give `target` its history: what `x += y` and `x[i] = y` end with."""
    if target._requires_grad and target._node is None and _grad_enabled.get():
        raise RuntimeError(
            f"{name}: a leaf tensor that requires grad cannot be changed in place while gradients are recorded; "
            "do it inside tg.no_grad(), or on a copy"
        )
    if result._data.shape != target._data.shape:
        raise ValueError(
            f"{name}: the result has shape {result._data.shape}, which does not fit the tensor's own shape "
            f"{target._data.shape}"
        )
    if not np.can_cast(result._data.dtype, target._data.dtype, "same_kind"):
        raise TypeError(
            f"{name}: a result of dtype {result._data.dtype} cannot be stored in a tensor of dtype {target._data.dtype}"
        )
    if not target._data.flags.writeable:
        raise ValueError(
            f"{name}: this tensor's memory is read-only (an expanded or a read-only array); clone() it first"
        )
    written(np.copyto, target._data, result._data)
    target._bump()
    if result._requires_grad:
        target._requires_grad, target._node, target._index = True, result._node, result._index
        target._storage.in_graph = True


# -- backward ----------------------------------------------------------------------------------------------------------


def sum_to(gradient: Any, shape: tuple[int, ...]) -> Any:
    """Undo broadcasting: sum the axes along which an input of `shape` was repeated."""
    extra = gradient.ndim - len(shape)
    axes = tuple(range(extra)) + tuple(
        i + extra for i, n in enumerate(shape) if n == 1 and gradient.shape[i + extra] != 1
    )
    return gradient.sum(axes).reshape(shape) if axes else gradient.reshape(shape)


class _Pending:
    """The gradient of one output so far. `own`: the buffer is ours alone, so it may be added into."""

    __slots__ = ("value", "own")

    def __init__(self, value: Any = None, own: bool = False) -> None:
        self.value = value
        self.own = own

    def add(self, value: Any, own: bool) -> None:
        if self.value is None:
            self.value, self.own = value, own
        elif isinstance(value, TensorBase) or isinstance(self.value, TensorBase):
            self.value = self.value + value
        elif self.own:
            self.value = compute(operator.iadd, self.value, value)
        elif own:
            self.value, self.own = compute(operator.iadd, value, self.value), True
        else:
            self.value, self.own = np.asarray(compute(operator.add, self.value, value)), True


def _leading_nodes(roots: Sequence[TensorBase], targets: set[Any]) -> set[Node]:
    """The nodes from which one of the target edges can be reached."""
    leading: set[Node] = set()
    nodes: dict[Node, None] = {}
    stack = [t._node for t in roots if t._node is not None]
    while stack:
        node = stack.pop()
        if node not in nodes:
            nodes[node] = None
            stack.extend(e[0] for e in node.edges if isinstance(e, tuple))
    for node in sorted(nodes, key=lambda n: n.number):
        for edge in node.edges:
            if isinstance(edge, tuple):
                if edge in targets or edge[0] in leading:
                    leading.add(node)
            elif edge is not None and id(edge) in targets:
                leading.add(node)
    return leading


def _key(tensor: TensorBase) -> Any:
    return id(tensor) if tensor._node is None else (tensor._node, tensor._index)


def run_backward(
    roots: Sequence[TensorBase],
    seeds: Sequence[Any],
    *,
    retain_graph: bool,
    create_graph: bool,
    inputs: Sequence[TensorBase] | None = None,
) -> list[Any]:
    """Carry the seeds (ndarrays, or Tensors with `create_graph`) back from the roots.

    Without `inputs`, gradients are added into the leaves' `.grad`. With `inputs`, their gradients are returned instead
    (None where the roots do not depend on one), and no `.grad` changes.
    """
    captured: dict[Any, _Pending] = {}
    targets = set() if inputs is None else {_key(t) for t in inputs}
    leading = None if inputs is None else _leading_nodes(roots, targets)
    pending: dict[Node, list[_Pending]] = {}
    leaves: dict[int, tuple[TensorBase, _Pending]] = {}
    heap: list[tuple[int, Node]] = []
    profile = _profile.get()

    def deliver(edge: Edge, value: Any, own: bool) -> None:
        if isinstance(edge, tuple):
            node, index = edge
            if leading is not None and node not in leading and edge not in targets:
                return
            slots = pending.get(node)
            if slots is None:
                heapq.heappush(heap, (-node.number, node))
                if len(node.outputs) == 1:
                    pending[node] = [_Pending(value, own)]
                    return
                slots = pending[node] = [_Pending() for _ in node.outputs]
            slots[index].add(value, own)
        elif edge is not None and (inputs is None or id(edge) in targets):
            found = leaves.get(id(edge))
            if found is None:
                leaves[id(edge)] = edge, _Pending(value, own)
            else:
                found[1].add(value, own)

    def wanted(edge: Edge) -> bool:
        if isinstance(edge, tuple):
            return edge in targets or edge[0] in (leading or ())
        return id(edge) in targets

    with Mode(_grad_enabled, create_graph), np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        for root, seed in zip(roots, seeds, strict=True):
            deliver(root._edge(), seed, False)
        while heap:
            node = heapq.heappop(heap)[1]
            slots = pending.pop(node)
            grads = [slot.value for slot in slots]
            if node.hooks or targets:
                for index in range(len(slots)):
                    if node.hooks and index in node.hooks and grads[index] is not None:
                        grads[index] = run_hooks(node.hooks[index], grads[index], _wrap)
                    if (node, index) in targets and grads[index] is not None:
                        captured.setdefault((node, index), _Pending()).add(grads[index], False)
            if leading is not None and node not in leading:
                continue
            node.check_saved()
            needs = tuple([e is not None and (leading is None or wanted(e)) for e in node.edges])
            compute = node.op.gradients if profile is None else profile.backward
            results = compute(node, grads, needs, create_graph)
            if _anomaly.get():
                check_finite(node.op.name, [r for r in results if r is not None], grads, node.line, "the backward")
            for edge, needed, meta, result in zip(node.edges, needs, node.metas, results, strict=True):
                if needed and result is not None:
                    deliver(edge, *_fit(node, result, meta, grads))
            if not retain_graph:
                node.saved = None
            del slots, grads, results
        for key, (leaf, slot) in leaves.items():
            value = run_hooks(leaf._hooks, slot.value, _wrap) if leaf._hooks else slot.value
            if inputs is None:
                _accumulate(leaf, value, slot.own and value is slot.value)
            else:
                captured.setdefault(key, _Pending()).add(value, slot.own)
    if inputs is None:
        return []
    return [_finished(captured[_key(t)]) if _key(t) in captured else None for t in inputs]


def _fit(node: Node, result: Any, meta: Any, grads: list[Any]) -> tuple[Any, bool]:
    """A rule's result in its input's shape and dtype, and whether its buffer is nobody else's."""
    shape, dtype = meta
    if type(result) is np.ndarray and result.shape == shape and result.dtype is dtype:
        own = owns(result) and node.op.owns_gradients and result.flags.writeable
        return result, own and result is not grads[0] and (len(grads) == 1 or not any([result is g for g in grads]))
    fitted = result if result.shape == shape else compute(sum_to, result, shape)
    if isinstance(fitted, TensorBase):
        return (fitted if fitted._data.dtype == dtype else fitted.to(dtype)), False  # type: ignore[attr-defined]
    fitted = converted(np.asarray(fitted), dtype)
    own = owns(fitted) and node.op.owns_gradients and fitted.flags.writeable
    return fitted, own and not any([fitted is g for g in grads])


def _finished(slot: _Pending) -> Any:
    if isinstance(slot.value, TensorBase):
        return slot.value
    return _wrap(slot.value if slot.own else np.array(slot.value))


def _accumulate(leaf: TensorBase, value: Any, own: bool) -> None:
    """Add a gradient into `leaf.grad`, which never shares memory with anything else."""
    recorder = _recorder.get()
    if recorder is not None:
        recorder.gradient(leaf, value, own)
    elif isinstance(value, TensorBase):
        leaf.grad = value if leaf.grad is None else leaf.grad + value
        if leaf.grad is value and value._node is None:
            leaf.grad = _wrap(value._data.copy(), value._requires_grad)
    elif leaf.grad is None:
        leaf.grad = _wrap(value if own and value.flags.c_contiguous else np.array(value, order="C"))
    elif leaf.grad._requires_grad or not leaf.grad._data.flags.writeable:
        leaf.grad = _wrap(np.asarray(leaf.grad._data + value))
    else:
        np.add(leaf.grad._data, value, out=leaf.grad._data)
        leaf.grad._bump()


def register_hook(tensor: TensorBase, hook: Callable[[Any], Any]) -> HookHandle:
    """Call `hook(gradient)` when the gradient of `tensor` is complete."""
    if not tensor._requires_grad:
        raise RuntimeError("register_hook: this tensor does not require grad, so no gradient would ever reach the hook")
    if tensor._node is None:
        tensor._hooks = {} if tensor._hooks is None else tensor._hooks
        return HookHandle(tensor._hooks, hook)
    if tensor._node.hooks is None:
        tensor._node.hooks = {}
    return HookHandle(tensor._node.hooks.setdefault(tensor._index, {}), hook)


# -- entry points ------------------------------------------------------------------------------------------------------


def _held(array: Array) -> Array:
    """A constant, known to a capture."""
    recorder = _recorder.get()
    if recorder is not None:
        recorder.hold(array)
    return array


def _seed(name: str, tensor: TensorBase, gradient: Any, create_graph: bool) -> Any:
    if gradient is None:
        if tensor._data.size != 1:
            raise RuntimeError(
                f"{name}: a gradient is created only for scalars, and this tensor has shape {tensor._data.shape}; "
                "pass gradient= of that shape, or reduce it first, for instance with .sum()"
            )
        gradient = _held(np.ones_like(tensor._data))
    if np.shape(_raw(gradient)) != tensor._data.shape:
        raise ValueError(
            f"{name}: the gradient must have the tensor's shape {tensor._data.shape}, got {np.shape(_raw(gradient))}"
        )
    if create_graph:
        return gradient if isinstance(gradient, TensorBase) else _wrap(np.asarray(gradient, dtype=tensor._data.dtype))
    return converted(_held(np.asarray(_raw(gradient))), tensor._data.dtype)


def backward(
    tensor: TensorBase, gradient: Any = None, retain_graph: bool | None = None, create_graph: bool = False
) -> None:
    """Add d(tensor)/d(leaf), weighted by `gradient` (default 1 for a scalar), into `.grad` of every leaf it depends on."""
    if not tensor._requires_grad:
        raise RuntimeError("backward: this tensor does not require grad and was not computed from one that does")
    keep = create_graph if retain_graph is None else retain_graph
    seed = _seed("backward", tensor, gradient, create_graph)
    run_backward([tensor], [seed], retain_graph=keep or create_graph, create_graph=create_graph)


def grad(
    outputs: Any,
    inputs: Any,
    grad_outputs: Any = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    allow_unused: bool = False,
) -> tuple[Any, ...]:
    """The gradients of `outputs` (weighted by `grad_outputs`) with respect to `inputs`; no `.grad` is touched.

    Args:
        outputs: a Tensor, or a sequence of them; inputs likewise.
        grad_outputs: one cotangent for each output, of its shape; None stands for 1 for a scalar.
        retain_graph: keep the graph for another pass (default: as create_graph).
        create_graph: record the backward pass, so that the result can be differentiated again.
        allow_unused: give None for an input that the outputs do not depend on, instead of RuntimeError.

    >>> import tinygrad_tf as tg
    >>> x = tg.tensor([2.0], requires_grad=True)
    >>> (slope,) = tg.grad(x**3, x, create_graph=True)
    >>> (curvature,) = tg.grad(slope, x)
    >>> slope.item(), curvature.item()
    (12.0, 12.0)
    """
    outs = [outputs] if isinstance(outputs, TensorBase) else list(outputs)
    ins = [inputs] if isinstance(inputs, TensorBase) else list(inputs)
    seeds = [None] * len(outs) if grad_outputs is None else grad_outputs
    seeds = [seeds] if isinstance(seeds, (TensorBase, np.ndarray)) else list(seeds)
    if len(seeds) != len(outs):
        raise ValueError(f"grad: {len(outs)} outputs need as many grad_outputs, got {len(seeds)}")
    for i, t in enumerate(ins):
        if not isinstance(t, TensorBase) or not t._requires_grad:
            raise RuntimeError(f"grad: input {i} does not require grad")
    pairs = [(o, _seed("grad", o, s, create_graph)) for o, s in zip(outs, seeds, strict=True) if o._requires_grad]
    if not pairs and not allow_unused:
        raise RuntimeError("grad: no output requires grad")
    keep = create_graph if retain_graph is None else retain_graph
    results = run_backward(
        [o for o, _ in pairs], [s for _, s in pairs], retain_graph=keep, create_graph=create_graph, inputs=ins
    )
    for i, result in enumerate(results):
        if result is None and not allow_unused:
            raise RuntimeError(
                f"grad: the outputs do not depend on input {i}; pass allow_unused=True to get None for it"
            )
    return tuple(results)
