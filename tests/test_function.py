"""Function and checkpoint."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tinygrad_tf as tg
from tinygrad_tf.nn import functional as F


class Polar(tg.Function):
    """Two outputs, one argument that is no tensor, and a saved output."""

    @staticmethod
    def forward(ctx: Any, r: Any, phase: Any, scale: float) -> Any:
        x, y = scale * r * tg.cos(phase), scale * r * tg.sin(phase)
        ctx.save_for_backward(r, x, y)
        ctx.scale = scale
        return x, y

    @staticmethod
    def backward(ctx: Any, gx: Any, gy: Any) -> Any:
        r, x, y = ctx.saved_tensors
        return (gx * x + gy * y) / r, gy * x - gx * y, None


def doubles(*shape: int, seed: int = 0) -> Any:
    return tg.tensor(1.5 + np.random.default_rng(seed).random(shape), requires_grad=True)


def test_several_outputs_and_both_orders() -> None:
    r, phase = doubles(3), doubles(3, seed=1)
    assert tg.gradcheck(lambda r, p: Polar.apply(r, p, 2.0), [r, phase])
    assert tg.gradgradcheck(lambda r, p: Polar.apply(r, p, 2.0), [r, phase])
    x, _ = Polar.apply(r, phase, 2.0)
    x.sum().backward()  # the second output gets no gradient: zeros arrive
    np.testing.assert_allclose(r.grad.numpy(), 2 * np.cos(phase.numpy()))


def test_needs_input_grad_and_missing_gradients() -> None:
    seen = []

    class Times(tg.Function):
        @staticmethod
        def forward(ctx: Any, a: Any, b: Any) -> Any:
            ctx.save_for_backward(a, b)
            return a * b

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            seen.append(ctx.needs_input_grad)
            a, b = ctx.saved_tensors
            return g * b, None

    a, b = doubles(2), doubles(2, seed=1)
    Times.apply(a, b).sum().backward()
    assert (a.grad.numpy() == b.numpy()).all() and b.grad is None
    Times.apply(a, b.detach()).sum().backward()
    assert seen == [(True, True), (True, False)]
    with tg.no_grad():
        assert not Times.apply(a, b).requires_grad


def bad(backward: Any) -> Any:
    class Bad(tg.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return x * 2

    Bad.backward = staticmethod(backward)  # type: ignore[method-assign]
    return Bad


def test_wrong_backwards_are_named() -> None:
    x = doubles(3)
    with pytest.raises(RuntimeError, match="Bad.backward must return one gradient"):
        bad(lambda ctx, g: ()).apply(x).sum().backward()
    with pytest.raises(TypeError, match="Bad.backward.*Tensor or None"):
        bad(lambda ctx, g: g.numpy()).apply(x).sum().backward()
    with pytest.raises(ValueError, match="Bad.backward.*shape"):
        bad(lambda ctx, g: g[:2]).apply(x).sum().backward()
    with pytest.raises(TypeError, match="Tensor"):

        class NoTensor(tg.Function):
            @staticmethod
            def forward(ctx: Any, x: Any) -> Any:
                return 3

        NoTensor.apply(x)


def test_once_differentiable_cannot_be_misused() -> None:
    """BC-46: a backward that leaves the graph raises under create_graph instead of being silently constant."""

    def outside(ctx: Any, g: Any) -> Any:
        return tg.from_numpy(np.array(g.detach().numpy()) * 2)

    x = doubles(3)
    bad(outside).apply(x).sum().backward()
    assert (x.grad.numpy() == 2).all()
    with pytest.raises(NotImplementedError, match="differentiated"):
        tg.grad(bad(outside).apply(x).sum(), x, create_graph=True)


def test_returning_the_input_itself_is_a_place_of_its_own() -> None:
    class Reverse(tg.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return x

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            return -g

    x = doubles(2)
    y = Reverse.apply(x)
    assert y is not x and y.grad_fn is not None and x.is_leaf
    y.sum().backward()
    assert (x.grad.numpy() == -1).all()


def test_backward_returning_its_argument_shares_nothing() -> None:
    """BC-03: a backward that returns g itself hands out no shared memory."""

    class Add(tg.Function):
        @staticmethod
        def forward(ctx: Any, a: Any, b: Any) -> Any:
            return a + b

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            return g, g

    a, b, seed = doubles(2), doubles(2), np.ones(2)
    Add.apply(a, b).backward(seed)
    a.grad += 5
    assert (b.grad.numpy() == 1).all() and (seed == 1).all()


def test_saved_input_changed_in_place_raises() -> None:
    a, b = doubles(2), doubles(2)
    h = a * 1
    x, _ = Polar.apply(h, b, 1.0)
    h.add_(1)
    with pytest.raises(RuntimeError, match="Polar.*version"):
        x.sum().backward()


def test_mark_non_differentiable() -> None:
    class SortLike(tg.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            up = x + 1
            ctx.mark_non_differentiable(up)
            return x * 2, up

        @staticmethod
        def backward(ctx: Any, g: Any, _: Any) -> Any:
            return 2 * g

    x = doubles(2)
    y, z = SortLike.apply(x)
    assert y.requires_grad and not z.requires_grad
    y.sum().backward()
    assert (x.grad.numpy() == 2).all()


# -- checkpoint --------------------------------------------------------------------------------------------------------


def net(x: Any, w: Any) -> Any:
    h = F.dropout(tg.tanh(x @ w), 0.4, True)
    h = F.dropout(h @ w + x, 0.3, True)
    return tg.exp(h * 0.1) * x


def inner(x: Any, w: Any) -> Any:
    return tg.checkpoint(net, tg.checkpoint(net, x, w), w)


def outcome(function: Any, wrap: bool, through: str) -> list[Any]:
    tg.manual_seed(7)
    x, w = tg.randn(6, 5, requires_grad=True), tg.randn(5, 5, requires_grad=True)
    before = tg.exp(w)
    y = tg.checkpoint(function, x, before) if wrap else function(x, before)
    after = tg.rand(1).numpy()
    loss = (y * y).sum()
    if through == "backward":
        loss.backward()
        found = [x.grad, w.grad]
    elif through == "grad":
        found = list(tg.grad(loss, [x, w]))
    else:
        (gx,) = tg.grad(loss, x, create_graph=True)
        found = [gx, *tg.grad((gx * gx).sum(), [x, w])]
    return [y.numpy(), after, tg.rand(1).numpy(), *[f.numpy() for f in found]]


@pytest.mark.parametrize("through", ["backward", "grad", "create_graph"])
@pytest.mark.parametrize("function", [net, inner])
def test_checkpoint_is_bit_for_bit(function: Any, through: str) -> None:
    plain = outcome(lambda x, w: net(net(x, w), w) if function is inner else net(x, w), False, through)
    again = outcome(function, True, through)
    for p, a in zip(plain, again, strict=True):
        assert p.dtype == a.dtype and (p == a).all()


def test_checkpoint_keeps_nothing_inside() -> None:
    import gc
    import weakref

    gc.disable()
    try:
        arrays: list[Any] = []

        def function(x: Any) -> Any:
            h = tg.exp(x)
            arrays.append(weakref.ref(h._data))
            return tg.exp(h).sum()

        x = tg.randn(4, requires_grad=True)
        y = tg.checkpoint(function, x)
        assert arrays[0]() is None
        y.backward()
        assert len(arrays) == 2 and arrays[1]() is None
        assert x.grad is not None
    finally:
        gc.enable()


def test_checkpoint_under_no_grad_runs_once() -> None:
    calls = []
    with tg.no_grad():
        tg.checkpoint(lambda x: calls.append(1) or x * 2, tg.ones(2, requires_grad=True))
    assert calls == [1]


def test_checkpoint_of_closures_over_parameters() -> None:
    """Parameters that are no argument of the function get their gradients too."""
    w = doubles(3)
    x = doubles(3, seed=2)
    y = tg.checkpoint(lambda x: tg.exp(w * x) * w, x)
    y.sum().backward()
    a, b = np.exp(w.numpy() * x.numpy()), w.numpy()
    np.testing.assert_allclose(w.grad.numpy(), a * x.numpy() * b + a)
    np.testing.assert_allclose(x.grad.numpy(), a * b * b)


def test_checkpoint_twice_with_retained_graph() -> None:
    x = doubles(3)
    y = tg.checkpoint(lambda x: tg.exp(x * x), x).sum()
    y.backward(retain_graph=True)
    first = x.grad.numpy().copy()
    y.backward()
    np.testing.assert_allclose(x.grad.numpy(), 2 * first)


def test_checkpoint_in_place() -> None:
    """A change inside is done again on a copy's history; a change of an argument afterwards raises."""

    def function(x: Any) -> Any:
        h = x * 2
        h.add_(1)
        h[0] = 3.0
        return tg.exp(h)

    x = doubles(3)
    tg.checkpoint(function, x).sum().backward()
    y = tg.tensor(x.numpy(), requires_grad=True)
    function(y).sum().backward()
    assert (x.grad.numpy() == y.grad.numpy()).all()
    h = x * 1
    out = tg.checkpoint(function, h)
    h.add_(1)
    with pytest.raises(RuntimeError, match="changed in place"):
        out.sum().backward()


def test_checkpoint_of_a_function_that_changes_its_mind() -> None:
    calls: list[int] = []

    def function(x: Any) -> Any:
        calls.append(1)
        return tg.exp(x) if len(calls) > 1 else tg.exp(tg.exp(x))

    with pytest.raises(RuntimeError, match="same"):
        tg.checkpoint(function, doubles(2)).sum().backward()
