"""Embedding: a row of a table for each id."""

from __future__ import annotations

from typing import Any

import tinygrad_tf as tg

from . import functional as F
from . import init
from .module import Module, Parameter


class Embedding(Module):
    """y[...] = weight[ids[...]].

    Args:
        num_embeddings: how many ids there are.
        embedding_dim: the length of a row.
        padding_idx: an id whose row begins as 0 and receives no gradient (default None).

    Shapes: ids (...) of int64 -> (..., embedding_dim); weight (num_embeddings, embedding_dim), begins as N(0, 1).

    Raises:
        IndexError: an id is negative or not below num_embeddings; the message names it and the limit.

    >>> import tinygrad_tf as tg
    >>> from tinygrad_tf import nn
    >>> nn.Embedding(10, 4)(tg.tensor([[1, 2, 3]])).shape
    (1, 3, 4)
    """

    def __init__(self, num_embeddings: int, embedding_dim: int, padding_idx: int | None = None):
        super().__init__()
        if num_embeddings < 1 or embedding_dim < 1:
            raise ValueError(f"Embedding({num_embeddings}, {embedding_dim}): both sizes must be at least 1")
        if padding_idx is not None:
            if not -num_embeddings <= padding_idx < num_embeddings:
                raise ValueError(
                    f"Embedding({num_embeddings}, {embedding_dim}): padding_idx {padding_idx} "
                    f"is not an id below {num_embeddings}"
                )
            padding_idx %= num_embeddings
        self.num_embeddings, self.embedding_dim, self.padding_idx = num_embeddings, embedding_dim, padding_idx
        self.weight = Parameter(tg.empty(num_embeddings, embedding_dim))
        init.normal_(self.weight)
        if padding_idx is not None:
            self.weight._data[padding_idx] = 0.0

    def extra_repr(self) -> str:
        padding = "" if self.padding_idx is None else f", padding_idx={self.padding_idx}"
        return f"{self.num_embeddings}, {self.embedding_dim}{padding}"

    def forward(self, ids: Any) -> tg.Tensor:
        return F.embedding(ids, self.weight, self.padding_idx)
