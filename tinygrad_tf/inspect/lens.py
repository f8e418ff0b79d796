"""The logit lens: what the model would say if it stopped after each layer."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from .. import modes, nn
from ..graph import Array
from ..nn.module import Module
from ..tensor import Tensor
from .activations import After, Before, first, matching, watch
from .picture import COLOURS, Picture, grid, name_ticks


@dataclass
class LogitLens(Picture):
    """What `logit_lens` found; `str()` gives the means as a table, `plot` a picture of them.

    Attributes:
        layers: "input", what the first layer is given, and then each layer's name.
        entropy: of the distribution read off behind each layer, in nats, (layers, B, T).
        divergence: KL(the model's own distribution || the one behind each layer), in nats, (layers, B, T).
        top: the likeliest token, (layers, B, T).
        probability, rank: of the target, (layers, B, T); rank 1 is the likeliest. None without targets.
        counted: where there is a target, (B, T): the means are over these.
    """

    layers: list[str]
    entropy: Array
    divergence: Array
    top: Array
    probability: Array | None
    rank: Array | None
    counted: Array

    def means(self) -> dict[str, Array]:
        """The mean of each quantity over the places that count, layer by layer."""
        all_of = {
            "entropy": self.entropy,
            "divergence": self.divergence,
            "probability": self.probability,
            "rank": self.rank,
        }
        return {name: a[:, self.counted].mean(1) for name, a in all_of.items() if a is not None}

    def __str__(self) -> str:
        means = self.means()
        rows = [["behind", *means]]
        rows += [[layer, *(f"{m[i]:.3f}" for m in means.values())] for i, layer in enumerate(self.layers)]
        return grid(rows)

    def draw(self, figure: Any) -> None:
        """A panel for each quantity, from the input on the left to the last layer on the right."""
        means = self.means()
        titles = {
            "entropy": "entropy (nats)",
            "divergence": "distance from the end, KL (nats)",
            "probability": "probability of the target",
            "rank": "rank of the target",
        }
        panels = figure.subplots(1, len(means), squeeze=False)[0]
        for axes, colour, (name, values) in zip(panels, COLOURS, means.items(), strict=False):
            axes.plot(values, "o-", color=colour)
            axes.set_title(titles[name], fontsize=10)
            name_ticks(axes.xaxis, self.layers)
            axes.set_ylim(0, max(1.1 * float(values.max()), 1e-6))
            axes.grid(True, alpha=0.3)
        figure.supxlabel("behind which layer", fontsize=10)

    figure_size = (12.0, 4.0)


def logit_lens(
    model: Module,
    ids: Any,
    targets: Any = None,
    *,
    layers: str | Iterable[str] | None = None,
    norm: str | None = "norm",
    head: str = "lm_head",
) -> LogitLens:
    """softmax(head(norm(x_l))): the final norm and the head, applied to the stream x_l behind every layer l.

    Args:
        model: a language model, called as `model(ids)`; run in evaluation mode, without gradients.
        ids: what it is called with, (B, T).
        targets: the token looked for at each place, (B, T), −100 where none is; without them only what needs none is given.
        layers: the layers' names, `*` standing for anything (default: the model's `nn.TransformerBlock`s;
            `("blocks.*.attention", "blocks.*.feed_forward")` looks behind each half of a block).
        norm, head: the names of the model's final norm (None, or an attribute that is None: no norm) and head.

    Raises:
        ValueError: there is no such layer, none of them has run, or targets have another shape than ids.
        AttributeError: the model has no module of the norm's or the head's name.

    Source: nostalgebraist 2020, "interpreting GPT: the logit lens".

    >>> import tinygrad_tf as tg
    >>> from tinygrad_tf import models
    >>> gpt = models.GPT(models.GPTConfig(vocab_size=11, block_size=8, n_layer=2, n_head=2, n_embd=8))
    >>> lens = tg.inspect.logit_lens(gpt, [[1, 2, 3]], [[2, 3, 4]])
    >>> lens.layers, lens.rank.shape, float(lens.divergence[-1].max()) < 1e-6
    (['input', 'blocks.0', 'blocks.1'], (3, 1, 3), True)
    """
    if layers is None:
        chosen = matching("logit_lens", model, ["*"], nn.TransformerBlock)
    else:
        chosen = matching("logit_lens", model, [layers] if isinstance(layers, str) else layers)
    for name in (norm, head):
        if name is not None and not hasattr(model, name):
            raise AttributeError(
                f"logit_lens: {type(model).__name__} has no module {name!r}; say what its final norm and its head are "
                "called, norm=..., head=..."
            )
    final_norm, final_head = None if norm is None else getattr(model, norm), getattr(model, head)
    streams: dict[str, Array] = {}

    def before(module: Any, args: Any, kwargs: Any) -> None:
        streams.setdefault("input", np.array((args[0] if args else kwargs["x"])._data))

    def after(name: str) -> After:
        def note(module: Any, args: Any, kwargs: Any, output: Any) -> None:
            streams[name] = np.array(first(output)._data)

        return note

    hooks: list[tuple[Module, Before | None, After | None]] = [(m, before, after(n)) for n, m in chosen.items()]
    with nn.eval_mode(model), modes.no_grad():
        with watch(hooks):
            end = _log_softmax(model(ids)._data)
        if "input" not in streams:
            raise ValueError(f"logit_lens: none of {', '.join(chosen)} ran when {type(model).__name__} was called")
        wanted = None if targets is None else np.asarray(getattr(targets, "_data", targets))
        shape = end.shape[:-1]
        if wanted is not None and wanted.shape != shape:
            raise ValueError(f"logit_lens: targets must have the shape of ids, {shape}, got {wanted.shape}")
        counted = np.ones(shape, dtype=bool) if wanted is None else wanted != -100
        rows = []
        for x in streams.values():
            stream = Tensor(x)
            logs = _log_softmax(final_head(stream if final_norm is None else final_norm(stream))._data)
            rows.append(_read(logs, end, None if wanted is None else np.where(counted, wanted, 0)))
    entropy, divergence, top, probability, rank = (
        None if parts[0] is None else np.stack(parts) for parts in zip(*rows, strict=True)
    )
    assert entropy is not None and divergence is not None and top is not None
    return LogitLens(list(streams), entropy, divergence, top, probability, rank, counted)


def _log_softmax(logits: Array) -> Array:
    shifted = logits.astype(np.float64) - logits.max(-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))  # type: ignore[no-any-return]


def _read(logs: Array, end: Array, wanted: Array | None) -> tuple[Any, ...]:
    """Entropy, KL(end || this), likeliest token; and of the token wanted the probability and the rank."""
    entropy = -(np.exp(logs) * logs).sum(-1)
    divergence = (np.exp(end) * (end - logs)).sum(-1)
    if wanted is None:
        return entropy, divergence, logs.argmax(-1), None, None
    own = np.take_along_axis(logs, wanted[..., None], -1)
    return entropy, divergence, logs.argmax(-1), np.exp(own[..., 0]), 1 + (logs > own).sum(-1)
