"""Matrices and norms under the names of PyTorch's `torch.linalg`."""

from .ops.arrange import diagonal
from .ops.contraction import multi_dot
from .ops.products import matmul
from .ops.statistics import vector_norm

__all__ = ["diagonal", "matmul", "multi_dot", "vector_norm"]
