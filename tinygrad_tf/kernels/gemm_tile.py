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


def _join(builder, parts):
    """One vector of the numbers of all parts, in their order."""
    while len(parts) > 1:
        both = list(range(2 * parts[0].type.count))
        parts = [_shuffle(builder, a, b, both) for a, b in zip(parts[::2], parts[1::2], strict=True)]
    return parts[0]


def _splat(builder, scalar, vector):
    undefined = ir.Constant(vector, ir.Undefined)
    first = builder.insert_element(undefined, scalar, ir.Constant(ir.IntType(32), 0))
    return _shuffle(builder, first, undefined, [0] * vector.count)


def _prefetch(builder, pointer, for_writing=False):
    """Ask for the cache line at `pointer`: into the L1 cache to write it, else into L2."""
    byte, number = ir.IntType(8).as_pointer(), ir.IntType(32)
    kind = ir.FunctionType(ir.VoidType(), [byte, number, number, number])
    function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0i8")
    settings = [number(1 if for_writing else 0), number(3 if for_writing else 2), number(1)]
    builder.call(function, [builder.bitcast(pointer, byte), *settings])


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
            start = _pointer(builder, vector, c_)
            for r in range(MR):  # C's lines come while the loop runs
                end = builder.add(builder.mul(c_row_, integer(r)), integer(lanes * columns - 1))
                _prefetch(builder, builder.gep(start, [end]), for_writing=True)
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


def _copy_runs(width_of, runs):
    """The intrinsic that copies `runs` runs of `width_of(lanes)` neighbours: run i from source + i source_step to target + i step."""

    @intrinsic
    def copy(typing, like, source, source_step, target, step):
        def generate(context, builder, sig, args):
            lanes = _vector(like)
            run = ir.VectorType(lanes.element, width_of(lanes.count))
            _, source_, source_step_, target_, step_ = args
            p, q = _pointer(builder, run, source_), _pointer(builder, run, target_)
            for i in range(runs):
                number = source_.type(i)
                value = _load(builder, builder.gep(p, [builder.mul(source_step_, number)]), run)
                _store(builder, value, builder.gep(q, [builder.mul(step_, number)]))
            return context.get_dummy_value()

        return types.void(like, types.intp, types.intp, types.intp, types.intp), generate

    return copy


ROWS_A = 8  # rows of a transposed A that are read side by side
SIDES = 8  # panels of B that are filled side by side
copy_a, copy_a_rows = _copy_runs(lambda lanes: MR, 1), _copy_runs(lambda lanes: MR, ROWS_A)
copy_b, copy_b_sides = _copy_runs(lambda lanes: 2 * lanes, 1), _copy_runs(lambda lanes: 2 * lanes, SIDES)


def _transpose_block(rows_of):
    """The intrinsic that writes `rows` x lanes numbers of the source as lanes x `rows` into the target.

    Whole vectors are stored: if `rows` are not whole vectors, some numbers beyond the last row of the target are overwritten.
    """

    @intrinsic
    def transpose(typing, like, source, source_row, target, target_row):
        def generate(context, builder, sig, args):
            _, source_, source_row_, target_, target_row_ = args
            vector = _vector(like)
            lanes, integer = vector.count, source_.type
            p, q = _pointer(builder, vector, source_), _pointer(builder, vector, target_)
            rows = rows_of(lanes)
            size = 4 if isinstance(vector.element, ir.FloatType) else 8
            few = 16 // size  # what a quarter or a half of a vector holds: shuffles within these parts are cheap
            part = ir.VectorType(vector.element, few)
            low = [n + x for n in range(0, lanes, few) for i in range(few // 2) for x in (i, lanes + i)]
            high = [x + few // 2 for x in low]

            def load(row, column):
                if row >= rows:
                    return ir.Constant(part, ir.Undefined)
                at = builder.add(builder.mul(source_row_, integer(row)), integer(column))
                return _load(builder, builder.gep(p, [at]), part)

            for column in range(0, lanes, few):
                columns = []
                for first in range(0, rows, lanes):
                    # vector i: a part of row i, then of row i + few, and so on
                    vectors = [
                        _join(builder, [load(row, column) for row in range(first + i, first + lanes, few)])
                        for i in range(few)
                    ]
                    half = few // 2
                    for _ in range(few.bit_length() - 1):  # each pass interleaves vector i with vector i + half
                        vectors = [
                            _shuffle(builder, vectors[i], vectors[i + half], order)
                            for i in range(half)
                            for order in (low, high)
                        ]
                    columns.append(vectors)
                for k in range(few):  # row by row, since a row's last vector may reach into the next row
                    for first, vectors in zip(range(0, rows, lanes), columns, strict=True):
                        at = builder.add(builder.mul(target_row_, integer(column + k)), integer(first))
                        _store(builder, vectors[k], builder.gep(q, [at]))
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


@intrinsic
def prefetch(typing, like, address):
    """Ask for the cache line at this address, into the L2 cache."""

    def generate(context, builder, sig, args):
        _prefetch(builder, _pointer(builder, _vector(like), args[1]))
        return context.get_dummy_value()

    return types.void(like, types.intp), generate


@intrinsic
def count(typing, address, by):
    """Add `by` to the integer at this address, which several threads count on, and give what it was."""

    def generate(context, builder, sig, args):
        place = builder.inttoptr(args[0], args[0].type.as_pointer())
        return builder.atomic_rmw("add", place, args[1], "seq_cst")

    return types.intp(types.intp, types.intp), generate
