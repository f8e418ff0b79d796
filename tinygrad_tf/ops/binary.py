"""More functions of two numbers, with broadcasting: each beside its derivatives."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ..graph import TensorBase
from . import elementwise
from .comparison import isnan, logical_not
from .elementwise import log, mul, pow, sigmoid, sign, where, zero
from .primitive import primitive

# -- PyTorch's longer forms of the four operators ----------------------------------------------------------------------


def add(a: Any, b: Any, *, alpha: Any = 1) -> Any:
    """a + alpha * b."""
    return elementwise.add(a, b if isinstance(alpha, int) and alpha == 1 else mul(b, alpha))


def sub(a: Any, b: Any, *, alpha: Any = 1) -> Any:
    """a - alpha * b."""
    return elementwise.sub(a, b if isinstance(alpha, int) and alpha == 1 else mul(b, alpha))


def rsub(a: Any, b: Any, *, alpha: Any = 1) -> Any:
    """b - alpha * a."""
    return elementwise.sub(b, a if isinstance(alpha, int) and alpha == 1 else mul(a, alpha))


def div(a: Any, b: Any, *, rounding_mode: str | None = None) -> Any:
    """a / b; with rounding_mode "trunc" or "floor" the quotient is rounded, and has no gradient."""
    if rounding_mode not in (None, "trunc", "floor"):
        raise ValueError(f'div: rounding_mode must be None, "trunc" or "floor", got {rounding_mode!r}')
    operation = {None: elementwise.div, "trunc": _truncated, "floor": _floored}[rounding_mode]
    return operation(a, b)


def _rounded(a: Any, b: Any, function: Any) -> Any:
    with np.errstate(all="ignore"):
        quotient, dtype = function(a / b), np.result_type(a, b)
    return quotient.astype(dtype) if dtype.kind in "iu" else quotient


@primitive(promote=True, a=zero, b=zero)
def _truncated(a: Any, b: Any) -> Any:
    return _rounded(a, b, np.trunc)


@primitive(promote=True, a=zero, b=zero)
def _floored(a: Any, b: Any) -> Any:
    return np.floor_divide(a, b) if np.result_type(a, b).kind in "iu" else _rounded(a, b, np.floor)


_truncated.name = _floored.name = "div"


def float_power(a: Any, b: Any) -> Any:
    """a ** b, computed and returned in float64."""
    a, b = (x if isinstance(x, TensorBase) else np.asarray(x) for x in (a, b))
    return pow(a.astype(np.float64), b.astype(np.float64))  # type: ignore[attr-defined]


# -- remainders, angles, signs -----------------------------------------------------------------------------------------


@primitive(promote=True, a=lambda g: g, b=lambda g, a, b: -g * _truncated(a, b))
def fmod(a: Any, b: Any) -> Any:
    """a - trunc(a / b) * b, with the sign of a."""
    with np.errstate(all="ignore"):
        return np.fmod(a, b)


@primitive(
    promote=True,
    a=lambda g, a, b: g * b / _square_distance(a, b),
    b=lambda g, a, b: -g * a / _square_distance(a, b),
)
def atan2(a: Any, b: Any) -> Any:
    """The angle of the point (b, a), in (-pi, pi]; its gradient at the origin is 0."""
    return np.arctan2(a, b)


def _square_distance(a: Any, b: Any) -> Any:
    squared = a * a + b * b
    return where(squared == 0, 1.0, squared)


@primitive(
    promote=True,
    a=lambda g, a, out: g * a / where(out == 0, 1.0, out),
    b=lambda g, b, out: g * b / where(out == 0, 1.0, out),
)
def hypot(a: Any, b: Any) -> Any:
    """sqrt(a^2 + b^2), without overflow; its subgradient at the origin is 0, as that of a norm."""
    return np.hypot(a, b)


@primitive(promote=True, a=lambda g, a, out: g * sign(a) * sign(out), b=zero)
def copysign(a: Any, b: Any) -> Any:
    """|a| with the sign of b."""
    return np.copysign(a, b)


@primitive(promote=True)
def heaviside(a: Any, b: Any) -> Any:
    """0 where a < 0, b where a is 0, 1 where a > 0; its gradient is zero."""
    return np.heaviside(a, b).astype(a.dtype)


# -- the larger and the smaller ----------------------------------------------------------------------------------------


@primitive(
    promote=True,
    a=lambda g, a, b: where((a >= b) | isnan(b), g, 0.0),
    b=lambda g, a, b: where((a >= b) | isnan(b), 0.0, g),
)
def fmax(a: Any, b: Any) -> Any:
    """The larger of a and b, or the one that is not NaN; of equal ones, a gets the gradient."""
    return np.fmax(a, b)


@primitive(
    promote=True,
    a=lambda g, a, b: where((a <= b) | isnan(b), g, 0.0),
    b=lambda g, a, b: where((a <= b) | isnan(b), 0.0, g),
)
def fmin(a: Any, b: Any) -> Any:
    """The smaller of a and b, or the one that is not NaN; of equal ones, a gets the gradient."""
    return np.fmin(a, b)


def clamp(x: Any, min: Any = None, max: Any = None) -> Any:
    """x, but not below `min` nor above `max` (numbers or Tensors, or None for no bound); the bounds are inside."""
    if not isinstance(min, (TensorBase, np.ndarray)) and not isinstance(max, (TensorBase, np.ndarray)):
        return elementwise.clamp(x, min, max)
    if min is None and max is None:
        raise ValueError("clamp: give min, max or both")
    x = x if min is None else where(x < min, min, x)
    return x if max is None else where(x > max, max, x)


def masked_fill(x: Any, mask: Any, value: Any) -> Any:
    """x, with `value`, a number or a Tensor of no axes, where the mask is true."""
    if not isinstance(value, TensorBase):
        return elementwise.masked_fill(x, mask, value)
    if value.ndim or mask.dtype != np.bool_:  # type: ignore[attr-defined]
        raise ValueError(
            f"masked_fill: expected a bool mask and a value of shape (), got dtype {mask.dtype} and {value._data.shape}"
        )
    return where(mask, elementwise.astype(value, x.dtype), x)


def clamp_min(x: Any, min: Any) -> Any:
    """x, but not below `min`."""
    return clamp(x, min, None)


def clamp_max(x: Any, max: Any) -> Any:
    """x, but not above `max`."""
    return clamp(x, None, max)


# -- logarithms and sums of three --------------------------------------------------------------------------------------


def _share(a: Any, b: Any, base: float = 1.0) -> Any:
    """base^a / (base^a + base^b): a half where both are the same infinity."""
    return sigmoid(where((a == b) & (a - b != 0.0), 0.0, a - b) * base)


@primitive(promote=True, a=lambda g, a, b: g * _share(a, b), b=lambda g, a, b: g * _share(b, a))
def logaddexp(a: Any, b: Any) -> Any:
    """log(e^a + e^b), safe from overflow."""
    return np.logaddexp(a, b)


@primitive(promote=True, a=lambda g, a, b: g * _share(a, b, math.log(2.0)),
           b=lambda g, a, b: g * _share(b, a, math.log(2.0)))  # fmt: skip
def logaddexp2(a: Any, b: Any) -> Any:
    """log2(2^a + 2^b), safe from overflow."""
    return np.logaddexp2(a, b)


@primitive(
    promote=True,
    a=lambda g, a, b: where((a == 0) & (b <= 0), 0.0, g * log(where((a == 0) & (b <= 0), 1.0, b))),
    b=lambda g, a, b: g * a / b,
)
def xlogy(a: Any, b: Any) -> Any:
    """a log b, and 0 where a is 0, whatever b is (except NaN)."""
    with np.errstate(all="ignore"):
        return np.where((a == 0) & ~np.isnan(b), np.zeros_like(b), a * np.log(b))


def lerp(start: Any, end: Any, weight: Any) -> Any:
    """start + weight * (end - start)."""
    return start + weight * (end - start)


def addcmul(x: Any, tensor1: Any, tensor2: Any, *, value: Any = 1) -> Any:
    """x + value * tensor1 * tensor2."""
    return x + mul(tensor1, tensor2) * value


def addcdiv(x: Any, tensor1: Any, tensor2: Any, *, value: Any = 1) -> Any:
    """x + value * tensor1 / tensor2."""
    return x + elementwise.div(tensor1, tensor2) * value


# -- comparing ---------------------------------------------------------------------------------------------------------


@primitive(promote=True)
def isclose(a: Any, b: Any, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False) -> Any:
    """|a - b| <= atol + rtol |b|, element by element; equal infinities are close."""
    return np.isclose(a, b, rtol=rtol, atol=atol, equal_nan=equal_nan)


def allclose(a: Any, b: Any, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False) -> bool:
    """Whether every pair of elements is close (see `isclose`)."""
    return bool(isclose(a, b, rtol, atol, equal_nan).all())


def equal(a: Any, b: Any) -> bool:
    """Whether a and b have the same shape and the same elements."""
    return bool(a.shape == b.shape and (a == b).all())


@primitive(promote=True)
def logical_xor(a: Any, b: Any) -> Any:
    """Whether exactly one of a and b is true."""
    return np.logical_xor(a, b)


def bitwise_not(x: Any) -> Any:
    """~x: the complement of integers, `not` of booleans."""
    if x.dtype.kind == "f":
        raise TypeError(f"bitwise_not: expected integers or booleans, got dtype {x.dtype}")
    return logical_not(x) if x.dtype == np.bool_ else -x - 1
