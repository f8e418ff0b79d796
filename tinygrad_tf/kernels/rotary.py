"""Rotary positions in the half-split layout: channels c and c + d/2 are one plane, turned by its angle.

Su et al. 2021, RoFormer, equation 34, with the pairing of GPT-NeoX: y1 = x1 cos - x2 sin, y2 = x2 cos + x1 sin. The
gradient of a rotation is the rotation back.
"""

from __future__ import annotations

import numpy as np

from ..modes import compute
from .attention import _flat
from .runtime import contiguous, empty, kernel, native, share, tasks


@kernel
def _rotary(t, n_tasks, x, y, cos, sin, sizes):
    heads, length, half = sizes[1], sizes[2], sizes[3] // 2
    rows = sizes[0] * length * heads
    for r in range(*share(t, n_tasks, rows)):
        h = r % heads
        i = r // heads % length
        b = r // (heads * length)
        x_at = b * sizes[4] + h * sizes[5] + i * sizes[6]
        y_at = r * 2 * half
        first, second = x[x_at : x_at + half], x[x_at + half : x_at + 2 * half]
        to_first, to_second = y[y_at : y_at + half], y[y_at + half : y_at + 2 * half]
        cos_row, sin_row = cos[i * half : (i + 1) * half], sin[i * half : (i + 1) * half]
        for c in range(half):
            a, b_, cosine, sine = first[c], second[c], cos_row[c], sin_row[c]
            to_first[c] = a * cosine - b_ * sine
            to_second[c] = b_ * cosine + a * sine


def rotary(x: np.ndarray, cos: np.ndarray, sin: np.ndarray, inverse: bool = False) -> np.ndarray:
    """x (B, H, T, d) with each pair of channels (c, c + d/2) of position t turned by the angle of cos, sin (T, d/2).

    inverse turns back: it is the gradient's map. x is read by strides; y lies in memory as (B, T, H, d) and is returned
    as its (B, H, T, d) view. Raises ValueError if d is odd or the tables' shapes differ from (T, d/2).
    """
    batch, heads, length, d = x.shape
    if d % 2:
        raise ValueError(f"rotary: the head's width must be even, got x of shape {x.shape}")
    if cos.shape != (length, d // 2) or sin.shape != cos.shape:
        raise ValueError(
            f"rotary: cos and sin must be {(length, d // 2)} for x of shape {x.shape}, got {cos.shape} and {sin.shape}"
        )
    dtype = native(x.dtype)
    y = empty((batch, length, heads, d), dtype)
    if y.size:
        flat, steps = _flat(x)
        sizes = np.array([batch, heads, length, d, *steps], np.int64)
        sin = compute(np.negative, sin) if inverse else sin
        _rotary(
            tasks(y.size),
            flat,
            y.reshape(-1),
            contiguous(cos, dtype).reshape(-1),
            contiguous(sin, dtype).reshape(-1),
            sizes,
        )
    return y.transpose(0, 2, 1, 3)
