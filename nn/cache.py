"""The cache of keys and values that makes generation cheap."""

from __future__ import annotations

from typing import Any

import numpy as np

import tinygrad_tf as tg

from ..graph import Array
from ..modes import Length, _recorder, not_captured


class LayerCache:
    """The keys and values of one layer's past: buffers that grow up to `max_len`, of which `length` rows are valid."""

    def __init__(self, max_len: int):
        self.max_len = max_len
        self._length = 0
        self._keys: Array | None = None  # (B, Hkv, capacity, d_k)
        self._values: Array | None = None  # (B, Hkv, capacity, d_v)

    def append(self, k: tg.Tensor, v: tg.Tensor) -> tuple[tg.Tensor, tg.Tensor]:
        """Add k, v (B, Hkv, T, d) and give all so far, (B, Hkv, length, d).

        Raises:
            ValueError: there is no room for them, or they do not fit the batch, heads or dtype of those before.
        """
        new_keys, new_values, recorder = k._data, v._data, _recorder.get()
        end = self._length + new_keys.shape[2] if recorder is None else self.max_len
        self._keys = self._room(self._keys, new_keys, end)
        self._values = self._room(self._values, new_values, end)
        if recorder is None:
            self._add(new_keys, new_values)
        else:
            self._add_captured(recorder, new_keys, new_values)
        return tg.Tensor(self._keys[:, :, : self._length]), tg.Tensor(self._values[:, :, : self._length])

    def _add(self, new_keys: Array, new_values: Array) -> None:
        first = self._length
        end = first + new_keys.shape[2]
        if end > self.max_len:
            raise ValueError(
                f"KVCache({self.max_len}): holds {first} positions, there is no room for {new_keys.shape[2]} more"
            )
        assert self._keys is not None and self._values is not None
        self._keys[:, :, first:end] = new_keys
        self._values[:, :, first:end] = new_values
        self._length = end

    def _add_captured(self, recorder: Any, new_keys: Array, new_values: Array) -> None:
        """Add, now and at each replay, as long as the buffers stay."""
        keys, values = self._keys, self._values
        recorder.state(self, lambda: self._length, self.truncate)
        recorder.guards.append(lambda: self._keys is keys and self._values is values)
        for buffer in (keys, values):
            recorder.grows(buffer, lambda: self._length)
        recorder.apply(self._add, new_keys, new_values)

    @property
    def length(self) -> int:
        """How many positions it holds; a capture's replays do not ask again, so inside one it cannot be asked: see `offset`."""
        not_captured("Python reads the length of a cache")
        return self._length

    @length.setter
    def length(self, length: int) -> None:
        self._length = length

    @property
    def offset(self) -> int:
        """How many positions came before what is added next: `length`, which a capture's replays ask for anew."""
        if _recorder.get() is None:
            return self._length
        offset = Length(self._length)
        offset.now = lambda: self._length
        return offset

    def _room(self, buffer: Array | None, new: Array, end: int) -> Array:
        """A buffer with room for `end` rows: this one if it fits, else a larger one with the valid rows in it."""
        batch, heads, _, width = new.shape
        if buffer is not None:
            had = (buffer.shape[0], buffer.shape[1], buffer.shape[3], buffer.dtype)
            fits = had == (batch, heads, width, new.dtype)
            if self._length > 0 and not fits:
                raise ValueError(
                    f"KVCache({self.max_len}): holds (batch, heads, width, dtype) {had}, "
                    f"got {(batch, heads, width, new.dtype)}"
                )
            if fits and buffer.shape[2] >= end:
                return buffer
        capacity = min(self.max_len, max(64, 2 * end))
        grown = np.zeros((batch, heads, capacity, width), dtype=new.dtype)
        if buffer is not None and self._length > 0:
            grown[:, :, : self._length] = buffer[:, :, : self._length]
        return grown

    def truncate(self, length: int) -> None:
        """Forget all but the first `length` positions; the buffers stay."""
        self._length = min(self._length, length)

    @property
    def nbytes(self) -> int:
        """Bytes of memory in its buffers."""
        return sum(b.nbytes for b in (self._keys, self._values) if b is not None)


class KVCache:
    """The keys and values that a model's attention layers have seen; `cache[i]` is the part of layer i.

    Args:
        max_len: how many positions it may hold.
        n_layers: how many attention layers share it (default 1).

    A call with a cache records no gradients: it keeps values, not their history.

    >>> import tinygrad_tf as tg
    >>> from tinygrad_tf import nn
    >>> mha, cache = nn.MultiHeadAttention(8, 2, causal=True), nn.KVCache(16)
    >>> y = mha(tg.ones(1, 3, 8), cache=cache)
    >>> y = mha(tg.ones(1, 1, 8), cache=cache)
    >>> cache.length
    4
    """

    def __init__(self, max_len: int, n_layers: int = 1):
        if max_len < 1 or n_layers < 1:
            raise ValueError(f"KVCache({max_len}, {n_layers}): both must be at least 1")
        self.max_len = max_len
        self.layers = [LayerCache(max_len) for _ in range(n_layers)]

    @property
    def length(self) -> int:
        """How many positions every layer holds."""
        return min([layer.length for layer in self.layers])

    @property
    def offset(self) -> int:
        """How many positions came before those that the first layer is given next."""
        return self.layers[0].offset

    @property
    def nbytes(self) -> int:
        """Bytes of memory in the buffers of all layers."""
        return sum([layer.nbytes for layer in self.layers])

    def __getitem__(self, index: int) -> LayerCache:
        return self.layers[index]

    def __len__(self) -> int:
        return len(self.layers)

    def truncate(self, length: int) -> None:
        """Forget all but the first `length` positions."""
        for layer in self.layers:
            layer.truncate(length)

    def reset(self) -> None:
        """Forget everything."""
        self.truncate(0)
