"""A neuron of a feed-forward network: its key, its value, what excites it, and what it pushes in the vocabulary."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .. import nn
from ..graph import Array
from ..nn.feed_forward import FeedForward
from .picture import COLOURS, Picture, grid, name_ticks


@dataclass
class Neuron(Picture):
    """What `neuron` found; `str()` gives it as text, `plot` as a picture.

    Attributes:
        key: its row of W1, (d_model,): it is excited by what points this way.
        value: its column of W2, (d_model,): what it adds to the stream, times its activation.
        gate: its row of V, for a gated network.
        top: the places that excite it most, [(place, activation)], the strongest first; a place is an index into the
            activations' leading axes.
        pushes: what its value adds to the logits, (V,), at activation 1; None without a head.
    """

    index: int
    key: Array
    value: Array
    gate: Array | None = None
    top: list[tuple[tuple[int, ...], float]] = field(default_factory=list)
    pushes: Array | None = None
    k: int = 10

    figure_size = (10.0, 4.0)

    def pushed(self, tokens: Sequence[str] | None = None) -> list[tuple[str, float]]:
        """The tokens whose logits it raises most and lowers most, the most raised one first."""
        if self.pushes is None:
            return []
        order = np.argsort(-self.pushes, kind="stable")
        chosen = order if len(order) <= 2 * self.k else np.r_[order[: self.k], order[-self.k :]]
        return [(str(i) if tokens is None else tokens[i], float(self.pushes[i])) for i in chosen]

    def __str__(self) -> str:
        lines = [f"neuron {self.index}: |key| {np.linalg.norm(self.key):.3f}, |value| {np.linalg.norm(self.value):.3f}"]
        if self.top:
            lines += ["excited most at", grid([[str(place), f"{a:.3f}"] for place, a in self.top])]
        if self.pushes is not None:
            lines += ["pushes the logits of", grid([[name, f"{p:+.3f}"] for name, p in self.pushed()])]
        return "\n".join(lines)

    def draw(
        self, figure: Any, tokens: Sequence[str] | None = None, places: dict[tuple[int, ...], str] | None = None
    ) -> None:
        """Bars: the places that excite it most, and the tokens that its value pushes.

        Args:
            figure: a matplotlib Figure or SubFigure.
            tokens: the vocabulary's names (default: the ids); places: names of places (default: their indices).
        """
        parts: list[tuple[str, str, list[tuple[str, float]]]] = []
        if self.top:
            named = [((places or {}).get(p, str(p)), a) for p, a in self.top]
            parts.append(("excited most at", "activation", named))
        if self.pushes is not None:
            parts.append(("its value pushes", "added to the logit", self.pushed(tokens)))
        if not parts:
            parts.append(("its key", "weight", [(str(i), float(w)) for i, w in enumerate(self.key)]))
        panels = figure.subplots(1, len(parts), squeeze=False)[0]
        for axes, (title, label, bars) in zip(panels, parts, strict=True):
            heights = [height for _, height in bars]
            axes.barh(range(len(bars)), heights, color=[COLOURS[0] if b >= 0 else COLOURS[1] for b in heights])
            axes.axvline(0, color="0.3", lw=0.8)
            name_ticks(axes.yaxis, [name for name, _ in bars])
            axes.invert_yaxis()
            axes.set_title(title, fontsize=11)
            axes.set_xlabel(label)


def neuron(
    ffn: FeedForward, index: int, *, activations: Any = None, head: Any = None, norm: Any = None, k: int = 10
) -> Neuron:
    """A neuron's key (row of W1.weight), value (column of W2.weight), what excites it and what it pushes.

    y = Σ_i act(key_i · x + b_i) value_i + b: to the logits, neuron i adds its activation times pushes = head(norm'(value_i)), with
    norm' the final norm's linear part (mean taken away, gain; not the division by the standard deviation).

    Args:
        ffn: the feed-forward network, such as `gpt.blocks[0].feed_forward.f`.
        index: which of its d_ff neurons.
        activations: the neurons' activations, (..., d_ff): `record(model, "...W2", inputs=True)` gives them (default None).
        head: the module or the weight (V, d_model) that turns the stream into logits (default None).
        norm: the final norm, an `nn.LayerNorm` or `nn.RMSNorm` (default None).
        k: how many places and tokens to list, at each end (default 10).

    Raises:
        TypeError: ffn is not an `nn.FeedForward`. IndexError: it has no such neuron.
        ValueError: activations, or the head's weight, are not as wide as they must be.

    Source: Geva et al. 2021, "Transformer feed-forward layers are key-value memories".

    >>> import tinygrad_tf as tg
    >>> from tinygrad_tf import nn
    >>> ffn, x = nn.FeedForward(8), tg.randn(2, 3, 8)
    >>> with tg.inspect.record(ffn, "W2", inputs=True) as seen:
    ...     y = ffn(x)
    >>> found = tg.inspect.neuron(ffn, 5, activations=seen["W2"], head=nn.Linear(8, 11))
    >>> found.key.shape, found.value.shape, found.pushes.shape, len(found.top)
    ((8,), (8,), (11,), 6)
    """
    if not isinstance(ffn, FeedForward):
        raise TypeError(f"neuron: expected an nn.FeedForward, such as block.feed_forward.f, got {type(ffn).__name__}")
    if not 0 <= index < ffn.d_ff:
        raise IndexError(f"neuron: {ffn!r:.40} has neurons 0 to {ffn.d_ff - 1}, got {index}")
    found = Neuron(index, ffn.W1.weight._data[index].copy(), ffn.W2.weight._data[:, index].copy(), k=k)
    if ffn.V is not None:
        found.gate = ffn.V.weight._data[index].copy()
    if activations is not None:
        a = np.asarray(getattr(activations, "_data", activations))
        if a.shape[-1:] != (ffn.d_ff,):
            raise ValueError(f"neuron: activations must be (..., {ffn.d_ff}), the input of W2, got shape {a.shape}")
        a = a[..., index]
        for flat in np.argsort(-a, axis=None, kind="stable")[:k]:
            place = tuple(int(i) for i in np.unravel_index(flat, a.shape))
            found.top.append((place, float(a[place])))
    if head is not None:
        weight = getattr(head, "weight", head)
        weight = np.asarray(getattr(weight, "_data", weight))
        if weight.ndim != 2 or weight.shape[1] != ffn.d_model:
            raise ValueError(f"neuron: the head's weight must be (V, {ffn.d_model}), got shape {weight.shape}")
        found.pushes = weight @ _through(norm, found.value)
    return found


def _through(norm: Any, value: Array) -> Array:
    """The linear part of a norm."""
    if norm is None:
        return value
    if not isinstance(norm, (nn.LayerNorm, nn.RMSNorm)):
        raise TypeError(f"neuron: norm must be an nn.LayerNorm or nn.RMSNorm, got {type(norm).__name__}")
    centred = value - value.mean() if isinstance(norm, nn.LayerNorm) else value
    return centred if norm.weight is None else centred * norm.weight._data
