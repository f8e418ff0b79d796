"""x wᵀ for very few rows of x, as when a text is generated token by token: dot products, every row of w read once.

Such a product waits for memory. Four rows of w are read side by side, a quarter of w apart, since memory answers four
streams sooner than one; two rows of x are multiplied with them at a time, which is what the registers hold.
"""

from __future__ import annotations

import llvmlite.ir as ir
import numpy as np
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from .runtime import device, empty, kernel, share, tasks
from .vector_tile import VECTOR_BYTES, _load, _multiply_add, _pointer, _vector_type

FEW_ROWS = 8  # up to so many rows, dot products beat tiles, if w lies by rows
GRAIN = 1 << 18  # multiply-adds worth a thread
STREAMS = 4  # rows of w that are read side by side
BLOCK = 1024  # terms that are summed in the numbers' own precision, in four parts or more


def _dots(rows):
    """The intrinsic for the products of `rows` rows of x with STREAMS rows of w, over `vectors` whole vectors.

    Row i of x begins at element x_at + i x_step, row r of w at w_at + r w_step; their product becomes
    out[i STREAMS + r].
    """
    together = 2 // rows  # vectors of a row: eight sums hide the time that a multiply-add takes

    @intrinsic
    def dots(typing, x, x_at, x_step, w, w_at, w_step, vectors, out):
        n = types.intp
        signature = types.void(x, n, n, w, n, n, n, out)

        def generate(context, builder, sig, args):
            x_, x_at_, x_step_, w_, w_at_, w_step_, vectors_, out_ = args
            vector = _vector_type(x)
            integer, lanes = x_at_.type, vector.count

            def places(array_type, array, at, step, count):
                start = _pointer(context, builder, array_type, array, at)
                return [builder.gep(start, [builder.mul(step, integer(i))]) for i in range(count)]

            x_rows, w_rows = places(x, x_, x_at_, x_step_, rows), places(w, w_, w_at_, w_step_, STREAMS)
            sums = [[[cgutils.alloca_once(builder, vector) for _ in range(together)] for _ in w_rows] for _ in x_rows]
            for place in [p for row in sums for pair in row for p in pair]:
                builder.store(ir.Constant(vector, [0.0] * lanes), place)

            def add(index, part):
                at = builder.mul(index, integer(lanes))
                w_parts = [_load(builder, builder.gep(row, [at]), vector) for row in w_rows]
                for row, of_row in zip(x_rows, sums, strict=True):
                    x_part = _load(builder, builder.gep(row, [at]), vector)
                    for w_part, pair in zip(w_parts, of_row, strict=True):
                        builder.store(_multiply_add(builder, x_part, w_part, builder.load(pair[part])), pair[part])

            with cgutils.for_range(builder, builder.sdiv(vectors_, integer(together)), intp=integer) as loop:
                for part in range(together):
                    add(builder.add(builder.mul(loop.index, integer(together)), integer(part)), part)
            if together > 1:
                with builder.if_then(builder.trunc(vectors_, ir.IntType(1))):  # an odd one is left
                    add(builder.sub(vectors_, integer(1)), 0)
            target = _pointer(context, builder, out, out_, integer(0))
            for i, of_row in enumerate(sums):
                for r, pair in enumerate(of_row):
                    total = builder.load(pair[0])
                    for more in pair[1:]:
                        total = builder.fadd(total, builder.load(more))
                    width = lanes
                    while width > 1:  # the upper half onto the lower
                        width //= 2
                        lower, upper = (
                            ir.Constant(ir.VectorType(ir.IntType(32), width), list(range(k, k + width)))
                            for k in (0, width)
                        )
                        total = builder.fadd(
                            builder.shuffle_vector(total, total, lower), builder.shuffle_vector(total, total, upper)
                        )
                    number = builder.extract_element(total, ir.Constant(ir.IntType(32), 0))
                    builder.store(number, builder.gep(target, [integer(i * STREAMS + r)]))
            return context.get_dummy_value()

        return signature, generate

    return dots


_dots_1, _dots_2 = _dots(1), _dots(2)


@device
def _store(total, out, i, j, bias, relu, accumulate):
    value = out.dtype.type(total)
    if accumulate:
        value += out[i, j]
    if len(bias) > 0:
        value += bias[j]
    if relu and value < 0:
        value = out.dtype.type(0)
    out[i, j] = value


@kernel
def few_rows(t, n_tasks, x, w, out, bias, relu, accumulate):
    """out = [out +] x wᵀ [+ bias] [relu] for few rows of x; bias: empty for none."""
    (m, depth), n = x.shape, len(w)
    lanes = VECTOR_BYTES // x.itemsize
    quarter = n // STREAMS
    whole = depth // lanes * lanes
    plain = whole == depth and len(bias) == 0 and not relu and not accumulate
    totals = np.empty(2 * STREAMS, np.float64)
    parts = np.empty(2 * STREAMS, x.dtype)
    for j in range(*share(t, n_tasks, quarter)):
        for i in range(0, m, 2):
            together = min(2, m - i)
            for first in range(0, whole, BLOCK):
                vectors = min(BLOCK, whole - first) // lanes
                if together == 2:
                    _dots_2(x, i * depth + first, depth, w, j * depth + first, quarter * depth, vectors, parts)
                else:
                    _dots_1(x, i * depth + first, depth, w, j * depth + first, quarter * depth, vectors, parts)
                for r in range(together * STREAMS):
                    totals[r] = parts[r] if first == 0 else totals[r] + parts[r]
            for r in range(together * STREAMS):
                row, column, total = i + r // STREAMS, j + r % STREAMS * quarter, totals[r] if whole > 0 else 0.0
                if plain:
                    out[row, column] = total
                else:
                    for k in range(whole, depth):
                        total += x[row, k] * w[column, k]
                    _store(total, out, row, column, bias, relu, accumulate)
    if t == n_tasks - 1:  # the rows of w that no stream has
        for j in range(STREAMS * quarter, n):
            for i in range(m):
                total = 0.0
                for k in range(depth):
                    total += x[i, k] * w[j, k]
                _store(total, out, i, j, bias, relu, accumulate)


NO_BIAS = {np.dtype(kind): np.empty(0, kind) for kind in (np.float32, np.float64)}


def rows_by_dots(x: np.ndarray, w: np.ndarray, bias: np.ndarray | None) -> np.ndarray | None:
    """x wᵀ [+ bias] for x (..., K) of one to FEW_ROWS rows, w (N, K) and bias (N,): the short way to `few_rows`.

    None where it does not lead there. The caller has checked that shapes and dtypes fit.
    """
    n, depth = w.shape
    size, dtype = x.size, x.dtype
    if not 0 < size <= FEW_ROWS * depth or n == 0 or dtype not in NO_BIAS:
        return None
    if bias is None:
        bias = NO_BIAS[dtype]
    if not (x.flags.carray and w.flags.carray and bias.flags.carray):
        return None
    out = empty((*x.shape[:-1], n), dtype)
    n_tasks = 1 if size * n < 2 * GRAIN else tasks(size * n, GRAIN)
    few_rows(n_tasks, x.reshape(-1, depth), w, out.reshape(-1, n), bias, False, False)
    return out
