"""Vector building blocks of attention, emitted as LLVM vectors because loops alone do not stay in registers.

A block of C += A @ B, four rows by two vectors, is held in eight registers; A may have any strides (its numbers are
broadcast), the rows of B and C are contiguous. Beside it, the row steps of a softmax: maximum, and exp with its sum.
Arrays are flat; offsets and strides count elements. Widths are whole panels, so callers pad their scratch.
"""

from __future__ import annotations

import llvmlite.ir as ir
import numpy as np
from numba.core import cgutils, types
from numba.extending import intrinsic

from .vector_math import EXP, EXP_DOUBLE, LN2, LN2_DOUBLE, raise_two

VECTOR_BYTES = 32
ROWS = 4  # rows of a register block
PANEL_BYTES = 2 * VECTOR_BYTES


def panel(dtype: np.dtype) -> int:
    """How many numbers of `dtype` one row of a register block holds."""
    return PANEL_BYTES // dtype.itemsize


def _pointer(context, builder, array_type, array, offset):
    data = context.make_array(array_type)(context, builder, array).data
    return builder.gep(data, [offset])


def _load(builder, pointer, vector):
    value = builder.load(builder.bitcast(pointer, vector.as_pointer()))
    value.align = _item_bytes(vector)
    return value


def _store(builder, value, pointer):
    done = builder.store(value, builder.bitcast(pointer, value.type.as_pointer()))
    done.align = _item_bytes(value.type)


def _item_bytes(vector):
    return 4 if isinstance(vector.element, ir.FloatType) else 8


def _vector_type(array_type):
    element = ir.FloatType() if array_type.dtype == types.float32 else ir.DoubleType()
    return ir.VectorType(element, VECTOR_BYTES // (4 if isinstance(element, ir.FloatType) else 8))


def _splat(builder, scalar, vector):
    first = builder.insert_element(ir.Constant(vector, ir.Undefined), scalar, ir.Constant(ir.IntType(32), 0))
    lanes = ir.Constant(ir.VectorType(ir.IntType(32), vector.count), [0] * vector.count)
    return builder.shuffle_vector(first, ir.Constant(vector, ir.Undefined), lanes)


def _constant(vector, value):
    if isinstance(vector.element, ir.FloatType):
        value = float(np.float32(value))
    return ir.Constant(vector, [value] * vector.count)


def _unary(builder, name, value):
    function = cgutils.get_or_insert_function(
        builder.module, ir.FunctionType(value.type, [value.type]), f"llvm.{name}.{_suffix(value.type)}"
    )
    return builder.call(function, [value])


def _multiply_add(builder, a, b, c):
    function = cgutils.get_or_insert_function(
        builder.module, ir.FunctionType(a.type, [a.type] * 3), f"llvm.fmuladd.{_suffix(a.type)}"
    )
    return builder.call(function, [a, b, c])


def _suffix(vector):
    return f"v{vector.count}f{32 if isinstance(vector.element, ir.FloatType) else 64}"


def _block_product(rows, accumulate):
    """The intrinsic for `rows` rows by two vectors of C (+)= A @ B over `depth` terms."""

    @intrinsic
    def block(typing, a, a_at, a_row, a_column, b, b_at, b_row, c, c_at, c_row, depth):
        n = types.intp
        signature = types.void(a, n, n, n, b, n, n, c, n, n, n)

        def generate(context, builder, sig, args):
            a_, a_at_, a_row_, a_column_, b_, b_at_, b_row_, c_, c_at_, c_row_, depth_ = args
            vector = _vector_type(a)
            integer = a_at_.type
            a_rows = [
                _pointer(context, builder, a, a_, builder.add(a_at_, builder.mul(a_row_, integer(r))))
                for r in range(rows)
            ]
            b_start = _pointer(context, builder, b, b_, b_at_)
            c_rows = [
                _pointer(context, builder, c, c_, builder.add(c_at_, builder.mul(c_row_, integer(r))))
                for r in range(rows)
            ]
            c_parts = [builder.gep(p, [integer(vector.count * s)]) for p in c_rows for s in range(2)]
            sums = [cgutils.alloca_once(builder, vector) for _ in c_parts]
            for place, part in zip(sums, c_parts, strict=True):
                builder.store(_load(builder, part, vector) if accumulate else _constant(vector, 0.0), place)
            with cgutils.for_range(builder, depth_, intp=integer) as loop:
                b_now = builder.gep(b_start, [builder.mul(loop.index, b_row_)])
                b_parts = [_load(builder, builder.gep(b_now, [integer(vector.count * s)]), vector) for s in range(2)]
                step = builder.mul(loop.index, a_column_)
                for r in range(rows):
                    scalar = _splat(builder, builder.load(builder.gep(a_rows[r], [step])), vector)
                    for s in range(2):
                        place = sums[2 * r + s]
                        builder.store(_multiply_add(builder, scalar, b_parts[s], builder.load(place)), place)
            for place, part in zip(sums, c_parts, strict=True):
                _store(builder, builder.load(place), part)
            return context.get_dummy_value()

        return signature, generate

    return block


block_4_new = _block_product(ROWS, accumulate=False)
block_4_add = _block_product(ROWS, accumulate=True)
block_1_new = _block_product(1, accumulate=False)
block_1_add = _block_product(1, accumulate=True)


def _lanes_fold(builder, value, combine):
    """The lanes of a vector combined, halves with halves."""
    while value.type.count > 1:
        half = value.type.count // 2
        parts = [
            builder.shuffle_vector(
                value, value, ir.Constant(ir.VectorType(ir.IntType(32), half), list(range(i, i + half)))
            )
            for i in (0, half)
        ]
        value = combine(*parts)
    return builder.extract_element(value, ir.Constant(ir.IntType(32), 0))


def _lanes_below(builder, first, n, count):
    """Which of the `count` lanes that stand for the numbers from `first` on stand for numbers below n."""
    lane = ir.VectorType(ir.IntType(32), count)
    start, end = (_splat(builder, builder.trunc(x, lane.element), lane) for x in (first, n))
    return builder.icmp_signed("<", builder.add(start, ir.Constant(lane, list(range(count)))), end)


@intrinsic
def row_max(typing, a, at, n):
    """The maximum of a[at : at + n], NaN left out; -inf where there is nothing. Whole vectors are read."""

    def generate(context, builder, sig, args):
        vector = _vector_type(a)
        start = _pointer(context, builder, a, args[0], args[1])
        lowest = _constant(vector, float("-inf"))
        best = cgutils.alloca_once(builder, vector)
        builder.store(lowest, best)
        integer = args[1].type
        width = integer(vector.count)
        vectors = builder.sdiv(builder.add(args[2], integer(vector.count - 1)), width)
        with cgutils.for_range(builder, vectors, intp=integer) as loop:
            first = builder.mul(loop.index, width)
            x = _load(builder, builder.gep(start, [first]), vector)
            x = builder.select(_lanes_below(builder, first, args[2], vector.count), x, lowest)
            old = builder.load(best)
            builder.store(builder.select(builder.fcmp_ordered(">", x, old), x, old), best)
        return _lanes_fold(
            builder, builder.load(best), lambda p, q: builder.select(builder.fcmp_ordered(">", q, p), q, p)
        )

    return a.dtype(a, types.intp, types.intp), generate


def _polynomial(builder, coefficients, x):
    """The sum of coefficients[i] x**i: neighbours are joined, then pairs, so that no product waits for many others."""
    parts = [_constant(x.type, c) for c in coefficients]
    while len(parts) > 1:
        joined = [_multiply_add(builder, high, x, low) for low, high in zip(parts[::2], parts[1::2], strict=False)]
        parts = joined + parts[2 * len(joined) :]
        x = builder.fmul(x, x)
    return parts[0]


def _exp_vector(builder, x):
    """exp of a vector: the method of `vector_math.exp`."""
    vector = x.type
    single = isinstance(vector.element, ir.FloatType)
    low, highest = (-88.0, 127.0) if single else (-709.4, 1023.0)
    ln2_high, ln2_low = LN2 if single else LN2_DOUBLE
    # NaN is neither below nor above
    x = builder.select(builder.fcmp_ordered("<", x, _constant(vector, low)), _constant(vector, low), x)
    n = _unary(builder, "rint", builder.fmul(x, _constant(vector, 1.4426950408889634)))
    n = builder.select(builder.fcmp_ordered(">", n, _constant(vector, highest)), _constant(vector, highest), n)
    r = _multiply_add(builder, n, _constant(vector, -ln2_high), x)
    r = _multiply_add(builder, n, _constant(vector, -ln2_low), r)
    value = _polynomial(builder, EXP if single else EXP_DOUBLE, r)
    bits, mantissa, bias = (32, 23, 127) if single else (64, 52, 1023)
    integers = ir.VectorType(ir.IntType(bits), vector.count)
    return builder.fmul(value, raise_two(builder, n, integers, lambda c: [c] * vector.count, mantissa, bias))


@intrinsic
def row_exp(typing, a, at, n, width, shift):
    """a[at : at + n] = exp(a[at : at + n] - shift), in place, then zeros up to `width`; returns the sum.

    `width` is a whole number of vectors.
    """

    def generate(context, builder, sig, args):
        vector = _vector_type(a)
        start = _pointer(context, builder, a, args[0], args[1])
        zero = _constant(vector, 0.0)
        total = cgutils.alloca_once(builder, vector)
        builder.store(zero, total)
        integer = args[1].type
        minus = _splat(builder, args[4], vector)
        with cgutils.for_range(builder, builder.sdiv(args[3], integer(vector.count)), intp=integer) as loop:
            first = builder.mul(loop.index, integer(vector.count))
            place = builder.gep(start, [first])
            value = _exp_vector(builder, builder.fsub(_load(builder, place, vector), minus))
            value = builder.select(_lanes_below(builder, first, args[2], vector.count), value, zero)
            _store(builder, value, place)
            builder.store(builder.fadd(builder.load(total), value), total)
        return _lanes_fold(builder, builder.load(total), builder.fadd)

    return a.dtype(a, types.intp, types.intp, types.intp, a.dtype), generate
