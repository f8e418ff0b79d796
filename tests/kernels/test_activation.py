"""GELU and SiLU against the C library's erf and exp, and the functions that kernels inline."""

import math

import numba
import numpy as np
import pytest

from tinygrad_tf.kernels import activation as A
from tinygrad_tf.kernels import runtime
from tinygrad_tf.kernels import vector_math as V


def gelu(x, tanh):
    if tanh:
        return 0.5 * x * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    return 0.5 * x * math.erfc(-x / math.sqrt(2))


def gelu_slope(x, tanh):
    if tanh:
        c = math.sqrt(2 / math.pi)
        t = math.tanh(c * (x + 0.044715 * x**3))
        return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * c * (1 + 3 * 0.044715 * x * x)
    return 0.5 * math.erfc(-x / math.sqrt(2)) + x * math.exp(-x * x / 2) / math.sqrt(2 * math.pi)


def silu(x):
    return x / (1 + math.exp(-x))


def silu_slope(x):
    s = 1 / (1 + math.exp(-x))
    return s + x * s * (1 - s)


FAMILY = {
    "gelu": (
        lambda x: A.gelu(x, False),
        lambda g, x: A.gelu_backward(g, x, False),
        lambda v: gelu(v, False),
        lambda v: gelu_slope(v, False),
    ),
    "gelu-tanh": (
        lambda x: A.gelu(x, True),
        lambda g, x: A.gelu_backward(g, x, True),
        lambda v: gelu(v, True),
        lambda v: gelu_slope(v, True),
    ),
    "silu": (A.silu, A.silu_backward, silu, silu_slope),
}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", FAMILY)
def test_against_definition(name, dtype):
    forward, backward, value, slope = FAMILY[name]
    rng = np.random.default_rng(1)
    x = np.concatenate([np.linspace(-12, 12, 4001), rng.standard_normal(500) * 1e-3]).astype(dtype)
    g = rng.standard_normal(x.size).astype(dtype)
    unit = np.finfo(dtype).eps
    right = np.array([value(float(v)) for v in x])
    y = forward(x)
    assert y.dtype == x.dtype
    np.testing.assert_allclose(y, right, rtol=4 * unit, atol=4 * unit)
    np.testing.assert_allclose(backward(g, x), g * np.array([slope(float(v)) for v in x]), atol=200 * unit)


@pytest.mark.parametrize("name", FAMILY)
def test_slope_by_differences(name):
    forward, backward, _, _ = FAMILY[name]
    x = np.linspace(-6, 6, 101)
    g = np.random.default_rng(2).standard_normal(101)
    np.testing.assert_allclose(backward(g, x), g * (forward(x + 1e-6) - forward(x - 1e-6)) / 2e-6, atol=1e-8)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_bc51_gelu_numbers_and_extremes(dtype):
    """BC-51: gelu numbers and extremes."""
    x = np.array([1, -2, 3], dtype)
    np.testing.assert_allclose(A.gelu(x, False), [0.841344746, -0.045500264, 2.995950306], atol=3e-7)
    np.testing.assert_allclose(A.gelu(x, True), [0.841191991, -0.045402306, 2.996362608], atol=3e-7)
    one = np.ones(1, dtype)
    assert A.gelu_backward(one, one, False)[0] == pytest.approx(1.083315471, abs=3e-7)
    assert A.gelu_backward(one, one, True)[0] == pytest.approx(1.082964084, abs=3e-7)
    grid = np.linspace(2, 4, 2001).astype(dtype)
    assert np.abs(A.gelu(grid, True) - A.gelu(grid, False)).max() == pytest.approx(4.73e-4, abs=1e-6)
    huge = np.array([40, -40, 1e20, -1e20, np.inf, -np.inf, 0, np.nan] * 4, dtype)
    value = np.array([40, 0, 1e20, 0, np.inf, 0, 0, np.nan] * 4, dtype)
    slope = np.array([1, 0, 1, 0, 1, 0, 0.5, np.nan] * 4, dtype)
    for name, (forward, backward, _, _) in FAMILY.items():
        np.testing.assert_allclose(forward(huge), value, atol=1e-15, err_msg=name)
        np.testing.assert_allclose(backward(np.ones_like(huge), huge), slope, atol=1e-15, err_msg=name)


@pytest.mark.parametrize("name", FAMILY)
@pytest.mark.parametrize("shape", [(4, 6), (3, 5, 7), (1,), (), (0, 3)])
def test_bc05_layouts(name, shape):
    forward, backward, _, _ = FAMILY[name]
    x, g = (np.random.default_rng(s).standard_normal(shape).astype("f4") for s in (3, 4))
    y, dx = forward(x), backward(g, x)
    assert y.shape == dx.shape == shape
    frozen = x.copy()
    frozen.flags.writeable = False
    others = [np.asfortranarray(x), x.T.copy().T, frozen]
    if shape and x.ndim > 1:
        others += [x[::-1].copy()[::-1], np.repeat(x, 2, axis=-1)[..., ::2], x[:, ::-1].copy()[:, ::-1]]
    for other in others:
        np.testing.assert_array_equal(forward(other), y)
        np.testing.assert_array_equal(backward(g, other), dx)
        np.testing.assert_array_equal(backward(other, x), backward(x, x))
    stretched = np.broadcast_to(np.float32(0.3), shape)
    np.testing.assert_array_equal(forward(stretched), forward(stretched.copy()))


@pytest.mark.parametrize("name", FAMILY)
def test_same_bits_on_any_number_of_threads(name):
    forward, backward, _, _ = FAMILY[name]
    x, g = (np.random.default_rng(s).standard_normal(100_003).astype("f4") for s in (5, 6))
    before = runtime.get_num_threads()
    results = []
    try:
        for threads in (1, 2, 4):
            runtime.set_num_threads(threads)
            results.append((forward(x), backward(g, x)))
    finally:
        runtime.set_num_threads(before)
    for y, dx in results[1:]:
        np.testing.assert_array_equal(y, results[0][0])
        np.testing.assert_array_equal(dx, results[0][1])


@numba.njit
def table(x):
    out = np.empty((5, len(x)), x.dtype)
    for i in range(len(x)):
        out[0, i] = V.exp(x[i])
        out[1, i] = V.tanh(x[i])
        out[2, i] = V.erf(x[i])
        out[3, i] = V.sigmoid(x[i])
        out[4, i] = V.normal_tail(x[i])[0]
    return out


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_inlined_functions_against_the_c_library(dtype):
    unit = np.finfo(dtype).eps
    x = np.concatenate([np.linspace(-80, 80, 9001), np.linspace(-2, 2, 2001), [0.0]]).astype(dtype)
    right = [
        [math.exp(v), math.tanh(v), math.erf(v), 1 / (1 + math.exp(-v)), math.erfc(abs(v) / math.sqrt(2)) / 2]
        for v in map(float, x)
    ]
    got = table(x)
    for row, expected, bound in zip(got, np.array(right).T, (2, 2, 2, 3, 1000), strict=True):
        np.testing.assert_allclose(row, expected, rtol=bound * unit, atol=np.finfo(dtype).tiny)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_bc62_inlined_functions_at_the_edges(dtype):
    inf, nan = np.inf, np.nan
    x = np.array([-inf, -1e30, 0, 1e30, inf, nan], dtype)
    with np.errstate(over="ignore"):
        right = [[0, 0, 1, inf, inf, nan], [-1, -1, 0, 1, 1, nan], [-1, -1, 0, 1, 1, nan], [0, 0, 0.5, 1, 1, nan]]
    np.testing.assert_array_equal(table(x)[:4], np.array(right, dtype))
    last = np.array([np.log(np.finfo(dtype).max) * (1 - 2 * np.finfo(dtype).eps)], dtype)
    assert np.isfinite(table(last)[0, 0])
    np.testing.assert_allclose(table(last)[0], np.exp(last), rtol=200 * np.finfo(dtype).eps)
    tiny = np.log(np.finfo(dtype).tiny)
    np.testing.assert_allclose(
        table(np.array([tiny + 0.7], dtype))[0], np.exp(np.array([tiny + 0.7], dtype)), rtol=1e-5
    )
    np.testing.assert_array_equal(table(np.array([tiny - 0.7], dtype))[0], 0)  # no subnormal numbers
