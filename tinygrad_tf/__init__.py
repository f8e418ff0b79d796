"""tinygrad_tf: a reverse-mode autograd engine, layers and GPT models, from scratch on numpy and numba.

import tinygrad_tf as tg
from tinygrad_tf import nn, models
"""

from builtins import bool as _bool  # `bool` below is the dtype, as users of such packages expect
from typing import Any as _Any

import numpy as _np

from . import func, graph, linalg, rng
from .capture import capture
from .checks.gradcheck import GradcheckError, gradcheck, gradgradcheck
from .config import config
from .creation import (
    arange,
    empty,
    empty_like,
    eye,
    from_numpy,
    full,
    full_like,
    linspace,
    ones,
    ones_like,
    rand,
    rand_like,
    randint,
    randn,
    randn_like,
    randperm,
    tensor,
    zeros,
    zeros_like,
)
from .function import Function, checkpoint
from .graph import grad
from .kernels.host import get_num_threads, set_num_threads
from .memory import keep_freed_memory as _keep_freed_memory
from .modes import CaptureError, detect_anomaly, enable_grad, is_grad_enabled, no_grad, reference
from .ops.table import FUNCTIONS as _FUNCTIONS
from .ops.table import METHODS as _METHODS
from .profiling import Profile, profile
from .rng import get_rng_state, manual_seed, set_rng_state
from .tensor import Tensor

_keep_freed_memory()
float32, float64 = _np.dtype(_np.float32), _np.dtype(_np.float64)
int64, bool = _np.dtype(_np.int64), _np.dtype(_np.bool_)
globals().update(_METHODS | _FUNCTIONS)


def __getattr__(name: str) -> _Any:  # to a type checker, also the operations that the line above adds
    if name == "inspect":  # it stands above the layers, which need this module first
        import importlib

        return importlib.import_module("tinygrad_tf.inspect")
    raise AttributeError(f"module 'tinygrad_tf' has no attribute {name!r}")


__version__ = "0.1.0"


def is_tensor(x: object) -> _bool:
    """Whether x is a Tensor."""
    return isinstance(x, Tensor)


__all__ = [
    "CaptureError", "Function", "GradcheckError", "Profile", "Tensor", "arange", "bool", "capture", "checkpoint", "config", "detect_anomaly", "empty",
    "empty_like", "enable_grad", "eye", "float32", "float64", "from_numpy", "full", "func", "full_like", "get_num_threads",
    "get_rng_state", "grad", "gradcheck", "gradgradcheck", "graph", "int64", "is_grad_enabled", "is_tensor", "linalg", "linspace",
    "manual_seed", "no_grad", "ones", "ones_like", "profile", "rand", "rand_like", "randint", "randn", "randn_like", "randperm",
    "reference", "rng", "set_num_threads", "set_rng_state", "tensor", "zeros", "zeros_like", *_METHODS, *_FUNCTIONS,
]  # fmt: skip
