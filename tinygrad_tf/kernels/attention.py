"""Scaled dot-product attention by tiles: softmax(scale q kᵀ + mask) v and its gradients, never with a Tq x Tk array.

A tile of queries walks over the tiles of keys with a running maximum and a running sum per row (the online softmax of
Milakov and Gimelshein 2018; tiles as in Dao et al. 2022, FlashAttention, algorithm 1). Backward recomputes each tile's
probabilities from the rows' log-sum-exp. What a causal mask forbids is skipped: whole tiles, and inside a tile all but
the panel that the diagonal crosses.

Layouts: arguments are read where they are, by strides, as long as the last axis is contiguous; results lie in memory as
(B, T, H, d) and are returned as (B, H, T, d) views, so merging the heads afterwards costs nothing.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import numpy as np

from ..modes import _recorder
from .attention_backward import backward_tiles
from .attention_forward import forward_few, forward_tiles
from .attention_tile import BOOL_MASK, FLOAT_MASK, GEOMETRY_SIZE, NO_MASK, SMALL, TILE, TK, TQ, B, H, copy, dropout_row
from .runtime import address, contiguous, copied, empty, full, kernel, native, share, tasks, write


@kernel
def _dropout_rows(t, n_tasks, keep_mask, geometry, draw, p):
    rows = geometry[B] * geometry[H] * geometry[TQ]
    keep = np.empty(geometry[TK] + 8, keep_mask.dtype)
    for r in range(*share(t, n_tasks, rows)):
        o = dropout_row(geometry, draw, p, 0, 0, r, 0, geometry[TK], keep)
        copy(keep, o, keep_mask, r * geometry[TK], geometry[TK], keep_mask.dtype.type(1))


# -- from ndarrays to the kernels' flat arguments ----------------------------------------------------------------------


@functools.lru_cache(maxsize=4096)
def _steps(strides: tuple[int, ...], size: int) -> tuple[int, ...] | None:
    """The element strides of B, H, T; None if the kernels cannot walk by them."""
    return None if any([s < 0 or s % size for s in strides[:3]]) else tuple([s // size for s in strides[:3]])


def _flat(x: np.ndarray) -> tuple[np.ndarray, tuple[int, ...]]:
    """x (B, H, T, d) as a flat array over its memory and the element strides of B, H, T; copied only if it must be."""
    size, strides, dtype = x.itemsize, x.strides, x.dtype
    flags = x.flags
    steps = _steps(strides, size)
    if dtype.isnative and steps is not None:
        if flags.carray:
            return x.reshape(-1), steps
        owner = x.base
        if (
            flags.behaved
            and (strides[3] == size or x.shape[3] == 1)
            and type(owner) is np.ndarray
            and owner.dtype == dtype
            and owner.flags.carray
        ):
            return owner.reshape(-1)[(address(x) - address(owner)) // size :], steps
    x = copied(x, native(dtype))
    return x.reshape(-1), tuple([s // size for s in x.strides[:3]])


_NO_DRAW = np.zeros(2, np.uint64)
_NOTHING = {np.dtype(kind): np.zeros(1, kind) for kind in (np.uint8, np.float32, np.float64)}


def _mask(mask: np.ndarray | None, dtype: np.dtype) -> tuple[np.ndarray, np.ndarray, tuple[int, ...]]:
    """The mask's bytes, its values (one of the two empty), and (kind, four element strides), 0 on broadcast axes."""
    no_bytes, no_values = _NOTHING[np.dtype(np.uint8)], _NOTHING[dtype]
    if mask is None:
        return no_bytes, no_values, (NO_MASK, 0, 0, 0, 0)
    mask = mask.reshape((1,) * (4 - mask.ndim) + mask.shape) if mask.ndim < 4 else mask
    mask = mask[tuple(slice(0, 1) if s == 0 else slice(None) for s in mask.strides)]
    steps = [0 if n == 1 else math.prod(mask.shape[a + 1 :]) for a, n in enumerate(mask.shape)]
    if mask.dtype == np.bool_:
        return contiguous(mask).reshape(-1).view(np.uint8), no_values, (BOOL_MASK, *steps)
    return no_bytes, contiguous(mask, dtype).reshape(-1), (FLOAT_MASK, *steps)


@functools.lru_cache(maxsize=256)
def _geometry(
    sizes: tuple[int, ...],
    strides: tuple[int, ...],
    mask: tuple[int, ...],
    causal: bool,
    slopes: bool,
    dropout: bool,
    out_steps: tuple[int, int, int] = (0, 0, 0),
) -> np.ndarray:
    geometry = np.array([*sizes, *strides, *mask, causal, slopes, dropout, *out_steps], np.int64)
    assert len(geometry) == GEOMETRY_SIZE
    return geometry


@functools.lru_cache(maxsize=256)
def _reals(scale: float, dropout_p: float) -> np.ndarray:
    return np.array([scale, dropout_p])


def _set_length(geometry: np.ndarray, length: Callable[[], int]) -> None:
    """Note how many keys there are by now."""
    geometry[TK] = length()


def _slopes(slopes: np.ndarray | None, dtype: np.dtype) -> np.ndarray:
    return _NOTHING[dtype] if slopes is None else contiguous(slopes, dtype)


def attention(
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    scale: float,
    causal: bool,
    mask: np.ndarray | None = None,
    slopes: np.ndarray | None = None,
    dropout_p: float = 0.0,
    draw: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """out = dropout(softmax(scale q kᵀ + mask - slopes |i + Tk - Tq - j|)) v, and the rows' log-sum-exp.

    - q: (B, H, Tq, dk), k: (B, Hkv, Tk, dk), v: (B, Hkv, Tk, dv), one dtype; head h reads kv head h // (H // Hkv).
    - causal: query i may see key j iff j <= i + Tk - Tq.
    - mask: bool (True = may attend) or float (added; -inf forbids); broadcasts to (B, H, Tq, Tk).
    - slopes: (H,), the ALiBi slopes.
    - dropout_p, draw: see `attention_dropout_mask`.

    Returns out (B, H, Tq, dv), which lies in memory as (B, Tq, H, dv), and lse (B, H, Tq). A row with no allowed key is
    0, its lse -inf. What a forbidden key holds, NaN and inf included, has no influence.
    """
    batch, heads, length_q, dk = q.shape
    kv_heads, length_k, dv = v.shape[1:]
    dtype = native(q.dtype)
    out = empty((batch, length_q, heads, dv), dtype)
    lse = empty((batch, heads, length_q), dtype)
    view = out.transpose(0, 2, 1, 3)
    if out.size == 0 or length_k == 0:
        write(np.ndarray.fill, out, 0)
        write(np.ndarray.fill, lse, -np.inf)
        return view, lse
    (q_, q_steps), (k_, k_steps), (v_, v_steps) = _flat(q), _flat(k), _flat(v)
    mask_bytes, mask_values, mask_steps = _mask(mask, dtype)
    out_steps = length_q * heads * dv, dv, heads * dv
    geometry = _geometry(
        (batch, heads, kv_heads, length_q, length_k, dk, dv),
        (*q_steps, *k_steps, *v_steps, 0, 0, 0, *out_steps),
        mask_steps,
        causal,
        slopes is not None,
        dropout_p > 0,
    )
    recorder = _recorder.get()
    length = None if recorder is None else recorder.length_of(k)
    if length is not None:
        geometry = geometry.copy()
        recorder.apply(_set_length, geometry, length)
    few = length_q <= SMALL
    units = batch * heads * (1 if few else -(-length_q // TILE))
    work = batch * heads * length_q * length_k * (dk + dv) // 4
    (forward_few if few else forward_tiles)(
        min(units, tasks(work)),
        q_,
        k_,
        v_,
        out.reshape(-1),
        lse.reshape(-1),
        mask_bytes,
        mask_values,
        _slopes(slopes, dtype),
        geometry,
        _reals(scale, dropout_p),
        _NO_DRAW if draw is None else draw,
        units,
    )
    return view, lse


def attention_backward(
    g: np.ndarray,
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    out: np.ndarray,
    lse: np.ndarray,
    scale: float,
    causal: bool,
    mask: np.ndarray | None = None,
    slopes: np.ndarray | None = None,
    dropout_p: float = 0.0,
    draw: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The gradients of `attention` for the cotangent g (B, H, Tq, dv) of out, from its results out and lse.

    With P the probabilities and D = rowsum(g * out): dv = Pᵀ g, dS = P * (g vᵀ - D), dq = scale dS k, dk = scale dSᵀ q;
    dk and dv are sums over the query heads that share a kv head. Returned as (B, H, T, d) views of (B, T, H, d) memory;
    of one array, q's heads before k's before v's, where q, k and v are views of one, as of a packed projection.
    """
    batch, heads, length_q, dk = q.shape
    kv_heads, length_k, dv = v.shape[1:]
    dtype = native(q.dtype)
    anything = g.size and length_k and dk
    make = empty if anything else functools.partial(full, value=0)
    if q.base is not None and q.base is k.base and q.base is v.base and length_q == length_k and dk == dv:
        packed = make((batch, length_q, heads + 2 * kv_heads, dk), dtype=dtype)
        dq, dk_out, dv_out = np.split(packed, [heads, heads + kv_heads], axis=2)
        flat = packed.reshape(-1)
        targets = flat, flat[heads * dk :], flat[(heads + kv_heads) * dk :]
    else:
        dq = make((batch, length_q, heads, dk), dtype=dtype)
        dk_out = make((batch, length_k, kv_heads, dk), dtype=dtype)
        dv_out = make((batch, length_k, kv_heads, dv), dtype=dtype)
        targets = dq.reshape(-1), dk_out.reshape(-1), dv_out.reshape(-1)
    if anything:
        (g_, g_steps), (q_, q_steps), (k_, k_steps), (v_, v_steps), (o_, o_steps) = map(_flat, (g, q, k, v, out))
        mask_bytes, mask_values, mask_steps = _mask(mask, dtype)
        geometry = _geometry(
            (batch, heads, kv_heads, length_q, length_k, dk, dv),
            (*q_steps, *k_steps, *v_steps, *g_steps, *o_steps),
            mask_steps,
            causal,
            slopes is not None,
            dropout_p > 0,
            tuple(x.strides[1] // x.itemsize for x in (dq, dk_out, dv_out)),
        )
        units = batch * kv_heads
        work = batch * heads * length_q * length_k * (dk + dv) // 2
        backward_tiles(
            min(units, tasks(work)),
            g_,
            q_,
            k_,
            v_,
            o_,
            contiguous(lse, dtype).reshape(-1),
            *targets,
            mask_bytes,
            mask_values,
            _slopes(slopes, dtype),
            geometry,
            _reals(scale, dropout_p),
            _NO_DRAW if draw is None else draw,
            units,
        )
    return dq.transpose(0, 2, 1, 3), dk_out.transpose(0, 2, 1, 3), dv_out.transpose(0, 2, 1, 3)


def attention_dropout_mask(
    batch: int, heads: int, length_q: int, length_k: int, p: float, draw: np.ndarray, dtype: np.dtype | type
) -> np.ndarray:
    """The factors (B, H, Tq, Tk) that `attention` multiplies its probabilities with: 0, or 1 / (1 - p) where kept.

    Element (b, h, i, j) is kept iff the Philox number of index ((b * H + h) * Tq + i) * Tk + j is at least p.
    """
    mask = empty((batch, heads, length_q, length_k), dtype)
    if mask.size:
        geometry = _geometry((batch, heads, heads, length_q, length_k, 0, 0), (0,) * 15, (0,) * 5, False, False, True)
        _dropout_rows(tasks(mask.size), mask.reshape(-1), geometry, draw, p)
    return mask
