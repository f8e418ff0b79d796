"""Softmax, layer norm and RMS norm against definitions in float64 numpy."""

import numpy as np
import pytest

from tinygrad_tf.kernels import normalization as N
from tinygrad_tf.kernels import runtime

TOLERANCE = {np.dtype("float32"): 3e-6, np.dtype("float64"): 1e-12}


def layouts(a):
    """The same values in other layouts (all of `a`'s shape)."""
    big = np.zeros(tuple(2 * n + 1 for n in a.shape), a.dtype)
    big[tuple(slice(1, None, 2) for _ in a.shape)] = a
    read_only = a.copy()
    read_only.flags.writeable = False
    return [
        a,
        np.asfortranarray(a),
        a.T.copy().T,
        big[tuple(slice(1, None, 2) for _ in a.shape)],
        a[::-1].copy()[::-1],
        a[..., ::-1].copy()[..., ::-1],
        read_only,
    ]


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def norm(x, weight, bias, eps, center):
    mean = x.mean(-1, keepdims=True) if center else 0.0
    rstd = 1 / np.sqrt(((x - mean) ** 2).mean(-1, keepdims=True) + eps)
    return (x - mean) * rstd * weight + bias


def numeric(fn, x, g, eps=1e-6):
    """The gradient of sum(g fn(x)) by central differences."""
    out = np.zeros_like(x)
    for i in np.ndindex(x.shape):
        step = np.zeros_like(x)
        step[i] = eps
        out[i] = ((fn(x + step) - fn(x - step)) * g).sum() / (2 * eps)
    return out


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("shape", [(3, 4), (2, 3, 4), (5,), (7, 1), (2, 65), (1, 1000), (0, 4), (3, 0), (2, 0, 3)])
def test_softmax_family_against_numpy(shape, dtype):
    rng = np.random.default_rng(1)
    x, g = (rng.standard_normal(shape).astype(dtype) for _ in range(2))
    close = TOLERANCE[np.dtype(dtype)]
    expected = softmax(x.astype("f8")) if x.size else x
    gd = g.astype("f8")
    y, logy = N.softmax(x), N.log_softmax(x)
    assert y.dtype == logy.dtype == x.dtype and y.flags.c_contiguous
    np.testing.assert_allclose(y, expected, atol=close)
    np.testing.assert_allclose(logy, np.log(expected), atol=close * 3)
    np.testing.assert_allclose(
        N.softmax_backward(g, y), expected * (gd - (gd * expected).sum(-1, keepdims=True)), atol=close * 2
    )
    np.testing.assert_allclose(
        N.log_softmax_backward(g, logy), gd - expected * gd.sum(-1, keepdims=True), atol=close * 20
    )


def test_softmax_gradients_by_differences():
    rng = np.random.default_rng(2)
    x, g = rng.standard_normal((2, 5)), rng.standard_normal((2, 5))
    np.testing.assert_allclose(N.softmax_backward(g, N.softmax(x)), numeric(N.softmax, x, g), atol=1e-8)
    np.testing.assert_allclose(N.log_softmax_backward(g, N.log_softmax(x)), numeric(N.log_softmax, x, g), atol=1e-8)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_bc47_bc62_softmax_with_infinities_and_nan(dtype):
    inf, nan = np.inf, np.nan
    x = np.array([[-inf, 0, -inf], [0, -inf, 0], [-inf, -inf, -inf], [nan, 0, 1], [0, -nan, 1], [0, inf, 0]], dtype)
    y = N.softmax(x)
    np.testing.assert_array_equal(y[:2], [[0, 1, 0], [0.5, 0, 0.5]])
    assert np.isnan(y[2:5]).all() and np.isnan(y[5, 1])
    logy = N.log_softmax(x)
    np.testing.assert_array_equal(logy[0], [-inf, 0, -inf])
    assert np.isnan(logy[2:5]).all()
    g = np.array([[1, 2, 3]], dtype)
    np.testing.assert_array_equal(N.softmax_backward(g, y[:1]), [[0, 0, 0]])
    np.testing.assert_array_equal(N.log_softmax_backward(g, logy[:1]), [[1, -4, 3]])
    wide = np.full((1, 100), -inf, dtype)
    wide[0, 70] = 1e30
    assert N.softmax(wide)[0, 70] == 1 and N.softmax(wide).sum() == 1
    for position in (0, 50, 99):
        wide[0, :] = 0
        wide[0, position] = nan
        assert np.isnan(N.softmax(wide)).all()


def test_softmax_of_large_and_of_single_numbers():
    np.testing.assert_allclose(N.softmax(np.array([[1e4, 1e4 - 1]])), softmax(np.array([[1.0, 0.0]])))
    one = N.softmax(np.array([[7.0], [-3.0]]))
    np.testing.assert_array_equal(one, [[1], [1]])
    np.testing.assert_array_equal(N.softmax_backward(np.array([[5.0], [2.0]]), one), [[0], [0]])


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("shape", [(3, 4), (2, 3, 4), (5,), (7, 1), (40, 65), (2, 700), (0, 4), (3, 0)])
def test_norms_against_numpy(shape, affine, dtype):
    rng = np.random.default_rng(3)
    x, g = ((rng.standard_normal(shape) * 2 + 1).astype(dtype) for _ in range(2))
    weight, bias = (rng.standard_normal(shape[-1]).astype(dtype) for _ in range(2))
    weight, bias = (weight, bias) if affine else (None, None)
    close = TOLERANCE[np.dtype(dtype)] * 4
    w, b = (weight.astype("f8"), bias.astype("f8")) if affine else (1.0, 0.0)
    xd, gd = x.astype("f8"), g.astype("f8")
    outer = tuple(range(len(shape) - 1))
    for center in (True, False):
        if center:
            y, mean, rstd = N.layer_norm(x, weight, bias, 1e-5)
            dx, dweight, dbias = N.layer_norm_backward(g, x, weight, mean, rstd)
            assert mean.shape == rstd.shape == shape[:-1] and mean.dtype == x.dtype
            partly = N.layer_norm_backward(g, x, weight, mean, rstd, (False, True, False))
            assert partly[0] is None and partly[2] is None
            np.testing.assert_array_equal(partly[1], dweight)
            np.testing.assert_array_equal(N.layer_norm_backward(g, x, weight, mean, rstd, (True, False, False))[0], dx)
        else:
            y, rstd = N.rms_norm(x, weight, 1e-5)
            dx, dweight = N.rms_norm_backward(g, x, weight, rstd)
        assert y.dtype == dx.dtype == dweight.dtype == x.dtype and y.shape == dx.shape == shape
        if x.size == 0:
            np.testing.assert_array_equal(dweight, np.zeros(shape[-1]))
            continue
        middle = xd.mean(-1, keepdims=True) if center else 0.0
        scale = 1 / np.sqrt(((xd - middle) ** 2).mean(-1, keepdims=True) + 1e-5)
        h, u = (xd - middle) * scale, gd * w
        np.testing.assert_allclose(y, norm(xd, w, b if center else 0.0, 1e-5, center), atol=close)
        right = scale * (u - center * u.mean(-1, keepdims=True) - h * (u * h).mean(-1, keepdims=True))
        if shape[-1] > 1:
            np.testing.assert_allclose(dx, right, atol=close * max(1, np.abs(scale).max()))
        np.testing.assert_allclose(dweight, (gd * h).sum(outer), atol=close * 10)
        if center:
            np.testing.assert_allclose(dbias, gd.sum(outer), atol=close * 10)


def test_norm_gradients_by_differences():
    rng = np.random.default_rng(4)
    x, g, w, b = (rng.standard_normal(s) for s in ((3, 5), (3, 5), 5, 5))
    _, mean, rstd = N.layer_norm(x, w, b, 1e-5)
    dx, dw, db = N.layer_norm_backward(g, x, w, mean, rstd)
    np.testing.assert_allclose(dx, numeric(lambda v: N.layer_norm(v, w, b, 1e-5)[0], x, g), atol=1e-7)
    np.testing.assert_allclose(dw, numeric(lambda v: N.layer_norm(x, v, b, 1e-5)[0], w, g), atol=1e-7)
    np.testing.assert_allclose(db, numeric(lambda v: N.layer_norm(x, w, v, 1e-5)[0], b, g), atol=1e-7)
    _, rstd = N.rms_norm(x, w, 1e-5)
    dx, dw = N.rms_norm_backward(g, x, w, rstd)
    np.testing.assert_allclose(dx, numeric(lambda v: N.rms_norm(v, w, 1e-5)[0], x, g), atol=1e-7)
    np.testing.assert_allclose(dw, numeric(lambda v: N.rms_norm(x, v, 1e-5)[0], w, g), atol=1e-7)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_bc05_layer_norm_numbers_in_every_layout(dtype):
    x = ((np.arange(24).reshape(2, 3, 4) % 7) * 3).astype(dtype)
    up = ((np.arange(24).reshape(2, 3, 4) % 5) - 2).astype(dtype)
    w, b = np.array([1, 2, 3, 4], dtype), np.array([0.1, 0.2, 0.3, 0.4], dtype)
    for xi, gi in zip(layouts(x), reversed(layouts(up)), strict=True):
        y, mean, rstd = N.layer_norm(xi, w, b, 1e-5)
        dx, dw, db = N.layer_norm_backward(gi, xi, w, mean, rstd)
        assert (y * up).sum() == pytest.approx(6.053644723, abs=2e-5)
        np.testing.assert_allclose(dw, [-0.39012, 0.61972, -3.78849, 4.14245], atol=2e-5)
        np.testing.assert_allclose(db, [-2, -1, 0, 1], atol=1e-5)
        right = [
            [
                [0.29814, -0.29814, -0.29814, 0.29814],
                [0.49548, -0.30328, -0.07758, -0.11461],
                [-0.44721, 1.19257, -1.0435, 0.29814],
            ],
            [
                [-0.04023, 0.20114, 0.84481, -1.00572],
                [0.29814, -0.29814, -0.29814, 0.29814],
                [-0.18691, -0.35618, -0.03527, 0.57836],
            ],
        ]
        np.testing.assert_allclose(dx, right, atol=2e-5)
        np.testing.assert_array_equal(N.softmax(xi), N.softmax(x))
        np.testing.assert_array_equal(N.log_softmax(xi), N.log_softmax(x))
        np.testing.assert_array_equal(N.softmax_backward(gi, xi), N.softmax_backward(up, x))
        np.testing.assert_array_equal(N.rms_norm(xi, w, 1e-5)[0], N.rms_norm(x, w, 1e-5)[0])


def test_broadcast_strides():
    x = np.broadcast_to(np.array([1.0, 2.0, 4.0], "f4"), (5, 3))
    np.testing.assert_array_equal(N.softmax(x), N.softmax(x.copy()))
    y, mean, rstd = N.layer_norm(x, np.broadcast_to(np.float32(2), (3,)), None, 1e-5)
    g = np.broadcast_to(np.float32(1.5), (5, 3))
    dw = N.layer_norm_backward(g, x, None, mean, rstd)[1]
    np.testing.assert_allclose(dw, 1.5 * 5 * y[0] / 2, rtol=1e-5)


def test_bc25_layer_norm_statistics():
    """BC-25: layer norm statistics."""
    row = (1e4 + np.array([[0, 0.25, 0.5, 0.75]])).astype("f4")
    y, _, _ = N.layer_norm(row, None, None, 1e-5)
    np.testing.assert_allclose(y, [[-1.341555, -0.447185, 0.447185, 1.341555]], atol=1e-5)
    y, _, _ = N.layer_norm((4096 + np.array([[0, 1, 2, 3]])).astype("f4"), None, None, 0.0)
    np.testing.assert_allclose(y, [[-1.341641, -0.447214, 0.447214, 1.341641]], atol=1e-5)
    offset = np.random.default_rng(5).standard_normal((4, 300)).astype("f4") + np.float32(1e4)
    y, _, _ = N.layer_norm(offset, None, None, 1e-5)
    np.testing.assert_allclose(y, norm(offset.astype("f8"), 1.0, 0.0, 1e-5, True), atol=2e-5)
    x, w, b = (np.array(v, "f4") for v in ([[1e6]], [2], [3]))
    y, mean, rstd = N.layer_norm(x, w, b, 1e-5)
    dx, dw, _ = N.layer_norm_backward(np.array([[0.7]], "f4"), x, w, mean, rstd)
    assert y[0, 0] == 3 and dw[0] == 0 and dx[0, 0] == 0
    zeros, up, ones, b = np.zeros((1, 4), "f4"), np.array([[1, 2, 3, 4]], "f4"), np.ones(4, "f4"), np.arange(4.0)
    y, mean, rstd = N.layer_norm(zeros, ones, b.astype("f4"), 1e-5)
    np.testing.assert_array_equal(y[0], b)
    dx, _, _ = N.layer_norm_backward(up, zeros, ones, mean, rstd)
    np.testing.assert_allclose(dx, [[-474.342, -158.114, 158.114, 474.342]], atol=1e-3)
    _, rstd = N.rms_norm(zeros, ones, 1e-6)
    np.testing.assert_allclose(N.rms_norm_backward(up, zeros, ones, rstd)[0], [[1000, 2000, 3000, 4000]], rtol=1e-5)


def test_bc24_long_sums():
    g = np.full((65536, 3), 1 / 255, "f4")
    x = np.ones((65536, 3), "f4")
    _, mean, rstd = N.layer_norm(x, None, None, 1e-5)
    right = 65536 * np.float64(np.float32(1 / 255))
    np.testing.assert_allclose(N.layer_norm_backward(g, x, None, mean, rstd)[2], right, rtol=1e-6)
    _, rstd = N.rms_norm(x, None, 0.0)
    np.testing.assert_allclose(N.rms_norm_backward(g, x, None, rstd)[1], right, rtol=1e-6)
    wide = np.full((1, 1_000_000), 1 / 255, "f4")
    np.testing.assert_allclose(N.layer_norm(wide, None, None, 1e-5)[1], np.float32(1 / 255), rtol=1e-6)
    np.testing.assert_allclose(N.softmax(wide), 1e-6, rtol=1e-6)


def test_bc62_norms_pass_nan_on():
    x = np.ones((2, 40), "f4")
    x[1, 17] = np.nan
    y, _, rstd = N.layer_norm(x, None, None, 1e-5)
    assert np.isnan(y[1]).all() and np.isfinite(y[0]).all() and np.isnan(rstd[1])
    assert np.isnan(N.rms_norm(x, None, 1e-5)[0][1]).all()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_same_bits_on_any_number_of_threads(dtype):
    rng = np.random.default_rng(6)
    x, g = (rng.standard_normal((999, 130)).astype(dtype) for _ in range(2))
    w, b = (rng.standard_normal(130).astype(dtype) for _ in range(2))
    before = runtime.get_num_threads()
    results = []
    try:
        for threads in (1, 2, 4):
            runtime.set_num_threads(threads)
            y, mean, rstd = N.layer_norm(x, w, b, 1e-5)
            s, logs = N.softmax(x), N.log_softmax(x)
            results.append(
                [
                    y,
                    mean,
                    rstd,
                    *N.layer_norm_backward(g, x, w, mean, rstd),
                    s,
                    N.softmax_backward(g, s),
                    logs,
                    N.log_softmax_backward(g, logs),
                    *N.rms_norm_backward(g, x, w, rstd),
                ]
            )
    finally:
        runtime.set_num_threads(before)
    for other in results[1:]:
        for a, b in zip(results[0], other, strict=True):
            np.testing.assert_array_equal(a, b)
