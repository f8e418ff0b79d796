"""More functions of one number: a table in which each line is a name, the value, what it is, and the derivative."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from .elementwise import clamp, div, exp, log, rsqrt, where, zero
from .primitive import primitive

_LN2, _LN10 = math.log(2.0), math.log(10.0)
_erfc = np.frompyfunc(math.erfc, 1, 1)


def _unary(function: Callable[..., Any], name: str, doc: str, rule: Callable[..., Any] | None = None) -> Any:
    """An operation from numpy's function of one array; without a rule it has no gradient."""

    def operation(x: Any) -> Any:
        with np.errstate(all="ignore"):
            return function(x)

    operation.__name__, operation.__doc__ = name, doc
    return primitive()(operation) if rule is None else primitive(x=rule)(operation)


exp2 = _unary(np.exp2, "exp2", "2^x.", lambda g, out: g * out * _LN2)
log2 = _unary(np.log2, "log2", "The logarithm to base 2.", lambda g, x: g / (x * _LN2))
log10 = _unary(np.log10, "log10", "The logarithm to base 10.", lambda g, x: g / (x * _LN10))
tan = _unary(np.tan, "tan", "The tangent.", lambda g, out: g * (out * out + 1.0))
asin = _unary(np.arcsin, "asin", "The inverse of sin, in [-pi/2, pi/2].", lambda g, x: g * rsqrt(1.0 - x * x))
acos = _unary(np.arccos, "acos", "The inverse of cos, in [0, pi].", lambda g, x: -g * rsqrt(1.0 - x * x))
atan = _unary(np.arctan, "atan", "The inverse of tan, in (-pi/2, pi/2).", lambda g, x: g / (x * x + 1.0))
sinh = _unary(np.sinh, "sinh", "(e^x - e^-x) / 2.", lambda g, x: g * cosh(x))
cosh = _unary(np.cosh, "cosh", "(e^x + e^-x) / 2.", lambda g, x: g * sinh(x))
asinh = _unary(np.arcsinh, "asinh", "The inverse of sinh.", lambda g, x: g * rsqrt(x * x + 1.0))
acosh = _unary(np.arccosh, "acosh", "The inverse of cosh, for x >= 1.", lambda g, x: g * rsqrt(x * x - 1.0))
atanh = _unary(np.arctanh, "atanh", "The inverse of tanh, for |x| < 1.", lambda g, x: g / (1.0 - x * x))
deg2rad = _unary(np.deg2rad, "deg2rad", "Degrees to radians.", lambda g: g * (math.pi / 180.0))
rad2deg = _unary(np.rad2deg, "rad2deg", "Radians to degrees.", lambda g: g * (180.0 / math.pi))
frac = _unary(lambda x: x - np.trunc(x), "frac", "x - trunc(x), with the sign of x.", lambda g: g)
trunc = _unary(np.trunc, "trunc", "x without its fraction, towards 0; its gradient is zero.", zero)
signbit = _unary(np.signbit, "signbit", "Whether the sign bit is set: x < 0, or -0.")
isposinf = _unary(np.isposinf, "isposinf", "Whether each element is +inf.")
isneginf = _unary(np.isneginf, "isneginf", "Whether each element is -inf.")


@primitive(x=lambda g, x: g * (-2.0 / math.sqrt(math.pi)) * exp(-x * x))
def erfc(x: Any) -> Any:
    """1 - erf(x), exact for large x."""
    return np.asarray(_erfc(np.asarray(x, dtype=np.float64)), dtype=np.float64).astype(
        x.dtype if x.dtype.kind == "f" else np.float32
    )


@primitive(x=lambda g, x: where(abs(x) < float("inf"), g, 0.0))
def nan_to_num(x: Any, nan: float = 0.0, posinf: float | None = None, neginf: float | None = None) -> Any:
    """x with other numbers for NaN and the infinities (default: 0, and the dtype's largest and smallest)."""
    return np.nan_to_num(x, nan=nan, posinf=posinf, neginf=neginf)


def logit(x: Any, eps: float | None = None) -> Any:
    """log(x / (1 - x)), the inverse of the sigmoid; with `eps`, x is clamped to [eps, 1 - eps] first."""
    x = x if eps is None else clamp(x, eps, 1.0 - eps)
    return log(div(x, 1.0 - x))


def positive(x: Any) -> Any:
    """x itself; raises TypeError for booleans."""
    if x.dtype == np.bool_:
        raise TypeError("positive: expected numbers, got dtype bool; convert with .to(dtype)")
    return x
