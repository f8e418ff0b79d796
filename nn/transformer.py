"""The Transformer block: two residual branches, attention and feed-forward."""

from __future__ import annotations

from typing import Any

import tinygrad_tf as tg

from .attention import KVCache, LayerCache, MultiHeadAttention
from .feed_forward import FeedForward
from .module import Module
from .normalization import make_norm
from .position import ALiBi, Rotary
from .residual import Residual


class TransformerBlock(Module):
    """h = x + attention(norm1(x)), y = h + feed_forward(norm2(h)); post-norm: h = norm1(x + attention(x)), and so on.

    Args:
        d_model, n_heads, n_kv_heads, causal, position: see MultiHeadAttention.
        d_ff, activation: see FeedForward.
        norm: "layer" (default) or "rms".
        placement: "pre" (default) or "post".
        dropout: of attention weights and of both branches' results (default 0).
        bias: whether linear maps and layer norms have one (default True).

    Called as `block(x, *, mask=None, cache=None)`: x (B, T, d_model) -> the same shape. Its two Residuals are
    `attention` and `feed_forward`; their branches are `attention.f` and `feed_forward.f`.

    Source: Vaswani et al. 2017, section 3.1; pre-norm: Xiong et al. 2020.

    >>> import tinygrad_tf as tg
    >>> from tinygrad_tf import nn
    >>> nn.TransformerBlock(8, 2, causal=True)(tg.ones(1, 3, 8)).shape
    (1, 3, 8)
    """

    def __init__(
        self,
        d_model: int,
        n_heads: int,
        *,
        n_kv_heads: int | None = None,
        d_ff: int | None = None,
        activation: str = "gelu",
        norm: str = "layer",
        placement: str = "pre",
        dropout: float = 0.0,
        bias: bool = True,
        causal: bool = False,
        position: str | Rotary | ALiBi | None = None,
    ):
        super().__init__()
        attention = MultiHeadAttention(
            d_model,
            n_heads,
            n_kv_heads=n_kv_heads,
            bias=bias,
            causal=causal,
            dropout=dropout,
            position=position,
        )
        feed_forward = FeedForward(d_model, d_ff, activation, bias=bias)
        self.attention = Residual(attention, make_norm(norm, d_model, bias), placement, dropout)
        self.feed_forward = Residual(feed_forward, make_norm(norm, d_model, bias), placement, dropout)

    def forward(self, x: tg.Tensor, *, mask: Any = None, cache: KVCache | LayerCache | None = None) -> tg.Tensor:
        return self.feed_forward(self.attention(x, mask=mask, cache=cache))  # type: ignore[no-any-return]
