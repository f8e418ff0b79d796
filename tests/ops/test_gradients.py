"""First and second derivatives of every operation, against central differences with random cotangents."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tinygrad_tf as tg
from tinygrad_tf.nn import functional as F

Array = np.ndarray[Any, np.dtype[Any]]


def layouts(array: Array) -> dict[str, tg.Tensor]:
    """The same values in memory of several orders."""
    found = {"plain": array.copy()}
    if array.ndim >= 2:
        found["transposed"] = np.ascontiguousarray(array.T).T
    if array.ndim >= 1 and array.size:
        doubled = np.zeros((*array.shape[:-1], array.shape[-1] * 2))
        doubled[..., ::2] = array
        found["sliced"] = doubled[..., ::2]
        found["backwards"] = array[::-1].copy()[::-1]
        frozen = array.copy()
        frozen.flags.writeable = False
        found["read-only"] = frozen
    return {name: tg.from_numpy(a).requires_grad_() for name, a in found.items()}


def positive(shape: tuple[int, ...], seed: int = 0) -> Array:
    """Distinct numbers in (0.3, 2.3), so that no two of them tie and none is near a kink."""
    n = int(np.prod(shape))
    steps = np.random.default_rng(seed).permutation(n) / max(n, 1)
    return np.asarray(0.3 + 2.0 * steps).reshape(shape)


def signed(shape: tuple[int, ...], seed: int = 0) -> Array:
    """Distinct numbers of both signs, at least 0.1 from zero and from each other's negatives."""
    values = positive(shape, seed)
    signs = np.where(np.random.default_rng(seed + 1).random(shape) < 0.5, -1.0, 1.0)
    return np.asarray(values * signs)


UNARY: dict[str, tuple[Callable[..., Array], Callable[[Any], Any]]] = {
    "identity": (signed, lambda x: x.clone()),
    "neg": (signed, tg.neg),
    "reciprocal": (signed, tg.reciprocal),
    "square": (signed, tg.square),
    "sqrt": (positive, tg.sqrt),
    "rsqrt": (positive, tg.rsqrt),
    "abs": (signed, tg.abs),
    "exp": (signed, tg.exp),
    "expm1": (signed, tg.expm1),
    "log": (positive, tg.log),
    "log1p": (positive, tg.log1p),
    "sin": (signed, tg.sin),
    "cos": (signed, tg.cos),
    "tanh": (signed, tg.tanh),
    "sigmoid": (signed, tg.sigmoid),
    "erf": (signed, tg.erf),
    "relu": (signed, tg.relu),
    "clamp": (signed, lambda x: tg.clamp(x, -1.05, 0.95)),
    "clamp_low": (signed, lambda x: tg.clamp(x, min=-0.55)),
    "clamp_high": (signed, lambda x: tg.clamp(x, max=0.55)),
    "pow2": (signed, lambda x: x**2),
    "pow3": (signed, lambda x: x**3),
    "pow_half": (positive, lambda x: x**0.5),
    "pow_minus": (positive, lambda x: x**-1.5),
    "base": (signed, lambda x: 2.0**x),
    "scalar_minus": (signed, lambda x: 1.5 - x),
    "scalar_over": (signed, lambda x: 1.5 / x),
    "masked_fill": (signed, lambda x: tg.masked_fill(x, x.detach() > 0.5, -7.0)),
    "where_scalar": (signed, lambda x: tg.where(x.detach() > 0, x, 0.0) * x),
    "gelu": (signed, lambda x: F.gelu(x)),
    "gelu_tanh": (signed, lambda x: F.gelu(x, approximate="tanh")),
    "silu": (signed, lambda x: F.silu(x)),
    "var": (signed, lambda x: tg.var(x, correction=0)),
    "sum": (signed, lambda x: tg.sum(x * x)),
    "mean": (signed, lambda x: tg.mean(x * x * x)),
    "flatten": (signed, lambda x: tg.flatten(x * x)),
    "logsumexp": (signed, lambda x: tg.logsumexp(x, -1)),
    "softmax": (signed, lambda x: tg.softmax(x, -1)),
    "log_softmax": (signed, lambda x: tg.log_softmax(x, -1)),
    "cumsum": (signed, lambda x: tg.cumsum(x * x, -1)),
}
SHAPES = [(), (1,), (3,), (2, 3), (2, 1, 3), (0,), (2, 0)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("name", UNARY)
def test_unary(name: str, shape: tuple[int, ...]) -> None:
    make, function = UNARY[name]
    if name in ("logsumexp", "mean", "var") and 0 in shape:
        pytest.skip("no elements to reduce")
    for layout, x in layouts(make(shape)).items():
        assert tg.gradcheck(function, [x], mode="fast"), layout
    x = tg.from_numpy(make(shape, 5)).requires_grad_()
    assert tg.gradcheck(function, [x])
    assert tg.gradgradcheck(function, [x])


BINARY: dict[str, tuple[Callable[..., Array], Callable[..., Any]]] = {
    "add": (signed, lambda a, b: a + b),
    "sub": (signed, lambda a, b: a - b),
    "mul": (signed, lambda a, b: a * b),
    "div": (signed, lambda a, b: a / b),
    "pow": (positive, lambda a, b: a**b),
    "maximum": (signed, tg.maximum),
    "minimum": (signed, tg.minimum),
    "max_binary": (signed, lambda a, b: tg.max(a, b) * a),
    "where": (signed, lambda a, b: tg.where((a * b).detach() > 0, a * b, a - b)),
    "remainder": (positive, lambda a, b: tg.remainder(a * 7.3, b)),
}
PAIRS = [
    ((), ()), ((3,), ()), ((), (2, 3)), ((3, 1), (1, 4)), ((5, 4), (4,)), ((1, 1), (3,)), ((2, 1, 4, 2), (2, 1, 4, 1)),
    ((1,), (1,)), ((2, 3), (2, 3)), ((0, 3), (1, 3)), ((2, 0), (2, 1)), ((2, 0), ()),
]  # fmt: skip


@pytest.mark.parametrize("shapes", PAIRS, ids=str)
@pytest.mark.parametrize("name", BINARY)
def test_binary(name: str, shapes: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    """BC-22: gradients come back in the shapes of the inputs, whatever was broadcast."""
    make, function = BINARY[name]
    a, b = (tg.from_numpy(make(s, 10 * i)).requires_grad_() for i, s in enumerate(shapes))
    b = tg.from_numpy(np.asarray(b.numpy() * 1.0371 + 0.0123)).requires_grad_()  # never equal to an element of a
    assert tg.gradcheck(function, [a, b])
    assert tg.gradgradcheck(function, [a, b])
    out = function(a, b)
    ga, gb = tg.grad(out, [a, b], np.ones(out.shape))
    assert ga.shape == a.shape and gb.shape == b.shape


def test_bc22_values() -> None:
    """BC-22: the gradients by hand."""
    a = tg.tensor([[1.0], [2.0], [3.0]], requires_grad=True)
    b = tg.tensor([[1.0, 2.0, 3.0, 4.0]], requires_grad=True)
    (a * b).sum().backward()
    assert a.grad.tolist() == [[10.0]] * 3 and b.grad.tolist() == [[6.0] * 4]
    s = tg.tensor(3.0, requires_grad=True)
    (s * tg.ones(2)).sum().backward()
    assert s.grad.shape == () and s.grad.item() == 2.0
    c = tg.zeros(4, requires_grad=True)
    (tg.ones(5, 4) + c).sum().backward()
    assert c.grad.tolist() == [5.0] * 4
    d = tg.zeros(4, requires_grad=True)
    e = tg.ones(5, 4)
    e += d
    e.sum().backward()
    assert d.grad.tolist() == [5.0] * 4


DIMS: list[tuple[tuple[int, ...], Any]] = [
    ((), None), ((3,), 0), ((2, 3), None), ((2, 3), 0), ((2, 3), -1), ((2, 3, 4), 1), ((2, 3, 4), (0, 2)),
    ((2, 3, 4), (-1, 0)), ((2, 3), ()), ((0, 3), 0), ((0, 3), 1),
]  # fmt: skip
REDUCTIONS: dict[str, Callable[..., Any]] = {
    "sum": lambda x, d, k: tg.sum(x * x, d, k),
    "mean": lambda x, d, k: tg.mean(x * x, d, k),
    "var0": lambda x, d, k: tg.var(x, d, correction=0, keepdim=k),
    "std0": lambda x, d, k: tg.std(x, d, correction=0, keepdim=k),
    "norm": lambda x, d, k: tg.norm(x, dim=d, keepdim=k),
    "norm1": lambda x, d, k: tg.norm(x, 1, d, k),
    "norm3": lambda x, d, k: tg.norm(x, 3, d, k),
    "amax": lambda x, d, k: tg.amax(x * x * 0.5, d, k),
    "amin": lambda x, d, k: tg.amin(x * x * 0.5, d, k),
    "logsumexp": lambda x, d, k: tg.logsumexp(x, d, k),
}


@pytest.mark.parametrize("keepdim", [False, True])
@pytest.mark.parametrize(("shape", "dim"), DIMS, ids=str)
@pytest.mark.parametrize("name", REDUCTIONS)
def test_reductions(name: str, shape: tuple[int, ...], dim: Any, keepdim: bool) -> None:
    """BC-84: sums and their relatives over every kind of dim."""
    if 0 in shape and (name in ("amax", "amin", "logsumexp", "std0", "var0", "mean") and dim == 0):
        pytest.skip("nothing to reduce")
    if name == "std0" and (dim == () or shape == ()):
        pytest.skip("a kink at zero")
    x = tg.from_numpy(signed(shape)).requires_grad_()

    def function(x: Any) -> Any:
        return REDUCTIONS[name](x, dim, keepdim)

    expected = np.sum(signed(shape), axis=None if dim is None else dim, keepdims=keepdim).shape
    assert function(x).shape == expected
    assert tg.gradcheck(function, [x])
    assert tg.gradgradcheck(function, [x])


ALONG: dict[str, Callable[..., Any]] = {
    "max": lambda x, d, k: tg.max(x * x * 0.5, d, k)[0],
    "min": lambda x, d, k: tg.min(x * x * 0.5, d, k)[0],
    "prod": lambda x, d, k: tg.prod(x, d, k),
    "cumsum": lambda x, d, k: tg.cumsum(x * x, d),
    "flip": lambda x, d, k: tg.flip(x * x, d) * x,
    "softmax": lambda x, d, k: tg.softmax(x, d),
    "log_softmax": lambda x, d, k: tg.log_softmax(x, d),
}


@pytest.mark.parametrize(("shape", "dim"), [((3,), 0), ((2, 3), 0), ((2, 3), -1), ((2, 3, 2), 1), ((1, 1), 0)], ids=str)
@pytest.mark.parametrize("keepdim", [False, True])
@pytest.mark.parametrize("name", ALONG)
def test_along_one_axis(name: str, shape: tuple[int, ...], dim: int, keepdim: bool) -> None:
    x = tg.from_numpy(signed(shape)).requires_grad_()
    assert tg.gradcheck(lambda x: ALONG[name](x, dim, keepdim), [x])
    assert tg.gradgradcheck(lambda x: ALONG[name](x, dim, keepdim), [x])


MOVES: dict[str, Callable[[Any], Any]] = {
    "reshape": lambda x: x.reshape(4, 6),
    "reshape_minus": lambda x: x.reshape(-1, 2),
    "view": lambda x: x.view(24),
    "permute": lambda x: x.permute(2, 0, 1),
    "permute_neg": lambda x: x.permute(-1, 0, -2),
    "transpose": lambda x: x.transpose(0, -1),
    "T": lambda x: x.T,
    "mT": lambda x: x.mT,
    "unsqueeze": lambda x: x.unsqueeze(-1),
    "squeeze": lambda x: x.unsqueeze(1).squeeze(1),
    "flatten": lambda x: x.flatten(1),
    "expand": lambda x: x.unsqueeze(0).expand(3, -1, -1, -1),
    "narrow": lambda x: x.narrow(1, 1, 2),
    "split": lambda x: x.split([1, 2], 1)[1],
    "split2": lambda x: list(x.split(2, 1)),
    "chunk": lambda x: list(x.chunk(3, -1)),
    "unbind": lambda x: list(x.unbind(1)),
    "cat": lambda x: tg.cat([x, x * 2, x[:, :1]], 1),
    "cat_neg": lambda x: tg.cat([x, x * x], -1),
    "stack": lambda x: tg.stack([x, x * x], 1),
    "tril": lambda x: x.tril(),
    "triu": lambda x: x.triu(1),
    "index_int": lambda x: x[1],
    "index_full": lambda x: x[1, 2, 3],
    "index_slice": lambda x: x[:, ::2, ::-1],
    "index_none": lambda x: x[:, None, ..., 1],
    "index_array": lambda x: x[[1, 0, 1, 1]],
    "index_tensor": lambda x: x[:, tg.tensor([[0, 2], [2, 2]])],
    "index_two": lambda x: x[[0, 1, 1], :, [3, 0, 0]],
    "index_mask": lambda x: x[np.arange(24).reshape(2, 3, 4) % 3 == 0],
    "index_empty": lambda x: x[:, 1:1],
    "gather": lambda x: tg.gather(x, 1, tg.tensor(np.array([[[0, 1, 2, 2], [2, 2, 0, 1]]]))),
    "take_along": lambda x: tg.take_along_dim(x, tg.tensor(np.array([[[0, 1, 3], [3, 3, 0], [1, 2, 2]]] * 2)), 2),
    "iter": lambda x: [a * b for a in x for b in a],
    "to_float64": lambda x: x.to(np.float64),
}


@pytest.mark.parametrize("name", MOVES)
def test_moves(name: str) -> None:
    def function(x: Any) -> Any:
        return MOVES[name](x)

    for layout, x in layouts(signed((2, 3, 4))).items():
        assert tg.gradcheck(function, [x], mode="fast"), layout
    x = tg.from_numpy(signed((2, 3, 4))).requires_grad_()
    assert tg.gradcheck(function, [x])
    assert tg.gradgradcheck(
        lambda x: [o * o for o in ([function(x)] if isinstance(function(x), tg.Tensor) else function(x))], [x]
    )


PRODUCTS = [
    ((3,), (3,)), ((3, 3), (3,)), ((3,), (3, 2)), ((2, 3), (3, 4)), ((2, 3, 4), (4, 5)), ((4,), (2, 4, 5)),
    ((2, 1, 3, 4), (3, 4, 2)), ((2, 3, 4), (4,)), ((3, 4), (2, 4, 2)), ((3, 0), (0, 2)), ((0, 3), (3, 2)), ((1, 1), (1, 1)),
    ((2, 0, 3), (3, 2)), ((0, 2, 3), (3, 2)), ((0,), (0,)),
]  # fmt: skip


@pytest.mark.parametrize("shapes", PRODUCTS, ids=str)
def test_matmul(shapes: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    """BC-21: one axis, many axes, broadcast batches, nothing at all."""
    a, b = (tg.from_numpy(signed(s, i)).requires_grad_() for i, s in enumerate(shapes))
    out = tg.matmul(a, b)
    np.testing.assert_allclose(out.numpy(), np.matmul(a.numpy(), b.numpy()), rtol=1e-12, atol=1e-14)
    assert tg.gradcheck(tg.matmul, [a, b])
    assert tg.gradgradcheck(tg.matmul, [a, b])
    for x in layouts(signed(shapes[0])).values():
        for y in layouts(signed(shapes[1], 1)).values():
            assert tg.gradcheck(tg.matmul, [x, y], mode="fast")


def test_bc21_values() -> None:
    """BC-21: the gradients by hand."""
    a = tg.tensor(np.arange(9.0).reshape(3, 3), requires_grad=True)
    b = tg.tensor([1.0, 2.0, 3.0], dtype=np.float64, requires_grad=True)
    (a @ b).backward(np.array([1.0, 10.0, 100.0]))
    assert a.grad.tolist() == [[1, 2, 3], [10, 20, 30], [100, 200, 300]] and b.grad.tolist() == [630, 741, 852]
    a = tg.tensor([1.0, 2.0, 3.0], requires_grad=True)
    b = tg.tensor(np.arange(6, dtype=np.float32).reshape(3, 2), requires_grad=True)
    (a @ b).backward(tg.tensor([1.0, 10.0]))
    assert a.grad.tolist() == [10, 32, 54] and b.grad.tolist() == [[1, 10], [2, 20], [3, 30]]
    a = tg.tensor([1.0, 2.0, 3.0], requires_grad=True)
    (a @ a).backward()
    assert a.grad.tolist() == [2, 4, 6]


def test_setitem_gradients() -> None:
    """Writing a part replaces its history: the old values get no gradient, the new ones theirs."""

    def function(x: Any, v: Any) -> Any:
        y = x * x
        y[1] = v * v
        y[:, 0] = 2 * v[0]
        y[[0, 0], [1, 2]] = v[:2]
        return y * y

    x = tg.from_numpy(signed((2, 3))).requires_grad_()
    v = tg.from_numpy(signed((3,), 3)).requires_grad_()
    assert tg.gradcheck(function, [x, v])
    assert tg.gradgradcheck(function, [x, v])


def test_the_gradient_of_another_dtype_comes_back_in_the_own_one() -> None:
    """BC-01: float32 to float64 and back: the gradient passes as it is, in its input's dtype."""
    for start, end in ((np.float32, np.float64), (np.float64, np.float32)):
        x = tg.tensor(np.array([0.5, -1.0, 2.0], start), requires_grad=True)
        (g,) = tg.grad(x.to(end), x, tg.tensor(np.array([1.0, 2.0, -3.0], end)))
        assert g.dtype == start and g.tolist() == [1.0, 2.0, -3.0]
