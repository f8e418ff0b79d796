"""Attention, forward: a tile of queries walks over the tiles of keys with a running maximum and sum for each row."""

from __future__ import annotations

import math

import numpy as np

from .attention_tile import (
    CAUSAL,
    DK,
    DROPOUT,
    DV,
    FAR,
    HKV,
    MASK_KIND,
    NO_MASK,
    SLOPES,
    TILE,
    TK,
    TQ,
    H,
    K,
    O,
    Q,
    V,
    accumulate,
    add_bias,
    clamp,
    clear_broken_rows,
    dropout_row,
    fill,
    last_row,
    may_attend,
    pack_columns,
    pack_rows,
    scores,
    up,
)
from .runtime import kernel, share
from .vector_tile import PANEL_BYTES, row_exp, row_max


@kernel
def forward_few(t, n_tasks, q, k, v, out, lse, mask_bytes, mask_values, slopes, geometry, reals, draw, units):
    """A share of the heads, with very few queries (decoding): each row in one go, nothing packed."""
    length_q, length_k, dk, dv = geometry[TQ], geometry[TK], geometry[DK], geometry[DV]
    kind = q.dtype.type
    zero = kind(0)
    s = np.empty(up(length_k, PANEL_BYTES // q.itemsize), q.dtype)
    weights = np.empty(len(s), q.dtype)
    sums = np.empty(dv, q.dtype)
    keep = np.empty(TILE + 8, q.dtype)
    for unit in range(*share(t, n_tasks, units)):
        b, h = unit // geometry[H], unit % geometry[H]
        kv = h // (geometry[H] // geometry[HKV])
        k_at = b * geometry[K] + kv * geometry[K + 1]
        v_at = b * geometry[V] + kv * geometry[V + 1]
        for i in range(length_q):
            q_at = b * geometry[Q] + h * geometry[Q + 1] + i * geometry[Q + 2]
            query = q[q_at : q_at + dk]
            allowed = clamp(i + length_k - length_q + 1, length_k) if geometry[CAUSAL] else length_k
            for j in range(allowed):
                source = k[k_at + j * geometry[K + 2] : k_at + j * geometry[K + 2] + dk]
                dot = zero
                for c in range(dk):
                    dot += query[c] * source[c]
                s[j] = dot * kind(reals[0])
            add_bias(geometry, mask_bytes, mask_values, slopes, b, h, i, 0, s, allowed)
            best = row_max(s, 0, allowed)
            base = best if best != -np.inf else zero
            for j in range(len(s)):
                weights[j] = s[j]
            total = row_exp(weights, 0, allowed, len(s), base)
            fill(sums, 0, dv, 0.0)
            for j0 in range(0, allowed, TILE):
                count = min(TILE, allowed - j0)
                o = dropout_row(geometry, draw, reals[1], b, h, i, j0, count, keep) if geometry[DROPOUT] else 0
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
def forward_tiles(t, n_tasks, q, k, v, out, lse, mask_bytes, mask_values, slopes, geometry, reals, draw, units):
    """A share of the tiles of queries, each over all its keys, which are packed once for all tiles of a head."""
    length_q, length_k, dk, dv = geometry[TQ], geometry[TK], geometry[DK], geometry[DV]
    heads, offset = geometry[H], length_k - length_q
    group = heads // geometry[HKV]
    width = PANEL_BYTES // q.itemsize
    padded = up(dv, width)
    biased = geometry[MASK_KIND] != NO_MASK or geometry[SLOPES] != 0
    kind = q.dtype.type
    zero = kind(0)
    key_tiles, query_tiles = (length_k + TILE - 1) // TILE, (length_q + TILE - 1) // TILE
    keys, values = np.empty(key_tiles * TILE * dk, q.dtype), np.empty(length_k * padded, q.dtype)
    broken, broken_count = np.empty(length_k, np.uint8), np.empty(key_tiles, np.int64)
    queries, s, sums = np.empty(TILE * dk, q.dtype), np.empty(TILE * TILE, q.dtype), np.empty(TILE * padded, q.dtype)
    highest, total, keep = np.empty(TILE, q.dtype), np.empty(TILE, q.dtype), np.empty(TILE + 8, q.dtype)
    packed = -1
    for unit in range(*share(t, n_tasks, units)):
        head, i0 = unit // query_tiles, unit % query_tiles * TILE
        b, h = head // heads, head % heads
        k_at, k_step = b * geometry[K] + h // group * geometry[K + 1], geometry[K + 2]
        v_at, v_step = b * geometry[V] + h // group * geometry[V + 1], geometry[V + 2]
        if packed != head // group:
            packed = head // group
            for tile in range(key_tiles):
                j0 = tile * TILE
                n = min(TILE, length_k - j0)
                pack_columns(k, k_at + j0 * k_step, k_step, n, dk, keys, j0 * dk)
                pack_rows(v, v_at + j0 * v_step, v_step, n, dv, kind(1), values, j0 * padded, padded)
                broken_count[tile] = clear_broken_rows(values, j0 * padded, n, padded, broken, j0)
        q_at = b * geometry[Q] + h * geometry[Q + 1] + i0 * geometry[Q + 2]
        m = min(TILE, length_q - i0)
        pack_rows(q, q_at, geometry[Q + 2], m, dk, kind(reals[0]), queries, 0, dk)
        fill(sums, 0, m * padded, 0.0)
        fill(highest, 0, TILE, -np.inf)
        fill(total, 0, TILE, 0.0)
        for j0 in range(0, length_k, TILE):
            if geometry[CAUSAL] and j0 > i0 + m - 1 + offset:
                break
            count = min(TILE, length_k - j0)
            n = up(count, width)
            shift = i0 + offset - j0 if geometry[CAUSAL] else FAR
            scores(shift, queries, dk, keys, j0 * dk, TILE, s, TILE, m, n, dk)
            for i in range(m):
                columns = up(clamp(last_row(i, m) + shift + 1, n), width)
                if columns == 0:
                    continue
                row = s[i * TILE : i * TILE + columns]
                allowed = clamp(i + shift + 1, count)
                if biased:
                    add_bias(geometry, mask_bytes, mask_values, slopes, b, h, i0 + i, j0, row, allowed)
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
                    o = dropout_row(geometry, draw, reals[1], b, h, i0 + i, j0, columns, keep)
                    for j in range(columns):
                        row[j] *= keep[o + j]
            accumulate(shift, False, s, TILE, 1, values, j0 * padded, padded, sums, 0, padded, m, padded, count)
            if broken_count[j0 // TILE]:
                for j in range(j0, j0 + count):
                    if broken[j]:
                        source = v[v_at + j * v_step : v_at + j * v_step + dv]
                        for i in range(m):
                            if may_attend(geometry, mask_bytes, mask_values, b, h, i0 + i, j):
                                for c in range(dv):
                                    sums[i * padded + c] += s[i * TILE + j - j0] * source[c]
        for i in range(m):
            at = b * geometry[O] + h * geometry[O + 1] + (i0 + i) * geometry[O + 2]
            to = out[at : at + dv]
            empty = total[i] == 0
            factor = zero if empty else kind(1) / total[i]
            for c in range(dv):
                to[c] = zero if empty else sums[i * padded + c] * factor
            lse[head * length_q + i0 + i] = -np.inf if empty else highest[i] + math.log(total[i])
