"""Matrix product: packed panels, a tile of C held in vector registers, threads over tiles.

C is cut into tiles of MR rows by NR columns. For one tile, `_tile` walks along K: a row of a B panel is loaded (NR
numbers, whole vectors), each of MR numbers of A is broadcast and multiplied onto it. B is packed once into panels
(K x NR, contiguous), shared by all threads; A is packed into panels (K x MR) or read where it lies when its rows are
contiguous and few panels of B reuse it. K is cut into blocks of at most KC, so that a panel of B stays in the L1 cache.
A number of C is always the same sum in the same order: the K blocks depend on K alone, never on the threads.

The compiled function sees addresses and strides (counted in elements), not arrays, so it has one signature per dtype:
`like`, the scratch array, is there for its dtype.
"""

from __future__ import annotations

import functools

import llvmlite.binding as llvm
import llvmlite.ir as ir
import numpy as np
from numba import prange, types
from numba.core import cgutils
from numba.extending import intrinsic

from . import runtime
from .runtime import device, kernel

_features = llvm.get_host_cpu_features()
if _features.get("avx512f"):
    VECTOR_BYTES, MR, FMA = 64, 14, "fma"
elif _features.get("avx2") and _features.get("fma"):
    VECTOR_BYTES, MR, FMA = 32, 6, "fma"
else:
    VECTOR_BYTES, MR, FMA = 16, 4, "fmuladd"  # without an FMA unit, llvm.fma would be a call into libm

KC = 256  # longest K block
MC = max(1, 192 // MR) * MR  # rows of A packed at a time
PACK_LIMIT = 1 << 22  # elements of B packed at a time
TASK_GRAIN = 1 << 17  # multiply-adds worth a thread
BATCH_LIMIT = 1 << 22  # multiply-adds of one item from which the items of a batch are computed one after another


# -- vector code -------------------------------------------------------------------------------------------------------


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

    A's element (i, k) is at a + i a_row + k a_step, B's row k at b + k b_step, C's row i at c + i c_row.
    """

    @intrinsic
    def tile(typing, like, a, a_row, a_step, b, b_step, c, c_row, depth, add, bias, relu):
        n = types.intp
        signature = types.void(like, n, n, n, n, n, n, n, n, n, n, n)

        def generate(context, builder, sig, args):
            _, a_, a_row_, a_step_, b_, b_step_, c_, c_row_, depth_, add_, bias_, relu_ = args
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
            element = vector.element.as_pointer()
            a_now, b_now = cgutils.alloca_once(builder, element), cgutils.alloca_once(builder, element)
            builder.store(_pointer(builder, vector, a_), a_now)
            builder.store(_pointer(builder, vector, b_), b_now)
            with cgutils.for_range(builder, depth_, intp=integer):
                pa, pb = builder.load(a_now), builder.load(b_now)
                b_parts = [_load(builder, builder.gep(pb, [integer(lanes * s)]), vector) for s in range(columns)]
                for r in range(MR):
                    at = builder.gep(pa, [builder.mul(a_row_, integer(r))])
                    scalar = _splat(builder, builder.load(at), vector)
                    for s in range(columns):
                        place = sums[r][s]
                        builder.store(builder.call(multiply_add, [scalar, b_parts[s], builder.load(place)]), place)
                builder.store(builder.gep(pa, [a_step_]), a_now)
                builder.store(builder.gep(pb, [b_step_]), b_now)
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


_tile_2 = _tile_product(2)
_tile_1 = _tile_product(1)


def _copy_row(count_of):
    """The intrinsic that copies `count_of(lanes)` neighbours."""

    @intrinsic
    def copy(typing, like, source, target):
        def generate(context, builder, sig, args):
            lanes = _vector(like)
            row = ir.VectorType(lanes.element, count_of(lanes.count))
            _store(builder, _load(builder, _pointer(builder, row, args[1]), row), _pointer(builder, row, args[2]))
            return context.get_dummy_value()

        return types.void(like, types.intp, types.intp), generate

    return copy


_copy_a = _copy_row(lambda lanes: MR)
_copy_b = _copy_row(lambda lanes: 2 * lanes)


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


_transpose_a = _transpose_block(lambda lanes: MR)
_transpose_b = _transpose_block(lambda lanes: 2 * lanes)


@intrinsic
def _get(typing, like, address, index):
    """The number at address[index]."""

    def generate(context, builder, sig, args):
        return builder.load(_pointer(builder, _vector(like), args[1], args[2]))

    return like.dtype(like, types.intp, types.intp), generate


@intrinsic
def _put(typing, like, address, index, value):
    """address[index] = value."""

    def generate(context, builder, sig, args):
        builder.store(args[3], _pointer(builder, _vector(like), args[1], args[2]))
        return context.get_dummy_value()

    return types.void(like, types.intp, types.intp, like.dtype), generate


# -- packing and the loops ---------------------------------------------------------------------------------------------


@device
def _pack_a(like, a, a_row, a_column, rows, depth, target):
    """A tile of `rows` <= MR rows, (rows, depth), as (depth, MR), zeros in the rows that are missing."""
    size = like.itemsize
    k = 0
    if rows == MR:
        if a_row == 1:
            for k1 in range(depth):
                _copy_a(like, a + k1 * a_column * size, target + k1 * MR * size)
            k = depth
        else:
            lanes = VECTOR_BYTES // size
            while k + lanes <= depth:
                _transpose_a(like, a + k * size, a_row, target + k * MR * size, MR)
                k += lanes
    zero = like.dtype.type(0)
    for k1 in range(k, depth):
        for i in range(MR):
            _put(like, target, k1 * MR + i, _get(like, a, i * a_row + k1 * a_column) if i < rows else zero)


@device
def _pack_b(like, b, b_row, b_column, columns, depth, target):
    """A panel of `columns` <= NR columns, (depth, columns), as (depth, NR), zeros in the columns that are missing."""
    size = like.itemsize
    nr = 2 * VECTOR_BYTES // size
    k = 0
    if columns == nr:
        if b_column == 1:
            for k1 in range(depth):
                _copy_b(like, b + k1 * b_row * size, target + k1 * nr * size)
            k = depth
        else:
            lanes = VECTOR_BYTES // size
            while k + lanes <= depth:
                _transpose_b(like, b + k * size, b_column, target + k * nr * size, nr)
                k += lanes
    zero = like.dtype.type(0)
    for k1 in range(k, depth):
        for j in range(nr):
            _put(like, target, k1 * nr + j, _get(like, b, k1 * b_row + j * b_column) if j < columns else zero)


@device
def _pack_panels(like, b, b_row, b_column, n, depth, block, first, last, packed):
    """Panels first to last of B: the panels of a K block lie one after another, then those of the next block."""
    size = like.itemsize
    nr = 2 * VECTOR_BYTES // size
    panels = (n + nr - 1) // nr
    whole = n // nr if b_column == 1 else 0  # panels that are copied, four side by side: longer runs of memory
    for k in range(0, depth, block):
        deep = min(block, depth - k)
        j = first
        while j + 4 <= min(whole, last):
            source = b + (k * b_row + j * nr) * size
            target = packed + (k * panels + j * deep) * nr * size
            for k1 in range(deep):
                for side in range(4):
                    _copy_b(like, source + (k1 * b_row + side * nr) * size, target + (side * deep + k1) * nr * size)
            j += 4
        while j < last:
            target = packed + (k * panels + j * deep) * nr * size
            columns = min(nr, n - j * nr)
            _pack_b(like, b + (k * b_row + j * nr * b_column) * size, b_row, b_column, columns, deep, target)
            j += 1


@device
def _multiply(
    like,
    a,
    a_row,
    a_column,
    pack_a,
    b,
    b_row,
    direct_b,
    packed,
    c,
    c_row,
    bias,
    relu,
    m,
    n,
    depth,
    block,
    accumulate,
    row0,
    row1,
    panel0,
    panel1,
    scratch,
):
    """Rows row0 to row1 (row0 at a tile's edge) and panels panel0 to panel1 of C."""
    size = like.itemsize
    nr = 2 * VECTOR_BYTES // size
    panels = (n + nr - 1) // nr
    corner = scratch + MC * KC * size
    for k in range(0, depth, block):
        deep = min(block, depth - k)
        add = 1 if accumulate != 0 or k > 0 else 0
        last = k + deep == depth
        bias_here = bias if last else 0
        relu_here = relu if last else 0
        for i0 in range(row0, row1, MC):
            i1 = min(i0 + MC, row1)
            for i in range(i0, i1, MR):
                if pack_a != 0 or i + MR > m:
                    _pack_a(
                        like,
                        a + (i * a_row + k * a_column) * size,
                        a_row,
                        a_column,
                        min(MR, m - i),
                        deep,
                        scratch + (i - i0) * deep * size,
                    )
            for j in range(panel0, panel1):
                wide = min(nr, n - j * nr)
                if direct_b != 0 and wide == nr:
                    b_here = b + (k * b_row + j * nr) * size
                    b_step = b_row
                else:
                    b_here = packed + (k * panels + j * deep) * nr * size
                    b_step = nr
                for i in range(i0, i1, MR):
                    tall = min(MR, m - i)
                    if pack_a != 0 or tall < MR:
                        a_here, row, step = scratch + (i - i0) * deep * size, 1, MR
                    else:
                        a_here, row, step = a + (i * a_row + k * a_column) * size, a_row, a_column
                    c_here = c + (i * c_row + j * nr) * size
                    if tall == MR and wide == nr:
                        bias_at = bias_here + j * nr * size if bias_here != 0 else 0
                        _tile_2(like, a_here, row, step, b_here, b_step, c_here, c_row, deep, add, bias_at, relu_here)
                    else:
                        if 2 * wide <= nr:
                            _tile_1(like, a_here, row, step, b_here, b_step, corner, nr, deep, 0, 0, 0)
                        else:
                            _tile_2(like, a_here, row, step, b_here, b_step, corner, nr, deep, 0, 0, 0)
                        for r in range(tall):
                            for s in range(wide):
                                value = _get(like, corner, r * nr + s)
                                if add != 0:
                                    value = _get(like, c_here, r * c_row + s) + value
                                if bias_here != 0:
                                    value = value + _get(like, bias_here, j * nr + s)
                                if relu_here != 0 and value < 0:
                                    value = like.dtype.type(0)
                                _put(like, c_here, r * c_row + s, value)


@kernel
def _gemm(
    like,
    base,
    a,
    a_row,
    a_column,
    pack_a,
    b,
    b_row,
    b_column,
    direct_b,
    c,
    c_row,
    bias,
    relu,
    m,
    n,
    depth,
    block,
    accumulate,
    tasks,
    by_rows,
):
    """One product. `base` is the address of the scratch: packed B, then one part for each task."""
    size = like.itemsize
    nr = 2 * VECTOR_BYTES // size
    panels = (n + nr - 1) // nr
    tiles = (m + MR - 1) // MR
    first = 0 if direct_b == 0 else n // nr
    own = base + panels * nr * depth * size
    part = (MC * KC + MR * nr) * size
    if tasks == 1:
        _pack_panels(like, b, b_row, b_column, n, depth, block, first, panels, base)
        _multiply(
            like,
            a,
            a_row,
            a_column,
            pack_a,
            b,
            b_row,
            direct_b,
            base,
            c,
            c_row,
            bias,
            relu,
            m,
            n,
            depth,
            block,
            accumulate,
            0,
            m,
            0,
            panels,
            own,
        )
        return
    if first < panels:
        for t in prange(tasks):
            _pack_panels(
                like,
                b,
                b_row,
                b_column,
                n,
                depth,
                block,
                first + (panels - first) * t // tasks,
                first + (panels - first) * (t + 1) // tasks,
                base,
            )
    for t in prange(tasks):
        row0, row1, panel0, panel1 = 0, m, 0, panels
        if by_rows != 0:
            row0, row1 = tiles * t // tasks * MR, min(m, tiles * (t + 1) // tasks * MR)
        else:
            panel0, panel1 = panels * t // tasks, panels * (t + 1) // tasks
        _multiply(
            like,
            a,
            a_row,
            a_column,
            pack_a,
            b,
            b_row,
            direct_b,
            base,
            c,
            c_row,
            bias,
            relu,
            m,
            n,
            depth,
            block,
            accumulate,
            row0,
            row1,
            panel0,
            panel1,
            own + t * part,
        )


@kernel
def _gemm_batch(
    like,
    base,
    a,
    a_offsets,
    a_row,
    a_column,
    pack_a,
    b,
    b_offsets,
    b_row,
    b_column,
    direct_b,
    c,
    c_offsets,
    c_row,
    bias,
    relu,
    m,
    n,
    depth,
    block,
    accumulate,
    tasks,
):
    """Many small products, spread over the tasks; each task packs its own."""
    size = like.itemsize
    nr = 2 * VECTOR_BYTES // size
    panels = (n + nr - 1) // nr
    first = 0 if direct_b == 0 else n // nr
    part = (panels * nr * depth + MC * KC + MR * nr) * size
    items = len(a_offsets)
    for t in prange(tasks):
        packed = base + t * part
        before = -1
        for i in range(items * t // tasks, items * (t + 1) // tasks):
            b_here = b + b_offsets[i] * size
            if before != b_here:
                _pack_panels(like, b_here, b_row, b_column, n, depth, block, first, panels, packed)
                before = b_here
            _multiply(
                like,
                a + a_offsets[i] * size,
                a_row,
                a_column,
                pack_a,
                b_here,
                b_row,
                direct_b,
                packed,
                c + c_offsets[i] * size,
                c_row,
                bias,
                relu,
                m,
                n,
                depth,
                block,
                accumulate,
                0,
                m,
                0,
                panels,
                packed + panels * nr * depth * size,
            )


# -- what is called ----------------------------------------------------------------------------------------------------

_scratch: dict[np.dtype, tuple[np.ndarray, int]] = {}


def _reserve(dtype: np.dtype, elements: int) -> tuple[np.ndarray, int]:
    """The scratch array of this dtype, at least this long, and an address in it that begins a cache line."""
    found = _scratch.get(dtype)
    if found is None or len(found[0]) < elements + 16:
        array = np.empty(max(elements + elements // 4, 1 << 16) + 16, dtype)
        found = _scratch[dtype] = array, -(-_address(array) // 64) * 64
    return found


def _address(a: np.ndarray) -> int:
    return a.__array_interface__["data"][0]


def _strides(a: np.ndarray) -> tuple[np.ndarray, int, int]:
    """`a`, copied if the kernel cannot read it, and the strides of its rows and columns in elements (one is 1)."""
    size = a.itemsize
    row, column = a.strides[-2:]
    if a.shape[-1] == 1:
        column = size
    elif a.shape[-2] == 1 and column != size:
        row = size
    flags = a.flags
    if (
        (column != size and row != size)
        or not flags.aligned
        or not a.dtype.isnative
        or any(s % size for s in a.strides)
    ):
        a = np.array(a, dtype=a.dtype.newbyteorder("="), order="C")
        row, column = a.strides[-2:]
    return a, row // size, column // size


@functools.lru_cache(maxsize=1024)
def _offsets(shape: tuple[int, ...], own: tuple[int, ...], strides: tuple[int, ...], size: int) -> np.ndarray:
    """Where each item of the batch `shape` begins, in elements, for an operand with batch axes `own`."""
    offsets = np.zeros(1, np.int64)
    skipped = len(shape) - len(own)
    for axis, n in enumerate(shape):
        at = axis - skipped
        step = strides[at] // size if at >= 0 and own[at] != 1 else 0
        offsets = (offsets[:, None] + np.arange(n, dtype=np.int64) * step).reshape(-1)
    return offsets


def _failed(a: np.ndarray, b: np.ndarray, why: str) -> ValueError:
    return ValueError(f"matmul: {why}, got a of shape {a.shape} and b of shape {b.shape}")


def _result_shape(a: np.ndarray, b: np.ndarray) -> tuple[int, ...]:
    if a.ndim < 2 or b.ndim < 2:
        raise _failed(a, b, "both operands must have at least 2 axes")
    if a.shape[-1] != b.shape[-2]:
        raise _failed(a, b, "the last axis of a must equal the last but one of b")
    if a.ndim == 2 and b.ndim == 2:
        return a.shape[0], b.shape[1]
    if a.shape[:-2] == b.shape[:-2] or b.ndim == 2:
        batch = a.shape[:-2]
    else:
        try:
            batch = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
        except ValueError:
            raise _failed(a, b, "the batch axes must broadcast") from None
    return (*batch, a.shape[-2], b.shape[-1])


def matmul(
    a: np.ndarray,
    b: np.ndarray,
    out: np.ndarray | None = None,
    *,
    accumulate: bool = False,
    bias: np.ndarray | None = None,
    activation: str | None = None,
) -> np.ndarray:
    """a @ b, with numpy's rules for batch axes; then `+ out` if accumulate, `+ bias`, and the activation.

    Arguments: a (..., M, K) and b (..., K, N), float32 or float64, the same; transposed views are read as they lie. out
    (..., M, N) receives the result (default: a new array); accumulate=False: whether to add to what `out` holds; bias
    (N,), default None; activation: None or "relu". Returns the result (..., M, N), bit for bit the same on any number
    of threads. Raises TypeError for other dtypes, ValueError for shapes that do not fit.

    >>> import numpy as np
    >>> matmul(np.eye(2), np.array([[1.0, 2.0], [3.0, 4.0]]), bias=np.array([10.0, 20.0]))
    array([[11., 22.],
           [13., 24.]])
    """
    dtype = a.dtype
    if dtype != b.dtype or dtype.kind != "f" or dtype.itemsize not in (4, 8):
        raise TypeError(f"matmul: expected two arrays of float32 or two of float64, got {a.dtype} and {b.dtype}")
    shape = _result_shape(a, b)
    depth = a.shape[-1]
    if activation not in (None, "relu"):
        raise ValueError(f'matmul: activation must be None or "relu", got {activation!r}')
    if bias is not None:
        if bias.shape != shape[-1:] or bias.dtype != dtype:
            raise ValueError(f"matmul: bias must be {dtype} of shape ({shape[-1]},), got {bias.dtype} of {bias.shape}")
        bias = runtime.contiguous(bias)
    target = out
    if out is None:
        if accumulate:
            raise ValueError("matmul: accumulate=True needs out")
        target = out = np.empty(shape, dtype.newbyteorder("="))
    else:
        if out.shape != shape or out.dtype != dtype or not out.flags.writeable:
            raise ValueError(
                f"matmul: out must be a writable {dtype} array of shape {shape}, got "
                f"{out.dtype} of {out.shape}{'' if out.flags.writeable else ', read-only'}"
            )
        if (
            not out.flags.carray
            or not dtype.isnative
            or np.may_share_memory(out, a)
            or np.may_share_memory(out, b)
            or (bias is not None and np.may_share_memory(out, bias))
        ):
            target = (
                np.array(out, dtype.newbyteorder("="), order="C")
                if accumulate
                else np.empty(shape, dtype.newbyteorder("="))
            )
    if target.size == 0:
        return out
    if depth == 0:
        _without_terms(target, accumulate, bias, activation)
    else:
        _multiply_arrays(a, b, target, accumulate, bias, activation == "relu")
    if target is not out:
        out[...] = target
    return out


def _without_terms(target: np.ndarray, accumulate: bool, bias: np.ndarray | None, activation: str | None) -> None:
    """K = 0: the product is all zeros."""
    if not accumulate:
        target[...] = 0
    if bias is not None:
        target += bias
    if activation == "relu":
        np.copyto(target, 0, where=target < 0)


def _multiply_arrays(
    a: np.ndarray, b: np.ndarray, c: np.ndarray, accumulate: bool, bias: np.ndarray | None, relu: bool
) -> None:
    """Fill c, which is contiguous and shares no memory with the operands; nothing is empty."""
    if b.ndim == 2 and a.ndim > 2 and a.flags.c_contiguous:
        a, c = a.reshape(-1, a.shape[-1]), c.reshape(-1, c.shape[-1])
    a, a_row, a_column = _strides(a)
    b, b_row, b_column = _strides(b)
    m, n, depth = a.shape[-2], b.shape[-1], a.shape[-1]
    size = a.itemsize
    nr = 2 * VECTOR_BYTES // size
    blocks = -(-depth // KC)
    block = min(-(-depth // (8 * blocks)) * 8, KC)
    panels = -(-n // nr)
    items = c.size // (m * n)
    work = m * n * depth
    pack_a = int(a_column != 1 or n > 512)
    direct_b = int(b_column == 1 and (m <= 2 * MR or (m <= 64 and b_row * size <= 1024)))
    own = MC * KC + MR * nr
    at_a, at_b, at_c = _address(a), _address(b), _address(c)
    at_bias = 0 if bias is None else _address(bias)
    with runtime._lock:
        if items > 1 and work < BATCH_LIMIT:
            tasks = min(items, runtime.tasks(items * work, TASK_GRAIN))
            like, base = _reserve(a.dtype, tasks * (own + panels * nr * depth))
            batch = c.shape[:-2]
            _gemm_batch(
                like,
                base,
                at_a,
                _offsets(batch, a.shape[:-2], a.strides[:-2], size),
                a_row,
                a_column,
                pack_a,
                at_b,
                _offsets(batch, b.shape[:-2], b.strides[:-2], size),
                b_row,
                b_column,
                direct_b,
                at_c,
                _offsets(batch, batch, c.strides[:-2], size),
                n,
                at_bias,
                int(relu),
                m,
                n,
                depth,
                block,
                int(accumulate),
                tasks,
            )
            return
        starts = [(0, 0, 0)]
        if items > 1:
            batch = c.shape[:-2]
            starts = list(
                zip(
                    _offsets(batch, a.shape[:-2], a.strides[:-2], size).tolist(),
                    _offsets(batch, b.shape[:-2], b.strides[:-2], size).tolist(),
                    _offsets(batch, batch, c.strides[:-2], size).tolist(),
                    strict=True,
                )
            )
        chunk = max(1, PACK_LIMIT // (depth * nr)) * nr if panels * nr * depth > PACK_LIMIT else n
        tasks = runtime.tasks(work, TASK_GRAIN)
        tiles = -(-m // MR)
        by_rows = -(-tiles // tasks) * panels <= -(-panels // tasks) * tiles
        like, base = _reserve(a.dtype, -(-min(chunk, n) // nr) * nr * depth + tasks * own)
        for a_start, b_start, c_start in starts:
            for j in range(0, n, chunk):
                _gemm(
                    like,
                    base,
                    at_a + a_start * size,
                    a_row,
                    a_column,
                    pack_a,
                    at_b + (b_start + j * b_column) * size,
                    b_row,
                    b_column,
                    direct_b,
                    at_c + (c_start + j) * size,
                    n,
                    at_bias + j * size if at_bias else 0,
                    int(relu),
                    m,
                    min(chunk, n - j),
                    depth,
                    block,
                    int(accumulate),
                    tasks,
                    int(by_rows),
                )
