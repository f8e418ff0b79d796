"""The identity path: the Jacobian of y = x + F(x) is I + J_F, of a block (I + J2)(I + J1)."""

import numpy as np
import pytest

import tinygrad_tf as tg
from tinygrad_tf import nn

T, D = 3, 4


def differences(f, x: np.ndarray) -> np.ndarray:
    """The Jacobian by central differences, (T·D, T·D)."""
    columns = []
    for i in range(x.size):
        step = np.zeros(x.size)
        step[i] = 1e-5
        with tg.no_grad():
            up, down = (f(tg.tensor(x + s * step.reshape(x.shape))).numpy() for s in (1, -1))
        columns.append((up - down).reshape(-1) / 2e-5)
    return np.stack(columns, 1)


def backward(f, x: np.ndarray) -> np.ndarray:
    """The Jacobian by backward passes, a row for each output."""
    rows = []
    for i in range(x.size):
        leaf = tg.tensor(x, requires_grad=True)
        f(leaf).reshape(-1)[i].backward()
        rows.append(leaf.grad.numpy().reshape(-1).copy())
    return np.stack(rows)


@pytest.mark.parametrize("normed", [False, True])
@pytest.mark.parametrize("name", ["attention", "feed_forward"])
def test_residual_jacobian_minus_that_of_its_branch_is_the_identity(name: str, normed: bool) -> None:
    tg.manual_seed(1)
    f = nn.MultiHeadAttention(D, 2, causal=True) if name == "attention" else nn.FeedForward(D, 8)
    norm = nn.LayerNorm(D) if normed else None
    residual = nn.Residual(f, norm).double()
    x = np.random.default_rng(0).standard_normal((1, T, D))
    branch = backward((lambda t: f(norm(t))) if norm is not None else f, x)
    assert np.abs(branch).max() > 1e-2
    assert np.allclose(differences(residual, x) - branch, np.eye(T * D), atol=1e-7)


def test_block_jacobian_is_the_product_of_two_residual_jacobians() -> None:
    tg.manual_seed(2)
    block = nn.TransformerBlock(D, 2, d_ff=8, causal=True).double()
    x = np.random.default_rng(1).standard_normal((1, T, D))
    first, second = block.attention, block.feed_forward
    j1 = backward(lambda t: first.f(first.norm(t)), x)
    j2 = backward(lambda t: second.f(second.norm(t)), first(tg.tensor(x)).detach().numpy())
    eye = np.eye(T * D)
    product = (eye + j2) @ (eye + j1)
    assert np.allclose(differences(block, x), product, atol=1e-6)
    assert np.allclose(backward(block, x), product, atol=1e-9)
    assert np.abs(product - (eye + j2 + j1)).max() > 1e-3
