"""The sizes and choices that make a GPT."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from .. import nn

_CHOICES: dict[str, tuple[str | None, ...]] = {
    "activation": (*nn.ACTIVATIONS, *nn.GATED),
    "norm": ("layer", "rms"),
    "placement": ("pre", "post"),
    "position": ("learned", "sinusoidal", "rotary", "alibi", None),
}


@dataclasses.dataclass(frozen=True)
class GPTConfig:
    """The sizes and choices that make a GPT.

    Args:
        vocab_size: how many token ids there are.
        block_size: how many tokens are read at once, at most.
        n_layer: how many blocks.
        n_head: how many query heads; divides n_embd.
        n_embd: the width of the stream.
        n_kv_head: how many key and value heads; divides n_head (default: n_head).
        d_ff: the width inside the feed-forward networks (default: see FeedForward).
        dropout: of the embedding, the attention weights and the branches (default 0).
        bias: whether linear maps and layer norms have one (default True); the head has none.
        activation: see FeedForward (default "gelu").
        norm: "layer" (default) or "rms".
        placement: of the norms, "pre" (default) or "post".
        position: "learned" (default), "sinusoidal", "rotary", "alibi" or None.
        tie_weights: whether the head shares the token embedding's weight (default True).

    Raises:
        ValueError: a value that makes no model, with the field's name.
        TypeError: a value of another kind.

    >>> from tinygrad_tf import models
    >>> models.GPTConfig(65, 64, 4, 4, 128) == models.GPTConfig.from_dict(models.GPTConfig(65, 64, 4, 4, 128).to_dict())
    True
    """

    vocab_size: int
    block_size: int
    n_layer: int
    n_head: int
    n_embd: int
    n_kv_head: int | None = None
    d_ff: int | None = None
    dropout: float = 0.0
    bias: bool = True
    activation: str = "gelu"
    norm: str = "layer"
    placement: str = "pre"
    position: str | None = "learned"
    tie_weights: bool = True

    def __post_init__(self) -> None:
        sizes = ("vocab_size", "block_size", "n_layer", "n_head", "n_embd", "n_kv_head", "d_ff")
        for name in sizes:
            value = getattr(self, name)
            if value is None and name in ("n_kv_head", "d_ff"):
                continue
            if isinstance(value, (bool, np.bool_)) or not isinstance(value, (int, np.integer)):
                raise TypeError(f"GPTConfig: {name} must be an integer, got {value!r}")
            if value < 1:
                raise ValueError(f"GPTConfig: {name} must be at least 1, got {value}")
            object.__setattr__(self, name, int(value))
        for name in ("bias", "tie_weights"):
            if not isinstance(getattr(self, name), (bool, np.bool_)):
                raise TypeError(f"GPTConfig: {name} must be True or False, got {getattr(self, name)!r}")
            object.__setattr__(self, name, bool(getattr(self, name)))
        if isinstance(self.dropout, bool) or not isinstance(self.dropout, (int, float, np.floating)):
            raise TypeError(f"GPTConfig: dropout must be a number, got {self.dropout!r}")
        if not 0.0 <= self.dropout <= 1.0:
            raise ValueError(f"GPTConfig: dropout must be in [0, 1], got {self.dropout}")
        object.__setattr__(self, "dropout", float(self.dropout))
        for name, known in _CHOICES.items():
            if getattr(self, name) not in known:
                raise ValueError(
                    f"GPTConfig: {name} must be one of {', '.join(map(repr, known))}, got {getattr(self, name)!r}"
                )
        if self.n_embd % self.n_head:
            raise ValueError(f"GPTConfig: n_head must divide n_embd, got n_head {self.n_head} and n_embd {self.n_embd}")
        if self.n_kv_head is not None and self.n_head % self.n_kv_head:
            raise ValueError(
                f"GPTConfig: n_kv_head must divide n_head, got n_kv_head {self.n_kv_head} and n_head {self.n_head}"
            )
        if self.position == "rotary" and (self.n_embd // self.n_head) % 2:
            raise ValueError(
                "GPTConfig: rotary positions need heads of even width, "
                f"got n_embd / n_head = {self.n_embd // self.n_head}"
            )

    def to_dict(self) -> dict[str, Any]:
        """The fields by name: JSON can hold them."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> GPTConfig:
        """The config with these fields.

        Raises:
            ValueError: an unknown field, or a missing one.
        """
        known = {f.name: f for f in dataclasses.fields(cls)}
        unknown = sorted(set(fields) - set(known))
        missing = [n for n, f in known.items() if f.default is dataclasses.MISSING and n not in fields]
        if unknown or missing:
            raise ValueError(f"GPTConfig: unknown fields {unknown}, missing fields {missing}")
        return cls(**fields)
