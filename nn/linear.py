"""Linear: y = x Wᵀ + b."""

from __future__ import annotations

import math

import tinygrad_tf as tg
from tinygrad_tf.ops.linear import linear

from . import init
from .module import Module, Parameter


class Linear(Module):
    """y = x Wᵀ + b, along the last axis.

    Args:
        in_features: the length of x's last axis.
        out_features: the length of y's last axis.
        bias: whether b is added (default True).

    Shapes: x (..., in_features) -> y (..., out_features); weight (out_features, in_features); bias (out_features,).
    Both begin as U(−1/√in, 1/√in).

    Raises:
        ValueError: x's last axis is not in_features long.

    >>> import tinygrad_tf as tg
    >>> from tinygrad_tf import nn
    >>> nn.Linear(3, 5)(tg.ones(2, 3)).shape
    (2, 5)
    """

    def __init__(self, in_features: int, out_features: int, bias: bool = True):
        super().__init__()
        if in_features < 1 or out_features < 1:
            raise ValueError(f"Linear({in_features}, {out_features}): both sizes must be at least 1")
        self.in_features, self.out_features = in_features, out_features
        self.weight = Parameter(tg.empty(out_features, in_features))
        self.bias = Parameter(tg.empty(out_features)) if bias else None
        bound = 1.0 / math.sqrt(in_features)
        init.uniform_(self.weight, -bound, bound)
        if self.bias is not None:
            init.uniform_(self.bias, -bound, bound)

    def extra_repr(self) -> str:
        return f"{self.in_features}, {self.out_features}" + ("" if self.bias is not None else ", bias=False")

    def forward(self, x: tg.Tensor) -> tg.Tensor:
        if x.shape[-1:] != (self.in_features,):
            raise ValueError(
                f"Linear({self.extra_repr()}): the last axis of x must be {self.in_features}, got x of shape {x.shape}"
            )
        return linear(x, self.weight, self.bias)  # type: ignore[no-any-return]
