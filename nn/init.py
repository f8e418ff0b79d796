"""Initial values, written in place: `nn.init.normal_(linear.weight, std=0.02)`. Draws follow `tg.manual_seed`."""

from __future__ import annotations

import math

import numpy as np

import tinygrad_tf as tg

from ..modes import check_written


def _write(tensor: tg.Tensor, values: object) -> tg.Tensor:
    """Put values into a Tensor's memory without recording it."""
    check_written(tensor._data)
    np.copyto(tensor._data, np.asarray(values), casting="same_kind")
    tensor._bump()
    return tensor


def _fans(tensor: tg.Tensor, name: str) -> tuple[int, int]:
    """(fan_in, fan_out) of a weight of shape (out, in, ...)."""
    if len(tensor.shape) < 2:
        raise ValueError(f"{name}: expected a weight of at least 2 axes (out, in), got shape {tensor.shape}")
    field = math.prod(tensor.shape[2:])
    return tensor.shape[1] * field, tensor.shape[0] * field


def uniform_(tensor: tg.Tensor, a: float = 0.0, b: float = 1.0) -> tg.Tensor:
    """Fill with U(a, b).

    >>> import tinygrad_tf as tg
    >>> from tinygrad_tf import nn
    >>> bool(nn.init.uniform_(tg.zeros(3), 2.0, 3.0).numpy().min() >= 2.0)
    True
    """
    return _write(tensor, a + (b - a) * tg.rand(*tensor.shape).numpy())


def normal_(tensor: tg.Tensor, mean: float = 0.0, std: float = 1.0) -> tg.Tensor:
    """Fill with N(mean, std²)."""
    return _write(tensor, mean + std * tg.randn(*tensor.shape).numpy())


def trunc_normal_(tensor: tg.Tensor, mean: float = 0.0, std: float = 1.0, a: float = -2.0, b: float = 2.0) -> tg.Tensor:
    """Fill with N(mean, std²) restricted to [a, b]: values outside are drawn again."""
    if not a < b or mean + 6 * std < a or mean - 6 * std > b:
        raise ValueError(f"trunc_normal_: [{a}, {b}] holds hardly any of N({mean}, {std}²)")
    values = mean + std * tg.randn(*tensor.shape).numpy()
    while (outside := (values < a) | (values > b)).any():
        values = np.where(outside, mean + std * tg.randn(*tensor.shape).numpy(), values)
    return _write(tensor, values)


def constant_(tensor: tg.Tensor, value: float) -> tg.Tensor:
    """Fill with one value."""
    return _write(tensor, value)


def zeros_(tensor: tg.Tensor) -> tg.Tensor:
    """Fill with 0."""
    return _write(tensor, 0.0)


def ones_(tensor: tg.Tensor) -> tg.Tensor:
    """Fill with 1."""
    return _write(tensor, 1.0)


def calculate_gain(nonlinearity: str) -> float:
    """What keeps the variance through a nonlinearity: √2 for relu, 5/3 for tanh, 1 for linear and sigmoid."""
    gains = {"linear": 1.0, "sigmoid": 1.0, "tanh": 5.0 / 3.0, "relu": math.sqrt(2.0)}
    if nonlinearity not in gains:
        raise ValueError(f"calculate_gain: expected one of {sorted(gains)}, got {nonlinearity!r}")
    return gains[nonlinearity]


def xavier_uniform_(tensor: tg.Tensor, gain: float = 1.0) -> tg.Tensor:
    """U(−a, a) with a = gain·√(6 / (fan_in + fan_out)). Glorot and Bengio 2010, eq. 16."""
    bound = gain * math.sqrt(6.0 / sum(_fans(tensor, "xavier_uniform_")))
    return uniform_(tensor, -bound, bound)


def xavier_normal_(tensor: tg.Tensor, gain: float = 1.0) -> tg.Tensor:
    """N(0, gain²·2 / (fan_in + fan_out)). Glorot and Bengio 2010."""
    return normal_(tensor, 0.0, gain * math.sqrt(2.0 / sum(_fans(tensor, "xavier_normal_"))))


def kaiming_uniform_(tensor: tg.Tensor, gain: float = math.sqrt(2.0)) -> tg.Tensor:
    """U(−a, a) with a = gain·√(3 / fan_in). He et al. 2015, section 2.2."""
    bound = gain * math.sqrt(3.0 / _fans(tensor, "kaiming_uniform_")[0])
    return uniform_(tensor, -bound, bound)


def kaiming_normal_(tensor: tg.Tensor, gain: float = math.sqrt(2.0)) -> tg.Tensor:
    """N(0, gain² / fan_in). He et al. 2015, eq. 10."""
    return normal_(tensor, 0.0, gain / math.sqrt(_fans(tensor, "kaiming_normal_")[0]))
