"""Operations element by element, with broadcasting: each beside its derivative."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ..graph import Array
from .primitive import primitive

_erf = np.frompyfunc(math.erf, 1, 1)


@primitive(x=lambda g: g, view=True)
def identity(x: Any) -> Any:
    """x itself, as a new place in the graph."""
    return x


@primitive(x=lambda g: g)
def clone(x: Any) -> Any:
    """A copy of x; gradients pass through."""
    return x.copy()


def constant(x: Any) -> Any:
    """x outside the graph: a Tensor's value, or the ndarray itself."""
    return x.detach() if hasattr(x, "detach") else x


# -- arithmetic --------------------------------------------------------------------------------------------------------


@primitive(promote=True, a=lambda g: g, b=lambda g: g)
def add(a: Any, b: Any) -> Any:
    """a + b."""
    return a + b


@primitive(promote=True, a=lambda g: g, b=lambda g: -g)
def sub(a: Any, b: Any) -> Any:
    """a - b."""
    if np.result_type(a, b) == np.bool_:
        raise TypeError("sub: booleans cannot be subtracted; use ^ or logical_not")
    return a - b


@primitive(promote=True, a=lambda g, b: g * b, b=lambda g, a: g * a)
def mul(a: Any, b: Any) -> Any:
    """a * b."""
    return a * b


@primitive(promote=True, a=lambda g, b: g / b, b=lambda g, b, out: -g * out / b)
def div(a: Any, b: Any) -> Any:
    """a / b, true division; d/db = -a / b^2."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return a / b


@primitive(promote=True)
def floor_divide(a: Any, b: Any) -> Any:
    """floor(a / b); its gradient is zero, so it is not recorded."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.floor_divide(a, b)


@primitive(promote=True, a=lambda g: g, b=lambda g, a, b: -g * floor_divide(a, b))
def remainder(a: Any, b: Any) -> Any:
    """a - floor(a / b) * b, with the sign of b."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.remainder(a, b)


@primitive(
    promote=True,
    a=lambda g, a, b: where(b == 0, 0.0, g * b * pow(a, where(b == 0, 1.0, b - 1))),
    b=lambda g, a, out: where((a == 0) & (out == 0), 0.0, g * out * log(where((a == 0) & (out == 0), 1.0, a))),
)
def pow(a: Any, b: Any) -> Any:
    """a ** b; d/da = b a^(b-1), which is 0 where b is 0; d/db = a^b log a, which is 0 where a and a^b are 0."""
    if np.result_type(a, b).kind in "iu" and np.any(np.asarray(b) < 0):
        raise ValueError("pow: integers to a negative power; convert the base to float first")
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        return np.power(a, b)


@primitive(x=lambda g: -g)
def neg(x: Any) -> Any:
    """-x."""
    return -x


@primitive(x=lambda g, out: -g * out * out)
def reciprocal(x: Any) -> Any:
    """1 / x."""
    with np.errstate(divide="ignore"):
        return np.divide(1, x, dtype=x.dtype if x.dtype.kind == "f" else None)


@primitive(x=lambda g, x: g * 2.0 * x)
def square(x: Any) -> Any:
    """x^2."""
    return x * x


@primitive(x=lambda g, out: g / (2.0 * out))
def sqrt(x: Any) -> Any:
    """The square root; its slope at 0 is inf."""
    with np.errstate(invalid="ignore"):
        return np.sqrt(x)


@primitive(x=lambda g, out: -0.5 * g * out * out * out)
def rsqrt(x: Any) -> Any:
    """1 / sqrt(x)."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return 1 / np.sqrt(x)


@primitive(x=lambda g, x: g * sign(x))
def abs(x: Any) -> Any:
    """|x|, with slope 0 at 0."""
    return np.abs(x)


def zero(g: Any) -> Any:
    """The gradient of steps: zeros of g's shape, whatever g is."""
    return where(np.False_, g, 0.0)


@primitive(x=zero)
def sign(x: Any) -> Any:
    """-1, 0 or 1, and NaN for NaN; its gradient is zero."""
    return np.sign(x)


# -- exponentials and their inverses -----------------------------------------------------------------------------------


@primitive(x=lambda g, out: g * out)
def exp(x: Any) -> Any:
    """e^x."""
    with np.errstate(over="ignore"):
        return np.exp(x)


@primitive(x=lambda g, out: g * (out + 1.0))
def expm1(x: Any) -> Any:
    """e^x - 1, exact for small x."""
    with np.errstate(over="ignore"):
        return np.expm1(x)


@primitive(x=lambda g, x: g / x)
def log(x: Any) -> Any:
    """The natural logarithm."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.log(x)


@primitive(x=lambda g, x: g / (x + 1.0))
def log1p(x: Any) -> Any:
    """log(1 + x), exact for small x."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.log1p(x)


@primitive(x=lambda g, x: g * cos(x))
def sin(x: Any) -> Any:
    """The sine."""
    with np.errstate(invalid="ignore"):
        return np.sin(x)


@primitive(x=lambda g, x: -g * sin(x))
def cos(x: Any) -> Any:
    """The cosine."""
    with np.errstate(invalid="ignore"):
        return np.cos(x)


@primitive(x=lambda g, out: g * (1.0 - out * out))
def tanh(x: Any) -> Any:
    """(e^x - e^-x) / (e^x + e^-x)."""
    return np.tanh(x)


@primitive(x=lambda g, out: g * out * (1.0 - out))
def sigmoid(x: Any) -> Any:
    """1 / (1 + e^-x), computed so that neither branch overflows."""
    e = np.exp(-np.abs(x))
    return np.where(x >= 0, 1 / (1 + e), e / (1 + e))


@primitive(x=lambda g, x: g * (2.0 / math.sqrt(math.pi)) * exp(-x * x))
def erf(x: Any) -> Any:
    """The error function, 2/sqrt(pi) times the integral of exp(-t^2) from 0 to x."""
    return np.asarray(_erf(np.asarray(x, dtype=np.float64)), dtype=np.float64).astype(
        x.dtype if x.dtype.kind == "f" else np.float32
    )


# -- comparing and choosing --------------------------------------------------------------------------------------------


@primitive(x=lambda g, x: g * (x > 0))
def relu(x: Any) -> Any:
    """max(x, 0), with slope 0 at 0; NaN stays NaN."""
    return np.maximum(x, 0)


@primitive(promote=True, a=lambda g, a, b: g * _share(a, b), b=lambda g, a, b: g * _share(b, a))
def maximum(a: Any, b: Any) -> Any:
    """The larger of a and b; equal ones share the gradient."""
    return np.maximum(a, b)


@primitive(promote=True, a=lambda g, a, b: g * _share(b, a), b=lambda g, a, b: g * _share(a, b))
def minimum(a: Any, b: Any) -> Any:
    """The smaller of a and b; equal ones share the gradient."""
    return np.minimum(a, b)


def _share(a: Any, b: Any) -> Any:
    """1 where a > b, a half where they are equal, else 0 (and 1 for NaN, whose gradient passes through)."""
    return where(a > b, 1.0, where(a == b, 0.5, where(a < b, 0.0, 1.0))).astype(np.float32)


@primitive(x=lambda g, x, min, max: g * _inside(x, min, max))
def clamp(x: Any, min: Any = None, max: Any = None) -> Any:
    """x, but not below `min` nor above `max` (numbers, or None for no bound); the slope is 1 on the bounds too."""
    if min is None and max is None:
        raise ValueError("clamp: give min, max or both")
    return np.clip(x, min, max)


def _inside(x: Any, low: Any, high: Any) -> Any:
    inside = x == x if low is None else x >= low
    return inside if high is None else inside & (x <= high)


@primitive(
    promote=True, a=lambda g, condition: where(condition, g, 0.0), b=lambda g, condition: where(condition, 0.0, g)
)
def where(condition: Any, a: Any, b: Any) -> Any:
    """a where the condition is true, else b."""
    if isinstance(a, float) or isinstance(b, float):  # a Python number takes the other's dtype
        other = b if isinstance(a, float) else a
        dtype = other.dtype if isinstance(other, np.ndarray) and other.dtype.kind == "f" else None
        if dtype is None and isinstance(other, np.floating):
            dtype = other.dtype
        return np.asarray(np.where(condition, a, b), dtype=dtype)
    return np.where(condition, a, b)


@primitive(x=lambda g, mask: where(mask, 0.0, g))
def masked_fill(x: Any, mask: Any, value: float) -> Any:
    """x, with `value` where the mask is true."""
    if mask.dtype != np.bool_:
        raise TypeError(f"masked_fill: the mask must be bool, got dtype {mask.dtype}")
    return np.where(mask, np.asarray(value, dtype=x.dtype), x)


@primitive(exact=True, x=lambda g, x: g.astype(x.dtype))
def astype(x: Any, dtype: Any) -> Array:
    """x in another dtype."""
    return x.astype(dtype)
