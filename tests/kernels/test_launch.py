"""How arguments reach a kernel: each as what it is, or the call is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tinygrad_tf.kernels import runtime


def _show(t: int, n_tasks: int, a: Any, number: Any, factor: Any, out: Any) -> None:
    for i in range(len(a)):
        out[i] = a[i] * factor + number + 10 * t


show = runtime.kernel(_show)


def test_numbers_of_every_kind() -> None:
    """A number is never taken for one of another kind: 1.5 after 1 is 1.5."""
    a, out = np.ones(2), np.empty(2)
    for number in (1, 1.5, True, np.float32(0.25), np.uint64(2**53), np.int64(3), np.float64(2.5), -4):
        show(1, a, number, 2.0, out)
        assert (out == 2 + float(number)).all(), number
    before = len(show.compiled)
    for number in (7, np.float64(1.25), np.int64(5), False):
        show(1, a, number, 2.0, out)
        assert (out == 2 + float(number)).all(), number
    assert len(show.compiled) == before


def test_arrays_of_every_kind(tmp_path: Path) -> None:
    """Other dtypes compile once each; another object for the same dtype, a subclass and an empty array do not."""
    kernel = runtime.kernel(_show)
    a = np.arange(3.0)
    strange = np.dtype("f8", metadata={"a": 1})
    mapped = np.memmap(tmp_path / "x", np.float64, "w+", shape=(3,))
    mapped[:] = a
    for given in (a, a.astype(strange), mapped, a.view(np.dtype("f8").newbyteorder("="))):
        out = np.empty(3)
        kernel(1, given, 1, 2.0, out)
        np.testing.assert_array_equal(out, 2 * a + 1)
    kernel(1, a[:0], 1, 2.0, a[:0])
    assert len(kernel.compiled) == 1
    for dtype in (np.float32, np.int64, np.float64):
        out = np.empty(3, dtype)
        kernel(1, a.astype(dtype), 1, 2.0, out)
        np.testing.assert_array_equal(out, 2 * a + 1)
    assert len(kernel.compiled) == 3


def test_what_is_refused() -> None:
    a = np.arange(8.0)
    frozen = a.copy()
    frozen.flags.writeable = False
    for wrong in (a[::2], frozen):
        with pytest.raises(TypeError, match="C-contiguous"):
            show(1, wrong, 1, 2.0, np.empty(8))
    with pytest.raises(TypeError, match="_show takes 4 arguments, got 3"):
        show(1, a, 1, 2.0)
    with pytest.raises(TypeError, match="arrays and numbers, got NoneType"):
        show(1, None, 1, 2.0, np.empty(8))


@runtime.kernel
def _addresses(t: int, n_tasks: int, a: runtime.Place, number: Any, out: Any) -> None:
    out[t] = a + number


def test_of_a_place_a_kernel_gets_the_address() -> None:
    """Whatever the array's layout, dtype, and number of axes; with one signature."""
    a = np.arange(24.0).reshape(2, 3, 4)
    frozen = a.astype(np.float32)
    frozen.flags.writeable = False
    out = np.zeros(2, np.int64)
    for given in (a, a[1], a[:, ::-1, 1:], a.T, a[0, 0, 1:2], frozen, a[:0]):
        _addresses(2, given, 1, out)
        assert out.tolist() == [given.ctypes.data + 1] * 2
    assert len(_addresses.compiled) == 1
    for wrong in (None, [1.0], 1):
        with pytest.raises(TypeError, match="the place of an array"):
            _addresses(1, wrong, 1, out)


def test_kernels_with_the_same_kinds_of_arguments_share_what_launches_them() -> None:
    one, other = runtime.kernel(_show), runtime.kernel(_show)
    for kernel in (one, other):
        kernel(1, np.ones(2), 1, 2.0, np.empty(2))
    assert next(iter(one.compiled.values()))[0] is next(iter(other.compiled.values()))[0]
