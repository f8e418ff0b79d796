"""Shapes, equations and indices that hypothesis thinks of: the same as numpy, and right gradients."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tinygrad_tf as tg
from tinygrad_tf.nn import functional as F

hypothesis = pytest.importorskip("hypothesis")
from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from hypothesis.extra import numpy as hnp  # noqa: E402

quick = settings(max_examples=25, deadline=None, derandomize=True, database=None)
shapes = hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=3)


def numbers(shape: tuple[int, ...]) -> Any:
    return np.random.default_rng(len(shape)).permutation(int(np.prod(shape))).reshape(shape) * 0.37 - 0.5


@st.composite
def equations(draw: Any) -> tuple[str, list[Any]]:
    """An einsum equation and its operands."""
    sizes = {letter: draw(st.integers(0, 3)) for letter in "abcde"}
    parts = draw(st.lists(st.lists(st.sampled_from("abcde"), max_size=3), min_size=1, max_size=3))
    used = sorted({letter for part in parts for letter in part})
    result = draw(st.permutations(used))[: draw(st.integers(0, len(used)))]
    equation = ",".join("".join(p) for p in parts) + "->" + "".join(result)
    return equation, [numbers(tuple(sizes[c] for c in part)) for part in parts]


@quick
@given(equations())
def test_einsum(case: tuple[str, list[Any]]) -> None:
    equation, operands = case
    inputs = [tg.tensor(x, requires_grad=True) for x in operands]
    np.testing.assert_allclose(
        tg.einsum(equation, *inputs).detach().numpy(), np.einsum(equation, *operands), atol=1e-12
    )
    assert tg.gradcheck(lambda *x: tg.einsum(equation, *x), inputs, mode="fast")


@quick
@given(st.data())
def test_reductions(data: Any) -> None:
    shape = data.draw(shapes)
    x = numbers(shape)
    dim = data.draw(st.none() | (hnp.valid_tuple_axes(len(shape)) if shape else st.just(())))
    keepdim = data.draw(st.booleans())
    pairs = [(tg.sum, np.sum), (tg.prod, np.prod), (tg.nansum, np.nansum), (tg.any, np.any), (tg.all, np.all)]
    if 0 not in shape:
        pairs += [(tg.amax, np.max), (tg.amin, np.min), (tg.mean, np.mean)]
    for ours, theirs in pairs:
        wanted = theirs(x, axis=dim, keepdims=keepdim)
        out = ours(tg.tensor(x), dim, keepdim)
        assert out.shape == wanted.shape
        np.testing.assert_allclose(out.numpy(), wanted, atol=1e-12)


@quick
@given(st.data())
def test_reading_and_writing_parts(data: Any) -> None:
    shape = data.draw(hnp.array_shapes(min_dims=1, max_dims=3, min_side=1, max_side=3))
    x = numbers(shape)
    index = data.draw(
        hnp.basic_indices(shape, allow_newaxis=True)
        | hnp.integer_array_indices(shape)
        | hnp.arrays(bool, shape)
    )  # fmt: skip
    t = tg.tensor(x, requires_grad=True)
    np.testing.assert_array_equal(t[index].detach().numpy(), x[index])
    assert tg.gradcheck(lambda t: t[index] * 1.0, t, mode="fast")
    copy, wanted = tg.tensor(x), x.copy()
    copy[index] = 7.5
    wanted[index] = 7.5
    np.testing.assert_array_equal(copy.numpy(), wanted)


@quick
@given(st.data())
def test_moving_elements(data: Any) -> None:
    shape = data.draw(hnp.array_shapes(min_dims=1, max_dims=3, min_side=0, max_side=3))
    x = numbers(shape)
    t = tg.tensor(x)
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    shift = data.draw(st.integers(-4, 4))
    np.testing.assert_array_equal(tg.roll(t, shift, axis).numpy(), np.roll(x, shift, axis))
    np.testing.assert_array_equal(tg.flip(t, axis).numpy(), np.flip(x, axis))
    np.testing.assert_array_equal(tg.movedim(t, axis, 0).numpy(), np.moveaxis(x, axis, 0))
    np.testing.assert_array_equal(tg.sort(t, axis).values.numpy(), np.sort(x, axis))
    np.testing.assert_allclose(tg.cumprod(t, axis).numpy(), np.cumprod(x, axis), rtol=1e-12)
    repeats = data.draw(st.lists(st.integers(0, 2), min_size=len(shape), max_size=len(shape) + 1))
    np.testing.assert_array_equal(tg.tile(t, repeats).numpy(), np.tile(x, repeats))
    widths = data.draw(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2)), min_size=1, max_size=len(shape)))
    padded = F.pad(t, [n for pair in widths for n in pair], value=2.5)
    before = [(0, 0)] * (len(shape) - len(widths)) + widths[::-1]
    np.testing.assert_array_equal(padded.numpy(), np.pad(x, before, constant_values=2.5))
    parts = data.draw(st.integers(1, 4))
    for mine, theirs in zip(tg.tensor_split(t, parts, axis), np.array_split(x, parts, axis), strict=True):
        np.testing.assert_array_equal(mine.numpy(), theirs)
