"""Sums, means, extremes and their relatives along axes. `dim`: None for all axes, an integer, or a tuple of them."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from .elementwise import abs, constant, exp, log, maximum, sqrt, where
from .primitive import normalize_dims, primitive


class Selected(NamedTuple):
    """The elements that an operation chose along an axis, and where they stand."""

    values: Any
    indices: Any


def _expand(g: Any, x_shape: tuple[int, ...], dim: Any, keepdim: bool) -> Any:
    """A reduced gradient, broadcast back over the axes that were summed."""
    if not keepdim:
        axes = normalize_dims(dim, len(x_shape), "sum")
        g = g.reshape(tuple(1 if i in axes else n for i, n in enumerate(x_shape)))
    return broadcast_to(g, x_shape)


@primitive(x=lambda g: g, view=True)  # summing over the repeated axes is the driver's
def broadcast_to(x: Any, shape: Any) -> Any:
    """x repeated along new axes and axes of length 1, without copying."""
    return np.broadcast_to(x, shape)


@primitive(x=lambda g, x_shape, dim, keepdim: _expand(g, x_shape, dim, keepdim))
def sum(x: Any, dim: Any = None, keepdim: bool = False) -> Any:
    """The sum over `dim`; booleans and integers give int64."""
    return _total(x, normalize_dims(dim, x.ndim, "sum"), keepdim)


def _total(x: Any, axes: tuple[int, ...], keepdim: bool) -> Any:
    """x summed over axes. numpy adds pairwise only along the last one, so for others long sums run in float64."""
    if x.dtype.kind in "bi":
        return x.sum(axis=axes, keepdims=keepdim, dtype=np.int64)
    if x.dtype == np.float32 and x.size > 4096 and axes not in ((x.ndim - 1,), tuple(range(x.ndim))):
        return x.sum(axis=axes, keepdims=keepdim, dtype=np.float64).astype(np.float32)
    return x.sum(axis=axes, keepdims=keepdim)


def _count(shape: tuple[int, ...], dim: Any) -> int:
    return int(np.prod([shape[a] for a in normalize_dims(dim, len(shape), "mean")], dtype=np.int64))


@primitive(x=lambda g, x_shape, dim, keepdim: _expand(g, x_shape, dim, keepdim) * (1.0 / (_count(x_shape, dim) or 1)))
def mean(x: Any, dim: Any = None, keepdim: bool = False) -> Any:
    """The mean over `dim`; integers give float32."""
    axes = normalize_dims(dim, x.ndim, "mean")
    with np.errstate(invalid="ignore", divide="ignore"):
        total = _total(x if x.dtype.kind == "f" else x.astype(np.float64), axes, keepdim)
        return np.asarray(total / np.asarray(_count(x.shape, dim), total.dtype))


def var(
    x: Any, dim: Any = None, unbiased: bool | None = None, keepdim: bool = False, *, correction: int | None = 1
) -> Any:
    """The variance over `dim`: the sum of (x - mean)^2, divided by the count less `correction`.

    `unbiased=False` is correction 0, and `var(x, False)` too. With nothing left to divide by, the result is NaN.
    """
    dim, unbiased = (None, dim) if isinstance(dim, bool) else (dim, unbiased)
    correction = int(unbiased) if unbiased is not None else 1 if correction is None else correction
    count = _count(x.shape, dim) - correction
    centered = x - mean(x, dim, True)
    return sum(centered * centered, dim, keepdim) * (1.0 / count if count > 0 else float("nan"))


@primitive(x=lambda g, out: where(out == 0, 0.0, g / (2.0 * where(out == 0, 1.0, out))))
def _sqrt_or_zero(x: Any) -> Any:
    """The square root with slope 0 at 0, for norms and deviations."""
    return np.sqrt(x)


def std(
    x: Any, dim: Any = None, unbiased: bool | None = None, keepdim: bool = False, *, correction: int | None = 1
) -> Any:
    """The square root of `var`, with subgradient 0 where it is 0."""
    return _sqrt_or_zero(var(x, dim, unbiased, keepdim, correction=correction))


def norm(x: Any, p: float = 2.0, dim: Any = None, keepdim: bool = False) -> Any:
    """The p-norm over `dim`, (sum |x|^p)^(1/p), for p = 1, 2 or inf and others; its subgradient at 0 is 0."""
    if p == 2:
        return _sqrt_or_zero(sum(x * x, dim, keepdim))
    if p == 1:
        return sum(abs(x), dim, keepdim)
    if p == float("inf"):
        return amax(abs(x), dim, keepdim)
    total = sum(abs(x) ** p, dim, keepdim)
    return where(total == 0, 0.0, where(total == 0, 1.0, total) ** (1.0 / p))


def _ties(g: Any, x: Any, out: Any, dim: Any, keepdim: bool) -> Any:
    """The gradient of an extreme, split evenly among the elements that attain it."""
    attained = x == _expand(out, x.shape, dim, keepdim)
    count = sum(attained.astype(np.int64), dim, True)
    return where(attained, _expand(g, x.shape, dim, keepdim) / where(count == 0, 1, count).astype(x.dtype), 0.0)


@primitive(x=lambda g, x, out, dim, keepdim: _ties(g, x, out, dim, keepdim))
def amax(x: Any, dim: Any = None, keepdim: bool = False) -> Any:
    """The largest element over `dim`; equal ones share the gradient evenly. NaN wins."""
    return x.max(axis=normalize_dims(dim, x.ndim, "amax"), keepdims=keepdim)


@primitive(x=lambda g, x, out, dim, keepdim: _ties(g, x, out, dim, keepdim))
def amin(x: Any, dim: Any = None, keepdim: bool = False) -> Any:
    """The smallest element over `dim`; equal ones share the gradient evenly. NaN wins."""
    return x.min(axis=normalize_dims(dim, x.ndim, "amin"), keepdims=keepdim)


@primitive()
def argmax(x: Any, dim: int | None = None, keepdim: bool = False) -> Any:
    """The index of the largest element along `dim` (None: of the flattened tensor); the first one if several tie."""
    if dim is not None:
        normalize_dims(dim, x.ndim, "argmax")
    return np.asarray(x.argmax(axis=dim if x.ndim else None, keepdims=keepdim), dtype=np.int64)


@primitive()
def argmin(x: Any, dim: int | None = None, keepdim: bool = False) -> Any:
    """The index of the smallest element along `dim` (None: of the flattened tensor); the first one if several tie."""
    if dim is not None:
        normalize_dims(dim, x.ndim, "argmin")
    return np.asarray(x.argmin(axis=dim if x.ndim else None, keepdims=keepdim), dtype=np.int64)


def _extreme(x: Any, other: Any, keepdim: bool, over_all: Any, along: Any, binary: Any) -> Any:
    if other is None:
        return over_all(x)
    if not isinstance(other, (int, np.integer)) or isinstance(other, bool):
        return binary(x, other)
    from .indexing import take_along_dim

    indices = along(x, other, True)
    if x.ndim == 0:
        return Selected(x * 1, indices)
    values = take_along_dim(x, indices, int(other))
    return Selected(values, indices) if keepdim else Selected(values.squeeze(other), indices.squeeze(other))


def max(x: Any, dim: Any = None, keepdim: bool = False) -> Any:
    """The largest element of all (ties share the gradient), or with `dim` the pair (values, indices) along it.

    Along an axis the first of several equal elements is chosen and gets the gradient. With a Tensor as the second
    argument: `maximum`.
    """
    return _extreme(x, dim, keepdim, amax, argmax, maximum)


def min(x: Any, dim: Any = None, keepdim: bool = False) -> Any:
    """The smallest element of all, or with `dim` the pair (values, indices) along it: see `max`."""
    from .elementwise import minimum

    return _extreme(x, dim, keepdim, amin, argmin, minimum)


@primitive()
def any(x: Any, dim: Any = None, keepdim: bool = False) -> Any:
    """Whether an element over `dim` is true."""
    return x.any(axis=normalize_dims(dim, x.ndim, "any"), keepdims=keepdim)


@primitive()
def all(x: Any, dim: Any = None, keepdim: bool = False) -> Any:
    """Whether every element over `dim` is true."""
    return x.all(axis=normalize_dims(dim, x.ndim, "all"), keepdims=keepdim)


@primitive(x=lambda g, dim: flip(cumsum(flip(g, dim), dim), dim))
def cumsum(x: Any, dim: int) -> Any:
    """The running sum along `dim`."""
    (axis,) = normalize_dims(dim, x.ndim, "cumsum") or (0,)
    return x.cumsum(axis=axis, dtype=np.int64 if x.dtype.kind in "bi" else None) if x.ndim else x.copy()


@primitive(x=lambda g, dims: flip(g, dims))
def flip(x: Any, dims: Any) -> Any:
    """x in reverse order along `dims`."""
    return np.flip(x, normalize_dims(dims, x.ndim, "flip"))


def prod(x: Any, dim: int | None = None, keepdim: bool = False) -> Any:
    """The product over `dim` (None: over all); its gradient is right with zeros too."""
    if x.ndim == 0:
        normalize_dims(dim, 0, "prod")
        return x * 1
    if dim is None:
        flat = _prod(x.reshape(-1), 0, keepdim)
        return flat.reshape((1,) * x.ndim) if keepdim else flat
    return _prod(x, dim, keepdim)


@primitive(x=lambda g, x, dim, keepdim: _expand(g, x.shape, dim, keepdim) * _others(x, dim))
def _prod(x: Any, dim: int, keepdim: bool = False) -> Any:
    normalize_dims(dim, x.ndim, "prod")
    return x.prod(axis=dim, keepdims=keepdim)


def _others(x: Any, dim: int) -> Any:
    """For each element the product of all the others along `dim`: the product before it times the product after it."""
    from .scan import _before, cumprod

    return _before(cumprod(x, dim), dim, 1.0) * flip(_before(cumprod(flip(x, dim), dim), dim, 1.0), dim)


def logsumexp(x: Any, dim: Any, keepdim: bool = False) -> Any:
    """log(sum(exp(x))) over `dim`, safe from overflow; all -inf gives -inf with zero gradient."""
    peak = amax(constant(x), dim, True)
    peak = where(abs(peak) == float("inf"), 0.0, peak)
    total = sum(exp(x - peak), dim, True)
    out = where(total == 0, float("-inf"), log(where(total == 0, 1.0, total)) + peak)
    return out if keepdim else out.reshape(sum(peak, dim).shape)


__all__ = [
    "all", "amax", "amin", "any", "argmax", "argmin", "broadcast_to", "cumsum", "flip", "logsumexp", "max", "mean", "min",
    "norm", "prod", "Selected", "sqrt", "std", "sum", "var",
]  # fmt: skip
