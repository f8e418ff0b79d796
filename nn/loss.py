"""Losses as modules."""

from __future__ import annotations

from typing import Any

import tinygrad_tf as tg

from . import functional as F
from .module import Module


class _Loss(Module):
    """A loss with PyTorch's `reduction`: "mean" (default), "sum" or "none"."""

    def __init__(self, reduction: str = "mean"):
        super().__init__()
        if reduction not in ("mean", "sum", "none"):
            name = type(self).__name__
            raise ValueError(f"{name}: reduction must be 'mean', 'sum' or 'none', got {reduction!r}")
        self.reduction = reduction

    def extra_repr(self) -> str:
        return "" if self.reduction == "mean" else f"reduction={self.reduction!r}"

    def _reduce(self, losses: tg.Tensor) -> tg.Tensor:
        if self.reduction == "none":
            return losses
        return losses.mean() if self.reduction == "mean" else losses.sum()

    def _same_shape(self, x: tg.Tensor, y: tg.Tensor) -> None:
        if x.shape != y.shape:
            raise ValueError(
                f"{type(self).__name__}: input and target must have one shape, got {x.shape} and {y.shape}"
            )


class CrossEntropyLoss(_Loss):
    """−log softmax(logits)[target], averaged over the targets that are not ignored; 0 if all are.

    Args:
        weight: a weight per class, (C,) (default None).
        ignore_index: the target that counts for nothing (default −100).
        reduction: "mean" (default), "sum" or "none".
        label_smoothing: mix the target with the uniform distribution, in [0, 1] (default 0).

    Shapes: logits (N, C), targets (N,).

    >>> import tinygrad_tf as tg
    >>> from tinygrad_tf import nn
    >>> round(nn.CrossEntropyLoss()(tg.zeros(3, 4), tg.tensor([0, 1, 2])).item(), 4)
    1.3863
    """

    def __init__(
        self,
        weight: tg.Tensor | None = None,
        ignore_index: int = -100,
        reduction: str = "mean",
        label_smoothing: float = 0.0,
    ):
        super().__init__(reduction)
        if not 0.0 <= label_smoothing <= 1.0:
            raise ValueError(f"CrossEntropyLoss: label_smoothing must be in [0, 1], got {label_smoothing}")
        self.register_buffer("weight", weight)
        self.ignore_index, self.label_smoothing = ignore_index, label_smoothing

    def forward(self, logits: tg.Tensor, targets: Any) -> tg.Tensor:
        return F.cross_entropy(
            logits,
            targets,
            weight=self.weight,
            ignore_index=self.ignore_index,
            reduction=self.reduction,
            label_smoothing=self.label_smoothing,
        )


class MSELoss(_Loss):
    """(x − y)², averaged.

    >>> import tinygrad_tf as tg
    >>> from tinygrad_tf import nn
    >>> nn.MSELoss()(tg.tensor([1.0, 3.0]), tg.tensor([1.0, 1.0])).item()
    2.0
    """

    def forward(self, x: tg.Tensor, y: tg.Tensor) -> tg.Tensor:
        self._same_shape(x, y)
        difference = x - y
        return self._reduce(difference * difference)


class L1Loss(_Loss):
    """|x − y|, averaged."""

    def forward(self, x: tg.Tensor, y: tg.Tensor) -> tg.Tensor:
        self._same_shape(x, y)
        return self._reduce((x - y).abs())


class BCEWithLogitsLoss(_Loss):
    """max(x, 0) − x·y + log(1 + exp(−|x|)) = −y log σ(x) − (1 − y) log(1 − σ(x)), averaged; never overflows.

    >>> import tinygrad_tf as tg
    >>> from tinygrad_tf import nn
    >>> round(nn.BCEWithLogitsLoss()(tg.tensor([0.0]), tg.tensor([1.0])).item(), 4)
    0.6931
    """

    def forward(self, x: tg.Tensor, y: tg.Tensor) -> tg.Tensor:
        self._same_shape(x, y)
        return F.binary_cross_entropy_with_logits(x, y, reduction=self.reduction)
