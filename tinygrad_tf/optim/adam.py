"""Adam, and AdamW, whose decay does not pass through the moments."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from tinygrad_tf import kernels
from tinygrad_tf.optim.optimizer import Array, Optimizer
from tinygrad_tf.tensor import Tensor


class _Moments(Optimizer):
    """What Adam and AdamW share: two moments, a count of steps for each parameter, one kernel."""

    def __init__(
        self, params: Iterable[Any], lr: float, betas: tuple[float, float], eps: float, weight_decay: float
    ) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})

    def _gradient(self, p: Tensor, weight_decay: float) -> Array:
        assert p.grad is not None
        gradient = p.grad._data
        return gradient if gradient.dtype is p._data.dtype else gradient.astype(p._data.dtype)

    def _decay(self, weight_decay: float) -> float:
        return weight_decay

    def _update(self, group: dict[str, Any], chosen: list[tuple[int, Tensor]]) -> None:
        lr, eps, decay = float(group["lr"]), float(group["eps"]), float(group["weight_decay"])
        beta1, beta2 = (float(b) for b in group["betas"])
        calls: dict[tuple[np.dtype[Any], int], tuple[list[Array], ...]] = {}
        copies = []
        for position, p in chosen:
            state = self.state.get(position) or self._moments(position, p, ("exp_avg", "exp_avg_sq"))
            state["step"] = step = state["step"] + 1
            target = p._data
            if not target.flags.carray:  # the kernel wants plain memory; views of another layout are written back
                target = np.ascontiguousarray(target)
                copies.append((p, target))
            params, grads, firsts, seconds = calls.setdefault((target.dtype, step), ([], [], [], []))
            params.append(target)
            grads.append(self._gradient(p, decay))
            firsts.append(state["exp_avg"])
            seconds.append(state["exp_avg_sq"])
        for (_, step), lists in calls.items():
            params, grads, firsts, seconds = lists
            kernels.optimizer.adamw(params, grads, firsts, seconds, lr, beta1, beta2, eps, self._decay(decay), step)
        for p, target in copies:
            p._data[...] = target


class AdamW(_Moments):
    """Adam with decoupled weight decay: at step t, for the gradient g of a parameter p,

        p <- p - lr · weight_decay · p
        m <- beta1 · m + (1 - beta1) · g,    v <- beta2 · v + (1 - beta2) · g²
        p <- p - lr · (m / (1 - beta1^t)) / (sqrt(v / (1 - beta2^t)) + eps)

    Arguments:
        params: Tensors, (name, Tensor) pairs, or groups of them; it decays what it is given, so put what must not decay
            into a group with weight_decay 0 (`model.param_groups(weight_decay)` does).
        lr: the learning rate (default 1e-3).
        betas: the decay rates of the two moments (default (0.9, 0.999)).
        eps: what keeps the denominator from zero (default 1e-8).
        weight_decay: default 0.01.

    Raises ValueError for settings out of range, TypeError for what cannot be trained.
    Source: Loshchilov & Hutter 2019, "Decoupled Weight Decay Regularization", algorithm 2.

    Example:
        >>> import tinygrad_tf as tg
        >>> from tinygrad_tf import optim
        >>> p = tg.tensor([1.0], requires_grad=True)
        >>> adamw = optim.AdamW([p], lr=0.1, weight_decay=0.1)
        >>> (0.1 * p).sum().backward()
        >>> adamw.step()
        >>> round(p.item(), 6)
        0.89
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.01,
    ) -> None:
        super().__init__(params, lr, betas, eps, weight_decay)


class Adam(_Moments):
    """Adam; its weight decay, an L2 penalty, is added to the gradient: g <- g + weight_decay · p, then, at step t,

        m <- beta1 · m + (1 - beta1) · g,    v <- beta2 · v + (1 - beta2) · g²
        p <- p - lr · (m / (1 - beta1^t)) / (sqrt(v / (1 - beta2^t)) + eps)

    Arguments:
        params: Tensors, (name, Tensor) pairs, or groups of them (see `Optimizer`).
        lr: the learning rate (default 1e-3).
        betas: the decay rates of the two moments (default (0.9, 0.999)).
        eps: what keeps the denominator from zero (default 1e-8).
        weight_decay: default 0.

    Raises ValueError for settings out of range, TypeError for what cannot be trained.
    Source: Kingma & Ba 2015, "Adam: A Method for Stochastic Optimization", algorithm 1.

    Example:
        >>> import tinygrad_tf as tg
        >>> from tinygrad_tf import optim
        >>> p = tg.tensor([1.0], requires_grad=True)
        >>> adam = optim.Adam([p], lr=0.1)
        >>> (0.1 * p).sum().backward()
        >>> adam.step()
        >>> round(p.item(), 6)
        0.9
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(params, lr, betas, eps, weight_decay)

    def _gradient(self, p: Tensor, weight_decay: float) -> Array:
        g = super()._gradient(p, weight_decay)
        return g + p._data.dtype.type(weight_decay) * p._data if weight_decay else g

    def _decay(self, weight_decay: float) -> float:
        return 0.0
