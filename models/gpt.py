"""GPT: a decoder-only Transformer language model, with a switch for each choice that its descendants made."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

import tinygrad_tf as tg

from .. import nn
from ..modes import check
from ..nn import functional as F
from ..nn.normalization import make_norm
from .config import GPTConfig
from .generation import Ids, as_ids, generate, generate_stream


def _check_room(cache: nn.KVCache | None, n: int, limit: int) -> None:
    if (total := n + (0 if cache is None else int(cache.offset))) > limit:
        raise ValueError(f"GPT: {total} tokens are more than block_size {limit}; give the last {limit}")


class GPT(nn.Module):
    """logits = norm(block_L(... block_1(E[ids] + P) ...)) Wᵀ, W tied to E by default; final norm for pre-norm only.

    Weights begin as N(0, 0.02²), those that write into the stream as N(0, 0.02² / 2L), biases as 0. With sinusoidal
    positions the embedding is multiplied by √n_embd, as in Vaswani et al. 2017, section 3.4.

    Args:
        config: a GPTConfig.

    Called as `model(ids, cache=None)`: ids (B, T) -> logits (B, T, vocab_size). With a cache (`model.new_cache()`), ids
    are the tokens after those in it; nothing is recorded for gradients then.

    Raises:
        IndexError: an id that is not in the vocabulary; the message names it and the limit.
        ValueError: more tokens than block_size.

    Source: Radford et al. 2019, GPT-2.

    >>> import tinygrad_tf as tg
    >>> from tinygrad_tf import models
    >>> gpt = models.GPT(models.GPTConfig(vocab_size=11, block_size=8, n_layer=2, n_head=2, n_embd=8))
    >>> gpt(tg.tensor([[1, 2, 3]])).shape
    (1, 3, 11)
    >>> gpt.loss([[1, 2, 3]], [[2, 3, 4]]).shape
    ()
    """

    captures = True  # generation may capture `next_logits`, which does nothing but compute, and add to the cache

    def __init__(self, config: GPTConfig):
        super().__init__()
        if not isinstance(config, GPTConfig):
            raise TypeError(f"GPT: config must be a GPTConfig, got {type(config).__name__}")
        self.config = config
        self.token_embedding = nn.Embedding(config.vocab_size, config.n_embd)
        self.position: nn.Module | None = None
        if config.position == "learned":
            self.position = nn.LearnedPosition(config.block_size, config.n_embd)
        elif config.position == "sinusoidal":
            self.position = nn.SinusoidalPosition(config.block_size, config.n_embd)
        self.dropout = nn.Dropout(config.dropout)
        in_heads: nn.Rotary | nn.ALiBi | None = None  # one for all blocks
        if config.position == "rotary":
            in_heads = nn.Rotary(config.n_embd // config.n_head)
        elif config.position == "alibi":
            in_heads = nn.ALiBi(config.n_head)
        self.blocks = nn.ModuleList(
            nn.TransformerBlock(
                config.n_embd,
                config.n_head,
                n_kv_heads=config.n_kv_head,
                d_ff=config.d_ff,
                activation=config.activation,
                norm=config.norm,
                placement=config.placement,
                dropout=config.dropout,
                bias=config.bias,
                causal=True,
                position=in_heads,
            )
            for _ in range(config.n_layer)
        )
        pre = config.placement == "pre"
        self.norm: nn.Module | None = make_norm(config.norm, config.n_embd, config.bias) if pre else None
        self.lm_head = nn.Linear(config.n_embd, config.vocab_size, bias=False)
        if config.tie_weights:
            self.lm_head.weight = self.token_embedding.weight
        self._initialize()

    def _initialize(self) -> None:
        smaller = 0.02 / math.sqrt(2 * self.config.n_layer)
        residual = {id(p) for b in self.blocks for p in (b.attention.f.out_proj.weight, b.feed_forward.f.W2.weight)}
        for name, parameter in self.named_parameters():
            if len(parameter.shape) == 2:
                nn.init.normal_(parameter, std=smaller if id(parameter) in residual else 0.02)
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)

    def extra_repr(self) -> str:
        c = self.config
        return f"vocab {c.vocab_size}, block {c.block_size}, {c.n_layer} layers, {c.n_head} heads, width {c.n_embd}"

    @property
    def block_size(self) -> int:
        """How many tokens the model reads at once, at most."""
        return self.config.block_size

    @property
    def vocab_size(self) -> int:
        """How many token ids there are."""
        return self.config.vocab_size

    def hidden(self, ids: Any, cache: nn.KVCache | None = None) -> tg.Tensor:
        """The stream after the last block (and the final norm), (B, T, n_embd): what the head reads."""
        array = as_ids(ids, self.config.vocab_size, "GPT")
        offset = 0 if cache is None else cache.offset  # once, before any layer adds to the cache
        if array.ndim != 2 or array.shape[1] == 0:
            raise ValueError(f"GPT: ids must be (B, T) with T at least 1, got shape {array.shape}")
        check(_check_room, cache, array.shape[1], self.block_size)
        if cache is None:
            return self._stream(array, 0, None)
        if len(cache) != self.config.n_layer:
            raise ValueError(f"GPT: the cache is for {len(cache)} layers, the model has {self.config.n_layer}")
        try:
            with tg.no_grad():
                return self._stream(array, offset, cache)
        except BaseException:
            cache.truncate(offset)  # so that no layer is ahead of another
            raise

    def _stream(self, ids: Ids, offset: int, cache: nn.KVCache | None) -> tg.Tensor:
        x = self.token_embedding(tg.Tensor(ids))  # (B, T, n_embd)
        if self.config.position == "sinusoidal":
            x = x * math.sqrt(self.config.n_embd)
        if self.position is not None:
            x = x + self.position(x, offset)
        x = self.dropout(x)
        for i, block in enumerate(self.blocks):
            x = block(x, cache=None if cache is None else cache[i])
        return x if self.norm is None else self.norm(x)  # type: ignore[no-any-return]

    def forward(self, ids: Any, cache: nn.KVCache | None = None) -> tg.Tensor:
        x = self.hidden(ids, cache)
        if cache is None:
            return self.lm_head(x)  # type: ignore[no-any-return]
        with tg.no_grad():
            return self.lm_head(x)  # type: ignore[no-any-return]

    def loss(self, ids: Any, targets: Any) -> tg.Tensor:
        """The mean cross-entropy of the next tokens, in nats per token.

        Args:
            ids: (B, T); targets: (B, T), the token that follows each; −100 where none is asked for.
        """
        wanted = targets._data if isinstance(targets, tg.Tensor) else np.asarray(targets)
        logits = self(ids)  # (B, T, V)
        if wanted.shape != logits.shape[:2]:
            raise ValueError(f"GPT.loss: targets must have the shape of ids, {logits.shape[:2]}, got {wanted.shape}")
        return F.cross_entropy(  # type: ignore[no-any-return]
            logits.reshape(-1, self.config.vocab_size), tg.Tensor(np.ascontiguousarray(wanted).reshape(-1))
        )

    def next_logits(self, ids: Any, cache: nn.KVCache | None = None) -> tg.Tensor:
        """Logits (B, vocab_size) of the token after the last of ids."""
        return self.lm_head(self.hidden(ids, cache)[:, -1])  # type: ignore[no-any-return]

    def new_cache(self) -> nn.KVCache:
        """An empty cache of keys and values, for block_size tokens."""
        return nn.KVCache(self.config.block_size, self.config.n_layer)

    generate = generate  # model.generate(ids, ...), model.generate_stream(ids, ...)
    generate_stream = generate_stream

    def param_groups(self, weight_decay: float) -> list[dict[str, Any]]:
        """Two groups for AdamW: 2-D weights, which decay, and all others, which do not; tied weights once."""
        if not weight_decay >= 0.0:
            raise ValueError(f"param_groups: weight_decay must be at least 0, got {weight_decay}")
        decay = [p for p in self.parameters() if len(p.shape) >= 2]
        other = [p for p in self.parameters() if len(p.shape) < 2]
        groups = [{"params": decay, "weight_decay": float(weight_decay)}, {"params": other, "weight_decay": 0.0}]
        return [group for group in groups if group["params"]]

    def summary(self) -> str:
        """The config, the tree of modules with shapes and counts, and the total, as text."""
        fields = ", ".join(f"{name}={value!r}" for name, value in self.config.to_dict().items())
        size = sum(p._data.nbytes for p in self.parameters())
        total = f"{self.num_parameters():,} parameters, {size / 2**20:.2f} MiB"
        return f"{fields}\n\n{self!r}\n\n{total}"
