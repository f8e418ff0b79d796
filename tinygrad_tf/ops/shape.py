"""Operations that move elements about: reshaping, reordering axes, joining and cutting. Views share memory where numpy can."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from .indexing import getitem
from .primitive import normalize_dims, primitive
from .reductions import broadcast_to


def _flat_shape(shape: Any) -> tuple[int, ...]:
    """A shape given as one sequence or as several integers."""
    if len(shape) == 1 and not isinstance(shape[0], (int, np.integer)):
        shape = shape[0]
    return tuple(int(n) for n in shape)


@primitive(x=lambda g, x_shape: g.reshape(x_shape), view=True)
def _reshape(x: Any, shape: tuple[int, ...]) -> Any:
    try:
        return x.reshape(shape)
    except ValueError:
        raise ValueError(f"reshape: {x.size} elements of shape {x.shape} do not fit the shape {shape}") from None


_reshape.name = "reshape"


def reshape(x: Any, *shape: Any) -> Any:
    """The same elements in another shape; one axis may be -1. A view where possible."""
    return _reshape(x, _flat_shape(shape))


@primitive(x=lambda g, dims: _permute(g, tuple(int(i) for i in np.argsort(dims))), view=True)
def _permute(x: Any, dims: tuple[int, ...]) -> Any:
    return x.transpose(dims)


_permute.name = "permute"


def permute(x: Any, *dims: Any) -> Any:
    """The axes in another order: axis i of the result is axis dims[i] of x."""
    order = _flat_shape(dims)
    if sorted(d % max(x.ndim, 1) for d in order) != list(range(x.ndim)) or len(order) != x.ndim:
        raise ValueError(f"permute: {order} is no order of the {x.ndim} axes of shape {x.shape}")
    return _permute(x, tuple(d % x.ndim for d in order))


def transpose(x: Any, dim0: int, dim1: int) -> Any:
    """x with two axes swapped."""
    order = list(range(x.ndim))
    (i,), (j,) = normalize_dims(dim0, x.ndim, "transpose") or (0,), normalize_dims(dim1, x.ndim, "transpose") or (0,)
    if x.ndim == 0:
        return x
    order[i], order[j] = j, i
    return _permute(x, tuple(order))


def squeeze(x: Any, dim: Any = None) -> Any:
    """x without its axes of length 1 (or only those among `dim`)."""
    axes = normalize_dims(dim, x.ndim, "squeeze")
    return _reshape(x, tuple(n for i, n in enumerate(x.shape) if not (n == 1 and i in axes)))


def unsqueeze(x: Any, dim: int) -> Any:
    """x with a new axis of length 1 at `dim`."""
    (axis,) = normalize_dims(dim, x.ndim + 1, "unsqueeze")
    return _reshape(x, (*x.shape[:axis], 1, *x.shape[axis:]))


def flatten(x: Any, start_dim: int = 0, end_dim: int = -1) -> Any:
    """x with the axes from `start_dim` to `end_dim` made one."""
    if x.ndim == 0:
        return _reshape(x, (1,))
    (a,), (b,) = normalize_dims(start_dim, x.ndim, "flatten"), normalize_dims(end_dim, x.ndim, "flatten")
    if a > b:
        raise ValueError(f"flatten: start_dim {start_dim} comes after end_dim {end_dim}")
    size = int(np.prod(x.shape[a : b + 1], dtype=np.int64))
    return _reshape(x, (*x.shape[:a], size, *x.shape[b + 1 :]))


def expand(x: Any, *shape: Any) -> Any:
    """x repeated along axes of length 1 and new leading axes, as a view; -1 keeps an axis as it is."""
    wanted = _flat_shape(shape)
    lead = len(wanted) - x.ndim
    if lead < 0 or any(n == -1 for n in wanted[:lead]):
        raise ValueError(f"expand: the shape {wanted} does not fit a tensor of shape {x.shape}")
    full = tuple(x.shape[i - lead] if n == -1 else n for i, n in enumerate(wanted))
    try:
        return broadcast_to(x, full)
    except ValueError:
        raise ValueError(f"expand: shape {x.shape} cannot be repeated into {full}") from None


def _cat_part(g: Any, i: int, shapes: list[tuple[int, ...]], dim: int) -> Any:
    lengths = [0 if s == (0,) else s[dim] for s in shapes]
    part = narrow(g, dim, sum(lengths[:i]), lengths[i])
    return part.reshape((0,)) if shapes[i] == (0,) else part


@primitive(tensors=lambda g, i, tensors_shape, dim: _cat_part(g, i, tensors_shape, dim))
def cat(tensors: Sequence[Any], dim: int = 0) -> Any:
    """The tensors joined along `dim`; all other axes must agree, but tensors of shape (0,) are passed over."""
    if not tensors:
        raise ValueError("cat: expected at least one tensor, got none")
    try:
        return np.concatenate([t for t in tensors if t.shape != (0,)] or tensors[:1], axis=dim)
    except ValueError:
        shapes = ", ".join(str(t.shape) for t in tensors)
        raise ValueError(f"cat: the shapes must agree except along dim {dim}, got {shapes}") from None


def stack(tensors: Sequence[Any], dim: int = 0) -> Any:
    """The tensors, all of one shape, joined along a new axis."""
    shapes = {tuple(t.shape) for t in tensors}
    if len(shapes) != 1:
        raise ValueError(f"stack: expected tensors of one shape, got {sorted(shapes)}")
    return cat([unsqueeze(t, dim) for t in tensors], dim)


def narrow(x: Any, dim: int, start: int, length: int) -> Any:
    """The part of x from `start`, of `length`, along `dim`."""
    (axis,) = normalize_dims(dim, x.ndim, "narrow")
    if start < 0 or length < 0 or start + length > x.shape[axis]:
        raise IndexError(f"narrow: from {start}, {length} elements do not lie in an axis of length {x.shape[axis]}")
    return getitem(x, (slice(None),) * axis + (slice(start, start + length),))


def split(x: Any, size: int | Sequence[int], dim: int = 0) -> tuple[Any, ...]:
    """x cut along `dim` into parts of `size` (the last may be smaller), or of the sizes given."""
    (axis,) = normalize_dims(dim, x.ndim, "split")
    n = x.shape[axis]
    if isinstance(size, (int, np.integer)):
        if size < 1:
            raise ValueError(f"split: size must be at least 1, got {size}")
        sizes = [min(int(size), n - i) for i in range(0, n, int(size))] or [0]
    else:
        sizes = [int(s) for s in size]
        if sum(sizes) != n:
            raise ValueError(f"split: the sizes {sizes} add up to {sum(sizes)}, the axis has length {n}")
    if not sizes:
        return ()
    if min(sizes) < 0:
        raise ValueError(f"split: the sizes must not be negative, got {sizes}")
    return _split(x, tuple(sizes), axis)  # type: ignore[no-any-return]


@primitive(x=lambda g, dim: cat(g, dim), view=True, several=True)
def _split(x: Any, sizes: tuple[int, ...], dim: int) -> Any:
    ends = [sum(sizes[: i + 1]) for i in range(len(sizes))]
    return tuple(x[(slice(None),) * dim + (slice(end - n, end),)] for n, end in zip(sizes, ends, strict=True))


_split.name = "split"


def chunk(x: Any, chunks: int, dim: int = 0) -> tuple[Any, ...]:
    """x cut along `dim` into at most `chunks` parts of equal size (the last may be smaller)."""
    (axis,) = normalize_dims(dim, x.ndim, "chunk")
    if chunks < 1:
        raise ValueError(f"chunk: expected at least 1 part, got {chunks}")
    return split(x, max(1, -(-x.shape[axis] // chunks)), axis)


def unbind(x: Any, dim: int = 0) -> tuple[Any, ...]:
    """The slices of x along `dim`."""
    (axis,) = normalize_dims(dim, x.ndim, "unbind")
    return tuple(getitem(x, (slice(None),) * axis + (i,)) for i in range(x.shape[axis]))


@primitive(x=lambda g, diagonal: tril(g, diagonal))
def tril(x: Any, diagonal: int = 0) -> Any:
    """x with zeros above a diagonal (0: the main one; k: the k-th above it)."""
    return np.tril(x, diagonal)


@primitive(x=lambda g, diagonal: triu(g, diagonal))
def triu(x: Any, diagonal: int = 0) -> Any:
    """x with zeros below a diagonal."""
    return np.triu(x, diagonal)
