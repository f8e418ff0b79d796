"""The graph: backward, memory, in-place rules, hooks, grad modes, recording, anomaly mode, threads."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import tinygrad_tf as tg
from tinygrad_tf import graph
from tinygrad_tf.nn import functional as F


def leaf(*values: float) -> Any:
    return tg.tensor([float(v) for v in values], requires_grad=True)


# -- backward ----------------------------------------------------------------------------------------------------------


def test_bc03_gradients_share_no_memory() -> None:
    """BC-03: an in-place update of one gradient changes no other, nor the caller's seed."""
    x, y = leaf(1, 2), leaf(3, 4)

    def loss() -> Any:
        return (x + y).sum() + (x * x).sum()

    loss().backward()
    assert x.grad.tolist() == [3, 5] and y.grad.tolist() == [1, 1]
    loss().backward()
    assert x.grad.tolist() == [6, 10] and y.grad.tolist() == [2, 2]
    x.grad *= 0.5
    assert x.grad.tolist() == [3, 5] and y.grad.tolist() == [2, 2]


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x + 0.0, lambda x: x.reshape(3, 2), lambda x: x.T, lambda x: x[:, 1:], lambda x: x + x,
        lambda x: x.clone(), lambda x: x.flatten(), lambda x: x.unsqueeze(0), lambda x: tg.cat([x]), lambda x: x.expand(2, 3),
    ],
)  # fmt: skip
def test_bc03_seed_is_left_alone(function: Any) -> None:
    """BC-03: neither a view's rule nor an identity hands the seed out."""
    x, y = tg.ones(2, 3, requires_grad=True), tg.ones(2, 3, requires_grad=True)
    out = function(x) + function(y)
    g = np.random.default_rng(0).standard_normal(out.shape).astype(np.float32)
    before = g.copy()
    out.backward(g)
    assert (g == before).all()
    for a in (x.grad.numpy(), y.grad.numpy()):
        assert not np.shares_memory(a, g) and a.flags.writeable and a.flags.c_contiguous
    assert not np.shares_memory(x.grad.numpy(), y.grad.numpy())
    kept = y.grad.numpy().copy()
    x.grad += 100
    assert (g == before).all() and (y.grad.numpy() == kept).all()


def test_bc03_tensor_seed_and_grad_results() -> None:
    """BC-03: a Tensor as the seed, and tg.grad's results, are on their own memory too."""
    x, y = leaf(1, 2), leaf(3, 4)
    seed = tg.tensor([1.0, 2.0])
    gx, gy = tg.grad(x + y, [x, y], seed)
    gx += 5
    assert seed.tolist() == [1, 2] and gy.tolist() == [1, 2]
    (x + y).backward(seed)
    x.grad += 5
    assert seed.tolist() == [1, 2] and y.grad.tolist() == [1, 2]


def test_bc04_gradient_of_a_sum_is_writable() -> None:
    """BC-04: no stride-0 gradient reaches the user."""
    x = leaf(1, 2, 3)
    x.sum().backward()
    x.grad += 1
    x.grad[0] = 5
    assert x.grad.tolist() == [5, 2, 2]
    ids = np.arange(4)
    ids.flags.writeable = False
    w = tg.ones(5, 2, requires_grad=True)
    F.embedding(tg.from_numpy(ids), w).sum().backward()
    assert w.grad.numpy()[:, 0].tolist() == [1, 1, 1, 1, 0]
    for f in (lambda t: tg.softmax(t, -1), lambda t: F.layer_norm(t, (3,)), F.gelu):
        assert np.isfinite(f(tg.Tensor(np.broadcast_to(np.ones(1), (3,)))).numpy()).all()


def test_bc42_second_backward() -> None:
    """BC-42: retained, gradients double; freed, it raises; a user's .grad is added to."""
    a, b, d = leaf(3), leaf(2), leaf(1)
    e = (a + b) * d
    e.backward(retain_graph=True)
    e.backward()
    assert (a.grad.item(), b.grad.item(), d.grad.item()) == (2, 2, 10)
    with pytest.raises(RuntimeError, match="freed"):
        e.backward()
    x = leaf(1, 2)
    x.grad = tg.tensor([10.0, 20.0])
    (x * 3).sum().backward()
    assert x.grad.tolist() == [13, 23]
    with pytest.raises(RuntimeError, match="scalar"):
        (x * 3).backward()
    with pytest.raises(ValueError, match="shape"):
        (x * 3).backward(tg.ones(3))
    with pytest.raises(RuntimeError, match="require"):
        tg.ones(1).backward()


def test_bc43_diamonds() -> None:
    """BC-43: what is used twice gets both gradients, once."""
    a = leaf(1)
    b = a + a
    (b + b).backward()
    assert a.grad.item() == 4
    a, b = leaf(2), leaf(3)
    c, d = a + b, a * b
    _unused = d * 100
    (c + d + c * d).backward()
    assert (a.grad.item(), b.grad.item()) == (25, 19)
    x, k = leaf(1), leaf(2)
    (x * (x * k) + x * (x * k) + (x * x) * k).backward()
    assert x.grad.item() == 12 and k.grad.item() == 3
    for f, expected in (
        (lambda x: x * x, 6.0),
        (lambda x: x - x, 0.0),
        (lambda x: x * x * x, 27.0),
        (lambda x: x / x, 0.0),
    ):
        x = leaf(3)
        f(x).backward()
        assert x.grad.item() == pytest.approx(expected, abs=1e-6)


def test_bc28_tied_weights_get_the_sum() -> None:
    """BC-28: one table, used as the embedding and as the output layer."""
    e = tg.randn(5, 3, dtype=np.float64, requires_grad=True)
    ids = tg.tensor(np.array([0, 2, 2]))
    h, b = tg.randn(3, 3, dtype=np.float64), tg.randn(3, 5, dtype=np.float64)

    def loss(e: Any) -> Any:
        return (
            (F.embedding(ids, e) * h).sum() + (F.linear(h, e) * b).sum() + (F.linear(F.embedding(ids, e), e) * b).sum()
        )

    assert tg.gradcheck(loss, [e]) and tg.gradgradcheck(loss, [e], mode="fast")


def test_bc45_no_cycles() -> None:
    """BC-45: without the cycle collector, a hidden value goes with the last reference to the loss."""
    gc.collect()
    gc.disable()
    try:
        for finish in (lambda loss: loss.backward(), lambda loss: None, lambda loss: loss.backward(retain_graph=True),
                       lambda loss: loss.backward(create_graph=False)):  # fmt: skip
            w = tg.randn(4, 4, requires_grad=True)
            hidden = tg.tanh(F.layer_norm(tg.ones(2, 4) @ w, (4,)))
            node, array = weakref.ref(hidden.grad_fn), weakref.ref(hidden)
            loss = tg.softmax(hidden, -1).square().sum()
            del hidden
            finish(loss)
            del loss
            assert node() is None and array() is None
            assert w.grad is None or w.grad.grad_fn is None
    finally:
        gc.enable()


def test_bc45_backward_frees_what_it_has_used() -> None:
    """BC-45: after backward, the loss holds the nodes but not the activations."""
    gc.disable()
    try:
        w = tg.ones(3, requires_grad=True)
        array = np.ones(3, np.float32)
        alive = weakref.ref(array)
        loss = (tg.exp(w) * tg.from_numpy(array)).sum()
        del array
        assert alive() is not None
        loss.backward()
        assert alive() is None and loss.grad_fn is not None
    finally:
        gc.enable()


def test_bc45_nothing_is_recorded_without_grad() -> None:
    """BC-45: evaluation under no_grad builds no nodes."""
    x = leaf(1, 2)
    with tg.no_grad():
        y = tg.softmax(x * 2, -1)
    assert y.grad_fn is None and not y.requires_grad
    assert (tg.ones(2) * 2).grad_fn is None


def test_deep_graph_does_not_recurse() -> None:
    x = leaf(1)
    y = x
    for _ in range(20000):
        y = y + 1e-6
    y.backward()
    assert x.grad.item() == 1
    del y  # nor does freeing it


def test_grad_of_chosen_inputs() -> None:
    x, y, unused = leaf(2), leaf(3), leaf(5)
    h = x * y
    out = h * h
    gh, gx = tg.grad(out, [h, x], retain_graph=True)
    assert gh.item() == 12 and gx.item() == 36 and x.grad is None and y.grad is None
    assert tg.grad(out, [unused, x], allow_unused=True, retain_graph=True)[0] is None
    with pytest.raises(RuntimeError, match="input 1"):
        tg.grad(out, [x, unused], retain_graph=True)
    with pytest.raises(RuntimeError, match="input 0"):
        tg.grad(out, [tg.ones(1)])
    assert tg.grad(out, [out], retain_graph=True)[0].item() == 1
    (same,) = tg.grad([x * 2, y * x], [x])
    assert same.item() == 5


def test_grad_of_two_outputs_of_one_input_listed_twice() -> None:
    x = leaf(2)
    a, b = tg.grad(x**3, [x, x])
    assert a.item() == b.item() == 12


def test_bc46_higher_orders() -> None:
    """BC-46: y = x^3 at 2: 12, then 12, then 6."""
    x = tg.tensor([2.0], requires_grad=True)
    (g1,) = tg.grad(x**3, x, create_graph=True)
    (g2,) = tg.grad(g1, x, create_graph=True)
    (g3,) = tg.grad(g2, x)
    assert (g1.item(), g2.item(), g3.item()) == (12, 12, 6)
    x = tg.tensor([2.0], requires_grad=True)
    (x**3).backward(create_graph=True)
    g = x.grad
    x.grad = None
    g.backward()
    assert x.grad.item() == 12


# -- in place ----------------------------------------------------------------------------------------------------------


def test_in_place_on_a_leaf_raises() -> None:
    x = leaf(1, 2)
    for change in (lambda: x.add_(1), lambda: x.__iadd__(1), lambda: x.zero_(), lambda: x.copy_(tg.ones(2)),
                   lambda: x.__setitem__(0, 5.0)):  # fmt: skip
        with pytest.raises(RuntimeError, match="leaf"):
            change()
    with tg.no_grad():
        x.add_(1)
        x[0] = 7
    assert x.tolist() == [7, 3] and x.is_leaf and x.requires_grad


def test_in_place_gradients() -> None:
    x = leaf(1, 2, 3)
    y = x * 2
    y *= 5
    y += x * x
    y[1] = 0.0
    y.sub_(x)
    y.sum().backward()
    assert x.grad.tolist() == [11, -1, 15]


def test_saved_buffer_changed_in_place_names_both_versions() -> None:
    x = leaf(1, 2)
    y = tg.exp(x)
    y.add_(1)
    y.add_(1)
    with pytest.raises(RuntimeError, match=r"exp.*version 0 .*version 2"):
        y.sum().backward()


@pytest.mark.parametrize(
    "function",
    [
        lambda x, y: x * y, lambda x, y: tg.softmax(x * y, -1) * y, lambda x, y: F.linear(x.reshape(1, 2), y.reshape(1, 2)),
        lambda x, y: x / y, lambda x, y: F.gelu(y) * x, lambda x, y: tg.cat([x * y[0], y]) * 2.0,
    ],
)  # fmt: skip
def test_an_input_changed_after_the_forward(function: Any) -> None:
    x, y = leaf(1, 2), leaf(3, 4)
    out = function(x, y)
    with tg.no_grad():
        y.add_(1)
    with pytest.raises(RuntimeError, match="changed in place"):
        out.sum().backward()


def test_a_change_that_nobody_saved_is_harmless() -> None:
    x = leaf(1, 2)
    y = x + 1
    z = y + 2
    y.add_(1)
    (z.sum() + y.sum()).backward()
    assert x.grad.tolist() == [2, 2]


def test_change_through_a_view_is_seen() -> None:
    """One counter for all views of a buffer."""
    x = leaf(1, 2, 3, 4)
    for view in (lambda t: t[1:], lambda t: t.reshape(2, 2), lambda t: t.detach(), lambda t: t.data, lambda t: t[0],
                 lambda t: t.unsqueeze(0), lambda t: t.T, lambda t: t.narrow(0, 0, 2)):  # fmt: skip
        y = x * 1
        z = y * y
        part = view(y)
        assert np.shares_memory(part.numpy(), y.numpy())
        with tg.no_grad():
            part.fill_(1.0)
        with pytest.raises(RuntimeError, match="changed in place"):
            z.sum().backward()


def test_view_written_through_another_view_raises_when_used() -> None:
    x = leaf(1, 2, 3)
    y = x * 2
    part = y[1:]
    part.mul_(10)
    with pytest.raises(RuntimeError, match="another view"):
        (y * 1).sum()
    assert part.sum().item() == 100  # the written view itself may be used
    part.sum().backward()
    assert x.grad.tolist() == [0, 20, 20]
    y = x * 2
    part = y[1:]
    y.mul_(10)
    with pytest.raises(RuntimeError, match="another view"):
        part.sum()


def test_plain_buffer_views_may_be_written() -> None:
    """Without gradients in play, views of data behave as numpy's."""
    a = tg.zeros(4)
    a[1:3] = 5
    b = a.reshape(2, 2)
    b[1, 1] = 7
    assert a.tolist() == [0, 5, 5, 7]
    x = leaf(1, 1, 1, 1)
    (x * a).sum().backward()
    assert x.grad.tolist() == [0, 5, 5, 7]


def test_in_place_errors() -> None:
    with pytest.raises(ValueError, match="read-only"):
        tg.ones(1).expand(3).add_(1)
    with pytest.raises(ValueError, match="shape"):
        tg.ones(1).add_(tg.ones(3))
    with pytest.raises(TypeError, match="dtype"):
        tg.tensor([1, 2]).mul_(0.5)
    with pytest.raises(IndexError):
        tg.ones(3)[5] = 1.0
    with pytest.raises((ValueError, IndexError)):
        tg.ones(3)[:2] = tg.ones(3)


# -- hooks -------------------------------------------------------------------------------------------------------------


def test_hooks() -> None:
    x = leaf(1, 2)
    seen: list[Any] = []
    handle = x.register_hook(lambda g: seen.append(g.tolist()))
    y = x * 3
    y.register_hook(lambda g: g * 10)
    (y.sum() + y.sum()).backward()
    assert seen == [[60, 60]] and x.grad.tolist() == [60, 60]
    handle.remove()
    (x * 1).sum().backward()
    assert len(seen) == 1
    x.register_hook(lambda g: tg.ones(3))
    with pytest.raises(ValueError, match="hook"):
        (x * 1).sum().backward()
    with pytest.raises(RuntimeError, match="require"):
        tg.ones(1).register_hook(print)


def test_hook_cannot_corrupt_another_gradient() -> None:
    """A hook that writes into what it is shown changes no other tensor's gradient."""
    x, y = leaf(1, 2), leaf(3, 4)
    seed = np.ones(2, np.float32)
    z = x + y

    def spoil(g: Any) -> Any:
        return g.mul_(100)

    x.register_hook(spoil)
    z.backward(seed)
    assert seed.tolist() == [1, 1] and y.grad.tolist() == [1, 1] and x.grad.tolist() == [100, 100]


def test_retain_grad() -> None:
    x = leaf(1, 2)
    y = x * 3
    y.retain_grad()
    (y * y).sum().backward()
    assert y.grad.tolist() == [6, 12] and x.grad.tolist() == [18, 36]
    z = x * 2
    z.sum().backward()
    assert z.grad is None


# -- grad modes --------------------------------------------------------------------------------------------------------


def test_modes_survive_exceptions_and_recursion() -> None:
    with pytest.raises(ZeroDivisionError), tg.no_grad():
        1 / 0  # noqa: B018
    assert tg.is_grad_enabled()

    mode = tg.no_grad()
    with mode:
        with tg.enable_grad():
            assert tg.is_grad_enabled()
            with mode:
                assert not tg.is_grad_enabled()
            assert tg.is_grad_enabled()
        assert not tg.is_grad_enabled()
    assert tg.is_grad_enabled()

    @tg.no_grad()
    def countdown(n: int) -> list[bool]:
        return [tg.is_grad_enabled(), *(countdown(n - 1) if n else [])]

    assert countdown(5) == [False] * 6 and tg.is_grad_enabled()


def test_modes_in_threads() -> None:
    seen: list[bool] = []
    with tg.no_grad():
        thread = threading.Thread(target=lambda: seen.append(tg.is_grad_enabled()))
        thread.start()
        thread.join()
    assert seen == [True]
    decorated = tg.no_grad()(lambda: tg.is_grad_enabled())
    results: list[bool] = []
    threads = [threading.Thread(target=lambda: results.extend(decorated() for _ in range(200))) for _ in range(4)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    assert results == [False] * 800 and tg.is_grad_enabled()


def test_modes_in_generators() -> None:
    @tg.no_grad()
    def steps() -> Iterator[bool]:
        try:
            yield tg.is_grad_enabled()
            got = yield tg.is_grad_enabled()
            assert got == "sent"
            yield tg.is_grad_enabled()
        finally:
            closed.append(tg.is_grad_enabled())

    closed: list[bool] = []
    generator = steps()
    assert next(generator) is False and tg.is_grad_enabled()
    assert next(generator) is False and tg.is_grad_enabled()
    assert generator.send("sent") is False and tg.is_grad_enabled()  # type: ignore[attr-defined]
    assert list(generator) == [] and closed == [False]

    @tg.no_grad()
    def catching() -> Iterator[str]:
        try:
            yield "first"
        except KeyError:
            yield "caught"

    generator2 = catching()
    next(generator2)
    assert generator2.throw(KeyError()) == "caught"  # type: ignore[attr-defined]
    assert tg.is_grad_enabled()


# -- recording and anomalies -------------------------------------------------------------------------------------------


def test_record_keeps_arguments_and_lines() -> None:
    x = leaf(1, 2)
    with graph.record() as records:
        y = tg.exp(x)
        z = tg.softmax(y, -1)
    assert [r.op.name for r in records] == ["exp", "softmax"]
    assert records[0].args[0] is x and records[0].output is y and records[1].output is z
    here = test_record_keeps_arguments_and_lines.__code__.co_firstlineno
    assert [r.line.rsplit(":", 1)[0] for r in records] == [__file__] * 2
    assert [int(r.line.rsplit(":", 1)[1]) - here for r in records] == [3, 4]
    tg.exp(x)
    assert len(records) == 2


def test_anomaly_forward_and_backward() -> None:
    x = leaf(-1, 2)
    with tg.detect_anomaly(), pytest.raises(FloatingPointError, match=r"forward of log gave NaN.*test_graph.py:\d+"):
        tg.log(x)
    x = leaf(0, 2)
    with tg.detect_anomaly():
        y = tg.sqrt(x)
        with pytest.raises(FloatingPointError, match=r"backward of sqrt gave Inf.*test_graph.py:\d+"):
            y.sum().backward()
    with tg.detect_anomaly():
        masked = tg.masked_fill(leaf(1, 2), tg.tensor([True, False]), float("-inf"))
        assert tg.softmax(masked, -1).tolist() == [0, 1]
    tg.log(leaf(-1))  # no longer watched


# -- threads -----------------------------------------------------------------------------------------------------------


def test_bc63_four_threads_forward_and_backward() -> None:
    """BC-63: right results from four Python threads at once."""
    generator = np.random.default_rng(0)
    inputs = [generator.standard_normal((300, 400)).astype(np.float32) for _ in range(4)]
    weight = generator.standard_normal((64, 400)).astype(np.float32)

    def work(a: Any) -> tuple[Any, Any]:
        x, w = tg.tensor(a, requires_grad=True), tg.tensor(weight, requires_grad=True)
        F.gelu(F.linear(F.layer_norm(x, (400,)), w)).softmax(-1).square().sum().backward()
        return x.grad.numpy(), w.grad.numpy()

    expected = [work(a) for a in inputs]
    results: dict[int, Any] = {}

    def run(i: int) -> None:
        for _ in range(5):
            results[i] = work(inputs[i])

    threads = [threading.Thread(target=run, args=(i,)) for i in range(4)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    for i in range(4):
        for got, right in zip(results[i], expected[i], strict=True):
            assert (got == right).all()
