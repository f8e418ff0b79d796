"""One step's gradients from several batches, and a loss that leaves the training as it was. Needs numpy only."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tinygrad_tf import modes, rng
from tinygrad_tf.creation import from_numpy
from tinygrad_tf.nn.module import eval_mode

Batch = tuple[NDArray[np.int64], NDArray[np.int64]]

IGNORE = -100  # the target that a loss does not count


def count_tokens(targets: NDArray[np.int64]) -> int:
    """How many targets are scored."""
    return int(np.count_nonzero(targets != IGNORE))


def loss_and_gradients(model: Any) -> Callable[..., Any]:
    """A function of (ids, targets, weight) that adds the gradients of weight · loss to `.grad`, and returns the loss.

    It does nothing but compute, so `tg.capture` can replay it.

    Arguments:
        model: has `loss(ids, targets)`.

    Example:
        >>> import numpy as np, tinygrad_tf as tg
        >>> class Level:
        ...     height = tg.zeros(1, requires_grad=True)
        ...     def loss(self, ids, targets):
        ...         return ((ids - self.height) ** 2).mean()
        >>> level = Level()
        >>> compute = tg.capture(loss_and_gradients(level))
        >>> ids = np.array([[3]])
        >>> compute(ids, ids, 0.5).item(), level.height.grad.item()
        (9.0, -3.0)
    """

    def function(ids: Any, targets: Any, weight: float) -> Any:
        loss = model.loss(ids, targets)
        (loss if weight == 1.0 else loss * weight).backward()
        return loss

    return function


def accumulate_gradients(model: Any, batches: Sequence[Batch], compute: Callable[..., Any] | None = None) -> float:
    """Add to the gradients those of the mean loss over all tokens of all batches, and return that loss.

        loss = Σ_b n_b · loss_b / Σ_b n_b,    n_b the scored targets of batch b

    so that several small batches give the gradients of one large batch, also where they differ in scored tokens; a
    batch without any counts nothing.

    Arguments:
        model: has `loss(ids, targets)`, a mean over scored targets.
        batches: pairs (ids, targets) of int64 (B, T); a target of -100 is not scored.
        compute: `loss_and_gradients(model)`, the default, or a capture of it.

    Example:
        >>> import numpy as np, tinygrad_tf as tg
        >>> class Level:
        ...     def __init__(self):
        ...         self.height = tg.zeros(1, requires_grad=True)
        ...     def loss(self, ids, targets):
        ...         return ((ids - self.height) ** 2).mean()
        >>> one, three = np.array([[2]]), np.array([[1, 1, 1]])
        >>> accumulate_gradients(Level(), [(one, one), (three, three)])
        1.75
    """
    compute = loss_and_gradients(model) if compute is None else compute
    counts = [count_tokens(targets) for _, targets in batches]
    total = sum(counts)
    mean = 0.0
    for (ids, targets), count in zip(batches, counts, strict=True):
        if not count:
            continue
        weight = count / total
        mean += compute(from_numpy(ids), from_numpy(targets), weight).item() * weight
    return mean


def evaluate(model: Any, batches: Iterable[Batch]) -> float:
    """The mean loss over all scored tokens, in evaluation mode and without gradients.

    Every module's mode and the random state are afterwards what they were, also after an exception.

    Arguments:
        model: a Module with `loss(ids, targets)`.
        batches: pairs (ids, targets) of int64 (B, T), weighted by their scored tokens.

    Raises ValueError where no token is scored.

    Example:
        >>> import numpy as np
        >>> from tinygrad_tf import nn
        >>> class Coin(nn.Module):
        ...     def loss(self, ids, targets):
        ...         return (ids * 0.5).mean()
        >>> ids = np.ones((2, 3), dtype=np.int64)
        >>> evaluate(Coin(), [(ids, ids)])
        0.5
    """
    state = rng.get_rng_state()
    total, tokens = 0.0, 0
    try:
        with eval_mode(model), modes.no_grad():
            for ids, targets in batches:
                count = count_tokens(targets)
                if count:
                    total += model.loss(from_numpy(ids), from_numpy(targets)).item() * count
                    tokens += count
    finally:
        rng.set_rng_state(state)
    if not tokens:
        raise ValueError("evaluate: no batch has a target that is scored")
    return total / tokens
