"""Rotary positions against complex multiplication, over layouts, and their known values."""

import numpy as np
import pytest

from tinygrad_tf.kernels import runtime
from tinygrad_tf.kernels.rotary import rotary


def tables(length, d, base=10000.0, start=0):
    angle = np.arange(start, start + length)[:, None] * base ** (-2 * np.arange(d // 2) / d)
    return np.cos(angle), np.sin(angle)


def plain(x, cos, sin):
    half = x.shape[-1] // 2
    z = (x[..., :half].astype(np.complex128) + 1j * x[..., half:]) * (cos + 1j * sin)
    return np.concatenate([z.real, z.imag], -1)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("shape", [(2, 3, 5, 8), (1, 1, 1, 2), (3, 2, 40, 6), (0, 2, 3, 4)])
@pytest.mark.parametrize("layout", ["plain", "packed", "reversed", "strided", "read-only"])
def test_against_complex_numbers(dtype, shape, layout):
    rng = np.random.default_rng(0)
    batch, heads, length, d = shape
    if layout == "packed":
        x = rng.standard_normal((batch, length, 3, heads, d)).astype(dtype)[:, :, 1].transpose(0, 2, 1, 3)
    elif layout == "reversed":
        x = rng.standard_normal(shape).astype(dtype)[:, :, ::-1]
    elif layout == "strided":
        x = rng.standard_normal((batch, heads, length, 2 * d)).astype(dtype)[..., ::2]
    else:
        x = rng.standard_normal(shape).astype(dtype)
    if layout == "read-only":
        x.flags.writeable = False
    before = x.copy()
    cos, sin = (t.astype(dtype) for t in tables(length, d))
    y = rotary(x, cos, sin)
    tolerance = 1e-6 if dtype == np.float32 else 1e-14
    assert y.dtype == dtype and y.shape == shape
    np.testing.assert_allclose(y, plain(x, cos, sin), atol=tolerance * 4)
    np.testing.assert_allclose(rotary(y, cos, sin, inverse=True), x, atol=tolerance * 8)
    np.testing.assert_array_equal(x, before)
    assert y.transpose(0, 2, 1, 3).flags.c_contiguous


def test_known_values():
    """BC-54 and BC-09: half-split layout, position 1, position 0, and what rotating twice would give."""
    x = np.array([1.0, 2.0, 3.0, 4.0]).reshape(1, 1, 1, 4)
    once = rotary(x, *tables(1, 4, start=1))
    np.testing.assert_allclose(once.ravel(), [-1.984111, 1.959901, 2.462378, 4.019800], atol=1e-6)
    np.testing.assert_array_equal(rotary(x, *tables(1, 4)), x)
    twice = rotary(once, *tables(1, 4, start=1))
    np.testing.assert_allclose(twice.ravel(), [-3.144039, 1.919605, -0.339143, 4.039197], atol=1e-6)


def test_inverse_is_the_gradient():
    rng = np.random.default_rng(1)
    x, g = rng.standard_normal((2, 2, 3, 4, 6))
    cos, sin = tables(4, 6)
    np.testing.assert_allclose((g * rotary(x, cos, sin)).sum(), (rotary(g, cos, sin, inverse=True) * x).sum())


def test_bits_do_not_depend_on_threads():
    rng = np.random.default_rng(2)
    x = rng.standard_normal((4, 4, 100, 64)).astype(np.float32)
    cos, sin = (t.astype(np.float32) for t in tables(100, 64))
    before = runtime.get_num_threads()
    try:
        results = []
        for n in (1, 2, 4):
            runtime.set_num_threads(n)
            results.append(rotary(x, cos, sin).tobytes())
    finally:
        runtime.set_num_threads(before)
    assert results[0] == results[1] == results[2]


def test_errors():
    with pytest.raises(ValueError, match=r"width must be even, got x of shape \(1, 1, 2, 3\)"):
        rotary(np.ones((1, 1, 2, 3)), np.ones((2, 1)), np.ones((2, 1)))
    with pytest.raises(ValueError, match=r"cos and sin must be \(2, 2\)"):
        rotary(np.ones((1, 1, 2, 4)), np.ones((3, 2)), np.ones((3, 2)))
