"""Ablation: heads, neurons and whole sublayers switched off, and what is lost with each."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from .. import nn
from ..nn.attention import MultiHeadAttention
from ..nn.feed_forward import FeedForward
from ..nn.module import Module
from ..tensor import Tensor
from .activations import After, Before, first, matching, watch
from .picture import COLOURS, Picture, grid, name_ticks

Part = str | Iterable[int]


@contextlib.contextmanager
def ablate(model: Module, parts: Mapping[str, Part], to: str = "zero") -> Iterator[None]:
    """Inside, parts of a model give nothing, or always the same; afterwards, also after an exception, all is as it was.

    Args:
        model: any module; call it as you like inside the block.
        parts: module name, `*` standing for anything -> "all", or some of its parts: heads of an `nn.MultiHeadAttention`, neurons of
            an `nn.FeedForward`, features of another module's output. A `nn.Residual` stands for its branch, so that
            `{"blocks.0.attention": "all"}` takes the first block's attention away, `{"blocks.0.attention": [1]}` its head 1.
        to: what they give instead: "zero" (default), or "mean": their mean over the batch and positions of the call, so that only
            what they say of this input is lost.

    Gradients go through what is left. A head's part of out_proj's bias stays, as does a neuron's of W2's; of a whole sublayer
    nothing does.

    Raises:
        ValueError: a name fits no module, or `to` is another word. IndexError: a module has no such head, neuron or feature.
        TypeError: a Residual whose branch is a plain function.

    >>> import tinygrad_tf as tg
    >>> from tinygrad_tf import nn
    >>> block, x = nn.TransformerBlock(8, 2), tg.randn(1, 3, 8)
    >>> with tg.inspect.ablate(block, {"attention": "all", "feed_forward": "all"}):
    ...     bool((block(x) == x).all())
    True
    >>> bool((block(x) == x).all())
    False
    """
    if to not in ("zero", "mean"):
        raise ValueError(f"ablate: to must be 'zero' or 'mean', got {to!r}")
    hooks: list[tuple[Module, Before | None, After | None]] = []
    for pattern, part in parts.items():
        for name, module in matching("ablate", model, [pattern]).items():
            hooks.append(_hook(name, module, part, to))
    with watch(hooks):
        yield


def _hook(name: str, module: Any, part: Part, to: str) -> tuple[Module, Before | None, After | None]:
    """Where to take hold of a part, and what to do there."""
    if isinstance(module, nn.Residual):
        if not isinstance(module.f, Module):
            raise TypeError(f"ablate: the branch of {name!r} is a plain function, which has no hooks; make it a module")
        module = module.f
    if isinstance(part, str):
        if part != "all":
            raise ValueError(f"ablate: of {name!r}, expected 'all' or a list of numbers, got {part!r}")

        def whole(m: Any, args: Any, kwargs: Any, y: Any) -> Any:
            gone = _without(first(y), slice(None), to)
            return (gone, *y[1:]) if isinstance(y, tuple) else gone

        return module, None, whole
    indices = [int(i) for i in part]
    if isinstance(module, MultiHeadAttention):
        _check(name, "heads", indices, module.n_heads)
        columns = [h * module.d_v + i for h in indices for i in range(module.d_v)]  # of out_proj's input, (B, T, H·d_v)
        return module.out_proj, _inputs_without(columns, to), None
    if isinstance(module, FeedForward):
        _check(name, "neurons", indices, module.d_ff)
        return module.W2, _inputs_without(indices, to), None

    def features(m: Any, args: Any, kwargs: Any, y: Any) -> Any:
        _check(name, "features", indices, first(y).shape[-1])
        gone = _without(first(y), indices, to)
        return (gone, *y[1:]) if isinstance(y, tuple) else gone

    return module, None, features


def _check(name: str, what: str, indices: list[int], limit: int) -> None:
    wrong = [i for i in indices if not 0 <= i < limit]
    if wrong:
        raise IndexError(f"ablate: {name!r} has {what} 0 to {limit - 1}, got {wrong}")


def _inputs_without(columns: list[int], to: str) -> Before:
    def before(module: Any, args: Any, kwargs: Any) -> Any:
        return (_without(args[0], columns, to), *args[1:]), kwargs

    return before


def _without(x: Tensor, columns: Any, to: str) -> Tensor:
    """x with some of its last axis at zero, or at their mean over all other axes."""
    keep = np.ones(x.shape[-1], dtype=x.dtype)
    keep[columns] = 0
    kept = x * Tensor(keep)
    if to == "zero":
        return kept
    mean = x._data.reshape(-1, x.shape[-1]).mean(0).astype(x.dtype) * (1 - keep)
    return kept + Tensor(mean)


class Effects(dict[str, float], Picture):
    """What `ablation_effects` found: part -> the measure without it; `baseline` is the measure with all of them."""

    def __init__(self, baseline: float, measured: Mapping[str, float]):
        super().__init__(measured)
        self.baseline = baseline

    def __str__(self) -> str:
        rows = [["without", "measure", "change"], ["(nothing)", f"{self.baseline:.4f}", ""]]
        return grid(rows + [[name, f"{v:.4f}", f"{v - self.baseline:+.4f}"] for name, v in self.items()])

    def draw(self, figure: Any) -> None:
        """A bar for each part: by how much the measure changes without it."""
        axes = figure.add_subplot()
        changes = [v - self.baseline for v in self.values()]
        axes.barh(range(len(self)), changes, color=[COLOURS[0] if c >= 0 else COLOURS[1] for c in changes])
        axes.axvline(0, color="0.3", lw=0.8)
        name_ticks(axes.yaxis, list(self))
        axes.invert_yaxis()
        axes.set(xlabel=f"change of the measure without this part; with all it is {self.baseline:.3g}")


def ablation_effects(
    model: Module,
    measure: Callable[[], Any],
    parts: Mapping[str, Mapping[str, Part]] | None = None,
    to: str = "zero",
) -> Effects:
    """Take each part away in turn, and measure.

    Args:
        model: any module.
        measure: a function without arguments that runs the model and gives a number, such as a loss or a share.
        parts: label -> what `ablate` takes (default: every head, and every Residual's branch as a whole).
        to: as for `ablate` (default "zero").

    Raises:
        ValueError: there is nothing to take away.

    >>> import tinygrad_tf as tg
    >>> from tinygrad_tf import nn
    >>> block, x = nn.TransformerBlock(8, 2), tg.randn(1, 3, 8)
    >>> list(tg.inspect.ablation_effects(block, lambda: ((block(x) - x) ** 2).mean().item()))
    ['attention', 'attention.f head 0', 'attention.f head 1', 'feed_forward']
    """
    chosen: dict[str, Mapping[str, Part]] = {} if parts is None else dict(parts)
    if parts is None:
        for name, module in model.named_modules():
            if isinstance(module, nn.Residual) and isinstance(module.f, Module):
                chosen[name] = {name: "all"}
            elif isinstance(module, MultiHeadAttention):
                chosen |= {
                    f"{name} head {h}".strip(): {name or type(module).__name__: [h]} for h in range(module.n_heads)
                }
    if not chosen:
        raise ValueError(f"ablation_effects: {type(model).__name__} has no Residual and no heads; say which parts")

    def number() -> float:
        value = measure()
        return float(value.item() if isinstance(value, Tensor) else value)

    measured = {}
    baseline = number()
    for label, part in chosen.items():
        with ablate(model, part, to):
            measured[label] = number()
    return Effects(baseline, measured)
