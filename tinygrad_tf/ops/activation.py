"""Activations: GELU and SiLU with kernels and definitions, the others made of primitives."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from .. import kernels
from .elementwise import abs, erf, expm1, sigmoid, tanh, where
from .normalization import softmax
from .primitive import fused, normalize_dims, primitive
from .shape import narrow


@fused(
    "x",
    forward=lambda x, approximate: (kernels.activation.gelu(x, approximate == "tanh"), ()),
    backward=lambda g, needs, x, approximate: [kernels.activation.gelu_backward(g, x, approximate == "tanh")],
    cheap=True,
)
def _gelu(x: Any, approximate: str = "none") -> Any:
    if approximate == "none":
        return x * 0.5 * (1.0 + erf(x * math.sqrt(0.5)))
    return x * 0.5 * (1.0 + tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * x * x * x)))


_gelu.name = "gelu"


def gelu(x: Any, approximate: str = "none") -> Any:
    """x * Phi(x), where Phi is the standard normal distribution function.

    `approximate="tanh"` is 0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))), at most 4.8e-4 away.

    Source: Hendrycks and Gimpel 2016, Gaussian Error Linear Units, section 2.
    """
    if approximate not in ("none", "tanh"):
        raise ValueError(f'gelu: approximate must be "none" or "tanh", got {approximate!r}')
    return _gelu(x, approximate)


@fused(
    "x",
    forward=lambda x: (kernels.activation.silu(x), ()),
    backward=lambda g, needs, x: [kernels.activation.silu_backward(g, x)],
    cheap=True,
)
def silu(x: Any) -> Any:
    """x * sigmoid(x).

    Source: Elfwing, Uchibe and Doya 2018, Sigmoid-weighted linear units, equation 2.
    """
    return x * sigmoid(x)


# -- smooth ones -------------------------------------------------------------------------------------------------------


@primitive(x=lambda g, x: g * sigmoid(x))
def _softplus(x: Any) -> Any:
    return np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x)))


_softplus.name = "softplus"


def softplus(x: Any, beta: float = 1.0, threshold: float = 20.0) -> Any:
    """log(1 + e^(beta x)) / beta, and x itself where beta x is above the threshold."""
    smooth = _softplus(x) if beta == 1 else _softplus(x * beta) / beta
    return where(x * beta > threshold, x, smooth)


def logsigmoid(x: Any) -> Any:
    """log(1 / (1 + e^-x)), safe from overflow."""
    return -_softplus(-x)


def mish(x: Any) -> Any:
    """x tanh(log(1 + e^x)).

    Source: Misra 2019, Mish, equation 1.
    """
    return x * tanh(_softplus(x))


def softsign(x: Any) -> Any:
    """x / (1 + |x|)."""
    return x / (abs(x) + 1.0)


def tanhshrink(x: Any) -> Any:
    """x - tanh(x)."""
    return x - tanh(x)


def softmin(x: Any, dim: int) -> Any:
    """softmax(-x) along `dim`."""
    return softmax(-x, dim)


def glu(x: Any, dim: int = -1) -> Any:
    """a * sigmoid(b), a and b the two halves of x along `dim`.

    Source: Dauphin et al. 2017, Language Modeling with Gated Convolutional Networks, equation 1.
    """
    (axis,) = normalize_dims(dim, x.ndim, "glu")
    if x.ndim == 0 or x.shape[axis] % 2:
        raise ValueError(f"glu: dim {dim} must have an even length, got x of shape {x.shape}")
    half = x.shape[axis] // 2
    return narrow(x, axis, 0, half) * sigmoid(narrow(x, axis, half, half))


# -- pieces: each a choice between a few curves ------------------------------------------------------------------------


def leaky_relu(x: Any, negative_slope: float = 0.01) -> Any:
    """x where x > 0, else negative_slope * x."""
    return where(x > 0, x, x * negative_slope)


def prelu(x: Any, weight: Any) -> Any:
    """x where x > 0, else weight * x; the weight has one element, or one for each channel (axis 1 of x).

    Source: He et al. 2015, Delving Deep into Rectifiers, equation 1.
    """
    channels = x.shape[1] if x.ndim > 1 else 1
    count = math.prod(weight.shape)
    if count not in (1, channels):
        raise ValueError(f"prelu: the weight must have 1 or {channels} elements, got shape {weight.shape}")
    if weight.ndim:
        weight = weight.reshape((-1,) + (1,) * (x.ndim - 2)) if count > 1 else weight.reshape(())
    return where(x > 0, x, weight * x)


def elu(x: Any, alpha: float = 1.0) -> Any:
    """x where x > 0, else alpha (e^x - 1).

    Source: Clevert, Unterthiner and Hochreiter 2016, Exponential Linear Units, equation 15.
    """
    return where(x > 0, x, expm1(where(x > 0, 0.0, x)) * alpha)


def celu(x: Any, alpha: float = 1.0) -> Any:
    """x where x > 0, else alpha (e^(x / alpha) - 1).

    Source: Barron 2017, Continuously Differentiable Exponential Linear Units, equation 1.
    """
    return where(x > 0, x, expm1(where(x > 0, 0.0, x) / alpha) * alpha)


def selu(x: Any) -> Any:
    """1.0507 times `elu` with alpha 1.6733, which keep mean 0 and variance 1 from layer to layer.

    Source: Klambauer et al. 2017, Self-Normalizing Neural Networks, equation 2.
    """
    return elu(x, 1.6732632423543772848170429916717) * 1.0507009873554804934193349852946


def hardtanh(x: Any, min_val: float = -1.0, max_val: float = 1.0) -> Any:
    """x between min_val and max_val, and these outside; the slope on them is 0."""
    return where(x <= min_val, min_val, where(x >= max_val, max_val, x))


def relu6(x: Any) -> Any:
    """x between 0 and 6, and these outside."""
    return hardtanh(x, 0.0, 6.0)


def hardsigmoid(x: Any) -> Any:
    """x / 6 + 1/2 between -3 and 3, 0 below and 1 above."""
    return where(x <= -3, 0.0, where(x >= 3, 1.0, x / 6.0 + 0.5))


def hardswish(x: Any) -> Any:
    """x (x + 3) / 6 between -3 and 3, 0 below and x above.

    Source: Howard et al. 2019, Searching for MobileNetV3, section 5.2.
    """
    return where(x <= -3, 0.0, where(x >= 3, x, x * (x + 3.0) / 6.0))


def hardshrink(x: Any, lambd: float = 0.5) -> Any:
    """x outside [-lambd, lambd], 0 inside."""
    return where(abs(x) > lambd, x, 0.0)


def softshrink(x: Any, lambd: float = 0.5) -> Any:
    """x moved towards 0 by lambd, and 0 inside [-lambd, lambd]."""
    return where(x > lambd, x - lambd, where(x < -lambd, x + lambd, 0.0))


def threshold(x: Any, threshold: float, value: float) -> Any:
    """x where it is above the threshold, else `value`."""
    return where(x > threshold, x, value)
