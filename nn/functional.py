"""Operations of neural networks as functions, under the field's names: `from tinygrad_tf.nn import functional as F`."""

from __future__ import annotations

from typing import Any

from tinygrad_tf.ops.activation import gelu, silu
from tinygrad_tf.ops.attention import attention_weights, rotary, scaled_dot_product_attention
from tinygrad_tf.ops.dropout import dropout
from tinygrad_tf.ops.elementwise import relu, sigmoid, tanh
from tinygrad_tf.ops.embedding import embedding
from tinygrad_tf.ops.linear import linear
from tinygrad_tf.ops.loss import cross_entropy
from tinygrad_tf.ops.normalization import layer_norm as _layer_norm
from tinygrad_tf.ops.normalization import log_softmax, softmax
from tinygrad_tf.ops.normalization import rms_norm as _rms_norm


def _last_axes(name: str, x: Any, normalized_shape: Any, **parameters: Any) -> tuple[Any, list[Any], Any]:
    """x and the parameters with the normalized axes made one, and the shape to go back to."""
    shape = (normalized_shape,) if isinstance(normalized_shape, int) else tuple(normalized_shape)
    n = len(shape)
    if n == 0 or x.shape[-n:] != shape:
        what = f"the last axis of x must be {shape[0]}" if n == 1 else f"the last axes of x must be {shape}"
        raise ValueError(f"{name}({shape[0] if n == 1 else shape}): {what}, got x of shape {x.shape}")
    for label, p in parameters.items():
        if p is not None and p.shape != shape:
            raise ValueError(f"{name}: {label} must have shape {shape}, got {p.shape}")
    if n == 1:
        return x, list(parameters.values()), x.shape
    flat = [None if p is None else p.reshape(-1) for p in parameters.values()]
    return x.reshape((*x.shape[:-n], -1)), flat, x.shape


def layer_norm(x: Any, normalized_shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> Any:
    """(x - mean) / sqrt(var + eps) * weight + bias over the last axes, whose shape is `normalized_shape`.

    Source: Ba, Kiros and Hinton 2016, Layer Normalization, section 3.1.
    """
    rows, (weight, bias), shape = _last_axes("LayerNorm", x, normalized_shape, weight=weight, bias=bias)
    return _layer_norm(rows, weight, bias, eps).reshape(shape)


def rms_norm(x: Any, normalized_shape: Any, weight: Any = None, eps: float = 1e-6) -> Any:
    """x / sqrt(mean(x^2) + eps) * weight over the last axes, whose shape is `normalized_shape`.

    Source: Zhang and Sennrich 2019, Root Mean Square Layer Normalization, equation 4.
    """
    rows, (weight,), shape = _last_axes("RMSNorm", x, normalized_shape, weight=weight)
    return _rms_norm(rows, weight, eps).reshape(shape)


def mse_loss(x: Any, target: Any, reduction: str = "mean") -> Any:
    """(x - target)^2, averaged ("mean"), summed ("sum") or as it is ("none")."""
    difference = x - target
    return reduce_(difference * difference, reduction)


def l1_loss(x: Any, target: Any, reduction: str = "mean") -> Any:
    """|x - target|, averaged ("mean"), summed ("sum") or as it is ("none")."""
    return reduce_((x - target).abs(), reduction)


def reduce_(losses: Any, reduction: str) -> Any:
    """The mean or the sum of losses, or the losses themselves."""
    if reduction not in ("mean", "sum", "none"):
        raise ValueError(f'reduction must be "mean", "sum" or "none", got {reduction!r}')
    return losses.mean() if reduction == "mean" else losses.sum() if reduction == "sum" else losses


__all__ = [
    "attention_weights", "cross_entropy", "dropout", "embedding", "gelu", "l1_loss", "layer_norm", "linear", "log_softmax",
    "mse_loss", "relu", "rms_norm", "rotary", "scaled_dot_product_attention", "sigmoid", "silu", "softmax", "tanh",
]  # fmt: skip
