"""Stochastic gradient descent, with momentum."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tinygrad_tf.optim.optimizer import Optimizer
from tinygrad_tf.tensor import Tensor


class SGD(Optimizer):
    """Gradient descent, with (Nesterov) momentum and weight decay.

        g <- g + weight_decay · p
        b <- momentum · b + g             (b = g at the first step)
        p <- p - lr · b                   (nesterov: p - lr · (g + momentum · b))

    Arguments:
        params: Tensors, (name, Tensor) pairs, or groups of them (see `Optimizer`).
        lr: the learning rate (default 1e-3).
        momentum, weight_decay: 0 for none (the defaults).
        nesterov: look ahead (default False); needs momentum.

    Raises ValueError for settings out of range.
    Source: Sutskever et al. 2013, "On the importance of initialization and momentum in deep learning", section 2.

    Example:
        >>> import tinygrad_tf as tg
        >>> from tinygrad_tf import optim
        >>> p = tg.tensor([1.0], requires_grad=True)
        >>> sgd = optim.SGD([p], lr=0.25)
        >>> (p * p).sum().backward()
        >>> sgd.step()
        >>> p.item()
        0.5
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        momentum: float = 0.0,
        weight_decay: float = 0.0,
        nesterov: bool = False,
    ) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay, "nesterov": nesterov})

    def _check(self, settings: Any) -> None:
        super()._check(settings)
        if not settings["momentum"] >= 0:
            raise ValueError(f"SGD: momentum must be at least 0, got {settings['momentum']}")
        if settings["nesterov"] and not settings["momentum"] > 0:
            raise ValueError("SGD: nesterov needs momentum above 0")

    def _update(self, group: dict[str, Any], chosen: list[tuple[int, Tensor]]) -> None:
        for position, p in chosen:
            assert p.grad is not None
            number = p._data.dtype.type  # so that nothing becomes float64
            lr, momentum, decay = (number(group[k]) for k in ("lr", "momentum", "weight_decay"))
            g = p.grad._data.astype(p._data.dtype, copy=False)
            if decay:
                g = g + decay * p._data
            if momentum:
                state = self._moments(position, p, ("momentum_buffer",))
                b = state["momentum_buffer"]
                b *= momentum
                b += g
                state["step"] += 1
                g = g + momentum * b if group["nesterov"] else b
            p._data[...] -= lr * g
