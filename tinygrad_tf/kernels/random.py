"""Random numbers without a state: word i of call c under key k is a function of (k, c, i), so no mask is stored.

Philox4x32-10 (Salmon, Moraes, Dror & Shaw 2011, "Parallel random numbers: as easy as 1, 2, 3", section 3.3): the
counter is (i // 4, call), as 64 bits each, and gives the words 4 (i // 4) to 4 (i // 4) + 3.
"""

import math

import numpy as np

from .runtime import contiguous, device, empty, full, kernel, share, tasks

_LOW = np.uint64(0xFFFFFFFF)
_32 = np.uint64(32)
_MULTIPLY = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
_WEYL = (np.uint64(0x9E3779B9), np.uint64(0xBB67AE85))
_MULTIPLY_0, _MULTIPLY_1 = _MULTIPLY
_WEYL_0, _WEYL_1 = _WEYL


@device
def philox(counter, call, key):
    """The four 32-bit words (each in a uint64) of a block of Philox4x32-10."""
    c0, c1, c2, c3 = counter & _LOW, counter >> _32, call & _LOW, call >> _32
    k0, k1 = key & _LOW, key >> _32
    for _ in range(10):
        a, b = c0 * _MULTIPLY_0, c2 * _MULTIPLY_1
        c0, c1, c2, c3 = (b >> _32) ^ c1 ^ k0, b & _LOW, (a >> _32) ^ c3 ^ k1, a & _LOW
        k0, k1 = (k0 + _WEYL_0) & _LOW, (k1 + _WEYL_1) & _LOW
    return c0, c1, c2, c3


@kernel
def _words(t, n_tasks, draw, out):
    key, call = draw[0], draw[1]
    blocks = len(out)
    first, end = share(t, n_tasks, blocks)
    rows = out[first:end]
    for b in range(len(rows)):
        rows[b, 0], rows[b, 1], rows[b, 2], rows[b, 3] = philox(np.uint64(first + b), call, key)


@kernel
def _dropout(t, n_tasks, x, threshold, factor, draw, y):
    key, call = draw[0], draw[1]
    blocks = (len(x) + 3) // 4
    whole = len(x) // 4
    zero, kept = x.dtype.type(0), x.dtype.type(factor)
    first, end = share(t, n_tasks, blocks)
    inside = min(end, whole)
    xs, ys = x[4 * first : 4 * inside], y[4 * first : 4 * inside]
    for b in range(inside - first):
        w0, w1, w2, w3 = philox(np.uint64(first + b), call, key)
        ys[4 * b] = xs[4 * b] * (kept if w0 >= threshold else zero)
        ys[4 * b + 1] = xs[4 * b + 1] * (kept if w1 >= threshold else zero)
        ys[4 * b + 2] = xs[4 * b + 2] * (kept if w2 >= threshold else zero)
        ys[4 * b + 3] = xs[4 * b + 3] * (kept if w3 >= threshold else zero)
    if end > whole:  # the last, incomplete block
        words = philox(np.uint64(whole), call, key)
        for i in range(4 * whole, len(x)):
            y[i] = x[i] * (kept if words[i - 4 * whole] >= threshold else zero)


def draw_of(key, call):
    """The key and number of a call as what the kernels read: two 64-bit words."""
    return np.array([key % 2**64, call % 2**64], np.uint64)


def dropout(x, p, draw):
    """y[i] = x[i] / (1 - p) where uniform(draw, i) >= p, else x[i] * 0, for i the index in the flattened x.

    Applied to a gradient, with the same draw, it is its own backward. p = 1 gives zeros.
    """
    flat = contiguous(x).reshape(-1)
    y = empty(flat.shape, flat.dtype)
    threshold = np.uint64(math.ceil(p * 2**32))
    factor = 1.0 / (1.0 - p) if p < 1 else 0.0
    _dropout(tasks(flat.size * 2), flat, threshold, factor, draw, y)
    return y.reshape(x.shape)


def dropout_mask(shape, p, draw, dtype=np.float32):
    """What `dropout` multiplies by: 1 / (1 - p) where an element is kept, else 0."""
    return dropout(full(shape, 1, dtype), p, draw)


def words(n, draw):
    """The first n 32-bit words of a call, as a uint32 array."""
    out = empty(((n + 3) // 4, 4), np.uint32)
    _words(tasks(n * 2), draw, out)
    return out.reshape(-1)[:n]


def uniform(shape, draw, dtype=np.float32):
    """Numbers uniform on [0, 1): multiples of 2**-24 for float32, of 2**-53 (two words each) for float64."""
    n = math.prod(shape)
    if np.dtype(dtype) == np.float32:
        return ((words(n, draw) >> np.uint32(8)).astype(np.float32) * np.float32(2.0**-24)).reshape(shape)
    pairs = words(2 * n, draw).view(np.uint64)
    return ((pairs >> np.uint64(11)) * 2.0**-53).reshape(shape)
