"""The matrix product against numpy in float64: shapes, layouts, threads, epilogues, non-finite numbers."""

import itertools

import numpy as np
import pytest

from tinygrad_tf.kernels import gemm, runtime
from tinygrad_tf.kernels.gemm import matmul

DTYPES = ["float32", "float64"]


def numbers(shape, dtype="float32", seed=0):
    return np.random.default_rng((seed, *shape)).standard_normal(shape).astype(dtype)


def check(a, b, got, extra=0.0):
    """Every number of `got` within the rounding bound of a sum of K products."""
    a64, b64 = np.asarray(a, np.float64), np.asarray(b, np.float64)
    want = a64 @ b64 + extra
    eps = np.finfo(got.dtype).eps
    bound = (a.shape[-1] + 4) * eps * (np.abs(a64) @ np.abs(b64) + np.abs(extra)) + 1e-300
    assert got.shape == want.shape
    assert got.dtype == a.dtype
    assert (np.abs(got - want) <= bound).all()


def transposed(a):
    return np.ascontiguousarray(a.swapaxes(-1, -2)).swapaxes(-1, -2)


def padded(a):
    big = np.full((*a.shape[:-2], a.shape[-2] + 3, a.shape[-1] + 5), np.nan, a.dtype)
    view = big[..., 2:-1, 3:-2]
    view[...] = a
    return view


def every_other(a):
    big = np.full((*a.shape[:-1], 2 * a.shape[-1]), np.nan, a.dtype)
    big[..., ::2] = a
    return big[..., ::2]


def backwards(a):
    return np.ascontiguousarray(a[..., ::-1, ::-1])[..., ::-1, ::-1]


def backwards_rows(a):
    return np.ascontiguousarray(a[..., ::-1, :])[..., ::-1, :]


def read_only(a):
    a = a.copy()
    a.flags.writeable = False
    return a


def misaligned(a):
    raw = np.zeros(a.nbytes + 1, np.uint8)
    view = raw[1:].view(a.dtype).reshape(a.shape)
    view[...] = a
    return view


LAYOUTS = [
    np.ascontiguousarray,
    transposed,
    padded,
    lambda a: transposed(padded(a)),
    every_other,
    backwards,
    backwards_rows,
    read_only,
    misaligned,
    np.asfortranarray,
]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "sizes",
    [
        (1, 1, 1),
        (1, 7, 1),
        (3, 1, 4),
        (1, 300, 33),
        (5, 8, 16),
        (6, 16, 16),
        (7, 9, 17),
        (12, 257, 32),
        (13, 31, 8),
        (14, 33, 24),
        (29, 100, 65),
        (65, 600, 40),
        (200, 64, 1),
        (210, 40, 31),
        (250, 20, 530),
    ],
)
def test_sizes_and_the_four_layouts(sizes, dtype):
    m, k, n = sizes
    a, b = numbers((m, k), dtype), numbers((k, n), dtype, 1)
    results = []
    for left, right in itertools.product((np.ascontiguousarray, transposed), repeat=2):
        results.append(matmul(left(a), right(b)))
        check(a, b, results[-1])
    if m > gemm.FEW_ROWS:  # few rows are summed in another order where b is transposed
        assert all(np.array_equal(r, results[0]) for r in results)


@pytest.mark.parametrize("dtype", DTYPES)
def test_bc05_any_strides_give_the_same_numbers(dtype):
    a, b = numbers((23, 37), dtype), numbers((37, 41), dtype, 1)
    want = matmul(a, b)
    check(a, b, want)
    for left, right in itertools.product(LAYOUTS, repeat=2):
        assert np.array_equal(matmul(left(a), right(b)), want)
    a, b = numbers((2, 3, 23, 37), dtype), numbers((2, 3, 37, 41), dtype, 1)
    want = matmul(a, b)
    check(a, b, want)
    for left, right in itertools.product(LAYOUTS, repeat=2):
        assert np.array_equal(matmul(left(a), right(b)), want)
    turned = np.ascontiguousarray(a.transpose(2, 0, 1, 3)).transpose(1, 2, 0, 3)
    assert np.array_equal(matmul(turned, b), want)


@pytest.mark.parametrize("dtype", DTYPES)
def test_operands_of_one_row_or_column_with_odd_strides(dtype):
    big = numbers((40, 50), dtype)
    for a, b in [
        (big[:, 3:4], big[5:6]),
        (big[3:4, ::2], big[:25]),
        (big[:, ::2], big[:25, 7:8]),
        (big[::2, :1], big[:1, ::3]),
        (big[3:4, :40], big),
        (big[:, :40], big[:, 4:5]),
    ]:
        check(a, b, matmul(a, b))


def test_expanded_operands_are_read_in_place():
    a, b = numbers((12, 20)), numbers((20, 9), seed=1)
    check(np.broadcast_to(a, (5, 12, 20)), b, matmul(np.broadcast_to(a, (5, 12, 20)), b))
    row = np.broadcast_to(numbers((1, 20)), (12, 20))
    check(row, b, matmul(row, b))
    one = np.broadcast_to(np.float32(3), (12, 20))
    check(one, b, matmul(one, b))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "shapes",
    [
        ((2, 3, 4), (4, 5)),
        ((2, 1, 3, 4), (7, 4, 5)),
        ((3, 4), (2, 4, 5)),
        ((6, 8, 64), (6, 64, 8)),
        ((4, 1, 9, 30), (1, 5, 30, 20)),
        ((1, 3, 4), (1, 4, 5)),
        ((2, 180, 190), (2, 190, 170)),
        ((3, 1, 1), (3, 1, 1)),
        ((5, 70, 20), (5, 20, 70)),
    ],
)
def test_bc21_batch_axes_broadcast_as_in_numpy(shapes, dtype):
    a, b = numbers(shapes[0], dtype), numbers(shapes[1], dtype, 1)
    for left, right in itertools.product((np.ascontiguousarray, transposed, padded), repeat=2):
        check(a, b, matmul(left(a), right(b)))


def test_bc21_no_terms_and_empty_sizes():
    for left, right in [
        ((3, 0), (0, 2)),
        ((0, 3), (3, 2)),
        ((3, 4), (4, 0)),
        ((0, 3, 4), (4, 5)),
        ((2, 3, 0), (2, 0, 5)),
        ((0, 0), (0, 0)),
        ((2, 0, 3, 4), (1, 4, 5)),
    ]:
        got = matmul(np.ones(left, np.float32), np.ones(right, np.float32))
        assert np.array_equal(got, np.matmul(np.ones(left), np.ones(right)))
    bias = np.array([1, -2], np.float32)
    got = matmul(np.ones((3, 0), np.float32), np.ones((0, 2), np.float32), bias=bias, activation="relu")
    assert np.array_equal(got, [[1, 0]] * 3)
    out = np.full((3, 2), 5, np.float32)
    assert np.array_equal(matmul(np.ones((3, 0), np.float32), np.ones((0, 2), np.float32), out, accumulate=True), out)
    assert (out == 5).all()


def test_bc61_same_bits_on_any_number_of_threads():
    """BC-61: same bits on any number of threads."""
    cases = [
        ((130, 300), (300, 70), False),
        ((130, 300), (300, 70), True),
        ((7, 400), (400, 900), False),
        ((300, 520), (520, 18), True),
        ((9, 40, 50), (9, 50, 60), False),
        ((3, 170, 180), (3, 180, 190), True),
        ((700, 90), (90, 40), False),  # many pieces of rows, that share what is packed of b
        ((60, 90), (90, 900), False),  # many pieces of columns, that share a
        ((400, 600), (600, 900), True),  # pieces that pack anew
    ]
    before = runtime.get_num_threads()
    try:
        for left, right, turn in cases:
            a, b = numbers(left), numbers(right, seed=1)
            bias = numbers(right[-1:], seed=2)
            if turn:
                a, b = transposed(a), transposed(b)
            results = []
            for threads in (1, 2, 4, 2, 3):
                runtime.set_num_threads(threads)
                results.append(matmul(a, b, bias=bias))
            assert all(np.array_equal(r, results[0]) for r in results)
            assert not gemm._counters.any()
            check(a, b, results[0], bias)
    finally:
        runtime.set_num_threads(before)


def test_large_b_is_packed_in_pieces():
    a, b, bias = numbers((20, 300)), numbers((300, 200), seed=1), numbers((200,), seed=2)
    want = matmul(a, b, bias=bias)
    wide, wide_bias = np.tile(b, (1, 25)), np.tile(bias, 25)  # more columns than NC
    assert np.array_equal(matmul(a, wide, bias=wide_bias), np.tile(want, (1, 25)))
    assert np.array_equal(matmul(a, transposed(wide), bias=wide_bias), np.tile(want, (1, 25)))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("sizes", [(6, 16, 32), (25, 270, 37), (3, 700, 5), (70, 30, 64)])
def test_epilogues(sizes, dtype):
    m, k, n = sizes
    a, b, bias = numbers((m, k), dtype), numbers((k, n), dtype, 1), numbers((n,), dtype, 2)
    start = numbers((m, n), dtype, 3)
    check(a, b, matmul(a, b, bias=bias), bias)
    check(a, b, matmul(a, b, bias=np.repeat(bias, 2)[::2]), bias)
    out = start.copy()
    assert matmul(a, b, out, accumulate=True) is out
    check(a, b, out, start)
    out = start.copy()
    check(a, b, matmul(a, b, out, accumulate=True, bias=bias), start.astype(np.float64) + bias)
    plain = matmul(a, b, bias=bias)
    assert np.array_equal(matmul(a, b, bias=bias, activation="relu"), np.maximum(plain, 0))
    batch = matmul(np.stack([a, -a]), np.stack([b, b]), bias=bias)
    check(np.stack([a, -a]), b, batch, bias)


def test_out_of_any_layout_and_overlapping_an_operand():
    a, b = numbers((24, 24)), numbers((24, 24), seed=1)
    want = matmul(a, b)
    for out in (
        np.empty((24, 24), np.float32),
        np.full((24, 24), np.nan, np.float32).T,
        np.full((24, 48), np.nan, np.float32)[:, ::2],
        np.full((24, 24), np.nan, np.float32)[::-1],
    ):
        assert matmul(a, b, out) is out
        assert np.array_equal(out, want)
        matmul(a, b, out, accumulate=True)
        assert np.allclose(out, 2 * want, rtol=1e-5, atol=1e-5)
    same = a.copy()
    assert np.array_equal(matmul(same, b, same), want)
    same = a.copy()
    assert np.allclose(matmul(same, b, same, accumulate=True), a + want, rtol=1e-5, atol=1e-5)
    assert np.array_equal(matmul(a, a.T), matmul(a, a.T.copy()))


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("at", [(0, 0), (12, 299), (7, 256)])
def test_bc62_non_finite_numbers_reach_exactly_their_row_and_column(bad, at):
    a, b = numbers((13, 300)), numbers((300, 35), seed=1)
    a[at] = bad
    with np.errstate(invalid="ignore"):
        want = a.astype(np.float64) @ b
        for left in (a, transposed(a)):
            got = matmul(left, b, activation=None)
            assert np.array_equal(np.isnan(got), np.isnan(want))
            assert np.array_equal(got[np.isinf(want)], want[np.isinf(want)])
            assert np.array_equal(np.isnan(matmul(left, b, activation="relu")), np.isnan(want))
    assert np.isfinite(np.delete(got, at[0], 0)).all()
    b[at[1], 34] = np.nan
    got = matmul(numbers((13, 300)), b)
    assert np.isnan(got[:, 34]).all() and np.isfinite(got[:, :34]).all()
    assert np.isnan(matmul(np.zeros((1, 2), np.float32), np.array([[np.inf], [1]], np.float32))).all()


def test_errors():
    a = np.ones((3, 4), np.float32)
    with pytest.raises(ValueError, match=r"last axis of a.*\(3, 4\).*\(3, 4\)"):
        matmul(a, a)
    with pytest.raises(ValueError, match="at least 2 axes"):
        matmul(a, np.ones(4, np.float32))
    with pytest.raises(ValueError, match="batch axes"):
        matmul(np.ones((2, 3, 4), np.float32), np.ones((3, 4, 5), np.float32))
    with pytest.raises(TypeError, match="float32"):
        matmul(a, np.ones((4, 5)))
    with pytest.raises(TypeError, match="int64"):
        matmul(np.ones((3, 4), np.int64), np.ones((4, 5), np.int64))
    with pytest.raises(ValueError, match="bias"):
        matmul(a, a.T, bias=np.ones(4, np.float32))
    with pytest.raises(ValueError, match="needs out"):
        matmul(a, a.T, accumulate=True)
    with pytest.raises(ValueError, match="read-only"):
        matmul(a, a.T, read_only(np.ones((3, 3), np.float32)))
    with pytest.raises(ValueError, match="out"):
        matmul(a, a.T, np.ones((3, 4), np.float32))
    with pytest.raises(ValueError, match="activation"):
        matmul(a, a.T, activation="gelu")


def test_one_signature_for_each_dtype():
    for dtype in DTYPES:
        matmul(numbers((8, 8), dtype), numbers((8, 8), dtype).T)
        matmul(numbers((2, 8, 8), dtype), numbers((2, 8, 8), dtype))
    assert len(gemm._gemm.compiled) == 2


def test_operands_whose_axes_of_length_one_have_strange_strides():
    """numpy calls them contiguous, and their strides need not be whole numbers of elements."""
    rows = np.zeros(4, [("a", "f4"), ("b", "i1")])["a"][:1][:, None]
    np.testing.assert_array_equal(matmul(np.ones((20, 1), np.float32), rows + 2), np.full((20, 1), 2))
    np.testing.assert_array_equal(matmul(np.ones((20, 1), np.float32), rows), np.zeros((20, 1)))
    batch = np.zeros(3, [("a", "f4", (9, 3)), ("b", "i1")])["a"][:1]
    assert matmul(batch, np.ones((2, 3, 20), np.float32)).shape == (2, 9, 20)
    assert matmul(batch, np.ones((3, 20), np.float32)).shape == (1, 9, 20)


def test_plans_of_large_batches_are_not_kept():
    before = gemm._plan.cache_info().currsize
    for n in range(3):
        a = np.ones((5000 + n, 1, 1))
        np.testing.assert_array_equal(matmul(a, a), a)
    assert gemm._plan.cache_info().currsize == before
