"""AdamW, the sum of squares, and scaling in place."""

import numpy as np
import pytest

from tinygrad_tf.kernels import optimizer as O
from tinygrad_tf.kernels import runtime


def steps(grads, dtype="float64", first=1, theta=1.0, m=0.0, v=0.0, **settings):
    settings = dict(lr=0.1, beta1=0.9, beta2=0.999, eps=1e-8, weight_decay=0.1) | settings
    p, m, v = (np.array([value], dtype) for value in (theta, m, v))
    seen = []
    for step, g in enumerate(grads, first):
        O.adamw([p], [np.array([g], dtype)], [m], [v], step=step, **settings)
        seen.append(float(p[0]))
    return seen, float(m[0]), float(v[0])


@pytest.mark.parametrize("dtype,close", [("float32", 3e-7), ("float64", 2e-9)])
def test_bc29_four_steps_and_resuming(dtype, close):
    """BC-29: four steps and resuming."""
    seen, _, _ = steps([0.1, -0.2, 0.3, 0.05], dtype)
    assert seen == pytest.approx([0.89000001, 0.917710360, 0.874209150, 0.829896276], abs=close)
    half, m, v = steps([0.1, -0.2], dtype)
    assert m == pytest.approx(-0.011, rel=1e-5) and v == pytest.approx(4.999e-5, rel=1e-4)
    assert steps([0.3, 0.05], dtype, 3, half[-1], m, v)[0] == seen[2:]
    assert steps([0.3, 0.05], dtype, 1, half[-1], m, v)[0] == pytest.approx([0.854802235, 0.800705705], abs=close * 5)


def test_bc35_decay_order_and_tiny_gradients():
    """BC-35: decay order and tiny gradients."""
    assert steps([0.1])[0][0] == pytest.approx(0.890000010, abs=1e-9)
    seen, m, v = steps([1e-23], "float32", weight_decay=0.0)
    assert v == 0 and np.isfinite(seen[0]) and m > 0
    assert steps([0.1], lr=0.0)[0][0] == 1.0


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_adamw_against_numpy_over_several_parameters(dtype):
    rng = np.random.default_rng(1)
    shapes = [(3, 5), (7,), (), (0,), (300, 301)]
    p, g, m = ([rng.standard_normal(s).astype(dtype) for s in shapes] for _ in range(3))
    p, g, m = ([np.array(a, dtype) for a in group] for group in (p, g, m))
    v = [a * a for a in m]
    v = [np.array(a, dtype) for a in v]
    right = []
    for pi, gi, mi, vi in zip(p, g, m, v, strict=True):
        pi, gi, mi, vi = (a.astype("f8") for a in (pi, gi, mi, vi))
        mi, vi = 0.8 * mi + 0.2 * gi, 0.95 * vi + 0.05 * gi**2
        pi = pi - 0.01 * 0.3 * pi
        right.append((pi - 0.01 * (mi / (1 - 0.8**3)) / (np.sqrt(vi / (1 - 0.95**3)) + 1e-6), mi, vi))
    O.adamw(p, [np.asfortranarray(a) for a in g], m, v, 0.01, 0.8, 0.95, 1e-6, 0.3, 3)
    close = 1e-5 if dtype == "float32" else 1e-13
    for got, expected in zip(zip(p, m, v, strict=True), right, strict=True):
        for a, b in zip(got, expected, strict=True):
            np.testing.assert_allclose(a, b, rtol=close, atol=close)
    O.adamw([], [], [], [], 0.01, 0.8, 0.95, 1e-6, 0.3, 3)


def test_bc24_sum_of_squares_keeps_its_digits():
    a = np.full(1_000_000, 1 / 255, "f4")
    assert O.sum_of_squares([a]) == pytest.approx(1e6 * np.float64(a[0]) ** 2, rel=1e-7)
    assert O.sum_of_squares([np.full((3, 4), 2.0)[:, ::2].T, np.ones(2, "f4")]) == 26
    assert O.sum_of_squares([np.empty((0, 3), "f4")]) == 0 == O.sum_of_squares([])
    assert np.isnan(O.sum_of_squares([np.array([1, np.nan], "f4")]))


@pytest.mark.parametrize("size", [10, 300_001])
def test_scale_in_place(size):
    rng = np.random.default_rng(2)
    arrays = [rng.standard_normal((size, 1)).astype(dtype) for dtype in ("f4", "f8", "f4")] + [np.empty((0, 2), "f4")]
    wide = np.ones((size, 2), "f4")
    right = [a * a.dtype.type(0.1) for a in arrays]
    O.scale([*arrays, wide[:, :1]], 0.1)
    for a, r in zip(arrays, right, strict=True):
        np.testing.assert_array_equal(a, r)
    np.testing.assert_array_equal(wide, np.broadcast_to(np.array([0.1, 1], "f4"), wide.shape))
    O.scale([], 0.1)


def test_same_bits_on_any_number_of_threads():
    rng = np.random.default_rng(3)
    p0, g = (rng.standard_normal(200_003).astype("f4") for _ in range(2))
    before = runtime.get_num_threads()
    results = []
    try:
        for threads in (1, 2, 4):
            runtime.set_num_threads(threads)
            p, m, v = p0.copy(), np.zeros_like(p0), np.zeros_like(p0)
            for step in (1, 2):
                O.adamw([p], [g], [m], [v], 1e-3, 0.9, 0.99, 1e-8, 0.1, step)
            results.append((p, m, v, O.sum_of_squares([g])))
    finally:
        runtime.set_num_threads(before)
    for other in results[1:]:
        for a, b in zip(results[0], other, strict=True):
            np.testing.assert_array_equal(a, b)
