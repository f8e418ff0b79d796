"""Memory whose places can be named beforehand: what is computed in it again and again lies where it lay before."""

from __future__ import annotations

import bisect
import math
from typing import Any

import numpy as np

from .modes import Array

CHUNK = 1 << 26  # bytes; what is never written of a chunk costs nothing
LINE = 64  # a cache line: where arrays begin


class Block:
    """A piece of an arena that numpy takes for an array's owner. It is free again when the last array over it is gone."""

    __slots__ = ("arena", "place", "__array_interface__")

    def __init__(self, arena: Arena, place: tuple[int, int, int], shape: tuple[int, ...], dtype: np.dtype[Any]):
        self.arena, self.place = arena, place
        address = arena.bases[place[0]] + place[1]
        self.__array_interface__ = {"data": (address, False), "shape": shape, "typestr": dtype.str, "version": 3}

    def __del__(self) -> None:
        self.arena.free(self.place)


class Arena:
    """Chunks of memory, and the gaps in them (chunk, first byte, end), sorted; a new array takes the smallest that fits."""

    def __init__(self, chunks: list[Array] | None = None):
        self.chunks: list[Array] = []
        self.bases: list[int] = []
        self.free_: list[tuple[int, int, int]] = []
        self.freed: list[tuple[int, int, int]] = []  # meanwhile: an array may be dropped at any moment, in any thread
        self.used: list[int] = []  # of each chunk, the end of what was ever taken
        for chunk in chunks or []:
            self._add(chunk)

    def _add(self, chunk: Array) -> None:
        start = -chunk.ctypes.data % LINE
        self.free_.append((len(self.chunks), start, len(chunk)))
        self.chunks.append(chunk)
        self.bases.append(chunk.ctypes.data)
        self.used.append(start)

    def empty(self, shape: Any, dtype: Any) -> Array:
        """As np.empty: an array that owns its place until it is dropped."""
        dtype = np.dtype(dtype)
        shape = tuple(shape) if isinstance(shape, (tuple, list)) else (int(shape),)
        size = max(-(-math.prod(shape) * dtype.itemsize // LINE) * LINE, LINE)
        gaps = self.gaps
        fitting = [gap for gap in gaps if gap[2] - gap[1] >= size]
        if not fitting:
            self._add(np.empty(max(size + LINE, CHUNK), np.uint8))
            fitting = gaps[-1:]
        gap = min(fitting, key=lambda gap: gap[2] - gap[1])
        chunk, start, end = gap
        gaps.remove(gap)
        if end - start > size:
            bisect.insort(gaps, (chunk, start + size, end))
        self.used[chunk] = max(self.used[chunk], start + size)
        return np.asarray(Block(self, (chunk, start, start + size), shape, dtype))

    @property
    def gaps(self) -> list[tuple[int, int, int]]:
        """The gaps of this moment."""
        while self.freed:
            self._join(self.freed.pop())
        return self.free_

    def free(self, place: tuple[int, int, int]) -> None:
        """Note that a place is free; this happens in the midst of anything, so nothing else is changed here."""
        self.freed.append(place)

    def _join(self, place: tuple[int, int, int]) -> None:
        """Make a place a gap, joined with the gaps beside it."""
        (chunk, start, end), gaps = place, self.free_
        at = bisect.bisect(gaps, place)
        if at < len(gaps) and gaps[at][:2] == (chunk, end):
            end = gaps.pop(at)[2]
        if at > 0 and gaps[at - 1][0] == chunk and gaps[at - 1][2] == start:
            start = gaps.pop(at - 1)[1]
        bisect.insort(gaps, (chunk, start, end))

    def fixed(self, array: Array) -> Array:
        """The same numbers at the same place, without owning it."""
        block: Any = owner_of(array).base
        if array.size == 0 or not isinstance(block, Block):
            return array
        chunk = block.place[0]
        offset = array.__array_interface__["data"][0] - self.bases[chunk]
        return np.ndarray(array.shape, array.dtype, self.chunks[chunk].data, offset, array.strides)

    def poison(self) -> None:
        """Write NaN over all that was ever taken."""
        for chunk, used in zip(self.chunks, self.used, strict=True):
            chunk[:used] = 0xFF


def owner_of(array: Array) -> Array:
    """The array whose memory this one looks at: itself, if it is no view."""
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array


def owns(array: Array) -> bool:
    """Whether the array is no view."""
    base: Any = array.base
    return base is None or type(base) is Block


def in_arena(array: Array) -> bool:
    """Whether the array's memory is a piece of an arena."""
    base: Any = owner_of(array).base
    return type(base) is Block
