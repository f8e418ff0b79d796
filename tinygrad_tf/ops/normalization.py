"""Softmax, log-softmax, layer norm and RMS norm: each a pair of kernels and its definition."""

from __future__ import annotations

from typing import Any

from .. import kernels
from .elementwise import constant, exp, log, rsqrt
from .primitive import fused, normalize_dims
from .reductions import amax, mean, sum
from .shape import transpose


@fused(
    "x",
    forward=lambda x: (kernels.normalization.softmax(x), ()),
    backward=lambda g, needs, out, x: [kernels.normalization.softmax_backward(g, out)],
)
def _softmax(x: Any) -> Any:
    e = exp(x - constant(amax(x, -1, True)))
    return e / sum(e, -1, True)


@fused(
    "x",
    forward=lambda x: (kernels.normalization.log_softmax(x), ()),
    backward=lambda g, needs, out, x: [kernels.normalization.log_softmax_backward(g, out)],
)
def _log_softmax(x: Any) -> Any:
    shifted = x - constant(amax(x, -1, True))
    return shifted - log(sum(exp(shifted), -1, True))


_softmax.name, _log_softmax.name = "softmax", "log_softmax"


def _along(operation: Any, x: Any, dim: int, name: str) -> Any:
    """Run an operation of the last axis along another one."""
    axes = normalize_dims(dim, x.ndim, name)
    if x.ndim == 0:
        return operation(x.reshape((1,))).reshape(())
    if 0 in x.shape:
        return x * 1.0
    (axis,) = axes
    return operation(x) if axis == x.ndim - 1 else transpose(operation(transpose(x, axis, -1)), axis, -1)


def softmax(x: Any, dim: int) -> Any:
    """exp(x) / sum(exp(x)) along `dim`: positive numbers that add up to 1. A row of only -inf gives NaN.

    >>> import tinygrad_tf as tg
    >>> tg.softmax(tg.tensor([0.0, float("-inf")]), -1)
    tensor([1., 0.])
    """
    return _along(_softmax, x, dim, "softmax")


def log_softmax(x: Any, dim: int) -> Any:
    """log(softmax(x, dim)), without computing the softmax first."""
    return _along(_log_softmax, x, dim, "log_softmax")


def _layer_norm_forward(x: Any, weight: Any, bias: Any, eps: float) -> Any:
    y, mean_, rstd = kernels.normalization.layer_norm(x, weight, bias, eps)
    return y, (mean_, rstd)


def _layer_norm_backward(g: Any, needs: Any, saved: Any, x: Any, weight: Any) -> Any:
    return kernels.normalization.layer_norm_backward(g, x, weight, saved[0], saved[1], needs)


@fused("x", "weight", "bias", forward=_layer_norm_forward, backward=_layer_norm_backward, cheap=True)
def layer_norm(x: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> Any:
    """(x - mean) / sqrt(var + eps) * weight + bias over the last axis, with the biased variance.

    Source: Ba, Kiros and Hinton 2016, Layer Normalization, section 3.1.
    """
    centered = x - mean(x, -1, True)
    y = centered * rsqrt(mean(centered * centered, -1, True) + eps)
    y = y if weight is None else y * weight
    return y if bias is None else y + bias


def _rms_norm_forward(x: Any, weight: Any, eps: float) -> Any:
    y, rstd = kernels.normalization.rms_norm(x, weight, eps)
    return y, (rstd,)


@fused(
    "x",
    "weight",
    forward=_rms_norm_forward,
    backward=lambda g, needs, saved, x, weight: kernels.normalization.rms_norm_backward(g, x, weight, saved[0], needs),
    cheap=True,
)
def rms_norm(x: Any, weight: Any = None, eps: float = 1e-6) -> Any:
    """x / sqrt(mean(x^2) + eps) * weight over the last axis.

    Source: Zhang and Sennrich 2019, Root Mean Square Layer Normalization, equation 4.
    """
    y = x * rsqrt(mean(x * x, -1, True) + eps)
    return y if weight is None else y * weight
