"""The affine map, bias added where the product is stored."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from .. import kernels
from ..config import config
from .primitive import fused
from .products import _product, matmul


def _forward(x: Any, weight: Any, bias: Any) -> Any:
    # x: (..., in), weight: (out, in), bias: (out,)
    rows = x.reshape(math.prod(x.shape[:-1]), x.shape[-1])
    shape = (*x.shape[:-1], len(weight))
    if config.matmul == "numba":
        out = np.empty(shape, x.dtype.newbyteorder("="))
        kernels.gemm.multiply(rows, weight.T, out.reshape(len(rows), len(weight)), False, bias)
    else:
        out = (rows @ weight.T if bias is None else rows @ weight.T + bias).reshape(shape)
    return out, ()


def _backward(g: Any, needs: Any, x: Any, weight: Any) -> Any:
    n = math.prod(x.shape[:-1])
    rows, g_rows = x.reshape(n, x.shape[-1]), g.reshape(n, g.shape[-1])
    dx = _product(g_rows, weight, x.shape) if needs[0] else None
    dweight = _product(g_rows.T, rows) if needs[1] else None
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
    if weight.ndim != 2 or x.ndim < 1 or x.shape[-1] != weight.shape[1]:
        raise ValueError(
            f"linear: the last axis of x must match the last axis of weight (out, in), got x of shape {x.shape} and "
            f"weight of shape {weight.shape}"
        )
    if bias is not None and bias.shape != (weight.shape[0],):
        raise ValueError(f"linear: the bias must have shape ({weight.shape[0]},), got {bias.shape}")
    return _linear(x, weight, bias)
