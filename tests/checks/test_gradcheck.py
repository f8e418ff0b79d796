"""gradcheck finds faults that are put in on purpose, and says where it cannot judge."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tinygrad_tf as tg


def faulty(change: Callable[[Any, Any, Any], Any]) -> Any:
    """a @ b with a backward whose result for (a, b) is changed."""

    class Product(tg.Function):
        @staticmethod
        def forward(ctx: Any, a: Any, b: Any) -> Any:
            ctx.save_for_backward(a, b)
            return a @ b

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            a, b = ctx.saved_tensors
            return change(g @ b.mT, a.mT @ g, g)

    return Product.apply


def inputs() -> list[Any]:
    rng = np.random.default_rng(0)
    return [tg.tensor(rng.standard_normal((3, 3)), requires_grad=True) for _ in range(2)]


FAULTS: dict[str, Callable[[Any, Any, Any], Any]] = {
    "sign": lambda da, db, g: (-da, db),
    "factor": lambda da, db, g: (da * 2, db),
    "one percent": lambda da, db, g: (da, db * 1.01),
    "transposed": lambda da, db, g: (da, db.mT),
    "zero": lambda da, db, g: (da * 0, db),
    "forgotten": lambda da, db, g: (da, None),
    "swapped": lambda da, db, g: (db, da),
    "ignores g": lambda da, db, g: (da, db * 0 + 1),
}


@pytest.mark.parametrize("mode", ["full", "fast"])
@pytest.mark.parametrize("name", FAULTS)
def test_bc83_faults_are_found(name: str, mode: str) -> None:
    """BC-83: a sign, a factor, one percent, a transposition, nothing at all, a forgotten branch."""
    with pytest.raises(tg.GradcheckError, match=r"input [01]\[\d, \d\]: analytic"):
        tg.gradcheck(faulty(FAULTS[name]), inputs(), mode=mode)
    assert not tg.gradcheck(faulty(FAULTS[name]), inputs(), mode=mode, raise_exception=False)


def test_right_ones_pass() -> None:
    right = faulty(lambda da, db, g: (da, db))
    assert tg.gradcheck(right, inputs()) and tg.gradgradcheck(right, inputs())


def test_bc83_a_softmax_without_backward_is_found() -> None:
    """BC-83: the sum of a softmax has no gradient, so ones as the cotangent would see no fault."""

    class Softmax(tg.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            e = tg.exp(x)
            return e / e.sum(-1, True)

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            return g * 0

    for mode in ("full", "fast"):
        with pytest.raises(tg.GradcheckError):
            tg.gradcheck(Softmax.apply, [inputs()[0]], mode=mode)


def test_bc83_random_functions_are_reported() -> None:
    """BC-83: two calls that differ are no function."""
    from tinygrad_tf.nn import functional as F

    with pytest.raises(tg.GradcheckError, match="deterministic.*manual_seed"):
        tg.gradcheck(lambda x: F.dropout(x, 0.5, True), [inputs()[0]])


def test_bc81_float32_is_refused() -> None:
    """BC-81: finite differences in float32 prove nothing."""
    with pytest.raises(TypeError, match="float64"):
        tg.gradcheck(tg.exp, [tg.ones(2, requires_grad=True)])


def test_wrong_second_derivative_is_found() -> None:
    class Cube(tg.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            ctx.save_for_backward(x)
            return x * x * x

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            (x,) = ctx.saved_tensors
            return g * 3 * (x * x.detach())

    assert tg.gradcheck(Cube.apply, [inputs()[0]])
    with pytest.raises(tg.GradcheckError, match=r"return g \* 3 \* \(x \* x.detach\(\)\)"):
        tg.gradgradcheck(Cube.apply, [inputs()[0]])


def test_cut_graph_and_nothing_to_check() -> None:
    with pytest.raises(tg.GradcheckError, match="detach"):
        tg.gradcheck(lambda x: x.detach() * 2, [inputs()[0]])
    with pytest.raises(ValueError, match="requires grad"):
        tg.gradcheck(tg.exp, [tg.ones(2, dtype=np.float64)])
    with pytest.raises(ValueError, match="mode"):
        tg.gradcheck(tg.exp, [inputs()[0]], mode="quick")
    with pytest.raises(tg.GradcheckError, match="finite"):
        tg.gradcheck(lambda x: x / 0.0, [inputs()[0]])


def test_kinks_are_reported() -> None:
    """BC-49: at a kink the two sides differ, so the check fails rather than passes by luck."""
    with pytest.raises(tg.GradcheckError):
        tg.gradcheck(tg.relu, [tg.tensor(np.array([0.0, 1.0]), requires_grad=True)])


def test_inputs_are_left_as_they_were() -> None:
    a, b = inputs()
    before = a.numpy().copy()
    tg.gradcheck(lambda a, b: a @ b, [a, b])
    assert (a.numpy() == before).all() and a.grad is None and b.grad is None


def test_empty_and_scalar_inputs() -> None:
    assert tg.gradcheck(tg.exp, [tg.tensor(np.zeros((0, 2)), requires_grad=True)])
    assert tg.gradcheck(tg.exp, [tg.tensor(np.float64(0.5), requires_grad=True)])
    assert tg.gradcheck(lambda a, b: (a * b, a + b), inputs())
