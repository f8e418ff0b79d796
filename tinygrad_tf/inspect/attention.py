"""Attention maps: who looks at whom, in every layer and head."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from ..graph import Array
from ..nn.attention import MultiHeadAttention
from ..nn.module import Module
from .activations import Recorded, matching, watch
from .picture import name_ticks


class AttentionMaps(Recorded):
    """What `attention_maps` found: layer name -> weights (B, H, Tq, Tk); a row sums to 1, or is 0 if it may see nothing."""

    figure_size = (11.0, 6.0)

    def weight(self, layer: str, queries: Any, keys: Any) -> Array:
        """How much each example's query at one place looks at one place, head by head.

        Args:
            layer: the layer's name.
            queries, keys: a place each, one for all examples or one for each, (B,).

        Gives (B, H).
        """
        maps = self[layer]
        rows = np.arange(len(maps))
        return maps[rows, :, np.broadcast_to(queries, rows.shape), np.broadcast_to(keys, rows.shape)]

    def draw(self, figure: Any, example: int = 0, tokens: Sequence[str] | None = None) -> None:
        """A panel for each layer and head: queries from top to bottom, keys from left to right.

        Args:
            figure: a matplotlib Figure or SubFigure.
            example: which of the batch (default 0).
            tokens: names of the places (default: their numbers).
        """
        if not self:
            raise ValueError(
                "AttentionMaps.draw: expected at least one layer, got none; run the model inside the block"
            )
        heads = max(m.shape[1] for m in self.values())
        if len(self) == 1:
            columns = min(heads, 4)
            panels = figure.subplots(math.ceil(heads / columns), columns, squeeze=False).reshape(1, -1)
        else:
            panels = figure.subplots(len(self), heads, squeeze=False)
        image = None
        for row, (name, maps) in zip(panels, self.items(), strict=True):
            for h, axes in enumerate(row):
                if h >= maps.shape[1]:
                    axes.set_axis_off()
                    continue
                image = axes.imshow(maps[example, h], cmap="Blues", vmin=0, vmax=1)
                axes.set_title(f"{name}, head {h}" if h == 0 else f"head {h}", fontsize=9, loc="left")
                if tokens is not None:
                    name_ticks(axes.xaxis, tokens[: maps.shape[3]])
                    name_ticks(axes.yaxis, tokens[: maps.shape[2]])
        for axes in panels[-1]:
            axes.set_xlabel("key")
        for axes in panels[:, 0]:
            axes.set_ylabel("query")
        figure.colorbar(image, ax=panels, label="attention weight", shrink=0.8)


@contextlib.contextmanager
def attention_maps(model: Module, *names: str) -> Iterator[AttentionMaps]:
    """Inside, the weights softmax(q kᵀ / √d_k + mask) of a model's attention layers are recorded, layer by layer.

    They are those of the definition that each layer uses: with its causal mask, the mask it is given, grouped heads, rotary
    or ALiBi positions, its cache; before dropout.

    Args:
        model: any module with `nn.MultiHeadAttention`s in it, or one itself; call it as you like inside the block.
        names: names of such layers, `*` standing for anything (default: all of them).

    Raises:
        ValueError: there is no such layer.

    >>> import tinygrad_tf as tg
    >>> from tinygrad_tf import models
    >>> gpt = models.GPT(models.GPTConfig(vocab_size=11, block_size=8, n_layer=2, n_head=2, n_embd=8))
    >>> with tg.inspect.attention_maps(gpt) as maps:
    ...     logits = gpt([[1, 2, 3]])
    >>> print(maps)
    blocks.0.attention.f  (1, 2, 3, 3)
    blocks.1.attention.f  (1, 2, 3, 3)
    """
    chosen = matching("attention_maps", model, names or ["*"], MultiHeadAttention)
    found = AttentionMaps(chosen)
    names_of = {id(m): n for n, m in chosen.items()}
    asked: list[bool] = []  # whether the caller wants the weights, too

    def before(module: Any, args: Any, kwargs: Any) -> Any:
        asked.append(kwargs.get("need_weights", False))
        return args, {**kwargs, "need_weights": True}

    def after(module: Any, args: Any, kwargs: Any, output: Any) -> Any:
        y, weights = output
        found.put(names_of[id(module)], weights)
        return output if asked.pop() else y

    with watch((m, before, after) for m in chosen.values()):
        yield found
