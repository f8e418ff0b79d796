"""Matrix product: packed panels, a tile of C held in vector registers, threads over tiles.

C is cut into tiles of MR rows by NR columns. For one tile, `tile_2` walks along K: a row of a B panel is loaded (NR
numbers, two vectors), each of MR numbers of A is broadcast and multiplied onto it. Around it, from the inside out:
tiles down a block of MC rows, panels across a chunk of NC columns, blocks of KC terms along K. A panel of B (KC x NR) then
stays in the L1 cache, a block of A (MC x KC) in L2, a chunk of B (KC x NC) in L3. B is packed into panels, unless
it serves few rows only, and A into tiles (KC x MR). The loops are those of Goto & van de Geijn 2008,
"Anatomy of High-Performance Matrix Multiplication", section 5.

The tasks take pieces of C until none is left, and pack what they need for their own: packing twice costs less than
waiting for one another. What comes next, C's tile and B's next panel, is asked for before it is needed. A number of C is
always the same sum in the same order, since the blocks depend on K alone: never on the tasks.
"""

from __future__ import annotations

import functools
import math

import numpy as np

from ..modes import _recorder
from . import runtime
from .few_rows import FEW_ROWS, GRAIN, NO_BIAS, few_rows
from .gemm_tile import (
    MR,
    ROWS_A,
    SIDES,
    VECTOR_BYTES,
    copy_a,
    copy_a_rows,
    copy_b,
    copy_b_sides,
    count,
    get,
    prefetch,
    put,
    tile_1,
    tile_2,
    transpose_a,
    transpose_b,
)
from .runtime import Place, device, kernel, routine, share

KC = 512  # terms of a block
MC = max(1, 192 // MR) * MR  # rows of A packed at a time
NC = 2048  # columns of B packed at a time
CACHE_LINE = 64  # bytes
TASK_GRAIN = 1 << 18  # multiply-adds worth a thread
PACKING = 8  # how many multiply-adds take as long as packing one number
PIECES = 2  # how many pieces a task gets, about
SMALLEST = 96  # rows or columns of a piece that must be packed for
L1, L2 = 1 << 14, 1 << 17  # bytes of B that stay in these caches, with what else there is
BY_ITEMS, BY_ROWS, BY_PANELS = range(3)  # what is shared out among the tasks


# -- packing and the loops ---------------------------------------------------------------------------------------------


@routine()
def _pack_a(like, a, a_row, a_column, rows, depth, target):
    """`rows` rows of A, (rows, depth), as tiles (depth, MR), one after another; zeros in the rows that are missing."""
    size = like.itemsize
    lanes = VECTOR_BYTES // size
    zero = like.dtype.type(0)
    done = 0
    if a_row == 1:  # neighbours in memory: a few rows side by side, so that a line is read while it is near
        done = rows // MR
        k = 0
        while k < depth:
            deep = ROWS_A if k + ROWS_A <= depth else 1
            for tile in range(done):
                source = a + (tile * MR + k * a_column) * size
                to = target + (tile * depth + k) * MR * size
                if deep == ROWS_A:
                    copy_a_rows(like, source, a_column, to, MR)
                else:
                    copy_a(like, source, a_column, to, MR)
            k += deep
    for tile in range(done, (rows + MR - 1) // MR):
        source = a + tile * MR * a_row * size
        to = target + tile * depth * MR * size
        tall = min(MR, rows - tile * MR)
        k = 0
        while tall == MR and a_row != 1 and k + lanes <= depth:
            transpose_a(like, source + k * size, a_row, to + k * MR * size, MR)
            k += lanes
        for k1 in range(k, depth):
            for i in range(MR):
                put(like, to, k1 * MR + i, get(like, source, i * a_row + k1 * a_column) if i < tall else zero)


@routine()
def _pack_b(like, b, b_row, b_column, columns, depth, target):
    """`columns` columns of B, (depth, columns), as panels (depth, NR), one after another; zeros in what is missing."""
    size = like.itemsize
    lanes = VECTOR_BYTES // size
    nr = 2 * lanes
    zero = like.dtype.type(0)
    done = 0
    if b_column == 1:  # neighbours in memory: panels side by side, so that longer runs are read
        while done < columns // nr:
            together = done + SIDES <= columns // nr
            for k in range(depth):
                source = b + (k * b_row + done * nr) * size
                to = target + (done * depth + k) * nr * size
                if together:
                    copy_b_sides(like, source, nr, to, depth * nr)
                else:
                    copy_b(like, source, nr, to, 0)
            done += SIDES if together else 1
    for panel in range(done, (columns + nr - 1) // nr):
        source = b + panel * nr * b_column * size
        to = target + panel * depth * nr * size
        wide = min(nr, columns - panel * nr)
        k = 0
        while wide == nr and b_column != 1 and k + lanes <= depth:
            transpose_b(like, source + k * size, b_column, to + k * nr * size, nr)
            k += lanes
        for k1 in range(k, depth):
            for j in range(nr):
                put(like, to, k1 * nr + j, get(like, source, k1 * b_row + j * b_column) if j < wide else zero)


@device
def _from_corner(like, corner, c, c_row, tall, wide, add, bias, relu):
    """Move `tall` rows by `wide` columns of a tile at the edge from the scratch to C; bias: its address or 0."""
    nr = 2 * VECTOR_BYTES // like.itemsize
    for r in range(tall):
        for s in range(wide):
            value = get(like, corner, r * nr + s)
            if add != 0:
                value = get(like, c, r * c_row + s) + value
            if bias != 0:
                value = value + get(like, bias, s)
            if relu != 0 and value < 0:
                value = like.dtype.type(0)
            put(like, c, r * c_row + s, value)


@device
def _piece(index, n_tasks, n, smallest):
    """The part (first, end) of n things that is piece `index`.

    The tasks get equal pieces, three quarters of all; then three quarters of what is left, and so on.
    """
    begin, end = 0, 0
    for _ in range(index // n_tasks + 1):
        begin, left = end, n - end
        end = n if left // (4 * n_tasks) < smallest else begin + 3 * left // 4
    first, last = share(index % n_tasks, n_tasks, end - begin)
    return begin + first, begin + last


@kernel
def _gemm(t, n_tasks, like, scratch, plan, a: Place, b: Place, c: Place, bias: Place):
    """Products of a and b into c: the tasks take pieces (items, rows of tiles, or panels) until none is left.

    The plan: the numbers that the first lines name, then where each item of a begins, each item of b, and each item of c.
    """
    m, n, depth, block, part, split, smallest = plan[0], plan[1], plan[2], plan[3], plan[4], plan[5], plan[6]
    a_row, a_column, b_row, b_column, c_row = plan[7], plan[8], plan[9], plan[10], plan[1]
    direct_b, relu, accumulate, taken, done = plan[11], plan[12], plan[13], plan[14], plan[15]
    biased, offsets = plan[16], plan[17:]
    size = like.itemsize
    nr = 2 * VECTOR_BYTES // size
    items, tiles, panels = len(offsets) // 3, (m + MR - 1) // MR, (n + nr - 1) // nr
    packed_a = scratch + t * part * size
    corner = packed_a + MC * block * size
    packed_b = corner + MR * nr * size
    one_block = items == 1 and depth <= block  # what is packed can serve the next piece
    keep_a = one_block and split == BY_PANELS and m <= MC
    keep_b = one_block and split == BY_ROWS and panels <= NC // nr
    pieces = 0
    things = items if split == BY_ITEMS else tiles if split == BY_ROWS else panels
    while True:
        first, end = _piece(count(taken, 1), n_tasks, things, smallest)
        if first == end:
            break
        first_item, last_item, row0, row1, panel0, panel1 = 0, items, 0, m, 0, panels
        if split == BY_ITEMS:
            first_item, last_item = first, end
        elif split == BY_ROWS:
            row0, row1 = first * MR, min(m, end * MR)
        else:
            panel0, panel1 = first, end
        chunk = min(NC // nr, panel1 - panel0)
        for item in range(first_item, last_item):
            a_item = a + offsets[item] * size
            b_item = b + offsets[items + item] * size
            c_item = c + offsets[2 * items + item] * size
            for j0 in range(panel0, panel1, max(1, chunk)):
                j1 = min(j0 + chunk, panel1)
                whole = n // nr if direct_b != 0 else 0  # panels up to here are read where they lie
                packed_from = min(max(j0, whole), j1)
                for k in range(0, depth, block):
                    deep = min(block, depth - k)
                    add = 1 if accumulate != 0 or k > 0 else 0
                    last = k + deep == depth
                    bias_here = bias if last and biased else 0
                    relu_here = relu if last else 0
                    for i0 in range(row0, row1, MC):
                        i1 = min(i0 + MC, row1)
                        if pieces == 0 or not keep_a:
                            a_from = a_item + (i0 * a_row + k * a_column) * size
                            _pack_a(like, a_from, a_row, a_column, i1 - i0, deep, packed_a)
                        for j in range(j0, j1):
                            ready = j - packed_from
                            if i0 == row0 and ready >= 0 and ready % SIDES == 0 and (pieces == 0 or not keep_b):
                                # packed just before it is used for the first time, while it is near
                                b_from = b_item + (k * b_row + j * nr * b_column) * size
                                columns = min(n, min(j + SIDES, j1) * nr) - j * nr
                                _pack_b(
                                    like, b_from, b_row, b_column, columns, deep, packed_b + ready * deep * nr * size
                                )
                            wide = min(nr, n - j * nr)
                            if ready < 0:
                                b_here, b_step = b_item + (k * b_row + j * nr) * size, b_row
                            else:
                                b_here, b_step = packed_b + ready * deep * nr * size, nr
                            # while a panel is used, the next one comes into L2, a part with every tile
                            far = ready >= 0 and (j1 - packed_from) * deep * nr * size > L2
                            lines = -(-deep * nr * size * MR // (CACHE_LINE * (i1 - i0))) if far else 0
                            coming = b_here + deep * nr * size
                            half = 2 * wide <= nr
                            bias_at = bias_here + j * nr * size if bias_here != 0 else 0
                            for i in range(i0, i1, MR):
                                for _ in range(lines):
                                    prefetch(like, coming)
                                    coming += CACHE_LINE
                                tall = min(MR, m - i)
                                c_at = c_item + (i * c_row + j * nr) * size
                                whole_tile = tall == MR and wide == nr
                                # a tile at the edge goes into the corner first; what is asked for is done on the way out
                                to, to_row = (c_at, c_row) if whole_tile else (corner, nr)
                                add_, bias_, relu_ = (add, bias_at, relu_here) if whole_tile else (0, 0, 0)
                                a_here = packed_a + (i - i0) * deep * size
                                if half:
                                    tile_1(like, a_here, b_here, b_step, to, to_row, deep, add_, bias_, relu_)
                                else:
                                    tile_2(like, a_here, b_here, b_step, to, to_row, deep, add_, bias_, relu_)
                                if not whole_tile:
                                    _from_corner(like, corner, c_at, c_row, tall, wide, add, bias_at, relu_here)
        pieces += 1
    if count(done, 1) == n_tasks - 1:  # the last one sets the counters back
        count(taken, -count(taken, 0))
        count(done, -n_tasks)


@kernel
def _column_sums(t, n_tasks, g, out):
    """The sums over the rows: of 128 rows in the array's own precision, of these sums in float64."""
    first, last = share(t, n_tasks, (g.shape[1] + 15) // 16)
    first, last = first * 16, min(last * 16, g.shape[1])
    near, far = np.empty(last - first, g.dtype), np.empty(last - first, np.float64)
    for j in range(len(far)):
        near[j], far[j] = 0, 0.0
    for begin in range(0, len(g), 128):
        for i in range(begin, min(begin + 128, len(g))):
            row = g[i, first:last]
            for j in range(len(row)):
                near[j] += row[j]
        for j in range(len(far)):
            far[j] += near[j]
            near[j] = 0
    for j in range(len(far)):
        out[first + j] = far[j]


# -- what is called ----------------------------------------------------------------------------------------------------

_counters = np.zeros(16, np.int64)  # two, each in a cache line of its own: pieces taken, and tasks that are done
_scratch: dict[np.dtype, tuple[np.ndarray, int]] = {}


def _reserve(dtype: np.dtype, elements: int) -> tuple[np.ndarray, int]:
    """The scratch array of this dtype, at least this long, and an address in it that begins a cache line."""
    found = _scratch.get(dtype)
    if found is None or len(found[0]) < elements + 16:
        array = np.empty(max(elements + elements // 4, 1 << 16) + 16, dtype)
        found = _scratch[dtype] = array, -(-runtime.address(array) // 64) * 64
    return found


def _readable(shape: tuple[int, ...], strides: tuple[int, ...], size: int) -> tuple[int, int] | None:
    """The strides of rows and columns in elements, one of them 1; None if the kernel cannot read such an operand."""
    row, column = strides[-2:]
    if shape[-1] == 1:
        column = size
    elif shape[-2] == 1 and column != size:
        row = size
    if (column != size and row != size) or any([s % size for s, n in zip(strides, shape, strict=True) if n != 1]):
        return None
    return row // size, column // size


def _offsets(shape: tuple[int, ...], own: tuple[int, ...], strides: tuple[int, ...], size: int) -> np.ndarray:
    """Where each item of the batch `shape` begins, in elements, for an operand with batch axes `own`."""
    offsets = np.zeros(1, np.int64)
    skipped = len(shape) - len(own)
    for axis, n in enumerate(shape):
        at = axis - skipped
        step = strides[at] // size if at >= 0 and own[at] != 1 else 0
        offsets = (offsets[:, None] + np.arange(n, dtype=np.int64) * step).reshape(-1)
    return offsets


@functools.lru_cache(maxsize=4096)
def _result_shape(
    a_shape: tuple[int, ...], a_dtype: np.dtype, b_shape: tuple[int, ...], b_dtype: np.dtype
) -> tuple[int, ...]:
    """The shape of the product; raises where there is none."""
    if a_dtype != b_dtype or a_dtype.kind != "f" or a_dtype.itemsize not in (4, 8):
        raise TypeError(f"matmul: expected two arrays of float32 or two of float64, got {a_dtype} and {b_dtype}")
    came = f"got a of shape {a_shape} and b of shape {b_shape}"
    if len(a_shape) < 2 or len(b_shape) < 2:
        raise ValueError(f"matmul: both operands must have at least 2 axes, {came}")
    if a_shape[-1] != b_shape[-2]:
        raise ValueError(f"matmul: the last axis of a must equal the last but one of b, {came}")
    try:
        batch = np.broadcast_shapes(a_shape[:-2], b_shape[:-2])
    except ValueError:
        raise ValueError(f"matmul: the batch axes must broadcast, {came}") from None
    return (*batch, a_shape[-2], b_shape[-1])


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
    dtype, shape = a.dtype, _result_shape(a.shape, a.dtype, b.shape, b.dtype)
    if activation not in (None, "relu"):
        raise ValueError(f'matmul: activation must be None or "relu", got {activation!r}')
    if bias is not None and (bias.shape != shape[-1:] or bias.dtype != dtype):
        raise ValueError(f"matmul: bias must be {dtype} of shape ({shape[-1]},), got {bias.dtype} of {bias.shape}")
    target = out
    if out is None:
        if accumulate:
            raise ValueError("matmul: accumulate=True needs out")
        target = out = runtime.empty(shape, runtime.native(dtype))
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
                runtime.copied(out, runtime.native(dtype))
                if accumulate
                else runtime.empty(shape, runtime.native(dtype))
            )
    multiply(a, b, target, accumulate, bias, activation == "relu")
    if target is not out:
        runtime.write(np.copyto, out, target)
    return out


def _without_terms(target: np.ndarray, accumulate: bool, bias: np.ndarray | None, relu: bool) -> None:
    """K = 0: the product is all zeros."""
    if not accumulate:
        runtime.write(np.ndarray.fill, target, 0)
    if bias is not None:
        runtime.write(np.add, target, bias, out=target)
    if relu:
        runtime.write(np.maximum, target, 0, out=target)


KEPT_ITEMS = 1024  # a plan lists the items of a batch: up to so many, it is kept
NOTHING, NO_TERMS, COPY, DOTS, TILES = range(5)  # what there is to do


@functools.lru_cache(maxsize=4096)
def _plan(
    a_shape: tuple[int, ...],
    a_strides: tuple[int, ...],
    a_dtype: np.dtype,
    b_shape: tuple[int, ...],
    b_strides: tuple[int, ...],
    b_dtype: np.dtype,
    batch: tuple[int, ...],
    biased: bool,
    relu: bool,
    accumulate: bool,
    threads: int,
) -> tuple[int, int, int, np.ndarray | None]:
    """How to compute products of these shapes: what to do, in how many tasks, with how much scratch for each, and
    what `_gemm` reads.
    """
    size = a_dtype.itemsize
    (m, depth), n = a_shape[-2:], b_shape[-1]
    items = math.prod(batch)
    if items * m * n == 0:
        return NOTHING, 0, 0, None
    if depth == 0:
        return NO_TERMS, 0, 0, None
    if len(b_shape) == 2 and _is_contiguous(a_shape, a_strides, size):  # one matrix with more rows
        a_shape, a_strides, m, items, batch = (items * m, depth), (depth * size, size), items * m, 1, ()
    a_steps, b_steps = _readable(a_shape, a_strides, size), _readable(b_shape, b_strides, size)
    if a_steps is None or b_steps is None or not (a_dtype.isnative and b_dtype.isnative):
        return COPY, 0, 0, None
    if m <= FEW_ROWS and not batch and b_strides == (size, depth * size):
        return DOTS, runtime.tasks(m * n * depth, GRAIN), 0, None
    b_row, b_column = b_steps
    nr = 2 * VECTOR_BYTES // size
    tiles, panels = -(-m // MR), -(-n // nr)
    block = min(-(-depth // (8 * -(-depth // KC))) * 8, KC)  # equal blocks, of whole vectors
    direct_b = int(b_column == 1 and (m <= 2 * MR or (m <= 64 and depth * b_row * size <= L1)))
    tasks = max(1, min(threads, items * m * n * depth // TASK_GRAIN))
    one_block = items == 1 and depth <= block
    # the work of a task if the pieces are rows, or panels: what it multiplies, and what it packs, for each piece again
    keep_a, keep_b = one_block and m <= MC, one_block and panels <= NC // nr
    rows, columns = -(-tiles // tasks) * MR, -(-panels // tasks) * nr
    by_rows = rows * n + PACKING * (n * (1 - direct_b) * (1 if keep_b else PIECES) + rows)
    by_panels = m * columns + PACKING * (columns * (1 - direct_b) + m * (1 if keep_a else PIECES))
    if items % tasks == 0 or items >= 4 * tasks:
        split, things, smallest = BY_ITEMS, items, 1
    elif by_rows <= by_panels:
        split, things, smallest = BY_ROWS, tiles, (24 if keep_b else SMALLEST) // MR
    else:
        split, things, smallest = BY_PANELS, panels, (64 if keep_a else SMALLEST) // nr
    smallest = max(smallest, things // (32 * tasks), 1) if tasks > 1 else things
    part = MC * block + MR * nr + min(NC // nr, panels) * nr * block
    part = -(-part // 16) * 16
    counters = [runtime.address(_counters), runtime.address(_counters) + 64]
    plan = [
        m,
        n,
        depth,
        block,
        part,
        split,
        smallest,
        *a_steps,
        *b_steps,
        direct_b,
        relu,
        accumulate,
        *counters,
        biased,
    ]
    c_strides = tuple([size * m * n * math.prod(batch[i + 1 :]) for i in range(len(batch))])
    offsets = (
        _offsets(batch, a_shape[:-2], a_strides[:-2], size),
        _offsets(batch, b_shape[:-2], b_strides[:-2], size),
        _offsets(batch, batch, c_strides, size),
    )
    return TILES, tasks, part, np.concatenate([np.array(plan, np.int64), *offsets])


def _is_contiguous(shape: tuple[int, ...], strides: tuple[int, ...], size: int) -> bool:
    for n, step in zip(shape[::-1], strides[::-1], strict=True):
        if n != 1 and step != size:
            return False
        size *= n
    return True


def multiply(
    a: np.ndarray,
    b: np.ndarray,
    c: np.ndarray,
    accumulate: bool = False,
    bias: np.ndarray | None = None,
    relu: bool = False,
) -> None:
    """`matmul` without its checks: c has the right shape and dtype, is contiguous, and shares no memory with the others."""
    biased, threads = bias is not None, runtime.get_num_threads()
    batch = c.shape[:-2]
    key = a.shape, a.strides, a.dtype, b.shape, b.strides, b.dtype, batch, biased, relu, accumulate, threads
    make = _plan if not batch or math.prod(batch) <= KEPT_ITEMS else _plan.__wrapped__
    what, tasks, part, plan = make(*key)
    if what == TILES and a.flags.aligned and b.flags.aligned:
        bias = NO_BIAS[c.dtype] if bias is None else runtime.contiguous(bias)
        with runtime.lock:
            like, scratch = _reserve(c.dtype, tasks * part)
            recorder = _recorder.get()
            if recorder is not None:
                recorder.hold(like)
                recorder.require("matmul", [a, b, c, bias])
            _gemm(tasks, like, scratch, plan, a, b, c, bias)
    elif what == DOTS and a.flags.aligned and b.flags.aligned:
        bias = NO_BIAS[c.dtype] if bias is None else runtime.contiguous(bias)
        x, out = (a, c) if a.ndim == 2 else (a.reshape(-1, a.shape[-1]), c.reshape(-1, c.shape[-1]))
        few_rows(tasks, runtime.contiguous(x), runtime.contiguous(b.T), out, bias, relu, accumulate)
    elif what == NO_TERMS:
        _without_terms(c, accumulate, bias, relu)
    elif what != NOTHING:  # COPY, or what is not aligned
        multiply(runtime.contiguous(a, c.dtype), runtime.contiguous(b, c.dtype), c, accumulate, bias, relu)


def column_sums(g: np.ndarray) -> np.ndarray:
    """The sum over the rows of g (M, N), float32 or float64 -> (N,)."""
    out = runtime.empty(g.shape[1], runtime.native(g.dtype))
    _column_sums(runtime.tasks(g.size), runtime.contiguous(g, out.dtype), out)
    return out
