"""Dropout. The mask is a function of the seed, the number of the call and the element: computed again, never stored."""

from __future__ import annotations

from typing import Any

import numpy as np

from .. import kernels, rng
from .primitive import fused


@fused(
    "x",
    forward=lambda x, p, draw: (kernels.random.dropout(x, p, draw), ()),
    backward=lambda g, needs, p, draw: [kernels.random.dropout(g, p, draw)],
)
def _dropout(x: Any, p: float, draw: Any) -> Any:
    return x * kernels.random.dropout_mask(x.shape, p, draw, x.dtype)


_dropout.name = "dropout"


def dropout(x: Any, p: float = 0.5, training: bool = True) -> Any:
    """Each element is kept with probability 1 - p and divided by 1 - p, else 0; without `training`, x itself.

    Source: Srivastava et al. 2014, Dropout, section 10 (inverted scaling).
    """
    if isinstance(p, (bool, np.bool_)) or not 0.0 <= p <= 1.0:
        raise ValueError(f"dropout: p must be from 0 to 1, got {p}")
    if not training or p == 0:
        return x
    return _dropout(x, float(p), rng.next_draw())
