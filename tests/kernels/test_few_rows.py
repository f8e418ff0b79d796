"""Products with very few rows, as dot products."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tinygrad_tf as tg
from tinygrad_tf.kernels import few_rows, gemm


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(("n", "depth"), [(1, 5), (3, 7), (4, 16), (65, 128), (70, 1100), (769, 40)])
def test_against_numpy_on_any_number_of_threads(n: int, depth: int, dtype: Any) -> None:
    rng = np.random.default_rng(0)
    w, bias = rng.standard_normal((n, depth)).astype(dtype), rng.standard_normal(n).astype(dtype)
    before = tg.get_num_threads()
    for m in range(1, few_rows.FEW_ROWS + 1):
        x = rng.standard_normal((m, depth)).astype(dtype)
        exact = x.astype(np.float64) @ w.T.astype(np.float64) + bias
        found = few_rows.rows_by_dots(x, w, bias)
        assert found is not None and found.dtype == dtype and found.shape == (m, n)
        np.testing.assert_allclose(found, exact, rtol=0, atol=2e-4 if dtype == np.float32 else 1e-11)
        out = np.full((m, n), 0.5, dtype)
        for tasks in (1, 2, 3):
            again = np.full((m, n), 0.5, dtype)
            few_rows.few_rows(tasks, x, w, again, bias, True, True)
            assert tasks == 1 or (again == out).all()
            out = again
        np.testing.assert_allclose(out, np.maximum(exact + 0.5, 0), rtol=0, atol=2e-4)
    assert tg.get_num_threads() == before


def test_what_it_leaves_to_the_tiles() -> None:
    x, w = np.ones((2, 6), np.float32), np.ones((5, 6), np.float32)
    assert few_rows.rows_by_dots(x, w, None) is not None
    for a, b in ((np.ones((9, 6), np.float32), w), (x, w[:, ::-1]), (x[:0], w), (x, w[:0]), (x.astype(">f4"), w)):
        assert few_rows.rows_by_dots(a, b, None) is None
        expected = np.full((len(a), len(b)), 6, np.float32)
        np.testing.assert_array_equal(gemm.matmul(a.astype(np.float32), b.T), expected)


def test_not_finite() -> None:
    x, w = np.ones((3, 9), np.float32), np.ones((6, 9), np.float32)
    x[1, 8], w[5, 0] = np.nan, np.inf
    y = few_rows.rows_by_dots(x, w, None)
    assert y is not None and np.isnan(y[1]).all() and np.isinf(y[0, 5]) and (y[0, :5] == 9).all()
