"""Cross-entropy, from logits to a number, without a second array of the logits' size in the forward pass."""

from __future__ import annotations

from typing import Any

import numpy as np

from .. import kernels
from ..modes import check, compute, converted
from .elementwise import where
from .indexing import getitem, take_along_dim
from .normalization import log_softmax
from .primitive import fused
from .reductions import logsumexp, mean, sum


def _forward(logits: Any, targets: Any, ignore_index: int, label_smoothing: float) -> Any:
    losses, lse = kernels.loss.cross_entropy(logits, targets, ignore_index, label_smoothing)
    return losses, (lse,)


def _backward(
    g: Any, needs: Any, saved: Any, logits: Any, targets: Any, ignore_index: int, label_smoothing: float
) -> Any:
    return [kernels.loss.cross_entropy_backward(g, logits, targets, saved[0], ignore_index, label_smoothing)]


@fused("logits", forward=_forward, backward=_backward)
def _token_losses(logits: Any, targets: Any, ignore_index: int = -100, label_smoothing: float = 0.0) -> Any:
    """The loss of each row: logits (N, V), targets (N,) -> (N,); 0 for ignored rows, whatever their logits are."""
    valid = targets != ignore_index
    safe = where(valid, targets, 0)
    logits = where(valid.reshape((-1, 1)), logits, 0.0)
    lse = logsumexp(logits, -1)
    losses = lse - take_along_dim(logits, safe.reshape((-1, 1)), -1).reshape((-1,))
    if label_smoothing:
        losses = (1.0 - label_smoothing) * losses + label_smoothing * (lse - mean(logits, -1))
    return where(valid, losses, 0.0)


def _mean_of(losses: Any, targets: Any, ignore_index: int) -> Any:
    """(the mean of the losses of the rows that are not ignored, how many these are, at least 1)."""
    count = np.maximum(np.count_nonzero(targets != ignore_index), 1)
    return (losses.sum(dtype=np.float64) / count).astype(losses.dtype), count


def _mean_forward(logits: Any, targets: Any, ignore_index: int, label_smoothing: float) -> Any:
    losses, lse = kernels.loss.cross_entropy(logits, targets, ignore_index, label_smoothing)
    mean_, count = compute(_mean_of, losses, targets, ignore_index)
    return np.asarray(mean_), (lse, np.asarray(count))


def _mean_backward(
    g: Any, needs: Any, saved: Any, logits: Any, targets: Any, ignore_index: int, label_smoothing: float
) -> Any:
    lse, count = saved
    scale = np.broadcast_to(compute(_quotient, g, count), lse.shape)
    return [kernels.loss.cross_entropy_backward(scale, logits, targets, lse, ignore_index, label_smoothing)]


def _quotient(g: Any, count: Any) -> Any:
    return np.asarray(g / count.astype(g.dtype))


@fused("logits", forward=_mean_forward, backward=_mean_backward)
def _mean_loss(logits: Any, targets: Any, ignore_index: int = -100, label_smoothing: float = 0.0) -> Any:
    """The mean of the rows' losses, over those that are not ignored; 0 where there are none."""
    losses = _token_losses.definition(logits, targets, ignore_index, label_smoothing)
    return sum(losses) / max(int(np.count_nonzero(targets != ignore_index)), 1)


_token_losses.name = _mean_loss.name = "cross_entropy"


def cross_entropy(
    logits: Any,
    targets: Any,
    weight: Any = None,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Any:
    """-log softmax(logits)[target], averaged over the targets that are not ignored.

    With label smoothing e, a row's loss is (1 - e) times that plus e times the mean of -log softmax over the classes.

    Args:
        logits: (N, V), or (V,), or (N, V, d1, ...) with the classes on axis 1.
        targets: class numbers, int, of the logits' shape without V; or probabilities of the logits' shape.
        weight: (V,) a factor for each class; the mean is then weighted by the targets' factors.
        ignore_index: targets of this value count nowhere; if all are ignored, the loss is 0 with zero gradient.
        reduction: "mean", "sum" or "none".

    Raises:
        IndexError: a target that is neither a class nor `ignore_index`; ValueError: shapes that do not fit.

    >>> import tinygrad_tf as tg
    >>> from tinygrad_tf.nn import functional as F
    >>> round(F.cross_entropy(tg.tensor([[0.0, 0.0]]), tg.tensor([1])).item(), 4)
    0.6931
    """
    if reduction not in ("mean", "sum", "none"):
        raise ValueError(f'cross_entropy: reduction must be "mean", "sum" or "none", got {reduction!r}')
    if not 0.0 <= label_smoothing <= 1.0:
        raise ValueError(f"cross_entropy: label_smoothing must be from 0 to 1, got {label_smoothing}")
    if logits.ndim == 0:
        raise ValueError("cross_entropy: logits need a class axis, got shape ()")
    classes = logits.ndim - 1 if logits.ndim == 1 else 1
    if targets.dtype.kind == "f":
        return _soft_cross_entropy(logits, targets, weight, reduction, label_smoothing, classes)
    vocab = logits.shape[classes]
    rest = logits.shape[:classes] + logits.shape[classes + 1 :]
    if targets.shape != rest:
        raise ValueError(
            f"cross_entropy: targets must have shape {rest} for logits of shape {logits.shape}, got {targets.shape}"
        )
    ids = np.asarray(getattr(targets, "_data", targets))
    if ids.dtype.kind not in "iu":
        raise TypeError(f"cross_entropy: targets must be integers or probabilities, got dtype {ids.dtype}")
    check(check_targets, ids, vocab, ignore_index, "cross_entropy")
    order = (*range(classes), *range(classes + 1, logits.ndim), classes)
    rows = logits
    if logits.ndim != 2:
        rows = (logits if order == tuple(range(logits.ndim)) else logits.permute(order)).reshape((-1, vocab))
    flat = converted(ids, np.int64).reshape(-1)
    if weight is None:
        if reduction == "mean":
            return _mean_loss(rows, flat, ignore_index, float(label_smoothing))
        losses = _token_losses(rows, flat, ignore_index, float(label_smoothing))
        return losses.reshape(rest) if reduction == "none" else sum(losses)
    valid = compute(np.not_equal, flat, ignore_index)
    safe = compute(np.where, valid, flat, 0)
    losses = _weighted(rows, safe, valid, weight, label_smoothing)
    if reduction == "none":
        return losses.reshape(rest)
    return sum(losses) / sum(where(valid, getitem(weight, safe), 0.0)) if reduction == "mean" else sum(losses)


def check_targets(ids: Any, vocab: int, ignore_index: int, name: str) -> None:
    """Raise IndexError for a target that is neither a class nor `ignore_index`."""
    if not ids.size or (ids.min() >= 0 and ids.max() < vocab):
        return
    bad = (ids != ignore_index) & ((ids < 0) | (ids >= vocab))
    if bad.any():
        raise IndexError(
            f"{name}: a target must be from 0 to {vocab - 1}, or ignore_index {ignore_index}, got {ids[bad][0]}"
        )


def _weighted(rows: Any, safe: Any, valid: Any, weight: Any, label_smoothing: float) -> Any:
    """Row losses with class weights, from primitives."""
    logp = log_softmax(where(valid.reshape(-1, 1), rows, 0.0), -1)
    factors = getitem(weight, safe)
    losses = -factors * take_along_dim(logp, safe.reshape(-1, 1), -1).reshape((-1,))
    if label_smoothing:
        smooth = -sum(logp * weight, -1) / rows.shape[-1]
        losses = (1.0 - label_smoothing) * losses + label_smoothing * smooth
    return where(valid, losses, 0.0)


def _soft_cross_entropy(logits: Any, targets: Any, weight: Any, reduction: str, smoothing: float, classes: int) -> Any:
    """-sum over the classes of target * log softmax(logits)."""
    if targets.shape != logits.shape:
        raise ValueError(
            f"cross_entropy: probabilities must have the logits' shape {logits.shape}, got {targets.shape}"
        )
    vocab = logits.shape[classes]
    targets = targets * (1.0 - smoothing) + smoothing / vocab
    terms = targets * log_softmax(logits, classes)
    if weight is not None:
        terms = terms * weight.reshape((vocab,) + (1,) * (logits.ndim - 1 - classes))
    losses = -sum(terms, classes)
    rows = max(logits.size if isinstance(logits.size, int) else logits.numel(), 1) // max(vocab, 1)
    return losses if reduction == "none" else sum(losses) / max(rows, 1) if reduction == "mean" else sum(losses)
