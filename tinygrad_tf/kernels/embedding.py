"""Rows of a table by their ids, and the gradient: rows added up by their ids."""

import numpy as np

from .runtime import contiguous, kernel, share, tasks


@kernel
def _sort(t, n_tasks, ids, order, ends):
    """A counting sort, in one task: order[: ends[0]] are the places of id 0 in their order, up to ends[1] of id 1, ..."""
    for i in range(len(ids)):
        ends[ids[i] + 1] += 1
    for v in range(len(ends) - 1):
        ends[v + 1] += ends[v]
    for i in range(len(ids)):
        order[ends[ids[i]]] = i
        ends[ids[i]] += 1  # was the start of the id, becomes its end


@kernel
def _scatter_add_rows(t, n_tasks, g, ids, order, ends, out):
    n, width = g.shape
    total = np.empty(width, np.float64)
    k, last = share(t, n_tasks, n)
    # An id belongs to the task in which its first row lies.
    while k < last and k > 0 and ids[order[k]] == ids[order[k - 1]]:
        k += 1
    while k < last:
        v = ids[order[k]]
        end = ends[v]
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
    return contiguous(weight).take(ids, axis=0, mode="clip")


def scatter_add_rows(g, ids, n_rows):
    """out[v] = the sum of the rows of g whose id is v, in order, in float64. g: (N, D); ids: (N,); out: (n_rows, D)."""
    g, ids = contiguous(g), contiguous(ids, np.int64)
    out = np.zeros((n_rows, g.shape[1]), g.dtype)
    if g.size:
        order, ends = np.empty(len(ids), np.int64), np.zeros(n_rows + 1, np.int64)
        _sort(1, ids, order, ends)
        _scatter_add_rows(tasks(g.size * 2), g, ids, order, ends, out)
    return out
