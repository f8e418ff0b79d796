"""Writing and adding at indices. All of it is made of four primitives of `indexing`: reading, writing, and their transposes.

Every function gives a new tensor; its form with an underscore (`x.scatter_(...)`) writes into x.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ..graph import TensorBase
from ..modes import check, not_captured
from .elementwise import where
from .indexing import _add_along, _check_indices, _places, _plain, _put, getitem, setitem
from .primitive import normalize_dims, operand
from .reductions import amax, amin, broadcast_to, prod
from .shape import cat


def _array(index: Any) -> Any:
    return np.asarray(getattr(index, "_data", index))


def _along(x: Any, dim: int, index: Any, name: str) -> tuple[Any, Any]:
    """The numpy index x[:, index, :] along `dim`, once it is known to be right, and the axis."""
    index = _array(index)
    (axis,) = normalize_dims(dim, x.ndim, name)
    if index.ndim > 1:
        raise ValueError(f"{name}: the index must have one axis, got shape {index.shape}")
    check(_check_indices, index, x.shape[axis], name)
    return (slice(None),) * axis + (index.reshape(-1),), axis


def _same_shape(name: str, what: str, x: Any, shape: tuple[int, ...]) -> None:
    if x.shape != shape:
        raise ValueError(f"{name}: {what} must have shape {shape}, got {x.shape}")


def _at_least_1d(operation: Any, x: Any, index: Any, *src: Any) -> Any:
    """A tensor of no axes is one of a single element."""
    flat = [s.reshape((-1,)) if hasattr(s, "reshape") else s for s in src]
    return operation(x.reshape((1,)), _array(index).reshape(-1), *flat).reshape(())


# -- whole slices along one axis ---------------------------------------------------------------------------------------


def index_select(x: Any, dim: int, index: Any) -> Any:
    """The slices of x along `dim` that the 1-D index names."""
    if x.ndim == 0:
        return _at_least_1d(lambda x, i: index_select(x, 0, i), x, index)
    return getitem(x, _along(x, dim, index, "index_select")[0])


def _slices(x: Any, dim: int, index: Any, source: Any, name: str) -> Any:
    where_, axis = _along(x, dim, index, name)
    shape = (*x.shape[:axis], _array(index).size, *x.shape[axis + 1 :])
    _same_shape(name, "the source", source, shape)
    return where_


def index_add(x: Any, dim: int, index: Any, source: Any, *, alpha: Any = 1) -> Any:
    """x with alpha times the slices of `source` added at the slices that the index names; repeated ones add up."""
    if x.ndim == 0:
        return _at_least_1d(lambda x, i, s: index_add(x, 0, i, s, alpha=alpha), x, index, source)
    place = _slices(x, dim, index, source, "index_add")
    return x + _put(source if alpha == 1 else source * alpha, x.shape, place)


def index_copy(x: Any, dim: int, index: Any, source: Any) -> Any:
    """x with the slices of `source` written at the slices that the index names."""
    if x.ndim == 0:
        return _at_least_1d(lambda x, i, s: index_copy(x, 0, i, s), x, index, source)
    return setitem(x, _slices(x, dim, index, source, "index_copy"), source)


def index_fill(x: Any, dim: int, index: Any, value: Any) -> Any:
    """x with `value` in the slices along `dim` that the index names."""
    if x.ndim == 0:
        return _at_least_1d(lambda x, i: index_fill(x, 0, i, value), x, index)
    not_captured("index_fill looks at its indices")
    place, axis = _along(x, dim, index, "index_fill")
    return setitem(x, (*place[:axis], np.unique(place[axis])), _value(value, x))  # each slice once, or value's gradient


def _value(value: Any, x: Any) -> Any:
    return value if isinstance(value, TensorBase) else operand(value, x, "value").astype(x.dtype)


# -- numpy's index tuples ----------------------------------------------------------------------------------------------


def index_put(x: Any, indices: Any, values: Any, accumulate: bool = False) -> Any:
    """x with `values` written (or added, with `accumulate`) at x[indices]."""
    place, values = _plain(tuple(indices)), _value(values, x)
    if not accumulate:
        return setitem(x, place, values)
    return x + _put(broadcast_to(values, _array(x)[place].shape), x.shape, place)


def take(x: Any, index: Any) -> Any:
    """The elements of the flattened x at the places of `index`."""
    return getitem(x.reshape((-1,)), _array(index))


def put(x: Any, index: Any, source: Any, accumulate: bool = False) -> Any:
    """x with the elements of `source` at the places `index` of the flattened x."""
    flat = index_put(x.reshape((-1,)), (_array(index).reshape(-1),), source.reshape((-1,)), accumulate)
    return flat.reshape(x.shape)


def _mask(name: str, mask: Any) -> Any:
    if mask.dtype != np.bool_:
        raise TypeError(f"{name}: the mask must be bool, got dtype {mask.dtype}")
    return _array(mask)


def masked_select(x: Any, mask: Any) -> Any:
    """The elements of x where the mask is true, in one row."""
    mask = _mask("masked_select", mask)
    shape = np.broadcast_shapes(x.shape, mask.shape)
    return getitem(broadcast_to(x, shape), np.broadcast_to(mask, shape))


def masked_scatter(x: Any, mask: Any, source: Any) -> Any:
    """x with the elements of `source`, one after another, where the mask is true."""
    not_captured("masked_scatter looks at its mask")
    mask = _mask("masked_scatter", mask)
    shape = np.broadcast_shapes(x.shape, mask.shape)
    mask = np.broadcast_to(mask, shape)
    count = int(mask.sum())
    if source.reshape((-1,)).shape[0] < count:
        raise ValueError(
            f"masked_scatter: the mask has {count} true places, and the source of shape {source.shape} fewer"
        )
    return setitem(broadcast_to(x, shape), mask, source.reshape((-1,))[:count])


def select_scatter(x: Any, src: Any, dim: int, index: int) -> Any:
    """x with `src` as its slice `index` along `dim`."""
    (axis,) = normalize_dims(dim, x.ndim, "select_scatter")
    _same_shape("select_scatter", "src", src, (*x.shape[:axis], *x.shape[axis + 1 :]))
    return setitem(x, (slice(None),) * axis + (index,), src)


def slice_scatter(
    x: Any, src: Any, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1
) -> Any:
    """x with `src` as its part start:end:step along `dim`."""
    (axis,) = normalize_dims(dim, x.ndim, "slice_scatter")
    length = len(range(x.shape[axis])[start:end:step])
    _same_shape("slice_scatter", "src", src, (*x.shape[:axis], length, *x.shape[axis + 1 :]))
    return setitem(x, (slice(None),) * axis + (slice(start, end, step),), src)


# -- element by element along one axis ---------------------------------------------------------------------------------


def _scattered(x: Any, dim: int, index: Any, src: Any, name: str) -> tuple[int, Any, Any]:
    """The axis, the index and the part of src that it uses, all with at least one axis."""
    index = _array(index)
    (axis,) = normalize_dims(dim, x.ndim, name) or (0,)
    limits = [n for a, n in enumerate(x.shape) if a != axis]
    sizes = [n for a, n in enumerate(index.shape) if a != axis]
    fits = index.ndim == x.ndim and all(i <= n for i, n in zip(sizes, limits, strict=True))
    if not index.size or not fits:
        if index.size:
            raise ValueError(
                f"{name}: the index must have as many axes as x and fit into it except along dim {dim}, got index of "
                f"shape {index.shape} for x of shape {x.shape}"
            )
        index = index.reshape((0,) * x.ndim)
    check(_check_indices, index, x.shape[axis] if x.ndim else 1, name)
    if getattr(src, "ndim", None) is None:
        src = np.full(index.shape, src, dtype=x.dtype)
    elif src.ndim != index.ndim or any(i > n for i, n in zip(index.shape, src.shape, strict=True)):
        raise ValueError(f"{name}: src must cover the index of shape {index.shape}, got src of shape {src.shape}")
    if src.dtype != x.dtype:
        raise TypeError(f"{name}: src must have x's dtype {x.dtype}, got {src.dtype}; convert with .to(dtype)")
    used = src if src.shape == index.shape else getitem(src, tuple(slice(n) for n in index.shape))
    return axis, index, used


def scatter(x: Any, dim: int, index: Any, src: Any = None, *, value: Any = None, reduce: str | None = None) -> Any:
    """x with out[index[i][j]][j] = src[i][j] for dim 0, and so on; src is a tensor or a number.

    With reduce "add" or "multiply" the elements of src are added to, or multiplied with, what stands there. If the
    index names a place twice, one of its elements stands there, and their gradients are not defined.
    """
    src = value if src is None else src
    if x.ndim == 0:
        return _at_least_1d(lambda x, i, s: scatter(x, 0, i, s, reduce=reduce), x, index, src)
    if reduce is not None:
        if reduce not in ("add", "multiply"):
            raise ValueError(f'scatter: reduce must be None, "add" or "multiply", got {reduce!r}')
        _, index, src = _scattered(x, dim, index, src, "scatter")
        return scatter_reduce(x, dim, index, src, "sum" if reduce == "add" else "prod")
    axis, index, used = _scattered(x, dim, index, src, "scatter")
    return setitem(x, _places(index, axis), used)


def scatter_add(x: Any, dim: int, index: Any, src: Any) -> Any:
    """x with src[i][j] added at [index[i][j]][j] for dim 0, and so on; repeated places add up."""
    if x.ndim == 0:
        return _at_least_1d(lambda x, i, s: scatter_add(x, 0, i, s), x, index, src)
    axis, index, used = _scattered(x, dim, index, src, "scatter_add")
    return x + _add_along(used, x.shape, index, axis)


_REDUCTIONS: dict[str, tuple[Any, float]] = {"prod": (prod, 1.0), "amax": (amax, -math.inf), "amin": (amin, math.inf)}


def scatter_reduce(x: Any, dim: int, index: Any, src: Any, reduce: str, *, include_self: bool = True) -> Any:
    """x with each place reduced together with the elements of src that the index sends there.

    Args:
        reduce: "sum", "mean", "prod", "amax" or "amin"; equal extremes share the gradient evenly.
        include_self: whether the element of x counts too; where src sends nothing, x stays in any case.
    """
    if reduce not in ("sum", "mean", *_REDUCTIONS):
        raise ValueError(f'scatter_reduce: reduce must be "sum", "mean", "prod", "amax" or "amin", got {reduce!r}')
    if x.ndim == 0:
        return _at_least_1d(
            lambda x, i, s: scatter_reduce(x, 0, i, s, reduce, include_self=include_self), x, index, src
        )
    not_captured("scatter_reduce looks at its indices")
    axis, index, used = _scattered(x, dim, index, src, "scatter_reduce")
    count = np.zeros(x.shape, np.int64)
    np.add.at(count, _places(index, axis), 1)
    keep = np.asarray(include_self) | (count == 0)  # where x itself counts
    if reduce in ("sum", "mean"):
        total = where(keep, x, 0) + _add_along(used, x.shape, index, axis)
        return total if reduce == "sum" else total / (count + keep).astype(x.dtype)
    operation, neutral = _REDUCTIONS[reduce]
    # Every place of x gets a row: x itself, then the elements of src sent there, then the neutral element.
    cells = np.ravel_multi_index(np.broadcast_arrays(*_places(index, axis)), x.shape).reshape(-1)
    order = np.argsort(cells, kind="stable")
    first = np.cumsum(count.reshape(-1)) - count.reshape(-1)
    nothing = count.size + cells.size
    table = np.full((count.size, int(count.max(initial=0)) + 1), nothing)
    table[:, 0] = np.where(keep.reshape(-1), np.arange(count.size), nothing)
    table[cells[order], 1 + np.arange(cells.size) - first[cells[order]]] = count.size + order
    pool = cat([x.reshape((-1,)), used.reshape((-1,)), np.full(1, neutral).astype(x.dtype)], 0)
    return operation(getitem(pool, table), -1).reshape(x.shape) if count.size else x * 1


def one_hot(x: Any, num_classes: int = -1) -> Any:
    """int64: a new last axis with 1 at the class number and 0 elsewhere; -1 classes are as many as needed."""
    not_captured("one_hot looks at its ids")
    ids = _array(x)
    classes = int(ids.max(initial=-1)) + 1 if num_classes == -1 else num_classes
    check(_check_indices, ids, classes, "one_hot")
    out = (ids[..., None] == np.arange(classes)).astype(np.int64)
    return type(x)(out) if isinstance(x, TensorBase) else out
