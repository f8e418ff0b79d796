"""Scaled dot-product attention by tiles: softmax(scale q kᵀ + mask) v and its gradients, never with a Tq x Tk array.

A tile of queries walks over the tiles of keys with a running maximum and a running sum per row (the online softmax of
Milakov and Gimelshein 2018; tiles as in Dao et al. 2022, FlashAttention, algorithm 1). Backward recomputes each tile's
probabilities from the rows' log-sum-exp. What a causal mask forbids is skipped: whole tiles, and inside a tile all but
the panel that the diagonal crosses.

Layouts: arguments are read where they are, by strides, as long as the last axis is contiguous; results lie in memory as
(B, T, H, d) and are returned as (B, H, T, d) views, so merging the heads afterwards costs nothing.
"""

from __future__ import annotations

import math

import numpy as np
from numba import types

from .random import philox
from .runtime import address, device, kernel, routine, share, tasks
from .vector_tile import PANEL_BYTES, block_1_add, block_1_new, block_4_add, block_4_new, row_exp, row_max

TILE = 64  # queries and keys per tile
SMALL = 2  # up to so many queries, plain dot products beat packing the keys
FAR = 1 << 40  # the diagonal's place when there is no causal mask

# The places in `geometry`.
B, H, HKV, TQ, TK, DK, DV = range(7)
Q, K, V, G, O = 7, 10, 13, 16, 19  # three strides each: batch, head, position  # noqa: E741
MASK_KIND, MASK, CAUSAL, SLOPES, DROPOUT, KEY, CALL = 22, 23, 27, 28, 29, 30, 31
GEOMETRY_SIZE = 32
NO_MASK, BOOL_MASK, FLOAT_MASK = range(3)


@device
def _clamp(x, high):
    return max(0, min(x, high))


@device
def _up(n, width):
    return (n + width - 1) // width * width


@device
def _last_row(i, m):
    """The last row of the register block that holds row i."""
    return i - i % 4 + 3 if i < m - m % 4 else i


@routine()
def _fill(a, at, n, value):
    part = a[at : at + n]
    for i in range(n):
        part[i] = value


@device
def _copy(source, source_at, target, target_at, n, factor):
    part = source[source_at : source_at + n]
    to = target[target_at : target_at + n]
    for i in range(n):
        to[i] = part[i] * factor


@routine()
def _scores(shift, a, a_row, b, b_at, b_row, c, c_row, m, n, depth):
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
def _accumulate(shift, keys_are_rows, a, a_row, a_column, b, b_at, b_row, c, c_at, c_row, m, n, depth):
    """C += A B with A zero above the diagonal; its rows are queries, or keys (then A is read transposed)."""
    width = PANEL_BYTES // c.itemsize
    full = m - m % 4
    for column in range(0, n, width):
        for r in range(0, full, 4):
            start = _clamp(r - shift, depth) if keys_are_rows else 0
            stop = depth if keys_are_rows else _clamp(r + 4 + shift, depth)
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
            start = _clamp(r - shift, depth) if keys_are_rows else 0
            stop = depth if keys_are_rows else _clamp(r + 1 + shift, depth)
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
def _pack_rows(source, at, stride, n, d, factor, target, target_at, padded):
    """target[i, :d] = factor * source[i, :d], zero up to `padded`."""
    for i in range(n):
        row = source[at + i * stride : at + i * stride + d]
        to = target[target_at + i * padded : target_at + (i + 1) * padded]
        for c in range(d):
            to[c] = row[c] * factor
        for c in range(d, padded):
            to[c] = 0


@routine()
def _pack_columns(source, at, stride, n, d, target, target_at):
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
def _clear_broken_rows(rows, at, n, padded, broken, broken_at):
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
            _fill(rows, at + i * padded, padded, 0)
    return count


@device
def _mask_at(geometry, b, h, i):
    return b * geometry[MASK] + h * geometry[MASK + 1] + i * geometry[MASK + 2]


@routine(types.intp)
def _may_attend(geometry, mask_bytes, mask_values, b, h, i, j):
    if geometry[CAUSAL] and j > i + geometry[TK] - geometry[TQ]:
        return 0
    at = _mask_at(geometry, b, h, i) + j * geometry[MASK + 3]
    if geometry[MASK_KIND] == BOOL_MASK:
        return np.intp(mask_bytes[at] != 0)
    if geometry[MASK_KIND] == FLOAT_MASK:
        return np.intp(mask_values[at] != -np.inf)
    return 1


@routine()
def _add_bias(geometry, mask_bytes, mask_values, slopes, b, h, i, j0, row, allowed):
    """Mask and ALiBi on one row of scores: keys j0 .. j0 + allowed; -inf where attending is forbidden.

    Forbidden scores are replaced, not added to, since they may be NaN.
    """
    step = geometry[MASK + 3]
    at = _mask_at(geometry, b, h, i) + j0 * step
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
def _dropout_row(geometry, p, b, h, i, j0, n, keep):
    """keep[o + j] = 1 / (1 - p) or 0 for keys j0 .. j0 + n of one row; returns o."""
    first = ((np.uint64(b) * geometry[H] + h) * geometry[TQ] + i) * geometry[TK] + j0
    first = np.uint64(first)
    block = first >> np.uint64(2)
    offset = np.int64(first & np.uint64(3))
    key, call = np.uint64(geometry[KEY]), np.uint64(geometry[CALL])
    zero = keep.dtype.type(0)
    factor = keep.dtype.type(1 / (1 - p)) if p < 1 else zero
    for w in range((offset + n + 3) // 4):
        c0, c1, c2, c3 = philox(block + np.uint64(w), call, key)
        keep[4 * w] = factor if (c0 >> np.uint64(8)) * 2.0**-24 >= p else zero
        keep[4 * w + 1] = factor if (c1 >> np.uint64(8)) * 2.0**-24 >= p else zero
        keep[4 * w + 2] = factor if (c2 >> np.uint64(8)) * 2.0**-24 >= p else zero
        keep[4 * w + 3] = factor if (c3 >> np.uint64(8)) * 2.0**-24 >= p else zero
    return offset


@routine()
def _forward_tile(
    q,
    k,
    v,
    out,
    lse,
    mask_bytes,
    mask_values,
    slopes,
    geometry,
    reals,
    b,
    h,
    i0,
    keys,
    values,
    broken,
    broken_count,
    queries,
    s,
    sums,
    highest,
    total,
    keep,
):
    """One tile of queries of one head, over all its keys."""
    length_q, length_k, dk, dv = geometry[TQ], geometry[TK], geometry[DK], geometry[DV]
    width = PANEL_BYTES // q.itemsize
    padded = _up(dv, width)
    offset = length_k - length_q
    m = min(TILE, length_q - i0)
    kv = h // (geometry[H] // geometry[HKV])
    v_at = b * geometry[V] + kv * geometry[V + 1]
    kind = q.dtype.type
    zero = kind(0)
    biased = geometry[MASK_KIND] != NO_MASK or geometry[SLOPES] != 0
    _pack_rows(
        q,
        b * geometry[Q] + h * geometry[Q + 1] + i0 * geometry[Q + 2],
        geometry[Q + 2],
        m,
        dk,
        kind(reals[0]),
        queries,
        0,
        dk,
    )
    _fill(sums, 0, m * padded, 0)
    _fill(highest, 0, TILE, -np.inf)
    _fill(total, 0, TILE, 0)
    for j0 in range(0, length_k, TILE):
        if geometry[CAUSAL] and j0 > i0 + m - 1 + offset:
            break
        count = min(TILE, length_k - j0)
        n = _up(count, width)
        shift = i0 + offset - j0 if geometry[CAUSAL] else FAR
        _scores(shift, queries, dk, keys, j0 * dk, TILE, s, TILE, m, n, dk)
        for i in range(m):
            columns = _up(_clamp(_last_row(i, m) + shift + 1, n), width)
            if columns == 0:
                continue
            row = s[i * TILE : i * TILE + columns]
            allowed = _clamp(i + shift + 1, count)
            if biased:
                _add_bias(geometry, mask_bytes, mask_values, slopes, b, h, i0 + i, j0, row, allowed)
            old = highest[i]
            best = row_max(s, i * TILE, allowed)
            best = best if best > old else old
            base = best if best != -np.inf else zero
            added = row_exp(s, i * TILE, allowed, columns, base)
            if best != old:
                highest[i] = best
            if best != old and old != -np.inf:
                factor = kind(math.exp(old - base))
                total[i] *= factor
                to = sums[i * padded : (i + 1) * padded]
                for c in range(padded):
                    to[c] *= factor
            total[i] += added
            if geometry[DROPOUT]:
                o = _dropout_row(geometry, reals[1], b, h, i0 + i, j0, columns, keep)
                for j in range(columns):
                    row[j] *= keep[o + j]
        _accumulate(shift, False, s, TILE, 1, values, j0 * padded, padded, sums, 0, padded, m, padded, count)
        if broken_count[j0 // TILE]:
            for j in range(j0, j0 + count):
                if broken[j]:
                    source = v[v_at + j * geometry[V + 2] : v_at + j * geometry[V + 2] + dv]
                    for i in range(m):
                        if _may_attend(geometry, mask_bytes, mask_values, b, h, i0 + i, j):
                            for c in range(dv):
                                sums[i * padded + c] += s[i * TILE + j - j0] * source[c]
    for i in range(m):
        at = b * geometry[O] + h * geometry[O + 1] + (i0 + i) * geometry[O + 2]
        to = out[at : at + dv]
        empty = total[i] == 0
        factor = zero if empty else kind(1) / total[i]
        for c in range(dv):
            to[c] = zero if empty else sums[i * padded + c] * factor
        lse[(b * geometry[H] + h) * length_q + i0 + i] = -np.inf if empty else highest[i] + math.log(total[i])


@routine()
def _forward_few(q, k, v, out, lse, mask_bytes, mask_values, slopes, geometry, reals, b, h, s, weights, sums, keep):
    """One head with very few queries (decoding): each row in one go, nothing packed."""
    length_q, length_k, dk, dv = geometry[TQ], geometry[TK], geometry[DK], geometry[DV]
    kv = h // (geometry[H] // geometry[HKV])
    kind = q.dtype.type
    zero = kind(0)
    k_at = b * geometry[K] + kv * geometry[K + 1]
    v_at = b * geometry[V] + kv * geometry[V + 1]
    for i in range(length_q):
        q_at = b * geometry[Q] + h * geometry[Q + 1] + i * geometry[Q + 2]
        query = q[q_at : q_at + dk]
        allowed = _clamp(i + length_k - length_q + 1, length_k) if geometry[CAUSAL] else length_k
        for j in range(allowed):
            source = k[k_at + j * geometry[K + 2] : k_at + j * geometry[K + 2] + dk]
            dot = zero
            for c in range(dk):
                dot += query[c] * source[c]
            s[j] = dot * kind(reals[0])
        _add_bias(geometry, mask_bytes, mask_values, slopes, b, h, i, 0, s, allowed)
        best = row_max(s, 0, allowed)
        base = best if best != -np.inf else zero
        for j in range(len(s)):
            weights[j] = s[j]
        total = row_exp(weights, 0, allowed, len(s), base)
        _fill(sums, 0, dv, 0)
        for j0 in range(0, allowed, TILE):
            count = min(TILE, allowed - j0)
            o = _dropout_row(geometry, reals[1], b, h, i, j0, count, keep) if geometry[DROPOUT] else 0
            for j in range(j0, j0 + count):
                if s[j] != -np.inf:
                    weight = weights[j] * keep[o + j - j0] if geometry[DROPOUT] else weights[j]
                    source = v[v_at + j * geometry[V + 2] : v_at + j * geometry[V + 2] + dv]
                    for c in range(dv):
                        sums[c] += weight * source[c]
        empty = total == 0
        factor = zero if empty else kind(1) / total
        at = b * geometry[O] + h * geometry[O + 1] + i * geometry[O + 2]
        to = out[at : at + dv]
        for c in range(dv):
            to[c] = zero if empty else sums[c] * factor
        lse[(b * geometry[H] + h) * length_q + i] = -np.inf if empty else best + math.log(total)


@kernel
def _forward(t, n_tasks, q, k, v, out, lse, mask_bytes, mask_values, slopes, geometry, reals, units):
    """A share of the tiles of queries; the keys and values of a head are packed once for all its tiles."""
    first, last = share(t, n_tasks, units)
    length_q, length_k, dk, dv = geometry[TQ], geometry[TK], geometry[DK], geometry[DV]
    width = PANEL_BYTES // q.itemsize
    padded = _up(dv, width)
    keep = np.empty(TILE + 8, q.dtype)
    if length_q <= SMALL:
        s = np.empty(_up(length_k, width), q.dtype)
        weights = np.empty(_up(length_k, width), q.dtype)
        sums = np.empty(dv, q.dtype)
        for unit in range(first, last):
            _forward_few(
                q,
                k,
                v,
                out,
                lse,
                mask_bytes,
                mask_values,
                slopes,
                geometry,
                reals,
                unit // geometry[H],
                unit % geometry[H],
                s,
                weights,
                sums,
                keep,
            )
        return
    key_tiles = (length_k + TILE - 1) // TILE
    query_tiles = (length_q + TILE - 1) // TILE
    keys = np.empty(key_tiles * TILE * dk, q.dtype)
    values = np.empty(length_k * padded, q.dtype)
    broken = np.empty(length_k, np.uint8)
    broken_count = np.empty(key_tiles, np.int64)
    queries = np.empty(TILE * dk, q.dtype)
    s = np.empty(TILE * TILE, q.dtype)
    sums = np.empty(TILE * padded, q.dtype)
    highest = np.empty(TILE, q.dtype)
    total = np.empty(TILE, q.dtype)
    packed = -1
    for unit in range(first, last):
        head = unit // query_tiles
        b = head // geometry[H]
        h = head % geometry[H]
        kv = h // (geometry[H] // geometry[HKV])
        if packed != b * geometry[HKV] + kv:
            packed = b * geometry[HKV] + kv
            for tile in range(key_tiles):
                j0 = tile * TILE
                n = min(TILE, length_k - j0)
                _pack_columns(
                    k,
                    b * geometry[K] + kv * geometry[K + 1] + j0 * geometry[K + 2],
                    geometry[K + 2],
                    n,
                    dk,
                    keys,
                    j0 * dk,
                )
                _pack_rows(
                    v,
                    b * geometry[V] + kv * geometry[V + 1] + j0 * geometry[V + 2],
                    geometry[V + 2],
                    n,
                    dv,
                    v.dtype.type(1),
                    values,
                    j0 * padded,
                    padded,
                )
                broken_count[tile] = _clear_broken_rows(values, j0 * padded, n, padded, broken, j0)
        _forward_tile(
            q,
            k,
            v,
            out,
            lse,
            mask_bytes,
            mask_values,
            slopes,
            geometry,
            reals,
            b,
            h,
            unit % query_tiles * TILE,
            keys,
            values,
            broken,
            broken_count,
            queries,
            s,
            sums,
            highest,
            total,
            keep,
        )


@routine()
def _backward_pair(
    k,
    lse,
    mask_bytes,
    mask_values,
    slopes,
    geometry,
    reals,
    b,
    h,
    i0,
    j0,
    delta_at,
    keys,
    key_rows,
    values,
    broken,
    broken_count,
    queries,
    g_rows,
    s,
    ds,
    delta,
    keep,
    dq_sums,
    dk_sums,
    dv_sums,
):
    """What one tile of queries and one tile of keys add to the three gradients."""
    length_q, length_k, dk, dv = geometry[TQ], geometry[TK], geometry[DK], geometry[DV]
    width = PANEL_BYTES // k.itemsize
    dk_padded = _up(dk, width)
    dv_padded = _up(dv, width)
    zero = k.dtype.type(0)
    biased = geometry[MASK_KIND] != NO_MASK or geometry[SLOPES] != 0
    m = min(TILE, length_q - i0)
    count = min(TILE, length_k - j0)
    n = _up(count, width)
    shift = i0 + length_k - length_q - j0 if geometry[CAUSAL] else FAR
    _scores(shift, queries, dk_padded, keys, 0, TILE, s, TILE, m, n, dk)
    _scores(shift, g_rows, dv_padded, values, 0, TILE, ds, TILE, m, n, dv)
    for i in range(m):
        columns = _up(_clamp(_last_row(i, m) + shift + 1, n), width)
        if columns == 0:
            continue
        p_row = s[i * TILE : i * TILE + columns]
        ds_row = ds[i * TILE : i * TILE + columns]
        allowed = _clamp(i + shift + 1, count)
        if biased:
            _add_bias(geometry, mask_bytes, mask_values, slopes, b, h, i0 + i, j0, p_row, allowed)
        base = lse[(b * geometry[H] + h) * length_q + i0 + i]
        row_exp(s, i * TILE, allowed, columns, base if base != -np.inf else zero)
        d = delta[delta_at + i]
        if geometry[DROPOUT]:
            o = _dropout_row(geometry, reals[1], b, h, i0 + i, j0, columns, keep)
            for j in range(columns):
                ds_row[j] = p_row[j] * (ds_row[j] * keep[o + j] - d) if p_row[j] != 0 else zero
                p_row[j] *= keep[o + j]
        else:
            for j in range(columns):
                ds_row[j] = p_row[j] * (ds_row[j] - d) if p_row[j] != 0 else zero
    _accumulate(shift, True, s, 1, TILE, g_rows, 0, dv_padded, dv_sums, 0, dv_padded, count, dv_padded, m)
    _accumulate(shift, True, ds, 1, TILE, queries, 0, dk_padded, dk_sums, 0, dk_padded, count, dk_padded, m)
    dq_at = delta_at * dk_padded
    _accumulate(shift, False, ds, TILE, 1, key_rows, 0, dk_padded, dq_sums, dq_at, dk_padded, m, dk_padded, count)
    if broken_count:
        kv = h // (geometry[H] // geometry[HKV])
        for j in range(count):
            if broken[j]:
                at = b * geometry[K] + kv * geometry[K + 1] + (j0 + j) * geometry[K + 2]
                for i in range(m):
                    if _may_attend(geometry, mask_bytes, mask_values, b, h, i0 + i, j0 + j):
                        for c in range(dk):
                            dq_sums[dq_at + i * dk_padded + c] += ds[i * TILE + j] * k[at + c]


@kernel
def _backward(
    t, n_tasks, g, q, k, v, out, lse, dq, dk_out, dv_out, mask_bytes, mask_values, slopes, geometry, reals, units
):
    """A share of the key-and-value heads, each with its group of query heads."""
    first, last = share(t, n_tasks, units)
    length_q, length_k, dk, dv = geometry[TQ], geometry[TK], geometry[DK], geometry[DV]
    heads, kv_heads = geometry[H], geometry[HKV]
    group = heads // kv_heads
    width = PANEL_BYTES // q.itemsize
    dk_padded = _up(dk, width)
    dv_padded = _up(dv, width)
    kind = q.dtype.type
    one = kind(1)
    scale = kind(reals[0])
    keys = np.empty(TILE * dk, q.dtype)
    key_rows = np.empty(TILE * dk_padded, q.dtype)
    values = np.empty(TILE * dv, q.dtype)
    broken = np.empty(TILE, np.uint8)
    queries = np.empty(TILE * dk_padded, q.dtype)
    g_rows = np.empty(TILE * dv_padded, q.dtype)
    s = np.empty(TILE * TILE, q.dtype)
    ds = np.empty(TILE * TILE, q.dtype)
    keep = np.empty(TILE + 8, q.dtype)
    dk_sums = np.empty(TILE * dk_padded, q.dtype)
    dv_sums = np.empty(TILE * dv_padded, q.dtype)
    dq_sums = np.empty(group * length_q * dk_padded, q.dtype)
    delta = np.empty(group * length_q, q.dtype)
    for unit in range(first, last):
        b = unit // kv_heads
        kv = unit % kv_heads
        _fill(dq_sums, 0, len(dq_sums), 0)
        for r in range(group * length_q):
            h = kv * group + r // length_q
            i = r % length_q
            g_at = b * geometry[G] + h * geometry[G + 1] + i * geometry[G + 2]
            o_at = b * geometry[O] + h * geometry[O + 1] + i * geometry[O + 2]
            g_row = g[g_at : g_at + dv]
            o_row = out[o_at : o_at + dv]
            dot = kind(0)
            for c in range(dv):
                dot += g_row[c] * o_row[c]
            delta[r] = dot if lse[(b * heads + h) * length_q + i] != -np.inf else kind(0)
        for j0 in range(0, length_k, TILE):
            count = min(TILE, length_k - j0)
            k_at = b * geometry[K] + kv * geometry[K + 1] + j0 * geometry[K + 2]
            v_at = b * geometry[V] + kv * geometry[V + 1] + j0 * geometry[V + 2]
            _pack_columns(k, k_at, geometry[K + 2], count, dk, keys, 0)
            _pack_rows(k, k_at, geometry[K + 2], count, dk, one, key_rows, 0, dk_padded)
            _pack_columns(v, v_at, geometry[V + 2], count, dv, values, 0)
            broken_count = _clear_broken_rows(key_rows, 0, count, dk_padded, broken, 0)
            _fill(dk_sums, 0, len(dk_sums), 0)
            _fill(dv_sums, 0, len(dv_sums), 0)
            for h in range(kv * group, (kv + 1) * group):
                for i0 in range(0, length_q, TILE):
                    m = min(TILE, length_q - i0)
                    if geometry[CAUSAL] and j0 > i0 + m - 1 + length_k - length_q:
                        continue
                    q_at = b * geometry[Q] + h * geometry[Q + 1] + i0 * geometry[Q + 2]
                    g_at = b * geometry[G] + h * geometry[G + 1] + i0 * geometry[G + 2]
                    _pack_rows(q, q_at, geometry[Q + 2], m, dk, scale, queries, 0, dk_padded)
                    _pack_rows(g, g_at, geometry[G + 2], m, dv, one, g_rows, 0, dv_padded)
                    for i in range(m):
                        if lse[(b * heads + h) * length_q + i0 + i] == -np.inf:
                            _fill(queries, i * dk_padded, dk_padded, 0)
                            _fill(g_rows, i * dv_padded, dv_padded, 0)
                    _backward_pair(
                        k,
                        lse,
                        mask_bytes,
                        mask_values,
                        slopes,
                        geometry,
                        reals,
                        b,
                        h,
                        i0,
                        j0,
                        (h - kv * group) * length_q + i0,
                        keys,
                        key_rows,
                        values,
                        broken,
                        broken_count,
                        queries,
                        g_rows,
                        s,
                        ds,
                        delta,
                        keep,
                        dq_sums,
                        dk_sums,
                        dv_sums,
                    )
            for j in range(count):
                at = ((b * length_k + j0 + j) * kv_heads + kv) * dk
                _copy(dk_sums, j * dk_padded, dk_out, at, dk, one)
                at = ((b * length_k + j0 + j) * kv_heads + kv) * dv
                _copy(dv_sums, j * dv_padded, dv_out, at, dv, one)
        for r in range(group * length_q):
            at = ((b * length_q + r % length_q) * heads + kv * group + r // length_q) * dk
            _copy(dq_sums, r * dk_padded, dq, at, dk, scale)


@kernel
def _dropout_rows(t, n_tasks, keep_mask, geometry, p):
    rows = geometry[B] * geometry[H] * geometry[TQ]
    keep = np.empty(geometry[TK] + 8, keep_mask.dtype)
    for r in range(*share(t, n_tasks, rows)):
        o = _dropout_row(geometry, p, 0, 0, r, 0, geometry[TK], keep)
        _copy(keep, o, keep_mask, r * geometry[TK], geometry[TK], keep_mask.dtype.type(1))


# -- from ndarrays to the kernels' flat arguments ----------------------------------------------------------------------


def _flat(x: np.ndarray) -> tuple[np.ndarray, list[int]]:
    """x (B, H, T, d) as a flat array over its memory and the element strides of B, H, T; copied only if it must be."""
    size = x.itemsize
    flags = x.flags
    if flags.carray and x.dtype.isnative:
        return x.reshape(-1), [s // size for s in x.strides[:3]]
    usable = flags.behaved and x.dtype.isnative and (x.shape[3] == 1 or x.strides[3] == size)
    owner = x.base
    usable = usable and isinstance(owner, np.ndarray) and owner.flags.carray and owner.dtype == x.dtype
    if not usable or any(s < 0 or s % size for s in x.strides[:3]):
        x = np.array(x, x.dtype.newbyteorder("="), order="C")
        return x.reshape(-1), [s // size for s in x.strides[:3]]
    first = (address(x) - address(owner)) // size
    return owner.reshape(-1)[first:], [s // size for s in x.strides[:3]]


def _mask(mask: np.ndarray | None, dtype: np.dtype) -> tuple[np.ndarray, np.ndarray, list[int]]:
    """The mask's bytes, its values (one of the two empty), and [kind, four element strides], 0 on broadcast axes."""
    no_bytes, no_values = np.zeros(1, np.uint8), np.zeros(1, dtype)
    if mask is None:
        return no_bytes, no_values, [NO_MASK, 0, 0, 0, 0]
    mask = mask.reshape((1,) * (4 - mask.ndim) + mask.shape) if mask.ndim < 4 else mask
    mask = mask[tuple(slice(0, 1) if s == 0 else slice(None) for s in mask.strides)]
    steps = [0 if n == 1 else math.prod(mask.shape[a + 1 :]) for a, n in enumerate(mask.shape)]
    if mask.dtype == np.bool_:
        return np.require(mask, None, ["C", "W"]).reshape(-1).view(np.uint8), no_values, [BOOL_MASK, *steps]
    return no_bytes, np.require(mask, dtype, ["C", "W", "A"]).reshape(-1), [FLOAT_MASK, *steps]


def _signed(word: int) -> int:
    """The bits of a 64-bit word as an int64."""
    return (word + 2**63) % 2**64 - 2**63


def _geometry(
    sizes: tuple[int, ...],
    strides: list[int],
    mask: list[int],
    causal: bool,
    slopes: np.ndarray | None,
    dropout_p: float,
    key: int,
    call: int,
) -> np.ndarray:
    geometry = np.array(
        [
            *sizes,
            *strides,
            *mask,
            causal,
            slopes is not None,
            dropout_p > 0,
            _signed(key),
            _signed(call),
        ],
        np.int64,
    )
    assert len(geometry) == GEOMETRY_SIZE
    return geometry


def _slopes(slopes: np.ndarray | None, dtype: np.dtype) -> np.ndarray:
    return np.zeros(1, dtype) if slopes is None else np.require(slopes, dtype, ["C", "W", "A"])


def attention(
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    *,
    scale: float,
    causal: bool,
    mask: np.ndarray | None = None,
    slopes: np.ndarray | None = None,
    dropout_p: float = 0.0,
    key: int = 0,
    call: int = 0,
) -> tuple[np.ndarray, np.ndarray]:
    """out = dropout(softmax(scale q kᵀ + mask - slopes |i + Tk - Tq - j|)) v, and the rows' log-sum-exp.

    - q: (B, H, Tq, dk), k: (B, Hkv, Tk, dk), v: (B, Hkv, Tk, dv), one dtype; head h reads kv head h // (H // Hkv).
    - causal: query i may see key j iff j <= i + Tk - Tq.
    - mask: bool (True = may attend) or float (added; -inf forbids); broadcasts to (B, H, Tq, Tk).
    - slopes: (H,), the ALiBi slopes.
    - dropout_p, key, call: see `attention_dropout_mask`.

    Returns out (B, H, Tq, dv), which lies in memory as (B, Tq, H, dv), and lse (B, H, Tq). A row with no allowed key is
    0, its lse -inf. What a forbidden key holds, NaN and inf included, has no influence.
    """
    batch, heads, length_q, dk = q.shape
    kv_heads, length_k, dv = v.shape[1:]
    out = np.empty((batch, length_q, heads, dv), q.dtype.newbyteorder("="))
    lse = np.empty((batch, heads, length_q), out.dtype)
    view = out.transpose(0, 2, 1, 3)
    if out.size == 0 or length_k == 0:
        out.fill(0)
        lse.fill(-np.inf)
        return view, lse
    (q_, q_steps), (k_, k_steps), (v_, v_steps) = _flat(q), _flat(k), _flat(v)
    mask_bytes, mask_values, mask_steps = _mask(mask, out.dtype)
    out_steps = [length_q * heads * dv, dv, heads * dv]
    geometry = _geometry(
        (batch, heads, kv_heads, length_q, length_k, dk, dv),
        [*q_steps, *k_steps, *v_steps, 0, 0, 0, *out_steps],
        mask_steps,
        causal,
        slopes,
        dropout_p,
        key,
        call,
    )
    units = batch * heads * (1 if length_q <= SMALL else -(-length_q // TILE))
    work = batch * heads * length_q * length_k * (dk + dv) // 4
    _forward(
        min(units, tasks(work)),
        q_,
        k_,
        v_,
        out.reshape(-1),
        lse.reshape(-1),
        mask_bytes,
        mask_values,
        _slopes(slopes, out.dtype),
        geometry,
        np.array([scale, dropout_p]),
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
    *,
    scale: float,
    causal: bool,
    mask: np.ndarray | None = None,
    slopes: np.ndarray | None = None,
    dropout_p: float = 0.0,
    key: int = 0,
    call: int = 0,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The gradients of `attention` for the cotangent g (B, H, Tq, dv) of out, from its results out and lse.

    With P the probabilities and D = rowsum(g * out): dv = Pᵀ g, dS = P * (g vᵀ - D), dq = scale dS k, dk = scale dSᵀ q;
    dk and dv are sums over the query heads that share a kv head. Returned as (B, H, T, d) views of (B, T, H, d) memory.
    """
    batch, heads, length_q, dk = q.shape
    kv_heads, length_k, dv = v.shape[1:]
    dtype = q.dtype.newbyteorder("=")
    make = np.empty if g.size and length_k and dk else np.zeros
    dq = make((batch, length_q, heads, dk), dtype)
    dk_out = make((batch, length_k, kv_heads, dk), dtype)
    dv_out = make((batch, length_k, kv_heads, dv), dtype)
    if make is np.empty:
        (g_, g_steps), (q_, q_steps), (k_, k_steps), (v_, v_steps), (o_, o_steps) = map(_flat, (g, q, k, v, out))
        mask_bytes, mask_values, mask_steps = _mask(mask, dtype)
        geometry = _geometry(
            (batch, heads, kv_heads, length_q, length_k, dk, dv),
            [*q_steps, *k_steps, *v_steps, *g_steps, *o_steps],
            mask_steps,
            causal,
            slopes,
            dropout_p,
            key,
            call,
        )
        units = batch * kv_heads
        work = batch * heads * length_q * length_k * (dk + dv) // 2
        _backward(
            min(units, tasks(work)),
            g_,
            q_,
            k_,
            v_,
            o_,
            np.require(lse, dtype, ["C", "W", "A"]).reshape(-1),
            dq.reshape(-1),
            dk_out.reshape(-1),
            dv_out.reshape(-1),
            mask_bytes,
            mask_values,
            _slopes(slopes, dtype),
            geometry,
            np.array([scale, dropout_p]),
            units,
        )
    return dq.transpose(0, 2, 1, 3), dk_out.transpose(0, 2, 1, 3), dv_out.transpose(0, 2, 1, 3)


def attention_dropout_mask(
    batch: int, heads: int, length_q: int, length_k: int, p: float, key: int, call: int, dtype: np.dtype | type
) -> np.ndarray:
    """The factors (B, H, Tq, Tk) that `attention` multiplies its probabilities with: 0, or 1 / (1 - p) where kept.

    Element (b, h, i, j) is kept iff the Philox number of index ((b * H + h) * Tq + i) * Tk + j is at least p.
    """
    mask = np.empty((batch, heads, length_q, length_k), dtype)
    if mask.size:
        geometry = _geometry(
            (batch, heads, heads, length_q, length_k, 0, 0), [0] * 15, [0] * 5, False, None, p, key, call
        )
        _dropout_rows(tasks(mask.size), mask.reshape(-1), geometry, p)
    return mask
