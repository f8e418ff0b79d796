"""Looking rows up in a table, and adding gradients back into them."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np

from .. import kernels
from ..modes import check, converted
from .elementwise import constant, where
from .indexing import getitem
from .primitive import fused


def _backward(g: Any, needs: Any, ids: Any, weight_shape: Any, padding_idx: int | None) -> Any:
    rows, width = weight_shape
    dweight = kernels.embedding.scatter_add_rows(g.reshape(-1, width), ids.reshape(-1), rows)
    if padding_idx is not None:
        kernels.host.write(operator.setitem, dweight, padding_idx, 0)
    return [dweight]


@fused(
    "weight",
    forward=lambda ids, weight, padding_idx: (kernels.embedding.gather_rows(weight, ids), ()),
    backward=_backward,
)
def _embedding(ids: Any, weight: Any, padding_idx: int | None = None) -> Any:
    rows = getitem(weight, ids)
    if padding_idx is None:
        return rows
    padding = (ids == padding_idx).reshape((*ids.shape, 1))
    return where(padding, constant(rows), rows)


_embedding.name = "embedding"


def all_below(ids: Any, limit: int) -> bool:
    """Whether every integer of this array is from 0 to limit - 1."""
    if ids.size > 64:
        return bool(ids.min() >= 0 and ids.max() < limit)
    few = ids.ravel().tolist()  # quicker than two reductions
    return not few or (min(few) >= 0 and max(few) < limit)


def embedding(ids: Any, weight: Any, padding_idx: int | None = None) -> Any:
    """weight[ids]: ids of any shape, weight (V, D) -> (*ids.shape, D). The row `padding_idx` gets no gradient.

    Raises IndexError for an id outside 0 .. V-1, and TypeError for ids that are not integers.
    """
    if weight.ndim != 2:
        raise ValueError(f"embedding: weight must have shape (rows, width), got {weight.shape}")
    array = np.asarray(getattr(ids, "_data", ids))
    if array.dtype.kind not in "iu":
        raise TypeError(f"embedding: ids must be integers, got dtype {array.dtype}")
    rows = weight.shape[0]
    check(_check_ids, array, rows)
    if padding_idx is not None:
        if not -rows <= padding_idx < rows:
            raise IndexError(f"embedding: padding_idx must be from {-rows} to {rows - 1}, got {padding_idx}")
        padding_idx %= rows
    return _embedding(converted(array, np.int64), weight, padding_idx)


def _check_ids(ids: Any, rows: int) -> None:
    if not all_below(ids, rows):
        bad = ids.min() if ids.min() < 0 else ids.max()
        raise IndexError(f"embedding: an id must be from 0 to {rows - 1}, got {bad}")
