"""tg.func: products with Jacobians and Hessians agree with the matrices themselves, and with finite differences."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tinygrad_tf as tg
from tinygrad_tf import nn

GENERATOR = np.random.default_rng(0)
A = GENERATOR.standard_normal((4, 3))


def curve(x: Any) -> Any:
    """R^3 -> R^(2 x 2), not linear in anything."""
    return (tg.tensor(A) @ tg.tanh(x) * (x * x).sum()).reshape(2, 2)


def number(x: Any) -> Any:
    return (curve(x) ** 2).sum() + x.prod()


def numeric(f: Any, x: Any, eps: float = 1e-6) -> Any:
    columns = []
    for e in np.eye(x.size).reshape(-1, *x.shape):
        columns.append((f(tg.tensor(x + eps * e)).numpy() - f(tg.tensor(x - eps * e)).numpy()) / (2 * eps))
    return np.moveaxis(np.stack(columns), 0, -1).reshape(*columns[0].shape, *x.shape)


def test_jacobian_and_products() -> None:
    x, v, u = GENERATOR.standard_normal(3), GENERATOR.standard_normal(3), GENERATOR.standard_normal((2, 2))
    jacobian = tg.func.jacobian(curve, tg.tensor(x))
    assert jacobian.shape == (2, 2, 3) and not jacobian.requires_grad
    np.testing.assert_allclose(jacobian.numpy(), numeric(curve, x), atol=1e-7)
    out, pushed = tg.func.jvp(curve, tg.tensor(x), tg.tensor(v))
    np.testing.assert_allclose(out.numpy(), curve(tg.tensor(x)).numpy())
    np.testing.assert_allclose(pushed.numpy(), jacobian.numpy() @ v)
    out, pulled = tg.func.vjp(curve, tg.tensor(x), tg.tensor(u))
    np.testing.assert_allclose(pulled.numpy(), np.tensordot(u, jacobian.numpy(), 2))
    assert not out.requires_grad and not pulled.requires_grad


def test_hessian_and_products() -> None:
    x, v = GENERATOR.standard_normal(3), GENERATOR.standard_normal(3)
    hessian = tg.func.hessian(number, tg.tensor(x))
    np.testing.assert_allclose(hessian.numpy(), hessian.numpy().T, atol=1e-12)
    np.testing.assert_allclose(hessian.numpy(), numeric(lambda x: tg.func.vjp(number, x)[1], x), atol=1e-5)
    out, product = tg.func.hvp(number, tg.tensor(x), tg.tensor(v))
    np.testing.assert_allclose(product.numpy(), hessian.numpy() @ v)
    assert out.shape == ()


def test_several_inputs_and_outputs() -> None:
    x, y = tg.tensor(GENERATOR.standard_normal(2)), tg.tensor(GENERATOR.standard_normal((1, 3)))

    def f(x: Any, y: Any) -> Any:
        return x * y.sum(), (y.exp() @ y.mT).reshape(())

    blocks = tg.func.jacobian(f, (x, y))
    assert [[b.shape for b in row] for row in blocks] == [[(2, 2), (2, 1, 3)], [(2,), (1, 3)]]
    assert (blocks[1][0] == 0).all()  # the second output does not know x
    _, (gx, gy) = tg.func.vjp(f, (x, y), (tg.ones(2).double(), tg.tensor(2.0).double()))
    np.testing.assert_allclose(gx.numpy(), blocks[0][0].numpy().sum(0))
    np.testing.assert_allclose(gy.numpy(), blocks[0][1].numpy().sum(0) + 2 * blocks[1][1].numpy())
    _, pushed = tg.func.jvp(f, (x, y), (tg.ones(2).double(), tg.ones(1, 3).double()))
    np.testing.assert_allclose(pushed[0].numpy(), (blocks[0][0].sum(1) + blocks[0][1].sum((1, 2))).numpy())
    hessian = tg.func.hessian(lambda x, y: (x.sum() * y.sum()) ** 2, (x, y))
    np.testing.assert_allclose(hessian[0][1].numpy(), np.full((2, 1, 3), 4 * (x.sum() * y.sum()).item()))


def test_derivatives_of_derivatives() -> None:
    """With create_graph the results lead back to the inputs."""
    x = tg.tensor(GENERATOR.standard_normal(3), requires_grad=True)
    v = tg.tensor(GENERATOR.standard_normal(3))
    for function in (
        lambda x: tg.func.jacobian(curve, x, create_graph=True),
        lambda x: tg.func.jvp(curve, x, v, create_graph=True)[1],
        lambda x: tg.func.hvp(number, x, v, create_graph=True)[1],
        lambda x: tg.func.hessian(number, x, create_graph=True),
    ):
        assert tg.gradcheck(function, x, mode="fast")


def test_nothing_else_is_touched() -> None:
    layer = nn.Linear(3, 3)
    x = tg.randn(2, 3, requires_grad=True)
    with tg.no_grad():
        hessian = tg.func.hessian(lambda x: layer(x).tanh().sum(), x)
    assert hessian.shape == (2, 3, 2, 3) and hessian.dtype == np.float32
    assert x.grad is None and layer.weight.grad is None
    assert tg.func.jacobian(lambda x: x[:0], x).shape == (0, 3, 2, 3)
    assert (tg.func.jacobian(lambda x: tg.ones(2), x) == 0).all()


def test_errors() -> None:
    x = tg.ones(3)
    with pytest.raises(ValueError, match="hessian: the function must return one number, got shape"):
        tg.func.hessian(lambda x: x, x)
    with pytest.raises(ValueError, match="vjp: v may be left out only for a single number"):
        tg.func.vjp(lambda x: x, x)
    with pytest.raises(ValueError, match="jvp: v must have the shapes"):
        tg.func.jvp(lambda x: x, x, tg.ones(2))
    with pytest.raises(TypeError, match="input 0 must be a float32 or float64 Tensor, got dtype int64"):
        tg.func.jacobian(lambda x: x, tg.arange(3))
    with pytest.raises(TypeError, match="jacobian: the function must return Tensors, got float"):
        tg.func.jacobian(lambda x: x.sum().item(), x)
