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
    uses: Callable[[Array], list[tuple[str, Array]]] | None = (
        None  # each use of the input, and what it gives for a cotangent
    )
    others: list[Block] = field(default_factory=list)  # the other outputs by the same input
    x: Array | None = None  # the input's elements, and the output's
    y: Array | None = None

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
    return f"constant factor: the analytic gradient is {c:.6g} times the right one{_meaning(abs(c), b)}"


def _meaning(c: float, b: Block) -> str:
    """What the factor may be: made of the length of an axis or of several, of the output, or a small number."""
    found = []
    if b.y is not None and b.y.size == 1 and abs(abs(b.y[0]) - 1) > 1e-3:
        found += [(abs(float(b.y[0])), "the output itself: a division by it is missing")]
    lengths = {
        int(np.prod(p)) for s in (b.in_shape, b.out_shape) for r in range(1, len(s) + 1) for p in itertools.combinations(s, r)
    }  # fmt: skip
    for n in sorted(lengths - {0, 1}):
        found += [
            (1 / n, f"1/{n}: a mean where a sum belongs over a length of {n}, or a factor {n} that is missing"),
            (n, f"a sum where a mean belongs over a length of {n}, or a factor {n} too many"),
            (n**0.5, f"sqrt({n}): a division by the root of a length of {n} is missing"),
            (n**-0.5, f"1/sqrt({n}): a division by the root of a length of {n} too many"),
        ]
    for n in sorted(lengths - {0, 1, 2}):
        found += [
            ((n - 1) / n, f"{n - 1}/{n}: divided by {n}, where {n} - 1 belongs"),
            (n / (n - 1), f"{n}/{n - 1}: divided by {n} - 1, where {n} belongs"),
            (
                ((n - 1) / n) ** 0.5,
                f"sqrt({n - 1}/{n}): the root of a variance over {n} - 1, where one over {n} belongs",
            ),
            (
                (n / (n - 1)) ** 0.5,
                f"sqrt({n}/{n - 1}): the root of a variance over {n}, where one over {n} - 1 belongs",
            ),
        ]
    for n in set(range(2, 11)) - lengths:
        found += [(1 / n, f"a factor {n} is missing"), (n, f"a factor {n} too many")]
    words = [text for value, text in found if abs(c / value - 1) < 1e-4]
    return f" ({'; or '.join(words[:2])})" if words else ""


def swapped_inputs(b: Block) -> str | None:
    for other in b.siblings:
        if other.in_shape == b.in_shape and _same(b.analytic, other.numeric) and _same(other.analytic, b.numeric):
            return f"swapped: {b.label} was given the gradient of {other.label}, and the other way round"
    return None


def swapped_outputs(b: Block) -> str | None:
    for other in b.others:
        if other.out_shape == b.out_shape and _same(b.analytic, other.numeric) and _same(other.analytic, b.numeric):
            return f"swapped: the incoming gradients of {b.output} and {other.output} are taken for one another"
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
        found_uses = [b.uses(row) for row in u]
        names = [name for name, _ in found_uses[0]]
        parts = [np.stack(p) for p in zip(*([g for _, g in uses] for uses in found_uses), strict=True)]
        a = b.gradients(b.analytic).reshape(3, -1)
        parts = [p.reshape(3, -1) for p in parts]
        if 2 <= len(parts) <= 8:
            for count in range(1, len(parts)):
                for kept in itertools.combinations(range(len(parts)), count):
                    if _same(a, np.sum([parts[k] for k in kept], axis=0)):
                        lost = " and ".join(f"use {k + 1} ({names[k]})" for k in range(len(parts)) if k not in kept)
                        return (
                            f"one of several uses is missing: {b.label} is used {len(parts)} times, and the gradient through "
                            f"{lost} is not there (assigned instead of accumulated, or a term forgotten?)"
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
    wrong: Array = np.asarray(_wrong(b).any(0)).reshape(b.in_shape)
    places = []
    for axis, n in enumerate(b.in_shape):
        hit = np.any(wrong, axis=tuple(i for i in range(wrong.ndim) if i != axis))
        if n > 1 and hit.sum() == 1 and wrong.size > 1:
            places.append(f"position {int(hit.argmax())} of axis {axis}")
    if not places:
        return None
    return f"wrong in one place only: at {', '.join(places)} of {b.label}; the other positions are right"


def _wrong(b: Block) -> Array:
    return np.asarray(np.abs(b.analytic - b.numeric) > 1e-4 * float(np.abs(b.numeric).max(initial=0.0)))


def missing_mask(b: Block) -> str | None:
    """A gradient comes through where the function does not depend on the input; elsewhere it is right."""
    right, found = _nonzero(b.numeric), _nonzero(b.analytic)
    if not right.any() and found.any():
        return (
            f"gradient where there is none: {b.output} does not change with {b.label} (a rounding, a comparison, a sign?); "
            "a straight-through gradient is no derivative, and cannot be confirmed"
        )
    extra = found & ~right
    if not extra.any() or _axes(b)[0] or _wrong(b)[right].any():
        return None
    count = int(extra.any(0).sum())
    return (
        f"missing mask: through {count} of {b.analytic.shape[1]} elements of {b.label} a gradient comes where the function does "
        f"not depend on them{_range(b, np.asarray(extra.any(0)))}; elsewhere it is right (a maximum, a clamp, a where, a causal mask?)"
    )


def inverted_mask(b: Block) -> str | None:
    right, found = _nonzero(b.numeric), _nonzero(b.analytic)
    if not right.any() or not found.any() or (right & found).any() or _axes(b)[0]:
        return None
    return (
        f"inverted mask: the gradient is there where the function does not depend on {b.label}, and is not there where it does: "
        "a mask or a choice the wrong way round"
    )


def _range(b: Block, columns: Array) -> str:
    """Whether these elements of the input are all those below, or above, some value."""
    if b.x is None or columns.all() or not columns.any():
        return ""
    inside, outside = b.x[columns], b.x[~columns]
    if inside.max() < outside.min():
        return f" (those up to {inside.max():.3g}, none from {outside.min():.3g} on)"
    if inside.min() > outside.max():
        return f" (those from {inside.min():.3g} on, none up to {outside.max():.3g})"
    return ""


def not_transposed(b: Block) -> str | None:
    """The function's own map was applied to the incoming gradient: cumsum for the reversed cumsum."""
    if b.in_shape == b.out_shape and _same(b.analytic, b.numeric.T):
        return (
            "not transposed: the rule does to the incoming gradient what the function does to its input; it must do the "
            "transpose: the inverse permutation, the reverse order, the opposite rotation, W^T for W"
        )
    return None


def misplaced(b: Block) -> str | None:
    """For each output the right numbers, at wrong places."""
    if min(b.analytic.shape) < 2:
        return None
    for axis, word in ((1, f"each element of {b.output}"), (0, f"each element of {b.label}")):
        if _same(np.sort(b.analytic, axis), np.sort(b.numeric, axis)) and _nonzero(b.numeric).any(axis).all():
            return (
                f"misplaced: for {word} the gradient has the right numbers, at wrong places: a stride, offset or index"
            )
    return None


def uncoupled(b: Block) -> str | None:
    """The rule goes element by element along an axis whose positions the function mixes."""
    lost, gained = _axes(b)
    if lost or not gained:
        return None
    return (
        f"dropped term: the rule keeps apart the positions of axis {gained}, which the function mixes: a sum or a mean over that "
        "axis is missing in the rule"
    )


def rank_one(b: Block) -> str | None:
    """The difference is an outer product along the axes that the function mixes: a single sum is missing or wrong."""
    kept = sorted(_followed(b.numeric, b.out_shape, b.in_shape) & _followed(b.analytic, b.out_shape, b.in_shape))
    outs, ins = [p for p, _ in kept], [q for _, q in kept]
    if len(set(outs)) < len(outs) or len(set(ins)) < len(ins):
        return None
    rest = [q for q in range(len(b.in_shape)) if q not in ins]
    E = (b.analytic - b.numeric).reshape(*b.out_shape, *b.in_shape)
    for step, (p, q) in enumerate(kept):  # the diagonal of each pair goes to the end
        p -= sum(o < p for o in outs[:step])
        q += len(b.out_shape) - step - sum(i < q for i in ins[:step])
        E = np.diagonal(E, axis1=p, axis2=q)
    E = np.moveaxis(E, range(E.ndim - len(kept), E.ndim), range(len(kept)))
    rows = int(np.prod([n for p, n in enumerate(b.out_shape) if p not in outs]))
    E = E.reshape(-1, rows, int(np.prod([b.in_shape[q] for q in rest])))
    if min(E.shape[1:]) < 3 or not np.isfinite(E).all():
        return None
    values = np.linalg.svd(E, compute_uv=False)
    if values[:, 0].max() == 0 or (values[:, 1] > 1e-4 * values[:, 0].max()).any():
        return None
    along = ", ".join(map(str, rest))
    if np.abs(E - E.mean(2, keepdims=True)).max() <= 1e-4 * np.abs(E).max():
        return (
            f"dropped term: what is missing (or too much) is the same at all positions along axis {along} of {b.label}: one "
            "term, a sum or a mean of the incoming gradient over that axis"
        )
    return (
        f"dropped term: what is missing (or too much) is one sum over axis {along}, of the incoming gradient times something, "
        "times something: as x * mean(g * x) in a normalization, or y * sum(g * y) in a softmax"
    )


def offset(b: Block) -> str | None:
    """The same amount too much at some elements."""
    E, wrong = b.analytic - b.numeric, _wrong(b)
    if wrong.sum() < 2 or wrong.all() and b.analytic.shape[0] > 1:
        return None
    c = float(np.median(E[wrong]))
    if np.abs(E[wrong] - c).max() > 1e-4 * abs(c):
        return None
    rest = "" if wrong.all() else ", and right at the others"
    return f"dropped term: a constant: off by {c:.6g} at {int(wrong.sum())} of {wrong.size} entries{rest} (a one-hot, a mask?)"


def varying_factor(b: Block) -> str | None:
    """A factor for each position along one axis, of the input or of the output."""
    for shape, a, n, word in (
        (b.in_shape, b.analytic, b.numeric, f"of {b.label}"),
        (b.out_shape, b.analytic.T, b.numeric.T, f"of {b.output}"),
    ):
        for axis, length in enumerate(shape):
            A = np.moveaxis(a.reshape(-1, *shape), axis + 1, 0).reshape(length, -1)
            N = np.moveaxis(n.reshape(-1, *shape), axis + 1, 0).reshape(length, -1)
            if length < 2 or (_nonzero(N).sum(1) < 2).any():
                continue
            c = (A * N).sum(1) / (N * N).sum(1)
            if _same(A, c[:, None] * N):
                some = ", ".join(f"{v:.4g}" for v in c[:4]) + (", ..." if length > 4 else "")
                return f"varying factor: times {some} along axis {axis} {word}, where 1 belongs: a factor for each position there"
    return None


def wrong_slope(b: Block) -> str | None:
    """Element by element, and the factor depends on the element: the derivative of the function of one number is wrong."""
    if b.in_shape != b.out_shape or b.x is None or b.y is None or b.x.size < 3:
        return None
    n, a = np.diag(b.numeric), np.diag(b.analytic)
    if _nonzero(b.numeric - np.diag(n)).any() and np.abs(b.numeric - np.diag(n)).max() > 1e-6 * np.abs(n).max():
        return None
    if np.abs(b.analytic - np.diag(a)).max() > 1e-6 * np.abs(a).max() or not _nonzero(n).all():
        return None
    part = np.asarray(_wrong(b).any(0))
    if 2 <= part.sum() < part.size and (words := _range(b, part)):
        return f"wrong slope: element by element, and wrong at {int(part.sum())} of {part.size} elements{words}: a branch there"
    with np.errstate(all="ignore"):
        ratio = a / n
        for p, q in sorted(itertools.product(range(-3, 4), repeat=2), key=lambda e: (abs(e[0]) + abs(e[1]), e)):
            values = ratio / (b.x.astype(float) ** p * b.y.astype(float) ** q)
            c = float(np.median(values))
            if (p or q) and np.isfinite(values).all() and c and np.abs(values - c).max() <= 1e-4 * abs(c):
                words = " ".join(f"{w}^{e}" if e != 1 else w for w, e in (("x", p), ("y", q)) if e)
                times = "" if abs(c - 1) < 1e-4 else f"{c:.4g} "
                return (
                    f"wrong slope: element by element, {times}{words} times the right one (x the input, y the output)"
                )
    return (
        f"wrong slope: the right places, but each element has another factor, from {ratio.min():.4g} to {ratio.max():.4g}: the "
        "derivative of the function of one number is wrong (the input where the output belongs? an inner derivative?)"
    )


def same_axes(b: Block) -> str | None:
    """Nothing else fits, but the rule mixes what the function mixes."""
    right, found = _followed(b.numeric, b.out_shape, b.in_shape), _followed(b.analytic, b.out_shape, b.in_shape)
    if right != found or not b.analytic.any():
        return None
    same = " The places of its zeros are right, too." if not (_nonzero(b.analytic) ^ _nonzero(b.numeric)).any() else ""
    return (
        "no known pattern: the axes are right, the numbers are not: a wrong operand, a term too few, an inner derivative; "
        f"compare the rule with the formula, term by term.{same}"
    )


def reduced_along_the_wrong_axis(b: Block) -> str | None:
    """`wrong_axis` where input and output have different axes, so that "transposed" would fit as well."""
    return wrong_axis(b) if len(b.in_shape) != len(b.out_shape) else None


PATTERNS = (
    zero_gradient,
    ignores_the_cotangent,
    factor,
    swapped_inputs,
    swapped_outputs,
    missing_mask,
    missing_sum,
    reduced_along_the_wrong_axis,
    transposed,
    not_transposed,
    missing_use,
    wrong_axis,
    permuted,
    misplaced,
    inverted_mask,
    mixed_axis,
    uncoupled,
    only_in_part,
    varying_factor,
    wrong_slope,
    rank_one,
    offset,
    same_axes,
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
