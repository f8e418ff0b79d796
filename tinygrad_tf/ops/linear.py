"""The affine map, bias added where the product is stored."""

from __future__ import annotations

import math
from typing import Any

from .. import kernels
from ..config import config
from .primitive import fused
from .products import matmul


def _product(a: Any, b: Any, shape: tuple[int, ...], bias: Any = None) -> Any:
    """a b (+ bias) for matrices a and b, as a new array of this shape."""
    if config.matmul == "numba":
        out = kernels.host.empty(shape, kernels.host.native(a.dtype))
        kernels.gemm.multiply(a, b, out.reshape(len(a), b.shape[1]), False, bias)
        return out
    out = a @ b
    return (out if bias is None else out + bias).reshape(shape)


def _forward(x: Any, weight: Any, bias: Any) -> Any:
    # x: (..., in), weight: (out, in), bias: (out,)
    if config.matmul == "numba":
        y = kernels.few_rows.rows_by_dots(x, weight, bias)
        if y is not None:
            return y, ()
    rows = x.reshape(math.prod(x.shape[:-1]), x.shape[-1])
    return _product(rows, weight.T, (*x.shape[:-1], len(weight)), bias), ()


def _backward(g: Any, needs: Any, x: Any, weight: Any) -> Any:
    n = math.prod(x.shape[:-1])
    rows, g_rows = x.reshape(n, x.shape[-1]), g.reshape(n, g.shape[-1])
    dx = _product(g_rows, weight, x.shape) if needs[0] else None
    dweight = _product(g_rows.T, rows, weight.shape) if needs[1] else None
    dbias = kernels.gemm.column_sums(g_rows) if needs[2] else None
    return dx, dweight, dbias


@fused("x", "weight", "bias", forward=_forward, backward=_backward)
def _linear(x: Any, weight: Any, bias: Any = None) -> Any:
    y = matmul(x, weight.mT)
    return y if bias is None else y + bias


_linear.name = "linear"


def linear(x: Any, weight: Any, bias: Any = None) -> Any:
    """x W^T + b: x (..., in), weight (out, in), bias (out,) -> (..., out).

    Raises ValueError for shapes that do not fit and TypeError for mixed dtypes.
    """
    sizes = weight.shape
    if len(sizes) != 2 or x.shape[-1:] != sizes[1:]:
        raise ValueError(
            f"linear: the last axis of x must match the last axis of weight (out, in), got x of shape {x.shape} and "
            f"weight of shape {weight.shape}"
        )
    if bias is not None and bias.shape != sizes[:1]:
        raise ValueError(f"linear: the bias must have shape {sizes[:1]}, got {bias.shape}")
    return _linear(x, weight, bias)
