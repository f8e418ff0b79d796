"""Normalization: LayerNorm, RMSNorm over the last axes; BatchNorm1d over the batch."""

from __future__ import annotations

import numpy as np

import tinygrad_tf as tg
from tinygrad_tf.ops.normalization import layer_norm, rms_norm

from ..modes import not_captured
from . import functional as F
from .module import Module, Parameter


def _check_axes(layer: Module, x: tg.Tensor, shape: tuple[int, ...]) -> None:
    if x.shape[-len(shape) :] != shape:
        axes = f"the last axis of x must be {shape[0]}" if len(shape) == 1 else f"the last axes of x must be {shape}"
        raise ValueError(f"{type(layer).__name__}({layer.extra_repr()}): {axes}, got x of shape {x.shape}")


def _shape(normalized_shape: int | tuple[int, ...] | list[int]) -> tuple[int, ...]:
    shape = (normalized_shape,) if isinstance(normalized_shape, int) else tuple(normalized_shape)
    if not shape or any(n < 1 for n in shape):
        raise ValueError(f"normalized_shape must be one or more sizes of at least 1, got {normalized_shape}")
    return shape


class LayerNorm(Module):
    """y = (x − mean) / √(var + eps) · weight + bias, mean and (biased) variance over the last axes.

    Args:
        normalized_shape: the size of the last axis, or the sizes of the last axes.
        eps: default 1e-5.
        elementwise_affine: whether there are a weight, which begins as 1, and a bias (default True).
        bias: whether there is a bias, which begins as 0 (default True).

    Shapes: x (..., *normalized_shape) -> the same.

    Raises:
        ValueError: x's last axes have other sizes.

    Source: Ba, Kiros, Hinton 2016, eq. 4.

    >>> import tinygrad_tf as tg
    >>> from tinygrad_tf import nn
    >>> nn.LayerNorm(2)(tg.tensor([[1.0, 3.0]])).numpy().round(3)
    array([[-1.,  1.]], dtype=float32)
    """

    def __init__(
        self,
        normalized_shape: int | tuple[int, ...] | list[int],
        eps: float = 1e-5,
        elementwise_affine: bool = True,
        bias: bool = True,
    ):
        super().__init__()
        self.normalized_shape, self.eps = _shape(normalized_shape), eps
        self.weight = Parameter(tg.ones(*self.normalized_shape)) if elementwise_affine else None
        self.bias = Parameter(tg.zeros(*self.normalized_shape)) if elementwise_affine and bias else None

    def extra_repr(self) -> str:
        return ", ".join(map(str, self.normalized_shape))

    def forward(self, x: tg.Tensor) -> tg.Tensor:
        shape, weight, bias = self.normalized_shape, self.weight, self.bias
        _check_axes(self, x, shape)
        if len(shape) == 1 and (weight is None or weight.shape == shape) and (bias is None or bias.shape == shape):
            return layer_norm(x, weight, bias, self.eps)  # type: ignore[no-any-return]
        return F.layer_norm(x, shape, weight, bias, self.eps)


class RMSNorm(Module):
    """y = x / √(mean(x²) + eps) · weight, the mean over the last axes.

    Args:
        normalized_shape: the size of the last axis, or the sizes of the last axes.
        eps: default 1e-6.
        elementwise_affine: whether there is a weight, which begins as 1 (default True).

    Shapes: x (..., *normalized_shape) -> the same.

    Raises:
        ValueError: x's last axes have other sizes.

    Source: Zhang and Sennrich 2019, eq. 4.

    >>> import tinygrad_tf as tg
    >>> from tinygrad_tf import nn
    >>> nn.RMSNorm(2)(tg.tensor([[3.0, 3.0]])).numpy().round(3)
    array([[1., 1.]], dtype=float32)
    """

    def __init__(
        self, normalized_shape: int | tuple[int, ...] | list[int], eps: float = 1e-6, elementwise_affine: bool = True
    ):
        super().__init__()
        self.normalized_shape, self.eps = _shape(normalized_shape), eps
        self.weight = Parameter(tg.ones(*self.normalized_shape)) if elementwise_affine else None

    def extra_repr(self) -> str:
        return ", ".join(map(str, self.normalized_shape))

    def forward(self, x: tg.Tensor) -> tg.Tensor:
        shape, weight = self.normalized_shape, self.weight
        _check_axes(self, x, shape)
        if len(shape) == 1 and (weight is None or weight.shape == shape):
            return rms_norm(x, weight, self.eps)  # type: ignore[no-any-return]
        return F.rms_norm(x, shape, weight, self.eps)


class BatchNorm1d(Module):
    """y = (x − mean) / √(var + eps) · weight + bias, mean and variance of each channel.

    In training they are the batch's (biased variance), and the running ones move towards them (unbiased variance);
    in evaluation they are the running ones.

    Args:
        num_features: how many channels.
        eps: default 1e-5.
        momentum: how far the running values move with each batch (default 0.1).
        affine: whether there are a weight (begins as 1) and a bias (begins as 0) (default True).
        track_running_stats: whether running values are kept; without, evaluation too uses the batch (default True).

    Shapes: x (N, C) or (N, C, L) -> the same.

    Raises:
        ValueError: x has another number of axes or channels; or, in training, one value per channel only.

    Source: Ioffe and Szegedy 2015, algorithm 1.

    >>> import tinygrad_tf as tg
    >>> from tinygrad_tf import nn
    >>> nn.BatchNorm1d(1)(tg.tensor([[1.0], [3.0]])).numpy().round(3)
    array([[-1.],
           [ 1.]], dtype=float32)
    """

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
    ):
        super().__init__()
        if num_features < 1:
            raise ValueError(f"BatchNorm1d({num_features}): there must be at least 1 channel")
        self.num_features, self.eps, self.momentum = num_features, eps, momentum
        self.weight = Parameter(tg.ones(num_features)) if affine else None
        self.bias = Parameter(tg.zeros(num_features)) if affine else None
        self.track_running_stats = track_running_stats
        if track_running_stats:
            self.register_buffer("running_mean", tg.zeros(num_features))
            self.register_buffer("running_var", tg.ones(num_features))
            self.register_buffer("num_batches_tracked", tg.tensor(np.array(0, dtype=np.int64)))

    def extra_repr(self) -> str:
        return str(self.num_features)

    def forward(self, x: tg.Tensor) -> tg.Tensor:
        if len(x.shape) not in (2, 3) or x.shape[1] != self.num_features:
            expected = f"(N, {self.num_features}) or (N, {self.num_features}, L)"
            raise ValueError(f"BatchNorm1d({self.num_features}): x must be {expected}, got x of shape {x.shape}")
        axes = (0,) if len(x.shape) == 2 else (0, 2)
        along = (1, -1) if len(x.shape) == 2 else (1, -1, 1)
        if self.training or not self.track_running_stats:
            count = x._data.size // self.num_features
            if count < 2:
                raise ValueError(
                    f"BatchNorm1d({self.num_features}): training needs more than one value per channel, "
                    f"got x of shape {x.shape}"
                )
            mean = x.mean(axes, keepdim=True)
            centred = x - mean
            var = (centred * centred).mean(axes, keepdim=True)
            if self.track_running_stats and self.training:
                self._track(mean._data.reshape(-1), var._data.reshape(-1) * (count / (count - 1)))
        else:
            centred = x - self.running_mean.reshape(along)
            var = self.running_var.reshape(along)
        y = centred / tg.sqrt(var + self.eps)
        if self.weight is not None and self.bias is not None:
            y = y * self.weight.reshape(along) + self.bias.reshape(along)
        return y

    def _track(self, mean: np.ndarray, var: np.ndarray) -> None:  # type: ignore[type-arg]
        not_captured("running statistics are kept")
        for buffer, value in ((self.running_mean, mean), (self.running_var, var)):
            buffer._data += self.momentum * (value - buffer._data)
            buffer._bump()
        self.num_batches_tracked._data += 1
        self.num_batches_tracked._bump()


def make_norm(kind: str, d_model: int, bias: bool = True) -> Module:
    """The normalization of this name: "layer" or "rms"."""
    if kind not in ("layer", "rms"):
        raise ValueError(f"norm must be 'layer' or 'rms', got {kind!r}")
    return LayerNorm(d_model, bias=bias) if kind == "layer" else RMSNorm(d_model)
