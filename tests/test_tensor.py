"""Tensor: dtypes, numpy's side of an operator, memory, indexing, and the cases where frameworks go wrong."""

from __future__ import annotations

import copy
import math
import pickle
from typing import Any

import numpy as np
import pytest

import tinygrad_tf as tg
from tinygrad_tf.nn import functional as F


def leaf(*values: float) -> Any:
    return tg.tensor([float(v) for v in values], requires_grad=True)


def gradient(f: Any, x: Any) -> Any:
    (g,) = tg.grad(f(x), x)
    return g.numpy()


@pytest.mark.parametrize(
    "operand",
    [2, 2.0, True, np.sqrt(64), np.float64(2), np.int64(3), np.array(2.0), np.arange(1, 3), np.ones(2), np.array([True, True]),
     tg.tensor([1, 2]), tg.tensor([True, False])],
    ids=repr,
)  # fmt: skip
def test_bc01_float32_stays_float32(operand: Any) -> None:
    """BC-01: no operand turns float32 into float64, forward, backward or in a second derivative."""
    x = leaf(1, 2)
    for f in (lambda a, b: a + b, lambda a, b: a * b, lambda a, b: a - b, lambda a, b: tg.maximum(a, b),
              lambda a, b: tg.where(a > 1, a, b), lambda a, b: a**b, lambda a, b: b * a, lambda a, b: b - a):  # fmt: skip
        y = f(x, operand)
        assert y.dtype == np.float32
        (g,) = tg.grad(y.sum(), x, create_graph=True)
        assert g.dtype == np.float32
        (h,) = tg.grad((g * x).sum(), x)
        assert h.dtype == np.float32
    z = tg.ones(2)
    z *= operand
    assert z.dtype == np.float32


def test_bc01_promotion_of_tensors() -> None:
    """BC-01: Tensor with Tensor promotes, and each gradient has its own input's dtype."""
    a, b = leaf(1, 2), tg.tensor(np.ones(2), requires_grad=True)
    y = a * b
    assert y.dtype == np.float64
    y.sum().backward()
    assert a.grad.dtype == np.float32 and b.grad.dtype == np.float64
    assert (tg.tensor([1, 2]) * 0.5).dtype == np.float32 and (tg.tensor([1, 2]) / 2).dtype == np.float32
    assert tg.tensor([1, 2]).mean().dtype == np.float32 and tg.tensor([1, 2]).sum().dtype == np.int64
    assert tg.tensor([1, 2]).sqrt().dtype == np.float32


def test_bc02_numpy_on_the_left() -> None:
    """BC-02: one Tensor, never an object array."""
    t = leaf(1, 2, 3)
    a = np.array([1.0, 2.0, 3.0])
    for made in (np.ones(3) * t, np.float32(2) * t, np.eye(3) @ t, a - t, a / t, a**t, a < t, np.float64(3) + t):
        assert isinstance(made, tg.Tensor) and made.shape == (3,)
    assert gradient(lambda t: (a * t).sum(), t).tolist() == [1, 2, 3]
    b = np.ones(3)
    try:
        b += t
    except TypeError:
        pass
    assert isinstance(b, tg.Tensor) or b.dtype != object


def test_bc15_ties() -> None:
    """BC-15: the total stays what came in; even over everything, the first along an axis."""
    assert gradient(lambda x: x.min(), leaf(1, 1, 2, 3)).tolist() == [0.5, 0.5, 0, 0]
    assert gradient(lambda x: x.min(0)[0], leaf(1, 1, 2, 3)).tolist() == [1, 0, 0, 0]
    assert gradient(
        lambda x: x.max(-1).values if hasattr(x.max(-1), "values") else x.max(-1)[0], leaf(3, 1, 3)
    ).tolist() == [1, 0, 0]
    a, b = leaf(2), leaf(2)
    tg.maximum(a, b).backward()
    assert a.grad.item() == b.grad.item() == 0.5
    x = tg.ones(1000, requires_grad=True)
    assert gradient(lambda x: x.amax(), x).sum() == pytest.approx(1)
    assert math.isnan(tg.tensor([1.0, float("nan")]).max().item())


def test_bc17_products_with_zeros() -> None:
    """BC-17: the gradient is the product of the others, not prod / x."""
    for values, expected in (([0, 2, 3], [6, 0, 0]), ([0, 0, 3], [0, 0, 0]), ([2, 0, 3, 4], [0, 24, 0, 0]), ([5], [1])):
        assert gradient(lambda x: x.prod(), leaf(*values)).tolist() == expected
        assert gradient(lambda x: x.prod(0), leaf(*values)).tolist() == expected
    assert tg.zeros(1).prod(0, True).shape == (1,)


def test_bc18_norm_at_zero() -> None:
    """BC-18: subgradient 0; plain sqrt keeps its infinite slope."""
    assert gradient(lambda x: x.norm(), leaf(0, 0, 0)).tolist() == [0, 0, 0]
    assert gradient(lambda x: tg.exp(-(x.norm() ** 2)), leaf(0, 0)).tolist() == [0, 0]
    assert gradient(lambda x: tg.sqrt(x), leaf(0)).tolist() == [math.inf]


def test_bc19_ignored_targets() -> None:
    """BC-19: nothing to average is 0 with zero gradient; ignored rows cannot poison."""
    logits = tg.tensor([[1.0, 2, 3], [4, 5, 6]], requires_grad=True)
    loss = F.cross_entropy(logits, tg.tensor([-100, -100]))
    loss.backward()
    assert loss.item() == 0 and not logits.grad.numpy().any()
    for reference in (False, True):
        bad = tg.tensor([[1.0, 2, 3], [-math.inf] * 3, [math.nan, 0, 0]], requires_grad=True)
        if reference:
            with tg.reference():
                loss = F.cross_entropy(bad, tg.tensor([2, -100, -100]))
        else:
            loss = F.cross_entropy(bad, tg.tensor([2, -100, -100]))
        loss.backward()
        assert loss.item() == pytest.approx(0.407606, abs=1e-6)
        np.testing.assert_allclose(bad.grad.numpy(), [[0.090031, 0.244728, -0.334759], [0] * 3, [0] * 3], atol=1e-6)
    x = tg.tensor([[1.0, 2, 3], [3, 2, 1]])
    both = F.cross_entropy(x, tg.tensor([0, 1]), ignore_index=0)
    assert both.item() == pytest.approx(F.cross_entropy(x[1:], tg.tensor([1])).item())


def test_bc20_smoothing_and_ignoring() -> None:
    """BC-20: the uniform part neither counts ignored rows nor is divided by them."""
    x = tg.tensor(np.array([[1.0, 2, 3], [3, 1, 0], [0, 0, 5]]), requires_grad=True)
    targets = tg.tensor([2, -100, 0])
    loss = F.cross_entropy(x, targets, label_smoothing=0.1)
    loss.backward()
    assert loss.item() == pytest.approx(2.677162600, abs=1e-8)
    expected = [[0.028349, 0.105698, -0.134046], [0, 0, 0], [-0.463342, -0.013342, 0.476685]]
    np.testing.assert_allclose(x.grad.numpy(), expected, atol=1e-6)
    assert F.cross_entropy(x, targets).item() == pytest.approx(2.710495933, abs=1e-8)
    y = tg.tensor([[0.0, -math.inf, 1.0]], requires_grad=True)
    loss = F.cross_entropy(y, tg.tensor([2]))
    loss.backward()
    assert loss.item() == pytest.approx(0.313262, abs=1e-6)
    np.testing.assert_allclose(y.grad.numpy(), [[0.268941, 0, -0.268941]], atol=1e-6)
    assert F.cross_entropy(y, tg.tensor([2]), label_smoothing=0.1).item() == math.inf


def test_bc24_long_sums() -> None:
    """BC-24: a million float32 keep their digits, over all, over rows, and in a bias gradient."""
    value = np.float32(1 / 255)
    x = tg.full((1000000,), value, dtype=np.float32)
    assert x.sum().item() == pytest.approx(3921.5688594, rel=1e-6)
    assert x.mean().item() == pytest.approx(float(value), rel=1e-6)
    tall = tg.full((65536, 3), value, dtype=np.float32)
    np.testing.assert_allclose(tall.sum(0).numpy(), 65536 * float(value), rtol=1e-6)
    bias = tg.zeros(3, requires_grad=True)
    (tall + bias).backward(np.full((65536, 3), value))
    np.testing.assert_allclose(bias.grad.numpy(), 65536 * float(value), rtol=1e-6)


def test_bc40_repeated_ids() -> None:
    """BC-40: rows add up."""
    w = tg.zeros(3, 2, requires_grad=True)
    up = np.arange(1, 13, dtype=np.float32).reshape(2, 3, 2)
    F.embedding(tg.tensor([[1, 1, 1], [0, 1, 2]]), w).backward(up)
    assert w.grad.tolist() == [[7, 8], [18, 22], [11, 12]]
    many = tg.zeros(2, 3, requires_grad=True)
    F.embedding(tg.zeros(100000, dtype=np.int64), many).sum().backward()
    assert many.grad.tolist() == [[100000] * 3, [0] * 3]
    w = tg.ones(3, 2, requires_grad=True)
    F.embedding(tg.tensor([0, 1, 1]), w, padding_idx=1).sum().backward()
    assert w.grad.tolist() == [[1, 1], [0, 0], [0, 0]]


@pytest.mark.parametrize("ids", [[[0, 5]], [[0, -1]]])
def test_bc13_bad_ids(ids: Any) -> None:
    """BC-13: refused in the forward, with the value and the limit."""
    with pytest.raises(IndexError, match=rf"0 to 4.*got {ids[0][1]}"):
        F.embedding(tg.tensor(ids), tg.ones(5, 2))
    with pytest.raises(IndexError, match="0 to 4"):
        F.cross_entropy(tg.ones(2, 5), tg.tensor(ids[0]))


def test_bc47_infinities() -> None:
    """BC-47: -inf among the logits, and alone."""
    inf = math.inf
    for dim, shape in ((-1, (3,)), (0, (3, 1))):
        x = tg.tensor(np.array([-inf, 0, -inf]).reshape(shape), requires_grad=True)
        y = tg.softmax(x, dim)
        assert y.numpy().reshape(-1).tolist() == [0, 1, 0]
        y.backward(np.array([1.0, 2, 3]).reshape(shape))
        assert x.grad.numpy().reshape(-1).tolist() == [0, 0, 0]
    x = leaf(-inf, -inf)
    y = tg.logsumexp(x, 0)
    y.backward()
    assert y.item() == -inf and x.grad.tolist() == [0, 0]
    one = leaf(5)
    tg.softmax(one, 0).backward()
    assert one.grad.tolist() == [0]
    assert tg.logsumexp(tg.tensor([1000.0, 1000.0]), 0).item() == pytest.approx(1000.6931, abs=1e-3)


def test_bc49_kinks() -> None:
    """BC-49: relu'(0) = abs'(0) = 0, clamp's bounds inside, NaN stays NaN."""
    assert gradient(lambda x: tg.relu(x).sum(), leaf(0, -0.0, 1, -1)).tolist() == [0, 0, 1, 0]
    assert gradient(lambda x: x.abs().sum(), leaf(0, -2, 2)).tolist() == [0, -1, 1]
    assert gradient(lambda x: x.clamp(0, 1).sum(), leaf(0, 1, 2, -1, 0.5)).tolist() == [1, 1, 0, 0, 1]
    assert gradient(lambda x: tg.maximum(x, 0).sum(), leaf(0, 1)).tolist() == [0.5, 1]
    assert math.isnan(tg.relu(tg.tensor([math.nan])).item())
    assert gradient(lambda x: tg.sign(x).sum() + x.sum(), leaf(0, 1)).tolist() == [1, 1]


def test_bc50_variance_of_one() -> None:
    """BC-50: unbiased is NaN, biased 0; std of constants has gradient 0; shapes are kept."""
    x = leaf(5)
    assert math.isnan(x.var().item())
    g = gradient(lambda x: x.var(), x)
    assert g.shape == (1,) and math.isnan(g[0])
    assert x.var(correction=0).item() == 0 and gradient(lambda x: x.var(correction=0), x).tolist() == [0]
    assert gradient(lambda x: x.std(), leaf(1, 1, 1)).tolist() == [0, 0, 0]
    assert gradient(lambda x: x.var(correction=0), tg.ones(1, 1, requires_grad=True)).shape == (1, 1)


def test_bc66_reseeding() -> None:
    """BC-66: the same mask after reseeding, on any number of threads, and from a saved state."""
    x, before = tg.ones(300, 300), tg.get_num_threads()
    masks = []
    try:
        for threads in (1, 2, before):
            tg.set_num_threads(threads)
            tg.manual_seed(0)
            masks.append(F.dropout(x, 0.5, True).numpy())
    finally:
        tg.set_num_threads(before)
    state = tg.get_rng_state()
    following = F.dropout(x, 0.5, True).numpy()
    tg.set_rng_state(state)
    assert (F.dropout(x, 0.5, True).numpy() == following).all()
    assert (masks[0] == masks[1]).all() and (masks[0] == masks[2]).all() and (masks[0] != following).any()


def test_bc84_sums_and_means() -> None:
    """BC-84: keepdim, several axes, none, twice the same, integers."""
    x = tg.ones(2, 3, requires_grad=True)
    (x.mean(0, True) @ (10 * tg.ones(3, 1))).sum().backward()
    assert x.grad.tolist() == [[5] * 3] * 2
    y = tg.randn(2, 3, 4)
    np.testing.assert_allclose(y.mean((0, 2)).numpy(), y.numpy().mean((0, 2)), rtol=1e-5, atol=1e-6)
    assert (y.mean(()).numpy() == y.numpy()).all() and y.sum((-1, 0)).shape == (3,)
    with pytest.raises(ValueError, match="twice"):
        y.sum((0, -3))
    with pytest.raises(IndexError, match="dim must be from -3 to 2"):
        y.sum(3)
    assert tg.tensor(2.0).mean().item() == 2 and tg.tensor(2.0).sum(0).shape == ()
    with pytest.raises(RuntimeError, match="float"):
        tg.tensor([1, 2], requires_grad=True)


def test_memory_rules() -> None:
    a = np.ones(3, np.float32)
    t, shared = tg.tensor(a), tg.from_numpy(a)
    a[0] = 7
    assert t.tolist() == [1, 1, 1] and shared.tolist() == [7, 1, 1] and np.shares_memory(shared.numpy(), a)
    x = leaf(1, 2)
    with pytest.raises(ValueError):
        x.numpy()[0] = 5
    d = x.data
    d[0] = 5
    assert x.tolist() == [5, 2] and not d.requires_grad
    y = x * x
    x.data.fill_(1.0)
    with pytest.raises(RuntimeError, match="changed in place"):
        y.sum().backward()
    assert np.asarray(x).tolist() == [1, 1] and np.from_dlpack(tg.ones(2)).tolist() == [1, 1]


def test_copies_and_pickles() -> None:
    x = leaf(1, 2)
    x.grad = tg.ones(2)
    other = copy.deepcopy(x)
    other.data.fill_(0)
    assert x.tolist() == [1, 2] and other.requires_grad and other.grad.tolist() == [1, 1]
    again = pickle.loads(pickle.dumps(x))
    assert again.tolist() == [1, 2] and again.requires_grad
    with pytest.raises(RuntimeError, match="leaves"):
        copy.deepcopy(x * 2)


def test_python_protocols() -> None:
    assert float(tg.tensor([2.0])) == 2 and int(tg.tensor(3)) == 3 and [1, 2, 3][tg.tensor(1)] == 2
    assert len(tg.ones(4, 2)) == 4 and [r.tolist() for r in tg.ones(2, 1)] == [[1], [1]]
    assert (tg.tensor([1, 2]) == tg.tensor([1, 3])).tolist() == [True, False] and 2 in tg.tensor([1, 2])
    with pytest.raises(ValueError, match="ambiguous"):
        bool(tg.ones(2))
    with pytest.raises(TypeError):
        len(tg.tensor(1.0))
    with pytest.raises(TypeError):
        iter(tg.tensor(1.0))
    with pytest.raises(TypeError):
        tg.ones(2) + "a"
    assert f"{tg.tensor(1.5):.2f}" == "1.50" and "grad_fn=<mul>" in repr(leaf(1) * 2)
    assert len({leaf(1), leaf(1)}) == 2


def test_dtypes_that_tensors_do_not_have() -> None:
    for make in (lambda: tg.tensor(np.ones(2, np.float16)), lambda: tg.ones(2).to(np.complex64),
                 lambda: tg.tensor(["a"]), lambda: tg.tensor(np.array([None]))):  # fmt: skip
        with pytest.raises(TypeError):
            make()
    with pytest.raises(ValueError):
        tg.tensor([[1, 2], [3]])
