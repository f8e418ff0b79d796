"""More ways to lay elements out: repeating, padding, rolling, rotating, diagonals, grids and stacks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..graph import TensorBase
from ..kernels.host import full
from ..modes import not_captured
from .elementwise import mul
from .indexing import _put, getitem, setitem
from .primitive import normalize_dims, primitive
from .reductions import broadcast_to, flip, sum
from .shape import _flat_shape, cat, expand, permute, reshape, split, transpose, unsqueeze

# -- repeating ---------------------------------------------------------------------------------------------------------


def repeat(x: Any, *sizes: Any) -> Any:
    """x laid side by side with itself, sizes[i] times along axis i; more sizes than axes add leading axes."""
    times = _flat_shape(sizes)
    if len(times) < x.ndim or any(n < 0 for n in times):
        raise ValueError(f"repeat: expected at least {x.ndim} sizes, none negative, for shape {x.shape}, got {times}")
    shape = (1,) * (len(times) - x.ndim) + x.shape
    between = x.reshape(tuple(n for pair in zip((1,) * len(times), shape, strict=True) for n in pair))
    full = expand(between, tuple(n for pair in zip(times, shape, strict=True) for n in pair))
    return full.reshape(tuple(t * n for t, n in zip(times, shape, strict=True)))


def tile(x: Any, *dims: Any) -> Any:
    """`repeat`, with sizes of 1 put in front if there are fewer than axes."""
    times = _flat_shape(dims)
    return repeat(x, (1,) * (x.ndim - len(times)) + times)


def repeat_interleave(x: Any, repeats: Any, dim: int | None = None, *, output_size: int | None = None) -> Any:
    """Each element (or slice along `dim`) repeated in place, `repeats` times, or repeats[i] times the i-th."""
    x, dim = (x.reshape((-1,)), 0) if dim is None else (x, dim)
    (axis,) = normalize_dims(dim, x.ndim, "repeat_interleave")
    if isinstance(repeats, (int, np.integer)):
        full = expand(unsqueeze(x, axis + 1), (*x.shape[: axis + 1], int(repeats), *x.shape[axis + 1 :]))
        return full.reshape((*x.shape[:axis], x.shape[axis] * int(repeats), *x.shape[axis + 1 :]))
    if isinstance(repeats, TensorBase):
        not_captured("the numbers of repetitions are a tensor")
    times = np.asarray(getattr(repeats, "_data", repeats))
    if times.size not in (1, x.shape[axis]):
        raise ValueError(f"repeat_interleave: expected 1 or {x.shape[axis]} repeats, got {times.size}")
    times = np.broadcast_to(times.reshape(-1), (x.shape[axis],))
    return getitem(x, (slice(None),) * axis + (np.repeat(np.arange(x.shape[axis]), times),))


def broadcast_tensors(*tensors: Any) -> tuple[Any, ...]:
    """The tensors, each repeated into their common shape."""
    shape = np.broadcast_shapes(*[t.shape for t in tensors])
    return tuple(broadcast_to(t, shape) for t in tensors)


def meshgrid(*tensors: Any, indexing: str = "ij") -> tuple[Any, ...]:
    """Coordinates of the grid over several vectors; with indexing "xy" the first two axes are swapped."""
    if indexing not in ("ij", "xy"):
        raise ValueError(f'meshgrid: indexing must be "ij" or "xy", got {indexing!r}')
    vectors = list(tensors[0]) if len(tensors) == 1 and isinstance(tensors[0], (list, tuple)) else list(tensors)
    shape = tuple(math.prod(v.shape) for v in vectors)
    grids = [expand(v.reshape((1,) * i + (-1,) + (1,) * (len(vectors) - 1 - i)), shape) for i, v in enumerate(vectors)]
    return tuple(transpose(g, 0, 1) if indexing == "xy" and len(vectors) > 1 else g for g in grids)


# -- padding, rolling, windows -----------------------------------------------------------------------------------------


def pad(x: Any, pad: Sequence[int], mode: str = "constant", value: float | None = None) -> Any:
    """x with more elements at both ends of its last axes.

    Args:
        pad: (before, after) of the last axis, then of the one before it, and so on; negative numbers cut off.
        mode: "constant", "reflect", "replicate" or "circular".
        value: the constant (default 0).
    """
    if len(pad) % 2 or len(pad) > 2 * x.ndim:
        raise ValueError(f"pad: expected a pair for each of at most {x.ndim} axes, got {tuple(pad)}")
    pairs = [(0, 0)] * (x.ndim - len(pad) // 2) + [(pad[i], pad[i + 1]) for i in range(len(pad) - 2, -1, -2)]
    if any(a + b + n < 0 for (a, b), n in zip(pairs, x.shape, strict=True)):
        raise ValueError(f"pad: {tuple(pad)} cuts off more than shape {x.shape} has")
    if mode == "constant":
        inner = getitem(x, tuple(slice(max(-a, 0), n - max(-b, 0)) for (a, b), n in zip(pairs, x.shape, strict=True)))
        shape = tuple(n + a + b for (a, b), n in zip(pairs, x.shape, strict=True))
        place = tuple(slice(max(a, 0), max(a, 0) + n) for (a, _), n in zip(pairs, inner.shape, strict=True))
        if not value:
            return _put(inner, shape, (*place, ...))
        return setitem(np.full(shape, value, dtype=x.dtype), (*place, ...), inner)
    modes = {"reflect": "reflect", "replicate": "edge", "circular": "wrap"}
    if mode not in modes:
        raise ValueError(f"pad: mode must be constant, reflect, replicate or circular, got {mode!r}")
    for axis, (a, b) in enumerate(pairs):
        if mode == "circular" and min(a, b) < 0:  # what is cut off does not come in at the other end
            x = getitem(x, (slice(None),) * axis + (slice(max(-a, 0), x.shape[axis] - max(-b, 0)),))
            a, b = max(a, 0), max(b, 0)
        n = x.shape[axis]
        if (a or b) and (max(a, b) >= n + (mode == "circular") if mode != "replicate" else n == 0):
            raise ValueError(f"pad: {mode} padding by {(a, b)} needs a longer axis than {n}")
        if a or b:
            source = np.pad(np.arange(n), (max(a, 0), max(b, 0)), mode=modes[mode])  # type: ignore[call-overload]
            source = source[max(-a, 0) : len(source) - max(-b, 0)]
            x = getitem(x, (slice(None),) * axis + (source,))
    return x


@primitive(x=lambda g, shifts, dims: _roll(g, tuple(-s for s in shifts), dims))
def _roll(x: Any, shifts: tuple[int, ...], dims: tuple[int, ...]) -> Any:
    return np.roll(x, shifts, dims)


_roll.name = "roll"


def roll(x: Any, shifts: Any, dims: Any = None) -> Any:
    """x moved along `dims` by `shifts`, what falls off one end coming in at the other; dims None: flattened."""
    moves = (shifts,) if isinstance(shifts, (int, np.integer)) else tuple(shifts)
    if dims is None:
        return _roll(x.reshape((-1,)), moves, (0,)).reshape(x.shape)
    axes = (dims,) if isinstance(dims, (int, np.integer)) else tuple(dims)
    if len(moves) != len(axes):
        raise ValueError(f"roll: expected as many shifts as dims, got {shifts!r} and {dims!r}")
    for axis in axes:
        normalize_dims(axis, x.ndim, "roll")
    return _roll(x, moves, axes) if x.ndim else x * 1


def unfold(x: Any, dimension: int, size: int, step: int) -> Any:
    """All windows of `size` along an axis, every `step` elements one, as a new last axis (a copy, not a view)."""
    if x.ndim == 0:
        return unfold(x.reshape((1,)), 0, size, step).reshape((size,))
    (axis,) = normalize_dims(dimension, x.ndim, "unfold")
    if size > x.shape[axis] or size < 0 or step < 1:
        raise ValueError(f"unfold: windows of {size} every {step} do not fit an axis of length {x.shape[axis]}")
    starts = np.arange(0, x.shape[axis] - size + 1, step)
    windows = getitem(x, (slice(None),) * axis + (starts[:, None] + np.arange(size),))
    return movedim(windows, axis + 1, -1)


# -- turning and moving axes -------------------------------------------------------------------------------------------


def fliplr(x: Any) -> Any:
    """x with its second axis reversed."""
    return flip(x, 1)


def flipud(x: Any) -> Any:
    """x with its first axis reversed."""
    return flip(x, 0)


def rot90(x: Any, k: int = 1, dims: Sequence[int] = (0, 1)) -> Any:
    """x turned by k quarters, from the first of two axes towards the second."""
    a, b = dims
    if k % 4 == 2:
        return flip(x, (a, b))
    if k % 2 == 0:
        return x * 1
    return transpose(flip(x, b), a, b) if k % 4 == 1 else flip(transpose(x, a, b), b)


def movedim(x: Any, source: Any, destination: Any) -> Any:
    """x with the axes `source` moved to the places `destination`; the others keep their order."""
    sources, targets = ((d,) if isinstance(d, (int, np.integer)) else tuple(d) for d in (source, destination))
    if len(sources) != len(targets):
        raise ValueError(f"movedim: expected as many sources as destinations, got {source!r} and {destination!r}")
    normalize_dims(sources, x.ndim, "movedim"), normalize_dims(targets, x.ndim, "movedim")
    order = [i for i in range(x.ndim) if i not in [s % x.ndim for s in sources]]
    for target, origin in sorted((t % x.ndim, s % x.ndim) for t, s in zip(targets, sources, strict=True)):
        order.insert(target, origin)
    return permute(x, tuple(order)) if x.ndim else x


def unflatten(x: Any, dim: int, sizes: Sequence[int]) -> Any:
    """x with the axis `dim` taken apart into axes of these sizes, one of which may be -1."""
    (axis,) = normalize_dims(dim, x.ndim, "unflatten")
    rest = -math.prod(sizes)
    sizes = tuple(x.shape[axis] // max(rest, 1) if n == -1 else n for n in sizes)
    if math.prod(sizes) != x.shape[axis]:
        raise ValueError(f"unflatten: sizes {sizes} do not multiply to {x.shape[axis]}, the length of dim {dim}")
    return reshape(x, (*x.shape[:axis], *sizes, *x.shape[axis + 1 :]))


def ravel(x: Any) -> Any:
    """x with one axis, in row-major order."""
    return reshape(x, (-1,))


def select(x: Any, dim: int, index: int) -> Any:
    """The slice `index` of x along `dim`, without that axis."""
    (axis,) = normalize_dims(dim, x.ndim, "select")
    return getitem(x, (slice(None),) * axis + (int(index),))


# -- diagonals ---------------------------------------------------------------------------------------------------------


@primitive(x=lambda g, x_shape, offset, dim1, dim2: _embed(g, x_shape, offset, dim1, dim2), view=True)
def diagonal(x: Any, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Any:
    """The elements [i, i + offset] of two axes as a new last axis: a view."""
    normalize_dims((dim1, dim2), x.ndim, "diagonal")
    out = np.diagonal(x, offset, dim1, dim2)
    out.flags.writeable = x.flags.writeable
    return out


@primitive(g=lambda g, offset, dim1, dim2: diagonal(g, offset, dim1, dim2))
def _embed(g: Any, shape: tuple[int, ...], offset: int, dim1: int, dim2: int) -> Any:
    """Zeros with g on a diagonal: the transpose of `diagonal`."""
    out = full(shape, 0, g.dtype)
    diagonal(out, offset, dim1, dim2)[...] = g
    return out


_diagonal = diagonal


def diag_embed(x: Any, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Any:
    """Matrices, in the axes `dim1` and `dim2` of the result, with x's last axis on a diagonal and zeros elsewhere."""
    axes = normalize_dims((dim1, dim2), x.ndim + 1, "diag_embed")
    shape = list(x.shape[:-1])
    for axis in axes:
        shape.insert(axis, x.shape[-1] + abs(offset))
    if dim1 % (x.ndim + 1) > dim2 % (x.ndim + 1):
        offset = -offset
    return _embed(x, tuple(shape), offset, *axes)


def diag(x: Any, diagonal: int = 0) -> Any:
    """The matrix with the vector x on a diagonal, or the diagonal of the matrix x."""
    if x.ndim not in (1, 2):
        raise ValueError(f"diag: expected one or two axes, got shape {x.shape}")
    return diag_embed(x, diagonal) if x.ndim == 1 else _diagonal(x, diagonal) * 1


def diagflat(x: Any, offset: int = 0) -> Any:
    """The matrix with the elements of x on a diagonal."""
    return diag_embed(x.reshape((-1,)), offset)


def diagonal_scatter(x: Any, src: Any, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Any:
    """x with `src` on the diagonal that `diagonal(x, offset, dim1, dim2)` reads."""
    places = diagonal(np.arange(math.prod(x.shape)).reshape(x.shape), offset, dim1, dim2)
    if src.shape != places.shape:
        raise ValueError(f"diagonal_scatter: src must have shape {places.shape}, got {src.shape}")
    return setitem(x.reshape((-1,)), (places,), src).reshape(x.shape)


def trace(x: Any) -> Any:
    """The sum of a matrix's diagonal."""
    if x.ndim != 2:
        raise ValueError(f"trace: expected a matrix, got shape {x.shape}")
    return sum(diagonal(x))


# -- stacking and cutting ----------------------------------------------------------------------------------------------


def _each(operation: Any, tensors: tuple[Any, ...]) -> Any:
    """One tensor for one, a tuple for several or for a sequence."""
    if len(tensors) == 1 and isinstance(tensors[0], (list, tuple)):
        return tuple(operation(t) for t in tensors[0])
    return operation(tensors[0]) if len(tensors) == 1 else tuple(operation(t) for t in tensors)


def atleast_1d(*tensors: Any) -> Any:
    """Each tensor with at least one axis."""
    return _each(lambda x: reshape(x, (1,)) if x.ndim == 0 else x, tensors)


def atleast_2d(*tensors: Any) -> Any:
    """Each tensor with at least two axes; a vector becomes a row."""
    return _each(lambda x: reshape(x, (1,) * (2 - x.ndim) + x.shape) if x.ndim < 2 else x, tensors)


def atleast_3d(*tensors: Any) -> Any:
    """Each tensor with at least three axes, new ones on both sides of a vector and behind a matrix."""
    shapes = {0: lambda s: (1, 1, 1), 1: lambda s: (1, *s, 1), 2: lambda s: (*s, 1)}
    return _each(lambda x: reshape(x, shapes[x.ndim](x.shape)) if x.ndim < 3 else x, tensors)


def hstack(tensors: Sequence[Any]) -> Any:
    """The tensors joined along the second axis, vectors along their only one."""
    parts = [atleast_1d(t) for t in tensors]
    return cat(parts, 0 if parts and parts[0].ndim == 1 else 1)


def vstack(tensors: Sequence[Any]) -> Any:
    """The tensors joined along the first axis, vectors as rows."""
    return cat([atleast_2d(t) for t in tensors], 0)


def dstack(tensors: Sequence[Any]) -> Any:
    """The tensors joined along the third axis."""
    return cat([atleast_3d(t) for t in tensors], 2)


def column_stack(tensors: Sequence[Any]) -> Any:
    """The tensors joined along the second axis, vectors as columns."""
    return cat([reshape(t, (-1, 1)) if t.ndim < 2 else t for t in tensors], 1)


def tensor_split(x: Any, indices_or_sections: Any, dim: int = 0) -> tuple[Any, ...]:
    """x cut along `dim` into n parts, the first ones longer by one where needed; or at the indices given."""
    (axis,) = normalize_dims(dim, x.ndim, "tensor_split")
    n = x.shape[axis]
    if hasattr(indices_or_sections, "_data"):
        not_captured("tensor_split looks at its indices")
    where = getattr(indices_or_sections, "_data", indices_or_sections)
    if np.ndim(where) == 0:
        parts = int(where)
        if parts < 1:
            raise ValueError(f"tensor_split: expected at least 1 part, got {parts}")
        return split(x, [n // parts + (i < n % parts) for i in range(parts)], axis)
    ends = [min(int(i), n) if i >= 0 else max(int(i) + n, 0) for i in (*where, n)]
    pieces = [slice(start, max(start, end)) for start, end in zip((0, *ends), ends, strict=False)]
    return tuple(getitem(x, (slice(None),) * axis + (piece,)) for piece in pieces)


def kron(a: Any, b: Any) -> Any:
    """The Kronecker product: every element of a times all of b, laid out as blocks."""
    n = max(a.ndim, b.ndim)
    left, right = (1,) * (n - a.ndim) + a.shape, (1,) * (n - b.ndim) + b.shape
    blocks = mul(
        a.reshape(tuple(m for size in left for m in (size, 1))),
        b.reshape(tuple(m for size in right for m in (1, size))),
    )
    return blocks.reshape(tuple(p * q for p, q in zip(left, right, strict=True)))


def t(x: Any) -> Any:
    """The transpose of a matrix; vectors and numbers as they are."""
    if x.ndim > 2:
        raise ValueError(f"t: expected at most 2 axes, got shape {x.shape}")
    return transpose(x, 0, 1) if x.ndim == 2 else x


def view_as(x: Any, other: Any) -> Any:
    """x in the shape of `other`."""
    return reshape(x, other.shape)


def expand_as(x: Any, other: Any) -> Any:
    """x repeated into the shape of `other`."""
    return expand(x, other.shape)
