"""Values against numpy and plain loops, so that they are checked where PyTorch is not installed too."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

import tinygrad_tf as tg
from tinygrad_tf.nn import functional as F

GENERATOR = np.random.default_rng(3)
A, B = GENERATOR.standard_normal((3, 4)), GENERATOR.standard_normal((3, 4))
P = np.abs(A) + 0.3
U = np.tanh(A) * 0.9
S = 1 / (1 + np.exp(-A))

# ours | numpy's, of a and b (both signs), p (positive), u (inside -1 to 1) and s (inside 0 to 1)
TABLE = """
exp2(a) | np.exp2(a)
log2(p) | np.log2(p)
log10(p) | np.log10(p)
log1p(p) | np.log1p(p)
expm1(a) | np.expm1(a)
tan(a) | np.tan(a)
asin(u) | np.arcsin(u)
acos(u) | np.arccos(u)
atan(a) | np.arctan(a)
sinh(a) | np.sinh(a)
cosh(a) | np.cosh(a)
asinh(a) | np.arcsinh(a)
acosh(p + 1) | np.arccosh(p + 1)
atanh(u) | np.arctanh(u)
deg2rad(a) | np.deg2rad(a)
rad2deg(a) | np.rad2deg(a)
frac(a) | a - np.trunc(a)
trunc(a) | np.trunc(a)
round(a, decimals=1) | np.round(a, 1)
erfc(a) | np.vectorize(math.erfc)(a)
logit(s) | np.log(s / (1 - s))
fmod(a, b) | np.fmod(a, b)
atan2(a, b) | np.arctan2(a, b)
hypot(a, b) | np.hypot(a, b)
copysign(a, b) | np.copysign(a, b)
heaviside(a, b) | np.heaviside(a, b)
fmax(a, b) | np.fmax(a, b)
fmin(a, b) | np.fmin(a, b)
clamp(a, tg.tensor(u), tg.tensor(p)) | np.clip(a, u, p)
logaddexp(a, b) | np.log(np.exp(a) + np.exp(b))
logaddexp2(a, b) | np.log2(2**a + 2**b)
xlogy(a, p) | a * np.log(p)
lerp(a, b, 0.3) | 0.7 * a + 0.3 * b
addcmul(a, b, p, value=2) | a + 2 * b * p
addcdiv(a, b, p, value=2) | a + 2 * b / p
add(a, b, alpha=3) | a + 3 * b
sub(a, b, alpha=3) | a - 3 * b
rsub(a, b, alpha=3) | b - 3 * a
div(a, b, rounding_mode="trunc") | np.trunc(a / b)
div(a, b, rounding_mode="floor") | np.floor(a / b)
isclose(a, a + 1e-6) | np.isclose(a, a + 1e-6)
logical_xor(a > 0, b > 0) | (a > 0) != (b > 0)
norm(a, 3, 1) | (np.abs(a) ** 3).sum(1) ** (1 / 3)
norm(a, float("inf"), 0) | np.abs(a).max(0)
vector_norm(a, -1.0, 1) | 1 / (1 / np.abs(a)).sum(1)
vector_norm(a, 0) | 12.0
var_mean(a, 1)[0] | a.var(1, ddof=1)
var_mean(a, 1)[1] | a.mean(1)
std_mean(a, 0)[0] | a.std(0, ddof=1)
std(a, 0, False) | a.std(0)
cumprod(a, 1) | a.cumprod(1)
cummax(a, 1).values | np.maximum.accumulate(a, 1)
cummin(a, 0).values | np.minimum.accumulate(a, 0)
logcumsumexp(a, 1) | np.log(np.exp(a).cumsum(1))
diff(a, 2, 1) | np.diff(a, 2, 1)
median(a[:, :3], 1).values | np.median(a[:, :3], 1)
median(a) | np.sort(a.ravel())[5]
kthvalue(a, 2, 1).values | np.sort(a, 1)[:, 1]
sort(a, 1, True).values | -np.sort(-a, 1)
argsort(a, 0) | np.argsort(a, 0)
topk(a, 2).values | -np.sort(-a, 1)[:, :2]
topk(a, 2, 0, largest=False).indices | np.argsort(a, 0)[:2]
count_nonzero(a > 0, 1) | (a > 0).sum(1)
nonzero(a > 0) | np.argwhere(a > 0)
isin(tg.tensor([1, 2, 3]), tg.tensor([2])) | np.array([False, True, False])
bucketize(a, tg.tensor([-1.0, 0.0, 1.0])) | np.searchsorted([-1, 0, 1], a)
trace(a) | np.trace(a)
rot90(a, 3) | np.rot90(a, 3)
roll(a, (1, 2), (0, 1)) | np.roll(a, (1, 2), (0, 1))
repeat_interleave(a, tg.tensor([2, 0, 1]), 0) | np.repeat(a, [2, 0, 1], 0)
unfold(a, 1, 3, 1) | np.lib.stride_tricks.sliding_window_view(a, 3, 1)
diagonal(a, 1) | np.diagonal(a, 1)
diag(a[0], -1) | np.diag(a[0], -1)
diag_embed(a)[1] | np.diag(a[1])
kron(a, b) | np.kron(a, b)
meshgrid(a[0], b[1], indexing="xy")[0] | np.meshgrid(a[0], b[1])[0]
hstack([a, b]) | np.hstack([a, b])
dstack([a[0], b[0]]) | np.dstack([a[0], b[0]])
column_stack([a[0], b[0]]) | np.column_stack([a[0], b[0]])
atleast_3d(a) | np.atleast_3d(a)
index_select(a, 1, tg.tensor([2, 0])) | a[:, [2, 0]]
take(a, tg.tensor([5, 0])) | np.take(a, [5, 0])
masked_select(a, a > 0) | a[a > 0]
addmm(a[:, :3], a, b.T, beta=2, alpha=3) | 2 * a[:, :3] + 3 * (a @ b.T)
addmv(a[:, 0], b, a[1], beta=2, alpha=3) | 2 * a[:, 0] + 3 * (b @ a[1])
addr(a, a[:, 0], b[0], beta=2, alpha=3) | 2 * a + 3 * np.outer(a[:, 0], b[0])
bmm(a[None], b.T[None])[0] | a @ b.T
outer(a[0], b[:, 1]) | np.outer(a[0], b[:, 1])
inner(a, b) | np.inner(a, b)
tensordot(a, b, ([0], [0])) | np.tensordot(a, b, ([0], [0]))
multi_dot([a, b.T, a]) | a @ b.T @ a
F.softplus(a, 2.0) | np.log1p(np.exp(2 * a)) / 2
F.logsigmoid(a) | -np.log1p(np.exp(-a))
F.mish(a) | a * np.tanh(np.log1p(np.exp(a)))
F.elu(a, 0.5) | np.where(a > 0, a, 0.5 * np.expm1(a))
F.celu(a, 0.5) | np.where(a > 0, a, 0.5 * np.expm1(a / 0.5))
F.selu(a) | 1.0507009873554805 * np.where(a > 0, a, 1.6732632423543772 * np.expm1(a))
F.leaky_relu(a, 0.3) | np.where(a > 0, a, 0.3 * a)
F.prelu(a, tg.tensor([0.1, 0.2, 0.3, 0.4]).double()) | np.where(a > 0, a, a * np.float32([0.1, 0.2, 0.3, 0.4]))
F.hardtanh(a) | np.clip(a, -1, 1)
F.relu6(a * 9) | np.clip(a * 9, 0, 6)
F.hardsigmoid(a * 3) | np.clip(a * 3 / 6 + 0.5, 0, 1)
F.hardswish(a * 3) | a * 3 * np.clip(a * 3 / 6 + 0.5, 0, 1)
F.hardshrink(a) | np.where(np.abs(a) > 0.5, a, 0)
F.softshrink(a) | np.sign(a) * np.maximum(np.abs(a) - 0.5, 0)
F.softsign(a) | a / (1 + np.abs(a))
F.tanhshrink(a) | a - np.tanh(a)
F.threshold(a, 0.2, 9.0) | np.where(a > 0.2, a, 9.0)
F.glu(a) | a[:, :2] / (1 + np.exp(-a[:, 2:]))
F.softmin(a, 1) | np.exp(-a) / np.exp(-a).sum(1, keepdims=True)
F.normalize(a) | a / np.linalg.norm(a, axis=1, keepdims=True)
F.cosine_similarity(a, b) | (a * b).sum(1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)
F.pairwise_distance(a, b) | np.linalg.norm(a - b + 1e-6, axis=1)
F.group_norm(a, 2) | ((a.reshape(3, 2, 2) - a.reshape(3, 2, 2).mean(2, keepdims=True)) / np.sqrt(a.reshape(3, 2, 2).var(2, keepdims=True) + 1e-5)).reshape(3, 4)
F.batch_norm(a, None, None, training=True) | (a - a.mean(0)) / np.sqrt(a.var(0) + 1e-5)
F.bilinear(a, b, tg.ones(2, 4, 4).double())[:, 0] | a.sum(1) * b.sum(1)
F.mse_loss(a, b) | ((a - b) ** 2).mean()
F.huber_loss(a, b, "none", 0.5) | np.where(np.abs(a - b) < 0.5, (a - b) ** 2 / 2, 0.5 * (np.abs(a - b) - 0.25))
F.smooth_l1_loss(a, b, "none", 0.5) | np.where(np.abs(a - b) < 0.5, (a - b) ** 2, np.abs(a - b) - 0.25)
F.binary_cross_entropy(s, u * u) | -(u * u * np.log(s) + (1 - u * u) * np.log(1 - s)).mean()
F.binary_cross_entropy_with_logits(a, p) | -(p * np.log(s) + (1 - p) * np.log(1 - s)).mean()
F.kl_div(a, p, "batchmean") | (p * (np.log(p) - a)).sum() / 3
F.nll_loss(a, tg.tensor([1, 3, 0])) | -(a[0, 1] + a[1, 3] + a[2, 0]) / 3
F.one_hot(tg.tensor([2, 0])) | np.array([[0, 0, 1], [1, 0, 0]])
F.pad(a, (1, 2), "reflect") | np.pad(a, ((0, 0), (1, 2)), "reflect")
F.pad(a, (1, 2), "replicate") | np.pad(a, ((0, 0), (1, 2)), "edge")
F.pad(a, (1, 2), "circular") | np.pad(a, ((0, 0), (1, 2)), "wrap")
F.pad(a, (-1, 2, 1, 0), value=4.0) | np.pad(a[:, 1:], ((1, 0), (0, 2)), constant_values=4.0)
"""


@pytest.mark.parametrize("line", [line for line in TABLE.splitlines() if line])
def test_values(line: str) -> None:
    mine, theirs = line.split(" | ")
    arrays = {"a": A, "b": B, "p": P, "u": U, "s": S}
    tensors = {name: tg.tensor(x) for name, x in arrays.items()}
    function, _, rest = mine.partition("(")
    out = eval(
        f"{'' if function.startswith('F.') else 'tg.'}{function}({rest}", {"tg": tg, "F": F, "u": U, "p": P, **tensors}
    )
    wanted = np.asarray(eval(theirs, {"np": np, "math": math, **arrays}))
    assert out.shape == wanted.shape and (out.dtype.kind == wanted.dtype.kind)
    np.testing.assert_allclose(out.numpy(), wanted, rtol=1e-11, atol=1e-13)


REDUCE = {"sum": np.sum, "prod": np.prod, "mean": np.mean, "amax": np.max, "amin": np.min}


@pytest.mark.parametrize("include_self", [True, False])
@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("reduce", REDUCE)
def test_scatter_reduce(reduce: str, dim: int, include_self: bool) -> None:
    """Against a loop over the places."""
    generator = np.random.default_rng(dim)
    index, src = generator.integers(0, 3, (3, 4)), B
    wanted = A.copy()
    for place in itertools.product(range(3), range(4)):
        sent = [
            src[i, j]
            for i, j in itertools.product(range(3), range(4))
            if (index[i, j], j) == place and dim == 0 or (i, index[i, j]) == place and dim == 1
        ]
        if sent:
            wanted[place] = REDUCE[reduce](sent + [A[place]] * include_self)
    x, i, s = tg.tensor(A), tg.tensor(index), tg.tensor(src)
    np.testing.assert_allclose(
        x.scatter_reduce(dim, i, s, reduce, include_self=include_self).numpy(), wanted, rtol=1e-12
    )
    if reduce == "sum" and include_self:
        np.testing.assert_allclose(x.scatter_add(dim, i, s).numpy(), wanted, rtol=1e-12)


def test_writing_at_indices() -> None:
    """The scatter family and its relatives, against numpy's assignment."""
    x, b = tg.tensor(A), tg.tensor(B)
    wanted = A.copy()
    wanted[:, [2, 0]] = B[:, :2]
    np.testing.assert_array_equal(x.index_copy(1, tg.tensor([2, 0]), b[:, :2]).numpy(), wanted)
    wanted = A.copy()
    np.add.at(wanted, (slice(None), [2, 2]), 2 * B[:, :2])
    np.testing.assert_allclose(x.index_add(1, tg.tensor([2, 2]), b[:, :2], alpha=2).numpy(), wanted)
    wanted = A.copy()
    wanted[[0, 2]] = 7.0
    np.testing.assert_array_equal(x.index_fill(0, tg.tensor([0, 2]), 7.0).numpy(), wanted)
    wanted = A.copy()
    wanted[A > 0] = B.ravel()[: (A > 0).sum()]
    np.testing.assert_array_equal(x.masked_scatter(x > 0, b).numpy(), wanted)
    wanted = A.copy()
    wanted[:, 1] = B[:, 0]
    np.testing.assert_array_equal(x.select_scatter(b[:, 0], 1, 1).numpy(), wanted)
    wanted = A.copy()
    wanted[:, ::2] = B[:, :2]
    np.testing.assert_array_equal(x.slice_scatter(b[:, :2], 1, 0, 4, 2).numpy(), wanted)
    wanted = A.copy()
    for i, j in itertools.product(range(2), range(2)):
        wanted[i, [[3, 0], [1, 2]][i][j]] = B[i, j]
    np.testing.assert_array_equal(x.scatter(1, tg.tensor([[3, 0], [1, 2]]), b).numpy(), wanted)
    wanted = A.copy()
    np.add.at(wanted, ([0, 0, 2], [1, 1, 3]), B[0, :3])
    put = x.index_put((tg.tensor([0, 0, 2]), tg.tensor([1, 1, 3])), b[0, :3], accumulate=True)
    np.testing.assert_allclose(put.numpy(), wanted)


def test_second_derivatives_far_from_zero() -> None:
    """A running sum of exponentials that begins very small is differentiable twice."""
    x = tg.tensor([-2000.0, 0.0, 0.5], dtype=np.float64, requires_grad=True)
    (g,) = tg.grad(tg.logcumsumexp(x, 0).sum(), x, create_graph=True)
    (gg,) = tg.grad((g * g).sum(), x)
    assert np.isfinite(gg.numpy()).all() and abs(gg[1].item()) > 0
