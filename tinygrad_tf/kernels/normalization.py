"""Softmax, log-softmax, layer norm and RMS norm over the last axis: each forward beside its backward.

Rows are cut among the tasks; what happens inside one row does not depend on the cut. Sums run over blocks of BLOCK
elements in the array's own type (so that the compiler uses whole vectors), and the blocks are added in float64.
"""

import math

import numpy as np

from .runtime import contiguous, device, empty, full, kernel, share, tasks
from .vector_math import exp, from_order_key, larger_key, order_key

BLOCK = 256


@device
def row_max(a):
    """The largest element; NaN or whatever else is left if there are NaNs (their exponentials then are NaN)."""
    key = order_key(a[0])
    for j in range(len(a)):
        key = larger_key(key, order_key(a[j]))
    return from_order_key(key)


@device
def row_sum(a):
    """The sum of a row, in float64."""
    n = len(a)
    total = 0.0
    for first in range(0, n, BLOCK):
        block = a[first : min(first + BLOCK, n)]
        part = a.dtype.type(0)
        for j in range(len(block)):
            part += block[j]
        total += part
    return total


@device
def row_dot(a, b):
    """The sum of the products of two rows, in float64."""
    n = len(a)
    total = 0.0
    for first in range(0, n, BLOCK):
        block_a = a[first : min(first + BLOCK, n)]
        block_b = b[first : min(first + BLOCK, n)]
        part = a.dtype.type(0)
        for j in range(len(block_a)):
            part += block_a[j] * block_b[j]
        total += part
    return total


@device
def sum_of_exp(a, shift):
    """The sum of e**(a - shift), in float64."""
    n = len(a)
    total = 0.0
    for first in range(0, n, BLOCK):
        block = a[first : min(first + BLOCK, n)]
        part = a.dtype.type(0)
        for j in range(len(block)):
            part += exp(block[j] - shift)
        total += part
    return total


def _rows(a):
    """`a` as a contiguous matrix whose rows are the last axis."""
    a = contiguous(a)
    n = a.shape[-1]
    return a.reshape(a.size // n if n else 0, n)


# -- softmax -----------------------------------------------------------------------------------------------------------


@kernel
def _softmax(t, n_tasks, x, log, y):
    rows, n = x.shape
    for i in range(*share(t, n_tasks, rows)):
        xi, yi = x[i], y[i]
        largest = row_max(xi)
        if log:
            rest = x.dtype.type(math.log(sum_of_exp(xi, largest)))
            for j in range(n):
                yi[j] = xi[j] - largest
            for j in range(n):
                yi[j] -= rest
        else:
            for j in range(n):
                yi[j] = exp(xi[j] - largest)
            factor = x.dtype.type(1.0 / row_sum(yi))
            for j in range(n):
                yi[j] *= factor


@kernel
def _softmax_backward(t, n_tasks, g, y, log, dx):
    rows, n = y.shape
    for i in range(*share(t, n_tasks, rows)):
        gi, yi, dxi = g[i], y[i], dx[i]
        if log:
            total = y.dtype.type(row_sum(gi))
            for j in range(n):
                dxi[j] = gi[j] - exp(yi[j]) * total
        else:
            total = y.dtype.type(row_dot(gi, yi))
            for j in range(n):
                dxi[j] = yi[j] * (gi[j] - total)


def _softmax_forward(x, log):
    rows = _rows(x)
    y = empty(rows.shape, rows.dtype)
    _softmax(tasks(rows.size * 4), rows, log, y)
    return y.reshape(x.shape)


def _softmax_gradient(g, y, log):
    y_rows = _rows(y)
    dx = empty(y_rows.shape, y_rows.dtype)
    _softmax_backward(tasks(y_rows.size * 2), _rows(g), y_rows, log, dx)
    return dx.reshape(y.shape)


def softmax(x):
    """y = e**(x - max x) / sum e**(x - max x) over the last axis. x: (..., n)."""
    return _softmax_forward(x, False)


def softmax_backward(g, y):
    """dx = y (g - sum(g y)). g, y: (..., n)."""
    return _softmax_gradient(g, y, False)


def log_softmax(x):
    """y = x - max x - log sum e**(x - max x) over the last axis. x: (..., n)."""
    return _softmax_forward(x, True)


def log_softmax_backward(g, y):
    """dx = g - e**y sum(g). g, y: (..., n), y the log-probabilities."""
    return _softmax_gradient(g, y, True)


# -- layer norm and RMS norm -------------------------------------------------------------------------------------------


@kernel
def _norm(t, n_tasks, x, weight, bias, center, eps, y, mean, rstd):
    rows, n = x.shape
    kind = x.dtype.type
    for i in range(*share(t, n_tasks, rows)):
        xi, yi = x[i], y[i]
        middle = kind(row_sum(xi) / n) if center else kind(0)
        # The mean was rounded to x's type; `left` is what the deviations still sum to because of it.
        left, squares = 0.0, 0.0
        for first in range(0, n, BLOCK):
            block = xi[first : min(first + BLOCK, n)]
            part, part_squares = kind(0), kind(0)
            for j in range(len(block)):
                d = block[j] - middle
                part += d
                part_squares += d * d
            left += part
            squares += part_squares
        left = left / n if center else 0.0
        scale = 1.0 / math.sqrt(max(squares / n - left * left, 0.0) + eps)
        if squares != squares:
            scale = squares
        factor, shift = kind(scale), kind(-left * scale)
        for j in range(n):
            yi[j] = ((xi[j] - middle) * factor + shift) * weight[j] + bias[j]
        if center:
            mean[i] = kind(middle + left)
        rstd[i] = factor


@device
def norm_backward_row(g, x, weight, center, middle, factor, dx):
    """dx of one row: two sums, then dx."""
    n = len(x)
    kind = x.dtype.type
    sum_g, sum_gx = 0.0, 0.0
    for first in range(0, n, BLOCK):
        last = min(first + BLOCK, n)
        part_g, part_gx = kind(0), kind(0)
        for j in range(first, last):
            gw = g[j] * weight[j]
            part_g += gw
            part_gx += gw * ((x[j] - middle) * factor)
        sum_g += part_g
        sum_gx += part_gx
    mean_g = kind(sum_g / n) if center else kind(0)
    mean_gx = kind(sum_gx / n)
    for j in range(n):
        dx[j] = factor * ((g[j] * weight[j] - mean_g) - (x[j] - middle) * factor * mean_gx)


@kernel
def _norm_backward(t, n_tasks, g, x, weight, center, mean, rstd, need_dx, need_weights, dx, near, far):
    rows, n = x.shape
    blocks = len(near)
    for b in range(*share(t, n_tasks, blocks)):
        # near: the gradients of weight and bias over 16 rows, in x's type; far: over the whole block, in float64
        near_weight, near_bias, far_weight, far_bias = near[b, 0], near[b, 1], far[b, 0], far[b, 1]
        for j in range(len(near_weight)):
            near_weight[j], near_bias[j], far_weight[j], far_bias[j] = 0, 0, 0.0, 0.0
        begin, end = b * rows // blocks, (b + 1) * rows // blocks
        for i in range(begin, end):
            gi, xi = g[i], x[i]
            middle, factor = mean[i if center else 0], rstd[i]
            if need_dx:
                norm_backward_row(gi, xi, weight, center, middle, factor, dx[i])
            if need_weights:
                for j in range(n):
                    near_weight[j] += gi[j] * ((xi[j] - middle) * factor)
                    near_bias[j] += gi[j]
                if i == end - 1 or (i - begin) % 16 == 15:
                    for j in range(n):
                        far_weight[j] += near_weight[j]
                        far_bias[j] += near_bias[j]
                        near_weight[j] = 0
                        near_bias[j] = 0


@kernel
def _over_blocks(t, n_tasks, far, dweight, dbias):
    blocks, _, n = far.shape
    for j in range(n):
        weight, bias = 0.0, 0.0
        for b in range(blocks):
            weight += far[b, 0, j]
            bias += far[b, 1, j]
        dweight[j] = weight
        dbias[j] = bias


def _norm_forward(x, weight, bias, center, eps):
    rows, shape = _rows(x), x.shape
    n = shape[-1]
    weight = full(n, 1, x.dtype) if weight is None else contiguous(weight)
    bias = full(n, 0, x.dtype) if bias is None else contiguous(bias)
    y = empty(shape, rows.dtype)
    rstd = empty(shape[:-1], x.dtype)
    mean = empty(shape[:-1], x.dtype) if center else full(1, 0, x.dtype)
    to = y.reshape(rows.shape)
    _norm(tasks(rows.size * 2), rows, weight, bias, center, float(eps), to, mean.reshape(-1), rstd.reshape(-1))
    return y, mean if center else None, rstd


def _norm_gradient(g, x, weight, center, mean, rstd, needs):
    rows = _rows(x)
    n = rows.shape[1]
    need_dx, need_weights = bool(needs[0]), any(needs[1:])
    ones = full(n, 1, x.dtype) if weight is None else contiguous(weight)
    mean = contiguous(mean).reshape(-1) if center else full(1, 0, x.dtype)
    dx = empty(rows.shape, rows.dtype) if need_dx else empty((1, 1), x.dtype)
    blocks = max(1, min(16, len(rows) // 16))
    shape = (blocks, 2, n if need_weights else 0)
    near, far = empty(shape, x.dtype), empty(shape, np.float64)
    n_tasks = min(blocks, tasks(rows.size * 3))
    _norm_backward(
        n_tasks, _rows(g), rows, ones, center, mean, contiguous(rstd).reshape(-1), need_dx, need_weights, dx, near, far
    )
    dweight = dbias = None
    if need_weights:
        dweight, dbias = empty(n, rows.dtype), empty(n, rows.dtype)
        _over_blocks(1, far, dweight, dbias)
    return dx.reshape(x.shape) if need_dx else None, dweight, dbias


def layer_norm(x, weight, bias, eps):
    """(y, mean, rstd): y = (x - mean) rstd weight + bias over the last axis, rstd = 1 / sqrt(variance + eps).

    x: (..., n); weight, bias: (n,) or None; mean, rstd: (...). Ba, Kiros & Hinton 2016, equation 3.
    """
    return _norm_forward(x, weight, bias, True, eps)


def layer_norm_backward(g, x, weight, mean, rstd, needs=(True, True, True)):
    """(dx, dweight, dbias) of `layer_norm`, None where `needs` is False.

    With h = (x - mean) rstd and u = g weight: dx = rstd (u - mean(u) - h mean(u h)), dweight = sum(g h),
    dbias = sum(g).
    """
    dx, dweight, dbias = _norm_gradient(g, x, weight, True, mean, rstd, needs)
    return dx, dweight if needs[1] else None, dbias if needs[2] else None


def rms_norm(x, weight, eps):
    """(y, rstd): y = x rstd weight over the last axis, rstd = 1 / sqrt(mean(x**2) + eps).

    x: (..., n); weight: (n,) or None; rstd: (...). Zhang & Sennrich 2019, equation 4.
    """
    y, _, rstd = _norm_forward(x, weight, None, False, eps)
    return y, rstd


def rms_norm_backward(g, x, weight, rstd, needs=(True, True)):
    """(dx, dweight) of `rms_norm`, h = x rstd, u = g weight: dx = rstd (u - h mean(u h)), dweight = sum(g h)."""
    dx, dweight, _ = _norm_gradient(g, x, weight, False, None, rstd, needs)
    return dx, dweight if needs[1] else None
