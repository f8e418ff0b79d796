"""What a wrong gradient looks like: one small function per pattern, on the Jacobian of one output by one input.

Each takes a `Block` and answers a sentence, or None where the pattern does not fit. `diagnose` asks them all.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from ..graph import Array


@dataclass
class Block:
    """The Jacobian of one output (rows) by one input (columns), by backward and by differences."""

    label: str
    out_shape: tuple[int, ...]
    in_shape: tuple[int, ...]
    analytic: Array
    numeric: Array
    output: str = "the output"
    missing: bool = False  # backward gave None
    siblings: list[Block] = field(default_factory=list)  # the same output by the other inputs
    vjp: Callable[[Array], Array] | None = None  # backward on a cotangent of one's own
    uses: Callable[[Array], list[Array]] | None = None  # what each use of the input gives for a cotangent

    def __post_init__(self) -> None:
        self.analytic = self.analytic.reshape(int(np.prod(self.out_shape)), int(np.prod(self.in_shape)))
        self.numeric = self.numeric.reshape(self.analytic.shape)

    @property
    def cotangents(self) -> Array:
        """Three random cotangents, (3, outputs)."""
        return np.random.default_rng(7).standard_normal((3, self.analytic.shape[0]))

    def gradients(self, jacobian: Array) -> Array:
        """The gradients that the random cotangents give, (3, *in_shape)."""
        return (self.cotangents @ jacobian).reshape(3, *self.in_shape)


def _same(a: Array, b: Array) -> bool:
    """Equal up to what finite differences can see; two zeros prove nothing."""
    scale = float(np.abs(b).max(initial=0.0))
    return a.shape == b.shape and scale > 0 and bool(np.abs(a - b).max(initial=0.0) <= 1e-4 * scale)


def _nonzero(j: Array) -> Array:
    return np.abs(j) > 1e-6 * max(float(np.abs(j).max(initial=0.0)), 1e-300)


# -- the patterns ------------------------------------------------------------------------------------------------------


def zero_gradient(b: Block) -> str | None:
    if b.numeric.any() and not b.analytic.any():
        how = "backward gave None" if b.missing else "every element is 0"
        return f"zero gradient: {how}, but {b.output} does change with {b.label}"
    return None


def ignores_the_cotangent(b: Block) -> str | None:
    if b.vjp is None or not b.analytic.size:
        return None
    u, v = b.cotangents[:2]
    both, parts = b.vjp(u + v), b.vjp(u) + b.vjp(v)
    scale = max(float(np.abs(parts).max(initial=0.0)), float(np.abs(both).max(initial=0.0)))
    if np.abs(both - parts).max(initial=0.0) > 1e-6 * scale:
        return "not linear in the incoming gradient: it is forgotten, clipped, or used twice, where it should be a factor once"
    return None


def factor(b: Block) -> str | None:
    n = float((b.numeric * b.numeric).sum())
    c = float((b.analytic * b.numeric).sum()) / n if n else 0.0
    if not c or not _same(b.analytic, c * b.numeric):
        return None
    if abs(c + 1) < 1e-4:
        return "wrong sign: the analytic gradient is the negative of the right one"
    if abs(c - 1) < 1e-4:
        return None
    return f"constant factor: the analytic gradient is {c:.6g} times the right one{_meaning(c, b)}"


def _meaning(c: float, b: Block) -> str:
    lengths = {
        int(np.prod(p)) for s in (b.in_shape, b.out_shape) for r in range(1, len(s) + 1) for p in itertools.combinations(s, r)
    }  # fmt: skip
    for n in sorted(lengths - {0, 1}):
        if abs(abs(c) * n - 1) < 1e-4:
            return f" (1/{n}: a mean where a sum belongs over a length of {n}, or a factor {n} that is missing)"
        if abs(abs(c) / n - 1) < 1e-4:
            return f" (a sum where a mean belongs over a length of {n}, or a factor {n} too many)"
    return ""


def swapped_inputs(b: Block) -> str | None:
    for other in b.siblings:
        if other.in_shape == b.in_shape and _same(b.analytic, other.numeric) and _same(other.analytic, b.numeric):
            return f"swapped: {b.label} was given the gradient of {other.label}, and the other way round"
    return None


def transposed(b: Block) -> str | None:
    a, n = b.gradients(b.analytic), b.gradients(b.numeric)
    for i, j in itertools.combinations(range(len(b.in_shape)), 2):
        if _same(a, np.swapaxes(n, i + 1, j + 1).reshape(a.shape)):
            return f"transposed: axes {i} and {j} of the gradient are swapped"
    u = b.cotangents.reshape(3, *b.out_shape)
    for i, j in itertools.combinations(range(len(b.out_shape)), 2):
        turned = np.swapaxes(u, i + 1, j + 1).reshape(3, -1) @ b.numeric
        if _same(a, turned.reshape(a.shape)):
            return f"transposed: the incoming gradient is read with its axes {i} and {j} swapped"
    return None


def missing_sum(b: Block) -> str | None:
    """A part of an output axis along which the input is repeated, instead of the sum over it."""
    lead = len(b.out_shape) - len(b.in_shape)
    repeated = [
        i for i, n in enumerate(b.out_shape) if n > 1 and (i < lead or (b.in_shape[i - lead] == 1))
    ]  # fmt: skip
    a = b.gradients(b.analytic)
    u = b.cotangents.reshape(3, *b.out_shape)
    for count in range(1, len(repeated) + 1):
        for axes in itertools.combinations(repeated, count):
            for position in {0, -1}:
                part = np.zeros_like(u)
                here: list[slice | int] = [slice(None)] * u.ndim
                for axis in axes:
                    here[axis + 1] = position
                part[tuple(here)] = u[tuple(here)]
                if _same(a, (part.reshape(3, -1) @ b.numeric).reshape(a.shape)):
                    word = "axis" if count == 1 else "axes"
                    which = ", ".join(map(str, axes))
                    return (
                        f"missing sum over a broadcast axis: {b.label} is repeated along {word} {which} of the output, "
                        f"but only position {position if position == 0 else 'the last'} reaches the gradient, not the sum"
                    )
    return None


def _followed(jacobian: Array, out_shape: Sequence[int], in_shape: Sequence[int]) -> set[tuple[int, int]]:
    """Pairs (output axis, input axis) that run together: entries are nonzero only where their positions agree."""
    rows, columns = np.nonzero(_nonzero(jacobian))
    if not rows.size:
        return set()
    o = np.unravel_index(rows, tuple(out_shape)) if out_shape else ()
    i = np.unravel_index(columns, tuple(in_shape)) if in_shape else ()
    return {
        (p, q)
        for p, n in enumerate(out_shape)
        for q, m in enumerate(in_shape)
        if n == m > 1 and np.array_equal(o[p], i[q])
    }


def wrong_axis(b: Block) -> str | None:
    """The rule mixes positions of an axis that the function keeps apart, and keeps apart one that the function mixes."""
    lost, gained = _axes(b)
    if not lost or not gained:
        return None
    return (
        f"wrong axis: the rule mixes positions along axis {lost} of {b.label}, which the function keeps apart, and keeps "
        f"apart axis {gained}, which the function mixes"
    )


def mixed_axis(b: Block) -> str | None:
    """The rule mixes positions of an axis that the function keeps apart."""
    lost, _ = _axes(b)
    return (
        f"wrong axis: the rule mixes positions along axis {lost} of {b.label}, which the function keeps apart"
        if lost
        else None
    )


def _axes(b: Block) -> tuple[str, str]:
    """The input axes that run with an output axis in the function but not in the rule, and the other way round."""
    right, found = _followed(b.numeric, b.out_shape, b.in_shape), _followed(b.analytic, b.out_shape, b.in_shape)
    if not right and not found:
        return "", ""
    lost, gained = ([str(q) for _, q in sorted(pairs)] for pairs in (right - found, found - right))
    if len(b.in_shape) < len(b.out_shape):  # a repeated input: the output's axes tell more
        lost, gained = ([str(p) for p, _ in sorted(pairs)] for pairs in (right - found, found - right))
    return ", ".join(lost), ", ".join(gained)


def permuted(b: Block) -> str | None:
    """The right elements at wrong places, of the gradient or of the incoming one."""
    for what, a, n, shape in (
        ("gradient's", b.gradients(b.analytic).reshape(3, -1), b.gradients(b.numeric).reshape(3, -1), b.in_shape),
        ("incoming gradient's", *_rows(b), b.out_shape),
    ):
        if a.shape[1] < 2 or _same(a, n):
            continue
        A, N = a.reshape(-1, *shape), n.reshape(-1, *shape)
        for axis in range(len(shape)):
            for by in range(-3, 4):
                if by and _same(A, np.roll(N, by, axis + 1)):
                    return f"shifted: the {what} elements are moved by {by} along axis {axis}, around the end"
                if by and abs(by) < shape[axis] and _same(A, _shift(N, by, axis + 1)):
                    return f"shifted: the {what} elements are moved by {by} along axis {axis}, with zeros behind"
            if _same(A, np.flip(N, axis + 1)):
                return f"permuted: the {what} elements stand in reverse order along axis {axis}"
        order_a, order_n = np.argsort(a[0]), np.argsort(n[0])
        if _same(a[:, order_a], n[:, order_n]):
            return f"permuted: the {what} elements are the right ones in a wrong order"
    return None


def _rows(b: Block) -> tuple[Array, Array]:
    """Both Jacobians' rows, seen through three random directions of the input: (3, outputs)."""
    v = np.random.default_rng(8).standard_normal((b.analytic.shape[1], 3))
    return (b.analytic @ v).T, (b.numeric @ v).T


def _shift(x: Array, by: int, axis: int) -> Array:
    moved = np.roll(x, by, axis)
    edge: list[slice] = [slice(None)] * x.ndim
    edge[axis] = slice(0, by) if by > 0 else slice(by, None)
    moved[tuple(edge)] = 0
    return moved


def missing_use(b: Block) -> str | None:
    """Some of the ways by which the input acts are there, others are not: assigned where it should be accumulated."""
    if b.uses is not None:
        u = b.cotangents
        parts = [np.stack(p) for p in zip(*(b.uses(row) for row in u), strict=True)]
        a = b.gradients(b.analytic).reshape(3, -1)
        parts = [p.reshape(3, -1) for p in parts]
        if 2 <= len(parts) <= 8:
            for count in range(1, len(parts)):
                for kept in itertools.combinations(range(len(parts)), count):
                    if _same(a, np.sum([parts[k] for k in kept], axis=0)):
                        lost = ", ".join(str(k + 1) for k in range(len(parts)) if k not in kept)
                        return (
                            f"one of several uses is missing: {b.label} is used {len(parts)} times, and the gradient of "
                            f"use {lost} is not there (assigned instead of accumulated?)"
                        )
    right, found = _nonzero(b.numeric), _nonzero(b.analytic)
    dropped = right & ~found
    if dropped.any() and found.any() and not (found & ~right).any() and (dropped.any(0) & found.any(0)).any():
        scale = float(np.abs(b.numeric).max())
        if np.abs(np.where(found, b.analytic - b.numeric, 0)).max() <= 1e-4 * scale:
            count = int((dropped.any(0) & right.any(0)).sum())
            return (
                f"one of several uses is missing: {count} elements of {b.label} act on several outputs, and for some of these "
                "the gradient is not there, for the others it is right (assigned instead of accumulated?)"
            )
    return None


def only_in_part(b: Block) -> str | None:
    """The error sits in one slice of the input."""
    scale = float(np.abs(b.numeric).max(initial=0.0))
    wrong = (np.abs(b.analytic - b.numeric) > 1e-4 * scale).any(0).reshape(b.in_shape)
    for axis, n in enumerate(b.in_shape):
        hit = wrong.any(tuple(i for i in range(wrong.ndim) if i != axis))
        if n > 1 and hit.sum() == 1 and wrong.size > 1:
            return f"wrong in one place only: at position {int(hit.argmax())} of axis {axis}; the other positions are right"
    return None


def reduced_along_the_wrong_axis(b: Block) -> str | None:
    """`wrong_axis` where input and output have different axes, so that "transposed" would fit as well."""
    return wrong_axis(b) if len(b.in_shape) != len(b.out_shape) else None


PATTERNS = (
    zero_gradient,
    ignores_the_cotangent,
    factor,
    swapped_inputs,
    missing_sum,
    reduced_along_the_wrong_axis,
    transposed,
    missing_use,
    wrong_axis,
    permuted,
    mixed_axis,
    only_in_part,
)


def diagnose(block: Block) -> list[str]:
    """The sentence of the most telling pattern that fits; a constant factor may also be a use that is missing."""
    if not block.numeric.size:
        return []
    if not np.isfinite(block.analytic).all():
        return ["not finite: backward gives NaN or Inf; 0 times Inf inside it, or a division by 0?"]
    known = np.isfinite(block.numeric).all(0)
    if not known.all():  # a sample of very many elements
        part = Block(
            block.label, block.out_shape, (int(known.sum()),), block.analytic[:, known], block.numeric[:, known]
        )
        return [s for pattern in (zero_gradient, factor) if known.any() and (s := pattern(part)) is not None]
    first = next(((pattern, sentence) for pattern in PATTERNS if (sentence := pattern(block)) is not None), None)
    if first is None:
        return []
    other = missing_use(block) if first[0] is factor else None
    return [first[1]] + ([other] if other else [])
