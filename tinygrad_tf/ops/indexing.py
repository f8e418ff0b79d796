"""Reading and writing parts of a tensor: everything that numpy's basic and advanced indexing takes."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np

from ..graph import TensorBase
from ..kernels.host import full, write
from ..modes import check, compute, converted
from .primitive import normalize_dims, primitive


def _plain(index: Any) -> Any:
    """An index with Tensors replaced by their arrays."""
    if isinstance(index, tuple):
        return tuple([i if type(i) in _BASIC else _plain(i) for i in index])
    if isinstance(index, list):
        return [_plain(i) for i in index]
    return index._data if isinstance(index, TensorBase) else index


_BASIC = (type(None), type(...), int, slice)


def _is_basic(index: Any) -> bool:
    parts = index if isinstance(index, tuple) else (index,)
    return all([type(p) in _BASIC or isinstance(p, (int, np.integer)) and type(p) is not bool for p in parts])


@primitive(x=lambda g, x_shape, index: _put(g, x_shape, index), view=True)
def _getitem(x: Any, index: Any) -> Any:
    if _is_basic(index):  # the ... makes numpy give a view of no axes rather than a number
        parts = index if isinstance(index, tuple) else (index,)
        index = parts if any([p is Ellipsis for p in parts]) else (*parts, ...)
    try:
        return x[index]
    except IndexError as error:
        raise IndexError(f"indexing a tensor of shape {x.shape}: {error}") from None


_getitem.name = "getitem"


@primitive(g=lambda g, index: _getitem(g, index))
def _put(g: Any, shape: tuple[int, ...], index: Any) -> Any:
    """Zeros of `shape` with g added at the index: the transpose of reading there. Repeated places add up."""
    out = full(shape, 0, g.dtype)
    if _is_basic(index):
        write(operator.setitem, out, index, g)
    else:
        np.add.at(out, index, g)
    return out


def getitem(x: Any, index: Any) -> Any:
    """x[index]: a view for integers, slices, None and ...; a copy for index arrays and masks."""
    return _getitem(x, _plain(index))


@primitive(x=lambda g, index, value_shape: setitem(g, index, 0.0), value=lambda g, index: _getitem(g, index))
def setitem(x: Any, index: Any, value: Any) -> Any:
    """A copy of x with `value` written at the index."""
    out = x.copy()
    try:
        out[index] = value
    except (IndexError, ValueError) as error:
        raise type(error)(f"writing into a tensor of shape {x.shape}: {error}") from None
    return out


def _check_indices(indices: Any, limit: int, name: str) -> None:
    if indices.dtype.kind not in "iu":
        raise TypeError(f"{name}: indices must be integers, got dtype {indices.dtype}")
    if indices.size and (indices.min() < 0 or indices.max() >= limit):
        bad = int(indices.min() if indices.min() < 0 else indices.max())
        raise IndexError(f"{name}: an index must be from 0 to {limit - 1}, got {bad}")


def take_along_dim(x: Any, indices: Any, dim: int | None = None) -> Any:
    """For each place the element of x whose position along `dim` the indices give; other axes broadcast.

    With dim None both are flattened first.
    """
    from .reductions import broadcast_to

    indices = getattr(indices, "_data", indices)
    if dim is None:
        return take_along_dim(x.reshape((-1,)), indices.reshape(-1), 0)
    (axis,) = normalize_dims(dim, x.ndim, "take_along_dim")
    shape, taken = list(x.shape), list(indices.shape)
    try:
        both = np.broadcast_shapes((*shape[:axis], *shape[axis + 1 :]), (*taken[:axis], *taken[axis + 1 :]))
    except ValueError:
        raise ValueError(
            f"take_along_dim: the shapes must broadcast except along dim {dim}, got {x.shape} and {indices.shape}"
        ) from None
    full = (*both[:axis], x.shape[axis], *both[axis:])
    indices = compute(_from_the_start, indices, x.shape[axis])
    indices = np.broadcast_to(indices, (*both[:axis], indices.shape[axis], *both[axis:]))
    return gather(x if x.shape == full else broadcast_to(x, full), axis, indices)


def _from_the_start(indices: Any, n: int) -> Any:
    """Indices of which negative ones count from the end."""
    return np.where(indices < 0, indices + n, indices)


def gather(x: Any, dim: int, index: Any) -> Any:
    """out[i][j][k] = x[index[i][j][k]][j][k] for dim 0, and so on; `index` may be smaller than x along other axes."""
    index = getattr(index, "_data", index)
    if index.size == 0:
        return getitem(x.reshape((-1,)), converted(index, np.int64))
    if x.ndim == 0:
        return _gather(x.reshape((1,)), 0, index.reshape(-1)).reshape(index.shape)
    return _gather(x, dim, index)


@primitive(x=lambda g, x_shape, dim, index: _add_along(g, x_shape, index, dim))
def _gather(x: Any, dim: int, index: Any) -> Any:
    (axis,) = normalize_dims(dim, x.ndim, "gather")
    if index.ndim != x.ndim or any(
        i > n for a, (i, n) in enumerate(zip(index.shape, x.shape, strict=True)) if a != axis
    ):
        raise ValueError(
            f"gather: the index must have as many axes as x and fit into it except along dim {dim}, "
            f"got index of shape {index.shape} for x of shape {x.shape}"
        )
    check(_check_indices, index, x.shape[axis], "gather")
    return x[_places(index, axis)]


_gather.name = "gather"


def _places(index: Any, axis: int) -> tuple[Any, ...]:
    """The full index tuple of a gather."""
    places = list(np.ogrid[tuple(slice(n) for n in index.shape)])
    places[axis] = index
    return tuple(places)


@primitive(g=lambda g, indices, dim: gather(g, dim, indices))
def _add_along(g: Any, shape: tuple[int, ...], indices: Any, dim: int) -> Any:
    """The transpose of gather: g added at the positions along `dim` that the indices give."""
    out = full(shape, 0, g.dtype)
    index = np.broadcast_to(indices, g.shape)
    np.add.at(out, _places(index, dim % len(shape)), g)
    return out
