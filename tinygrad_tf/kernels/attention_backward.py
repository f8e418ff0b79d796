"""Attention, backward: each tile's probabilities are computed again from the rows' log-sum-exp, then its five products."""

from __future__ import annotations

import numpy as np

from .attention_tile import (
    CAUSAL,
    DK,
    DKEY,
    DQ,
    DROPOUT,
    DV,
    DV_OUT,
    FAR,
    HKV,
    MASK_KIND,
    NO_MASK,
    SLOPES,
    TILE,
    TK,
    TQ,
    G,
    H,
    K,
    O,
    Q,
    V,
    accumulate,
    add_bias,
    clamp,
    clear_broken_rows,
    copy,
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
from .vector_tile import PANEL_BYTES, row_exp


@kernel
def backward_tiles(
    t, n_tasks, g, q, k, v, out, lse, dq, dk_out, dv_out, mask_bytes, mask_values, slopes, geometry, reals, draw, units
):
    """A share of the key-and-value heads, each with its group of query heads."""
    length_q, length_k, dk, dv = geometry[TQ], geometry[TK], geometry[DK], geometry[DV]
    heads, kv_heads, offset = geometry[H], geometry[HKV], length_k - length_q
    group = heads // kv_heads
    width = PANEL_BYTES // q.itemsize
    dk_padded, dv_padded = up(dk, width), up(dv, width)
    biased = geometry[MASK_KIND] != NO_MASK or geometry[SLOPES] != 0
    kind = q.dtype.type
    zero, one, scale = kind(0), kind(1), kind(reals[0])
    keys, key_rows = np.empty(TILE * dk, q.dtype), np.empty(TILE * dk_padded, q.dtype)
    values = np.empty(TILE * dv, q.dtype)
    queries, g_rows = np.empty(TILE * dk_padded, q.dtype), np.empty(TILE * dv_padded, q.dtype)
    s, ds = np.empty(TILE * TILE, q.dtype), np.empty(TILE * TILE, q.dtype)
    broken, keep = np.empty(TILE, np.uint8), np.empty(TILE + 8, q.dtype)
    dk_sums, dv_sums = np.empty(TILE * dk_padded, q.dtype), np.empty(TILE * dv_padded, q.dtype)
    dq_sums, delta = np.empty(group * length_q * dk_padded, q.dtype), np.empty(group * length_q, q.dtype)
    for unit in range(*share(t, n_tasks, units)):
        b, kv = unit // kv_heads, unit % kv_heads
        fill(dq_sums, 0, len(dq_sums), 0.0)
        for r in range(group * length_q):
            h, i = kv * group + r // length_q, r % length_q
            g_at = b * geometry[G] + h * geometry[G + 1] + i * geometry[G + 2]
            o_at = b * geometry[O] + h * geometry[O + 1] + i * geometry[O + 2]
            g_row = g[g_at : g_at + dv]
            o_row = out[o_at : o_at + dv]
            dot = zero
            for c in range(dv):
                dot += g_row[c] * o_row[c]
            delta[r] = dot if lse[(b * heads + h) * length_q + i] != -np.inf else zero
        for j0 in range(0, length_k, TILE):
            count = min(TILE, length_k - j0)
            n = up(count, width)
            k_step, v_step = geometry[K + 2], geometry[V + 2]
            k_at = b * geometry[K] + kv * geometry[K + 1] + j0 * k_step
            v_at = b * geometry[V] + kv * geometry[V + 1] + j0 * v_step
            pack_columns(k, k_at, k_step, count, dk, keys, 0)
            pack_rows(k, k_at, k_step, count, dk, one, key_rows, 0, dk_padded)
            pack_columns(v, v_at, v_step, count, dv, values, 0)
            broken_count = clear_broken_rows(key_rows, 0, count, dk_padded, broken, 0)
            fill(dk_sums, 0, len(dk_sums), 0.0)
            fill(dv_sums, 0, len(dv_sums), 0.0)
            for h in range(kv * group, (kv + 1) * group):
                for i0 in range(0, length_q, TILE):
                    m = min(TILE, length_q - i0)
                    if geometry[CAUSAL] and j0 > i0 + m - 1 + offset:
                        continue
                    q_at = b * geometry[Q] + h * geometry[Q + 1] + i0 * geometry[Q + 2]
                    g_at = b * geometry[G] + h * geometry[G + 1] + i0 * geometry[G + 2]
                    pack_rows(q, q_at, geometry[Q + 2], m, dk, scale, queries, 0, dk_padded)
                    pack_rows(g, g_at, geometry[G + 2], m, dv, one, g_rows, 0, dv_padded)
                    row_at, group_at = (b * heads + h) * length_q + i0, (h - kv * group) * length_q + i0
                    for i in range(m):
                        if lse[row_at + i] == -np.inf:
                            fill(queries, i * dk_padded, dk_padded, 0.0)
                            fill(g_rows, i * dv_padded, dv_padded, 0.0)
                    shift = i0 + offset - j0 if geometry[CAUSAL] else FAR
                    scores(shift, queries, dk_padded, keys, 0, TILE, s, TILE, m, n, dk)
                    scores(shift, g_rows, dv_padded, values, 0, TILE, ds, TILE, m, n, dv)
                    for i in range(m):
                        columns = up(clamp(last_row(i, m) + shift + 1, n), width)
                        if columns == 0:
                            continue
                        p_row = s[i * TILE : i * TILE + columns]
                        ds_row = ds[i * TILE : i * TILE + columns]
                        allowed = clamp(i + shift + 1, count)
                        if biased:
                            add_bias(geometry, mask_bytes, mask_values, slopes, b, h, i0 + i, j0, p_row, allowed)
                        base = lse[row_at + i]
                        row_exp(s, i * TILE, allowed, columns, base if base != -np.inf else zero)
                        d = delta[group_at + i]
                        if geometry[DROPOUT]:
                            o = dropout_row(geometry, draw, reals[1], b, h, i0 + i, j0, columns, keep)
                            for j in range(columns):
                                ds_row[j] = p_row[j] * (ds_row[j] * keep[o + j] - d) if p_row[j] != 0 else zero
                                p_row[j] *= keep[o + j]
                        else:
                            for j in range(columns):
                                ds_row[j] = p_row[j] * (ds_row[j] - d) if p_row[j] != 0 else zero
                    accumulate(
                        shift, True, s, 1, TILE, g_rows, 0, dv_padded, dv_sums, 0, dv_padded, count, dv_padded, m
                    )
                    accumulate(
                        shift, True, ds, 1, TILE, queries, 0, dk_padded, dk_sums, 0, dk_padded, count, dk_padded, m
                    )
                    dq_at = group_at * dk_padded
                    accumulate(
                        shift,
                        False,
                        ds,
                        TILE,
                        1,
                        key_rows,
                        0,
                        dk_padded,
                        dq_sums,
                        dq_at,
                        dk_padded,
                        m,
                        dk_padded,
                        count,
                    )
                    if broken_count:
                        for j in range(count):
                            if broken[j]:
                                row = k[k_at + j * k_step : k_at + j * k_step + dk]
                                for i in range(m):
                                    if may_attend(geometry, mask_bytes, mask_values, b, h, i0 + i, j0 + j):
                                        for c in range(dk):
                                            dq_sums[dq_at + i * dk_padded + c] += ds[i * TILE + j] * row[c]
            for j in range(count):
                at = (b * length_k + j0 + j) * geometry[DKEY] + kv * dk
                copy(dk_sums, j * dk_padded, dk_out, at, dk, one)
                at = (b * length_k + j0 + j) * geometry[DV_OUT] + kv * dv
                copy(dv_sums, j * dv_padded, dv_out, at, dv, one)
        for r in range(group * length_q):
            at = (b * length_q + r % length_q) * geometry[DQ] + (kv * group + r // length_q) * dk
            copy(dq_sums, r * dk_padded, dq, at, dk, scale)
