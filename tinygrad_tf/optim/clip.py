"""The norm of all gradients together, held below a bound."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable

import numpy as np

from tinygrad_tf import kernels
from tinygrad_tf.modes import _profile, not_captured
from tinygrad_tf.tensor import Tensor


def clip_grad_norm_(
    parameters: Tensor | Iterable[Tensor], max_norm: float, error_if_nonfinite: bool = False
) -> np.float64:
    """Scale all gradients by one factor, in place, so that their norm together is at most `max_norm`.

        norm = sqrt(Σ g²) over all gradients;   g <- g · min(1, max_norm / (norm + 1e-6))

    Arguments:
        parameters: a Tensor or several; one that is named twice (tied weights) counts once; one without a gradient is
            passed over.
        max_norm: the bound; infinity measures only.
        error_if_nonfinite: raise RuntimeError where the norm is NaN or infinite, before anything is changed (default
            False: the gradients become NaN or 0).

    Returns the norm before clipping, 0 where there is no gradient; summed in float64.
    Source: Pascanu, Mikolov & Bengio 2013, "On the difficulty of training recurrent neural networks", algorithm 1.

    Example:
        >>> import tinygrad_tf as tg
        >>> from tinygrad_tf import optim
        >>> p = tg.zeros(2, requires_grad=True)
        >>> (p * tg.tensor([3.0, 4.0])).sum().backward()
        >>> float(optim.clip_grad_norm_([p], max_norm=1.0))
        5.0
        >>> [round(g, 4) for g in p.grad.numpy().tolist()]
        [0.6, 0.8]
    """
    if not max_norm >= 0:
        raise ValueError(f"clip_grad_norm_: max_norm must be at least 0, got {max_norm}")
    not_captured("clip_grad_norm_")
    start = time.perf_counter()
    unique = {id(p): p for p in ([parameters] if isinstance(parameters, Tensor) else parameters)}
    gradients = [p.grad for p in unique.values() if p.grad is not None]
    norm = math.sqrt(kernels.optimizer.sum_of_squares([g._data for g in gradients]))
    if error_if_nonfinite and not math.isfinite(norm):
        raise RuntimeError(f"clip_grad_norm_: the norm of the gradients is {norm}")
    factor = max_norm / (norm + 1e-6)
    if not factor >= 1:  # also for NaN
        kernels.optimizer.scale([g._data for g in gradients], factor)
        for g in gradients:
            g._bump()
    profile = _profile.get()
    if profile is not None:
        profile.other("clip_grad_norm_", time.perf_counter() - start)
    return np.float64(norm)
