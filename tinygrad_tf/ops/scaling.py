"""Bringing vectors and channels to a common scale: batch, group and instance norm, unit vectors, similarity."""

from __future__ import annotations

import math
from typing import Any

from .. import modes
from .arrange import broadcast_tensors
from .binary import clamp_min
from .contraction import einsum
from .elementwise import constant, rsqrt
from .reductions import mean, sum, var
from .statistics import vector_norm


def _affine(y: Any, weight: Any, bias: Any) -> Any:
    """y * weight + bias, both one number for each channel (axis 1)."""
    along = (1, -1) + (1,) * (y.ndim - 2)
    y = y if weight is None else y * weight.reshape(along)
    return y if bias is None else y + bias.reshape(along)


def batch_norm(
    x: Any,
    running_mean: Any,
    running_var: Any,
    weight: Any = None,
    bias: Any = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Any:
    """(x - mean) / sqrt(var + eps) * weight + bias, the mean and variance of each channel (axis 1).

    In training they are the batch's (biased variance), and the running ones, if given, move towards them by `momentum`
    (unbiased variance); otherwise they are the running ones.

    Source: Ioffe and Szegedy 2015, Batch Normalization, algorithm 1.
    """
    if x.ndim < 2:
        raise ValueError(f"batch_norm: x must have channels on axis 1, got shape {x.shape}")
    axes, along = (0, *range(2, x.ndim)), (1, -1) + (1,) * (x.ndim - 2)
    if not training:
        if running_mean is None or running_var is None:
            raise ValueError("batch_norm: without training=True it needs running_mean and running_var, got None")
        y = (x - running_mean.reshape(along)) * rsqrt(running_var.reshape(along) + eps)
        return _affine(y, weight, bias)
    count = math.prod(x.shape) // max(x.shape[1], 1)
    if count < 2:
        raise ValueError(f"batch_norm: training needs more than one value per channel, got x of shape {x.shape}")
    center = mean(x, axes, True)
    spread = mean((x - center) * (x - center), axes, True)
    _move(running_mean, center, momentum)
    _move(running_var, constant(spread) * (count / (count - 1)), momentum)
    return _affine((x - center) * rsqrt(spread + eps), weight, bias)


def _move(running: Any, value: Any, momentum: float) -> None:
    """Bring running values, if there are any, closer to the batch's."""
    if running is not None:
        with modes.no_grad():
            running[...] = running * (1.0 - momentum) + constant(value).reshape(running.shape) * momentum


def group_norm(x: Any, num_groups: int, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> Any:
    """(x - mean) / sqrt(var + eps) * weight + bias, mean and variance over each group of neighbouring channels.

    Shapes: x (N, C, ...), C a multiple of num_groups; weight and bias (C,).

    Source: Wu and He 2018, Group Normalization, equation 7.
    """
    if x.ndim < 2 or num_groups < 1 or x.shape[1] % num_groups:
        raise ValueError(f"group_norm: {num_groups} groups must divide the channels (axis 1) of x, got shape {x.shape}")
    groups = x.reshape((x.shape[0], num_groups, math.prod(x.shape[1:]) // num_groups))
    centered = groups - mean(groups, -1, True)
    y = centered * rsqrt(mean(centered * centered, -1, True) + eps)
    return _affine(y.reshape(x.shape), weight, bias)


def instance_norm(
    x: Any,
    running_mean: Any = None,
    running_var: Any = None,
    weight: Any = None,
    bias: Any = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Any:
    """(x - mean) / sqrt(var + eps) * weight + bias, mean and variance over the positions of each channel of each sample.

    Running values, if given, move towards the samples' average by `momentum`; with use_input_stats=False they are used.

    Source: Ulyanov, Vedaldi and Lempitsky 2016, Instance Normalization, equation 4.
    """
    if not use_input_stats:
        return batch_norm(x, running_mean, running_var, weight, bias, False, momentum, eps)
    if x.ndim < 3 or math.prod(x.shape[2:]) < 2:
        raise ValueError(f"instance_norm: x must be (N, C, positions), more than one position, got shape {x.shape}")
    if running_mean is not None or running_var is not None:
        positions = tuple(range(2, x.ndim))
        _move(running_mean, mean(constant(x), (0, *positions)), momentum)
        _move(running_var, mean(var(constant(x), positions), 0), momentum)
    return group_norm(x, x.shape[1], weight, bias, eps)


def normalize(x: Any, p: float = 2.0, dim: Any = 1, eps: float = 1e-12) -> Any:
    """x / max(norm of x along `dim`, eps)."""
    return x / clamp_min(vector_norm(x, p, dim, True), eps)


def cosine_similarity(x1: Any, x2: Any, dim: int = 1, eps: float = 1e-8) -> Any:
    """x1 . x2 / (max(|x1|, eps) max(|x2|, eps)) along `dim`; x1 and x2 broadcast."""
    units = [x / clamp_min(vector_norm(x, 2, dim, True), eps) for x in broadcast_tensors(x1, x2)]
    return sum(units[0] * units[1], dim)


def pairwise_distance(x1: Any, x2: Any, p: float = 2.0, eps: float = 1e-6, keepdim: bool = False) -> Any:
    """The p-norm of x1 - x2 + eps along the last axis."""
    return vector_norm(x1 - x2 + eps, p, -1, keepdim)


def bilinear(x1: Any, x2: Any, weight: Any, bias: Any = None) -> Any:
    """out[..., o] = sum over i, j of x1[..., i] weight[o, i, j] x2[..., j] + bias[o].

    Shapes: x1 (..., I), x2 (..., J), weight (O, I, J), bias (O,).
    """
    if weight.ndim != 3 or x1.shape[:-1] != x2.shape[:-1] or weight.shape[1:] != (x1.shape[-1], x2.shape[-1]):
        raise ValueError(
            f"bilinear: expected x1 (..., I), x2 (..., J) and weight (O, I, J), got shapes {x1.shape}, {x2.shape} and "
            f"{weight.shape}"
        )
    out = einsum("...i,oij,...j->...o", x1, weight, x2)
    return out if bias is None else out + bias
