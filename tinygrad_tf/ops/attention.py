"""Scaled dot-product attention and rotary positions: tiled kernels, and the formulas they compute."""

from __future__ import annotations

import builtins
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from .. import kernels, rng
from ..arena import owner_of
from ..graph import TensorBase
from ..kernels.host import address
from ..modes import CaptureError, _recorder, compute
from .elementwise import constant, exp, where
from .primitive import fused, primitive
from .products import matmul
from .reductions import amax, sum
from .shape import cat, expand, narrow


def _forward(q: Any, k: Any, v: Any, *options: Any) -> Any:
    recorder = _recorder.get()
    if recorder is not None and options[2] is not None and recorder.length_of(k) is not None:
        raise CaptureError("a mask does not grow with a cache of keys and values")
    out, lse = kernels.attention.attention(q, k, v, *options)
    return out, (lse,)


def _backward(
    g: Any, needs: Any, out: Any, saved: Any, q: Any, k: Any, v: Any, scale: float, causal: bool, mask: Any, slopes: Any,
    dropout_p: float, draw: Any,
) -> Any:  # fmt: skip
    options = scale, causal, mask, slopes, dropout_p, draw
    return kernels.attention.attention_backward(g, q, k, v, out, saved[0], *options)


@fused("q", "k", "v", forward=_forward, backward=_backward)
def _attention(
    q: Any, k: Any, v: Any, scale: float, causal: bool, mask: Any, slopes: Any, dropout_p: float, draw: Any
) -> Any:
    # q: (B, H, Tq, d_k), k: (B, Hkv, Tk, d_k), v: (B, Hkv, Tk, d_v)
    (B, H, Tq, _), Tk = q.shape, k.shape[2]
    weights = attention_weights(q, k, scale, causal, mask, slopes)
    if dropout_p:
        weights = weights * kernels.attention.attention_dropout_mask(B, H, Tq, Tk, dropout_p, draw, q.dtype)
    return matmul(weights, _repeat_heads(v, H))


_attention.name = "scaled_dot_product_attention"


# -- heads -------------------------------------------------------------------------------------------------------------


@primitive(x=lambda g: _join_heads(g), view=True, several=True)
def split_heads(x: Any, heads: Sequence[int]) -> Any:
    """Cut the width into heads, and these into groups: x (B, T, sum(heads) d) -> for each group a (B, heads_i, T, d).

    The parts are views: head h at position t is the d numbers x[:, t, h d : (h + 1) d]. Raises ValueError where the width is no
    multiple of the number of heads.

    >>> import tinygrad_tf as tg
    >>> q, k = split_heads(tg.ones(1, 3, 12), [2, 1])
    >>> q.shape, k.shape
    ((1, 2, 3, 4), (1, 1, 3, 4))
    """
    total = builtins.sum(heads)
    if x.ndim != 3 or not heads or min(heads) < 1 or x.shape[2] % total:
        raise ValueError(
            f"split_heads: x must be (B, T, width) with the width a multiple of the {total} heads in {list(heads)}, "
            f"got x of shape {x.shape}"
        )
    B, T, width = x.shape
    parts, first, groups = x.reshape(B, T, total, width // total).transpose(0, 2, 1, 3), 0, []
    for n in heads:
        groups.append(parts[:, first : first + n])
        first += n
    return tuple(groups)


@primitive(tensors=lambda g, i, tensors_shape: split_heads(g, [s[1] for s in tensors_shape])[i])
def _join_heads(tensors: Sequence[Any]) -> Any:
    """The transpose of `split_heads`. Parts that lie side by side in one array, as attention leaves its gradients, are it."""
    first = tensors[0]
    (B, _, T, d), heads = first.shape, builtins.sum([t.shape[1] for t in tensors])
    packed = owner_of(first)
    strides = tuple([n * first.itemsize for n in (T * heads * d, d, heads * d, 1)])
    if packed is not first and packed.size == B * T * heads * d and packed.flags.c_contiguous:
        at = address(packed)
        for t in tensors:
            if owner_of(t) is not packed or t.strides != strides or address(t) != at:
                break
            at += t.shape[1] * d * t.itemsize
        else:
            return packed.reshape(B, T, heads * d)
    return np.concatenate([t.transpose(0, 2, 1, 3) for t in tensors], axis=2).reshape(B, T, heads * d)


@primitive(x=lambda g, x_shape: split_heads(g, x_shape[1:2])[0], view=True)
def merge_heads(x: Any) -> Any:
    """Heads side by side again, the inverse of `split_heads` of one group: x (B, H, T, d) -> (B, T, H d).

    Raises ValueError for another number of axes.

    >>> import tinygrad_tf as tg
    >>> merge_heads(tg.ones(1, 2, 3, 4)).shape
    (1, 3, 8)
    """
    if x.ndim != 4:
        raise ValueError(f"merge_heads: x must be (B, H, T, d), got x of shape {x.shape}")
    B, H, T, d = x.shape
    return x.transpose(0, 2, 1, 3).reshape(B, T, H * d)


# -- attention ---------------------------------------------------------------------------------------------------------


def _repeat_heads(x: Any, heads: int) -> Any:
    """Each key or value head, once for every query head of its group: (B, Hkv, T, d) -> (B, H, T, d)."""
    B, groups, T, d = x.shape
    if groups == heads:
        return x
    return expand(x.reshape((B, groups, 1, T, d)), (B, groups, heads // groups, T, d)).reshape((B, heads, T, d))


def attention_weights(q: Any, k: Any, scale: float, causal: bool = False, mask: Any = None, slopes: Any = None) -> Any:
    """softmax(q k^T * scale + bias) over the keys that each query may see; a row that may see none is zero."""
    (_, H, Tq, _), Tk = q.shape, k.shape[2]
    scores = matmul(q, _repeat_heads(k, H).mT) * scale  # (B, H, Tq, Tk)
    distance = np.arange(Tq)[:, None] + (Tk - Tq) - np.arange(Tk)[None, :]
    allowed = np.ones((Tq, Tk), dtype=bool) if not causal else distance >= 0
    if slopes is not None:
        scores = scores - np.asarray(slopes, dtype=q.dtype).reshape(H, 1, 1) * np.abs(distance).astype(q.dtype)
    raw_mask = getattr(mask, "_data", mask)
    if raw_mask is not None:
        if raw_mask.dtype == np.bool_:
            allowed = compute(np.logical_and, allowed, raw_mask)
        else:
            finite = compute(np.not_equal, raw_mask, -np.inf)
            allowed = compute(np.logical_and, allowed, finite)
            scores = scores + where(finite, mask, 0.0)
    scores = where(allowed, scores, 0.0)
    peak = amax(where(allowed, constant(scores), float("-inf")), -1, True) if Tk else scores
    peak = where(peak == float("-inf"), 0.0, peak)
    weights = where(allowed, exp(where(allowed, scores - peak, 0.0)), 0.0)
    total = sum(weights, -1, True)
    return weights / where(total == 0, 1.0, total)


def scaled_dot_product_attention(
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    alibi_slopes: Any = None,
) -> Any:
    """softmax(Q K^T / sqrt(d_k) + bias) V, without ever holding the T x T array of weights.

    Args:
        query: (B, H, Tq, d_k); key: (B, Hkv, Tk, d_k); value: (B, Hkv, Tk, d_v). Other numbers of leading axes work too.
        attn_mask: bool (True: may attend) or float (added to the scores), broadcasting to (B, H, Tq, Tk). A float mask
            that requires grad is differentiated through the definition.
        dropout_p: probability with which a weight is dropped.
        is_causal: query i sees keys up to i + Tk - Tq.
        scale: default 1 / sqrt(d_k).
        enable_gqa: let H be a multiple of Hkv; head h then uses key and value head h // (H / Hkv).
        alibi_slopes: (H,) slopes m; the score of a key at distance n gets -m n.

    A query that may see no key gets zeros, with zero gradient.

    Source: Vaswani et al. 2017, Attention Is All You Need, equation 1; Dao et al. 2022, FlashAttention, for the tiling.
    """
    of_q, of_k, of_v = query.shape, key.shape, value.shape
    if len(of_q) < 2 or not len(of_q) == len(of_k) == len(of_v):
        raise ValueError(
            "scaled_dot_product_attention: query, key and value need the same number of axes, at least 2, got "
            f"shapes {of_q}, {of_k}, {of_v}"
        )
    if not query.dtype == key.dtype == value.dtype:
        raise TypeError(
            "scaled_dot_product_attention: query, key and value must share one dtype, got "
            f"{query.dtype}, {key.dtype}, {value.dtype}"
        )
    lead, q, k, v = of_q[:-2], query, key, value
    if len(lead) != 2:
        q, k, v = (_four_axes(t) for t in (query, key, value))
        of_q, of_k, of_v = q.shape, k.shape, v.shape
    (B, H, Tq, width), groups = of_q, of_k[1]
    fits = B == of_k[0] == of_v[0] and width == of_k[3] and of_k[1:3] == of_v[1:3]
    if not fits or groups == 0 or H % groups or (groups != H and not enable_gqa):
        raise ValueError(
            "scaled_dot_product_attention: expected query (B, H, Tq, d_k), key (B, Hkv, Tk, d_k) and value "
            f"(B, Hkv, Tk, d_v) with Hkv = H{' or a divisor of it' if enable_gqa else ' (else enable_gqa=True)'}, "
            f"got shapes {query.shape}, {key.shape}, {value.shape}"
        )
    if attn_mask is not None:
        full = B, H, Tq, of_k[2]
        if attn_mask.dtype != np.bool_ and attn_mask.dtype.kind != "f":
            raise TypeError(
                f"scaled_dot_product_attention: the mask must be bool or float, got dtype {attn_mask.dtype}"
            )
        try:
            fits = np.broadcast_shapes(attn_mask.shape, (*lead, *full[2:])) == (*lead, *full[2:])
        except ValueError:
            fits = False
        if not fits:
            raise ValueError(
                f"scaled_dot_product_attention: the mask must broadcast to {(*lead, *full[2:])}, got {attn_mask.shape}"
            )
        if len(lead) != 2 and attn_mask.ndim > 2:
            attn_mask = expand(attn_mask, (*lead, *full[2:])).reshape(full) if isinstance(attn_mask, TensorBase) else (
                np.broadcast_to(attn_mask, (*lead, *full[2:])).reshape(full))  # fmt: skip
    scale = 1.0 / math.sqrt(width) if scale is None else float(scale)
    draw = rng.next_draw() if dropout_p else None
    operation = _attention.definition if isinstance(attn_mask, TensorBase) and attn_mask._requires_grad else _attention
    out = operation(q, k, v, scale, bool(is_causal), attn_mask, alibi_slopes, float(dropout_p), draw)
    return out if len(lead) == 2 else out.reshape((*lead, Tq, of_v[3]))


def _four_axes(x: Any) -> Any:
    if x.ndim == 4:
        return x
    return x.reshape((1,) * (4 - x.ndim) + x.shape) if x.ndim < 4 else x.reshape((-1, *x.shape[-3:]))


@fused(
    "x",
    forward=lambda x, cos, sin: (kernels.rotary.rotary(x, cos, sin), ()),
    backward=lambda g, needs, cos, sin: [kernels.rotary.rotary(g, cos, sin, inverse=True)],
)
def rotary(x: Any, cos: Any, sin: Any) -> Any:
    """Rotate each pair (x_i, x_(i + d/2)) of a head by its position's angle: x (B, H, T, d), cos and sin (T, d/2).

    Source: Su et al. 2021, RoFormer, equation 34, in the half-split layout.
    """
    half = x.shape[-1] // 2
    a, b = narrow(x, -1, 0, half), narrow(x, -1, half, half)
    return cat([a * cos - b * sin, b * cos + a * sin], -1)
