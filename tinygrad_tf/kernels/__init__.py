"""Numba kernels: ndarrays in, ndarrays out. They know nothing of Tensors.

numba takes longer to import than all else together, so a module here is imported when it is first used:
`from .. import kernels`, then `kernels.gemm.matmul(...)`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from . import (
        activation,
        attention,
        embedding,
        few_rows,
        gemm,
        loss,
        normalization,
        optimizer,
        random,
        rotary,
        runtime,
    )


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return importlib.import_module(f"{__name__}.{name}")


__all__ = [
    "activation", "attention", "elementwise", "embedding", "few_rows", "gemm", "loss", "normalization", "optimizer", "random",
    "rotary", "runtime",
]  # fmt: skip
