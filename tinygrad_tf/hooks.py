"""Functions that are called with a gradient, or with what passes a module, and the handles that take them away again."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np

from .modes import HooksError, _recorder


class HookHandle:
    """Takes a hook away again: `handle.remove()`."""

    _next = itertools.count()

    def __init__(self, hooks: dict[int, Any], hook: Any):
        self._hooks, self._id = hooks, next(self._next)
        hooks[self._id] = hook

    def remove(self) -> None:
        self._hooks.pop(self._id, None)


def run_hooks(hooks: dict[int, Callable[[Any], Any]], value: Any, wrap: Callable[..., Any]) -> Any:
    """Show a gradient, an ndarray or a Tensor, to its hooks, each of which may return another one to use instead."""
    if _recorder.get() is not None:
        raise HooksError("a gradient hook")
    was_array = isinstance(value, np.ndarray)
    for hook in list(hooks.values()):
        shown = wrap(np.array(value)) if isinstance(value, np.ndarray) else value  # theirs to write into
        result = hook(shown)
        if result is not None:
            if not isinstance(result, type(shown)) or result.shape != shown.shape:
                came = getattr(result, "shape", type(result).__name__)
                raise ValueError(f"a gradient hook must return None or a Tensor of shape {shown.shape}, got {came}")
            value = result._data if was_array else result
    return value
