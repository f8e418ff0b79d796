"""Multi-head attention."""

from __future__ import annotations

import math
from typing import Any

import tinygrad_tf as tg
from tinygrad_tf.ops.attention import _attention

from . import functional as F
from . import init
from .cache import KVCache, LayerCache
from .linear import Linear
from .module import Module
from .position import ALiBi, Rotary


class MultiHeadAttention(Module):
    """concat(head_1, ..., head_h) W_Oᵀ,  head_i = softmax(q_i k_iᵀ / √d_k + mask) v_i,  (q, k, v) = x (W_Q, W_K, W_V)ᵀ.

    Args:
        d_model: the width of queries, keys, values and output.
        n_heads: how many query heads, H.
        n_kv_heads: how many key and value heads; a divisor of n_heads (default: n_heads; 1 is multi-query).
        d_k: the width of a head's query and key (default d_model / n_heads).
        d_v: the width of a head's value (default: d_k's default); H·d_v need not equal d_model.
        bias: whether the projections have one (default True).
        causal: whether a query sees only keys up to its own position, the last query standing at the last key.
        dropout: the probability of an attention weight to be dropped in training (default 0).
        position: None, "rotary", "alibi", or an `nn.Rotary` or `nn.ALiBi`.

    Called as `mha(query, key=None, value=None, *, mask=None, cache=None, need_weights=False)`:
        query (B, Tq, d_model); key (default: query) and value (default: key) (B, Tk, d_model).
        mask broadcasts to (B, H, Tq, Tk): boolean, True = may attend; or float, added to the scores.
        cache: an `nn.KVCache`, for self-attention: the keys and values before these; records no gradients.
        need_weights: also give the weights (B, H, Tq, Tk), before dropout.
    gives (B, Tq, d_model). A query that may attend to nothing gets 0 (and the output bias).

    The parameters are `in_proj` (q, k and v stacked: one product where the inputs are one) and `out_proj`; `W_Q, W_K,
    W_V, W_O` are views of their weights, (H·d_k, d_model), (Hkv·d_k, d_model), (Hkv·d_v, d_model), (d_model, H·d_v).

    Source: Vaswani et al. 2017, section 3.2; grouped heads: Ainslie et al. 2023.

    >>> import tinygrad_tf as tg
    >>> from tinygrad_tf import nn
    >>> mha = nn.MultiHeadAttention(8, 2, causal=True)
    >>> y, weights = mha(tg.randn(1, 3, 8), need_weights=True)
    >>> y.shape, weights.shape, mha.W_O.shape
    ((1, 3, 8), (1, 2, 3, 3), (8, 8))
    """

    def __init__(
        self,
        d_model: int,
        n_heads: int,
        *,
        n_kv_heads: int | None = None,
        d_k: int | None = None,
        d_v: int | None = None,
        bias: bool = True,
        causal: bool = False,
        dropout: float = 0.0,
        position: str | Rotary | ALiBi | None = None,
    ):
        super().__init__()
        name = f"MultiHeadAttention({d_model}, {n_heads})"
        if d_model < 1 or n_heads < 1:
            raise ValueError(f"{name}: both must be at least 1")
        kv_heads = n_heads if n_kv_heads is None else n_kv_heads
        if kv_heads < 1 or n_heads % kv_heads:
            raise ValueError(f"{name}: n_kv_heads must divide n_heads, got {kv_heads}")
        if d_k is None and d_model % n_heads:
            raise ValueError(f"{name}: n_heads must divide d_model, or d_k be given")
        if not 0.0 <= dropout <= 1.0:
            raise ValueError(f"{name}: dropout must be in [0, 1], got {dropout}")
        self.d_model, self.n_heads, self.n_kv_heads = d_model, n_heads, kv_heads
        self.d_k = d_model // n_heads if d_k is None else d_k
        self.d_v = self.d_k if d_v is None else d_v
        if self.d_k < 1 or self.d_v < 1:
            raise ValueError(f"{name}: d_k and d_v must be at least 1, got {self.d_k} and {self.d_v}")
        self.causal, self.dropout = causal, float(dropout)
        self._sizes = [n_heads * self.d_k, kv_heads * self.d_k, kv_heads * self.d_v]
        self.in_proj = Linear(d_model, sum(self._sizes), bias=bias)
        self.out_proj = Linear(n_heads * self.d_v, d_model, bias=bias)
        if isinstance(position, str):
            if position not in ("rotary", "alibi"):
                raise ValueError(f"{name}: position must be 'rotary', 'alibi', a module or None, got {position!r}")
            position = Rotary(self.d_k) if position == "rotary" else ALiBi(n_heads)
        if isinstance(position, Rotary) and position.d_k != self.d_k:
            raise ValueError(f"{name}: a Rotary({position.d_k}) does not fit heads of d_k {self.d_k}")
        if isinstance(position, ALiBi) and position.n_heads != n_heads:
            raise ValueError(f"{name}: an ALiBi({position.n_heads}) does not fit {n_heads} heads")
        if position is not None and not isinstance(position, (Rotary, ALiBi)):
            raise TypeError(f"{name}: position must be 'rotary', 'alibi', Rotary, ALiBi or None, got {position!r}")
        self.position: Rotary | ALiBi | None = position
        for weight in (self.W_Q, self.W_K, self.W_V, self.W_O):
            init.xavier_uniform_(weight.detach())
        for linear in (self.in_proj, self.out_proj):
            if linear.bias is not None:
                init.zeros_(linear.bias)

    def extra_repr(self) -> str:
        groups = "" if self.n_kv_heads == self.n_heads else f", n_kv_heads={self.n_kv_heads}"
        return f"{self.d_model}, {self.n_heads}{groups}" + (", causal" if self.causal else "")

    def _rows(self, of: tg.Tensor, first: int, last: int) -> tg.Tensor:
        """The rows of in_proj's weight or bias that make part `first` to `last` of q, k, v."""
        return of[sum(self._sizes[:first]) : sum(self._sizes[: last + 1])]

    @property
    def W_Q(self) -> tg.Tensor:
        """The queries' weight, (H·d_k, d_model): a view of in_proj.weight."""
        return self._rows(self.in_proj.weight, 0, 0)

    @property
    def W_K(self) -> tg.Tensor:
        """The keys' weight, (Hkv·d_k, d_model): a view of in_proj.weight."""
        return self._rows(self.in_proj.weight, 1, 1)

    @property
    def W_V(self) -> tg.Tensor:
        """The values' weight, (Hkv·d_v, d_model): a view of in_proj.weight."""
        return self._rows(self.in_proj.weight, 2, 2)

    @property
    def W_O(self) -> tg.Tensor:
        """The output's weight, (d_model, H·d_v): columns i·d_v to (i+1)·d_v take head i."""
        return self.out_proj.weight

    def forward(
        self,
        query: tg.Tensor,
        key: tg.Tensor | None = None,
        value: tg.Tensor | None = None,
        *,
        mask: Any = None,
        cache: KVCache | LayerCache | None = None,
        need_weights: bool = False,
    ) -> Any:
        key = query if key is None else key
        value = key if value is None else value
        self._check(query, key, value)
        if cache is None:
            return self._attend(query, key, value, mask, None, need_weights)
        if key is not query or value is not query:
            raise ValueError("MultiHeadAttention: a cache is for self-attention, got another key or value")
        with tg.no_grad():
            return self._attend(query, key, value, mask, self._layer(cache), need_weights)

    def _check(self, query: tg.Tensor, key: tg.Tensor, value: tg.Tensor) -> None:
        for name, x in (("query", query), ("key", key), ("value", value))[: 1 if key is query is value else 3]:
            if len(x.shape) != 3 or x.shape[2] != self.d_model or x.shape[0] != query.shape[0]:
                raise ValueError(
                    f"MultiHeadAttention({self.extra_repr()}): {name} must be (B, T, {self.d_model}), one B for all, "
                    f"got {name} of shape {x.shape} and query of shape {query.shape}"
                )
        if key.shape[1] != value.shape[1]:
            raise ValueError(
                f"MultiHeadAttention({self.extra_repr()}): key and value must be equally long, "
                f"got {key.shape} and {value.shape}"
            )

    @staticmethod
    def _layer(cache: KVCache | LayerCache) -> LayerCache:
        if isinstance(cache, LayerCache):
            return cache
        if len(cache) != 1:
            raise ValueError(f"MultiHeadAttention: give it one layer of the cache, cache[i], not all {len(cache)}")
        return cache[0]

    def _project(self, query: tg.Tensor, key: tg.Tensor, value: tg.Tensor) -> list[tg.Tensor]:
        """q, k, v, each (B, heads, T, width), strided views: parts of one product as far as the inputs are one."""
        inputs, heads = [query, key, value], [self.n_heads, self.n_kv_heads, self.n_kv_heads]
        if key is query and value is query and self.d_k == self.d_v:
            return F.split_heads(self.in_proj(query), heads)  # type: ignore[no-any-return]
        parts: list[tg.Tensor] = []
        first = 0
        while first < 3:
            last = first
            while last < 2 and inputs[last + 1] is inputs[first]:
                last += 1
            bias = self.in_proj.bias
            y = F.linear(
                inputs[first],
                self._rows(self.in_proj.weight, first, last),
                None if bias is None else self._rows(bias, first, last),
            )
            parts += [y] if first == last else list(y.split(self._sizes[first : last + 1], -1))
            first = last + 1
        return [F.split_heads(x, [h])[0] for x, h in zip(parts, heads, strict=True)]

    def _attend(
        self,
        query: tg.Tensor,
        key: tg.Tensor,
        value: tg.Tensor,
        mask: Any,
        cache: LayerCache | None,
        need_weights: bool,
    ) -> Any:
        q, k, v = self._project(query, key, value)
        if isinstance(self.position, Rotary):
            offset = 0 if cache is None else cache.offset
            q, k = self.position(q, offset), self.position(k, offset)
        if cache is not None:
            k, v = cache.append(k, v)
        slopes = self.position.slopes if isinstance(self.position, ALiBi) else None
        dropout = self.dropout if self.training else 0.0
        weights = None
        if need_weights:
            weights = F.attention_weights(q, k, 1.0 / math.sqrt(self.d_k), self.causal, mask, slopes)  # (B, H, Tq, Tk)
            dropped = F.dropout(weights, dropout, True) if dropout else weights
            y = dropped @ self._repeat(v)
        elif mask is None and not dropout:  # what scaled_dot_product_attention would check is so
            y = _attention(q, k, v, 1.0 / math.sqrt(self.d_k), self.causal, None, slopes, 0.0, None)
        else:
            grouped = self.n_kv_heads != self.n_heads
            y = F.scaled_dot_product_attention(q, k, v, mask, dropout, self.causal, None, grouped, slopes)
        y = self.out_proj(F.merge_heads(y))
        return (y, weights) if need_weights else y

    def _repeat(self, x: tg.Tensor) -> tg.Tensor:
        """Each of the Hkv heads once for every query head of its group: (B, Hkv, T, d) -> (B, H, T, d)."""
        if self.n_kv_heads == self.n_heads:
            return x
        batch, _, length, width = x.shape
        groups = self.n_heads // self.n_kv_heads
        x = x.unsqueeze(2).expand(batch, self.n_kv_heads, groups, length, width)
        return x.reshape(batch, self.n_heads, length, width)


MHA = MultiHeadAttention
