"""Cross-entropy of logits, row by row: the forward needs no second array of the logits' size."""

import math

import numpy as np

from .normalization import row_max, row_sum, sum_of_exp
from .runtime import contiguous, empty, kernel, share, tasks
from .vector_math import exp, minus_two


@kernel
def _cross_entropy(t, n_tasks, logits, targets, ignore_index, smoothing, losses, logsumexp):
    rows, n = logits.shape
    for i in range(*share(t, n_tasks, rows)):
        target = targets[i]
        losses[i] = 0
        logsumexp[i] = 0.0
        if target != ignore_index:
            x = logits[i]
            largest = row_max(x)
            rest = math.log(sum_of_exp(x, largest))
            loss = (np.float64(largest) - np.float64(x[target])) + rest
            if smoothing != 0.0:  # the uniform part would turn a -inf logit into 0 * inf
                loss = (1.0 - smoothing) * loss + smoothing * ((largest + rest) - row_sum(x) / n)
            losses[i] = loss
            logsumexp[i] = largest + rest


@kernel
def _cross_entropy_backward(t, n_tasks, scale, logits, targets, logsumexp, ignore_index, smoothing, dlogits):
    rows, n = logits.shape
    kind = logits.dtype.type
    for i in range(*share(t, n_tasks, rows)):
        target = targets[i]
        x, dx = logits[i], dlogits[i]
        if target == ignore_index:
            for j in range(n):
                dx[j] = kind(0)
        else:
            high = kind(logsumexp[i])
            low = kind(logsumexp[i] - high)
            factor = scale[i]
            uniform = kind(smoothing / n)
            for j in range(n):
                dx[j] = factor * (exp(minus_two(x[j], high, low)) - uniform)
            dx[target] -= factor * kind(1.0 - smoothing)


def cross_entropy(logits, targets, ignore_index=-100, label_smoothing=0.0):
    """(losses, logsumexp) per row: loss = (1 - s) (logsumexp - logits[target]) + s (logsumexp - mean(logits)).

    logits: (N, V); targets: (N,) int64, each in [0, V) or equal to ignore_index, checked by the caller. Both results
    have shape (N,) and are 0 where the target is ignored; logsumexp is float64: the backward takes differences of it.
    """
    logits = contiguous(logits)
    losses = empty(len(logits), logits.dtype)
    logsumexp = empty(len(logits), np.float64)
    _cross_entropy(
        tasks(logits.size * 4),
        logits,
        contiguous(targets, np.int64),
        int(ignore_index),
        float(label_smoothing),
        losses,
        logsumexp,
    )
    return losses, logsumexp


def cross_entropy_backward(scale, logits, targets, logsumexp, ignore_index=-100, label_smoothing=0.0):
    """dlogits = scale (e**(logits - logsumexp) - s / V - (1 - s) onehot(target)), exactly 0 in ignored rows.

    scale: (N,), the gradient of each row's loss; the rest as `cross_entropy` took and gave it.
    """
    logits = contiguous(logits)
    dlogits = empty(logits.shape, logits.dtype)
    _cross_entropy_backward(
        tasks(logits.size * 4),
        contiguous(scale, logits.dtype),
        logits,
        contiguous(targets, np.int64),
        contiguous(logsumexp, np.float64),
        int(ignore_index),
        float(label_smoothing),
        dlogits,
    )
    return dlogits
