"""Running products, extremes and sums of exponentials along an axis: all of them are linear recurrences or choices."""

from __future__ import annotations

from typing import Any

import numpy as np

from .comparison import ne
from .elementwise import exp, where
from .indexing import gather
from .primitive import normalize_dims, primitive
from .reductions import Selected, flip
from .shape import cat, narrow


@primitive(
    a=lambda g, b, dim: _later(g, b, dim),
    b=lambda g, b, out, dim: _later(g, b, dim) * _before(out, dim, 0.0),
)
def _recurrence(a: Any, b: Any, dim: int) -> Any:
    """h[t] = a[t] + b[t] h[t-1] along `dim`, with h[-1] = 0."""
    h, multiply = np.moveaxis(a.copy(), dim, 0), np.moveaxis(b, dim, 0)
    for t in range(1, len(h)):
        h[t] += multiply[t] * h[t - 1]
    return np.moveaxis(h, 0, dim)


def _later(g: Any, b: Any, dim: int) -> Any:
    """The transpose of the recurrence: s[t] = g[t] + b[t+1] s[t+1], the same recurrence backwards."""
    return flip(_recurrence(flip(g, dim), _before(flip(b, dim), dim, 0.0), dim), dim)


def _before(x: Any, dim: int, first: float) -> Any:
    """x moved one place along `dim`, beginning with `first`."""
    if x.shape[dim] == 0:
        return x
    start = np.full_like(getattr(x, "_data", x).take([0], dim), first)
    return cat([start, narrow(x, dim, 0, x.shape[dim] - 1)], dim)


def _axis(x: Any, dim: int, name: str) -> int:
    (axis,) = normalize_dims(dim, x.ndim, name)
    return axis


def cumprod(x: Any, dim: int) -> Any:
    """The running product along `dim`; its gradient is right with zeros too."""
    if x.ndim == 0:
        return x * 1
    axis = _axis(x, dim, "cumprod")
    if x.dtype.kind != "f":
        return _integer_cumprod(x, axis)
    place = np.arange(x.shape[axis]).reshape((-1,) + (1,) * (x.ndim - 1 - axis))
    return _recurrence(where(place == 0, x, 0.0), x, axis)  # h[0] = x[0], and then h[t] = x[t] h[t-1]


@primitive()
def _integer_cumprod(x: Any, dim: int) -> Any:
    return x.cumprod(axis=dim, dtype=np.int64)


@primitive(x=lambda g, x, out, dim: exp(x - _finite(out)) * _later(g, _decay(out, dim), dim))
def _logcumsumexp(x: Any, dim: int) -> Any:
    return np.logaddexp.accumulate(x, axis=dim)


def _decay(out: Any, dim: int) -> Any:
    """e^(out[t-1] - out[t]): the part of the running sum that stood before t."""
    return exp(_before(out, dim, float("-inf")) - _finite(out))


_integer_cumprod.name, _logcumsumexp.name = "cumprod", "logcumsumexp"


def _finite(x: Any) -> Any:
    """x with 0 for -inf, so that e^(-inf - x) is 0."""
    return where(x == float("-inf"), 0.0, x)


def logcumsumexp(x: Any, dim: int) -> Any:
    """log of the running sum of e^x along `dim`, safe from overflow."""
    return x * 1.0 if x.ndim == 0 else _logcumsumexp(x, _axis(x, dim, "logcumsumexp"))


@primitive()
def _last_extreme(x: Any, dim: int, largest: bool) -> Any:
    """The index of the running extreme: the last of equal ones, and the last NaN once there was one."""
    running = (np.maximum if largest else np.minimum).accumulate(x, axis=dim)
    place = np.arange(x.shape[dim]).reshape((-1,) + (1,) * (x.ndim - 1 - dim))
    return np.maximum.accumulate(np.where((x == running) | (x != x), place, 0), axis=dim)


def _running(x: Any, dim: int, largest: bool, name: str) -> Any:
    flat = x.reshape((1,)) if x.ndim == 0 else x
    axis = _axis(flat, dim, name)
    indices = _last_extreme(flat, axis, largest)
    return Selected(gather(flat, axis, indices).reshape(x.shape), indices.reshape(x.shape))


def cummax(x: Any, dim: int) -> Any:
    """(values, indices) of the running maximum along `dim`; of equal elements the last one counts."""
    return _running(x, dim, True, "cummax")


def cummin(x: Any, dim: int) -> Any:
    """(values, indices) of the running minimum along `dim`; of equal elements the last one counts."""
    return _running(x, dim, False, "cummin")


def diff(x: Any, n: int = 1, dim: int = -1, prepend: Any = None, append: Any = None) -> Any:
    """The differences of neighbours along `dim`, n times; `prepend` and `append` are joined to x first."""
    if x.ndim == 0:
        raise ValueError("diff: expected at least one axis, got shape ()")
    axis = _axis(x, dim, "diff")
    if n == 0:
        return x
    parts = [p for p in (prepend, x, append) if p is not None]
    x = cat(parts, axis) if len(parts) > 1 else x
    for _ in range(min(n, x.shape[axis])):
        length = max(x.shape[axis] - 1, 0)
        after, before = narrow(x, axis, x.shape[axis] - length, length), narrow(x, axis, 0, length)
        x = ne(after, before) if x.dtype == np.bool_ else after - before
    return x
