"""Losses that compare two tensors element by element, and the negative log-likelihood of chosen classes."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ..modes import check, compute, converted
from .activation import _softplus
from .binary import xlogy
from .elementwise import abs, clamp, exp, log, mul, where
from .indexing import gather
from .loss import check_targets
from .primitive import primitive
from .reductions import mean, sum


def reduce_(losses: Any, reduction: str) -> Any:
    """The mean or the sum of losses, or the losses themselves."""
    if reduction not in ("mean", "sum", "none"):
        raise ValueError(f'reduction must be "mean", "sum" or "none", got {reduction!r}')
    return mean(losses) if reduction == "mean" else sum(losses) if reduction == "sum" else losses


def mse_loss(x: Any, target: Any, reduction: str = "mean") -> Any:
    """(x - target)^2, averaged ("mean"), summed ("sum") or as it is ("none")."""
    difference = x - target
    return reduce_(difference * difference, reduction)


def l1_loss(x: Any, target: Any, reduction: str = "mean") -> Any:
    """|x - target|, averaged ("mean"), summed ("sum") or as it is ("none")."""
    return reduce_(abs(x - target), reduction)


def huber_loss(x: Any, target: Any, reduction: str = "mean", delta: float = 1.0) -> Any:
    """d^2 / 2 for |d| < delta, else delta (|d| - delta / 2), with d = x - target.

    Source: Huber 1964, Robust Estimation of a Location Parameter, section 4.
    """
    if delta <= 0:
        raise ValueError(f"huber_loss: delta must be above 0, got {delta}")
    difference = x - target
    size = abs(difference)
    inside = size < delta
    return reduce_(where(inside, difference * difference * 0.5, (size - 0.5 * delta) * delta), reduction)


def smooth_l1_loss(x: Any, target: Any, reduction: str = "mean", beta: float = 1.0) -> Any:
    """d^2 / (2 beta) for |d| < beta, else |d| - beta / 2: `huber_loss` divided by beta; |d| for beta = 0.

    Source: Girshick 2015, Fast R-CNN, equation 3.
    """
    if beta < 0:
        raise ValueError(f"smooth_l1_loss: beta must not be negative, got {beta}")
    return l1_loss(x, target, reduction) if beta == 0 else huber_loss(x, target, reduction, beta) / beta


@primitive(
    x=lambda g, x, target: g * (x - target) / clamp(x * (1.0 - x), min=1e-12),
    target=lambda g, x: g * (_log(1.0 - x) - _log(x)),
)
def _cross_entropy(x: Any, target: Any) -> Any:
    return -(target * _log(x) + (1 - target) * _log(1 - x))


_cross_entropy.name = "binary_cross_entropy"


def _log(x: Any) -> Any:
    """log(x), but not below -100."""
    return where(x <= math.exp(-100.0), -100.0, log(where(x <= math.exp(-100.0), 1.0, x)))


def binary_cross_entropy(x: Any, target: Any, weight: Any = None, reduction: str = "mean") -> Any:
    """-(target log x + (1 - target) log(1 - x)) for probabilities x, the logarithms not below -100.

    Raises ValueError if x is not within [0, 1], or if the shapes differ.
    """
    values = getattr(x, "_data", x)
    if x.shape != target.shape:
        raise ValueError(
            f"binary_cross_entropy: input and target must have one shape, got {x.shape} and {target.shape}"
        )
    if values.size and not (values.min() >= 0 and values.max() <= 1):
        raise ValueError(
            f"binary_cross_entropy: expected probabilities from 0 to 1, got values from {values.min()} to "
            f"{values.max()}; for logits use binary_cross_entropy_with_logits"
        )
    losses = _cross_entropy(x, target)
    return reduce_(losses if weight is None else losses * weight, reduction)


def binary_cross_entropy_with_logits(
    x: Any, target: Any, weight: Any = None, reduction: str = "mean", pos_weight: Any = None
) -> Any:
    """-(target log s + (1 - target) log(1 - s)) with s = sigmoid(x), safe from overflow.

    `pos_weight` multiplies the first term, `weight` the whole.
    """
    if x.shape != target.shape:
        raise ValueError(
            f"binary_cross_entropy_with_logits: input and target must have one shape, got {x.shape} and {target.shape}"
        )
    # log(1 - s) = -softplus(x) and log s = -softplus(-x) = x - softplus(x)
    if pos_weight is None:
        losses = _softplus(x) - x * target
    else:
        losses = mul(1.0 - target, x) + (mul(target, pos_weight) + 1.0 - target) * _softplus(-x)
    return reduce_(losses if weight is None else losses * weight, reduction)


def kl_div(x: Any, target: Any, reduction: str = "mean", log_target: bool = False) -> Any:
    """target (log target - x), for log-probabilities x; "batchmean" divides the sum by the first axis's length.

    With log_target, `target` is a logarithm too.
    """
    losses = exp(target) * (target - x) if log_target else xlogy(target, target) - target * x
    return sum(losses) / x.shape[0] if reduction == "batchmean" else reduce_(losses, reduction)


def nll_loss(log_probs: Any, target: Any, weight: Any = None, ignore_index: int = -100, reduction: str = "mean") -> Any:
    """-log_probs[target], averaged over the targets that are not ignored (with `weight`: by the targets' weights).

    Shapes: log_probs (C,), (N, C) or (N, C, d1, ...), target the same without C; weight (C,).
    If every target is ignored, the loss is 0 with zero gradient.
    """
    if reduction not in ("mean", "sum", "none"):
        raise ValueError(f'nll_loss: reduction must be "mean", "sum" or "none", got {reduction!r}')
    axis = 0 if log_probs.ndim == 1 else 1
    classes = log_probs.shape[axis]
    ids = np.asarray(getattr(target, "_data", target))
    if ids.shape != log_probs.shape[:axis] + log_probs.shape[axis + 1 :]:
        raise ValueError(f"nll_loss: target of shape {ids.shape} does not fit log_probs of shape {log_probs.shape}")
    if ids.dtype.kind not in "iu":
        raise TypeError(f"nll_loss: target must be integers, got dtype {ids.dtype}")
    check(check_targets, ids, classes, ignore_index, "nll_loss")
    valid = compute(np.not_equal, ids, ignore_index)
    safe = compute(np.where, valid, ids, 0)
    chosen = gather(log_probs, axis, np.expand_dims(safe, axis)).reshape(ids.shape)
    factors = converted(valid, log_probs.dtype) if weight is None else where(valid, weight[safe], 0.0)
    losses = -where(valid, chosen, 0.0) * factors
    if reduction == "none":
        return losses
    total = sum(factors)
    return sum(losses) / where(total == 0, 1.0, total) if reduction == "mean" else sum(losses)
