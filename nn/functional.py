"""Operations of neural networks as functions, under the field's names: `from tinygrad_tf.nn import functional as F`."""

from __future__ import annotations

import functools
from typing import Any

from tinygrad_tf.ops.activation import (
    celu,
    elu,
    gelu,
    glu,
    hardshrink,
    hardsigmoid,
    hardswish,
    hardtanh,
    leaky_relu,
    logsigmoid,
    mish,
    prelu,
    relu6,
    selu,
    silu,
    softmin,
    softplus,
    softshrink,
    softsign,
    tanhshrink,
    threshold,
)  # fmt: skip
from tinygrad_tf.ops.arrange import pad
from tinygrad_tf.ops.attention import (
    attention_weights,
    merge_heads,
    rotary,
    scaled_dot_product_attention,
    split_heads,
)
from tinygrad_tf.ops.dropout import dropout
from tinygrad_tf.ops.elementwise import relu, sigmoid, tanh
from tinygrad_tf.ops.elementwise_loss import (
    binary_cross_entropy,
    binary_cross_entropy_with_logits,
    huber_loss,
    kl_div,
    l1_loss,
    mse_loss,
    nll_loss,
    reduce_,
    smooth_l1_loss,
)  # fmt: skip
from tinygrad_tf.ops.embedding import embedding
from tinygrad_tf.ops.linear import linear
from tinygrad_tf.ops.loss import cross_entropy
from tinygrad_tf.ops.normalization import layer_norm as _layer_norm
from tinygrad_tf.ops.normalization import log_softmax, softmax
from tinygrad_tf.ops.normalization import rms_norm as _rms_norm
from tinygrad_tf.ops.primitive import with_dtype, with_names
from tinygrad_tf.ops.scaling import (
    batch_norm,
    bilinear,
    cosine_similarity,
    group_norm,
    instance_norm,
    normalize,
    pairwise_distance,
)  # fmt: skip
from tinygrad_tf.ops.scatter import one_hot
from tinygrad_tf.tensor import _in_place_operator


def _last_axes(name: str, x: Any, normalized_shape: Any, weight: Any, bias: Any) -> tuple[Any, Any, Any]:
    """x, weight and bias with the normalized axes made one."""
    shape = (normalized_shape,) if isinstance(normalized_shape, int) else tuple(normalized_shape)
    n = len(shape)
    if n == 0 or x.shape[-n:] != shape:
        what = f"the last axis of x must be {shape[0]}" if n == 1 else f"the last axes of x must be {shape}"
        raise ValueError(f"{name}({shape[0] if n == 1 else shape}): {what}, got x of shape {x.shape}")
    if weight is not None and weight.shape != shape:
        raise ValueError(f"{name}: weight must have shape {shape}, got {weight.shape}")
    if bias is not None and bias.shape != shape:
        raise ValueError(f"{name}: bias must have shape {shape}, got {bias.shape}")
    if n == 1:
        return x, weight, bias
    weight, bias = (None if p is None else p.reshape(-1) for p in (weight, bias))
    return x.reshape((*x.shape[:-n], -1)), weight, bias


def layer_norm(x: Any, normalized_shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> Any:
    """(x - mean) / sqrt(var + eps) * weight + bias over the last axes, whose shape is `normalized_shape`.

    Source: Ba, Kiros and Hinton 2016, Layer Normalization, section 3.1.
    """
    rows, weight, bias = _last_axes("LayerNorm", x, normalized_shape, weight, bias)
    y = _layer_norm(rows, weight, bias, eps)
    return y if rows is x else y.reshape(x.shape)


def rms_norm(x: Any, normalized_shape: Any, weight: Any = None, eps: float = 1e-6) -> Any:
    """x / sqrt(mean(x^2) + eps) * weight over the last axes, whose shape is `normalized_shape`.

    Source: Zhang and Sennrich 2019, Root Mean Square Layer Normalization, equation 4.
    """
    rows, weight, _ = _last_axes("RMSNorm", x, normalized_shape, weight, None)
    y = _rms_norm(rows, weight, eps)
    return y if rows is x else y.reshape(x.shape)


def _in_place_too(function: Any) -> Any:
    """An activation that takes PyTorch's `inplace=True`: the result is then written into x."""
    write = _in_place_operator(function, f"{function.__name__}_")

    @functools.wraps(function)
    def activation(x: Any, *args: Any, inplace: bool = False, **options: Any) -> Any:
        return (write if inplace else function)(x, *args, **options)

    return activation


__all__ = [
    "attention_weights", "batch_norm", "bilinear", "binary_cross_entropy", "binary_cross_entropy_with_logits", "celu",
    "cosine_similarity", "cross_entropy", "dropout", "elu", "embedding", "gelu", "glu", "group_norm", "hardshrink",
    "hardsigmoid", "hardswish", "hardtanh", "huber_loss", "instance_norm", "kl_div", "l1_loss", "layer_norm", "leaky_relu",
    "linear", "log_softmax", "logsigmoid", "merge_heads", "mish", "mse_loss", "nll_loss", "normalize", "one_hot", "pad",
    "pairwise_distance", "prelu", "reduce_", "relu", "relu6", "rms_norm", "rotary", "scaled_dot_product_attention", "selu",
    "sigmoid", "silu", "smooth_l1_loss", "softmax", "split_heads", "softmin", "softplus", "softshrink", "softsign", "tanh", "tanhshrink",
    "threshold",
]  # fmt: skip

for _name in __all__:
    globals()[_name] = with_names(globals()[_name])
for _name in "softmax log_softmax softmin".split():
    globals()[_name] = with_dtype(globals()[_name])
for _name in "celu dropout elu hardsigmoid hardswish hardtanh leaky_relu mish relu relu6 selu silu threshold".split():
    globals()[_name] = _in_place_too(globals()[_name])
