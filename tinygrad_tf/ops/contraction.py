"""Products under their special names, and sums of products over named axes: all lead to `matmul` and `mul`."""

from __future__ import annotations

import functools
import string
from collections.abc import Sequence
from typing import Any

import numpy as np

from .arrange import diagonal
from .elementwise import mul
from .products import matmul
from .reductions import broadcast_to, sum
from .shape import permute, reshape

# -- products of given ranks -------------------------------------------------------------------------------------------


def _ranks(name: str, *expected: tuple[str, Any, int]) -> None:
    for label, x, ndim in expected:
        if x.ndim != ndim:
            raise ValueError(f"{name}: {label} must have {ndim} {'axis' if ndim == 1 else 'axes'}, got shape {x.shape}")


def mm(a: Any, b: Any) -> Any:
    """The product of two matrices."""
    _ranks("mm", ("the first argument", a, 2), ("the second", b, 2))
    return matmul(a, b)


def bmm(a: Any, b: Any) -> Any:
    """The products of two batches of matrices: (B, M, K) and (B, K, N) -> (B, M, N)."""
    _ranks("bmm", ("the first argument", a, 3), ("the second", b, 3))
    if a.shape[0] != b.shape[0]:
        raise ValueError(f"bmm: the batches must be equally long, got shapes {a.shape} and {b.shape}")
    return matmul(a, b)


def mv(a: Any, b: Any) -> Any:
    """A matrix times a vector."""
    _ranks("mv", ("the first argument", a, 2), ("the second", b, 1))
    return matmul(a, b)


def dot(a: Any, b: Any) -> Any:
    """The sum of the products of two vectors."""
    _ranks("dot", ("the first argument", a, 1), ("the second", b, 1))
    return matmul(a, b)


def vdot(a: Any, b: Any) -> Any:
    """`dot`: real numbers are their own conjugates."""
    return dot(a, b)


def outer(a: Any, b: Any) -> Any:
    """out[i, j] = a[i] b[j]."""
    _ranks("outer", ("the first argument", a, 1), ("the second", b, 1))
    return mul(a.reshape((-1, 1)), b)


def inner(a: Any, b: Any) -> Any:
    """The sum over the last axes of both: (..., K) and (***, K) -> (..., ***)."""
    return mul(a, b) if a.ndim == 0 or b.ndim == 0 else tensordot(a, b, ([-1], [-1]))


def _sum(x: Any, product: Any, beta: Any, alpha: Any) -> Any:
    """beta * x + alpha * product; with beta 0, x counts for nothing, not even its NaN."""
    product = product if alpha == 1 else product * alpha
    if beta == 0:
        return product
    return (x if beta == 1 else x * beta) + product


def addmm(x: Any, mat1: Any, mat2: Any, *, beta: Any = 1, alpha: Any = 1) -> Any:
    """beta * x + alpha * mat1 mat2."""
    return _sum(x, mm(mat1, mat2), beta, alpha)


def addmv(x: Any, mat: Any, vec: Any, *, beta: Any = 1, alpha: Any = 1) -> Any:
    """beta * x + alpha * mat vec."""
    return _sum(x, mv(mat, vec), beta, alpha)


def addr(x: Any, vec1: Any, vec2: Any, *, beta: Any = 1, alpha: Any = 1) -> Any:
    """beta * x + alpha * outer(vec1, vec2)."""
    return _sum(x, outer(vec1, vec2), beta, alpha)


def baddbmm(x: Any, batch1: Any, batch2: Any, *, beta: Any = 1, alpha: Any = 1) -> Any:
    """beta * x + alpha * batch1 batch2, matrix by matrix."""
    return _sum(x, bmm(batch1, batch2), beta, alpha)


def addbmm(x: Any, batch1: Any, batch2: Any, *, beta: Any = 1, alpha: Any = 1) -> Any:
    """beta * x + alpha * the sum of the products of two batches of matrices."""
    return _sum(x, sum(bmm(batch1, batch2), 0), beta, alpha)


def multi_dot(tensors: Sequence[Any]) -> Any:
    """The product of several matrices in the order that multiplies least; the first and the last may be vectors.

    Source: Cormen, Leiserson, Rivest and Stein, Introduction to Algorithms, section 15.2.
    """
    if len(tensors) < 2:
        raise ValueError(f"multi_dot: expected at least 2 tensors, got {len(tensors)}")
    sizes = [
        1 if tensors[0].ndim == 1 else tensors[0].shape[0],
        *(t.shape[0 if t.ndim == 1 else -2] for t in tensors[1:]),
    ]
    sizes.append(1 if tensors[-1].ndim == 1 else tensors[-1].shape[-1])

    @functools.cache
    def cheapest(i: int, j: int) -> tuple[int, int]:
        """The cost of the product of tensors i to j, and where to cut it."""
        return (0, i) if i == j else min(
            (cheapest(i, k)[0] + cheapest(k + 1, j)[0] + sizes[i] * sizes[k + 1] * sizes[j + 1], k) for k in range(i, j)
        )  # fmt: skip

    def product(i: int, j: int) -> Any:
        cut = cheapest(i, j)[1]
        return tensors[i] if i == j else matmul(product(i, cut), product(cut + 1, j))

    return product(0, len(tensors) - 1)


# -- sums over named axes ----------------------------------------------------------------------------------------------


def tensordot(a: Any, b: Any, dims: Any = 2) -> Any:
    """The sum of products over axes: the last `dims` of a with the first of b, or the pair of lists of axes."""
    if isinstance(dims, (int, np.integer)):
        left, right = list(range(a.ndim - int(dims), a.ndim)), list(range(int(dims)))
    else:
        left, right = ([d] if isinstance(d, int) else list(d) for d in dims)
    left, right = [d % max(a.ndim, 1) for d in left], [d % max(b.ndim, 1) for d in right]
    if len(left) != len(right) or any(
        a.shape[i] != b.shape[j] and 1 not in (a.shape[i], b.shape[j]) for i, j in zip(left, right, strict=True)
    ):
        raise ValueError(f"tensordot: axes {left} of shape {a.shape} and {right} of shape {b.shape} differ in length")
    names = string.ascii_letters
    a_names = list(names[: a.ndim])
    b_names = list(names[a.ndim : a.ndim + b.ndim])
    for i, j in zip(left, right, strict=True):
        b_names[j] = a_names[i]
    kept = [n for i, n in enumerate(a_names) if i not in left] + [n for j, n in enumerate(b_names) if j not in right]
    return einsum(f"{''.join(a_names)},{''.join(b_names)}->{''.join(kept)}", a, b)


def einsum(equation: str, *operands: Any) -> Any:
    """The sum of products that the equation names: each letter an axis, those not in the result summed over.

    Without `->` the result has the letters that appear once, in alphabetical order. `...` stands for axes that broadcast;
    a letter twice in one operand means its diagonal. Axes of length 1 broadcast.

    >>> import tinygrad_tf as tg
    >>> tg.einsum("bij,bjk->bik", tg.ones(2, 3, 4), tg.ones(2, 4, 5)).shape
    (2, 3, 5)
    """
    tensors = list(operands[0]) if len(operands) == 1 and isinstance(operands[0], (list, tuple)) else list(operands)
    labels, result = _parse(equation, [t.shape for t in tensors])
    terms = [_diagonals(t, names) for t, names in zip(tensors, labels, strict=True)]
    sizes: dict[str, int] = {}
    for x, names in terms:
        for name, n in zip(names, x.shape, strict=True):
            if n != 1 and sizes.get(name, 1) not in (1, n):
                raise ValueError(f"einsum: {name!r} in {equation!r} has the lengths {sizes[name]} and {n}")
            sizes[name] = n if n != 1 else sizes.get(name, 1)
    full = [tuple(sizes[n] for n in names) for _, names in terms]
    terms = [(x if x.shape == s else broadcast_to(x, s), names) for s, (x, names) in zip(full, terms, strict=True)]
    while terms:
        x, names = terms.pop(0)
        needed = set(result).union(*[other for _, other in terms])
        x, names = _keep(x, names, needed)
        if not terms:
            return permute(x, tuple(names.index(n) for n in result)) if names else x
        y, other = terms.pop(0)
        needed = set(result).union(*[rest for _, rest in terms])
        y, other = _keep(y, other, needed | set(names))
        terms.insert(0, _pair(x, names, y, other, needed))
    raise ValueError("einsum: expected at least one operand, got none")


def _parse(equation: str, shapes: list[tuple[int, ...]]) -> tuple[list[str], str]:
    """The letters of each operand's axes and of the result's; the axes of `...` get capital Greek ones."""
    text = equation.replace(" ", "")
    left, arrow, result = text.partition("->")
    parts = left.split(",")
    if len(parts) != len(shapes):
        raise ValueError(f"einsum: {equation!r} names {len(parts)} operands, got {len(shapes)}")
    longest = 0
    for part, shape in zip(parts, shapes, strict=True):
        letters = part.replace("...", "", 1)
        if not all(c in string.ascii_letters for c in letters):
            raise ValueError(f"einsum: expected letters and ... in {equation!r}, got {part!r}")
        if len(letters) > len(shape) or ("..." not in part and len(letters) != len(shape)):
            raise ValueError(f"einsum: {part!r} in {equation!r} names {len(letters)} axes, got shape {shape}")
        longest = max(longest, len(shape) - len(letters))
    dots = "".join(chr(0x391 + i) for i in range(longest))
    labels = [
        part.replace("...", dots[longest - (len(shape) - len(part) + 3) :])
        for part, shape in zip(parts, shapes, strict=True)
    ]
    used = "".join(labels)
    if not arrow:
        result = dots + "".join(sorted(c for c in set(used) if used.count(c) == 1 and c not in dots))
    result = result.replace("...", dots)
    if len(set(result)) != len(result) or not set(result) <= set(used):
        raise ValueError(f"einsum: the result in {equation!r} must name axes of the operands, each once")
    return labels, result


def _diagonals(x: Any, names: str) -> tuple[Any, str]:
    """x with one axis for each letter."""
    for name in dict.fromkeys(names):
        while names.count(name) > 1:
            i = names.index(name)
            j = names.index(name, i + 1)
            if x.shape[i] != x.shape[j]:
                raise ValueError(f"einsum: {name!r} twice in one operand needs equal lengths, got shape {x.shape}")
            x, names = diagonal(x, 0, i, j), names[:i] + names[i + 1 : j] + names[j + 1 :] + name
    return x, names


def _keep(x: Any, names: str, needed: set[str]) -> tuple[Any, str]:
    """x summed over the axes that nobody needs any more."""
    axes = tuple(i for i, n in enumerate(names) if n not in needed)
    return (sum(x, axes), "".join(n for n in names if n in needed)) if axes else (x, names)


def _pair(x: Any, names: str, y: Any, other: str, needed: set[str]) -> tuple[Any, str]:
    """The product of two terms: a batched matmul over the axes that end here, or a broadcast product if none does."""
    batch = [n for n in names if n in other and n in needed]
    ends = [n for n in names if n in other and n not in needed]
    rows, columns = [n for n in names if n not in other], [n for n in other if n not in names]

    def arranged(t: Any, own: str, order: list[str]) -> Any:
        return permute(t, tuple(own.index(n) for n in order)) if order else t

    if not ends:
        x = arranged(x, names, batch + rows)
        y = arranged(y, other, batch + columns)
        shape = y.shape[: len(batch)] + (1,) * len(rows) + y.shape[len(batch) :]
        return mul(reshape(x, x.shape + (1,) * len(columns)), reshape(y, shape)), "".join(batch + rows + columns)
    x, y = arranged(x, names, batch + rows + ends), arranged(y, other, batch + ends + columns)
    b, r = len(batch), len(batch) + len(rows)
    lead, middle, tail = x.shape[:b], x.shape[b:r], y.shape[b + len(ends) :]
    size = int(np.prod(x.shape[r:]))
    flat = [int(np.prod(s)) for s in (lead, middle, tail)]
    product = matmul(reshape(x, (flat[0], flat[1], size)), reshape(y, (flat[0], size, flat[2])))
    return reshape(product, lead + middle + tail), "".join(batch + rows + columns)
