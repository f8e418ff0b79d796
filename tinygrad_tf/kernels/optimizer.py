"""AdamW in place, the sum of squares for a gradient's norm, and scaling: each over many arrays in one pass.

The arrays are cut into blocks of at most BLOCK numbers, and the blocks are shared among the tasks, so a model's many
small parameters cost one call. The kernels get the blocks' addresses; `like` is there for the dtype.
"""

import functools
import math

import numba
import numpy as np
from numba import types
from numba.extending import intrinsic

from .normalization import row_dot
from .runtime import address, contiguous, device, kernel, share, tasks

BLOCK = 16384


@intrinsic
def _pointer(typing, like, address):
    """The address as a pointer to numbers of like's dtype."""
    pointer = types.CPointer(like.dtype)

    def generate(context, builder, signature, arguments):
        return builder.inttoptr(arguments[1], context.get_value_type(pointer))

    return pointer(like, types.intp), generate


@device
def _numbers(like, address, n):
    return numba.carray(_pointer(like, address), (n,))


@kernel
def _adamw(t, n_tasks, like, blocks, lengths, keep, beta1, beta2, rest1, rest2, step_size, root, eps):
    for b in range(*share(t, n_tasks, len(lengths))):
        n = lengths[b]
        p, g = _numbers(like, blocks[0, b], n), _numbers(like, blocks[1, b], n)
        m, v = _numbers(like, blocks[2, b], n), _numbers(like, blocks[3, b], n)
        for i in range(n):
            mi = beta1 * m[i] + rest1 * g[i]
            vi = beta2 * v[i] + rest2 * (g[i] * g[i])
            m[i] = mi
            v[i] = vi
            p[i] = p[i] * keep - step_size * (mi / (np.sqrt(vi) * root + eps))


@kernel
def _sum_of_squares(t, n_tasks, like, blocks, lengths, partial):
    for b in range(*share(t, n_tasks, len(lengths))):
        block = _numbers(like, blocks[0, b], lengths[b])
        partial[b] = row_dot(block, block)


@kernel
def _scale(t, n_tasks, like, blocks, lengths, factor):
    for b in range(*share(t, n_tasks, len(lengths))):
        block = _numbers(like, blocks[0, b], lengths[b])
        for i in range(len(block)):
            block[i] *= factor


def _cut(*lists):
    """(blocks, lengths, tasks): the addresses of the blocks of each list's arrays, one row a list, and their lengths.

    All arrays are contiguous and of one dtype; those at one place of the lists have one size.
    """
    sizes = tuple([a.size for a in lists[0]])
    owner, offsets, lengths = _blocks(sizes, lists[0][0].itemsize)
    starts = np.array([list(map(address, row)) for row in lists], np.int64)
    return starts.take(owner, axis=1) + offsets, lengths, tasks(sum(sizes))


@functools.lru_cache(maxsize=64)
def _blocks(sizes, itemsize):
    """For each block of arrays of these sizes: which array it is of, where it begins in it in bytes, its length."""
    blocks = [(i, first * itemsize, min(BLOCK, n - first)) for i, n in enumerate(sizes) for first in range(0, n, BLOCK)]
    owner, offsets, lengths = np.array(blocks, np.int64).reshape(-1, 3).T.copy()
    return owner, offsets, lengths


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
    grads = [contiguous(g) for g in grads]
    blocks, lengths, n_tasks = _cut(params, grads, exp_avgs, exp_avg_sqs)
    _adamw(n_tasks, np.empty(1, kind), blocks, lengths, *numbers)


def _by_dtype(arrays):
    found = {}
    for a in arrays:
        found.setdefault(a.dtype, []).append(a)
    return found.values()


def sum_of_squares(arrays):
    """The sum of the squares of all elements of all arrays, in float64."""
    total = 0.0
    for group in _by_dtype([contiguous(a) for a in arrays]):
        blocks, lengths, n_tasks = _cut(group)
        partial = np.empty(len(lengths))
        _sum_of_squares(n_tasks, np.empty(1, group[0].dtype), blocks, lengths, partial)
        total += float(partial.sum())
    return total


def scale(arrays, factor):
    """a *= factor, in place, for each of the arrays."""
    for group in _by_dtype(arrays):
        whole = [a for a in group if a.flags.carray]
        if whole:
            blocks, lengths, n_tasks = _cut(whole)
            _scale(n_tasks, np.empty(1, whole[0].dtype), blocks, lengths, whole[0].dtype.type(factor))
        for a in group:
            if not a.flags.carray:
                a *= a.dtype.type(factor)
