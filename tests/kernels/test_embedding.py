"""Gathering rows and adding them up by id."""

import numpy as np
import pytest

from tinygrad_tf.kernels import embedding as E
from tinygrad_tf.kernels import runtime


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(
    "shape,width,n", [((7,), 3, 5), ((4, 5), 1, 2), ((2, 3, 4), 17, 50), ((), 3, 4), ((0,), 3, 4), ((300,), 130, 11)]
)
def test_against_numpy(shape, width, n, dtype):
    rng = np.random.default_rng(1)
    weight, ids = rng.standard_normal((n, width)).astype(dtype), rng.integers(0, n, shape)
    got = E.gather_rows(weight, ids)
    np.testing.assert_array_equal(got, weight[ids])
    assert got.dtype == weight.dtype and got.flags.c_contiguous
    g = rng.standard_normal((ids.size, width)).astype(dtype)
    right = np.zeros((n, width))
    np.add.at(right, ids.reshape(-1), g.astype("f8"))
    out = E.scatter_add_rows(g, ids.reshape(-1), n)
    assert out.dtype == g.dtype
    np.testing.assert_allclose(out, right, rtol=np.finfo(dtype).eps, atol=1e-12)


def test_bc40_repeated_ids():
    ids = np.array([1, 1, 1, 0, 1, 2])
    up = np.arange(1.0, 13.0, dtype="f4").reshape(6, 2)
    np.testing.assert_array_equal(E.scatter_add_rows(up, ids, 3), [[7, 8], [18, 22], [11, 12]])


def test_bc40_bc61_one_id_a_hundred_thousand_times():
    """BC-61: one id a hundred thousand times."""
    ids, up = np.zeros(100_000, np.int64), np.ones((100_000, 3), "f4")
    before = runtime.get_num_threads()
    try:
        for threads in (1, 2, 4, 8):
            runtime.set_num_threads(threads)
            for _ in range(5):
                out = E.scatter_add_rows(up, ids, 2)
                assert (out[0] == 100_000).all() and (out[1] == 0).all()
            mixed = np.repeat([3, 0, 5], [40_000, 20_000, 40_000])
            out = E.scatter_add_rows(up, mixed, 6)
            np.testing.assert_array_equal(out[:, 0], [20_000, 0, 0, 40_000, 0, 40_000])
    finally:
        runtime.set_num_threads(before)


def test_bc24_long_sums():
    out = E.scatter_add_rows(np.full((1_000_000, 1), 1 / 255, "f4"), np.zeros(1_000_000, np.int64), 1)
    assert out[0, 0] == pytest.approx(3921.5688594, rel=1e-7)


def test_same_bits_on_any_number_of_threads():
    rng = np.random.default_rng(2)
    g, ids = rng.standard_normal((5000, 33)).astype("f4"), rng.integers(0, 40, 5000) // 3
    before = runtime.get_num_threads()
    results = []
    try:
        for threads in (1, 2, 3, 4):
            runtime.set_num_threads(threads)
            results.append(E.scatter_add_rows(g, ids, 40))
    finally:
        runtime.set_num_threads(before)
    for other in results[1:]:
        np.testing.assert_array_equal(other, results[0])


def test_bc05_layouts():
    rng = np.random.default_rng(3)
    g, ids = rng.standard_normal((6, 4)).astype("f4"), np.array([2, 0, 2, 1, 1, 2])
    weight = rng.standard_normal((3, 4)).astype("f4")
    right = E.scatter_add_rows(g, ids, 3)
    frozen = g.copy()
    frozen.flags.writeable = False
    for other in (np.asfortranarray(g), g[::-1].copy()[::-1], np.repeat(g, 2, 1)[:, ::2], frozen):
        np.testing.assert_array_equal(E.scatter_add_rows(other, np.repeat(ids, 2)[::2].astype(np.int32), 3), right)
    stretched = np.broadcast_to(np.float32(0.5), (6, 4))
    np.testing.assert_array_equal(E.scatter_add_rows(stretched, ids, 3)[:, 0], [0.5, 1, 1.5])
    got = E.gather_rows(np.asfortranarray(weight), ids.reshape(2, 3).T)
    np.testing.assert_array_equal(got, weight[ids.reshape(2, 3).T])
    assert got.flags.c_contiguous
    assert E.scatter_add_rows(np.empty((0, 4), "f4"), np.empty(0, np.int64), 3).tolist() == [[0] * 4] * 3
    assert E.scatter_add_rows(np.empty((2, 0), "f4"), np.zeros(2, np.int64), 3).shape == (3, 0)
