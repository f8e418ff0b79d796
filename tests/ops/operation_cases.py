"""One table of cases for every operation: what the tests of values and derivatives, parity with PyTorch, and the page
docs/operations.md all run.

A line is `expression | domain | shapes; shapes; ...`. In the expression `t` is the package and `F` its nn.functional, here or
in PyTorch; a, b, c, d are float64 tensors of the shapes (`-` is a scalar); `i(...)` makes an int64 tensor, `m(...)` a bool one, `f(...)` a float64 one.
Domains: s both signs, p from 0.3 to 2.3, u inside (-1, 1), o inside (0, 1), g above 1. All numbers differ, so that
nothing ties, and none is near 0.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

ELEMENTWISE = "2,3; -; 2,1,2; 2,0"
UNARY = {
    "s": "abs absolute atan arctan asinh arcsinh ceil clone cos cosh deg2rad erf erfc exp exp2 expm1 fix floor frac isfinite "
    "isinf isnan isneginf isposinf logical_not nan_to_num neg negative positive rad2deg reciprocal relu round sigmoid sign "
    "signbit sin sinh square tan tanh trunc",
    "p": "log log10 log1p log2 rsqrt sqrt",
    "u": "acos arccos asin arcsin atanh arctanh",
    "o": "logit",
    "g": "acosh arccosh",
}
PAIRS = "2,3 3; - -; - 2,2; 2,1 1,3; 0,2 1,2"
BINARY = {
    "s": "add arctan2 atan2 copysign div divide eq equal floor_divide fmax fmin fmod ge greater greater_equal gt hypot isclose le "
    "less less_equal logaddexp logaddexp2 logical_and logical_or logical_xor lt maximum minimum mul multiply ne not_equal "
    "remainder rsub sub subtract true_divide allclose heaviside",
    "p": "float_power pow xlogy",
}
SECOND_NAMES = (
    "absolute arctan arcsinh fix negative arccos arcsin arctanh arccosh arctan2 divide greater greater_equal less less_equal "
    "multiply not_equal subtract true_divide"
).split()
ACTIVATIONS = (
    "celu elu gelu hardshrink hardsigmoid hardswish hardtanh leaky_relu logsigmoid mish relu relu6 selu sigmoid silu softplus "
    "softshrink softsign tanh tanhshrink"
)
REDUCTIONS = "sum mean prod var std amax amin logsumexp nansum nanmean"
ALONG = "cumsum cumprod cummax cummin logcumsumexp softmax log_softmax"

TABLE = """
t.add(a, b, alpha=0.5) | s | 2,3 3
t.sub(a, b, alpha=2) | s | 2,3 3
t.rsub(a, b, alpha=2) | s | 2,3 3
t.div(a, b, rounding_mode="trunc") | s | 2,3 3
t.div(a, b, rounding_mode="floor") | s | 2,3 3
t.add(a, 2) + t.mul(a, 2.5) - t.div(a, 3) | s | 2,3; -
2.5 - a + 2 / a + 2**a | s | 2,3; -
a**3 + a**-2 + a**0 + a**1 | s | 2,3; -
t.pow(2.5, a) | s | 2,3
t.remainder(a, 0.7) + t.fmod(a, 0.7) | s | 2,3
t.clamp(a, -0.5, 0.95) | s | 2,3; 0; -
t.clip(a, max=0.5) | s | 2,3
t.clamp(a, b, c) | s | 2,3 3 3; 3 - 3
t.clamp(a, min=b) | s | 2,3 3
t.clamp_min(a, 0.5) | s | 2,3
t.clamp_max(a, 0.5) | s | 2,3
t.clamp_min(a, 0.5) + t.clamp_max(a, -0.5) | s | 2,3
t.clamp_max(a, b) | s | 2,3 3
t.lerp(a, b, 0.3) | s | 2,3 3; - -
t.lerp(a, b, c) | s | 2,3 3 2,1
t.addcmul(a, b, c, value=0.5) | s | 2,3 3 2,1; - - -
t.addcdiv(a, b, c, value=2) | s | 2,3 3 2,1; - - -
t.logit(a, 0.2) | o | 2,3
t.where(a > 0, a * b, b) | s | 2,3 3
t.where(a > 0, a, 0.5) | s | 2,3; -
t.masked_fill(a, b > 0, 7.0) | s | 2,3 3; 2,3 2,3
t.isclose(a, a + 1e-9) | s | 2,3
t.isclose(a, b, rtol=0.5, atol=0.1) | s | 2,3 3
t.bitwise_not(a > 0) | s | 2,3
t.bitwise_and(a > 0, b > 0) | s | 2,3 3
t.bitwise_or(a > 0, b > 0) | s | 2,3 3
t.bitwise_xor(a > 0, b > 0) | s | 2,3 3
t.bitwise_not(i([0, 5, -3])) | s | -
t.round(a, decimals=1) | s | 2,3
t.norm(a) | s | -; 3; 2,3
t.norm(a, 2, 1) + t.norm(a, p=1, dim=1) + t.norm(a, 3, 1) | s | 2,3; 2,3,2
t.norm(a, float("inf"), 0, True) | s | 2,3
t.linalg.vector_norm(a, 1.5, 0) | s | 2,3
t.linalg.vector_norm(a, -1.0, (0, 1), keepdim=True) | s | 2,3
t.linalg.vector_norm(a, -float("inf"), 1) | s | 2,3
t.linalg.vector_norm(a, 0) | s | 2,3
t.dist(a, b, 3) | s | 2,3 3
t.var(a, dim=1, correction=0) | s | 2,3
t.var(a, unbiased=False) | s | 2,3
t.std(a, (0, 1), correction=2, keepdim=True) | s | 2,3
t.var_mean(a, 1) | s | 2,3
t.std_mean(a, (0, 2), keepdim=True) | s | 2,3,2
t.aminmax(a) | s | 2,3; -
t.aminmax(a, dim=1, keepdim=True) | s | 2,3
t.max(a) + t.min(a) | s | 2,3; -
t.max(a, 1) | s | 2,3; 2,3,2
t.min(a, -1, keepdim=True) | s | 2,3; 3
t.max(a, b) + t.min(a, b) | s | 2,3 3
t.argmax(a) | s | 2,3; -
t.argmin(a) | s | 2,3; -
t.argmax(a, 1, keepdim=True) | s | 2,3
t.argmin(a, dim=-1) | s | 2,3
t.any(a > 0.5) | s | 2,3; 0
t.all(a > 0.5) | s | 2,3; 0
t.any(a > 0.5, 1, keepdim=True) | s | 2,3
t.all(a > 0.5, dim=0) | s | 2,3
t.count_nonzero(a * (a > 0)) | s | 2,3; 0; -
t.count_nonzero(a * (a > 0), dim=1) | s | 2,3
t.prod(a * m([[1, 0, 1], [1, 1, 1]]), 1) | s | 2,3
t.prod(a * m([[0, 0, 1], [1, 1, 0]]), 1) | s | 2,3
t.cumprod(a * m([[1, 0, 1, 1], [0, 1, 0, 1]]), 1) | s | 2,4
t.diff(a) | s | 3; 2,3; 1; 0
t.diff(a, 2, 0) | s | 4,2
t.diff(a, dim=0, prepend=b, append=a) | s | 2,3 1,3
t.median(a) | s | 5; 2,3; -
t.median(a, 1) | s | 2,4; 2,3
t.median(a, dim=0, keepdim=True) | s | 3,2; 3
t.kthvalue(a, 2) | s | 4; 2,3
t.kthvalue(a, 1, 0, True) | s | 3,2
t.sort(a) | s | 4; 2,3; -; 0
t.sort(a, 0, True) | s | 3,2
t.sort(a, dim=1, descending=True, stable=True)[0] | s | 2,3
t.argsort(a, descending=True) | s | 2,3
t.msort(a) | s | 3,2
t.topk(a, 2) | s | 4; 2,3
t.topk(a, 2, 0, largest=False) | s | 3,2
t.topk(a, 0) | s | 3
t.searchsorted(t.sort(a)[0], b) | s | 5 2,3; 2,4 2,3
t.searchsorted(t.sort(a)[0], b, right=True) | s | 5 4
t.searchsorted(i([1, 2, 2, 3]), i([2, 0, 4]), side="right") | s | -
t.bucketize(a, t.sort(b)[0]) | s | 2,3 4
t.bucketize(i([1, 2, 5]), i([1, 2, 3]), right=True) | s | -
t.isin(i([[1, 2], [3, 4]]), i([2, 4, 9])) | s | -
t.isin(i([1, 2, 3]), i([2]), invert=True) | s | -
t.nonzero(a > 0.5) | s | 2,3; 0; 4
t.nonzero(a > 0.5, as_tuple=True) | s | 2,3
t.argwhere(a > 0.5) | s | 2,3
t.trace(a) | s | 3,3; 2,3; 0,0
t.flip(a, [0, -1]) | s | 2,3,2
t.fliplr(a) | s | 2,3
t.flipud(a) | s | 2,3; 3
t.rot90(a) | s | 2,3; 2,3,2
t.rot90(a, 3, [1, 2]) | s | 2,3,2
t.rot90(a, 2) + t.rot90(a, 4) + t.rot90(a, -2) | s | 2,3
t.roll(a, 1) | s | 3; 2,3; -
t.roll(a, (1, -2), (0, 1)) | s | 2,3
t.reshape(a, (3, 2)) * a.reshape(3, -1) * a.view(3, 2) | s | 2,3
t.flatten(a, 1) | s | 2,3,2
t.flatten(a) | s | 2,3; -
t.ravel(a) | s | 2,3; -
t.unflatten(a, 1, (2, -1)) | s | 2,4
t.squeeze(a, 1) | s | 2,1,3; 2,3
t.squeeze(a) | s | 1,2,1; 1
t.unsqueeze(a, -1) | s | 2,3; -
t.permute(a, (2, 0, 1)) | s | 2,3,2
t.transpose(a, 0, -1) | s | 2,3; 2,3,2
t.swapaxes(a, 0, 1) + t.swapdims(a, 1, 0) | s | 2,3
t.movedim(a, 0, 2) | s | 2,3,4
t.movedim(a, (0, 1), (2, 0)) + t.moveaxis(a, (0, 1), (-1, -3)) | s | 2,3,4
t.t(a) | s | 3,2; 3; -
a.t() @ a.T.mT | s | 3,2
a.mT + a.transpose(-1, -2) | s | 2,3,2
a.expand(2, -1, 3) | s | 2,1
a.expand_as(b) * b | s | 3 2,3
a.view_as(b) * b + a.reshape_as(b) | s | 6 2,3
t.broadcast_to(a, (2, 3)) | s | 3; 1,3; -
t.broadcast_tensors(a, b) | s | 2,1 3
a.repeat(2, 3) | s | 3; 2,2
a.repeat(2, 1, 2) | s | 2,3
t.tile(a, (2,)) | s | 3; 2,3
t.tile(a, (2, 1, 2)) | s | 2,3
t.repeat_interleave(a, 2) | s | 3; 2,3
t.repeat_interleave(a, 3, dim=1) | s | 2,3
t.repeat_interleave(a, i([1, 0, 2]), dim=1) | s | 2,3
t.cat([a, b, a * a], 1) | s | 2,3 2,1
t.cat((a, b)) + t.concat((a, b)) + t.concatenate((a, b)) | s | 2,3 1,3
t.stack([a, b], -1) | s | 2,3 2,3; - -
t.hstack([a, b]) | s | 3 2; 2,3 2,1; - -
t.vstack([a, b]) | s | 3 3; 2,3 1,3
t.row_stack([a, b]) | s | 3 3
t.dstack([a, b]) | s | 3 3; 2,3 2,3
t.column_stack([a, b]) | s | 3 3; 2,3 2
t.split(a, 2, 1) | s | 2,5; 2,4
t.split(a, [1, 3], -1) | s | 2,4
t.chunk(a, 3, 1) | s | 2,4; 2,3
t.tensor_split(a, 3, 1) | s | 2,5; 2,2
t.tensor_split(a, (1, 3), 1) | s | 2,5
t.tensor_split(a, (-1, 9)) | s | 4
t.unbind(a, 1) | s | 2,3
t.narrow(a, 1, 1, 2) | s | 2,3
t.select(a, 1, -1) | s | 2,3
a.unfold(1, 2, 1) | s | 2,4
a.unfold(0, 3, 2) | s | 5; 7,2
F.pad(a, (1, 2)) | s | 3; 2,3
F.pad(a, (1, -1, 0, 2), "constant", 1.5) | s | 2,3; 1,2,3
F.pad(a, (2, 1), mode="reflect") | s | 1,2,3
F.pad(a, (2, 1), mode="replicate") | s | 1,2,3
F.pad(a, (2, 1), mode="circular") | s | 1,2,3
F.pad(a, (1, 1, 0, 1), mode="reflect") | s | 1,2,3,3
t.tril(a) | s | 2,3
t.triu(a, -1) | s | 2,3
t.tril(a) + t.triu(a, 1) * 2 + t.tril(a, -1) * 3 | s | 3,3; 2,3; 2,2,3
t.diag(a) | s | 3; 2,3
t.diag(a, 1) + t.diag(a, -1) | s | 2
t.diag(a, -1) | s | 3,2
t.diagflat(a) | s | 2,2
t.diagonal(a) | s | 3,3; 2,3
t.diagonal(a, 1, 2, 0) | s | 2,2,3
t.diag_embed(a) | s | 3; 2,3
t.diag_embed(a, 1, 0, 2) | s | 2,3
t.diag_embed(a, 1, 2, 0) | s | 2,3
t.diagonal_scatter(a, b, 1) | s | 3,3 2
t.meshgrid(a, b, indexing="ij") | s | 2 3
t.meshgrid([a, b, c], indexing="xy") | s | 2 3 2
t.atleast_1d(a) | s | -; 2,3
t.atleast_2d(a, b) | s | - 3
t.atleast_3d([a, b, c]) | s | - 3 2,3
a[1] * a[:, 1:].sum() + a[..., -1].sum() | s | 2,3
a[[1, 0, 1]] | s | 2,3
a[:, None, ::2] | s | 2,3
a[i([[0, 1], [1, 1]]), i([0, 2])] | s | 2,3
a[a > 0.1] | s | 2,3; 4
a[m([1, 0, 1]), 1:] | s | 3,2
t.gather(a, 1, i([[0, 0], [2, 1]])) | s | 2,3
t.gather(a, 0, i([[0, 1, 1]])) | s | 2,3
t.take_along_dim(a, i([[2], [0]]), 1) | s | 2,3
t.take_along_dim(a, i([[0, 0], [0, 0], [1, 0]]), dim=1) | s | 1,2; 3,2
t.take_along_dim(a, i([5, 0, 0])) | s | 2,3
t.take_along_dim(a, t.argsort(a, 1), dim=1) | s | 2,3
t.index_select(a, 1, i([2, 0, 2])) | s | 2,3; 2,3,2
t.index_add(a, 1, i([0, 2, 0]), b) | s | 2,3 2,3
t.index_add(a, 0, i([1]), b, alpha=2) | s | 2,3 1,3
t.index_copy(a, 1, i([2, 0]), b) | s | 2,3 2,2
t.index_fill(a, 1, i([0, 2]), 1.5) | s | 2,3
t.index_fill(a, 0, i([1]), b) | s | 2,3 -
t.index_put(a, (i([0, 1]), i([2, 0])), b) | s | 2,3 2; 2,3 -
t.index_put(a, (i([0, 1, 0]), i([2, 0, 2])), b, accumulate=True) | s | 2,3 3; 2,3 1
t.take(a, i([[0, 5], [5, 1]])) | s | 2,3
t.put(a, i([0, 4]), b) | s | 2,3 2
t.put(a, i([0, 4, 0]), b, accumulate=True) | s | 2,3 3
t.masked_select(a, a > 0.3) | s | 2,3; 4
t.masked_select(a, m([[1], [0]])) | s | 3; 2,3
t.masked_scatter(a, m([[1, 0, 1], [0, 1, 0]]), b) | s | 2,3 4; 3 2,3
t.select_scatter(a, b, 1, -1) | s | 2,3 2
t.slice_scatter(a, b, 1, 0, 3, 2) | s | 2,3 2,2
t.slice_scatter(a, b, start=1) | s | 3,2 2,2
t.scatter(a, 1, i([[0, 2], [1, 0]]), b) | s | 2,3 2,2; 2,3 2,3
t.scatter(a, 0, i([[1, 0, 1]]), 2.5) | s | 2,3
t.scatter(a, 1, i([[0, 0], [1, 2]]), b, reduce="add") | s | 2,3 2,2
t.scatter_add(a, 1, i([[0, 0], [1, 0]]), b) | s | 2,3 2,2; 2,3 2,3
t.scatter_add(a, 0, i([0]), b) | s | 3 3; - 1
t.scatter_reduce(a, 1, i([[0, 0, 2], [1, 0, 1]]), b, "sum") | s | 2,3 2,3
t.scatter_reduce(a, 1, i([[0, 0, 2], [1, 0, 1]]), b, "mean", include_self=False) | s | 2,3 2,3
t.scatter_reduce(a, 1, i([[0, 0, 2], [1, 0, 1]]), b, "mean") | s | 2,3 2,3
t.scatter_reduce(a, 1, i([[0, 0, 2], [1, 0, 1]]), b, "prod") | s | 2,3 2,3
t.scatter_reduce(a, 1, i([[0, 0, 2], [1, 0, 1]]), b, "prod", include_self=False) | s | 2,3 2,3
t.scatter_reduce(a, 1, i([[0, 0, 2], [1, 0, 1]]), b, "amax") | s | 2,3 2,3
t.scatter_reduce(a, 0, i([1, 1, 0, 1]), b, reduce="amin", include_self=False) | s | 3 4
t.matmul(a, b) | s | 3 3; 2,3 3; 3 3,2; 2,3 3,2; 2,2,3 3,2; 2,1,2,3 2,3,1; 0,3 3,2; 2,0 0,3
t.mm(a, b) | s | 2,3 3,2
t.bmm(a, b) | s | 2,2,3 2,3,2; 0,2,3 0,3,2
t.mv(a, b) | s | 2,3 3
t.dot(a, b) | s | 3 3; 0 0
t.vdot(a, b) | s | 3 3
t.outer(a, b) + t.ger(a, b) | s | 2 3
t.inner(a, b) | s | 3 3; 2,3 3; 2,3 2,2,3; - 3
t.addmm(a, b, c) | s | 2,2 2,3 3,2; 2 2,3 3,2; - 2,3 3,2
t.addmm(a, b, c, beta=0.5, alpha=2) | s | 2,2 2,3 3,2
t.addmv(a, b, c, beta=0.5, alpha=2) | s | 2 2,3 3
t.addr(a, b, c, beta=0.5, alpha=2) | s | 2,3 2 3
t.baddbmm(a, b, c, beta=0.5, alpha=2) | s | 2,2,2 2,2,3 2,3,2
t.addbmm(a, b, c, beta=0.5, alpha=2) | s | 2,2 2,2,3 2,3,2
t.einsum("ij,jk->ik", a, b) | s | 2,3 3,2
t.einsum("bhid,bhjd->bhij", a, b) | s | 2,1,2,3 2,1,3,3
t.einsum("i,j", a, b) | s | 2 3
t.einsum("ii", a) + t.einsum("ii->i", a).sum() | s | 3,3
t.einsum("...ij->...ji", a) | s | 2,3; 2,2,3
t.einsum("...ij,jk", a, b) | s | 2,2,3 3,2
t.einsum("bi,bi->b", a, b) | s | 2,3 2,3
t.einsum("ij,ij,jk->ki", a, b, c) | s | 2,3 2,3 3,2
t.einsum("b...,b...->...", a, b) | s | 2,3 2,3
t.einsum("ijk->", a) | s | 2,3,2
t.einsum("ij,ij->ij", a, b) | s | 2,3 1,3
t.einsum("ij,kj->ik", a, b) | s | 2,0 3,0
t.einsum("iji,j->ij", a, b) | s | 2,3,2 3
t.tensordot(a, b, 1) | s | 2,3 3,2
t.tensordot(a, b) | s | 2,2,3 2,3,2
t.tensordot(a, b, dims=([0, 2], [1, 0])) | s | 2,3,4 4,2
t.tensordot(a, b, dims=0) | s | 2 3
t.kron(a, b) | s | 2,2 2,3; 2 3; 2 2,2; - 2
t.linalg.multi_dot([a, b, c]) | s | 2,3 3,4 4,2; 3 3,4 4; 2,3 3,1 1,4
t.linalg.multi_dot([a, b]) | s | 2,3 3,2
F.gelu(a, approximate="tanh") | s | 2,3
F.softplus(a, beta=2.0, threshold=1.5) | s | 2,3
F.leaky_relu(a, 0.2) + F.elu(a, 0.7) + F.celu(a, 0.7) | s | 2,3
F.hardtanh(a, -0.55, 0.75) + F.threshold(a, 0.3, 2.0) | s | 2,3
F.threshold(a, 0.1, -1.0) | s | 2,3
F.softshrink(a, 0.7) + F.hardshrink(a, 0.7) | s | 2,3
F.hardswish(a * 2.1) + F.hardsigmoid(a * 2.1) + F.relu6(a * 4) | s | 2,3
F.prelu(a, b) | s | 2,3 3; 2,3 1; 2,3,2 3; 3 1; - 1
F.glu(a) | s | 2,4; 4
F.glu(a, 0) | s | 4,3
F.softmax(a, -1) | s | 2,3
F.softmax(a, 0) | s | 2,3; 3
F.log_softmax(a, 1) | s | 2,3,2
F.softmin(a, 1) | s | 2,3
F.linear(a, b) | s | 2,3 2,3; 3 2,3
F.linear(a, b, c) | s | 2,2,3 2,3 2
F.bilinear(a, b, c) | s | 2,3 2,2 4,3,2; 3 2 4,3,2
F.bilinear(a, b, c, d) | s | 2,3 2,2 4,3,2 4
F.embedding(i([[0, 2], [2, 2]]), a) | s | 3,2
F.embedding(i([0, 2, 1]), a, padding_idx=2) | s | 3,2
F.one_hot(i([[0, 2], [1, 0]]), 4) | s | -
F.one_hot(i([0, 2])) | s | -
F.layer_norm(a, (3,), b, c) | s | 2,3 3 3
F.layer_norm(a, (2, 3)) | s | 2,2,3
F.rms_norm(a, (3,), b, 1e-6) | s | 2,3 3
F.group_norm(a, 2, b, c) | s | 2,4,3 4 4; 2,4 4 4
F.group_norm(a, 1) | s | 2,2,2
F.batch_norm(a, None, None, b, c, training=True) | s | 3,2 2 2; 2,2,3 2 2
F.batch_norm(a, f([0.5, -0.2]), f([1.5, 0.7]), b, c) | s | 3,2 2 2
F.instance_norm(a, weight=b, bias=c) | s | 2,3,4 3 3
F.normalize(a) | s | 2,3; 2,3,2
F.normalize(a, p=3.0, dim=0) | s | 2,3; 3
F.cosine_similarity(a, b) | s | 2,3 2,3; 2,3 1,3; 2,3,2 2,3,2
F.cosine_similarity(a, b, dim=0) | s | 3 3; 2,3 2,3
F.pairwise_distance(a, b) | s | 2,3 2,3
F.rotary(a, f([[1.0, 0.5], [0.8, 0.1]]), f([[0.0, 0.3], [0.6, 0.9]])) | s | 1,2,2,4
F.attention_weights(a, b, 0.5, True) | s | 1,2,2,3 1,1,3,3
F.dropout(a, 0.0) + F.dropout(a, 0.5, training=False) | s | 2,3
F.split_heads(a, [2, 1]) | s | 2,3,6; 1,2,3; 2,0,6
F.split_heads(a, (1,))[0] | s | 2,3,4
F.merge_heads(a) | s | 2,3,2,2; 1,1,2,3
F.scaled_dot_product_attention(a, b, c) | s | 1,2,3,4 1,2,3,4 1,2,3,2
F.scaled_dot_product_attention(a, b, c, is_causal=True, scale=0.3) | s | 2,1,3,2 2,1,3,2 2,1,3,2
F.scaled_dot_product_attention(a, b, c, attn_mask=m([[1, 0], [1, 1]])) | s | 1,1,2,2 1,1,2,2 1,1,2,2
F.scaled_dot_product_attention(a, b, c, attn_mask=d) | s | 1,1,2,2 1,1,3,2 1,1,3,2 2,3
F.scaled_dot_product_attention(a, b, c, enable_gqa=True) | s | 1,2,2,2 1,1,3,2 1,1,3,2
F.cross_entropy(a, i([2, 0])) | s | 2,3
F.cross_entropy(a, i([2, -100, 0]), label_smoothing=0.1) | s | 3,3
F.cross_entropy(a, i([2, 1, 0]), weight=f([0.5, 1.0, 2.0]), ignore_index=1, reduction="sum") | p | 3,3
F.cross_entropy(a, b, reduction="none") | p | 2,3 2,3
F.cross_entropy(a, i([[1, 0], [2, 2]])) | s | 2,3,2
F.nll_loss(a, i([2, 0])) | s | 2,3
F.nll_loss(a, i([[1, 0], [2, 2]]), reduction="none") | s | 2,3,2
F.nll_loss(a, i([2, -100, 0]), weight=f([0.5, 1.0, 2.0])) | p | 3,3
F.nll_loss(a, i(1)) | s | 3
F.mse_loss(a, b) | s | 2,3 2,3
F.l1_loss(a, b, reduction="sum") | s | 2,3 2,3
F.smooth_l1_loss(a, b, beta=0.7) | s | 2,3 2,3
F.smooth_l1_loss(a, b, reduction="none", beta=0.0) | s | 2,3 2,3
F.huber_loss(a, b, reduction="sum", delta=0.7) | s | 2,3 2,3
F.kl_div(a, b, reduction="batchmean") | p | 2,3 2,3
F.kl_div(a, b, reduction="sum", log_target=True) | s | 2,3 2,3
F.binary_cross_entropy(a, b) | o | 2,3 2,3
F.binary_cross_entropy(a, b, weight=f([0.5, 1.0, 2.0]), reduction="none") | o | 2,3 2,3
F.binary_cross_entropy_with_logits(a, b) | s | 2,3 2,3
F.binary_cross_entropy_with_logits(a, b, f([0.5, 1.0, 2.0]), reduction="sum", pos_weight=f([3.0, 1.0, 0.2])) | p | 2,3 2,3
"""


class Case(NamedTuple):
    """An expression, the domain and the shapes of its tensors a, b, c, d."""

    expression: str
    domain: str
    shapes: tuple[tuple[int, ...], ...]
    first: bool = True  # of its line

    @property
    def name(self) -> str:
        """The operation that the case is mainly about."""
        found = re.search(r"(?:(?<![A-Za-z])[tF]|linalg|\ba)\.(?!linalg)(\w+)\(", self.expression)
        return found[1] if found else "operators"

    def __str__(self) -> str:
        return f"{self.expression} {' '.join('x'.join(map(str, s)) or '-' for s in self.shapes)}"


def _lines() -> Iterator[str]:
    for domain, names in UNARY.items():
        for name in names.split():
            yield f"t.{name}(a) | {domain} | {'2,3' if name in SECOND_NAMES else ELEMENTWISE}"
    for domain, names in BINARY.items():
        for name in names.split():
            shapes = "2,3 3" if name in SECOND_NAMES else "2,3 2,3; 3 2" if name == "equal" else PAIRS
            yield f"t.{name}(a, b) | {domain} | {shapes}"
    for name in ACTIVATIONS.split():
        yield f"F.{name}(a) | s | {ELEMENTWISE}"
    for name in REDUCTIONS.split():
        everything = "3; 2,3; -" if name not in ("var", "std") else "3; 2,3"
        yield f"t.{name}(a{', 0' if name == 'logsumexp' else ''}) | s | {everything}"
        yield f"t.{name}(a, {'1' if name == 'prod' else '(0, -1)'}, keepdim=True) | s | 2,3,2; 2,2"
        yield f"t.{name}(a, dim=-1) | s | 3; 2,3; 2,1,3; 0,2"
    for name in ALONG.split():
        yield f"t.{name}(a, {'dim=' if name != 'softmax' else ''}-1) | s | 3; 2,3; 0,2; -; 1"
        yield f"t.{name}(a, 1) | s | 2,3,2"
    yield from (line for line in TABLE.splitlines() if line)


def cases() -> list[Case]:
    """All cases, one for each tuple of shapes."""
    found = []
    for line in _lines():
        expression, domain, sets = (part.strip() for part in line.split(" | "))
        for n, one in enumerate(sets.split(";")):
            shapes = tuple(() if s == "-" else tuple(int(size) for size in s.split(",")) for s in one.split())
            found.append(Case(expression, domain, shapes, n == 0))
    return found


def values(case: Case) -> list[np.ndarray[Any, np.dtype[np.float64]]]:
    """Different numbers for the tensors of a case, the same at every call."""
    total = sum(int(np.prod(s)) for s in case.shapes)
    steps = (np.random.default_rng(total).permutation(total) + 0.5) / max(total, 1)
    signs = np.random.default_rng(total + 1).choice([-1.0, 1.0], total)
    numbers = {
        "s": (0.3 + 2.0 * steps) * signs,
        "p": 0.3 + 2.0 * steps,
        "u": 0.9 * (2 * steps - 1) + 0.01,
        "o": 0.05 + 0.9 * steps,
        "g": 1.3 + steps,
    }[case.domain]
    parts = np.split(numbers, np.cumsum([int(np.prod(s)) for s in case.shapes])[:-1])
    return [part.reshape(shape) for part, shape in zip(parts, case.shapes, strict=True)]


def run(case: Case, package: Any, functional: Any, tensors: list[Any]) -> list[Any]:
    """The results of a case, in a list."""
    names = dict(
        zip("abcd", tensors, strict=False),
        t=package,
        F=functional,
        i=lambda data: package.tensor(data),
        f=lambda data: package.tensor(data, dtype=package.float64),
        m=lambda data: package.tensor(data) != 0,
    )
    out = eval(case.expression, names)
    return list(out) if isinstance(out, (tuple, list)) else [out]
