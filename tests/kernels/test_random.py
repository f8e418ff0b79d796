"""The counter-based random numbers, and dropout."""

import numpy as np
import pytest

from tinygrad_tf.kernels import random as R
from tinygrad_tf.kernels import runtime


def philox(counter, key):
    """Philox4x32-10 in Python's own integers."""
    c, k = list(counter), list(key)
    for _ in range(10):
        a, b = c[0] * 0xD2511F53, c[2] * 0xCD9E8D57
        c = [(b >> 32) ^ c[1] ^ k[0], b & 0xFFFFFFFF, (a >> 32) ^ c[3] ^ k[1], a & 0xFFFFFFFF]
        k = [(k[0] + 0x9E3779B9) & 0xFFFFFFFF, (k[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return c


def test_words_against_the_published_answers():
    """Known answers of Salmon et al.'s Random123 (kat_vectors)."""
    assert philox([0] * 4, [0] * 2) == [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]
    assert philox([0xFFFFFFFF] * 4, [0xFFFFFFFF] * 2) == [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]
    pi = [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344], [0xA4093822, 0x299F31D0]
    assert philox(*pi) == [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1]
    assert R.words(4, R.draw_of(0, 0)).tolist() == philox([0] * 4, [0] * 2)
    key, call = 0x0123456789ABCDEF, 0xFEDCBA9876543210
    got = R.words(4 * 5 + 2, R.draw_of(key, call))
    for block in range(6):
        right = philox([block, 0, call & 0xFFFFFFFF, call >> 32], [key & 0xFFFFFFFF, key >> 32])
        assert got[4 * block : 4 * block + 4].tolist() == right[: len(got) - 4 * block]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("shape", [(1,), (3, 5), (4,), (2, 3, 7), (1000,), (), (0,), (0, 3)])
@pytest.mark.parametrize("p", [0.0, 0.1, 0.5, 0.9, 1.0])
def test_dropout_is_the_mask_of_its_words(shape, p, dtype):
    x = np.random.default_rng(1).standard_normal(shape).astype(dtype)
    y = R.dropout(x, p, R.draw_of(12345, 7))
    mask = R.dropout_mask(shape, p, R.draw_of(12345, 7), dtype)
    assert y.dtype == mask.dtype == np.dtype(dtype) and y.shape == shape
    np.testing.assert_array_equal(y, x * mask)
    kept = R.words(x.size, R.draw_of(12345, 7)).reshape(shape) / 2.0**32 >= p
    np.testing.assert_array_equal(mask, np.where(kept, np.dtype(dtype).type(1 / (1 - p) if p < 1 else 0), 0))
    assert np.isfinite(y).all() and (p < 1 or (y == 0).all()) and (p > 0 or (y == x).all())


def test_keys_and_calls_give_different_masks_with_the_right_rate():
    masks = [
        R.dropout_mask((100_000,), 0.3, R.draw_of(key, call))
        for key, call in ((1, 0), (1, 1), (2, 0), (2**64 - 1, 0), (-1, 0))
    ]
    for mask in masks:
        assert (mask > 0).mean() == pytest.approx(0.7, abs=0.01)
    for i in range(4):
        for j in range(i):
            assert (masks[i] == masks[j]).mean() == pytest.approx(0.58, abs=0.02)
    np.testing.assert_array_equal(masks[3], masks[4])  # keys are taken modulo 2**64
    np.testing.assert_array_equal(R.dropout_mask((100_000,), 0.3, R.draw_of(1, 0), np.float64) > 0, masks[0] > 0)
    start = R.dropout_mask((10,), 0.3, R.draw_of(1, 0))
    np.testing.assert_array_equal(start, masks[0][:10])


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_uniform(dtype):
    u = R.uniform((300, 400), R.draw_of(3, 4), dtype)
    assert u.shape == (300, 400) and u.dtype == np.dtype(dtype) and u.min() >= 0 and u.max() < 1
    assert u.mean() == pytest.approx(0.5, abs=0.005) and u.std() == pytest.approx(12**-0.5, abs=0.005)
    assert np.corrcoef(u[:, :-1].ravel(), u[:, 1:].ravel())[0, 1] == pytest.approx(0, abs=0.01)
    assert R.uniform((0,), R.draw_of(3, 4), dtype).shape == (0,) and R.uniform((), R.draw_of(3, 4), dtype).shape == ()
    np.testing.assert_array_equal(u, R.uniform((300, 400), R.draw_of(3, 4), dtype))


def test_bc05_layouts():
    x = np.random.default_rng(2).standard_normal((6, 10)).astype("f4")
    y = R.dropout(x, 0.4, R.draw_of(5, 6))
    frozen = x.copy()
    frozen.flags.writeable = False
    for other in (np.asfortranarray(x), x[::-1].copy()[::-1], np.repeat(x, 2, 1)[:, ::2], frozen):
        np.testing.assert_array_equal(R.dropout(other, 0.4, R.draw_of(5, 6)), y)
    stretched = np.broadcast_to(np.float32(1), (6, 10))
    np.testing.assert_array_equal(
        R.dropout(stretched, 0.4, R.draw_of(5, 6)), R.dropout_mask((6, 10), 0.4, R.draw_of(5, 6))
    )


def test_same_bits_on_any_number_of_threads():
    before = runtime.get_num_threads()
    results = []
    try:
        for threads in (1, 2, 3, 4):
            runtime.set_num_threads(threads)
            results.append((R.dropout_mask((200_003,), 0.4, R.draw_of(5, 6)), R.words(200_001, R.draw_of(5, 6))))
    finally:
        runtime.set_num_threads(before)
    for mask, words in results[1:]:
        np.testing.assert_array_equal(mask, results[0][0])
        np.testing.assert_array_equal(words, results[0][1])
