"""Every fused operation against its definition: values, both orders of gradients, layouts, and what is recorded."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tinygrad_tf as tg
from tinygrad_tf import graph, models
from tinygrad_tf.nn import functional as F
from tinygrad_tf.ops.primitive import Fused

Array = np.ndarray[Any, np.dtype[Any]]
rng = np.random.default_rng(3)
IDS = np.array([[0, 3, 3], [6, 1, 3]])
TARGETS = np.array([2, -100, 0, 4])


def random(*shape: int) -> Array:
    return np.random.default_rng(sum(shape) + 7).standard_normal(shape)


FUSED: dict[str, tuple[list[Array], Callable[..., Any]]] = {
    "softmax": ([random(4, 9)], lambda x: tg.softmax(x, -1)),
    "softmax_first": ([random(4, 3, 5)], lambda x: tg.softmax(x, 0)),
    "softmax_one": ([random(3, 1)], lambda x: tg.softmax(x, -1)),
    "log_softmax": ([random(4, 9)], lambda x: tg.log_softmax(x, 1)),
    "log_softmax_middle": ([random(2, 5, 3)], lambda x: tg.log_softmax(x, 1)),
    "layer_norm": ([random(2, 3, 8), random(8), random(8) + 1], lambda x, w, b: F.layer_norm(x, (8,), w, b, 1e-5)),
    "layer_norm_bare": ([random(5, 7)], lambda x: F.layer_norm(x, (7,), None, None, 1e-5)),
    "rms_norm": ([random(2, 3, 8), random(8)], lambda x, w: F.rms_norm(x, (8,), w, 1e-6)),
    "rms_norm_bare": ([random(5, 7)], lambda x: F.rms_norm(x, (7,), None, 1e-6)),
    "gelu": ([random(3, 11)], lambda x: F.gelu(x)),
    "gelu_tanh": ([random(3, 11)], lambda x: F.gelu(x, approximate="tanh")),
    "silu": ([random(3, 11)], lambda x: F.silu(x)),
    "linear": ([random(2, 3, 4), random(5, 4), random(5)], lambda x, w, b: F.linear(x, w, b)),
    "linear_no_bias": ([random(3, 4), random(5, 4)], lambda x, w: F.linear(x, w)),
    "linear_one_row": ([random(4), random(5, 4), random(5)], lambda x, w, b: F.linear(x, w, b)),
    "embedding": ([random(7, 4)], lambda w: F.embedding(tg.tensor(IDS), w)),
    "embedding_padding": ([random(7, 4)], lambda w: F.embedding(tg.tensor(IDS), w, padding_idx=3)),
    "cross_entropy": ([random(4, 6)], lambda x: F.cross_entropy(x, tg.tensor(TARGETS))),
    "cross_entropy_none": ([random(4, 6)], lambda x: F.cross_entropy(x, tg.tensor(TARGETS), reduction="none")),
    "cross_entropy_sum": ([random(4, 6)], lambda x: F.cross_entropy(x, tg.tensor(TARGETS), reduction="sum")),
    "cross_entropy_smooth": ([random(4, 6)], lambda x: F.cross_entropy(x, tg.tensor(TARGETS), label_smoothing=0.2)),
    "cross_entropy_3d": (
        [random(2, 5, 3)],
        lambda x: F.cross_entropy(x, tg.tensor(np.array([[0, 4, 1], [2, -100, 3]])), label_smoothing=0.1),
    ),
    "cross_entropy_soft": ([random(4, 6)], lambda x: F.cross_entropy(x, tg.tensor(np.full((4, 6), 1 / 6)))),
}


def run(function: Callable[..., Any], arrays: list[Array], seed: int = 0) -> tuple[Array, list[Array]]:
    """The value and the gradients for one random cotangent."""
    inputs = [tg.from_numpy(a).requires_grad_() for a in arrays]
    out = function(*inputs)
    cotangent = np.random.default_rng(seed).standard_normal(out.shape).astype(out.dtype)
    return out.numpy(), [g.numpy() for g in tg.grad(out, inputs, cotangent)]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", FUSED)
def test_kernel_equals_definition(name: str, dtype: Any) -> None:
    arrays, function = FUSED[name]
    arrays = [a.astype(dtype) for a in arrays]
    tolerance = 3e-6 if dtype == np.float32 else 1e-12
    if name == "cross_entropy_soft" and dtype == np.float32:
        pytest.skip("float64 probabilities")
    value, gradients = run(function, arrays)
    with tg.reference():
        plain, plain_gradients = run(function, arrays)
    np.testing.assert_allclose(value, plain, rtol=tolerance, atol=tolerance)
    for g, p in zip(gradients, plain_gradients, strict=True):
        assert g.dtype == dtype
        np.testing.assert_allclose(g, p, rtol=10 * tolerance, atol=10 * tolerance)


@pytest.mark.parametrize("name", FUSED)
def test_no_fused_operation_under_reference(name: str) -> None:
    arrays, function = FUSED[name]
    with graph.record() as usual:
        run(function, arrays)
    with tg.reference(), graph.record() as plain:
        out = function(*[tg.from_numpy(a).requires_grad_() for a in arrays])
    assert any(isinstance(r.op, Fused) for r in usual)
    assert not any(isinstance(r.op, Fused) for r in plain)
    stack = [out.grad_fn]
    while stack:
        node = stack.pop()
        assert not isinstance(node.op, Fused)
        stack += [e[0] for e in node.edges if isinstance(e, tuple)]


@pytest.mark.parametrize("name", FUSED)
def test_gradients_of_both_orders(name: str) -> None:
    """BC-46: a fused operation's second derivative knows what its saved arrays depend on."""
    arrays, function = FUSED[name]
    if name == "embedding_padding":
        pytest.skip("its rule leaves one row out on purpose")
    inputs = [tg.from_numpy(a).requires_grad_() for a in arrays]
    assert tg.gradcheck(function, inputs, mode="fast")
    assert tg.gradgradcheck(lambda *x: [function(*x) * sum((a * a).sum() for a in x)], inputs, mode="fast")
    with tg.reference():
        assert tg.gradcheck(function, inputs, mode="fast")


@pytest.mark.parametrize("name", FUSED)
def test_layouts(name: str) -> None:
    """BC-05, BC-04: the same numbers from transposed, sliced, reversed and read-only memory."""
    arrays, function = FUSED[name]
    value, gradients = run(function, arrays)

    def sliced(a: Array) -> Array:
        big = np.zeros((*a.shape[:-1], 2 * a.shape[-1]))
        big[..., ::2] = a
        return big[..., ::2]

    def frozen(a: Array) -> Array:
        b = a.copy()
        b.flags.writeable = False
        return b

    for change in (np.asfortranarray, sliced, lambda a: a[::-1].copy()[::-1], frozen):
        again, others = run(function, [change(a) for a in arrays])
        np.testing.assert_allclose(again, value, rtol=1e-13, atol=1e-14)
        for g, o in zip(gradients, others, strict=True):
            np.testing.assert_allclose(o, g, rtol=1e-13, atol=1e-14)


@pytest.mark.parametrize("name", [n for n in FUSED if "cross" not in n and "embedding" not in n and "one" not in n])
def test_no_rows(name: str) -> None:
    arrays, function = FUSED[name]
    empty = [arrays[0][:0], *arrays[1:]]
    if name == "softmax_first":
        empty = [arrays[0][:, :0]]
    value, gradients = run(function, empty)
    assert value.size == 0
    for g, a in zip(gradients, empty, strict=True):
        assert g.shape == a.shape and not g.any()


@pytest.mark.parametrize("name", FUSED)
def test_only_the_asked_gradients(name: str) -> None:
    """Each gradient alone is what it is among all."""
    arrays, function = FUSED[name]
    _, gradients = run(function, arrays)
    for i in range(len(arrays)):
        inputs = [tg.from_numpy(a).requires_grad_(k == i) for k, a in enumerate(arrays)]
        out = function(*inputs)
        (g,) = tg.grad(out, [inputs[i]], np.random.default_rng(0).standard_normal(out.shape))
        np.testing.assert_allclose(g.numpy(), gradients[i], rtol=1e-12, atol=1e-13)


def test_dropout_equals_its_definition() -> None:
    x = tg.randn(50, 41, requires_grad=True)
    tg.manual_seed(4)
    y = F.dropout(x, 0.3, True)
    tg.manual_seed(4)
    with tg.reference():
        z = F.dropout(x, 0.3, True)
    assert (y.numpy() == z.numpy()).all() and (y.numpy() == 0).mean() == pytest.approx(0.3, abs=0.05)
    g = np.random.default_rng(0).standard_normal((50, 41)).astype(np.float32)
    assert (tg.grad(y, x, g)[0].numpy() == tg.grad(z, x, g)[0].numpy()).all()


def test_dropout_second_derivative_uses_the_same_mask() -> None:
    x = tg.randn(30, 7, dtype=np.float64, requires_grad=True)
    y = F.dropout(x * x, 0.5, True)
    (g,) = tg.grad(y.sum(), x, create_graph=True)
    (h,) = tg.grad(g.sum(), x)
    assert (h.numpy() == 2 * (y.numpy() != 0) / 0.5).all()


def test_mixed_dtypes_are_refused() -> None:
    with pytest.raises(TypeError, match="share one dtype"):
        F.linear(tg.ones(2, 3), tg.ones(4, 3, dtype=np.float64))
    with pytest.raises(TypeError, match="share one dtype"):
        tg.ones(2, 3) @ tg.ones(3, 2, dtype=np.float64)


def _step(kind: str) -> list[np.ndarray]:
    """The gradients of a small model's step, from fixed seeds."""
    tg.manual_seed(3)
    settings = dict(norm="rms", activation="swiglu", position="rotary") if kind == "llama" else dict(dropout=0.1)
    config = models.GPTConfig(vocab_size=13, block_size=8, n_layer=2, n_head=2, n_embd=16, **settings)  # type: ignore[arg-type]
    model = models.GPT(config)
    ids = np.random.default_rng(0).integers(0, 13, (3, 9))
    model.loss(ids[:, :-1], ids[:, 1:]).backward()
    return [p.grad.numpy().copy() for p in model.parameters()]


@pytest.mark.parametrize("kind", ["gpt", "llama"])
def test_results_computed_again_in_backward_change_no_bit(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = _step(kind)
    monkeypatch.setattr(graph, "WORTH_COMPUTING_AGAIN", 0)
    for a, b in zip(kept, _step(kind), strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_large_cheap_result_is_not_kept() -> None:
    x = tg.randn(1024, 1025, requires_grad=True)
    w = tg.randn(2, 1025, requires_grad=True)
    y = F.gelu(x)
    held = weakref.ref(y._data)
    out = F.linear(y, w)
    del y
    assert held() is None
    out.sum().backward()
    with tg.no_grad():
        np.testing.assert_allclose(w.grad.numpy(), np.ones((2, 1024)) @ F.gelu(x).numpy(), rtol=1e-3, atol=1e-3)


def test_a_cheap_result_changed_in_place_is_still_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graph, "WORTH_COMPUTING_AGAIN", 0)
    w = tg.randn(3, 4, requires_grad=True)
    y = F.gelu(tg.randn(2, 4, requires_grad=True))
    out = F.linear(y, w)
    y += 1.0
    with pytest.raises(RuntimeError, match="changed in place"):
        out.sum().backward()


def test_the_second_order_where_backward_needs_no_input() -> None:
    x, b = (tg.randn(3, 4, requires_grad=True).double().detach().requires_grad_() for _ in range(2))
    (g,) = tg.grad((F.dropout(x, 0.5) * b).sum(), x, create_graph=True)
    (gb,) = tg.grad(g.sum(), b)
    np.testing.assert_array_equal(gb.numpy(), g.numpy() / b.numpy())


def test_a_cheap_result_whose_operation_was_freed_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graph, "WORTH_COMPUTING_AGAIN", 0)
    h, w = tg.randn(2, 4, requires_grad=True), tg.randn(3, 4, requires_grad=True)
    y = F.gelu(h)
    out = F.linear(y, w)
    y.sum().backward()
    with pytest.raises(RuntimeError, match="gelu: its saved values were freed.*retain_graph"):
        tg.grad(out.sum(), w)


def test_the_second_order_beside_a_frozen_input_that_backward_does_not_need() -> None:
    x, weight = (
        tg.randn(2, 3, 4, dtype=tg.float64, requires_grad=True),
        tg.randn(4, dtype=tg.float64, requires_grad=True),
    )
    bias = tg.randn(4, dtype=tg.float64)
    assert tg.gradgradcheck(lambda x, w: F.layer_norm(x, (4,), w, bias), (x, weight))
    assert tg.gradgradcheck(lambda x: F.linear(x, weight.detach().reshape(1, 4), tg.ones(1, dtype=tg.float64)), (x,))


@pytest.mark.parametrize("rows", [127, 128, 300])
def test_the_bias_gradient_sums_all_rows(rows: int) -> None:
    """BC-24: also where there are more than one block of them."""
    arrays = [random(rows, 3), random(2, 3), random(2)]
    _, gradients = run(lambda x, w, b: F.linear(x, w, b), arrays)
    g = np.random.default_rng(0).standard_normal((rows, 2))
    np.testing.assert_allclose(gradients[2], g.sum(0), rtol=1e-12)
