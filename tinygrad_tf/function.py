"""`Function`, for operations of one's own with a backward of one's own, and `checkpoint`, which trades time for memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from . import graph, modes, rng
from .graph import Array, Node, Op, Saved, TensorBase


class Context:
    """What `forward` may leave for `backward`: attributes of any name, and tensors through `save_for_backward`."""

    def __init__(self, op: Op, needs: tuple[bool, ...]):
        self._op = op
        self._node: Any = None
        self.needs_input_grad = needs
        self._to_save: tuple[TensorBase | None, ...] = ()
        self._saved: list[Any] | None = None
        self._no_grad_ids: set[int] = set()

    def save_for_backward(self, *tensors: TensorBase | None) -> None:
        """Keep inputs or outputs for `backward`, where they are `ctx.saved_tensors`."""
        for t in tensors:
            if t is not None and not isinstance(t, TensorBase):
                raise TypeError(
                    f"save_for_backward: expected Tensors, got {type(t).__name__}; "
                    "other values can be kept as attributes of ctx"
                )
        self._to_save = tensors

    def mark_non_differentiable(self, *outputs: TensorBase) -> None:
        """Say that these outputs have no gradient."""
        self._no_grad_ids |= {id(o) for o in outputs}

    @property
    def saved_tensors(self) -> tuple[Any, ...]:
        """The tensors kept by `save_for_backward`."""
        if self._saved is None:
            return self._to_save
        opened = []
        for saved in self._saved:
            if isinstance(saved, Saved) and isinstance(saved.edge, tuple) and saved.edge[0] is None:
                opened.append(graph.at_edge(saved.array(self._op), (self._node, saved.edge[1])))
            else:
                opened.append(saved.tensor(self._op) if saved is not None else None)
        return tuple(opened)


class _FunctionOp(Op):
    owns_gradients = False

    def __init__(self, function: type[Function]):
        self.function, self.name = function, function.__name__

    def gradients(self, node: Node, grads: list[Any], needs: tuple[bool, ...], create_graph: bool) -> Sequence[Any]:
        ctx, positions = node.saved, node.static
        ctx._node = node
        probes = []
        for g, (shape, dtype) in zip(grads, node.outputs, strict=True):
            t = g if isinstance(g, TensorBase) else graph._wrap(np.zeros(shape, dtype) if g is None else g)
            if create_graph and not t._requires_grad:  # to see below whether the result depends on it
                t = graph._wrap(t._data, True)
            probes.append(t)
        try:
            results = self.function.backward(ctx, *probes)
        finally:
            ctx._node = None
        results = results if isinstance(results, tuple) else (results,)
        if len(results) < len(ctx.needs_input_grad):
            raise RuntimeError(
                f"{self.name}.backward must return one gradient for each of the {len(ctx.needs_input_grad)} "
                f"arguments of forward (None where there is none), got {len(results)}"
            )
        out: list[Any] = []
        for i, position in enumerate(positions):
            r = results[position]
            if r is None or not needs[i]:
                out.append(None)
                continue
            if not isinstance(r, TensorBase):
                raise TypeError(
                    f"{self.name}.backward: gradient {position} must be a Tensor or None, got {type(r).__name__}"
                )
            meta = node.metas[i]
            if meta is not None and r._data.shape != meta[0] and not _broadcasts(meta[0], r._data.shape):
                raise ValueError(
                    f"{self.name}.backward: gradient {position} must have the shape {meta[0]} of its input, "
                    f"got {r._data.shape}"
                )
            if create_graph and not r._requires_grad:
                raise NotImplementedError(
                    f"{self.name}.backward computes outside the graph, so it cannot be differentiated "
                    "again (create_graph); write it with operations on Tensors"
                )
            out.append(r if create_graph else r._data)
        return out


def _broadcasts(shape: tuple[int, ...], larger: tuple[int, ...]) -> bool:
    try:
        return np.broadcast_shapes(shape, larger) == larger
    except ValueError:
        return False


class Function:
    """An operation of one's own: subclass it with static `forward(ctx, *args)` and `backward(ctx, *grads)`.

    `apply(*args)` runs `forward` without recording and remembers to call `backward`, which gets the gradient of each
    output and returns one for each argument of `forward` (None for those that have none). Written with operations on
    Tensors, `backward` can itself be differentiated.

    >>> import tinygrad_tf as tg
    >>> class Square(tg.Function):
    ...     @staticmethod
    ...     def forward(ctx, x):
    ...         ctx.save_for_backward(x)
    ...         return x * x
    ...     @staticmethod
    ...     def backward(ctx, g):
    ...         (x,) = ctx.saved_tensors
    ...         return 2 * x * g
    >>> x = tg.tensor([3.0], requires_grad=True)
    >>> Square.apply(x).backward()
    >>> x.grad.item()
    6.0
    """

    @staticmethod
    def forward(ctx: Any, *args: Any) -> Any:
        raise NotImplementedError("a Function needs a static method forward(ctx, *args)")

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        raise NotImplementedError("a Function needs a static method backward(ctx, *grads)")

    @classmethod
    def apply(cls, *args: Any) -> Any:
        """Run `forward` on the arguments and record it."""
        op = _FunctionOp(cls)
        positions = [i for i, a in enumerate(args) if isinstance(a, TensorBase)]
        inputs = [args[i] if args[i]._requires_grad else None for i in positions]
        needs = tuple(isinstance(a, TensorBase) and a._requires_grad for a in args)
        ctx = Context(op, needs)
        with modes.no_grad():
            result = cls.forward(ctx, *args)
        single = not isinstance(result, tuple)
        outputs = (result,) if single else result
        for o in outputs:
            if not isinstance(o, TensorBase):
                raise TypeError(
                    f"{cls.__name__}.forward must return a Tensor or a tuple of them, got {type(o).__name__}"
                )
        node = None
        if modes.is_grad_enabled() and any(needs):
            node = Node(op, inputs, [o._data for o in outputs])
            node.static = positions
            kept: list[Any] = []
            for t in ctx._to_save:
                saved = None if t is None else Saved(t)
                for i, o in enumerate(outputs):
                    if t is o and saved is not None:
                        saved.edge = (None, i)
                kept.append(saved)
            ctx._saved, ctx._to_save, node.saved = kept, (), ctx
        # an input that forward returned unchanged becomes a place of its own in the graph
        arrays = [o._data for o in outputs]
        results = graph.finish(op, node, args, arrays)
        for wrapped, o in zip(results, outputs, strict=True):
            if id(o) in ctx._no_grad_ids:
                wrapped._requires_grad, wrapped._node = False, None
            wrapped._storage, wrapped._version = o._storage, o._storage.version
        return results[0] if single else tuple(results)


class _Recompute:
    """The buffers that a checkpointed stretch needs in backward, computed again when the first is asked for."""

    def __init__(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]):
        self.function, self.kwargs = function, kwargs
        self.args = [(a, a._storage, a._storage.version) if isinstance(a, TensorBase) else a for a in args]
        self.rng = rng.get_rng_state()
        self.count = 0
        self.values: dict[int, Array] = {}

    def pack(self, data: Array) -> Callable[[], Array]:
        index = self.count
        self.count += 1
        return lambda: self.value(index)

    def value(self, index: int) -> Array:
        if index not in self.values:
            self.run()
        return self.values.pop(index)

    def run(self) -> None:
        args = []
        for a in self.args:
            if isinstance(a, tuple) and len(a) == 3 and isinstance(a[0], TensorBase):
                tensor, storage, version = a
                if storage.version != version:
                    raise RuntimeError(
                        f"checkpoint: an argument of shape {tensor._data.shape} was changed in place after the "
                        f"forward (version {version} was used, it is now at version {storage.version})"
                    )
                a = tensor if not tensor._requires_grad else graph._wrap(tensor._data, True)
            args.append(a)
        seen = 0

        def collect(data: Array) -> None:
            nonlocal seen
            self.values[seen] = data
            seen += 1

        now = rng.get_rng_state()
        rng.set_rng_state(self.rng)
        try:
            with modes.enable_grad(), modes.Mode(modes._packer, collect):
                self.function(*args, **self.kwargs)
        finally:
            rng.set_rng_state(now)
        if seen != self.count:
            raise RuntimeError(
                f"checkpoint: the function saved {self.count} buffers at first and {seen} when it was run again; "
                "it must do the same every time"
            )


def checkpoint(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """`function(*args, **kwargs)`, keeping nothing inside it for backward: it is run again when backward comes to it.

    Trades one more forward for the memory of the activations. Values and gradients are those without it, bit for bit:
    dropout masks are drawn again from the same state. The function must do the same each time it is called.

    >>> import tinygrad_tf as tg
    >>> x = tg.tensor([1.0, 2.0], requires_grad=True)
    >>> tg.checkpoint(lambda x: tg.exp(x).sum(), x).backward()
    >>> bool((x.grad == tg.exp(x)).all())
    True
    """
    if not modes.is_grad_enabled():
        return function(*args, **kwargs)
    frame = _Recompute(function, args, kwargs)
    with modes.Mode(modes._packer, frame.pack):
        return function(*args, **kwargs)
