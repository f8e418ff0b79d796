"""Rows of a table by their ids, and the gradient: rows added up by their ids."""

import numpy as np
from numba import prange

from .runtime import contiguous, kernel, tasks


@kernel
def _scatter_add_rows(g, ids, order, starts, out, n_tasks):
    n, width = g.shape
    # A counting sort: order[starts[v] : starts[v + 1]] are the rows of id v, in their order in g.
    for i in range(n):
        starts[ids[i] + 1] += 1
    for v in range(len(starts) - 1):
        starts[v + 1] += starts[v]
    for i in range(n):
        order[starts[ids[i]]] = i
        starts[ids[i]] += 1  # ends as the start of the next id
    for task in prange(n_tasks):
        total = np.empty(width, np.float64)
        k, last = task * n // n_tasks, (task + 1) * n // n_tasks
        # An id belongs to the task in which its first row lies.
        while k < last and k > 0 and ids[order[k]] == ids[order[k - 1]]:
            k += 1
        while k < last:
            v = ids[order[k]]
            end = starts[v]
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
    return np.take(contiguous(weight), ids, axis=0, mode="clip")


def scatter_add_rows(g, ids, n_rows):
    """out[v] = the sum of the rows of g whose id is v, in order, in float64. g: (N, D); ids: (N,); out: (n_rows, D)."""
    g, ids = contiguous(g), contiguous(ids, np.int64)
    out = np.zeros((n_rows, g.shape[1]), g.dtype)
    if g.size:
        order, starts = np.empty(len(ids), np.int64), np.zeros(n_rows + 1, np.int64)
        _scatter_add_rows(g, ids, order, starts, out, tasks(g.size * 2))
    return out
