"""AdamW in place, the sum of squares for a gradient's norm, and sums and products in place."""

import math

import numpy as np

from .normalization import row_dot
from .runtime import contiguous, kernel, share, tasks

SUM_BLOCK = 16384


@kernel
def _adamw(t, n_tasks, p, g, m, v, keep, beta1, beta2, rest1, rest2, step_size, root, eps):
    first, end = share(t, n_tasks, len(p))
    ps, gs, ms, vs = p[first:end], g[first:end], m[first:end], v[first:end]
    for i in range(len(ps)):
        mi = beta1 * ms[i] + rest1 * gs[i]
        vi = beta2 * vs[i] + rest2 * (gs[i] * gs[i])
        ms[i] = mi
        vs[i] = vi
        ps[i] = ps[i] * keep - step_size * (mi / (np.sqrt(vi) * root + eps))


@kernel
def _sum_of_squares(t, n_tasks, a, partial):
    blocks = len(partial)
    for b in range(*share(t, n_tasks, blocks)):
        block = a[b * SUM_BLOCK : min((b + 1) * SUM_BLOCK, len(a))]
        partial[b] = row_dot(block, block)


@kernel
def _add_into(t, n_tasks, a, b):
    first, end = share(t, n_tasks, len(a))
    part, added = a[first:end], b[first:end]
    for i in range(len(part)):
        part[i] += added[i]


@kernel
def _scale_into(t, n_tasks, a, factor):
    first, end = share(t, n_tasks, len(a))
    part = a[first:end]
    for i in range(len(part)):
        part[i] *= factor


def adamw(params, grads, exp_avgs, exp_avg_sqs, lr, beta1, beta2, eps, weight_decay, step):
    """One step of AdamW on each parameter, in place; Loshchilov & Hutter 2019, Algorithm 2, with PyTorch's order.

    p -= lr weight_decay p, then m = beta1 m + (1 - beta1) g, v = beta2 v + (1 - beta2) g**2, and
    p -= lr / (1 - beta1**step) m / (sqrt(v / (1 - beta2**step)) + eps). `step` counts from 1. Parameters and moments
    are C-contiguous arrays of one dtype.
    """
    if not params:
        return
    kind = params[0].dtype.type
    numbers = [
        kind(number)
        for number in (
            1 - lr * weight_decay,
            beta1,
            beta2,
            1 - beta1,
            1 - beta2,
            lr / (1 - beta1**step),
            1 / math.sqrt(1 - beta2**step),
            eps,
        )
    ]
    for p, g, m, v in zip(params, grads, exp_avgs, exp_avg_sqs, strict=True):
        _adamw(tasks(p.size), p.reshape(-1), contiguous(g).reshape(-1), m.reshape(-1), v.reshape(-1), *numbers)


def sum_of_squares(a):
    """The sum of the squares of all elements, in float64."""
    flat = contiguous(a).reshape(-1)
    partial = np.empty((flat.size + SUM_BLOCK - 1) // SUM_BLOCK)
    _sum_of_squares(tasks(flat.size), flat, partial)
    return float(partial.sum())


def add_into(a, b):
    """a += b, in place. a and b have one shape; a large a is shared among the threads."""
    if a.size < 1 << 17 or not a.flags.carray or a.dtype != b.dtype:
        np.add(a, b, out=a)
    else:
        _add_into(tasks(a.size), a.reshape(-1), contiguous(b).reshape(-1))


def scale_into(a, factor):
    """a *= factor, in place; a large a is shared among the threads."""
    if a.size < 1 << 17 or not a.flags.carray:
        np.multiply(a, a.dtype.type(factor), out=a)
    else:
        _scale_into(tasks(a.size), a.reshape(-1), a.dtype.type(factor))
