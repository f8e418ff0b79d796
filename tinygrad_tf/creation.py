"""Making tensors: from data, of constants, of random numbers."""

from __future__ import annotations

from typing import Any

import numpy as np

from . import rng
from .graph import TensorBase
from .kernels.host import native
from .modes import converted, copied
from .tensor import Tensor, check_dtype


def tensor(data: Any, dtype: Any = None, requires_grad: bool = False) -> Tensor:
    """A Tensor with a copy of `data`: numbers, nested lists, an ndarray, or a Tensor.

    Python floats become float32, integers int64; an ndarray keeps its dtype. Raises TypeError for what is neither a
    number nor a boolean, and RuntimeError for an integer tensor that is to require grad.

    >>> import tinygrad_tf as tg
    >>> tg.tensor([[1.0, 2.0], [3.0, 4.0]]).shape
    (2, 2)
    """
    if isinstance(data, TensorBase):
        array = copied(data._data)
        array = array if dtype is None else converted(array, dtype)
    elif (
        isinstance(data, (np.ndarray, np.generic)) or hasattr(data, "__array__") and not isinstance(data, (list, tuple))
    ):
        array = np.array(data, dtype=dtype, order="C")
    else:
        try:
            array = np.array(_numbers(data), dtype=dtype, order="C")
        except ValueError as error:
            raise ValueError(f"tensor: expected numbers in nested lists of equal lengths: {error}") from None
        if dtype is None:
            array = array.astype({"f": np.float32, "i": np.int64, "u": np.int64}.get(array.dtype.kind, array.dtype))
            if array.dtype.kind == "f" and 0 in array.shape:
                array = array.astype(np.float32)
    if array.dtype.kind not in "biuf":
        raise TypeError(f"tensor: expected numbers, got {type(data).__name__} with dtype {array.dtype}")
    check_dtype(array.dtype)
    return Tensor(array.astype(native(array.dtype), copy=False)).requires_grad_(requires_grad)


def _numbers(data: Any) -> Any:
    if isinstance(data, Tensor):
        return data.tolist()
    return [_numbers(d) for d in data] if isinstance(data, (list, tuple)) else data


def from_numpy(array: Any) -> Tensor:
    """A Tensor on the ndarray's own memory: a change of one is a change of the other."""
    if not isinstance(array, np.ndarray):
        raise TypeError(f"from_numpy: expected an ndarray, got {type(array).__name__}")
    check_dtype(array.dtype)
    return Tensor(array)


def _shape(shape: tuple[Any, ...]) -> tuple[int, ...]:
    return tuple(shape[0]) if len(shape) == 1 and not isinstance(shape[0], (int, np.integer)) else shape


def zeros(*shape: Any, dtype: Any = np.float32, requires_grad: bool = False) -> Tensor:
    """Zeros of a shape, given as integers or as one tuple."""
    return Tensor(np.zeros(_shape(shape), check_dtype(dtype))).requires_grad_(requires_grad)


def ones(*shape: Any, dtype: Any = np.float32, requires_grad: bool = False) -> Tensor:
    """Ones of a shape, given as integers or as one tuple."""
    return Tensor(np.ones(_shape(shape), check_dtype(dtype))).requires_grad_(requires_grad)


def empty(*shape: Any, dtype: Any = np.float32, requires_grad: bool = False) -> Tensor:
    """A tensor whose values are not set; here they are zeros, so that no garbage can get in."""
    return zeros(*shape, dtype=dtype, requires_grad=requires_grad)


def full(shape: Any, fill_value: Any, dtype: Any = None, requires_grad: bool = False) -> Tensor:
    """One value everywhere: float32, int64 or bool as the value is, unless a dtype is given."""
    if dtype is None:
        dtype = np.bool_ if isinstance(fill_value, bool) else np.int64 if isinstance(fill_value, int) else np.float32
    return Tensor(np.full(shape, fill_value, check_dtype(dtype))).requires_grad_(requires_grad)


def arange(*bounds: Any, dtype: Any = None, requires_grad: bool = False) -> Tensor:
    """arange(end), arange(start, end) or arange(start, end, step): int64, or float32 if a bound is a float."""
    if dtype is None:
        dtype = np.float32 if any(isinstance(b, (float, np.floating)) for b in bounds) else np.int64
    return Tensor(np.arange(*bounds, dtype=check_dtype(dtype))).requires_grad_(requires_grad)


def linspace(start: float, end: float, steps: int, dtype: Any = np.float32) -> Tensor:
    """`steps` numbers at equal distances from `start` to `end`, both included."""
    return Tensor(np.linspace(start, end, steps, dtype=check_dtype(dtype)))


def eye(n: int, m: int | None = None, dtype: Any = np.float32, requires_grad: bool = False) -> Tensor:
    """The n x m matrix with ones on the diagonal."""
    return Tensor(np.eye(n, m, dtype=check_dtype(dtype))).requires_grad_(requires_grad)


def rand(*shape: Any, dtype: Any = np.float32, requires_grad: bool = False) -> Tensor:
    """Uniform random numbers from [0, 1)."""
    return Tensor(np.asarray(rng.generator().random(_shape(shape), dtype=dtype))).requires_grad_(requires_grad)


def randn(*shape: Any, dtype: Any = np.float32, requires_grad: bool = False) -> Tensor:
    """Standard normal random numbers."""
    return Tensor(np.asarray(rng.generator().standard_normal(_shape(shape), dtype=dtype))).requires_grad_(requires_grad)


def randint(low: int, high: Any, size: Any = None, dtype: Any = np.int64) -> Tensor:
    """Random integers from `low` to `high` - 1; `randint(high, size)` starts at 0."""
    if size is None:
        low, high, size = 0, low, high
    return Tensor(np.asarray(rng.generator().integers(low, high, size=size), dtype=check_dtype(dtype)))


def randperm(n: int) -> Tensor:
    """The numbers 0 .. n-1 in random order."""
    return Tensor(rng.generator().permutation(n).astype(np.int64))


def _like(make: Any) -> Any:
    def like(x: Tensor, dtype: Any = None, requires_grad: bool = False) -> Tensor:
        made: Tensor = make(x.shape, dtype=x.dtype if dtype is None else dtype, requires_grad=requires_grad)
        return made

    like.__name__ = f"{make.__name__}_like"
    like.__doc__ = f"`{make.__name__}` of the shape and dtype of x."
    return like


zeros_like, ones_like, empty_like, rand_like, randn_like = (_like(f) for f in (zeros, ones, empty, rand, randn))


def full_like(x: Tensor, fill_value: Any, dtype: Any = None, requires_grad: bool = False) -> Tensor:
    """`full` of the shape and dtype of x."""
    return full(x.shape, fill_value, dtype=x.dtype if dtype is None else dtype, requires_grad=requires_grad)
