"""Vector code of the matrix product, emitted as LLVM vectors because loops alone do not stay in registers.

`tile_2` and `tile_1` compute MR rows by two or one vectors of C in registers; the rest moves blocks of numbers between a
matrix and its packed form. All of them take addresses and strides (counted in elements), not arrays, so the code that
calls them has one signature per dtype: `like`, an array, is there for its dtype.
"""

from __future__ import annotations

import llvmlite.binding as llvm
import llvmlite.ir as ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

_features = llvm.get_host_cpu_features()
if _features.get("avx512f"):
    VECTOR_BYTES, MR, FMA = 64, 14, "fma"
elif _features.get("avx2") and _features.get("fma"):
    VECTOR_BYTES, MR, FMA = 32, 6, "fma"
else:
    VECTOR_BYTES, MR, FMA = 16, 4, "fmuladd"  # without an FMA unit, llvm.fma would be a call into libm


def _vector(like):
    single = like.dtype == types.float32
    return ir.VectorType(ir.FloatType() if single else ir.DoubleType(), VECTOR_BYTES // (4 if single else 8))


def _pointer(builder, vector, address, offset=None):
    p = builder.inttoptr(address, vector.element.as_pointer())
    return p if offset is None else builder.gep(p, [offset])


def _load(builder, pointer, vector):
    value = builder.load(builder.bitcast(pointer, vector.as_pointer()))
    value.align = 4 if isinstance(vector.element, ir.FloatType) else 8
    return value


def _store(builder, value, pointer):
    done = builder.store(value, builder.bitcast(pointer, value.type.as_pointer()))
    done.align = 4 if isinstance(value.type.element, ir.FloatType) else 8


def _shuffle(builder, a, b, lanes):
    return builder.shuffle_vector(a, b, ir.Constant(ir.VectorType(ir.IntType(32), len(lanes)), lanes))


def _splat(builder, scalar, vector):
    undefined = ir.Constant(vector, ir.Undefined)
    first = builder.insert_element(undefined, scalar, ir.Constant(ir.IntType(32), 0))
    return _shuffle(builder, first, undefined, [0] * vector.count)


def _tile_product(columns):
    """The intrinsic for MR rows by `columns` vectors: C = [C +] A @ B [+ bias] [relu], over `depth` terms.

    A is packed: its element (i, k) is at a + k MR + i, so that the loop needs no arithmetic for its addresses. B's row k
    is at b + k b_step, C's row i at c + i c_row.
    """

    @intrinsic
    def tile(typing, like, a, b, b_step, c, c_row, depth, add, bias, relu):
        n = types.intp
        signature = types.void(like, n, n, n, n, n, n, n, n, n)

        def generate(context, builder, sig, args):
            _, a_, b_, b_step_, c_, c_row_, depth_, add_, bias_, relu_ = args
            vector = _vector(like)
            integer = a_.type
            lanes = vector.count
            zero = ir.Constant(vector, [0.0] * lanes)
            suffix = f"v{lanes}f{32 if isinstance(vector.element, ir.FloatType) else 64}"
            multiply_add = cgutils.get_or_insert_function(
                builder.module, ir.FunctionType(vector, [vector] * 3), f"llvm.{FMA}.{suffix}"
            )
            sums = [[cgutils.alloca_once(builder, vector) for _ in range(columns)] for _ in range(MR)]
            for row in sums:
                for place in row:
                    builder.store(zero, place)
            pa, b_start = _pointer(builder, vector, a_), _pointer(builder, vector, b_)
            with cgutils.for_range(builder, depth_, intp=integer) as loop:
                k = loop.index
                pb = builder.gep(b_start, [builder.mul(k, b_step_)])
                b_parts = [_load(builder, builder.gep(pb, [integer(lanes * s)]), vector) for s in range(columns)]
                for r in range(MR):
                    at = builder.gep(pa, [builder.add(builder.mul(k, integer(MR)), integer(r))])
                    scalar = _splat(builder, builder.load(at), vector)
                    for s in range(columns):
                        place = sums[r][s]
                        builder.store(builder.call(multiply_add, [scalar, b_parts[s], builder.load(place)]), place)
            start = _pointer(builder, vector, c_)
            c_parts = [
                [
                    builder.gep(start, [builder.add(builder.mul(c_row_, integer(r)), integer(lanes * s))])
                    for s in range(columns)
                ]
                for r in range(MR)
            ]
            with builder.if_then(builder.icmp_signed("!=", add_, integer(0))):
                for r in range(MR):
                    for s in range(columns):
                        old = _load(builder, c_parts[r][s], vector)
                        builder.store(builder.fadd(old, builder.load(sums[r][s])), sums[r][s])
            with builder.if_then(builder.icmp_signed("!=", bias_, integer(0))):
                p = _pointer(builder, vector, bias_)
                for s in range(columns):
                    part = _load(builder, builder.gep(p, [integer(lanes * s)]), vector)
                    for r in range(MR):
                        builder.store(builder.fadd(builder.load(sums[r][s]), part), sums[r][s])
            with builder.if_then(builder.icmp_signed("!=", relu_, integer(0))):
                for row in sums:
                    for place in row:
                        value = builder.load(place)
                        negative = builder.fcmp_ordered("<", value, zero)
                        builder.store(builder.select(negative, zero, value), place)
            for r in range(MR):
                for s in range(columns):
                    _store(builder, builder.load(sums[r][s]), c_parts[r][s])
            return context.get_dummy_value()

        return signature, generate

    return tile


tile_2 = _tile_product(2)
tile_1 = _tile_product(1)


def _copy_rows(width_of, pieces):
    """The intrinsic that cuts a row of neighbours into `pieces` of `width_of(lanes)`, each to the next tile or panel.

    Piece i goes to target + i step.
    """

    @intrinsic
    def copy(typing, like, source, target, step):
        def generate(context, builder, sig, args):
            lanes = _vector(like)
            width = width_of(lanes.count)
            row = ir.VectorType(lanes.element, width)
            p, q = _pointer(builder, row, args[1]), _pointer(builder, row, args[2])
            integer = args[1].type
            for i in range(pieces):
                value = _load(builder, builder.gep(p, [integer(i * width)]), row)
                _store(builder, value, builder.gep(q, [builder.mul(args[3], integer(i))]))
            return context.get_dummy_value()

        return types.void(like, types.intp, types.intp, types.intp), generate

    return copy


SIDES = 8  # tiles or panels that are filled side by side
copy_a, copy_a_sides = _copy_rows(lambda lanes: MR, 1), _copy_rows(lambda lanes: MR, SIDES)
copy_b, copy_b_sides = _copy_rows(lambda lanes: 2 * lanes, 1), _copy_rows(lambda lanes: 2 * lanes, SIDES)


def _transpose_block(rows_of):
    """The intrinsic that writes `rows` x lanes numbers of the source as lanes x `rows` into the target."""

    @intrinsic
    def transpose(typing, like, source, source_row, target, target_row):
        def generate(context, builder, sig, args):
            _, source_, source_row_, target_, target_row_ = args
            vector = _vector(like)
            lanes, integer = vector.count, source_.type
            p, q = _pointer(builder, vector, source_), _pointer(builder, vector, target_)
            rows = rows_of(lanes)
            for first in range(0, rows, lanes):
                count = min(lanes, rows - first)
                parts = [
                    _load(builder, builder.gep(p, [builder.mul(source_row_, integer(first + r))]), vector)
                    for r in range(count)
                ]
                parts += [ir.Constant(vector, ir.Undefined)] * (lanes - count)
                half = lanes // 2
                low = [x for i in range(half) for x in (i, lanes + i)]
                high = [x for i in range(half, lanes) for x in (i, lanes + i)]
                for _ in range(lanes.bit_length() - 1):  # each pass interleaves row i with row i + half
                    parts = [
                        _shuffle(builder, parts[i], parts[i + half], order)
                        for i in range(half)
                        for order in (low, high)
                    ]
                for k, part in enumerate(parts):
                    if count < lanes:
                        part = _shuffle(builder, part, part, list(range(count)))
                    at = builder.add(builder.mul(target_row_, integer(k)), integer(first))
                    _store(builder, part, builder.gep(q, [at]))
            return context.get_dummy_value()

        n = types.intp
        return types.void(like, n, n, n, n), generate

    return transpose


transpose_a = _transpose_block(lambda lanes: MR)
transpose_b = _transpose_block(lambda lanes: 2 * lanes)


@intrinsic
def get(typing, like, address, index):
    """The number at address[index]."""

    def generate(context, builder, sig, args):
        return builder.load(_pointer(builder, _vector(like), args[1], args[2]))

    return like.dtype(like, types.intp, types.intp), generate


@intrinsic
def put(typing, like, address, index, value):
    """address[index] = value."""

    def generate(context, builder, sig, args):
        builder.store(args[3], _pointer(builder, _vector(like), args[1], args[2]))
        return context.get_dummy_value()

    return types.void(like, types.intp, types.intp, like.dtype), generate
