"""The residual connection: the one place where the stream is added to."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tinygrad_tf as tg

from .dropout import Dropout
from .module import Module


class Residual(Module):
    """y = x + f(norm(x)) for placement "pre"; y = norm(x + f(x)) for "post".

    Args:
        f: the branch: a module, or a function of Tensors, whose result has x's shape.
        norm: a module applied as above (default None: none).
        placement: "pre" (default) or "post".
        dropout: the probability of an element of f's result to be dropped in training, before the sum (default 0).

    Called as `residual(x, *args, **kwargs)`; what follows x is handed to f. If f gives a tuple, its first element is
    added and the others are passed on behind the sum.

    Raises:
        ValueError: placement is another word, or f's result has another shape than x.

    Source: He et al. 2016; pre-norm: Xiong et al. 2020; post-norm: Vaswani et al. 2017.

    >>> import tinygrad_tf as tg
    >>> from tinygrad_tf import nn
    >>> nn.Residual(lambda x: 2 * x)(tg.ones(2)).numpy()
    array([3., 3.], dtype=float32)
    """

    def __init__(self, f: Callable[..., Any], norm: Module | None = None, placement: str = "pre", dropout: float = 0.0):
        super().__init__()
        if placement not in ("pre", "post"):
            raise ValueError(f"Residual: placement must be 'pre' or 'post', got {placement!r}")
        self.f, self.norm, self.placement = f, norm, placement
        self.dropout = Dropout(dropout) if dropout else None
        if not 0.0 <= dropout <= 1.0:
            raise ValueError(f"Residual: dropout must be in [0, 1], got {dropout}")

    def extra_repr(self) -> str:
        return repr(self.placement)

    def forward(self, x: tg.Tensor, *args: Any, **kwargs: Any) -> Any:
        norm, dropout = self.norm, self.dropout
        inner = x if norm is None or self.placement == "post" else norm(x)
        result = self.f(inner, *args, **kwargs)
        branch, rest = (result[0], tuple(result[1:])) if isinstance(result, tuple) else (result, ())
        if branch.shape != x.shape:
            raise ValueError(f"Residual: f must keep the shape of x, {x.shape}, got {branch.shape}")
        y = x + (branch if dropout is None else dropout(branch))
        if norm is not None and self.placement == "post":
            y = norm(y)
        return (y, *rest) if rest else y
