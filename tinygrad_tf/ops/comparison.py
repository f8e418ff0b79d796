"""Comparisons, logic and tests, which have no gradient, and roundings, whose gradient is zero."""

from __future__ import annotations

from typing import Any

import numpy as np

from .elementwise import zero
from .primitive import primitive


def _comparison(name: str, symbol: str, function: Any) -> Any:
    def compare(a: Any, b: Any) -> Any:
        return function(a, b)

    compare.__name__, compare.__doc__ = name, f"a {symbol} b, element by element, as booleans."
    return primitive(promote=True)(compare)


eq = _comparison("eq", "==", np.equal)
ne = _comparison("ne", "!=", np.not_equal)
lt = _comparison("lt", "<", np.less)
le = _comparison("le", "<=", np.less_equal)
gt = _comparison("gt", ">", np.greater)
ge = _comparison("ge", ">=", np.greater_equal)


@primitive(promote=True)
def logical_and(a: Any, b: Any) -> Any:
    """a and b, as booleans."""
    return np.logical_and(a, b)


@primitive(promote=True)
def logical_or(a: Any, b: Any) -> Any:
    """a or b, as booleans."""
    return np.logical_or(a, b)


@primitive(promote=True)
def bitwise_and(a: Any, b: Any) -> Any:
    """a & b, for booleans and integers."""
    return np.bitwise_and(a, b)


@primitive(promote=True)
def bitwise_or(a: Any, b: Any) -> Any:
    """a | b, for booleans and integers."""
    return np.bitwise_or(a, b)


@primitive(promote=True)
def bitwise_xor(a: Any, b: Any) -> Any:
    """a ^ b, for booleans and integers."""
    return np.bitwise_xor(a, b)


@primitive()
def logical_not(x: Any) -> Any:
    """not x, as booleans."""
    return np.logical_not(x)


@primitive()
def isnan(x: Any) -> Any:
    """Whether each element is NaN."""
    return np.isnan(x)


@primitive()
def isinf(x: Any) -> Any:
    """Whether each element is infinite."""
    return np.isinf(x)


@primitive()
def isfinite(x: Any) -> Any:
    """Whether each element is neither NaN nor infinite."""
    return np.isfinite(x)


@primitive(x=zero)
def floor(x: Any) -> Any:
    """The largest integer not above x; its gradient is zero."""
    return np.floor(x)


@primitive(x=zero)
def ceil(x: Any) -> Any:
    """The smallest integer not below x; its gradient is zero."""
    return np.ceil(x)


@primitive(x=zero)
def round(x: Any, decimals: int = 0) -> Any:
    """The nearest number with so many decimals, halves to even; its gradient is zero."""
    return np.round(x, decimals)
