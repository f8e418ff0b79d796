"""Hooks on named modules, and what they record: the one mechanism behind everything that looks into a running model."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from typing import Any

import numpy as np

from ..graph import Array
from ..nn.module import Module
from .picture import Picture, name_ticks

Before = Callable[[Any, Any, Any], Any]  # (module, args, kwargs) -> (args, kwargs) to use instead, or None
After = Callable[[Any, Any, Any, Any], Any]  # (module, args, kwargs, output) -> the output to use instead, or None


@contextlib.contextmanager
def watch(hooks: Iterable[tuple[Module, Before | None, After | None]]) -> Iterator[None]:
    """Inside, each module calls its `before` ahead of its forward and its `after` behind it; afterwards none is left.

    >>> import tinygrad_tf as tg
    >>> from tinygrad_tf import nn
    >>> from tinygrad_tf.inspect.activations import watch
    >>> layer = nn.ReLU()
    >>> with watch([(layer, None, lambda module, args, kwargs, y: -y)]):
    ...     inside = layer(tg.ones(1)).item()
    >>> inside, layer(tg.ones(1)).item()
    (-1.0, 1.0)
    """
    handles = []
    try:
        for module, before, after in hooks:
            if before is not None:
                handles.append(module.register_forward_pre_hook(before, with_kwargs=True))
            if after is not None:
                handles.append(module.register_forward_hook(after, with_kwargs=True))
        yield
    finally:
        for handle in handles:
            handle.remove()


def matching(what: str, model: Module, patterns: Iterable[str], kind: Any = Module) -> dict[str, Any]:
    """The modules below a model, of a kind, whose name is one of the patterns (`blocks.*.attention`), in the model's order.

    Raises ValueError, in the name of `what`, for a pattern that fits none.
    """
    named = {name or type(m).__name__: m for name, m in model.named_modules() if isinstance(m, kind)}
    patterns = list(patterns)
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in named):
            word = "module" if kind is Module else getattr(kind, "__name__", "module")
            some = ", ".join(list(named)[:12]) + (", ..." if len(named) > 12 else "")
            raise ValueError(
                f"{what}: no {word} of {type(model).__name__} is called {pattern!r}; it has {some or 'none'}"
            )
    return {name: m for name, m in named.items() if any(fnmatchcase(name, p) for p in patterns)}


def first(value: Any) -> Any:
    """A module's result: of several, the first."""
    return value[0] if isinstance(value, tuple) else value


class Recorded(Picture, Mapping[str, Array]):
    """Arrays by module name, filled while the model runs; of a module that ran several times, the last.

    Raises:
        KeyError: the module was not recorded, or has not run; the message says which have.
    """

    def __init__(self, names: Iterable[str] = ()):
        self._order, self._arrays = list(names), dict[str, Array]()

    def put(self, name: str, value: Any) -> None:
        """Keep a copy of a Tensor's or an array's values."""
        self._arrays[name] = np.array(getattr(value, "_data", value))

    def __getitem__(self, name: str) -> Array:
        if name not in self._arrays:
            why = "has not run yet" if name in self._order else "was not asked for"
            raise KeyError(f"{name!r} {why}; recorded: {', '.join(self) or 'nothing'}")
        return self._arrays[name]

    def __contains__(self, name: object) -> bool:
        return name in self._arrays

    def __iter__(self) -> Iterator[str]:
        return (n for n in self._order if n in self._arrays)

    def __len__(self) -> int:
        return len(self._arrays)

    def __repr__(self) -> str:
        return "\n".join(f"{name}  {a.shape}" for name, a in self.items()) or "nothing recorded"


class Activations(Recorded):
    """What `record` found: module name -> its output, or input, as an array. `plot` shows how large they are."""

    def draw(self, figure: Any) -> None:
        """The root mean square of each module's activations, position by position, averaged over the batch."""
        shown = {n: a for n, a in self.items() if a.ndim >= 2 and a.dtype.kind == "f"}
        if not shown:
            raise ValueError(
                "Activations.draw: expected recorded activations of shape (..., positions, width), got none"
            )
        length = max(a.shape[-2] for a in shown.values())
        table = np.full((len(shown), length), np.nan)
        for row, a in zip(table, shown.values(), strict=True):
            rms = np.sqrt(np.mean(np.square(a, dtype=np.float64), -1))
            row[: a.shape[-2]] = rms.reshape(-1, a.shape[-2]).mean(0)
        axes = figure.add_subplot()
        image = axes.imshow(table, cmap="viridis", aspect="auto", norm="log")
        name_ticks(axes.yaxis, list(shown))
        axes.set_xlabel("position")
        figure.colorbar(image, ax=axes, label="root mean square of the activations")


@contextlib.contextmanager
def record(model: Module, *names: str, inputs: bool = False) -> Iterator[Activations]:
    """Inside, what the named modules of a model give (or are given) is recorded: a mapping from name to array.

    Args:
        model: any module; call it as you like inside the block.
        names: names as in `model.named_modules()`, `*` standing for anything (default: all modules below the model).
        inputs: record the first argument instead of the output (default False). The input of a feed-forward network's W2 are its
            neurons; that of an attention's out_proj are its heads, side by side.

    The arrays are copies, (B, T, width) for a block; of a module that runs several times the last run counts. The model's mode
    is left as it is: use `nn.eval_mode(model)` where there is dropout.

    Raises:
        ValueError: a name fits no module.

    >>> import tinygrad_tf as tg
    >>> from tinygrad_tf import nn
    >>> block = nn.TransformerBlock(8, 2)
    >>> with tg.inspect.record(block, "attention", "feed_forward.f.*") as seen:
    ...     y = block(tg.ones(1, 3, 8))
    >>> print(seen)
    attention  (1, 3, 8)
    feed_forward.f.W1  (1, 3, 32)
    feed_forward.f.W2  (1, 3, 8)
    """
    chosen = matching("record", model, names or ["*"])
    found = Activations(chosen)

    def before(name: str) -> Before:
        def note(module: Any, args: Any, kwargs: Any) -> None:
            found.put(name, args[0] if args else next(iter(kwargs.values())))

        return note

    def after(name: str) -> After:
        def note(module: Any, args: Any, kwargs: Any, output: Any) -> None:
            found.put(name, first(output))

        return note

    with watch((m, before(n) if inputs else None, None if inputs else after(n)) for n, m in chosen.items()):
        yield found
