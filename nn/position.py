"""Where a token stands: learned and sinusoidal rows to add, rotary turning of queries and keys, ALiBi's slopes.

`offset` is how many positions came before, those that a KV cache holds.
"""

from __future__ import annotations

import math

import numpy as np

import tinygrad_tf as tg

from ..graph import Array
from ..modes import Length, converted, rows
from . import functional as F
from . import init
from .module import Module, Parameter


def _check_room(layer: Module, offset: int, length: int, limit: int) -> None:
    if offset < 0 or offset + length > limit:
        raise IndexError(
            f"{type(layer).__name__}({layer.extra_repr()}): positions {offset} to {offset + length - 1} were asked "
            f"for, they must be below {limit}"
        )


class LearnedPosition(Module):
    """Row t of a trained table for position t.

    Args:
        max_len: how many positions there are.
        d_model: the length of a row.

    Called as `position(x, offset=0)` with x (B, T, d_model): gives the rows (T, d_model), to be added to x.

    Raises:
        IndexError: a position is not below max_len.

    >>> import tinygrad_tf as tg
    >>> from tinygrad_tf import nn
    >>> nn.LearnedPosition(8, 4)(tg.zeros(1, 3, 4), offset=5).shape
    (3, 4)
    """

    def __init__(self, max_len: int, d_model: int):
        super().__init__()
        self.max_len, self.d_model = max_len, d_model
        self.weight = Parameter(tg.empty(max_len, d_model))
        init.normal_(self.weight, std=0.02)

    def extra_repr(self) -> str:
        return f"{self.max_len}, {self.d_model}"

    def forward(self, x: tg.Tensor, offset: int = 0) -> tg.Tensor:
        _check_room(self, offset, x.shape[1], self.max_len)
        if isinstance(offset, Length):
            return tg.Tensor(rows(self.weight, offset, x.shape[1]))  # with a cache, nothing is recorded
        return self.weight[offset : offset + x.shape[1]]


class SinusoidalPosition(Module):
    """P[t, 2i] = sin(t / 10000^(2i/d)), P[t, 2i+1] = cos(t / 10000^(2i/d)).

    Args and call as LearnedPosition; nothing is trained.

    Source: Vaswani et al. 2017, section 3.5.

    >>> import tinygrad_tf as tg
    >>> from tinygrad_tf import nn
    >>> nn.SinusoidalPosition(8, 4)(tg.zeros(1, 1, 4)).numpy()
    array([[0., 1., 0., 1.]], dtype=float32)
    """

    def __init__(self, max_len: int, d_model: int):
        super().__init__()
        self.max_len, self.d_model = max_len, d_model
        angles = np.arange(max_len)[:, None] * 10000.0 ** (-np.arange(0, d_model, 2) / d_model)
        self._table = np.zeros((max_len, d_model))  # float64: rounded once, to the dtype of x
        self._table[:, 0::2] = np.sin(angles)
        self._table[:, 1::2] = np.cos(angles[:, : d_model // 2])

    def extra_repr(self) -> str:
        return f"{self.max_len}, {self.d_model}"

    def forward(self, x: tg.Tensor, offset: int = 0) -> tg.Tensor:
        _check_room(self, offset, x.shape[1], self.max_len)
        return tg.Tensor(converted(rows(self._table, offset, x.shape[1]), x._data.dtype))


class Rotary(Module):
    """Turns each pair (x_i, x_{i+d/2}) by the angle t·base^(−2i/d): of queries and keys; products know t − s only.

    y_i = x_i cos − x_{i+d/2} sin,  y_{i+d/2} = x_{i+d/2} cos + x_i sin   (the half-split layout)

    Args:
        d_k: the length of a head's query, even.
        base: default 10000.

    Called as `rotary(x, offset=0)`: x (B, H, T, d_k) -> the same shape.

    Raises:
        ValueError: d_k is odd, or x's last axis is not d_k long.

    Source: Su et al. 2021, eq. 34, in the half-split layout of GPT-NeoX and Llama.

    >>> import tinygrad_tf as tg
    >>> from tinygrad_tf import nn
    >>> nn.Rotary(4)(tg.tensor([[[[1.0, 2.0, 3.0, 4.0]]]]), offset=1).numpy().round(3)
    array([[[[-1.984,  1.96 ,  2.462,  4.02 ]]]], dtype=float32)
    """

    def __init__(self, d_k: int, base: float = 10000.0):
        super().__init__()
        if d_k < 2 or d_k % 2:
            raise ValueError(f"Rotary({d_k}): d_k must be even, because the features are turned in pairs")
        self.d_k, self.base = d_k, float(base)
        self._tables: dict[np.dtype[np.floating], tuple[Array, Array]] = {}

    def extra_repr(self) -> str:
        return f"{self.d_k}" if self.base == 10000.0 else f"{self.d_k}, base={self.base:g}"

    def tables(self, length: int, dtype: np.dtype[np.floating]) -> tuple[Array, Array]:
        """cos and sin of the angles, (at least length, d_k/2), in this dtype."""
        known = self._tables.get(dtype)
        if known is None or len(known[0]) < length:
            size = max(length, 64, 0 if known is None else 2 * len(known[0]))
            angles = np.arange(size)[:, None] * self.base ** (-np.arange(0, self.d_k, 2) / self.d_k)
            known = self._tables[dtype] = np.cos(angles).astype(dtype), np.sin(angles).astype(dtype)
        return known

    def forward(self, x: tg.Tensor, offset: int = 0) -> tg.Tensor:
        if x.shape[-1:] != (self.d_k,):
            raise ValueError(f"Rotary({self.d_k}): the last axis of x must be {self.d_k}, got x of shape {x.shape}")
        n = x.shape[-2]
        cos, sin = self.tables(offset + n, x._data.dtype)
        return F.rotary(x, rows(cos, offset, n), rows(sin, offset, n))


class ALiBi(Module):
    """Adds −m_h·|i − j| to the score of query i and key j in head h.

    The slopes of n heads, n a power of two, are m_h = 2^(−8h/n), h = 1..n; otherwise those of the power of two below
    n, then every other one of those of the power of two above.

    Args:
        n_heads: how many heads.

    Source: Press, Smith, Lewis 2022, section 3 (and the authors' code for other numbers of heads).

    >>> from tinygrad_tf import nn
    >>> nn.ALiBi(4).slopes
    array([0.25      , 0.0625    , 0.015625  , 0.00390625])
    """

    def __init__(self, n_heads: int):
        super().__init__()
        if n_heads < 1:
            raise ValueError(f"ALiBi({n_heads}): there must be at least 1 head")
        self.n_heads = n_heads
        below = 2 ** int(math.log2(n_heads))
        self.slopes: Array = np.concatenate(
            [self._powers(below), self._powers(2 * below)[0::2][: n_heads - below]],
        )

    @staticmethod
    def _powers(n: int) -> Array:
        return 2.0 ** (-8.0 * np.arange(1, n + 1) / n)

    def extra_repr(self) -> str:
        return str(self.n_heads)

    def bias(self, n_queries: int, n_keys: int) -> Array:
        """−m·|i − j|, (H, Tq, Tk); the last query stands at the last key."""
        i = np.arange(n_queries)[:, None] + (n_keys - n_queries)
        return -self.slopes[:, None, None] * np.abs(i - np.arange(n_keys))
