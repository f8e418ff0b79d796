"""Layers, made of operations: `from tinygrad_tf import nn`.

One file, one family: `module` (what a layer is), `linear`, `embedding`, `normalization`, `dropout`, `activation`,
`loss`, `position`, `attention`, `feed_forward`, `residual`, `transformer`, `containers`, `init`, `functional`.
"""

if __name__ == "nn":
    raise ImportError("these layers are installed as tinygrad_tf.nn: write `from tinygrad_tf import nn`")

from . import functional, init
from .activation import (
    ACTIVATIONS,
    GATED,
    GELU,
    Identity,
    LogSoftmax,
    ReLU,
    Sigmoid,
    SiLU,
    Softmax,
    Tanh,
)
from .attention import MHA, KVCache, LayerCache, MultiHeadAttention
from .containers import ModuleList, Sequential
from .dropout import Dropout
from .embedding import Embedding
from .feed_forward import FFN, FeedForward
from .linear import Linear
from .loss import BCEWithLogitsLoss, CrossEntropyLoss, L1Loss, MSELoss
from .module import Module, Parameter, eval_mode
from .normalization import BatchNorm1d, LayerNorm, RMSNorm
from .position import ALiBi, LearnedPosition, Rotary, SinusoidalPosition
from .residual import Residual
from .transformer import TransformerBlock

__all__ = [
    "ACTIVATIONS",
    "ALiBi",
    "BCEWithLogitsLoss",
    "BatchNorm1d",
    "CrossEntropyLoss",
    "Dropout",
    "Embedding",
    "FFN",
    "FeedForward",
    "GATED",
    "GELU",
    "Identity",
    "KVCache",
    "L1Loss",
    "LayerCache",
    "LayerNorm",
    "LearnedPosition",
    "Linear",
    "LogSoftmax",
    "MHA",
    "MSELoss",
    "Module",
    "ModuleList",
    "MultiHeadAttention",
    "Parameter",
    "RMSNorm",
    "ReLU",
    "Residual",
    "Rotary",
    "Sequential",
    "SiLU",
    "Sigmoid",
    "SinusoidalPosition",
    "Softmax",
    "Tanh",
    "TransformerBlock",
    "eval_mode",
    "functional",
    "init",
]
