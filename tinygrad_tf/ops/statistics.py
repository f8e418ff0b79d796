"""More reductions: sums that skip NaN, pairs of moments or extremes, and norms of every order."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from . import reductions
from .elementwise import abs, sign, where
from .primitive import normalize_dims
from .reductions import _prod, _sqrt_or_zero, amax, amin, mean, std, sum, var


class Extremes(NamedTuple):
    """The smallest and the largest element."""

    min: Any
    max: Any


def nansum(x: Any, dim: Any = None, keepdim: bool = False) -> Any:
    """The sum over `dim`, with NaN counted as 0."""
    return sum(where(x == x, x, 0), dim, keepdim)


def nanmean(x: Any, dim: Any = None, keepdim: bool = False) -> Any:
    """The mean over `dim` of the elements that are not NaN."""
    return nansum(x, dim, keepdim) / sum(x == x, dim, keepdim).astype(x.dtype)


def var_mean(
    x: Any, dim: Any = None, unbiased: bool | None = None, keepdim: bool = False, *, correction: int | None = 1
) -> tuple[Any, Any]:
    """The pair (variance, mean) over `dim`."""
    over = None if isinstance(dim, bool) else dim
    return var(x, dim, unbiased, keepdim, correction=correction), mean(x, over, keepdim)


def std_mean(
    x: Any, dim: Any = None, unbiased: bool | None = None, keepdim: bool = False, *, correction: int | None = 1
) -> tuple[Any, Any]:
    """The pair (standard deviation, mean) over `dim`."""
    over = None if isinstance(dim, bool) else dim
    return std(x, dim, unbiased, keepdim, correction=correction), mean(x, over, keepdim)


def aminmax(x: Any, *, dim: int | None = None, keepdim: bool = False) -> Extremes:
    """The pair (min, max) over `dim`, or over all; equal elements share the gradient evenly."""
    return Extremes(amin(x, dim, keepdim), amax(x, dim, keepdim))


def prod(x: Any, dim: Any = None, keepdim: bool = False) -> Any:
    """The product over `dim`, an integer, a tuple of them, or None for all; its gradient is right with zeros too."""
    if isinstance(dim, (int, np.integer)) or dim is None:
        return reductions.prod(x, None if dim is None else int(dim), keepdim)
    for axis in reversed(normalize_dims(dim, x.ndim, "prod")):
        x = _prod(x, axis, keepdim)
    return x


def vector_norm(x: Any, ord: float = 2, dim: Any = None, keepdim: bool = False) -> Any:
    """(sum |x|^ord)^(1/ord) over `dim`; for ord inf, -inf and 0: the largest, the smallest, and how many are not 0.

    Where the gradient does not exist (at 0) it is 0.
    """
    if ord == 2:
        return _sqrt_or_zero(sum(x * x, dim, keepdim))
    size = abs(x)
    if ord == 1:
        return sum(size, dim, keepdim)
    if ord in (float("inf"), -float("inf")):
        return (amax if ord > 0 else amin)(size, dim, keepdim)
    if ord == 0:
        return sum(abs(sign(x)), dim, keepdim)
    total = sum(where(size == 0, 0.0 if ord > 0 else float("inf"), where(size == 0, 1.0, size) ** ord), dim, keepdim)
    flat = (total == 0) | (total == float("inf"))
    return where(flat, 0.0, where(flat, 1.0, total) ** (1.0 / ord))


def norm(x: Any, p: Any = "fro", dim: Any = None, keepdim: bool = False) -> Any:
    """The p-norm of the elements over `dim`, p a number, or "fro" (the default) for 2; see `vector_norm`."""
    if isinstance(p, str) and p != "fro":
        raise ValueError(f'norm: p must be a number or "fro", got {p!r}')
    return vector_norm(x, 2 if p in ("fro", None) else p, dim, keepdim)


def dist(a: Any, b: Any, p: float = 2) -> Any:
    """The p-norm of a - b."""
    return vector_norm(a - b, p)
