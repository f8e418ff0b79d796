"""Dropout."""

from __future__ import annotations

import tinygrad_tf as tg

from . import functional as F
from .module import Module


class Dropout(Module):
    """In training, y = x · keep / (1 − p) with keep ~ Bernoulli(1 − p), so E[y] = x; in evaluation y = x.

    Args:
        p: the probability of an element to be dropped, in [0, 1] (default 0.5); p = 1 gives zeros.

    Shapes: x of any shape -> the same.

    Raises:
        ValueError: p is not in [0, 1].

    Source: Srivastava et al. 2014.

    >>> import tinygrad_tf as tg
    >>> from tinygrad_tf import nn
    >>> nn.Dropout(0.5).eval()(tg.ones(2)).numpy()
    array([1., 1.], dtype=float32)
    """

    def __init__(self, p: float = 0.5):
        super().__init__()
        if not 0.0 <= p <= 1.0:
            raise ValueError(f"Dropout: p must be in [0, 1], got {p}")
        self.p = float(p)

    def extra_repr(self) -> str:
        return f"{self.p:g}"

    def forward(self, x: tg.Tensor) -> tg.Tensor:
        if not self.training or self.p == 0.0:
            return x
        return F.dropout(x, self.p, True)
