"""Activations as modules, and by name for those that take one (`FeedForward`, `GPTConfig`)."""

from __future__ import annotations

from collections.abc import Callable

import tinygrad_tf as tg
from tinygrad_tf.ops.activation import gelu

from . import functional as F
from .module import Module


def _gelu_tanh(x: tg.Tensor) -> tg.Tensor:
    return F.gelu(x, approximate="tanh")


def _identity(x: tg.Tensor) -> tg.Tensor:
    return x


#: Element-wise activations by name.
ACTIVATIONS: dict[str, Callable[[tg.Tensor], tg.Tensor]] = {
    "gelu": gelu,
    "gelu_tanh": _gelu_tanh,
    "relu": F.relu,
    "silu": F.silu,
    "tanh": tg.tanh,
    "sigmoid": tg.sigmoid,
    "identity": _identity,
}

#: Gated units by name: act(x W1ᵀ) · (x Vᵀ), with this act. Shazeer 2020, eq. 5 and 6.
GATED: dict[str, Callable[[tg.Tensor], tg.Tensor]] = {
    "glu": tg.sigmoid,
    "reglu": F.relu,
    "geglu": F.gelu,
    "swiglu": F.silu,
}


class ReLU(Module):
    """y = max(x, 0), with derivative 0 at 0."""

    def forward(self, x: tg.Tensor) -> tg.Tensor:
        return F.relu(x)


class GELU(Module):
    """y = x Φ(x), Φ the standard normal distribution function; or its tanh approximation. Hendrycks and Gimpel 2016.

    Args:
        approximate: "none" (default) or "tanh".

    >>> import tinygrad_tf as tg
    >>> from tinygrad_tf import nn
    >>> round(nn.GELU()(tg.tensor([1.0])).item(), 5)
    0.84134
    """

    def __init__(self, approximate: str = "none"):
        super().__init__()
        if approximate not in ("none", "tanh"):
            raise ValueError(f"GELU: approximate must be 'none' or 'tanh', got {approximate!r}")
        self.approximate = approximate

    def extra_repr(self) -> str:
        return "" if self.approximate == "none" else f"approximate={self.approximate!r}"

    def forward(self, x: tg.Tensor) -> tg.Tensor:
        return F.gelu(x, approximate=self.approximate)


class SiLU(Module):
    """y = x σ(x)."""

    def forward(self, x: tg.Tensor) -> tg.Tensor:
        return F.silu(x)


class Tanh(Module):
    """y = tanh(x)."""

    def forward(self, x: tg.Tensor) -> tg.Tensor:
        return tg.tanh(x)


class Sigmoid(Module):
    """y = σ(x) = 1 / (1 + exp(−x))."""

    def forward(self, x: tg.Tensor) -> tg.Tensor:
        return tg.sigmoid(x)


class Identity(Module):
    """y = x."""

    def forward(self, x: tg.Tensor) -> tg.Tensor:
        return x


class Softmax(Module):
    """y = exp(x) / Σ exp(x), the sum along `dim` (default −1)."""

    def __init__(self, dim: int = -1):
        super().__init__()
        self.dim = dim

    def extra_repr(self) -> str:
        return f"dim={self.dim}"

    def forward(self, x: tg.Tensor) -> tg.Tensor:
        return F.softmax(x, self.dim)


class LogSoftmax(Module):
    """y = x − log Σ exp(x), the sum along `dim` (default −1)."""

    def __init__(self, dim: int = -1):
        super().__init__()
        self.dim = dim

    def extra_repr(self) -> str:
        return f"dim={self.dim}"

    def forward(self, x: tg.Tensor) -> tg.Tensor:
        return F.log_softmax(x, self.dim)
