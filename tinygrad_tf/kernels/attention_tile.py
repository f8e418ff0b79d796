"""What attention's forward and backward are made of: products of tiles, packing, masks and dropout of a row.

Arrays are flat; where things lie in them, and what is asked for, stands in one array of integers, `geometry`, whose places
have names here.
"""

from __future__ import annotations

import numpy as np
from numba import types

from .random import philox
from .runtime import device, routine
from .vector_tile import PANEL_BYTES, block_1_add, block_1_new, block_4_add, block_4_new

TILE = 64  # queries and keys per tile
SMALL = 2  # up to so many queries, plain dot products beat packing the keys
FAR = 1 << 40  # the diagonal's place when there is no causal mask

# The places in `geometry`.
B, H, HKV, TQ, TK, DK, DV = range(7)
Q, K, V, G, O = 7, 10, 13, 16, 19  # three strides each: batch, head, position  # noqa: E741
MASK_KIND, MASK, CAUSAL, SLOPES, DROPOUT = 22, 23, 27, 28, 29
DQ, DKEY, DV_OUT = 30, 31, 32  # from one position to the next in the gradients
GEOMETRY_SIZE = 33
NO_MASK, BOOL_MASK, FLOAT_MASK = range(3)


@device
def clamp(x, high):
    return max(0, min(x, high))


@device
def up(n, width):
    return (n + width - 1) // width * width


@device
def last_row(i, m):
    """The last row of the register block that holds row i."""
    return i - i % 4 + 3 if i < m - m % 4 else i


@routine()
def fill(a, at, n, value):
    part = a[at : at + n]
    for i in range(n):
        part[i] = value


@device
def copy(source, source_at, target, target_at, n, factor):
    part = source[source_at : source_at + n]
    to = target[target_at : target_at + n]
    for i in range(n):
        to[i] = part[i] * factor


@routine()
def scores(shift, a, a_row, b, b_at, b_row, c, c_row, m, n, depth):
    """C = A B, except the panels that lie wholly right of the diagonal (column > row + shift)."""
    width = PANEL_BYTES // c.itemsize
    full = m - m % 4
    for column in range(0, n, width):
        for r in range(0, full, 4):
            if column <= r + 3 + shift:
                block_4_new(a, r * a_row, a_row, 1, b, b_at + column, b_row, c, r * c_row + column, c_row, depth)
        for r in range(full, m):
            if column <= r + shift:
                block_1_new(a, r * a_row, a_row, 1, b, b_at + column, b_row, c, r * c_row + column, c_row, depth)


@routine()
def accumulate(shift, keys_are_rows, a, a_row, a_column, b, b_at, b_row, c, c_at, c_row, m, n, depth):
    """C += A B with A zero above the diagonal; its rows are queries, or keys (then A is read transposed)."""
    width = PANEL_BYTES // c.itemsize
    full = m - m % 4
    for column in range(0, n, width):
        for r in range(0, full, 4):
            start = clamp(r - shift, depth) if keys_are_rows else 0
            stop = depth if keys_are_rows else clamp(r + 4 + shift, depth)
            block_4_add(
                a,
                r * a_row + start * a_column,
                a_row,
                a_column,
                b,
                b_at + start * b_row + column,
                b_row,
                c,
                c_at + r * c_row + column,
                c_row,
                stop - start,
            )
        for r in range(full, m):
            start = clamp(r - shift, depth) if keys_are_rows else 0
            stop = depth if keys_are_rows else clamp(r + 1 + shift, depth)
            block_1_add(
                a,
                r * a_row + start * a_column,
                a_row,
                a_column,
                b,
                b_at + start * b_row + column,
                b_row,
                c,
                c_at + r * c_row + column,
                c_row,
                stop - start,
            )


@routine()
def pack_rows(source, at, stride, n, d, factor, target, target_at, padded):
    """target[i, :d] = factor * source[i, :d], zero up to `padded`."""
    for i in range(n):
        row = source[at + i * stride : at + i * stride + d]
        to = target[target_at + i * padded : target_at + (i + 1) * padded]
        for c in range(d):
            to[c] = row[c] * factor
        for c in range(d, padded):
            to[c] = 0


@routine()
def pack_columns(source, at, stride, n, d, target, target_at):
    """target[c, i] = source[i, c], rows of TILE, zero from n on."""
    for i in range(n):
        row = source[at + i * stride : at + i * stride + d]
        to = target[target_at + i : target_at + d * TILE]
        for c in range(d):
            to[c * TILE] = row[c]
    if n < TILE:
        for c in range(d):
            for i in range(n, TILE):
                target[target_at + c * TILE + i] = 0


@routine(types.intp)
def clear_broken_rows(rows, at, n, padded, broken, broken_at):
    """Zero the rows that hold NaN or inf, mark them, and count them.

    Such a key may be behind the mask, where its weight 0 times NaN must not count; where allowed, it is added apart.
    """
    count = 0
    for i in range(n):
        row = rows[at + i * padded : at + (i + 1) * padded]
        probe = row[0] * 0
        for c in range(1, padded):
            probe += row[c] * 0
        bad = probe != 0
        broken[broken_at + i] = bad
        if bad:
            count += 1
            fill(rows, at + i * padded, padded, 0.0)
    return count


@device
def mask_at(geometry, b, h, i):
    return b * geometry[MASK] + h * geometry[MASK + 1] + i * geometry[MASK + 2]


@routine(types.intp)
def may_attend(geometry, mask_bytes, mask_values, b, h, i, j):
    if geometry[CAUSAL] and j > i + geometry[TK] - geometry[TQ]:
        return 0
    at = mask_at(geometry, b, h, i) + j * geometry[MASK + 3]
    if geometry[MASK_KIND] == BOOL_MASK:
        return np.intp(mask_bytes[at] != 0)
    if geometry[MASK_KIND] == FLOAT_MASK:
        return np.intp(mask_values[at] != -np.inf)
    return 1


@routine()
def add_bias(geometry, mask_bytes, mask_values, slopes, b, h, i, j0, row, allowed):
    """Mask and ALiBi on one row of scores: keys j0 .. j0 + allowed; -inf where attending is forbidden.

    Forbidden scores are replaced, not added to, since they may be NaN.
    """
    step = geometry[MASK + 3]
    at = mask_at(geometry, b, h, i) + j0 * step
    if geometry[MASK_KIND] == BOOL_MASK:
        for j in range(allowed):
            if mask_bytes[at + j * step] == 0:
                row[j] = -np.inf
    elif geometry[MASK_KIND] == FLOAT_MASK:
        for j in range(allowed):
            extra = mask_values[at + j * step]
            row[j] = extra if extra == -np.inf else row[j] + extra
    if geometry[SLOPES]:
        here = i + geometry[TK] - geometry[TQ] - j0
        for j in range(allowed):
            row[j] -= slopes[h] * abs(here - j)


@routine(types.intp)
def dropout_row(geometry, draw, p, b, h, i, j0, n, keep):
    """keep[o + j] = 1 / (1 - p) or 0 for keys j0 .. j0 + n of one row; returns o."""
    first = ((np.uint64(b) * geometry[H] + h) * geometry[TQ] + i) * geometry[TK] + j0
    first = np.uint64(first)
    block = first >> np.uint64(2)
    offset = np.int64(first & np.uint64(3))
    key, call = draw[0], draw[1]
    zero = keep.dtype.type(0)
    factor = keep.dtype.type(1 / (1 - p)) if p < 1 else zero
    for w in range((offset + n + 3) // 4):
        c0, c1, c2, c3 = philox(block + np.uint64(w), call, key)
        keep[4 * w] = factor if (c0 >> np.uint64(8)) * 2.0**-24 >= p else zero
        keep[4 * w + 1] = factor if (c1 >> np.uint64(8)) * 2.0**-24 >= p else zero
        keep[4 * w + 2] = factor if (c2 >> np.uint64(8)) * 2.0**-24 >= p else zero
        keep[4 * w + 3] = factor if (c3 >> np.uint64(8)) * 2.0**-24 >= p else zero
    return offset
