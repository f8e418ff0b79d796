"""Matrix products. Both gradients of a product are products again."""

from __future__ import annotations

from typing import Any

import numpy as np

from .. import kernels
from ..config import config
from .primitive import primitive


def _product(a: Any, b: Any) -> Any:
    """The backend's product of two arrays of at least two axes."""
    return kernels.gemm.matmul(a, b) if config.matmul == "numba" and a.dtype.kind == "f" else np.matmul(a, b)


@primitive(a=lambda g, b: _matmul(g, b.mT), b=lambda g, a: _matmul(a.mT, g))
def _matmul(a: Any, b: Any) -> Any:
    # a: (..., M, K), b: (..., K, N) -> (..., M, N)
    return _product(a, b)


_matmul.name = "matmul"


def matmul(a: Any, b: Any) -> Any:
    """The matrix product, with batches broadcast; 1-D arguments are a row on the left and a column on the right.

        out[..., m, n] = sum over k of a[..., m, k] * b[..., k, n]

    Raises ValueError for shapes that do not fit, and TypeError for arguments of different dtypes.

    >>> import tinygrad_tf as tg
    >>> tg.matmul(tg.ones(2, 3), tg.ones(3)).shape
    (2,)
    """
    if a.ndim == 0 or b.ndim == 0:
        raise ValueError(f"matmul: both arguments need at least one axis, got shapes {a.shape} and {b.shape}")
    if a.dtype != b.dtype:
        raise TypeError(
            f"matmul: the arguments must share one dtype, got {a.dtype} and {b.dtype}; convert with .to(dtype)"
        )
    if a.shape[-1] != b.shape[-2 if b.ndim > 1 else 0]:
        raise ValueError(
            f"matmul: the last axis of a must match the {'second to last' if b.ndim > 1 else 'only'} axis of b, "
            f"got shapes {a.shape} and {b.shape}"
        )
    left = a.reshape((1, a.shape[0])) if a.ndim == 1 else a
    right = b.reshape((b.shape[0], 1)) if b.ndim == 1 else b
    if right.ndim == 2 and left.ndim > 2:  # one matrix for the whole batch: one large product
        out = _matmul(left.reshape((-1, left.shape[-1])) if 0 not in left.shape else left, right)
        out = out.reshape((*left.shape[:-1], right.shape[-1]))
    else:
        try:
            np.broadcast_shapes(left.shape[:-2], right.shape[:-2])
        except ValueError:
            raise ValueError(f"matmul: the batch axes do not broadcast, got shapes {a.shape} and {b.shape}") from None
        out = _matmul(left, right)
    if a.ndim == 1 and b.ndim == 1:
        return out.reshape(())
    if a.ndim == 1:
        return out.reshape((*out.shape[:-2], out.shape[-1]))
    return out.reshape(out.shape[:-1]) if b.ndim == 1 else out
