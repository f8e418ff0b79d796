"""Orders: sorting, the k largest, medians, and searching in what is sorted. NaN counts as larger than every number."""

from __future__ import annotations

from typing import Any

import numpy as np

from .indexing import gather
from .primitive import normalize_dims, primitive
from .reductions import Selected, _ties
from .shape import narrow, squeeze


@primitive()
def argsort(x: Any, dim: int = -1, descending: bool = False, stable: bool = True) -> Any:
    """The indices that put x in order along `dim`; equal elements keep their order (always, whatever `stable` is)."""
    if x.ndim == 0:
        return np.zeros((), np.int64)
    (axis,) = normalize_dims(dim, x.ndim, "argsort")
    if not descending:
        return x.argsort(axis=axis, kind="stable")
    return np.flip(x.shape[axis] - 1 - np.flip(x, axis).argsort(axis=axis, kind="stable"), axis)


def _chosen(x: Any, dim: int, indices: Any, keepdim: bool = True) -> Selected:
    """The pair (values, indices); the gradient of the values goes to the elements chosen."""
    if x.ndim == 0:
        return Selected(x * 1, indices.reshape(()))
    values = gather(x, dim, indices)
    return Selected(values, indices) if keepdim else Selected(squeeze(values, dim), squeeze(indices, dim))


def sort(x: Any, dim: int = -1, descending: bool = False, stable: bool = True) -> Any:
    """(values, indices) of x in order along `dim`; equal elements keep their order.

    >>> import tinygrad_tf as tg
    >>> tg.sort(tg.tensor([3.0, 1.0, 2.0])).indices
    tensor([1, 2, 0])
    """
    return _chosen(x, dim, argsort(x, dim, descending))


def msort(x: Any) -> Any:
    """x in order along its first axis."""
    return sort(x, 0).values


def topk(x: Any, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> Any:
    """(values, indices) of the k largest (or smallest) along `dim`, in order; of equal ones the lowest index first."""
    (axis,) = normalize_dims(dim, x.ndim, "topk") or (0,)
    n = x.shape[axis] if x.ndim else 1
    if not 0 <= k <= n:
        raise IndexError(f"topk: k must be from 0 to {n}, the length of dim {dim}, got {k}")
    order = argsort(x, dim, largest)
    return _chosen(x, dim, narrow(order, axis, 0, k) if x.ndim else order)


def kthvalue(x: Any, k: int, dim: int = -1, keepdim: bool = False) -> Any:
    """(values, indices) of the k-th smallest element along `dim`, k counted from 1."""
    (axis,) = normalize_dims(dim, x.ndim, "kthvalue") or (0,)
    n = x.shape[axis] if x.ndim else 1
    if not 1 <= k <= n:
        raise IndexError(f"kthvalue: k must be from 1 to {n}, the length of dim {dim}, got {k}")
    order = argsort(x, dim)
    return _chosen(x, dim, narrow(order, axis, k - 1, 1) if x.ndim else order, keepdim)


@primitive(x=lambda g, x, out: _ties(g, x, out, None, False))
def _median(x: Any) -> Any:
    flat = np.sort(x, axis=None)
    if x.size == 0:
        return np.asarray(np.nan, x.dtype if x.dtype.kind == "f" else np.float32)
    return flat[-1] if flat[-1] != flat[-1] else flat[(x.size - 1) // 2]


_median.name = "median"


def median(x: Any, dim: int | None = None, keepdim: bool = False) -> Any:
    """The median of all (the lower of the two middle ones), or with `dim` (values, indices) along it. NaN wins."""
    if dim is None:
        return _median(x)
    (axis,) = normalize_dims(dim, x.ndim, "median") or (0,)
    if x.ndim and x.shape[axis] == 0:
        raise IndexError(f"median: dim {dim} has no elements, got x of shape {x.shape}")
    order = argsort(x, dim)
    if x.ndim == 0:
        return _chosen(x, dim, order)
    return _chosen(x, dim, _middle(x, order, axis), keepdim)


@primitive()
def _middle(x: Any, order: Any, axis: int) -> Any:
    """Of the indices in order the middle one, or the first NaN's if there is one."""
    n = x.shape[axis]
    nans = np.isnan(x).sum(axis, keepdims=True)
    return np.take_along_axis(order, np.where(nans > 0, n - nans, (n - 1) // 2), axis)


# -- searching ---------------------------------------------------------------------------------------------------------


@primitive()
def searchsorted(
    sorted_sequence: Any,
    values: Any,
    right: bool = False,
    side: str | None = None,
    out_int32: bool = False,
    sorter: Any = None,
) -> Any:
    """Where each value must be inserted to keep the last axis in order: before equal ones, or after with `right`.

    sorted_sequence: (n,), with values of any shape; or (..., n), with values (..., m), row by row. `sorter`: the order
    that sorts it (`argsort`), if it is not sorted itself.
    """
    if side not in (None, "left", "right"):
        raise ValueError(f'searchsorted: side must be "left" or "right", got {side!r}')
    where: Any = "right" if right or side == "right" else "left"
    dtype = np.int32 if out_int32 else np.int64
    if sorter is not None:
        sorted_sequence = np.take_along_axis(sorted_sequence, sorter, -1)
    if sorted_sequence.ndim == 1:
        return np.asarray(np.searchsorted(sorted_sequence, values, where), dtype)
    if np.shape(values)[:-1] != sorted_sequence.shape[:-1]:
        raise ValueError(
            f"searchsorted: the rows of both must agree, got shapes {sorted_sequence.shape} and {np.shape(values)}"
        )
    rows = zip(
        sorted_sequence.reshape(-1, sorted_sequence.shape[-1]), values.reshape(-1, values.shape[-1]), strict=True
    )
    found = [np.searchsorted(row, wanted, where) for row, wanted in rows]
    return np.asarray(found, dtype).reshape(values.shape)


def bucketize(x: Any, boundaries: Any, *, right: bool = False, out_int32: bool = False) -> Any:
    """The number of the interval between the boundaries in which each element lies; see `searchsorted`."""
    return searchsorted(boundaries, x, right=right, out_int32=out_int32)


@primitive()
def isin(elements: Any, test_elements: Any, assume_unique: bool = False, invert: bool = False) -> Any:
    """Whether each element is one of `test_elements`."""
    return np.isin(elements, test_elements, invert=invert)


@primitive()
def argwhere(x: Any) -> Any:
    """The indices of the elements that are not 0, one row for each: (number, axes)."""
    return np.argwhere(x) if x.ndim else np.zeros((int(x != 0), 0), np.int64)


def nonzero(x: Any, *, as_tuple: bool = False) -> Any:
    """The indices of the elements that are not 0, (number, axes); or one vector for each axis."""
    rows = argwhere(x.reshape((1,)) if as_tuple and x.ndim == 0 else x)
    return tuple(rows[:, i] for i in range(rows.shape[1])) if as_tuple else rows


@primitive()
def count_nonzero(x: Any, dim: Any = None) -> Any:
    """How many elements are not 0, over all or over `dim`."""
    return np.asarray(np.count_nonzero(x, axis=normalize_dims(dim, x.ndim, "count_nonzero")), np.int64)
