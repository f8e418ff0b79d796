"""Rows of a table by their ids, and the gradient: rows added up by their ids."""

import numpy as np

from .runtime import contiguous, empty, full, kernel, native, share, tasks, write


@kernel
def _scatter_add_rows(t, n_tasks, g, ids, out):
    n, width = g.shape
    # A counting sort, by each task for itself, since adding takes far longer: the places of id 0 in their order, then
    # those of id 1, ...
    order, starts = np.empty(n, np.int64), np.empty(len(out) + 1, np.int64)
    for v in range(len(starts)):
        starts[v] = 0
    for i in range(n):
        starts[ids[i] + 1] += 1
    for v in range(len(out)):
        starts[v + 1] += starts[v]
    for i in range(n):
        order[starts[ids[i]]] = i
        starts[ids[i]] += 1
    total = np.empty(width, np.float64)
    k, last = share(t, n_tasks, n)
    # An id belongs to the task in which its first row lies.
    while k < last and k > 0 and ids[order[k]] == ids[order[k - 1]]:
        k += 1
    while k < last:
        v = ids[order[k]]
        end = k + 1
        while end < n and ids[order[end]] == v:
            end += 1
        row = out[v]
        if end - k == 1:
            only = g[order[k]]
            for j in range(width):
                row[j] = only[j]
        else:
            for j in range(width):
                total[j] = 0.0
            for position in range(k, end):
                added = g[order[position]]
                for j in range(width):
                    total[j] += added[j]
            for j in range(width):
                row[j] = total[j]
        k = end


def gather_rows(weight, ids):
    """weight[ids]. weight: (V, D); ids: any shape of integers in [0, V), checked by the caller; result (..., D)."""
    out = empty((*ids.shape, weight.shape[1]), native(weight.dtype))
    write(np.take, contiguous(weight), ids, axis=0, mode="clip", out=out)
    return out


def scatter_add_rows(g, ids, n_rows):
    """out[v] = the sum of the rows of g whose id is v, in order, in float64. g: (N, D); ids: (N,); out: (n_rows, D)."""
    g, ids = contiguous(g), contiguous(ids, np.int64)
    out = full((n_rows, g.shape[1]), 0, g.dtype)
    if g.size:
        _scatter_add_rows(tasks(g.size * 2), g, ids, out)
    return out
