"""Learning rates over time: functions from the number of steps taken so far to the rate of the next one."""

from __future__ import annotations

import math
from collections.abc import Callable

Schedule = Callable[[int], float]


def cosine(max_lr: float, steps: int, warmup: int = 0, min_lr: float = 0.0) -> Schedule:
    """Linear warm-up, then half a cosine from `max_lr` down to `min_lr`, then `min_lr`.

        lr(t) = max_lr · (t + 1) / (warmup + 1)                                        for t < warmup
        lr(t) = min_lr + (max_lr - min_lr) · (1 + cos(pi · r)) / 2,
                r = (t - warmup) / (steps - warmup)                                    for warmup <= t <= steps
        lr(t) = min_lr                                                                 for t > steps

    Arguments:
        max_lr, min_lr: the rates at the top and at the end (min_lr: default 0).
        steps: where the cosine ends; at least `warmup`.
        warmup: how many steps are below the top (default 0); the first already moves.

    Raises ValueError for numbers below 0, or a warm-up longer than `steps`.
    Source: Loshchilov & Hutter 2017, "SGDR: Stochastic Gradient Descent with Warm Restarts", equation 5.

    Example:
        >>> lr = cosine(max_lr=1.0, steps=12, warmup=4, min_lr=0.1)
        >>> [round(lr(t), 2) for t in (0, 1, 3, 4, 8, 12, 13)]
        [0.2, 0.4, 0.8, 1.0, 0.55, 0.1, 0.1]
    """
    return _warmed_up("cosine", max_lr, steps, warmup, min_lr, lambda ratio: 0.5 * (1 + math.cos(math.pi * ratio)))


def linear(max_lr: float, steps: int, warmup: int = 0, min_lr: float = 0.0) -> Schedule:
    """Linear warm-up, then a straight line from `max_lr` down to `min_lr`, then `min_lr`; arguments as in `cosine`.

    Example:
        >>> lr = linear(max_lr=1.0, steps=12, warmup=4, min_lr=0.2)
        >>> [round(lr(t), 2) for t in (0, 4, 8, 12, 13)]
        [0.2, 1.0, 0.6, 0.2, 0.2]
    """
    return _warmed_up("linear", max_lr, steps, warmup, min_lr, lambda ratio: 1 - ratio)


def constant(lr: float, warmup: int = 0) -> Schedule:
    """Linear warm-up, then `lr` for ever.

    Example:
        >>> [constant(1.0, warmup=1)(t) for t in range(3)]
        [0.5, 1.0, 1.0]
    """
    if lr < 0 or warmup < 0:
        raise ValueError(f"constant: lr and warmup must be at least 0, got {lr} and {warmup}")
    return lambda t: lr * min(1.0, (t + 1) / (warmup + 1))


def _warmed_up(
    name: str, max_lr: float, steps: int, warmup: int, min_lr: float, shape: Callable[[float], float]
) -> Schedule:
    if max_lr < 0 or min_lr < 0 or warmup < 0 or steps < 0:
        raise ValueError(
            f"{name}: max_lr, min_lr, warmup and steps must be at least 0, got {max_lr}, {min_lr}, {warmup} and {steps}"
        )
    if warmup > steps:
        raise ValueError(f"{name}: warmup must be at most steps, got a warm-up of {warmup} in {steps} steps")

    def lr(t: int) -> float:
        if t < warmup:
            return max_lr * (t + 1) / (warmup + 1)
        if t > steps:
            return min_lr
        ratio = (t - warmup) / (steps - warmup) if steps > warmup else 0.0
        return min_lr + (max_lr - min_lr) * shape(ratio)

    return lr
