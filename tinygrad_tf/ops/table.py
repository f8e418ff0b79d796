"""Which operations are methods of a tensor too, which have a form that writes in place, and which are functions only."""

from __future__ import annotations

from typing import Any

from . import (
    arrange,
    binary,
    comparison,
    contraction,
    elementwise,
    indexing,
    normalization,
    products,
    reductions,
    scan,
    scatter,
    shape,
    sorting,
    statistics,
    unary,
)  # fmt: skip
from .primitive import with_dtype, with_names

#: Every operation whose first argument is a tensor: a method and a function of this name.
METHODS: dict[str, Any] = {
    name: with_names(getattr(module, name))
    for module, names in {
        elementwise: "clone mul floor_divide remainder pow neg reciprocal square sqrt rsqrt abs sign exp expm1 log log1p "
        "sin cos tanh sigmoid erf relu maximum minimum",
        unary: "exp2 log2 log10 tan asin acos atan sinh cosh asinh acosh atanh deg2rad rad2deg frac trunc signbit "
        "isposinf isneginf erfc nan_to_num logit positive",
        binary: "add sub div float_power fmod atan2 hypot copysign heaviside masked_fill fmax fmin clamp clamp_min clamp_max "
        "logaddexp logaddexp2 xlogy lerp addcmul addcdiv isclose allclose equal logical_xor bitwise_not",
        comparison: "eq ne lt le gt ge logical_and logical_or logical_not bitwise_and bitwise_or bitwise_xor isnan isinf "
        "isfinite floor ceil round",
        reductions: "sum mean var std amax amin argmax argmin max min any all cumsum flip logsumexp broadcast_to",
        statistics: "prod norm nansum nanmean aminmax dist",
        scan: "cumprod cummax cummin logcumsumexp diff",
        sorting: "sort argsort msort topk kthvalue median argwhere nonzero count_nonzero",
        shape: "reshape permute transpose squeeze unsqueeze flatten expand narrow split chunk unbind tril triu",
        arrange: "repeat tile repeat_interleave roll unfold fliplr flipud rot90 movedim unflatten ravel select diagonal "
        "diag_embed diag diagflat diagonal_scatter trace tensor_split kron t view_as expand_as",
        indexing: "gather take_along_dim",
        scatter: "index_select index_add index_copy index_fill index_put take put masked_select masked_scatter "
        "select_scatter slice_scatter scatter scatter_add scatter_reduce",
        normalization: "softmax log_softmax",
        products: "matmul",
        contraction: "mm bmm mv dot vdot outer inner addmm addmv addr baddbmm addbmm",
    }.items()
    for name in names.split()
}

#: PyTorch's second names.
ALIASES = {
    "absolute": "abs", "negative": "neg", "multiply": "mul", "subtract": "sub", "divide": "div", "true_divide": "div",
    "clip": "clamp", "arcsin": "asin", "arccos": "acos", "arctan": "atan", "arcsinh": "asinh", "arccosh": "acosh",
    "arctanh": "atanh", "arctan2": "atan2", "fix": "trunc", "greater": "gt", "greater_equal": "ge", "less": "lt",
    "less_equal": "le", "not_equal": "ne", "swapaxes": "transpose", "swapdims": "transpose", "moveaxis": "movedim",
    "ger": "outer", "concat": "cat", "concatenate": "cat", "row_stack": "vstack",
}  # fmt: skip
_WITH_DTYPE = "sum nansum mean nanmean prod cumsum cumprod softmax log_softmax norm".split()
METHODS |= {name: with_dtype(METHODS[name]) for name in _WITH_DTYPE}
METHODS |= {alias: METHODS[name] for alias, name in ALIASES.items() if name in METHODS}

#: The methods that also exist with an underscore, writing their result into the tensor.
IN_PLACE = (
    "add sub mul div multiply subtract divide true_divide floor_divide remainder fmod pow neg negative reciprocal square "
    "sqrt rsqrt abs sign exp exp2 expm1 log log1p log2 log10 sin cos tan asin acos atan sinh cosh tanh asinh acosh atanh "
    "sigmoid erf erfc relu clamp clip clamp_min clamp_max masked_fill masked_scatter floor ceil round trunc frac "
    "nan_to_num copysign hypot atan2 lerp addcmul addcdiv xlogy index_add index_copy index_fill index_put put scatter "
    "scatter_add scatter_reduce tril triu cumsum cumprod addmm addmv addr baddbmm"
).split()

#: Operations whose first argument is no single tensor, or that PyTorch has as functions only.
FUNCTIONS: dict[str, Any] = {
    name: with_names(getattr(module, name))
    for module, names in {
        elementwise: "where",
        binary: "rsub",
        shape: "cat stack",
        arrange: "hstack vstack dstack column_stack meshgrid broadcast_tensors atleast_1d atleast_2d atleast_3d",
        statistics: "var_mean std_mean vector_norm",
        sorting: "searchsorted bucketize isin",
        contraction: "einsum tensordot multi_dot",
    }.items()
    for name in names.split()
}
FUNCTIONS |= {alias: FUNCTIONS[name] for alias, name in ALIASES.items() if name in FUNCTIONS}
