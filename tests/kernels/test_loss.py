"""Cross-entropy against its definition in float64 numpy."""

import numpy as np
import pytest

from tinygrad_tf.kernels import loss as L
from tinygrad_tf.kernels import runtime


def definition(logits, targets, ignore_index, smoothing):
    x = logits.astype("f8")
    largest = x.max(-1)
    logsumexp = largest + np.log(np.exp(x - largest[:, None]).sum(-1))
    losses, gradient = np.zeros(len(x)), np.zeros_like(x)
    for i, t in enumerate(targets):
        if t != ignore_index:
            losses[i] = (1 - smoothing) * (logsumexp[i] - x[i, t]) + smoothing * (logsumexp[i] - x[i].mean())
            gradient[i] = np.exp(x[i] - logsumexp[i]) - smoothing / x.shape[1]
            gradient[i, t] -= 1 - smoothing
    return losses, gradient


def mean_loss(logits, targets, smoothing=0.0):
    """The mean over rows that count, and its gradient."""
    losses, logsumexp = L.cross_entropy(logits, targets, -100, smoothing)
    count = (targets != -100).sum()
    scale = np.full(len(logits), 1 / max(count, 1), logits.dtype)
    return losses.sum() / max(count, 1), L.cross_entropy_backward(scale, logits, targets, logsumexp, -100, smoothing)


@pytest.mark.parametrize("dtype,close", [("float32", 2e-6), ("float64", 1e-13)])
@pytest.mark.parametrize("smoothing", [0.0, 0.1, 1.0])
@pytest.mark.parametrize("shape", [(7, 5), (1, 1), (40, 65), (3, 1000), (0, 4)])
def test_against_definition(shape, smoothing, dtype, close):
    rng = np.random.default_rng(1)
    logits = (rng.standard_normal(shape) * 3).astype(dtype)
    targets = rng.integers(0, shape[1], shape[0])
    targets[::3] = -100
    up = rng.standard_normal(shape[0]).astype(dtype)
    losses, logsumexp = L.cross_entropy(logits, targets, -100, smoothing)
    assert losses.dtype == logits.dtype and losses.shape == logsumexp.shape == (shape[0],)
    if shape[0] == 0:
        return
    right, slope = definition(logits, targets, -100, smoothing)
    np.testing.assert_allclose(losses, right, rtol=close, atol=close)
    gradient = L.cross_entropy_backward(up, logits, targets, logsumexp, -100, smoothing)
    assert gradient.dtype == logits.dtype and (gradient[targets == -100] == 0).all()
    np.testing.assert_allclose(gradient, up[:, None].astype("f8") * slope, atol=close * 2)


def test_gradient_by_differences():
    rng = np.random.default_rng(2)
    logits, up, targets = rng.standard_normal((3, 4)), rng.standard_normal(3), np.array([1, 3, -1])
    _, logsumexp = L.cross_entropy(logits, targets, -1, 0.2)
    got = L.cross_entropy_backward(up, logits, targets, logsumexp, -1, 0.2)
    for i in np.ndindex(logits.shape):
        step = np.zeros_like(logits)
        step[i] = 1e-6
        high, low = (L.cross_entropy(logits + s * step, targets, -1, 0.2)[0] for s in (1, -1))
        assert got[i] == pytest.approx((up * (high - low)).sum() / 2e-6, abs=1e-8)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_bc19_ignored_rows_with_bad_logits(dtype):
    inf, nan = np.inf, np.nan
    logits = np.array([[1, 2, 3], [-inf, -inf, -inf], [nan, 0, 0]], dtype)
    value, gradient = mean_loss(logits, np.array([2, -100, -100]))
    assert value == pytest.approx(0.407606, abs=1e-6)
    np.testing.assert_allclose(gradient[0], [0.090031, 0.244728, -0.334759], atol=1e-6)
    np.testing.assert_array_equal(gradient[1:], np.zeros((2, 3)))
    value, gradient = mean_loss(logits[[0, 0]], np.array([-100, -100]))
    assert value == 0 and (gradient == 0).all()
    # ignore_index may be a real class, which stays in the denominator
    losses, _ = L.cross_entropy(np.array([[1, 2, 3], [1, 2, 3]], dtype), np.array([0, 2]), 0, 0.0)
    np.testing.assert_allclose(losses, [0, 0.407606], atol=1e-6)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_bc20_label_smoothing_and_infinite_logits(dtype):
    logits, targets = np.array([[1, 2, 3], [3, 1, 0], [0, 0, 5]], dtype), np.array([2, -100, 0])
    value, gradient = mean_loss(logits, targets, 0.1)
    assert value == pytest.approx(2.677162600, abs=1e-6)
    right = [[0.028349, 0.105698, -0.134046], [0, 0, 0], [-0.463342, -0.013342, 0.476685]]
    np.testing.assert_allclose(gradient, right, atol=1e-6)
    assert mean_loss(logits, targets)[0] == pytest.approx(2.710495933, abs=1e-6)
    masked = np.array([[0, -np.inf, 1]], dtype)
    value, gradient = mean_loss(masked, np.array([2]))
    assert value == pytest.approx(0.313262, abs=1e-6)
    np.testing.assert_allclose(gradient, [[0.268941, 0, -0.268941]], atol=1e-6)
    assert mean_loss(masked, np.array([2]), 0.1)[0] == np.inf
    assert mean_loss(masked, np.array([1]))[0] == np.inf


def test_bc62_nan_reaches_the_loss():
    for position in (0, 40, 64):
        logits = np.zeros((2, 65), "f4")
        logits[1, position] = np.nan
        losses, _ = L.cross_entropy(logits, np.array([3, 3]), -100, 0.0)
        assert np.isfinite(losses[0]) and np.isnan(losses[1])


def test_large_logits_keep_their_digits():
    logits = np.array([[1e4, 1e4 + 0.5, 1e4 - 1]], "f4")
    value, gradient = mean_loss(logits, np.array([1]))
    right, slope = definition(logits, [1], -100, 0.0)
    assert value == pytest.approx(right[0], abs=1e-6)
    np.testing.assert_allclose(gradient, slope, atol=1e-6)


def test_bc24_a_long_row_of_equal_logits():
    n = 200_000
    losses, logsumexp = L.cross_entropy(np.full((1, n), 1 / 255, "f4"), np.array([5]), -100, 0.1)
    assert losses[0] == pytest.approx(np.log(n), rel=1e-6)
    assert logsumexp[0] == pytest.approx(np.log(n) + 1 / 255, rel=1e-7)


def test_bc05_layouts():
    rng = np.random.default_rng(3)
    logits, targets, up = rng.standard_normal((6, 8)).astype("f4"), rng.integers(0, 8, 6), np.ones(6, "f4")
    losses, logsumexp = L.cross_entropy(logits, targets, -100, 0.1)
    gradient = L.cross_entropy_backward(up, logits, targets, logsumexp, -100, 0.1)
    frozen = logits.copy()
    frozen.flags.writeable = False
    for other in (np.asfortranarray(logits), logits[::-1].copy()[::-1], np.repeat(logits, 2, 1)[:, ::2], frozen):
        t = np.repeat(targets, 2)[::2]
        np.testing.assert_array_equal(L.cross_entropy(other, t, -100, 0.1)[0], losses)
        stretched = np.broadcast_to(np.float32(1), (6,))
        again = L.cross_entropy_backward(stretched, other, t, logsumexp, -100, 0.1)
        np.testing.assert_array_equal(again, gradient)


def test_same_bits_on_any_number_of_threads():
    rng = np.random.default_rng(4)
    logits, targets = rng.standard_normal((901, 77)).astype("f4"), rng.integers(0, 77, 901)
    up = rng.standard_normal(901).astype("f4")
    before = runtime.get_num_threads()
    results = []
    try:
        for threads in (1, 2, 4):
            runtime.set_num_threads(threads)
            losses, logsumexp = L.cross_entropy(logits, targets, -100, 0.1)
            results.append((losses, L.cross_entropy_backward(up, logits, targets, logsumexp, -100, 0.1)))
    finally:
        runtime.set_num_threads(before)
    for losses, gradient in results[1:]:
        np.testing.assert_array_equal(losses, results[0][0])
        np.testing.assert_array_equal(gradient, results[0][1])
