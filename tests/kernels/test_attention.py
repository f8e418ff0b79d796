"""Attention by tiles against its definition written with whole matrices in float64."""

import itertools

import numpy as np
import pytest

from tinygrad_tf.kernels import runtime
from tinygrad_tf.kernels.attention import attention, attention_backward, attention_dropout_mask
from tinygrad_tf.kernels.random import draw_of, words
from tinygrad_tf.ops.attention import _join_heads

TOLERANCE = {np.float32: 3e-5, np.float64: 1e-11}


def plain(q, k, v, *, scale, causal, mask=None, slopes=None, drop=None):
    """out, the probabilities, and the same after dropout; (B, H, Tq, Tk) arrays."""
    q, k, v = (np.asarray(a, np.float64) for a in (q, k, v))
    group = q.shape[1] // k.shape[1]
    k, v = k.repeat(group, 1), v.repeat(group, 1)
    offset = k.shape[2] - q.shape[2]
    i, j = np.arange(q.shape[2])[:, None] + offset, np.arange(k.shape[2])
    s = scale * q @ k.swapaxes(2, 3)
    if slopes is not None:
        s = s - np.asarray(slopes, np.float64)[:, None, None] * abs(i - j)
    if mask is not None:
        s = np.where(mask, s, -np.inf) if mask.dtype == np.bool_ else s + mask
    if causal:
        s = np.where(j <= i, s, -np.inf)
    top = s.max(-1, keepdims=True)
    e = np.exp(s - np.where(top == -np.inf, 0, top))
    total = e.sum(-1, keepdims=True)
    p = e / np.where(total == 0, 1, total)
    kept = p if drop is None else p * drop
    return kept @ v, p, kept


def plain_backward(g, q, k, v, *, scale, drop=None, **switches):
    _, p, kept = plain(q, k, v, scale=scale, drop=drop, **switches)
    q, k, v, g = (np.asarray(a, np.float64) for a in (q, k, v, g))
    batch, heads, kv_heads = q.shape[0], q.shape[1], k.shape[1]
    group = heads // kv_heads
    dp = g @ v.repeat(group, 1).swapaxes(2, 3) * (1 if drop is None else drop)
    ds = scale * p * (dp - (dp * p).sum(-1, keepdims=True))

    def over_group(x):
        return x.reshape(batch, kv_heads, group, *x.shape[2:]).sum(2)

    return ds @ k.repeat(group, 1), over_group(ds.swapaxes(2, 3) @ q), over_group(kept.swapaxes(2, 3) @ g)


SHAPES = [  # B, H, Hkv, Tq, Tk, dk, dv
    (2, 4, 2, 70, 131, 24, 40),
    (2, 2, 2, 64, 64, 32, 32),
    (1, 2, 1, 1, 7, 3, 2),
    (2, 3, 3, 5, 3, 8, 8),
    (1, 1, 1, 1, 1, 1, 1),
    (1, 4, 1, 2, 130, 16, 17),
    (1, 2, 2, 129, 66, 5, 7),
    (1, 1, 1, 3, 1, 1, 2),
]
MASKS = ["none", "bool", "keys", "float", "float-inf"]


def make_mask(kind, shape, dtype, rng):
    batch, heads, _, length_q, length_k, _, _ = shape
    if kind == "bool":
        return rng.random((batch, 1, length_q, length_k)) > 0.4
    if kind == "keys":  # a view that was already expanded
        return np.broadcast_to(rng.random((batch, 1, 1, length_k)) > 0.3, (batch, heads, length_q, length_k))
    if kind == "float":
        return rng.standard_normal((heads, length_q, length_k)).astype(dtype).swapaxes(0, 0)
    if kind == "float-inf":
        return np.where(rng.random((length_q, length_k)) > 0.3, 0.5, -np.inf).astype(dtype)
    return None


def make(rng, dtype, *shapes):
    return [rng.standard_normal(s).astype(dtype) for s in shapes]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("shape", SHAPES)
def test_against_the_definition(shape, dtype):
    rng = np.random.default_rng(0)
    batch, heads, kv_heads, length_q, length_k, dk, dv = shape
    for causal, kind, bias, p in itertools.product([False, True], MASKS, [False, True], [0.0, 0.3]):
        q, k, v, g = make(
            rng,
            dtype,
            (batch, heads, length_q, dk),
            (batch, kv_heads, length_k, dk),
            (batch, kv_heads, length_k, dv),
            (batch, heads, length_q, dv),
        )
        switches = {
            "scale": 0.3,
            "causal": causal,
            "mask": make_mask(kind, shape, dtype, rng),
            "slopes": np.linspace(0.1, 1, heads).astype(dtype) if bias else None,
        }
        random = {"dropout_p": p, "draw": draw_of(98765432109876, 5)}
        drop = (
            attention_dropout_mask(batch, heads, length_q, length_k, p, draw_of(98765432109876, 5), dtype)
            if p
            else None
        )
        out, lse = attention(q, k, v, **switches, **random)
        grads = attention_backward(g, q, k, v, out, lse, **switches, **random)
        want = (plain(q, k, v, drop=drop, **switches)[0], *plain_backward(g, q, k, v, drop=drop, **switches))
        for got, right in zip((out, *grads), want, strict=True):
            assert got.dtype == dtype
            np.testing.assert_allclose(got, right, atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype], err_msg=str(switches))
        assert out.transpose(0, 2, 1, 3).flags.c_contiguous and grads[1].transpose(0, 2, 1, 3).flags.c_contiguous


def test_against_finite_differences():
    rng = np.random.default_rng(1)
    q, k, v, g = make(rng, np.float64, (1, 4, 3, 3), (1, 2, 5, 3), (1, 2, 5, 2), (1, 4, 3, 2))
    switches = {"scale": 0.7, "causal": True, "dropout_p": 0.2, "draw": draw_of(3, 1)}
    out, lse = attention(q, k, v, **switches)
    grads = attention_backward(g, q, k, v, out, lse, **switches)
    for x, grad in zip((q, k, v), grads, strict=True):
        for place in np.ndindex(x.shape):
            old, values = x[place], []
            for step in (1e-6, -1e-6):
                x[place] = old + step
                values.append((g * attention(q, k, v, **switches)[0]).sum())
            x[place] = old
            assert abs((values[0] - values[1]) / 2e-6 - grad[place]) < 1e-8


@pytest.mark.parametrize("length", [2, 70])
@pytest.mark.parametrize("layout", ["packed", "transposed", "reversed", "strided", "read-only", "offset"])
def test_layouts(layout, length):
    """Views of a packed projection are read in place; every other layout gives the same numbers."""
    rng = np.random.default_rng(2)

    def lay(x):
        if layout == "packed":
            big = np.zeros((2, length, 3, 2, 8), x.dtype)
            big[:, :, 1] = x.transpose(0, 2, 1, 3)
            return big[:, :, 1].transpose(0, 2, 1, 3)
        if layout == "transposed":
            return np.ascontiguousarray(x.transpose(3, 2, 1, 0)).transpose(3, 2, 1, 0)
        if layout == "reversed":
            return np.ascontiguousarray(x[:, ::-1, ::-1])[:, ::-1, ::-1]
        if layout == "strided":
            return np.repeat(x, 2, 3)[..., ::2]
        if layout == "offset":
            return np.pad(x, 1)[1:-1, 1:-1, 1:-1, 1:-1]
        x = x.copy()
        x.flags.writeable = False
        return x

    args = make(rng, np.float32, *[(2, 2, length, 8)] * 4)
    out, lse = attention(*args[1:], scale=0.3, causal=True)
    want = (out, *attention_backward(args[0], *args[1:], out, lse, scale=0.3, causal=True))
    laid = [lay(a) for a in args]
    out, lse = attention(*laid[1:], scale=0.3, causal=True)
    got = (out, *attention_backward(laid[0], *laid[1:], lay(out), lse, scale=0.3, causal=True))
    for a, b in zip(got, want, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("poison", [0.0, np.nan, np.inf])
@pytest.mark.parametrize("as_float", [False, True])
def test_row_without_keys_and_poison_behind_the_mask(poison, as_float):
    """BC-07 and BC-52: known values of a fully masked row; a masked key may hold anything."""
    q = np.array([[1.0, 0], [0, 1]])[None, None]
    k = np.array([[1.0, 0], [0, 1], [1, 1]])[None, None]
    v = np.array([[1.0, 2], [3, 4], [5, 6]])[None, None]
    if poison:
        k[0, 0, 2] = v[0, 0, 2] = poison
    mask = np.array([[True, True, False], [False] * 3])
    if as_float:
        mask = np.where(mask, 0.0, -np.inf)
    for pad in (0, 3):  # few queries, and tiles
        padded = np.pad(q, ((0, 0), (0, 0), (0, pad), (0, 0)))
        padded[0, 0, 2:] = poison
        rows = np.pad(mask, ((0, pad), (0, 0)), constant_values=-np.inf if as_float else False)
        out, lse = attention(padded, k, v, scale=2**-0.5, causal=False, mask=rows)
        g = np.ones_like(out)
        g[0, 0, 1:] = poison or 1.0  # what rows without keys are given counts nowhere
        grads = attention_backward(g, padded, k, v, out, lse, scale=2**-0.5, causal=False, mask=rows)
        want = [
            [[1.660477, 2.660477], [0, 0]],
            [[-0.625594, 0.625594], [0, 0]],
            [[-0.625594, 0], [0.625594, 0], [0, 0]],
            [[0.669762, 0.669762], [0.330238, 0.330238], [0, 0]],
        ]
        for got, right in zip((out, *grads), want, strict=True):
            np.testing.assert_allclose(got[0, 0, : len(right)], right, atol=1e-6)
            np.testing.assert_array_equal(got[0, 0, len(right) :], 0)


@pytest.mark.parametrize("length", [2, 80])
def test_poison_reaches_only_those_who_may_see_it(length):
    """BC-52: NaN at key j, in k or in v, makes NaN of the causal rows from j on, and leaves the earlier ones alone."""
    rng = np.random.default_rng(3)
    for which in (0, 1):
        q, k, v, g = make(rng, np.float32, *[(1, 1, length, 16)] * 4)
        clean, lse = attention(q, k, v, scale=0.25, causal=True)
        at = length - 1
        (k, v)[which][0, 0, at] = np.nan
        out, lse = attention(q, k, v, scale=0.25, causal=True)
        np.testing.assert_allclose(out[0, 0, :at], clean[0, 0, :at], atol=1e-6)
        assert np.isnan(out[0, 0, at:]).all()
        dq, _, _ = attention_backward(g, q, k, v, out, lse, scale=0.25, causal=True)
        assert np.isfinite(dq[0, 0, :at]).all() and np.isnan(dq[0, 0, at]).all()


def test_a_key_of_weight_zero_that_is_infinite():
    """BC-62: 0 times inf is NaN, in the component that is infinite and in no other."""
    q, g = np.ones((1, 1, 1, 2)), np.array([[[[0.3, -0.7]]]])
    k = np.array([[-np.inf, 1.0], [0.5, 1], [0, -1]])[None, None]
    v = np.array([[1.0, 2], [3, 4], [5, 7]])[None, None]
    out, lse = attention(q, k, v, scale=1.0, causal=False)
    dq = attention_backward(g, q, k, v, out, lse, scale=1.0, causal=False)[0]
    rest, rest_lse = attention(q, k[:, :, 1:], v[:, :, 1:], scale=1.0, causal=False)
    want = attention_backward(g, q, k[:, :, 1:], v[:, :, 1:], rest, rest_lse, scale=1.0, causal=False)[0]
    assert np.isnan(dq[0, 0, 0, 0])
    np.testing.assert_allclose(dq[0, 0, 0, 1], want[0, 0, 0, 1])


def test_causal_with_fewer_queries_than_keys():
    """BC-08: the diagonal ends in the bottom right corner."""
    v = np.array([1.0, 2, 4, 8, 16]).reshape(1, 1, 5, 1)
    out, _ = attention(np.zeros((1, 1, 2, 3)), np.ones((1, 1, 5, 3)), v, scale=1.0, causal=True)
    np.testing.assert_allclose(out.ravel(), [3.75, 6.2])
    rng = np.random.default_rng(4)
    q, k, v = make(rng, np.float32, *[(1, 2, 90, 16)] * 3)
    whole, _ = attention(q, k, v, scale=0.25, causal=True)
    parts, start = [], 0
    for n in (5, 70, 2, 1, 12):
        stop = start + n
        parts.append(attention(q[:, :, start:stop], k[:, :, :stop], v[:, :, :stop], scale=0.25, causal=True)[0])
        start = stop
    np.testing.assert_allclose(np.concatenate(parts, 2), whole, atol=1e-6)


@pytest.mark.parametrize("length", [1, 9])
def test_non_finite_numbers_keep_their_meaning(length):
    """BC-62: -inf added is a mask, NaN in a query or an allowed key reaches the result."""
    q, k, v = np.zeros((1, 1, length, 4)), np.zeros((1, 1, 2, 4)), np.arange(8.0).reshape(1, 1, 2, 4)
    mask = np.array([-np.inf, 0.0])
    np.testing.assert_array_equal(attention(q, k, v, scale=1.0, causal=False, mask=mask)[0][0, 0, 0], v[0, 0, 1])
    q[0, 0, 0, 0] = np.nan
    out, _ = attention(q, k, v, scale=1.0, causal=False)
    assert np.isnan(out[0, 0, 0]).all() and np.isfinite(out[0, 0, 1:]).all()
    big = np.full((1, 1, length, 4), 1e4)
    out, _ = attention(big, np.stack([big[:, :, 0], -big[:, :, 0]], 2), v, scale=1.0, causal=False)
    np.testing.assert_array_equal(out[0, 0, 0], v[0, 0, 0])


def test_gradients_of_a_packed_projection_lie_side_by_side():
    """q, k and v of one array: so do their gradients, and putting them together again copies nothing."""
    rng = np.random.default_rng(8)
    packed, g = rng.standard_normal((2, 70, 6 * 8)), rng.standard_normal((2, 4, 70, 8))
    heads = packed.reshape(2, 70, 6, 8).transpose(0, 2, 1, 3)
    parts = np.split(heads, [4, 5], axis=1)
    apart = [np.ascontiguousarray(x) for x in parts]
    out, lse = attention(*parts, scale=0.3, causal=True)
    grads = attention_backward(g, *parts, out, lse, scale=0.3, causal=True)
    right = attention_backward(g, *apart, out, lse, scale=0.3, causal=True)
    for a, b in zip(grads, right, strict=True):
        np.testing.assert_array_equal(a, b)
    joined = _join_heads.function(list(grads))
    assert np.shares_memory(joined, grads[0]) and joined.flags.c_contiguous
    np.testing.assert_array_equal(joined, np.concatenate(right, axis=1).transpose(0, 2, 1, 3).reshape(2, 70, 48))
    swapped = _join_heads.function([grads[1], grads[0], grads[2]])
    assert not np.shares_memory(swapped, grads[0])
    np.testing.assert_array_equal(swapped[..., :8], joined[..., 32:40])


def test_dropout_mask():
    """BC-57: p = 1 drops everything without NaN; the mask depends on key and call, and keeps a share of 1 - p."""
    mask = attention_dropout_mask(2, 3, 40, 50, 0.25, draw_of(11, 0), np.float32)
    assert set(np.unique(mask)) == {np.float32(0), np.float32(1 / 0.75)}
    assert abs((mask > 0).mean() - 0.75) < 0.02
    for key, call in ((12, 0), (11, 1), (11 + 2**32, 0), (11, 2**32)):
        assert 0.2 < (attention_dropout_mask(2, 3, 40, 50, 0.25, draw_of(key, call), np.float32) != mask).mean() < 0.5
    x = np.ones((1, 1, 4, 4), np.float32)
    out, lse = attention(x, x, x, scale=1.0, causal=False, dropout_p=1.0)
    grads = attention_backward(x, x, x, x, out, lse, scale=1.0, causal=False, dropout_p=1.0)
    assert all((a == 0).all() for a in (out, *grads))


def test_dropout_numbers_are_philox():
    """Element i is kept iff word i of the call, whose values tests/kernels/test_random.py checks, is not too small."""
    key, call = 2**64 - 3, 2**63 + 5
    numbers = (words(2 * 3 * 5 * 7, draw_of(key, call)) >> 8) * 2.0**-24
    mask = attention_dropout_mask(2, 3, 5, 7, 0.4, draw_of(key, call), np.float64)
    assert np.array_equal(mask.reshape(-1) != 0, numbers >= 0.4)


def test_sizes_of_zero():
    for shape_q, shape_k in (((0, 2, 3, 4), (0, 2, 3, 4)), ((1, 2, 0, 4), (1, 2, 3, 4)), ((1, 2, 3, 4), (1, 2, 0, 4))):
        q, k = np.ones(shape_q), np.ones(shape_k)
        out, lse = attention(q, k, k, scale=1.0, causal=True)
        assert out.shape == shape_q and not out.any() and lse.shape == shape_q[:3]
        grads = attention_backward(out, q, k, k, out, lse, scale=1.0, causal=True)
        assert [a.shape for a in grads] == [shape_q, shape_k, shape_k] and not any(a.any() for a in grads)


@pytest.mark.parametrize("shape", [(3, 4, 2, 150, 150), (1, 6, 3, 1, 3000)])
def test_bits_do_not_depend_on_threads(shape):
    rng = np.random.default_rng(5)
    batch, heads, kv_heads, length_q, length_k = shape
    q, k, v, g = make(
        rng,
        np.float32,
        (batch, heads, length_q, 32),
        (batch, kv_heads, length_k, 32),
        (batch, kv_heads, length_k, 32),
        (batch, heads, length_q, 32),
    )
    switches = {"scale": 0.2, "causal": True, "dropout_p": 0.1}
    before = runtime.get_num_threads()
    results = []
    try:
        for n in (1, 2, 4):
            runtime.set_num_threads(n)
            out, lse = attention(q, k, v, **switches)
            grads = attention_backward(g, q, k, v, out, lse, **switches)
            results.append([a.tobytes() for a in (out, lse, *grads)])
    finally:
        runtime.set_num_threads(before)
    assert results[0] == results[1] == results[2]
