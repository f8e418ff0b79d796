"""Derivatives of functions: products with the Jacobian, the Jacobian itself, the Hessian and products with it.

Names, arguments and shapes are those of PyTorch's `torch.autograd.functional`. `inputs` is a Tensor or a tuple of
Tensors; a function of several inputs is called as `func(*inputs)`, and may return a Tensor or a tuple of them. The
function is evaluated on copies outside any graph, so nothing reaches the `.grad` of the inputs or of anything else.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from . import graph, modes
from .graph import TensorBase
from .ops.shape import stack


def _tuple(values: Any) -> tuple[Any, ...]:
    return (values,) if isinstance(values, TensorBase) else tuple(values)


def _like(values: Sequence[Any], template: Any) -> Any:
    """One value for one Tensor, a tuple for a tuple."""
    return values[0] if isinstance(template, TensorBase) else tuple(values)


def _fresh(inputs: Any, create_graph: bool) -> tuple[Any, ...]:
    """The inputs as new places to differentiate at: leaves, or results that lead to the inputs with create_graph."""
    fresh = []
    for i, x in enumerate(_tuple(inputs)):
        if not isinstance(x, TensorBase) or x._data.dtype.kind != "f":
            came = f"dtype {x._data.dtype}" if isinstance(x, TensorBase) else type(x).__name__
            raise TypeError(f"func: input {i} must be a float32 or float64 Tensor, got {came}")
        y: Any = x
        fresh.append(y.view(y.shape) if create_graph and y.requires_grad else y.detach().requires_grad_())
    return tuple(fresh)


def _call(name: str, func: Callable[..., Any], inputs: tuple[Any, ...], scalar: bool = False) -> Any:
    outputs = func(*inputs)
    for out in _tuple(outputs) if isinstance(outputs, (TensorBase, tuple, list)) else (outputs,):
        if not isinstance(out, TensorBase):
            raise TypeError(f"{name}: the function must return Tensors, got {type(out).__name__}")
    if scalar and not (isinstance(outputs, TensorBase) and outputs._data.size == 1):
        came = f"shape {outputs._data.shape}" if isinstance(outputs, TensorBase) else f"{len(outputs)} outputs"
        raise ValueError(
            f"{name}: the function must return one number, got {came}; reduce it, for instance with .sum()"
        )
    return outputs


def _gradients(outputs: Sequence[Any], inputs: Sequence[Any], seeds: Sequence[Any], create_graph: bool) -> list[Any]:
    """The gradients, zeros for inputs that do not matter."""
    pairs = [(o, s) for o, s in zip(outputs, seeds, strict=True) if o._requires_grad]
    found: Sequence[Any] = [None] * len(inputs)
    if pairs:
        outs, cotangents = zip(*pairs, strict=True)
        found = graph.grad(outs, inputs, cotangents, retain_graph=True, create_graph=create_graph, allow_unused=True)
    return [x.detach() * 0.0 if g is None else g for x, g in zip(inputs, found, strict=True)]


def _weights(name: str, v: Any, values: Sequence[Any]) -> list[Any]:
    if v is None:
        if len(values) != 1 or values[0]._data.size != 1:
            shapes = ", ".join(str(x._data.shape) for x in values)
            raise ValueError(f"{name}: v may be left out only for a single number; pass v of shape {shapes}")
        return [graph._wrap(np.ones_like(values[0]._data))]
    weights = list(_tuple(v))
    if [w.shape for w in weights] != [x.shape for x in values]:
        expected, came = ([t.shape for t in ts] for ts in (values, weights))
        raise ValueError(f"{name}: v must have the shapes {expected}, got {came}")
    return weights


def _finish(values: Any, create_graph: bool) -> Any:
    """Results in no graph, unless one was asked for."""
    if isinstance(values, TensorBase):
        return values if create_graph else values.detach()  # type: ignore[attr-defined]
    return tuple(_finish(v, create_graph) for v in values)


def vjp(func: Callable[..., Any], inputs: Any, v: Any = None, create_graph: bool = False) -> tuple[Any, Any]:
    """(func(inputs), v^T J): the gradient of the outputs weighted by v, of the outputs' shapes; one backward pass.

    >>> import tinygrad_tf as tg
    >>> out, g = tg.func.vjp(lambda x: x**2, tg.tensor([1.0, 2.0]), tg.tensor([1.0, 10.0]))
    >>> g
    tensor([ 2., 40.])
    """
    with modes.enable_grad():
        fresh = _fresh(inputs, create_graph)
        outputs = _call("vjp", func, fresh)
        outs = _tuple(outputs)
        found = _gradients(outs, fresh, _weights("vjp", v, outs), create_graph)
    return _finish(outputs, create_graph), _finish(_like(found, inputs), create_graph)


def jvp(func: Callable[..., Any], inputs: Any, v: Any = None, create_graph: bool = False) -> tuple[Any, Any]:
    """(func(inputs), J v): the derivative of the outputs in the direction v, of the inputs' shapes.

    J^T u is linear in u, and J v is its gradient with respect to u: two backward passes.

    >>> import tinygrad_tf as tg
    >>> tg.func.jvp(lambda x: x.sum() * x, tg.tensor([1.0, 2.0]), tg.tensor([1.0, 0.0]))[1]
    tensor([4., 2.])
    """
    with modes.enable_grad():
        fresh = _fresh(inputs, create_graph)
        outputs = _call("jvp", func, fresh)
        outs = _tuple(outputs)
        weights = _weights("jvp", v, fresh)
        u = [graph._wrap(np.zeros_like(o._data), True) for o in outs]
        pulled = _gradients(outs, fresh, u, True)
        found = _gradients(pulled, u, weights, create_graph)
    return _finish(outputs, create_graph), _finish(_like(found, outputs), create_graph)


def jacobian(func: Callable[..., Any], inputs: Any, create_graph: bool = False) -> Any:
    """J[i..., j...] = d out[i...] / d x[j...], of the output's shape followed by the input's; one pass per element.

    For tuples of inputs or outputs: a tuple over the outputs of tuples over the inputs.

    >>> import tinygrad_tf as tg
    >>> tg.func.jacobian(lambda x: x**2, tg.tensor([1.0, 2.0]))
    tensor([[2., 0.],
            [0., 4.]])
    """
    with modes.enable_grad():
        fresh = _fresh(inputs, create_graph)
        outputs = _call("jacobian", func, fresh)
        blocks = [_like(_rows(out, fresh, create_graph), inputs) for out in _tuple(outputs)]
    return _finish(_like(blocks, outputs), create_graph)


def _rows(out: Any, inputs: Sequence[Any], create_graph: bool) -> list[Any]:
    """For each input the derivatives of every element of `out`."""
    basis = np.eye(out._data.size, dtype=out._data.dtype).reshape((out._data.size, *out.shape))
    rows = [_gradients([out], inputs, [graph._wrap(seed)], create_graph) for seed in basis]
    if not rows:
        return [graph._wrap(np.zeros((*out.shape, *x.shape), x.dtype)) for x in inputs]
    return [stack(column, 0).reshape((*out.shape, *column[0].shape)) for column in zip(*rows, strict=True)]


def hessian(func: Callable[..., Any], inputs: Any, create_graph: bool = False) -> Any:
    """H[i..., j...] = d^2 f / (d x[i...] d x[j...]) of a function with one number as its result.

    For a tuple of inputs: a tuple of tuples.

    >>> import tinygrad_tf as tg
    >>> tg.func.hessian(lambda x: (x**3).sum(), tg.tensor([1.0, 2.0]))
    tensor([[ 6.,  0.],
            [ 0., 12.]])
    """

    def slope(*fresh: Any) -> Any:
        out = _call("hessian", func, fresh, scalar=True)
        seed = graph._wrap(np.ones_like(out._data))
        return _like(_gradients([out], fresh, [seed], True), inputs)

    return jacobian(slope, inputs, create_graph)


def hvp(func: Callable[..., Any], inputs: Any, v: Any = None, create_graph: bool = False) -> tuple[Any, Any]:
    """(func(inputs), H v): the Hessian times v, of the inputs' shapes, without the Hessian: two backward passes.

    Source: Pearlmutter 1994, Fast Exact Multiplication by the Hessian, section 2.

    >>> import tinygrad_tf as tg
    >>> tg.func.hvp(lambda x: (x**3).sum(), tg.tensor([1.0, 2.0]), tg.tensor([1.0, 1.0]))[1]
    tensor([ 6., 12.])
    """
    with modes.enable_grad():
        fresh = _fresh(inputs, create_graph)
        out = _call("hvp", func, fresh, scalar=True)
        weights = _weights("hvp", v, fresh)
        slopes = _gradients([out], fresh, [graph._wrap(np.ones_like(out._data))], True)
        found = _gradients(slopes, fresh, weights, create_graph)
    return _finish(out, create_graph), _finish(_like(found, inputs), create_graph)
