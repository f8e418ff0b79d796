"""The feed-forward network of a block: a key is a row of W1.weight, its value a column of W2.weight."""

from __future__ import annotations

import tinygrad_tf as tg

from .activation import ACTIVATIONS, GATED
from .linear import Linear
from .module import Module


class FeedForward(Module):
    """y = act(x W1ᵀ + b1) W2ᵀ + b2; a gated one: y = (act(x W1ᵀ + b1) · (x Vᵀ + c)) W2ᵀ + b2.

    Args:
        d_model: the width of x and y.
        d_ff: the width inside (default 4·d_model; gated: 8/3·d_model up to a multiple of 8, as many parameters).
        activation: "gelu" (default), "gelu_tanh", "relu", "silu", "tanh", "sigmoid", "identity";
            gated: "swiglu", "geglu", "reglu", "glu".
        bias: whether the linear maps have one (default True).

    Shapes: x (..., d_model) -> the same; W1.weight and V.weight (d_ff, d_model), W2.weight (d_model, d_ff).

    Raises:
        ValueError: an unknown activation.

    Source: Vaswani et al. 2017, eq. 2; Shazeer 2020, eq. 6; keys and values: Geva et al. 2021.

    >>> import tinygrad_tf as tg
    >>> from tinygrad_tf import nn
    >>> ffn = nn.FeedForward(8)
    >>> ffn(tg.ones(2, 3, 8)).shape, ffn.W1.weight.shape
    ((2, 3, 8), (32, 8))
    """

    def __init__(self, d_model: int, d_ff: int | None = None, activation: str = "gelu", bias: bool = True):
        super().__init__()
        if activation not in ACTIVATIONS and activation not in GATED:
            known = ", ".join([*ACTIVATIONS, *GATED])
            raise ValueError(f"FeedForward({d_model}): activation must be one of {known}, got {activation!r}")
        gated = activation in GATED
        if d_ff is None:
            d_ff = -(-8 * d_model // 24) * 8 if gated else 4 * d_model
        self.d_model, self.d_ff, self.activation = d_model, d_ff, activation
        self.W1 = Linear(d_model, d_ff, bias=bias)
        self.V = Linear(d_model, d_ff, bias=bias) if gated else None
        self.W2 = Linear(d_ff, d_model, bias=bias)

    def extra_repr(self) -> str:
        return f"{self.d_model}, {self.d_ff}, {self.activation!r}"

    def forward(self, x: tg.Tensor) -> tg.Tensor:
        if self.V is None:
            return self.W2(ACTIVATIONS[self.activation](self.W1(x)))  # type: ignore[no-any-return]
        return self.W2(GATED[self.activation](self.W1(x)) * self.V(x))  # type: ignore[no-any-return]


FFN = FeedForward
