"""GELU and SiLU: kernels and definitions."""

from __future__ import annotations

import math
from typing import Any

from ..kernels import activation as kernels
from .elementwise import erf, sigmoid, tanh
from .primitive import fused


@fused(
    "x",
    forward=lambda x, approximate: (kernels.gelu(x, approximate == "tanh"), ()),
    backward=lambda g, needs, y, saved, x, approximate: [kernels.gelu_backward(g, x, approximate == "tanh")],
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
    forward=lambda x: (kernels.silu(x), ()),
    backward=lambda g, needs, y, saved, x: [kernels.silu_backward(g, x)],
)
def silu(x: Any) -> Any:
    """x * sigmoid(x).

    Source: Elfwing, Uchibe and Doya 2018, Sigmoid-weighted linear units, equation 2.
    """
    return x * sigmoid(x)
